"""The client: one record in, a few bytes out, and no way to hand it coins."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hubbub.device import client as module
from hubbub.device.client import Client, privatize
from hubbub.model.record import GRID, Entries, Summary
from hubbub.primitives.coins import InsecureCoins, SecretCoins, SimulatedSeeds
from hubbub.server.fold import aggregate


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [
        ("collision", {"buckets": 16}, 3),
        ("collision", {"buckets": 16, "seed_bits": 12}, 2),
        ("coco", {"buckets": 8}, 3),
        ("sparse_sum", {"values": "signed", "noise": "bit", "seed_bits": 7}, 1),
    ],
)
def test_a_report_has_the_width_of_the_layout(
    name: str, parameters: dict[str, Any], width: int, make_task: Any
) -> None:
    task = make_task(name, **parameters)
    assert task.mechanism.layout.width == width
    client = Client(task)
    for record in ({}, {"1": 1.0}, {"1": 1, "2": 0, "63": 1}, {str(k): 1 for k in range(10)}):
        payload = client.report(record)
        assert isinstance(payload, bytes)
        assert len(payload) == width
        assert aggregate(task, payload).count == 1


def test_reports_count_for_what_they_hold(make_task: Any) -> None:
    """At epsilon 12 every report of {7} with one entry names key 7's bucket (wrong: 30 * 3e-4 for one)."""
    task = make_task(epsilon=12.0, max_entries=1, buckets=64)
    client = Client(task)
    state = aggregate(task, b"".join(client.report(["7"]) for _ in range(30)))
    tally = task.mechanism.tally(state, task.keys, task.keys.all_ids())[0]
    assert tally[7] >= 27
    assert np.delete(tally, 7).max() < 10


def test_the_summary_adds_up(make_task: Any) -> None:
    client = Client(make_task())
    client.report({"1": 1, "2": 0})
    client.report([str(k) for k in range(6)])
    assert client.summary == Summary(records=2, entries=7, absent=1, sampled_records=1, dropped_entries=2)


@pytest.mark.parametrize("record", ["17", b"17", 17, None])
def test_what_is_no_record_is_refused_and_changes_nothing(record: Any, make_task: Any) -> None:
    client = Client(make_task())
    client.report(["1"])
    before = client.summary
    with refused():
        client.report(record)
    assert client.summary == before


def test_nobody_can_hand_coins_to_a_client(make_task: Any) -> None:
    assert list(inspect.signature(Client).parameters) == ["task"]
    assert list(inspect.signature(Client.report).parameters) == [
        "self",
        "record",
        "nonce",
    ]  # public seeds follow from it
    with pytest.raises(TypeError):
        Client(make_task(), InsecureCoins(1))  # type: ignore[call-arg]


def test_a_client_flips_secret_coins(make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh ones for every report, whatever was set on the client from outside."""
    used: list[Any] = []

    def spy(task: Any, entries: Entries, coins: Any, seeds: Any) -> Any:
        used.append(coins)
        return privatize(task, entries, coins, seeds)

    monkeypatch.setattr(module, "privatize", spy)
    client = Client(make_task())
    client.coins = InsecureCoins(1)  # type: ignore[attr-defined]
    client.report(["1"])
    client.report(["1"])
    assert [type(coins) for coins in used] == [SecretCoins, SecretCoins]


def test_privatizing_in_chunks_keeps_every_record_in_its_place(
    make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record i holds key i only; at epsilon 12 report i names its bucket (3e-4 odds against, each)."""
    task = make_task(epsilon=12.0, max_entries=1, buckets=64)
    count = 50
    entries = Entries(
        np.arange(count, dtype=np.uint64), np.full(count, GRID), np.arange(count + 1, dtype=np.int64)
    )
    done: list[int] = []
    monkeypatch.setattr(module, "CHUNK", 7)
    packed, _ = privatize(task, entries, InsecureCoins(1), SimulatedSeeds(2), done.append)
    assert done == [7] * 7 + [1]
    states = [aggregate(task, row) for row in packed]
    right = [
        int(task.mechanism.tally(state, task.keys, np.array([i], dtype=np.uint64))[0, 0])
        for i, state in enumerate(states)
    ]
    assert sum(right) >= 47


def test_the_same_coins_make_the_same_reports(make_task: Any) -> None:
    task = make_task()
    entries = Entries(np.arange(40, dtype=np.uint64), np.full(40, GRID), np.arange(0, 41, 4, dtype=np.int64))

    def packed(coins: int, seeds: int) -> bytes:
        return privatize(task, entries, InsecureCoins(coins), SimulatedSeeds(seeds))[0].tobytes()

    assert packed(1, 2) == packed(1, 2)
    assert packed(1, 2) != packed(3, 2)
    assert packed(1, 2) != packed(1, 3)
