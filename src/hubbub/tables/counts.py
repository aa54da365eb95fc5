"""Reading a table of keys and values, and a list of keys, from files."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hubbub.primitives.errors import Refused

#: A whole number further from 0 is read as this: what it is released as is bounded far below.
_FURTHEST = (1 << 63) - 1


def read_table(
    path: str | Path,
    names: Sequence[str],
    numbers: Literal["none", "counts", "reals"] = "counts",
    tick: Callable[[int], None] = lambda _: None,
) -> tuple[Any, ...]:
    """The named columns of a CSV file with a header line, as lists of text; the last one as numbers, if it holds any.

    What is no number is refused with its line. `tick` is told how many bytes have been read, for a progress bar.
    """
    texts: list[list[str]] = [[] for _ in names[: len(names) - (numbers != "none")]]
    found: array[Any] = array("q" if numbers == "counts" else "d")
    parse: Callable[[str], float] = _whole if numbers == "counts" else _real
    for line, row in _rows(path, tuple(names), tick):
        if numbers != "none":
            try:
                found.append(parse(row[-1]))
            except ValueError:
                what = "whole number" if numbers == "counts" else "finite number"
                raise Refused(
                    f"{path}, line {line}: {row[-1]!r} in column {names[-1]!r} is not a {what}."
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
    path: str | Path, wanted: tuple[str, ...], tick: Callable[[int], None]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    try:
        with Path(path).open("rb") as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            header = next(reader, None)
            if header is None:
                raise Refused(f"{path} is empty; a header line with column names is needed.")
            for name in wanted:
                if header.count(name) != 1:
                    raise Refused(
                        f"{path} has {'no' if name not in header else 'more than one'} column {name!r}; "
                        f"its columns are {', '.join(map(repr, header))}."
                    )
            places = [header.index(name) for name in wanted]
            seen = 0
            for count, row in enumerate(reader, 1):
                if not row:
                    continue
                if len(row) != len(header):
                    raise Refused(
                        f"{path}, line {reader.line_num}: {len(row)} columns where the header has {len(header)}."
                    )
                yield reader.line_num, tuple(row[place] for place in places)
                if count % 65536 == 0:
                    position = file.tell()
                    tick(position - seen)
                    seen = position
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8 text.") from None
    except csv.Error as problem:
        raise Refused(f"{path} is not a readable CSV file: {problem}.") from None


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
