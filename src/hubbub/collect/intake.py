"""What comes in: how much of it is held in memory at a time, and two ways for a request to one answer.

A request that came whole, in one piece, as nearly all do that carry a report or a few, is answered without a task, a
timer or the web framework (`Intake.whole`). All others are ordinary ASGI requests: their bodies are read as they come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from hubbub.collect.origins import Origins
from hubbub.collect.problems import HEADERS, Problem, busy, our_mistake
from hubbub.collect.settings import Settings
from hubbub.collect.strangers import Strangers
from hubbub.primitives.errors import Refused
from hubbub.protocol.delivery import BATCH_HEADER, batch_named

_log = logging.getLogger("hubbub.api")

#: Bytes of a body up to which a request that came whole is answered on the spot.
QUICK = 1 << 16
#: Sent with every acknowledgement.
_ALWAYS = [(b"content-type", b"application/json"), *HEADERS]
_BATCH = BATCH_HEADER.lower().encode()
#: Headers that may be there once, besides those of our own.
_ONCE = {b"authorization", b"content-length"}


def as_lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Headers as they go over the wire."""
    return b"".join(b"%s: %s\r\n" % header for header in headers)


_ALWAYS_LINES = as_lines(_ALWAYS)

#: Headers as they came, names in small letters.
RawHeaders = Sequence[tuple[bytes, bytes]]
#: Sends an answer: status, headers as lines, body.
Reply = Callable[[int, bytes, bytes], None]


class _Guest:
    """A body that is on its way."""

    def __init__(self) -> None:
        self.since, self.arrived = time.monotonic(), 0
        self.waiting: asyncio.Timeout | None = None
        self.sent_away = False

    def send_away(self) -> None:
        """Wait for it no longer."""
        self.sent_away = True
        if self.waiting is not None:
            self.waiting.reschedule(0)


class Room:
    """What the uploads of one process hold in memory, all of its routes together, and who they are of.

    Only what has come takes room, so an announcement costs nothing. Whoever sends slowly must not keep others out: when
    a token has too many bodies on their way, the one that has been coming longest is sent away; and when the room is
    full, so are those that have been coming longest, until there is room for whoever comes back.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.held = 0
        self._held: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()
        self._coming: dict[str, dict[_Guest, None]] = {}

    def enter(self, token: str, size: int) -> None:
        """A body is there in whole and is dealt with; `Problem` if there are too many of the token's, or too much."""
        if self._whole[token] >= self._settings.uploads_per_token:
            raise busy(429, "Too many batches are waiting: send this one again in a second.")
        self.hold(token, size)
        self._whole[token] += 1

    def leave(self, token: str, size: int) -> None:
        """It has been dealt with."""
        self._whole[token] -= 1
        if not self._whole[token]:
            del self._whole[token]
        self.give_back(token, size)

    def hold(self, token: str, size: int) -> None:
        """Count bytes that have come; `Problem`, and nothing is counted, if that is too much."""
        own = self._held[token] + size - self._settings.memory_per_token
        everybodys = self.held + size - self._settings.memory
        if own > 0 or everybodys > 0:
            self._send_away(self._coming.get(token, {}), own)
            self._send_away([guest for coming in self._coming.values() for guest in coming], everybodys)
            problem = busy(429, "Too much is on its way in: send this batch again in a second.")
            problem.headers = {**(problem.headers or {}), "Connection": "close"}
            raise problem
        self.held += size
        self._held[token] += size

    def give_back(self, token: str, size: int) -> None:
        """They are held no longer."""
        self.held -= size
        self._held[token] -= size
        if not self._held[token]:
            del self._held[token]

    @staticmethod
    def _send_away(guests: Iterable[_Guest], size: int) -> None:
        """Those that have been coming longest, until so many bytes are free."""
        for guest in sorted(guests, key=lambda guest: guest.since):
            if size <= 0:
                return
            guest.send_away()
            size -= guest.arrived

    async def parts(self, receive: Receive, token: str, most: int | None = None) -> AsyncIterator[bytes]:
        """A body as it comes, while it keeps its pace and is not sent away; `most` of them at a time, if given."""
        coming, guest = self._coming.setdefault(token, {}), _Guest()
        if len(coming) >= (most or self._settings.uploads_per_token):
            oldest = next(iter(coming))
            del coming[oldest]
            oldest.send_away()
        coming[guest] = None
        try:
            async for part in _body_parts(receive, self._settings, guest):
                yield part
        finally:
            coming.pop(guest, None)
            if not coming and self._coming.get(token) is coming:
                del self._coming[token]


async def _body_parts(receive: Receive, settings: Settings, guest: _Guest) -> AsyncIterator[bytes]:
    """A request's body as it comes; `Problem` 408 if it comes too slowly.

    After `body_grace` seconds, and at any time from then on, at least `slowest_body` bytes must have come for each
    further second. So nothing is held for longer than its size justifies.
    """
    loop, more = asyncio.get_running_loop(), True
    while more:
        left = guest.since + settings.body_grace + guest.arrived / settings.slowest_body - time.monotonic()
        try:
            async with asyncio.timeout_at(0 if guest.sent_away else loop.time() + left) as guest.waiting:
                message = await receive()
        except TimeoutError:
            words = "others came after it" if guest.sent_away else "it did not arrive in time"
            detail = f"The body was not waited for any longer, because {words}: send it again."
            raise Problem(408, "too slow", detail, {"Connection": "close"}) from None
        finally:
            guest.waiting = None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        guest.arrived += len(part)
        more = message.get("more_body", False)
        yield part


