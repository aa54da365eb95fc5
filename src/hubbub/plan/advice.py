"""What would have to change for more to be learned: the planner's answers to an estimate that is in hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hubbub.model.mechanism import Goal, Quantity
from hubbub.plan.entries import Limit, best_entries
from hubbub.plan.inverse import Inverse
from hubbub.plan.offers import without_sum
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.estimates import Estimate
from hubbub.server.findings import side_of, width_for
from hubbub.server.forgers import largest_lift
from hubbub.server.truncation import Truncation, kept_of_long

#: Of fewer people than this no formula for a crowd is to be trusted.
_FEW = 10


def advised(task: Task, estimate: Estimate, histogram: Mapping[int, int] | None = None) -> Estimate:
    """The estimate with the planner's advice where nothing stands out, or much was lost to max_entries.

    `histogram` says how many users have how many entries; left out, it is made up from what the reports say.
    """
    findings, truncation = estimate.findings, estimate.truncation
    if findings.nothing:
        findings = replace(findings, advice=outlook(task, estimate))
    if truncation is not None and truncation.alarming:
        lengths = histogram or rough_lengths(task, truncation, estimate.reports)
        better = entries_to_take(
            task, estimate.quantity, estimate.reports, lengths, largest_seen(task, estimate)
        )
        if better is not None:
            outstanding = better.found if findings.nothing else None
            truncation = replace(truncation, suggested=better.max_entries, outstanding=outstanding)
    return replace(estimate, findings=findings, truncation=truncation)


def goal_of_task(task: Task, quantity: Quantity, users: int, keys: int) -> Goal:
    """What somebody who has made this task wants to learn."""
    mechanism, promise = task.mechanism, task.mechanism.guarantee()
    return Goal(
        without_sum(quantity, mechanism.values),
        promise.epsilon,
        mechanism.max_entries,
        mechanism.values,
        "record" if promise.unit == "record" else "entry" if promise.unit == "entry" else "l1",
        promise.distance,
        promise.delta if promise.unit == "l1" else 0.0,
        users,
        keys=max(keys, 1),
        center=(task.low + task.high) / 2 / _largest(task) if mechanism.values == "signed" else 0.0,
        open=task.keys.kind != "closed",
    )


def outlook(task: Task, estimate: Estimate) -> str:
    """How many people, or which epsilon, would have shown more where nothing stands out.

    Asked about is the next power of ten clearly below what would have stood out. Empty where there is no answer.
    """
    share = task.scale.kind == "set" or estimate.quantity in ("frequency", "conditional")
    largest = 1.0 if share else _largest(task)
    each = estimate.reports if estimate.quantity == "sum" else 1
    floor = min(estimate.findings.floor / each, largest)
    wanted = 10.0 ** (math.ceil(math.log10(0.9 * floor)) - 1)
    if estimate.forgers:
        return _outlook_with_forgers(task, estimate, wanted, estimate.findings.floor / each)
    # Among all keys of a vocabulary, whichever are asked for: as what stands out is judged.
    keys = max(estimate.findings.candidates, task.keys.count if task.keys.kind == "closed" else 0)
    goal = goal_of_task(task, "frequency" if share else "mean", estimate.reports, keys)
    error = wanted / width_for(estimate.level, keys * estimate.findings.groups)
    inverse = Inverse(goal, largest)
    try:
        people = inverse.users_for(error)
    except Refused:
        return ""
    what, at = "share" if share else "mean", f"at epsilon {goal.epsilon:g}"
    advice = f"By the plan, a {what} of {wanted:g} takes about {_rounded(people):,} people {at}"
    if wanted / largest * estimate.reports < _FEW:
        return f"{advice}."
    try:
        return f"{advice}, or epsilon {inverse.epsilon_for(error):.3g} with as many as now."
    except Refused:
        return f"{advice}, and with as many as now no epsilon up to 8 would do."


def _outlook_with_forgers(task: Task, estimate: Estimate, wanted: float, floor: float) -> str:
    """How many people it takes if forgers stay as large a part of them.

    What forgers lift a key by does not shrink, and what is left of the floor does, with the root of the people.
    """
    honest = estimate.reports - estimate.forgers
    quantity: Quantity = "frequency" if estimate.quantity == "conditional" else estimate.quantity
    down = side_of(task, quantity) == "below"
    lift = largest_lift(task, quantity, estimate.forgers, honest * task.keys.asked_share, down)
    share = task.scale.kind == "set" or quantity == "frequency"
    what = "share" if share else "mean"
    while_forged = f"If {100 * estimate.forgers / estimate.reports:.4g}% of all reports may be forged"
    if lift >= wanted:
        return (
            f"{while_forged}, no number of people shows a {what} of {wanted:g}: a key that nobody has may come out at "
            f"{lift:.3g}."
        )
    if not math.isfinite(floor):
        return ""
    people = math.ceil(estimate.reports * ((floor - lift) / (wanted - lift)) ** 2)
    return f"{while_forged}, a {what} of {wanted:g} takes about {_rounded(people):,} people."


def largest_seen(task: Task, estimate: Estimate) -> float | None:
    """The share of the most frequent key after sampling down, if all keys were looked at and it stands out."""
    everything = task.keys.kind == "closed" and len(estimate) == task.keys.count
    if not everything or estimate.quantity != "frequency" or not estimate.findings.count:
        return None
    lost = estimate.truncation
    left = 1 - lost.lost if lost is not None and lost.corrected else 1.0
    return float(np.max(estimate.value)) * left


def entries_to_take(
    task: Task, quantity: Quantity, users: int, histogram: Mapping[int, int], seen: float | None = None
) -> Limit | None:
    """The max_entries that the planner would take for records of these lengths, None if it has no answer.

    `histogram` says how many users have how many entries, `seen` is the largest share that has been estimated.
    """
    keys = task.keys.count if task.keys.kind == "closed" else 1 << task.keys.bits
    try:
        return best_entries(goal_of_task(task, quantity, users, keys), histogram, seen=seen)
    except Refused:
        return None


def rough_lengths(task: Task, truncation: Truncation, users: int) -> dict[int, int]:
    """A histogram of lengths that has what the reports say: long records all have one length, others max_entries.

    Of long records the share lost / longer of all entries is dropped, as of records of kept / (1 - lost / longer).
    """
    long = max(round(truncation.longer * users), 1)
    dropped = min(truncation.lost / max(truncation.longer, 1e-9), 0.99)
    length = max(round(kept_of_long(task) / (1 - dropped)), truncation.limit + 1)
    return {truncation.limit: max(users - long, 0), length: long}


def _largest(task: Task) -> float:
    return max(abs(task.low), abs(task.high))


def _rounded(number: int) -> int:
    """Two digits: a plan is no more exact."""
    step = int(10 ** max(len(str(number)) - 2, 0))
    return -(-number // step) * step
