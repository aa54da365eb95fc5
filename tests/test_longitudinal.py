"""The protocols that the benchmark book compares over a year: their privacy by their formulas, and their error."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hubbub.simulation.panel import slow_panel

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PEOPLE, KEYS = 400, 16


@pytest.fixture
def year(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("longitudinal")
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def squared(collect: object, runs: int = 300) -> float:
    """Mean squared error of a single week, times the number of people."""
    found = []
    for run in range(runs):
        panel = slow_panel(PEOPLE, KEYS, 1, change=0.0, seed=run, exponent=0.0)
        estimates, distinct = collect(panel, np.random.default_rng(run))  # type: ignore[operator]
        assert distinct == 1
        found.append(((estimates[0] - panel.frequency(0)) ** 2).mean())
    return PEOPLE * float(np.mean(found))


def test_errors_are_those_of_the_papers(year: ModuleType) -> None:
    """Variances with one of 16 keys each, of people as they are, at epsilon 1.5.

    4,800 squared errors: their mean varies by sqrt(2 / 4800) = 2%, so 10% is five standard deviations, and false alarms
    are below 1e-6. A formula that is 30% off is noticed.
    """
    epsilon, share = 1.5, 1 / KEYS

    def law(own: float, other: float) -> float:
        """Of an estimate from a count to which holders add with one probability, and others with another."""
        return (share * own * (1 - own) + (1 - share) * other * (1 - other)) / (own - other) ** 2

    half, whole = 1 / (1 + math.exp(-epsilon / 2)), math.exp(epsilon)
    own = whole / (whole + 3)
    bits = (half * (1 - half)) / (2 * half - 1) ** 2 * KEYS / 3
    sampled = share * (1 - share) * (KEYS / 3 - 1)  # a key is asked of some people only
    cases = [
        (year.Unary.symmetric(epsilon).collect(1), law(half, 1 - half)),
        (year.Unary.optimized(epsilon).collect(1), law(0.5, 1 / (whole + 1))),
        (year.hashed(4, epsilon), law(own, 0.25)),
        (year.bit_flip(3, epsilon), bits + sampled),
        (year.ours(epsilon, 1, KEYS, 1, PEOPLE)[1], None),
    ]
    for collect, expected in cases:
        found = squared(collect)
        if expected is None:
            expected = year.best_mechanism(epsilon, KEYS, 1, PEOPLE).variance("frequency", 1, frequency=share)
        assert found == pytest.approx(expected, rel=0.1)
        assert found != pytest.approx(1.3 * expected, rel=0.1)


def test_the_second_round_has_the_epsilon_that_was_asked_for(year: ModuleType) -> None:
    """Of one report; and the estimates stay unbiased, with more error."""
    for first in (year.Unary.symmetric(2.0), year.Unary.optimized(2.0)):
        assert first.loss() == pytest.approx(2.0)
        assert first.with_second_round(1.0).loss() == pytest.approx(1.0)
        assert squared(first.with_second_round(1.0).collect(1), 40) > 1.5 * squared(first.collect(1), 40)
    # For LOLOHA by its own laws: the answer of a person with the own bucket, and with another one, for many people.
    panel = slow_panel(200_000, 1, 1, change=0.0, seed=1)
    estimates, _ = year.hashed(3, 2.0, 1.0)(panel, np.random.default_rng(1))
    assert estimates[0, 0] == pytest.approx(1.0, abs=0.02)


def test_caps_and_states(year: ModuleType) -> None:
    """How many values got noise of their own, over a year in which everybody changes all the time."""
    panel = slow_panel(200, 8, 30, change=1.0, seed=1, exponent=0.0)
    rng = np.random.default_rng(1)
    assert year.Unary.optimized(1.0).collect(3)(panel, rng)[1] == 3
    assert year.ours(1.0, 3, 8, 1, 200)[1](panel, rng)[1] == 3
    assert year.hashed(2, 1.0)(panel, rng)[1] == pytest.approx(2, abs=0.05)
    assert year.bit_flip(1, 1.0)(panel, rng)[1] == pytest.approx(2, abs=0.1)
