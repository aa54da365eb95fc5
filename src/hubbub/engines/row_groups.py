"""The Parquet files of a lake: which there are, to which task they belong, and their rows, row group by row group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.engines.arrow import check_columns, task_in
from hubbub.engines.manifest import GroupKey
from hubbub.primitives.arrays import Int64s
from hubbub.primitives.envelope import MAGIC
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.task import Task

#: Bytes of reports, and rows, that are read at a time.
_READ, _ROWS = 1 << 23, 1 << 17


@dataclass(frozen=True)
class Source:
    """A Parquet file as it was when the run began."""

    path: str
    size: int
    modified: int
    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    columns: frozenset[str]

    @property
    def fingerprint(self) -> tuple[str, int, int]:
        return self.path, self.size, self.modified

    def check(self) -> None:
        """Refuse a file that has changed since."""
        if _stamp(self.path) != (self.size, self.modified):
            raise Refused(f"{self.path} changed while it was read; run again when nobody writes to it.")


@dataclass(frozen=True)
class Group:
    """One row group of a source; its first row's number in the file."""

    source: Source
    number: int
    first: int

    @property
    def bytes(self) -> int:
        return self.source.bytes[self.number]

    @property
    def key(self) -> GroupKey:
        return self.source.path, self.number


def find_sources(paths: Iterable[str | Path], task: Task | None) -> tuple[list[Source], Task]:
    """The Parquet files behind files and folders, and the one task they belong to."""
    files = [file for path in paths for file in _listed(Path(path))]
    seen: dict[Path, Path] = {}
    for file in files:
        if file.resolve() in seen:
            raise Refused(f"{file} is named twice; its reports would count twice.")
        seen[file.resolve()] = file
    sources = []
    named_by = "--task"
    for file in files:
        source, found = _inspect(file)
        if found is not None and task is not None and found.digest != task.digest:
            raise Refused(
                f"{file} belongs to task {found.name!r} ({found.digest.hex()}), "
                f"{named_by} to {task.name!r} ({task.digest.hex()})."
            )
        if found is not None and task is None:
            task, named_by = found, str(file)
        sources.append(source)
    if task is None:
        raise Refused(f"{files[0]} does not say which task its reports belong to: name it (--task FILE).")
    for source in sources:
        folder = dict(part.split("=", 1) for part in Path(source.path).parts if "=" in part)
        if "task" not in source.columns and folder.get("task", task.digest.hex()) != task.digest.hex():
            raise Refused(f"{source.path} lies in a folder of another task than {task.digest.hex()}.")
    return sources, task


def _listed(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        raise Refused(f"{path} holds no .parquet files.")
    return files


def _stamp(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None
    return found.st_size, found.st_mtime_ns


def _inspect(path: Path) -> tuple[Source, Task | None]:
    """A file's shape, and the task in its metadata."""
    size, modified = _stamp(path)
    with _opened(str(path)) as file:
        schema, shape = file.schema_arrow, file.metadata
        check_columns(schema, str(path))
        groups = [shape.row_group(number) for number in range(shape.num_row_groups)]
        place = next(c for c in range(shape.num_columns) if shape.schema.column(c).path == "reports")
        source = Source(
            str(path),
            size,
            modified,
            tuple(group.num_rows for group in groups),
            tuple(group.column(place).total_uncompressed_size for group in groups),
            frozenset(schema.names) & {"task", "batch", "stratum"},
        )
        return source, task_in(schema.metadata, str(path))


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A Parquet file; what is wrong with it is refused."""
    pyarrow, parquet = optional("pyarrow", "lake"), optional("pyarrow.parquet", "lake")
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20) as file:  # or a row group is read at once
            yield file
    except (pyarrow.ArrowException, OSError) as problem:
        if _is_ours(path):
            raise Refused(f"{path} is a hubbub file and no Parquet; give it another ending.") from None
        raise Refused(f"{path} is not a readable Parquet file: {str(problem).splitlines()[0]}") from None


def _is_ours(path: str) -> bool:
    """Whether a file that is called Parquet is one of hubbub's own, of reports or of a state."""
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def groups_of(sources: Iterable[Source]) -> Iterator[Group]:
    for source in sources:
        first = 0
        for number, rows in enumerate(source.rows):
            yield Group(source, number, first)
            first += rows


def cut(groups: Iterable[Group], weight: Callable[[Group], int], most: int) -> list[list[Group]]:
    """Row groups in lots of at most `most` together, or of one that is larger."""
    lots: list[list[Group]] = []
    load = 0
    for group in groups:
        if not lots or load + weight(group) > most:
            lots.append([])
            load = 0
        lots[-1].append(group)
        load += weight(group)
    return lots


def read_rows(group: Group, wanted: frozenset[str]) -> Iterator[tuple[Int64s, Any]]:
    """Row numbers and columns of a row group, a few megabytes at a time."""
    source, first = group.source, group.first
    per_row = group.bytes // max(1, source.rows[group.number]) + 1 if "reports" in wanted else 1
    size = max(1, min(_ROWS, _READ // per_row))
    with _opened(source.path) as file:
        for batch in file.iter_batches(size, [group.number], sorted(wanted), use_threads=False):
            yield np.arange(first, first + batch.num_rows, dtype=np.int64), batch
            first += batch.num_rows
