"""The store: a log of what has arrived, the reports that are kept, and a snapshot of their sum.

On SQLite or PostgreSQL. Two promises hold whatever happens to the process:

- A batch that `append` has returned is on disk (SQLite: WAL with synchronous=FULL; PostgreSQL: its commit), once,
  whatever its sender retries: its id is unique within the task.
- A report is either in the log or in the snapshot, because `advance` takes it out of one and into the other in one
  transaction, and only if nobody else changed the snapshot in between (its version). Sequence numbers prove
  nothing: on PostgreSQL a lower number may be committed later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sql

from hubbub.collect.crowds import note_crowds
from hubbub.collect.database import crowds, history, log, rejects, segments, states, strata, tasks
from hubbub.collect.quotas import Quota, beyond_quotas
from hubbub.collect.segments import (
    BODY,
    Id,
    Known,
    Lot,
    Named,
    Outcome,
    body_of,
    day_of,
    in_parts,
    lot_in,
    name_of,
)
from hubbub.collect.shelves import MOST_LOTS, Shelf, Shelves, all_names, hold, shelves_of
from hubbub.collect.transactions import Unavailable as Unavailable
from hubbub.collect.transactions import places

#: Bytes of a state that has no array to add to: it consists of the task's reports.
BARE = 24
_GENERATION = "(SELECT value FROM meta WHERE name = 'generation')"


@dataclass(frozen=True, slots=True)
class Batch:
    """Reports that arrived together; if a shuffler mixed them, `crowd` says how many and `label` of which period."""

    task: str
    id: str
    count: int
    payload: bytes | memoryview
    checksum: bytes
    received: int
    crowd: int | None = None
    rejects: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    stratum: str = ""
    quota: Quota | None = None


@dataclass(frozen=True)
class Head:
    """The newest snapshot of a task, without its bytes. Version 0: there is none yet.

    `epoch` counts how often it was made again from the reports.
    """

    version: int
    count: int
    period: int | None
    epoch: int = 0


@dataclass(frozen=True)
class Unfolded:
    """Batches of the log, which are not in the snapshot."""

    seq: int
    lot: Lot


class Store(Shelves):
    """What has arrived, what is kept of it, and what it adds up to."""

    # The log

    def append(self, group: Sequence[Batch]) -> list[Outcome]:
        """Write batches in one transaction; on return they are on disk.

        Ids are written in their order, so that two processes which write the same ones wait for each other and
        never in a circle. Counters change together with the batches that they belong to. Of a batch without a good
        report no id is kept: if one is taken later, nobody must believe that it is here already.
        """
        with self.writing() as connection:
            numbers = self.numbers(connection, {batch.task for batch in group})
            names: list[Id] = [(numbers[each.task][0], day_of(each.id), name_of(each.id)) for each in group]
            first: dict[Id, Batch] = {}
            for name, batch in zip(names, group, strict=True):
                first.setdefault(name, batch)
            expired = {name for name in first if 0 < name[1] < numbers[first[name].task][1]}
            limited = {name: (first[name].quota, first[name].count) for name in first.keys() - expired}
            refused = beyond_quotas(self, connection, limited)
            offered = limited.keys() - refused
            empty = {name for name in offered if not first[name].count and body_of(connection, name) is None}
            bodies = {name: first[name].checksum for name in sorted(offered - empty)}
            fresh = self.note_ids(connection, bodies) | empty
            known = {name: Known(first[name].checksum[:BODY]) for name in fresh}
            for name in first.keys() - fresh - refused:
                known[name] = Known(None if name in expired else body_of(connection, name))
            self._write_batches(connection, [(name, first[name]) for name in sorted(fresh)])
        self.look()  # before anything of this is acknowledged
        outcomes: list[Outcome] = []
        for name, batch in zip(names, group, strict=True):
            if name in fresh:
                fresh.remove(name)
                outcomes.append("stored")
            elif name in refused:
                outcomes.append("too many")
            else:
                outcomes.append(known[name].outcome(batch.checksum))
        return outcomes

    def known(self, task: str, batch: str) -> Known | None:
        """What is kept of a batch by its id; None if it never came."""
        with self.reading() as connection:
            query = sql.select(tasks.c.id, tasks.c.watermark).where(tasks.c.digest == task)
            found = connection.execute(query).one_or_none()
            if found is None:
                return None
            name = (int(found.id), day_of(batch), name_of(batch))
            if 0 < name[1] < found.watermark:
                return Known(None)
            body = body_of(connection, name)
        return None if body is None else Known(body)

    def numbers(self, connection: sql.Connection, wanted: set[str]) -> dict[str, tuple[int, int]]:
        """Number and watermark of tasks; nobody moves a watermark until this transaction ends."""
        query = (
            f"SELECT digest, id, watermark, {_GENERATION} FROM tasks WHERE digest IN ({places(len(wanted))})"
        )
        query += " ORDER BY id" + ("" if self.embedded else " FOR SHARE OF tasks")
        rows = self.ask(connection, query, tuple(wanted)).all()
        if len(rows) < len(wanted):
            missing = wanted - {row[0] for row in rows}
            fresh = [{"digest": digest, "watermark": 0, "purged": 0} for digest in sorted(missing)]
            connection.execute(self.insert(tasks).on_conflict_do_nothing(), fresh)
            rows = self.ask(connection, query, tuple(wanted)).all()
        for row in rows:
            self.compare_generation(row[3])
        return {digest: (number, mark) for digest, number, mark, _ in rows}

    def note_ids(self, connection: sql.Connection, bodies: Mapping[Id, bytes]) -> set[Id]:
        """Write ids, in the order given, with digests of their bodies; those that were not there before."""
        if not bodies:
            return set()
        rows = ", ".join([f"({places(4)})"] * len(bodies))
        values = tuple(part for name, body in bodies.items() for part in (*name, body[:BODY]))
        statement = f"INSERT INTO ids (task, day, name, body) VALUES {rows} ON CONFLICT DO NOTHING"
        found = self.ask(connection, f"{statement} RETURNING task, day, name", values)
        return {(task, day, bytes(name)) for task, day, name in found}

    def _write_batches(self, connection: sql.Connection, batches: Sequence[tuple[Id, Batch]]) -> None:
        """Reports as one lot per task, period and stratum, and what is counted of their batches."""
        lots: dict[tuple[str, int, str], list[Named]] = defaultdict(list)
        refused: Counter[tuple[str, str]] = Counter()
        mixed: dict[tuple[str, str], list[int]] = defaultdict(list)
        for name, batch in batches:
            if batch.count:
                place = (batch.task, batch.received, batch.stratum)
                lots[place].append((name[2], batch.count, batch.payload))
            for reason, count in batch.rejects.items():
                refused[batch.task, reason] += count
            if batch.crowd:
                mixed[batch.task, batch.label].append(batch.crowd)
        made = [
            (task, Lot.of(period, part, stratum))
            for (task, period, stratum), own in sorted(lots.items())
            for part in in_parts(own)
        ]
        self.write_lots(connection, made)
        self.note_rejects(connection, refused)
        for (task, label), sizes in sorted(mixed.items()):
            note_crowds(self, connection, task, label, sizes)

    def write_lots(self, connection: sql.Connection, lots: Sequence[tuple[str, Lot]]) -> None:
        """Append lots of tasks to the log."""
        if lots:
            columns = "task, stratum, period, count, names, sizes, payload, checksum"
            rows = [(task, lot.stratum, *lot.row().values()) for task, lot in lots]
            self.ask(connection, f"INSERT INTO log ({columns}) VALUES ({places(8)})", rows)

    def note_rejects(self, connection: sql.Connection, refused: Mapping[tuple[str, str], int]) -> None:
        """Count refused reports by task and reason."""
        for (task, reason), count in sorted(refused.items()):
            connection.execute(self._add(rejects, {"task": task, "reason": reason}, count=count))

    def _add(self, table: sql.Table, keys: dict[str, Any], **count: int) -> Any:
        """Add to a counter, which begins at 0."""
        insert = self.insert(table).values(**keys, **count)
        more = {name: table.c[name] + insert.excluded[name] for name in count}
        return insert.on_conflict_do_update(index_elements=list(keys), set_=more)

    def waiting(self, task: str) -> int:
        """Reports that are not in the snapshot yet."""
        query = sql.select(sql.func.sum(log.c.count)).where(log.c.task == task)
        with self.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def arrived(self, task: str) -> int:
        """Reports in the snapshot and not yet in it: one statement, so that both are of one moment."""
        both = _total(states.c.count, states.c.task == task) + _total(log.c.count, log.c.task == task)
        with self.reading() as connection:
            return int(connection.execute(sql.select(both)).scalar_one())

    def last(self) -> int:
        """A number that no lot exceeds that has been acknowledged by now."""
        with self.reading() as connection:
            return connection.execute(sql.select(sql.func.max(log.c.seq))).scalar() or 0

    def unfolded(
        self, task: str, last: int, most: int, least: int = 1, strata: Sequence[str] | None = None
    ) -> list[Unfolded]:
        """Lots up to number `last` that are not in the snapshot, oldest period first, of about `most` bytes.

        They have at least `least` reports, if there are so many. If one stratum is named, they are of that; if several
        are (`waiting_together`), they are all that these have.
        """
        mine = sql.true() if strata is None else log.c.stratum.in_(strata)
        several = strata is not None and len(strata) > 1
        query = (
            log.select()
            .where(log.c.task == task, log.c.seq <= last, mine)
            .order_by(log.c.period, log.c.seq)
            .execution_options(yield_per=8)
        )
        found: list[Unfolded] = []
        with self.reading() as connection, connection.execute(query) as rows:
            for row in rows:
                found.append(Unfolded(row.seq, lot_in(row, task, row.stratum)))
                most, least = most - len(row.payload), least - found[-1].lot.count
                if not several and least <= 0 and (most <= 0 or len(found) >= MOST_LOTS):
                    break
        return found

    # What is counted

    def crowds(self, task: str) -> tuple[int, int]:
        """Size of the smallest shuffled crowd (0: none came), and reports in all of them."""
        query = sql.select(crowds.c.smallest, crowds.c.reports).where(crowds.c.task == task)
        with self.reading() as connection:
            row = connection.execute(query).one_or_none()
        return (0, 0) if row is None else (int(row.smallest), int(row.reports))

    def rejected(self, task: str) -> dict[str, int]:
        """Refused reports by reason."""
        query = sql.select(rejects.c.reason, rejects.c.count).where(rejects.c.task == task)
        with self.reading() as connection:
            return {reason: int(count) for reason, count in connection.execute(query)}

    # The snapshot

    def snapshot(self, task: str) -> tuple[Head, bytes | None, list[Shelf]]:
        """The newest snapshot, its bytes, and the strata that add up to it, with what nobody has told."""
        columns = (states.c.version, states.c.count, states.c.period, states.c.epoch, states.c.payload)
        with self.transaction("BEGIN", whole=True) as connection:
            row = connection.execute(sql.select(*columns).where(states.c.task == task)).one_or_none()
            shelves = shelves_of(connection, task)
        if row is None:
            return Head(0, 0, None), None, shelves
        *head, payload = row
        return Head(*head), None if payload is None else bytes(payload), shelves

    def head(self, task: str) -> Head:
        """What the newest snapshot is."""
        query = sql.select(states.c.version, states.c.count, states.c.period, states.c.epoch)
        with self.reading() as connection:
            row = connection.execute(query.where(states.c.task == task)).one_or_none()
        return Head(0, 0, None) if row is None else Head(*row)

    def agrees(self, task: str, kept: bool) -> bool:
        """Whether the snapshot counts as many reports as arrived, and as there are if they are kept."""
        total = sql.select(states.c.count).where(states.c.task == task).scalar_subquery()
        counted = sql.func.coalesce(total, 0)
        arrived = _total(history.c.reports, history.c.task == task)
        purged = _total(tasks.c.purged, tasks.c.digest == task)
        there = _total(segments.c.count, segments.c.task.in_(all_names(task))) + purged
        told = _total(strata.c.count, strata.c.task == task)
        with self.reading() as connection:  # one statement, so that all are of one moment
            found = connection.execute(sql.select(counted, arrived, there, told)).one()
        return found[0] == found[1] >= found[3] and (not kept or found[0] == found[2])

    def advance(
        self,
        task: str,
        old: Head,
        new: Head,
        payload: bytes,
        *,
        folded: Sequence[Unfolded],
        kept: Sequence[Lot],
        arrived: dict[int, int],
        closed: dict[int, bytes],
        most_states: int,
    ) -> bool:
        """Replace snapshot `old` by `new`, with what it takes from the log, or do nothing if `old` is not the newest.

        `folded` are the lots that are in it now, `kept` what stays of their reports, `arrived` counts their reports by
        period, and `closed` has compressed states of periods that ended. Periods after the new one's are a mistake of
        some clock: what they count is counted in the new one.
        """
        with self.writing() as connection:
            row = {**asdict(new), "payload": payload}
            if old.version:
                newest = (states.c.task == task) & (states.c.version == old.version)
                change: Any = states.update().where(newest).values(**row)
            else:
                change = self.insert(states).values(task=task, **row).on_conflict_do_nothing()
            if connection.execute(change.returning(states.c.version)).scalar() is None:
                return False
            for start in range(0, len(folded), MOST_LOTS):
                places = [lot.seq for lot in folded[start : start + MOST_LOTS]]
                assert connection.execute(log.delete().where(log.c.seq.in_(places))).rowcount == len(places)
            counts: Counter[str] = Counter()
            for found in folded:
                counts[found.lot.stratum] += found.lot.count
            self.fill_shelves(connection, task, counts, kept, new.period != old.period)
            for period, reports in sorted(arrived.items()):
                connection.execute(self._add(history, {"task": task, "period": period}, reports=reports))
            if new.period is not None and (old.period or 0) > new.period:
                mistaken = (history.c.task == task) & (history.c.period > new.period)
                moved = connection.execute(sql.select(_total(history.c.reports, mistaken))).scalar_one()
                connection.execute(history.delete().where(mistaken))
                connection.execute(self._add(history, {"task": task, "period": new.period}, reports=moved))
            for period, state in closed.items():
                place = (history.c.task == task) & (history.c.period == period)
                connection.execute(history.update().where(place).values(state=state))
            if closed:
                _thin(connection, task, most_states)
        return True

    def start_over(self, task: str) -> bool:
        """Forget the snapshot, so that it is made again from the reports; only if all of them are there."""
        own = segments.c.task.in_(all_names(task))
        arrived = _total(history.c.reports, history.c.task == task)
        with self.writing() as connection:
            hold(connection, task)
            there, wanted = connection.execute(sql.select(_total(segments.c.count, own), arrived)).one()
            if there < wanted:
                return False
            columns = ("period", "count", "names", "sizes", "payload", "checksum")
            for shelf in (Shelf("", task, 0), *shelves_of(connection, task)):
                told = (sql.literal(task), sql.literal(shelf.stratum))
                again = sql.select(*told, *(segments.c[name] for name in columns))
                again = again.where(segments.c.task == shelf.name).order_by(segments.c.first)
                connection.execute(log.insert().from_select(("task", "stratum", *columns), again))
                if shelf.stratum:
                    connection.execute(states.delete().where(states.c.task == shelf.name))
            connection.execute(segments.delete().where(own))
            connection.execute(strata.delete().where(strata.c.task == task))
            connection.execute(history.delete().where(history.c.task == task))
            blank = {"version": states.c.version + 1, "count": 0, "period": None, "payload": None}
            fresh = states.update().where(states.c.task == task).values(**blank, epoch=states.c.epoch + 1)
            connection.execute(fresh)
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


def _total(column: Any, condition: Any) -> Any:
    return sql.select(sql.func.coalesce(sql.func.sum(column), 0)).where(condition).scalar_subquery()


def _thin(connection: sql.Connection, task: str, most: int) -> None:
    """Once there are more past states than wanted, keep every other one: the whole time stays covered."""
    query = sql.select(history.c.period).where((history.c.task == task) & history.c.state.is_not(None))
    found = [period for (period,) in connection.execute(query.order_by(history.c.period.desc()))]
    if len(found) > most:
        surplus = found[1::2] if most else found
        place = (history.c.task == task) & history.c.period.in_(surplus)
        connection.execute(history.update().where(place).values(state=None))
