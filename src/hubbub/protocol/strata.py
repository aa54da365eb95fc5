"""Strata: the reports with one combination of public labels, of one period.

A task may declare labels, each with a closed list of values (`labels.country = ["de", "fr"]`). They are public: whoever
sends reports says beside them, in the clear, which combination they belong to. The noise in a report does not cover its
labels, so the guarantee of the task holds for the record *given* the labels: if one person's record were replaced by
any other one with the same labels. Periods are public in the same way: a batch names the period that it was made for.

Each stratum has a state of its own, and states add up: the sum over all strata is the state of the whole, bit for bit.

A stratum is written `country=de,version=2@2026-W46`: labels by name, then the period. What is not told is left out:
a task with neither labels nor periods has one stratum, written as nothing, and so are reports of which nobody knows
the labels.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible
from hubbub.protocol.periods import PERIOD_BYTES, open_periods, period_of

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

#: Combinations of labels of one task that may occur; each has states of its own.
MOST_COMBINATIONS = 1000
#: Characters of a stratum as text, at most.
LONGEST = 1000
#: Digits of a combination's number in names and on sealed items; a task has no more combinations.
NUMBER_BYTES = 4
_NUMBER = re.compile(rb"[0-9a-f]{4}")
#: Days after the beginning of a period for which a device is believed that it made its report then.
_LATEST_DAYS = 400
#: Characters in names of a task's periods, and of those that they are merged into: 2026-11-18, 2026-W47, 2026-11, 2026.
_LENGTHS = {"once": (), "day": (10, 7, 4), "week": (8, 4), "month": (7, 4)}
_PERIOD = re.compile("[12][0-9]{3}(-(W[0-9]{2}|[0-9]{2}(-[0-9]{2})?))?")


class NotBegun(Refused):
    """A period that lies in the future, by some clock: what was refused now may be taken later."""

    def __init__(self, period: str, begins: datetime.date) -> None:
        super().__init__(
            f"The batch is of {period}, which has not begun: the clock of the device, or of this service, is wrong."
        )
        self.begins = begins


class Stratum(NamedTuple):
    """Values of the task's labels, in the order of the labels' names, and a period; empty where it is not told."""

    labels: tuple[str, ...] = ()
    period: str = ""


#: Where nothing is told.
UNTOLD = Stratum()


def label_names(task: Task) -> tuple[str, ...]:
    """The labels of a task by name, in the order in which strata have them."""
    return tuple(sorted(task.labels))


def check_label(task: Task, name: str) -> None:
    """Refuse a label that the task does not have."""
    if name not in task.labels:
        known = f"its labels are {', '.join(label_names(task))}" if task.labels else "it has none"
        raise Refused(f"Task {task.name!r} has no label {visible(name)!r}: {known}.")


def labels_from(task: Task, given: Mapping[str, str]) -> tuple[str, ...]:
    """A combination of labels by name, every label once; `Refused` where one is missing, unknown or not in its list."""
    for name in given:
        check_label(task, name)
    for name in label_names(task):
        if name not in given:
            raise Refused(f"The label {name!r} is missing: every report of task {task.name!r} has one.")
        if not isinstance(given[name], str):
            raise Refused(
                f"The label {name!r} is text, such as {task.labels[name][0]!r}, not {given[name]!r}."
            )
        if given[name] not in task.labels[name]:
            raise Refused(
                f"{visible(given[name])!r} is no {name} of task {task.name!r}. Lists of labels are part of the task; "
                "to change one, make another task."
            )
    return tuple(given[name] for name in label_names(task))


def labels_in(task: Task, text: str) -> tuple[str, ...]:
    """A combination of labels as text, `country=de,version=2`; in any order, each once."""
    given: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.strip().partition("=")
        if not equals or name in given:
            raise Refused(
                f"Labels are written as country=de,version=2, each once; this is {visible(text[:100])!r}."
            )
        given[name] = value
    return labels_from(task, given)


def text_of(task: Task, stratum: Stratum) -> str:
    """A stratum as text: the one spelling that it has."""
    named = zip(label_names(task), stratum.labels, strict=True) if stratum.labels else ()
    labels = ",".join(f"{name}={value}" for name, value in named)
    return f"{labels}@{stratum.period}" if stratum.period else labels


def stratum_in(task: Task, text: str) -> Stratum:
    """The stratum that is written so; any other spelling of it is refused."""
    if len(text) > LONGEST:
        raise Refused(f"A stratum is written in {LONGEST:,} characters at most, and this one is longer.")
    labels, at, period = text.partition("@")
    found = Stratum(labels_in(task, labels) if labels else (), period)
    if at and not is_period(task, period):
        raise Refused(f"{visible(period[:20])!r} is no period of task {task.name!r}.")
    if text_of(task, found) != text:
        raise Refused(f"{visible(text[:100])!r} is not how a stratum of task {task.name!r} is written.")
    return found


def stratum_of(task: Task, labels: str, period: str, today: datetime.date) -> Stratum:
    """The stratum that a batch belongs to by what it says of itself, checked against the calendar.

    A batch that names no period belongs to today's. One that names a period which is over is late: it is counted in the
    longer period that contains it, so nothing is lost, and nothing that was said of the old one changes any more. If
    that was long ago the device's clock was never set, and its period counts as not told. A period of the future is
    `NotBegun`: some clock is wrong, and nobody knows which.
    """
    combination = labels_in(task, labels)
    if task.period == "once":
        if period not in ("", "once"):
            raise Refused(f"Task {task.name!r} has no periods, and the batch names {visible(period[:20])!r}.")
        return Stratum(combination)
    if not period:
        return Stratum(combination, period_of(task, today))
    if period in open_periods(task, today):
        return Stratum(combination, period)
    first = first_day(period)
    if first is None or period_of(task, first) != period:
        raise Refused(
            f"{visible(period[:20])!r} is no period of task {task.name!r}, which has one a {task.period}."
        )
    if not has_begun(period, today):
        raise NotBegun(period, first)
    return Stratum(combination, longer(period) if (today - first).days <= _LATEST_DAYS else "")


def is_period(task: Task, name: str) -> bool:
    """Whether a period of the task is called so, or a longer one that such are merged into."""
    return (
        len(name) in _LENGTHS[task.period]
        and first_day(name) is not None
        and ("W" in name) == (len(name) == 8)
    )


def first_day(period: str) -> datetime.date | None:
    """The first day of a period by its name, also of the longer ones; None if it is no such name."""
    if not _PERIOD.fullmatch(period):
        return None
    try:
        if "W" in period:
            return datetime.date.fromisoformat(f"{period}-1")
        return datetime.date.fromisoformat(f"{period}-01-01"[:10])
    except ValueError:
        return None


def has_begun(period: str, today: datetime.date) -> bool:
    """Whether a period has begun, or does so tomorrow: calendars may be a day apart. A text that is none has not."""
    first = first_day(period)
    return first is not None and first <= today + datetime.timedelta(days=1)


def longer(period: str) -> str:
    """The period that an old one is merged into: the month of a day, the year of a week or a month; a year stays.

    A week belongs to the year that its number counts in, so no week is torn apart.
    """
    return period[:7] if len(period) == len("2026-11-18") else period[:4]


def is_within(period: str, first: str | None, last: str | None) -> bool:
    """Whether a period lies within these two, both included; None: no bound. Longer periods must lie in it whole.

    Among weeks, a year is all weeks that are numbered in it.
    """
    weeks = any("W" in name for name in (period, first, last) if name)
    begin, end = span_of(period, weeks)
    return (first is None or begin >= span_of(first, weeks)[0]) and (
        last is None or end <= span_of(last, weeks)[1]
    )


def span_of(period: str, weeks: bool = False) -> tuple[datetime.date, datetime.date]:
    """First and last day."""
    first = first_day(period)
    if first is None:
        raise Refused(
            f"{visible(period[:20])!r} is no period; periods are written 2026-11-18, 2026-W47, 2026-11 or 2026."
        )
    if "W" in period:
        return first, first + datetime.timedelta(days=6)
    if len(period) == 4 and weeks:
        last = datetime.date(first.year, 12, 28)  # which is always in the last week of its year
        return datetime.date.fromisocalendar(first.year, 1, 1), last + datetime.timedelta(
            days=7 - last.isoweekday()
        )
    if len(period) == 4:
        return first, first.replace(month=12, day=31)
    if len(period) == 7:
        following = (first + datetime.timedelta(days=31)).replace(day=1)
        return first, following - datetime.timedelta(days=1)
    return first, first


def number_of(task: Task, labels: tuple[str, ...]) -> int:
    """The number of a combination of labels: places in the lists as digits, the first label by name counting most."""
    number = 0
    for name, value in zip(label_names(task), labels, strict=True):
        number = number * len(task.labels[name]) + task.labels[name].index(value)
    return number


def combination(task: Task, number: int) -> tuple[str, ...]:
    """The combination of labels that has this number; `Refused` if none has."""
    values, rest = [], number
    for name in reversed(label_names(task)):
        rest, place = divmod(rest, len(task.labels[name]))
        values.append(task.labels[name][place])
    if rest:
        raise Refused(f"Task {task.name!r} has no combination of labels with the number {number}.")
    return tuple(reversed(values))


def item_numbers(task: Task) -> frozenset[bytes]:
    """The numbers of all combinations, as sealed items name them; of a task without labels, none is named."""
    if not task.labels:
        return frozenset([b""])
    count = math.prod(len(values) for values in task.labels.values())
    return frozenset(b"%04x" % number for number in range(count))


def prefix_width(task: Task) -> int:
    """Bytes at the beginning of a sealed item that say its stratum."""
    return PERIOD_BYTES[task.period] + (NUMBER_BYTES if task.labels else 0)


def prefix_of(task: Task, stratum: Stratum) -> bytes:
    """What a sealed item says of its stratum: the period's name, and the number of the labels in four digits.

    A task without periods has no name, one without labels no number. Digits are hexadecimal, in small letters.
    """
    period, width = stratum.period, PERIOD_BYTES[task.period]
    if len(period) != width or (width and not is_period(task, period)):
        has = f"has one a {task.period}" if width else "has no periods"
        raise Refused(f"{visible(period[:20])!r} is no period of task {task.name!r}, which {has}.")
    labels = labels_from(task, dict(zip(label_names(task), stratum.labels, strict=False)))
    if len(stratum.labels) != len(labels):
        raise Refused(f"Task {task.name!r} has {len(labels)} labels, not {len(stratum.labels)}.")
    number = b"%04x" % number_of(task, labels) if labels else b""
    return period.encode() + number


def stratum_from(task: Task, prefix: bytes) -> Stratum:
    """The stratum that a sealed item names; `Refused` if it is none of this task, or not how it is written."""
    width = PERIOD_BYTES[task.period]
    period, number = prefix[:width].decode("latin-1"), prefix[width:]
    if task.labels and not _NUMBER.fullmatch(number):
        raise Refused("The item does not say which labels it has.")
    found = Stratum(combination(task, int(number, 16)) if task.labels else (), period)
    if prefix_of(task, found) != prefix:
        raise Refused(f"The item does not say which stratum of task {task.name!r} it belongs to.")
    return found


def check_number(task: Task, strata: Iterable[Stratum]) -> None:
    """Refuse more combinations of labels than may occur."""
    if len({stratum.labels for stratum in strata}) > MOST_COMBINATIONS:
        raise Refused(
            f"Task {task.name!r} has reports of more than {MOST_COMBINATIONS:,} combinations of labels: use fewer "
            "labels, or shorter lists."
        )
