"""How likely honest reports are to look like this, at most: tails that hold for every crowd, none of them approximate.

All of them are upper bounds, for reports that are independent of each other and of which each falls into a cell with a
probability that is bounded, whatever the record. Cells' counts are then negatively associated (Joag-Dev and Proschan
1983: true for one report, and kept by adding independent ones), which is what Chernoff's bound needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.rare_counts import (
    binomial_at_least,
    binomial_at_most,
    binomial_chance,
    poisson_at_least,
    poisson_at_most,
    poisson_chance,
)

#: Tail probabilities of one cell at which crowded cells are counted.
_LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
#: Cells whose tails are worked out, of those that have bounds of their own.
_FURTHEST = 16
#: Deviations, and counts, beyond which counts are not told apart; how many tilts are tried.
_WIDTH, _FEW, _TILTS = 7, 12, 60
#: Laws with more different probabilities than this are not tested for evenness.
MOST_CLASSES = 4


@dataclass(frozen=True)
class Finding:
    """One test: what was looked at, what was found, and the odds of honest reports looking like this, at most."""

    test: str
    words: str
    odds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def outlier(counts: Int64s, reports: int, least: float | Floats, most: float | Floats) -> float:
    """The odds of some cell having so many reports, or so few.

    A cell's count is at most a binomial with the largest probability and at least one with the smallest, in the
    stochastic order, because a sum of independent coins grows with each one's probability. Summed up over the cells.
    """
    if np.ndim(most) == 0 and np.ndim(least) == 0:
        high = binomial_at_least(int(counts.max()), reports, most)
        low = binomial_at_most(int(counts.min()), reports, least)
    else:
        # The tails of those that lie furthest out by the size of their deviation; the others' need not be known.
        upper, lower = (np.minimum(np.broadcast_to(bound, counts.shape), 1.0) for bound in (most, least))
        far = np.argsort(-_deviation(counts, reports, upper))[:_FURTHEST]
        high = binomial_at_least(counts[far], reports, upper[far]).min()
        far = np.argsort(_deviation(counts, reports, lower))[:_FURTHEST]
        low = binomial_at_most(counts[far], reports, lower[far]).min()
    return min(1.0, 2 * len(counts) * float(min(high, low)))


def _deviation(counts: Int64s, reports: int, chances: Floats) -> Floats:
    return np.asarray((counts - reports * chances) / np.sqrt(reports * chances + 1e-9))


def crowding(counts: Int64s, reports: int, most: float) -> float:
    """The odds of so many cells with many reports.

    Of M cells, those with at least x reports are negatively associated events, each with probability at most
    q = P(binomial >= x), so r of them have odds of at most exp(-M D(r/M || q)) (Chernoff), D the relative entropy.
    Several x are looked at, and their odds added up.
    """
    cells, odds, first = len(counts), 1.0, math.floor(reports * most) + 1
    edges = np.arange(first, first + _wide(reports * most))
    beyond = binomial_at_least(int(edges[-1]) + 1, reports, most)
    chances = np.where(edges <= reports, binomial_chance(np.minimum(edges, reports), reports, most), 0.0)
    tails = np.cumsum(chances[::-1])[::-1] + beyond
    for level in _LEVELS:
        place = int((tails >= level).sum())
        odds = min(odds, chernoff(int((counts >= edges[place]).sum()), cells, float(tails[place])))
    return min(1.0, len(_LEVELS) * odds)


def _wide(mean: float) -> int:
    """So many counts beside the mean that those beyond them are rarer than 1e-9."""
    return math.ceil(_WIDTH * math.sqrt(mean)) + _FEW


def chernoff(found: int, trials: int, chance: float) -> float:
    """P(at least `found` of `trials` negatively associated events of this chance each), at most."""
    share = found / trials
    if share <= chance:
        return 1.0
    entropy = share * math.log(share / chance) if chance > 0 else math.inf
    if share < 1:
        entropy += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-trials * entropy)


def unevenness(counts: Int64s, reports: int, law: float | Floats, both: bool = True) -> float:
    """The odds of counts that lie so far from a law that is known, or so near (if `both`): a test of squares.

    Given their total, independent Poisson counts with means n p have the law of n reports; the total is n with
    probability at least 1 / (sqrt(2 pi n) exp(1 / 12 n)) (Stirling), so what Poisson counts do with probability p,
    reports do with at most p times that. The statistic is the sum of (c - n p)^2 - c, of counts that are cut on both
    sides so that its exponential moments are small, and the bound is Chernoff's, over a ladder of tilts.
    """
    total, tables = 0.0, []
    for chance in np.unique(law).tolist():
        chosen = counts if np.ndim(law) == 0 else counts[law == chance]
        mean, size = reports * chance, len(chosen)
        wide = _wide(mean)
        bottom, top = max(0, math.floor(mean) - wide), math.floor(mean) + wide
        numbers = np.arange(bottom, top + 1)
        chances = poisson_chance(numbers, mean)
        chances[0], chances[-1] = poisson_at_most(bottom, mean), poisson_at_least(top, mean)
        scores = (numbers - mean) ** 2 - numbers
        rising = math.floor(mean) - bottom
        scores[rising:] = np.maximum.accumulate(scores[rising:])
        total += float(np.bincount(np.clip(chosen, bottom, top) - bottom, minlength=len(numbers)) @ scores)
        tables.append((size, chances, scores))
    expected = sum(size * float(chances @ scores) for size, chances, scores in tables)
    spread = sum(size * float(chances @ (scores - chances @ scores) ** 2) for size, chances, scores in tables)
    way = 1.0 if total > expected else -1.0
    if way < 0 and not both:
        return 1.0
    best = 0.0
    for tilt in np.geomspace(0.05, 40, _TILTS) / math.sqrt(max(spread, 1e-300)):
        exponent = -way * tilt * total
        for size, chances, scores in tables:
            shifted = way * tilt * scores
            top_score = float(shifted.max())
            exponent += size * (math.log(float(chances @ np.exp(shifted - top_score))) + top_score)
        best = min(best, exponent)
    price = 0.5 * math.log(2 * math.pi * max(reports, 1)) + 1 / (12 * max(reports, 1))
    return math.exp(min(0.0, math.log(2) + price + best))


def repetition(repeats: int, reports: int, likeliest: float) -> float:
    """The odds of so many reports that equal an earlier one, none having a probability above `likeliest`.

    Report i equals one of those before it with probability at most (i - 1) q, whatever these were, so repeats are at
    most a sum of independent coins with these chances; Chernoff's bound for such a sum of mean m: exp(r - m) (m / r)^r.
    """
    mean = likeliest * reports * (reports - 1) / 2
    if repeats <= mean:
        return 1.0
    return math.exp(repeats - mean + repeats * (math.log(mean) - math.log(repeats))) if mean > 0 else 0.0


def togetherness(both: Floats, each: Floats, reports: int, idle: float, held: float) -> float:
    """The odds of two keys being named together so often, or so seldom: the strangest of all pairs.

    `both[x, y]` reports name x and y, `each[x]` name x. In an honest report at least one of the two is named by a coin
    of its own, with probability `idle`, so (a - idle)(b - idle) has mean 0, a and b being 1 where x and y are named.
    Its exponential moments are at most those of one of two laws: none of the two is held, or one is. That bounds the
    sum over independent reports (Chernoff, over a ladder of tilts); odds of all pairs and both sides are added up.
    """
    first, second = np.triu_indices(len(each), 1)
    sums = both[first, second] - idle * (each[first] + each[second]) + reports * idle**2
    if not len(sums) or not reports:
        return 1.0
    values = np.array([(a - idle) * (b - idle) for a in (0, 1) for b in (0, 1)])
    laws = [np.outer([1 - one, one], [1 - idle, idle]).reshape(-1) for one in (idle, held)]
    spread = math.sqrt(reports) * max(math.sqrt(law @ values**2) for law in laws)
    best = 0.0
    for way in (1.0, -1.0):
        furthest = float((way * sums).max())
        for tilt in np.geomspace(0.05, 40, _TILTS) / spread:
            moment = max(float(law @ np.exp(way * tilt * values)) for law in laws)
            best = min(best, reports * math.log(moment) - tilt * furthest)
    return min(1.0, 2 * len(sums) * math.exp(best))
