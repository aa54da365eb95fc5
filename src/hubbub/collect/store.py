"""The store: a log of batches and a snapshot of their sum, on SQLite or PostgreSQL.

Two promises hold whatever happens to the process:

- A batch that `append` has returned is on disk (SQLite: WAL with synchronous=FULL; PostgreSQL: its commit), once,
  whatever its sender retries: (task, batch id) is unique.
- A batch is in the snapshot exactly if it is marked as folded, because `advance` changes both in one transaction
  and only if nobody else changed the snapshot in between (its version). Sequence numbers prove nothing:
  on PostgreSQL a lower number may be committed later.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, TimeoutError

from hubbub.collect.database import batches, history, meta, open_engine, rejects, states
from hubbub.collect.migrations import migrate
from hubbub.primitives.errors import Refused

#: As the partial index says it, to the letter: SQLite does not see that folded = 0 means the same.
_UNFOLDED = sql.text("NOT folded")
#: Batches that are marked in one statement; databases limit its parameters.
_MOST_ROWS = 10_000


class Unavailable(Exception):
    """The store cannot do its work now (full, locked, gone); nothing was changed, trying again later may help."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Reports that arrived together; `crowd` says how many the shuffler mixed, if it did."""

    task: str
    id: str
    count: int
    payload: bytes
    checksum: bytes
    received: int
    crowd: int | None = None
    rejects: dict[str, int] = field(default_factory=dict)


#: What became of a batch: written now, already there, or its id is taken by other reports.
Outcome = Literal["stored", "repeated", "conflict"]


@dataclass(frozen=True)
class Head:
    """The newest snapshot of a task, without its bytes. Version 0: there is none yet."""

    version: int
    count: int
    period: int | None


@dataclass(frozen=True)
class Unfolded:
    """A batch of the log that is not in the snapshot."""

    seq: int
    received: int
    payload: bytes


