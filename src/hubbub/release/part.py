"""What the parts of a release have in common.

A release is a short list of parts. Building: each part projects the vector (minus the entries an earlier
part has listed) into arrays. Asking: each part in turn refines the answers for the keys still open.

Intervals are confidence intervals. For a key with true value x (clipped to the public range), over the coins
of the release and its random hash functions, P(low <= x <= high) is at least the level, whatever x is. Two
parts share the allowance alpha = 1 - level, half each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hubbub.primitives.arrays import Bools, Floats, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.release.keyspace import KeySpace
from hubbub.release.noise import Scale, decay
from hubbub.release.vector import Values, Vector

Arrays = dict[str, NDArray[np.generic]]

Estimator = Literal["argmax", "difference", "median", "mean"]
ESTIMATORS: tuple[Estimator, ...] = ("argmax", "difference", "median", "mean")


@dataclass(frozen=True)
class Query:
    """How to answer: which estimator, how often an interval may miss, in which key space and on which grid."""

    estimator: Estimator
    alpha: float
    values: Values
    keys: KeySpace

    @property
    def slack(self) -> int:
        """A real lies within a step of the grid point it was rounded to; a count is one."""
        return 0 if self.values.kind == "counts" else 1


class Answers:
    """Answers for many ids, in steps of the grid. Every array covers all ids; `open` marks the unsettled."""

    def __init__(self, count: int, values: Values) -> None:
        self.value = np.zeros(count)
        self.low = np.full(count, float(-values.top if values.signed else 0))
        self.high = np.full(count, float(values.top))
        self.source = np.full(count, "absent", dtype="<U8")
        self.open: Bools = np.ones(count, dtype=np.bool_)

    def settle(
        self, value: Floats, low: Floats, high: Floats, source: str, which: Bools | None = None
    ) -> None:
        """Final answers for the open ids, or for those of them that `which` marks."""
        places = np.flatnonzero(self.open)
        if which is not None:
            places = places[which]
        self.value[places] = value
        known = self.low[places], self.high[places]
        self.low[places], self.high[places] = np.clip(low, *known), np.clip(high, *known)
        self.source[places] = source
        self.open[places] = False

    def bound(self, low: float, high: float) -> None:
        """What is known of the ids that stay open."""
        self.low[self.open] = np.maximum(low, self.low[self.open])
        self.high[self.open] = np.minimum(high, self.high[self.open])


class Part(BaseModel):
    """One algorithm with its public parameters; holds no data and no randomness."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=0.0, ge=0, lt=1)

    def project(self, vector: Vector, values: Values, keys: KeySpace, coins: Coins) -> Arrays:
        """The private arrays. Every subclass proves its guarantee in its docstring."""
        raise NotImplementedError

    def shapes(self, values: Values, keys: KeySpace) -> dict[str, tuple[str, int | None]]:
        """Type and length of every array; None where the length is part of the outcome."""
        raise NotImplementedError

    def refine(self, arrays: Arrays, ids: UInt64s, answers: Answers, query: Query) -> None:
        """Settle or bound the open answers; `ids` are the open ones."""
        raise NotImplementedError


def int_type(limit: int) -> str:
    """The narrowest integer type that holds -limit .. limit."""
    return next((f"<i{size}" for size in (1, 2, 4) if limit < 1 << (8 * size - 1)), "<i8")


def noise_reach(scale: Scale, alpha: float) -> int:
    """The smallest h with P(noise > h) <= alpha, that is r^(h + 1) / (1 + r) <= alpha."""
    r = decay(scale)
    return max(0, math.ceil(math.log(alpha * (1 + r)) / math.log(r)) - 1)
