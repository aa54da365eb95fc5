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

Where epsilon is large, holders of a key name it nearly surely, and the others hardly ever. Then their votes are counted
apart (`hubbub.server.tails.TwoKinds`): all that exceeds the mean comes from the others, and one binomial number with
the same mean and variance would hide it. Of a signed count, what holders add to the variance is that of votes with
their values, taken as all alike, which is the most that it can be. Values that differ vary less: with half of them +1
and half -1 means are covered nearly always, and no rule can tell these from values of 0.

Where the standard deviation of a count is above 5 z^3, z the half-width of the interval in standard errors (2 or more),
a skewed tail differs by less than a tenth of itself from a normal one, in opposite directions on the two sides, and
the normal interval is given.

Means have a second unknown, the frequency f, on which the spread of the counts depends.

- N and D are judged together, under the f that makes them likeliest if the mean is v. That f is nearly independent of
  the sum that is judged, so that v is rejected as often as if f were known. It may be above 1, and if votes for and
  against weigh alike, all means between minus and plus the largest value are thought possible: so that f errs to both
  sides, whoever holds the key.
- Where votes for and against do not weigh alike (a range like -1:3) and are few, the likeliest f errs to one side: of
  keys that are held a little, 7% were missed instead of 5%. There the tail is averaged over all f, each by how likely
  it makes what was counted (`hubbub.server.side_votes`).
- Keys with fewer names than tell f, where both signs are possible, are judged by the sum and "so few names" together,
  exactly, with the least f that goes with the mean (`Cases._with_rare`). A key with as many votes for as against has
  the estimate 0, and cannot miss a mean of 0. Below one name of an absent key that is nearly all there is to see: if
  its misses were to be 5%, those of keys that are held a little, and named once more often, would be far more. So how
  often these miss is bounded by 6%, and absent keys miss less often than they may: 3.5% at 0.3 names. No other rule
  gains more than a tenth of a point there, to 96.4% (a linear program in the tests).

Conditional means, q = mean / frequency, are given for keys only whose N is at least c, more than chance explains, and
left unmarked only if N is at least c', more than chance explains among all keys. That selects N that are too large.
Given N, the votes for the key are binomial, whatever N was selected by, with E[D] / N = (signed_gain / gain) q s, where
s is the share of N that is not background: so the law of D given N needs no correction, and what N says about s comes
from the law of N given c <= N < c', or N >= c'. For single keys, the tails of D given N are averaged over the
confidence distribution of s: s is at most its u-quantile if N this small, among those selected, has probability 1 - u.
For a q of 0, s does not matter and coverage is 1 - odds; for normal counts it is Fieller's interval, so s may be a
little below 0; elsewhere the tests find 93.8 to 97% for single keys instead of 95%. A true q at an end of the range is
missed on one side only: 1 - odds / 2.
For all keys together, the limits of E[D] / N and of s are put together as for a quotient of independent estimates
(Donner and Zou 2012). Where s may be 0 nothing bounds q on that side: these intervals hold more often than they say.

What is covered are the records that devices reported on, after they were sampled down: the entries that were drawn. A
task with `count_lengths` tells how many were (`Truncation.drawn`). Then the number of holders varies, too, and what is
covered is what is kept on average (`Counts.drawn`). From epsilon 4 on that matters: if everybody has 32 entries of
which one is kept, then at epsilon 8 intervals for what was drawn hold for 86% of what is kept on average.

