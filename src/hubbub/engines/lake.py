"""Any number of Parquet files with reports into one state: several processes, bounded memory, resumable.

The work is cut at row groups. Each process folds some of them into a partial state; the partial states are added up in
whatever order they arrive, which makes no difference to the sum. What is done, and the sum so far, is kept in a file
beside the output until the run is complete.

Repeated batches are found beforehand, from the columns `task` and `batch` alone: of rows with one id the first counts,
in the order of the files, so the result does not depend on which process was quicker. That takes about 50 bytes of
memory per row, whatever the rows hold. Folding takes less than 1 GB per process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.engines.arrow import NO_ID, OTHER_TASK, IdHash, add_rows, check_columns, named, rows_of, task_in
from hubbub.engines.manifest import GroupKey, Manifest
from hubbub.engines.pool import Run, cores, workers
from hubbub.model.state import State
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.envelope import MAGIC
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.task import Task
from hubbub.server.fold import Fold, Rejected, count_reasons

#: Bytes of reports, and rows, that are read at a time.
_READ, _ROWS = 1 << 23, 1 << 17
#: Bytes of reports, and rows, from which on processes of their own gain more than starting them costs.
_WORTH, _WORTH_ROWS = 1 << 27, 1 << 21
#: Bytes of reports that a process is given at least and at most, and rows when it looks at batch ids only.
_LEAST, _MOST, _MOST_IDS = 1 << 22, 1 << 25, 1 << 20

_NO_ROWS = np.zeros(0, dtype=np.int64)

#: progress(step, more, total): bytes that were added to what is done, and of all
Progress = Callable[[str, int, int], None]


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


@dataclass(frozen=True)
class Lake:
    """What a run over a lake of reports found."""

    task: Task
    state: State
    rejected: list[Rejected]
    #: Rows that were left out because an earlier row has the same batch id.
    repeated: int
    #: Files without batch ids, where a repeated batch would not be noticed.
    unnamed: list[str]
    files: int
    #: Files that an interrupted run had already counted, at least in part.
    resumed: int

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows or reports were set aside, by reason."""
        return count_reasons(self.rejected)


