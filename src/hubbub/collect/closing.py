"""When a shuffler closes a crowd: by count, at the end of a period, or by the clock.

    Closing.parse("full")     as soon as enough items wait
    Closing.parse("period")   at midnight (UTC), those of periods that have ended
    Closing.parse("6h")       at every sixth hour of the day, all that wait

The decision depends on clocks and on how many items wait, and on nothing else. What is in the items cannot change it,
since they are sealed; and how many a device sends does not depend on its record. So that a crowd left, and when, tells
nothing about records.

Tasks with several messages need more: their guarantee is for a Poisson number of messages per person
(`hubbub.privacy.messages`). Whoever closes at the n-th item cuts a stream at a moment that depends on these numbers,
and perhaps one person's messages in two. So their crowds close by the clock alone. At that moment a crowd that is too
small is not sent and waits for the next: whether it is sent depends on its size, which is post-processing.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Literal

from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import period_of
from hubbub.protocol.task import Task

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY = 86400


@dataclass(frozen=True)
class Closing:
    """A rule; `seconds` lie between two moments at which it closes crowds, if it goes by the clock."""

    rule: Literal["full", "period", "time"]
    seconds: int = 0

    @classmethod
    def parse(cls, text: str) -> Closing:
        """The rule that somebody wrote."""
        if text == "full":
            return cls("full")
        if text == "period":
            return cls("period", _DAY)
        found = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
        if found is None:
            raise Refused(
                f"{text!r} does not say when crowds close: full, period, or a time such as 30m, 6h or 1d."
            )
        return cls("time", int(found[1]) * _UNITS[found[2]])

    @classmethod
    def of(cls, task: Task, asked: Closing | None) -> Closing:
        """The rule for a task: the one asked for, or the usual one; `Refused` if it cannot be had."""
        if asked is None:
            asked = cls.parse("period" if task.messages and task.period != "once" else "full")
        if task.messages and asked.rule == "full":
            raise Refused(
                f"Task {task.name!r} asks for several messages a person, so its crowds must close by the clock and not "
                "when they are full: say when, for example --close 24h."
            )
        if asked.rule == "period" and task.period == "once":
            raise Refused(
                f"Task {task.name!r} has no periods that could end: say --close full, or a time like 24h."
            )
        return asked

    @property
    def words(self) -> str:
        """When crowds close."""
        if self.rule == "full":
            return "as soon as enough wait"
        if self.rule == "period":
            return "when their period has ended, at midnight UTC"
        return f"every {self.seconds:,} seconds"

    def turn(self, now: float) -> int:
        """The number of the current stretch of time; crowds close when it changes."""
        return int(now // self.seconds) if self.seconds else 0

    def until_next(self, now: float) -> float:
        """Seconds until then."""
        return self.seconds - now % self.seconds if self.seconds else float("inf")

    def due(
        self, task: Task, periods: set[bytes], still_open: set[bytes], today: datetime.date
    ) -> set[bytes]:
        """Of the periods of which items wait, those whose crowds close now.

        With the rule "period": those that no device can be in any more, whose calendar may be a day behind ours. What
        comes for them later makes a crowd at another midnight, the last of them when the period is closed for good.
        """
        if self.rule != "period":
            return periods
        days = (today + datetime.timedelta(days=offset) for offset in (-1, 0, 1))
        running = {period_of(task, day).encode() for day in days}
        return periods - (running & still_open)