Where estimates are not made of counts (`value_list`) intervals are normal, and conditional means are selected for their
frequency all the same (`hubbub.server.quotients.selected_normal_limits`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from hubbub.model.count_laws import Counts
from hubbub.model.mechanism import Quantity
from hubbub.model.state import State
from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.server.cases import LEVELS, Cases, Range, named_variance, telling
from hubbub.server.quotients import ratio_limits
from hubbub.server.tails import Law, TwoKinds

#: Ties are broken for counts of at most this variance. (Above, a count more or less is a detail.)
_COARSE = 100.0
#: Shares that are tried at a time for the least one that stands out.
_SHARES = 32


@dataclass(frozen=True)
class Wanted:
    """Which intervals: of what, missing with what odds on both sides together, and how ties are broken (None: not)."""

    quantity: Quantity
    odds: float
    values: Range
    levels: Int64s | None
    #: Keys among which those are looked for that stand out: what is shown was selected so.
    keys: int = 1

    def limits(self, counts: Counts, low: Floats, high: Floats, flagged: Bools) -> tuple[Floats, Floats]:
        """The normal limits where counts are large, and better ones elsewhere; all there is where nobody was asked."""
        width = -NormalDist().inv_cdf(self.odds / 2)
        chosen = count_variance(counts) < (5 * max(width, 2.0) ** 3) ** 2
        if self.quantity == "conditional":
            # Frequencies that are hardly above 0 were selected for being too high, whatever the counts.
            noise = np.sqrt(counts.noise[0] / np.maximum(counts.reports, 1)) / counts.gain
            apart = -NormalDist().inv_cdf(self.odds / self.keys / 2)
            chosen = ~flagged & (chosen | (counts.frequency < (apart + 4) * noise))
        unknown = np.broadcast_to(np.asarray(counts.reports) == 0, chosen.shape)
        ends = (
            (0.0, 1.0)
            if self.quantity == "frequency"
            else (min(self.values.low, 0.0), max(self.values.high, 0.0))
        )
        low, high = np.where(unknown & ~flagged, ends[0], low), np.where(unknown & ~flagged, ends[1], high)
        chosen &= ~unknown
        if not chosen.any():
            return low, high
        cases = Cases(
            self._needed(counts, chosen), None if self.levels is None else self.levels[chosen], self.odds
        )
        if self.quantity == "frequency":
            found = cases.frequency_limits(self.odds)
        elif self.quantity == "conditional":
            found = ratio_limits(cases, self.odds, self.keys)
        else:
            found = cases.value_limits(self.odds, self.values)
        low[chosen], high[chosen] = (limit[cases.of_key] for limit in found)
        if np.any(counts.wider != 1):  # in estimates of frequencies by signed counts
            value, times = counts.frequency[chosen], np.broadcast_to(counts.wider, chosen.shape)[chosen]
            low[chosen], high[chosen] = (value + times * (ends[chosen] - value) for ends in (low, high))
        if self.quantity == "conditional":
            values = self.values
            low[chosen], high[chosen] = (
                np.clip(values.center + values.half * limit[chosen], values.low, values.high)
                for limit in (low, high)
            )
        return low, high

    def surprise(self, counts: Counts) -> Floats:
        """How surprising the counts are for a key that nobody has, in standard deviations of a normal law.

        Above 0 for too many, or too high a mean, and below 0 for the contrary.
        """
        cases = Cases(self._needed(counts, np.ones(len(count_variance(counts)), dtype=bool)), None, self.odds)
        if self.quantity in ("frequency", "conditional"):
            law: Law | TwoKinds = cases.named_law(0.0)
            count = cases.counts.named
        else:
            law, unit = cases.value_law(np.zeros(len(cases.reports)), self.values)
            count = cases.total(self.values) / unit
        assert count is not None
        above, below = law.surprise(count), law.surprise_below(count)
        signed = np.where(above > 0, above, np.minimum(-below, 0.0))
        return np.asarray(np.clip(signed, -1e9, 1e9)[cases.of_key] / counts.wider)

    def least_share(self, counts: Counts, apart: float) -> float:
        """The smallest share of users whose key stands out every other time, if they hold it with the largest value.

        By the rule of `surprise`, with the counts that such a share has in the mean, so that what is said to stand out
        is what does. Infinite where not even a key that everybody has would.
        """
        reports, values = int(np.median(np.maximum(counts.reports, 1))), self.values
        end = max(values.low, values.high, key=abs)
        up = self.quantity in ("frequency", "conditional") or end > 0
        scaled = counts.signed_gain * (end - values.center) / values.half
        low, high = 0.5 / reports, 1.0
        while high / low > 1.002:
            shares = np.geomspace(low, high, _SHARES)
            named = np.rint(reports * (counts.idle + counts.gain * shares)).astype(np.int64)
            signed = np.rint(reports * scaled * shares).astype(np.int64)
            crowd = replace(
                counts,
                reports=reports,
                named=None if counts.named is None else named,
                signed=None if counts.signed is None else signed,
                around=None,  # as few as there are around a key that nobody else is near
                wider=float(np.median(counts.wider)),
            )
            surprise = self.surprise(crowd)
            clear = (surprise if up else -surprise) > apart
            if not clear[-1]:
                return np.inf
            first = int(np.flatnonzero(~clear)[-1]) + 1 if not clear.all() else 1
            low, high = float(shares[first - 1]), float(shares[first])
        return high

    def _needed(self, counts: Counts, chosen: Bools) -> Counts:
        """What matters of the counts of some keys: the fewer different ones there are, the less work."""
        reports = counts.reports[chosen] if isinstance(counts.reports, np.ndarray) else counts.reports
        named, signed, around = (
            None if c is None else c[chosen] for c in (counts.named, counts.signed, counts.around)
        )
        if self.quantity == "frequency":
            signed = None
        elif self.quantity == "mean" and named is not None and self.values.center == 0:
            named = np.where(telling(counts)[chosen], named, 0)
        return replace(counts, reports=reports, named=named, signed=signed, around=around)


def count_variance(counts: Counts) -> Floats:
    """Of N, or of D where names are not counted, as far as is known."""
    each = counts.voted(counts.told) if counts.named is None else named_variance(counts, counts.frequency)
    return np.asarray(each * counts.reports)


def tie_levels(counts: Counts, state: State, ids: UInt64s) -> Int64s:
    """How ties are broken, 0 .. 63 for each key: public, as if random, and the same for the same state."""
    mark = zlib.crc32(np.ascontiguousarray(state.totals).data)
    mark = zlib.crc32(state.reports.sum(axis=0, dtype=np.int64).tobytes(), mark) << 32 | state.count % (
        1 << 32
    )
    word = ids ^ np.uint64(mark)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # the finalizer of splitmix64
        word = (word ^ (word >> np.uint64(30))) * np.uint64(factor)
    return np.where(count_variance(counts) < _COARSE, (word >> np.uint64(58)).astype(np.int64), LEVELS // 2)
