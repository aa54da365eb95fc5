"""The other side of the decode engine: which codes a bucket holds.

With linear hashing, the codes c of m bits in bucket z are the solutions of parity(r_j & c) = z_j, j = 1 .. a: an
affine subspace, found by one elimination. It has 2^(m-a) codes if the rows are independent. A report that names one
bucket can therefore be added to an array over codes in 2^(m-a) steps, where `walsh.scatter` takes 2^a to add it to
an array over coefficients. The arrays are each other's transform: see `walsh`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.arrays import Int64s
from hubbub.primitives.kernel import kernel, numba_available, parity

#: Steps below which the compiler is not worth starting.
_SMALL = 1 << 15
#: Steps whose sums are listed: 2^10 numbers stay in the first cache of a core.
_LISTED = 10


@kernel
def _eliminate(rows: Any, bucket: int, bits: int, pivots: Any) -> bool:
    """Fill `pivots`: at place b the row, fully reduced, that says what bit b is (its bit `bits` is the right-hand
    side), or 0 where bit b is free. False where no code fits."""
    pivots[:] = 0
    rank = 0
    for j in range(len(rows)):
        row = rows[j] | ((bucket >> j & 1) << bits)
        for b in range(bits):
            if row >> b & 1:
                if pivots[b] == 0:
                    pivots[b] = row
                    rank += 1
                    row = 0
                    break
                row ^= pivots[b]
        if row:
            return False
    if rank == 0:
        return True
    for b in range(bits - 1, 0, -1):
        if pivots[b]:
            for lower in range(b):
                if pivots[lower] >> b & 1:
                    pivots[lower] ^= pivots[b]
    return True


@kernel
def _add_to_codes(total: Any, shift: Any, signs: Any, rows: Any, bucket: Any, values: Any, bits: int) -> None:
    pivots = np.zeros(bits, dtype=np.int64)
    steps = np.zeros(bits, dtype=np.int64)
    offsets = np.zeros(1 << _LISTED, dtype=np.int64)
    flips = np.zeros(1 << _LISTED, dtype=np.int64)
    for i in range(len(shift)):
        if not _eliminate(rows[i], bucket[i], bits, pivots):
            continue
        code, free = 0, 0
        for b in range(bits):
            if pivots[b]:
                code |= (pivots[b] >> bits & 1) << b
            else:
                step = 1 << b
                for p in range(b):
                    if pivots[p]:
                        step |= (pivots[p] >> b & 1) << p
                steps[free] = step
                free += 1
        value = -values[i, 0] if parity(signs[i] & code) else values[i, 0]
        # All sums of the first steps are listed, without a branch; then the list is moved by the other steps.
        near = min(free, _LISTED)
        offsets[0], flips[0] = 0, 1
        for j in range(near):
            size, flip = 1 << j, 1 - 2 * parity(signs[i] & steps[j])
            for n in range(size):
                offsets[size + n] = offsets[n] ^ steps[j]
                flips[size + n] = flips[n] * flip
        for n in range(1 << (free - near)):
            if n:
                # The order of Gray's code: one step at a time.
                turn = near
                while not n >> (turn - near) & 1:
                    turn += 1
                code ^= steps[turn]
                if parity(signs[i] & steps[turn]):
                    value = -value
            for j in range(1 << near):
                total[shift[i] + (code ^ offsets[j])] += value * flips[j]


def add_to_codes(
    total: Int64s, shift: Int64s, signs: Int64s, rows: Int64s, bucket: Int64s, values: Int64s, bits: int
) -> None:
    """total[shift_i + c] += chi(signs_i, c) values_i for all reports i and all codes c of `bits` bits in their bucket.

    The bucket of c is (parity(rows_i1 & c), parity(rows_i2 & c), ...); `signs` is a row, 0 for votes without a sign.
    """
    if len(shift) * bits * rows.shape[1] >= _SMALL and numba_available():
        _add_to_codes.compiled()(total, shift, signs, rows, bucket, np.ascontiguousarray(values), bits)
        return
    pivots, solvable = _eliminated(rows, bucket, bits)
    held = pivots != 0
    places = np.arange(bits)
    report = np.flatnonzero(solvable)
    code = ((pivots[report] >> bits & 1) << places).sum(axis=1)
    for b in range(bits):
        step = np.where(held, (pivots >> b & 1) << places, 0).sum(axis=1) | 1 << b
        free = ~held[report, b]
        code = np.concatenate([code, code[free] ^ step[report[free]]])
        report = np.concatenate([report, report[free]])
    flips = np.bitwise_count(signs[report] & code).astype(np.int64) & 1
    np.add.at(total, shift[report] + code, (1 - 2 * flips) * values[report, 0])


def _eliminated(rows: Int64s, bucket: Int64s, bits: int) -> tuple[Int64s, NDArray[np.bool_]]:
    """`_eliminate` for all reports together: pivots [n, bits], and whether any code fits."""
    pivots = np.zeros((len(rows), bits), dtype=np.int64)
    solvable = np.ones(len(rows), dtype=np.bool_)
    for j in range(rows.shape[1]):
        row = rows[:, j] | (bucket >> j & 1) << bits
        for b in range(bits):
            has = row >> b & 1
            new = has.astype(np.bool_) & (pivots[:, b] == 0)
            pivots[new, b] = row[new]
            row = np.where(new, 0, row ^ has * pivots[:, b])
        solvable &= row == 0
    for b in range(bits - 1, 0, -1):
        for lower in range(b):
            pivots[:, lower] ^= (pivots[:, lower] >> b & 1) * pivots[:, b]
    return pivots, solvable
