"""The shuffler's route for sealed reports: many requests share one wait for the disk."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import Receive

from hubbub.collect.allowance import check_limit
from hubbub.collect.groups import Groups, TooSlow
from hubbub.collect.intake import Intake, Room, batch_in, bearer_in, length_in, named_batch
from hubbub.collect.mixer import LARGEST_BODY
from hubbub.collect.problems import Problem, busy, unauthorized
from hubbub.collect.settings import Settings
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES, naming_no_key, sealed_width
from hubbub.protocol.task import Task

if TYPE_CHECKING:
    from hubbub.collect.shuffler import Shuffler

#: A request: its task, its items, and the token that came with them.
Job = tuple[Task, list[bytes], str]
#: How many of its items are new, and how many were here before.
Taken = tuple[int, int]


class _Sealed(NamedTuple):
    """What is known of a request before its body has come."""

    task: Task
    batch: str
    token: str
    named: bool


class Relay(Intake[_Sealed]):
    """Takes sealed reports; those of version 2 of the interface name their key."""

    def __init__(self, shuffler: Shuffler, settings: Settings) -> None:
        super().__init__(settings, Room(settings))
        if self._strangers and shuffler.allowance is not None:
            raise Refused(
                "A limit per token needs tokens: leave out --per-token, or set public_reports to 0."
            )
        if self._strangers:  # who sends more at once is told to send less at once
            check_limit(shuffler.tasks.values(), self._strangers.most, "public_reports")
        self._shuffler = shuffler
        self._secret = secrets.token_bytes(32)
        self._tokens = {self._mark(token.encode()) for token in shuffler.upload_tokens}
        self._writer: Groups[Job, Taken] = Groups(
            shuffler.accept_each,
            lambda job: len(job[1]) * sealed_width(job[0]),
            settings.queue,
            settings.patience,
        )
        self._askers: Groups[None, None] = Groups(
            shuffler.keys.ask_for_all, lambda _: 0, settings.queue, settings.patience
        )

    def stop(self) -> None:
        """Write what is queued, and end."""
        self._askers.stop()
        self._writer.stop()

    def _mark(self, token: bytes) -> bytes:
        """A keyed hash: there may be many tokens, and how long a search takes must not say how near a guess is."""
        return hashlib.blake2b(token, key=self._secret, digest_size=16).digest()

    @property
    def alive(self) -> bool:
        """Whether anybody writes."""
        return self._writer.alive and self._askers.alive

    def admit(self, path: str, headers: Mapping[bytes, bytes], sender: str) -> _Sealed:
        token = bearer_in(headers)
        public = bool(self._strangers) and not token
        if not public and self._mark(token.encode("latin-1")) not in self._tokens:
            raise unauthorized(known=False)
        task = self._shuffler.tasks.get(path.split("/")[3])
        if task is None:
            raise Problem(404, "no such task", "No task with this digest is shuffled here.")
        size = headers.get(b"content-length", b"0")
        if not size.isdigit() or int(size[:20]) > LARGEST_BODY:
            raise _too_large()
        if self._writer.full or self._askers.full:
            raise busy(429, "Too many requests are waiting: send this one again in a second.")
        if public:
            named_batch(
                headers
            )  # without a header of its own, a page that is not allowed could send this unasked
            reports = length_in(headers) // sealed_width(task)
            if reports > self._strangers.most:
                raise _too_large(self._strangers.most * sealed_width(task))
            self._strangers.count(sender, max(1, reports))
        return _Sealed(task, batch_in(headers), token, path.startswith("/v2/"))

    def submit(self, upload: _Sealed, body: bytes, done: Callable[[bytes | Exception], None]) -> None:
        self._take(upload, self._items(upload, body), done)

    async def store(self, upload: _Sealed, receive: Receive) -> bytes:
        token, room, body = upload.token, self._room, bytearray()
        try:
            async for part in room.parts(receive, token):
                if len(body) + len(part) > LARGEST_BODY:
                    raise _too_large()
                room.hold(token, len(part))
                body += part
            room.enter(token, 0)
            try:
                answer: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
                self._take(
                    upload,
                    self._items(upload, bytes(body)),
                    lambda result: None if answer.done() else answer.set_result(result),
                )
                result = await answer
            finally:
                room.leave(token, 0)
        finally:
            room.give_back(token, len(body))
        if isinstance(result, Exception):
            raise result
        return result

    def _items(self, upload: _Sealed, body: bytes) -> list[bytes]:
        if len(body) > LARGEST_BODY:
            raise _too_large()
        width = sealed_width(upload.task)
        sent = width if upload.named else width - KEY_BYTES
        if not body or len(body) % sent:
            detail = f"Sealed reports of this task have {sent} bytes each, one after another."
            raise Problem(422, "not sealed reports", detail)
        if not upload.named:
            body = naming_no_key(upload.task, body)
        return [body[start : start + width] for start in range(0, len(body), width)]

    def _take(self, upload: _Sealed, items: list[bytes], done: Callable[[bytes | Exception], None]) -> None:
        def written(result: Taken | Exception) -> None:
            done(self._said(upload, len(items), result))

        def asked(result: Exception | None) -> None:
            if result is None:  # those whose key is still unknown are refused
                self._writer.submit((upload.task, items, upload.token), written)
            else:
                done(busy(503, "The collector cannot be asked for its keys now: send this again later."))

        if self._shuffler.keys.names.issuperset([item[-KEY_BYTES:] for item in items]):
            self._writer.submit((upload.task, items, upload.token), written)
        else:
            self._askers.submit(None, asked)

    def _said(self, upload: _Sealed, sent: int, result: Taken | Exception) -> bytes | Exception:
        if isinstance(result, sqlite3.Error | OSError | TooSlow):
            return busy(503, "The store cannot be written now: send this again later.")
        if isinstance(result, Exception):
            return result
        fresh, repeated = result
        line = f'{{"accepted": {fresh}, "repeated": {repeated}'
        if sent > fresh + repeated:
            line += f', "refused": {sent - fresh - repeated}'
        if upload.batch:  # it tells the device who answers, and is not kept
            line += f', "batch": "{upload.batch}"'
        return f"{line}}}".encode()


def _too_large(most: int = LARGEST_BODY) -> Problem:
    return Problem(413, "too large", f"A body has at most {most:,} bytes: send several.")
