"""Tables from files: what is read, and which line is to blame when it cannot be."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import flips, only_refused, reason, refused, small_task, steady, write_csv
from hubbub.tables.records import Table, encode_table, read_table

ROWS = [("zoe", "10", 1.5), ("adam", "9", -2.0), ("zoe", "9", 0.25)]


def write(path: Path, columns: dict[str, Any]) -> Path:
    """Columns in the format that the name's ending says."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        text = write_csv(path, [list(columns), *zip(*columns.values(), strict=True)]).read_text()
        if path.suffix == ".tsv":
            path.write_text(text.replace(",", "\t"))
    return path


def triples(table: Table) -> list[tuple[int, str, float]]:
    assert table.values is not None
    return [
        (int(user), table.keys[key], float(value))
        for user, key, value in zip(table.user, table.key, table.values, strict=True)
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV", ".parquet", ".npz"])
def test_every_format_says_the_same(suffix: str, tmp_path: Path) -> None:
    """Columns in any order among others, users numbered in the order of their names."""
    user, key, value = ([row[place] for row in ROWS] for place in range(3))
    path = write(tmp_path / f"t{suffix}", {"value": value, "more": [1, 2, 3], "user": user, "key": key})
    table = read_table(path, "user", "key", "value")
    assert triples(table) == [(1, "10", 1.5), (0, "9", -2.0), (1, "9", 0.25)]
    assert (table.users, table.rows) == (2, 3)
    assert read_table(path, "user", "key").values is None


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_numbers_as_keys_and_users(suffix: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / f"t{suffix}", {"u": np.array([30, 4]), "k": np.array([7, 12]), "v": np.array([1, 0])}
    )
    assert triples(read_table(path, "u", "k", "v")) == [(1, "7", 1.0), (0, "12", 0.0)]


def test_npz_may_count_users_without_rows(tmp_path: Path) -> None:
    columns = {"u": np.array([3, 3]), "k": np.array([1, 2])}
    path = write(tmp_path / "t.npz", {**columns, "n": np.int64(50)})
    assert read_table(path, "u", "k").users == 50
    entries, summary = encode_table(small_task(), read_table(path, "u", "k"))
    assert len(entries) == 50
    assert summary.records == 50
    assert read_table(write(path, {**columns, "n": np.int64(0)}), "u", "k").users == 1


def test_csv_with_quotes_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeffu,k,v\r\n1,"a,""b""\nc",2\r\n\r\n2,ü,3\r\n'.encode())
    assert triples(read_table(path, "u", "k", "v")) == [(0, 'a,"b"\nc', 2.0), (1, "ü", 3.0)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", ["no column 'u'", "none"]),
        (b"u,key,v\n1,2,3\n", ["no column 'k'", "u, key, v"]),
        (b"u,k,v\n1,2,3\n1,2\n", ["line 3", "2 columns where the header has 3"]),
        (b"u,k,v\n1,2,3\n\n1,2,three\n", ["line 4", "'three'", "'v'"]),
        (b"u,k,v\n1,2,\n", ["line 2", "''"]),
        (b"u,k,v\n1," + b"x" * 140_000 + b",3\n", ["line 2", "more than 131,072 characters", "--delimiter"]),
        (b"u,k,v\n1,2,3\n1,2,nan\n", ["line 3", "nan"]),
        (b"u,k,v\n1,2,-inf\n", ["line 2", "inf"]),
        (b'u,k,v\n1,"2\n2",3\n1,2,x\n', ["line 4", "'x'"]),
        (b"u,k,v\n1,\xff,3\n", ["UTF-8"]),
        (b"\xff\xfeu\0,\0k\0", ["UTF-8"]),
        (b"u,k,v\n1," + b"x" * 200_000 + b",3\n", ["line 2"]),
    ],
)
def test_what_is_wrong_with_a_csv_is_said(text: bytes, reason: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text)
    with refused(str(path), *reason):
        read_table(path, "u", "k", "v")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_table_without_rows_is_refused(suffix: str, tmp_path: Path) -> None:
    """A header only is an accident; nobody could be reported about."""
    columns = {name: np.array([], dtype=np.int64) for name in ("u", "k")}
    with refused("no rows"):
        read_table(write(tmp_path / f"t{suffix}", columns), "u", "k")


