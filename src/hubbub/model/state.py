"""The mergeable sum of reports: integers only, the same bytes whatever the order.

A state holds either `totals` (one integer array whatever the number of reports: Walsh coefficients, sums per code, or
what else a mechanism adds up), or the `reports` themselves, kept sorted (prf hashing and 64-bit codes, where there is
no array to add to), besides the number of reports and one integer that a mechanism may sum for its error bars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.walsh import transform

#: Set in the number of reports of a saved state whose totals are sums per code. States without it are older.
_PER_CODE = 1 << 63


@dataclass
class State:
    """Everything the server remembers of the reports of one task.

    Totals are sums per code where `per_code` is not 0. The transform of the same reports' Walsh coefficients is then
    `per_code` times these sums.
    """

    totals: Int64s
    reports: Bytes
    count: int = 0
    squares: int = 0
    per_code: int = 0

    def merge(self, other: State) -> State:
        """The state of both lots of reports together."""
        shapes = [(part.totals.shape, part.reports.shape[1], part.per_code) for part in (self, other)]
        if shapes[0] != shapes[1]:
            raise Refused("States of different tasks cannot be merged.")
        return State(
            self.totals + other.totals,
            sort_rows(np.concatenate([self.reports, other.reports])),
            self.count + other.count,
            self.squares + other.squares,
            self.per_code,
        )

    def size_with(self, count: int) -> int:
        """How many bytes `to_bytes` makes of a state of this shape with so many reports."""
        return 24 + 8 * self.totals.size + int(self.reports.shape[1]) * count

    def to_bytes(self) -> bytes:
        """Two numbers, then the arrays."""
        count = self.count | (_PER_CODE if self.per_code else 0)
        head = count.to_bytes(8, "little") + self.squares.to_bytes(16, "little", signed=True)
        totals = np.ascontiguousarray(self.totals, dtype="<i8")
        return b"".join([head, totals.data, np.ascontiguousarray(sort_rows(self.reports)).data])

    def count_in(self, head: bytes | memoryview, length: int) -> int:
        """How many reports are in a saved state of this shape with so many bytes, by its first ones."""
        marked = int.from_bytes(head[:8], "little")
        count = marked & ~_PER_CODE
        if length != self.size_with(count):
            raise Refused("The state's size does not fit its task: the file belongs to another task.")
        if marked != count and not self.per_code:
            raise Refused(
                "The state sums up codes where its task sums up coefficients: another program made it."
            )
        return count

    def load(self, payload: bytes | memoryview) -> State:
        """The state in `payload`, which must have the shape of this (empty) one."""
        count = self.count_in(payload, len(payload))
        squares = int.from_bytes(payload[8:24], "little", signed=True)
        size, width = self.totals.size, self.reports.shape[1]
        totals = np.frombuffer(payload, "<i8", size, offset=24).astype(np.int64).reshape(self.totals.shape)
        kept = memoryview(payload)[24 + 8 * size :]
        reports = np.frombuffer(kept, dtype=np.uint8).reshape(-1 if width else 0, width)
        if self.per_code and int.from_bytes(payload[:8], "little") == count:
            totals = self._from_coefficients(totals)
        return State(totals, reports, count, squares, self.per_code)

    def _from_coefficients(self, totals: Int64s) -> Int64s:
        """Sums per code of a state that was saved when all tasks summed up coefficients."""
        rows = [transform(row) for row in totals.reshape(-1, totals.shape[-1])]
        sums = np.stack(rows).reshape(totals.shape)
        if (sums % self.per_code).any():
            raise Refused("The state's sums are not sums of reports of its task.")
        return sums // self.per_code


def sort_rows(rows: Bytes) -> Bytes:
    """Rows of bytes in lexicographic order: one canonical form for a multiset of reports."""
    if rows.size == 0:
        return rows
    return rows[np.lexsort(rows.T[::-1])]
