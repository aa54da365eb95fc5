"""Value lists: accuracy of both stages, privacy of bits and numbers, known frequencies, the published scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, crowd

from hubbub.checks.audit import exact_audit, sampled_audit
from hubbub.checks.conformance import (
    TapeCoins,
    check_batch,
    check_privacy,
    check_wire,
    exact_loss,
    measure_accuracy,
    task_for,
)
from hubbub.checks.exact import law_of
from hubbub.mechanisms.freq_est import FreqEst
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.value_list import ValueList
from hubbub.model.mechanism import Goal
from hubbub.model.record import GRID, Entries
from hubbub.plan.ranking import rank
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import crowd_of
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import simulate, true_values


def few(kind: str) -> Entries:
    """The first thousand users of a crowd of the accuracy tests: a coin for every key takes time."""
    return crowd(ValueList(epsilon=1, size=KEYS), kind).slice(0, 1000)


def true_frequencies(entries: Entries) -> tuple[float, ...]:
    """Of every key, with at most one entry per record."""
    found: list[float] = (np.bincount(entries.ids.astype(np.int64), minlength=KEYS) / len(entries)).tolist()
    return tuple(found)


def check_few(mechanism: ValueList, kind: str, quantity: Any) -> None:
    """Unbiased, with the variance of the formula (false alarms about 1e-6); 30% wrong formulas are rejected."""
    found = measure_accuracy(task_for(mechanism, KEYS), few(kind), KEYS, quantity, runs=60)
    found.check()
    for wrong in (0.7, 1.3):
        with pytest.raises(AssertionError, match="variance is off"):
            found.check(formula=wrong)


@pytest.mark.parametrize(
    ("quantity", "epsilon", "kind"),
    [("mean", 2.0, "zipf"), ("mean", 8.0, "uniform"), ("frequency", 1.0, "long"), ("frequency", 8.0, "zipf")],
)
def test_accuracy(quantity: Any, epsilon: float, kind: str) -> None:
    check_few(ValueList(epsilon=epsilon, size=KEYS), kind, quantity)


def test_accuracy_with_known_frequencies() -> None:
    """Values anywhere in the range."""
    frequencies = true_frequencies(few("uniform"))
    check_few(ValueList(epsilon=8, size=KEYS, frequencies=frequencies), "uniform", "mean")


class LouderBits(ValueList):
    """The bits' favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


class LouderNumbers(ValueList):
    """The noise of the numbers 1% smaller."""

    @property
    def scale(self) -> tuple[int, int]:
        numerator, denominator = super().scale
        return numerator * 99 // 100, denominator


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_enumeration_notices_one_percent(epsilon: float) -> None:
    """Three values, two keys, empty and over-long records, both parts of the report."""
    check_privacy(ValueList(epsilon=epsilon, size=2), keys=2)
    for louder in (LouderBits, LouderNumbers):
        with pytest.raises(AssertionError, match="loses"):
            check_privacy(louder(epsilon=epsilon, size=2), keys=2)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_enumeration_with_known_frequencies(epsilon: float) -> None:
    known: dict[str, Any] = {"epsilon": epsilon, "size": 3, "frequencies": (0.5, 0.3, 0.2)}
    check_privacy(ValueList(**known), seeds=[0])
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(LouderNumbers(**known), seeds=[0])


@pytest.mark.parametrize("grid", [1, 2])
def test_the_whole_range_by_enumeration(grid: int) -> None:
    """Not the miniature: every number that fits the wire, on a grid with a middle, too. All of epsilon is used."""
    parameters: dict[str, Any] = {"epsilon": 16.0, "size": 2, "grid": grid}
    records: list[dict[str, float]] = [{}, {"0": -1.0}, {"0": 0.3}, {"0": 1.0}, {"1": 1.0}]
    loss = exact_loss(task_for(ValueList(**parameters), 2), records, [0])
    assert 16 * (1 - 1e-5) < loss <= 16 * (1 + 1e-9)
    assert exact_loss(task_for(LouderNumbers(**parameters), 2), records[3:], [0]) > 16.07


def test_a_second_entry_is_not_looked_at() -> None:
    """Should somebody hand over records that were not sampled down, the guarantee still holds."""
    mechanism = ValueList(epsilon=16, size=4)
    task = task_for(mechanism)
    twice = Entries(np.array([1, 3], dtype=np.uint64), np.full(2, GRID), np.array([0, 2], dtype=np.int64))
    once = Entries(twice.ids[:1], twice.values[:1], np.array([0, 1], dtype=np.int64))
    seeds = np.zeros(1, dtype=np.uint64)
    short, long = (mechanism.randomize(task.keys, e, seeds, InsecureCoins(2)) for e in (once, twice))
    assert np.array_equal(short, long)


