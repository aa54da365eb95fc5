"""Tables in memory: DataFrames of pandas and polars, tables of pyarrow, and mappings from user to record.

They go the same way as files: columns of labels and values, added to what a table is made of (`Columns`). A library is
recognised by the name of the module that a class comes from, so none has to be there, or be imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused, optional

#: What a mapping is called in messages.
MAPPING = "The mapping"
_FRAMES = {
    ("pandas", "DataFrame"): "The DataFrame",
    ("polars", "DataFrame"): "The DataFrame",
    ("pyarrow", "Table"): "The Arrow table",
    ("pyarrow", "RecordBatch"): "The Arrow table",
}


class Columns(Protocol):
    """Where columns are added to, see `hubbub.tables.records`."""

    texts: list[str]
    value: str | None
    names: list[str]

    def find(self, header: list[str], name: str) -> int:
        """The place of a column; one that is not there is refused."""

    def add(self, place: int, chunk: Any) -> None:
        """The labels of the next rows."""

    def add_values(self, chunk: NDArray[Any], first: int) -> None:
        """The values of the next rows."""


def name_of(table: Any) -> str:
    """What a table in memory is called in messages; what is none is refused."""
    return _FRAMES[_kind(table)]


def _kind(table: Any) -> tuple[str, str]:
    """Library and class of a table, or of what it is derived from."""
    for base in type(table).__mro__:
        kind = (base.__module__.partition(".")[0], base.__name__)
        if kind in _FRAMES:
            return kind
    raise Refused(
        "A table is the path of a file, a DataFrame of pandas or polars, a table of pyarrow, or a mapping from user to "
        f"record, not a {type(table).__name__}."
    )


def fill_from_frame(table: Any, columns: Columns) -> None:
    """Add the columns of a DataFrame or an Arrow table."""
    library, _ = _kind(table)
    header = [str(name) for name in (table.schema.names if library == "pyarrow" else table.columns)]
    for name in columns.names:
        columns.find(header, name)
    if library == "pyarrow":
        add_batches(table.to_batches() if hasattr(table, "to_batches") else [table], columns, name_of(table))
        return
    read = _from_pandas if library == "pandas" else _from_polars

    def column(name: str) -> Any:
        found = table.iloc[:, header.index(name)] if library == "pandas" else table[name]
        missing = int(found.isna().sum()) if library == "pandas" else found.null_count()
        if missing:
            raise missing_values(name_of(table), name, missing)
        return read(found)

    for place, name in enumerate(columns.texts):
        columns.add(place, column(name))
    if columns.value:
        columns.add_values(np.asarray(column(columns.value)), 0)


def missing_values(where: Any, name: str, count: int) -> Refused:
    """What is said of a column with holes."""
    return Refused(f"{where}: column {name!r} has {count} missing values.")


def _from_pandas(column: Any) -> Any:
    """Text as a list, anything else as a NumPy array."""
    if column.dtype.name == "category":
        column = column.astype(column.cat.categories.dtype)
    if column.dtype.kind in "OU":
        listed = column.tolist()
        return listed if all(isinstance(cell, str) for cell in listed) else np.array(listed, dtype=object)
    return column.to_numpy()


def _from_polars(column: Any) -> Any:
    if str(column.dtype).startswith(("String", "Categorical", "Enum")):
        return [str(cell) for cell in column.to_list()]
    return column.to_numpy()


def add_batches(batches: Iterable[Any], columns: Columns, where: Any) -> None:
    """Add the batches of an Arrow table; a column with holes is refused with their number."""
    pyarrow = optional("pyarrow", "lake")
    missing = dict.fromkeys(columns.names, 0)
    done = 0
    for batch in batches:
        for name in missing:
            missing[name] += batch.column(name).null_count
        if not any(missing.values()):
            for place, name in enumerate(columns.texts):
                columns.add(place, _labels(pyarrow, batch.column(name)))
            if columns.value:
                columns.add_values(batch.column(columns.value).to_numpy(zero_copy_only=False), done)
        done += len(batch)
    for name, count in missing.items():
        if count:
            raise missing_values(where, name, count)


def _labels(pyarrow: Any, column: Any) -> Any:
    """Text as it is, anything else as a NumPy array."""
    if isinstance(column, pyarrow.DictionaryArray):
        column = column.dictionary_decode()
    kinds = pyarrow.types
    text = (
        kinds.is_string(column.type)
        or kinds.is_large_string(column.type)
        or kinds.is_string_view(column.type)
    )
    return column if text else column.to_numpy(zero_copy_only=False)


def mapped_values(table: Mapping[Any, Any]) -> bool:
    """Whether the records of a mapping have values: they are mappings themselves."""
    kinds = {isinstance(record, Mapping) for record in table.values()}
    if len(kinds) > 1:
        raise Refused(
            "Records are all mappings from key to value, or all collections of keys; these are of both kinds."
        )
    return kinds == {True}


def fill_from_mapping(table: Mapping[Any, Any], columns: Columns) -> int:
    """Add the records of a mapping from user to record; returns how many users it has, those without entries, too."""
    owners: list[int] = []
    names: list[str] = []
    numbers: list[float] = []
    for place, (user, record) in enumerate(table.items()):
        if user is None or not str(user).strip():
            raise Refused(f"{MAPPING}: nobody is named by {user!r}; whose record is it?")
        if (
            isinstance(record, str | bytes)
            or not isinstance(record, Iterable)
            or (hasattr(record, "items") and not isinstance(record, Mapping))
        ):
            raise Refused(
                f"The record of {user!r} is a {type(record).__name__}; a record is a mapping from key to value, or a "
                "collection of keys."
            )
        for key in record:
            if isinstance(key, bool) or not isinstance(key, str | int | np.integer):
                raise Refused(f"The record of {user!r} has the key {key!r}; keys are text or whole numbers.")
            owners.append(place)
            names.append(str(key))
            if isinstance(record, Mapping):
                numbers.append(_number(user, key, record[key]))
    columns.add(0, np.array(owners, dtype=np.int64))
    columns.add(1, names)
    if columns.value:
        columns.add_values(np.array(numbers, dtype=np.float64), 0)
    return len(table)


def _number(user: Any, key: Any, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise Refused(f"The record of {user!r} has {value!r} at {key!r}, which is not a finite number.")
    return number
