"""The file behind a ledger: what was made, for which task, in which period, on which day, and the owner's budget.

    {"format": 2, "budget": {...}, "tasks": {digest: {"facts": {...}, "turn": 3, "periods": {period: [made, ...]}}}}

What was made is {"report": hex, "day": the day that it counts from}, or for a shuffler "sealed" in place of "report".
The first ledgers were {digest: {period: [hex, or {"sealed": hex}]}}: without days, and without a word about costs.
They are read, and written anew with the next report. Older hubbubs refuse the new ones: they would not keep the budget.

Format 3 is for ledgers with a task that memoizes, which has "memo": {"salt": ..., "reports": {keyed hash of a record:
hex}} beside its periods; "again": true marks what is such a report sent once more. All others are written as format 2.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from hubbub.device.budget import Budget, Cost
from hubbub.device.memo import Memo
from hubbub.model.guarantee import Unit
from hubbub.primitives.envelope import keep_private, read_file
from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import last_day
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

#: What is read; the last is written where something is memoized, else the first.
FORMATS = (2, 3)


@dataclass(frozen=True)
class Made:
    """What was made and handed out at one time: one report, or all messages of a task with several."""

    payload: bytes
    sealed: bool
    #: The day it counts from; None if that is not known yet: the clock was behind, or a ledger without days has it.
    day: datetime.date | None
    #: Whether it is a report that was made before, for the same record or for want of room (`hubbub.device.memo`).
    again: bool = False

    def as_dict(self) -> dict[str, str | bool | None]:
        """Plain data."""
        day = None if self.day is None else self.day.isoformat()
        again: dict[str, bool] = {"again": True} if self.again else {}
        return {"sealed" if self.sealed else "report": self.payload.hex(), "day": day, **again}


@dataclass(frozen=True)
class Facts:
    """What a ledger has to know of a task to say what its reports cost."""

    name: str
    epsilon: float
    delta: float
    unit: Unit
    #: Bytes of one sealed message where a device sends a random number of them; 0 where it sends one report.
    message_width: int = 0
    #: How many distinct records get a report of their own, over all time; 0 where each period gets one.
    memoize_cap: int = 0

    @classmethod
    def of(cls, task: Task) -> Facts:
        """Those of a task."""
        promise = task.guarantee
        width = sealed_width(task) if task.messages else 0
        unit: Any = promise.unit
        return cls(task.name, promise.epsilon, promise.delta, unit, width, task.memoize_cap)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, which older hubbubs read where nothing is memoized."""
        data = asdict(self)
        if not self.memoize_cap:
            del data["memoize_cap"]
        return data


@dataclass
class Account:
    """All that was made for one task."""

    #: None in ledgers of the first kind, until the task is used again.
    facts: Facts | None = None
    periods: dict[str, list[Made]] = field(default_factory=dict)
    #: Where devices take turns: which it is, drawn once.
    turn: int | None = None
    #: Where records are memoized: the reports by their record.
    memo: Memo | None = None

    def __iter__(self) -> Iterator[Made]:
        return (each for made in self.periods.values() for each in made)

    def reports(self, made: Made) -> int:
        """How many new reports were handed out together; none where one was sent again."""
        if made.again:
            return 0
        width = self.facts.message_width if self.facts else 0
        return len(made.payload) // width if width else 1

    def cost(self, count: int) -> Cost:
        """What so many reports cost a person; infinite if that is unknown, or if whole records are not protected."""
        if self.facts is None or self.facts.unit != "record":
            return Cost(math.inf, 0.0, count)
        return Cost(self.facts.epsilon, self.facts.delta, count)


