"""Many jobs in one go, on a thread of their own: thousands of senders a second share the disk's patience.

The thread takes all jobs that are waiting and does them together; a job is done when what it wrote is on disk. While
jobs come one by one, each is done at once. When several come at a time, waiting a few moments for more of them makes
fewer and larger groups, and a group costs the disk hardly more than a single job does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_log = logging.getLogger("hubbub.api")

Job = TypeVar("Job")
Result = TypeVar("Result")

#: Jobs and bytes that are done in one go, unless one job alone has more.
_GROUP, _GROUP_BYTES = 1024, 16 << 20
#: Seconds that a thread with much to do waits for more, how often at most, and how many jobs need no more waiting.
_MOMENT, _MOMENTS, _ENOUGH = 0.003, 4, 64


class TooSlow(Exception):
    """A job was not done in time. Perhaps it is done all the same, later."""


class _Ticket(Generic[Job, Result]):
    """A job that waits, and who wants to hear of it."""

    __slots__ = ("done", "job", "settled")

    def __init__(self, job: Job, done: Callable[[Result | Exception], None]) -> None:
        self.job, self.done, self.settled = job, done, False

    def settle(self, result: Result | Exception) -> None:
        if not self.settled:
            self.settled = True
            try:
                self.done(result)
            except Exception:  # a mistake of ours, which must not keep the others of the group waiting
                _log.exception("an answer could not be given")


class Groups(Generic[Job, Result]):
    """One thread that does jobs together. Whoever asks does so on one event loop, and hears of the result there."""

    def __init__(
        self,
        work: Callable[[Sequence[Job]], Sequence[Result]],
        size: Callable[[Job], int],
        limit: int,
        patience: float,
    ) -> None:
        """`work` does a group; what it raises, all of the group hear. After `patience` seconds a job has failed."""
        self._work, self._size, self._limit, self._patience = work, size, limit, patience
        self._queue: deque[_Ticket[Job, Result]] = deque()
        self._waiting: deque[tuple[float, _Ticket[Job, Result]]] = deque()
        self._wake = threading.Condition()
        self._stopping = self._idle = self._busy = self._timed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        #: When a group last failed, by the monotonic clock; None once one succeeded.
        self.failed: float | None = None
        self._thread = threading.Thread(target=self._run, name="hubbub-write", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether anybody works."""
        return self._thread.is_alive()

    @property
    def full(self) -> bool:
        """Whether further jobs should come back later."""
        return len(self._queue) >= self._limit

    def submit(self, job: Job, done: Callable[[Result | Exception], None]) -> None:
        """Queue a job; `done` hears the result when it is on disk, or why it is not."""
        loop = self._loop = asyncio.get_running_loop()
        ticket: _Ticket[Job, Result] = _Ticket(job, done)
        self._watch(loop, ticket)
        self._queue.append(ticket)
        if (
            self._idle
        ):  # the thread says so before it looks at the queue, so it cannot miss what was appended before
            with self._wake:
                self._wake.notify()

    async def done(self, job: Job) -> Result:
        """The same for a coroutine: the result, or the exception."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def settle(result: Result | Exception) -> None:
            if future.done():  # whoever waited for it has gone
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(job, settle)
        return await future

    def _watch(self, loop: asyncio.AbstractEventLoop, ticket: _Ticket[Job, Result]) -> None:
        """Let a job fail if it takes too long. One timer for all of them: each waits equally long."""
        waiting = self._waiting
        while waiting and waiting[0][1].settled:
            waiting.popleft()
        waiting.append((loop.time() + self._patience, ticket))
        if not self._timed:
            self._timed = True
            loop.call_later(self._patience, self._give_up, loop)

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, late = self._waiting, []
        while waiting and (waiting[0][1].settled or waiting[0][0] <= loop.time()):
            late.append(waiting.popleft()[1])
        if late:  # they are told to send again, and nobody counts their bytes any more
            with self._wake:
                gone = {id(ticket) for ticket in late}
                self._queue = deque(each for each in self._queue if id(each) not in gone)
        self._timed = bool(waiting)
        if waiting:
            loop.call_at(waiting[0][0], self._give_up, loop)
        for ticket in late:
            ticket.settle(TooSlow("the store takes too long"))

    def stop(self) -> None:
        """Do what is queued, and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next():
            results: Sequence[Result] | Exception
            try:
                results = self._work([ticket.job for ticket in group])
                self.failed = None
            except (
                Exception
            ) as problem:  # whatever it is, the senders must hear of it and the thread must live
                results, self.failed = problem, time.monotonic()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_settle, group, results)

    def _next(self) -> list[_Ticket[Job, Result]]:
        """What is to be done together; nothing when it is time to end."""
        for _ in range(_MOMENTS if self._busy else 0):
            time.sleep(_MOMENT)
            if len(self._queue) >= _ENOUGH or not self._queue or self._stopping:
                break
        with self._wake:
            self._idle = True
            while not self._queue and not self._stopping:
                self._wake.wait()
            self._idle = False
            group: list[_Ticket[Job, Result]] = []
            size = 0
            while self._queue and len(group) < _GROUP and size < _GROUP_BYTES:
                group.append(self._queue.popleft())
                size += self._size(group[-1].job)
            self._busy = len(group) > 1
            return group


def _settle(group: list[_Ticket[Job, Result]], results: Sequence[Result] | Exception) -> None:
    for place, ticket in enumerate(group):
        ticket.settle(results if isinstance(results, Exception) else results[place])
