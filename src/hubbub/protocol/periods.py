"""Collection periods: what the one of a day is called, and which of them are open."""

from __future__ import annotations

import datetime

from hubbub.protocol.task import Task

#: Bytes of a period's name on a sealed report; a task without periods has nothing to tell apart.
PERIOD_BYTES = {"once": 0, "day": 10, "week": 8, "month": 7}
#: What a guarantee over several periods leaves out where records are memoized.
CHANGES_SHOW = (
    "It is about what records hold, not about when they change: that a record changed, and that it is again what it "
    "was, shows by the bytes."
)
#: Days after its end for which reports of a period are still taken by a shuffler.
LATE_DAYS = 7


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


def takes_part(task: Task, turn: int, day: datetime.date) -> bool:
    """Whether a device whose turn was drawn from 0 .. rotation - 1 takes part in the period of this day.

    Periods are numbered without gaps, so of `rotation` periods in a row it is in exactly one, and of n in a row in at
    most n / rotation, rounded up.
    """
    numbers = {
        "once": 0,
        "day": day.toordinal(),
        "week": (day.toordinal() - 1) // 7,  # day 1 was a Monday
        "month": 12 * day.year + day.month,
    }
    return numbers[task.period] % task.rotation == turn


def last_day(period: str) -> datetime.date | None:
    """The last day of a period by its name; None for the one that does not end. A ValueError if it is no name."""
    if period == "once":
        return None
    if len(period) == PERIOD_BYTES["month"]:
        first = datetime.date.fromisoformat(f"{period}-01")
        return (first + datetime.timedelta(days=31)).replace(day=1) - datetime.timedelta(days=1)
    return datetime.date.fromisoformat(f"{period}-7" if len(period) == PERIOD_BYTES["week"] else period)


def open_periods(task: Task, today: datetime.date) -> set[str]:
    """The periods whose reports may arrive now: today's, those that ended lately, and tomorrow's.

    Devices go by their own calendar, which may be a day ahead of or behind ours.
    """
    days = (today + datetime.timedelta(days=offset) for offset in range(-LATE_DAYS - 1, 2))
    return {period_of(task, day) for day in days}
