"""Tables by Arrow and by the csv module are the same tables, and none of them takes more room than its rows."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import small_task, steady
from hubbub.primitives.errors import Refused
from hubbub.tables import csv_blocks, labels, records
from hubbub.tables.records import Table, encode_table, read_table
from hubbub.tables.sources import Source


@contextmanager
def changed(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Other values for some names, as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in changes:
            patch.setattr(place, name, value)
        yield


def without_arrow(block: Callable[[], Any]) -> Any:
    """What is read where pyarrow is not installed."""
    absent = [(module, "arrow_available", lambda: False) for module in (labels, csv_blocks)]
    with changed(*absent):
        return block()


def in_small_blocks(block: Callable[[], Any]) -> Any:
    """What is read a few bytes and rows at a time."""
    small = [(csv_blocks, "_BLOCK", 64), (csv_blocks, "_ROWS", 3), (records, "_READ", 2)]
    with changed(*small, (labels, "_LOOKUP", 2)):
        return block()


def content(path: Path, value: str | None = "v") -> tuple[Any, ...] | str:
    """All that a table says, or why it is refused."""
    try:
        table = read_table(path, "u", "k", value)
    except Refused as problem:
        return str(problem)
    values = None if table.values is None else table.values.tolist()
    return table.user.tolist(), table.users, table.key.tolist(), table.keys, values


def same_everywhere(data: bytes, path: Path, value: str | None = "v") -> Any:
    """The content of a CSV file, which does not depend on what reads it, nor on where its blocks end."""
    path.write_bytes(data)
    found = content(path, value)
    assert without_arrow(lambda: content(path, value)) == found
    assert in_small_blocks(lambda: content(path, value)) == found
    assert without_arrow(lambda: in_small_blocks(lambda: content(path, value))) == found
    return found


HEADER = b"u,k,v\n"
ODD = {
    "plain": b"1,a,1\n2,b,0.5\n1,b,-3e-2\n",
    "quotes": b'"1","a,""b""",1\n"1","",2\n2,"line\nfeed",3\n2,"last",4',
    "quotes inside cells": b'1,a"b,1\n1,a""b,2\n1,"a"b,3\n1, "a",4\n',
    "a quote that is never closed": b'1,a,1\n1,"b,2\n3,c,3\n',
    "carriage returns": b"1,a,1\r\n2,b,2\r\n\r\n3,c,3\r\n",
    "a carriage return alone": b"1,a,1\r2,b,2\n3,c,3\n",
    "a carriage return in quotes": b'1,"a\rb",1\n2,"a\r\nb",2\n',
    "blank cells": b",,1\n , ,2\n,a,3\n",
    "blank lines": b"\n1,a,1\n\n\n2,b,2\n\n",
    "repeated rows": b"1,a,1\n1,a,1\n1,a,2\n",
    "words for nothing": b"NA,null,1\nNULL,nan,2\n#N/A,None,3\n",
    "numbers as keys": b"1,7,1\n01,07,2\n1.0,7.0,3\n1e3, 7,4\n",
    "large numbers as keys": b"18446744073709551616,99999999999999999999999,1\n-1,-0,2\n",
    "yes and no": b"true,false,1\nTrue,False,0\n",
    "odd numbers": b"1,a, 1 \n1,b,+2.5\n1,c,1_000\n1,d,.5\n1,e,5.\n1,f,1E3\n1,g,\t7\n",
    "numbers in other scripts": "1,a,١٢\n1,b,３\n".encode(),
    "a number that is none": b"1,a,1\n1,b,0x10\n",
    "no number at all": b"1,a,1\n1,b,\n",
    "too large a number": b"1,a,1\n1,b,1e999\n",
    "too few cells": b"1,a,1\n1,b\n",
    "too many cells": b"1,a,1,x,y\n2,b,2\n3,c,3,\n",
    "spaces on a line": b"1,a,1\n \n",
    "a zero byte": b"1,a\0,1\n1,a,2\n",
    "not UTF-8": b"1,a,1\n1,\xff,2\n",
    "many alphabets": "ü,é,1\n中,文,2\n😀,a\u2028b,3\n".encode(),
    "a mark inside": b"1,\xef\xbb\xbfa,1\n",
    "a long cell": b"1," + b"x" * 131_072 + b",1\n2,b,2\n",
    "too long a cell": b"1,a,1\n2," + b"x" * 131_073 + b",1\n",
    "too long a quoted cell": b'1,a,1\n2,"' + b"x\n" * 70_000 + b'",1\n',
    "a long cell of quotes": b'1,a,1\n2,"' + b'""' * 70_000 + b'",1\n',
    "too long a cell of quotes": b'1,a,1\n2,"' + b'""' * 140_000 + b'",1\n',
    "nothing": b"",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_the_same_with_and_without_arrow(name: str, tmp_path: Path) -> None:
    for header in (HEADER, b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n"), b'x,"k","u","v"\n'):
        rows = ODD[name] if header[0] != ord("x") else b""
        same_everywhere(header + rows, tmp_path / "t.csv")
        same_everywhere((header + rows).replace(b",", b"\t"), tmp_path / "t.tsv")


@pytest.mark.parametrize(
    "name",
    ["plain", "quotes", "carriage returns", "blank lines", "odd numbers", "many alphabets"],
)
def test_regular_files_are_read_by_arrow_to_the_end(name: str, tmp_path: Path) -> None:
    """The comparison above compares something."""
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER + ODD[name])
    place = csv_blocks._Place()
    with path.open("rb") as file:
        blocks = csv_blocks.CsvFile(Source(path), ["u", "k"], "v")._by_arrow(file, place)
        rows = sum(len(texts[0]) for texts, _ in blocks)
    assert (place.unused, rows) == (b"", read_table(path, "u", "k").rows)


