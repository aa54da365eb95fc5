"""Enumeration: the whole path, worlds where keys meet and part, exact comparisons, and nothing random but coins."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hubbub.checks.enumerated import exact_audit, losses_between, neighbour_losses
from hubbub.checks.exact import (
    Enumeration,
    Impure,
    TooManyOutcomes,
    exceeds,
    law_of,
    leaves_of,
    loss_with_delta,
    report_law,
    worst_ratio,
)
from hubbub.checks.worlds import (
    _falls,
    neighbours_in,
    small_task,
    small_tasks,
    task_for,
    telling_records,
    worlds,
)
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.gaussian import GaussianNoise
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.pckv_ue import PCKVUE
from hubbub.mechanisms.repeated import Repeated
from hubbub.mechanisms.sampled import Sampled
from hubbub.mechanisms.sketch_response import SketchResponse
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.mechanisms.value_list import ValueList
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.samplers import UNIT, favoured_weight

MECHANISMS: list[Mechanism] = [
    Collision(epsilon=1, max_entries=64),
    CoCo(epsilon=1, max_entries=64),
    SketchResponse(epsilon=1, max_entries=64),
    SketchResponse(epsilon=1, max_entries=64, values="signed"),
    HadamardResponse(epsilon=3),
    Compressive(epsilon=3, rows=1 << 13),
    Sampled(epsilon=8, max_entries=64),
    Repeated(epsilon=8, max_entries=64, unit="entry"),
    SparseSum(epsilon=1, max_entries=64, values="signed"),
    SparseSum(epsilon=1, max_entries=64, unit="entry", values="signed"),
    SparseSum(epsilon=1, max_entries=64, unit="l1", distance=9, values="signed"),
    PCKVUE(epsilon=1, max_entries=64, size=100),
    ValueList(epsilon=1, size=100),
    GaussianNoise(epsilon=1, max_entries=64, size=100),
]


@pytest.mark.parametrize(
    "mechanism", MECHANISMS, ids=lambda mechanism: f"{mechanism.name}-{mechanism.values}"
)
def test_small_instances_are_of_the_class_that_was_given(mechanism: Mechanism) -> None:
    """Whatever a subclass overrides, and whatever it adds, is in what is enumerated."""

    class Faulty(type(mechanism)):  # type: ignore[misc]
        mark: int = 0

    given = Faulty(**mechanism.model_dump(), mark=7)
    for entries in (1, 2):
        small = small_task(task_for(given, 100), 4, entries).mechanism
        assert type(small) is Faulty
        assert small.mark == 7
        assert small.max_entries <= entries
        assert small.guarantee().epsilon == mechanism.epsilon


@pytest.mark.parametrize(
    "mechanism", MECHANISMS[:11], ids=lambda mechanism: f"{mechanism.name}-{mechanism.values}"
)
def test_keys_meet_and_part(mechanism: Mechanism) -> None:
    """In the worlds that are looked at together, every two keys are told apart, and meet where that is possible."""
    small = small_task(task_for(mechanism, 100), 4)
    places = worlds(small)
    assert len(places) <= 5
    if not hasattr(mechanism, "family"):
        return
    names = ["0", "1", "2", "3"]
    apart, together = np.zeros((4, 4), dtype=bool), np.zeros((4, 4), dtype=bool)
    for world in places:
        seed = np.array([world.seed], dtype=np.uint64)
        bucket, sign = (part[0, :, 0] for part in _falls(world.task, seed, names))
        same = bucket[:, None] == bucket
        apart |= ~same | (sign[:, None] != sign)
        together |= same
    off_diagonal = ~np.eye(4, dtype=bool)
    assert apart[off_diagonal].all()
    assert together[off_diagonal].all()


def test_salts_are_looked_through() -> None:
    """Several salts are used, and really used: codes and rows follow from them."""
    found = worlds(small_task(task_for(SketchResponse(epsilon=1, max_entries=4, values="signed"), 40), 4))
    assert len({world.task.keys.salt for world in found}) > 1
    for world in found:
        halves = bytes.fromhex(world.task.keys.salt)[:8], bytes.fromhex(world.task.keys.salt)[8:]
        assert world.task.keys.salt_words == tuple(int.from_bytes(half, "little") for half in halves)


@pytest.mark.parametrize(
    "mechanism", MECHANISMS[:13], ids=lambda mechanism: f"{mechanism.name}-{mechanism.values}"
)
def test_records_are_short_full_and_too_long(mechanism: Mechanism) -> None:
    for entries in (1, 2):
        small = small_task(task_for(mechanism, 100), 5, entries)
        records = telling_records(small)
        limit = small.mechanism.max_entries
        most = limit if mechanism.refuses_longer else min(2 * limit + 1, small.keys.count)
        assert {len(record) for record in records} == set(range(most + 1))
        assert len(records) == len({frozenset(record.items()) for record in records})
        if mechanism.values == "signed":
            steps = {value * 32 % 1 for record in records for value in record.values()}
            assert len(steps) > 1, "nothing has to be rounded"
            assert {7.0, -7.0} <= {value for record in records for value in record.values()}, (
                "nothing to be clipped"
            )


def test_rounding_happens_at_the_distance_that_is_protected() -> None:
    """Unit l1: some neighbours are exactly as far apart as is protected, with values between the grid's points."""
    small = small_task(
        task_for(SparseSum(epsilon=1, max_entries=4, unit="l1", distance=3, values="signed"), 9), 4
    )
    assert (small.mechanism.grid_bits, small.guarantee.distance) == (1, 1.0)  # type: ignore[attr-defined]
    pairs = [(one, two) for one in telling_records(small) for two in telling_records(small)]
    exact = [
        one
        for one, two in pairs
        if sum(abs(one.get(key, 0) - two.get(key, 0)) for key in one.keys() | two.keys()) == 1
    ]
    assert any(value * 2 % 1 for record in exact for value in record.values())


