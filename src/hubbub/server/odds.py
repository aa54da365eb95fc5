"""How likely honest reports are to look like this, at most: tails that hold for every crowd, none of them approximate.

All of them are upper bounds, for reports that are independent of each other and of which each falls into a cell with a
probability that is bounded, whatever the record. Cells' counts are then negatively associated (Joag-Dev and Proschan
1983: true for one report, and kept by adding independent ones), which is what Chernoff's bound needs.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from hubbub.primitives.arrays import Floats, Int64s

#: Tail probabilities of one cell at which crowded cells are counted.
_LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
#: Cells whose tails are worked out, of those that have bounds of their own.
_FURTHEST = 64
#: Odds beyond which a count is cut in the sum of squares; how many tilts are tried.
_CUT, _TILTS = 1e-9, 60
#: Laws with more different probabilities than this are not tested for evenness.
MOST_CLASSES = 4


def outlier(counts: Int64s, reports: int, least: float | Floats, most: float | Floats) -> float:
    """The odds of some cell having so many reports, or so few.

    A cell's count is at most a binomial with the largest probability and at least one with the smallest, in the
    stochastic order, because a sum of independent coins grows with each one's probability. Summed up over the cells.
    """
    if np.ndim(most) == 0 and np.ndim(least) == 0:
        high = stats.binom.sf(int(counts.max()) - 1, reports, most)
        low = stats.binom.cdf(int(counts.min()), reports, least)
    else:
        # The tails of those that lie furthest out by the size of their deviation; the others' need not be known.
        upper, lower = (np.minimum(np.broadcast_to(bound, counts.shape), 1.0) for bound in (most, least))
        far = np.argsort(-_deviation(counts, reports, upper))[:_FURTHEST]
        high = stats.binom.sf(counts[far] - 1, reports, upper[far]).min()
        far = np.argsort(_deviation(counts, reports, lower))[:_FURTHEST]
        low = stats.binom.cdf(counts[far], reports, lower[far]).min()
    return float(min(1.0, 2 * len(counts) * min(high, low)))


def _deviation(counts: Int64s, reports: int, chances: Floats) -> Floats:
    return np.asarray((counts - reports * chances) / np.sqrt(reports * chances + 1e-9))


def crowding(counts: Int64s, reports: int, most: float) -> float:
    """The odds of so many cells with many reports.

    Of M cells, those with at least x reports are negatively associated events, each with probability at most
    q = P(binomial >= x), so r of them have odds of at most exp(-M D(r/M || q)) (Chernoff), D the relative entropy.
    Several x are looked at, and their odds added up.
    """
    cells, odds = len(counts), 1.0
    for level in _LEVELS:
        edge = int(stats.binom.isf(level, reports, most)) + 1
        q = float(stats.binom.sf(edge - 1, reports, most))
        odds = min(odds, chernoff(int((counts >= edge).sum()), cells, q))
    return min(1.0, len(_LEVELS) * odds)


def chernoff(found: int, trials: int, chance: float) -> float:
    """P(at least `found` of `trials` negatively associated events of this chance each), at most."""
    share = found / trials
    if share <= chance:
        return 1.0
    entropy = share * math.log(share / chance) if chance > 0 else math.inf
    if share < 1:
        entropy += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-trials * entropy)


def unevenness(counts: Int64s, reports: int, law: float | Floats) -> float:
    """The odds of counts that lie so far from a law that is known, or so near: a test of squares, both sides.

    Given their total, independent Poisson counts with means n p have the law of n reports; the total is n with
    probability at least 1 / (sqrt(2 pi n) exp(1 / 12 n)) (Stirling), so what Poisson counts do with probability p,
    reports do with at most p times that. The statistic is the sum of (c - n p)^2 - c, where large counts are cut
    so that its exponential moments are finite, and the bound is Chernoff's, over a ladder of tilts.
    """
    total, tables = 0.0, []
    for chance in np.unique(law).tolist():
        chosen = counts if np.ndim(law) == 0 else counts[law == chance]
        mean, size = reports * chance, len(chosen)
        top = int(stats.poisson.isf(_CUT, mean)) + 2
        numbers = np.arange(top + 1)
        chances = stats.poisson.logpmf(numbers, mean)  # that of 0 is no float where thousands are expected
        chances[top] = stats.poisson.logsf(top - 1, mean)
        scores = (numbers - mean) ** 2 - numbers
        scores[int(mean) :] = np.maximum.accumulate(scores[int(mean) :])
        total += float(np.bincount(np.minimum(chosen, top), minlength=top + 1) @ scores)
        tables.append((size, chances, scores))
    means = [float(np.exp(chances) @ scores) for _, chances, scores in tables]
    expected = sum(size * mean for (size, _, _), mean in zip(tables, means, strict=True))
    spread = sum(
        size * float(np.exp(chances) @ (scores - mean) ** 2)
        for (size, chances, scores), mean in zip(tables, means, strict=True)
    )
    way = 1.0 if total > expected else -1.0
    best = 0.0
    for tilt in np.geomspace(0.05, 40, _TILTS) / math.sqrt(max(spread, 1e-300)):
        exponent = -way * tilt * total
        for size, chances, scores in tables:
            exponent += size * float(special.logsumexp(chances + way * tilt * scores))
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
