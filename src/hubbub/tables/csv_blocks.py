"""CSV files in blocks: by Arrow where it is there and a block is regular, row by row otherwise.

What a file means is what Python's csv module says. Arrow reads only what both understand alike: UTF-8 text whose rows
end in a line feed, with quotes around whole cells, none of them very long, and as many cells in a row as in the
header. At the first block that is otherwise the csv module takes over and reads the rest of the file; whatever is
wrong in it is found there, and refused with its line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused, optional
from hubbub.tables.labels import arrow_available
from hubbub.tables.sources import Source, find_column

#: Bytes that are read at a time, and rows that the csv module reads at a time.
_BLOCK, _ROWS = 1 << 24, 1 << 12
#: Letters of the longest cell, which is the csv module's own limit.
_LONGEST = 1 << 17
_MARK = b"\xef\xbb\xbf"
_QUOTE, _FEED, _RETURN = b'"\n\r'

#: Text of some rows, column by column (lists, or Arrow arrays), and their numbers if there are any.
Chunk = tuple[list[Any], Floats | None]


@dataclass
class _Place:
    """How far a table has been read: lines, its header once that is known, and bytes that nobody has used yet."""

    lines: int = 0
    header: list[str] | None = None
    begun: bool = False
    unused: bytes = b""


class _Rest(io.RawIOBase):
    """Bytes that were read already, and then the rest of a file: what is piped in cannot be read twice."""

    def __init__(self, first: bytes, file: BinaryIO) -> None:
        self._first, self._file = memoryview(first), file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._first[: len(buffer)] or self._file.read(len(buffer))
        self._first = self._first[len(data) :]
        buffer[: len(data)] = data
        return len(data)


@dataclass(frozen=True)
class CsvFile:
    """A table with a header line. `texts` names the columns of labels, `number` the column of numbers."""

    source: Source
    texts: list[str]
    number: str | None

    @property
    def delimiter(self) -> str:
        return self.source.delimiter

    def chunks(self) -> Iterator[Chunk]:
        """All rows, in order."""
        place = _Place()
        with self.source.opened() as file:
            if arrow_available() and self.source.encoding == "UTF-8" and self.delimiter.isascii():
                yield from self._by_arrow(file, place)
            yield from self._row_by_row(file, place)

    # Row by row

    def _row_by_row(self, file: BinaryIO, place: _Place) -> Iterator[Chunk]:
        """The rest of the table, from the beginning of a row."""
        rest = io.BufferedReader(_Rest(place.unused, file))
        place.unused = b""
        cells = self.source.rows(rest, place.begun, place.lines)
        header = next(cells, (0, []))[1] if place.header is None else place.header
        places = [find_column(self.source, header, name) for name in self.texts]
        last = None if self.number is None else find_column(self.source, header, self.number)
        rows: list[list[str]] = []
        lines: list[int] = []
        try:
            for line, row in cells:
                if row:
                    rows.append(row)
                    lines.append(line)
                if len(rows) == _ROWS:
                    yield self._columns(rows, lines, places, last, len(header))
                    rows, lines = [], []
        except Refused:
            # what is wrong before that is told first
            self._columns(rows, lines, places, last, len(header))
            raise
        yield self._columns(rows, lines, places, last, len(header))

    def _columns(
        self, rows: list[list[str]], lines: list[int], places: list[int], last: int | None, width: int
    ) -> Chunk:
        """The columns of some rows; the first row that is wrong is refused with its line."""
        if all(len(row) == width for row in rows):
            texts = [[row[cell] for row in rows] for cell in places]
            if last is None:
                return texts, None
            try:
                numbers = np.array([float(row[last]) for row in rows], dtype=np.float64)
            except ValueError:
                numbers = np.array([np.nan])
            if np.isfinite(numbers).all():
                return texts, numbers
        for row, line in zip(rows, lines, strict=True):
            if len(row) != width:
                raise wrong_width(self.source, line, len(row), width)
            if last is not None and not math.isfinite(to_number(row[last])):
                raise not_finite(self.source, f"line {line}", row[last], self.number)
        raise AssertionError("a row is wrong, and none of them is")

    # In blocks

    def _by_arrow(self, file: BinaryIO, place: _Place) -> Iterator[Chunk]:
        """Regular blocks up to the first one that is not, which is left unused."""
        while True:
            more = file.read(_BLOCK)
            data = place.unused = place.unused + more
            if not place.begun and data.startswith(_MARK):
                data = place.unused = data[len(_MARK) :]
            place.begun = place.begun or bool(data)
            end = _row_end(data) if more else len(data)
            block = data[:end]
            if not block or not _regular(block, ord(self.delimiter)):
                return
            begin, lines = 0, block.count(b"\n")
            if place.header is None:
                begin = block.find(b"\n") + 1 or len(block)
                if block.count(b'"', 0, begin) % 2:  # a name with a line feed in it
                    return
                place.header = next(csv.reader([block[:begin].decode()], delimiter=self.delimiter), [])
                place.unused, place.lines, lines = data[begin:], 1, lines - 1
            chunk = self._parse(block[begin:], place.header)
            if chunk is None:
                return
            place.unused, place.lines = data[end:], place.lines + lines
            yield chunk

    def _parse(self, block: bytes, header: list[str]) -> Chunk | None:
        """The columns of a block; None if Arrow does not understand it."""
        if not block:
            return None
        arrow, reader = optional("pyarrow", "lake"), optional("pyarrow.csv", "lake")
        text, real = arrow.large_string(), arrow.float64()
        texts = [str(find_column(self.source, header, name)) for name in self.texts]
        last = None if self.number is None else str(find_column(self.source, header, self.number))
        for kind in (text,) if last is None or last in texts else (real, text):
            types = dict.fromkeys(texts, text) | ({last: kind} if last else {})
            try:
                table = reader.read_csv(
                    arrow.BufferReader(block),
                    read_options=reader.ReadOptions(column_names=[str(i) for i in range(len(header))]),
                    parse_options=reader.ParseOptions(
                        delimiter=self.delimiter, newlines_in_values=b'"' in block
                    ),
                    convert_options=reader.ConvertOptions(
                        check_utf8=False, column_types=types, include_columns=list(types), null_values=[]
                    ),
                )
            except arrow.ArrowException:
                continue
            labels = [table[name] for name in texts]
            if last is None:
                return labels, None
            numbers = table[last].to_numpy() if kind == real else to_numbers(table[last].to_pylist())
            return (labels, numbers) if np.isfinite(numbers).all() else None
        return None


def _row_end(data: bytes) -> int:
    """Where the last whole row of the data ends; 0 if that cannot be told.

    An odd number of quotes before a line feed: it is inside a cell, and so is all since the last of these quotes.
    """
    feed = data.rfind(b"\n")
    while feed >= 0:
        if not data.count(b'"', 0, feed) % 2:
            return feed + 1
        feed = data.rfind(b"\n", 0, data.rfind(b'"', 0, feed))
    return 0


def _regular(block: bytes, delimiter: int) -> bool:
    """Whether Arrow and the csv module cannot but agree about a block of whole rows."""
    if b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
        return False
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            return False
    start = 0
    while len(block) - start > _LONGEST:
        start = block.rfind(b"\n", start, start + _LONGEST) + 1
        if not start:
            return False
    return b'"' not in block or _well_quoted(np.frombuffer(block, dtype=np.uint8), delimiter)


def _well_quoted(block: np.ndarray[Any, np.dtype[np.uint8]], delimiter: int) -> bool:
    """Whether every quote opens or closes a cell, or is one half of a doubled quote inside a quoted cell.

    Quotes open and close in turn, where a doubled one closes a cell and opens it again. If then every opening quote
    follows a delimiter, a line feed or a quote, and every closing one is followed by one of them or a carriage return,
    there are no others.
    """
    quotes = np.flatnonzero(block == _QUOTE)
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    before, after = block[opening - 1], block[np.minimum(closing + 1, len(block) - 1)]
    if opening[0] == 0:
        before[0] = _FEED
    fits = np.zeros(256, dtype=np.bool_)
    fits[[delimiter, _FEED, _QUOTE]] = True
    if not fits[before].all():
        return False
    fits[_RETURN] = True
    if not fits[after].all():
        return False
    after[closing == len(block) - 1] = _FEED
    lengths = closing[after != _QUOTE] - opening[before != _QUOTE]
    return int(lengths.max(initial=0)) <= _LONGEST


# Numbers


def to_number(cell: Any) -> float:
    """The number a cell holds, or NaN."""
    try:
        return float(cell)
    except (ValueError, TypeError):
        return math.nan


def to_numbers(cells: list[Any]) -> Floats:
    """The numbers cells hold, NaN where there is none."""
    return np.fromiter(map(to_number, cells), dtype=np.float64, count=len(cells))


def not_finite(source: Any, where: str, cell: Any, name: str | None) -> Refused:
    """The refusal of a cell that is no finite number."""
    return Refused(f"{source}, {where}: {str(cell)!r} in column {name!r} is not a finite number.")


def wrong_width(source: Source, line: int, cells: int, width: int) -> Refused:
    """The refusal of a row that has more or fewer cells than there are columns: which is which is not known."""
    return Refused(f"{source}, line {line}: {cells} columns where the header has {width}.")
