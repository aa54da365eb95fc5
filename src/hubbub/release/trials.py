"""One entry of an ALP array at a time, simulated: for plans, figures and error tables. Not private, not secret.

Only the bits within reach of the true height are drawn; the walk leaves that window with odds below 2^-40.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.release.heights import argmax_average, fall_for, posterior
from hubbub.release.keyspace import KeySpace
from hubbub.release.part import Estimator, Query
from hubbub.release.vector import Values

_CELLS = 1 << 21
#: Trials behind one predicted error, and behind one comparison of gaps: good to a few per cent, and to one or two.
_TRIALS, _MORE_TRIALS = 1500, 5000


def ones_after(p: float, collision: float) -> float:
    """How often a bit past the true height is 1: flipped, or hit by another entry and not flipped."""
    return p + collision * (1 - 2 * p)


def _reach(q: float) -> int:
    fall = fall_for(2.0**-40, q)
    if fall is None:
        return 4096
    return max(64, math.ceil((fall + 4 * math.sqrt(fall)) / (1 - 2 * q)))


def simulate_heights(
    heights: Int64s,
    levels: int,
    p: float,
    q: float,
    rng: np.random.Generator,
    estimator: Estimator = "argmax",
) -> Floats:
    """Estimates of heights when bits up to them are 1 with probability 1 - p, later ones with probability q."""
    reach = min(_reach(max(p, q)), levels)
    step = max(1, _CELLS // (2 * reach))
    parts = [
        _window(heights[i : i + step], levels, p, q, reach, rng, estimator)
        for i in range(0, len(heights), step)
    ]
    return np.concatenate(parts)


def _window(
    heights: Int64s,
    levels: int,
    p: float,
    q: float,
    reach: int,
    rng: np.random.Generator,
    estimator: Estimator,
) -> Floats:
    offsets = np.arange(-reach, reach + 1)
    chance = np.where(offsets[:-1] < 0, 1 - p, q)
    flags = rng.random((len(heights), 2 * reach), dtype=np.float32) < chance.astype(np.float32)
    one, zero = (1.0, -1.0) if estimator == "argmax" else (math.log((1 - p) / q), math.log(p / (1 - q)))
    path = np.zeros((len(heights), 2 * reach + 1), dtype=np.float32)
    np.cumsum(np.where(flags, np.float32(one), np.float32(zero)), axis=1, out=path[:, 1:])
    places = heights[:, None] + offsets
    path[(places < 0) | (places > levels)] = -np.inf
    if estimator == "argmax":
        return heights - reach + argmax_average(path)
    query = Query(estimator, 0.05, Values(max_value=1), KeySpace(kind="text", salt="0" * 32))
    return heights - reach + posterior(path.astype(np.float64), 0, query).height


@lru_cache(maxsize=4096)
def height_error(value: float, gap: float, levels: int, p: float, q: float) -> tuple[float, float]:
    """Mean absolute and mean square error, in steps, at one value (clipped to the last level)."""
    rng = np.random.default_rng(1)
    inside = min(value, gap * levels)
    heights = np.floor(inside / gap + rng.random(_TRIALS)).astype(np.int64)
    errors = gap * simulate_heights(heights, levels, p, q, rng) - value
    return float(np.abs(errors).mean()), float((errors**2).mean())


@lru_cache(maxsize=4096)
def inner_error(gap: int, p: float, q: float) -> float:
    """Mean absolute error, in steps, over values that are far from both ends of an array."""
    rng = np.random.default_rng(2)
    far = 2 * _reach(max(p, q))
    values = gap * far + rng.integers(0, gap, _MORE_TRIALS)
    heights = np.floor(values / gap + rng.random(_MORE_TRIALS)).astype(np.int64)
    return float(np.abs(gap * simulate_heights(heights, 2 * far, p, q, rng) - values).mean())
