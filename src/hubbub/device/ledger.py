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

The owner may set a budget over all tasks (`limit`). It is kept in the file, not given by the app: so every program that
uses the ledger keeps it, and the owner can look at it. A report that would exceed it is not made, and the device is
silent (`BudgetSpent`) or, where it has reported in this period, says the same again. That is decided before
the record is looked at, by the ledger, the day and the task alone, so silence says nothing about the record. It may
say that the device has spent its budget, on whatever tasks. Epsilon counts as if nobody shuffled.

Where devices take turns (`rotation` in the task), a device draws its turn once, with secret coins and without a look at
the record, keeps it here, and is silent in all other periods. The turn, which its silence tells, has the same law for
all records. Given it, one of so many periods has reports: together they are as private as those of that period.

Where records are memoized (`memoize` in the task), a record that was answered before gets the same report again, in
whatever period, and there is a cap on the reports over all time (`hubbub.device.memo` says what that promises, and that
changes show). Within a period the first answer stands. Budget and turn are looked at first, as always, and a budget
is charged with the whole cap at the first answer: after that, silence depends on the record as little as before.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path

from hubbub.device.book import Account, Book, Made, read_book
from hubbub.device.budget import Budget, most_messages
from hubbub.device.client import Client
from hubbub.device.memo import Memo
from hubbub.device.statement import Statement
from hubbub.model.record import Record
from hubbub.primitives.coins import SecretCoins
from hubbub.primitives.envelope import locked, write_atomic
from hubbub.primitives.errors import BudgetSpent, Refused
from hubbub.protocol.periods import period_of, takes_part
from hubbub.protocol.sealing import KEY_BYTES, check_sealable, naming_no_key, seal, sealed_width
from hubbub.protocol.strata import labels_from
from hubbub.protocol.task import Task


