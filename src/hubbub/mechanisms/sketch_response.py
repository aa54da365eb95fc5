"""Sketch response: favour the fullest buckets of a count sketch, a fixed number of them.

Device: fill the record up to exactly k = max_entries entries with dummies. Each of g seeds is a count sketch
with t buckets: the load of a bucket is the number of its entries (sets, events), or the sum of their signed
values (signed). Candidates are all (seed, bucket), for signed records each with a side + and -, and
their score is the load, or side * load. The K candidates with the highest scores are favoured, ties broken
at random. A favoured candidate has weight W, any other V: report one by weight, with its seed.

Contains Hadamard response (one bucket, many seeds), and has Collision and CoCo beaten because the favoured
set has a fixed size, so nothing is lost where entries meet in a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hubbub.mechanisms.collision import nth_other
from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.mechanisms.shared.items import ItemRates
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
from hubbub.primitives.coins import Coins, begin_record, below, chance, random_sign, run_kernel
from hubbub.primitives.kernel import kernel
from hubbub.primitives.wire import Field as WireField

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


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
def _pick(
    tape: Any,
    cells: Any,
    loads: Any,
    levels: Any,
    found: int,
    width: int,
    sides: int,
    favoured_count: int,
    favoured: int,
    other: int,
) -> Any:
    """(cell, side) by weight, from `found` cells with non-zero loads among `width`.

    Candidates are in classes of equal score. The class where the K-th best lies is cut by random ties: seen
    from outside, a favoured candidate is uniform among the classes above with probability above / K, else
    uniform in the cut class; and likewise below. So no tie is ever broken one by one.
    """
    candidates = sides * width
    above, level = 0, len(levels) - 1
    while level > 0 and above + levels[level] < favoured_count:
        above += levels[level]
        level -= 1
    tied = levels[level] if level > 0 else sides * (width - found)
    weight = favoured_count * favoured
    if chance(tape, weight, weight + (candidates - favoured_count) * other):
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
    return nth_other(rank // sides, np.sort(cells[:found])), 1 - 2 * (rank % sides)


@kernel
def _respond(
    tape: Any,
    start: int,
    count: int,
    offsets: Any,
    values: Any,
    bucket: Any,
    sign: Any,
    sided: bool,
    signed: bool,
    seeds: int,
    buckets: int,
    limit: int,
    favoured_count: int,
    favoured: int,
    other: int,
    reports: Any,
) -> None:
    width = seeds * buckets
    last_seen = np.full(width, -1, dtype=np.int64)
    total = np.zeros(width, dtype=np.int64)
    touched = np.zeros(seeds * limit, dtype=np.int64)
    cells = np.zeros(seeds * limit, dtype=np.int64)
    loads = np.zeros(seeds * limit, dtype=np.int64)
    rounded = np.zeros(limit, dtype=np.int64)
    levels = np.zeros(limit + 1, dtype=np.int64)
    for i in range(start, count):
        if not begin_record(tape, i):
            return
        length = offsets[i + 1] - offsets[i]
        first = offsets[i] * seeds
        for j in range(length):
            rounded[j] = random_sign(tape, values[offsets[i] + j], GRID) if sided or signed else 1
        seen = 0
        for row in range(seeds):
            for j in range(limit):
                load = 1
                if j >= length:
                    cell = below(tape, buckets)
                    if signed:
                        load = random_sign(tape, 0, 1)
                else:
                    entry = first + row * length + j
                    if sided:
                        cell = bucket[2 * entry] if rounded[j] > 0 else bucket[2 * entry + 1]
                    else:
                        cell = bucket[entry]
                        if signed:
                            load = rounded[j] * sign[entry]
                cell += row * buckets
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
        cell, side = _pick(
            tape, cells, loads, levels, found, width, 2 if signed else 1, favoured_count, favoured, other
        )
        if signed and last_seen[cell] == i and total[cell] < 0:
            side = -side
        reports[i, 0] = cell // buckets
        reports[i, 1] = cell % buckets
        if signed:
            reports[i, 2] = (side + 1) // 2


class SketchResponse(Hashed):
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

    mode: Literal["", "sets", "signed", "events"] = Field(
        default="", description="sets; signed (means); events (both sides of a key: frequency and mean)"
    )
    seeds: int = Field(default=0, ge=0, le=64, description="count sketches to choose from (0: chosen)")
    favoured: int = Field(
        default=0, ge=0, le=1 << 20, description="favoured candidates (0: chosen by variance)"
    )
    kappa: float = Field(default=0.0, ge=0, lt=1, description="gain of the estimate (0: computed)")

    # Parameters

    def best_buckets(self) -> int:
        if not self.mode:
            self._fill(mode="sets" if self.values == "set" else "signed")
        if not self.seeds:
            self._fill(seeds=best_seeds(self.max_entries, self.epsilon, self.mode == "signed", self.family))
        return best_buckets(self.max_entries, self.epsilon, self.seeds, self.mode == "signed", self.family)

    def check(self) -> None:
        if not self.mode or not self.seeds:
            self.best_buckets()
        if (self.mode == "sets") != (self.values == "set"):
            raise ValueError(f"mode {self.mode!r} does not go with {self.values!r} values")
        if self.mode != "signed" and self.buckets < 2:
            raise ValueError("sets need at least 2 buckets")
        if not self.favoured:
            self._fill(favoured=best_favoured(self._occupancy, self.epsilon)[1])
        if self.favoured > self._occupancy.most:
            raise ValueError(f"at most {self._occupancy.most} candidates can be favoured here")
        if self._candidates * self.weights[0] >= 1 << 62:
            raise ValueError("epsilon and buckets are together too large for exact 64-bit weights")
        if not self.kappa:
            self._fill(kappa=float(gains_of(self._occupancy, self.epsilon)[self.favoured]))

    @property
    def _candidates(self) -> int:
        return self.seeds * self.buckets * (2 if self.mode == "signed" else 1)

    @property
    def _occupancy(self) -> Occupancy:
        return occupancy_of(self.max_entries, self.buckets, self.seeds, self.mode == "signed")

    # Promise

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return self.favoured, self._candidates, *self.weights

    @property
    def sided(self) -> bool:
        return self.mode == "events"

    @property
    def centered(self) -> bool:
        return self.mode == "events"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        if self.mode == "events":
            return "frequency", "mean", "conditional"
        return ("frequency",) if self.mode == "sets" else ("mean",)

    # On the device

    @property
    def seeds_per_report(self) -> int:
        return self.seeds

    def report_fields(self) -> tuple[WireField, ...]:
        side = (WireField("side", 2),) if self.mode == "signed" else ()
        return (WireField("bucket", self.buckets), *side)

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        bucket, sign = self._hash(keys, entries, seeds)
        reports = np.zeros((len(entries), 1 + len(self.report_fields())), dtype=np.int64)
        self.respond(coins, entries, bucket, sign, reports)
        used = seeds.reshape(len(entries), self.seeds)[np.arange(len(entries)), reports[:, 0]]
        return np.concatenate([used[:, None], reports[:, 1:].astype(np.uint64)], axis=1)

    def respond(self, coins: Coins, entries: Entries, bucket: Int64s, sign: Int64s, reports: Int64s) -> None:
        run_kernel(
            _respond,
            coins,
            len(entries),
            entries.offsets,
            entries.values,
            bucket,
            sign,
            self.sided,
            self.mode == "signed",
            self.seeds,
            self.buckets,
            self.max_entries,
            self.favoured,
            *self.weights,
            reports,
        )

    def miniature(self) -> SketchResponse:
        """One small sketch: every dummy multiplies the outcomes by the number of buckets."""
        chosen = self.model_dump(exclude={"favoured", "kappa"})
        return SketchResponse(**chosen | {"seeds": 1, "buckets": min(self.buckets, 4)})

    # On the server

    @property
    def channels(self) -> int:
        return 1

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        if self.mode == "signed":
            return (Votes(True, reports[:, 0], 2 * reports[:, 1:] - 1),)
        return (Votes(False, reports[:, 0], np.ones((len(reports), 1), dtype=np.int64)),)

    @property
    def rates(self) -> ItemRates:
        """Sets and events: probabilities that an item's bucket is named."""
        return ItemRates(1 / self.buckets + self.kappa, 1 / self.buckets, self.sided)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        if self.mode != "signed":
            return self.rates.moments(self, state, keys, ids)
        n = max(state.count, 1)
        mean = self.tally(state, keys, ids)[0] / (n * self.kappa)
        size = np.minimum(np.abs(mean), 1)
        return Moments(None, None, mean, self._signed_variance(n, size, size**2))

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
        if self.mode == "signed":
            return float(self._signed_variance(users, held.frequency, held.square))
        return float(self.rates.variance(quantity, users, held.frequency, held.mean, held.square))

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[SketchResponse]:
        if goal.unit != "record":
            return
        common = {
            "epsilon": goal.epsilon,
            "max_entries": goal.max_entries,
            "values": goal.values,
            "family": goal.family,
            "users": goal.users,
        }
        if goal.values == "set":
            if goal.quantity == "frequency":
                yield cls(**common, mode="sets")
            return
        if goal.quantity == "mean":
            yield cls(**common, mode="signed")
        yield cls(**common, mode="events")
