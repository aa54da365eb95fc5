"""For whom, and since when: differences between groups and periods of a task, as the service answers them."""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hubbub.collect.shelves import Shelf
from hubbub.collect.sums import Moved
from hubbub.model.mechanism import Quantity
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import cell, visible
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.strata import Stratum, span_of, text_of
from hubbub.protocol.task import Task
from hubbub.server.comparison import Comparison, compare, contrast, level_apart
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.portions import PERIOD, Choice, by

if TYPE_CHECKING:
    from hubbub.collect.service import Service

#: Periods of a trend at most, the latest.
MOST_PERIODS = 120


def listed(service: Service, task: Task) -> dict[str, Any]:
    """The strata of a task with their numbers of reports, and what can be asked for."""
    service.folder.fold(task)
    there = service.sums.strata(task)
    rows = [
        {
            "stratum": text_of(task, stratum),
            "labels": dict(zip(sorted(task.labels), stratum.labels, strict=False)),
            "period": stratum.period or None,
            "reports": shelf.reports,
        }
        for stratum, shelf in sorted(there.items())
    ]
    waiting = service.store.waiting_by(task.digest.hex())
    return {
        "task": task.digest.hex(),
        "labels": {name: list(values) for name, values in task.labels.items()},
        "periods": periods_of(there),
        "strata": rows,
        "waiting": sum(waiting.values()),
    }


def periods_of(strata: Sequence[Stratum] | dict[Stratum, Any]) -> list[str]:
    """The periods of some strata, oldest first."""
    return sorted({stratum.period for stratum in strata if stratum.period})


def begun_by(period: str, today: datetime.date) -> bool:
    """Whether a period has begun by this day. If not, some clock was wrong when its reports came."""
    return span_of(period)[0] <= today


def own_periods(task: Task, strata: Mapping[Stratum, Shelf], today: datetime.date) -> list[str]:
    """The periods that can be shown of some strata, oldest first: those of the task, without the longer ones that old
    and late reports are in, which have begun and have reports enough."""
    reports: Counter[str] = Counter()
    for stratum, shelf in strata.items():
        if len(stratum.period) == PERIOD_BYTES[task.period] and stratum.period:
            reports[stratum.period] += shelf.reports
    enough = (period for period, count in reports.items() if count >= least_of(task))
    return sorted(period for period in enough if begun_by(period, today))


def least_of(task: Task) -> int:
    """Reports that a group needs before it is shown."""
    return max(task.minimum_reports, 1)


def step_before(
    task: Task, strata: Mapping[Stratum, Shelf], choice: Choice, today: datetime.date
) -> tuple[str, str] | None:
    """The latest period of what is chosen, and the one before it, both with reports enough; None: there are no two."""
    chosen = own_periods(task, {each: strata[each] for each in choice.of(task, strata)}, today)
    if not chosen:
        return None
    alike = replace(choice, first=None, last=chosen[-1])
    both = own_periods(task, {each: strata[each] for each in alike.of(task, strata)}, today)[-2:]
    return (both[0], both[1]) if len(both) == 2 else None


def beside(choice: Choice, name: str) -> Choice:
    """A choice without what two groups are told apart by."""
    if name == PERIOD:
        return replace(choice, first=None, last=None)
    return replace(choice, where={label: value for label, value in choice.where.items() if label != name})


def compared(
    service: Service,
    task: Task,
    name: str,
    sides: tuple[str, str] | None,
    choice: Choice,
    keys: Sequence[str] | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    *,
    simultaneous: bool = False,
) -> Comparison:
    """Two values of a label, or two periods, side by side; without `sides`, the latest period and the one before."""
    service.folder.fold(task)
    there = service.sums.strata(task)
    if sides is None:
        sides = step_before(task, there, choice, service.clock.days()[1]) if name == PERIOD else None
        choice = beside(choice, name)
        if sides is None:
            raise Refused(
                "There are no two periods to compare yet: name two groups, or wait for the next period."
            )
    groups = by(task, choice.of(task, there), [name])
    if sides[0] == sides[1]:
        raise Refused(f"Both sides are {visible(sides[0])!r}: name two different groups.")
    for side in sides:
        if side not in groups:
            raise Refused(f"There are no reports of {name} {visible(side)!r}.")
    first, second = sides

    def ask() -> Comparison:
        states = [(task, service.portion(task, groups[side])) for side in (first, second)]
        return compare(states[0], states[1], keys, quantity, level, simultaneous, sides=(first, second))

    shelves = tuple(tuple(there[each] for each in groups[side]) for side in sides)
    named = None if keys is None else tuple(keys)
    found = service.comparisons.get((task.digest, sides, shelves, named, quantity, level, simultaneous), ask)
    return replace(found, by=name, group=choice.words())


