"""Long-form tables (one row per user and key) from CSV, Parquet or NPZ, and their way into records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import Entries, Summary
from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.nonces import refuse_own_seeds
from hubbub.protocol.task import Task
from hubbub.tables.csv_blocks import CsvFile, not_finite, to_numbers
from hubbub.tables.frames import (
    MAPPING,
    add_batches,
    fill_from_frame,
    fill_from_mapping,
    mapped_values,
    name_of,
)
from hubbub.tables.labels import Codes, Integers, Labels, Sortable, text_labels
from hubbub.tables.sources import PLAIN, Source, find_column

#: Rows that are read, and rows that are put in order, at a time.
_READ, _SORT = 1 << 20, 1 << 21


@dataclass(frozen=True)
class Table:
    """Rows (user, key, value); `values` is None for sets. `users` counts users without rows, too.

    `more` has other columns that were asked for, in their order: the different texts, and which of them each row has.
    """

    user: Codes | Int64s
    users: int
    key: Codes | Int64s
    keys: list[str]
    values: Floats | None
    more: tuple[tuple[list[str], Codes | Int64s], ...] = ()

    @property
    def rows(self) -> int:
        return len(self.user)


#: A file (a path, or a `Source` that says how it is written), a DataFrame of pandas or polars, a table of pyarrow, or a
#: mapping from user to record.
TableLike = Any


def has_values(table: TableLike, value: str | None) -> bool:
    """Whether records of a table have values: a column is named, or records are mappings from key to value."""
    return mapped_values(table) if isinstance(table, Mapping) else value is not None


def refuse_device_rules(task: Task) -> None:
    """Refuse to make reports of a table for a task with rules that only a device can keep.

    Turns and memos are in a device's ledger. Whoever has a table has none: with every period, and every run, all
    people would report anew, and spend more than the task says. Seeds from the collector are for what is sent at once.
    """
    refuse_own_seeds(task)
    rules = [f"rotation = {task.rotation}"] if task.rotation > 1 else []
    rules += ["memoize"] if task.memoize != "off" else []
    if rules:
        raise Refused(
            f"Task {task.name!r} has {' and '.join(rules)}, which devices keep with a ledger, period after period; a "
            "table has no ledger, so all of its people would report anew each time. Rehearse such a task with hubbub "
            "simulate; for reports of a table, leave the rule out."
        )


def read_table(
    table: TableLike,
    user: str | None = None,
    key: str | None = None,
    value: str | None = None,
    more: Sequence[str] = (),
) -> Table:
    """Read the named columns of a file or of a table in memory; what is wrong with it is refused, with the line."""
    if isinstance(table, Mapping):
        if more:
            raise Refused(
                "A mapping from user to record has no columns that tell more of a user; use a table."
            )
        if user is not None or key is not None or value is not None:
            raise Refused("Columns are named for tables that have them; a mapping is from user to record.")
        columns = _Columns(MAPPING, ["user", "key"], "value" if mapped_values(table) else None)
        return columns.table(fill_from_mapping(table, columns))
    if user is None or key is None:
        raise Refused("Name the columns of the table: user, key and, if there are values, value.")
    if not isinstance(table, str | Path | Source):
        columns = _Columns(name_of(table), [user, key, *more], value)
        fill_from_frame(table, columns)
        return columns.table(0)
    source = Source.of(table)
    columns = _Columns(source, [user, key, *more], value)
    if source.is_text:
        return columns.table(_read_csv(columns, source))
    path = source.path
    if not path.exists():
        raise Refused(f"{path} does not exist.")
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if source.compressed or source.ending not in readers:
        raise Refused(f"{path}: tables are read from .csv, .tsv (also .gz), .parquet or .npz files.")
    if source.form != PLAIN:
        raise Refused(f"{path}: --delimiter and --encoding are for tables of text, .csv and .tsv.")
    try:
        users = readers[source.ending](columns, path)
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None
    return columns.table(users)


class _Columns:
    """The columns of a table while it is read: labels of user and key, and values if there are any."""

    def __init__(self, path: Any, texts: list[str], value: str | None) -> None:
        """`path` is where rows come from: a file, or what a table in memory is called."""
        self.path, self.texts, self.value = path, texts, value
        self.names = texts + ([value] if value else [])
        self._labels: list[Labels | None] = [None] * len(texts)
        self._values: list[Floats] = []

    def find(self, header: list[str], name: str) -> int:
        """The place of a column in the file."""
        return find_column(self.path, header, name)

    def add(self, place: int, chunk: Any) -> None:
        """The labels of the next rows: text (a list, or an Arrow array), or a NumPy array of something else."""
        labels = self._labels[place]
        if labels is None:
            kind = chunk.dtype.kind if isinstance(chunk, np.ndarray) else "text"
            labels = self._labels[place] = (
                text_labels() if kind == "text" else Integers() if kind in "iu" else Sortable()
            )
        self._sorted(place, lambda: labels.add(chunk))

    def add_values(self, chunk: NDArray[Any], first: int) -> None:
        """The values of the next rows, of which the first has this number."""
        try:
            numbers = chunk.astype(np.float64)
        except (ValueError, TypeError):
            numbers = to_numbers(list(chunk))
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad):
            raise not_finite(self.path, f"row {first + bad[0]}", chunk[bad[0]], self.value)
        self._values.append(numbers)

    def table(self, users: int) -> Table:
        """The table, in which there are at least so many users."""
        user, key = self._labels[:2]
        if user is None or key is None:
            raise Refused(f"{self.path} has no rows.")
        people, owners = self._sorted(0, user.finish)
        self._labels[0] = user = None
        if not len(owners) and not users:
            raise Refused(f"{self.path} has no rows.")
        _refuse_nobody(self.path, self.texts[0], people, owners)
        count = max(len(people), users)
        del people
        names, places = self._texts(1)
        more = tuple(self._texts(place) for place in range(2, len(self.texts)))
        values = np.concatenate(self._values) if self.value else None
        return Table(owners, count, places, names, values, more)

    def _texts(self, place: int) -> tuple[list[str], Codes]:
        """The different texts of a column in order, and which of them each row has."""
        column = self._labels[place]
        assert column is not None
        labels, places = self._sorted(place, column.finish)
        try:
            return [str(label) for label in (labels if isinstance(labels, list) else labels.tolist())], places
        except UnicodeDecodeError:
            raise Refused(f"{self.path}: column {self.texts[place]!r} is not UTF-8 text.") from None

    def _sorted(self, place: int, work: Callable[[], Any]) -> Any:
        """Work with labels, which must be of a kind that can be put in order."""
        try:
            return work()
        except TypeError:
            raise Refused(
                f"{self.path}: column {self.texts[place]!r} holds neither text nor numbers."
            ) from None


def encode_table(task: Task, table: Table) -> tuple[Entries, Summary]:
    """All records of a table, by the rules of `hubbub.model.record` for tables.

    Rows are put in order for some users at a time, so that this needs little room besides what it returns.
    """
    if table.values is None and task.scale.kind != "set":
        raise Refused("The task collects values: name the column that holds them.")
    known, placed = _key_ids(task, table)
    ids, values = np.empty(table.rows, dtype=np.uint64), np.empty(table.rows, dtype=np.int64)
    counts = np.zeros(table.users, dtype=np.int64)
    done = clipped = absent = repeated = unknown = 0
    for rows, last in _in_order(table):
        numbers = np.ones(len(rows)) if table.values is None else table.values[rows]
        scaled, outside = task.scale.encode(numbers)
        present = scaled != 0 if task.scale.kind == "set" else np.ones(len(rows), dtype=bool)
        kept = last & present
        if placed is not None:
            unknown += int((kept & ~placed[table.key[rows]]).sum())
            kept &= placed[table.key[rows]]
        stop = done + int(kept.sum())
        mine = rows[kept]
        ids[done:stop], values[done:stop] = known[table.key[mine]], scaled[kept]
        owner = table.user[mine]
        first = int(owner[0]) if len(owner) else 0
        lengths = np.bincount(owner - first)
        counts[first : first + len(lengths)] += lengths
        clipped += int(outside[kept].sum())
        absent += int((last & ~present).sum())
        repeated += int((~last).sum())
        done = stop
    if task.mechanism.refuses_longer and counts.max(initial=0) > task.mechanism.max_entries:
        raise Refused(
            f"A record has more than {task.mechanism.max_entries} entries, which this guarantee does not cover; "
            "make a task with a larger max_entries."
        )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    summary = Summary(table.users, done, clipped=clipped, absent=absent, repeated=repeated, unknown=unknown)
    return Entries(ids[:done], values[:done], offsets), summary


def _key_ids(task: Task, table: Table) -> tuple[UInt64s, Bools | None]:
    """Ids of all keys of a table, and which keys have one: None where all must, because others are refused."""
    if task.keys.tree is None:
        return task.keys.ids_of(table.keys), None
    known, placed = task.keys.known(table.keys)
    ids = np.zeros(len(placed), dtype=np.uint64)
    ids[placed] = known
    return ids, placed


def _in_order(table: Table) -> Iterator[tuple[Int64s, Bools]]:
    """The numbers of all rows by user and key, some users at a time, and which rows are the last of their pair.

    Rows of one pair stay in their order, so that of a repeated key the last row counts.
    """
    ends = np.cumsum(np.bincount(table.user, minlength=table.users))
    keys = max(len(table.keys), 1)
    first = 0
    while first < table.users:
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + _SORT, side="right")))
        rows = np.flatnonzero((table.user >= first) & (table.user < stop))
        pairs = (table.user[rows] - np.int64(first)) * keys + table.key[rows]
        bits = len(rows).bit_length()
        if ((stop - first) * keys) >> (63 - bits):
            order = np.argsort(pairs, kind="stable")
            pairs = pairs[order]
        else:  # pair and place in one number: these are sorted much faster
            both = np.sort(pairs << bits | np.arange(len(rows)))
            order, pairs = both & ((1 << bits) - 1), both >> bits
        last = np.ones(len(rows), dtype=np.bool_)
        last[:-1] = pairs[1:] != pairs[:-1]
        yield rows[order], last
        first = stop


def _read_csv(columns: _Columns, source: Source) -> int:
    file = CsvFile(source, columns.texts, columns.value)
    done = 0
    for texts, numbers in file.chunks():
        for place, chunk in enumerate(texts):
            columns.add(place, chunk)
        if numbers is not None:
            columns.add_values(numbers, done)
        done += len(texts[0])
    return 0


def _read_parquet(columns: _Columns, path: Path) -> int:
    pyarrow = optional("pyarrow", "lake")
    parquet = optional("pyarrow.parquet", "lake")
    try:
        with parquet.ParquetFile(path) as file:
            for name in columns.names:
                columns.find(file.schema_arrow.names, name)
            wanted = list(dict.fromkeys(columns.names))
            add_batches(file.iter_batches(_READ, columns=wanted), columns, path)
    except (pyarrow.ArrowException, OSError) as problem:
        raise Refused(f"{path} is not a readable Parquet file: {str(problem).splitlines()[0]}") from None
    return 0


def _read_npz(columns: _Columns, path: Path) -> int:
    names = columns.names
    shapes = []
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in names:
                columns.find(list(archive), name)
            users = int(archive["n"]) if "n" in archive and archive["n"].ndim == 0 else 0
            for place, name in enumerate(names):
                column = archive[name]
                shapes.append(column.shape)
                if column.ndim != 1 or column.shape != shapes[0]:
                    raise Refused(
                        f"{path}: the columns {', '.join(names)} must be one-dimensional and of one length."
                    )
                if place >= len(columns.texts):
                    columns.add_values(column, 0)
                    continue
                step = max(1, _READ // max(1, column.itemsize // 8))
                for start in range(0, max(len(column), 1), step):
                    chunk = column[start : start + step]
                    columns.add(place, chunk.tolist() if column.dtype.kind == "U" else chunk)
    except Refused:
        raise
    except Exception as problem:  # zipfile, zlib, struct and NumPy each have errors of their own
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        if "pickle" in first:  # what NumPy says of files that are none of its own
            first = "it is another kind of file, or has columns of Python objects"
        raise Refused(f"{path} is not a readable NPZ file: {first}.") from None
    return users


def _refuse_nobody(path: Path, name: str, people: Any, owners: Codes) -> None:
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
