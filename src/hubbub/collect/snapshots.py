"""From the log to the state: fold what has arrived into the snapshot, now and then and before every reading.

The state of a task is the sum of its reports, whatever the order, so folding is adding. A fold that is
interrupted anywhere changes nothing, and one that comes too late (another process was quicker) starts again.

Snapshots are all that readers of estimates ever see, and each adds at least the task's `minimum_reports` to the one
before, however many processes fold and whenever they are started, because the snapshot changes in the store and only
by `_advance`. States of ended periods obey, too. So of two things that can be read, one is the sum of the other and of
at least so many reports, and their difference shows no single one. (A state that was damaged is made again from the
log; the first snapshot after that may differ from an older one by less.)
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from dataclasses import dataclass, replace
from itertools import groupby

from hubbub.collect.metrics import Metrics
from hubbub.collect.store import Head, Store, Unfolded
from hubbub.model.state import State
from hubbub.primitives.envelope import Envelope, unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import STATE, check_header
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

_log = logging.getLogger("hubbub.fold")

#: Bytes of reports that are folded at a time.
_ROUND = 1 << 20
#: Past states that are kept, and the bytes that they may take unpacked.
_MOST_STATES = 120
_HISTORY_BYTES = 1 << 28
#: Databases hold values of up to a gigabyte.
_LARGEST_STATE = 1 << 29

#: Seconds in a period of each precision.
SECONDS = {"minute": 60, "hour": 3600, "day": 86400}


def period_now(task: Task) -> int:
    """The current time, as exactly as the task's precision allows."""
    step = SECONDS[task.precision]
    return int(time.time()) // step * step


class Damaged(Exception):
    """The stored state of a task cannot be trusted and cannot be made again."""


@dataclass(frozen=True)
class Current:
    """A snapshot with its state. States are never changed in place, so readers may keep them."""

    head: Head
    state: State


