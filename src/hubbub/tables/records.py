"""Long-form tables (one row per user and key) from CSV, Parquet or NPZ, and their way into records."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import Entries, Summary
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.task import Task

#: Columns, number of users if the file says so, and the line (or row) each entry comes from.
_Columns = tuple[list[NDArray[Any]], int, Sequence[int]]


@dataclass(frozen=True)
class Table:
    """Rows (user, key, value); `values` is None for sets. `users` counts users without rows, too."""

    user: NDArray[np.int64]
    users: int
    key: NDArray[np.int64]
    keys: list[str]
    values: NDArray[np.float64] | None

    @property
    def rows(self) -> int:
        return len(self.user)


def read_table(path: str | Path, user: str, key: str, value: str | None = None) -> Table:
    """Read the named columns of a file; what is wrong with it is refused with the line."""
    path = Path(path)
    if not path.exists():
        raise Refused(f"{path} does not exist.")
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise Refused(f"{path}: tables are read from .csv, .tsv, .parquet or .npz files.")
    names = [user, key] + ([value] if value else [])
    try:
        columns, extra_users, lines = readers[path.suffix.lower()](path, names)
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None
    if not len(lines) and not extra_users:
        raise Refused(f"{path} has no rows.")
    people, owners = _labels(path, user, columns[0])
    _refuse_nobody(path, user, people, owners)
    labels, places = _labels(path, key, columns[1])
    count = int(owners.max()) + 1 if len(owners) else 0
    values = _numbers(path, value, columns[2], lines) if value else None
    return Table(
        owners.astype(np.int64),
        max(count, extra_users),
        places.astype(np.int64),
        [str(label) for label in labels.tolist()],
        values,
    )


def encode_table(task: Task, table: Table) -> tuple[Entries, Summary]:
    """All records of a table, by the rules of `hubbub.model.record` for tables."""
    values = np.ones(table.rows) if table.values is None else table.values
    if table.values is None and task.scale.kind != "set":
        raise Refused("The task collects values: name the column that holds them.")
    scaled, clipped = task.scale.encode(values)
    ids = task.keys.ids_of(table.keys)[table.key]
    # Stable order by (user, key): of a repeated key the last row counts.
    order = np.lexsort((np.arange(table.rows), table.key, table.user))
    owner, place = table.user[order], table.key[order]
    last = np.ones(table.rows, dtype=bool)
    last[:-1] = (owner[1:] != owner[:-1]) | (place[1:] != place[:-1])
    present = scaled[order] != 0 if task.scale.kind == "set" else np.ones(table.rows, dtype=bool)
    kept = order[last & present]
    counts = np.bincount(table.user[kept], minlength=table.users)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if task.mechanism.refuses_longer and counts.max(initial=0) > task.mechanism.max_entries:
        raise Refused(
            f"A record has more than {task.mechanism.max_entries} entries, which this guarantee does not cover; "
            "make a task with a larger max_entries."
        )
    summary = Summary(
        table.users,
        len(kept),
        clipped=int(clipped[kept].sum()),
        absent=int((last & ~present).sum()),
        repeated=int((~last).sum()),
    )
    return Entries(ids[kept], scaled[kept], offsets), summary


def _read_csv(path: Path, names: list[str]) -> _Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            header = next(reader, [])
            places = [_find(path, header, name) for name in names]
            widest = max(places)
            columns: list[list[str]] = [[] for _ in names]
            lines = []
            for row in reader:
                if not row:
                    continue
                if len(row) <= widest:
                    raise Refused(f"{path}, line {reader.line_num}: only {len(row)} columns.")
                lines.append(reader.line_num)
                for column, place in zip(columns, places, strict=True):
                    column.append(row[place])
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8 text.") from None
    except csv.Error as problem:
        raise Refused(f"{path}, line {reader.line_num}: {problem}.") from None
    return [np.array(column, dtype=str) for column in columns], 0, lines


def _read_parquet(path: Path, names: list[str]) -> _Columns:
    pyarrow = optional("pyarrow", "lake")
    parquet = optional("pyarrow.parquet", "lake")
    try:
        schema = parquet.read_schema(path).names
        for name in names:
            _find(path, schema, name)
        table = parquet.read_table(path, columns=names)
    except (pyarrow.ArrowException, OSError) as problem:
        raise Refused(f"{path} is not a readable Parquet file: {str(problem).splitlines()[0]}") from None
    for name in names:
        if table[name].null_count:
            raise Refused(f"{path}: column {name!r} has {table[name].null_count} missing values.")
    return [table[name].to_numpy() for name in names], 0, range(table.num_rows)


def _read_npz(path: Path, names: list[str]) -> _Columns:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in names:
                _find(path, list(archive), name)
            columns = [archive[name] for name in names]
            users = int(archive["n"]) if "n" in archive and archive["n"].ndim == 0 else 0
    except Refused:
        raise
    except Exception as problem:  # zipfile, zlib, struct and NumPy each have errors of their own
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise Refused(f"{path} is not a readable NPZ file: {first}.") from None
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        raise Refused(f"{path}: the columns {', '.join(names)} must be one-dimensional and of one length.")
    return columns, users, range(len(columns[0]))


def _find(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise Refused(f"{path} has no column {name!r}; its columns are {', '.join(header) or 'none'}.")
    return header.index(name)


def _labels(path: Path, name: str, column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different entries of a column, and which of them each row has."""
    try:
        return np.unique(column, return_inverse=True)
    except TypeError:
        raise Refused(f"{path}: column {name!r} holds neither text nor numbers.") from None


def _refuse_nobody(path: Path, name: str, people: Any, owners: NDArray[Any]) -> None:
    """A row without a user is nobody's record: put together, such rows would be one person with many entries.

    The different users are in order, so blank ones come first, and what is not a number last.
    """
    blank = [len(people) - 1] if len(people) and people[-1] != people[-1] else []
    for place, label in enumerate(people):
        if str(label)[:1] > " ":
            break
        if not str(label).strip():
            blank.append(place)
    if blank:
        row = int(np.flatnonzero(np.isin(owners, blank))[0]) + 1
        raise Refused(f"{path}: nobody is named in column {name!r} of row {row}; whose record is it?")


def _numbers(path: Path, name: str, column: NDArray[Any], lines: Sequence[int]) -> NDArray[np.float64]:
    """The column as finite numbers, or the line of the first that is none."""
    try:
        numbers = column.astype(np.float64)
    except (ValueError, TypeError):
        numbers = np.array([_number(text) for text in column])
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        where = f"{'line' if isinstance(lines, list) else 'row'} {lines[bad[0]]}"
        raise Refused(f"{path}, {where}: {str(column[bad[0]])!r} in column {name!r} is not a finite number.")
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except (ValueError, TypeError):
        return np.nan
