"""The data sets of Zhou et al., Table III, in the files they are distributed as, and a compact form.

None of them is shipped: whoever has a copy names the folder.

| table | data | file as distributed | ratings |
|---|---|---|---|
| IV | ModCloth (the paper's "Clothing") | modcloth_final_data.json, a JSON object per line | `quality`, 1 to 5 |
| V | RentTheRunway | renttherunway_final_data.json, a JSON object per line | `rating`, 2 to 10, as text |
| VI | MovieLens 20M | ratings.csv: userId,movieId,rating,timestamp | 0.5 to 5 |

All may be compressed (.gz). The compact form is an .npz file with the integer arrays `user` (0 .. n - 1) and `item`
(0 .. d - 1), the numbers `n` and `d`, `value` in [-1, 1] (left out for sets), and where records repeat a pair, the
superseded ones as `extra_user`, `extra_item`, `extra_value`.

Ratings are mapped linearly to [-1, 1]. Users without a rating count, their records are empty. When a user rates an
item twice, the last rating counts.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import GRID, Entries, sample_down
from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.errors import Refused
from hubbub.simulation.populations import Population


@dataclass(frozen=True)
class Dataset:
    """Records in [-1, 1] over keys 0 .. keys - 1, and how many rated records each user has, repeated pairs too."""

    entries: Entries
    keys: int
    rated: Int64s

    def cut(self, limit: int, seed: int) -> Population:
        """At most `limit` entries per user, drawn at random from longer records."""
        return Population(sample_down(self.entries, limit, InsecureCoins(seed))[0], self.keys)

    def left(self, limit: int) -> int:
        """Rated records that are left when at most `limit` per user are kept (as Table III counts them)."""
        return int(np.minimum(self.rated, limit).sum())


@dataclass(frozen=True)
class Published:
    """A row of Table III, and where the data is found in a folder."""

    title: str
    files: tuple[str, ...]
    read: Callable[[Path], Dataset]
    users: int
    keys: int
    records: int
    limit: int

    def find(self, folder: Path | None) -> Path:
        """The data's file in a folder."""
        for name in self.files:
            if folder is not None and (folder / name).is_file():
                return folder / name
        *others, last = self.files
        raise Refused(
            f"This needs the {self.title} data, which is not shipped: put {', '.join(others)} or {last} "
            f"into {folder or 'a folder'} and give the folder as --data."
        )

    def compare(self, users: int, keys: int, records: int) -> str:
        """What differs from Table III, as a sentence."""
        found = (
            ("users", self.users, users),
            ("keys", self.keys, keys),
            (f"records of at most {self.limit} per user", self.records, records),
        )
        parts = [
            f"{here:,} {what} ({'as printed' if here == printed else f'{printed:,} printed'})"
            for what, printed, here in found
        ]
        return f"Against Table III, the file has {parts[0]}, {parts[1]} and {parts[2]}."


@lru_cache(maxsize=1)
def load(name: str, path: str) -> Dataset:
    """A published data set from its file, kept for the next job of the same process."""
    file = Path(path)
    return read_compact(file) if file.suffix == ".npz" else PUBLISHED[name].read(file)


# As distributed


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be compressed."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            yield from file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as problem:
        raise Refused(f"{path} cannot be read: {problem}.") from None


def _read_lines(path: Path, rating: str, low: float, high: float) -> Dataset:
    """JSON lines with `user_id`, `item_id` and a rating, which may be missing."""
    users: list[str] = []
    items: list[str] = []
    ratings: list[float] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            user, item, given = str(record["user_id"]), str(record["item_id"]), record.get(rating)
            value = math.nan if given is None else float(given)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refused(
                f"{path}, line {number}: a JSON object with user_id, item_id and {rating} is needed."
            ) from None
        if given is not None and not low <= value <= high:
            raise Refused(
                f"{path}, line {number}: {rating} must be between {low:g} and {high:g}, not {given}."
            )
        users.append(user)
        items.append(item)
        ratings.append(value)
    return _rated(path, np.array(users), np.array(items), np.array(ratings), low, high)


def read_modcloth(path: Path) -> Dataset:
    """ModCloth: `quality` from 1 to 5."""
    return _read_lines(path, "quality", 1, 5)


def read_renttherunway(path: Path) -> Dataset:
    """RentTheRunway: `rating` from 2 to 10, as text."""
    return _read_lines(path, "rating", 2, 10)


def read_movielens(path: Path) -> Dataset:
    """MovieLens: ratings.csv, from 0.5 to 5."""
    lines = _lines(path)
    header = next(lines, "").strip()
    if header != "userId,movieId,rating,timestamp":
        raise Refused(f"{path} does not begin with the line userId,movieId,rating,timestamp.")
    try:
        table = np.loadtxt(lines, delimiter=",", usecols=(0, 1, 2), ndmin=2)
    except ValueError as problem:
        raise Refused(f"{path} is not a table of numbers: {problem}.") from None
    bad = np.flatnonzero(~((table[:, 2] >= 0.5) & (table[:, 2] <= 5)))
    if len(bad):
        raise Refused(
            f"{path}, line {bad[0] + 2}: a rating must be between 0.5 and 5, not {table[bad[0], 2]:g}."
        )
    return _rated(path, table[:, 0], table[:, 1], table[:, 2], 0.5, 5)


