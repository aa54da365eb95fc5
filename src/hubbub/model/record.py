"""Records: one user's sparse vector, and batches of them as flat arrays.

The rules for untidy records, in one place:

| what | on a device | in a table |
|---|---|---|
| a value that is NaN, infinite or no number | left out, counted | refused |
| a set value other than 0 or 1 | left out, counted | refused |
| a key that is neither text nor a whole number | left out, counted | refused |
| a key that is not in a closed vocabulary | left out, counted | refused |
| a key that has no place in a tree: empty, or with symbols from outside its alphabet | left out, counted | the same |
| a value outside the task's range | clipped to the range, counted | the same |
| a value of 0 in a set | the key is not in the set: left out, counted | the same |
| a key twice | (cannot be) | the last one counts, the rest are counted |
| more entries than max_entries | a uniform sample of them, counted; all where the mechanism needs no limit | the same |
| nobody's name where the user should be | (cannot be) | refused |
| no entries at all | fine: the report hides that, too | the same |

A device always reports, whatever its record is: whether it does would otherwise say something about the record, which
no guarantee covers. The owner of a table sees it anyway, and is told what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record, run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import below

#: Values in [-1, 1] are held as integers in units of 2^-30.
GRID = 1 << 30

#: What a user may hand in as a record: a map key -> value, or just keys (a set).
Record = Mapping[Any, Any] | Iterable[Any]


@dataclass(frozen=True)
class Summary:
    """What happened to records on the way in."""

    records: int = 0
    entries: int = 0
    clipped: int = 0
    absent: int = 0
    repeated: int = 0
    sampled_records: int = 0
    dropped_entries: int = 0
    unknown: int = 0
    unreadable: int = 0

    def __add__(self, other: Summary) -> Summary:
        return Summary(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def words(self) -> str:
        """One line for people; only what happened is mentioned."""
        parts = [f"{self.records:,} records with {self.entries:,} entries"]
        notes = (
            (self.clipped, "values clipped to the range"),
            (self.absent, "zero entries of sets left out"),
            (self.repeated, "repeated keys (last one kept)"),
            (self.unknown, "keys outside the vocabulary left out"),
            (self.unreadable, "entries that cannot be read left out"),
            (self.sampled_records, f"records sampled down ({self.dropped_entries:,} entries dropped)"),
        )
        return "; ".join(parts + [f"{count:,} {what}" for count, what in notes if count])


@dataclass(frozen=True)
class Entries:
    """A batch of encoded records: record i owns the slice offsets[i] : offsets[i + 1]."""

    ids: UInt64s
    values: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Entries:
        """Records start .. stop - 1."""
        first, last = self.offsets[start], self.offsets[stop]
        return Entries(
            self.ids[first:last],
            self.values[first:last],
            self.offsets[start : stop + 1] - self.offsets[start],
        )

    def take(self, records: Int64s) -> Entries:
        """These records, each as often as it is named."""
        lengths = np.diff(self.offsets)[records]
        starts = self.offsets[:-1][records]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        place = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Entries(self.ids[place], self.values[place], offsets)


@dataclass(frozen=True)
class Scale:
    """The linear map between a value and the number in [-1, 1] that is randomized."""

    kind: str
    low: float
    high: float
    center: float
    half: float

    def legal(self, values: Floats) -> Bools:
        """Which finite values the task can take."""
        return np.isin(values, (0.0, 1.0)) if self.kind == "set" else np.ones(len(values), dtype=np.bool_)

    def encode(self, values: Floats) -> tuple[Int64s, Int64s]:
        """Values as grid integers, and which of them had to be clipped."""
        if not np.isfinite(values).all():
            raise Refused("A value is not a finite number; only finite numbers can be collected.")
        if self.kind == "set":
            if not self.legal(values).all():
                raise Refused("A set has no values other than 0 and 1; give the task a range for values.")
            return values.astype(np.int64) * GRID, np.zeros(len(values), dtype=np.int64)
        inside = np.clip(values, self.low, self.high)
        scaled = np.rint((inside - self.center) / self.half * GRID).astype(np.int64)
        return np.clip(scaled, -GRID, GRID), (inside != values).astype(np.int64)


def plain_record(record: Record) -> tuple[dict[str, float], int]:
    """A record as a map from key to finite number, and how many entries are none."""
    if isinstance(record, str | bytes) or not isinstance(record, Iterable):
        raise Refused("A record is a map from key to value, or a collection of keys; this is neither.")
    if hasattr(record, "items") and not isinstance(record, Mapping):
        # A pandas.Series walks over its values, which are keys to some and values to others.
        raise Refused(
            f"A record is a map from key to value, or a collection of keys, and a {type(record).__name__} could be "
            "either: give dict(record) if its labels are the keys, or list(record) if its values are."
        )
    items = record.items() if isinstance(record, Mapping) else ((key, 1.0) for key in record)
    plain: dict[str, float] = {}
    unreadable = 0
    for key, value in items:
        try:
            if isinstance(key, bool) or not isinstance(key, str | int | np.integer):
                raise TypeError
            name, number = str(key), float(value)
        except Exception:  # whatever a value of somebody else's making does when it is asked for its number
            number = math.nan
        if math.isfinite(number):
            plain[name] = number
        else:
            unreadable += 1
    return plain, unreadable


@per_record
def _sample_down(tape: Any, i: int, offsets: Any, limit: int, order: Any) -> None:
    """Move a uniform sample of `limit` entries to the front of a longer record (Fisher-Yates)."""
    first = offsets[i]
    length = offsets[i + 1] - first
    for j in range(length):
        order[first + j] = first + j
    if length > limit:
        for j in range(limit):
            other = j + below(tape, length - j)
            order[first + j], order[first + other] = order[first + other], order[first + j]


@per_record
def _ask(tape: Any, i: int, lengths: Any, kept: int, lost: Any) -> None:
    """Whether one more entry, as good as any other, would have been dropped from a record of which `kept` are kept."""
    lost[i] = below(tape, lengths[i]) >= kept


def sample_down(
    entries: Entries, limit: int, coins: Coins, marks: UInt64s | None = None
) -> tuple[Entries, Summary]:
    """Keep a uniform sample of `limit` entries of every record that has more.

    `marks` are the ids of two keys, kept and lost. With them, a record that is too long keeps one entry fewer and gets
    one of the two instead: lost with the probability that an entry of it is dropped, kept otherwise. How often lost is
    found is then the share by which a key comes out too low that short and long records hold alike, and both together
    are the share of records that were too long.

    What a record becomes is a record of at most `limit` entries either way, made of this record and coins alone.
    """
    lengths = np.diff(entries.offsets)
    long = lengths > limit
    if not long.any():
        return entries, Summary()
    room = limit if marks is None else limit - 1
    order = np.zeros(len(entries.ids), dtype=np.int64)
    run_kernel(_sample_down, coins, len(entries), entries.offsets, limit, order)
    place = np.arange(len(order)) - np.repeat(entries.offsets[:-1], lengths)
    kept = order[place < np.repeat(np.where(long, room, limit), lengths)]
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, limit))]).astype(np.int64)
    ids, values = entries.ids[kept], entries.values[kept]
    if marks is not None:
        lost = np.zeros(int(long.sum()), dtype=np.int64)
        run_kernel(_ask, coins, len(lost), lengths[long], room, lost)
        ends = np.cumsum(np.minimum(lengths, np.where(long, room, limit)))[long]
        ids, values = np.insert(ids, ends, marks[lost]), np.insert(values, ends, GRID)
    dropped = int((lengths[long] - room).sum())
    summary = Summary(sampled_records=int(long.sum()), dropped_entries=dropped)
    return Entries(ids, values, offsets), summary
