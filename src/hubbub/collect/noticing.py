"""Whether the reports that a service keeps look forged: looked at now and then, so that nobody who reads waits for it.

Every reading is a look, and who looks often enough sees honest reports look odd once. So there are few looks, and each
may be wrong more rarely than the one before (`hubbub.server.forgeries.level_of`): all together suspect an honest
collection at most once in 1,000, however often and by however many processes it is read.

What is looked at follows from the counts of reports alone. Of every stratum, these are its first L reports, where L is
a rung of a ladder that only depends on the task: the first rung is `minimum_reports` or 256, and each is by half
larger than the one below, or by the first one if that is more. The number of a look is that of all rungs below. Proof
that no two looks at a collection share a number: strata only grow, so over time each of their rungs only rises, and two
different looks, one of them later, differ in the number of rungs; so a process that was restarted, and one that reads
at other times, do some of the same looks. Which reports come is not decided by what is in them, so looks are tests
whose reports are known in advance. Two exceptions, each with another 1 in 1,000: old periods that are merged, and a
snapshot that is made again. A verdict stands until the next look.

Only reports that are in the snapshot are looked at; two looks are at least `minimum_reports` apart, as estimates are,
and so are a look and the snapshot. After a start it takes some readings until all have been looked at.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hubbub.collect.shelves import Shelf
from hubbub.collect.snapshots import Current
from hubbub.collect.store import Store
from hubbub.protocol.strata import stratum_in
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence, told_by_states
from hubbub.server.forgeries import FALSE_ALARMS, Notice, level_of, notice, notice_state

_log = logging.getLogger("hubbub.noticing")

#: Reports that one reading reads, those of a stratum from which on it is looked at, and how many are looked at closely.
_AT_ONCE, _FEWEST, _KEPT = 1 << 22, 256, 1 << 17

_NOT_KEPT = (
    "This task does not keep its reports, and of their sum only this can be tested: whether a key seems to be held by "
    "more people than there are."
)
_FAILED = "Forged reports: the tests themselves failed; the log says why."
_WAITING = "Forged reports: too few reports of any group to be looked at yet."


@dataclass
class _Looked:
    """What has been looked at of a task's reports in an epoch, and what was said after which look."""

    epoch: int
    evidence: Evidence
    #: How many reports of each shelf.
    done: Counter[str] = field(default_factory=Counter)
    said: tuple[int, dict[str, Any]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Noticing:
    """Looks for what may show forged reports, for the tasks of a service."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked: dict[bytes, _Looked] = {}
        self._lock = threading.Lock()

    def of(self, task: Task, current: Current) -> dict[str, Any]:
        """The part of a task's overview that is about forged reports. What goes wrong here is no reason to fail."""
        try:
            kept = task.keep_reports or task.mechanism.keeps_reports(task.keys)
            if kept and not told_by_states(task):
                return self._of_reports(task, current)
            level = level_of(max(current.head.version, 1))  # a snapshot has one, and no other has the same
            return _said(notice_state(task, current.state, level), "" if told_by_states(task) else _NOT_KEPT)
        except Exception:
            _log.exception("the tests for forged reports of task %s failed", task.digest.hex())
            return {**_said(Notice(current.state.count, False, ()), ""), "words": _FAILED}

    def _of_reports(self, task: Task, current: Current) -> dict[str, Any]:
        shelves = self._store.shelves(task.digest.hex())
        untold = current.state.count - sum(each.reports for each in shelves)
        ladder = {
            each.name: (each, *rung_below(each.reports, max(task.minimum_reports, 1)))
            for each in (Shelf("", task.digest.hex(), untold), *shelves)
        }
        with self._lock:
            looked = self._looked.get(task.digest)
            # Where shelves were merged, reports have moved: they would be looked at twice.
            gone = looked is not None and looked.done.keys() - ladder.keys()
            if looked is None or gone or looked.epoch != current.head.epoch:
                looked = self._looked[task.digest] = _Looked(current.head.epoch, Evidence(task, _KEPT))
        with looked.lock:
            look = sum(number for _, number, _ in ladder.values())
            if looked.said is not None and looked.said[0] >= look:
                return looked.said[1]
            if look == 0:
                return {**_said(Notice(0, False, ()), ""), "words": _WAITING}
            room = _AT_ONCE
            for shelf, _, until in ladder.values():
                room = self._read(task, looked, shelf, until, room)
            if room <= 0:
                seen = looked.evidence.reports + looked.evidence.untold
                words = (
                    f"Forged reports: {seen:,} of {current.state.count:,} reports looked at, no verdict yet."
                )
                return {**_said(Notice(seen, False, ()), ""), "words": words}
            looked.said = look, _said(notice(looked.evidence, level=level_of(look)), "")
            return looked.said[1]

    def _read(self, task: Task, looked: _Looked, shelf: Shelf, until: int, room: int) -> int:
        """Look at the reports of a shelf up to number `until`, as far as there is room; how much of that is left."""
        width, begin = task.mechanism.layout.width, looked.done[shelf.name]
        left = min(until - begin, room)
        if left <= 0:
            return room
        parts: list[bytes] = []
        for payload, end in self._store.reports_after(shelf.name, begin, shelf.stratum):
            parts.append(payload)
            if end - begin >= left:
                break
        rows = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(-1, width)[:left]
        looked.evidence.add_packed(rows, stratum_in(task, shelf.stratum), begin)
        looked.done[shelf.name] += len(rows)
        return room - len(rows)


def rung_below(reports: int, step: int) -> tuple[int, int]:
    """The number of the highest rung of the ladder up to so many reports, and its reports; 0 and 0 if there is none.

    What is left above it is nothing, or at least `step`.
    """
    number, rung, above = 0, 0, max(step, _FEWEST)
    while above == reports or above + step <= reports:
        number, rung = number + 1, above
        above += max(step, _FEWEST, above // 2)
    return number, rung


def _said(found: Notice, note: str) -> dict[str, Any]:
    return {
        "noticed": found.noticed,
        "reports": found.reports,
        "from_state": found.from_state,
        "false_alarms": FALSE_ALARMS,
        "words": found.verdict(),
        "note": note,
    }
