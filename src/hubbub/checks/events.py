"""Events that tell two records apart, learned on one half of the samples and counted on the other.

Each pair of records is a *match*: samples of both, and columns of numbers that describe a sample. A quarter of the
samples fits scores (how much likelier is this under the first record?), a quarter recalibrates them, chooses the best
kind of score and then the event: which scores, of which matches, in which direction. The other half is only counted.

All matches are judged together. If every pair satisfies P_i(E_i) <= e^epsilon Q_i(E_i) + delta for its own event, so do
the averages over the pairs, for p and q the shares of hits among all samples counted. A sum of independent hits with
different probabilities has lighter tails than a binomial of the same mean (Hoeffding 1956), so Clopper-Pearson bounds
on p and q hold, and log((p - delta) / q) at their unfavourable ends is a lower bound on epsilon. One event is tested
once: nothing has to be divided among the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s

#: Fitted counts are compared after adding this much to both.
_PRIOR = 3.0
#: Standard errors that are allowed for when an event is chosen (only the exact bounds count).
_CAUTION = 5.0
#: Standard errors by which what was chosen may look better than it is.
_LUCK = 2.0
#: Columns that a score looks at, at most, and cells that a column or a score is cut into.
_MOST_COLUMNS = 64
_CELLS = 32
#: Probability that a count is further out than is allowed for when an excess is stated.
_SLIP = 0.005
#: Terms of a binomial tail that are added at a time.
_BLOCK = 256


@dataclass(frozen=True)
class Match:
    """Samples of two records [samples, columns]; each matrix in `views` describes both sides' samples, in order."""

    name: str
    views: tuple[tuple[Int64s, Int64s], ...]

    def __len__(self) -> int:
        return min(len(side) for side in self.views[0])

    def shuffled(self, seed: int) -> Match:
        """The same samples in another order: others are learned from, and others counted."""
        orders = [np.random.default_rng([seed, side]).permutation(len(self)) for side in (0, 1)]
        return Match(self.name, tuple((one[orders[0]], two[orders[1]]) for one, two in self.views))


@dataclass(frozen=True)
class Verdict:
    """The test half: hits of the event among as many samples of either kind, and where it shows most."""

    hits: int
    other_hits: int
    trials: int
    name: str

    def lower_bound(self, odds: float, delta: float = 0.0) -> float:
        """A lower bound on epsilon that fails with probability at most `odds`."""
        if not self.trials:
            return 0.0
        low = binomial_bound(self.hits, self.trials, odds / 2, upper=False)
        high = binomial_bound(self.other_hits, self.trials, odds / 2, upper=True)
        return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0

    def smallest_excess(self, epsilon: float, odds: float, delta: float = 0.0) -> float | None:
        """The least x such that a loss of (1 + x) epsilon in this event is found with probability 0.99 or more.

        The loss may grow because the event becomes likelier under the first record, up to p = e^((1 + x) epsilon) q +
        delta, or rarer under the second, down to q = (p - delta) e^(-(1 + x) epsilon): the less favourable of what is
        possible counts. What stays is known from a count only, and taken at the end of its confidence interval where
        the excess is larger. With probability 0.99 both counts are within their 0.5% quantiles, and then the bounds
        are no worse than there. None if no loss at all would do.
        """
        if not self.trials or not self.other_hits:
            return None
        rates = [self.hits / self.trials, self.other_hits / self.trials]
        low_p, low_q = (
            binomial_bound(count, self.trials, _SLIP, False) for count in (self.hits, self.other_hits)
        )
        growing = [self._excess(epsilon, odds, delta, q=q) for q in (rates[1], low_q)]
        shrinking = [self._excess(epsilon, odds, delta, p=p) for p in (rates[0], low_p)]
        found = [max(x for x in pair if x is not None) for pair in (growing, shrinking) if None not in pair]
        return max(found) if found else None

    def _excess(
        self, epsilon: float, odds: float, delta: float, *, p: float | None = None, q: float | None = None
    ) -> float | None:
        """The same for a frequency under one of the records that is known."""

        def found(x: float) -> bool:
            factor = math.exp((1 + x) * epsilon)
            first = p if p is not None else factor * (q or 0) + delta
            second = q if q is not None else (first - delta) / factor
            if not 0 < second < first < 1:
                return False
            most = binomial_quantile(self.trials, second, _SLIP, upper=True)
            least = binomial_quantile(self.trials, first, _SLIP, upper=False)
            claim = math.exp(epsilon) * binomial_bound(most, self.trials, odds / 2, upper=True) + delta
            return claim < 1 and binomial_tail(least, self.trials, claim, lower_tail=False) < odds / 2

        # As far as the first frequency is below 1, or (a hundredth of a sample) the second above 0.
        room = (1 - 1e-9 - delta) / q if q is not None else 100 * self.trials * ((p or 0) - delta)
        low, high = 0.0, math.log(max(room, 1e-9)) / epsilon - 1
        if high <= 0 or not found(high):
            return None
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (low, middle) if found(middle) else (middle, high)
        return high


