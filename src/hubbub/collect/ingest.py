"""Uploads: examine a batch, append it to the log, and only then acknowledge it.

What is cheap to check is checked first: token, task, batch id and length, before a byte of the body is
read. One thread writes: it takes all batches that are waiting and commits them together, so that thousands of
uploads a second share the disk's patience. When the store is behind, senders are told to come back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hubbub.collect.connections import body_parts
from hubbub.collect.keypair import KeyPair
from hubbub.collect.keyring import KeyRing
from hubbub.collect.metrics import Metrics
from hubbub.collect.problems import Problem, busy, unauthorized
from hubbub.collect.settings import Settings
from hubbub.collect.snapshots import period_now
from hubbub.collect.store import Batch, Outcome, Store, Unavailable
from hubbub.collect.tokens import Role, Tokens, allows
from hubbub.primitives.envelope import unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.delivery import BATCH_HEADER, batch_named
from hubbub.protocol.files import REPORTS, check_header
from hubbub.protocol.sealing import KEY_BYTES, label_width, naming_no_key, sealed_width
from hubbub.protocol.task import Task

#: Batches that are written in one transaction.
_GROUP = 512
#: Bodies that are larger are examined in a thread, so that others need not wait.
_QUICK = 1 << 16
#: Refused reports that an answer lists.
_LISTED = 100
_UNOPENED = "sealed for another key or task, or changed on the way"


@dataclass(frozen=True)
class Examined:
    """The good reports of a batch, and what is wrong with the others."""

    payload: bytes
    count: int
    problems: list[dict[str, Any]]
    rejects: dict[str, int]
    #: The name of the key that the reports were sealed for, if they were.
    key: str = ""


def examine(task: Task, body: bytes, most: int) -> Examined:
    """The contents of an envelope of reports."""
    envelope = unseal(body, "The body", REPORTS)
    try:
        check_header(envelope, task, "The batch")
    except Refused as problem:
        raise Problem(409, "another task", str(problem)) from None
    width = task.mechanism.layout.width
    if envelope.count > most:
        raise Problem(413, "too many reports", f"A batch holds at most {most:,} reports: send several.")
    if not envelope.count or len(envelope.payload) != envelope.count * width:
        raise Refused(
            f"The batch says it holds {envelope.count} reports of {width} bytes, but has {len(envelope.payload)} bytes."
        )
    packed = np.frombuffer(envelope.payload, dtype=np.uint8).reshape(-1, width)
    return _sort_out(task, packed, np.arange(len(packed)), [])


def examine_sealed(
    task: Task, body: bytes, most: int, keys: KeyPair | KeyRing, named: bool = True
) -> Examined:
    """The contents of a shuffled crowd: sealed reports, one after another; if `named`, with the name of their key."""
    if not named:
        body = naming_no_key(task, body)
    if len(body) > most * sealed_width(task):
        raise Problem(413, "too many reports", f"A crowd holds at most {most:,} reports here.")
    if not body:
        raise Refused("The crowd is empty.")
    packed, unopened = keys.open_each(task, body)
    width, label = sealed_width(task), label_width(task)
    starts = range(0, len(body), width)
    if len({body[start : start + label] for start in starts}) > 1:
        raise Refused("A crowd holds reports of one period, and this one mixes several.")
    if len({body[start + width - KEY_BYTES : start + width] for start in starts}) > 1:
        raise Refused("A crowd holds reports for one key, and this one mixes several.")
    if not len(packed):  # nothing is noted of it, so that it is welcome once the key is the right one
        raise Refused("No report of this crowd can be opened: it was sealed for another key or task.")
    places = np.delete(np.arange(len(body) // width), unopened)
    return replace(_sort_out(task, packed, places, unopened), key=body[-KEY_BYTES:].hex())


def _sort_out(
    task: Task, packed: NDArray[np.uint8], places: NDArray[np.int64], unopened: list[int]
) -> Examined:
    """Separate good reports from bad ones; `places` are their numbers in what was sent."""
    layout = task.mechanism.layout
    _, reasons = layout.unpack_each(packed)
    bad = np.flatnonzero(reasons)
    if not len(bad) and not unopened:
        return Examined(packed.tobytes(), len(packed), [], {})
    found = {int(places[i]): layout.reason(int(reasons[i])) for i in bad}
    found.update(dict.fromkeys(unopened, _UNOPENED))
    listed = [{"index": index, "reason": found[index]} for index in sorted(found)[:_LISTED]]
    good = packed[reasons == 0]
    return Examined(good.tobytes(), len(good), listed, dict(Counter(found.values())))


class Writer:
    """One thread that appends batches to the log, many in one transaction."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store, self._limit = store, limit
        self._queue: deque[tuple[Batch, asyncio.Future[Outcome]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        #: When a group of batches last could not be written, by the monotonic clock; None once one could.
        self.failed: float | None = None
        self._thread = threading.Thread(target=self._run, name="hubbub-write", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether anybody writes."""
        return self._thread.is_alive()

    @property
    def full(self) -> bool:
        """Whether further batches should come back later."""
        return len(self._queue) >= self._limit

    def submit(self, batch: Batch) -> asyncio.Future[Outcome]:
        """Queue a batch; the future is done when the batch is on disk, or fails with `Unavailable`."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._queue.append((batch, future))
            self._wake.notify()
        return future

    def stop(self) -> None:
        """Write what is queued, and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                if not self._queue:
                    return
                group = [self._queue.popleft() for _ in range(min(len(self._queue), _GROUP))]
            outcomes: list[Outcome] | Exception
            try:
                outcomes = self._store.append([batch for batch, _ in group])
                self.failed = None
            except (
                Exception
            ) as problem:  # whatever it is, the senders must hear of it and the thread must live
                outcomes = problem
                self.failed = time.monotonic()
            loop = group[0][1].get_loop()
            loop.call_soon_threadsafe(_settle, [future for _, future in group], outcomes)


def _settle(futures: list[asyncio.Future[Outcome]], outcomes: list[Outcome] | Exception) -> None:
    for place, future in enumerate(futures):
        if future.done():  # its sender has gone
            continue
        if isinstance(outcomes, Exception):
            future.set_exception(outcomes)
        else:
            future.set_result(outcomes[place])


class Uploads:
    """The route for batches of reports (or shuffled crowds), as a bare ASGI application."""

    def __init__(
        self,
        tasks: dict[str, Task],
        settings: Settings,
        tokens: Tokens,
        writer: Writer,
        metrics: Metrics,
        keys: KeyRing | None = None,
        named: bool = True,
    ) -> None:
        """With `keys`, bodies are shuffled crowds of sealed reports, which name their key unless told otherwise."""
        self._tasks, self._settings, self._tokens = tasks, settings, tokens
        self._writer, self._metrics, self._keys, self._named = writer, metrics, keys, named
        self._role: Role = "upload" if keys is None else "shuffler"
        self._all_held = 0
        self._held: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        try:
            response = Response(json.dumps(await self._answer(scope, receive)), media_type="application/json")
        except Problem as problem:
            response = problem.about(_batch_of(scope)).response()
        except Refused as problem:
            response = Problem(422, "not a batch", str(problem)).about(_batch_of(scope)).response()
        except ClientDisconnect:
            return
        self._metrics.uploaded(response.status_code, time.perf_counter() - started)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        task, batch_id, token = self._admit(scope)
        held = 0
        self._under_way[token] += 1
        try:
            parts = []
            async for part in body_parts(receive, self._settings):
                held += len(part)
                self._hold(token, len(part))
                parts.append(part)
            body = b"".join(parts)
            examined = await self._examine(task, body)
            outcome = await self._store(task, batch_id, body, examined)
        finally:
            self._hold(token, -held, check=False)
            self._under_way[token] -= 1
            if not self._under_way[token]:
                del self._under_way[token], self._held[token]
        if outcome == "conflict":
            detail = "This batch id was used for other reports before: make a new id for every batch."
            raise Problem(409, "batch id taken", detail)
        rejected = sum(examined.rejects.values())
        self._metrics.stored(task.digest.hex(), examined.count, rejected, outcome == "repeated")
        if examined.key and outcome == "stored":
            self._metrics.opened(examined.key, examined.count)
        answer: dict[str, Any] = {
            "batch": batch_id,
            "accepted": examined.count,
            "rejected": rejected,
            "repeated": outcome == "repeated",
        }
        if examined.problems:
            answer["problems"] = examined.problems
        if not examined.count:
            detail = f"None of the {rejected} reports is valid: do not send them again."
            raise Problem(422, "no valid report", detail, **answer)
        return answer

    def _admit(self, scope: Scope) -> tuple[Task, str, str]:
        """Refuse what can be refused without reading the body; else the task, the batch's id and the token."""
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"").decode("latin-1")
        grant = self._tokens.grant_of(given[7:]) if given[:7].lower() == "bearer " else None
        if grant is None or not allows(grant, self._role):
            raise unauthorized(grant is not None)
        task = self._tasks.get(scope["path_params"]["task"])
        if task is None or not grant.covers(task.digest.hex()):
            raise Problem(404, "no such task", "No task with this digest is collected here.")
        batch_id = _batch_of(scope)
        if not batch_id:
            detail = "The header Hubbub-Batch must have 1 to 64 letters, digits, - or _, new for every batch."
            raise Problem(400, "batch id needed", detail)
        size = headers.get(b"content-length", b"")
        if not size.isdigit():
            raise Problem(411, "length needed", "Send the body's length in the header Content-Length.")
        if int(size[:20]) > self._settings.largest_body:
            detail = f"A body has at most {self._settings.largest_body:,} bytes: send several batches."
            raise Problem(413, "too large", detail, {"Connection": "close"})
        if self._writer.full or self._under_way[given[7:]] >= self._settings.uploads_per_token:
            raise busy(429, "Too many batches are waiting: send this one again in a second.")
        return task, batch_id, given[7:]

    def _hold(self, token: str, size: int, check: bool = True) -> None:
        """Count bytes that have come, or have been dealt with; what is only announced takes no room."""
        self._held[token] += size
        self._all_held += size
        if check and (
            self._all_held > self._settings.memory or self._held[token] > self._settings.memory_per_token
        ):
            problem = busy(429, "Too much is on its way in: send this batch again in a second.")
            problem.headers = {**(problem.headers or {}), "Connection": "close"}
            raise problem

    async def _examine(self, task: Task, body: bytes) -> Examined:
        most = self._settings.most_reports
        if self._keys is not None:
            return await asyncio.to_thread(examine_sealed, task, body, most, self._keys, self._named)
        if len(body) > _QUICK:
            return await asyncio.to_thread(examine, task, body, most)
        return examine(task, body, most)

    async def _store(self, task: Task, batch_id: str, body: bytes, examined: Examined) -> Outcome:
        batch = Batch(
            task.digest.hex(),
            batch_id,
            examined.count,
            examined.payload,
            hashlib.blake2b(body, digest_size=16).digest(),
            period_now(task),
            None if self._keys is None else examined.count,
            examined.rejects,
        )
        try:
            async with asyncio.timeout(self._settings.patience):
                return await self._writer.submit(batch)
        except (Unavailable, TimeoutError):
            raise busy(503, "The store cannot be written now: send this batch again later.") from None


def _batch_of(scope: Scope) -> str:
    return batch_named(Headers(scope=scope).get(BATCH_HEADER, ""))
