"""Sparse recovery: which few keys explain the measurements, and how large they are.

Three pursuits, all on implicit matrices, all ending in a least-squares refit on the keys they found:

- `pursue_sparsity`: orthogonal matching pursuit with a given number of keys (Tropp 2004), as published.
- `pursue_noise`: the same until no key stands out from the noise, whose level is known; needs no number of keys.
- `pursue_blocks`: hierarchical thresholding pursuit (Roth et al. 2016), a given number of keys in every block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from hubbub.model.measurements import Measurements
from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused

#: Rounds after which a thresholding pursuit that still changes its mind is stopped.
_ROUNDS = 50


@dataclass(frozen=True)
class Recovered:
    """The keys that were found, their refitted values and standard errors, and what the rest may still be.

    Standard errors are those of least squares on these keys: they count the noise and the keys that were not found,
    as far as these show in what is left, but not the choice of the keys.
    `rest` and `rest_error` are, per key of all, the estimate and its error from what the found keys do not explain.
    `misfit` is the sum of squares of that, in units of the noise: about the number of measurements if all is found.
    `complete` is false when a pursuit by noise level had to stop before it reached that level.
    """

    places: Int64s
    values: Floats
    errors: Floats
    rest: Floats
    rest_error: Floats
    misfit: float
    complete: bool = True

    def dense(self) -> Floats:
        """One value per key, 0 for those that were not found."""
        result = np.zeros(len(self.rest))
        result[self.places] = self.values
        return result


def threshold(keys: int, odds: float = 0.05) -> float:
    """Standard errors that the largest of `keys` noisy zeros exceeds with probability at most `odds`."""
    return NormalDist().inv_cdf(1 - odds / max(keys, 1))


def pursue_sparsity(measured: Measurements, sparsity: int) -> Recovered:
    """Orthogonal matching pursuit: `sparsity` times, add the key that correlates most with what is left."""
    _check_sparsity(measured, sparsity)
    basis = _Basis(measured)
    while len(basis.places) < sparsity and basis.add(int(np.argmax(np.abs(basis.scores())))):
        pass
    return refit(measured, basis.places)


def pursue_noise(measured: Measurements, odds: float = 0.05) -> Recovered:
    """Add keys while one stands out; then drop those that no longer do beside the others.

    A key stands out when its score is above what the largest of all keys' noise reaches with probability `odds`.
    Frequencies are not negative, so only positive scores count. At most half as many keys as measurements are found.
    """
    limit, most = threshold(len(measured.norms), odds), measured.count // 2
    basis = _Basis(measured)
    complete = False
    while len(basis.places) < most:
        scores = basis.scores()
        best = int(np.argmax(scores))
        if scores[best] < limit or not basis.add(best):
            complete = True
            break
    found = refit(measured, basis.places)
    while (found.values < limit * found.errors).any():
        weakest = np.argmin(found.values / found.errors)
        found = refit(measured, np.delete(found.places, weakest))
    return replace(found, complete=complete)


def pursue_blocks(measured: Measurements, per_block: int) -> Recovered:
    """Hierarchical thresholding pursuit: a gradient step, the `per_block` largest keys of every block, refit.

    Until the keys stay the same or the fit no longer improves, which is when noise decides which keys are largest.
    """
    _check_sparsity(measured, per_block)
    found = refit(measured, np.zeros(0, dtype=np.int64))
    for _ in range(_ROUNDS):
        sizes = np.abs(found.dense() + found.rest)
        better = refit(measured, _largest_per_block(sizes, measured.matrix.block, per_block))
        if better.misfit >= found.misfit * (1 - 1e-9):
            break
        found = better
    return found


def refit(measured: Measurements, places: Int64s) -> Recovered:
    """Least squares on the given keys; columns that cannot be told apart share what they explain."""
    columns = measured.columns(places)
    covariance = np.linalg.pinv(columns.T @ columns, hermitian=True)
    values = covariance @ (columns.T @ measured.whitened)
    residual = measured.whitened - columns @ values
    rest_error = 1 / np.maximum(measured.norms, 1e-300)
    rest = measured.scores(residual) * rest_error
    # Others can only add to a key's error; the pseudo-inverse forgets columns that are hardly measured.
    errors = np.maximum(np.sqrt(np.maximum(np.diag(covariance), 0)), rest_error[places])
    wider = _unexplained(measured, residual, places)
    return Recovered(
        places, values, errors * wider[places], rest, rest_error * wider, float(residual @ residual)
    )


def _unexplained(measured: Measurements, residual: Floats, places: Int64s) -> Floats:
    """By how much the measurements of each key's block vary more than noise would.

    Keys that were not found are in all of them: noise to every other key, which no precision knows of.
    """
    block, made = measured.matrix.block, (measured.precision > 0).sum(axis=0)
    free = np.maximum(made - np.bincount(block[places], minlength=len(made)), 1)
    squares = (residual.reshape(measured.precision.shape) ** 2).sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(squares / free, 1.0))[block])


class _Basis:
    """An orthonormal basis of the chosen columns, and what of the measurements it leaves."""

    def __init__(self, measured: Measurements) -> None:
        self._measured = measured
        self._vectors = np.zeros((measured.whitened.size, 16))
        self._chosen: list[int] = []
        self._residual = measured.whitened.copy()

    @property
    def places(self) -> Int64s:
        return np.array(self._chosen, dtype=np.int64)

    def scores(self) -> Floats:
        return self._measured.scores(self._residual)

    def add(self, place: int) -> bool:
        """Choose a key; False if its column is (nearly) one of those chosen, which a refit could not tell apart."""
        column = self._measured.columns(np.array([place]))[:, 0]
        before = float(np.linalg.norm(column))
        count = len(self._chosen)
        if count == self._vectors.shape[1]:
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)], axis=1)
        known = self._vectors[:, :count]
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            column -= known @ (known.T @ column)
        length = float(np.linalg.norm(column))
        if length <= 1e-4 * before or before == 0:
            return False
        self._vectors[:, count] = column / length
        self._residual -= self._vectors[:, count] * (self._vectors[:, count] @ self._residual)
        self._chosen.append(place)
        return True


def _largest_per_block(sizes: Floats, block: Int64s, count: int) -> Int64s:
    """Places of the `count` largest entries of every block, in order."""
    order = np.lexsort((-sizes, block))
    first = np.searchsorted(block[order], block[order])
    return np.sort(order[np.arange(len(order)) - first < count])


def _check_sparsity(measured: Measurements, sparsity: int) -> None:
    rows = measured.matrix.rows
    if not 1 <= sparsity <= rows:
        raise Refused(f"{sparsity} keys cannot be recovered from {rows} rows; ask for 1 to {rows}.")
