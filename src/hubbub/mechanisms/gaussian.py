"""Gaussian noise on every coordinate: naive perturbation, a baseline of Zhou et al.

Device: the record is a vector of d = size values, 0 where there is no entry. Round every value at random to a grid of
`grid` steps per 1, and add discrete Gaussian noise of an integer scale to all d coordinates, sampled exactly (Canonne,
Kamath, Steinke 2020, Algorithm 3). The scale is that of the analytic Gaussian mechanism (Balle and Wang 2018, Theorem
8) for the l2 distance of two records, and a trifle for being discrete.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hubbub.mechanisms.shared.listed import Listed
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, ends_telltale
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record_in
from hubbub.primitives.kernel import Kernel, kernel
from hubbub.primitives.samplers import EMPTY, accept_exp, accept_inverse_e, chance, clamped_laplace
from hubbub.primitives.wire import WireField

#: Noise beyond this many scales is clamped (probability below 1e-32 per number).
_REACH = 12
#: The least scale in grid steps when the grid is chosen, and the largest one that exact arithmetic allows.
_FINE, _COARSE = 256, 1 << 20
#: Variance, in grid steps, that is charged for the noise being discrete.
_ROUNDING = 4
#: What is kept back from delta for the same reason, and for the rounding of delta itself.
_SPARE = 1e-20
_MOST_KEYS = 4096


@kernel
def discrete_gaussian(tape: Any, scale: int) -> int:
    """P(y) proportional to exp(-y^2 / (2 scale^2)), exactly.

    Discrete Laplace noise of the same scale s is accepted with probability exp(-(|y| - s)^2 / (2 s^2)). (Laplace noise
    is cut off at 1024 scales, which happens with probability e^-1024.)
    """
    while True:
        y = clamped_laplace(tape, 0, scale, 1, scale << 10)
        excess = (abs(y) - scale) ** 2
        whole = 2 * scale * scale
        accepted, pool = accept_exp(tape, EMPTY, excess % whole, whole)
        for _ in range(excess // whole):
            if not accepted:
                break
            accepted, pool = accept_inverse_e(tape, pool)
        if accepted:
            noise: int = y
            return noise


class _Shape(NamedTuple):
    size: int
    grid: int
    scale: int
    most: int


@kernel
def _room(shape: Any) -> Any:
    return np.zeros(shape.size, dtype=np.int64)


@per_record_in(_room)
def _respond(tape: Any, i: int, records: Any, shape: Any, exact: Any, reports: Any) -> None:
    offsets, places, values = records
    exact[:] = 0
    for j in range(offsets[i], offsets[i + 1]):
        fine = values[j] * shape.grid
        low = fine // GRID
        up = fine - low * GRID
        exact[places[j]] = low + 1 if up > 0 and chance(tape, up, GRID) else low
    for key in range(shape.size):
        noised = exact[key] + discrete_gaussian(tape, shape.scale)
        reports[i, key] = min(max(noised, -shape.most), shape.most) + shape.most


class GaussianNoise(Listed):
    """(epsilon, delta)-LDP per record.

    Proof. On the grid, two records of up to k values are D = 2 sqrt(k) apart (sqrt(2 k) for sets), in l2, after
    rounding as before. Continuous Gaussian noise of scale r D is (epsilon, delta)-DP by Balle and Wang's Theorem 8. The
    discrete Gaussian of variance s^2 is as private as the continuous one of variance s^2 - c^2, c = 2: draw the
    continuous one, y, and replace it by the integer j with probability proportional to exp(-(j - y)^2 / 2 c^2). By
    Poisson summation the normaliser is c sqrt(2 pi) (1 +- h) for every y, with h = 2.1 exp(-2 pi^2 c^2) < 2e-34, so j
    has the law of the discrete Gaussian up to a factor of 1 +- 3 h for each of the d <= 4096 coordinates. That changes
    delta by less than 1e-20, which is kept back. Clamping comes afterwards.

    Unbiased: rounding and noise have mean 0 (clamping noise beyond 12 scales moves that by less than 1e-30).
    """

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "Gaussian noise on every key of a closed vocabulary (naive perturbation)"
    chosen: ClassVar[frozenset[str]] = frozenset({"grid"})

    size: int = Field(ge=1, le=_MOST_KEYS, description="keys of the closed vocabulary (or room for more)")
    delta: float = Field(default=1e-5, ge=1e-15, lt=1, description="probability of a greater loss")
    grid: int = Field(default=0, ge=0, le=1 << 16, description="grid steps per 1 (0: chosen)")

    @model_validator(mode="after")
    def _complete(self) -> GaussianNoise:
        wide = self._distance * analytic_scale(self.epsilon, self.delta)
        if not self.grid:
            self._fill(grid=max(1, min(1 << 16, math.ceil(_FINE / wide))))
        if wide * self.grid > _COARSE:
            raise ValueError("epsilon is too small, or max_entries too large, for exact 64-bit noise")
        return self

    @property
    def _distance(self) -> float:
        """The largest l2 distance of two records."""
        return math.sqrt(2 * self.max_entries) if self.values == "set" else 2 * math.sqrt(self.max_entries)

    @property
    def scale(self) -> int:
        """s, in grid steps."""
        wide = self._distance * analytic_scale(self.epsilon, self.delta) * self.grid
        return math.isqrt(math.ceil(wide**2 * (1 + 1e-12)) + _ROUNDING) + 1

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local", delta=self.delta)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",) if self.values == "set" else ("mean",)

    @property
    def _most(self) -> int:
        """Largest number on the wire, on each side of 0."""
        return self.grid + _REACH * self.scale

    def report_fields(self) -> tuple[WireField, ...]:
        return tuple(WireField(f"key {place}", 2 * self._most + 1) for place in range(self.size))

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(self.size, self.grid, self.scale, self._most)

    def miniature(self) -> Self:
        """Few keys and a large delta: too many outcomes to enumerate, but a loss that sampling can see."""
        return type(self)(**self.model_dump() | {"size": min(self.size, 4), "delta": max(self.delta, 0.1)})

    @property
    def columns(self) -> int:
        return 1

    def counts(self, reports: Int64s) -> Int64s:
        sums: Int64s = (reports - self._most).sum(axis=0, keepdims=True).T
        return sums

    def likeliest(self) -> float:
        """The density of the noise at 0, on each number: at most 1 / (s sqrt(2 pi)) and a trifle for being discrete."""
        return float((1.001 / (self.scale * math.sqrt(2 * math.pi))) ** self.size)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """Noise reaches the end of the wire with a probability below 1e-30 per number."""
        return ends_telltale(slice(1, None), 2 * self._most, 1e-30 * self.size)

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """All: a report speaks of every key by itself."""
        return self.size

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """Every key's number by itself."""
        changed = fields.copy()
        changed[:, places] = np.where(wanted[:, 0] > 0, 2 * self._most, 0)
        return changed

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        asked: Int64s = reports[:, 1 + self.places(keys, ids)].astype(np.int64) - self._most
        return np.asarray(asked.sum(axis=1))

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        n = max(state.count, 1)
        mean = state.totals[self.places(keys, ids), 0] / (n * self.grid)
        variance = np.full(len(mean), self.variance("mean", n))
        return Moments(mean, variance) if self.values == "set" else Moments(None, None, mean, variance)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """Of the noise; rounding values to the grid adds at most 1/4 to s^2, which is left out."""
        return (self.scale / self.grid) ** 2 / users

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[GaussianNoise]:
        wanted = "frequency" if goal.values == "set" else "mean"
        if goal.unit == "record" and goal.delta and goal.quantity == wanted and goal.keys <= _MOST_KEYS:
            yield cls.serving(goal, delta=goal.delta)


def gaussian_delta(epsilon: float, scale: float) -> float:
    """The delta of Gaussian noise whose scale is `scale` times the l2 distance (Balle and Wang, Theorem 8)."""

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    here, there = 1 / (2 * scale), epsilon * scale
    return normal(here - there) - math.exp(epsilon) * normal(-here - there)


@lru_cache(maxsize=256)
def analytic_scale(epsilon: float, delta: float) -> float:
    """The least scale, per l2 distance, for (epsilon, delta), by bisection and rounded up."""
    wanted = delta * (1 - 1e-9) - _SPARE
    low, high = 1e-3, 1.0
    while gaussian_delta(epsilon, high) > wanted:
        low, high = high, 2 * high
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_delta(epsilon, middle) > wanted else (low, middle)
    return high
