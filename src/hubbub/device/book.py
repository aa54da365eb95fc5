"""The file behind a ledger: what was made, for which task, in which period, on which day, and the owner's budget.

    {"format": 2, "budget": {...}, "tasks": {digest: {"facts": {...}, "turn": 3, "periods": {period: [made, ...]}}}}

What was made is {"report": hex, "day": the day that it counts from}, or for a shuffler "sealed" in place of "report".
The first ledgers were {digest: {period: [hex, or {"sealed": hex}]}}: without days, and without a word about costs.
They are read, and written anew with the next report. Older hubbubs refuse the new ones: they would not keep the budget.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from hubbub.device.budget import Budget, Cost
from hubbub.model.guarantee import Unit
from hubbub.primitives.envelope import keep_private, read_file
from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import last_day
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

FORMAT = 2


@dataclass(frozen=True)
class Made:
    """What was made and handed out at one time: one report, or all messages of a task with several."""

    payload: bytes
    sealed: bool
    #: The day it counts from; None if that is not known yet: the clock was behind, or a ledger without days has it.
    day: datetime.date | None

    def as_dict(self) -> dict[str, str | None]:
        """Plain data."""
        day = None if self.day is None else self.day.isoformat()
        return {"sealed" if self.sealed else "report": self.payload.hex(), "day": day}


@dataclass(frozen=True)
class Facts:
    """What a ledger has to know of a task to say what its reports cost."""

    name: str
    epsilon: float
    delta: float
    unit: Unit
    #: Bytes of one sealed message where a device sends a random number of them; 0 where it sends one report.
    message_width: int = 0

    @classmethod
    def of(cls, task: Task) -> Facts:
        """Those of a task."""
        promise = task.guarantee
        width = sealed_width(task) if task.messages else 0
        return cls(task.name, promise.epsilon, promise.delta, promise.unit, width)  # type: ignore[arg-type]


@dataclass
class Account:
    """All that was made for one task."""

    #: None in ledgers of the first kind, until the task is used again.
    facts: Facts | None = None
    periods: dict[str, list[Made]] = field(default_factory=dict)
    #: Where devices take turns: which it is, drawn once.
    turn: int | None = None

    def __iter__(self) -> Iterator[Made]:
        return (each for made in self.periods.values() for each in made)

    def reports(self, made: Made) -> int:
        """How many reports were handed out together."""
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
                        made[place], changed = Made(each.payload, each.sealed, day), True
        return changed

    def costs(self, day: datetime.date, days: int | None) -> list[Cost]:
        """What was spent in the last so many days, by task. What lies ahead of this day counts, and so does what has
        no day: a clock that was put back frees nothing."""
        return [
            account.cost(
                sum(
                    account.reports(made)
                    for made in account
                    if days is None or made.day is None or (day - made.day).days < days
                )
            )
            for account in self.accounts.values()
        ]

    def to_bytes(self) -> bytes:
        """The file."""
        tasks = {}
        for digest, account in self.accounts.items():
            periods = {
                name: [each.as_dict() for each in made] for name, made in account.periods.items() if made
            }
            facts = {} if account.facts is None else {"facts": asdict(account.facts)}
            turn = {} if account.turn is None else {"turn": account.turn}
            if periods or turn:
                tasks[digest] = {**facts, **turn, "periods": periods}
        budget = {} if self.budget is None else {"budget": self.budget.as_dict()}
        return json.dumps({"format": FORMAT, **budget, "tasks": tasks}).encode()


def read_book(path: Path) -> Book:
    """What is in a ledger file; whatever is wrong with it is refused in one sentence."""
    keep_private(path)
    try:
        data = json.loads(read_file(path))
        if not isinstance(data, dict):
            raise ValueError
        if "format" not in data:  # the first kind
            return Book(None, {digest: _account({"periods": periods}) for digest, periods in data.items()})
        if data["format"] != FORMAT:
            if type(data["format"]) is int and "tasks" in data:
                raise Refused(
                    f"{path} is a ledger of format {data['format']}; this hubbub reads format {FORMAT}: update it."
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
    _only(data, "facts", "periods", "turn")
    facts = Facts(**data["facts"]) if "facts" in data else None
    if facts is not None and not (
        isinstance(facts.name, str)
        and all(type(number) in (int, float) for number in (facts.epsilon, facts.delta))
        and 0 < facts.epsilon <= sys.float_info.max
        and 0 <= facts.delta < 1
        and facts.unit in get_args(Unit)
        and type(facts.message_width) is int
        and facts.message_width >= 0
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
    return Account(facts, periods, data.get("turn"))


def _made(data: str | dict[str, str], ended: datetime.date | None) -> Made:
    if isinstance(data, str) or set(data) == {
        "sealed"
    }:  # the first kind: it was made in its period, at its end or before
        return Made(
            bytes.fromhex(data if isinstance(data, str) else data["sealed"]), not isinstance(data, str), ended
        )
    way = "sealed" if "sealed" in data else "report"
    _only(data, way, "day")
    day = None if data["day"] is None else datetime.date.fromisoformat(data["day"])
    return Made(bytes.fromhex(data[way]), way == "sealed", day)


def _only(data: dict[str, Any], *names: str) -> None:
    """What is said beside what is understood may change what it means."""
    if not set(data) <= set(names):
        raise ValueError
