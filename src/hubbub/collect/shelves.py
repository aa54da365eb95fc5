"""What is kept of each stratum: its reports, and their sum.

Reports of a stratum are in segments of their own, on a shelf: under a name made of the task's digest and the stratum's
text, where those of a task without strata are under the digest itself. The number of reports on a shelf changes in the
same transaction as the snapshot of the whole (`hubbub.collect.store`). So at every version the strata add up to the
whole, report for report.

The sum of a shelf's first reports may be kept beside them, so that a question about a stratum adds up only what came
since; whether it is there makes no difference to any answer. Where a task keeps no reports, those on a shelf go in the
transaction that puts them into the sum. So a report of a stratum is either on the shelf or in the sum.

The first reports of a shelf stay the first ones for as long as it is there. When it was merged into another one, or the
whole is made again from its reports, late reports may make a shelf of the same name: it has another mark.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import sqlalchemy as sql

from hubbub.collect.database import log, segments, states, strata
from hubbub.collect.segments import (
    Lot,
    after,
    batches_after,
    crowded,
    drop_nameless,
    extend,
    join_small,
    joined_lots,
    lot_in,
    put,
)
from hubbub.collect.transactions import Database, places

#: Lots that are folded at a time; databases limit the parameters of a statement.
MOST_LOTS = 10_000
#: Shelves that are counted at a time.
_AT_ONCE = 1000


class Kept(NamedTuple):
    """A batch whose reports are kept; where batches are not told apart, several that arrived together."""

    name: str
    period: int
    payload: bytes
    stratum: str


class Shelf(NamedTuple):
    """A stratum, where it is kept, how many reports of it are in the snapshot, and what tells it from earlier ones."""

    stratum: str
    name: str
    reports: int
    mark: int = 0


def shelf_name(task: str, stratum: str) -> str:
    """What the reports of a stratum are under; those of which nothing is told are under the task's digest."""
    if not stratum:
        return task
    return hashlib.blake2b(f"{task} {stratum}".encode(), digest_size=16).hexdigest()


def shelves_of(connection: sql.Connection, task: str) -> list[Shelf]:
    """The shelves of a task, but for the one of which nothing is told."""
    columns = (strata.c.stratum, strata.c.shelf, strata.c.count, strata.c.mark)
    query = sql.select(*columns).where(strata.c.task == task).order_by(strata.c.stratum)
    return [Shelf(*row) for row in connection.execute(query)]


def is_there(connection: sql.Connection, shelf: Shelf, lock: bool = False) -> bool:
    """Whether a shelf still has the reports that it had; with `lock`, nobody changes it until the transaction ends."""
    query = sql.select(strata.c.count).where((strata.c.shelf == shelf.name) & (strata.c.mark == shelf.mark))
    found = connection.execute(query.with_for_update() if lock else query).scalar()
    return found is not None and found >= shelf.reports


def all_names(task: str) -> sql.CompoundSelect[str]:
    """The names under which a task has reports, as a query."""
    return sql.select(strata.c.shelf).where(strata.c.task == task).union_all(sql.select(sql.literal(task)))


def hold(connection: sql.Connection, task: str) -> None:
    """Let nobody else change a task's snapshot or shelves until this transaction ends."""
    snapshot = sql.select(states.c.version).where(states.c.task == task)
    connection.execute(snapshot.with_for_update())  # before all else, as `advance` does
    connection.execute(sql.select(strata.c.count).where(strata.c.task == task).with_for_update())


