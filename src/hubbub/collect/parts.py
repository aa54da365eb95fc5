"""Crowds that come in parts: kept apart until they are complete, and then counted once, in one transaction.

A part is stored, durably and under the crowd's id and its own number, in a table of its own. Nothing that counts or
shows reports looks there: not estimates, states, exports or numbers of reports. With the last part, which is taken when
all others are there, the whole crowd moves to the log, and its parts are gone. So whatever is killed and whenever, a
crowd is not counted at all, or whole. A part that is sent again is recognised by its name, before and after.

What can go wrong with parts is refused: other bytes, another number of parts or of items in all under the same id, a
part of another period or key, more items than were said. A crowd that is never completed is counted by nobody; it shows
in the metrics, all of them together take a limited number of bytes, and `drop_unfinished` forgets them, names
included, so that the shuffler can send them again from the beginning. At no time is more than a part in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sqlalchemy as sql

from hubbub.collect.crowds import note_crowds
from hubbub.collect.database import ids, parts, tasks, unfinished
from hubbub.collect.segments import Id, Known, Lot, Outcome, body_of, name_of
from hubbub.collect.store import Batch, Store

_log = logging.getLogger("hubbub.api")

#: What became of a part: as of a batch; or others are missing; or there is no room for crowds that are not complete.
PartOutcome = Outcome | Literal["missing", "full"]
#: Bytes that a part takes besides its reports.
_ROW = 200


@dataclass(frozen=True)
class Part:
    """Some items of a crowd; `opened` are the reports in them, and its id is the crowd's."""

    opened: Batch
    number: int
    parts: int
    total: int
    items: int
    kind: bytes

    @property
    def last(self) -> bool:
        """Whether it completes the crowd."""
        return self.number == self.parts - 1

    @property
    def checksum(self) -> bytes:
        """Of the stored reports and what is stored with them."""
        rejected = _packed(self.opened.rejects)
        return _checksum(self.number, self.items, self.opened.count, rejected, self.opened.payload)


class Appended(NamedTuple):
    """What became of a part, and how many reports it has made count: all good ones of the crowd, and bad ones."""

    outcome: PartOutcome
    counted: int = 0
    rejected: int = 0


class _Undone(Exception):
    """Nothing of this is to stay."""

    def __init__(self, outcome: PartOutcome) -> None:
        self.outcome = outcome


class _Changed(Exception):
    """A stored part is not as it was written."""


def part_id(crowd: str, number: int) -> str:
    """What a part is known by; no batch can be called so."""
    return _part_id(name_of(crowd), number)


def _part_id(crowd: bytes, number: int) -> str:
    return f"{crowd.hex()}/{number}"


def append_part(store: Store, part: Part, most: int) -> Appended:
    """Write a part in one transaction, and count its crowd if it is the last; on return that is on disk.

    `most` is the number of bytes that incomplete crowds may take.
    """
    try:
        with store.writing() as connection:
            appended = _append(store, connection, part, most)
    except _Undone as undone:
        return Appended(undone.outcome)
    except _Changed:
        _log.error(
            "stored parts of a crowd of task %s were changed: it has to be sent again", part.opened.task
        )
        with store.writing() as connection:
            _forget(connection, part.opened.task, name_of(part.opened.id))
        return Appended("missing")
    store.look()  # before anything of this is acknowledged
    return appended


def _append(store: Store, connection: sql.Connection, part: Part, most: int) -> Appended:
    batch = part.opened
    number, _ = store.numbers(connection, {batch.task})[batch.task]
    name: Id = (number, 0, name_of(part_id(batch.id, part.number)))
    known = body_of(connection, name)
    if known is not None:
        return Appended(Known(known).outcome(batch.checksum))
    crowd = name_of(batch.id)
    mine = (unfinished.c.task == batch.task) & (unfinished.c.crowd == crowd)
    facts = {"parts": part.parts, "total": part.total, "kind": part.kind}
    row = {"task": batch.task, "crowd": crowd, **facts, "begun": batch.received}
    connection.execute(store.insert(unfinished).values(**row).on_conflict_do_nothing())
    found = connection.execute(unfinished.select().where(mine).with_for_update()).one()
    if (found.parts, found.total, bytes(found.kind)) != tuple(facts.values()):
        raise _Undone("conflict")
    those = (parts.c.task == batch.task) & (parts.c.crowd == crowd)
    sums = sql.select(sql.func.count(), sql.func.coalesce(sql.func.sum(parts.c.sent), 0)).where(those)
    there, items = connection.execute(sums).one()
    if part.last and there < part.parts - 1:
        raise _Undone("missing")
    # Parts that are still to come have an item each, at least.
    after = items + part.items
    if after + (part.parts - there - 1) > part.total or (part.last and after != part.total):
        raise _Undone("conflict")
    if not part.last and _size(connection) + len(batch.payload) + _ROW > most:
        raise _Undone("full")
    if not store.note_ids(connection, {name: batch.checksum}):
        raise _Undone("repeated")  # somebody wrote it at the same moment
    if part.last:
        appended = _count(store, connection, part, crowd)
        connection.execute(parts.delete().where(those))
        connection.execute(unfinished.delete().where(mine))
        return appended
    stored: dict[str, Any] = {"sent": part.items, "good": batch.count, "rejects": _packed(batch.rejects)}
    stored |= {"payload": bytes(batch.payload), "checksum": part.checksum}
    connection.execute(parts.insert().values(task=batch.task, crowd=crowd, part=part.number, **stored))
    return Appended("stored")


