"""Items that wait at a shuffler and crowds that leave it, on disk (`hubbub.collect.shuffler` says what is promised)."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import label_width, sealed_width
from hubbub.protocol.task import Task

#: Bytes of one request, in or out; a longer queue leaves as several crowds, each of them large enough.
LARGEST_BODY = 4 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    task BLOB NOT NULL, digest BLOB NOT NULL, item BLOB, PRIMARY KEY (task, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting ON items (task) WHERE item IS NOT NULL;
CREATE TABLE IF NOT EXISTS outgoing (
    batch TEXT PRIMARY KEY, task BLOB NOT NULL, reports INTEGER NOT NULL, payload BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (task BLOB NOT NULL, period BLOB NOT NULL, PRIMARY KEY (task, period)) WITHOUT ROWID;
"""
#: The items that have not left. Without the hint SQLite would go through the digests of all that ever came.
_WAITING = "items INDEXED BY waiting WHERE task = ? AND item IS NOT NULL"


def digest(item: bytes) -> bytes:
    """What an item is stored under, after its period, and all that is kept of it once it has left."""
    return hashlib.blake2b(item, digest_size=16).digest()


class Crowd(NamedTuple):
    """A mixed crowd on its way to the collector."""

    batch: str
    task: bytes
    reports: int
    payload: bytes


class Mixer:
    """Items that wait and crowds that leave, in one SQLite file, which one process at a time may use."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            # What leaves is overwritten, and what is acknowledged is on the disk.
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as problem:
            raise Refused(f"{path} cannot be used as the shuffler's store: {problem}.") from None
        self._lock = threading.Lock()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def add(self, task: Task, items: Sequence[bytes]) -> tuple[int, int]:
        """Keep items, which are on disk when this returns: how many are new, and how many were here before.

        Neither are those of periods that have ended: they may have been here before, and nobody knows any more.
        """
        label = label_width(task)
        with self._transaction() as db:
            query = "SELECT period FROM ended WHERE task = ?"
            over = {period for (period,) in db.execute(query, (task.digest,))}
            taken = [item for item in items if item[:label] not in over]
            before = db.total_changes
            rows = [(task.digest, item[:label] + digest(item), item) for item in taken]
            db.executemany("INSERT OR IGNORE INTO items VALUES (?, ?, ?)", rows)
            fresh = int(db.total_changes - before)
        return fresh, len(taken) - fresh

    def waiting(self, task: Task) -> int:
        """Items that wait for their crowd."""
        with self._lock:
            query = f"SELECT count(*) FROM {_WAITING}"
            return int(self._connection.execute(query, (task.digest,)).fetchone()[0])

    def close_crowds(self, task: Task, least: int) -> int:
        """Turn all items that wait, period by period, into crowds of at least `least`; how many crowds that gave.

        One permutation of all items of a period is drawn and then cut, so every item is equally likely to be anywhere.
        """
        largest, label = max(LARGEST_BODY // sealed_width(task), least), label_width(task)
        closed = 0
        with self._transaction() as db:
            query = f"SELECT substr(digest, 1, ?), count(*) FROM {_WAITING} GROUP BY 1"
            sizes = db.execute(query, (label, task.digest)).fetchall()
            for period in [period for period, count in sizes if count >= least]:
                which = f"{_WAITING} AND substr(digest, 1, ?) = ?"
                place = (task.digest, label, period)
                items = [item for (item,) in db.execute(f"SELECT item FROM {which}", place)]
                crowds = min(-(-len(items) // largest), len(items) // least)
                secrets.SystemRandom().shuffle(items)
                for part in range(crowds):
                    crowd = items[part * len(items) // crowds : (part + 1) * len(items) // crowds]
                    row = Crowd(secrets.token_hex(16), task.digest, len(crowd), b"".join(crowd))
                    db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", row)
                db.execute(
                    f"UPDATE items SET item = NULL WHERE task = ? AND digest IN (SELECT digest FROM {which})",
                    (task.digest, *place),
                )
                closed += crowds
        return closed

    def end_periods(self, task: Task, still_open: set[bytes]) -> int:
        """Forget the periods that are over; how many items are overwritten because they never made a crowd.

        With the digests of a period goes, in one transaction and for good, that anything of it is taken: whatever
        the clock says later, an item that nobody would recognise is not passed on.
        """
        label, dropped, after = label_width(task), 0, b""
        while label:
            with self._transaction() as db:
                query = "SELECT digest FROM items WHERE task = ? AND digest > ? ORDER BY digest LIMIT 1"
                row = db.execute(query, (task.digest, after)).fetchone()
                if row is None:
                    break
                period = row[0][:label]
                after = period + b"\xff" * 17  # no digest of this period is larger
                if period not in still_open:
                    these = "items WHERE task = ? AND digest > ? AND digest < ?"
                    place = (task.digest, period, after)
                    dropped += db.execute(f"SELECT count(item) FROM {these}", place).fetchone()[0]
                    db.execute("INSERT OR IGNORE INTO ended VALUES (?, ?)", (task.digest, period))
                    db.execute(f"DELETE FROM {these}", place)
        if dropped:
            self._clear_log()
        return dropped

    def outgoing(self) -> list[str]:
        """The crowds that have not been acknowledged by the collector."""
        with self._lock:
            return [batch for (batch,) in self._connection.execute("SELECT batch FROM outgoing")]

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

    def forget(self, batch: str) -> None:
        """A crowd has arrived: overwrite it, also in the write-ahead log."""
        with self._transaction() as db:
            db.execute("DELETE FROM outgoing WHERE batch = ?", (batch,))
        self._clear_log()

    def _clear_log(self) -> None:
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            self._connection.close()
