"""Reading a table of keys and values, and a list of keys, from files."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused


def read_table(
    path: str | Path, key: str, value: str, counts: bool, tick: Callable[[int], None] = lambda _: None
) -> tuple[list[str], NDArray[Any]]:
    """Two columns of a CSV file with a header line; what is no number is refused with its line.

    `tick` is told how many bytes have been read, for a progress bar.
    """
    keys: list[str] = []
    numbers: array[Any] = array("q" if counts else "d")
    parse: Callable[[str], float] = _whole if counts else _real
    for line, row in _rows(path, (key, value), tick):
        try:
            numbers.append(parse(row[1]))
        except (ValueError, OverflowError):
            what = "whole number" if counts else "finite number"
            raise Refused(f"{path}, line {line}: {row[1]!r} in column {value!r} is not a {what}.") from None
        keys.append(row[0])
    return keys, np.frombuffer(numbers, dtype=np.int64 if counts else np.float64) if numbers else np.zeros(0)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if number != math.floor(number):
            raise ValueError from None
        return int(number)


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
