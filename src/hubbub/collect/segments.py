"""Reports on disk, many batches to a row.

Reports are kept one batch after another in lots. What has just arrived waits in the log, a lot for every commit;
once it is in the state, it is appended to the task's segments, each of one period and about `SEGMENT` bytes but for the
last ones. A segment that is full is never written again, so adding a report costs the same however many there are.

Where reports have labels or periods, each stratum has segments of its own (`hubbub.collect.shelves`). Those of tasks
that keep no reports have no names of batches, and go when they are in a sum.

Of a batch's id a digest of 12 bytes is kept: it tells batches apart (a million million of them share one with
probability 1e-5), and what the sender wrote into its id is nowhere on disk.
"""

from __future__ import annotations

import datetime
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import sqlalchemy as sql
from numpy.typing import NDArray

from hubbub.collect.database import ids, segments
from hubbub.primitives.arrays import Bytes

#: Bytes of reports and names from which on a segment is full.
SEGMENT = 1 << 18
#: Segments with fewer bytes that there may be, one after another.
_MOST_SMALL = 16
#: Segments that are read at a time.
_AT_ONCE = 8
#: Bytes of reports from which on a lot is large enough.
_LARGEST_LOT = 1 << 20
#: Bytes of a body's digest that are kept with its batch's name.
BODY = 8
#: Bytes of a batch's name.
_NAME = 12
#: The day before the first one that an id may begin with.
_FIRST_DAY = datetime.date(2000, 1, 1)


#: A batch: name, number of reports, reports.
Named = tuple[bytes, int, bytes | memoryview]


#: What became of a batch: written now, already there, its id is taken by other reports, so old that nobody knows, or
#: more than its sender may send in this period.
Outcome = Literal["stored", "repeated", "conflict", "expired", "too many"]
#: A batch's id as it is kept: number of the task, day if the id begins with one, digest.
Id = tuple[int, int, bytes]


class Damaged(Exception):
    """What is stored of a task cannot be trusted and cannot be made again."""


def name_of(batch: str) -> bytes:
    """What is kept of a batch's id."""
    return hashlib.blake2b(batch.encode(), digest_size=_NAME).digest()


def day_of(batch: str) -> int:
    """The day on which a batch was made, if its id begins with it (20261116-...), otherwise 0.

    Such ids can be forgotten one day (`hubbub store purge`), because batches of that day are refused from then on.
    """
    return _day(batch[:9])


@lru_cache(1000)
def _day(begin: str) -> int:
    if len(begin) != 9 or begin[8] != "-" or not begin[:8].isdecimal() or not begin.isascii():
        return 0
    try:
        return max((datetime.date.fromisoformat(begin[:8]) - _FIRST_DAY).days, 0)
    except ValueError:
        return 0


@dataclass(frozen=True)
class Known:
    """What is kept of a batch that has come: the beginning of its body's digest, None if its day is purged."""

    body: bytes | None

    def outcome(self, checksum: bytes) -> Outcome:
        """What becomes of a body under the same id. Of batches that an old version forgot, the body is not known."""
        if self.body is None:
            return "expired"
        return "repeated" if self.body in (b"", checksum[:BODY]) else "conflict"


def body_of(connection: sql.Connection, name: Id) -> bytes | None:
    """What is kept of the body of a batch, None if nobody knows the batch."""
    place = (ids.c.task == name[0]) & (ids.c.day == name[1]) & (ids.c.name == name[2])
    found = connection.execute(sql.select(ids.c.body).where(place)).scalar()
    return None if found is None else bytes(found)


def day_number(date: datetime.date) -> int:
    """A date as `day_of` counts days."""
    return (date - _FIRST_DAY).days


