"""Sensing matrices that are never stored, and what was measured through them.

Measurements come in rows and blocks: a key belongs to one block, and its column is zero outside of it. What is kept
per key is an index and a sign; A' r is one transform, and single columns are hashed when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.model.hashing import Family, hash_entries, seed_rows
from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.walsh import transform

#: Signs that are hashed at a time.
_CHUNK = 1 << 22


class Matrix(Protocol):
    """A matrix of `rows * blocks` rows, known by what it does."""

    @property
    def rows(self) -> int:
        """Rows per block."""

    @property
    def blocks(self) -> int:
        """Blocks of columns."""

    @property
    def block(self) -> Int64s:
        """The block of each column."""

    def columns(self, places: Int64s) -> Floats:
        """[rows, places]: these columns, each within its own block."""

    def adjoint(self, residual: Floats) -> Floats:
        """A' r for r [rows, blocks]: one number per column."""

    def squares(self, precision: Floats) -> Floats:
        """The sum of precision [rows, blocks] times squared entries, per column."""


@dataclass(frozen=True)
class SignMatrix:
    """A[row, key] = the key's public random sign under the seed `row`, within the key's block."""

    family: Family
    keys: Keys
    ids: UInt64s
    block: Int64s
    rows: int
    blocks: int

    @property
    def signs(self) -> Int64s:
        """[rows, keys], for a few keys."""
        return self._signs(self.ids)

    def columns(self, places: Int64s) -> Floats:
        return self._signs(self.ids[places]).astype(np.float64)

    def _signs(self, ids: UInt64s) -> Int64s:
        """By the function that devices use: a row is a record that holds all these keys."""
        seeds = np.arange(self.rows, dtype=np.uint64)
        offsets = np.arange(self.rows + 1, dtype=np.int64) * len(ids)
        _, signs = hash_entries(self.family, self.keys, seeds, np.tile(ids, self.rows), offsets, 1)
        return signs.reshape(self.rows, len(ids))

    def squares(self, precision: Floats) -> Floats:
        totals: Floats = precision.sum(axis=0)
        return totals[self.block]

    def adjoint(self, residual: Floats) -> Floats:
        if self.family == "walsh":
            return self._spectrum(residual).reshape(-1)[self._cell] * self._sign
        result = np.empty(len(self.ids))
        step = max(1, _CHUNK // self.rows)
        for start in range(0, len(self.ids), step):
            places = np.arange(start, min(start + step, len(self.ids)))
            sums = self.columns(places).T @ residual
            result[places] = sums[np.arange(len(places)), self.block[places]]
        return result

    def _spectrum(self, residual: Floats) -> Floats:
        """[blocks, inner codes]: the transform of a block's residuals, laid out by row.

        A key of block b has the code (inner, b), b the low bits, and chi(row, code) is chi(the row's high bits, inner)
        times chi(its low bits, b). The second factor is the block's: a short transform per block answers for its keys.
        """
        low = (self.blocks - 1).bit_length()
        row = seed_rows(self.keys, np.arange(self.rows, dtype=np.uint64), 0)[:, 0].astype(np.int64)
        laid = np.zeros((self.blocks, 1 << (self.keys.bits - low)))
        for block in range(self.blocks):
            flips = np.bitwise_count(row & block).astype(np.int64) & 1
            np.add.at(laid[block], row >> low, (1 - 2 * flips) * residual[:, block])
            laid[block] = transform(laid[block])
        return laid

    @cached_property
    def _cell(self) -> Int64s:
        """Where in the spectrum a key is read."""
        low = (self.blocks - 1).bit_length()
        inner = (self.keys.codes(self.ids, 0) >> np.uint64(low)).astype(np.int64)
        return (self.block << (self.keys.bits - low)) | inner

    @cached_property
    def _sign(self) -> NDArray[np.int8]:
        return self.keys.signs(self.ids).astype(np.int8)


@dataclass(frozen=True)
class Measurements:
    """values = A p + noise, [rows, blocks]; the noise's variance is 1 / precision (0: nothing was measured).

    `sparsity` is how many keys matter, 0 if nobody knows.
    """

    matrix: Matrix
    values: Floats
    precision: Floats
    sparsity: int = 0

    @property
    def count(self) -> int:
        """Measurements that were made."""
        return int((self.precision > 0).sum())

    @cached_property
    def norms(self) -> Floats:
        """1 / norm is the standard error of a key's value when all the others are known."""
        return np.sqrt(self.matrix.squares(self.precision))

    def columns(self, places: Int64s) -> Floats:
        """[rows * blocks, places]: columns in units of the noise."""
        within = self.matrix.columns(places)
        full = np.zeros((self.matrix.rows, self.matrix.blocks, len(places)))
        order = np.arange(len(places))
        full[:, self.matrix.block[places], order] = within
        return (full * np.sqrt(self.precision)[:, :, None]).reshape(self.precision.size, len(places))

    @cached_property
    def whitened(self) -> Floats:
        """[rows * blocks]: values in units of the noise."""
        return (self.values * np.sqrt(self.precision)).reshape(-1)

    def scores(self, residual: Floats) -> Floats:
        """How many standard errors each key has in a whitened residual, no other key being in it."""
        weighted = np.sqrt(self.precision) * residual.reshape(self.precision.shape)
        return self.matrix.adjoint(weighted) / np.maximum(self.norms, 1e-300)
