"""What is kept of each stratum: its reports, and their sum.

Reports of a stratum are in segments of their own, on a shelf: under a name made of the task's digest and the stratum's
text, where those of a task without strata are under the digest itself. The number of reports on a shelf changes in the
same transaction as the snapshot of the whole (`hubbub.collect.store`). So at every version the strata add up to the
whole, report for report.

The sum of a shelf's first reports may be kept beside them, so that a question about a stratum adds up only what came
since; whether it is there makes no difference to any answer. Where reports are not kept, the sum changes together with
the snapshot of the whole, and is all there is.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sql

from hubbub.collect.database import log, segments, states, strata
from hubbub.collect.segments import Lot, after, batches_after, extend_by_all, lot_in
from hubbub.collect.transactions import Database, places

#: From the sum that is kept of a shelf (None: there is none yet) to the next one.
Grow = Callable[[bytes | None], bytes]


class Kept(NamedTuple):
    """A batch whose reports are kept; where batches are not told apart, several that arrived together."""

    name: str
    period: int
    payload: bytes
    stratum: str


class Shelf(NamedTuple):
    """A stratum, where it is kept, and how many reports of it are in the snapshot."""

    stratum: str
    name: str
    reports: int


def shelf_name(task: str, stratum: str) -> str:
    """What the reports of a stratum are under; those of which nothing is told are under the task's digest."""
    if not stratum:
        return task
    return hashlib.blake2b(f"{task} {stratum}".encode(), digest_size=16).hexdigest()


def shelves_of(connection: sql.Connection, task: str) -> list[Shelf]:
    """The shelves of a task, but for the one of which nothing is told."""
    query = sql.select(strata.c.stratum, strata.c.shelf, strata.c.count).where(strata.c.task == task)
    return [Shelf(*row) for row in connection.execute(query.order_by(strata.c.stratum))]


def all_names(task: str) -> sql.CompoundSelect[str]:
    """The names under which a task has reports, as a query."""
    return sql.select(strata.c.shelf).where(strata.c.task == task).union_all(sql.select(sql.literal(task)))


