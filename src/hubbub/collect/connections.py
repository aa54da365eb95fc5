"""Connections that say nothing, too little or too much are closed, so that everybody else gets in.

An HTTP server on its own waits for ever for the rest of a request. Here a connection without a request under way has
seconds, not for ever; so has one whose client does not read its answer; and when the house is full, the one that has
been waiting longest makes room for the next. Bodies have a pace to keep, see `hubbub.collect.intake`.

Requests for an intake that came whole are answered here and now; the HTTP server's own machinery costs as much as
writing a report to the disk does.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from hubbub.collect.intake import QUICK, Intake
from hubbub.collect.settings import Settings

if TYPE_CHECKING:
    _Protocol = Any
else:
    _Protocol = AutoHTTPProtocol

#: Bytes that the head of a request may have.
_LONGEST_HEAD = 1 << 16
#: Files that are kept for the store, logs and pages.
_OTHER_FILES = 256
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}"
)


class Door:
    """The connections of one server: who waits for what, and until when."""

    def __init__(self, settings: Settings, intakes: Mapping[str, Intake[Any]] | None = None) -> None:
        """`intakes` by their paths answer requests that came whole."""
        self.settings = settings
        self.intakes = {path.encode(): intake for path, intake in (intakes or {}).items()}
        self.most = min(settings.connections, most_files() - min(_OTHER_FILES, most_files() // 2))
        #: Connections without a request under way, the oldest first, and when they are closed by the loop's clock.
        self.waiting: dict[Guarded, float] = {}
        #: Connections whose clients do not read, and when they are closed.
        self.stalled: dict[Guarded, float] = {}
        self._sweeping = False

    def sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again and again for connections that are overdue, as long as there is any to look at."""
        if not self._sweeping and (self.waiting or self.stalled):
            self._sweeping = True
            shortest = min(self.settings.header_seconds, self.settings.stall_seconds)
            loop.call_later(min(1.0, shortest / 4), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeping = False
        now = loop.time()
        for group in (self.waiting, self.stalled):
            for connection in [each for each, deadline in group.items() if deadline <= now]:
                connection.hang_up()
        self.sweep(loop)

    def room(self) -> bool:
        """Send away whoever has been waiting longest; False if everybody is busy."""
        oldest = next(iter(self.waiting), None)
        if oldest is not None:
            oldest.hang_up()
        return oldest is not None

    def protocol(self, **arguments: Any) -> Guarded:
        """A new connection."""
        return Guarded(self, **arguments)


class _Whole:
    """A request to an intake for as long as its body comes, and until it is answered.

    To the HTTP server it is the request under way: it has all that the server looks at.
    """

    __slots__ = (
        "body",
        "disconnected",
        "headers",
        "intake",
        "keep_alive",
        "message_event",
        "more_body",
        "path",
        "protocol",
        "response_complete",
    )

    def __init__(self, protocol: Guarded, intake: Intake[Any], keep_alive: bool) -> None:
        self.protocol, self.intake, self.keep_alive = protocol, intake, keep_alive
        self.path, self.headers = protocol.url.decode("ascii"), protocol.headers
        self.body, self.more_body = bytearray(), True
        self.disconnected = self.response_complete = False
        self.message_event = _NOBODY_WAITS

    def answer(self) -> bool:
        """Have it answered; False if it has to take the long way."""
        if len(self.body) > QUICK:
            return False
        return self.intake.whole(self.path, self.headers, bytes(self.body), self.reply)

    def reply(self, status: int, lines: bytes, body: bytes) -> None:
        """Send the answer."""
        self.response_complete = True
        protocol = self.protocol
        if self.disconnected or protocol.transport.is_closing():
            return
        head = _STATUS_LINES[status] + b"".join(
            [b"%s: %s\r\n" % header for header in protocol.server_state.default_headers]
        )
        if b"connection: close\r\n" in lines:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        protocol.transport.write(b"%s%scontent-length: %d\r\n\r\n%s" % (head, lines, len(body), body))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


class _Nobody:
    """The server tells those who wait when something has come; for these requests nobody waits."""

    def set(self) -> None:
        pass


_NOBODY_WAITS = _Nobody()
_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


class Guarded(_Protocol):  # type: ignore[misc]
    """A connection of uvicorn's that keeps its door informed."""

    def __init__(self, door: Door, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._door = door
        self._head: int | None = None
        self._running: Any = None
        self._whole: _Whole | None = None
        self.cycle: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._door.most and not self._door.room():
            transport.write(_FULL)
            transport.close()
            return
        self._wait(self._door.settings.header_seconds)

    def connection_lost(self, problem: Exception | None) -> None:
        self._door.waiting.pop(self, None)
        self._door.stalled.pop(self, None)
        if self._running is not None:  # with several requests at once, uvicorn tells the last one only
            self._running.disconnected = True
        super().connection_lost(problem)

    def data_received(self, data: bytes) -> None:
        if self._door.waiting.get(self) == math.inf:
            self._wait(self._door.settings.header_seconds)
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._whole is not None:  # the rest is still to come
            self._take_the_long_way(self._whole)
        if self._head is not None and self._head > _LONGEST_HEAD:
            self.hang_up()
        elif self._busy:
            self._door.waiting.pop(self, None)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        intake = self._door.intakes.get(self.url)
        parser = self.parser
        if intake is None or self._busy or parser.get_method() != b"POST" or parser.should_upgrade():
            super().on_headers_complete()
            return
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self.cycle = self._running = self._whole = _Whole(self, intake, keep_alive)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._whole is not None:
            whole, self._whole = self._whole, None
            if not whole.answer():
                self._take_the_long_way(whole)

    def _take_the_long_way(self, whole: _Whole) -> None:
        """Let the HTTP server have a request, as if it had had it from the beginning."""
        self._whole = self.cycle = None
        super().on_headers_complete()
        self.cycle.body += whole.body
        self.cycle.more_body = whole.more_body
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy and not self.transport.is_closing():
            self._wait(math.inf)  # uvicorn's own timer ends it, until something comes

    def pause_writing(self) -> None:
        super().pause_writing()
        self._door.stalled[self] = self.loop.time() + self._door.settings.stall_seconds
        self._door.sweep(self.loop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._door.stalled.pop(self, None)

    def hang_up(self) -> None:
        """Close without another word."""
        self._door.waiting.pop(self, None)
        self._door.stalled.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._door.waiting.pop(self, None)
        self._door.waiting[self] = self.loop.time() + seconds
        self._door.sweep(self.loop)


def most_files() -> int:
    """How many files this process may have open; as many as the system allows it to ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 16 if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):  # some systems allow less than they say
        return soft
    return most