def test_the_law_as_published() -> None:
    """Numbers: 0 (the low end) plus noise for other keys, the value's share of the range plus noise for the own."""
    mechanism = ValueList(epsilon=8, size=1, frequencies=(1.0,), grid=1)
    decay = math.exp(-4)
    for record, exact in (({}, 0), ({"0": -1.0}, 0), ({"0": 1.0}, 1)):
        law = law_of(task_for(mechanism, 1), record, 0)
        for (report,), mass in law.items():
            number = report - mechanism._most
            if abs(number) < mechanism._most:
                published = (1 - decay) / (1 + decay) * decay ** abs(number - exact)
                assert float(mass) == pytest.approx(published, rel=1e-5)
    middle = law_of(task_for(mechanism, 1), {"0": 0.5}, 0)
    ends = [law_of(task_for(mechanism, 1), {"0": end}, 0) for end in (-1.0, 1.0)]
    for outcome, mass in middle.items():
        assert float(mass) == pytest.approx(0.25 * float(ends[0][outcome]) + 0.75 * float(ends[1][outcome]))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_variance_as_derived(epsilon: float) -> None:
    """Laplace of scale 2 b / eps has variance 8 b^2 / eps^2 (b = 2 here); with half of epsilon, four times that."""
    known = ValueList(epsilon=epsilon, size=2, frequencies=(0.5, 0.5))
    assert known.variance("mean", 10) == pytest.approx(32 / epsilon**2 / 10, rel=2e-3)
    assert known.variance("frequency", 10) == 0
    both, bits = ValueList(epsilon=epsilon, size=2), FreqEst(epsilon=epsilon / 2, size=2)
    assert both.variance("frequency", 10) == bits.variance("frequency", 10)
    assert both.variance("mean", 10) == pytest.approx(
        128 / epsilon**2 / 10 + bits.variance("frequency", 10), rel=2e-3
    )


def rooms_task(**parameters: Any) -> Task:
    keys = {"kind": "closed", "size": 4, "salt": "5a" * 16}
    mechanism = ValueList(epsilon=4, size=4, **parameters)
    return Task.parse({"name": "rooms", "low": 20, "high": 220, "keys": keys, "mechanism": mechanism})


def rooms() -> Entries:
    """30,000 users with one of four keys, whose values are 45, 95, 145, 195 in a range of 20 to 220."""
    held = np.repeat(np.arange(4), [3_000, 6_000, 9_000, 12_000])
    values = np.rint((np.array([45, 95, 145, 195])[held] - 120) / 100 * GRID).astype(np.int64)
    return Entries(held.astype(np.uint64), values, np.arange(30_001, dtype=np.int64))


@pytest.mark.parametrize("known", [False, True])
def test_units_of_the_task(known: bool) -> None:
    """All quantities come back in the range's units, within 6 errors (false alarms 3e-8), which are small."""
    task = rooms_task(frequencies=(0.1, 0.2, 0.3, 0.4) if known else None)
    state = simulate(task, rooms(), 8).state
    for quantity in task.mechanism.quantities:
        found = estimate(task, state, quantity=quantity)
        truth = true_values(task, rooms(), quantity, task.keys.all_ids())
        assert (np.abs(found.value - truth) <= 6 * found.error).all()
        assert (found.error < {"conditional": 40, "mean": 4, "frequency": 0.02}[quantity]).all()


def test_known_frequencies_narrow_the_interval() -> None:
    """To two thirds and less; and it is said that they are an assumption."""
    unknown, known = rooms_task(), rooms_task(frequencies=(0.1, 0.2, 0.3, 0.4))
    found = [estimate(task, simulate(task, rooms(), 8).state) for task in (unknown, known)]
    assert (found[1].error < 0.67 * found[0].error).all()
    assert not any("taken as exact" in note for note in found[0].notes)
    assert "taken as exact" in found[1].notes[0]
    with pytest.raises(Refused, match="offers conditional, mean"):
        estimate(known, simulate(known, rooms(), 8).state, quantity="frequency")


def test_floor() -> None:
    """The published quotient: low end plus the range times mean number over the frequency that was cut off."""
    task = rooms_task(floor=0.15)
    mechanism = task.mechanism
    state = simulate(task, rooms(), 8).state
    found = mechanism.moments(state, task.keys, task.keys.all_ids())
    assert found.frequency is not None
    assert found.mean is not None
    assert found.frequency.min() == 0.15
    assert isinstance(mechanism, ValueList)
    number = state.totals[:, 0] / (state.count * mechanism.grid)
    assert estimate(task, state).value == pytest.approx(20 + 200 * number / found.frequency)
    assert "not unbiased" in estimate(task, state).notes[0]


