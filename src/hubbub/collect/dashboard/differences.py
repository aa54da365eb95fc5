"""Two groups or periods side by side on a task's page, and what moved since the period before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hubbub.collect.dashboard.choices import View
from hubbub.collect.dashboard.scales import Scale, Unit
from hubbub.collect.dashboard.selection import Selection, query_of, running
from hubbub.collect.trends import beside, compared, step_before
from hubbub.model.mechanism import Quantity
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.comparison import Comparison
from hubbub.server.portions import PERIOD, Choice

if TYPE_CHECKING:
    from hubbub.collect.service import Service


def asked_for(
    service: Service, task: Task, view: View, selection: Selection, quantity: Quantity
) -> dict[str, Any] | None:
    """The comparison that a reader has chosen: what differs first, then what cannot be told apart."""
    if not view.by or selection.silent:
        return None
    choice = beside(selection.choice, view.by)
    try:
        found = _ask(service, task, view, view.by, (view.first, view.second), choice, quantity)
    except Refused as problem:
        return {"problem": str(problem)}
    return _shown(task, view, found, found.worth_showing(view.shown), choice, view.by)


def moved(
    service: Service, task: Task, view: View, selection: Selection, quantity: Quantity
) -> dict[str, Any] | None:
    """The keys that changed between the latest period of what is chosen and the one before, and no others.

    None where that cannot be asked: there are no two periods yet, or no keys are listed and none was looked up.
    """
    if task.period == "once" or (task.keys.kind != "closed" and not view.keys):
        return None
    step = step_before(task, selection.strata, selection.choice, selection.today)
    if step is None:
        return None
    choice = beside(selection.choice, PERIOD)
    try:
        found = _ask(service, task, view, PERIOD, step, choice, quantity)
    except Refused as problem:  # a period has just been merged into a longer one
        return {"problem": str(problem)}
    changed = found.top(min(found.count, view.shown))
    return _shown(task, view, found, changed, choice, PERIOD)


def _ask(
    service: Service,
    task: Task,
    view: View,
    name: str,
    sides: tuple[str, str],
    choice: Choice,
    quantity: Quantity,
) -> Comparison:
    keys = None if task.keys.kind == "closed" else view.keys
    if keys is not None and not keys:
        raise Refused("The vocabulary of this task is open: look up the keys that are to be compared.")
    return compared(service, task, name, sides, choice, keys, quantity, view.level, simultaneous=True)


def _shown(
    task: Task, view: View, found: Comparison, listed: Comparison, choice: Choice, name: str
) -> dict[str, Any]:
    percent = found.quantity == "frequency"
    unit = Unit(percent).for_errors(found.error)
    scale = Scale.over(listed.low, listed.high)
    ticks = scale.ticks()
    marks = unit.for_steps(ticks[1] - ticks[0] if len(ticks) > 1 else 1.0)
    keys = None if task.keys.kind == "closed" else view.keys
    first, second = found.sides
    query = query_of(
        choice,
        by=name,
        first=first,
        second=second,
        quantity=found.quantity,
        level=view.level,
        simultaneous="true",
        keys=keys,
    )
    return {
        "problem": "",
        "sides": found.sides,
        "of": choice.words(),
        "words": found.words(
            lambda value: f"{unit.text(value).removesuffix('%')}{' points' if percent else ''}"
        ),
        "lost": found.lost,
        "unit": "points" if percent else "",
        "rows": [_row(row, scale, unit) for row in listed.rows()],
        "keys": found.candidates,
        "count": found.count,
        "reports": found.reports,
        "ticks": [(scale.place(value), marks.change(value)) for value in ticks],
        "zero": scale.place(0.0),
        "running": [text for side in found.sides if name == PERIOD and (text := running(side))],
        "notes": found.notes,
        "csv": f"compare.csv?{query}",
        "json": f"compare.json?{query}",
    }


def _row(row: dict[str, Any], scale: Scale, unit: Unit) -> dict[str, Any]:
    """One difference; where a side is unknown, so is everything."""
    if any(row[name] is None for name in ("difference", "error", "low", "high")):
        return {"key": row["key"], "known": False, "differs": False}
    return {
        "key": row["key"],
        "known": True,
        "differs": row["differs"],
        "value": unit.change(row["difference"]),
        "error": unit.text(row["error"]).removesuffix("%"),
        "low": unit.change(row["low"]),
        "high": unit.change(row["high"]),
        "at": scale.place(row["difference"]),
        "from": scale.place(row["low"]),
        "to": scale.place(row["high"]),
    }
