"""Kept reports as Parquet, one row per batch: what `hubbub aggregate` and the engines read."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from hubbub.engines.arrow import report_schema
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task

#: Batches in a row group.
_ROWS = 1000


def write_parquet(path: Path, task: Task, batches: Iterable[tuple[str, int, bytes]]) -> None:
    """Write batches (id, time of arrival, reports); the task itself is in the file's metadata."""
    arrow, parquet = optional("pyarrow", "lake"), optional("pyarrow.parquet", "lake")
    schema = report_schema(task)
    digest, left = task.digest.hex(), iter(batches)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := list(islice(left, _ROWS)):
            days = [datetime.datetime.fromtimestamp(at, datetime.UTC).date() for _, at, _ in rows]
            data = [[digest] * len(rows), days, [name for name, _, _ in rows], [body for _, _, body in rows]]
            writer.write_table(arrow.table(data, schema=schema))
