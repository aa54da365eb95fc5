"""Laplace noise on every entry: Algorithm 1, for universes small enough to write down, and for lists of keys."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.coins import Coins
from hubbub.release.keyspace import KeySpace
from hubbub.release.noise import Scale, add_noise
from hubbub.release.part import Answers, Arrays, Part, Query, int_type, noise_reach
from hubbub.release.vector import Values, Vector

#: Larger universes are not written down entry by entry.
MOST_ENTRIES = 1 << 26


class Laplace(Part):
    """epsilon-DP (Algorithm 1 on a grid).

    Proof. Entries are noised independently, and discrete Laplace noise of scale s has
    P(y | x + 1) / P(y | x) <= exp(1 / s) <= 1 + gain for every y. Clamping is post-processing. Every key that
    there can be has an entry, whether it is in the table or not: the universe, or the list, is public.
    """

    name: Literal["laplace"] = "laplace"
    scale: Scale
    limit: int = Field(ge=1, le=1 << 62)

    @classmethod
    def make(cls, values: Values, epsilon: float) -> Laplace:
        scale = values.scale(epsilon)
        return cls(epsilon=epsilon, scale=scale, limit=values.limit(scale))

    def project(self, vector: Vector, values: Values, keys: KeySpace, coins: Coins) -> Arrays:
        dense = np.zeros(keys.universe, dtype=np.int64)
        dense[vector.ids.astype(np.int64)] = vector.on_grid(coins)
        return {"dense": add_noise(dense, self.scale, self.limit, coins).astype(int_type(self.limit))}

    def shapes(self, values: Values, keys: KeySpace) -> dict[str, tuple[str, int | None]]:
        return {"dense": (int_type(self.limit), keys.universe)}

    def refine(self, arrays: Arrays, ids: UInt64s, answers: Answers, query: Query) -> None:
        noised = arrays["dense"][ids.astype(np.int64)].astype(np.float64)
        reach = noise_reach(self.scale, query.alpha / 2) + query.slack
        answers.settle(noised, noised - reach, noised + reach, "laplace")
