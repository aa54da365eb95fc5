"""Collision: condense a set into hash buckets, then report one bucket (Wang et al., Definition 5).

Device: hash the record's items into t buckets. With s = max_entries, W / V = exp(epsilon) rounded down
and total weight Omega = s W + (t - s) V, each of the m <= s distinct buckets that are hit has
probability W / Omega; the other t - m share the rest equally.

Sets: items are keys. Signed values: a key is two items, key+ and key-, of which a held key is one, by
stochastic rounding of its value; frequencies of both sides give presence, mean and conditional mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from hubbub.mechanisms.shared.bucket_shares import bucket_telltale, hits_nearness
from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.mechanisms.shared.items import ItemRates
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, outcome_bounds
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.batch import per_record_in
from hubbub.primitives.kernel import Kernel, kernel, nth_other
from hubbub.primitives.samplers import below, chance, random_sign
from hubbub.primitives.wire import WireField


class _Shape(NamedTuple):
    sided: bool
    limit: int
    buckets: int
    favoured: int
    other: int


@kernel
def _room(shape: Any) -> Any:
    """Which record hit a bucket last, and the buckets that this one has hit."""
    return np.full(shape.buckets, -1, dtype=np.int64), np.zeros(shape.limit, dtype=np.int64)


@per_record_in(_room)
def _respond(tape: Any, i: int, records: Any, shape: Any, room: Any, reports: Any) -> None:
    offsets, bucket = records.offsets, records.bucket
    last_seen, hits = room
    total = shape.limit * shape.favoured + (shape.buckets - shape.limit) * shape.other
    found = 0
    for j in range(offsets[i], offsets[i + 1]):
        if not shape.sided:
            place = bucket[j]
        elif random_sign(tape, records.values[j], GRID) > 0:
            place = bucket[2 * j]
        else:
            place = bucket[2 * j + 1]
        if last_seen[place] != i:
            last_seen[place] = i
            hits[found] = place
            found += 1
    if chance(tape, found * shape.favoured, total):
        reports[i, 0] = hits[below(tape, found)]
    else:
        reports[i, 0] = nth_other(below(tape, shape.buckets - found), hits, found)


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
    takes_trees: ClassVar[bool] = True

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return self.max_entries, self.buckets, *self.weights

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
        """The t with the lowest variance; the paper's floor(s e^eps + 2s - 1) is within 1% of it."""
        s, w = self.max_entries, self.weights[0] / self.weights[1]
        if self.family == "prf":
            center = s * w + 2 * s - 1
            tries = np.arange(max(s + 1, int(0.5 * center)), min(int(2 * center) + 4, (1 << 20) + 1))
        else:
            tries = 1 << np.arange(s.bit_length(), 21)
        t = tries[tries > s].astype(np.float64)
        if not len(t):
            raise ValueError("epsilon and max_entries are together too large: more than 2^20 buckets needed")
        gap = w / (s * w + t - s) - 1 / t
        return int(t[np.argmin((1 / t) * (1 - 1 / t) / gap**2)])

    def report_fields(self) -> tuple[WireField, ...]:
        return (WireField("bucket", self.buckets),)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(self.sided, self.max_entries, self.buckets, *self.weights)

    def miniature(self) -> Self:
        """The same with few buckets."""
        few = min(self.buckets, 16)
        return type(self)(**self.model_dump() | {"buckets": few}) if few > self.max_entries else self

    @property
    def channels(self) -> int:
        return 1

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        return (Votes(False, reports[:, 0], np.ones((len(reports), 1), dtype=np.int64)),)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        (unhit, hit), t = outcome_bounds(self.response_weights(), 1), self.buckets
        near = hits_nearness(self.max_entries, t, hit, unhit)
        return (*super().telltales(keys), *bucket_telltale(self, keys, self.response_weights(), near))

    @property
    def rates(self) -> ItemRates:
        """W / Omega for items held, 1 / t for others."""
        favoured, other = self.weights
        total = self.max_entries * favoured + (self.buckets - self.max_entries) * other
        return ItemRates(favoured / total, 1 / self.buckets, self.sided)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        return self.rates.moments(self, state, keys, ids)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        return float(self.rates.variance(quantity, users, held.frequency, held.mean, held.square))

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Collision]:
        if goal.unit == "record" and (goal.values == "signed" or goal.quantity == "frequency"):
            yield cls.serving(goal)
