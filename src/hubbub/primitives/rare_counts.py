"""How rarely counts are so large or so small: Poisson's and the binomial law, for numbers of any size, as arrays.

Probabilities are made of deviances, without differences of large numbers (Loader 2000, Fast and accurate computation of
binomial probabilities), so that their relative errors stay below 1e-9 for means up to 1e9. Tails are sums of
probabilities from the count outwards: ratios of neighbours only fall there, so that what lies beyond the last one that
is added up is at most a geometric series. So a tail is never too small but for rounding, and that series hardly counts.
Tails that reach over the mean are not worked out: they are said to be 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Floats

#: What log k! has beyond Stirling's formula, for k below 16, and the coefficients for larger ones.
_SMALL = np.array(
    [0.0]
    + [math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2 for k in range(1, 16)]
)
_LARGE = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
#: Standard deviations that are added up one by one, and how many numbers at most.
_WIDTH, _MOST_NUMBERS = 12, 1 << 20


def _stirling(count: Floats) -> Floats:
    """log k! - log(sqrt(2 pi k) (k / e)^k); for k = 0, where the second is nothing, 0."""
    large = np.maximum(count, 16.0)
    found = np.zeros_like(large)
    for coefficient in reversed(_LARGE):
        found = found / large**2 + coefficient
    return np.where(count < 16, _SMALL[np.minimum(count, 15).astype(np.int64)], found / large)


def _deviance(count: Floats, mean: Floats) -> Floats:
    """x log(x / m) + m - x, by its series where the two are close to each other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(count > 0, count * np.log(count / mean), 0.0) + mean - count
        ratio = np.where(mean > 0, (count - mean) / (count + mean), 1.0)
    square, series = ratio**2, np.zeros_like(ratio)
    for power in range(19, 1, -2):
        series = (series + 1 / power) * square
    near = (count - mean) * ratio + 2 * count * ratio * series
    return np.where(np.abs(ratio) < 0.1, near, far)


def _around(count: Floats) -> Floats:
    """log sqrt(2 pi k), and 0 for k = 0."""
    return np.where(count > 0, 0.5 * np.log(2 * np.pi * np.maximum(count, 1)), 0.0)


def poisson_chance(count: Any, mean: Any) -> Floats:
    """P(Poisson(mean) = count)."""
    k, m = np.broadcast_arrays(np.asarray(count, dtype=np.float64), np.asarray(mean, dtype=np.float64))
    return np.asarray(np.exp(-_stirling(k) - _around(k) - _deviance(k, m)))


def binomial_chance(count: Any, trials: Any, share: Any) -> Floats:
    """P(binomial(trials, share) = count)."""
    k, n, p = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in (count, trials, share)))
    rest = n - k
    exponent = _stirling(n) - _stirling(k) - _stirling(rest) + _around(n) - _around(k) - _around(rest)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(exponent - _deviance(k, n * p) - _deviance(rest, n * (1 - p))))


def _outwards(first: Floats, ratios: Any, deviation: float) -> Floats:
    """A probability and all those beyond, at most; `ratios(j)` are those of the j-th of them to the one before."""
    numbers = min(int(_WIDTH * deviation) + 64, max(64, _MOST_NUMBERS // max(len(first), 1)))
    each = np.minimum(ratios(np.arange(numbers, dtype=np.float64)), 1.0)  # they are, beyond the mean
    sums = 1 + np.cumprod(each[:, :-1], axis=1).sum(axis=1)
    last, rest = np.prod(each, axis=1), each[:, -1]
    beyond = np.where(last > 0, last / np.maximum(1 - rest, 1e-15), 0.0)
    return np.asarray(np.minimum(1.0, first * (sums + beyond)))


def poisson_at_least(count: Any, mean: Any) -> Floats:
    """P(Poisson(mean) >= count), at most; 1 unless the count is above the mean."""
    k, m = _flat(count, mean)
    found = _outwards(
        poisson_chance(k, m), lambda j: m[:, None] / (k[:, None] + 1 + j), math.sqrt(m.max(initial=0.0))
    )
    return _shaped(np.where(k > m, found, 1.0), count, mean)


def poisson_at_most(count: Any, mean: Any) -> Floats:
    """P(Poisson(mean) <= count), at most; 1 unless the count is below the mean."""
    k, m = _flat(count, mean)
    within = np.maximum(m, 1e-300)[:, None]
    found = _outwards(
        poisson_chance(k, m),
        lambda j: np.maximum(k[:, None] - j, 0) / within,
        math.sqrt(m.max(initial=0.0)),
    )
    return _shaped(np.where(k < m, found, 1.0), count, mean)


def binomial_at_least(count: Any, trials: int, share: Any) -> Floats:
    """P(binomial(trials, share) >= count), at most; 1 unless the count is above the mean."""
    k, p = _flat(count, share)
    odds = (p / np.maximum(1 - p, 1e-300))[:, None]
    found = _outwards(
        np.where(k <= trials, binomial_chance(np.minimum(k, trials), trials, p), 0.0),
        lambda j: np.maximum(trials - k[:, None] - j, 0) / (k[:, None] + 1 + j) * odds,
        math.sqrt((trials * p * (1 - p)).max(initial=0.0)),
    )
    return _shaped(np.where(k > trials * p, found, 1.0), count, share)


def binomial_at_most(count: Any, trials: int, share: Any) -> Floats:
    """P(binomial(trials, share) <= count), at most; 1 unless the count is below the mean."""
    return binomial_at_least(trials - np.asarray(count), trials, 1 - np.asarray(share, dtype=np.float64))


def _flat(*numbers: Any) -> tuple[Floats, ...]:
    spread = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in numbers))
    return tuple(each.reshape(-1) for each in spread)


def _shaped(found: Floats, *numbers: Any) -> Floats:
    return found.reshape(np.broadcast_shapes(*(np.shape(each) for each in numbers)))
