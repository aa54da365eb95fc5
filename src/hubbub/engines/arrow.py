"""Reports as Parquet and Arrow: the form that service, lake and Spark exchange.

One row per batch. Columns: `task` (the task's digest in hex), `day`, `batch` (an id chosen by whoever sent the batch,
so that a batch that arrives twice counts once) and `reports` (whole reports one after another). The file's metadata
holds the task itself. Only `reports` must be there. Where reports have labels or periods, a column `stratum` has them
as `hubbub.protocol.strata` writes them; nothing is told where it is empty or missing.
"""

from __future__ import annotations

import datetime
import io
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Bools, Bytes, Int64s, UInt64s
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.strata import LONGEST, Stratum, check_number, has_begun, stratum_in, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import Fold, Rejected

_NO_ROWS = np.zeros(0, dtype=np.int64)

#: Where a file's metadata holds its task.
TASK_KEY = b"hubbub.protocol.task"
#: Bytes of the longest batch id.
LONGEST_ID = 256

# Why rows are set aside. (Reasons within a row are the layout's.)
OTHER_TASK = "the row belongs to another task"
NO_REPORTS = "the row has no reports"
NO_STRATUM = "the row has a label or a period that the task does not have"
NOT_BEGUN = "the row is of a period that has not begun"
NO_ID = f"the row has no batch id, or one longer than {LONGEST_ID} bytes"


def report_schema(task: Task, strata: bool = False) -> Any:
    """The Arrow schema of files with reports of one task; with `strata`, by stratum."""
    pa = optional("pyarrow", "lake")
    columns = [("task", pa.string()), ("day", pa.date32()), ("batch", pa.string()), ("reports", pa.binary())]
    columns += [("stratum", pa.string())] if strata else []
    return pa.schema(columns, metadata={TASK_KEY: task.canonical})


def report_table(
    task: Task, packed: Bytes, day: datetime.date | None, per_row: int, stratum: Stratum | None = None
) -> Any:
    """Packed reports [n, width] as an Arrow table, `per_row` of them to a row, each row with an id of its own."""
    pa = optional("pyarrow", "lake")
    width = task.mechanism.layout.width
    bounds = np.minimum(np.arange(0, len(packed) + per_row, per_row), len(packed)).astype(np.int64) * width
    rows = len(bounds) - 1
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(packed).tobytes())]
    reports = pa.Array.from_buffers(pa.large_binary(), rows, buffers)
    columns = [[task.digest.hex()] * rows, [day] * rows, [secrets.token_hex(16) for _ in range(rows)]]
    columns.append(reports.cast(pa.binary()))
    columns += [] if stratum is None else [[text_of(task, stratum)] * rows]
    return pa.table(columns, schema=report_schema(task, stratum is not None))


def save_parquet(
    path: str | Path, task: Task, packed: Bytes, day: datetime.date | None, per_row: int = 1000
) -> None:
    """Write packed reports [n, width] as Parquet; `day` is when they arrived, if anybody knows."""
    parquet = optional("pyarrow.parquet", "lake")
    buffer = io.BytesIO()
    parquet.write_table(report_table(task, packed, day, per_row), buffer)
    write_atomic(path, buffer.getvalue())


def save_parquet_by(
    path: str | Path,
    task: Task,
    parts: Mapping[Stratum, Bytes],
    day: datetime.date | None,
    per_row: int = 1000,
) -> None:
    """The same by stratum, in a column of that name."""
    pa, parquet = optional("pyarrow", "lake"), optional("pyarrow.parquet", "lake")
    check_number(task, parts)
    tables = [report_table(task, packed, day, per_row, stratum) for stratum, packed in parts.items()]
    buffer = io.BytesIO()
    parquet.write_table(pa.concat_tables([report_schema(task, True).empty_table(), *tables]), buffer)
    write_atomic(path, buffer.getvalue())