def judge(matches: Sequence[Match], delta: float = 0.0) -> Verdict:
    """Learn events on the first half of the samples, choose which of them count, and count those on the second."""
    if not matches:
        return Verdict(0, 0, 0, "no pair")
    events = [event for match in matches for event in _learn(match, delta)]
    events.sort(key=lambda event: event.shown, reverse=True)
    together = _Counts(
        *(np.cumsum([getattr(each.chosen, part) for each in events]) for part in _Counts._fields)
    )
    # One match with few hits may look best by luck: as much as that is worth is taken off.
    luck = np.sqrt(2 / (together.hits + 1) + 2 / (together.other_hits + 1))
    counted = events[: int(np.argmax(_rough(together, delta) - _LUCK * luck)) + 1]
    hits, other_hits, trials = (sum(int(each.tested[part]) for each in counted) for part in range(3))
    clearest = max(counted, key=lambda each: float(_rough(each.tested, delta)))
    return Verdict(hits, other_hits, trials, clearest.name)


def judge_bits(name: str, one: Int64s, two: Int64s, delta: float = 0.0) -> Verdict:
    """The same for a single bit [samples, bits] with one of its values: what a few hundred samples can show.

    `judge` pools events, which hides one that never happens among many that hardly differ.
    """
    half = min(len(one), len(two)) // 2
    shown = []
    for turn, sides in enumerate(((one, two), (two, one))):
        for value in (0, 1):
            hits, other_hits = ((side[:half] == value).sum(axis=0) for side in sides)
            rough = _rough(_Counts(hits, other_hits, half), delta)
            bit = int(np.argmax(rough))
            shown.append((float(rough[bit]), turn, value, bit))
    _, turn, value, bit = max(shown)
    counts = [int((side[half : 2 * half, bit] == value).sum()) for side in (one, two)]
    return Verdict(counts[turn], counts[1 - turn], half, f"{name}, bit {bit} of a report")


class _Counts(NamedTuple):
    """Hits, other hits and trials; numbers, or arrays of them."""

    hits: Any
    other_hits: Any
    trials: Any


@dataclass(frozen=True)
class _Event:
    """An event of one match in one direction: what it shows, its counts when chosen (as if tested), and when tested."""

    name: str
    shown: float
    chosen: _Counts
    tested: _Counts


