"""Max projection: constant time per query, with weak tails (Algorithm 11)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.coins import Coins
from hubbub.release.keyspace import KeySpace, hash_to
from hubbub.release.noise import Scale, add_noise
from hubbub.release.part import Answers, Arrays, Part, Query, int_type, noise_reach
from hubbub.release.vector import Values, Vector


class MaxProjection(Part):
    """epsilon-DP (Lemma 8.1).

    Proof. A step in one entry moves one cell's maximum by at most one step, and every cell gets Laplace
    noise whose factor per step is at most 1 + gain. Signed values are two vectors, max(v, 0) and
    max(-v, 0), hashed apart: their joint l1 distance is that of v (Section 2, negative values).
    """

    name: Literal["max"] = "max"
    scale: Scale
    limit: int = Field(ge=1, le=1 << 62)
    span: int = Field(ge=1, le=1 << 32, description="number of cells")
    crowding: float = Field(ge=0, le=1, description="public bound on the odds that a cell is shared")

    @classmethod
    def make(cls, values: Values, epsilon: float, span: int, crowding: float) -> MaxProjection:
        scale = values.scale(epsilon)
        return cls(epsilon=epsilon, scale=scale, limit=values.limit(scale), span=span, crowding=crowding)

    def project(self, vector: Vector, values: Values, keys: KeySpace, coins: Coins) -> Arrays:
        exact = vector.on_grid(coins)
        cells = np.zeros(self.span, dtype=np.int64)
        for side in range(2 if values.signed else 1):
            held = exact < 0 if side else exact > 0
            np.maximum.at(cells, self._cells(keys, vector.ids[held], side), np.abs(exact[held]))
        return {"cells": add_noise(cells, self.scale, self.limit, coins).astype(int_type(self.limit))}

    def _cells(self, keys: KeySpace, ids: UInt64s, side: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return hash_to(self.span, keys.multipliers(1), keys.scattered(ids, side)).astype(np.int64)

    def shapes(self, values: Values, keys: KeySpace) -> dict[str, tuple[str, int | None]]:
        return {"cells": (int_type(self.limit), self.span)}

    def refine(self, arrays: Arrays, ids: UInt64s, answers: Answers, query: Query) -> None:
        """The cell's noisy value. Sharing a cell can only raise it, so the lower limit pays for crowding."""
        cells, sides = arrays["cells"], 2 if query.values.signed else 1
        noised = [cells[self._cells(query.keys, ids, side)].astype(np.float64) for side in range(sides)]
        value = noised[0] - noised[1] if sides == 2 else noised[0]
        left = (query.alpha - sides * self.crowding) / (2 * sides)
        if left <= 0:
            low, high = np.full(len(ids), -np.inf), np.full(len(ids), np.inf)
            if sides == 1:
                high = value + noise_reach(self.scale, query.alpha) + query.slack
        else:
            reach = sides * noise_reach(self.scale, left) + query.slack
            low, high = value - reach, value + reach
        answers.settle(value, low, high, "max")
