"""The vector that is released, and what counts as a neighbour of it.

Two kinds of values, each on a public grid:

| kind | grid step | neighbours |
|---|---|---|
| counts | 1 | one entry differs by 1 |
| reals | 2^-fraction_bits | the l1 distance is at most 1, spread over any number of entries |

A real is first rounded to the grid at random with its mean kept. If a step of the grid changes the odds of
anything seen by a factor of at most 1 + epsilon * step, then a change by D <= step changes a mixture of two
neighbouring grid points, and the odds, by at most 1 + epsilon * D <= exp(epsilon * D). Factors multiply over
steps and entries, so the whole is at most exp(epsilon * l1 distance). `gain` and `step_epsilon` are those
factors, rounded to the private side. Every part of a release does its own rounding: sharing one would
couple the parts, and the product above would no longer be a product.

The rules for untidy tables, in one place:

| what | rule |
|---|---|
| a value that is no finite number, a fraction among counts | refused |
| a value below 0 without `signed` | refused |
| a value of 0 | the key is not in the vector |
| a key twice | its values are summed |
| a value beyond max_value | clipped to it, counted in the summary |
| more keys, or a larger sum, than declared | built all the same: bounds fix the size, never the content |
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import favoured_weight
from hubbub.release.noise import Scale, laplace_scale, log1p_down, round_reals

#: No value is larger than this, in steps of the grid.
LARGEST = 1 << 52
_UNIT = 1 << 32


class Values(BaseModel):
    """Kind and public range of the values, and the grid they live on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["counts", "reals"] = "counts"
    signed: bool = False
    max_value: float = Field(gt=0, le=2.0**40, description="public bound on the size of a value")
    fraction_bits: int = Field(default=0, ge=0, le=40, description="the grid step is 2^-fraction_bits")

    @property
    def step(self) -> float:
        return 2.0**-self.fraction_bits

    @cached_property
    def top(self) -> int:
        """The largest value in steps of the grid."""
        steps = self.max_value / self.step
        return math.floor(steps) if self.kind == "counts" else math.ceil(steps)

    @model_validator(mode="after")
    def _check(self) -> Values:
        if self.kind == "counts" and (self.fraction_bits or self.max_value < 1):
            raise ValueError("counts are whole numbers with a bound of at least 1")
        if self.max_value / self.step > LARGEST:
            raise ValueError("max_value has more than 2^52 steps of the grid; use fewer fraction_bits")
        return self

    def gain(self, epsilon: float) -> Fraction:
        """By how much one step may raise the odds of anything, as a share: rounded down."""
        if self.kind == "counts":
            return Fraction(favoured_weight(epsilon, _UNIT), _UNIT) - 1
        return Fraction(epsilon) / (1 << self.fraction_bits)

    def scale(self, epsilon: float) -> Scale:
        """The Laplace scale, in steps, whose factor per step is at most 1 + gain."""
        return laplace_scale(Fraction(epsilon) if self.kind == "counts" else log1p_down(self.gain(epsilon)))

    def limit(self, scale: Scale) -> int:
        """Noised values are clamped here: 64 scales past the largest value, reached with odds e^-64."""
        return self.top + 64 * -(-scale[0] // scale[1])

    def on_grid(self, values: NDArray[Any], coins: Coins) -> Int64s:
        """Values in steps of the grid; reals flip a coin for the fraction."""
        return values if self.kind == "counts" else round_reals(values, self.fraction_bits, coins)


@dataclass(frozen=True)
class Vector:
    """The nonzero entries: ids in increasing order, integers (counts) or doubles (reals)."""

    ids: UInt64s
    values: NDArray[Any]

    def without(self, ids: UInt64s) -> Vector:
        """The entries whose ids are not listed."""
        kept = ~np.isin(self.ids, ids)
        return Vector(self.ids[kept], self.values[kept])


@dataclass(frozen=True)
class Summary:
    """What happened to the table on the way in. For its holder's eyes: it is not private."""

    rows: int
    nonzero: int
    total: float
    merged: int
    clipped: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_vector(values: Values, ids: UInt64s, raw: NDArray[Any]) -> tuple[Vector, Summary]:
    """Check, sum up repeated ids, clip to the public range and drop zeros."""
    if len(ids) != len(raw):
        raise Refused(f"There are {len(ids)} keys but {len(raw)} values.")
    _check(values, raw)
    order = np.argsort(ids, kind="stable")
    ids, raw = ids[order], raw[order]
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]])) if len(ids) else np.zeros(0, int)
    ids = ids[starts]
    bound = values.max_value if values.kind == "reals" else int(values.max_value)
    if values.kind == "counts":
        raw = np.minimum(raw, LARGEST)
        raw = (raw if raw.dtype.kind == "u" else np.maximum(raw, -LARGEST)).astype(np.int64)
    sums = np.add.reduceat(raw, starts) if len(starts) else raw
    # In integers a sum can wrap around; in doubles it cannot, and there it is far beyond the bound.
    rough = np.add.reduceat(raw.astype(np.float64), starts) if len(starts) else raw.astype(np.float64)
    beyond = np.abs(rough) > values.max_value
    clipped = np.where(beyond, np.sign(rough).astype(raw.dtype) * bound, sums)
    kept = clipped != 0
    vector = Vector(ids[kept], clipped[kept])
    total = float(np.abs(vector.values).sum(dtype=np.float64))
    return vector, Summary(len(raw), int(kept.sum()), total, len(raw) - len(ids), int(beyond.sum()))


def _check(values: Values, raw: NDArray[Any]) -> None:
    if raw.dtype.kind not in "iuf":
        raise Refused("Values must be numbers.")
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise Refused("A value is not a finite number; only finite numbers can be released.")
    if values.kind == "counts" and raw.dtype.kind == "f" and (raw != np.floor(raw)).any():
        raise Refused("A count is not a whole number; release such values as reals.")
    if not values.signed and raw.dtype.kind != "u" and len(raw) and raw.min() < 0:
        raise Refused(f"The value {raw.min()} is below 0; say that values are signed, or correct it.")
