"""Uploads: examine a batch, append it to the log, and only then acknowledge it.

What is cheap to check is checked first: token, task, batch id and length, before a byte of the body is
read. When the store is behind, senders are told to come back. Uploads are most of what the service does, so they are
answered before the web framework has looked at them, with bytes that are put together by hand.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from hubbub.collect.connections import body_parts
from hubbub.collect.keypair import KeyPair
from hubbub.collect.keyring import KeyRing
from hubbub.collect.metrics import Metrics
from hubbub.collect.problems import HEADERS, Problem, busy, our_mistake, unauthorized
from hubbub.collect.settings import Settings
from hubbub.collect.snapshots import period_now
from hubbub.collect.store import Unavailable
from hubbub.collect.tokens import Role, Tokens, allows
from hubbub.collect.writing import Arrival, Collected, Examined, Writer, Written, examine
from hubbub.primitives.envelope import unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.delivery import BATCH_HEADER, batch_named
from hubbub.protocol.files import REPORTS, check_header
from hubbub.protocol.sealing import KEY_BYTES, label_width, naming_no_key, sealed_width
from hubbub.protocol.task import Task

_log = logging.getLogger("hubbub.api")

#: Bodies that are larger are examined in a thread, so that others need not wait.
_QUICK = 1 << 16
_UNOPENED = "sealed for another key or task, or changed on the way"
#: Sent with every acknowledgement.
_ALWAYS = [(b"content-type", b"application/json"), *HEADERS]


def opened(collected: Collected, body: bytes | memoryview, most: int) -> bytes | memoryview:
    """The reports in an envelope, whole ones, good and bad."""
    envelope = unseal(body, "The body", REPORTS)
    if envelope.mechanism != collected.code or envelope.digest != collected.digest:
        try:
            check_header(envelope, collected.task, "The batch")
        except Refused as problem:
            raise Problem(409, "another task", str(problem)) from None
    if envelope.count > most:
        raise Problem(413, "too many reports", f"A batch holds at most {most:,} reports: send several.")
    if not envelope.count or len(envelope.payload) != envelope.count * collected.width:
        raise Refused(
            f"The batch says it holds {envelope.count} reports of {collected.width} bytes, "
            f"but has {len(envelope.payload)} bytes."
        )
    return envelope.payload


def examine_sealed(
    collected: Collected, body: bytes, most: int, keys: KeyPair | KeyRing, named: bool = True
) -> Examined:
    """The contents of a shuffled crowd: sealed reports, one after another; if `named`, with the name of their key."""
    task = collected.task
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
    found = examine(collected, packed.tobytes(), dict.fromkeys(unopened, _UNOPENED))
    return replace(found, key=body[-KEY_BYTES:].hex())


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
        self._tasks = {digest: Collected(task) for digest, task in tasks.items()}
        self._settings, self._tokens = settings, tokens
        self._writer, self._metrics, self._keys, self._named = writer, metrics, keys, named
        self._role: Role = "upload" if keys is None else "shuffler"
        self._one_large = asyncio.Lock()
        self._all_held = 0
        self._held: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path names the task after `/v1/tasks/`."""
        started = time.perf_counter()
        problem: Problem | None = None
        try:
            answer = await self._answer(scope, receive)
        except Problem as found:
            problem = found.about(_batch_of(scope))
        except Refused as found:
            problem = Problem(422, "not a batch", str(found)).about(_batch_of(scope))
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("a request failed")
            problem = our_mistake()
        self._metrics.uploaded(200 if problem is None else problem.status, time.perf_counter() - started)
        if problem is None:
            headers = [(b"content-length", b"%d" % len(answer)), *_ALWAYS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})
        else:
            response = problem.response()
            response.raw_headers += HEADERS
            await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        collected, batch_id, token = self._admit(scope)
        held, body = 0, bytearray()
        self._under_way[token] += 1
        try:
            async for part in body_parts(receive, self._settings):
                held += len(part)
                self._hold(token, len(part))
                body += part
            outcome, examined = await self._store(await self._arrival(collected, batch_id, body))
        finally:
            self._hold(token, -held, check=False)
            self._under_way[token] -= 1
            if not self._under_way[token]:
                del self._under_way[token], self._held[token]
        if outcome == "conflict":
            detail = "This batch id was used for other reports before: make a new id for every batch."
            raise Problem(409, "batch id taken", detail)
        if outcome == "expired":
            detail = (
                "This batch was made so long ago that nobody knows whether it came before: it is not taken."
            )
            raise Problem(409, "too old", detail)
        rejected, again = examined.rejected, outcome == "repeated"
        self._metrics.stored(collected.name, examined.count, rejected, again)
        if examined.key and outcome == "stored":
            self._metrics.opened(examined.key, examined.count)
        if not rejected:
            said = "true" if again else "false"
            line = (
                f'{{"batch": "{batch_id}", "accepted": {examined.count}, "rejected": 0, "repeated": {said}}}'
            )
            return line.encode()
        answer: dict[str, Any] = {
            "batch": batch_id,
            "accepted": examined.count,
            "rejected": rejected,
            "repeated": again,
            "problems": examined.problems,
        }
        if not examined.count:
            detail = f"None of the {rejected} reports is valid: do not send them again."
            raise Problem(422, "no valid report", detail, **answer)
        return json.dumps(answer).encode()

    def _admit(self, scope: Scope) -> tuple[Collected, str, str]:
        """Refuse what can be refused without reading the body; else the task, the batch's id and the token."""
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"").decode("latin-1")
        grant = self._tokens.grant_of(given[7:]) if given[:7].lower() == "bearer " else None
        if grant is None or not allows(grant, self._role):
            raise unauthorized(grant is not None)
        collected = self._tasks.get(scope["path"].split("/")[3])
        if collected is None or not grant.covers(collected.name):
            raise Problem(404, "no such task", "No task with this digest is collected here.")
        if collected.name in self._writer.damaged:
            raise busy(503, "This task is damaged and waits for repair: send this batch again later.")
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
        return collected, batch_id, given[7:]

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

    async def _arrival(self, collected: Collected, batch_id: str, body: bytes | bytearray) -> Arrival:
        """A batch that can be written. Large ones are examined here, one at a time, since that takes memory."""
        most, period = self._settings.most_reports, period_now(collected.task)
        if len(body) <= _QUICK and self._keys is None:
            check = hashlib.blake2b(body, digest_size=16).digest()
            return Arrival(collected, batch_id, opened(collected, bytes(body), most), check, period)
        async with self._one_large:
            return await asyncio.to_thread(self._examine, collected, batch_id, body)

    def _examine(self, collected: Collected, batch_id: str, body: bytes | bytearray) -> Arrival:
        most, period = self._settings.most_reports, period_now(collected.task)
        check = hashlib.blake2b(body, digest_size=16).digest()
        if self._keys is None:
            found = examine(collected, opened(collected, memoryview(body), most))
            return Arrival(collected, batch_id, found.payload, check, period, None, found)
        found = examine_sealed(collected, bytes(body), most, self._keys, self._named)
        return Arrival(collected, batch_id, found.payload, check, period, found.count, found)

    async def _store(self, arrival: Arrival) -> Written:
        try:
            return await self._writer.submit(arrival)
        except Unavailable:
            raise busy(503, "The store cannot be written now: send this batch again later.") from None


def _batch_of(scope: Scope) -> str:
    return batch_named(Headers(scope=scope).get(BATCH_HEADER, ""))