@pytest.mark.parametrize("name", ["t.xlsx", "t.txt", "t", "missing.csv"])
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if not name.startswith("missing"):
        path.write_text("u,k\n1,2\n")
    with refused(str(path)):
        read_table(path, "u", "k")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_folder_is_no_table(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    path.mkdir()
    with refused(str(path)):
        read_table(path, "u", "k")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"u": [1, 2], "k": [None, "a"], "v": [1, 2]}, "missing values"),
        ({"u": [1, 2], "k": ["a", "b"], "v": [1.0, None]}, "missing values"),
        ({"u": [1, 2], "k": ["a", "b"], "v": ["1", "x"]}, "'x'"),
        ({"u": [1, 2], "k": ["a", "b"], "v": [[1], [2]]}, "'v'"),
        ({"u": [1, 2], "k": ["a", "b"], "v": [datetime.time(1), datetime.time(2)]}, "'v'"),
        ({"u": [1, 2], "k": [{"a": 1}, {"a": 2}], "v": [1, 2]}, "'k'"),
        ({"u": [1, 2], "v": [1, 2]}, "no column 'k'"),
    ],
)
def test_what_is_wrong_with_a_parquet_file_is_said(columns: Any, reason: str, tmp_path: Path) -> None:
    with refused(reason):
        read_table(write(tmp_path / "t.parquet", columns), "u", "k", "v")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"u": [1, 2], "k": [1, 2, 3]}, "one length"),
        ({"u": [[1, 2]], "k": [[1, 2]]}, "one-dimensional"),
        ({"u": [1, 2]}, "no column 'k'"),
        ({"u": [1, 2], "k": np.array([1, "a"], dtype=object)}, "NPZ"),
        ({"u": [1, 2], "k": [1, 2], "n": np.inf}, "t.npz"),
        ({"u": [1, 2], "k": [1, 2], "n": "many"}, "t.npz"),
    ],
)
def test_what_is_wrong_with_an_npz_file_is_said(columns: Any, reason: str, tmp_path: Path) -> None:
    with refused(reason):
        read_table(write(tmp_path / "t.npz", columns), "u", "k")


def packed_npz() -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(sink, u=np.arange(9) // 2, k=np.arange(9) % 3)
    return sink.getvalue()


def lone_array() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.arange(5))
    return sink.getvalue()


def test_a_damaged_npz_is_read_or_refused(tmp_path: Path) -> None:
    """Every single flipped bit, and every truncation; archives carry checksums of their own."""
    whole, path = packed_npz(), tmp_path / "t.npz"
    wrong = 0
    for damaged in flips(whole):
        path.write_bytes(damaged)
        wrong += only_refused(lambda: read_table(path, "u", "k")) is None
    assert wrong > 4 * len(whole)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert str(path) in reason(lambda: read_table(path, "u", "k"))


@steady
@given(st.binary(max_size=200), st.sampled_from([".csv", ".tsv", ".parquet", ".npz"]))
@example(lone_array(), ".npz")
@example(b"PK\x03\x04rubbish", ".npz")
@example(b"PAR1rubbishPAR1", ".parquet")
@example(b"u,k\n\0,\0\n", ".csv")
def test_random_bytes_are_a_table_or_refused(tmp_path_factory: Any, data: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"random{suffix}"
    path.write_bytes(data)
    table = only_refused(lambda: read_table(path, "u", "k"))
    assert table is None or table.rows > 0


@steady
@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=6)), max_size=5))
def test_random_cells_are_numbers_or_refused(tmp_path_factory: Any, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    try:
        write_csv(path, [("u", "k", "v"), *rows])
    except UnicodeEncodeError:
        return
    table = only_refused(lambda: read_table(path, "u", "k", "v"))
    if table is not None:
        assert table.values is not None
        assert np.isfinite(table.values).all()


def test_a_task_with_values_needs_a_value_column(tmp_path: Path, make_task: Any) -> None:
    path = write(tmp_path / "t.csv", {"u": [1], "k": [2]})
    with refused("name the column"):
        encode_table(make_task(values="signed"), read_table(path, "u", "k"))


def test_a_key_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"u": [1, 1], "k": ["3", "03"]})
    with refused("'03'", "vocabulary of 10 keys"):
        encode_table(small_task(), read_table(path, "u", "k"))
