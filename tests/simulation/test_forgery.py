"""Forged reports: valid, repeatable, and as strong as they are said to be."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from hubbub.checks.conformance import examples, outcomes, task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.influence import of_both
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.coins import SimulatedSeeds
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.simulation.forgery import aims, forge

_ALL = {repr(mechanism): mechanism for mechanism in examples()}
_KEYS = {
    "closed": {"kind": "closed", "vocabulary": ["a", "b", "c", "d"]},
    "cohorts": {"kind": "closed", "vocabulary": ["a", "b", "c", "d"], "cohorts": 3},
    "folded": {"kind": "folded", "bits": 12},
    "wide": {"kind": "wide"},
    "tree": {"kind": "tree", "tree": {"longest": 3, "levels": [1, 2], "shares": [1, 1, 2]}},
}


def _gain(task: Task, packed: object, ids: UInt64s, weights: Floats) -> float:
    """What these reports make of the weighted sum of estimates, through the path of every report."""
    state = aggregate(task, packed)  # type: ignore[arg-type]
    found = of_both(task.mechanism.moments(state, task.keys, ids))
    return float((np.nan_to_num(found) * weights).sum())


@pytest.mark.parametrize("mechanism", _ALL.values(), ids=[each.name for each in _ALL.values()])
def test_every_mechanism_can_be_attacked(mechanism: Mechanism) -> None:
    """Reports are valid and repeatable, and the maximal attack does at least what the others do."""
    task = task_for(mechanism, 8)
    ids = task.keys.ids_of([1, 2])
    for quantity in mechanism.quantities:
        for direction in ("up", "down"):
            weights = aims(task, 2, quantity, direction)
            gains = {}
            for attack in ("random", "input", "maximal"):
                options = {"seed": 5, "quantity": quantity, "direction": direction}
                packed = forge(task, 64, attack, [1, 2], **options)  # type: ignore[arg-type]
                assert packed.shape == (64, mechanism.layout.width)
                assert np.array_equal(packed, forge(task, 64, attack, [1, 2], **options))  # type: ignore[arg-type]
                gains[attack] = _gain(task, packed, ids, weights)
            assert gains["maximal"] > 0
            assert gains["maximal"] >= max(gains.values())


@pytest.mark.parametrize("name", ["collision", "sketch_response", "coco", "sampled", "hadamard", "freq_est"])
def test_no_report_is_louder(name: str) -> None:
    """Of all reports there are (of 64 seeds), none gains more for two keys than those of the maximal attack."""
    extra = {"seed_bits": 6} if name in ("collision", "sketch_response", "coco", "sampled") else {}
    extra |= {"bits": 4} if name == "hadamard" else {"size": 4} if name == "freq_est" else {}
    entries = 1 if name in ("hadamard", "freq_est") else 2
    values = "signed" if name == "coco" else "set"
    mechanism = make_mechanism(name, epsilon=1.0, max_entries=entries, values=values, **extra)
    task = task_for(mechanism, 4)
    limits = [field.limit for field in mechanism.layout.fields]
    assert np.prod(limits) == limits[0] * outcomes(mechanism) <= 1 << 12
    every = np.stack(np.unravel_index(np.arange(np.prod(limits)), limits), axis=1).astype(np.uint64)
    ids = task.keys.ids_of([0, 3])
    for direction in ("up", "down"):
        weights = aims(task, 2, None, direction)  # type: ignore[arg-type]
        best = max(
            float(
                (np.nan_to_num(mechanism.contributions(task.keys, report[None], ids))[:, 0] * weights).sum()
            )
            for report in every
        )
        packed = forge(task, 20, "maximal", [0, 3], seed=1, direction=direction)  # type: ignore[arg-type]
        for report in packed:
            assert _gain(task, report.tobytes(), ids, weights) == pytest.approx(best)


@pytest.mark.parametrize("kind", _KEYS)
def test_keys_of_every_kind(kind: str) -> None:
    """A forged report of the maximal attack speaks for its key, whatever kind of key it is."""
    parameters = {"name": "collision", "epsilon": 1.0, "max_entries": 4}
    task = Task.parse({"name": "kinds", "keys": _KEYS[kind], "mechanism": parameters})
    packed = forge(task, 50, "maximal", ["b"], seed=2)
    ids = task.keys.ids_of(["b"])
    rates = task.mechanism.rates  # type: ignore[attr-defined]
    most = (1 - rates.absent) / (rates.held - rates.absent)
    assert _gain(task, packed, ids, aims(task, 1, None, "up")) == pytest.approx(most)
    assert task.mechanism.heard(aggregate(task, packed), task.keys) == 50


def test_seeds_are_ground() -> None:
    """16 bits of seed and 128 buckets: of ten chosen keys, one report speaks for three and more."""
    mechanism = make_mechanism("sketch_response", epsilon=1.0, max_entries=32)
    assert (mechanism.buckets, mechanism.seed_bits) == (128, 16)  # type: ignore[attr-defined]
    task = task_for(mechanism, 1000)
    targets = [5, 17, 900]
    reports = mechanism.layout.unpack(forge(task, 100, "maximal", targets, seed=3))
    assert (mechanism.scores(task.keys, reports, task.keys.ids_of(targets)) == 3).all()
    ten = mechanism.layout.unpack(forge(task, 100, "maximal", list(range(10)), seed=3))
    assert (mechanism.scores(task.keys, ten, task.keys.ids_of(list(range(10)))) >= 3).all()


def test_seeds_that_are_given() -> None:
    """Each report takes the best of its own seeds: those of a nonce would pass, in this order, and none is better."""
    parameters = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8, "buckets": 4, "seeds": 5}
    task = Task.parse({"name": "x", "keys": _KEYS["closed"], "mechanism": parameters, "seed_from": "server"})
    mechanism, targets = task.mechanism, ["a", "b", "c"]
    assert len(forge(task, 0, "maximal", targets, seed=4)) == 0
    reports = mechanism.layout.unpack(forge(task, 200, "maximal", targets, seed=4))
    groups = SimulatedSeeds(5).draw(mechanism.layout.fields[0].bits, 1000).reshape(200, 5)
    assert (groups == reports[:, :1]).any(axis=1).all()
    ids, weights = task.keys.ids_of(targets), aims(task, 3, None, "up")
    said = mechanism.contributions(task.keys, reports, ids)[0].sum(axis=1)
    for seeds in groups.T:
        other = mechanism.louder(task.keys, np.column_stack([seeds, reports[:, 1:]]), ids, weights)
        assert (mechanism.contributions(task.keys, other, ids)[0].sum(axis=1) <= said + 1e-9).all()


def test_an_invented_record_is_reported_honestly() -> None:
    """The input attack has the law of honest reports: a key that all forgers hold is estimated at a share of 1.

    The mean of 40,000 reports is within 5 standard errors but for one time in a million, seeded.
    """
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=2)
    task, count = task_for(mechanism, 50), 40_000
    for targets in ([7, 9], [7]):
        state = aggregate(task, forge(task, count, "input", targets, seed=8))
        found = mechanism.moments(state, task.keys, task.keys.ids_of([*targets, 30]))
        assert found.frequency is not None
        wide = 5 * np.sqrt(mechanism.variance("frequency", count, 1.0))
        assert np.abs(found.frequency - [*[1.0] * len(targets), 0.0]).max() < wide
    random = aggregate(task, forge(task, count, "random", seed=9))
    found = mechanism.moments(random, task.keys, task.keys.all_ids())
    assert found.frequency is not None
    assert np.abs(found.frequency).max() < 6 * np.sqrt(mechanism.variance("frequency", count))


def test_more_targets_than_entries() -> None:
    """Invented records hold as many targets as count, and all targets come up."""
    task = task_for(make_mechanism("freq_est", epsilon=16.0, size=8), 8)
    state = aggregate(task, forge(task, 600, "input", [1, 4, 6], seed=8))
    assert (state.totals[[1, 4, 6], 0] > 150).all()
    assert (state.totals[[0, 2, 3, 5, 7], 0] < 20).all()


def test_what_cannot_be_forged_is_refused() -> None:
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2), 8)
    for wrong in (
        {"attack": "clever"},
        {"attack": "maximal", "targets": []},
        {"attack": "input", "targets": [99]},
        {"attack": "maximal", "targets": [1], "direction": "sideways"},
        {"attack": "maximal", "targets": [1], "quantity": "mean"},
        {"attack": "random", "count": -1},
    ):
        with pytest.raises(Refused):
            forge(task, **{"count": 5, "seed": 1, **wrong})  # type: ignore[arg-type]
    assert len(forge(task, 0, "maximal", [1], seed=1)) == 0


def test_forged_reports_differ_where_they_can() -> None:
    """A forger has as many seeds as there are: equal reports would be noticed."""
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2), 8)
    packed = forge(task, 500, "maximal", [3], seed=4)
    assert len({row.tobytes() for row in packed}) == 500
    for one, two in combinations(("random", "input", "maximal"), 2):
        assert not np.array_equal(forge(task, 9, one, [3], seed=4), forge(task, 9, two, [3], seed=4))  # type: ignore[arg-type]
