"""Learned events: bounds that hold, events that are found, binomial bounds that are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hubbub.checks.events import Match, Verdict, binomial_bound, binomial_quantile, judge


def pmf(k: int, trials: int, p: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
    return math.exp(ways + k * math.log(p) + (trials - k) * math.log1p(-p))


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (3, 50), (25, 50), (49, 50), (50, 50), (700, 1000)])
def test_binomial_bounds_are_clopper_pearson(hits: int, trials: int) -> None:
    """At the bound the tail is exactly the odds, by direct summation."""
    for odds in (0.05, 1e-6):
        low, high = (binomial_bound(hits, trials, odds, upper) for upper in (False, True))
        assert low <= hits / trials <= high
        if hits > 0:
            assert sum(pmf(k, trials, low) for k in range(hits, trials + 1)) == pytest.approx(odds, rel=1e-6)
        if hits < trials:
            assert sum(pmf(k, trials, high) for k in range(hits + 1)) == pytest.approx(odds, rel=1e-6)


@pytest.mark.parametrize(("trials", "p"), [(50, 0.1), (50, 0.9), (1000, 0.3), (20_000, 0.01)])
def test_binomial_quantiles(trials: int, p: float) -> None:
    """Beyond them lies at most the odds, and one step nearer more than that."""
    for odds in (0.025, 1e-4):
        low, high = (binomial_quantile(trials, p, odds, upper) for upper in (False, True))
        below = [sum(pmf(k, trials, p) for k in range(edge)) for edge in (low, low + 1)]
        above = [
            sum(pmf(k, trials, p) for k in range(edge, min(trials, edge + 400) + 1))
            for edge in (high + 1, high)
        ]
        assert below[0] <= odds < below[1]
        assert above[0] <= odds < above[1]


def sampled(rng: np.random.Generator, laws: np.ndarray, samples: int) -> Match:
    sides = [rng.choice(len(law), samples, p=law)[:, None] for law in laws]
    return Match("drawn", ((sides[0], sides[1]),))


def test_bounds_hold_and_come_close() -> None:
    """Two laws whose worst ratio is known: at odds 0.1, 200 bounds exceed it at most 43 times, or else with 1e-6."""
    first = np.array([0.4, 0.3, 0.2, 0.1])
    second = first[::-1].copy()
    truth, rng = math.log(4), np.random.default_rng(1)
    bounds = [
        judge([sampled(rng, np.array([first, second]), 2000) for _ in range(2)]).lower_bound(0.1)
        for _ in range(200)
    ]
    assert sum(bound > truth for bound in bounds) <= 43
    assert np.median(bounds) > 0.8 * truth
    alike = [judge([sampled(rng, np.array([first, first]), 2000)]).lower_bound(0.1) for _ in range(200)]
    assert sum(bound > 0 for bound in alike) <= 43


def test_pairs_are_judged_together() -> None:
    """Many pairs with the same ratio bring the bound nearer to it than one, and useless pairs do not matter."""
    laws = np.array([[0.6, 0.4], [0.3, 0.7]])
    rng = np.random.default_rng(2)
    matches = [sampled(rng, laws, 2000) for _ in range(9)]
    useless = [sampled(rng, laws[:1].repeat(2, axis=0), 2000) for _ in range(9)]
    alone, together, diluted = (judge(some) for some in (matches[:1], matches, matches + useless))
    assert alone.lower_bound(1e-6) < together.lower_bound(1e-6) - 0.1
    assert diluted.lower_bound(1e-6) == pytest.approx(together.lower_bound(1e-6), abs=0.03)
    assert 9 * 1000 <= together.trials <= 18 * 1000


def test_delta_is_taken_off() -> None:
    """Something that happens to the first record only, with probability delta, is no loss."""
    rng = np.random.default_rng(3)
    laws = np.array([[0.05, 0.475, 0.475], [0.0, 0.5, 0.5]])
    match = sampled(rng, laws, 40_000)
    assert judge([match]).lower_bound(1e-6) > 3
    assert judge([match], delta=0.05).lower_bound(1e-6, delta=0.05) == 0


@pytest.mark.parametrize("kind", ["wide", "linear", "scattered"])
def test_events_in_large_spaces(kind: str) -> None:
    """Many columns, each of which tells a little; a shifted sum; and outcomes far more than samples."""
    rng = np.random.default_rng(4)
    n = 20_000
    if kind == "wide":
        sides = [rng.random((n, 40)) < 0.5 + lean * (np.arange(40) < 8) for lean in (0.2, -0.2)]
    elif kind == "linear":
        sides = [np.rint(rng.normal(shift, 100, (n, 300))) for shift in (5, -5)]
    else:
        hidden = [rng.random(n) < chance for chance in (0.75, 0.25)]
        sides = [np.stack([rng.integers(0, 1 << 40, n), side], axis=1) for side in hidden]
    one, two = (side.astype(np.int64) for side in sides)
    assert judge([Match(kind, ((one, two),))]).lower_bound(1e-6) > 0.9


def test_smallest_excess() -> None:
    """Shrinks with the samples; none where the event is too rare or too common to show anything."""
    few, many = (Verdict(int(0.3 * n), int(0.1 * n), n, "") for n in (10_000, 1_000_000))
    first, second = few.smallest_excess(1.0, 1e-6), many.smallest_excess(1.0, 1e-6)
    assert first is not None
    assert second is not None
    assert 5 < first / second < 20
    assert Verdict(0, 0, 100, "").smallest_excess(1.0, 1e-6) is None
    # Too common to become likelier, but it could become rarer under the other record.
    saturated = Verdict(900, 800, 1000, "").smallest_excess(1.0, 1e-6)
    assert saturated is not None
    assert 0.3 < saturated < 1
    assert Verdict(0, 0, 0, "").lower_bound(1e-6) == 0
