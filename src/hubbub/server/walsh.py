"""The decode engine: one fast Walsh-Hadamard transform answers for all keys at once.

With chi(r, c) = (-1)^popcount(r & c), a report that votes v[j] for the keys in bucket j (linear hash with
rows r_1 .. r_a) is the function  x -> v[h(x)] = 2^-a * sum_S V[S] chi(r_S, c(x)),  V the small Walsh
transform of v and r_S the XOR of the rows in S. Absorbing a report adds its 2^a coefficients to an
integer array; the transform of that array, read at c(x), is 2^a times the sum of all votes for x. If votes
carry the key's random sign, every index is shifted by r_0 and the public sign is multiplied back.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.kernel import kernel, numba_available

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
#: Exact integers, or reals.
Number = TypeVar("Number", np.int64, np.float64)

#: Largest array for which the compiler is not worth starting.
_SMALL = 1 << 15


@kernel
def _butterflies(data: Any) -> None:
    size = len(data)
    half = 1
    while half < size:
        for block in range(0, size, 2 * half):
            for i in range(block, block + half):
                a, b = data[i], data[i + half]
                data[i] = a + b
                data[i + half] = a - b
        half *= 2


def transform(data: NDArray[Number]) -> NDArray[Number]:
    """The Walsh-Hadamard transform of an array whose length is a power of two; integers stay exact."""
    result = data.copy()
    if len(data) > _SMALL and numba_available():
        _butterflies.compiled()(result)
        return result
    return transform_rows(result.reshape(1, -1)).reshape(-1)


def transform_rows(rows: NDArray[Number]) -> NDArray[Number]:
    """The same for every row of a matrix."""
    count, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.reshape(count, size // (2 * half), 2, half)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return rows.reshape(count, size)


def spectra(bucket: Int64s, values: Int64s, buckets: int) -> Int64s:
    """V[S] per report: of one vote `values[i, 0]` for `bucket[i]`, or of all `values[i]` (bucket -1)."""
    if values.shape[1] == buckets and (buckets > 1 or (bucket < 0).all()):
        return transform_rows(values)
    subsets = np.arange(buckets, dtype=np.int64)
    flips: Int64s = np.bitwise_count(bucket[:, None] & subsets).astype(np.int64) & 1
    return (1 - 2 * flips) * values


@kernel
def _scatter(total: Any, base: Any, rows: Any, bucket: Any, values: Any) -> None:
    size = 1 << rows.shape[1]
    index = np.zeros(size, dtype=np.int64)
    coefficients = np.zeros(size, dtype=np.int64)
    for i in range(len(base)):
        index[0] = base[i]
        coefficients[0] = values[i, 0]
        dense = bucket[i] < 0
        if dense:
            coefficients[:] = values[i]
            _butterflies(coefficients)
        width = 1
        for bit in range(rows.shape[1]):
            flip = 0 if dense else (bucket[i] >> bit) & 1
            for s in range(width):
                index[width + s] = index[s] ^ rows[i, bit]
                if not dense:
                    coefficients[width + s] = -coefficients[s] if flip else coefficients[s]
            width *= 2
        for s in range(size):
            total[index[s]] += coefficients[s]


def scatter(total: Int64s, base: Int64s, rows: Int64s, bucket: Int64s, values: Int64s) -> None:
    """total[base_i ^ r_S] += V_i[S] for all reports i and subsets S of their rows (votes as in `spectra`)."""
    if len(base) << rows.shape[1] >= _SMALL and numba_available():
        _scatter.compiled()(total, base, rows, bucket, np.ascontiguousarray(values))
        return
    coefficients = spectra(bucket, values, 1 << rows.shape[1])
    index = base[:, None]
    for bit in range(rows.shape[1]):
        index = np.concatenate([index, index ^ rows[:, bit : bit + 1]], axis=1)
    np.add.at(total, index.reshape(-1), coefficients.reshape(-1))