def _learn(match: Match, delta: float) -> list[_Event]:
    """For the best kind of score: the scores above a threshold, and those below one, with the records exchanged."""
    found = []
    for one, two in match.views:
        for kind in (_by_report, _by_column, _by_sum):
            scores = kind(one, two, len(match) // 4)
            if scores is not None:
                found.append(_thresholds(match, scores, delta))
    return max(found, key=lambda events: max(event.shown for event in events))


def _thresholds(match: Match, scores: tuple[Floats, Floats], delta: float) -> list[_Event]:
    quarter = len(match) // 4
    cells = _cut(*scores, quarter)
    size = 1 + max(int(side.max()) for side in cells)
    trials = len(match) - 2 * quarter
    chosen, tested = (
        [np.bincount(side[part], minlength=size) for side in cells]
        for part in (slice(quarter, 2 * quarter), slice(2 * quarter, len(match)))
    )
    events = []
    for turn in (0, 1):
        # The highest scores first, or the lowest with the records exchanged.
        order = slice(None, None, -1 if turn == 0 else 1)
        grown = [np.cumsum(side[order]) * (trials / quarter) for side in chosen]
        rough = _rough(_Counts(grown[turn], grown[1 - turn], trials), delta)
        last = int(np.argmax(rough))
        hits = [int(side[order][: last + 1].sum()) for side in tested]
        events.append(
            _Event(
                match.name,
                float(rough[last]),
                _Counts(grown[turn][last], grown[1 - turn][last], trials),
                _Counts(hits[turn], hits[1 - turn], trials),
            )
        )
    return events


def _rough(counts: _Counts, delta: float) -> Any:
    """About what a lower bound on epsilon will be."""
    low = counts.hits - _CAUTION * np.sqrt(counts.hits) - delta * counts.trials
    high = counts.other_hits + _CAUTION * np.sqrt(counts.other_hits) + _CAUTION**2 / 2
    return np.log(np.maximum(low, 1e-9)) - np.log(high)


# Scores: how much likelier a sample is under the first record, fitted on the first `fit` samples of both sides


def _by_report(one: Int64s, two: Int64s, fit: int) -> tuple[Floats, Floats] | None:
    """By the whole description: its fitted log ratio."""
    if one.shape[1] > _MOST_COLUMNS:
        return None
    both = np.concatenate([one, two]).astype(np.uint64)
    number = np.zeros(len(both), dtype=np.uint64)
    for column in both.T:  # only equality matters, so wrapping around is harmless
        number = (number ^ column) * np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(29)
    kinds, codes = np.unique(number, return_inverse=True)
    first, second = (
        np.bincount(side, minlength=len(kinds)) + _PRIOR
        for side in (codes[:fit], codes[len(one) : len(one) + fit])
    )
    ratio = np.log(first) - np.log(second)
    return ratio[codes[: len(one)]], ratio[codes[len(one) :]]


def _by_column(one: Int64s, two: Int64s, fit: int) -> tuple[Floats, Floats] | None:
    """Column by column, as if they were independent: the sum of the log ratios of those that clearly differ."""
    ratios = []
    for column in _telling_columns(one, two, fit):
        cells = _cut(one[:, column].astype(np.float64), two[:, column].astype(np.float64), fit)
        counts = [np.bincount(side[:fit], minlength=1 + max(int(s.max()) for s in cells)) for side in cells]
        seen = counts[0] + counts[1] > 0
        statistic = ((counts[0] - counts[1])[seen] ** 2 / (counts[0] + counts[1])[seen]).sum()
        freedom = max(1, int(seen.sum()) - 1)
        ratio = np.log(counts[0] + _PRIOR) - np.log(counts[1] + _PRIOR)
        ratios.append(((statistic - freedom) / math.sqrt(2 * freedom), ratio[cells[0]], ratio[cells[1]]))
    most = max(clear for clear, _, _ in ratios)
    chosen = [each for each in ratios if each[0] >= min(most, _CAUTION)]
    return sum(each[1] for each in chosen), sum(each[2] for each in chosen)


def _by_sum(one: Int64s, two: Int64s, fit: int) -> tuple[Floats, Floats] | None:
    """A weighted sum of the columns that differ, as for normal noise of the same size everywhere."""
    if one.shape[1] == 1:
        return None
    gap, error = _gaps(one, two, fit)
    clear = np.abs(gap) > 3 * error
    if not clear.any():
        clear = np.abs(gap) >= np.abs(gap).max()
    weights = np.where(clear, gap / np.maximum(error, 1e-9) ** 2, 0.0)
    return np.asarray(one @ weights, dtype=np.float64), np.asarray(two @ weights, dtype=np.float64)


def _gaps(one: Int64s, two: Int64s, fit: int) -> tuple[Floats, Floats]:
    """Difference of the columns' means, and its standard error."""
    gap = one[:fit].mean(axis=0) - two[:fit].mean(axis=0)
    return gap, np.sqrt((one[:fit].var(axis=0) + two[:fit].var(axis=0)) / fit)


def _telling_columns(one: Int64s, two: Int64s, fit: int) -> Int64s:
    if one.shape[1] <= _MOST_COLUMNS:
        return np.arange(one.shape[1])
    gap, error = _gaps(one, two, fit)
    return np.argsort(-np.abs(gap) / np.maximum(error, 1e-9))[:_MOST_COLUMNS]


def _cut(one: Floats, two: Floats, fit: int) -> tuple[Int64s, Int64s]:
    """Numbers as cells: one per value where values are few, else by quantiles of the fitted part, fine at both ends."""
    fitted = np.concatenate([one[:fit], two[:fit]])
    edges = np.unique(fitted)
    if len(edges) > 4 * _CELLS:
        middle = np.linspace(0, 1, _CELLS + 1)[1:-1]
        tails = np.array([0.0005, 0.001, 0.002, 0.005, 0.01, 0.02])
        edges = np.unique(np.quantile(fitted, np.concatenate([tails, middle, 1 - tails])))
    return np.searchsorted(edges, one, side="right"), np.searchsorted(edges, two, side="right")


# Exact binomial bounds


def binomial_bound(hits: int, trials: int, odds: float, upper: bool) -> float:
    """The Clopper-Pearson bound on a probability: violated with probability at most `odds`.

    Bisection on the exact binomial tail, summed from its largest term outwards.
    """
    if (upper and hits == trials) or (not upper and hits == 0):
        return 1.0 if upper else 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = binomial_tail(hits, trials, middle, upper)
        # upper: P(X <= hits) falls as the probability grows; lower: P(X >= hits) rises.
        if (tail > odds) == upper:
            low = middle
        else:
            high = middle
    return high if upper else low


def binomial_quantile(trials: int, probability: float, odds: float, upper: bool) -> int:
    """A count that is exceeded (upper), or not reached, with probability at most `odds`, and no further out."""
    low, high = 0, trials
    while low < high:
        if upper:
            middle = (low + high) // 2
            low, high = (
                (low, middle)
                if binomial_tail(middle + 1, trials, probability, False) <= odds
                else (middle + 1, high)
            )
        else:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high)
                if binomial_tail(middle - 1, trials, probability, True) <= odds
                else (low, middle - 1)
            )
    return low


