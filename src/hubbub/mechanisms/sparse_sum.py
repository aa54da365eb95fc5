"""Sparse sums: add signed values into a few bins, add noise (Zhou et al., Algorithm 1).

Device: bin j holds B_j = sum of s(key) * value over the keys hashed to j. What is sent is the noised B
(line 9; line 11 of the paper prints the un-noised symbol). The estimate for a key is s(key) times its bin.

| unit | regime | noise |
|---|---|---|
| entry | bins as many as bytes allow | Laplace, sensitivity 2 (values) or 1 (sets) |
| l1 | distance L, pure | Laplace, sensitivity L |
| l1 with delta | prf family only | Laplace, sensitivity from a tail bound over the random signs |
| record | one bin, clipped | best of one bit, window and Laplace; or `as_published` |

Values live on a public grid of 2^-grid_bits, Laplace noise is the exact discrete one, and the noised bin is
rounded without bias to the coarser grid of the wire (post-processing).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.clipped_walk import Walk, WalkShape, respond_walk
from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.mechanisms.shared.several_keys import aligned_at_once, best_aligned
from hubbub.model.count_laws import Spread
from hubbub.model.guarantee import Guarantee, Unit
from hubbub.model.influence import weighted
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, ends_telltale, laplace_beyond, outcome_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import EMPTY, clamped_laplace, rounded
from hubbub.primitives.wire import WireField

#: Laplace scales are sensitivity * 2^20 / floor(epsilon * 2^20): epsilon rounded down, exactly.
_EPSILON_STEPS = 1 << 20
#: Natural log of one over the probability that noise alone leaves the wire's range.
_RANGE_LOG = math.log(1e6)


class _Bins(NamedTuple):
    """How fine the grid is, what is rounded to it; a clip (none if below 0); the noise's scale; the wire's steps."""

    shrink: int
    sums_first: bool
    clip: int
    numerator: int
    denominator: int
    step: int
    steps: int


@per_record
def _respond_bins(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    """Laplace noise on every bin."""
    offsets, values, bucket, sign = records
    bins = reports.shape[1]
    loads = np.zeros(bins, dtype=np.int64)
    pool = EMPTY
    for j in range(offsets[i], offsets[i + 1]):
        value = values[j]
        if not shape.sums_first:
            value, pool = rounded(tape, pool, value, shape.shrink)
        loads[bucket[j]] += sign[j] * value
    for b in range(bins):
        load = loads[b]
        if shape.sums_first:
            load, pool = rounded(tape, pool, load, shape.shrink)
        if shape.clip >= 0:
            load = min(max(load, -shape.clip), shape.clip)
        noised = clamped_laplace(tape, load, shape.numerator, shape.denominator, shape.step * shape.steps)
        number, pool = rounded(tape, pool, noised, shape.step)
        reports[i, b] = number + shape.steps


class SparseSum(Hashed):
    """Differential privacy per entry, per l1 distance, or per record, by the regime.

    Proof, entry and l1: two neighbours' bins differ by at most the sensitivity D in total, for any hash (an entry
    moves a bin by at most 2, or 1 for sets; distances only shrink by binning; stochastic rounding is coupled and adds
    less than one grid step for everything that is rounded and differs, counted in D: the bins, or with `round_at`
    entries the values of two records). Discrete Laplace noise of scale at least D / epsilon on each bin then changes
    probabilities by at most exp(epsilon). Records are taken whole: sampling one down could move one entry in and
    another out. Distances are between values on the grid of 2^-30 that records are held on.

    Proof, l1 with delta: for fixed bins, sum_j |B_j - B'_j| is the largest of 2^b sums of +-w_l, w the
    difference of the records. Each such sum has random signs, sum w_l^2 <= M L with |w_l| <= M, so by Hoeffding and
    a union bound it exceeds sqrt(2 M L (b ln 2 + ln 1/delta)) with probability at most delta. (The paper's
    Lemma 14 gives 3 sqrt(b L ln(2b/delta)), larger in every regime; `as_published` uses it.) This rests on
    the hash signs being random, hence the prf family only, with seeds of 64 bits: with b bits, somebody who knows the
    salt finds records for which one seed in 2^b puts all signs alike, and delta cannot be smaller than that. Among N
    pairs of records, the share of bad seeds is at most delta (1 + sqrt(3 ln(N / p) / (2^64 delta))) for all of them,
    except with probability p over the PRF (Chernoff): within 0.1% of delta for 10^10^6 pairs at delta = 1e-6.

    Proof, record: the load is clipped to [-eta, eta] whatever the record. One bit: its probability is
    between V / (W + V) and W / (W + V). Window: every outcome has weight W or V and the total is constant.
    Laplace: sensitivity 2 eta. Nothing rests on hashing.
    """

    name: ClassVar[str] = "sparse_sum"
    summary: ClassVar[str] = "noised sums of signed values in a few bins (Zhou et al.)"
    chosen: ClassVar[frozenset[str]] = frozenset({"buckets", "clip", "reach", "grid_bits"})

    unit: Unit = Field(default="record", description="what is protected: record, entry or l1 distance")
    distance: float | None = Field(
        default=None, gt=0, le=1 << 20, description="l1 distance protected (unit l1)"
    )
    delta: float = Field(default=0.0, ge=0, lt=1, description="failure probability (unit l1, prf family)")
    as_published: bool = Field(default=False, description="the paper's constants instead of tuned ones")
    beta: float = Field(default=0.1, gt=0, lt=1, description="failure probability of the published clip")
    noise: Literal["", "bit", "window", "laplace"] = Field(
        default="", description="unit record: kind of noise (empty: lowest variance)"
    )
    clip: int = Field(default=0, ge=0, le=1 << 16, description="unit record: bound on the bin (0: chosen)")
    reach: int = Field(default=0, ge=0, le=1 << 20, description="window noise: half-width (0: chosen)")
    grid_bits: int = Field(
        default=-1, ge=-1, le=20, description="bits after the point in the bins (-1: chosen)"
    )

    round_at: Literal["entries", "bins"] = Field(
        default="entries",
        description="values are rounded to the bins' grid one by one, or after adding them up",
    )

    # Parameters

    def check(self) -> None:
        if self.grid_bits < 0:
            self._fill(grid_bits=0 if self.values == "set" or self.walks else 16)
        if (self.unit == "l1") != (self.distance is not None):
            raise ValueError("a distance goes with unit l1, and only with it")
        if self.delta and self.unit != "l1":
            raise ValueError("delta goes with unit l1; units record and entry are pure")
        if self.delta and self.family == "walsh":
            rests = "the regime with delta rests on the hash signs being random, which linear (walsh) codes are not"
            raise ValueError(f"{rests}: use family = 'prf', or delta = 0")
        if self.delta and self.seed_bits not in (0, 64):
            raise ValueError(
                "the regime with delta needs seeds that no record can be fitted to: seed_bits = 64"
            )
        if self.unit == "record" and (self.buckets != 1 or self.round_at == "bins"):
            raise ValueError("unit record has one bin, and rounds entries")
        if not self.walks and (self.noise or self.clip or self.reach):
            raise ValueError("noise, clip and reach are for unit record, and the paper's own as published")
        if self.walks:
            self._tune()
        if self.epsilon * _EPSILON_STEPS < 1 or self._scale[0] >= 1 << 55:
            raise ValueError("epsilon is too small, or the sensitivity too large, for exact 64-bit noise")

    @property
    def walks(self) -> bool:
        """Whether the bin is a walk of max_entries steps of +1 or -1 (unit record, tuned)."""
        return self.unit == "record" and not self.as_published

    def best_buckets(self) -> int:
        """The paper's b: floor(eps^2 k / L^2), at least 1 (Table II), or its root form with delta."""
        if self.unit == "record":
            return 1
        reach = (2 if self.values == "signed" else 1) if self.unit == "entry" else float(self.distance or 1)
        bins = self.epsilon**2 * self.max_entries / reach**2
        if self.delta:
            bins = math.sqrt(self.epsilon**2 * self.max_entries / (reach * math.log(1 / self.delta)))
        bins = min(max(1, math.floor(bins)), 1 << 12)
        return bins if self.family == "prf" else 1 << (bins.bit_length() - 1)

    def default_seed_bits(self) -> int:
        return 64 if self.delta else super().default_seed_bits()

    def _tune(self) -> None:
        """Fill in clip and noise by the lowest variance among what was left open."""
        kinds = [self.noise] if self.noise else ["bit", "window", "laplace"]
        options = [self._walk.best(kind, self.epsilon, self.clip, self.reach) for kind in kinds]
        exact = [option for option in options if self._fits(*option[1:])]
        if not exact:
            raise ValueError("epsilon, clip and reach are together too large for exact 64-bit weights")
        variance, kind, clip, reach = min(exact)
        if not math.isfinite(variance):
            raise ValueError("the load is clipped away entirely: choose a larger clip")
        self._fill(noise=kind, clip=clip, reach=reach)

    def _fits(self, kind: str, clip: int, reach: int) -> bool:
        """Whether the kernel's weights have at most 62 bits."""
        favoured, other = self.weights
        total = {
            "bit": 2 * clip * (favoured + other),
            "window": (2 * reach + 1) * favoured + 2 * clip * other,
        }
        return total.get(kind, 0) < 1 << 62

    @cached_property
    def _walk(self) -> Walk:
        return Walk(self.max_entries)

    # Promise

    def guarantee(self) -> Guarantee:
        note = ""
        if self.delta:
            note = "This rests on the report's hash function being random (a keyed PRF with a 64-bit seed)."
        if self.refuses_longer:
            more = self.epsilon * 2 / self.sensitivity
            note += (
                f" For up to {self.max_entries} entries; each one beyond adds up to {more:.2g} to epsilon."
            )
        return Guarantee(self.epsilon, self.unit, "local", self.delta, self.distance, note.strip())

    @property
    def limits_entries(self) -> bool:
        return self.unit == "record"

    @property
    def refuses_longer(self) -> bool:
        """The slack of rounding is counted for max_entries rounded values."""
        return self.unit == "l1" and self.values == "signed" and self.round_at == "entries"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",) if self.values == "set" else ("mean",)

    @property
    def sensitivity(self) -> int:
        """Largest change of all bins together between neighbours, in grid steps, rounded up."""
        unit = 1 << self.grid_bits
        largest = 2 if self.values == "signed" else 1
        if self.unit == "entry":
            return largest * unit
        if self.unit == "record":
            return 2 * (self.clip if self.walks else self._published_clip)
        distance = float(self.distance or 0)
        before, after = (0, self.buckets) if self.round_at == "bins" else (2 * self.max_entries, 0)
        if self.values == "set":
            before = after = 0
        pure = math.ceil(distance * unit) + before + after
        if not self.delta:
            return pure
        length = distance + before / unit
        if self.as_published:
            if length / self.buckets < math.log(2 * self.buckets / self.delta):
                raise ValueError("the published bound needs L / b >= ln(2b / delta); use fewer bins")
            bound = 3 * math.sqrt(self.buckets * length * math.log(2 * self.buckets / self.delta))
        else:
            signs = self.buckets * math.log(2) + math.log(1 / self.delta)
            bound = math.sqrt(2 * largest * length * signs)
        return min(pure, math.ceil(bound * (1 + 1e-12) * unit) + after)

    @property
    def _published_clip(self) -> int:
        """eta = sqrt(2k ln(4n/beta)) in grid steps (Table II)."""
        return math.ceil(
            math.sqrt(2 * self.max_entries * math.log(4 * self.users / self.beta)) * (1 << self.grid_bits)
        )

    @property
    def _scale(self) -> tuple[int, int]:
        """The Laplace scale in grid steps, as numerator and denominator."""
        return self.sensitivity * _EPSILON_STEPS, math.floor(self.epsilon * _EPSILON_STEPS)

    @cached_property
    def _wire(self) -> tuple[int, int]:
        """Grid steps per wire step, and wire steps on each side of zero."""
        scale = self._scale[0] / self._scale[1]
        bound = self._published_clip if self.unit == "record" else self.max_entries << self.grid_bits
        if self.walks:
            return 1, math.ceil(self.clip + scale * _RANGE_LOG)
        step = 1 << max(0, math.floor(math.log2(scale / 8)))
        return step, math.ceil((bound + scale * _RANGE_LOG) / step)

    # On the device

    def report_fields(self) -> tuple[WireField, ...]:
        if self.walks and self.noise == "bit":
            return (WireField("bit", 2),)
        if self.walks and self.noise == "window":
            return (WireField("sum", 2 * (self.clip + self.reach) + 1),)
        return tuple(WireField(f"bin {b}", 2 * self._wire[1] + 1) for b in range(self.buckets))

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        step, steps = self._wire
        if self.walks:
            reach = {"bit": 0, "laplace": -1}.get(self.noise, self.reach)
            return respond_walk, WalkShape(
                self.max_entries, self.clip, reach, *self.weights, *self._scale, steps
            )
        clip = self._published_clip if self.unit == "record" else -1
        return _respond_bins, _Bins(
            GRID >> self.grid_bits, self.round_at == "bins", clip, *self._scale, step, steps
        )

    def miniature(self) -> Self:
        """The same with few bins on a coarse grid, a small distance, and noise clamped not far beyond the largest load.

        Clamping keeps the largest ratio: beyond all loads, tails are in the ratio of the densities.
        """
        few = min(self.buckets, 2)
        fine = {"entry": 0, "record": 1, "l1": 1}[self.unit]
        if self.unit == "l1" and self.max_entries == 1:
            fine = 5 if few == 1 else 3
        coarse = self.model_dump() | {"grid_bits": min(self.grid_bits, fine), "buckets": few}
        if self.distance is not None and not (self.as_published and self.delta):
            coarse["distance"] = min(self.distance, 1.0 if self.values == "signed" else 2.0)
        small = type(self)(**coarse)
        clip = small.clip if small.walks else small._published_clip
        largest = clip if small.unit == "record" else small.max_entries << small.grid_bits
        small._fill(_wire=(1, largest + 1))
        return small

    # On the server

    @property
    def channels(self) -> int:
        return 1

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        if self.walks and self.noise == "bit":
            values = 2 * reports - 1
        elif self.walks and self.noise == "window":
            values = reports - (self.clip + self.reach)
        else:
            values = reports - self._wire[1]
        return (Votes(True, np.full(len(reports), -1, dtype=np.int64), values),)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """The seed; and in unit record, where the load is clipped, what noise seldom or never does to it."""
        seed = super().telltales(keys)
        if self.unit != "record" or self.noise == "bit":
            return seed
        if self.walks and self.noise == "window":
            window = 2 * self.reach + 1
            weights = window, window + 2 * self.clip, *self.weights
            return (*seed, *outcome_telltales(weights, "sums", lambda reports: reports[:, 1]))
        step, steps = self._wire
        clip = self.clip if self.walks else self._published_clip
        beyond = laplace_beyond(step * (steps - 1) - clip, self._scale[0] / self._scale[1])
        return (*seed, *ends_telltale(slice(1, None), 2 * steps, beyond))

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """Keys in different bins do not stand in each other's way, and those in one bin must have the right signs."""
        return aligned_at_once(self.seed_bits, self.buckets)

    def loudest_together(self, keys: Keys, way: Floats, count: int, chosen: bool) -> float:
        """The most that a bin says, in one direction for keys of one sign and in the other for the others."""
        most = weighted(self.effects(), *way).up
        return most * best_aligned(self.seed_bits if chosen else 0, self.buckets, count)

    def best_fields(self, wanted: Floats, fields: Int64s) -> Int64s:
        """Every bin by itself: its largest or its least number."""
        most = np.array([field.limit - 1 for field in self.report_fields()])
        return np.where(wanted[:, 0] > 0, most, np.where(wanted[:, 0] < 0, 0, fields))

    @cached_property
    def _unit(self) -> float:
        """What one vote is worth: undoes grid, clip and response so that the estimate is unbiased."""
        if self.walks:
            return self._walk.unit(self.noise, self.epsilon, self.clip, self.reach)
        return self._wire[0] / (1 << self.grid_bits)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        n = max(state.count, 1)
        mean = self.tally(state, keys, ids)[0] * (self._unit / n)
        # The mean square of a bin is the variance of an absent key's estimate; a held key's own value is no noise.
        bins = state.squares * self._unit**2 / (n * self.buckets)
        spread = Spread(np.full(len(mean), bins / n), 1 / (self.buckets * n), self.values != "set")
        if self.values == "set":
            return Moments(mean, spread.at(mean), spread=spread)
        return Moments(None, None, mean, spread.at(mean), spread=spread)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        if self.walks:
            return (self._walk.noise(self.noise, self.epsilon, self.clip, self.reach) - held.square) / users
        grid, step = float(1 << self.grid_bits), self._wire[0]
        decay = math.exp(-self._scale[1] / self._scale[0])
        laplace = 2 * decay / (1 - decay) ** 2 / grid**2
        rounding = (step**2 - 1) / 6 / grid**2
        others = held.energy - held.square
        return (max(others, 0.0) / self.buckets + laplace + rounding) / users

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[SparseSum]:
        wanted = "frequency" if goal.values == "set" else "mean"
        if goal.quantity != wanted:
            return
        unit: dict[str, Any] = {"unit": goal.unit, "distance": goal.distance}
        if goal.unit == "l1" and goal.values == "signed":
            unit["round_at"] = "bins"
        if goal.unit == "record":
            yield cls.serving(goal, **unit)
            return
        for buckets in sorted({0, *(1 << a for a in range(9) if 1 << a <= 4 * goal.max_entries)}):
            yield cls.serving(goal, **unit, buckets=buckets)
            if goal.delta:
                yield cls.serving(goal, **unit, family="prf", buckets=buckets, delta=goal.delta)