def test_bulk_goes_on_when_words_run_out() -> None:
    """4,096 records need about three times the words drawn at first; no part is lost or drawn on other words."""
    mechanism = ValueList(epsilon=1, size=3)
    task = task_for(mechanism, 3)
    entries = crowd(mechanism, "uniform")
    entries = Entries(entries.ids % np.uint64(3), entries.values, entries.offsets)
    seeds = np.zeros(len(entries), dtype=np.uint64)
    bulk = mechanism.randomize(task.keys, entries, seeds, InsecureCoins(4))
    slow = mechanism.randomize(task.keys, entries, seeds, TapeCoins.seeded(4))  # type: ignore[arg-type]
    assert np.array_equal(bulk, slow)


def test_golden_bytes() -> None:
    """Three keys: three bits, then the numbers -1, 0 and 2 as digits of base 227."""
    mechanism = ValueList(epsilon=1, size=3)
    assert (mechanism.grid, mechanism._most, mechanism.layout.bits) == (2, 113, 27)
    task = task_for(mechanism, 3)
    report = np.array([[0, 0b101, 112 + 113 * 227 + 115 * 227**2]], dtype=np.uint64)
    packed = mechanism.layout.pack(report)
    assert packed.tobytes().hex() == "7583d602"
    assert np.array_equal(mechanism.layout.unpack(packed), report)
    state = mechanism.empty(task.keys)
    mechanism.absorb(state, task.keys, report)
    assert state.totals.tolist() == [[-1, 1], [0, 0], [2, 1]]
    assert mechanism.scores(task.keys, report, task.keys.ids_of([0, 2])).tolist() == [-2 + 2 + 2 + 2]


def test_conformance_with_known_frequencies() -> None:
    """What the suite does for those that the planner offers."""
    mechanism = ValueList(epsilon=1, size=16, frequencies=(1 / 16,) * 16)
    check_wire(mechanism)
    check_batch(mechanism)


def test_task_file_keeps_known_frequencies() -> None:
    task = rooms_task(frequencies=(0.1, 0.2, 0.3, 0.4))
    assert "frequencies = [0.1, 0.2, 0.3, 0.4]" in task.to_toml()
    assert Task.parse(task.model_dump(exclude_none=True)).digest == task.digest != rooms_task().digest


def test_audits() -> None:
    """Both parts together: enumeration finds all of epsilon, sampling much of it, and neither more."""
    task = task_for(ValueList(epsilon=2, size=20), 20)
    exact = exact_audit(task)
    assert exact.found == pytest.approx(2, rel=1e-5)
    assert not exact.refuted
    sampled = sampled_audit(task, samples=20_000, seeds=1, coins=lambda: InsecureCoins(1))
    assert not sampled.refuted
    assert sampled.found > 1


def test_planned_for_one_value_of_a_short_list() -> None:
    """Behind CoCo and sketch response, in error and in bytes."""
    order = [option for option in rank(Goal("conditional", 1.0, 1, "signed", keys=100)) if option.mechanism]
    places = {option.name: place for place, option in enumerate(order)}
    assert max(places["coco"], places["sketch_response"]) < places["value_list"]
    mine = order[places["value_list"]]
    assert (mine.bytes, mine.error > 3 * order[places["coco"]].error) == (111, True)
    for goal in (Goal("mean", 1.0, 2, "signed", keys=9), Goal("mean", 1.0, 1, "signed", keys=1025)):
        assert list(ValueList.candidates(goal)) == []


def test_shuffling() -> None:
    assert "any" in crowd_of(ValueList(epsilon=1, size=4), 100).bound


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 1025},
        {"values": "set"},
        {"max_entries": 2},
        {"floor": -0.1},
        {"floor": float("nan")},
        {"frequencies": ()},
        {"frequencies": (0.5, 0.5)},
        {"frequencies": (0.5, 0.5, 0.5)},
        {"frequencies": (0.5, 0.5, 0.0)},
        {"frequencies": (0.5, 0.4, float("nan"))},
        {"frequencies": (0.5, 0.3, 0.2), "floor": 0.1},
        {"epsilon": 1e-6},
        {"grid": -1},
    ],
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("value_list", **{"epsilon": 1.0, "size": 3, **wrong})
