"""Whether the reports that a service keeps look forged, a few at a time, so that nobody who reads waits for it.

Only reports that are in the snapshot are looked at, in the order of the segments, and what is said of them is a verdict
and how many they are; two verdicts are at least the task's `minimum_reports` apart, as estimates are. After a start it
takes some readings until all have been looked at, a million for each.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hubbub.collect.shelves import Shelf
from hubbub.collect.snapshots import Current
from hubbub.collect.store import Store
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence
from hubbub.server.forgeries import notice, notice_state

#: Reports that one reading looks at.
_AT_ONCE = 1 << 20

_NOT_KEPT = (
    "This task does not keep its reports, and of their sum only this can be tested: whether a key seems to be held by "
    "more people than there are."
)


@dataclass
class _Looked:
    """What has been counted of a task's reports in an epoch, and what it said."""

    epoch: int
    evidence: Evidence
    #: How many reports of each shelf.
    done: Counter[str] = field(default_factory=Counter)
    said: tuple[int, int, dict[str, Any]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Noticing:
    """Counts what may show forged reports, for the tasks of a service."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked: dict[bytes, _Looked] = {}
        self._lock = threading.Lock()

    def of(self, task: Task, current: Current) -> dict[str, Any]:
        """The part of a task's overview that is about forged reports."""
        shelves = self._store.shelves(task.digest.hex())
        with self._lock:
            looked = self._looked.get(task.digest)
            # Where shelves were merged, reports have moved: they would be looked at twice.
            gone = looked is not None and looked.done.keys() - {each.name for each in shelves} - {
                task.digest.hex()
            }
            if looked is None or gone or looked.epoch != current.head.epoch:
                looked = self._looked[task.digest] = _Looked(current.head.epoch, Evidence(task))
        with looked.lock:
            kept = task.keep_reports or task.mechanism.keeps_reports(task.keys)
            if kept:
                untold = current.state.count - sum(each.reports for each in shelves)
                self._look(task, looked, [Shelf("", task.digest.hex(), untold), *shelves])
            mark = current.head.version, looked.evidence.reports
            if looked.said is None or looked.said[:2] != mark:
                looked.said = (*mark, self._said(task, looked.evidence, current, kept))
            return looked.said[2]

    def _look(self, task: Task, looked: _Looked, shelves: list[Shelf]) -> None:
        """Count some more of the reports that are in the snapshot: as estimates, by `minimum_reports` or more each."""
        layout, step = task.mechanism.layout, max(task.minimum_reports, 1)
        room = max(_AT_ONCE, step)
        for shelf in shelves:
            left = shelf.reports - looked.done[shelf.name]
            if left <= 0:
                continue
            # Neither what is looked at now nor what is left for later is less than a step.
            until = shelf.reports if left - room < step else looked.done[shelf.name] + room
            for payload, end in self._store.reports_after(shelf.name, looked.done[shelf.name], shelf.stratum):
                begin = end - len(payload) // layout.width
                most = min(end, until)
                if most > begin:
                    looked.evidence.add(layout.unpack(payload[: (most - begin) * layout.width]))
                    looked.done[shelf.name], room = most, room - (most - begin)
                if most < end or most >= until:
                    break
            if room < step:
                return

    def _said(self, task: Task, evidence: Evidence, current: Current, kept: bool) -> dict[str, Any]:
        if kept and evidence.reports:
            whole = evidence.reports == current.state.count
            found = notice(evidence, current.state if whole else None)
        else:
            found = notice_state(task, current.state)
        return {
            "noticed": found.noticed,
            "reports": found.reports,
            "from_state": found.from_state,
            "false_alarms": found.false_alarms,
            "words": found.verdict(),
            "note": "" if kept else _NOT_KEPT,
        }
