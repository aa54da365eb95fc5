"""Copies of a store that are stores themselves, and whether everything in one is as it was written.

A backup is a SQLite file, whatever the store is: it can be opened, checked and even served from as it is. It is made of
one moment while the service goes on: all that was acknowledged before is in it. Restoring gives the new store
another generation, so that no process goes on with what it remembers of the old one.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from hubbub.collect.database import (
    crowd_periods,
    crowds,
    history,
    ids,
    log,
    meta,
    parts,
    quotas,
    rejects,
    segments,
    states,
    store_address,
    strata,
    tasks,
    unfinished,
)
from hubbub.collect.integrity import damaged_pages
from hubbub.collect.segments import Damaged, lot_in
from hubbub.collect.shelves import Shelf, shelves_of
from hubbub.collect.store import BARE, Store, Unavailable
from hubbub.collect.tokens import tokens
from hubbub.primitives.envelope import refuse_ending, unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import STATE

#: Everything but sessions: whoever was logged in logs in again.
_TABLES = (
    *(tasks, ids, log, segments, crowds, crowd_periods, unfinished, parts),
    *(strata, states, history, rejects, quotas, tokens),
)
#: Columns that a database counts up by itself.
_COUNTED = ((tasks, "id"), (log, "seq"), (tokens, "id"))
#: Rows that are copied at a time.
_AT_ONCE = 500


def back_up(url: str, target: Path) -> dict[str, Any]:
    """Copy a store into a new file, and check the copy; it is on disk, and for its owner's eyes only."""
    refuse_ending(target, "a backup", ".db")
    with closing(Store(url, create=False)) as store, _fresh_file(target):
        with _sentences():
            if store.embedded:
                _copy_file(Path(store.engine.url.database or ""), target)
            else:
                with closing(Store(f"sqlite:///{target}")) as copy:
                    _copy_rows(store, copy)
        found = check(f"sqlite:///{target}")
        if found.problems:
            raise Refused(f"The copy is not sound, so it is no backup: {found.problems[0]}")
        _sync(target)
    return found.facts()


def restore(source: Path, url: str) -> dict[str, Any]:
    """Copy a backup into a store that is empty or not there, and check it."""
    found = check(f"sqlite:///{source}")
    if found.problems:
        raise Refused(f"{source} is not sound: {found.problems[0]}")
    address = store_address(url)
    with _sentences():
        if address.get_backend_name() == "sqlite":
            place = Path(address.database or "")
            with _fresh_file(place):
                _copy_file(source, place)
                _give_generation(url)
                _sync(place)
        else:
            with closing(Store(f"sqlite:///{source}", create=False)) as backup, closing(Store(url)) as store:
                _copy_rows(backup, store)
            _give_generation(url)
    again = check(url)
    if again.problems:
        raise Refused(f"The restored store is not sound: {again.problems[0]}")
    return again.facts()


@contextmanager
def _sentences() -> Iterator[None]:
    """Trouble with a database as a sentence."""
    try:
        yield
    except (Unavailable, sqlite3.Error) as problem:
        raise Refused(f"The store cannot be copied: {problem}.") from None


