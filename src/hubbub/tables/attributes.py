"""What a table tells about its users beside their records, in columns of its own: labels, and when a row is from.

A record has one stratum. So the rows of a user must agree on every label. What is missing, unknown or contradictory is
refused with the number of users: a record that was left out, or put somewhere, without anybody's decision would make
the groups say something else than the table.

A row's day decides its period. Then a record is what a user has in one period, and a user has as many records as
periods: the guarantee of the task holds for each of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Bools, Int64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import (
    MOST_COMBINATIONS,
    Stratum,
    check_label,
    check_number,
    first_day,
    has_begun,
    label_names,
)
from hubbub.protocol.task import Task
from hubbub.tables.records import Table, TableLike, read_table


@dataclass(frozen=True)
class Told:
    """Where a table tells it: the columns of labels by label (left out: called as the label), and that of the day.

    Or no column tells the day, and all rows are of one `period`.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    day: str | None = None
    period: str | None = None

    def check(self, task: Task, today: datetime.date) -> None:
        """Refuse what the task does not have, and a period that has not begun."""
        for name in self.labels:
            check_label(task, name)
        if (self.day is not None or self.period is not None) and task.period == "once":
            raise Refused(f"Task {task.name!r} has no periods: all its reports are of one time.")
        if self.day is not None and self.period is not None:
            raise Refused("Rows are of one period, or a column tells their day, not both.")
        if self.period is not None:
            _period(task, self.period, today)


@dataclass(frozen=True)
class Placed:
    """A table whose users are records with a stratum each: record i is in `strata[which[i]]`."""

    table: Table
    strata: list[Stratum]
    which: Int64s


def read_placed(
    table: TableLike,
    columns: tuple[str | None, str | None, str | None],
    task: Task,
    told: Told,
    today: datetime.date,
) -> Placed:
    """The records of a table with their strata; `columns` are those of user, key and value."""
    told.check(task, today)
    names = label_names(task)
    more = [told.labels.get(name, name) for name in names] + ([told.day] if told.day else [])
    try:
        rows = read_table(table, *columns, more=more)
    except Refused as problem:
        for name in names:
            if f"has no column {told.labels.get(name, name)!r}" in str(problem):
                raise Refused(
                    f"{problem} Task {task.name!r} has the label {name!r}: say which column tells it "
                    f"(--label {name}=COLUMN)."
                ) from None
        raise
    if told.day:
        rows, periods, when = _by_period(task, rows, told.day, today)
    else:
        periods, when = [told.period or ""], np.zeros(rows.users, dtype=np.int64)
    return placed(task, rows, periods, when)


def placed(task: Task, rows: Table, periods: Sequence[str] = ("",), when: Int64s | None = None) -> Placed:
    """Records with the strata that the first columns of `more` tell, one for each label of the task.

    `when` says which of the periods each record is of.
    """
    which = np.zeros(rows.users, dtype=np.int64) if when is None else when
    names = label_names(task)
    if names and len(np.unique(rows.user)) < rows.users:
        raise Refused("Some users have no rows, and nothing tells their labels; leave them out.")
    for name, (texts, codes) in zip(names, rows.more, strict=False):
        which = which * len(task.labels[name]) + _listed(task, name, rows, texts, codes)
    numbers, which = np.unique(which, return_inverse=True)
    strata = []
    for number in numbers.tolist():
        values = []
        for name in reversed(names):
            number, place = divmod(number, len(task.labels[name]))
            values.append(task.labels[name][place])
        strata.append(Stratum(tuple(reversed(values)), periods[number]))
    check_number(task, strata)
    return Placed(rows, strata, which.astype(np.int64))


