"""Unknown number of entries or unknown sum: private upper estimates with their own share of epsilon (Section 10)."""

from __future__ import annotations

import numpy as np

from hubbub.primitives.coins import Coins
from hubbub.release.artifact import Sizes
from hubbub.release.noise import add_noise, least_with_tail
from hubbub.release.vector import Values, Vector

#: Odds that an estimate is below the truth.
SHORTFALL = 1e-6
_LIMIT = 1 << 61


def estimate_sizes(vector: Vector, values: Values, epsilon: float, coins: Coins) -> Sizes:
    """Upper estimates of the sum of sizes and, for counts, of the number of entries.

    epsilon-DP for one unit of value. Counts: one unit in one entry moves the sum by 1 and the number by at
    most 1, so each gets Laplace noise at half of epsilon. Reals: a step of the grid moves the sum by one
    step, which is noised with the factor 1 + epsilon * step per step; the number of entries is not estimated,
    because neighbours can differ in any number of entries. Adding a constant afterwards is post-processing;
    it puts the estimate above the truth except with probability 1e-6. The sum is clipped to 2^61, as the
    noisy one is.
    """
    counts = values.kind == "counts"
    scale = values.scale(epsilon / 2 if counts else epsilon)
    steps = np.abs(vector.on_grid(coins))
    # In two halves, because the whole could wrap around.
    total = min((int((steps >> 28).sum()) << 28) + int((steps & ((1 << 28) - 1)).sum()), _LIMIT)
    exact = np.array([total, len(vector.ids)] if counts else [total], dtype=np.int64)
    margin = least_with_tail(scale, SHORTFALL)
    noised = np.maximum(add_noise(exact, scale, _LIMIT, coins) + margin, 1)
    return Sizes(
        epsilon=epsilon,
        total=float(noised[0]) * values.step,
        nonzero=float(noised[1]) if counts else None,
    )
