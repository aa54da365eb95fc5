"""Items that wait at a shuffler and crowds that leave it, on disk (`hubbub.collect.shuffler` says what is promised)."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hubbub.collect.staging import Staging, digest
from hubbub.primitives.envelope import keep_private
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, label_width, sealed_width
from hubbub.protocol.task import Task

#: Bytes of one request, in or out; a longer queue leaves as several crowds, each of them large enough.
LARGEST_BODY = 4 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (task BLOB NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (task, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outgoing (
    batch TEXT PRIMARY KEY, task BLOB NOT NULL, reports INTEGER NOT NULL, payload BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (task BLOB NOT NULL, period BLOB NOT NULL, PRIMARY KEY (task, period)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (name BLOB PRIMARY KEY) WITHOUT ROWID;
"""


class Crowd(NamedTuple):
    """A mixed crowd on its way to the collector."""

    batch: str
    task: bytes
    reports: int
    payload: bytes


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
        self._move_items()

    def _move_items(self) -> None:
        """Stores of earlier versions kept waiting items in the database, and items did not name their key."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return
        rows = self._connection.execute("SELECT task, item FROM items WHERE item IS NOT NULL").fetchall()
        for task, item in ((task, bare + NO_KEY) for task, bare in rows):
            stage = self._stage(task, len(item))
            known = digest(item)
            if known not in stage.items:
                stage.put({known: item})
        for stage in self._stages.values():
            stage.sync()
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO seen SELECT task, digest FROM items WHERE item IS NULL")
            for batch, reports, payload in db.execute(
                "SELECT batch, reports, payload FROM outgoing"
            ).fetchall():
                width = len(payload) // reports
                items = [payload[start : start + width] for start in range(0, len(payload), width)]
                named = b"".join(item + NO_KEY for item in items)
                db.execute("UPDATE outgoing SET payload = ? WHERE batch = ?", (named, batch))
            db.execute("DROP TABLE items")
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
        known = task.digest in self._stages
        stage, label = self._stage(task.digest, sealed_width(task)), label_width(task)
        if not known:
            over = self._over(task)
            stage.drop(
                [
                    name
                    for name, item in stage.items.items()
                    if item[:label] in over or self._left(task, item[:label] + name)
                ]
            )
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

    def add_each(self, task: Task, requests: Sequence[Sequence[bytes]]) -> list[tuple[int, int]]:
        """Keep items of several requests, which are on disk when this returns.

        For each request, how many items are new, and how many were here before. Neither are those of periods that have
        ended: they may have been here before, and nobody knows any more.
        """
        label, counts = label_width(task), []
        fresh: dict[bytes, bytes] = {}
        with self._lock:
            stage, over = self._waiting(task), self._over(task)
            for items in requests:
                before, taken = len(fresh), 0
                for item in items:
                    if item[:label] in over:
                        continue
                    taken, known = taken + 1, digest(item)
                    here = known in fresh or known in stage.items
                    if not here and not self._left(task, item[:label] + known):
                        fresh[known] = item
                counts.append((len(fresh) - before, taken - len(fresh) + before))
            if fresh:
                stage.put(fresh)
        try:
            stage.sync()  # also for those that were here: whoever sent them first may still wait for the disk
        except OSError:
            with self._lock, suppress(OSError):
                stage.drop(fresh.keys() & stage.items.keys())
            raise
        return counts

    def waiting(self, task: Task) -> int:
        """Items that wait for their crowd."""
        with self._lock:
            return len(self._waiting(task).items)

    def close_crowds(self, task: Task, least: int) -> int:
        """Turn all items that wait, by period and key, into crowds of at least `least`; how many crowds that gave.

        The collector can tell items of two periods or for two keys apart, so they would not hide each other. One
        permutation of all that belong together is drawn and then cut: each is equally likely to be anywhere.
        """
        largest, label = max(LARGEST_BODY // sealed_width(task), least), label_width(task)
        closed = 0
        with self._lock:
            stage = self._waiting(task)
            sizes = Counter((item[:label], item[-KEY_BYTES:]) for item in stage.items.values())
            for period, key in [kind for kind, count in sizes.items() if count >= least]:
                known = sorted(
                    name
                    for name, item in stage.items.items()
                    if item[:label] == period and item[-KEY_BYTES:] == key
                )
                items = [stage.items[name] for name in known]
                crowds = min(-(-len(items) // largest), len(items) // least)
                secrets.SystemRandom().shuffle(items)
                with self._change() as db:
                    for part in range(crowds):
                        crowd = items[part * len(items) // crowds : (part + 1) * len(items) // crowds]
                        row = Crowd(secrets.token_hex(16), task.digest, len(crowd), b"".join(crowd))
                        db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", row)
                    rows = ((task.digest, period + name) for name in known)
                    db.executemany("INSERT INTO seen VALUES (?, ?)", rows)
                stage.drop(known)
                closed += crowds
        return closed

    def end_periods(self, task: Task, still_open: set[bytes]) -> int:
        """Forget the periods that are over; how many items are overwritten because they never made a crowd.

        With the digests of a period goes, in one transaction and for good, that anything of it is taken: whatever
        the clock says later, an item that nobody would recognise is not passed on.
        """
        label, dropped, after = label_width(task), 0, b""
        if not label:
            return 0
        with self._lock:
            stage = self._waiting(task)
            late = {item[:label] for item in stage.items.values()} - still_open
            while row := self._connection.execute(
                "SELECT digest FROM seen WHERE task = ? AND digest > ? ORDER BY digest LIMIT 1",
                (task.digest, after),
            ).fetchone():
                after = row[0][:label] + b"\xff" * 17  # no digest of this period is larger
                late |= {row[0][:label]} - still_open
            for period in late:
                with self._change() as db:
                    db.execute("INSERT OR IGNORE INTO ended VALUES (?, ?)", (task.digest, period))
                    these = (task.digest, period, period + b"\xff" * 17)
                    db.execute("DELETE FROM seen WHERE task = ? AND digest > ? AND digest < ?", these)
                gone = [name for name, item in stage.items.items() if item[:label] == period]
                stage.drop(gone)
                dropped += len(gone)
        if late:
            self._clear_log()
        return dropped

    def outgoing(self) -> list[str]:
        """The crowds that have not been acknowledged by the collector."""
        with self._lock:
            return [batch for (batch,) in self._connection.execute("SELECT batch FROM outgoing")]

    def waiting_bytes(self) -> int:
        """What the items that wait weigh."""
        with self._lock:
            return sum(len(stage.items) * stage.width for stage in self._stages.values())

    def outgoing_bytes(self) -> int:
        """What these crowds weigh."""
        with self._lock:
            query = "SELECT coalesce(sum(length(payload)), 0) FROM outgoing"
            return int(self._connection.execute(query).fetchone()[0])

    def crowd(self, batch: str) -> Crowd:
        """One of them."""
        with self._lock:
            query = "SELECT batch, task, reports, payload FROM outgoing WHERE batch = ?"
            return Crowd(*self._connection.execute(query, (batch,)).fetchone())

    def cut(self, batch: str, least: int) -> bool:
        """Replace a crowd by its two halves, in one transaction; False if one of them would be smaller than `least`.

        Its order is random, every order being equally likely, so the same holds for each half given who is in it, and
        which of them that is depends on nothing but the draw.
        """
        whole = self.crowd(batch)
        if whole.reports < 2 * least:
            return False
        middle = whole.reports // 2
        width = len(whole.payload) // whole.reports
        parts = (whole.payload[: middle * width], whole.payload[middle * width :])
        with self._transaction() as db:
            db.execute("DELETE FROM outgoing WHERE batch = ?", (batch,))
            for part in parts:
                row = Crowd(secrets.token_hex(16), whole.task, len(part) // width, part)
                db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", row)
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
            db.execute("DELETE FROM outgoing WHERE batch = ?", (batch,))
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
