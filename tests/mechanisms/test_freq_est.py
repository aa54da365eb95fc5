"""FREQ-EST: accuracy, privacy, the published law, and what the floor does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, check_accuracy, crowd

from hubbub.checks.audit import sampled_audit
from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.freq_est import Digits, FreqEst
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.errors import Refused
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import simulate


@pytest.mark.parametrize(("epsilon", "kind"), [(1.0, "zipf"), (3.0, "uniform"), (6.0, "long")])
def test_accuracy(epsilon: float, kind: str) -> None:
    check_accuracy(FreqEst(epsilon=epsilon, size=KEYS), kind, "frequency")


class Louder(FreqEst):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_enumeration_notices_one_percent(epsilon: float) -> None:
    check_privacy(FreqEst(epsilon=epsilon, size=3))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=epsilon, size=3))


def test_the_law_as_published() -> None:
    """Algorithm 3, lines 5 to 8, for a key and for no key."""
    kept = math.exp(0.5) / (math.exp(0.5) + 1)
    task = task_for(FreqEst(epsilon=1, size=3), 3)
    for record, ones in (({"1": 1.0}, (1 - kept, kept, 1 - kept)), ({}, (1 - kept,) * 3)):
        law = law_of(task, record, 0)
        assert len(law) == 8
        for (report,), mass in law.items():
            bits = [(report >> key & 1, p) for key, p in enumerate(ones)]
            assert float(mass) == pytest.approx(math.prod(p if bit else 1 - p for bit, p in bits), rel=1e-8)


def test_variance_as_derived() -> None:
    """e^(eps/2) / (e^(eps/2) - 1)^2 per user, about 4 / eps^2."""
    mechanism = FreqEst(epsilon=1, size=9)
    root = math.exp(0.5)
    assert mechanism.variance("frequency", 100) == pytest.approx(root / (root - 1) ** 2 / 100, rel=1e-8)
    assert FreqEst(epsilon=0.01, size=9).variance("frequency", 1) == pytest.approx(4e4, rel=1e-4)


def test_floor() -> None:
    """A true floor never makes an error larger, and is said beside the estimate; a report does not show it."""
    plain, cut = (FreqEst(epsilon=1, size=KEYS, floor=floor) for floor in (None, 0.01))
    entries = crowd(plain, "uniform")
    truth = np.bincount(entries.ids.astype(np.int64), minlength=KEYS) / len(entries)
    assert truth.min() > 0.01
    runs = [simulate(task_for(mechanism, KEYS), entries, 3) for mechanism in (plain, cut)]
    assert np.array_equal(runs[0].packed, runs[1].packed)
    without, floored = (
        estimate(task_for(m, KEYS), run.state) for m, run in zip((plain, cut), runs, strict=True)
    )
    assert (without.value < 0.01).any()
    assert floored.value.min() == 0.01
    assert (np.abs(floored.value - truth) <= np.abs(without.value - truth)).all()
    assert np.array_equal(without.error, floored.error)
    assert without.notes == floored.notes[1:]
    assert "not unbiased" in floored.notes[0]


def test_digits() -> None:
    """Every key has its digit, the last field is filled as far as there are keys, and sums are of digits."""
    for base, count in ((2, 130), (3, 50), (227, 20)):
        digits = Digits("digits", base, count)
        held = len(digits.units)
        assert base**held <= 1 << 62 < base ** (held + 1)
        drawn = np.random.default_rng(1).integers(0, base, (40, count))
        fields = np.zeros((40, len(digits.fields)), dtype=np.int64)
        for key in range(count):
            fields[:, key // held] += drawn[:, key] * base ** (key % held)
        assert np.array_equal(digits.read(fields, np.arange(count)), drawn)
        assert np.array_equal(digits.sums(fields), drawn.sum(axis=0))
        assert digits.fields[-1].limit == base ** (count - held * (len(digits.fields) - 1))
        assert all(fields[:, place].max() < field.limit for place, field in enumerate(digits.fields))


def test_golden_bytes() -> None:
    """The bits of keys 0, 9, 61, 62 and 69, in this order, nine bytes for 70 keys."""
    mechanism = FreqEst(epsilon=1, size=70)
    packed = bytes.fromhex("010200000000006020")
    report = mechanism.layout.unpack(packed)
    task = task_for(mechanism, 70)
    state = mechanism.empty(task.keys)
    mechanism.absorb(state, task.keys, report)
    assert np.flatnonzero(state.totals[:, 0]).tolist() == [0, 9, 61, 62, 69]
    assert mechanism.layout.pack(report).tobytes() == packed
    assert mechanism.scores(task.keys, report, task.keys.ids_of([0, 1, 62])).tolist() == [2]


def test_sampled_audit() -> None:
    """At real size most of the budget is seen, and no more than was promised."""
    task = task_for(FreqEst(epsilon=1, size=13), 13)
    found = sampled_audit(task, samples=20_000, seeds=1, coins=lambda: InsecureCoins(1))
    assert not found.refuted
    assert found.found > 0.7
    louder = task_for(LouderStill(epsilon=1, size=13), 13)
    assert sampled_audit(louder, samples=20_000, seeds=1, coins=lambda: InsecureCoins(1)).refuted


class LouderStill(FreqEst):
    """The favoured weight raised by 30%, which sampling notices, too."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 13 // 10, other


def test_planned_for_one_key_of_a_short_list() -> None:
    """Behind sketch response, which needs fewer bytes, too."""
    order = [option for option in rank(Goal("frequency", 1.0, 1, keys=100)) if option.mechanism]
    places = {option.name: place for place, option in enumerate(order)}
    assert places["sketch_response"] < places["freq_est"]
    assert order[places["freq_est"]].bytes == 13
    for goal in (Goal("frequency", 1.0, 2, keys=100), Goal("frequency", 1.0, 1, keys=1025)):
        assert list(FreqEst.candidates(goal)) == []


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"size": 1025}, {"values": "signed"}, {"max_entries": 2}, {"floor": 1.0}]
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("freq_est", **{"epsilon": 1.0, "size": 9, **wrong})