@contextmanager
def _fresh_file(path: Path) -> Iterator[None]:
    """A new file that only its owner may read; removed again if anything goes wrong."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise Refused(f"{path} is there already; nothing is overwritten.") from None
    except OSError as problem:
        raise Refused(f"{path} cannot be written: {problem.strerror or problem}.") from None
    try:
        yield
    except BaseException:
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        raise


def _copy_file(source: Path, target: Path) -> None:
    """All rows as they are at one moment, without the room that deleted ones leave."""
    with closing(sqlite3.connect(source, timeout=10)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def _copy_rows(source: Store, target: Store) -> None:
    """All rows as they are at one moment, in one transaction."""
    with source.transaction("BEGIN", whole=True) as reading, target.writing() as writing:
        for table in _TABLES:
            if writing.execute(sql.select(sql.literal(1)).select_from(table).limit(1)).first():
                raise Refused("The store that is to be restored has something in it: name an empty one.")
            rows = reading.execution_options(yield_per=_AT_ONCE).execute(table.select())
            for part in rows.mappings().partitions(_AT_ONCE):
                writing.execute(table.insert(), [dict(row) for row in part])
        facts = meta.select().where(meta.c.name.not_in(["version", "generation"]))
        for row in reading.execute(facts).mappings():
            writing.execute(meta.delete().where(meta.c.name == row["name"]))
            writing.execute(meta.insert(), [dict(row)])
        if not target.embedded:
            for table, column in _COUNTED:
                last = sql.select(sql.func.max(table.c[column])).scalar_subquery()
                sequence = sql.func.pg_get_serial_sequence(table.name, column)
                writing.execute(sql.select(sql.func.setval(sequence, sql.func.coalesce(last, 0) + 1, False)))


def _give_generation(url: str) -> None:
    with closing(Store(url, create=False)) as store, store.writing() as connection:
        place = meta.c.name == "generation"
        connection.execute(meta.update().where(place).values(value=secrets.token_bytes(16)))


def _sync(path: Path) -> None:
    """Onto the disk, with its name."""
    for place in (path, path.absolute().parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@dataclass
class Found:
    """What a check has seen: reports and batches by task, and sentences about what is wrong."""

    reports: dict[str, int]
    batches: dict[str, int]
    problems: list[str]

    def facts(self) -> dict[str, Any]:
        rows = [
            {"task": task, "reports": count, "batches": self.batches.get(task, 0)}
            for task, count in sorted(self.reports.items())
        ]
        return {"tasks": rows, "problems": self.problems}


def check(url: str) -> Found:
    """Read everything: pages, checksums of all reports and states, and whether the counts agree."""
    path = Path(sql.make_url(url).database or "") if url.startswith("sqlite") else None
    if path is not None and path.exists() and (damage := damaged_pages(path)):
        return Found({}, {}, [f"{path} is damaged: {damage}."])
    with closing(Store(url, create=False)) as store:
        problems: list[str] = []
        with store.transaction("BEGIN", whole=True) as connection:
            numbered = connection.execute(sql.select(tasks.c.id, tasks.c.digest, tasks.c.purged)).all()
            found = Found({}, {}, problems)
            for number, task, purged in numbered:
                own = sql.select(sql.func.count()).select_from(ids).where(ids.c.task == number)
                found.batches[task] = connection.execute(own).scalar_one()
                found.reports[task] = _check_task(connection, task, purged, problems)
    return found


def _check_task(connection: sql.Connection, task: str, purged: int, problems: list[str]) -> int:
    """How many reports a task has, waiting ones included."""
    shelves, kept, named = shelves_of(connection, task), 0, False
    counted, bare = _summed(connection, task, f"The state of task {task}", problems)
    for shelf in (Shelf("", task, 0), *shelves):
        what, ends, summed = f"{shelf.stratum or 'reports'} of task {task}", None, 0
        if shelf.stratum:
            summed, _ = _summed(connection, shelf.name, f"The sum of {what}", problems)
        reach = summed  # all before are in the sum, or here
        for row in _rows(connection, segments, shelf.name, segments.c.first):
            kept += _sound(row, task, problems, shelf.stratum)
            named |= len(row.names) > 0
            if row.first > reach and shelf.stratum:
                problems.append(f"Reports {reach} to {row.first} of {what} are neither kept nor in its sum.")
            elif ends is not None and row.first != ends and not purged:
                problems.append(f"Reports {ends} to {row.first} of {what} are missing.")
            ends = row.first + row.count
            reach = max(reach, ends)
        if shelf.stratum and reach != shelf.reports:
            problems.append(f"{reach} of {shelf.reports} reports of {what} are kept, or in its sum.")
    log_rows = _rows(connection, log, task, log.c.seq)
    waiting = sum(_sound(row, task, problems, row.stratum) for row in log_rows)
    if sum(shelf.reports for shelf in shelves) > counted:
        problems.append(f"The groups of task {task} have more reports than its state.")
    query = sql.select(sql.func.coalesce(sql.func.sum(history.c.reports), 0)).where(history.c.task == task)
    arrived = int(connection.execute(query).scalar_one())
    # Without names they are of a task that keeps none, and wait for a sum; unless they are all there is.
    if counted != arrived or (kept and (named or bare) and kept + purged != arrived):
        there = f"{counted} reports are in the state of task {task}, {kept} are kept and {purged} purged"
        problems.append(f"{there}, but {arrived} have arrived.")
    return arrived + waiting


def _rows(connection: sql.Connection, table: sql.Table, task: str, order: Any) -> Iterator[Any]:
    query = table.select().where(table.c.task == task).order_by(order)
    yield from connection.execution_options(yield_per=8).execute(query)


def _summed(connection: sql.Connection, name: str, what: str, problems: list[str]) -> tuple[int, bool]:
    """How many reports are in a stored state, and whether it consists of them."""
    state = connection.execute(states.select().where(states.c.task == name)).one_or_none()
    if state is None or state.payload is None:
        return 0, False
    try:
        found = unseal(memoryview(state.payload), what, STATE)
    except Refused as problem:
        problems.append(str(problem))
        return 0, False
    return found.count, len(found.payload) == BARE


def _sound(row: Any, task: str, problems: list[str], stratum: str) -> int:
    try:
        return lot_in(row, task, stratum).count
    except Damaged as problem:
        problems.append(str(problem))
        return int(row.count)
