"""Tables of text: compressed, piped in, other delimiters and encodings; refusals name line and option."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import reason, refused
from hubbub.tables import counts, csv_blocks, records
from hubbub.tables.sources import Source, TextForm

ROWS = "u,k,n\n1,zoë,2\n2,b,3\n"


def packed(data: bytes) -> bytes:
    """The same every time."""
    return gzip.compress(data, mtime=0)


READERS: list[Any] = [
    lambda path, form: records.read_table(Source(Path(path), form), "u", "k", "n"),
    lambda path, form: counts.read_table(Source(Path(path), form), ["u", "k", "n"]),
]


def same(table: Any) -> tuple[list[str], list[float]]:
    """The keys in order of rows, and the numbers."""
    if isinstance(table, records.Table):
        assert table.values is not None
        return [table.keys[place] for place in table.key], table.values.tolist()
    return table[1], table[2].tolist()


@pytest.fixture(params=["arrow", "row by row"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "row by row":
        monkeypatch.setattr(csv_blocks, "arrow_available", lambda: False)
        monkeypatch.setattr("hubbub.tables.labels.arrow_available", lambda: False)


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("read", READERS, ids=["records", "counts"])
@pytest.mark.parametrize(
    ("name", "data", "form"),
    [
        ("t.csv", ROWS.encode(), TextForm()),
        ("t.csv", ROWS.encode("utf-8-sig"), TextForm()),
        ("t.csv.gz", packed(ROWS.encode()), TextForm()),
        ("T.TSV.GZ", packed(ROWS.replace(",", "\t").encode()), TextForm()),
        ("t.csv", ROWS.replace(",", ";").encode(), TextForm(delimiter=";")),
        ("t.csv", ROWS.replace(",", "\t").encode(), TextForm(delimiter="tab")),
        ("t.csv", ROWS.replace(",", "\t").encode(), TextForm(delimiter=r"\t")),
        ("t.csv", ROWS.replace(",", "¦").encode(), TextForm(delimiter="¦")),
        ("t.csv", ROWS.encode("cp1252"), TextForm(encoding="cp1252")),
        ("t.csv", ROWS.encode("utf-16"), TextForm(encoding="utf-16")),
        ("t.csv.gz", packed(ROWS.replace(",", ";").encode("latin-1")), TextForm(";", "latin-1")),
        ("t.csv", ROWS.encode("utf-8-sig"), TextForm(encoding="utf_8")),
    ],
)
def test_the_same_table(name: str, data: bytes, form: TextForm, read: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert same(read(tmp_path / name, form)) == (["zoë", "b"], [2, 3])


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("read", READERS, ids=["records", "counts"])
def test_standard_input(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cannot be read twice: also where Arrow gives up after some blocks."""
    monkeypatch.setattr(csv_blocks, "_BLOCK", 64)
    rows = "u,k,n\n" + "".join(f"{place},key {place},1\n" for place in range(50)) + '50,"a ""b"" c"\t,1\n'
    for text in (rows, rows.replace("1\n", '1"\n', 0) + '51,x"y,1\n'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Once(text.encode())))
        keys, _ = same(read("-", TextForm()))
        assert keys == [*(f"key {place}" for place in range(50)), 'a "b" c\t', 'x"y'][: len(keys)]
        assert len(keys) == text.count("\n") - 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Once(b"u,k,n\n1,2\n")))
    assert "standard input, line 2: 2 columns" in reason(lambda: read("-", TextForm()))


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("read", READERS, ids=["records", "counts"])
def test_a_quote_that_is_never_closed(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make one cell of the rest of a table. One that is closed in the last line is no such quote."""
    rows = "u,k,n\n" + "".join(f"{place},key {place},1\n" for place in range(5))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Once((rows + '5,"x,1\n6,y,1\n').encode())))
    assert "standard input, line 7: a quote is opened" in reason(lambda: read("-", TextForm()))
    for last in ('5,"x\ny",1\n', '5,x,"1"', '5,"x\n\0",1'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Once((rows + last).encode())))
        assert len(same(read("-", TextForm()))[0]) == 6


class Once(io.BytesIO):
    """What is piped in."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("read", READERS, ids=["records", "counts"])
@pytest.mark.parametrize(
    ("name", "data", "form", "parts"),
    [
        ("t.csv", ROWS.encode("cp1252"), TextForm(), ["line 2", "not UTF-8 text", "--encoding cp1252"]),
        ("t.csv", b"u,k,n\n" + b"1,a,2\n" * 5000 + b"1,\xe9,2\n", TextForm(), ["line 5002", "--encoding"]),
        ("t.csv", ROWS.encode("utf-16"), TextForm(), ["line 1", "--encoding"]),
        ("t.csv", ROWS.encode(), TextForm(encoding="ascii"), ["line 2", "not ascii text", "--encoding"]),
        ("t.csv", ROWS.encode(), TextForm(encoding="utf-16"), ["--encoding"]),
        (
            "t.csv",
            ROWS.replace(",", ";").encode(),
            TextForm(),
            ["no column 'u'", "a semicolon", "--delimiter"],
        ),
        ("t.tsv", ROWS.encode(), TextForm(), ["no column 'u'", "a comma", "--delimiter"]),
        ("t.csv", b"u,k,n,k\n1,2,3,4\n", TextForm(), ["more than one column 'k'"]),
        ("t.csv", b"u,k,n\n1,2,3,4\n", TextForm(), ["line 2", "4 columns where the header has 3"]),
        ("t.csv.gz", ROWS.encode(), TextForm(), ["not a readable gzip file"]),
        (
            "t.csv.gz",
            packed((ROWS + "1,c,2\n" * 999).encode())[:-20],
            TextForm(),
            ["not a readable gzip file"],
        ),
        ("t.parquet.gz", packed(b""), TextForm(), [".csv"]),
    ],
)
def test_what_is_wrong_is_said(
    name: str, data: bytes, form: TextForm, parts: list[str], read: Any, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with refused(str(tmp_path / name), *parts):
        read(tmp_path / name, form)


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    for delimiter in ("", "::", '"', "\n"):
        with refused("--delimiter"):
            TextForm(delimiter=delimiter)
    for encoding in ("nonsense", "rot13", "", "\0"):
        with refused("--encoding"):
            TextForm(encoding=encoding)
    for name in ("t.npz", "t.parquet"):
        (tmp_path / name).write_bytes(b"")
        with refused("are for tables of text"):
            records.read_table(Source(tmp_path / name, TextForm(delimiter=";")), "u", "k")
        with refused("counts are read from .csv"):
            counts.read_table(tmp_path / name, ["u"])


def test_pairs(tmp_path: Path) -> None:
    path = tmp_path / "h.csv.gz"
    path.write_bytes(packed(b"entries;users\n1;5\n\n 2 ;6\n2;1\n"))
    assert counts.read_pairs(Source(path, TextForm(";")), "x", int) == {1: 5, 2: 7}
    with refused(str(path), "line 2", "entries and users are expected", "--delimiter"):
        counts.read_pairs(path, "entries and users", int)


def test_names() -> None:
    for name, stem in (("a/visits.csv.gz", "visits"), ("visits.2026.csv", "visits.2026"), ("-", "table")):
        assert Source(Path(name)).stem == stem