def _rated(
    path: Path, users: NDArray[Any], items: NDArray[Any], ratings: Floats, low: float, high: float
) -> Dataset:
    """Labels as numbers, ratings as values; NaN stands for no rating."""
    if not len(ratings):
        raise Refused(f"{path} has no records.")
    names, user = np.unique(users, return_inverse=True)
    titles, item = np.unique(items, return_inverse=True)
    kept = ~np.isnan(ratings)
    values = (2 * ratings[kept] - (low + high)) / (high - low)
    return _assembled(user[kept], item[kept], values, len(names), len(titles))


# The compact form


def read_compact(path: Path) -> Dataset:
    """An .npz file; anything that does not fit is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive}
    except Exception as problem:  # zipfile, zlib, struct and NumPy each have errors of their own
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise Refused(f"{path} is not a readable NPZ file: {first}.") from None
    n, d = (_size(path, arrays, name) for name in ("n", "d"))
    rated = "value" in arrays
    user, item, value = _columns(path, arrays, "", n, d, rated)
    if len(np.unique(user * d + item)) != len(user):
        raise Refused(
            f"{path}: a pair of user and item occurs twice; superseded ones belong into extra_user."
        )
    if "extra_user" in arrays:
        more = _columns(path, arrays, "extra_", n, d, rated)
        user, item, value = (
            np.concatenate([old, new]) for old, new in zip(more, (user, item, value), strict=True)
        )
    return _assembled(user, item, value, n, d)


def _size(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> int:
    found = arrays.get(name)
    if found is None or found.ndim or found.dtype.kind not in "iu" or not 0 < int(found) < 1 << 31:
        raise Refused(f"{path}: {name!r} must be one whole number above 0.")
    return int(found)


def _columns(
    path: Path, arrays: dict[str, NDArray[Any]], prefix: str, n: int, d: int, rated: bool
) -> tuple[Int64s, Int64s, Floats]:
    """user, item and value (1 in sets) of the arrays that begin with `prefix`."""
    names = [prefix + name for name in ("user", "item", "value")[: 3 if rated else 2]]
    found = [arrays[name] for name in names if name in arrays]
    if len(found) < len(names) or len({array.shape for array in found}) != 1 or found[0].ndim != 1:
        raise Refused(f"{path} needs the arrays {', '.join(names)}, one-dimensional and of one length.")
    for name, array, count in zip(names, found, (n, d), strict=False):
        if array.dtype.kind not in "iu" or (len(array) and not 0 <= array.min() <= array.max() < count):
            raise Refused(f"{path}: {name} must hold whole numbers from 0 to {count - 1}.")
    if rated and (found[2].dtype.kind != "f" or not (np.abs(found[2]) <= 1).all()):
        raise Refused(f"{path}: {names[2]} must hold numbers from -1 to 1, none of them missing.")
    value = found[2].astype(np.float64) if rated else np.ones(len(found[0]))
    return found[0].astype(np.int64), found[1].astype(np.int64), value


def _assembled(user: Int64s, item: Int64s, value: Floats, users: int, keys: int) -> Dataset:
    """Records by user and key; of a repeated pair the last one counts."""
    order = np.lexsort((np.arange(len(user)), item, user))
    pair = user[order] * keys + item[order]
    last = np.append(pair[1:] != pair[:-1], True)[: len(pair)]
    kept = order[last]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(user[kept], minlength=users))]).astype(np.int64)
    grid = np.rint(value[kept] * GRID).astype(np.int64)
    rated = np.bincount(user, minlength=users).astype(np.int64)
    return Dataset(Entries(item[kept].astype(np.uint64), grid, offsets), keys, rated)


#: The rows of Table III, by the names the paper gives them.
PUBLISHED = {
    "Clothing": Published(
        "ModCloth",
        ("modcloth.npz", "modcloth_final_data.json.gz", "modcloth_final_data.json"),
        read_modcloth,
        users=47958,
        keys=1378,
        records=79285,
        limit=6,
    ),
    "Renting": Published(
        "RentTheRunway",
        ("renttherunway.npz", "renttherunway_final_data.json.gz", "renttherunway_final_data.json"),
        read_renttherunway,
        users=105571,
        keys=5850,
        records=183052,
        limit=11,
    ),
    "Movies": Published(
        "MovieLens 20M",
        ("movielens_20m.npz", "ratings.csv.gz", "ratings.csv"),
        read_movielens,
        users=138493,
        keys=26744,
        records=7019990,
        limit=100,
    ),
}