def aggregate(
    paths: Iterable[str | Path],
    task: Task | None = None,
    jobs: int | None = 1,
    manifest: str | Path | None = None,
    progress: Progress = lambda step, more, total: None,
) -> Lake:
    """Add up all reports in these Parquet files and folders of them.

    The task comes from the files unless it is given; files of another task are refused, rows of another task set
    aside. The work is spread over `jobs` processes (None: over all cores if there is enough of it). With `manifest`,
    the run keeps what is done in that file, goes on from it if it is there, and leaves it for the caller to remove
    once the state is safe. `progress(step, more, total)` counts bytes.
    """
    sources, task = find_sources(paths, task)
    ledger = Manifest.open(manifest, task, [source.fingerprint for source in sources])
    groups = list(_groups(sources))
    total = sum(group.bytes for group in groups)
    if jobs is None:
        worth = total >= _WORTH or sum(sum(source.rows) for source in sources) >= _WORTH_ROWS
        jobs = cores() if worth else 1
    with workers(jobs, task) as run:
        repeated = _repeated(run, task, [g for g in groups if "batch" in g.source.columns], progress)
        left = [group for group in groups if group.key not in ledger.done]
        still = sum(group.bytes for group in left)
        progress("aggregating", total - still, total)
        lots = _cut(left, lambda group: group.bytes, min(_MOST, max(_LEAST, still // (4 * jobs))))
        works = [[(group, repeated.get(group.key, _NO_ROWS)) for group in lot] for lot in lots]
        with ledger:
            for work, (state, rejected) in run(_fold, works):
                for group, _ in work:
                    group.source.check()
                    progress("aggregating", group.bytes, total)
                ledger.add([group.key for group, _ in work], state, rejected)
    return Lake(
        task,
        ledger.state,
        ledger.rejected,
        sum(len(rows) for rows in repeated.values()),
        [source.path for source in sources if "batch" not in source.columns],
        len(sources),
        ledger.resumed,
    )


# Which files, which task


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
            frozenset(schema.names) & {"task", "batch"},
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


# Row groups


def _groups(sources: Iterable[Source]) -> Iterator[Group]:
    for source in sources:
        first = 0
        for number, rows in enumerate(source.rows):
            yield Group(source, number, first)
            first += rows


def _cut(groups: Iterable[Group], weight: Callable[[Group], int], most: int) -> list[list[Group]]:
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


def _read(group: Group, wanted: frozenset[str]) -> Iterator[tuple[Int64s, Any]]:
    """Row numbers and columns of a row group, a few megabytes at a time."""
    source, first = group.source, group.first
    per_row = group.bytes // max(1, source.rows[group.number]) + 1 if "reports" in wanted else 1
    size = max(1, min(_ROWS, _READ // per_row))
    with _opened(source.path) as file:
        for batch in file.iter_batches(size, [group.number], sorted(wanted), use_threads=False):
            yield np.arange(first, first + batch.num_rows, dtype=np.int64), batch
            first += batch.num_rows


def _fold(task: Task, work: list[tuple[Group, Int64s]]) -> tuple[State, list[Rejected]]:
    """The partial state of some row groups, without their repeated rows."""
    pa = optional("pyarrow", "lake")
    fold = Fold(task)
    checks = (("task", partial(rows_of, digest=task.digest.hex()), OTHER_TASK), ("batch", named, NO_ID))
    for group, repeated in work:
        path, columns = group.source.path, group.source.columns
        for numbers, batch in _read(group, columns | {"reports"}):
            kept = ~np.isin(numbers, repeated)
            for column, good, reason in checks:
                if column in columns:
                    fine = good(batch[column])
                    fold.set_aside(path, reason, numbers[kept & ~fine])
                    kept &= fine
            reports = batch["reports"]
            if not kept.all():
                numbers, reports = numbers[kept], reports.filter(pa.array(kept))
            add_rows(fold, path, numbers, reports)
    return fold.finish(), fold.rejected


# Repeated batches


def _repeated(run: Run, task: Task, groups: list[Group], progress: Progress) -> dict[GroupKey, Int64s]:
    """The rows of each row group whose batch id an earlier row has."""
    if not groups:
        return {}
    hashing = IdHash()
    total = sum(group.bytes for group in groups)
    found: dict[GroupKey, tuple[Int64s, UInt64s]] = {}
    lots = _cut(groups, lambda group: group.source.rows[group.number], _MOST_IDS)
    for (_, lot), results in run(_ids, [(hashing, lot) for lot in lots]):
        for group, result in zip(lot, results, strict=True):
            found[group.key] = result
            progress("looking for repeated batches", group.bytes, total)
    ids = np.concatenate([found[group.key][1] for group in groups])
    order = np.lexsort((ids[:, 1], ids[:, 0]))  # stable: equal ids stay in the order of the files
    again = np.zeros(len(ids), dtype=bool)
    again[order[1:]] = (ids[order[1:]] == ids[order[:-1]]).all(axis=1)
    rows = [found[group.key][0] for group in groups]
    ends = np.cumsum([len(numbers) for numbers in rows])
    parts = np.split(again, ends[:-1])
    return {
        group.key: numbers[part]
        for group, numbers, part in zip(groups, rows, parts, strict=True)
        if part.any()
    }


def _ids(task: Task, work: tuple[IdHash, list[Group]]) -> list[tuple[Int64s, UInt64s]]:
    """Numbers and hashed batch ids of the task's rows, row group by row group."""
    hashing, groups = work
    pa = optional("pyarrow", "lake")
    results = []
    for group in groups:
        numbers, ids = [_NO_ROWS], [np.zeros((0, 2), dtype=np.uint64)]
        for rows, batch in _read(group, group.source.columns):
            ours = named(batch["batch"])
            if "task" in group.source.columns:
                ours = ours & rows_of(batch["task"], task.digest.hex())
            numbers.append(rows[ours])
            ids.append(hashing(batch["batch"].filter(pa.array(ours))))
        results.append((np.concatenate(numbers), np.concatenate(ids)))
    return results