def trend(
    service: Service,
    task: Task,
    keys: Sequence[str],
    choice: Choice,
    quantity: Quantity | None = None,
    level: float = 0.95,
    *,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Estimates of keys in each period, and what changed since the period before.

    Bands are for single points. A change counts only if it stands out among all keys, whichever are asked for, and all
    periods that are shown.
    The longer periods that old and late reports are in come with the others; between those and a period of the task,
    there is no change. Periods that have not begun are left out. If it takes longer than `seconds`, older periods are
    `missing`; asked again, there are more.
    """
    service.folder.fold(task)
    end = time.monotonic() + seconds
    while True:
        try:
            return _trend(service, task, tuple(dict.fromkeys(keys)), choice, quantity, level, end)
        except Moved:
            continue


def _trend(
    service: Service,
    task: Task,
    keys: tuple[str, ...],
    choice: Choice,
    quantity: Quantity | None,
    level: float,
    end: float,
) -> dict[str, Any]:
    there = service.sums.strata(task)
    groups = by(task, choice.of(task, there), [PERIOD])
    today = service.clock.days()[1]
    shelves = {
        name: tuple(sorted(there[each] for each in group))
        for name, group in groups.items()
        if group[0].period and begun_by(name, today)
    }
    enough = [name for name in sorted(shelves) if sum(one.reports for one in shelves[name]) >= least_of(task)]
    names = enough[-MOST_PERIODS:]
    pairs = max(len(names) - 1, 1)

    def point(name: str) -> tuple[Estimate, ...]:
        """Its own interval, that for its differences, and one that holds for all of these together."""
        state = service.sums.of(task, shelves[name])
        strict = level_apart(task, 1 - (1 - level) / pairs, len(keys))
        return (
            estimate(task, state, keys, quantity, level, refine="none"),
            estimate(task, state, keys, quantity, level, refine="none", average=True),
            estimate(task, state, keys, quantity, strict, simultaneous=True, refine="none", average=True),
        )

    points: dict[str, tuple[Estimate, ...]] = {}
    for name in reversed(names):
        if len(points) >= 2 and time.monotonic() > end:
            break
        asked = (task.digest, keys, quantity, level, pairs, shelves[name])
        points[name] = service.points.get(asked, partial(point, name))
    shown = names[len(names) - len(points) :]
    rows: dict[str, list[dict[str, Any]]] = {key: [] for key in keys}
    for old, name in zip([None, *shown], shown, strict=False):
        changes: Sequence[dict[str, Any] | None] = [None] * len(keys)
        if old is not None and len(old) == len(name):
            single, strict = zip(points[old][1:], points[name][1:], strict=True)
            changes = contrast(task, strict, single, level, False, sides=(old, name), pairs=pairs).rows()
        for row, changed in zip(points[name][0].rows(), changes, strict=True):
            rows[row["key"]].append({"period": name, **row, "change": changed})
    about = points[shown[-1]][0].about() if shown else {}
    counts = [{"period": name, "reports": points[name][0].reports} for name in shown]
    return {**about, "reports": counts, "estimates": rows, "missing": len(names) - len(shown)}


def trend_columns(found: dict[str, Any], choice: Choice) -> dict[str, list[Any]]:
    """A trend as columns of a CSV file, a row per period and key; `changed` is what stands out among all of them."""
    points = [point for rows in found["estimates"].values() for point in rows]
    reports = {row["period"]: row["reports"] for row in found["reports"]}
    columns: dict[str, list[Any]] = {
        "period": [point["period"] for point in points],
        "key": [cell(point["key"]) for point in points],
        **{name: [point[name] for point in points] for name in ("value", "error", "low", "high", "flagged")},
    }
    changes = [point["change"] or {} for point in points]
    for name, field in (("change", "difference"), ("change_low", "low"), ("change_high", "high")):
        columns[name] = [change.get(field) for change in changes]
    columns["changed"] = [bool(change.get("differs")) for change in changes]
    columns["reports"] = [reports[point["period"]] for point in points]
    same = {
        "quantity": found.get("quantity"),
        "level": found.get("level"),
        "simultaneous": found.get("simultaneous"),
        "epsilon": found["guarantee"]["epsilon"] if points else None,
        **({} if choice.everything else {"group": choice.words()}),
    }
    return columns | {name: [value] * len(points) for name, value in same.items()}
