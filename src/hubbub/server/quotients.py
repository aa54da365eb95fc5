"""Conditional means: limits of a quotient of two counts, for keys that are shown because one of them is large.

`hubbub.server.intervals` says why they hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hubbub.model.count_laws import Counts
from hubbub.model.mechanism import Moments
from hubbub.primitives.arrays import Floats
from hubbub.server.cases import Cases, named_variance
from hubbub.server.tails import Law, beyond, solve

#: What N tells of a frequency is averaged at so many places of its confidence distribution (Gauss and Legendre's).
_PLACES = 8
#: How far below 0 a frequency may be for that: standard errors of an absent key, and a part of its names.
_BELOW, _PART = 0.5, 0.25


def least_named(counts: Counts, odds: float) -> Any:
    """The least N that an absent key reaches with probability at most odds / 2."""
    kinds, place = np.unique(np.maximum(counts.reports, 1), return_inverse=True)
    rate = np.clip(1 - counts.noise[0] / counts.idle, 1e-9, 1 - 1e-9)
    law = Law(kinds * counts.idle / rate, rate, 0.0)
    low, high = np.zeros_like(kinds), np.ceil(2 * kinds + 1).astype(np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        rare = law.at_least(middle) <= odds / 2
        low, high = np.where(rare, low, middle), np.where(rare, middle, high)
    return high[place].reshape(np.shape(counts.reports))


def ratio_limits(cases: Cases, odds: float, keys: int) -> tuple[Floats, Floats]:
    """All conditional means, scaled, under which N and D are no surprise, N being what it takes to be shown.

    Among `keys` keys, those that stand out are one kind, and the others that are known are another.
    """
    named = cases.counts.named
    assert named is not None
    least, apart = (least_named(cases.counts, each) for each in (odds, odds / keys))
    outstanding = named >= apart
    bottom, top = np.where(outstanding, apart, least), np.where(outstanding, np.inf, apart)
    if cases.fine:
        return _averaged_limits(cases, odds, _shares(cases, bottom, top))
    return _joined_limits(cases, odds, bottom)


class _Leaning:
    """The votes for a key among those that name it: binomial, as many votes as make the variance of D right."""

    def __init__(self, cases: Cases) -> None:
        laws, named = cases.counts, cases.counts.named
        assert named is not None
        assert laws.signed is not None
        share = np.clip(laws.frequency, 0, 1)
        # Where a report may speak both for and against, D varies less than as many independent votes.
        spread = (laws.signed_noise[0] + laws.signed_noise[1] * share) / (laws.idle + laws.gain * share)
        self.votes, self.pro, self.ties = named / spread, (named + laws.signed) / (2 * spread), cases.ties

    def above(self, chance: Any) -> Floats:
        """So many votes for the key or more, if each is one with this probability."""
        return self.ties.above(Law(self.votes, np.clip(chance, 1e-9, 1 - 1e-9), 0.0), self.pro)

    def below(self, chance: Any) -> Floats:
        """So many votes for the key or fewer."""
        return self.ties.below(Law(self.votes, np.clip(chance, 1e-9, 1 - 1e-9), 0.0), self.pro)


def _averaged_limits(cases: Cases, odds: float, shares: Floats) -> tuple[Floats, Floats]:
    """Tails of D given N, averaged over what N says about the share that is not background."""
    laws, leaning = cases.counts, _Leaning(cases)
    weights = np.polynomial.legendre.leggauss(_PLACES)[1] / 2
    slope = laws.signed_gain / laws.gain * shares / 2
    start = np.clip(laws.mean / np.maximum(laws.frequency, 1e-300), -1, 1)
    step = np.full(len(start), 0.25)

    def above(ratio: Floats) -> Floats:
        return np.asarray(weights @ leaning.above(0.5 + slope * ratio))

    def below(ratio: Floats) -> Floats:
        return np.asarray(weights @ leaning.below(0.5 + slope * ratio))

    return solve(above, odds / 2, start, -step, -1.0), solve(below, odds / 2, start, step, 1.0)


def _shares(cases: Cases, bottom: Any, top: Any) -> Floats:
    """[places, cases]: the share of N that is not background, at places of its confidence distribution.

    At the place u it is the one with which N, bottom <= N < top, is less than what was counted with probability 1 - u,
    half of "exactly so" included. Frequencies a little below 0 are among them, as they are in Fieller's interval: if
    all that N says against a frequency above 0 were heaped at 0, ratios of hardly held keys would be missed too often.
    Much lower ones are not, because keys whose N is barely enough to be shown would spread far down.
    """
    counts = cases.counts
    only = Cases(replace(counts, signed=None), None, 1.0)
    named, first = only.counts.named, np.zeros(len(only.reports), dtype=np.int64)
    assert named is not None
    first[only.of_key] = np.arange(len(only.of_key))
    bottom, top = bottom[first], top[first]
    level = (1 - np.polynomial.legendre.leggauss(_PLACES)[0][:, None]) / 2

    def fewer(frequency: Floats) -> Floats:
        law = only.named_law(frequency)
        reached = law.at_least(bottom)
        whole = reached - np.where(np.isfinite(top), law.at_least(np.minimum(top, 1e300)), 0.0)
        part = reached - (law.at_least(named) + law.at_least(named + 1)) / 2
        return part / np.maximum(whole, 1e-300)

    step = 2 * np.sqrt(named_variance(counts, only.counts.frequency) / only.reports) / counts.gain
    lowest = np.minimum(_BELOW * np.sqrt(counts.noise[0] / only.reports), _PART * counts.idle) / counts.gain
    start = np.broadcast_to(-lowest, (_PLACES, len(named)))
    found = solve(fewer, level, start, np.broadcast_to(step, start.shape), np.inf)
    return np.asarray(counts.gain * found / (counts.idle + counts.gain * found))[:, only.of_key]


def selected_normal_limits(moments: Moments, width: float, apart: float) -> tuple[Floats, Floats]:
    """The same from normal estimates, where these are no counts: all scaled ratios that are no surprise.

    Given the estimate b of the frequency f, that of the mean is normal around q f + c (b - f), c being the covariance
    over the variance of b. Its tails are averaged over what b says about f, given that it is more than `width` of its
    standard errors above 0 and less than `apart`, or more than that: what is shown was selected so. Without that
    selection it is Fieller's interval.
    """
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    error = np.sqrt(moments.frequency_variance)
    seen = moments.frequency / error
    bottom, top = np.where(seen >= apart, apart, width), np.where(seen >= apart, np.inf, apart)

    def fewer(strength: Floats) -> Floats:
        reached, above, more = (beyond(edge - strength) for edge in (bottom, top, seen))
        return (reached - more) / np.maximum(reached - above, 1e-300)

    places, weights = np.polynomial.legendre.leggauss(_PLACES)
    start = np.full((_PLACES, len(seen)), -_BELOW)
    strengths = solve(fewer, (1 - places[:, None]) / 2, start, np.full_like(start, 2.0), np.inf)
    slope = moments.covariance / moments.frequency_variance
    spread = np.sqrt(np.maximum(moments.mean_variance - slope * moments.covariance, 1e-300))
    told = moments.mean - slope * error * (seen - strengths)

    def above(ratio: Floats) -> Floats:
        return np.asarray(weights / 2 @ beyond((told - ratio * error * strengths) / spread))

    def below(ratio: Floats) -> Floats:
        return np.asarray(weights / 2 @ beyond((ratio * error * strengths - told) / spread))

    first = np.clip(moments.mean / np.maximum(moments.frequency, 1e-300), -1, 1)
    step, odds = np.full(len(seen), 0.25), beyond(width)
    return solve(above, odds, first, -step, -1.0), solve(below, odds, first, step, 1.0)


def _joined_limits(cases: Cases, odds: float, bottom: Any) -> tuple[Floats, Floats]:
    """Limits of D given N, and of N given that it is at least `bottom`, put together; these hold for far tails."""
    laws, named, found, leaning = cases.counts, cases.counts.named, cases.counts.frequency, _Leaning(cases)
    assert named is not None
    middle, step = leaning.pro / leaning.votes, 1 / np.sqrt(leaning.votes)
    low = solve(leaning.above, odds / 2, middle, -step, 0.0)
    high = solve(leaning.below, odds / 2, middle, step, 1.0)
    sides = [(2 * p - 1) * laws.gain / laws.signed_gain for p in (middle, low, high)]

    def above(frequency: Floats) -> Floats:
        law = cases.named_law(frequency)
        return cases.ties.above(law, named) / np.maximum(law.at_least(bottom), 1e-300)

    def below(frequency: Floats) -> Floats:
        law = cases.named_law(frequency)
        chosen = np.maximum(cases.ties.below(law, named) - law.at_most(bottom - 1), 0)
        return chosen / np.maximum(law.at_least(bottom), 1e-300)

    step = 2 * np.sqrt(named_variance(laws, found) / cases.reports) / laws.gain
    shares = found, solve(above, odds / 2, found, -step, 0.0), solve(below, odds / 2, found, step, np.inf)
    return quotient_limits(*sides, *(laws.gain * f / (laws.idle + laws.gain * f) for f in shares))


def quotient_limits(
    top: Floats, low: Floats, high: Floats, bottom: Floats, least: Floats, most: Floats
) -> tuple[Floats, Floats]:
    """Limits of top / bottom, from the limits (low, high) and (least, most) of independent estimates.

    Donner and Zou's: all ratios r for which 0 is within the limits of top - r bottom, their distances from the estimate
    being root sums of squares. Infinite where the bottom may be 0.
    """

    def upper(top: Floats, high: Floats) -> Floats:
        end = np.where(high >= 0, least, most)
        a, b = end * (2 * bottom - end), top * bottom
        root = np.sqrt(np.maximum(b**2 - a * high * (2 * top - high), 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(a > 0, (b + root) / a, np.where(high >= 0, np.inf, 0.0))

    return -upper(-top, -low), upper(top, high)
