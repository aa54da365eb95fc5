"""The ALP mechanism: unary numbers, hashed into an array of bits, each bit flipped at random.

One class holds the paper's projections and two generalisations, because all of them are "level j of entry i is
one bit, and a level covers so many steps of the grid":

| what | values | steps per level | flip probability p |
|---|---|---|---|
| Algorithms 2 and 4 (alpha = epsilon * width of a level) | reals | c = alpha / (epsilon * step) | 1 / (alpha + 2) |
| Algorithm 10 (histograms) | counts | 1 | 1 / (e^epsilon + 1) |
| counts with c units per bit | counts | c | 1 / (c (e^epsilon - 1) + 2) |
| Section 6 (log-encoded) | both | growing, the first c | as above, from the first c |

Layout "columns" is the paper's: one column of `span` cells per level. Layout "shared" lets all levels hash into
one array of `span` cells: levels that few entries reach do not waste a column, and the size follows the sum of
the vector instead of (number of entries) x (largest value).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hubbub.primitives.arrays import Bytes, Floats, Int64s, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.release import bits
from hubbub.release import heights as walk
from hubbub.release.keyspace import KeySpace, hash_to
from hubbub.release.noise import round_to_breaks
from hubbub.release.part import Answers, Arrays, Part, Query
from hubbub.release.vector import Values, Vector

#: More levels than this are refused: combine with a threshold, or encode logarithmically.
MOST_LEVELS = 1 << 20
MOST_CELLS = 1 << 35
#: Cells that are hashed at a time while the array is filled.
_CHUNK = 1 << 20


class Alp(Part):
    """epsilon-DP for any hash functions (Lemmas 4.1, 4.12, 7.1; c units per bit and growing levels are ours).

    Proof. Let a level cover c steps or more, so that one step in an entry moves the probability r that one
    of its bits is set (before collisions) by at most 1 / c, and moves no other bit. Other entries in that
    cell can only make it matter less: the cell is the OR of all. So one step changes the odds of the cell
    by at most 1 + (1 - 2p) / (c p) = 1 + gain, with p = 1 / (c gain + 2) rounded up; that is exp(epsilon) for
    counts and 1 + epsilon * step for reals (see `Values`). Negative values set bits of their own (Section 10:
    columns that start as ones and are cleared; flipping is symmetric, so we store the complement).
    """

    name: Literal["alp"] = "alp"
    layout: Literal["shared", "columns"] = "shared"
    span: int = Field(ge=1, le=1 << 32, description="cells of the array, or of each column")
    levels: int = Field(ge=1, le=MOST_LEVELS)
    gap: int = Field(ge=1, le=1 << 52, description="steps of the grid per level (the first, if they grow)")
    growth: float = Field(
        default=1.0, ge=1, le=1e6, description="each level is this much longer than the last"
    )
    flip: int = Field(ge=1, lt=1 << 61, description="probability of a flip, in units of 2^-62")

    @classmethod
    def make(
        cls,
        values: Values,
        epsilon: float,
        span: int,
        levels: int,
        gap: int,
        growth: float = 1.0,
        layout: Literal["shared", "columns"] = "shared",
    ) -> Alp:
        """Parameters for a budget; the flip probability follows."""
        flip = bits.flip_for(gap * values.gain(epsilon))
        return cls(
            epsilon=epsilon, layout=layout, span=span, levels=levels, gap=gap, growth=growth, flip=flip
        )

    @model_validator(mode="after")
    def _check(self) -> Alp:
        if self.layout == "columns" and self.span * self.levels > MOST_CELLS:
            raise ValueError("the array would have more than 2^35 cells")
        grown = self.levels * math.log(self.growth) - math.log(self.growth - 1) if self.growth > 1 else 0.0
        if max(math.log(self.gap * self.levels), math.log(self.gap) + grown) > 42:
            raise ValueError("the last level would lie beyond 2^60 steps")
        return self

    @property
    def p(self) -> float:
        """The flip probability as a float, for estimates."""
        return self.flip / (1 << bits.PRECISION)

    @property
    def breaks(self) -> Int64s:
        """Where each level is reached, in steps of the grid; no two are closer than `gap`."""
        return _breaks(self.levels, self.gap, self.growth)

    def cells(self, values: Values) -> int:
        """Bits in the whole array."""
        if self.layout == "shared":
            return self.span
        return self.span * self.levels * (2 if values.signed else 1)

    def project(self, vector: Vector, values: Values, keys: KeySpace, coins: Coins) -> Arrays:
        exact = vector.on_grid(coins)
        heights = round_to_breaks(np.abs(exact), self.breaks, coins)
        total = self.cells(values)
        array = bits.empty(total)
        for side in range(2 if values.signed else 1):
            held = (exact < 0 if side else exact > 0) & (heights > 0)
            self._fill(array, keys, keys.scattered(vector.ids[held], side), heights[held], side)
        bits.flip_cells(array, total, self.flip, coins)
        density = [bits.density(array, total)] if self.layout == "shared" else self._by_column(array, total)
        return {"bits": array, "density": np.array(density, dtype="<f8")}

    def _fill(self, array: Bytes, keys: KeySpace, words: UInt64s, heights: Int64s, side: int) -> None:
        """Step 2 of Algorithm 2: set bit h_b(i) of level b for all b up to the entry's height."""
        multipliers = keys.multipliers(int(heights.max(initial=0)))
        ends = np.cumsum(heights)
        first = 0
        while first < len(words):
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + _CHUNK)))
            part = heights[first:last]
            levels = np.arange(part.sum()) - np.repeat(np.cumsum(part) - part, part)
            cells = hash_to(self.span, multipliers[levels], np.repeat(words[first:last], part))
            bits.set_cells(array, self._placed(cells, levels.astype(np.uint64), side))
            first = last

    def _placed(self, cells: UInt64s, levels: UInt64s, side: int) -> UInt64s:
        if self.layout == "shared":
            return cells
        return cells + (levels + np.uint64(side * self.levels)) * np.uint64(self.span)

    def _by_column(self, array: Bytes, total: int) -> list[float]:
        flags = np.unpackbits(array, count=total, bitorder="little").reshape(-1, self.span)
        return [float(share) for share in flags.mean(axis=1)]

    def shapes(self, values: Values, keys: KeySpace) -> dict[str, tuple[str, int | None]]:
        total = self.cells(values)
        return {"bits": ("|u1", 8 * -(-total // 64)), "density": ("<f8", total // self.span)}

    def refine(self, arrays: Arrays, ids: UInt64s, answers: Answers, query: Query) -> None:
        array, sides = arrays["bits"].view(np.uint8), 2 if query.values.signed else 1
        density = np.asarray(arrays["density"], dtype=np.float64).reshape(
            sides if self.layout == "columns" else 1, -1
        )
        words = [query.keys.scattered(ids, side) for side in range(sides)]

        def read(rows: Int64s, horizon: int, side: int) -> NDArray[np.uint8]:
            """The first bits of some keys: Algorithm 3 without the sum."""
            cells = hash_to(self.span, query.keys.multipliers(horizon), words[side][rows, None])
            levels = np.arange(horizon, dtype=np.uint64)
            return bits.read_cells(array, self._placed(cells, levels, side))

        found = walk.estimate(read, len(ids), self.levels, self.p, density, sides, query)
        answers.settle(self._decoded(found.height), *self._limits(found, query), "alp")

    def _decoded(self, heights: Floats) -> Floats:
        """The value at a height: Algorithm 5, or the inverse of the logarithm of Section 6."""
        if self.growth == 1:
            return heights * self.gap
        sizes: Floats = self.gap / (self.growth - 1) * self.growth**heights
        return sizes

    def _limits(self, found: walk.Heights, query: Query) -> tuple[Floats, Floats]:
        """Values that can have been rounded to a height between low and high; no limit past the last level."""
        breaks, inward = self.breaks, 1 - query.slack

        def outer(heights: Int64s) -> Floats:
            """The largest size that rounds to this height."""
            above = breaks[np.minimum(heights + 1, self.levels)] - inward
            return np.where(heights < self.levels, above, np.inf)

        def inner(heights: Int64s) -> Floats:
            """The smallest size that rounds to this height."""
            return np.where(heights > 0, breaks[np.maximum(heights - 1, 0)] + inward, 0.0)

        # At height 0 a signed value can lie on either side.
        downward = found.low <= 0 if query.values.signed else found.low < 0
        low = np.where(downward, -outer(np.abs(found.low)), inner(np.maximum(found.low, 0)))
        high = np.where(found.high < 0, -inner(np.abs(found.high)), outer(np.maximum(found.high, 0)))
        return low, high


@lru_cache(maxsize=16)
def _breaks(levels: int, gap: int, growth: float) -> Int64s:
    """Growing levels follow Section 6: x = B^(level * w) / ln B, from its smallest value 1 / ln B on."""
    if growth == 1:
        breaks = gap * np.arange(levels + 1, dtype=np.int64)
    else:
        gaps = np.ceil(gap * growth ** np.arange(levels)).astype(np.int64)
        breaks = round(gap / (growth - 1)) + np.concatenate([[0], np.cumsum(gaps)]).astype(np.int64)
    breaks.flags.writeable = False
    return breaks