class Folder:
    """Keeps the states of some tasks up to date."""

    def __init__(self, store: Store, tasks: list[Task], metrics: Metrics) -> None:
        self._store, self._tasks, self._metrics = store, tasks, metrics
        self._locks = {task.digest: threading.Lock() for task in tasks}
        self._current: dict[bytes, Current] = {}
        self._stopping = threading.Event()
        #: Names of the tasks that the last round found damaged beyond repair.
        self.damaged: set[str] = set()
        for task in tasks:
            size = len(task.mechanism.empty(task.keys).to_bytes())
            if size > _LARGEST_STATE:
                raise Refused(
                    f"The state of task {task.name!r} takes {size >> 20:,} MB, and the service keeps states of up to "
                    f"{_LARGEST_STATE >> 20} MB: use fewer bits per code, or add up files with hubbub aggregate."
                )

    def fold(self, task: Task) -> Current:
        """The newest snapshot, with every report that was acknowledged before this call (and perhaps later ones).

        Those that are fewer than the task's `minimum_reports` wait for others.
        """
        digest, step = task.digest.hex(), max(task.minimum_reports, 1)
        with self._locks[task.digest]:
            current = self._newest(task)
            if self._store.waiting(digest) < step:
                return current
            last = self._store.last()  # later batches keep arriving, and would keep us here
            while True:
                started = time.perf_counter()
                with self._store.folding(digest):
                    current = self._newest(task)
                    rows = self._store.unfolded(digest, last, _ROUND, step)
                    if _reports(task, rows) < step:
                        return current
                    new = self._advance(task, current, rows, step)
                if new is not None:  # otherwise another process was quicker
                    self._current[task.digest] = new
                    self._metrics.folded(len(rows), time.perf_counter() - started)

    def _newest(self, task: Task) -> Current:
        """The stored snapshot, read only if it is not the one that we know."""
        known = self._current.get(task.digest)
        if known is not None and self._store.head(task.digest.hex()) == known.head:
            return known
        head, payload = self._store.snapshot(task.digest.hex())
        try:
            state = task.mechanism.empty(task.keys) if payload is None else open_state(task, payload)
            if state.count != head.count or (known is None and not self._store.agrees(task.digest.hex())):
                raise Refused(f"It sums up {state.count} reports, which is not what the log says.")
        except Refused as problem:
            _log.error("the state of task %s is damaged: %s", task.digest.hex(), problem)
            if not self._store.start_over(task.digest.hex()):
                raise Damaged(
                    f"The stored state of task {task.name!r} is damaged, and its reports were not kept: "
                    "restore the store from a backup."
                ) from None
            _log.warning("the state of task %s is made again from its reports", task.digest.hex())
            head, _ = self._store.snapshot(task.digest.hex())
            state = task.mechanism.empty(task.keys)
        current = Current(head, state)
        self._current[task.digest] = current
        return current

    def _advance(self, task: Task, current: Current, rows: list[Unfolded], step: int) -> Current | None:
        """Add batches to the snapshot; None if the snapshot was not the newest.

        The state at the end of a period is kept if it is the old snapshot, or `step` reports away from it, from other
        kept states and from the new snapshot.
        """
        state, period = current.state, current.head.period
        old, seen, end = state.count, state.count, state.count + _reports(task, rows)
        arrived: dict[int, int] = {}
        closed: dict[int, bytes] = {}
        most_states = min(_MOST_STATES, _HISTORY_BYTES // (state.totals.nbytes + state.reports.nbytes + 1))
        for received, group in groupby(rows, key=lambda row: row.received):
            apart = state.count - seen >= step and end - state.count >= step
            if period is not None and received > period and most_states and (apart or state.count == old):
                closed[period], seen = zlib.compress(state.to_bytes(), 1), state.count
            before = state.count
            try:
                state = aggregate(task, b"".join(row.payload for row in group), state)
            except Refused as problem:
                raise Damaged(
                    f"A stored batch of task {task.name!r} is damaged ({problem}): restore the store from a backup."
                ) from None
            arrived[received] = state.count - before
            period = received if period is None else max(period, received)
        head = Head(current.head.version + 1, state.count, period)
        sealed = Envelope(STATE, task.code, task.digest, state.count, b"", state.to_bytes()).seal()
        done = self._store.advance(
            task.digest.hex(),
            current.head,
            head,
            sealed,
            folded=rows,
            keep_reports=task.keep_reports,
            arrived=arrived,
            closed=closed,
            most_states=most_states,
        )
        return replace(current, head=head, state=state) if done else None

    # In the background

    def stop(self) -> None:
        """Let a round under way end with the fold under way."""
        self._stopping.set()

    def round(self, every: float) -> float:
        """Fold all tasks; the seconds until the next round.

        Large states are written less often: at most a fifth of the time is spent on folding. A task that is damaged is
        noted; whatever else goes wrong with one is raised when the others are done.
        """
        started = time.perf_counter()
        failed: Exception | None = None
        for task in self._tasks:
            if self._stopping.is_set():
                break
            try:
                self.fold(task)
                self.damaged.discard(task.name)
            except Damaged as problem:
                _log.error("the fold of task %s failed: %s", task.digest.hex(), problem)
                self.damaged.add(task.name)
            except Exception as problem:
                failed = problem
        if failed is not None:
            raise failed
        return max(every, 4 * (time.perf_counter() - started))


def _reports(task: Task, rows: list[Unfolded]) -> int:
    return sum(len(row.payload) for row in rows) // task.mechanism.layout.width


def open_state(task: Task, data: bytes) -> State:
    """The state in stored bytes, or `Refused` if anything about them is off."""
    envelope = unseal(data, "the stored state", STATE)
    check_header(envelope, task, "the stored state")
    state = task.mechanism.empty(task.keys).load(bytes(envelope.payload))
    if state.count != envelope.count:
        raise Refused(f"The stored state says it sums up {envelope.count} reports, but holds {state.count}.")
    return state
