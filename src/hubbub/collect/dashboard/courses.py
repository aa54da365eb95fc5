"""How a few keys went over time: what the charts draw, as numbers for the script and as tables for everybody.

Where a task has periods, each is shown by itself, so that a change is seen when it comes and not when it outweighs all
that was before. The curve of all reports up to each moment is there as well: its bands become narrower.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hubbub.collect.dashboard.choices import View
from hubbub.collect.dashboard.scales import Unit
from hubbub.collect.dashboard.selection import Selection, query_of, running
from hubbub.collect.snapshots import SECONDS
from hubbub.collect.trends import beside, trend
from hubbub.model.mechanism import Quantity
from hubbub.primitives.text import visible
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.strata import first_day
from hubbub.protocol.task import Task
from hubbub.server.portions import PERIOD

if TYPE_CHECKING:
    from hubbub.collect.service import Service

_DAY = 86400
#: Seconds that a page waits for points of a curve; those that are missing then come with the next look.
_PATIENCE = 1.0


def course(
    service: Service,
    task: Task,
    view: View,
    selection: Selection,
    followed: Sequence[str],
    unit: Unit,
    quantity: Quantity | None = None,
) -> dict[str, Any]:
    """Everything about time on a task's page; of one period that is chosen, how it came to it."""
    choice, level = selection.choice, view.level
    if choice.first is not None and choice.first == choice.last:
        choice = beside(choice, PERIOD)
    went, several = None, False
    if followed and task.period != "once":
        went = trend(service, task, followed, choice, quantity, level, seconds=_PATIENCE)
        several = sum(_is_own(task, row["period"]) for row in went["reports"]) > 1
    if went and (not went["reports"] or (choice.everything and (view.time == "all" or not several))):
        went = None
    followed_in_all = followed if went is None and choice.everything else ()
    past = service.history(task, followed_in_all, level, quantity)
    periods, precision = past["periods"], past["precision"]
    lost = followed and not went and not followed_in_all
    charts = {
        "percent": unit.percent,
        "decimals": unit.decimals,
        **(_of_periods(task, went, followed) if went else _of_moments(past, followed_in_all)),
        "arrived": [[_seconds(row["period"]) for row in periods], [row["reports"] for row in periods]],
        "step": SECONDS[precision],
        "nothing": "There are no periods to draw a curve of this group from." if lost else "",
    }
    curves = ((f"each {task.period}", ""), ("all so far", "all")) if several and choice.everything else ()
    query = query_of(choice, keys=list(followed), quantity=quantity, level=level)
    return {
        "charts": json.dumps(charts),
        "latest": periods[-8:],
        "precision": precision,
        "curves": [
            (name, view.address(time=time) or "?", (view.time == "all") == bool(time))
            for name, time in curves
        ],
        "by_period": _table(task, went, followed, unit) if went else [],
        "followed": [visible(key) for key in followed],
        "so_far": running(went["reports"][-1]["period"]) if went else "",
        "missing": went["missing"] if went else 0,
        "trend": query if went else "",
        "of": choice.words(),
    }


def _is_own(task: Task, period: str) -> bool:
    """Whether this is a period of the task, and not a longer one that old and late reports are in."""
    return len(period) == PERIOD_BYTES[task.period]


def _of_periods(task: Task, went: dict[str, Any], followed: Sequence[str]) -> dict[str, Any]:
    """The task's own periods, each where it begins; longer ones, which old reports are in, are in the table alone."""
    kept = [place for place, row in enumerate(went["reports"]) if _is_own(task, row["period"])]
    names = [went["reports"][place]["period"] for place in kept]
    return {
        "times": [_begin(name) for name in names],
        "names": [f"{name}, so far" if running(name) else name for name in names],
        "series": [_series(key, [went["estimates"][key][place] for place in kept]) for key in followed],
        "unit": _DAY,
    }


def _of_moments(past: dict[str, Any], followed: Sequence[str]) -> dict[str, Any]:
    """All reports up to the end of each period of arrival."""
    times = [_seconds(point["period"]) for point in past["estimates"][followed[0]]] if followed else []
    series = [_series(key, past["estimates"][key]) for key in followed]
    return {"times": times, "names": None, "series": series, "unit": SECONDS[past["precision"]]}


def _series(key: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [point[name] for point in points] for name in ("value", "low", "high")}
    return {"key": visible(key), **columns}


def _table(task: Task, went: dict[str, Any], followed: Sequence[str], unit: Unit) -> list[dict[str, Any]]:
    """Every period with its reports, and the estimate and interval of each key; the latest first."""
    rows = []
    for place, about in enumerate(went["reports"]):
        points = [went["estimates"][key][place] for key in followed]
        cells = [
            {
                "value": unit.text(point["value"]),
                "interval": f"{unit.text(point['low'])} to {unit.text(point['high'])}",
                "moved": bool(point["change"] and point["change"]["differs"]),
            }
            for point in points
        ]
        rows.append({**about, "keys": cells, "longer": not _is_own(task, about["period"])})
    return rows[::-1]


def _begin(period: str) -> int:
    day = first_day(period)
    assert day is not None  # the store has checked the names of its periods
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp())


def _seconds(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).timestamp())