class Store:
    """One database, opened and brought to the newest version of its tables."""

    def __init__(self, url: str, create: bool = True) -> None:
        self.engine = open_engine(url, create)
        self.embedded = self.engine.dialect.name == "sqlite"
        self._insert: Any = sqlite.insert if self.embedded else postgresql.insert
        self._append = (
            self._insert(batches).on_conflict_do_nothing().returning(batches.c.task, batches.c.batch)
        )
        try:
            with self.writing() as connection:
                migrate(connection)
        except BaseException as problem:
            self.close()
            if isinstance(
                problem, Unavailable | ProgrammingError
            ):  # the latter if the role may not make tables
                reason = str(getattr(problem, "orig", None) or problem).splitlines()[0]
                raise Refused(f"The store {self.engine.url!r} cannot be opened: {reason}.") from None
            raise

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction that may change things: committed at the end, undone on any error."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """A transaction that changes nothing."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sql.Connection]:
        try:
            with (
                self.engine.connect().execution_options(hubbub_begin=begin) as connection,
                connection.begin(),
            ):
                yield connection
        except (IntegrityError, ProgrammingError, DataError):
            raise  # a mistake of ours, not the database's trouble
        except (DBAPIError, TimeoutError, sqlite3.Error) as problem:  # the last from settings of a connection
            cause = getattr(problem, "orig", None) or problem
            raise Unavailable(str(cause).splitlines()[0] if str(cause) else type(cause).__name__) from problem

    # The log

    def append(self, group: Sequence[Batch]) -> list[Outcome]:
        """Write batches in one transaction; on return they are on disk.

        Batches are written in the order of their ids, so that two processes which write the same ones wait for
        each other and never in a circle. Reject counters change together with the batch that they belong to.
        """
        first: dict[tuple[str, str], Batch] = {}
        for batch in group:
            first.setdefault((batch.task, batch.id), batch)
        rows = [_row(first[key]) for key in sorted(first)]
        with self.writing() as connection:
            fresh = {(task, batch) for task, batch in connection.execute(self._append, rows)}
            known: dict[tuple[str, str], bytes | None] = {key: first[key].checksum for key in fresh}
            for task, name in first.keys() - fresh:
                place = (batches.c.task == task) & (batches.c.batch == name)
                known[task, name] = connection.execute(sql.select(batches.c.checksum).where(place)).scalar()
            refused: Counter[tuple[str, str]] = Counter()
            for key in fresh:
                for reason, count in first[key].rejects.items():
                    refused[key[0], reason] += count
            for (task, reason), count in sorted(refused.items()):
                connection.execute(self._add_rejects(task, reason, count))
        outcomes: list[Outcome] = []
        for batch in group:
            key = (batch.task, batch.id)
            if key in fresh:
                fresh.remove(key)
                outcomes.append("stored")
            else:
                before = known[key]
                same = before is None or bytes(before) == batch.checksum
                outcomes.append("repeated" if same else "conflict")
        return outcomes

    def _add_rejects(self, task: str, reason: str, count: int) -> Any:
        insert = self._insert(rejects).values(task=task, reason=reason, count=count)
        more = {"count": rejects.c.count + insert.excluded.count}
        return insert.on_conflict_do_update(index_elements=["task", "reason"], set_=more)

    def waiting(self, task: str) -> int:
        """Reports that are not in the snapshot yet."""
        query = sql.select(sql.func.sum(batches.c.count)).where(batches.c.task == task, _UNFOLDED)
        with self.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def last(self) -> int:
        """A number that no batch exceeds that has been acknowledged by now."""
        with self.reading() as connection:
            return connection.execute(sql.select(sql.func.max(batches.c.seq))).scalar() or 0

    def unfolded(self, task: str, last: int, most: int, least: int = 1) -> list[Unfolded]:
        """Batches up to number `last` that are not in the snapshot, oldest period first, of about `most` bytes.

        They have at least `least` reports, if there are so many.
        """
        query = (
            sql.select(batches.c.seq, batches.c.received, batches.c.payload, batches.c.count)
            .where(batches.c.task == task, batches.c.seq <= last, _UNFOLDED)
            .order_by(batches.c.received, batches.c.seq)
            .execution_options(yield_per=100)
        )
        found: list[Unfolded] = []
        with self.reading() as connection, connection.execute(query) as rows:
            for seq, received, payload, count in rows:
                found.append(Unfolded(seq, received, bytes(payload)))
                most, least = most - len(payload), least - count
                if least <= 0 and (most <= 0 or len(found) >= _MOST_ROWS):
                    break
        return found

    def kept(self, task: str) -> Iterator[tuple[str, int, bytes]]:
        """Batch id, time of arrival and reports of every batch whose reports are kept."""
        after = -1
        while True:
            query = (
                sql.select(batches.c.seq, batches.c.batch, batches.c.received, batches.c.payload)
                .where((batches.c.task == task) & (batches.c.seq > after) & (batches.c.count > 0))
                .where(batches.c.payload.is_not(None))
                .order_by(batches.c.seq)
                .limit(1000)
            )
            with self.reading() as connection:
                rows = connection.execute(query).all()
            if not rows:
                return
            after = rows[-1].seq
            for row in rows:
                yield row.batch, row.received, bytes(row.payload)

    def crowds(self, task: str) -> tuple[int, int]:
        """Size of the smallest shuffled crowd (0: none came), and reports in all of them."""
        query = sql.select(sql.func.min(batches.c.crowd), sql.func.sum(batches.c.count)).where(
            (batches.c.task == task) & (batches.c.crowd > 0)
        )
        with self.reading() as connection:
            smallest, reports = connection.execute(query).one()
        return int(smallest or 0), int(reports or 0)

    def rejected(self, task: str) -> dict[str, int]:
        """Refused reports by reason."""
        query = sql.select(rejects.c.reason, rejects.c.count).where(rejects.c.task == task)
        with self.reading() as connection:
            return {reason: int(count) for reason, count in connection.execute(query)}

    # The snapshot

    @contextmanager
    def folding(self, task: str) -> Iterator[None]:
        """Keeps other processes from folding the same batches at the same time, to spare them the work.

        Correctness does not need it: see `advance`.
        """
        if self.embedded:
            yield
            return
        with self.writing() as connection:
            place = int.from_bytes(bytes.fromhex(task)[:8], "little", signed=True)
            connection.execute(sql.text("SELECT pg_advisory_xact_lock(:place)"), {"place": place})
            yield

    def head(self, task: str) -> Head:
        """What the newest snapshot is."""
        query = sql.select(states.c.version, states.c.count, states.c.period).where(states.c.task == task)
        with self.reading() as connection:
            row = connection.execute(query).one_or_none()
        return Head(0, 0, None) if row is None else Head(*row)

    def snapshot(self, task: str) -> tuple[Head, bytes | None]:
        """The newest snapshot and its bytes."""
        columns = (states.c.version, states.c.count, states.c.period, states.c.payload)
        with self.reading() as connection:
            row = connection.execute(sql.select(*columns).where(states.c.task == task)).one_or_none()
        if row is None:
            return Head(0, 0, None), None
        *head, payload = row
        return Head(*head), None if payload is None else bytes(payload)

    def agrees(self, task: str) -> bool:
        """Whether the snapshot counts as many reports as the log says are in it."""
        own = (batches.c.task == task) & batches.c.folded
        marked = sql.select(sql.func.coalesce(sql.func.sum(batches.c.count), 0)).where(own).scalar_subquery()
        counted = sql.select(states.c.count).where(states.c.task == task).scalar_subquery()
        with self.reading() as connection:  # one statement, so that both are of one moment
            return bool(connection.execute(sql.select(marked == sql.func.coalesce(counted, 0))).scalar())

    def advance(
        self,
        task: str,
        old: Head,
        new: Head,
        payload: bytes,
        *,
        folded: Sequence[Unfolded],
        keep_reports: bool,
        arrived: dict[int, int],
        closed: dict[int, bytes],
        most_states: int,
    ) -> bool:
        """Replace snapshot `old` by `new` and mark its batches, or do nothing because `old` is not the newest.

        `folded` are the batches that are in it now, `arrived` counts their reports by period, `closed` has compressed
        states of periods that ended.
        """
        with self.writing() as connection:
            row = {"version": new.version, "count": new.count, "period": new.period, "payload": payload}
            if old.version:
                newest = (states.c.task == task) & (states.c.version == old.version)
                change: Any = states.update().where(newest).values(**row)
            else:
                change = self._insert(states).values(task=task, **row).on_conflict_do_nothing()
            if connection.execute(change.returning(states.c.version)).scalar() is None:
                return False
            dropped = {} if keep_reports else {"payload": None, "checksum": None}
            for start in range(0, len(folded), _MOST_ROWS):
                places = [batch.seq for batch in folded[start : start + _MOST_ROWS]]
                mark = batches.update().where(batches.c.seq.in_(places)).values(folded=True, **dropped)
                assert connection.execute(mark).rowcount == len(places)
            for period, reports in sorted(arrived.items()):
                insert = self._insert(history).values(task=task, period=period, reports=reports)
                more = {"reports": history.c.reports + insert.excluded.reports}
                connection.execute(insert.on_conflict_do_update(index_elements=["task", "period"], set_=more))
            for period, state in closed.items():
                place = (history.c.task == task) & (history.c.period == period)
                connection.execute(history.update().where(place).values(state=state))
            if closed:
                _thin(connection, task, most_states)
        return True

    def start_over(self, task: str) -> bool:
        """Forget the snapshot, so that it is made again from the log; only if the log has all reports."""
        own = batches.c.task == task
        lost = sql.select(sql.exists().where(own & (batches.c.count > 0) & batches.c.payload.is_(None)))
        with self.writing() as connection:
            if connection.execute(lost).scalar():
                return False
            connection.execute(batches.update().where(own).values(folded=False))
            connection.execute(history.delete().where(history.c.task == task))
            blank = {"version": states.c.version + 1, "count": 0, "period": None, "payload": None}
            connection.execute(states.update().where(states.c.task == task).values(**blank))
        return True

    def periods(self, task: str, most: int) -> list[tuple[int, int]]:
        """The latest periods in which reports arrived, oldest first, with their number."""
        query = sql.select(history.c.period, history.c.reports).where(history.c.task == task)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(history.c.period.desc()).limit(most)).all()
        return [(int(period), int(reports)) for period, reports in reversed(rows)]

    def past(self, task: str) -> list[int]:
        """The ended periods whose state is kept, oldest first."""
        query = sql.select(history.c.period).where((history.c.task == task) & history.c.state.is_not(None))
        with self.reading() as connection:
            return [int(period) for (period,) in connection.execute(query.order_by(history.c.period))]

    def past_state(self, task: str, period: int) -> bytes | None:
        """The compressed state at the end of a period."""
        place = (history.c.task == task) & (history.c.period == period)
        with self.reading() as connection:
            found = connection.execute(sql.select(history.c.state).where(place)).scalar()
        return None if found is None else bytes(found)

    # Small things

    def fact(self, name: str, value: bytes) -> bytes:
        """A value that is stored once and for all: the first one given under this name."""
        with self.writing() as connection:
            connection.execute(self._insert(meta).values(name=name, value=value).on_conflict_do_nothing())
            return bytes(connection.execute(sql.select(meta.c.value).where(meta.c.name == name)).scalar_one())

    def ping(self) -> None:
        """Raise `Unavailable` if nothing can be written: something is, and is gone before others see it."""
        name = f"ping {secrets.token_hex(8)}"
        with self.writing() as connection:
            connection.execute(meta.insert().values(name=name, value=bytes(4096)))
            connection.execute(meta.delete().where(meta.c.name == name))


def _row(batch: Batch) -> dict[str, Any]:
    return {
        "task": batch.task,
        "batch": batch.id,
        "count": batch.count,
        "rejected": sum(batch.rejects.values()),
        "received": batch.received,
        "crowd": batch.crowd,
        "folded": not batch.count,
        "checksum": batch.checksum,
        "payload": batch.payload,
    }


def _thin(connection: sql.Connection, task: str, most: int) -> None:
    """Once there are more past states than wanted, keep every other one: the whole time stays covered."""
    query = sql.select(history.c.period).where((history.c.task == task) & history.c.state.is_not(None))
    found = [period for (period,) in connection.execute(query.order_by(history.c.period.desc()))]
    if len(found) > most:
        surplus = found[1::2] if most else found
        place = (history.c.task == task) & history.c.period.in_(surplus)
        connection.execute(history.update().where(place).values(state=None))
