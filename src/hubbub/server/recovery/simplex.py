"""Projections onto the simplex {x >= 0, sum x = total}: the nearest possible distribution.

Estimates are noisy, so some are negative and they do not add up. Projecting onto what is possible never moves an
estimate away from the truth (the simplex is convex), but it is biased: small keys are pulled to zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hubbub.model.measurements import Measurements
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused

#: Keys that join a least-squares fit at a time, and rounds after which it is as good as it gets.
_JOIN, _ROUNDS = 32, 200
#: Steps of the inner fit, and the change of a value, as a share of the total, at which it ends.
_STEPS, _STILL = 3000, 1e-9
#: A key joins when that would take it further from zero than this share of its standard error.
_SLACK = 0.01


def project(values: ArrayLike, total: float = 1.0) -> Floats:
    """The Euclidean projection of each row (the last axis) onto {x >= 0, sum x = total}.

    It is max(values - level, 0) with the one level that makes the sum right. With the values sorted downwards, the
    level for the first j of them is (their sum - total) / j, and the right j is the last whose value is above
    its level. O(d log d).
    """
    given = _checked(values, total)
    # Adding a number to all values changes nothing; with the largest at 0, huge ones lose no digits that matter.
    given = given - given.max(axis=-1, keepdims=True)
    downwards = -np.sort(-given, axis=-1)
    counts = np.arange(1, given.shape[-1] + 1)
    levels = (np.cumsum(downwards, axis=-1) - total) / counts
    kept = (downwards > levels).sum(axis=-1, keepdims=True)
    projected: Floats = np.maximum(given - np.take_along_axis(levels, kept - 1, axis=-1), 0.0)
    return projected


def project_within(values: ArrayLike, total: float = 1.0) -> Floats:
    """The Euclidean projection of each row onto {x >= 0, sum x <= total}, where users may have no key at all."""
    given = _checked(values, total)
    clipped = np.maximum(given, 0.0)
    fits = clipped.sum(axis=-1, keepdims=True) <= total
    return clipped if fits.all() else np.where(fits, clipped, project(given, total))


def project_l1(values: ArrayLike, total: float = 1.0) -> Floats:
    """A projection of each row in l1 distance: negative values become 0, the others are scaled to the total.

    Every x in the simplex is at least (sum of negative parts) + |sum of positive parts - total| away in l1, and this
    one is exactly that far. It is not the only one; without any positive value the total is spread evenly.
    """
    given = _checked(values, total)
    clipped = np.maximum(given, 0.0)
    sums = clipped.sum(axis=-1, keepdims=True)
    even = np.full_like(clipped, total / given.shape[-1])
    return np.where(sums > 0, clipped * (total / np.where(sums > 0, sums, 1.0)), even)


def project_sparse(values: ArrayLike, sparsity: int, total: float = 1.0) -> Floats:
    """The Euclidean projection of each row onto the points of the simplex with at most `sparsity` non-zero entries.

    The largest values, projected among themselves (Kyrillidis, Becker, Cevher, Koch 2013).
    """
    given = _checked(values, total)
    if not 1 <= sparsity <= given.shape[-1]:
        raise Refused(f"The sparsity must be between 1 and {given.shape[-1]}, not {sparsity}.")
    largest = np.argpartition(given, -sparsity, axis=-1)[..., -sparsity:]
    result = np.zeros_like(given)
    np.put_along_axis(result, largest, project(np.take_along_axis(given, largest, axis=-1), total), axis=-1)
    return result


def least_squares(measured: Measurements, total: float = 1.0) -> Floats:
    """The x >= 0 with sum x <= total that fits the measurements best, one value per key.

    Most values are 0, so the fit works on a few keys at a time: at its best, A' r is the same for all keys in use and
    no larger for any other. Keys for which it is larger join, keys at 0 leave, until there are none.
    """
    places, fitted = np.zeros(0, dtype=np.int64), np.zeros(0)
    for _ in range(_ROUNDS):
        columns = measured.columns(places)
        slopes = measured.scores(measured.whitened - columns @ fitted) * measured.norms
        level = max(float(slopes[places].max(initial=0.0)), 0.0)
        excess = slopes - level - _SLACK * measured.norms
        joining = np.argpartition(excess, -min(_JOIN, len(excess)))[-_JOIN:]
        joining = np.setdiff1d(joining[excess[joining] > 0], places)
        if not len(joining):
            break
        kept = fitted > 0
        places = np.concatenate([places[kept], joining])
        start = np.concatenate([fitted[kept], np.zeros(len(joining))])
        fitted = _fit(measured.columns(places), measured.whitened, start, total)
    result = np.zeros(len(measured.norms))
    result[places] = fitted
    return result


def _fit(columns: Floats, wanted: Floats, start: Floats, total: float) -> Floats:
    """Accelerated projected gradient steps (Beck and Teboulle 2009), begun anew whenever they overshoot."""
    gram, target = columns.T @ columns, columns.T @ wanted
    step = 1 / float(np.linalg.eigvalsh(gram)[-1])
    fitted, ahead, momentum = start, start, 1.0
    for _ in range(_STEPS):
        moved = project_within(ahead - step * (gram @ ahead - target), total)
        change = moved - fitted
        if float(np.abs(change).max()) <= _STILL * total:
            return moved
        if float((ahead - moved) @ change) > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * change
        fitted, momentum = moved, following
    return fitted


def _checked(values: ArrayLike, total: float) -> Floats:
    given = np.asarray(values, dtype=np.float64)
    if given.ndim == 0 or given.shape[-1] == 0:
        raise Refused("There is nothing to project: give at least one value.")
    if not np.isfinite(given).all():
        raise Refused("Only finite numbers can be projected onto the simplex.")
    if not (np.isfinite(total) and total > 0):
        raise Refused(f"The total must be a positive number, not {total:g}.")
    return given