def test_what_some_odd_files_say(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    quoted = same_everywhere(HEADER + ODD["quotes"], path)
    assert quoted == (
        [0, 0, 1, 1],
        2,
        [1, 0, 3, 2],
        ["", 'a,"b"', "last", "line\nfeed"],
        [1.0, 2.0, 3.0, 4.0],
    )
    numbers = same_everywhere(HEADER + ODD["odd numbers"], path)
    assert numbers[-1] == [1.0, 2.5, 1000.0, 0.5, 5.0, 1000.0, 7.0]
    assert same_everywhere(HEADER + ODD["numbers as keys"], path)[3] == [" 7", "07", "7", "7.0"]
    assert same_everywhere(HEADER + ODD["many alphabets"], path)[3] == ["a\u2028b", "é", "文"]
    for name, line in (("too few cells", 3), ("no number at all", 3), ("too long a cell", 3)):
        assert f"line {line}" in same_everywhere(HEADER + ODD[name], path)
    assert len(same_everywhere(HEADER + ODD["a long cell"], path)[3][1]) == 131_072


@pytest.mark.parametrize(
    "header", [b'u,"k\nk",v,k\n', b"v,v,u,k,k\n", b"k,u\n", b"\n", b"u,k,v", b'u,"k""",v,k\n']
)
def test_headers(header: bytes, tmp_path: Path) -> None:
    same_everywhere(header + b"1,2,3,4,5\n" * 3, tmp_path / "t.csv")
    same_everywhere(header + b"1,2,3,4\n" * 3, tmp_path / "t.csv", None)


def test_one_column_for_everything(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"u\n3\n\n12\n")
    for read in (without_arrow, in_small_blocks, lambda block: block()):
        table = read(lambda: read_table(path, "u", "u", "u"))
        assert (table.user.tolist(), table.keys, table.values.tolist()) == ([1, 0], ["12", "3"], [3.0, 12.0])


@steady
@given(st.text(alphabet='ab01,"\n\r .', max_size=60))
@example('1,"",1\n1,"""",1\n')
@example('""1,a,1\n')
def test_random_rows_are_the_same_with_and_without_arrow(tmp_path_factory: Any, rows: str) -> None:
    same_everywhere(HEADER + rows.encode(), tmp_path_factory.getbasetemp() / "rows.csv")


def test_later_blocks_by_the_csv_module_have_their_lines(tmp_path: Path) -> None:
    """Arrow reads the first blocks, and what is wrong in a later one is found with its line."""
    rows = b"".join(b"%d,key,1\n" % number for number in range(50))
    for end, line in ((b"1,key,x\n", 52), (b"1,key\n", 52), (b'1,"ke\ny",1\n\n1,key,\n', 55)):
        assert f"line {line}" in same_everywhere(HEADER + rows + end, tmp_path / "t.csv")


# Labels


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([5, -3, 5, 7], dtype=np.int8),
        np.array([1 << 62, -(1 << 62), 0]),
        np.array([0, (1 << 64) - 1, 3, 3], dtype=np.uint64),
        np.array([1 << 63, (1 << 63) + 2, 1 << 63], dtype=np.uint64),
        np.array([1 << 40, (1 << 40) + 3], dtype=np.uint64),
        np.array([2.5, -1.0, 2.5]),
        np.array([True, False, True]),
        np.array(["2026-01-02", "2025-01-01"], dtype="datetime64[D]"),
    ],
    ids=str,
)
def test_numbers_as_labels(numbers: Any, tmp_path: Path) -> None:
    """Sorted as numbers, whatever their type and range, and however the rows are cut into chunks."""
    np.savez(tmp_path / "t.npz", u=numbers, k=numbers)
    pq.write_table(pa.table({"u": numbers, "k": numbers}), tmp_path / "t.parquet")
    expected, places = np.unique(numbers, return_inverse=True)
    for path in (tmp_path / "t.npz", tmp_path / "t.parquet"):
        for found in (content(path, None), in_small_blocks(lambda path=path: content(path, None))):
            assert found[0] == found[2] == places.tolist()
            assert found[3] == [str(label) for label in expected.tolist()]


