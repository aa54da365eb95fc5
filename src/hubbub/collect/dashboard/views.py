"""What a task's page shows: numbers as text, and where on the drawing they lie."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hubbub.collect.dashboard.choices import SHOWN, View
from hubbub.collect.snapshots import SECONDS
from hubbub.model.mechanism import Quantity
from hubbub.plan.prospects import whole_keys
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible
from hubbub.protocol.task import Task
from hubbub.server.discovery import Discovery
from hubbub.server.estimates import MEANINGS, Estimate

if TYPE_CHECKING:
    from hubbub.collect.service import Service

#: Keys that are followed over time, and keys that a browser suggests while one types.
_FOLLOWED, _SUGGESTED = 3, 2000
_TITLES = {"frequency": "Share of users", "mean": "Mean", "conditional": "Mean among holders"}


@dataclass(frozen=True)
class Scale:
    """A common axis: from values to percent of the drawing's width."""

    low: float
    high: float

    @classmethod
    def around(cls, shown: Sequence[Estimate]) -> Scale:
        """Room for all intervals and for 0, and a little more."""
        low = min(0.0, *(float(found.low.min()) for found in shown))
        high = max(0.0, *(float(found.high.max()) for found in shown))
        margin = 0.03 * (high - low) or 1.0
        return cls(low - margin if low < 0 else 0.0, high + margin)

    def place(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    def ticks(self) -> list[float]:
        """Four to eight round numbers."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Unit:
    """How the values of a list are written: in percent or not, with the same number of decimals."""

    percent: bool
    decimals: int = 2

    def for_errors(self, errors: NDArray[np.float64]) -> Unit:
        """Two digits of the typical error: more would be noise."""
        known = errors[np.isfinite(errors) & (errors > 0)]
        typical = float(np.median(known)) * (100 if self.percent else 1) if len(known) else 1.0
        return replace(self, decimals=min(max(1 - math.floor(math.log10(typical)), 0), 8))

    def for_steps(self, step: float) -> Unit:
        """As many decimals as marks on an axis need."""
        step *= 100 if self.percent else 1
        return replace(self, decimals=next((d for d in range(8) if math.isclose(step, round(step, d))), 8))

    def text(self, value: float) -> str:
        written = f"{100 * value if self.percent else value:.{self.decimals}f}"
        if float(written) == 0:
            written = written.removeprefix("-")
        return written.replace("-", "−") + ("%" if self.percent else "")


def task_view(service: Service, task: Task, view: View) -> dict[str, Any]:
    """Everything on the page of a task."""
    about = service.overview(task)
    offered = task.mechanism.quantities
    chosen: Quantity = next((name for name in offered if name == view.quantity), offered[0])
    known, unknown, mistyped = _known(task, view.keys)
    view = replace(view, keys=tuple(known), quantity="" if chosen == offered[0] else chosen)
    shown: dict[str, Any] = {
        "about": about,
        "view": view,
        "quantities": [
            (_TITLES[name], view.address(quantity="" if name == offered[0] else name) or "?", name == chosen)
            for name in offered
        ],
        "quantity": chosen,
        "meaning": MEANINGS[chosen],
        "level": f"{view.percent}%",
        "asked": known,
        "mistyped": mistyped,
        "suggestions": [task.keys.name_of(place) for place in range(min(task.keys.count, _SUGGESTED))],
        "unknown": unknown,
        "warnings": [],
        "closed": task.keys.kind == "closed",
        "tree": task.keys.kind == "tree",
    }
    if about["withheld"]:
        return {**shown, **_over_time(service.history(task), (), Unit(False))}
    return {**shown, **_estimates(service, task, view, chosen)}


def _known(task: Task, asked: Sequence[str]) -> tuple[list[str], str, str]:
    """The keys that the task can answer for, a sentence about the first that it cannot, and that one."""
    known, sentence, mistyped = [], "", ""
    for key in asked:
        try:
            task.keys.id_of(key)
            known.append(key)
        except Refused as problem:
            sentence, mistyped = sentence or str(problem), mistyped or key
    return known, sentence, mistyped


def _estimates(service: Service, task: Task, view: View, quantity: Quantity) -> dict[str, Any]:
    unit, asked, level = Unit(quantity == "frequency"), list(view.keys), view.level
    looked_up = service.estimates(task, asked, level=level, quantity=quantity) if asked else None
    top, listed = None, 0
    new: dict[str, Any] = {}
    clearest: list[str] = []
    if task.keys.kind == "closed":
        # Nothing but noise stays unlisted however many keys are asked for.
        top, listed = service.estimates(task, None, view.shown, level, quantity), task.keys.count
        top = top.take([]) if top.findings.nothing and top.findings.candidates > SHOWN[0] else top
        clearest = _clearest(top, _FOLLOWED)
    elif task.keys.kind == "tree":
        found_keys, new = _new_keys(service, task, view, quantity)
        if found_keys is not None:
            top, listed = found_keys.estimate.take(range(min(view.shown, len(found_keys)))), len(found_keys)
            top = replace(top, flagged=np.zeros(len(top), dtype=bool))
            clearest = whole_keys(found_keys)[:_FOLLOWED]
    if top is not None:
        names = np.array([visible(key).casefold() for key in top.keys], dtype=object)
        top = top.take(np.argsort(-top.value if view.order == "value" else names, kind="stable"))
    lists = [found for found in (top, looked_up) if found is not None]
    if not any(len(found) for found in lists):
        nothing = {"rows": [], "found": [], "ticks": [], "noisy": 0, "floor": "", "offers": view.offers(0)}
        return {**_over_time(service.history(task), (), unit), **nothing, **_said(lists), **new}
    filled = [found for found in lists if len(found)]
    scale = Scale.around(filled) if quantity != "conditional" else Scale(task.low, task.high)
    unit = unit.for_errors(np.concatenate([found.error for found in lists]))
    rows = _rows(top, scale, unit) if top is not None else []
    found = _rows(looked_up, scale, unit) if looked_up is not None else []
    ticks = scale.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    followed = asked[:_FOLLOWED] or clearest
    past = service.history(task, followed, level, quantity)
    return {
        **_over_time(past, followed, unit),
        "rows": rows,
        "found": found,
        "offers": view.offers(listed),
        "zero": scale.place(0.0) if scale.low <= 0 <= scale.high else None,
        "ticks": [(scale.place(value), unit.for_steps(step).text(value)) for value in ticks],
        "noisy": sum(row["noise"] for row in rows),
        "floor": _floor(top, unit) if top is not None and quantity != "conditional" else "",
        **_said(lists),
        **new,
    }


def _new_keys(
    service: Service, task: Task, view: View, quantity: Quantity
) -> tuple[Discovery | None, dict[str, Any]]:
    """The keys that were found last, and what the panel says of them and of the search."""
    finding = service.finder.glance(task)
    if finding is None or isinstance(finding, str):
        return None, {"words": finding or "", "searched": 0, "whole": 0, "cut": 0}
    found = finding.estimated(quantity, view.level)
    lost = found.estimate.truncation
    return found, {
        "words": found.words(),
        "searched": found.estimate.reports,
        "whole": len(whole_keys(found)),
        "cut": int(found.cut.sum()),
        # What stands out was decided by the search; what is lost to long records has to be known all the same.
        "warnings": [lost.words()] if lost is not None and lost.alarming else [],
    }


def _said(lists: Sequence[Estimate]) -> dict[str, Any]:
    """What is said about the numbers: first what has to be known before they are read."""
    first = lists[:1]
    notes = [note for found in first for note in found.notes]
    return {
        "warnings": [warning for found in first for warning in found.warnings],
        "notes": notes,
        "more_notes": [note for found in lists[1:] for note in found.notes if note not in notes],
    }


def _clearest(found: Estimate, count: int) -> list[str]:
    """The largest of the keys that stand out."""
    order = np.argsort(-found.value, kind="stable")
    return [found.keys[place] for place in order if not found.flagged[place]][:count]


def _floor(found: Estimate, unit: Unit) -> str:
    """The value from which on a key stands out, empty where none would."""
    return unit.text(found.findings.floor) if math.isfinite(found.findings.floor) else ""


def _rows(found: Estimate, scale: Scale, unit: Unit) -> list[dict[str, Any]]:
    rows = []
    for row in found.rows():
        written = {name: unit.text(row[name]) for name in ("low", "value", "high")}
        rows.append(
            {
                "key": row["key"],
                **written,
                "error": "?" if row["error"] is None else unit.text(row["error"]),
                "noise": row["flagged"],
                "at": scale.place(row["value"]),
                "from": scale.place(row["low"]),
                "to": scale.place(row["high"]),
            }
        )
    return rows


def _over_time(past: dict[str, Any], followed: Sequence[str], unit: Unit) -> dict[str, Any]:
    """What the charts draw, as numbers for the script and as a table for everybody."""
    periods = past["periods"]
    series = [
        {
            "key": visible(key),
            **{name: [point[name] for point in past["estimates"][key]] for name in ("value", "low", "high")},
        }
        for key in followed
    ]
    times = [_seconds(point["period"]) for point in past["estimates"][followed[0]]] if followed else []
    charts = {
        "percent": unit.percent,
        "decimals": unit.decimals,
        "times": times,
        "series": series,
        "arrived": [[_seconds(row["period"]) for row in periods], [row["reports"] for row in periods]],
        "step": SECONDS[past["precision"]],
    }
    return {"charts": json.dumps(charts), "latest": periods[-8:], "precision": past["precision"]}


def _seconds(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).timestamp())