class Upload(Protocol):
    """What is known of a request once it is admitted."""

    @property
    def token(self) -> str: ...


Admitted = TypeVar("Admitted", bound=Upload)


class Intake(ABC, Generic[Admitted]):
    """A route that takes bodies. Whatever it answers names the batch that it is about."""

    def __init__(self, settings: Settings, room: Room) -> None:
        self._settings, self._room = settings, room
        self._origins, self._strangers = Origins(settings.report_origins), Strangers(settings.public_reports)

    @abstractmethod
    def admit(self, path: str, headers: Mapping[bytes, bytes], sender: str) -> Admitted:
        """Refuse what can be refused before the body is looked at (`Problem`).

        `sender` is the address that counts for whoever shows no token.
        """

    @abstractmethod
    def submit(self, upload: Admitted, body: bytes, done: Callable[[bytes | Exception], None]) -> None:
        """Take a small body; `done` hears the acknowledgement when it is on disk. Raises `Problem` or `Refused`."""

    @abstractmethod
    async def store(self, upload: Admitted, receive: Receive) -> bytes:
        """Read a body of any size; the acknowledgement when it is on disk."""

    def answered(self, status: int, seconds: float) -> None:
        """An answer is about to be sent."""

    def whole(self, path: str, given: RawHeaders, body: bytes, reply: Reply) -> bool:
        """Answer a request that came in one piece; False if it has to take the long way, and nothing was done."""
        headers = dict(given)
        if self._strangers and not bearer_in(headers):
            return False  # the HTTP server knows who sends it
        started, size = time.perf_counter(), len(body)
        opened = as_lines(self._origins.headers(headers.get(b"origin")))

        def refuse(problem: Exception) -> None:
            found = _problem(problem, headers)
            self.answered(found.status, time.perf_counter() - started)
            response = found.response()
            body = bytes(response.body)
            headed = [header for header in response.raw_headers if header[0] != b"content-length"]
            reply(found.status, as_lines([*headed, *HEADERS]) + opened, body)

        try:
            _check_once(given)
            upload = self.admit(path, headers, "")
            token = upload.token
            self._room.enter(token, size)
        except Exception as problem:
            refuse(problem)
            return True

        def done(result: bytes | Exception) -> None:
            self._room.leave(token, size)
            if isinstance(result, Exception):
                refuse(result)
            else:
                self.answered(200, time.perf_counter() - started)
                reply(200, _ALWAYS_LINES + opened, result)

        try:
            self.submit(upload, body, done)
        except Exception as problem:
            if (
                isinstance(problem, Problem) and problem.status == 413
            ):  # the long way looks whether it is known
                self._room.leave(token, size)
                return False
            done(problem)
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The long way."""
        started, given = time.perf_counter(), list(scope["headers"])
        headers = dict(given)
        opened = self._origins.headers(headers.get(b"origin"))
        sender = scope["client"][0] if scope.get("client") else ""
        try:
            _check_once(given)
            answer = await self.store(self.admit(scope["path"], headers, sender), receive)
        except ClientDisconnect:
            return
        except Exception as problem:
            found = _problem(problem, headers)
            self.answered(found.status, time.perf_counter() - started)
            response = found.response()
            response.raw_headers += [*HEADERS, *opened]
            await response(scope, receive, send)
            return
        self.answered(200, time.perf_counter() - started)
        lines = [(b"content-length", b"%d" % len(answer)), *_ALWAYS, *opened]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": answer})


def _check_once(given: RawHeaders) -> None:
    """Refuse a request that says something twice: of two labels or tokens, nobody knows which one is meant."""
    named: set[bytes] = set()
    for name, _ in given:
        if name in named and (name in _ONCE or name.startswith(b"hubbub-")):
            title = name.decode("latin-1").title()
            raise Problem(400, "said twice", f"The header {title} is there more than once: say it once.")
        named.add(name)


def batch_in(headers: Mapping[bytes, bytes]) -> str:
    """The batch's id that a request names, "" if it names none."""
    return batch_named(headers.get(_BATCH, b"").decode("latin-1"))


def named_batch(headers: Mapping[bytes, bytes]) -> str:
    """The batch's id that a request has to name, or `Problem`."""
    batch = batch_in(headers)
    if not batch:
        detail = "The header Hubbub-Batch must have 1 to 64 letters, digits, - or _, new for every batch."
        raise Problem(400, "batch id needed", detail)
    return batch


def bearer_in(headers: Mapping[bytes, bytes]) -> str:
    """The token that a request shows, "" if it shows none."""
    given = headers.get(b"authorization", b"")
    return given[7:].decode("latin-1") if given[:7].lower() == b"bearer " else ""


def length_in(headers: Mapping[bytes, bytes]) -> int:
    """The length of its body that a request announces, or `Problem`."""
    size = headers.get(b"content-length", b"")
    if not size.isdigit():
        raise Problem(411, "length needed", "Send the body's length in the header Content-Length.")
    return int(size[:20])


def _problem(found: Exception, headers: Mapping[bytes, bytes]) -> Problem:
    """What to say when something went wrong."""
    if isinstance(found, Problem):
        return found.about(batch_in(headers))
    if isinstance(found, Refused):
        return Problem(422, "not a batch", str(found)).about(batch_in(headers))
    _log.error("a request failed", exc_info=found)
    return our_mistake()
