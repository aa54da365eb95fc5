"""A device's memory of what it has already said, so that it never says too much.

Every fresh report spends the task's epsilon again. The ledger allows as many per task and period as the
task says and answers further questions with the very bytes that it gave before. What that means depends on
the way that a report takes:

- To a collector (`report`): the same report again. It says nothing new about the record, but whoever receives it
  twice can tell that both came from one device.
- To a shuffler (`sealed`): the same sealed item again, so that the shuffler knows it and drops it. A report is sealed
  once. Sealed anew it would be a second item to the shuffler and the same report to the collector, perhaps the
  only one in its crowd that is there twice: the crowd would hide it no longer.

A report takes one way: the ledger keeps what goes to a shuffler sealed only and never seals what may have been sent
bare. What is returned is on disk before: a crash can waste budget, but never spend it twice.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub.device.client import Client
from hubbub.model.record import Record
from hubbub.primitives.envelope import keep_private, read_file, write_atomic
from hubbub.primitives.errors import BudgetSpent, Refused
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import KEY_BYTES, naming_no_key, seal, sealed_width
from hubbub.protocol.task import Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Ledger:
    """The reports a device has made, in one JSON file: task digest -> period -> reports.

    A report is a string of hexadecimal digits, and one that was made for a shuffler is {"sealed": the same}.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def report(self, task: Task, record: Record, day: datetime.date | None = None) -> bytes:
        """A report for this period: a fresh one while the budget lasts, then the last one again."""
        day = day or datetime.date.today()
        try:
            return self.fresh(task, record, day)
        except BudgetSpent:
            return self._again(task, day, sealed=False)

    def sealed(
        self, task: Task, record: Record, public_key: bytes, day: datetime.date | None = None
    ) -> bytes:
        """The same for a shuffler: a fresh report, sealed for the collector, then the last sealed item again.

        For a task with several messages: all of them, each sealed on its own, one after the other, and perhaps none.
        """
        day = day or datetime.date.today()
        try:
            return self._make(task, record, day, public_key)
        except BudgetSpent:
            return self._again(task, day, sealed=True)

    def fresh(self, task: Task, record: Record, day: datetime.date | None = None) -> bytes:
        """A new report, or `BudgetSpent` if this period's budget is gone."""
        return self._make(task, record, day or datetime.date.today(), None)

    def _make(self, task: Task, record: Record, day: datetime.date, public_key: bytes | None) -> bytes:
        with self._locked():
            book = self._read(task)
            made = self._made(book, task, day)
            if len(made) >= task.reports_per_period:
                raise BudgetSpent(
                    f"The budget of task {task.name!r} for period {period_of(task, day)} is spent "
                    f"({len(made)} of {task.reports_per_period} reports made); replay the last report instead."
                )
            if public_key is None:
                if task.messages:
                    raise Refused(
                        "A task with several messages is for a shuffler: without one, their epsilons add up."
                    )
                payload = Client(task).report(record)
            else:
                period = period_of(task, day)
                payload = b"".join(
                    seal(each, public_key, task, period) for each in Client(task).reports(record)
                )
            made.append(payload.hex() if public_key is None else {"sealed": payload.hex()})
            write_atomic(self.path, json.dumps(book).encode(), private=True)
        return payload

    def _again(self, task: Task, day: datetime.date, sealed: bool) -> bytes:
        """The last report of this period that was made for this way."""
        made = self._made(self._read(task), task, day)
        found = [each for each in made if isinstance(each, dict) == sealed]
        if not found:
            one, other = ("a shuffler", "a collector") if sealed else ("a collector", "a shuffler")
            raise BudgetSpent(
                f"The budget of task {task.name!r} for period {period_of(task, day)} is spent on reports to {other}; "
                f"the same report must not reach {one} as well."
            )
        last = _payload(found[-1])
        if (
            sealed and not task.messages and len(last) < sealed_width(task)
        ):  # made when items did not name their key
            return naming_no_key(task, last)
        return last

    def spent(self, task: Task) -> float:
        """The epsilon that this device has spent on a task, all periods added up."""
        periods = self._read(task).get(task.digest.hex(), {})
        made = [each for period in periods.values() for each in period]
        if task.messages:
            return task.guarantee.epsilon * sum(len(_payload(each)) // sealed_width(task) for each in made)
        return task.guarantee.epsilon * len(made)

    def _locked(self) -> AbstractContextManager[object]:
        """One writer at a time, across processes; released by the operating system if the process dies."""
        from filelock import FileLock

        path = self.path.with_name(self.path.name + ".lock")
        if not path.parent.is_dir():  # which the lock would make: a mistyped path would be a new ledger
            raise Refused(f"{self.path} cannot be written: there is no folder {path.parent}.")
        try:
            return FileLock(path, mode=0o600, poll_interval=0.01).acquire()
        except OSError as problem:
            raise Refused(f"{path} cannot be written: {problem.strerror or problem}.") from None

    def _made(self, book: dict[str, Any], task: Task, day: datetime.date) -> list[str | dict[str, str]]:
        made: list[str | dict[str, str]] = book.setdefault(task.digest.hex(), {}).setdefault(
            period_of(task, day), []
        )
        return made

    def _read(self, task: Task) -> dict[str, Any]:
        """The whole book; what it holds for this task must be lists of reports of this task."""
        if not self.path.exists():
            return {}
        keep_private(self.path)
        try:
            book = json.loads(read_file(self.path))
            if not all(isinstance(periods, dict) for periods in book.values()):
                raise ValueError
            for made in book.get(task.digest.hex(), {}).values():
                if not isinstance(made, list):
                    raise ValueError
                for each in made:
                    size, width = len(_payload(each)), sealed_width(task)
                    if not isinstance(each, dict):
                        fits = size == task.mechanism.layout.width
                    elif task.messages:
                        fits = size % width == 0
                    else:
                        fits = size in (width, width - KEY_BYTES)
                    if not fits:
                        raise ValueError
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise Refused(
                f"{self.path} is not a ledger; nothing is reported while it cannot be read."
            ) from None
        return dict(book)


def _payload(made: str | dict[str, str]) -> bytes:
    """The bytes of one entry."""
    return bytes.fromhex(made["sealed"] if isinstance(made, dict) else made)
