"""Kept reports as Parquet, one row per batch: what `hubbub aggregate` and the engines read."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

from hubbub.collect.shelves import Kept
from hubbub.engines.arrow import report_schema
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task

#: Batches and bytes of reports in a row group, which is all that is in memory at a time.
_ROWS, _BYTES = 10_000, 2 << 20


class _Sink:
    """A file that is taken away while it is being written."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def parquet_chunks(task: Task, batches: Iterable[Kept]) -> Iterator[bytes]:
    """A file of batches (name, time of arrival, reports), piece by piece; the task itself is in its metadata."""
    arrow, parquet = optional("pyarrow", "lake"), optional("pyarrow.parquet", "lake")
    by_stratum = bool(task.labels) or task.period != "once"
    schema, digest, sink = report_schema(task, by_stratum), task.digest.hex(), _Sink()
    with parquet.ParquetWriter(sink, schema) as writer:
        for rows in _groups(batches):
            days = [datetime.datetime.fromtimestamp(row.period, datetime.UTC).date() for row in rows]
            data = [[digest] * len(rows), days, [row.name for row in rows], [row.payload for row in rows]]
            data += [[row.stratum for row in rows]] if by_stratum else []
            writer.write_table(arrow.table(data, schema=schema))
            yield sink.taken()
    yield sink.taken()


def _groups(batches: Iterable[Kept]) -> Iterator[list[Kept]]:
    rows: list[Kept] = []
    size = 0
    for row in batches:
        rows.append(row)
        size += len(row.payload)
        if len(rows) == _ROWS or size >= _BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows
