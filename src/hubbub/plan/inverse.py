"""The inverse questions: how many users, or how much epsilon, a wanted error takes."""

from __future__ import annotations

import math
from dataclasses import replace

from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import pick, rank
from hubbub.primitives.errors import Refused


def users_for(
    goal: Goal,
    wanted: float,
    unit_size: float = 1.0,
    most_bytes: int | None = None,
    name: str | None = None,
    best: bool = False,
) -> int:
    """How many users bring the error per key of what would be taken down to `wanted`; see `rank` and `pick`."""
    _check_wanted(wanted)
    taken = pick(rank(goal, unit_size, most_bytes, name), best)
    if taken.mechanism is None:
        raise Refused(f"Not {taken.name}: {taken.reason}.")
    if goal.quantity == "sum":
        raise Refused("The error of a sum grows with the users; ask for the error of the mean.")
    return math.ceil(goal.users * (taken.error / wanted) ** 2)


def epsilon_for(
    goal: Goal,
    wanted: float,
    unit_size: float = 1.0,
    most_bytes: int | None = None,
    name: str | None = None,
    best: bool = False,
) -> float:
    """The smallest epsilon with which the error per key of what would be taken is at most `wanted`."""

    _check_wanted(wanted)

    def error(epsilon: float) -> float:
        return pick(rank(replace(goal, epsilon=epsilon), unit_size, most_bytes, name), best).error

    low, high = 0.01, 8.0
    if error(high) > wanted:
        raise Refused(f"No epsilon up to {high:g} reaches an error of {wanted:g} with {goal.users:,} users.")
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if error(middle) > wanted else (low, middle)
    return high


def _check_wanted(wanted: float) -> None:
    if not (math.isfinite(wanted) and wanted > 0):
        raise Refused(f"The wanted error must be a finite number above 0, not {wanted:g}.")
