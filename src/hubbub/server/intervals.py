"""Intervals that hold however few the reports are: tails of the counts that estimates are made of.

Estimates are linear in two counts: how often a key was named (N), and for minus against (D). Where these are large an
estimate is normal. With a few reports a bucket it is not: the law of N is skewed, and its variance depends on the very
frequency that is asked for. So intervals are made the other way round: a value belongs to the interval if what was
counted is no surprise under it.

Why they cover. Reports are independent, and each names the key for, against or not at all: D has a trinomial law and
N a binomial one, with the mechanism's own means and variances (`hubbub.model.mechanism.Counts`). Let P_v be the law of
the count if the true value is v, and t what was counted. The interval is { v : P_v(count >= t) > odds / 2 and
P_v(count <= t) > odds / 2 }. It misses the truth only if one of the tails is at most odds / 2 under the true law, and
under any law a tail is at most a with probability at most a. So it misses with probability at most `odds`, for every
frequency and every number of reports, and odds / d for each of d keys makes intervals that hold for all together.

That "at most" is generous to one key alone: at 1 report a bucket an absent key is named 0 to 2 times with probability
0.92 and 0 to 3 times with 0.98, and no fixed rule covers with 0.95. So for single keys ties are broken (Stevens 1950):
of the probability of exactly t, a part u is counted in the upper tail and the rest in the lower one, 0 < u < 1 a public
number that depends on key and state as if drawn at random. The tails are then uniform, and coverage is 1 - odds.
The same state always gives the same interval; one report more can move its ends by the worth of one report.

Where the standard deviation of a count is above 5 z^3, z the half-width of the interval in standard errors, a skewed
tail differs by less than a tenth of itself from a normal one, in opposite directions on the two sides, and the normal
interval is given.

Means have a second unknown, the frequency f, on which the spread of D depends. It is taken as N says where that is
`TOLD_APART` standard errors above what an absent key shows, and else as the least that is possible with the mean.

Conditional means, q = mean / frequency, are given for keys only whose N is at least c, more than chance explains. That
selects N that are too large. Given N, the votes for the key are binomial, whatever N was selected by, with
E[D] / N = (signed_gain / gain) q s, where s is the share of N that is not background: so the limits of E[D] / N need no
correction, and those of s come from the law of N given N >= c. Both are put together as for a quotient of independent
estimates (Donner and Zou 2012; for normal limits that is Fieller's). Where s may be 0 nothing bounds q on that side.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from hubbub.model.mechanism import TOLD_APART, Counts, Quantity
from hubbub.model.state import State
from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.server.tails import SAFE, Law, Ties, solve

#: Ties are broken in so many ways, for counts of at most this variance. (Above, a count more or less is a detail.)
_LEVELS, _COARSE = 64, 100.0
#: A weighted sum of votes is matched by a sum of votes of more reports, so that probabilities stay below 1.
_MORE = 4
#: Most names an absent key may have on average for what few names say to be added up name by name.
_ENUMERATED = 12
#: Odds of one interval from which on tails are usual ones.
_USUAL = 0.02
#: Names that an absent key has on average from which on only clearly more of them tell anything.
_MANY = 200
#: Below one such name, keys that are held a little have far more of them than an absent one: be as careful.
_CAREFUL = 0.75


@dataclass(frozen=True)
class Range:
    """Values of the task: its ends, and value = center * presence + half * scaled value."""

    low: float
    high: float
    center: float
    half: float


class Cases:
    """The different counts there are among some keys, with their ties; and their laws under a hypothesis.

    `of_key` says which case is each key's.
    """

    def __init__(self, counts: Counts, levels: Int64s | None, odds: float) -> None:
        given = counts.named if counts.named is not None else counts.signed
        assert given is not None
        blank = np.zeros(len(given), dtype=np.int64)
        columns = [
            blank + counts.reports,
            blank if counts.named is None else counts.named,
            blank if counts.signed is None else counts.signed,
            blank if levels is None else levels,
        ]
        self.of_key, cases = blank, 1
        for column in columns:
            values, place = _distinct(column)
            kinds, self.of_key = _distinct(self.of_key * len(values) + place)
            cases = len(kinds)
        first = np.zeros(cases, dtype=np.int64)
        first[self.of_key[::-1]] = np.arange(len(blank))[::-1]
        self.reports, named, signed, level = (column[first] for column in columns)
        self.counts = replace(
            counts,
            reports=self.reports,
            named=None if counts.named is None else named,
            signed=None if counts.signed is None else signed,
        )
        self.fine = levels is not None and odds >= _USUAL
        upper = (level + 0.5) / _LEVELS
        self.ties = SAFE if levels is None else Ties(upper, 1 - upper)

    @property
    def told(self) -> Floats:
        """The frequency to reckon with for the spread of D, as far as N tells it, and 0 elsewhere."""
        if self.counts.named is None:
            return np.zeros(len(self.reports))
        return np.where(telling(self.counts), np.clip(self.counts.frequency, 1e-12, 1), 0.0)

    # Laws under a hypothesis

    def named_law(self, frequency: Any) -> Law:
        """N if keys have this frequency: the binomial law with its mean and variance."""
        idle, gain, share = self.counts.idle, self.counts.gain, np.clip(frequency, 0, 1)
        mean = idle + gain * share
        rate = np.clip(1 - named_variance(self.counts, share) / mean, 1e-9, 1 - 1e-9)
        # Frequencies below 0 and above 1, which intervals may reach: fewer votes of as many reports, or more reports.
        beyond = np.maximum(idle + gain * frequency, 0.0) / mean
        return Law(self.reports * mean / rate * np.maximum(beyond, 1), rate * np.minimum(beyond, 1), 0.0)

    def signed_law(self, mean: Any, frequency: Any) -> Law:
        """D if keys have this mean and frequency; given N, where N tells the frequency.

        Given N, D is a sum of N votes that are all cast. With as many as make the variance right it also varies as N
        does where the mean is not 0. That is true of usual tails; where odds are small the tails of votes that
        come in varying numbers are heavier, and they are taken.
        """
        alone, held = self.counts.signed_noise
        seen, tilt = alone + held * frequency, self.counts.signed_gain * mean
        plus, minus = np.maximum(seen + tilt, 0) / 2, np.maximum(seen - tilt, 0) / 2
        most = np.maximum(plus + minus, 1.0)
        plus, minus, told = plus / most, minus / most, self.told
        given = (told > 0) & (frequency <= told) & self.fine
        spread, middle = self.reports * (plus + minus), self.reports * (plus - minus)
        votes = (spread + np.sqrt(spread**2 + 4 * middle**2)) / 2
        lean = middle / np.maximum(votes, 1e-300)
        return Law(
            np.where(given, votes, self.reports),
            np.where(given, (1 + lean) / 2, plus),
            np.where(given, (1 - lean) / 2, minus),
            np.where(given | (plus + minus > 1 - 1e-9), 2.0, 1.0),
        )

    def value_law(self, value: Any, values: Range) -> tuple[Law, Any]:
        """The law of n * (value's estimate), and the unit in which it is a sum of votes.

        That is center N / gain + half D / signed_gain, background aside: D alone if the center is 0. Otherwise votes
        for and against have weights, and the unit is chosen so that mean and variance are right.
        """
        frequency = self._frequency_with(value, values)
        mean, laws = (value - values.center * frequency) / values.half, self.counts
        if values.center == 0:
            return self.signed_law(mean, frequency), values.half / laws.signed_gain
        by_name, by_side = values.center / laws.gain, values.half / laws.signed_gain
        seen, tilt = laws.idle + laws.gain * frequency, laws.signed_gain * mean
        pro = (by_name + by_side) * np.maximum(seen + tilt, 0) / 2
        contra = (by_name - by_side) * np.maximum(seen - tilt, 0) / 2
        plus, minus = np.maximum(pro, 0) + np.maximum(contra, 0), np.maximum(-pro, 0) + np.maximum(-contra, 0)
        alone, held = laws.signed_noise
        together = (1 - laws.idle - laws.gain) / laws.gain + laws.noise[2] / laws.gain**2 * (1 - frequency)
        variance = (
            by_name**2 * named_variance(laws, frequency)
            + by_side**2 * (alone + held * frequency - tilt**2)
            + 2 * values.center * values.half * mean * together
        )
        unit = (np.maximum(variance, 1e-300) + (plus - minus) ** 2 / _MORE) / np.maximum(plus + minus, 1e-300)
        return Law(_MORE * self.reports, plus / (_MORE * unit), minus / (_MORE * unit)), unit

    def _frequency_with(self, value: Any, values: Range) -> Any:
        """The frequency to reckon with if this is the mean value: what was told, or the nearest that is possible."""
        told = self.told
        ends = [value / end for end in (values.low, values.high) if end]
        least = np.maximum(np.maximum.reduce(ends) if values.low < 0 < values.high else np.minimum.reduce(ends), 0)
        if values.low <= 0 <= values.high:
            return np.maximum(told, least)
        return np.clip(told, least, np.maximum(np.maximum.reduce(ends), least))

    def total(self, values: Range) -> Floats:
        """What `value_law` is the law of, as counted."""
        assert self.counts.signed is not None
        total = values.half / self.counts.signed_gain * self.counts.signed
        if values.center:
            assert self.counts.named is not None
            total = total + values.center / self.counts.gain * self.counts.named
        return np.asarray(total)

    # Limits

    def frequency_limits(self, odds: float) -> tuple[Floats, Floats]:
        """All frequencies under which N is no surprise."""
        named, found = self.counts.named, self.counts.frequency
        assert named is not None
        step = 2 * np.sqrt(named_variance(self.counts, found) / self.reports) / self.counts.gain
        bottom = -self.counts.idle / self.counts.gain
        low = solve(lambda f: self.ties.above(self.named_law(f), named), odds / 2, found, -step, bottom)
        return low, solve(lambda f: self.ties.below(self.named_law(f), named), odds / 2, found, step, np.inf)

    def among_few(self, law: Law, part: Any, side: int, tail: Floats) -> Floats:
        """The upper tail of D (side 1) or -D for keys that were named too rarely to tell their frequency.

        What counts is D and "named less than c times" together, which is added up exactly. Keys that are named c times
        or more miss with the odds of their own, given N; divided by the probability that an absent key is among the
        few, the two add up to the odds asked for.
        """
        counts = self.counts
        if counts.named is None or counts.signed is None or not self.fine:
            return tail
        background = counts.idle * self.reports
        few = (background <= _ENUMERATED) & (self.told == 0)
        if not few.any():
            return tail
        n, limit = self.reports[few], np.maximum(2, np.ceil(background[few]))
        count = side * counts.signed[few]
        tails = []
        for plus, minus in ((law.plus[few], law.minus[few]), (counts.signed_noise[0] / 2,) * 2):
            rest = np.maximum(1 - plus - minus, 1e-12)
            first, above, at, within = np.exp(n * np.log(rest)), 0.0, 0.0, 0.0
            for pro in range(int(limit.max())):
                chance = first
                for contra in range(int(limit.max()) - pro):
                    inside = chance * (pro + contra < limit)
                    above, at = above + inside * (pro - contra > count), at + inside * (pro - contra == count)
                    within = within + inside
                    chance = chance * np.maximum(n - pro - contra, 0) * minus / (rest * (contra + 1))
                first = first * np.maximum(n - pro, 0) * plus / (rest * (pro + 1))
            tails.append((above + (part if np.ndim(part) == 0 else part[few]) * at, within))
        found = tail.copy()
        careful = np.where(background[few] < 1, _CAREFUL, 1.0)
        found[few] = np.minimum(tails[0][0] / (tails[1][1] * careful), 1.0)
        return found

    def value_limits(self, odds: float, values: Range) -> tuple[Floats, Floats]:
        """All mean values under which N and D, added with their weights, are no surprise."""
        laws = self.counts
        found, total = values.half * laws.mean, self.total(values)
        if values.center:
            found = found + values.center * laws.frequency

        def above(value: Floats) -> Floats:
            law, unit = self.value_law(value, values)
            return self.among_few(law, self.ties.upper, 1, self.ties.above(law, total / unit))

        def below(value: Floats) -> Floats:
            law, unit = self.value_law(value, values)
            return self.among_few(law.mirrored, self.ties.lower, -1, self.ties.below(law, total / unit))

        law, unit = self.value_law(found, values)
        step = 2 * unit * np.sqrt(np.maximum((law.plus + law.minus) * law.reports, 1)) / self.reports
        found = np.asarray(found, dtype=np.float64)
        low = solve(above, odds / 2, found, -step, -np.inf)
        return low, solve(below, odds / 2, found, step, np.inf)

    def ratio_limits(self, odds: float) -> tuple[Floats, Floats]:
        """All conditional means, scaled, under which N and D are no surprise, given that N is at least `least_named`."""
        laws, named, found = self.counts, self.counts.named, self.counts.frequency
        assert named is not None
        assert laws.signed is not None
        share = np.clip(found, 0, 1)
        # Where a report may speak both for and against, D varies less than as many independent votes.
        spread = (laws.signed_noise[0] + laws.signed_noise[1] * share) / (laws.idle + laws.gain * share)
        votes, pro = named / spread, (named + laws.signed) / (2 * spread)
        step = 1 / np.sqrt(votes)
        low = solve(lambda p: self.ties.above(Law(votes, p, 0.0), pro), odds / 2, pro / votes, -step, 0.0)
        high = solve(lambda p: self.ties.below(Law(votes, p, 0.0), pro), odds / 2, pro / votes, step, 1.0)
        leaning = [(2 * p - 1) * laws.gain / laws.signed_gain for p in (pro / votes, low, high)]
        least = least_named(laws, odds)

        def above(frequency: Floats) -> Floats:
            law = self.named_law(frequency)
            return self.ties.above(law, named) / np.maximum(law.at_least(least), 1e-300)

        def below(frequency: Floats) -> Floats:
            law = self.named_law(frequency)
            chosen = np.maximum(self.ties.below(law, named) - law.at_most(least - 1), 0)
            return chosen / np.maximum(law.at_least(least), 1e-300)

        step = 2 * np.sqrt(named_variance(laws, found) / self.reports) / laws.gain
        shares = found, solve(above, odds / 2, found, -step, 0.0), solve(below, odds / 2, found, step, np.inf)
        return quotient_limits(*leaning, *(laws.gain * f / (laws.idle + laws.gain * f) for f in shares))


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


def named_variance(counts: Counts, frequency: Any) -> Any:
    """Of one report's being named."""
    share = np.clip(frequency, 0, 1)
    alone, held, asked = counts.noise
    return alone + held * share + asked * share * (1 - share)


def _distinct(column: Int64s) -> tuple[Int64s, Int64s]:
    """The different values of a column, in order, and which of them stands at each place."""
    first = int(column.min(initial=0))
    if int(column.max(initial=0)) - first > 4 * len(column) + 1000:
        return np.unique(column, return_inverse=True)
    seen = np.zeros(int(column.max(initial=0)) - first + 1, dtype=np.int64)
    seen[column - first] = 1
    return np.flatnonzero(seen) + first, (np.cumsum(seen) - 1)[column - first]


def telling(counts: Counts) -> Bools:
    """Keys that were named at least twice, and at least as often as an absent key is on average.

    Where that is often, so many keys are told apart by `TOLD_APART`, which spares work and makes no difference.
    """
    assert counts.named is not None
    background = counts.idle * np.asarray(counts.reports)
    surely = TOLD_APART * np.sqrt(background) * (background > _MANY)
    return np.asarray(counts.named >= np.maximum(2, background + surely))


def count_variance(counts: Counts) -> Floats:
    """Of N, or of D where names are not counted, as far as is known."""
    if counts.named is None:
        each = counts.signed_noise[0] + counts.signed_noise[1] * counts.told
    else:
        each = named_variance(counts, counts.frequency)
    return np.asarray(each * counts.reports)


def tie_levels(counts: Counts, state: State, ids: UInt64s) -> Int64s:
    """How ties are broken, 0 .. 63 for each key: public, as if random, and the same for the same state."""
    mark = zlib.crc32(state.totals.tobytes())
    mark = zlib.crc32(state.reports.sum(axis=0, dtype=np.int64).tobytes(), mark) << 32 | state.count % (1 << 32)
    word = ids ^ np.uint64(mark)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # the finalizer of splitmix64
        word = (word ^ (word >> np.uint64(30))) * np.uint64(factor)
    return np.where(count_variance(counts) < _COARSE, (word >> np.uint64(58)).astype(np.int64), _LEVELS // 2)


@dataclass(frozen=True)
class Wanted:
    """Which intervals: of what, missing with what odds on both sides together, and how ties are broken (None: not)."""

    quantity: Quantity
    odds: float
    values: Range
    levels: Int64s | None

    def limits(self, counts: Counts, low: Floats, high: Floats, flagged: Bools) -> tuple[Floats, Floats]:
        """The normal limits where counts are large, and better ones elsewhere."""
        width = -NormalDist().inv_cdf(self.odds / 2)
        chosen = count_variance(counts) < (5 * width**3) ** 2
        if self.quantity == "conditional":
            # Frequencies that are hardly above 0 were selected for being too high, whatever the counts.
            noise = np.sqrt(counts.noise[0] / np.maximum(counts.reports, 1)) / counts.gain
            chosen = ~flagged & (chosen | (counts.frequency < (width + 4) * noise))
        chosen &= np.broadcast_to(np.asarray(counts.reports) > 0, chosen.shape)
        if not chosen.any():
            return low, high
        cases = Cases(self._needed(counts, chosen), None if self.levels is None else self.levels[chosen], self.odds)
        if self.quantity == "frequency":
            found = cases.frequency_limits(self.odds)
        elif self.quantity == "conditional":
            found = cases.ratio_limits(self.odds)
        else:
            found = cases.value_limits(self.odds, self.values)
        low, high = low.copy(), high.copy()
        low[chosen], high[chosen] = (ends[cases.of_key] for ends in found)
        if self.quantity == "conditional":
            values = self.values
            low[chosen], high[chosen] = (
                np.clip(values.center + values.half * ends[chosen], values.low, values.high)
                for ends in (low, high)
            )
        return low, high

    def strength(self, counts: Counts) -> Floats:
        """How surprising the counts are for a key that nobody has, in standard deviations of a normal law."""
        cases = Cases(self._needed(counts, np.ones(len(count_variance(counts)), dtype=bool)), None, self.odds)
        if self.quantity in ("frequency", "conditional"):
            law, count = cases.named_law(0.0), cases.counts.named
        else:
            law, unit = cases.value_law(np.zeros(len(cases.reports)), self.values)
            count = cases.total(self.values) / unit
        assert count is not None
        above, below = law.surprise(count), law.mirrored.surprise(-count)
        signed = np.where(above > 0, above, np.minimum(-below, 0.0))
        return np.clip(signed if self.quantity == "conditional" else np.abs(signed), -1e3, 1e3)[cases.of_key]

    def _needed(self, counts: Counts, chosen: Bools) -> Counts:
        """What matters of the counts of some keys: the fewer different ones there are, the less work."""
        reports = counts.reports[chosen] if isinstance(counts.reports, np.ndarray) else counts.reports
        named, signed = (None if c is None else c[chosen] for c in (counts.named, counts.signed))
        if self.quantity == "frequency":
            signed = None
        elif self.quantity == "mean" and named is not None and self.values.center == 0:
            named = np.where(telling(counts)[chosen], named, 0)
        return replace(counts, reports=reports, named=named, signed=signed)
