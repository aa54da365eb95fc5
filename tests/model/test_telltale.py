"""Telltales: what is said about honest reports holds for every record, by enumeration through the shipped code."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.checks.conformance import examples
from hubbub.checks.exact import NotEnumerable, report_law
from hubbub.checks.worlds import World, examples_like, task_for, worlds
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.shared import bucket_shares, hashed
from hubbub.model import hashing
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries
from hubbub.model.telltale import Telltale, outcome_bounds, sharing
from hubbub.protocol.task import Task
from hubbub.server.seed_tests import shared_buckets
from hubbub.simulation.rehearsal import simulate

#: What is read off the seed, or drawn beside it; an enumeration has the seed given.
OF_THE_SEED = ("seeds", "high_seeds", "rows", "buckets")


def small(mechanism: Mechanism) -> list[Task]:
    """The worlds in which a small version of the mechanism is enumerated."""
    task = task_for(mechanism.miniature(), 3)
    return [world.task for world in worlds(task, 2)[:2]]


def cases() -> list[Mechanism]:
    """One of each kind of telltale, at least."""
    found: dict[tuple[object, ...], Mechanism] = {}
    for mechanism in examples():
        if mechanism.name != "gaussian":
            mark = (mechanism.name, mechanism.values, getattr(mechanism, "mode", ""))
            found.setdefault((*mark, getattr(mechanism, "unit", "")), mechanism)
    found["window",] = make_mechanism("sparse_sum", epsilon=1.0, max_entries=2, noise="window")
    found["laplace",] = make_mechanism("sparse_sum", epsilon=1.0, max_entries=2, noise="laplace")
    return list(found.values())


def breaches(telltale: Telltale, laws: list[dict[bytes, float]], task: Task) -> float:
    """By how much a cell's probability leaves its bounds, at worst, over these laws."""
    worst = 0.0
    for law in laws:
        numbers = task.mechanism.layout.unpack(b"".join(law))
        cells = telltale.read(numbers)
        chances = np.bincount(
            cells, weights=np.array([float(mass) for mass in law.values()]), minlength=telltale.cells
        )
        over, under = chances - telltale.most, telltale.least - chances
        worst = max(worst, float(over.max()), float(under.max()))
    return worst


@pytest.mark.parametrize("mechanism", cases(), ids=lambda m: f"{m.name}-{m.values}-{getattr(m, 'unit', '')}")
def test_honest_reports_keep_to_the_bounds(mechanism: Mechanism) -> None:
    """For every record over three keys: each cell, and the likeliest report of all."""
    for task in small(mechanism):
        records, looked = examples_like(task, 3), 0
        try:
            laws = [
                {report: float(mass) for report, mass in report_law(task, record, 1, 40_000).items()}
                for record in records
            ]
        except NotEnumerable:
            continue
        seed = 1 / 2 ** task.mechanism.layout.fields[0].bits
        most = max(mass for law in laws for mass in law.values())
        assert most * seed * task.mechanism.seeds_per_report <= task.mechanism.likeliest() * (1 + 1e-9)
        for telltale in task.mechanism.telltales(task.keys):
            if telltale.name not in OF_THE_SEED:
                assert breaches(telltale, laws, task) <= 1e-9
                looked += 1
        assert looked or mechanism.telltales(task.keys)[0].name in OF_THE_SEED


@pytest.mark.parametrize("name", ["hadamard", "privkv", "pckv_ue"])
def test_bounds_that_are_too_strict_are_noticed(name: str) -> None:
    """The most that is possible, lowered by 30%."""
    mechanism = next(iter(m for m in examples() if m.name == name))
    world = worlds(task_for(mechanism.miniature(), 3), 2)[0]
    task = World(world.task, 1).task
    laws = [
        {report: float(mass) for report, mass in report_law(task, record, 1).items()}
        for record in examples_like(task, 3)
    ]
    telltale = task.mechanism.telltales(task.keys)[-1]
    assert breaches(telltale, laws, task) <= 1e-9
    strict = dataclasses.replace(telltale, most=0.7 * np.asarray(telltale.most))
    assert breaches(strict, laws, task) > 1e-3


@pytest.mark.parametrize("mode", [{"values": "set"}, {"values": "signed"}])
def test_records_make_seeds_likelier_up_to_the_bound(mode: dict[str, str]) -> None:
    """Sixteen seeds, and everybody has one record: counts below the bound (6 deviations), and unlike a draw's.

    False alarms: below 1e-6 over both modes and three records.
    """
    mechanism = make_mechanism(
        "sketch_response", epsilon=4.0, max_entries=3, seeds=4, buckets=4, seed_bits=4, **mode
    )
    task = task_for(mechanism, 8)
    low, users = mechanism.telltales(task.keys)[0], 40_000
    assert not low.exact
    uneven = 0.0
    for keys in ([0, 1, 2], [3, 5, 6], [7]):
        ids = np.tile(np.array(keys, dtype=np.uint64), users)
        offsets = np.arange(users + 1, dtype=np.int64) * len(keys)
        packed = simulate(task, Entries(ids, np.full(len(ids), GRID, dtype=np.int64), offsets), 5).packed
        counts = np.bincount(low.read(mechanism.layout.unpack(packed)), minlength=low.cells)
        most, least = users * float(low.most), users * float(low.least)
        assert counts.max() <= most + 6 * np.sqrt(most)
        assert counts.min() >= least - 6 * np.sqrt(least)
        uneven = max(uneven, float(((counts - users / 16) ** 2).sum() / (users / 16)))
    if mode["values"] == "set":
        assert uneven > 100, "records leave no trace in seeds here, so the bound was not put to the test"


