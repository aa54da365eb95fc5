"""Several messages: a random number of reports of one record, each made and sealed on its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers import refused, small_task
from hubbub.checks.conformance import task_for
from hubbub.device.client import Client, privatize
from hubbub.device.ledger import Ledger
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import Entries
from hubbub.primitives.coins import InsecureCoins, SecretCoins, SimulatedSeeds, SystemSeeds
from hubbub.privacy.compose import Round
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task
from hubbub.simulation.populations import distinct_population

ONE = small_task("collision", epsilon=2.0, max_entries=2, buckets=16)
TASK = Task.parse({**ONE.model_dump(), "mechanism": ONE.mechanism, "messages": 3})


def key_pair() -> tuple[bytes, bytes]:
    curve = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.x25519")
    private = curve.X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def test_a_task_says_so_and_older_tasks_keep_their_digest(tmp_path: Path) -> None:
    TASK.save(tmp_path / "t.toml")
    assert Task.load(tmp_path / "t.toml") == TASK
    assert TASK.digest != ONE.digest
    assert "messages" not in ONE.to_toml()
    assert "That is for a single report. A device sends 3 on average" in TASK.guarantee.words()
    assert "nobody has to be trusted" not in TASK.guarantee.words()


@pytest.mark.parametrize("messages", [-1, 0.0001, 20_000, float("nan"), float("inf")])
def test_numbers_that_are_no_means(messages: float) -> None:
    with refused():
        Task.parse({**ONE.model_dump(), "mechanism": ONE.mechanism, "messages": messages})


def test_what_several_messages_are_not_for() -> None:
    with refused("several messages are for"):
        Task.parse({**small_task("sparse_sum", unit="entry").model_dump(), "messages": 2})
    with refused("reports_per_period must be 1"):
        Task.parse({**TASK.model_dump(), "mechanism": ONE.mechanism, "reports_per_period": 2})


def test_a_client_makes_as_many_as_it_draws() -> None:
    client = Client(TASK)
    made = [client.reports(["1", "2"]) for _ in range(200)]
    counts = [len(reports) for reports in made]
    assert min(counts) < max(counts)
    assert 2 < np.mean(counts) < 4  # eight standard deviations of the mean of 200
    assert {len(report) for reports in made for report in reports} == {TASK.mechanism.layout.width}
    with refused("call reports(record)"):
        client.report(["1"])
    assert len(Client(ONE).reports(["1"])) == 1


def test_messages_of_many_records_are_those_of_each() -> None:
    """How often a report of each record is made: every record is repeated as often as it was drawn."""
    entries = distinct_population(6000, 10, 2, seed=1).entries
    packed, _ = privatize(TASK, entries, InsecureCoins(1), SimulatedSeeds(2))
    assert abs(len(packed) - 18_000) < 6 * np.sqrt(18_000)
    rows = [row.tobytes() for row in packed]
    assert rows == sorted(rows)  # who sent which is not in their order


def test_records_are_repeated_whole() -> None:
    entries = Entries(np.array([5, 6, 7], np.uint64), np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    twice = entries.take(np.array([0, 0, 1]))
    assert twice.ids.tolist() == [5, 6, 5, 6]
    assert twice.values.tolist() == [1, 2, 1, 2]
    assert twice.offsets.tolist() == [0, 2, 4, 4]
    assert len(entries.take(np.zeros(0, np.int64))) == 0


def test_nobody_at_all() -> None:
    nobody = Entries(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(1, np.int64))
    packed, _ = privatize(TASK, nobody, SecretCoins(), SystemSeeds())
    assert packed.shape == (0, TASK.mechanism.layout.width)


def test_a_ledger_seals_each_once_and_gives_the_same_items_again(tmp_path: Path) -> None:
    ledger, (_, public) = Ledger(tmp_path / "ledger"), key_pair()
    items = ledger.sealed(TASK, ["1"], public)
    assert len(items) % sealed_width(TASK) == 0
    assert ledger.sealed(TASK, ["2"], public) == items
    assert ledger.spent(TASK) == len(items) // sealed_width(TASK) * 2.0
    with refused("for a shuffler"):
        Ledger(tmp_path / "other").report(TASK, ["1"])


def test_a_ledger_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    ledger, (_, public) = Ledger(tmp_path / "ledger"), key_pair()
    ledger.sealed(TASK, ["1"], public)
    book = json.loads((tmp_path / "ledger").read_text())
    book["tasks"][TASK.digest.hex()]["periods"]["once"][0]["sealed"] += "00"
    (tmp_path / "ledger").write_text(json.dumps(book))
    with refused("is not a ledger"):
        ledger.sealed(TASK, ["1"], public)


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long records with many messages are worked on piece by piece: as many messages, and what was lost said once."""
    entries = distinct_population(50, 10, 4, seed=1).entries
    before, summary = privatize(TASK, entries, InsecureCoins(1), SimulatedSeeds(2))
    monkeypatch.setattr("hubbub.device.client._MOST_ENTRIES", 7)
    after, same = privatize(TASK, entries, InsecureCoins(1), SimulatedSeeds(2))
    assert len(before) == len(after) > 0
    assert summary == same
    assert summary.sampled_records == int((np.diff(entries.offsets) > 2).sum())


def test_weights_that_are_none_hide_nothing() -> None:
    parameters = {"epsilon": 1.0, "max_entries": 2, "size": 10, "values": "signed"}
    published = task_for(make_mechanism("privkv", as_published=True, **parameters), 10)
    with refused("several messages are for"):
        Task.parse({**published.model_dump(), "mechanism": published.mechanism, "messages": 2})


def test_a_ledger_of_rounds_does_not_know_people() -> None:
    with refused("random number of messages"):
        Round.of(TASK, 1000)
