"""From the log to the state: fold what has arrived into the snapshot, now and then and before every reading.

The state of a task is the sum of its reports, whatever the order, so folding is adding. A fold that is
interrupted anywhere changes nothing, and one that comes too late (another process was quicker) starts again.

Snapshots are all that readers of estimates ever see, and each adds at least the task's `minimum_reports` to the one
before, however many processes fold and whenever they are started, because the snapshot changes in the store and only
by `_advance`. States of ended periods obey, too. So of two things that can be read, one is the sum of the other and of
at least so many reports, and their difference shows no single one. (A state that was damaged is made again from the
log; the first snapshot after that may differ from an older one by less.)

Strata obey as well: of every stratum, a snapshot adds at least so many reports, or none. So do states of ended periods.
The whole is the sum of its strata at every version, so whatever is added to or subtracted from what can be read is made
of such lots, each of one stratum, and of whole ones. Reports of a stratum that is too small wait, for the whole, too,
until it is large enough, or its period is over and they are counted in a longer one (`hubbub.collect.lifetimes`).

One snapshot serves many strata: writing it takes longer than adding thousands of reports. For the same reason sums of
strata are not written here (`hubbub.collect.sums`), only their reports, also those of tasks that keep none.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np

from hubbub.collect.metrics import Metrics
from hubbub.collect.segments import SEGMENT, Damaged, Lot, Rows
from hubbub.collect.shelves import Shelf
from hubbub.collect.store import Head, Store, Unfolded
from hubbub.model.state import State, sort_rows
from hubbub.primitives.arrays import Bytes
from hubbub.primitives.envelope import Envelope, unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import STATE, check_header
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate, merge_into

_log = logging.getLogger("hubbub.fold")

#: Bytes of reports that are folded at a time.
_ROUND = 1 << 20
#: Numbers in reports that are added at a time, unless the state itself has more.
_NUMBERS = 1 << 21
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
        self._rows: dict[str, Rows] = {}
        #: Tasks whose state or reports cannot be trusted, by digest, and what is wrong. The others go on.
        self.damaged: dict[str, str] = {}
        self._stopping = threading.Event()
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
        digest = task.digest.hex()
        try:
            current = self._fold(task, digest)
        except Damaged as problem:
            self.damaged[digest] = str(problem)
            raise
        self.damaged.pop(digest, None)
        return current

    def _fold(self, task: Task, digest: str) -> Current:
        step = max(task.minimum_reports, 1)
        with self._locks[task.digest]:
            self._newest(task)  # of a damaged one, all reports wait again
            together: list[list[str] | None] = [None] if self._store.waiting(digest) else []
            if step > 1:
                most = _ROUND // task.mechanism.layout.width
                together = [*self._store.waiting_together(digest, step, most)]
            last = self._store.last()  # later batches keep arriving, and would keep us here
            for strata in together:
                self._fold_all(task, digest, step, last, strata)
            return self._newest(task)  # another process may have folded what waited

    def _fold_all(self, task: Task, digest: str, step: int, last: int, strata: Sequence[str] | None) -> None:
        """Fold what waits up to number `last`: of some strata, or of all."""
        while True:
            started = time.perf_counter()
            with self._store.folding(digest):
                current = self._newest(task)
                rows = self._store.unfolded(digest, last, _ROUND, step, strata)
                counts = _counted(rows)
                rows = [found for found in rows if counts[found.lot.stratum] >= step]
                if not rows:
                    return
                new = self._advance(task, current, rows, step)
            if new is not None:  # otherwise another process was quicker
                self._current[task.digest] = new
                self._metrics.folded(len(rows), time.perf_counter() - started)

    def _newest(self, task: Task) -> Current:
        """The stored snapshot, read only if it is not the one that we know."""
        digest = task.digest.hex()
        known = self._current.get(task.digest)
        if known is not None and self._store.head(digest) == known.head:
            return known
        while True:
            head, payload, shelves = self._store.snapshot(digest)
            try:
                state = self._open(task, head, payload, shelves)
                if state is None:
                    continue
                kept = task.keep_reports or state.reports.shape[1] > 0
                if state.count != head.count or (known is None and not self._store.agrees(digest, kept)):
                    raise Refused(f"It sums up {state.count} reports, which is not what the log says.")
            except Refused as problem:
                _log.error("the state of task %s is damaged: %s", digest, problem)
                if not self._store.start_over(digest):
                    raise Damaged(
                        f"The stored state of task {task.name!r} is damaged, and its reports were not kept: "
                        "restore the store from a backup."
                    ) from None
                _log.warning("the state of task %s is made again from its reports", digest)
                continue
            if self._store.head(digest).epoch == head.epoch:  # no other process has just started over
                break
        current = Current(head, state)
        self._current[task.digest] = current
        return current

    def _open(self, task: Task, head: Head, payload: bytes | None, shelves: list[Shelf]) -> State | None:
        """The state that was stored; where it consists of reports, they are read as far as they are not known.

        None if it was stored as older versions did, together with its reports: now it is not any more.
        """
        nothing = task.mechanism.empty(task.keys)
        state = nothing if payload is None else open_state(task, payload)
        width = nothing.reports.shape[1]
        if not width:
            return state
        if len(state.reports):
            self._split(task, head, state)
            return None
        untold = state.count - sum(shelf.reports for shelf in shelves)
        parts = []
        for shelf in (Shelf("", task.digest.hex(), untold), *shelves):
            rows, of = self._rows.get(shelf.name), (head.epoch, shelf.mark)
            if rows is None or rows.of != of:
                rows = self._rows[shelf.name] = Rows(width, of)
            for part, _ in self._store.reports_after(shelf.name, rows.count, shelf.stratum):
                rows.add(part)
            if rows.count < shelf.reports:
                raise Refused(f"{rows.count} reports are there, and the state counts {shelf.reports}.")
            parts.append(rows.first(shelf.reports))
        return replace(state, reports=parts[0] if len(parts) == 1 else np.concatenate(parts))

    def _advance(self, task: Task, current: Current, lots: list[Unfolded], step: int) -> Current | None:
        """Add lots to the snapshot; None if the snapshot was not the newest.

        The state at the end of a period is kept if in every stratum it is as the old snapshot, or `step` reports away
        from it, and so from other kept states and from the new snapshot; if it is not, the old snapshot is kept, which
        is what could be read then. A clock that was wrong for a while, ours when the batch came, must not stop the
        periods: what is of the future belongs to the present.
        """
        now = period_now(task)
        period = None if current.head.period is None else min(current.head.period, now)
        sum_of = before = replace(current.state, reports=current.state.reports[:0])
        since, left = Counter[str](), _counted(lots)
        parts: list[Bytes] = []
        kept: list[Lot] = []
        arrived: dict[int, int] = {}
        closed: dict[int, bytes] = {}
        wide = sum_of.reports.shape[1] > 0
        several = wide and (left.keys() != {""} or bool(self._store.shelves(task.digest.hex())))
        most_states = min(_MOST_STATES, _HISTORY_BYTES // (sum_of.totals.nbytes + 1))
        if several:  # a past state is the first reports of all, which are in no order across strata
            most_states = 0
        for received, group in groupby(lots, key=lambda found: min(found.lot.period, now)):
            apart = all(not 0 < count < step for count in chain(since.values(), left.values()))
            if period is not None and received > period and most_states and (apart or not closed):
                closed[period] = zlib.compress((sum_of if apart else before).to_bytes(), 1)
                if apart:
                    since.clear()
            mine = [found.lot for found in group]
            try:
                part = sum_of_reports(task, b"".join(lot.payload for lot in mine))
            except Refused as problem:
                raise Damaged(
                    f"A stored batch of task {task.name!r} is damaged ({problem}): restore the store from a backup."
                ) from None
            sum_of = sum_of.merge(replace(part, reports=part.reports[:0]))
            for lot in mine:
                since[lot.stratum] += lot.count
                left[lot.stratum] -= lot.count
            arrived[received] = arrived.get(received, 0) + part.count
            period = received if period is None else max(period, received)
            parts.append(part.reports)
            if task.keep_reports:
                kept += [replace(lot, period=received) for lot in mine]
            else:
                kept += [lot for lot in _nameless(task, received, mine) if wide or lot.stratum]
        head = replace(_next(current.head), count=sum_of.count, period=period)
        done = self._store.advance(
            task.digest.hex(),
            current.head,
            head,
            sealed(task, sum_of),
            folded=lots,
            kept=kept,
            arrived=arrived,
            closed=closed,
            most_states=most_states,
        )
        if not done:
            return None
        if several:
            return self._newest(task)
        if (rows := self._rows.get(task.digest.hex())) is not None:
            for reports in parts:
                rows.add(reports)
            sum_of = replace(sum_of, reports=rows.first(sum_of.count))
        return Current(head, sum_of)

    def _split(self, task: Task, head: Head, state: State) -> None:
        """Put the reports of a state into segments, unless they are there because they are kept, and store the rest."""
        step, reports = max(SEGMENT // state.reports.shape[1], 1), state.reports
        starts = [] if task.keep_reports else range(0, len(reports), step)
        kept = [_untold(head.period or 0, reports[start : start + step]) for start in starts]
        self._store.advance(
            task.digest.hex(),
            head,
            _next(head),
            sealed(task, replace(state, reports=state.reports[:0])),
            folded=(),
            kept=kept,
            arrived={},
            closed={},
            most_states=_MOST_STATES,
        )

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
            except Damaged as problem:  # which `fold` has noted
                _log.error("the fold of task %s failed: %s", task.digest.hex(), problem)
            except Exception as problem:
                failed = problem
        if failed is not None:
            raise failed
        return max(every, 4 * (time.perf_counter() - started))


def open_state(task: Task, data: bytes) -> State:
    """The state in stored bytes, or `Refused` if anything about them is off; see `loaded` for reports."""
    envelope = unseal(memoryview(data), "the stored state", STATE)
    check_header(envelope, task, "the stored state")
    state = loaded(task.mechanism.empty(task.keys), envelope.payload)
    if state.count != envelope.count:
        raise Refused(f"The stored state says it sums up {envelope.count} reports, but holds {state.count}.")
    return state


def _next(head: Head) -> Head:
    """The head of the snapshot that replaces this one; epochs below 0 are those of older versions."""
    return replace(head, version=head.version + 1, epoch=max(head.epoch, 0))


def sum_of_reports(task: Task, reports: bytes) -> State:
    """The state of some reports, piece by piece: a report of 40 bytes may have 300 numbers of 8."""
    layout, size = task.mechanism.layout, task.mechanism.empty(task.keys).totals.size
    step = layout.width * max(1, max(_NUMBERS, size) // len(layout.fields))
    total = aggregate(task, reports[:step])
    for start in range(step, len(reports), step):
        merge_into(total, aggregate(task, reports[start : start + step]))
    return total


def loaded(nothing: State, payload: bytes | memoryview) -> State:
    """The state in bytes; reports that belong to it are elsewhere, the first `count` of the task's."""
    if nothing.reports.shape[1] and len(payload) == len(nothing.to_bytes()):
        return replace(nothing.load(bytes(8) + payload[8:]), count=int.from_bytes(payload[:8], "little"))
    return nothing.load(payload)


def sealed(task: Task, state: State, described: bytes = b"") -> bytes:
    """A state as it is stored; or as a file, which has the task's description in it."""
    return Envelope(STATE, task.code, task.digest, state.count, described, state.to_bytes()).seal()


def _counted(lots: Sequence[Unfolded]) -> Counter[str]:
    """How many reports there are of each stratum."""
    counts = Counter[str]()
    for found in lots:
        counts[found.lot.stratum] += found.lot.count
    return counts


def _nameless(task: Task, period: int, lots: Sequence[Lot]) -> list[Lot]:
    """The same reports by stratum, without saying in which batches, or in which order, they came."""
    by_stratum: dict[str, list[bytes]] = defaultdict(list)
    for lot in lots:
        by_stratum[lot.stratum].append(lot.payload)
    width = task.mechanism.layout.width
    rows = {each: np.frombuffer(b"".join(parts), dtype=np.uint8) for each, parts in by_stratum.items()}
    return [_untold(period, sort_rows(some.reshape(-1, width)), each) for each, some in rows.items()]


def _untold(period: int, reports: Bytes, stratum: str = "") -> Lot:
    """Reports of which nobody is to know in which batches they came."""
    return Lot(period, len(reports), b"", b"", reports.tobytes(), stratum)
