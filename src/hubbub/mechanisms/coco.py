"""CoCo: correlated Collision for means of signed values (Wang et al., Algorithms 1 and 2).

Device: hash the record's keys into t/2 bucket pairs; the two buckets of a pair are the two signs. A pair
that some entry falls into favours the side value * s(key) of one of its entries, each as likely (the
paper permutes the entries and lets later ones overwrite earlier ones, which is the same law). With
s = max_entries and Omega = s (W + V) + (t - 2s) V, the favoured side has probability W / Omega, its
opposite V / Omega, and pairs that nobody hit share the rest equally. Short records are filled up
with dummy entries in random pairs with random signs, so that the overwriting law is always that of s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.bucket_shares import bucket_telltale, hits_nearness
from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.mechanisms.shared.items import plausible
from hubbub.model.count_laws import Counts
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.batch import per_record_in
from hubbub.primitives.kernel import Kernel, kernel, nth_other
from hubbub.primitives.samplers import below, chance, random_sign
from hubbub.primitives.wire import WireField


@kernel
def _room(shape: Any) -> Any:
    """Which record hit a pair last; and of this one: the pair of each entry, the pairs hit, entries that share one."""
    last_seen, place = np.full(shape.buckets, -1, dtype=np.int64), np.zeros(shape.limit, dtype=np.int64)
    return last_seen, place, np.zeros_like(place), np.zeros_like(place)


@per_record_in(_room)
def _respond(tape: Any, i: int, records: Any, shape: Any, room: Any, reports: Any) -> None:
    offsets, values, bucket, sign = records
    last_seen, place, hits, members = room
    both = shape.favoured + shape.other
    total = shape.limit * both + (2 * shape.buckets - 2 * shape.limit) * shape.other
    first = offsets[i]
    length = offsets[i + 1] - first
    found = 0
    for j in range(shape.limit):
        place[j] = bucket[first + j] if j < length else below(tape, shape.buckets)
        if last_seen[place[j]] != i:
            last_seen[place[j]] = i
            hits[found] = place[j]
            found += 1
    if chance(tape, found * both, total):
        pair = hits[below(tape, found)]
        sharing = 0
        for j in range(shape.limit):
            if place[j] == pair:
                members[sharing] = j
                sharing += 1
        winner = members[below(tape, sharing)]
        if winner < length:
            side = sign[first + winner] * random_sign(tape, values[first + winner], GRID)
        else:
            side = random_sign(tape, 0, 1)
        if not chance(tape, shape.favoured, both):
            side = -side
    else:
        pair = nth_other(below(tape, shape.buckets - found), hits, found)
        side = random_sign(tape, 0, 1)
    reports[i, 0] = pair
    reports[i, 1] = (side + 1) // 2


class CoCo(Hashed):
    """epsilon-LDP per record, for any hash functions and any codes.

    Proof. Fix the seed, the dummies and the rounding. Every bucket's weight is W, V, or, in a pair not
    hit, w = (Omega - m (W + V)) / (t - 2m) with m <= s pairs hit. w >= V because (s - m)(W - V) >= 0;
    w <= W because (t - 2s)(W - V) + (s - m)(W - V) >= 0. The total Omega is the same for all records, so
    probabilities differ by at most W / V <= exp(epsilon); mixing over dummies and rounding keeps that.

    Unbiased: the rates P_t, P_o (a held key's own and opposite bucket is reported) and P_f = 1/t (absent
    key) are the same for every record because it is always filled up to s entries.
    """

    name: ClassVar[str] = "coco"
    summary: ClassVar[str] = "signed buckets in pairs, opposite side suppressed (Wang et al.)"

    values: Literal["signed"] = Field(default="signed", description="signed values per key")
    target: Literal["mean", "frequency", "conditional"] = Field(
        default="mean", description="which estimate the number of buckets is chosen for"
    )

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return self.max_entries, 2 * self.buckets, *self.weights

    @property
    def centered(self) -> bool:
        return self.target != "mean"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        rest: tuple[Quantity, ...] = ("mean", "frequency", "conditional")
        return (self.target, *(q for q in rest if q != self.target))

    def check(self) -> None:
        if self.buckets < self.max_entries + 1:
            raise ValueError(
                f"needs t >= 2s + 2, that is at least {self.max_entries + 1} bucket pairs, not {self.buckets}"
            )
        if self.max_entries * self.weights[0] + 2 * self.buckets * self.weights[1] >= 1 << 62:
            raise ValueError("epsilon and max_entries are together too large for exact 64-bit weights")

    def best_buckets(self) -> int:
        """The number of pairs with the lowest variance for the target (conditional: their sum)."""
        s = self.max_entries
        if self.family == "prf":
            most = int(s * (4 * self.weights[0] / self.weights[1] + 6)) + 4
            pairs = np.arange(s + 1, min(most, (1 << 20) + 1), dtype=np.float64)
        else:
            pairs = np.exp2(np.arange(s.bit_length(), 21, dtype=np.float64))
        if not len(pairs):
            raise ValueError("epsilon and max_entries are together too large: more than 2^20 buckets needed")
        trial = self.model_construct(**{**self.__dict__, "buckets": pairs})
        mean, presence = (trial._variance(quantity, 1, 0.0, 0.0) for quantity in ("mean", "frequency"))
        cost = {"mean": mean, "frequency": presence, "conditional": mean + presence}[self.target]
        return int(pairs[np.argmin(cost)])

    def report_fields(self) -> tuple[WireField, ...]:
        return (WireField("pair", self.buckets), WireField("side", 2))

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, self.shape

    def miniature(self) -> Self:
        """The same with few buckets."""
        few = min(self.buckets, 16)
        return type(self)(**self.model_dump() | {"buckets": few}) if few > self.max_entries else self

    @property
    def channels(self) -> int:
        return 2

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        ones = np.ones((len(reports), 1), dtype=np.int64)
        return Votes(True, reports[:, 0], 2 * reports[:, 1:] - 1), Votes(False, reports[:, 0], ones)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        (favoured, other), k, t = self.weights, self.max_entries, self.buckets
        total = k * favoured + (2 * t - k) * other
        near = hits_nearness(k, t, (favoured + other) / total, 2 * other / total)
        return (*super().telltales(keys), *bucket_telltale(self, keys, self.response_weights(), near))

    @property
    def overwritten(self) -> float:
        """P_ow: probability that a held entry's pair speaks for another entry (eq. 7)."""
        s, t = self.max_entries, 2 * self.buckets
        return 1 - t * (1 - (1 - 2 / t) ** s) / (2 * s)

    @property
    def rates(self) -> tuple[float, float, float]:
        """P_t, P_o, P_f: own, opposite and absent key's bucket is reported (Table 2)."""
        favoured, other = self.weights
        s, t = self.max_entries, 2 * self.buckets
        total = s * (favoured + other) + (t - 2 * s) * other
        lost = self.overwritten * (favoured + other) / (2 * total)
        kept = (1 - self.overwritten) / total
        return lost + kept * favoured, lost + kept * other, 1 / t

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        true, opposite, absent = self.rates
        n = max(state.count, 1)
        signed, present = self.tally(state, keys, ids)
        gap, both = true + opposite - 2 * absent, true + opposite
        noise = 2 * absent * (1 - 2 * absent), gap * (1 - 2 * absent - both), 0.0
        counts = Counts(n, present, 2 * absent, gap, noise, signed, true - opposite, (2 * absent, gap))
        share, middle, square = plausible(counts)
        return Moments(
            counts.frequency,
            self._variance("frequency", n, share, square),
            counts.mean,
            self._variance("mean", n, share, square),
            middle * (1 - both) / (n * gap),
            counts,
        )

    def _variance(self, quantity: Quantity, users: int, frequency: Any, square: Any) -> Any:
        """Lemma 3 for one key, with its own frequency and mean square."""
        true, opposite, absent = self.rates
        seen = 2 * absent + frequency * (true + opposite - 2 * absent)
        if quantity == "mean":
            gap = true - opposite
            return (seen - gap**2 * square) / (users * gap**2)
        gap = true + opposite - 2 * absent
        noise = 2 * absent * (1 - 2 * absent) + gap * (1 - 4 * absent) * frequency - gap**2 * frequency
        return noise / (users * gap**2)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        return float(self._variance(quantity, users, held.frequency, held.square))

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[CoCo]:
        if goal.unit == "record" and goal.values == "signed":
            yield cls.serving(goal, target=goal.quantity)
