"""Sketch response: favour the fullest buckets of a count sketch, a fixed number of them.

Device: fill the record up to exactly k = max_entries entries with dummies. Each of g seeds is a count sketch
with t buckets: the load of a bucket is the number of its entries (sets, events), or the sum of their signed
values (signed). Candidates are all (seed, bucket), for signed records each with a side + and -, and
their score is the load, or side * load. The K candidates with the highest scores are favoured, ties broken
at random. A favoured candidate has weight W, any other V: report one by weight, with its seed.

Contains Hadamard response (one bucket, many seeds), and has Collision and CoCo beaten because the favoured
set has a fixed size, so nothing is lost where entries collide in a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.bucket_shares import bucket_telltale
from hubbub.mechanisms.shared.hashed import Votes
from hubbub.mechanisms.shared.items import ItemRates
from hubbub.mechanisms.shared.moded import Moded, modes_for
from hubbub.mechanisms.shared.occupancy import (
    Occupancy,
    best_buckets,
    best_favoured,
    best_seeds,
    gains_of,
    occupancy_of,
)
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, seed_telltales, sharing
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.batch import per_record_in
from hubbub.primitives.coins import Coins
from hubbub.primitives.kernel import Kernel, kernel, nth_other
from hubbub.primitives.samplers import below, chance, random_sign
from hubbub.primitives.wire import WireField


class _Shape(NamedTuple):
    sided: bool
    signed: bool
    seeds: int
    buckets: int
    limit: int
    favoured_count: int
    favoured: int
    other: int


@kernel
def _nth_at_least(n: int, level: int, most: int, scores: Any, found: int) -> int:
    """The place of the n-th of the first `found` scores that lie in level .. most."""
    for place in range(found):
        if level <= scores[place] <= most:
            if n == 0:
                return place
            n -= 1
    return -1


@kernel
def _pick(tape: Any, cells: Any, loads: Any, levels: Any, found: int, shape: Any) -> Any:
    """(cell, side) by weight, from `found` cells with non-zero loads.

    Candidates are in classes of equal score. The class where the K-th best lies is cut by random ties: seen
    from outside, a favoured candidate is uniform among the classes above with probability above / K, else
    uniform in the cut class; and likewise below. So no tie is ever broken one by one.
    """
    width, sides = shape.seeds * shape.buckets, 2 if shape.signed else 1
    candidates, favoured_count = sides * width, shape.favoured_count
    above, level = 0, len(levels) - 1
    while level > 0 and above + levels[level] < favoured_count:
        above += levels[level]
        level -= 1
    tied = levels[level] if level > 0 else sides * (width - found)
    weight = favoured_count * shape.favoured
    if chance(tape, weight, weight + (candidates - favoured_count) * shape.other):
        rank = below(tape, favoured_count)
        if rank < above:
            place = _nth_at_least(rank, level + 1, len(levels), loads, found)
            return cells[place], 1
        in_tie = True
    else:
        rank = below(tape, candidates - favoured_count) - (tied - (favoured_count - above))
        in_tie = rank < 0
    if in_tie:
        rank = below(tape, tied)
        if level > 0:
            place = _nth_at_least(rank, level, level, loads, found)
            return cells[place], 1
    else:
        lower = 0
        for below_level in range(1, level):
            lower += levels[below_level]
        if rank < lower:
            place = _nth_at_least(rank, 1, level - 1, loads, found)
            return cells[place], 1
        rank -= lower
        zeros = sides * (width - found) if level > 0 else 0
        if rank >= zeros:
            return cells[rank - zeros], -1
    return nth_other(rank // sides, cells, found), 1 - 2 * (rank % sides)


class _Room(NamedTuple):
    """Of all cells (seed, bucket): which record touched it last, and its load. Of this record: the cells it touched;
    those with a load, and their loads; its values, rounded; and how many cells have each load."""

    last_seen: Int64s
    total: Int64s
    touched: Int64s
    cells: Int64s
    loads: Int64s
    rounded: Int64s
    levels: Int64s


@kernel
def _room(shape: Any) -> Any:
    last_seen = np.full(shape.seeds * shape.buckets, -1, dtype=np.int64)
    touched = np.zeros(shape.seeds * shape.limit, dtype=np.int64)
    levels = np.zeros(shape.limit + 1, dtype=np.int64)
    return _Room(
        last_seen,
        np.zeros_like(last_seen),
        touched,
        np.zeros_like(touched),
        np.zeros_like(touched),
        np.zeros_like(levels),
        levels,
    )


@per_record_in(_room)
def _respond(tape: Any, i: int, records: Any, shape: Any, room: Any, reports: Any) -> None:
    offsets, values, bucket, sign = records
    last_seen, total, touched, cells, loads, rounded, levels = room
    length = offsets[i + 1] - offsets[i]
    first = offsets[i] * shape.seeds
    for j in range(length):
        rounded[j] = random_sign(tape, values[offsets[i] + j], GRID) if shape.sided or shape.signed else 1
    seen = 0
    for row in range(shape.seeds):
        for j in range(shape.limit):
            load = 1
            if j >= length:
                cell = below(tape, shape.buckets)
                if shape.signed:
                    load = random_sign(tape, 0, 1)
            else:
                entry = first + row * length + j
                if shape.sided:
                    cell = bucket[2 * entry] if rounded[j] > 0 else bucket[2 * entry + 1]
                else:
                    cell = bucket[entry]
                    if shape.signed:
                        load = rounded[j] * sign[entry]
            cell += row * shape.buckets
            if last_seen[cell] != i:
                last_seen[cell] = i
                total[cell] = 0
                touched[seen] = cell
                seen += 1
            total[cell] += load
    found = 0
    levels[:] = 0
    for j in range(seen):
        load = total[touched[j]]
        if load != 0:
            cells[found] = touched[j]
            loads[found] = abs(load)
            levels[abs(load)] += 1
            found += 1
    cell, side = _pick(tape, cells, loads, levels, found, shape)
    if shape.signed and last_seen[cell] == i and total[cell] < 0:
        side = -side
    reports[i, 0] = cell // shape.buckets
    reports[i, 1] = cell % shape.buckets
    if shape.signed:
        reports[i, 2] = (side + 1) // 2


class SketchResponse(Moded):
    """epsilon-LDP per record, for any hash functions, codes, seeds and dummies.

    Proof. Fix the seeds, the dummies, the rounding and the order in which ties are broken. Exactly K of the N
    candidates are favoured, whatever the record, so every candidate is reported with probability W or V over
    the same total T = K W + (N - K) V. Averages over what was fixed lie between V / T and W / T as well, for
    every record, so for two records the ratio is at most W / V <= exp(epsilon).

    Unbiased: every held item has the same chance to be in a favoured bucket, since records always have k entries
    after filling up. With S_K the expected sum of the K highest scores of k balls in g rows of t buckets,
    an item's own bucket (minus the opposite side, signed) is named more often than an absent item's by
    kappa = (W - V) / (K W + (N - K) V) * (S_K / k - K / t [sets] or 0 [signed]).
    """

    name: ClassVar[str] = "sketch_response"
    summary: ClassVar[str] = "favour the K fullest buckets of a count sketch"
    chosen: ClassVar[frozenset[str]] = frozenset({"buckets", "favoured", "kappa"})

    seeds: int = Field(default=0, ge=0, le=64, description="count sketches to choose from (0: chosen)")
    favoured: int = Field(
        default=0, ge=0, le=1 << 20, description="favoured candidates (0: chosen by variance)"
    )
    kappa: float = Field(default=0.0, ge=0, lt=1, description="gain of the estimate (0: computed)")

    # Parameters

    def best_buckets(self) -> int:
        self.choose_mode()
        if not self.seeds:
            self._fill(seeds=best_seeds(self.max_entries, self.epsilon, self.signed, self.family))
        return best_buckets(self.max_entries, self.epsilon, self.seeds, self.signed, self.family)

    def check(self) -> None:
        super().check()
        if not self.seeds:
            self.best_buckets()
        if not self.signed and self.buckets < 2:
            raise ValueError("sets need at least 2 buckets")
        if not self.favoured:
            self._fill(favoured=best_favoured(self._occupancy, self.epsilon)[1])
        if self.favoured > self._occupancy.most:
            raise ValueError(f"at most {self._occupancy.most} candidates can be favoured here")
        if self.favoured * self.weights[0] + self._candidates * self.weights[1] >= 1 << 62:
            raise ValueError("epsilon and buckets are together too large for exact 64-bit weights")
        if not self.kappa:
            self._fill(kappa=float(gains_of(self._occupancy, self.epsilon)[self.favoured]))

    @property
    def _candidates(self) -> int:
        return self.seeds * self.buckets * (2 if self.signed else 1)

    @property
    def names_evenly(self) -> bool:
        """Signed, with half of the candidates favoured: of the two sides of every cell one is, whatever the record.

        That is the side of the cell's load, and where that is 0, either as often as the other (ties are random). So
        every cell (seed, bucket) is reported with the same probability, and only sides tell anything.
        """
        return self.signed and 2 * self.favoured == self._candidates

    @property
    def _occupancy(self) -> Occupancy:
        return occupancy_of(self.max_entries, self.buckets, self.seeds, self.signed)

    # Promise

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return self.favoured, self._candidates, *self.weights

    # On the device

    @property
    def seeds_per_report(self) -> int:
        return self.seeds

    def report_fields(self) -> tuple[WireField, ...]:
        side = (WireField("side", 2),) if self.signed else ()
        return (WireField("bucket", self.buckets), *side)

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        """The kernel also says which of the record's seeds it took: only that one is reported."""
        reports = self.respond(keys, entries, seeds, coins, 1 + len(self.report_fields()))
        used = seeds.reshape(len(entries), self.seeds)[np.arange(len(entries)), reports[:, 0]]
        return np.concatenate([used[:, None], reports[:, 1:].astype(np.uint64)], axis=1)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(
            self.sided,
            self.signed,
            self.seeds,
            self.buckets,
            self.max_entries,
            self.favoured,
            *self.weights,
        )

    def miniature(self) -> Self:
        """One small sketch, or two for one entry: every dummy multiplies the outcomes by the number of buckets."""
        chosen = self.model_dump(exclude={"favoured", "kappa"})
        few = {"seeds": min(self.seeds, 2 if self.max_entries == 1 else 1), "buckets": min(self.buckets, 4)}
        return type(self)(**chosen | few)

    # On the server

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        if self.signed:
            return self.both_votes(reports[:, 0], 2 * reports[:, 1:] - 1)
        return (Votes(False, reports[:, 0], np.ones((len(reports), 1), dtype=np.int64)),)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        seeds = seed_telltales(self.seed_bits, self.seed_excess(keys), least=self._row_share(0))
        return (*seeds, *bucket_telltale(self, keys, self.response_weights()))

    def seed_excess(self, keys: Keys) -> float:
        """By which factor a record can make the report of one of its seeds likelier than a draw is, at most.

        A seed is reported by its row's share of the total weight, so what counts is how many of the row's candidates
        are favoured: f of them. A row has u <= k cells with a load, which are favoured first, and gets its part of the
        ties among cells without one: f = u + (K - u - Y)^+ (t - u) / (g t - u - Y), where Y cells of other rows have a
        load. That grows with u (its slope is a product of two shares), so f <= k + (K - k - Y)^+ / g, and Y falls short
        of (g - 1) k by at most the number of pairs that share a cell, or twice that if two values can cancel. Distinct
        codes share one with probability 1 / t, the salt's luck allowed for. Codes that are not distinct: f <= K.
        """
        if self.seeds == 1 or self.names_evenly:
            return 1.0
        k, t, g, chosen = self.max_entries, self.buckets, self.seeds, self.favoured
        most = float(min(chosen, self._candidates // g))
        if keys.kind != "folded" and keys.tree is None and chosen <= g * t:
            pairs = (g - 1) * k * (k - 1) / 2 * sharing(t, self.seed_bits, keys.bits)
            most = min(most, k + (max(0, chosen - g * k) + (2 if self.signed else 1) * pairs) / g)
        return self._row_share(most)

    def _row_share(self, favoured: float) -> float:
        """g times the share of the weight that a row has with so many favoured candidates; 1 if rows are alike."""
        if self.seeds == 1 or self.names_evenly:
            return 1.0
        (w, v), count = self.weights, self._candidates // self.seeds
        total = self.favoured * w + (self._candidates - self.favoured) * v
        return self.seeds * (favoured * w + (count - favoured) * v) / total

    @property
    def rates(self) -> ItemRates:
        """Sets and events: probabilities that an item's bucket is named."""
        return ItemRates(1 / self.buckets + self.kappa, 1 / self.buckets, self.sided)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        if not self.signed:
            return self.rates.moments(self, state, keys, ids)
        n = max(state.count, 1)
        tally = self.tally(state, keys, ids)
        counts = self.signed_counts(tally, n, self.kappa, 1 / self.buckets, self._excess)
        variance = self._signed_variance(n, counts.told, counts.square)
        return Moments(None, None, counts.mean, variance, counts=counts)

    def _signed_variance(self, users: int, frequency: Any, square: Any) -> Any:
        """A vote is cast with probability 1/t, or a little more for a key that is held."""
        seen = 1 / self.buckets + self._excess * frequency
        return (seen - self.kappa**2 * square) / (users * self.kappa**2)

    @cached_property
    def _excess(self) -> float:
        """How much likelier a held key's bucket is named than another, whatever the side."""
        occupancy = self._occupancy
        rates = occupancy.favour_rates(self.favoured)
        law = occupancy.held_load_law()
        rates = np.concatenate([rates, np.ones(max(0, len(law) - len(rates)))])
        favoured_sides = float(law[0] * 2 * rates[0] + law[1:] @ rates[1 : len(law)])
        usual = 2 * self.favoured / self._candidates
        w, total = self._ratio, self.favoured * self._ratio + self._candidates - self.favoured
        return self.seeds * (w - 1) / total * (favoured_sides - usual)

    @property
    def _ratio(self) -> float:
        return self.weights[0] / self.weights[1]

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        if self.signed:
            return float(self._signed_variance(users, held.frequency, held.square))
        return float(self.rates.variance(quantity, users, held.frequency, held.mean, held.square))

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[SketchResponse]:
        if goal.unit != "record":
            return
        for mode in modes_for(goal):
            yield cls.serving(goal, mode=mode, count_names=mode == "signed")
