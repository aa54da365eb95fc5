"""The inverse questions: how many users, or how much epsilon, a wanted error takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import Option, pick, rank
from hubbub.primitives.errors import Refused


@dataclass(frozen=True)
class Inverse:
    """The error per key of what would be taken for a goal (`rank`, `pick`), and what it takes to bring it down."""

    goal: Goal
    unit_size: float = 1.0
    most_bytes: int | None = None
    name: str | None = None
    best: bool = False

    def taken(self, epsilon: float) -> Option:
        """What would be taken with this epsilon."""
        goal = replace(self.goal, epsilon=epsilon)
        return pick(rank(goal, self.unit_size, self.most_bytes, self.name), self.best)

    def users_for(self, wanted: float) -> int:
        """How many users bring the error down to `wanted`."""
        _check_wanted(wanted)
        taken = self.taken(self.goal.epsilon)
        if taken.mechanism is None:
            raise Refused(f"Not {taken.name}: {taken.reason}.")
        if self.goal.quantity == "sum":
            raise Refused("The error of a sum grows with the users; ask for the error of the mean.")
        return math.ceil(self.goal.users * (taken.error / wanted) ** 2)

    def epsilon_for(self, wanted: float) -> float:
        """The smallest epsilon with which the error is at most `wanted`."""
        _check_wanted(wanted)
        low, high = 0.01, 8.0
        if self.taken(high).error > wanted:
            people = f"{self.goal.users:,} users"
            raise Refused(f"No epsilon up to {high:g} reaches an error of {wanted:g} with {people}.")
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.taken(middle).error > wanted else (low, middle)
        return high


def _check_wanted(wanted: float) -> None:
    if not (math.isfinite(wanted) and wanted > 0):
        raise Refused(f"The wanted error must be a finite number above 0, not {wanted:g}.")
