"""The shuffler: takes sealed reports, waits for a crowd, mixes it and passes it on.

What it promises, and what the guarantee of the shuffled model rests on (docs/shuffler.md):

- It cannot read. Items are sealed for the collector (`hubbub.protocol.sealing`); no private key is here.
- It keeps items only: no sender, no address, no time, no batch of origin. They are stored under
  their own digest, so not even the order in which they came is on disk.
- A crowd leaves when at least `crowd` items wait, never before and not at shutdown, as one batch in an order
  drawn from the operating system's generator, every order being equally likely.
- Nothing acknowledged is lost and nothing is passed on twice. Items are on disk before they are acknowledged. A
  crowd is put into its order, named and stored in one transaction before it is sent, so that whoever has to send
  it again sends the very same batch, which the collector counts once. Digests of items that have left stay:
  an item that comes again, by a device's retry or by somebody's replay, is dropped.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import logging
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.collect.problems import Problem, busy, unauthorized
from hubbub.collect.settings import Settings
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

_log = logging.getLogger("hubbub.shuffler")

#: Bytes of one request, in or out; a longer queue leaves as several crowds, each of them large enough.
LARGEST_BODY = 4 << 20
#: Bytes of crowds that may wait for a collector that does not answer, before devices are told to wait.
MOST_OUTGOING = 1 << 30
#: Seconds between attempts to reach the collector: doubled from the first to the second.
PATIENCE = (0.25, 30.0)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    task BLOB NOT NULL, digest BLOB NOT NULL, item BLOB, PRIMARY KEY (task, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting ON items (task) WHERE item IS NOT NULL;
CREATE TABLE IF NOT EXISTS outgoing (
    batch TEXT PRIMARY KEY, task BLOB NOT NULL, reports INTEGER NOT NULL, payload BLOB NOT NULL
) WITHOUT ROWID;
"""
#: The items that have not left. Without the hint SQLite would go through the digests of all that ever came.
_WAITING = "items INDEXED BY waiting WHERE task = ? AND item IS NOT NULL"


