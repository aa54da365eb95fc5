"""Columns of a table as the bytes of a file."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from hubbub.primitives.errors import Refused, optional

#: Lines of a CSV file that are made at a time.
_LINES = 1 << 16

#: What a table in a file says of itself in every row; `note` has warnings and notes, in the first row only.
ABOUT_TYPES = {
    "quantity": "string",
    "level": "double",
    "simultaneous": "bool",
    "epsilon": "double",
    "reports": "int64",
    "dropped": "double",
    "long_records": "double",
    "long_records_error": "double",
    "note": "string",
    "forgers": "int64",
    "group": "string",
}
ABOUT_COLUMNS = tuple(ABOUT_TYPES)[:-2]


def table_kind(path: str | Path) -> str:
    """The ending by which estimates are written; a name that ends otherwise is refused."""
    kind = Path(path).suffix.lower()
    if kind not in (".csv", ".json", ".parquet"):
        raise Refused(f"{path}: write estimates to a name that ends in .csv, .json or .parquet.")
    return kind


def stacked(parts: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The same columns of several tables below each other."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def in_first_row(text: str, count: int) -> list[str]:
    """A column of so many rows that has the text once."""
    return [text, *[""] * (count - 1)][:count]


def csv_bytes(columns: dict[str, list[Any]]) -> bytes:
    """Columns of text, truth values or numbers as CSV; None is an empty cell."""
    parts = [",".join(_cells(list(columns))) + "\n"]
    for start in range(0, len(next(iter(columns.values()))), _LINES):
        cells = [_cells(column[start : start + _LINES]) for column in columns.values()]
        parts += [f"{line}\n" for line in map(",".join, zip(*cells, strict=True))]
    return "".join(parts).encode()


def _cells(column: list[Any]) -> list[str]:
    """A column as it stands in a CSV file; a number in the fewest digits that read back as the same one."""
    if not column or isinstance(column[0], bool):
        return [str(cell) for cell in column]
    if isinstance(column[0], str):
        quoted = re.compile('[",\r\n]').search
        return [f'"{cell.replace(chr(34), 2 * chr(34))}"' if quoted(cell) else cell for cell in column]
    numbers = to_json(column).decode()[1:-1].split(",")
    return ["" if cell == "null" else cell for cell in numbers] if None in column else numbers


def parquet_bytes(table: Any) -> bytes:
    """An Arrow table as a Parquet file."""
    sink = io.BytesIO()
    optional("pyarrow.parquet", "lake").write_table(table, sink)
    return sink.getvalue()
