"""Reading a table of keys and values, and a list of keys, from files."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from hubbub.primitives.errors import Refused
from hubbub.tables.csv_blocks import wrong_width
from hubbub.tables.sources import Source, find_column

Number = TypeVar("Number", int, float)

#: A whole number further from 0 is read as this: what it is released as is bounded far below.
_FURTHEST = (1 << 63) - 1


def read_table(
    path: str | Path | Source,
    names: Sequence[str],
    numbers: Literal["none", "counts", "reals"] = "counts",
    tick: Callable[[int], None] = lambda _: None,
) -> tuple[Any, ...]:
    """The named columns of a table with a header line, as lists of text; the last one as numbers, if it holds any.

    What is no number is refused with its line. `tick` is told how many bytes have been read, for a progress bar.
    """
    texts: list[list[str]] = [[] for _ in names[: len(names) - (numbers != "none")]]
    found: array[Any] = array("q" if numbers == "counts" else "d")
    parse: Callable[[str], float] = _whole if numbers == "counts" else _real
    source = Source.of(path)
    for line, row in _rows(source, names, tick):
        if numbers != "none":
            try:
                found.append(parse(row[-1]))
            except ValueError:
                what = "whole number" if numbers == "counts" else "finite number"
                raise Refused(
                    f"{source}, line {line}: {row[-1]!r} in column {names[-1]!r} is not a {what}."
                ) from None
        for column, cell in zip(texts, row, strict=False):
            column.append(cell)
    return (*texts, np.array(found)) if numbers != "none" else tuple(texts)


def _whole(text: str) -> int:
    try:
        number: int | Decimal = int(text)
    except ValueError:
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise ValueError from None
        if not number.is_finite() or number != number.to_integral_value():
            raise ValueError from None
    return int(min(max(number, -_FURTHEST), _FURTHEST))


def _real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _rows(
    source: Source, wanted: Sequence[str], tick: Callable[[int], None]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The wanted cells of every row, and the row's line."""
    if source.ending in (".parquet", ".npz"):
        raise Refused(f"{source}: tables of counts are read from .csv and .tsv files, also .gz.")
    with source.opened() as file:
        rows = source.rows(file)
        header = next(rows, (0, None))[1]
        if header is None:
            raise Refused(f"{source} is empty; a header line with column names is needed.")
        places = [find_column(source, header, name) for name in wanted]
        seen = 0
        for count, (line, row) in enumerate(rows, 1):
            if not row:
                continue
            if len(row) != len(header):
                raise wrong_width(source, line, len(row), len(header))
            yield line, tuple(row[place] for place in places)
            if count % 65536 == 0 and source.size is not None:
                position = file.tell()
                tick(position - seen)
                seen = position


def read_pairs(path: str | Path | Source, what: str, kind: Callable[[str], Number]) -> dict[Number, int]:
    """Rows of a number and how many there are of it, after a header."""
    pairs: dict[Number, int] = {}
    source = Source.of(path)
    pattern = re.compile(r"\s*([0-9]+)\s*" if kind is int else r"\s*([0-9]*\.?[0-9]+)\s*", re.ASCII)
    with source.opened() as file:
        rows = source.rows(file)
        next(rows, None)
        for line, row in rows:
            if not "".join(row).strip():
                continue
            matches = (
                len(row) == 2
                and pattern.fullmatch(row[0])
                and re.fullmatch(r"\s*[0-9]+\s*", row[1], re.ASCII)
            )
            if not matches or max(map(len, row)) > 20:
                raise Refused(f"{source}, line {line}: {what} are expected, in two columns (--delimiter).")
            number = kind(row[0])
            pairs[number] = pairs.get(number, 0) + int(row[1])
    return pairs


def read_keys(path: str | Path) -> list[str]:
    """One key per line."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8 text.") from None


def read_vocabulary(path: str | Path) -> list[str]:
    """The keys in a text file, one per line; empty lines do not count."""
    keys = [line for line in read_keys(path) if line]
    if not keys:
        raise Refused(f"{path} lists no keys.")
    return keys
