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
| a value beyond 2^52 steps of the grid | clipped to them before it is added |
| a value of 0, a sum of 0 | the key is not in the vector |
| a key twice | its values are summed, exactly |
| a sum beyond max_value (for reals: rounded up to the grid) | clipped to it, counted in the summary |
| more keys, or a larger sum, than declared | built all the same: bounds fix the size, never the content |

Sensitivity. Of the values of a key, each is clipped, the clipped ones are added and the sum is clipped again.
Clipping brings no two numbers further apart and the addition is exact (`amounts`), so a row that changes by D
changes one entry of the vector, by at most D. How a value is read depends on that value alone, never on other
rows.
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
from hubbub.release.amounts import LARGEST, Amounts
from hubbub.release.noise import DROWNED, Scale, laplace_scale, log1p_down

#: Below this, exp(epsilon) is so close to 1 that more bits of it are needed.
_TINY = 2.0**-10
#: What the finest Laplace scale on offer needs, too.
_LEAST_GAIN = Fraction(1, 1 << 39)


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
            unit = 1 << (55 if epsilon < _TINY else 32)
            gain = Fraction(favoured_weight(epsilon, unit), unit) - 1
        else:
            gain = Fraction(epsilon) / (1 << self.fraction_bits)
        if gain < _LEAST_GAIN:
            raise Refused(DROWNED)
        return gain

    def scale(self, epsilon: float) -> Scale:
        """The Laplace scale, in steps, whose factor per step is at most 1 + gain."""
        return laplace_scale(Fraction(epsilon) if self.kind == "counts" else log1p_down(self.gain(epsilon)))

    def limit(self, scale: Scale) -> int:
        """Noised values are clamped here: 64 scales past the largest value, reached with odds e^-64."""
        return self.top + 64 * -(-scale[0] // scale[1])


@dataclass(frozen=True)
class Vector:
    """The nonzero entries: ids in increasing order, and exact amounts in steps of the grid."""

    ids: UInt64s
    amounts: Amounts

    def on_grid(self, coins: Coins) -> Int64s:
        """Whole steps of the grid; reals flip a coin for the rest."""
        return self.amounts.rounded(coins)

    def without(self, ids: UInt64s) -> Vector:
        """The entries whose ids are not listed."""
        kept = ~np.isin(self.ids, ids)
        return Vector(self.ids[kept], self.amounts.take(kept))


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


def make_vector(values: Values, ids: UInt64s, raw: Any) -> tuple[Vector, Summary]:
    """Check, sum up repeated ids, clip to the public range and drop zeros."""
    return add_up(values, ids, read_amounts(values, raw))


def add_up(values: Values, ids: UInt64s, amounts: Amounts) -> tuple[Vector, Summary]:
    """Sum up repeated ids, clip to the public range and drop zeros."""
    if len(ids) != len(amounts):
        raise Refused(f"There are {len(ids)} keys but {len(amounts)} values.")
    order, starts = runs(ids)
    sums, beyond = amounts.take(order).sums(starts, values.top)
    kept = sums.present()
    vector = Vector(ids[order][starts][kept], sums.take(kept))
    total = float(vector.amounts.sizes().sum()) * values.step
    return vector, Summary(len(ids), int(kept.sum()), total, len(ids) - len(starts), int(beyond.sum()))


def runs(*columns: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """The order that sorts rows by these columns, and where in it rows begin that differ from the one before."""
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = False
    for column in columns:
        new[1:] |= column[order][1:] != column[order][:-1]
    return order, np.flatnonzero(new)


def read_amounts(values: Values, raw: Any) -> Amounts:
    """Exact amounts for a column of numbers; what cannot be released is refused."""
    if not (
        isinstance(raw, np.ndarray) and raw.ndim == 1 and raw.dtype.kind in "iuf" and raw.dtype.itemsize <= 8
    ):
        raw = np.array([_number(value) for value in raw], dtype=np.float64)
    raw = raw.astype({"i": np.int64, "u": np.uint64, "f": np.float64}[raw.dtype.kind])
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise Refused("A value is not a finite number; only finite numbers can be released.")
    if not values.signed and len(raw) and raw.min() < 0:
        raise Refused(f"The value {raw.min()} is below 0; say that values are signed, or correct it.")
    # Up to LARGEST, whole numbers and doubles are the same; what is beyond is clipped to it in either form.
    raw = np.minimum(raw, LARGEST) if raw.dtype.kind == "u" else np.clip(raw, -LARGEST, LARGEST)
    if values.kind == "reals":
        return Amounts.of(raw.astype(np.float64), values.fraction_bits)
    if raw.dtype.kind == "f" and (raw != np.floor(raw)).any():
        raise Refused("A count is not a whole number; release such values as reals.")
    return Amounts.of(raw.astype(np.int64), 0)


def _number(value: Any) -> float:
    """A number on its own: an array of them would be given the one type that suits all."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise Refused("Values must be numbers.")
    return (
        float(min(max(int(value), -LARGEST), LARGEST))
        if isinstance(value, int | np.integer)
        else float(value)
    )