def task_in(metadata: dict[bytes, bytes] | None, path: str) -> Task | None:
    """The task in a file's metadata, if it has one."""
    text = (metadata or {}).get(TASK_KEY)
    if text is None:
        return None
    try:
        return Task.parse(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise Refused(f"{path} carries a task that this hubbub does not understand: {problem}") from None


def check_columns(schema: Any, source: str) -> None:
    """Refuse an Arrow schema without reports, or with columns of a kind that cannot be what they are called."""
    types = optional("pyarrow.types", "lake")
    if "reports" not in schema.names:
        raise Refused(f"{source} has no column 'reports'; its columns are {', '.join(schema.names)}.")
    for name in {"task", "batch", "reports", "stratum"} & set(schema.names):
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        fits = types.is_binary(kind) or types.is_large_binary(kind)
        fits |= types.is_fixed_size_binary(kind) if name == "reports" else _is_text(types, kind)
        if not fits:
            wanted = "binary" if name == "reports" else "text"
            raise Refused(f"{source}: the column {name!r} must be {wanted}, not {kind}.")


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def plain(column: Any) -> Any:
    """A column of text or bytes as bytes, whatever its encoding."""
    pa = optional("pyarrow", "lake")
    column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    return column.cast(pa.large_binary())


def row_bytes(column: Any) -> tuple[Bytes, Int64s]:
    """The bytes of a binary or text column without missing values: row i is data[bounds[i] : bounds[i + 1]]."""
    column = plain(column)
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return raw[bounds[0] : bounds[-1]], bounds - bounds[0]


def add_rows(fold: Fold, source: str, numbers: Int64s, column: Any) -> None:
    """Fold a column of reports; `numbers` are its rows' numbers in the source."""
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        fold.set_aside(source, NO_REPORTS, numbers[~present])
        numbers, column = numbers[present], column.drop_null()
    fold.add(source, numbers, *row_bytes(column))


def rows_of(column: Any, digest: str) -> Bools:
    """Which rows name this task; a missing name is another task's."""
    same = optional("pyarrow.compute", "lake").equal(plain(column), digest.encode()).fill_null(False)
    found: Bools = same.to_numpy(zero_copy_only=False)
    return found


def named(column: Any) -> Bools:
    """Which rows have a batch id that can be told from others."""
    compute = optional("pyarrow.compute", "lake")
    short = compute.less_equal(compute.binary_length(plain(column)), LONGEST_ID)
    found: Bools = short.fill_null(False).to_numpy(zero_copy_only=False)
    return found


#: What is wrong with rows by the negative number that `strata_of` gives them.
WRONG_STRATA = {-1: NO_STRATUM, -2: NOT_BEGUN}


def strata_of(task: Task, column: Any, today: datetime.date) -> tuple[list[Stratum], Int64s]:
    """The different strata in a column of text, and which of them each row has; negative: see `WRONG_STRATA`.

    A missing text is that of reports about which nothing is told. A period of the future says that some clock is wrong.
    """
    compute = optional("pyarrow.compute", "lake")
    found = plain(column).fill_null(b"").dictionary_encode()
    if hasattr(found, "combine_chunks"):
        found = found.combine_chunks()
    strata: list[Stratum] = []
    places = []
    short = compute.less_equal(compute.binary_length(found.dictionary), LONGEST).to_pylist()
    for text, fits in zip(found.dictionary, short, strict=True):
        try:
            stratum = stratum_in(task, text.as_py().decode("ascii", "replace") if fits else "?")
        except Refused:
            places.append(-1)
            continue
        if stratum.period and not has_begun(stratum.period, today):
            places.append(-2)
            continue
        strata.append(stratum)
        places.append(len(strata) - 1)
    which: Int64s = np.array(places or [-1], dtype=np.int64)[found.indices.to_numpy(zero_copy_only=False)]
    return strata, which


def reports_in(task: Task, column: Any) -> int:
    """How many reports a column of them holds, by its bytes."""
    compute = optional("pyarrow.compute", "lake")
    size: int = compute.sum(compute.binary_length(plain(column))).as_py() or 0
    return size // task.mechanism.layout.width


def set_rows_aside(fold: Fold, source: str, reason: str, numbers: Int64s, wrong: Bools, column: Any) -> None:
    """Note rows that do not count, with how many reports they have in this column."""
    if wrong.any():
        reports = reports_in(fold.task, column.filter(optional("pyarrow", "lake").array(wrong)))
        fold.set_aside(source, reason, numbers[wrong], reports=reports)


class IdHash:
    """Batch ids as 16 bytes, by a hash function drawn at random for one run.

    An id is its length and its bytes as words s_i of 32 bits, padded with zeros. Each of four output words is
    (m + sum m_i s_i mod 2^64) >> 32 with secret random 64-bit m's (the multilinear family of Lemire and Kaser 2014).

    Two different ids agree in one output word with probability 2^-32, hence in all four with 2^-128. Proof. They
    differ in some word, by d = 2^k * odd with k < 32, so the difference D of their sums is uniform on a class
    modulo 2^k, independent of the uniform first sum X. Given D, the top halves of X and X + D agree with probability
    max(0, 1 - |D| / 2^32); these triangles add up to 2^(32 - k) over the 2^(64 - k) values of D.

    Among a billion ids some two agree with probability below 2e-21, whoever chose them.
    """

    def __init__(self) -> None:
        words = LONGEST_ID // 4 + 2
        self._factors = np.frombuffer(secrets.token_bytes(8 * 4 * words), dtype=np.uint64).reshape(words, 4)

    def __call__(self, column: Any) -> UInt64s:
        """Two 64-bit words per id [n, 2]; the column has no missing values and no id above LONGEST_ID."""
        data, bounds = row_bytes(column)
        lengths = np.diff(bounds)
        width = (int(lengths.max(initial=0)) + 3) // 4 * 4
        letters = np.zeros((len(lengths), width), dtype=np.uint8)
        letters[np.arange(width) < lengths[:, None]] = data
        words = np.concatenate([lengths[:, None], letters.view("<u4")], axis=1).astype(np.uint64)
        sums = self._factors[0] + words @ self._factors[1 : 1 + words.shape[1]]
        halves = (sums >> np.uint64(32)).astype("<u4")
        return np.ascontiguousarray(halves).view("<u8")


def check_rejected_path(path: Path) -> None:
    """Refuse a file name that does not say how to write what was set aside."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise Refused(f"{path}: what was set aside is listed in a .csv or a .parquet file.")


def save_rejected(path: Path, rejected: list[Rejected]) -> None:
    """Write what was set aside: file, row, report within the row (-1: all of it) and reason."""
    pa = optional("pyarrow", "lake")
    check_rejected_path(path)
    columns = [
        np.repeat([lot.source for lot in rejected], [len(lot.rows) for lot in rejected]),
        np.concatenate([_NO_ROWS, *(lot.rows for lot in rejected)]),
        np.concatenate([_NO_ROWS, *(lot.places for lot in rejected)]),
        np.repeat([lot.reason for lot in rejected], [len(lot.rows) for lot in rejected]),
    ]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
    names = ("file", "row", "report", "reason")
    table = pa.table(
        {n: pa.array(c.tolist(), k) for n, c, k in zip(names, columns, kinds, strict=True)}
    ).sort_by([("file", "ascending"), ("row", "ascending"), ("report", "ascending")])
    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        optional("pyarrow.csv", "lake").write_csv(table, buffer)
    else:
        optional("pyarrow.parquet", "lake").write_table(table, buffer)
    write_atomic(path, buffer.getvalue())
