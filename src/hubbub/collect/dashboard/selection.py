"""For whom and since when a task's page is: what is chosen, in words, and what else can be.

What is chosen is in the address, as it was written. Where there is no such group, or it has too few reports, the page
says so in a sentence and shows no numbers: not those of everybody in its place.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from hubbub.collect.dashboard.choices import View
from hubbub.collect.shelves import Shelf
from hubbub.collect.trends import own_periods, periods_of, step_before
from hubbub.primitives.errors import Refused
from hubbub.protocol.strata import Stratum, label_names, span_of
from hubbub.protocol.task import Task
from hubbub.server.portions import PERIOD, Choice

if TYPE_CHECKING:
    from hubbub.collect.service import Service

#: Periods that are a click away.
_CLOSE = 6


@dataclass(frozen=True)
class Selection:
    """The groups that a page is about, or why it shows none."""

    choice: Choice
    silent: str
    strata: Mapping[Stratum, Shelf]
    reports: int
    today: datetime.date

    def query(self, **more: Any) -> str:
        """How files of the same groups are asked for."""
        return query_of(self.choice, **more)


def query_of(choice: Choice, **more: Any) -> str:
    """Groups and periods as the API is asked for them, and whatever else it is asked."""
    pairs: list[tuple[str, Any]] = [(name, value) for name, value in more.items() if value not in (None, "")]
    pairs += [("where", f"{name}={value}") for name, value in sorted(choice.where.items())]
    pairs += [(name, bound) for name, bound in (("from", choice.first), ("to", choice.last)) if bound]
    return urlencode(pairs, doseq=True)


def selected(service: Service, task: Task, view: View) -> Selection:
    """What an address asks for, looked up in the store."""
    there = service.sums.strata(task) if task.labels or task.period != "once" else {}
    choice, today = Choice(), service.clock.days()[1]
    try:
        choice = view.choice()
        chosen = choice.of(task, there)
        reports = sum(there[each].reports for each in chosen)
        if not choice.everything:
            service.check_enough(task, reports)
    except Refused as problem:
        return Selection(choice, str(problem), there, 0, today)
    return Selection(choice, "", there, reports, today)


def panel(service: Service, task: Task, view: View, selection: Selection) -> dict[str, Any]:
    """What can be chosen, and what is."""
    there, choice = selection.strata, selection.choice
    periods = own_periods(task, there, selection.today)
    asked = bool(view.where or view.period or view.since or view.until or view.by)
    return {
        "offered": bool(task.labels) or len(periods) > 1 or asked,
        "words": "" if selection.silent else choice.words(),
        "reports": selection.reports,
        "all": sum(shelf.reports for shelf in there.values()),
        "waiting": sum(service.store.waiting_by(task.digest.hex()).values()) if there or task.labels else 0,
        "everybody": view.of(Choice()) or "?",
        "chosen": asked,
        "labels": _labels(task, view, there),
        "bounds": _bounds(
            view, sorted({*periods_of(dict(there)), *filter(None, [choice.first, choice.last])})
        ),
        "close": _close(view, choice, periods),
        "unit": task.period,
        "running": running(periods[-1]) if periods else "",
        "kept": view.hidden("where", "period", "from", "to"),
        "pairs": _pairs(task, view, there, periods),
        "kept_beside": view.hidden("by", "first", "second"),
        "before": _before(task, view, selection),
        "alone": (view.address(by="", first="", second="") or "?") if view.by else "",
    }


def running(period: str) -> str:
    """A sentence about a period that is not over; empty for others."""
    today = datetime.datetime.now(datetime.UTC).date()
    if span_of(period)[1] < today:
        return ""
    return f"{period} is not over: its numbers are of those who have reported so far."


def _values(task: Task, there: Mapping[Stratum, Shelf]) -> dict[str, list[str]]:
    """Values of each label of which there are reports, in the task's order."""
    found: dict[str, set[str]] = defaultdict(set)
    for stratum in there:
        for name, value in zip(label_names(task), stratum.labels, strict=False):
            found[name].add(value)
    return {
        name: [value for value in task.labels[name] if value in found[name]] for name in label_names(task)
    }


def _labels(
    task: Task, view: View, there: Mapping[Stratum, Shelf]
) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """For each label its name, and each choice: what it is called, what the address says, and whether it is chosen.

    Offered are values that have reports, and the one that is chosen.
    """
    found = []
    for name, values in _values(task, there).items():
        written = {value: f"{name}={value}" for value in task.labels[name]}
        chosen = {value for value, text in written.items() if text in view.where}.union(values)
        offered = [value for value in task.labels[name] if value in chosen]
        found.append((name, [(value, written[value], written[value] in view.where) for value in offered]))
    return found


def _bounds(view: View, periods: list[str]) -> list[tuple[str, str, str, list[tuple[str, bool]]]]:
    """The first and the last period, likewise; none where there is but one."""
    if len(periods) < 2:
        return []
    return [
        ("From", "from", "the first", [(name, name == (view.period or view.since)) for name in periods]),
        (
            "To",
            "to",
            "the latest",
            [(name, name == (view.period or view.until)) for name in reversed(periods)],
        ),
    ]


def _close(view: View, choice: Choice, periods: list[str]) -> list[tuple[str, str, bool]]:
    """Links to all time and to the latest periods, one each."""
    if len(periods) < 2:
        return []
    links = [
        ("all", view.of(replace(choice, first=None, last=None)) or "?", not (choice.first or choice.last))
    ]
    for name in reversed(periods[-_CLOSE:]):
        one = replace(choice, first=name, last=name)
        links.append((name, view.of(one), choice == one))
    return links


def _pairs(
    task: Task, view: View, there: Mapping[Stratum, Shelf], periods: list[str]
) -> list[tuple[str, str, list[tuple[str, bool, bool]]]]:
    """What can be compared: the name, what it is called, and its values, with the two that are chosen."""
    named = [*_values(task, there).items(), (PERIOD, periods)]
    pairs = []
    for name, values in named:
        if len(values) < 2:
            continue
        usual = values[-2:] if name == PERIOD else values[:2]
        first, second = (view.first, view.second) if view.by == name else usual
        shown = task.period if name == PERIOD else name
        pairs.append((name, shown, [(value, value == first, value == second) for value in values]))
    return pairs


def _before(task: Task, view: View, selection: Selection) -> tuple[str, str] | None:
    """The latest period of what is chosen, and the address where it is compared with the one before."""
    if selection.silent or task.period == "once":
        return None
    step = step_before(task, selection.strata, selection.choice, selection.today)
    return (step[1], view.address(by=PERIOD, first=step[0], second=step[1])) if step else None
