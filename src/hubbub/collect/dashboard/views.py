"""What a task's page shows: numbers as text, and where on the drawing they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.collect.dashboard.choices import SHOWN, View
from hubbub.collect.dashboard.courses import course
from hubbub.collect.dashboard.differences import asked_for, moved
from hubbub.collect.dashboard.scales import Scale, Unit
from hubbub.collect.dashboard.selection import Selection, panel, selected
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


def task_view(service: Service, task: Task, view: View) -> dict[str, Any]:
    """Everything on the page of a task."""
    about = service.overview(task)
    offered = task.mechanism.quantities
    chosen: Quantity = next((name for name in offered if name == view.quantity), offered[0])
    known, unknown, mistyped = _known(task, view.keys)
    view = replace(view, keys=tuple(known), quantity="" if chosen == offered[0] else chosen)
    selection = selected(service, task, view)
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
        "groups": panel(service, task, view, selection),
        "silent": selection.silent,
        "quiet": bool(about["withheld"] or selection.silent),
        "files": selection.query(quantity=chosen, level=view.level),
        "compared": None,
        "moved": None,
        "counted": 0,
    }
    if about["withheld"] or selection.silent:
        return {**shown, **course(service, task, view, selection, (), Unit(False))}
    shown["compared"] = asked_for(service, task, view, selection, chosen)
    shown["moved"] = moved(service, task, view, selection, chosen)
    return {**shown, **_estimates(service, task, view, selection, chosen)}


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


def _estimates(
    service: Service, task: Task, view: View, selection: Selection, quantity: Quantity
) -> dict[str, Any]:
    unit, asked, level, choice = Unit(quantity == "frequency"), list(view.keys), view.level, selection.choice

    def ask(keys: Sequence[str] | None) -> Estimate:
        return service.estimates(task, keys, view.shown, level, quantity, choice=choice)

    looked_up = ask(asked) if asked else None
    top, listed = None, 0
    new: dict[str, Any] = {}
    clearest: list[str] = []
    if task.keys.kind == "closed":
        # Nothing but noise stays unlisted however many keys are asked for.
        top, listed = ask(None), task.keys.count
        top = top.take([]) if top.findings.nothing and top.findings.candidates > SHOWN[0] else top
        clearest = _clearest(top, _FOLLOWED)
    elif task.keys.kind == "tree":
        found_keys, new = _new_keys(service, task, view, quantity)
        if found_keys is not None:
            whole = whole_keys(found_keys)
            clearest = whole[:_FOLLOWED]
            if choice.everything:
                top, listed = found_keys.estimate, len(found_keys)
                top = top.take(range(min(view.shown, listed)))
            elif whole:  # found among everybody, and estimated for whom is asked
                top, listed = ask(whole[: view.shown]), len(whole)
            if top is not None:
                top = replace(top, flagged=np.zeros(len(top), dtype=bool))
    if top is not None:
        names = np.array([visible(key).casefold() for key in top.keys], dtype=object)
        top = top.take(np.argsort(-top.value if view.order == "value" else names, kind="stable"))
    lists = [found for found in (top, looked_up) if found is not None]
    if not any(len(found) for found in lists):
        nothing = {"rows": [], "found": [], "ticks": [], "noisy": 0, "floor": "", "offers": view.offers(0)}
        return {
            **course(service, task, view, selection, (), unit, quantity),
            **nothing,
            **_said(lists),
            **new,
        }
    filled = [found for found in lists if len(found)]
    scale = Scale.around(filled) if quantity != "conditional" else Scale(task.low, task.high)
    unit = unit.for_errors(np.concatenate([found.error for found in lists]))
    rows = _rows(top, scale, unit) if top is not None else []
    found = _rows(looked_up, scale, unit) if looked_up is not None else []
    ticks = scale.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return {
        **course(service, task, view, selection, asked[:_FOLLOWED] or clearest, unit, quantity),
        "rows": rows,
        "found": found,
        "offers": view.offers(listed),
        "zero": scale.place(0.0) if scale.low <= 0 <= scale.high else None,
        "ticks": [(scale.place(value), unit.for_steps(step).text(value)) for value in ticks],
        "noisy": sum(row["noise"] for row in rows),
        "counted": filled[0].reports,
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
    return found, {
        "words": found.words(),
        "searched": found.estimate.reports,
        "whole": len(whole_keys(found)),
        "cut": int(found.cut.sum()),
        # What stands out was decided by the search; what is lost to long records has to be known all the same.
        "warnings": found.lost,
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
