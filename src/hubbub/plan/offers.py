"""What a mechanism offers for a goal, or the smallest change of the goal that would make it suitable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from hubbub.model.mechanism import Goal, Mechanism, Quantity, ValueKind
from hubbub.plan.costs import has_codes
from hubbub.primitives.errors import Refused, explain


def without_sum(quantity: Quantity, values: ValueKind) -> Quantity:
    """A sum is the number of users times a frequency (sets) or a mean."""
    if quantity != "sum":
        return quantity
    return "frequency" if values == "set" else "mean"


def offers(kind: type[Mechanism], goal: Goal, settings: Mapping[str, Any] | None = None) -> list[Mechanism]:
    """What a mechanism offers; parameters out of its range are refused in a sentence.

    Whoever hides the whole record hides an entry of it, and a change of it by any distance. Settings take the place of
    what the mechanism would choose, as long as the goal's quantity can still be estimated.
    """
    if goal.open and kind.closed_only:
        raise Refused("needs a closed vocabulary")
    try:
        found = list(kind.candidates(goal))
        if goal.unit != "record":
            found += kind.candidates(replace(goal, unit="record", distance=None))
    except ValidationError as problem:
        raise Refused(explain(problem)) from None
    if settings:
        found = _with_settings(found, settings)
    found = [m for m in found if has_codes(m, goal)]
    if not settings:
        return found
    wanted = without_sum(goal.quantity, goal.values)
    if found and not any(wanted in m.quantities for m in found):
        offered = ", ".join(found[0].quantities)
        raise Refused(f"cannot estimate the {wanted} with these settings; it offers {offered}")
    return [m for m in found if wanted in m.quantities]


def _with_settings(found: Sequence[Mechanism], settings: Mapping[str, Any]) -> list[Mechanism]:
    """Those that these settings fit: others hide more than is asked for, say, and have no such parameter."""
    fitting, problems = list[Mechanism](), list[ValidationError]()
    for each in found:
        try:
            fitting.append(type(each)(**{**each.model_dump(include=each.model_fields_set), **settings}))
        except ValidationError as problem:
            problems.append(problem)
    if problems and not fitting:
        raise Refused(explain(problems[0]))
    return fitting


def why_not(kind: type[Mechanism], goal: Goal) -> tuple[str, str]:
    """The smallest change of the goal that would make a mechanism suitable: as a reason, and as what to do."""
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("is for one entry per record", "ask for max_entries 1", {"max_entries": 1}),
        ("estimates frequencies only", "ask for the frequency", {"quantity": "frequency"}),
        ("estimates means only", "ask for the mean", {"quantity": "mean"}),
        ("is for signed values", "give values and their range", {"values": "signed"}),
        ("is for sets", "leave the values out", {"values": "set", "quantity": "frequency"}),
        ("is for fewer keys", "ask about fewer keys", {"keys": 16}),
        ("needs a delta", "give a delta", {"delta": 1e-6}),
    ]
    problem = "does not fit this goal"
    for count in (1, 2, 3):
        for combination in combinations(changes, count):
            changed = replace(
                goal, **{name: value for *_, change in combination for name, value in change.items()}
            )
            try:
                if offers(kind, changed):
                    reasons, remedies = zip(
                        *((reason, remedy) for reason, remedy, _ in combination), strict=True
                    )
                    return " and ".join(reasons), " and ".join(remedies)
            except Refused as refusal:
                problem = str(refusal)
    return problem, ""
