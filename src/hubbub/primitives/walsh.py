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

from hubbub.primitives.arrays import Int64s
from hubbub.primitives.kernel import kernel, numba_available

#: Exact integers, or reals.
Number = TypeVar("Number", np.int64, np.float64)

#: Largest array for which the compiler is not worth starting.
_SMALL = 1 << 15


#: Runs of 64-bit integers that fit into the first and the second cache of a core.
_NEAR, _MIDDLE = 1 << 12, 1 << 16


@kernel
def _pass_of_two(data: Any, half: int) -> None:
    """One level: pairs that are `half` apart."""
    for block in range(0, len(data), 2 * half):
        first, second = data[block : block + half], data[block + half : block + 2 * half]
        for i in range(half):
            a, b = first[i], second[i]
            first[i], second[i] = a + b, a - b


@kernel
def _pass_of_four(data: Any, half: int) -> None:
    """Two levels in one pass, which halves the traffic with memory."""
    for block in range(0, len(data), 4 * half):
        # Slices, because the compiler turns loops from 0 over whole slices into vector instructions.
        first, second = data[block : block + half], data[block + half : block + 2 * half]
        third, fourth = data[block + 2 * half : block + 3 * half], data[block + 3 * half : block + 4 * half]
        for i in range(half):
            a, b, c, d = first[i], second[i], third[i], fourth[i]
            a, b, c, d = a + b, a - b, c + d, c - d
            first[i], second[i], third[i], fourth[i] = a + c, b + d, a - c, b - d


@kernel
def _pass_of_eight(data: Any) -> None:
    """The first three levels: neighbours, too close together for vector instructions over `half`."""
    for block in range(0, len(data), 8):
        v = data[block : block + 8]
        a, b, c, d = v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]
        e, f, g, h = v[4] + v[5], v[4] - v[5], v[6] + v[7], v[6] - v[7]
        a, b, c, d = a + c, b + d, a - c, b - d
        e, f, g, h = e + g, f + h, e - g, f - h
        v[0], v[1], v[2], v[3] = a + e, b + f, c + g, d + h
        v[4], v[5], v[6], v[7] = a - e, b - f, c - g, d - h


@kernel
def _levels(data: Any, half: int) -> None:
    """All levels from `half` on."""
    size = len(data)
    if half == 1 and size >= 8:
        _pass_of_eight(data)
        half = 8
    while half < size:
        if 4 * half <= size:
            _pass_of_four(data, half)
            half *= 4
        else:
            _pass_of_two(data, half)
            half *= 2


@kernel
def _butterflies(data: Any) -> None:
    """The transform in place: levels that fit into a cache are finished there, run by run."""
    size = len(data)
    middle = min(size, _MIDDLE)
    near = min(size, _NEAR)
    for start in range(0, size, middle):
        run = data[start : start + middle]
        for inner in range(0, middle, near):
            _levels(run[inner : inner + near], 1)
        _levels(run, near)
    _levels(data, middle)


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
            _levels(coefficients, 1)
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
