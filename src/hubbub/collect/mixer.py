"""Items that wait at a shuffler and crowds that leave it, on disk (`hubbub.collect.shuffler` says what is promised)."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hubbub.collect.names import Column, Slots, column, each
from hubbub.collect.staging import Kind, Staging, digest, permutation
from hubbub.primitives.envelope import keep_private
from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, sealed_width
from hubbub.protocol.strata import prefix_width
from hubbub.protocol.task import Task

#: Bytes of one request, and of a part of a crowd that leaves: the collector opens one within seconds.
LARGEST_BODY, LARGEST_PART = 4 << 20, 1 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (task BLOB NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (task, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS crowds (
    batch TEXT PRIMARY KEY, task BLOB NOT NULL, reports INTEGER NOT NULL, parts INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    batch TEXT NOT NULL, part INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (batch, part)
);
CREATE TABLE IF NOT EXISTS ended (task BLOB NOT NULL, period BLOB NOT NULL, PRIMARY KEY (task, period)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (name BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (task BLOB PRIMARY KEY, seconds INTEGER NOT NULL, turn INTEGER NOT NULL) WITHOUT ROWID;
"""


#: Says which of the fresh items of one of the requests are taken.
Limit = Callable[[int, dict[bytes, bytes]], dict[bytes, bytes]]


class Crowd(NamedTuple):
    """A mixed crowd on its way to the collector, in one part or several."""

    batch: str
    task: bytes
    reports: int
    parts: int