def test_small_instances_keep_what_is_the_tasks_own() -> None:
    """Several buckets are not left for one, nor one for several; and a small distance is not all that is looked at."""

    def shapes(**own: Any) -> list[tuple[str, int, float]]:
        mechanism = SparseSum(epsilon=1, values="signed", unit="l1", round_at="bins", **own)
        found = small_tasks(task_for(mechanism, 100), 5)
        return [(name, small.mechanism.buckets, small.mechanism.distance) for name, small in found]  # type: ignore[attr-defined]

    assert shapes(max_entries=64, distance=1.0, buckets=8) == [
        ("at most 2 entries", 2, 1.0),
        ("at most 1 entry", 1, 1.0),
        ("at most 1 entry, 2 buckets", 2, 1.0),
    ]
    assert shapes(max_entries=64, distance=0.5, buckets=1) == [
        ("at most 2 entries", 2, 0.5),
        ("at most 2 entries, 1 bucket", 1, 0.5),
        ("at most 1 entry", 2, 0.5),
        ("at most 1 entry, 1 bucket", 1, 0.5),
        ("at most 1 entry, distance 1", 1, 1.0),
    ]
    own = [
        small.mechanism for _, small in small_tasks(task_for(Sampled(epsilon=1, max_entries=8, buckets=2)), 5)
    ]
    assert 2 in {mechanism.buckets for mechanism in own}  # type: ignore[attr-defined]


@pytest.mark.parametrize("distance", [1e-5, 1e-3, 0.1])
def test_a_small_distance_with_many_buckets_shows_most_of_the_claim(distance: float) -> None:
    """The noise of 4,096 rounded sums is nearly all slack; an instance that is not shows the noise's own loss."""
    mechanism = SparseSum(
        epsilon=1,
        max_entries=64,
        values="signed",
        unit="l1",
        distance=distance,
        round_at="bins",
        buckets=4096,
    )
    finding = exact_audit(task_for(mechanism, 1000))
    assert not finding.refuted
    assert finding.found == pytest.approx(32 / 33, rel=1e-6)


def test_distances_are_between_values_in_range() -> None:
    """Unit l1: what is clipped away does not bring records further apart, and is looked at."""
    task = task_for(SparseSum(epsilon=1, max_entries=2, unit="l1", distance=1, values="signed"))
    assert neighbours_in(task, {"0": 7.0}, {"0": 0.0})
    assert not neighbours_in(task, {"0": 7.0}, {"0": -7.0})
    assert not neighbours_in(task, {"0": 1.0, "1": 9.0}, {})
    sets = task_for(SparseSum(epsilon=1, max_entries=2, unit="l1", distance=1))
    assert neighbours_in(sets, {"0": 7.0, "1": 1.0}, {"0": 0.0})
    entry = task_for(SparseSum(epsilon=1, max_entries=2, unit="entry", values="signed"))
    assert neighbours_in(entry, {"0": 7.0}, {"0": -7.0})


def test_law_of_the_whole_report() -> None:
    """The bytes, with the seed in front; without it, the law of the fields."""
    task = task_for(Collision(epsilon=1, max_entries=2, buckets=4))
    law = report_law(task, {"0": 1.0, "1": 1.0}, 3)
    assert sum(law.values()) == 1
    assert all(packed[:2] == b"\x03\x00" for packed in law)
    assert law_of(task, {"0": 1.0, "1": 1.0}, 3) == {(packed[2],): mass for packed, mass in law.items()}


def test_fractions_are_compared_to_sixty_digits() -> None:
    """exp(epsilon) rounded down to a multiple of 2^-32 is below it, one unit more above: 2e-10 in between."""
    weight = favoured_weight(1.0)
    assert not exceeds(Fraction(weight, UNIT), 1.0)
    assert exceeds(Fraction(weight + 1, UNIT), 1.0)
    assert not exceeds(math.exp(1.0) * (1 + 1e-12), 1.0)
    assert exceeds(math.exp(1.0) * (1 + 1e-8), 1.0)
    assert exceeds(math.inf, 1.0)