def test_bounds_of_sets_of_outcomes() -> None:
    """Of 5 outcomes, 2 have weight 3 and the others 1: the total is 9."""
    assert outcome_bounds((2, 5, 3, 1), 1) == (1 / 9, 3 / 9)
    assert outcome_bounds((2, 5, 3, 1), 4) == (6 / 9, 8 / 9)
    assert outcome_bounds((2, 5, 3, 1), 5) == (1.0, 1.0)


def all_rows(codes: list[int]) -> Any:
    """Hashing as it is, but for two rows of three bits that are the seed itself, so that all seeds are all rows."""

    def hash_entries(
        family: str, keys: Any, seeds: Any, ids: Any, offsets: Any, buckets: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owner = seeds[np.repeat(np.arange(len(seeds)), np.diff(offsets))].astype(np.int64)
        code = np.array([codes[key] if key < 3 else 1 + key % 7 for key in ids.tolist()], dtype=np.int64)
        low, high = (np.bitwise_count(code & rows).astype(np.int64) & 1 for rows in (owner % 8, owner // 8))
        return low + 2 * high, np.ones(len(ids), dtype=np.int64)

    return hash_entries


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("collision", {"max_entries": 3}),
        ("collision", {"max_entries": 2, "values": "signed"}),
        ("coco", {"max_entries": 2, "values": "signed"}),
        ("sampled", {"max_entries": 3}),
        ("local_hashing", {"max_entries": 1}),
        ("sketch_response", {"max_entries": 3, "seeds": 1}),
    ],
)
def test_shares_of_buckets(monkeypatch: pytest.MonkeyPatch, name: str, more: dict[str, Any]) -> None:
    """Over all rows of three bits and all coins: buckets but 0 are named equally often, and 0 within its bounds.

    Records are every one over three keys of which the codes add up to 0, where bucket 0 differs most, and over three of
    which they do not.
    """
    mechanism = make_mechanism(name, epsilon=1.0, buckets=4, seed_bits=6, **more)
    task = task_for(mechanism, 3)
    (telltale,) = [each for each in mechanism.telltales(task.keys) if each.name == "buckets"]
    found = []
    for codes in ([1, 2, 3], [1, 2, 4])[: 2 if name == "collision" else 1]:
        monkeypatch.setattr(hashed, "hash_entries", all_rows(codes))
        for record in examples_like(task, 3):
            shares = np.zeros(4)
            for seed in range(64):
                for report, mass in report_law(task, record, seed, 400_000).items():
                    shares[telltale.read(mechanism.layout.unpack(report))[0]] += float(mass) / 64
            assert shares.sum() == pytest.approx(1, abs=1e-12)
            assert np.ptp(shares[1:]) <= 1e-12
            found.append(shares)
    monkeypatch.setattr(bucket_shares, "_luck", lambda *_: 0.0)
    (telltale,) = [each for each in mechanism.telltales(task.keys) if each.name == "buckets"]
    assert np.all(np.array(found) <= telltale.most + 1e-12)
    assert np.all(np.array(found) >= telltale.least - 1e-12)
    uneven = float(np.abs(np.array(found)[:, 0] - 0.25).max())
    assert (uneven > 1e-4) is (mechanism.max_entries == 3 and name != "sampled")


def test_shares_of_seeds_under_which_codes_share_a_bucket() -> None:
    """Of all differences of 16-bit codes, for a few salts: below the bound, and not far below."""
    for salt in ("00", "17", "a5"):
        for buckets in (2, 16, 64):
            task = Task.parse(
                {
                    "name": "x",
                    "keys": {"kind": "closed", "size": 300, "salt": salt * 16},
                    "mechanism": {
                        "name": "sketch_response",
                        "epsilon": 1.0,
                        "max_entries": 2,
                        "buckets": buckets,
                        "seed_bits": 16,
                    },
                }
            )
            rows = hashing.seed_rows(
                task.keys, np.arange(1 << 16, dtype=np.uint64), (buckets - 1).bit_length()
            )
            found = shared_buckets(task.mechanism, task.keys, rows[:, 1:].astype(np.int64)).max() / (1 << 16)  # type: ignore[arg-type]
            bound = sharing(buckets, 16, task.keys.bits)
            assert found <= bound
            assert bound - 1 / buckets < 2.5 * (found - 1 / buckets)
