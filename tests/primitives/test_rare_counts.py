"""Tails of counts: against scipy's where those are good, against sums of fractions, and never too small."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hubbub.primitives import rare_counts


@pytest.mark.parametrize("trials", [1, 2, 7, 50, 1000, 100_000, 10**7])
def test_binomial_against_scipy(trials: int) -> None:
    """Up to twelve deviations from the mean, for shares from 1e-9 to 1."""
    rng = np.random.default_rng(trials)
    share = np.concatenate([10 ** rng.uniform(-9, 0, 60), 1 - 10 ** rng.uniform(-5, 0, 20), [0.5, 1.0]])
    mean = trials * share
    count = np.round(mean + rng.uniform(-12, 12, len(share)) * np.sqrt(mean * (1 - share)))
    count = np.clip(count + rng.integers(-2, 3, len(share)), 0, trials)
    cases: list[tuple[Any, Any, Any]] = [
        (rare_counts.binomial_at_least, stats.binom.sf(count - 1, trials, share), count > mean),
        (rare_counts.binomial_at_most, stats.binom.cdf(count, trials, share), count < mean),
        (rare_counts.binomial_chance, stats.binom.pmf(count, trials, share), count >= 0),
    ]
    for tail, expected, beside in cases:
        found = tail(count, trials, share)
        looked = beside & (expected > 1e-280)
        assert looked.any()
        np.testing.assert_allclose(found[looked], expected[looked], rtol=2e-9)
        assert np.all(found[~beside] == 1.0)


@pytest.mark.parametrize("mean", [1e-9, 0.1, 1.0, 10.0, 1e3, 1e5])
def test_poisson_against_scipy(mean: float) -> None:
    rng = np.random.default_rng(int(mean))
    count = np.maximum(0, np.round(mean + rng.uniform(-12, 12, 100) * math.sqrt(mean)))
    high, low = rare_counts.poisson_at_least(count, mean), rare_counts.poisson_at_most(count, mean)
    np.testing.assert_allclose(high, np.where(count > mean, stats.poisson.sf(count - 1, mean), 1), rtol=1e-9)
    np.testing.assert_allclose(low, np.where(count < mean, stats.poisson.cdf(count, mean), 1), rtol=1e-9)
    np.testing.assert_allclose(
        rare_counts.poisson_chance(count, mean), stats.poisson.pmf(count, mean), rtol=1e-8
    )


@pytest.mark.parametrize(
    ("trials", "share"), [(5, Fraction(1, 3)), (40, Fraction(1, 7)), (300, Fraction(9, 10))]
)
def test_binomial_against_fractions(trials: int, share: Fraction) -> None:
    """Every tail of a small law, to twelve digits."""
    law = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    for count in range(trials + 1):
        if count > trials * share:
            found = float(rare_counts.binomial_at_least(count, trials, float(share)))
            assert found == pytest.approx(float(sum(law[count:])), rel=1e-12)
        if count < trials * share:
            found = float(rare_counts.binomial_at_most(count, trials, float(share)))
            assert found == pytest.approx(float(sum(law[: count + 1])), rel=1e-12)


def test_what_is_not_added_up_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With only a few numbers added up, tails are larger than they are, and never smaller."""
    counts = np.arange(10_050, 10_800, 50)
    true = stats.poisson.sf(counts - 1, 10_000)
    monkeypatch.setattr(rare_counts, "_WIDTH", 0.1)
    found = rare_counts.poisson_at_least(counts, 10_000)
    assert np.all(found >= true * (1 - 1e-9))
    assert np.all(found[counts > 10_400] < 1.1 * true[counts > 10_400])


def test_ends() -> None:
    """More than there are, all of them, none of them, and shares of 0 and 1."""
    assert rare_counts.binomial_at_least(6, 5, 0.5) == 0.0
    assert rare_counts.binomial_at_least(5, 5, 0.5) == pytest.approx(1 / 32)
    assert rare_counts.binomial_at_most(0, 5, 0.5) == pytest.approx(1 / 32)
    assert rare_counts.binomial_at_least(1, 5, 0.0) == 0.0
    assert rare_counts.binomial_at_least(5, 5, 1.0) == 1.0
    assert rare_counts.binomial_at_most(4, 5, 1.0) == 0.0
    assert rare_counts.poisson_at_least(1, 0.0) == 0.0
    assert rare_counts.poisson_at_most(0, 3.0) == pytest.approx(math.exp(-3))