def test_text_in_parquet_and_npz_is_text_in_csv(tmp_path: Path) -> None:
    users, keys = ["zoe", "x", "ü", "zoe", "10"], ["b", "a", "NA", "10", "9"]
    rows = "".join(f"{user},{key},1\n" for user, key in zip(users, keys, strict=True))
    expected = same_everywhere(HEADER + rows.encode(), tmp_path / "t.csv", None)
    np.savez(tmp_path / "t.npz", u=users, k=keys)
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        columns = {"u": pa.array(users, pa.string()).cast(kind), "k": pa.array(keys, pa.string()).cast(kind)}
        pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
        assert content(tmp_path / "t.parquet", None) == expected
        assert in_small_blocks(lambda: content(tmp_path / "t.parquet", None)) == expected
    assert content(tmp_path / "t.npz", None) == expected
    assert without_arrow(lambda: in_small_blocks(lambda: content(tmp_path / "t.npz", None))) == expected


def test_missing_values_are_counted_in_all_row_groups(tmp_path: Path) -> None:
    columns = {"u": [1, 2, 3, 4], "k": ["a", None, "b", None], "v": [1.0, 2.0, None, 4.0]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=1)
    assert "column 'k' has 2 missing values" in str(content(tmp_path / "t.parquet"))


# Records


def random_table(rng: np.random.Generator, rows: int, users: int, keys: int) -> Table:
    values = rng.integers(0, 2, rows).astype(np.float64)
    names = [str(key) for key in range(keys)]
    return Table(rng.integers(0, users, rows), users + 3, rng.integers(0, keys, rows), names, values)


@pytest.mark.parametrize("keys", [10, 1 << 20])
def test_records_do_not_depend_on_how_many_users_are_sorted_at_a_time(keys: int) -> None:
    """By hand: of each pair of user and key the last row; 0 takes it out. Users without rows have empty records."""
    table = random_table(np.random.default_rng(5), 500, 40, keys)
    assert table.values is not None
    rows = zip(table.user.tolist(), table.key.tolist(), table.values.tolist(), strict=True)
    last = {(user, key): value for user, key, value in rows}
    kept = sorted(pair for pair, value in last.items() if value)
    for step in (1, 7, 100, 1 << 21):
        with changed((records, "_SORT", step)):
            entries, summary = encode_table(small_task(size=keys), table)
        owner = np.repeat(np.arange(len(entries)), np.diff(entries.offsets))
        assert list(zip(owner.tolist(), entries.ids.tolist(), strict=True)) == kept
        assert (summary.records, summary.entries) == (43, len(kept))
        assert (summary.repeated, summary.absent) == (500 - len(last), len(last) - len(kept))


def test_pairs_too_many_for_one_number_are_sorted_all_the_same() -> None:
    """Where pair and place do not fit into 64 bits together, the order is the same."""

    class Many(list[str]):
        def __len__(self) -> int:
            return 1 << 55

    table = random_table(np.random.default_rng(6), 300, 20, 5)
    many = Table(table.user, table.users, table.key, Many(), None)
    [(order, last)], [(other, same)] = (list(records._in_order(one)) for one in (table, many))
    assert order.tolist() == other.tolist()
    assert last.tolist() == same.tolist()


def test_an_arrow_that_cannot_be_imported_is_stepped_around(tmp_path: Path) -> None:
    """One that was built for another NumPy, say: as if there were none."""
    broken = tmp_path / "pyarrow"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('built for another NumPy')")
    path = tmp_path / "t.csv"
    path.write_text('u,k\nann,a\nbob,"b,\nb"\n')
    script = f"from hubbub.tables.records import read_table; print(read_table({str(path)!r}, 'u', 'k').keys)"
    read = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert read.stdout == "['a', 'b,\\nb']\n"


# Room


ROOM = """
import resource, sys
from hubbub.tables import csv_blocks, labels, records
if sys.argv[2] == "plain":
    csv_blocks.arrow_available = labels.arrow_available = lambda: False
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = records.read_table(sys.argv[1], "u", "k")
assert max(map(len, table.keys)) == 4027
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


@pytest.mark.parametrize("how", ["arrow", "plain"])
def test_one_long_key_does_not_multiply(how: str, tmp_path: Path) -> None:
    """200,000 rows, one key of 4,027 letters: as fixed-width text that alone would be 3.2 GB."""
    rows = "".join(f"{row // 4},{row % 1000}\n" for row in range(200_000))
    path = tmp_path / "t.csv"
    path.write_text("u,k\n" + rows + "1," + "x" * 4027 + "\n")
    script = [sys.executable, "-c", ROOM, str(path), how]
    grown = subprocess.run(script, capture_output=True, text=True, check=True, timeout=300).stdout
    assert int(grown) < 400_000, "kilobytes"


def test_labels_take_4_bytes_a_row() -> None:
    """A million rows with 1,000 labels, of which one is long, chunk by chunk."""
    chunk = [str(number % 1000) for number in range(100_000)]
    for kind in (labels.Texts, labels.Integers, labels.Sortable):
        column = kind()
        chunks = chunk if kind is labels.Texts else np.array(chunk, dtype=np.int64)
        tracemalloc.start()
        for _ in range(10):
            column.add(chunks)
        found, codes = column.finish()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(found), len(codes)) == (1000, 1_000_000)
        assert peak < 20_000_000, kind
