"""The laws of counts under a hypothesis, and the limits that follow; `hubbub.server.intervals` says why they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hubbub.model.count_laws import TOLD_APART, Counts
from hubbub.primitives.arrays import Bools, Floats, Int64s
from hubbub.server.side_votes import SideVotes
from hubbub.server.tails import SAFE, Law, Ties, TwoKinds, Votes, solve

#: Ties are broken in so many ways.
LEVELS = 64
#: A weighted sum of votes is matched by a sum of votes of more reports, so that probabilities stay below 1.
_MORE = 4
#: Odds of one interval from which on its tails are usual ones; below, the far tails count.
_USUAL = 0.02
#: Names that an absent key has on average: up to how many, keys that have fewer are looked at name by name; from how
#: many on, only clearly more names tell anything.
_FEW, _MANY = 12, 200
#: How much more often than its odds a key that is named once may miss, at the frequency where it does so most often.
#: At 0.3 names of an absent key, this is what makes all keys hold for 94 to 96.5%: `hubbub.server.intervals`.
_CAREFUL = 1.2
#: Votes for and against that do not weigh alike: up to how many names, usual and found, the likeliest f will not do.
_SCARCE, _SEVERAL = 1.1, 4


@dataclass(frozen=True)
class Range:
    """Values of the task: its ends, and value = center * presence + half * scaled value."""

    low: float
    high: float
    center: float
    half: float

    @property
    def balanced(self) -> bool:
        """Whether votes for and against a key speak for different signs of its mean."""
        return self.center == 0 or self.low < 0 < self.high


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
            blank if counts.around is None else counts.around,
            blank if levels is None else levels,
        ]
        self.of_key, cases = blank, 1
        for column in columns:
            values, place = _distinct(column)
            kinds, self.of_key = _distinct(self.of_key * len(values) + place)
            cases = len(kinds)
        first = np.zeros(cases, dtype=np.int64)
        first[self.of_key[::-1]] = np.arange(len(blank))[::-1]
        self.reports, named, signed, around, level = (column[first] for column in columns)
        self.counts = replace(
            counts,
            reports=self.reports,
            named=None if counts.named is None else named,
            signed=None if counts.signed is None else signed,
            around=None if counts.around is None else around,
        )
        self.fine = levels is not None and odds >= _USUAL
        self.odds, self._levels = odds, None if levels is None else level
        upper = (level + 0.5) / LEVELS
        self.ties = SAFE if levels is None else Ties(upper, 1 - upper)

    # Laws under a hypothesis

    def named_law(self, frequency: Any) -> Law | TwoKinds:
        """N if keys have this frequency: names by holders, and by others, each binomial with its mean and variance.

        People who are drawn at random are of one kind: holders whom chance drew are among the others.
        """
        if not self.counts.two_kinds:
            return self.matched_law(frequency)
        alone, held, _ = self.counts.noise
        idle, gain, whole = self.counts.idle, self.counts.gain, np.clip(frequency, 0, 1)
        share = self.counts.sure_of(whole)
        picked = (whole - share) / np.maximum(1 - share, 1e-12)
        means = idle + gain, idle + gain * picked
        chance = self.counts.answers * gain**2 * picked * (1 - picked)
        variances = alone + held, alone + held * picked + chance
        rates = [
            np.clip(1 - variance / np.maximum(mean, 1e-12), 1e-9, 1 - 1e-9)
            for mean, variance in zip(means, variances, strict=True)
        ]
        beyond = np.maximum(idle + gain * frequency, 0.0) / (idle + gain * whole)
        more, fewer = np.maximum(beyond, 1), np.minimum(beyond, 1)
        people = self.reports * share * more, self.reports * (1 - share) * more
        sizes = [count * mean / rate for count, mean, rate in zip(people, means, rates, strict=True)]
        return TwoKinds(Votes(sizes[0], rates[0] * fewer, 0.0), Votes(sizes[1], rates[1] * fewer, 0.0))

    def matched_law(self, frequency: Any) -> Law:
        """The same by one binomial law with its mean and variance."""
        idle, gain, share = self.counts.idle, self.counts.gain, np.clip(frequency, 0, 1)
        mean = idle + gain * share
        rate = np.clip(1 - named_variance(self.counts, share) / mean, 1e-9, 1 - 1e-9)
        # Frequencies below 0 and above 1, which intervals may reach: fewer votes of as many reports, or more reports.
        beyond = np.maximum(idle + gain * frequency, 0.0) / mean
        return Law(self.reports * mean / rate * np.maximum(beyond, 1), rate * np.minimum(beyond, 1), 0.0)

    def signed_law(self, mean: Any, frequency: Any, ones: bool = False) -> Law | TwoKinds:
        """D if keys have this mean and frequency: votes of holders, whose values are alike, and of the others.

        `ones` says that all values are 1: then there is a whole number of holders wherever the truth may be.
        """
        seen, tilt = self.counts.voted(frequency), self.counts.signed_gain * mean
        plus, minus = np.maximum(seen + tilt, 0) / 2, np.maximum(seen - tilt, 0) / 2
        most = np.maximum(plus + minus, 1.0)
        span = np.where(plus + minus > 1 - 1e-9, 2.0, 1.0)
        if not self.counts.two_kinds:
            return Law(self.reports, plus / most, minus / most, span)
        holding = np.maximum(frequency, np.abs(mean))
        certain, sure = self.counts.sure_of(holding), np.minimum(sum(self.counts.signed_noise), 1.0)
        drawn = 1 - certain / np.maximum(holding, 1e-12)
        people = self.reports * certain
        if not ones:  # Holders are whole people: half of one could not vote +1.
            people = np.ceil(people - 1e-9)
        share = np.maximum(people / np.maximum(self.reports, 1), 1e-12)
        rest = np.maximum(1 - share, 1e-12)
        other = np.clip((seen - sure * share) / rest, self.counts.signed_noise[0], 1.0)
        lean = np.clip(drawn * tilt / rest, -other, other)
        pro, contra = (
            (sure + sign * np.clip((1 - drawn) * tilt / share, -sure, sure)) / 2 for sign in (1, -1)
        )
        others = Votes(self.reports * np.maximum(1 - share, 0), (other + lean) / 2, (other - lean) / 2)
        return TwoKinds(Votes(people, pro, contra), others, span)

    def value_law(self, value: Any, values: Range, frequency: Any = None) -> tuple[Law | TwoKinds, Any]:
        """The law of n * (value's estimate), and the unit in which it is a sum of votes; if no other, the likeliest f.

        That is center N / gain + half D / signed_gain, background aside: D alone if the center is 0. Otherwise votes
        for and against have weights, and the unit is chosen so that mean and variance are right.
        """
        laws, scale = self.counts, 1.0
        if values.center != 0 and not values.low < 0 < values.high:
            # Beyond 0, where no truth is but intervals may end: fewer votes than an absent key has.
            background = values.center * laws.idle / laws.gain
            least, value = value, np.maximum(value, 0.0) if values.high > 0 else np.minimum(value, 0.0)
            scale = np.clip((least + background) / background, 0.0, 1.0)
        if frequency is None:
            frequency = self._frequency_with(value, values)
        mean = (value - values.center * frequency) / values.half
        if laws.named is None or (values.center == 0 and laws.two_kinds):
            return self.signed_law(mean, frequency, values.low == 0), values.half / laws.signed_gain
        by_name, by_side = values.center / laws.gain, values.half / laws.signed_gain
        seen, tilt = laws.idle + laws.gain * frequency, laws.signed_gain * mean
        pro = scale * (by_name + by_side) * np.maximum(seen + tilt, 0) / 2
        contra = scale * (by_name - by_side) * np.maximum(seen - tilt, 0) / 2
        plus, minus = np.maximum(pro, 0) + np.maximum(contra, 0), np.maximum(-pro, 0) + np.maximum(-contra, 0)
        alone, held = laws.signed_noise
        together = (1 - laws.idle - laws.gain) / laws.gain + laws.chance(frequency) * (1 - frequency)
        variance = scale * (
            by_name**2 * named_variance(laws, frequency)
            + by_side**2 * (alone + held * frequency - self._of_values(mean, frequency))
            + 2 * values.center * values.half * mean * together
        )
        unit = (np.maximum(variance, 1e-300) + (plus - minus) ** 2 / _MORE) / np.maximum(plus + minus, 1e-300)
        most = np.maximum((plus + minus) / (_MORE * unit), 1.0) * _MORE * unit
        return Law(_MORE * self.reports, plus / most, minus / most), unit

    def _of_values(self, mean: Any, frequency: Any) -> Any:
        """What is no noise of D's mean square: of people who stay the same, that of their values, m^2 / f at least.

        Of people who are drawn, m^2.
        """
        square = (self.counts.signed_gain * mean) ** 2
        if not self.counts.two_kinds:
            return square
        least = np.clip(np.maximum(frequency, np.abs(mean)), 1e-12, 1)
        return square * np.maximum((1 - self.counts.drawn_of(least)) / least, 1)

    def _least_with(self, value: Any, values: Range) -> Any:
        """The least frequency that is possible if this is the mean value."""
        if values.center == 0:
            return np.abs(value) / values.half
        ends = [value / end for end in (values.low, values.high) if end]
        return np.maximum(
            np.maximum.reduce(ends) if values.low < 0 < values.high else np.minimum.reduce(ends), 0
        )

    def _frequency_with(self, value: Any, values: Range) -> Any:
        """The frequency to reckon with if this is the mean value: the likeliest one, or the least where N is unknown.

        It may be above 1. If it were cut there, the spread of a key that everybody has would never be taken too large,
        but half of the time too small.
        """
        least = self._least_with(value, values)
        if self.counts.named is None:
            return least
        heard = np.maximum(self.reports, 1)  # of keys that no report is about, nothing is known anyway
        most = least + self._names / (heard * self.counts.gain)  # beyond, the likelihood falls
        if values.center and not values.low <= 0 <= values.high:
            most = np.maximum(np.maximum(value / values.low, value / values.high), least)
        found = self._side_votes(value, values).likeliest(least, most)
        if not self.counts.two_kinds:
            return found
        # The likelihood is that of Poisson numbers. Where holders are named nearly surely, N tells their number better.
        low, high = self._named_range
        return np.maximum(np.clip(found, low, high), least)

    def _side_votes(self, value: Any, values: Range) -> SideVotes:
        """Votes for and against, as counted, and as they depend on the frequency if this is the mean value."""
        laws, names = self.counts, self._names
        assert laws.signed is not None
        tilt, lean = laws.signed_gain * value / values.half, laws.signed_gain * values.center / values.half
        return SideVotes(
            ((names + laws.signed) / 2, (names - laws.signed) / 2),
            (self.reports * (laws.idle + tilt) / 2, self.reports * (laws.idle - tilt) / 2),
            (self.reports * (laws.gain - lean) / 2, self.reports * (laws.gain + lean) / 2),
        )

    @cached_property
    def _named_range(self) -> tuple[Floats, Floats]:
        """Frequencies that are within `TOLD_APART` standard errors of the one that N tells."""
        heard, share = np.maximum(self.reports, 1), self._names / np.maximum(self.reports, 1)
        told = np.maximum((share - self.counts.idle) / self.counts.gain, 0)
        error = TOLD_APART * np.sqrt(named_variance(self.counts, told) / heard) / self.counts.gain
        return told - error, told + error

    @cached_property
    def _names(self) -> Int64s:
        """N, and as much of it as D tells where it is left out (see `hubbub.server.intervals`)."""
        assert self.counts.named is not None
        assert self.counts.signed is not None
        return np.asarray(np.maximum(self.counts.named, np.abs(self.counts.signed)))

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

    @cached_property
    def _rare(self) -> Bools:
        """Keys that are named too rarely to tell their frequency, where few names are usual."""
        if self.counts.named is None or self.counts.signed is None or not self.fine:
            return np.zeros(len(self.reports), dtype=bool)
        return np.asarray((self.counts.idle * self.reports <= _FEW) & ~telling(self.counts))

    def _with_rare(self, tail: Floats, value: Floats, side: int, values: Range) -> Floats:
        """The upper tail (side 1) or the lower one, with another one for keys that are named too rarely.

        For them, what counts is the sum and "named less than c times" together, added up exactly, with the least
        frequency that goes with the value. Keys that are named c times or more have odds of their own. So the tail is
        divided by the probability that an absent key is among the rare ones: then the two kinds of misses add up to
        the odds. If c = 2 and votes for and against weigh alike, the others hardly miss with fewer than four votes (all
        on one side, these are two standard errors from 0), and rare ones have the odds of having fewer. But a key that
        is held a little is named once more often than an absent one. So if c = 2, the tail must also be small, up to
        `_CAREFUL`, at the frequency that makes this one name likeliest.
        """
        rare = self._rare
        if not rare.any():
            return tail
        limit = least_telling(self.counts.idle * self.reports[rare])
        part = (self.ties.upper if side > 0 else self.ties.lower)[rare]
        by_name, by_side = values.center / self.counts.gain, values.half / self.counts.signed_gain
        weights = side * (by_name + by_side), side * (by_name - by_side)

        def few(frequency: Any) -> Floats:
            law = self.votes_law(value, values, frequency)
            own = Law(
                *(np.broadcast_to(each, rare.shape)[rare] for each in (law.reports, law.plus, law.minus))
            )
            return own.among_few(side * self.total(values)[rare], limit, part, weights)

        single, found = limit == 2, tail.copy()
        own = few(self._least_with(value, values))
        rarity, quiet = self._rarity
        own = own / (rarity if values.center else np.where(single, quiet, rarity))
        if single.any():
            own = np.where(single, np.maximum(own, few(self._frequency_with(value, values)) / _CAREFUL), own)
        found[rare] = own
        return np.minimum(found, 1.0)

    @cached_property
    def _rarity(self) -> tuple[Floats, Floats]:
        """The probabilities that an absent key is among the rare ones, and that it has fewer than four votes."""
        rare, side = self._rare, self.counts.signed_noise[0] / 2
        law = Law(self.reports[rare], side, side)
        limit = least_telling(self.counts.idle * law.reports)
        return law.among_few(-np.inf, limit, 1.0), law.among_few(-np.inf, 4, 1.0)

    def votes_law(self, value: Any, values: Range, frequency: Any) -> Law:
        """Votes for and against if this is the mean value: as many as N varies, each for the key by the same odds."""
        laws = self.counts
        mean, cast = (value - values.center * frequency) / values.half, self.matched_law(frequency)
        lean = np.clip(laws.signed_gain * mean / (laws.idle + laws.gain * frequency), -1, 1)
        return Law(cast.reports, cast.plus * (1 + lean) / 2, cast.plus * (1 - lean) / 2)

    def value_limits(self, odds: float, values: Range) -> tuple[Floats, Floats]:
        """All mean values under which N and D, added with their weights, are no surprise."""
        few = np.zeros(len(self.reports), dtype=bool)
        if values.balanced and values.center and self.fine:
            few = (self._names <= _SEVERAL) & (self.counts.idle * self.reports <= _SCARCE)
        if few.any() and not few.all():
            low, high = np.empty(len(few)), np.empty(len(few))
            for some in (few, ~few):
                part = self._part(some)
                low[some], high[some] = (limit[part.of_key] for limit in part.value_limits(odds, values))
            return low, high
        laws = self.counts
        found, total = values.half * laws.mean, self.total(values)
        if values.center:
            found = found + values.center * laws.frequency

        def tail(value: Floats, side: int) -> Floats:
            def under(frequency: Any = None) -> Floats:
                law, unit = self.value_law(value, values, frequency)
                return (self.ties.above if side > 0 else self.ties.below)(law, total / unit)

            if few.any():
                least, likeliest = self._least_with(value, values), self._frequency_with(value, values)
                found = self._side_votes(value, values).averaged(under, least, likeliest)
            else:
                found = under()
            return self._with_rare(found, value, side, values) if values.balanced else found

        law, unit = self.value_law(found, values)
        step = 2 * unit * np.sqrt(np.maximum(law.cast, 1)) / self.reports
        found = np.asarray(found, dtype=np.float64)
        no_names = -values.center * laws.idle / laws.gain if values.center else 0.0
        bottom = no_names if values.center and values.low >= 0 else -np.inf
        top = no_names if values.center and values.high <= 0 else np.inf
        low = solve(lambda mean: tail(mean, 1), odds / 2, found, -step, bottom)
        return low, solve(lambda mean: tail(mean, -1), odds / 2, found, step, top)

    def _part(self, some: Bools) -> Cases:
        """Only some of the cases."""
        named, signed, around = (
            None if c is None else c[some]
            for c in (self.counts.named, self.counts.signed, self.counts.around)
        )
        counts = replace(self.counts, reports=self.reports[some], named=named, signed=signed, around=around)
        return Cases(counts, None if self._levels is None else self._levels[some], self.odds)


def named_variance(counts: Counts, frequency: Any) -> Any:
    """Of one report's being named. Estimates may be above 1: what holders take from it is that of everybody at most."""
    alone, held, _ = counts.noise
    share = np.clip(frequency, 0, 1)
    chance = counts.gain**2 * counts.chance(share) * share * (1 - share)
    return alone + np.maximum(held * np.maximum(frequency, 0), held * share) + chance


def least_telling(background: Any) -> Any:
    """The N from which on it tells the frequency: at least 2, and as much as an absent key has on average.

    Where that is much, only keys that are `TOLD_APART` from it: that spares work and makes no difference.
    """
    surely = TOLD_APART * np.sqrt(background) * (background > _MANY)
    return np.maximum(2, np.ceil(background + surely))


def telling(counts: Counts) -> Bools:
    """Keys whose N tells their frequency."""
    assert counts.named is not None
    return np.asarray(counts.named >= least_telling(counts.idle * np.asarray(counts.reports)))


def _distinct(column: Int64s) -> tuple[Int64s, Int64s]:
    """The different values of a column, in order, and which of them stands at each place."""
    first = int(column.min(initial=0))
    if int(column.max(initial=0)) - first > 4 * len(column) + 1000:
        return np.unique(column, return_inverse=True)
    seen = np.zeros(int(column.max(initial=0)) - first + 1, dtype=np.int64)
    seen[column - first] = 1
    return np.flatnonzero(seen) + first, (np.cumsum(seen) - 1)[column - first]