class Shelves(Database):
    """The part of a store that is about strata."""

    def shelves(self, task: str) -> list[Shelf]:
        """The strata of a task that have reports in the snapshot."""
        with self.reading() as connection:
            return shelves_of(connection, task)

    def waiting_by(self, task: str) -> dict[str, int]:
        """Reports that are not in the snapshot yet, by stratum."""
        return {stratum: reports for stratum, reports, _ in self._waiting_lots(task)}

    def _waiting_lots(self, task: str) -> list[tuple[str, int, int]]:
        """Strata with the numbers of reports and lots that are not in the snapshot yet."""
        query = sql.select(log.c.stratum, sql.func.sum(log.c.count), sql.func.count())
        with self.reading() as connection:
            rows = connection.execute(query.where(log.c.task == task).group_by(log.c.stratum))
            return sorted((stratum, int(reports), int(lots)) for stratum, reports, lots in rows)

    def waiting_together(self, task: str, least: int, most: int) -> list[list[str]]:
        """Strata of which at least `least` reports wait, those together that have about `most` reports together.

        One that has more is alone.
        """
        together: list[list[str]] = []
        room = spare = 0
        for stratum, reports, lots in self._waiting_lots(task):
            if reports < least:
                continue
            room, spare = room - reports, spare - lots
            if room < 0 or spare < 0:
                together.append([])
                room, spare = most - reports, MOST_LOTS - lots
            together[-1].append(stratum)
        return together

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

    def reports_after(
        self, name: str, number: int, stratum: str = "", within: sql.Connection | None = None
    ) -> Iterator[tuple[bytes, int]]:
        """The reports on a shelf after the first `number`, part by part, each with the number of its last one.

        They are read `within` a transaction, or in short ones.
        """
        while True:
            with self.reading() if within is None else nullcontext(within) as connection:
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
        ended: bool,
    ) -> None:
        """Count reports that are in the snapshot from now on, by stratum, and put those that stay on their shelves.

        `ended` says that they are the first of a new period.
        """
        by_stratum: dict[str, list[Lot]] = defaultdict(list)
        for lot in kept:
            by_stratum[lot.stratum].append(lot)
        extend(connection, task, by_stratum[""])
        told = {stratum: count for stratum, count in folded.items() if stratum}
        rows: list[tuple[str, int, Lot]] = []
        many: list[tuple[str, str]] = []
        for stratum, total in self._count_more(connection, task, told):
            name, first = shelf_name(task, stratum), total - told[stratum]
            for lot in joined_lots(by_stratum[stratum]):
                rows.append((name, first, lot))
                first += lot.count
            if ended or crowded(total, told[stratum]):
                many.append((name, stratum))
        put(connection, rows)
        for name, stratum in many:
            join_small(connection, name, stratum)

    def _put_sum(self, connection: sql.Connection, shelf: Shelf, payload: bytes) -> None:
        """The sum of all reports of a shelf, in place of the one before and of reports that are not to be kept."""
        row = {"version": 1, "count": shelf.reports, "period": None, "epoch": 0, "payload": payload}
        insert = self.insert(states).values(task=shelf.name, **row)
        connection.execute(insert.on_conflict_do_update(index_elements=["task"], set_=row))
        drop_nameless(connection, shelf.name, shelf.reports, shelf.stratum)

    def keep_sum(self, shelf: Shelf, payload: bytes) -> None:
        """Keep the sum of what was on a shelf, unless that is gone or there is a longer sum."""
        held = sql.select(states.c.count).where(states.c.task == shelf.name)
        with self.writing() as connection:
            there = is_there(connection, shelf, lock=True)
            if there and (connection.execute(held).scalar() or 0) < shelf.reports:
                self._put_sum(connection, shelf, payload)

    def drop_sum(self, shelf: Shelf) -> None:
        """Forget the sum of a shelf, which is made again from its reports."""
        with self.writing() as connection:
            connection.execute(states.delete().where(states.c.task == shelf.name))

    def merge_shelves(self, task: str, old: Shelf, new: Shelf, total: bytes | None) -> bool:
        """Put the reports of one stratum on the shelf of another, with the sum of both if there are sums.

        Does nothing, and says so, unless both have as many reports as when their sum was made.
        """
        with self.writing() as connection:
            hold(connection, task)
            now = {shelf.stratum: shelf for shelf in shelves_of(connection, task)}
            if now.get(old.stratum) != old or now.get(new.stratum, new) != new:
                return False
            mine = segments.c.task == old.name
            kept = connection.execute(sql.select(sql.func.sum(segments.c.count)).where(mine)).scalar() or 0
            begin_at = new.reports + old.reports - int(kept)
            while row := connection.execute(
                segments.select().where(mine).order_by(segments.c.first).limit(1)
            ).one_or_none():
                lot = replace(lot_in(row, task, old.stratum), stratum=new.stratum)
                extend(connection, new.name, [lot], begin_at)
                connection.execute(segments.delete().where(mine & (segments.c.first == row.first)))
            connection.execute(states.delete().where(states.c.task == old.name))
            gone = (strata.c.task == task) & (strata.c.stratum == old.stratum)
            connection.execute(strata.delete().where(gone))
            self._count_more(connection, task, {new.stratum: old.reports})
            if total is not None:
                self._put_sum(connection, new._replace(reports=new.reports + old.reports), total)
        return True

    def _count_more(
        self, connection: sql.Connection, task: str, counts: Mapping[str, int]
    ) -> list[tuple[str, int]]:
        """Count reports on shelves, which are there from then on; how many each has now."""
        found: list[tuple[str, int]] = []
        ordered = sorted(counts.items())
        for start in range(0, len(ordered), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            rows = ", ".join([f"({places(5)})"] * len(some))
            statement = f"INSERT INTO strata (task, stratum, shelf, count, mark) VALUES {rows} ON CONFLICT "
            statement += "(task, stratum) DO UPDATE SET count = strata.count + excluded.count"
            values = [
                (task, each, shelf_name(task, each), count, secrets.randbits(62)) for each, count in some
            ]
            answer = self.ask(connection, f"{statement} RETURNING stratum, count", tuple(chain(*values)))
            found += sorted((stratum, int(count)) for stratum, count in answer)
        return found

    def restratify(self, task: str, old: str, new: str) -> None:
        """Let reports that are not in the snapshot yet belong to another stratum."""
        query = log.select().where((log.c.task == task) & (log.c.stratum == old))
        with self.writing() as connection:
            for row in connection.execute(query).all():
                lot = replace(lot_in(row, task, old), stratum=new)
                place = log.c.seq == row.seq
                connection.execute(log.update().where(place).values(stratum=new, checksum=lot.checksum()))
