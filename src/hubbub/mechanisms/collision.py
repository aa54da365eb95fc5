"""Collision: condense a set into hash buckets, then report one bucket (Wang et al., Definition 5).

Device: hash the record's items into t buckets. With s = max_entries, W / V = exp(epsilon) rounded down
and total weight Omega = s W + (t - s) V, each of the m <= s distinct buckets that are hit has
probability W / Omega; the other t - m share the rest equally.

Sets: items are keys. Signed values: a key is two items, key+ and key-, of which a held key is one, by
stochastic rounding of its value; frequencies of both sides give presence, mean and conditional mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hubbub.device.codes import Keys
from hubbub.device.coins import Coins, begin_record, below, chance, random_sign, run_kernel
from hubbub.device.wire import Field as WireField
from hubbub.guarantee import Guarantee
from hubbub.hashed import Hashed, Votes
from hubbub.kernel import kernel
from hubbub.mechanism import Goal, Moments, Quantity
from hubbub.record import GRID, Entries

if TYPE_CHECKING:
    from hubbub.server.state import State

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


@kernel
def nth_other(n: int, taken: Any) -> int:
    """The n-th number (from 0) that is not among the sorted numbers `taken`."""
    for number in taken:
        if n < number:
            break
        n += 1
    return n


@kernel
def _respond(
    tape: Any,
    start: int,
    count: int,
    offsets: Any,
    values: Any,
    bucket: Any,
    sided: bool,
    limit: int,
    buckets: int,
    favoured: int,
    other: int,
    reports: Any,
) -> None:
    total = limit * favoured + (buckets - limit) * other
    last_seen = np.full(buckets, -1, dtype=np.int64)
    hits = np.zeros(limit, dtype=np.int64)
    for i in range(start, count):
        begin_record(tape, i)
        found = 0
        for j in range(offsets[i], offsets[i + 1]):
            if not sided:
                place = bucket[j]
            elif random_sign(tape, values[j], GRID) > 0:
                place = bucket[2 * j]
            else:
                place = bucket[2 * j + 1]
            if last_seen[place] != i:
                last_seen[place] = i
                hits[found] = place
                found += 1
        if chance(tape, found * favoured, total):
            reports[i, 0] = hits[below(tape, found)]
        else:
            reports[i, 0] = nth_other(below(tape, buckets - found), np.sort(hits[:found]))


class Collision(Hashed):
    """epsilon-LDP per record, for any hash functions and any codes.

    Proof. Fix the seed. A bucket that is hit has weight W. Another has (Omega - m W) / (t - m), which is
    at least V because (s - m)(W - V) >= 0, and at most W because (t - s)(W - V) >= 0. So for any two
    records and any bucket the probabilities differ by at most W / V <= exp(epsilon). Fewer than s items
    only make m smaller; stochastic rounding is a mixture over records, which keeps the bound.

    Unbiased: an item that is held has its bucket reported with probability W / Omega, any other one
    with probability 1 / t (pairwise independent hashing), however many items the record has.
    """

    name: ClassVar[str] = "collision"
    summary: ClassVar[str] = "hash the set, report one bucket; hits are favoured (Wang et al.)"

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def sided(self) -> bool:
        return self.values == "signed"

    @property
    def centered(self) -> bool:
        return self.values == "signed"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",) if self.values == "set" else ("frequency", "mean", "conditional")

    def check(self) -> None:
        if self.buckets <= self.max_entries:
            raise ValueError(f"needs more buckets than max_entries; {self.buckets} are too few")
        if self.max_entries * self.weights[0] + self.buckets * self.weights[1] >= 1 << 62:
            raise ValueError("epsilon and max_entries are together too large for exact 64-bit weights")

    def best_buckets(self) -> int:
        """The t with the lowest variance: the paper's floor(s e^eps + 2s - 1), or a power of two around it."""
        s, w = self.max_entries, self.weights[0] / self.weights[1]
        if self.family == "prf":
            center = s * w + 2 * s - 1
            tries = np.arange(max(s + 1, int(0.5 * center)), int(2 * center) + 4)
        else:
            tries = 1 << np.arange(s.bit_length(), 24)
        t = tries[(tries > s) & (tries <= 1 << 20)].astype(np.float64)
        if not len(t):
            raise ValueError("epsilon and max_entries are together too large: more than 2^20 buckets needed")
        gap = w / (s * w + t - s) - 1 / t
        return int(t[np.argmin((1 / t) * (1 - 1 / t) / gap**2)])

    def report_fields(self) -> tuple[WireField, ...]:
        return (WireField("bucket", self.buckets),)

    def respond(self, coins: Coins, entries: Entries, bucket: Int64s, sign: Int64s, reports: Int64s) -> None:
        run_kernel(
            _respond,
            coins,
            len(entries),
            entries.offsets,
            entries.values,
            bucket,
            self.sided,
            self.max_entries,
            self.buckets,
            *self.weights,
            reports,
        )

    @property
    def channels(self) -> int:
        return 1

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        return (Votes(False, reports[:, 0], np.ones((len(reports), 1), dtype=np.int64)),)

    @property
    def rates(self) -> tuple[float, float]:
        """Probability that a held item's bucket is reported, and an absent item's."""
        favoured, other = self.weights
        total = self.max_entries * favoured + (self.buckets - self.max_entries) * other
        return favoured / total, 1 / self.buckets

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        held, absent = self.rates
        n = max(state.count, 1)

        def frequencies(items: UInt64s) -> NDArray[np.float64]:
            tally: NDArray[np.float64] = self.tally(state, keys, items)[0] / n
            return (tally - absent) / (held - absent)

        plus = frequencies(ids)
        if not self.sided:
            share = np.clip(plus, 0, 1)
            return Moments(plus, self._variance("frequency", n, share, share, share))
        minus = frequencies(keys.other_side(ids))
        frequency, mean = plus + minus, plus - minus
        share, middle, square = plausible(frequency, mean)
        return Moments(
            frequency,
            self._variance("frequency", n, share, middle, square),
            mean,
            self._variance("mean", n, share, middle, square),
            self._side(n, share, middle, square) - self._side(n, share, -middle, square),
        )

    def _side(self, users: int, frequency: Any, mean: Any, square: Any) -> Any:
        """Variance of the frequency of key+ (of key-: with -mean)."""
        held, absent = self.rates
        gap = held - absent
        rounded, rounded_twice = (frequency + mean) / 2, (frequency + 2 * mean + square) / 4
        noise = absent * (1 - absent) + gap * (1 - 2 * absent) * rounded - gap**2 * rounded_twice
        return noise / (users * gap**2)

    def _variance(self, quantity: Quantity, users: int, frequency: Any, mean: Any, square: Any) -> Any:
        if not self.sided:
            return self._side(users, frequency, frequency, frequency)
        both = self._side(users, frequency, mean, square) + self._side(users, frequency, -mean, square)
        # Rounding to one side rules out the other: the sides' covariance is -(frequency - square) / 4n.
        rounding = (frequency - square) / (2 * users)
        return both + rounding if quantity == "mean" else both - rounding

    def variance(
        self,
        quantity: Quantity,
        users: int,
        frequency: float = 0.0,
        mean: float = 0.0,
        square: float | None = None,
        energy: float | None = None,
    ) -> float:
        return float(
            self._variance(quantity, users, frequency, mean, frequency if square is None else square)
        )

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Collision]:
        if goal.unit == "record" and (goal.values == "signed" or goal.quantity == "frequency"):
            yield cls(
                epsilon=goal.epsilon, max_entries=goal.max_entries, values=goal.values, family=goal.family
            )


def plausible(frequency: Any, mean: Any) -> tuple[Any, Any, Any]:
    """Estimates pulled into their possible range, for use in variance formulas.

    The mean square is not estimated; (mean)^2 / frequency is the least it can be, which makes the
    variance, if anything, too large.
    """
    share = np.clip(frequency, 0, 1)
    middle = np.clip(mean, -share, share)
    return share, middle, middle**2 / np.maximum(share, 1e-12)
