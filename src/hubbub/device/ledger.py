"""A device's memory of what it has already said, so that it never says too much.

Every fresh report spends the task's epsilon again. The ledger allows as many per task and period as the
task says and answers further questions with the very report that was sent before (replay costs nothing). The
report is on disk before it is returned: a crash can waste budget, but never spend it twice.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from hubbub.device.client import Client
from hubbub.model.record import Record
from hubbub.primitives.envelope import read_file, write_atomic
from hubbub.primitives.errors import BudgetSpent, Refused
from hubbub.protocol.task import Task


def period_of(task: Task, day: datetime.date) -> str:
    """The name of the collection period that a day falls into."""
    week = day.isocalendar()
    names = {
        "once": "once",
        "day": day.isoformat(),
        "week": f"{week.year}-W{week.week:02}",
        "month": f"{day.year}-{day.month:02}",
    }
    return names[task.period]


class Ledger:
    """The reports a device has made, in one JSON file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def report(self, task: Task, record: Record, day: datetime.date | None = None) -> bytes:
        """A report for this period: a fresh one while the budget lasts, then the last one again."""
        day = day or datetime.date.today()
        try:
            return self.fresh(task, record, day)
        except BudgetSpent:
            return bytes.fromhex(self._made(self._read(task), task, day)[-1])

    def fresh(self, task: Task, record: Record, day: datetime.date | None = None) -> bytes:
        """A new report, or `BudgetSpent` if this period's budget is gone."""
        day = day or datetime.date.today()
        with _Lock(self.path):
            book = self._read(task)
            made = self._made(book, task, day)
            if len(made) >= task.reports_per_period:
                raise BudgetSpent(
                    f"The budget of task {task.name!r} for period {period_of(task, day)} is spent "
                    f"({len(made)} of {task.reports_per_period} reports made); replay the last report instead."
                )
            payload = Client(task).report(record)
            made.append(payload.hex())
            write_atomic(self.path, json.dumps(book).encode())
        return payload

    def spent(self, task: Task) -> float:
        """The epsilon that this device has spent on a task, all periods added up."""
        periods = self._read(task).get(task.digest.hex(), {})
        return task.guarantee.epsilon * sum(len(made) for made in periods.values())

    def _made(self, book: dict[str, Any], task: Task, day: datetime.date) -> list[str]:
        made: list[str] = book.setdefault(task.digest.hex(), {}).setdefault(period_of(task, day), [])
        return made

    def _read(self, task: Task) -> dict[str, Any]:
        """The whole book; what it holds for this task must be lists of reports of this task."""
        if not self.path.exists():
            return {}
        try:
            book = json.loads(read_file(self.path))
            if not all(isinstance(periods, dict) for periods in book.values()):
                raise ValueError
            for made in book.get(task.digest.hex(), {}).values():
                width = task.mechanism.layout.width
                if not isinstance(made, list) or any(len(bytes.fromhex(each)) != width for each in made):
                    raise ValueError
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise Refused(
                f"{self.path} is not a ledger; nothing is reported while it cannot be read."
            ) from None
        return dict(book)


class _Lock:
    """One writer at a time, across processes; released by the operating system if the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")

    def __enter__(self) -> None:
        import fcntl

        try:
            self._handle = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as problem:
            raise Refused(f"{self._path} cannot be written: {problem.strerror or problem}.") from None
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