@dataclass(frozen=True, slots=True)
class Lot:
    """Reports of one time of arrival and one stratum.

    `names` and `sizes` tell its batches apart, and are empty where that is not kept.
    """

    period: int
    count: int
    names: bytes
    sizes: bytes
    payload: bytes
    stratum: str = ""

    @classmethod
    def of(cls, period: int, batches: Sequence[Named], stratum: str = "") -> Lot:
        """Batches of one stratum that arrived in one period."""
        names, sizes, payloads = zip(*batches, strict=True)
        return cls(period, sum(sizes), b"".join(names), _pack_sizes(sizes), b"".join(payloads), stratum)

    @classmethod
    def joined(cls, lots: Sequence[Lot]) -> Lot:
        """Lots of one period and stratum, one after the other."""
        return cls(
            lots[0].period,
            sum(lot.count for lot in lots),
            b"".join(lot.names for lot in lots),
            _pack_sizes(np.concatenate([_sizes_in(lot.sizes) for lot in lots])),
            b"".join(lot.payload for lot in lots),
            lots[0].stratum,
        )

    def checksum(self) -> bytes:
        """Of everything in it: whatever was changed on disk is noticed."""
        check = hashlib.blake2b(digest_size=16)
        told = (self.stratum.encode(),) if self.stratum else ()
        for part in (f"{self.period} {self.count}".encode(), self.names, self.sizes, self.payload, *told):
            check.update(len(part).to_bytes(8, "little"))
            check.update(part)
        return check.digest()

    def batches(self) -> list[tuple[str, bytes]]:
        """Name and reports of every batch; all together as one where they are not told apart."""
        width = len(self.payload) // max(self.count, 1)
        sizes = _sizes_in(self.sizes).tolist() or [self.count]
        ends = [width * end for end in accumulate(sizes)]
        starts = [0, *ends[:-1]]
        names = [self.names[at : at + _NAME].hex() for at in range(0, len(self.names), _NAME)] or [""]
        return [(name, self.payload[start:end]) for name, start, end in zip(names, starts, ends, strict=True)]

    def row(self) -> dict[str, Any]:
        """As a row of `segments`, and of `log` but for the stratum."""
        parts = {"names": self.names, "sizes": self.sizes, "payload": self.payload}
        return {"period": self.period, "count": self.count, **parts, "checksum": self.checksum()}


def in_parts(batches: Sequence[Named]) -> Iterator[Sequence[Named]]:
    """The same batches, in lots that are not too large to be read at a time."""
    begin = size = 0
    for place, (_, _, payload) in enumerate(batches, 1):
        size += len(payload)
        if size >= _LARGEST_LOT or place == len(batches):
            yield batches[begin:place]
            begin, size = place, 0


def _pack_sizes(sizes: Sequence[int] | NDArray[np.uint32]) -> bytes:
    return zlib.compress(np.asarray(sizes, dtype="<u4").tobytes(), 1) if len(sizes) else b""