def digest(item: bytes) -> bytes:
    """What an item is stored under, and all that is kept of it once it has left."""
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

    def add(self, task: Task, items: Sequence[bytes]) -> int:
        """Keep items; how many of them were not seen before. They are on disk when this returns."""
        rows = [(task.digest, digest(item), item) for item in items]
        with self._transaction() as db:
            before = db.total_changes
            db.executemany("INSERT OR IGNORE INTO items VALUES (?, ?, ?)", rows)
            return int(db.total_changes - before)

    def waiting(self, task: Task) -> int:
        """Items that wait for their crowd."""
        with self._lock:
            query = f"SELECT count(*) FROM {_WAITING}"
            return int(self._connection.execute(query, (task.digest,)).fetchone()[0])

    def close_crowds(self, task: Task, least: int) -> int:
        """Turn all items that wait into crowds of at least `least`; how many crowds that gave.

        One permutation of all of them is drawn and then cut, so every item is equally likely to be anywhere.
        """
        largest = max(LARGEST_BODY // sealed_width(task), least)
        with self._transaction() as db:
            query = f"SELECT item FROM {_WAITING}"
            items = [item for (item,) in db.execute(query, (task.digest,))]
            crowds = min(-(-len(items) // largest), len(items) // least)
            if not crowds:
                return 0
            secrets.SystemRandom().shuffle(items)
            for part in range(crowds):
                crowd = items[part * len(items) // crowds : (part + 1) * len(items) // crowds]
                row = Crowd(secrets.token_hex(16), task.digest, len(crowd), b"".join(crowd))
                db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", row)
            db.execute(
                f"UPDATE items SET item = NULL WHERE task = ? AND digest IN (SELECT digest FROM {_WAITING})",
                (task.digest, task.digest),
            )
        return crowds

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
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class Shuffler:
    """Tasks, their crowds, and a thread that passes crowds on to the collector."""

    def __init__(
        self, mixer: Mixer, tasks: Sequence[Task], collector: str, token: str, upload_token: str, crowd: int
    ) -> None:
        if crowd < 2:
            raise Refused(f"A crowd has at least 2 reports, not {crowd}.")
        address = urlsplit(collector)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise Refused(f"The collector's address looks like https://collector.example, not {collector!r}.")
        self.mixer, self.tasks = mixer, {task.digest.hex(): task for task in tasks}
        self.upload_token = upload_token
        self._collector, self._token, self._crowd = address, token, crowd
        limits = Settings()
        for task in tasks:
            most = min(limits.largest_body // sealed_width(task), limits.most_reports)
            if self.least(task) > most:
                raise Refused(
                    f"Crowds of task {task.name!r} would have {self.least(task):,} reports, and a collector takes "
                    f"{most:,} at a time: lower --crowd, or the task's minimum_reports."
                )
        self._unopened: set[str] = set()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="hubbub shuffler", daemon=True)

    def least(self, task: Task) -> int:
        """The size below which a crowd of this task never leaves."""
        return max(task.minimum_reports, self._crowd)

    def start(self) -> None:
        """Begin to pass crowds on, those of an earlier run first."""
        self._thread.start()

    def stop(self) -> None:
        """End after the attempt that is under way; what waits keeps waiting on disk."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self.mixer.close()

    def accept(self, task: Task, body: bytes) -> tuple[int, int]:
        """Keep the items of one request: how many are new, and how many were here before."""
        width = sealed_width(task)
        items = [body[start : start + width] for start in range(0, len(body), width)]
        fresh = self.mixer.add(task, items)
        self._wake.set()
        return fresh, len(items) - fresh

    def _run(self) -> None:
        pause = PATIENCE[0]
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                delivered, asked = self.step()
            except sqlite3.Error as problem:
                _log.error("the store does not answer: %s", problem)
                delivered, asked = False, 0.0
            if delivered:
                pause = PATIENCE[0]
                self._wake.wait()
            else:
                # New items do not make a silent collector answer sooner, so they do not end this wait.
                self._stopping.wait(max(pause, asked))
                pause = min(2 * pause, PATIENCE[1])

    def step(self) -> tuple[bool, float]:
        """Close the crowds that are complete and send all that are closed.

        Whether all of them have left, and the seconds that the collector asks to wait if not.
        """
        for task in self.tasks.values():
            if self.mixer.waiting(task) >= self.least(task):
                self.mixer.close_crowds(task, self.least(task))
        delivered, asked = True, 0.0
        for batch in self.mixer.outgoing():
            if batch in self._unopened:
                continue
            crowd = self.mixer.crowd(batch)
            try:
                status, wait = self._post(crowd)
            except (OSError, http.client.HTTPException) as problem:
                _log.warning("the collector does not answer: %s", type(problem).__name__)
                return False, asked
            words = f"a crowd of {crowd.reports} reports of task {crowd.task.hex()}"
            if status == 200:
                self.mixer.forget(batch)
                _log.info("forwarded %s", words)
            elif status == 422:
                # Perhaps it came up with another key: kept, and tried again at the next start.
                self._unopened.add(batch)
                _log.error("the collector can open nothing of %s", words)
            else:  # it may be put right by somebody
                _log.warning("the collector answers %d to %s", status, words)
                delivered, asked = False, max(asked, wait)
        return delivered, asked

    def _post(self, crowd: Crowd) -> tuple[int, float]:
        """The collector's status, and the seconds it asks to wait. Redirects are not followed: the token stays."""
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        address = self._collector
        connection = kinds[address.scheme](address.netloc.rpartition("@")[2], timeout=60)
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Hubbub-Batch": crowd.batch,
            "Content-Type": "application/octet-stream",
        }
        path = f"{address.path.rstrip('/')}/v1/tasks/{crowd.task.hex()}/shuffled"
        try:
            connection.request("POST", path, crowd.payload, headers)
            answer = connection.getresponse()
            answer.read()
            wait = answer.getheader("Retry-After", "")
            return answer.status, min(float(wait), 600.0) if wait.isdecimal() else 0.0
        finally:
            connection.close()


def create_shuffler_app(shuffler: Shuffler) -> Starlette:
    """The HTTP side: one route that takes sealed items, and one that says it is alive."""

    async def sealed(request: Request) -> Response:
        if not _may_upload(request, shuffler.upload_token):
            raise unauthorized(known=False)
        task = shuffler.tasks.get(request.path_params["task"])
        if task is None:
            raise Problem(404, "no such task", "No task with this digest is shuffled here.")
        body = await _body(request)
        if not body or len(body) % sealed_width(task):
            detail = f"Sealed reports of this task have {sealed_width(task)} bytes each, one after another."
            raise Problem(422, "not sealed reports", detail)
        try:
            if await run_in_threadpool(shuffler.mixer.outgoing_bytes) > MOST_OUTGOING:
                raise busy(503, "The collector does not answer and the store is full: send this again later.")
            fresh, repeated = await run_in_threadpool(shuffler.accept, task, body)
        except sqlite3.Error:
            raise busy(503, "The store cannot be written now: send this again later.") from None
        return JSONResponse({"accepted": fresh, "repeated": repeated})

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        return problem.response()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        shuffler.start()
        yield
        await run_in_threadpool(shuffler.stop)

    routes = [Route("/v1/tasks/{task}/sealed", sealed, methods=["POST"]), Route("/healthz", alive)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={Problem: refuse})


def _may_upload(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "").encode()
    return hmac.compare_digest(given, f"Bearer {token}".encode())


async def _body(request: Request) -> bytes:
    """The body; one that is too long is not read to its end."""
    too_long = Problem(413, "too large", f"A body has at most {LARGEST_BODY:,} bytes: send several.")
    size = request.headers.get("content-length", "0")
    if not size.isdecimal() or int(size[:20]) > LARGEST_BODY:
        raise too_long
    parts, read = [], 0
    async for part in request.stream():
        read += len(part)
        if read > LARGEST_BODY:
            raise too_long
        parts.append(part)
    return b"".join(parts)