def _count(store: Store, connection: sql.Connection, last: Part, crowd: bytes) -> Appended:
    """Move a crowd to the log, part by part: as reports that came at this moment."""
    batch, refused, size = last.opened, Counter[tuple[str, str]](), 0

    def move(count: int, payload: bytes | memoryview, rejects: dict[str, int]) -> None:
        nonlocal size
        size += count
        for reason, number in rejects.items():
            refused[batch.task, reason] += number
        if count:
            lot = Lot.of(batch.received, [(crowd, count, payload)], batch.stratum)
            store.write_lots(connection, [(batch.task, lot)])

    for number in range(last.parts - 1):
        place = (parts.c.task == batch.task) & (parts.c.crowd == crowd) & (parts.c.part == number)
        row = connection.execute(parts.select().where(place)).one()
        payload, count = bytes(row.payload), int(row.good)
        if bytes(row.checksum) != _checksum(number, row.sent, count, row.rejects, payload):
            raise _Changed
        move(count, payload, json.loads(row.rejects))
    move(batch.count, batch.payload, dict(batch.rejects))
    store.note_rejects(connection, refused)
    if size:
        note_crowds(store, connection, batch.task, batch.label, [size])
    return Appended("stored", size, sum(refused.values()))


def _packed(rejects: Mapping[str, int]) -> str:
    return json.dumps(dict(rejects), sort_keys=True)


def _checksum(number: int, items: int, count: int, rejects: str, payload: bytes | memoryview) -> bytes:
    check = hashlib.blake2b(f"{number} {items} {count} {rejects} ".encode(), digest_size=16)
    check.update(payload)
    return check.digest()


def _size(connection: sql.Connection) -> int:
    taken = sql.func.coalesce(sql.func.sum(sql.func.length(parts.c.payload) + _ROW), 0)
    return int(connection.execute(sql.select(taken)).scalar_one())


def _forget(connection: sql.Connection, task: str, crowd: bytes) -> None:
    """Drop what is there of a crowd, and the names of its parts, so that they are taken when they come again."""
    those = (parts.c.task == task) & (parts.c.crowd == crowd)
    there = connection.execute(sql.select(parts.c.part).where(those)).scalars().all()
    number = sql.select(tasks.c.id).where(tasks.c.digest == task).scalar_subquery()
    for part in there:
        name = name_of(_part_id(crowd, part))
        connection.execute(
            ids.delete().where((ids.c.task == number) & (ids.c.day == 0) & (ids.c.name == name))
        )
    connection.execute(parts.delete().where(those))
    connection.execute(unfinished.delete().where((unfinished.c.task == task) & (unfinished.c.crowd == crowd)))


def unfinished_crowds(store: Store) -> tuple[int, int]:
    """How many crowds are not complete, and the bytes that they take."""
    with store.reading() as connection:
        number = connection.execute(sql.select(sql.func.count()).select_from(unfinished)).scalar_one()
        return int(number), _size(connection)


def drop_unfinished(store: Store, task: str, before: int) -> int:
    """Forget crowds that began earlier and are not complete; how many."""
    old = (unfinished.c.task == task) & (unfinished.c.begun < before)
    with store.writing() as connection:
        found = (
            connection.execute(sql.select(unfinished.c.crowd).where(old).with_for_update()).scalars().all()
        )
        for crowd in found:
            _forget(connection, task, bytes(crowd))
    return len(found)