def grouped(rows: Table, names: Sequence[str]) -> tuple[Table, list[tuple[str, ...]]]:
    """Which groups the columns in `more`, called so, make of the users, and the values that each of these has.

    The table that is returned has one such column instead, in which groups are called by plain labels, in the order of
    the values: values of a table are any text, and labels are not.
    """
    group = np.zeros(rows.rows, dtype=np.int64)
    for name, (texts, codes) in zip(names, rows.more, strict=True):
        _one_each(rows, name, texts, codes)
        group = np.unique(group * len(texts) + codes, return_inverse=True)[1]
    first = np.unique(group, return_index=True)[1].tolist()
    if len(first) > MOST_COMBINATIONS:
        raise Refused(
            f"{' and '.join(names)} make {len(first):,} groups of the users, and at most {MOST_COMBINATIONS:,} are "
            "estimated apart."
        )
    values = [tuple(texts[codes[row]] for texts, codes in rows.more) for row in first]
    labels = [f"g{place:0{len(str(MOST_COMBINATIONS))}}" for place in range(len(first))]
    return replace(rows, more=((labels, group),)), values


def _one_each(rows: Table, name: str, texts: list[str], codes: Any) -> Int64s:
    """Which of the texts in a column every user has; blank ones are refused, and several of one user."""
    last = np.zeros(rows.users, dtype=np.int64)
    last[rows.user] = codes
    blank = np.array([not text.strip() for text in texts], dtype=bool)
    for wrong, words in (
        (blank[codes], f"have no {name}"),
        (codes != last[rows.user], f"have rows with different values of {name}, and a person has one"),
    ):
        if wrong.any():
            raise _told_wrongly(rows, wrong, words)
    return last


def _listed(task: Task, name: str, rows: Table, texts: list[str], codes: Any) -> Int64s:
    """The place of every record's value in the list of a label."""
    last = _one_each(rows, name, texts, codes)
    known = {value: place for place, value in enumerate(task.labels[name])}
    places = np.array([known.get(text, -1) for text in texts], dtype=np.int64)
    unknown = places[codes] < 0
    if unknown.any():
        first = texts[int(codes[np.flatnonzero(unknown)[0]])]
        raise _told_wrongly(
            rows,
            unknown,
            f"have a {name} that task {task.name!r} does not list, such as {visible(first[:40])!r}",
            f"Write the task's own values, such as {task.labels[name][0]!r}, into a column, and name it with "
            f"--label {name}=COLUMN",
        )
    return places[last]


def _told_wrongly(rows: Table, wrong: Bools, words: str, remedy: str = "") -> Refused:
    count = len(np.unique(rows.user[wrong]))
    row = int(np.flatnonzero(wrong)[0]) + 1
    advice = f"; correct the table, or leave them out. {remedy}".rstrip(". ")
    return Refused(f"{count:,} of {rows.users:,} users {words} (row {row:,} is the first){advice}.")


def _by_period(task: Task, rows: Table, column: str, today: datetime.date) -> tuple[Table, list[str], Int64s]:
    """A record for every user and period: the table, the periods, and which of them each record is of."""
    texts, codes = rows.more[-1]
    names = []
    for place, text in enumerate(texts):
        try:
            names.append(_period(task, text, today))
        except Refused as problem:
            row = int(np.flatnonzero(codes == place)[0]) + 1
            raise Refused(f"Column {column!r}, row {row:,}: {problem}") from None
    periods, of_text = np.unique(names, return_inverse=True)
    pairs = rows.user.astype(np.int64) * len(periods) + of_text[codes]
    numbers, users = np.unique(pairs, return_inverse=True)
    apart = replace(rows, user=users.astype(np.int64), users=len(numbers), more=rows.more[:-1])
    return apart, periods.tolist(), numbers % len(periods)


def _period(task: Task, text: str, today: datetime.date) -> str:
    """The period of a day (2026-11-18, with or without the time of day), or the one of the task that is called so."""
    day = text[:10] if text[10:11] in ("T", " ") else text
    first = first_day(day)
    if first is None or (len(day) != len("2026-11-18") and period_of(task, first) != day):
        raise Refused(
            f"{visible(text[:40])!r} is neither a day, such as {today.isoformat()}, nor a {task.period}, such as "
            f"{period_of(task, today)}."
        )
    if not has_begun(day, today):
        raise Refused(f"{period_of(task, first)} has not begun: today is {today.isoformat()}.")
    return period_of(task, first)
