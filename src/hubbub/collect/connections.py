"""Connections that say nothing, too little or too much are closed, so that everybody else gets in.

An HTTP server on its own waits for ever for the rest of a request. Here a connection without a request under way has
seconds, not for ever; so has one whose client does not read its answer; and when the house is full, the one that has
been waiting longest makes room for the next. Bodies have a pace to keep, see `body_parts`.
"""

from __future__ import annotations

import asyncio
import math
import resource
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from hubbub.collect.problems import Problem
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


async def body_parts(receive: Receive, settings: Settings) -> AsyncIterator[bytes]:
    """A request's body as it comes; `Problem` 408 if it comes too slowly.

    After `body_grace` seconds, and at any time from then on, at least `slowest_body` bytes must have come for each
    further second. So nothing is held for longer than its size justifies.
    """
    started, arrived, more = time.monotonic(), 0, True
    loop = asyncio.get_running_loop()
    while more:
        left = started + settings.body_grace + arrived / settings.slowest_body - time.monotonic()
        try:
            async with asyncio.timeout_at(loop.time() + left):
                message = await receive()
        except TimeoutError:
            raise Problem(
                408, "too slow", "The body did not arrive in time.", {"Connection": "close"}
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        arrived += len(part)
        more = message.get("more_body", False)
        yield part


class Door:
    """The connections of one server: who waits for what, and until when."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
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


class Guarded(_Protocol):  # type: ignore[misc]
    """A connection of uvicorn's that keeps its door informed."""

    def __init__(self, door: Door, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._door = door
        self._head: int | None = None
        self._running: Any = None

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
        super().on_headers_complete()

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