def _sizes_in(packed: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(zlib.decompress(packed) if packed else b"", dtype="<u4")


def lot_in(row: Any, task: str, stratum: str = "") -> Lot:
    """The lot of a stratum in a row; `Damaged` if it is not the one that was written."""
    lot = Lot(row.period, row.count, bytes(row.names), bytes(row.sizes), bytes(row.payload), stratum)
    if lot.checksum() != bytes(row.checksum):
        raise Damaged(f"Stored reports of task {task} are damaged: restore the store from a backup.")
    return lot


def joined_lots(lots: Sequence[Lot]) -> Iterator[Lot]:
    """The same reports in fewer lots: those of a period that follow one another become one while they are small."""
    begin = size = 0
    for place, lot in enumerate(lots, 1):
        size += len(lot.payload) + len(lot.names)
        if place == len(lots) or lots[place].period != lot.period or size >= SEGMENT:
            yield Lot.joined(lots[begin:place])
            begin, size = place, 0


# Statements that are run again and again are put together once.
_MINE = segments.c.task == sql.bindparam("name")
_THESE = _MINE & segments.c.first.between(sql.bindparam("begin"), sql.bindparam("end"))
_SIZE = sql.func.length(segments.c.payload) + sql.func.length(segments.c.names)
_LAST = sql.select(segments.c.first, segments.c.count, segments.c.period, _SIZE).where(_MINE)
_LAST = _LAST.order_by(segments.c.first.desc()).limit(4 * _MOST_SMALL)
_END = sql.select(segments.c.first + segments.c.count).where(_MINE).order_by(segments.c.first.desc()).limit(1)
_ALL, _GONE = segments.select().where(_THESE).order_by(segments.c.first), segments.delete().where(_THESE)
_NEW = segments.insert()


def extend(connection: sql.Connection, task: str, lots: Sequence[Lot], begin_at: int = 0) -> None:
    """Append lots to a task's segments.

    The number of the first report is `begin_at` at least: there may have been others, which are gone.
    """
    for lot in joined_lots(lots):
        end = connection.execute(_END, {"name": task}).scalar() or 0
        put(connection, [(task, max(end, begin_at), lot)])
        join_small(connection, task, lot.stratum)


def put(connection: sql.Connection, rows: Sequence[tuple[str, int, Lot]]) -> None:
    """Write new segments: task, number of the first report, reports."""
    if rows:
        connection.execute(_NEW, [{"task": task, "first": first, **lot.row()} for task, first, lot in rows])


def join_small(connection: sql.Connection, task: str, stratum: str = "") -> None:
    """Make one segment of the last ones, if many of them are small, and of a few if their period is over.

    So there are few small ones, and each is written again once for many lots that come.
    """
    runs: list[list[Any]] = []
    for each in connection.execute(_LAST, {"name": task}):
        next_one = runs[-1][-1] if runs and runs[-1] else None
        if each[3] >= SEGMENT:
            runs.append([])
        elif next_one and (each.period, each.first + each.count) == (next_one.period, next_one.first):
            runs[-1].append(each)
        else:
            runs.append([each])
    for place, run in enumerate(runs):
        if len(run) > (1 if place else _MOST_SMALL):
            own = {"name": task, "begin": run[-1].first, "end": run[0].first}
            lots = [lot_in(row, task, stratum) for row in connection.execute(_ALL, own)]
            connection.execute(_GONE, own)
            put(connection, [(task, run[-1].first, Lot.joined(lots))])


def crowded(total: int, count: int) -> bool:
    """Whether it is time to `join_small`, of a shelf that has `total` reports with the `count` that were just added.

    It is after every so many lots, if they are alike: looking after each would take longer than adding it.
    """
    step = _MOST_SMALL * count
    return total // step > (total - count) // step


def drop_nameless(connection: sql.Connection, task: str, number: int, stratum: str = "") -> None:
    """Forget the first `number` reports if they are of no named batches: their task keeps no reports."""
    names = sql.select(segments.c.names).where(segments.c.task == task).order_by(segments.c.first).limit(1)
    if connection.execute(names).scalar() != b"":
        return
    old = (segments.c.task == task) & (segments.c.first < number)
    connection.execute(segments.delete().where(old & (segments.c.first + segments.c.count <= number)))
    torn = connection.execute(segments.select().where(old)).one_or_none()
    if torn is not None:
        lot, gone = lot_in(torn, task, stratum), number - torn.first
        rest = lot.payload[gone * len(lot.payload) // lot.count :]
        connection.execute(segments.delete().where(old))
        put(connection, [(task, number, replace(lot, count=lot.count - gone, payload=rest))])


def after(connection: sql.Connection, task: str, number: int, stratum: str = "") -> list[tuple[int, Lot]]:
    """The next segments that hold reports after the first `number`, each with the number of its first report."""
    mine = segments.c.task == task
    begin = sql.select(sql.func.max(segments.c.first)).where(mine & (segments.c.first <= number))
    from_there = segments.c.first >= sql.func.coalesce(begin.scalar_subquery(), 0)
    query = segments.select().where(mine & from_there).order_by(segments.c.first).limit(_AT_ONCE)
    found: list[tuple[int, Lot]] = []
    size = 0
    for row in connection.execute(query):
        if found and size + len(row.payload) > _LARGEST_LOT:
            break
        if row.first + row.count > number:
            found.append((row.first, lot_in(row, task, stratum)))
            size += len(row.payload)
    return found


def batches_after(lots: Sequence[tuple[int, Lot]], number: int) -> Iterator[tuple[str, int, bytes, int]]:
    """Name, period and reports of the batches that begin at report `number` or later, and where each ends."""
    for first, lot in lots:
        at, width = first, len(lot.payload) // lot.count
        for name, payload in lot.batches():
            begin, at = at, at + len(payload) // width
            if at > number:  # only lots whose batches are not told apart may begin before
                rest = payload[max(number - begin, 0) * width :]
                yield name, lot.period, rest, at


class Rows:
    """Reports in memory, in the order of the segments. Whoever was given some may keep them: they never change."""

    def __init__(self, width: int, of: tuple[int, int]) -> None:
        """`of` says which reports they are: the snapshot's epoch, and the mark of their shelf."""
        self.of, self.count = of, 0
        self._room: Bytes = np.empty((1024, width), dtype=np.uint8)

    def add(self, reports: bytes | Bytes) -> None:
        """Append reports; the room doubles when it is full, so each report is moved a few times at most."""
        rows = np.frombuffer(reports, dtype=np.uint8) if isinstance(reports, bytes) else reports
        rows = rows.reshape(-1, self._room.shape[1])
        if self.count + len(rows) > len(self._room):
            larger = np.empty((2 * (self.count + len(rows)), self._room.shape[1]), dtype=np.uint8)
            larger[: self.count] = self._room[: self.count]
            self._room = larger
        self._room[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def first(self, count: int) -> Bytes:
        """The first `count` reports."""
        found: Bytes = self._room[:count]
        return found