def test_worst_ratios() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    assert worst_ratio([{(0,): half, (1,): half}, {(0,): third, (1,): 2 * third}]) == 1.5
    assert worst_ratio([{(0,): half, (1,): half}, {(0,): Fraction(1)}]) == math.inf
    assert worst_ratio([{(0,): 1.0, (1,): 0.0}, {(0,): 0.5, (1,): 0.5}]) == math.inf
    assert worst_ratio([{(0,): half, (1,): half}]) == 1.0


def test_losses_with_delta() -> None:
    """An outcome that only one record has is no loss up to delta."""
    one: dict[bytes, Any] = {b"a": Fraction(1, 2), b"b": Fraction(49, 100), b"c": Fraction(1, 100)}
    two: dict[bytes, Any] = {b"a": Fraction(1, 4), b"b": Fraction(3, 4)}
    assert loss_with_delta(one, two, 0.0) == math.inf
    assert loss_with_delta(one, two, 0.01) == pytest.approx(math.log(2), abs=1e-9)
    assert loss_with_delta(one, two, 0.26) == pytest.approx(0, abs=1e-9)
    private = task_for(SparseSum(epsilon=1, max_entries=2, unit="l1", distance=2, delta=0.02, family="prf"))
    [loss] = losses_between(private, [{"0": 1.0}, {}], [one, two])
    assert (loss.epsilon, loss.refutes) == (pytest.approx(math.log(2 - 0.04), abs=0.03), False)


def test_leaves_are_estimated() -> None:
    task = task_for(CoCo(epsilon=1, max_entries=2, buckets=4))
    for record in ({}, {"0": 1.0}, {"0": 1.0, "1": 0.3}, {"0": 1.0, "1": 1.0, "2": 1.0}):
        leaves = [0]

        def run(coins: Enumeration, record: Any = record, leaves: list[int] = leaves) -> None:
            leaves[0] += 1

        counted = sum(1 for _ in _paths(task, record))
        assert counted / 3 <= leaves_of(task, record, 0, 10_000) <= 3 * counted
    assert leaves_of(task, {}, 0, 50) == 51
    wide = task_for(SparseSum(epsilon=1, max_entries=2, unit="entry", values="signed"))
    assert leaves_of(wide, {"0": 1.0}, 0, 1000) == 1001


def _paths(task: Any, record: Any) -> Any:
    """One item for every leaf."""
    from hubbub.checks.exact import _report

    run, found = _report(task, record, 0), []

    def counted(coins: Enumeration) -> bytes:
        found.append(0)
        return run(coins)

    Enumeration().law(counted)
    return found[1:]  # the first path is walked twice


def test_too_many_outcomes() -> None:
    with pytest.raises(TooManyOutcomes):
        Enumeration().law(lambda coins: coins.below(1000), most=999)
    assert len(Enumeration().law(lambda coins: coins.below(1000), most=1000)) == 1000


def test_raw_words_are_not_enumerated() -> None:
    class Hasty(Collision):
        """Takes its coins by the buffer, whatever the batch."""

        def randomize(self, keys: Any, entries: Any, seeds: Any, coins: Any) -> Any:
            return super().randomize(keys, entries, seeds, InsecureCoins(int(coins.words(1)[0])))

    with refused("asks its coins for 'words'"):
        exact_audit(task_for(Hasty(epsilon=1, max_entries=2), 9))


def test_other_randomness_is_noticed() -> None:
    """Coins are the only thing that is random: reports, questions or their number must not change by themselves."""
    changing = iter(range(2, 1000))
    for run in (
        lambda coins: next(changing),
        lambda coins: coins.below(next(changing)) and None,
        lambda coins: sum(coins.below(2) for _ in range(next(changing))) and None,
    ):
        with pytest.raises(Impure):
            Enumeration().law(run)

    class Impatient(Collision):
        """Draws its seed itself."""

        def randomize(self, keys: Any, entries: Any, seeds: Any, coins: Any) -> Any:
            fresh = np.frombuffer(os.urandom(8 * len(seeds)), dtype=np.uint64) >> np.uint64(
                64 - self.seed_bits
            )
            return super().randomize(keys, entries, fresh, coins)

    finding = exact_audit(task_for(Impatient(epsilon=1, max_entries=2), 9))
    assert finding.refuted
    assert "two different reports" in finding.words()


def test_entries_exchanged_cost_twice() -> None:
    """Unit entry: a key in or out is within epsilon, one exchanged for another is not, and is not compared."""
    task = task_for(SparseSum(epsilon=1, max_entries=1, unit="entry", buckets=1))
    assert worst_ratio([report_law(task, record, 0) for record in ({"0": 1.0}, {"1": 1.0})]) in (
        1.0,
        pytest.approx(math.exp(2), rel=1e-4),
    )
    exchanged = max(
        worst_ratio([report_law(task, record, seed) for record in ({"0": 1.0}, {"1": 1.0})])
        for seed in range(8)
    )
    assert exchanged == pytest.approx(math.exp(2), rel=1e-4)
    for seed in range(8):
        compared = {
            (tuple(loss.one), tuple(loss.two))
            for loss in neighbour_losses(task, [{}, {"0": 1.0}, {"1": 1.0}], seed)
        }
        assert compared == {(("0",), ()), (("1",), ())}
    assert not exact_audit(task).refuted
