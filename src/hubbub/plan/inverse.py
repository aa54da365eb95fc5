"""The inverse questions: how many users, or how much epsilon, a wanted error takes."""

from __future__ import annotations

import math
from dataclasses import replace

from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank
from hubbub.primitives.errors import Refused


def users_for(goal: Goal, wanted: float, unit_size: float = 1.0, most_bytes: int | None = None) -> int:
    """How many users bring the best mechanism's error per key down to `wanted`."""
    _check_wanted(wanted)
    best = rank(goal, unit_size, most_bytes)[0]
    if best.mechanism is None:
        raise Refused(f"Not {best.name}: {best.reason}.")
    if goal.quantity == "sum":
        raise Refused("The error of a sum grows with the users; ask for the error of the mean.")
    return math.ceil(goal.users * (best.error / wanted) ** 2)


def epsilon_for(goal: Goal, wanted: float, unit_size: float = 1.0, most_bytes: int | None = None) -> float:
    """The smallest epsilon with which the best mechanism's error per key is at most `wanted`."""

    _check_wanted(wanted)

    def error(epsilon: float) -> float:
        return rank(replace(goal, epsilon=epsilon), unit_size, most_bytes)[0].error

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
