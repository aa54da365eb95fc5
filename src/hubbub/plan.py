"""Which mechanism: every candidate that reaches the goal, ranked by its own predicted error."""

from __future__ import annotations

from hubbub.errors import Refused
from hubbub.mechanism import Goal, Mechanism, mechanisms


def rank(goal: Goal) -> list[tuple[float, Mechanism]]:
    """(variance of a rare key's estimate, mechanism), best first."""
    quantity = "mean" if goal.quantity == "conditional" else goal.quantity
    found = [
        (candidate.variance(quantity, goal.users), candidate)
        for kind in mechanisms().values()
        for candidate in kind.candidates(goal)
    ]
    return sorted(found, key=lambda pair: pair[0])


def choose(goal: Goal) -> Mechanism:
    """The mechanism with the lowest predicted error."""
    ranked = rank(goal)
    if not ranked:
        raise Refused(
            f"No mechanism estimates the {goal.quantity} of {goal.values} values with unit {goal.unit!r}."
        )
    return ranked[0][1]
