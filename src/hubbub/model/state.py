"""The mergeable sum of reports: integers only, the same bytes whatever the order.

A state holds either `totals` (Walsh coefficients, one integer array whatever the number of reports), or
the `reports` themselves, kept sorted (prf hashing and 64-bit codes, where there is no array to add
to), besides the number of reports and one integer that a mechanism may sum for its error bars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.primitives.errors import Refused


@dataclass
class State:
    """Everything the server remembers of the reports of one task."""

    totals: Int64s
    reports: Bytes
    count: int = 0
    squares: int = 0

    def merge(self, other: State) -> State:
        """The state of both lots of reports together."""
        if self.totals.shape != other.totals.shape or self.reports.shape[1] != other.reports.shape[1]:
            raise Refused("States of different tasks cannot be merged.")
        return State(
            self.totals + other.totals,
            sort_rows(np.concatenate([self.reports, other.reports])),
            self.count + other.count,
            self.squares + other.squares,
        )

    def to_bytes(self) -> bytes:
        """Two numbers, then the arrays."""
        head = self.count.to_bytes(8, "little") + self.squares.to_bytes(16, "little", signed=True)
        return head + self.totals.astype("<i8").tobytes() + sort_rows(self.reports).tobytes()

    def load(self, payload: bytes) -> State:
        """The state in `payload`, which must have the shape of this (empty) one."""
        count = int.from_bytes(payload[:8], "little")
        squares = int.from_bytes(payload[8:24], "little", signed=True)
        split = 24 + 8 * self.totals.size
        width = self.reports.shape[1]
        if len(payload) != split + (count * width if width else 0):
            raise Refused("The state's size does not fit its task: the file belongs to another task.")
        totals = np.frombuffer(payload[24:split], dtype="<i8").astype(np.int64).reshape(self.totals.shape)
        reports = np.frombuffer(payload[split:], dtype=np.uint8).reshape(-1 if width else 0, width)
        return State(totals, reports, count, squares)


def sort_rows(rows: Bytes) -> Bytes:
    """Rows of bytes in lexicographic order: one canonical form for a multiset of reports."""
    if rows.size == 0:
        return rows
    return rows[np.lexsort(rows.T[::-1])]