class Shelves(Database):
    """The part of a store that is about strata."""

    def shelves(self, task: str) -> list[Shelf]:
        """The strata of a task that have reports in the snapshot."""
        with self.reading() as connection:
            return shelves_of(connection, task)

    def waiting_by(self, task: str) -> dict[str, int]:
        """Reports that are not in the snapshot yet, by stratum."""
        query = sql.select(log.c.stratum, sql.func.sum(log.c.count)).where(log.c.task == task)
        with self.reading() as connection:
            rows = connection.execute(query.group_by(log.c.stratum)).all()
        return {stratum: int(count) for stratum, count in rows}

    def known_strata(self, task: str) -> set[str]:
        """All strata of which reports have come."""
        return {shelf.stratum for shelf in self.shelves(task)} | self.waiting_by(task).keys()

    def kept(self, task: str) -> Iterator[Kept]:
        """Every batch whose reports are kept, however many there are: each once."""
        done: Counter[str] = Counter()
        waiting = log.select().where(log.c.task == task).execution_options(yield_per=1)
        while True:
            with self.transaction("BEGIN", whole=True) as connection:
                lots: list[tuple[int, Lot]] = []
                for shelf in (Shelf("", task, 0), *shelves_of(connection, task)):
                    lots = after(connection, shelf.name, done[shelf.name], shelf.stratum)
                    if lots:
                        break
                else:  # what is in no segment yet, and in none that was appended meanwhile
                    for row in connection.execute(waiting):
                        lot = lot_in(row, task, row.stratum)
                        for name, payload in lot.batches():
                            yield Kept(name, lot.period, payload, lot.stratum)
                    return
            for name, period, payload, end in batches_after(lots, done[shelf.name]):
                done[shelf.name] = end
                yield Kept(name, period, payload, shelf.stratum)

    def reports_after(self, name: str, number: int, stratum: str = "") -> Iterator[tuple[bytes, int]]:
        """The reports on a shelf after the first `number`, part by part, each with the number of its last one."""
        while True:
            with self.reading() as connection:
                lots = after(connection, name, number, stratum)
            if not lots:
                return
            for _, _, payload, end in batches_after(lots, number):
                number = end
                yield payload, end

    def fill_shelves(
        self,
        connection: sql.Connection,
        task: str,
        folded: Mapping[str, int],
        kept: Sequence[Lot],
        grown: Mapping[str, Grow],
    ) -> None:
        """Count reports that are in the snapshot from now on, by stratum; keep those that are kept, or their sum."""
        by_stratum: dict[str, list[Lot]] = defaultdict(list)
        for lot in kept:
            by_stratum[lot.stratum].append(lot)
        extend_by_all(connection, task, by_stratum[""])
        for stratum, count in sorted(folded.items()):
            if not stratum:
                continue
            name = shelf_name(task, stratum)
            total = self._count_more(connection, task, stratum, count)
            extend_by_all(connection, name, by_stratum[stratum], total - count)
            if stratum in grown:
                old = connection.execute(sql.select(states.c.payload).where(states.c.task == name)).scalar()
                self._put_sum(connection, name, total, grown[stratum](None if old is None else bytes(old)))

    def _put_sum(self, connection: sql.Connection, name: str, count: int, payload: bytes) -> None:
        row = {"version": 1, "count": count, "period": None, "epoch": 0, "payload": payload}
        insert = self.insert(states).values(task=name, **row)
        connection.execute(insert.on_conflict_do_update(index_elements=["task"], set_=row))

    def keep_sum(self, shelf: Shelf, count: int, payload: bytes) -> None:
        """Keep the sum of the first `count` reports of a shelf, unless it is gone or has a longer one."""
        with self.writing() as connection:
            there = connection.execute(
                sql.select(strata.c.count).where(strata.c.shelf == shelf.name).with_for_update()
            ).scalar()
            held = connection.execute(sql.select(states.c.count).where(states.c.task == shelf.name)).scalar()
            if there is not None and there >= count and (held or 0) < count:
                self._put_sum(connection, shelf.name, count, payload)

    def drop_sum(self, shelf: Shelf) -> None:
        """Forget the sum of a shelf, which is made again from its reports."""
        with self.writing() as connection:
            connection.execute(states.delete().where(states.c.task == shelf.name))

    def merge_shelves(self, task: str, old: Shelf, new: Shelf, total: bytes | None) -> bool:
        """Put the reports of one stratum on the shelf of another, with the sum of both if there are sums.

        Does nothing, and says so, unless both have as many reports as when their sum was made.
        """
        with self.writing() as connection:
            newest = sql.select(states.c.version).where(states.c.task == task)
            connection.execute(newest.with_for_update())  # before all else, as `advance` does
            now = {shelf.stratum: shelf.reports for shelf in shelves_of(connection, task)}
            if (now.get(old.stratum), now.get(new.stratum, 0)) != (old.reports, new.reports):
                return False
            mine = segments.c.task == old.name
            kept = connection.execute(sql.select(sql.func.sum(segments.c.count)).where(mine)).scalar() or 0
            begin_at = new.reports + old.reports - int(kept)
            while row := connection.execute(
                segments.select().where(mine).order_by(segments.c.first).limit(1)
            ).one_or_none():
                lot = replace(lot_in(row, task, old.stratum), stratum=new.stratum)
                extend_by_all(connection, new.name, [lot], begin_at)
                connection.execute(segments.delete().where(mine & (segments.c.first == row.first)))
            connection.execute(states.delete().where(states.c.task == old.name))
            gone = (strata.c.task == task) & (strata.c.stratum == old.stratum)
            connection.execute(strata.delete().where(gone))
            self._count_more(connection, task, new.stratum, old.reports)
            if total is not None:
                self._put_sum(connection, new.name, new.reports + old.reports, total)
        return True

    def _count_more(self, connection: sql.Connection, task: str, stratum: str, count: int) -> int:
        """Count reports on a shelf, which is there from then on; how many it has now."""
        row = (task, stratum, shelf_name(task, stratum), count)
        statement = f"INSERT INTO strata (task, stratum, shelf, count) VALUES ({places(4)}) ON CONFLICT "
        statement += "(task, stratum) DO UPDATE SET count = strata.count + excluded.count RETURNING count"
        return int(self.ask(connection, statement, row).scalar_one())

    def restratify(self, task: str, old: str, new: str) -> None:
        """Let reports that are not in the snapshot yet belong to another stratum."""
        query = log.select().where((log.c.task == task) & (log.c.stratum == old))
        with self.writing() as connection:
            for row in connection.execute(query).all():
                lot = replace(lot_in(row, task, old), stratum=new)
                place = log.c.seq == row.seq
                connection.execute(log.update().where(place).values(stratum=new, checksum=lot.checksum()))
