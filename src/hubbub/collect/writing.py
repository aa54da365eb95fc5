"""From a body to the disk: which reports are good, and many batches in one transaction.

One thread writes. It takes all batches that are waiting, looks at their reports together, since most uploads hold one
or a few and a look at a thousand takes hardly longer than a look at one, and commits them together, so that thousands
of uploads a second share the disk's patience.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.collect.store import Batch, Outcome, Store, Unavailable
from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.protocol.task import Task

#: Batches and bytes that are written in one transaction, unless one batch alone has more.
_GROUP, _GROUP_BYTES = 1024, 16 << 20
#: Seconds that a writer with much to do waits for more.
_MOMENT = 0.003
#: Numbers in reports that are looked at together: of larger lots, nothing but the bad ones is remembered.
_TOGETHER = 1 << 20
#: Refused reports that an answer lists.
_LISTED = 100


@dataclass(frozen=True, slots=True)
class Examined:
    """The good reports of a batch, and what is wrong with the others."""

    payload: bytes | memoryview
    count: int
    problems: Sequence[dict[str, Any]] = ()
    rejects: Mapping[str, int] | None = None
    #: The name of the key that the reports were sealed for, if they were.
    key: str = ""

    @property
    def rejected(self) -> int:
        """How many were refused."""
        return sum(self.rejects.values()) if self.rejects else 0


class Collected:
    """A task, with all that an upload needs to know of it at hand."""

    def __init__(self, task: Task) -> None:
        self.task, self.name, self.code, self.digest = task, task.digest.hex(), task.code, task.digest
        self.layout = task.mechanism.layout
        self.width = self.layout.width
        self.together = max(1, _TOGETHER // len(self.layout.fields))


@dataclass(slots=True)
class Arrival:
    """A batch that is to be written: whole reports, of which nobody knows yet which are good unless `examined` says."""

    collected: Collected
    id: str
    reports: bytes | memoryview
    checksum: bytes
    period: int
    crowd: int | None = None
    examined: Examined | None = None

    def batch(self) -> Batch:
        """As the store takes it."""
        found = self.examined
        assert found is not None
        rejects = found.rejects or {}
        name, check = self.collected.name, self.checksum
        return Batch(name, self.id, found.count, found.payload, check, self.period, self.crowd, rejects)


def bad_reports(collected: Collected, packed: Bytes) -> tuple[Int64s, Int64s]:
    """Places of the rows that are no reports, and the codes of the reasons."""
    places, codes = [], []
    for start in range(0, len(packed), collected.together):
        _, reasons = collected.layout.unpack_each(packed[start : start + collected.together])
        bad = np.flatnonzero(reasons)
        places.append(start + bad)
        codes.append(reasons[bad])
    return np.concatenate(places), np.concatenate(codes)


def examine(
    collected: Collected, reports: bytes | memoryview, unopened: Mapping[int, str] | None = None
) -> Examined:
    """Separate good reports from bad ones. `unopened` are places of what was sent that are not among the reports."""
    packed = np.frombuffer(reports, dtype=np.uint8).reshape(-1, collected.width)
    bad, codes = bad_reports(collected, packed)
    if not len(bad) and not unopened:
        return Examined(reports, len(packed))
    missing = unopened or {}
    sent = np.delete(np.arange(len(packed) + len(missing)), list(missing))
    found = {
        int(sent[place]): collected.layout.reason(int(code)) for place, code in zip(bad, codes, strict=True)
    }
    found.update(missing)
    listed = [{"index": index, "reason": found[index]} for index in sorted(found)[:_LISTED]]
    good = np.delete(packed, bad, axis=0)
    return Examined(good.tobytes(), len(good), listed, dict(Counter(found.values())))


def examine_together(arrivals: Sequence[Arrival]) -> None:
    """Examine all that are not: those of one task with one look, and one by one only if something is wrong."""
    waiting: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        if arrival.examined is None:
            waiting.setdefault(arrival.collected.name, []).append(arrival)
    for mine in waiting.values():
        collected = mine[0].collected
        packed = np.frombuffer(b"".join([arrival.reports for arrival in mine]), dtype=np.uint8)
        bad, _ = bad_reports(collected, packed.reshape(-1, collected.width))
        for arrival in mine:
            if len(bad):
                arrival.examined = examine(collected, arrival.reports)
            else:
                arrival.examined = Examined(arrival.reports, len(arrival.reports) // collected.width)


#: What a sender waits for: what became of the batch, and what was in it.
Written = tuple[Outcome, Examined]


class Writer:
    """One thread that appends batches to the log, many in one transaction."""

    def __init__(
        self, store: Store, limit: int, patience: float, damaged: Mapping[str, str] | None = None
    ) -> None:
        """After `patience` seconds a sender is told that its batch is not written.

        `damaged` names tasks for which nothing is taken now, and says why.
        """
        self._store, self._limit, self._patience = store, limit, patience
        self._waiting: deque[tuple[float, asyncio.Future[Written]]] = deque()
        self.damaged: Mapping[str, str] = {} if damaged is None else damaged
        self._queue: deque[tuple[Arrival, asyncio.Future[Written]]] = deque()
        self._wake = threading.Condition()
        self._stopping = self._busy = self._timed = False
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

    def submit(self, arrival: Arrival) -> asyncio.Future[Written]:
        """Queue a batch; the future is done when the batch is on disk, or fails with `Unavailable`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Written] = loop.create_future()
        self._watch(loop, future)
        with self._wake:
            self._queue.append((arrival, future))
            self._wake.notify()
        return future

    def _watch(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Written]) -> None:
        """Let a future fail if it takes too long. One timer for all of them: each waits equally long."""
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        waiting.append((loop.time() + self._patience, future))
        if not self._timed:
            self._timed = True
            loop.call_later(self._patience, self._give_up, loop)

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, late = self._waiting, False
        while waiting and (waiting[0][1].done() or waiting[0][0] <= loop.time()):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable("the store takes too long"))
                late = True
        if late:  # they were told to send again, and nobody counts their bytes any more
            with self._wake:
                self._queue = deque(each for each in self._queue if not each[1].done())
        self._timed = bool(waiting)
        if waiting:
            loop.call_at(waiting[0][0], self._give_up, loop)

    def stop(self) -> None:
        """Write what is queued, and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next():
            arrivals = [arrival for arrival, _ in group]
            written: list[Written] | Exception
            try:
                examine_together(arrivals)
                outcomes = self._store.append([arrival.batch() for arrival in arrivals])
                written = [
                    (outcome, arrival.examined)
                    for outcome, arrival in zip(outcomes, arrivals, strict=True)
                    if arrival.examined is not None
                ]
                self.failed = None
            except (
                Exception
            ) as problem:  # whatever it is, the senders must hear of it and the thread must live
                written, self.failed = problem, time.monotonic()
            loop = group[0][1].get_loop()
            loop.call_soon_threadsafe(_settle, [future for _, future in group], written)

    def _next(self) -> list[tuple[Arrival, asyncio.Future[Written]]]:
        """What is to be written together; nothing when it is time to end.

        While senders come one by one, each is written at once. When several come at a time, waiting a moment for
        more of them makes fewer transactions.
        """
        if self._busy:
            time.sleep(_MOMENT)
        with self._wake:
            while not self._queue and not self._stopping:
                self._wake.wait()
            group: list[tuple[Arrival, asyncio.Future[Written]]] = []
            size = 0
            while self._queue and len(group) < _GROUP and size < _GROUP_BYTES:
                group.append(self._queue.popleft())
                size += len(group[-1][0].reports)
            self._busy = len(group) > 1
            return group


def _settle(futures: list[asyncio.Future[Written]], written: list[Written] | Exception) -> None:
    for place, future in enumerate(futures):
        if future.done():  # its sender has gone
            continue
        if isinstance(written, Exception):
            future.set_exception(written)
        else:
            future.set_result(written[place])