@dataclass
class Book:
    """What a ledger file says."""

    budget: Budget | None = None
    accounts: dict[str, Account] = field(default_factory=dict)

    def account(self, task: Task) -> Account:
        """The account of a task, which from now on is known."""
        account = self.accounts.setdefault(task.digest.hex(), Account())
        account.facts = Facts.of(task)
        return account

    def trusted(self, day: datetime.date) -> bool:
        """Whether the clock may be right: it has not gone back behind a day that it showed before."""
        days = [made.day for account in self.accounts.values() for made in account if made.day is not None]
        return day >= max(days, default=day)

    def settle(self, day: datetime.date) -> bool:
        """Let what has no day count from today, if the clock may be right; whether that changed anything.

        A report that is made while the clock is behind has no day. It counts until the clock has caught up, and from
        then on for as long as any other.
        """
        changed = False
        for account in self.accounts.values() if self.trusted(day) else ():
            for made in account.periods.values():
                for place, each in enumerate(made):
                    if each.day is None:
                        made[place], changed = replace(each, day=day), True
        return changed

    def costs(self, day: datetime.date, days: int | None) -> list[Cost]:
        """What counts against a budget for the last so many days, by task. What lies ahead of this day counts, and so
        does what has no day: a clock that was put back frees nothing.

        A task that memoizes counts with all distinct records that it may answer, from its first answer until so many
        days after its last. If it counted with those that it has answered, a budget would be spent sooner by a record
        that changes, and the silence of other tasks would tell.
        """
        found = []
        for account in self.accounts.values():
            counted = [
                made for made in account if days is None or made.day is None or (day - made.day).days < days
            ]
            cap = account.facts.memoize_cap if account.facts else 0
            found.append(account.cost(cap if cap and counted else sum(map(account.reports, counted))))
        return found

    def paid(self) -> list[Cost]:
        """What was said in all, by task."""
        return [account.cost(sum(map(account.reports, account))) for account in self.accounts.values()]

    def to_bytes(self) -> bytes:
        """The file."""
        tasks = {}
        for digest, account in self.accounts.items():
            periods = {
                name: [each.as_dict() for each in made] for name, made in account.periods.items() if made
            }
            facts = {} if account.facts is None else {"facts": account.facts.as_dict()}
            turn = {} if account.turn is None else {"turn": account.turn}
            memo = {} if account.memo is None else {"memo": account.memo.as_dict()}
            if periods or turn:
                tasks[digest] = {**facts, **turn, **memo, "periods": periods}
        budget = {} if self.budget is None else {"budget": self.budget.as_dict()}
        memoized = any(account.memo is not None for account in self.accounts.values())
        return json.dumps({"format": FORMATS[memoized], **budget, "tasks": tasks}).encode()


def read_book(path: Path) -> Book:
    """What is in a ledger file; whatever is wrong with it is refused in one sentence."""
    with suppress(OSError):  # which the next line explains
        if not path.exists():
            raise Refused(f"There is no ledger {path}: a device begins one with its first report.")
    keep_private(path)
    try:
        data = json.loads(read_file(path))
        if not isinstance(data, dict):
            raise ValueError
        if "format" not in data:  # the first kind
            return Book(None, {digest: _account({"periods": periods}) for digest, periods in data.items()})
        if data["format"] not in FORMATS:
            if type(data["format"]) is int and "tasks" in data:
                raise Refused(
                    f"{path} is a ledger of format {data['format']}; this hubbub reads up to {FORMATS[-1]}: update it."
                )
            raise ValueError
        _only(data, "format", "budget", "tasks")
        budget = Budget(**data["budget"]) if "budget" in data else None
        return Book(budget, {digest: _account(each) for digest, each in data["tasks"].items()})
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as problem:
        if isinstance(problem, Refused) and "ledger of format" in str(problem):
            raise
        raise Refused(f"{path} is not a ledger; nothing is reported while it cannot be read.") from None


def _account(data: dict[str, Any]) -> Account:
    _only(data, "facts", "periods", "turn", "memo")
    facts = Facts(**data["facts"]) if "facts" in data else None
    if facts is not None and not (
        isinstance(facts.name, str)
        and all(type(number) in (int, float) for number in (facts.epsilon, facts.delta))
        and 0 < facts.epsilon <= sys.float_info.max
        and 0 <= facts.delta < 1
        and facts.unit in get_args(Unit)
        and type(facts.message_width) is int
        and facts.message_width >= 0
        and type(facts.memoize_cap) is int
        and facts.memoize_cap >= 0
    ):
        raise ValueError
    periods = {}
    for period, made in data["periods"].items():
        ended = last_day(period)
        if not isinstance(made, list):
            raise ValueError
        periods[period] = [_made(each, ended) for each in made]
    if "turn" in data and not (type(data["turn"]) is int and data["turn"] >= 0):
        raise ValueError
    account = Account(facts, periods, data.get("turn"), Memo.parse(data["memo"]) if "memo" in data else None)
    made_anew = sum(not made.again for made in account)
    if account.memo is None:
        if made_anew < sum(1 for _ in account):
            raise ValueError
    elif len(account.memo.reports) != made_anew or any(
        made.sealed or made.payload not in account.memo.reports.values() for made in account
    ):
        raise ValueError
    return account


def _made(data: str | dict[str, str], ended: datetime.date | None) -> Made:
    if isinstance(data, str) or set(data) == {
        "sealed"
    }:  # the first kind: it was made in its period, at its end or before
        return Made(
            bytes.fromhex(data if isinstance(data, str) else data["sealed"]), not isinstance(data, str), ended
        )
    way = "sealed" if "sealed" in data else "report"
    _only(data, way, "day", "again")
    if data.get("again", True) is not True:
        raise ValueError
    day = None if data["day"] is None else datetime.date.fromisoformat(data["day"])
    return Made(bytes.fromhex(data[way]), way == "sealed", day, "again" in data)


def _only(data: dict[str, Any], *names: str) -> None:
    """What is said beside what is understood may change what it means."""
    if not set(data) <= set(names):
        raise ValueError