def binomial_tail(hits: int, trials: int, probability: float, lower_tail: bool) -> float:
    """P(X <= hits) or P(X >= hits), summed outwards; 1 on the near side of the mean, where nobody asks for it.

    A tail below some odds means that the probability is outside the Clopper-Pearson interval of these odds.
    """
    mean = trials * probability
    if (lower_tail and hits >= mean) or (not lower_tail and hits <= mean):
        return 1.0
    if hits < 0 or hits > trials or not 0 < probability < 1:
        return 0.0
    log_p, log_q = math.log(probability), math.log1p(-probability)
    term = math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(trials - hits + 1)
        + hits * log_p
        + (trials - hits) * log_q
    )
    total, place, odds = 0.0, hits, probability / (1 - probability)
    while term > 1e-18 * total:
        total += term
        places = place + np.arange(_BLOCK) * (-1 if lower_tail else 1)
        # A factor of 0 ends the sum where there are no more counts.
        factors = (
            np.maximum(places, 0) / ((trials - places + 1) * odds)
            if lower_tail
            else np.maximum(trials - places, 0) / (places + 1) * odds
        )
        terms = term * np.cumprod(factors)
        total += float(terms[:-1].sum())
        term, place = float(terms[-1]), int(places[-1]) + (-1 if lower_tail else 1)
    return total
