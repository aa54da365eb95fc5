"""Whether a SQLite store is still the file that was opened, and whole.

A database file that is deleted, replaced or cut short under a running service does not fail: the process goes on
writing to what it has open, and what it acknowledges is lost at the next start. So the files are looked at after every
commit and before it is acknowledged (three calls to the operating system), and their pages at the start and
now and then.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: The first bytes of a write-ahead log, but for the byte that says in which order it counts.
_MAGIC = b"\x37\x7f\x06"
#: Seconds between two questions whether a look is to end.
_GLANCE = 0.01
_RESTART = "restore the store if need be, and restart the service"


class Files:
    """The database and its write-ahead log, as they were found when the store was opened."""

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, path.with_name(path.name + "-wal")
        self._inodes: tuple[tuple[int, int], tuple[int, int]] | None = None
        self._size = 0

    def trouble(self) -> str:
        """What has happened to the files since the last look; "" if nothing has.

        While a connection is open nobody but a stranger removes or replaces either file. The database gets shorter
        only when somebody vacuums it, so whether all of its pages are there decides. The log may be emptied by any
        program's checkpoint, and then has no header; one with another header was overwritten.
        """
        try:
            database, log = self.path.stat(), self._log.stat()
            with self._log.open("rb") as file:  # SQLite locks nothing in this file, so closing it is harmless
                header = file.read(4)
        except OSError as problem:
            return f"{problem.filename} is gone ({problem.strerror}): {_RESTART}"
        inodes = (database.st_dev, database.st_ino), (log.st_dev, log.st_ino)
        if self._inodes is None:
            self._inodes = inodes
        if inodes != self._inodes:
            return f"{self.path} is another file than the one that was opened: {_RESTART}"
        if header and header[:3] != _MAGIC:
            return f"the log of {self.path} is damaged: {_RESTART}"
        if database.st_size < self._size and (damage := damaged_pages(self.path)):
            return f"{self.path} was cut short ({damage}): {_RESTART}"
        self._size = database.st_size
        return ""


def anchored(path: Path) -> sqlite3.Connection:
    """A connection that is used for nothing, and is there for as long as the store is open.

    SQLite removes the write-ahead log when the last connection to a database is closed, and connections of a pool
    may all be closed at a time. With this one the log stays, so one that is gone was removed by a stranger.
    """
    connection = sqlite3.connect(path, timeout=5, check_same_thread=False)
    connection.execute("SELECT count(*) FROM meta").fetchall()  # before it has read, it has opened nothing
    return connection


def damaged_pages(path: Path, seconds: float = 0.0, stopped: Callable[[], bool] = lambda: False) -> str:
    """What is wrong with the pages of a database, "" if nothing; a look of at most `seconds`, if they are given.

    It looks through a connection of its own, since others may remember pages that are no longer on the disk. A look
    that is `stopped` has found nothing.
    """
    deadline = time.monotonic() + seconds if seconds else math.inf
    done = threading.Event()

    def watch() -> None:  # SQLite asks nobody while it walks through a tree, but it can be interrupted
        while not done.wait(_GLANCE):
            if stopped() or time.monotonic() > deadline:
                connection.interrupt()

    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5, check_same_thread=False
    )
    watcher = threading.Thread(target=watch, name="hubbub-watch", daemon=True)
    try:
        watcher.start()
        found = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as problem:
        unfinished = problem.sqlite_errorcode in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY)
        return "" if unfinished else str(problem)
    finally:
        done.set()
        watcher.join()
        connection.close()
    return "" if found == [("ok",)] else str(found[0][0]).splitlines()[-1]