class Ledger:
    """The reports a device has made, and its owner's budget, in one file (`hubbub.device.book`).

    A ledger is of one device, and is neither copied to another nor put back from a backup. With a copy, two devices
    have the same turns and answer the same record with the same bytes, which links them, and each counts budgets as if
    the other said nothing; an old copy has forgotten what was said since. Nothing here notices that: what names a
    machine is the same in many containers, and changes where only the system was set up anew.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def report(self, task: Task, record: Record, day: datetime.date | None = None) -> bytes:
        """A report for this period: a fresh one while the budget lasts, then the last one again."""
        day = day or datetime.date.today()
        try:
            return self.fresh(task, record, day)
        except BudgetSpent as spent:
            return self._again(task, day, False, spent)

    def sealed(
        self,
        task: Task,
        record: Record,
        public_key: bytes,
        day: datetime.date | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> bytes:
        """The same for a shuffler: a fresh report, sealed for the collector, then the last sealed item again.

        For a task with several messages: all of them, each sealed on its own, one after the other, and perhaps none.
        `labels` are those of the device, if the task has some; an item keeps the ones that it was made with.
        """
        day, combination = day or datetime.date.today(), labels_from(task, labels or {})
        try:
            return self._make(task, record, day, public_key, combination)
        except BudgetSpent as spent:
            return self._again(task, day, True, spent)

    def fresh(self, task: Task, record: Record, day: datetime.date | None = None, nonce: str = "") -> bytes:
        """A new report, or `BudgetSpent` if this period's budget or the owner's is gone.

        Of a task that memoizes: what is to be sent in this period, perhaps a report of an earlier one. Of a task whose
        seeds come from the collector: with the `nonce` that it handed out.
        """
        return self._make(task, record, day or datetime.date.today(), None, nonce=nonce)

    def check(self, task: Task, day: datetime.date | None = None) -> None:
        """`BudgetSpent` if `fresh` would say so on this day: whatever the record is, which is not looked at."""
        with locked(self.path):
            self._check(self._read(task), task, day or datetime.date.today())

    def limit(self, budget: Budget | None, day: datetime.date | None = None) -> None:
        """Set the owner's budget over all tasks, or lift it. What was made before counts, too."""
        with locked(self.path):
            book = self._read()
            book.budget = budget
            book.settle(day or datetime.date.today())
            self._write(book)

    def statement(self, day: datetime.date | None = None) -> Statement:
        """What was sent, when, and what it cost, for the owner."""
        return Statement(read_book(self.path), day or datetime.date.today())

    def spent(self, task: Task) -> float:
        """The epsilon that this device has spent on a task, all periods added up."""
        account = self._read(task).account(task)
        return task.guarantee.epsilon * sum(account.reports(made) for made in account)

    def _make(
        self,
        task: Task,
        record: Record,
        day: datetime.date,
        public_key: bytes | None,
        labels: tuple[str, ...] = (),
        nonce: str = "",
    ) -> bytes:
        if public_key is not None:
            check_sealable(task)
        with locked(self.path):
            book, period = self._read(task), period_of(task, day)
            made = self._check(book, task, day)
            account, again = book.account(task), False
            if task.memoize != "off":
                account.memo = account.memo or Memo()
                last = [each.payload for each in account][-1:]
                payload, again = account.memo.answer(task, record, last[0] if last else None)
            elif public_key is None:
                if task.messages:
                    raise Refused(
                        "A task with several messages is for a shuffler: without one, their epsilons add up."
                    )
                payload = Client(task).report(record, nonce)
            else:
                payload = b"".join(
                    seal(each, public_key, task, period, labels) for each in Client(task).reports(record)
                )
            made.append(Made(payload, public_key is not None, day if book.trusted(day) else None, again))
            self._write(book)
        return payload

    def _check(self, book: Book, task: Task, day: datetime.date) -> list[Made]:
        """What was made in this period; `BudgetSpent` if there must not be more. The record is no argument."""
        period = period_of(task, day)
        known = book.accounts.get(task.digest.hex())
        learned = known is not None and known.facts is None
        made = book.account(task).periods.setdefault(period, [])
        if book.settle(day) or learned:  # also if nothing is made: it would keep other tasks silent
            self._write(book)
        if len(made) >= task.reports_per_period:
            raise BudgetSpent(
                f"The budget of task {task.name!r} for period {period} is spent "
                f"({len(made)} of {task.reports_per_period} reports made); replay the last report instead."
            )
        if not takes_part(task, self._turn(book, task), day):
            raise BudgetSpent(
                f"The device is silent: in task {task.name!r} it takes part in one of {task.rotation} periods, and "
                f"{period} is not its turn."
            )
        self._check_budget(book, task, day)
        return made

    def _turn(self, book: Book, task: Task) -> int:
        """Which of the periods is this device's; drawn the first time, and on disk before anybody can see it."""
        account = book.account(task)
        if task.rotation > 1 and account.turn is None:
            account.turn = SecretCoins().below(task.rotation)
            self._write(book)
        return account.turn or 0

    def _check_budget(self, book: Book, task: Task, day: datetime.date) -> None:
        """Refuse what the owner's budget does not cover. The record is no argument.

        Of a random number of messages, as many as are drawn but for a chance of 1e-12 must fit; those that are drawn
        then count. The number itself is not bent: it hides the person in the shuffled crowd.
        """
        if book.budget is None:
            return
        before = book.costs(day, book.budget.days)
        count = 1 if task.mean_messages is None else most_messages(task.mean_messages)
        one = book.account(task).cost(count)
        if task.memoize != "off":  # all that it may ever say, once
            place = list(book.accounts).index(task.digest.hex())
            count = task.memoize_cap
            one, before = one._replace(reports=count), [*before[:place], *before[place + 1 :]]
        if book.budget.fits([*before, one]):
            return
        unit, each = task.guarantee.unit, f"epsilon = {one.epsilon:.6g}"
        if unit != "record":
            why = f"it is about whole records, and task {task.name!r} protects less (unit {unit})"
        elif any(cost.reports and math.isinf(cost.epsilon) for cost in before):
            why = (
                "the ledger holds reports that cannot be counted, because their task does not protect whole records "
                "or was last used before costs were kept (it is known again when it is used again)"
            )
        elif (
            one.delta
            and math.fsum(cost.delta * cost.reports for cost in [*before, one]) > book.budget.delta / 2
        ):
            why = (
                f"tasks may bring half of its delta, and task {task.name!r} brings {one.delta:.3g} each time"
            )
        else:
            what = f"another report of task {task.name!r} ({each})"
            if task.memoize != "off":
                what = f"task {task.name!r} ({each} for each of up to {count} distinct records)"
            elif count > 1:
                what = f"up to {count} messages of task {task.name!r} ({each} each)"
            why = f"{book.budget.spent(before):.6g} is spent, and {what} would exceed it"
        raise BudgetSpent(f"The owner's budget ({book.budget.words()}) keeps the device silent: {why}.")

    def _again(self, task: Task, day: datetime.date, sealed: bool, spent: BudgetSpent) -> bytes:
        """The last report of this period that was made for this way; where there is none, the device is silent."""
        made = self._read(task).account(task).periods.get(period_of(task, day), [])
        if not made:
            raise spent
        found = [each.payload for each in made if each.sealed == sealed]
        if not found:
            one, other = ("a shuffler", "a collector") if sealed else ("a collector", "a shuffler")
            raise BudgetSpent(
                f"The budget of task {task.name!r} for period {period_of(task, day)} is spent on reports to {other}; "
                f"the same report must not reach {one} as well."
            )
        last = found[-1]
        if (
            sealed and not task.messages and len(last) < sealed_width(task)
        ):  # made when items did not name their key
            return naming_no_key(task, last)
        return last

    def _read(self, task: Task | None = None) -> Book:
        """The whole book; what it holds for this task must be reports of this task."""
        if not self.path.exists():
            return Book()
        book = read_book(self.path)
        account = Account() if task is None else book.accounts.get(task.digest.hex(), Account())
        fits = task is None or (
            (account.turn or 0) < task.rotation
            and all(_fits(task, made) for made in account)
            and (0 if account.memo is None else len(account.memo.reports)) <= task.memoize_cap
            and (task.memoize == "off" or account.memo is not None or not any(account))
        )
        if not fits:
            raise Refused(f"{self.path} is not a ledger; nothing is reported while it cannot be read.")
        return book

    def _write(self, book: Book) -> None:
        write_atomic(self.path, book.to_bytes(), private=True)


def _fits(task: Task, made: Made) -> bool:
    """Whether something may have been made for a task, by its size."""
    size, width = len(made.payload), sealed_width(task)
    if not made.sealed:
        return size == task.mechanism.layout.width
    return size % width == 0 if task.messages else size in (width, width - KEY_BYTES)
