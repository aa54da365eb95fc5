"""The state of some strata: the sum of what is on their shelves.

A question about one country or one week adds up the sums of its strata that are kept (`hubbub.collect.shelves`) and the
reports that came since. A sum is kept, and so made once, when these are more than a little: writing a sum takes as long
as adding thousands of reports. At no time are more than a few states in memory, however many strata there are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import chain

import sqlalchemy as sql

from hubbub.collect.database import states
from hubbub.collect.segments import Damaged
from hubbub.collect.shelves import Shelf, is_there, shelves_of
from hubbub.collect.snapshots import open_state, sealed, sum_of_reports
from hubbub.collect.store import Store
from hubbub.model.state import State
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import ByStratum, sealed_states
from hubbub.protocol.strata import UNTOLD, Stratum, stratum_in
from hubbub.protocol.task import Task
from hubbub.server.fold import merge_into

_log = logging.getLogger("hubbub.fold")

#: Reports that are added up at a time, and from which on the sum is kept, in bytes; of large sums, half their size.
_PIECE, _MANY = 1 << 22, 1 << 20
#: Seconds after which the sum of a shelf is kept however few reports came since, so that old reports can be dropped.
_OFTEN = 3600.0
#: Of tasks that keep no reports, sums are kept again after so many times as long as it took.
_SHARE = 20
#: Bytes of sums that are remembered.
_REMEMBERED = 1 << 28


class Sums:
    """Reads, and keeps, the sums of strata."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[tuple[Shelf, ...], State] = OrderedDict()
        self._lock = threading.Lock()
        #: When sums are kept the next time however few reports came since.
        self._due: dict[bytes, float] = {}
        self._began = time.monotonic()

    def strata(self, task: Task) -> dict[Stratum, Shelf]:
        """The strata that have reports in the snapshot."""
        return {stratum_in(task, found.stratum): found for found in self._store.shelves(task.digest.hex())}

    def state(self, task: Task, strata: Collection[Stratum]) -> State:
        """The sum of these strata as they are now. Nobody changes it: it is remembered."""
        while True:
            there = self.strata(task)
            try:
                return self.of(task, [there[each] for each in strata if each in there])
            except Moved:
                continue

    def of(self, task: Task, shelves: Collection[Shelf]) -> State:
        """The sum of what is on these shelves."""
        asked = tuple(sorted(shelves))
        with self._lock:
            known = self._known.get(asked)
        if known is not None:
            return known
        total = task.mechanism.empty(task.keys)
        for shelf in asked:
            if shelf.reports:
                merge_into(total, self._one(task, shelf))
        with self._lock:
            self._known[asked] = total
            size = sum(_size(state) for state in self._known.values())
            while size > _REMEMBERED and len(self._known) > 1:
                size -= _size(self._known.popitem(last=False)[1])
        return total

    def keep_up(self, task: Task, stopped: Callable[[], bool] = lambda: False) -> None:
        """Keep sums of shelves to which much was added, and once in a while of all; no longer than until `stopped`.

        That is every hour; where reports are not kept, and go when they are in a sum, as often as that takes no more
        than a small share of the time.
        """
        nothing = task.mechanism.empty(task.keys)
        if nothing.reports.shape[1]:
            return  # there is no sum but the reports
        began, many = time.monotonic(), _many(nothing) // task.mechanism.layout.width
        due = began >= self._due.get(task.digest, self._began + _OFTEN if task.keep_reports else 0.0)
        for shelf in self._store.shelves(task.digest.hex()):
            if stopped():
                return
            behind = shelf.reports - self._store.head(shelf.name).count
            if behind >= many or (due and behind):
                try:
                    self._one(task, shelf, keep=True)
                except Moved:  # for the next round
                    continue
                except Damaged as problem:  # the others go on
                    _log.error("a sum of task %s cannot be kept: %s", task.digest.hex(), problem)
        if due:
            now = time.monotonic()
            self._due[task.digest] = now + (_OFTEN if task.keep_reports else _SHARE * (now - began))

    def file(self, task: Task) -> Iterator[bytes | memoryview]:
        """The states of all strata as a file (`hubbub.protocol.files`), piece by piece, all of one moment.

        They add up to the snapshot of the whole. While it is read, the store keeps what is of that moment.
        """
        digest, wide = task.digest.hex(), task.mechanism.empty(task.keys).reports.shape[1] > 0
        whole = states.c.task == digest
        with self._store.transaction("BEGIN", whole=True) as connection:
            there = {stratum_in(task, shelf.stratum): shelf for shelf in shelves_of(connection, digest)}
            counts = {stratum: shelf.reports for stratum, shelf in there.items()}
            total = connection.execute(sql.select(states.c.count).where(whole)).scalar_one()
            if untold := total - sum(counts.values()):
                counts[UNTOLD] = untold

            def made(stratum: Stratum) -> State:
                if stratum in there or wide:
                    return self._read(connection, task, there.get(stratum, Shelf("", digest, untold)))[0]
                rest = open_state(
                    task, connection.execute(sql.select(states.c.payload).where(whole)).scalar_one()
                )
                for shelf in there.values():
                    _take_from(rest, self._read(connection, task, shelf)[0])
                return rest

            yield from sealed_states(task, ByStratum(counts, made))

    def _one(self, task: Task, shelf: Shelf, keep: bool = False) -> State:
        """The sum of one stratum; it is kept if much was added, or if told so."""
        with self._store.transaction("BEGIN", whole=True) as connection:
            state, held = self._read(connection, task, shelf)
        if not state.reports.shape[1]:
            added = (shelf.reports - held) * task.mechanism.layout.width
            if keep or added >= _many(state):
                self._store.keep_sum(shelf, sealed(task, state))
        return state

    def _read(self, connection: sql.Connection, task: Task, shelf: Shelf) -> tuple[State, int]:
        """The sum of one stratum, and how many reports are in the one that is kept, all of one moment."""
        if shelf.stratum and not is_there(connection, shelf):
            raise Moved
        nothing = task.mechanism.empty(task.keys)
        state = nothing if nothing.reports.shape[1] else self._kept(connection, task, shelf)
        held, width = state.count, task.mechanism.layout.width
        left, waiting = (shelf.reports - held) * width, bytearray()
        parts = (
            self._store.reports_after(shelf.name, held, shelf.stratum, connection) if left > 0 else iter(())
        )
        for part, _ in chain(parts, [(b"", 0)]):  # the last one: add what is left
            waiting += part[: max(left - len(waiting), 0)]
            if len(waiting) >= _PIECE or not part:
                merge_into(state, sum_of_reports(task, bytes(waiting)))
                left -= len(waiting)
                waiting.clear()
        if left or state.count != shelf.reports:
            raise Damaged(
                f"Reports of {shelf.stratum} of task {task.name!r} are missing: restore the store from a backup."
            )
        return state, held

    def _kept(self, connection: sql.Connection, task: Task, shelf: Shelf) -> State:
        """The sum that is kept of a shelf's first reports, or nothing."""
        query = sql.select(states.c.payload).where(states.c.task == shelf.name)
        payload = connection.execute(query).scalar()
        if payload is None:
            return task.mechanism.empty(task.keys)
        try:
            state = open_state(task, bytes(payload))
        except Refused as problem:
            if not task.keep_reports:
                raise Damaged(
                    f"The sum of {shelf.stratum} of task {task.name!r} is damaged, and its reports were not kept: "
                    "restore the store from a backup."
                ) from None
            _log.error("the sum of a stratum of task %s is damaged, and made again: %s", task.name, problem)
            self._store.drop_sum(shelf)
            return task.mechanism.empty(task.keys)
        if state.count > shelf.reports:
            raise Moved
        return state


class Moved(Exception):
    """Another process has added to a shelf, or merged it, since it was looked at."""


def _take_from(total: State, part: State) -> None:
    """What is left of a state without some of its reports."""
    total.totals -= part.totals
    total.count -= part.count
    total.squares -= part.squares


def _many(state: State) -> int:
    """Bytes of reports from which on it pays to keep a new sum."""
    return max(_MANY, state.totals.nbytes // 2)


def _size(state: State) -> int:
    return state.totals.nbytes + state.reports.nbytes
