"""What would have to change for more to be learned: the planner's answers, for people who have just been told no."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import Estimate


def goal_of_task(task: Task, users: int, estimate: Estimate) -> Goal:
    """What somebody who made this task, and asks for this estimate, wants to learn."""
    from hubbub.model.mechanism import Goal
    from hubbub.plan.ranking import without_sum

    mechanism, promise = task.mechanism, task.mechanism.guarantee()
    largest = max(abs(task.low), abs(task.high))
    wanted = "frequency" if estimate.quantity == "conditional" else estimate.quantity
    return Goal(
        without_sum(wanted, mechanism.values),
        promise.epsilon,
        mechanism.max_entries,
        mechanism.values,
        "record" if promise.unit == "record" else "entry" if promise.unit == "entry" else "l1",
        promise.distance,
        promise.delta if promise.unit == "l1" else 0.0,
        users,
        keys=max(estimate.findings.candidates, 1),
        center=(task.low + task.high) / 2 / largest if mechanism.values == "signed" else 0.0,
        open=task.keys.kind != "closed",
    )


def outlook(task: Task, estimate: Estimate) -> str:
    """How many people, or which epsilon, would have shown what a task like this is made for.

    The value asked about is the next power of ten below what would have stood out. Empty where the planner has no
    answer.
    """
    from hubbub.plan.inverse import epsilon_for, users_for
    from hubbub.server.findings import width_for

    counted = estimate.quantity == "sum"
    largest = 1.0 if task.scale.kind == "set" else max(abs(task.low), abs(task.high))
    if estimate.quantity == "conditional":
        largest = 1.0
    floor = min(estimate.findings.floor / (estimate.reports if counted else 1), largest)
    wanted = 10.0 ** (math.ceil(math.log10(floor)) - 1)
    goal = goal_of_task(task, estimate.reports, estimate)
    error = wanted / width_for(estimate.level, estimate.findings.candidates)
    try:
        people = users_for(goal, error, largest)
    except Refused:
        return ""
    try:
        other = f"or epsilon {epsilon_for(goal, error, largest):.3g} with {estimate.reports:,}"
    except Refused:
        other = f"and no epsilon up to 8 would do with {estimate.reports:,}"
    what = "share" if goal.quantity == "frequency" else "mean"
    at = f"at epsilon {goal.epsilon:g}"
    return f"By the plan, a {what} of {wanted:g} takes about {_rounded(people):,} people {at}, {other}."


def _rounded(number: int) -> int:
    """Two digits: a plan is no more exact."""
    step = int(10 ** max(len(str(number)) - 2, 0))
    return -(-number // step) * step