class Mixer:
    """Items that wait, and crowds that leave, which one process at a time may use.

    Items wait in files of slots (`hubbub.collect.staging`). The database next to them learns of an item when its crowd
    is closed, of all items of the crowd in one transaction and in the order of their digests. So its pages and its log
    tell crowds, which the collector sees anyway, and nothing of what came when and with whom.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            keep_private(path, create=True)
            if Path(f"{path}-wal").exists():  # SQLite gives a new one the mode of the file
                keep_private(f"{path}-wal")
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            # What leaves is overwritten, and what is acknowledged is on the disk.
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.executescript(_SCHEMA)
        except (sqlite3.Error, Refused) as problem:
            reason = str(problem).removesuffix(".")
            raise Refused(f"{path} cannot be used as the shuffler's store: {reason}.") from None
        self._lock = threading.Lock()
        self._stages: dict[bytes, Staging] = {}
        self._kinds: dict[bytes, Counter[Kind]] = {}
        self._move_items()
        self._move_crowds()

    def _move_items(self) -> None:
        """Stores of earlier versions kept waiting items in the database, and items did not name their key."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return
        rows = self._connection.execute("SELECT task, item FROM items WHERE item IS NOT NULL").fetchall()
        for task, item in ((task, bare + NO_KEY) for task, bare in rows):
            stage = self._stage(task, len(item))
            known = digest(item)
            if not stage.known([known])[0]:
                stage.put({known: item})
        for stage in self._stages.values():
            stage.sync()
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO seen SELECT task, digest FROM items WHERE item IS NULL")
            old = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'outgoing'").fetchone()
            crowds = "SELECT batch, reports, payload FROM outgoing"
            for batch, reports, payload in db.execute(crowds).fetchall() if old else []:
                width = len(payload) // reports
                items = [payload[start : start + width] for start in range(0, len(payload), width)]
                named = b"".join(item + NO_KEY for item in items)
                db.execute("UPDATE outgoing SET payload = ? WHERE batch = ?", (named, batch))
            db.execute("DROP TABLE items")
        self._connection.execute("VACUUM")
        self._clear_log()

    def _move_crowds(self) -> None:
        """Stores of earlier versions had crowds of one part, under the same ids."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'outgoing'").fetchone():
            return
        with self._transaction() as db:
            db.execute("INSERT INTO crowds SELECT batch, task, reports, 1 FROM outgoing")
            db.execute("INSERT INTO parts SELECT batch, 0, payload FROM outgoing")
            db.execute("DROP TABLE outgoing")
        self._connection.execute("VACUUM")
        self._clear_log()

    def _stage(self, task: bytes, width: int) -> Staging:
        """Where items of a task wait; what a crash left there of items that have gone is overwritten first."""
        if task not in self._stages:
            try:
                stage = Staging(self._path.with_name(f"{self._path.name}-{task.hex()}.waiting"), width)
            except OSError as problem:
                raise Refused(f"{self._path} cannot be used as the shuffler's store: {problem}.") from None
            self._stages[task] = stage
        return self._stages[task]

    def _waiting(self, task: Task) -> Staging:
        known = task.digest in self._kinds
        stage = self._stage(task.digest, sealed_width(task))
        if not known:
            over, width = self._over(task), PERIOD_BYTES[task.period]
            for _, rows in stage.rows():
                names = {digest(item): item[:width] for item in (row.tobytes() for row in rows)}
                gone = [name for name, of in names.items() if of in over or self._left(task, of + name)]
                stage.drop(column(gone))
            self._kinds[task.digest] = stage.kinds(prefix_width(task))
        return stage

    def _over(self, task: Task) -> set[bytes]:
        query = "SELECT period FROM ended WHERE task = ?"
        return {period for (period,) in self._connection.execute(query, (task.digest,))}

    def _left(self, task: Task, name: bytes) -> bool:
        """Whether an item has left in a crowd."""
        query = "SELECT 1 FROM seen WHERE task = ? AND digest = ?"
        return self._connection.execute(query, (task.digest, name)).fetchone() is not None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._change() as connection:
            yield connection

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def add(self, task: Task, items: Sequence[bytes]) -> tuple[int, int]:
        """Keep the items of one request: see `add_each`."""
        return self.add_each(task, [items])[0]

    def add_each(
        self, task: Task, requests: Sequence[Sequence[bytes]], limit: Limit | None = None
    ) -> list[tuple[int, int]]:
        """Keep items of several requests, which are on disk when this returns.

        For each request, how many items are new, and how many were here before. Neither are those of periods that have
        ended: they may have been here before, and nobody knows any more. And neither are those beyond the `limit`.
        """
        width, prefix, counts = PERIOD_BYTES[task.period], prefix_width(task), []
        fresh: dict[bytes, bytes] = {}
        with self._lock:
            stage, over = self._waiting(task), self._over(task)
            for place, items in enumerate(requests):
                taken = [item for item in items if item[:width] not in over]
                names = [digest(item) for item in taken]
                mine: dict[bytes, bytes] = {}
                for name, item, waits in zip(names, taken, stage.known(names), strict=True):
                    if not (waits or name in fresh or name in mine or self._left(task, item[:width] + name)):
                        mine[name] = item
                repeated = len(taken) - len(mine)
                kept = mine if limit is None else limit(place, mine)
                fresh.update(kept)
                counts.append((len(kept), repeated))
            if fresh:
                stage.put(fresh)
                kinds = Counter((item[:prefix], item[-KEY_BYTES:]) for item in fresh.values())
                self._kinds[task.digest].update(kinds)
        try:
            stage.sync()  # also for those that were here: whoever sent them first may still wait for the disk
        except OSError:
            with self._lock, suppress(OSError):
                here = zip(fresh, stage.known(list(fresh)), strict=True)
                stage.drop(column([name for name, known in here if known]))
            with self._lock:
                self._kinds[task.digest] = stage.kinds(prefix)
            raise
        return counts

    def waiting(self, task: Task) -> int:
        """Items that wait for their crowd."""
        with self._lock:
            return len(self._waiting(task))

    def complete(self, task: Task, least: int) -> bool:
        """Whether `least` items or more wait that may leave together."""
        with self._lock:
            self._waiting(task)
            return max(self._kinds[task.digest].values(), default=0) >= least

    def periods(self, task: Task) -> set[bytes]:
        """The names of the periods of which items wait."""
        with self._lock:
            self._waiting(task)
            return self._periods(task)

    def _periods(self, task: Task) -> set[bytes]:
        return {stratum[: PERIOD_BYTES[task.period]] for stratum, _ in self._kinds[task.digest]}

    def close_crowds(self, task: Task, least: int, periods: set[bytes] | None = None) -> int:
        """Turn all items that wait, by stratum and key, into one crowd each, if it has `least`; how many that gave.

        The collector can tell items of two periods, with other labels or for two keys apart, so they would not hide
        each other. One permutation of all that belong together is drawn: each is equally likely to be anywhere in the
        crowd. With `periods`, those of other periods wait on.
        """
        width, gone = PERIOD_BYTES[task.period], []
        with self._lock:
            stage, kinds = self._waiting(task), self._kinds[task.digest]
            due = [
                kind
                for kind, count in kinds.items()
                if count >= max(least, 1) and (periods is None or kind[0][:width] in periods)
            ]
            try:
                found = stage.of(prefix_width(task), due) if due else []
                for kind, (names, slots) in zip(due, found, strict=True):
                    self._close(task, kind[0][:width], names, slots)
                    del kinds[kind]
                    gone.append(names)
            finally:  # those whose crowds are on disk, whatever became of the others
                if gone:
                    stage.drop(np.concatenate(gone))
        return len(due)

    def _close(self, task: Task, period: bytes, names: Column, slots: Slots) -> None:
        stage, at_once = self._stages[task.digest], max(LARGEST_PART // sealed_width(task), 1)
        order = slots[permutation(len(slots))]
        parts, batch = -(-len(order) // at_once), secrets.token_hex(16)
        with self._change() as db:
            row = Crowd(batch, task.digest, len(order), parts)
            db.execute("INSERT INTO crowds VALUES (?, ?, ?, ?)", row)
            for part in range(parts):
                mine = order[part * len(order) // parts : (part + 1) * len(order) // parts]
                db.execute("INSERT INTO parts VALUES (?, ?, ?)", (batch, part, stage.read(mine)))
            rows = ((task.digest, period + name) for name in each(names))
            db.executemany("INSERT INTO seen VALUES (?, ?)", rows)

    def end_periods(self, task: Task, still_open: set[bytes]) -> int:
        """Forget the periods that are over; how many items are overwritten because they never made a crowd.

        With the digests of a period goes, in one transaction and for good, that anything of it is taken: whatever
        the clock says later, an item that nobody would recognise is not passed on.
        """
        width, dropped, after = PERIOD_BYTES[task.period], 0, b""
        if not width:
            return 0
        with self._lock:
            stage = self._waiting(task)
            late = self._periods(task) - still_open
            while row := self._connection.execute(
                "SELECT digest FROM seen WHERE task = ? AND digest > ? ORDER BY digest LIMIT 1",
                (task.digest, after),
            ).fetchone():
                after = row[0][:width] + b"\xff" * 17  # no digest of this period is larger
                late |= {row[0][:width]} - still_open
            for period in late:
                with self._change() as db:
                    db.execute("INSERT OR IGNORE INTO ended VALUES (?, ?)", (task.digest, period))
                    these = (task.digest, period, period + b"\xff" * 17)
                    db.execute("DELETE FROM seen WHERE task = ? AND digest > ? AND digest < ?", these)
                gone = stage.beginning(period)
                stage.drop(gone)
                dropped += len(gone)
            if late:
                self._kinds[task.digest] = stage.kinds(prefix_width(task))
        if late:
            self._clear_log()
        return dropped

    def begin_turn(self, task: Task, seconds: int, turn: int) -> int:
        """Note which stretch of so many seconds has begun; the one that was noted before, 0 if none of that length."""
        with self._transaction() as db:
            noted = db.execute("SELECT seconds, turn FROM turns WHERE task = ?", (task.digest,)).fetchone()
            db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?)", (task.digest, seconds, turn))
        return int(noted[1]) if noted and noted[0] == seconds else 0

    def outgoing(self) -> list[str]:
        """The crowds that have not been acknowledged by the collector."""
        with self._lock:
            return [batch for (batch,) in self._connection.execute("SELECT batch FROM crowds")]

    def waiting_bytes(self) -> int:
        """What the items that wait weigh."""
        with self._lock:
            return sum(len(stage) * stage.width for stage in self._stages.values())

    def outgoing_bytes(self, batch: str | None = None) -> int:
        """What these crowds weigh, or one of them."""
        with self._lock:
            query = "SELECT coalesce(sum(length(payload)), 0) FROM parts"
            if batch is None:
                return int(self._connection.execute(query).fetchone()[0])
            return int(self._connection.execute(f"{query} WHERE batch = ?", (batch,)).fetchone()[0])

    def crowd(self, batch: str) -> Crowd:
        """One of them."""
        with self._lock:
            query = "SELECT batch, task, reports, parts FROM crowds WHERE batch = ?"
            return Crowd(*self._connection.execute(query, (batch,)).fetchone())

    def part(self, batch: str, number: int) -> bytes:
        """The items of one of its parts, the first being number 0."""
        with self._lock:
            query = "SELECT payload FROM parts WHERE batch = ? AND part = ?"
            payload: bytes = self._connection.execute(query, (batch, number)).fetchone()[0]
            return payload

    def cut(self, batch: str) -> bool:
        """Send a crowd in twice as many parts, and under a new id; False if they cannot be smaller.

        It is the same crowd in the same order. What the collector has under the old id, which was never complete, is
        never counted.
        """
        whole, new = self.crowd(batch), secrets.token_hex(16)
        if whole.reports < 2 * whole.parts:
            return False
        width = self.outgoing_bytes(batch) // whole.reports
        with self._transaction() as db:
            row = Crowd(new, whole.task, whole.reports, 2 * whole.parts)
            db.execute("INSERT INTO crowds VALUES (?, ?, ?, ?)", row)
            for number in range(whole.parts):
                query = "SELECT payload FROM parts WHERE batch = ? AND part = ?"
                (payload,) = db.execute(query, (batch, number)).fetchone()
                middle = len(payload) // width // 2 * width
                for half, items in enumerate((payload[:middle], payload[middle:])):
                    db.execute("INSERT INTO parts VALUES (?, ?, ?)", (new, 2 * number + half, items))
            _delete(db, batch)
        self._clear_log()
        return True

    def key_names(self) -> list[bytes]:
        """The names of the collector's keys that are remembered."""
        with self._lock:
            return [name for (name,) in self._connection.execute("SELECT name FROM keys")]

    def remember_keys(self, names: Sequence[bytes]) -> None:
        """Remember these names instead."""
        with self._transaction() as db:
            db.execute("DELETE FROM keys")
            db.executemany("INSERT OR IGNORE INTO keys VALUES (?)", [(name,) for name in names])

    def forget(self, batch: str) -> None:
        """A crowd has arrived: overwrite it, also in the write-ahead log."""
        with self._transaction() as db:
            _delete(db, batch)
        self._clear_log()

    def ping(self) -> None:
        """Raise `sqlite3.Error` if nothing can be written: something is, and is gone before others see it."""
        row = (b"ping", secrets.token_bytes(8))
        with self._transaction() as db:
            db.execute("INSERT INTO ended VALUES (?, ?)", row)
            db.execute("DELETE FROM ended WHERE task = ? AND period = ?", row)

    def _clear_log(self) -> None:
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Give the files back."""
        with self._lock:
            while self._stages:
                self._stages.popitem()[1].close()
            self._connection.close()


def _delete(db: sqlite3.Connection, batch: str) -> None:
    for table in ("parts", "crowds"):
        db.execute(f"DELETE FROM {table} WHERE batch = ?", (batch,))
