"""Which mechanism: every candidate that reaches the goal, ranked by its own predicted error.

Predictions are the mechanisms' `variance()`, the formula that also draws the error bars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

from pydantic import ValidationError

from hubbub.mechanisms.registry import mechanisms
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import LARGEST_BITS, Keys, bits_for
from hubbub.model.mechanism import Goal, Mechanism, Quantity, ValueKind
from hubbub.primitives.errors import Refused, explain


@dataclass(frozen=True)
class Option:
    """One way to reach a goal, or why it is none."""

    name: str
    mechanism: Mechanism | None
    reason: str = ""
    error: float = math.inf
    largest: float = math.inf
    detectable: float = math.inf
    hashes: int = 0
    server: str = ""
    shuffled: str = ""

    @property
    def bytes(self) -> int:
        return self.mechanism.layout.width if self.mechanism else 0

    def promise(self, largest: float = 1.0) -> Guarantee:
        """The guarantee of one report, distances in the units of values of which `largest` is the largest."""
        assert self.mechanism is not None
        found = self.mechanism.guarantee()
        return found if found.distance is None else replace(found, distance=found.distance * largest)

    def as_dict(self, largest: float = 1.0) -> dict[str, Any]:
        """Plain data for `--json`."""
        if self.mechanism is None:
            return {"mechanism": self.name, "suitable": False, "reason": self.reason}
        return {
            "mechanism": self.name,
            "suitable": True,
            "error": self.error,
            "largest_error": self.largest,
            "detectable": self.detectable,
            "report_bytes": self.bytes,
            "device_hashes": self.hashes,
            "server": self.server,
            "guarantee": self.promise(largest).as_dict(),
            "shuffled": self.shuffled,
            "parameters": self.mechanism.model_dump(exclude_none=True),
        }


def without_sum(quantity: Quantity, values: ValueKind) -> Quantity:
    """A sum is the number of users times a frequency (sets) or a mean."""
    if quantity != "sum":
        return quantity
    return "frequency" if values == "set" else "mean"


def noise(mechanism: Mechanism, goal: Goal) -> float:
    """Variance that decides; for a conditional mean both its parts do."""
    if goal.quantity == "conditional":
        return mechanism.variance("mean", goal.users) + mechanism.variance("frequency", goal.users)
    variance = mechanism.variance(goal.quantity, goal.users)
    if goal.quantity == "mean" and mechanism.centered:
        # center * frequency + half * mean, in units of the largest value
        presence = mechanism.variance("frequency", goal.users)
        return goal.center**2 * presence + (1 - abs(goal.center)) ** 2 * variance
    return variance


def rank(goal: Goal, unit_size: float = 1.0, most_bytes: int | None = None) -> list[Option]:
    """All mechanisms, best first, the unsuitable last with the reason.

    Errors are in the units of the values (`unit_size` is what 1 in [-1, 1] stands for); for sums they are
    multiplied by the number of users.
    """
    if goal.quantity == "sum":
        unit_size *= goal.users
        goal = replace(goal, quantity=without_sum(goal.quantity, goal.values))
    options = [_best_of(kind, goal, unit_size, most_bytes) for kind in mechanisms().values()]
    return sorted(options, key=lambda option: (option.mechanism is None, option.error, option.name))


def choose(goal: Goal, most_bytes: int | None = None) -> Mechanism:
    """The mechanism with the lowest predicted error."""
    best = rank(goal, most_bytes=most_bytes)[0]
    if best.mechanism is None:
        raise Refused(
            f"No mechanism estimates the {goal.quantity} of {goal.values} values with unit {goal.unit!r} under these "
            f"limits. {best.name}: {best.reason.rstrip('.')}."
        )
    return best.mechanism


def _best_of(kind: type[Mechanism], goal: Goal, unit_size: float, most_bytes: int | None) -> Option:
    try:
        local, note = (goal, "") if goal.central_epsilon is None else _local_goal(kind, goal)
        found = offers(kind, local)
    except Refused as problem:
        return Option(kind.name, None, str(problem))
    if not found:
        return Option(kind.name, None, _why_not(kind, local))
    fitting = [m for m in found if most_bytes is None or m.layout.width <= most_bytes]
    if not fitting:
        return Option(kind.name, None, f"needs {min(m.layout.width for m in found)} bytes a report")
    best = min(fitting, key=lambda m: noise(m, local))
    try:
        server = _server_cost(best, goal)
    except ValidationError as problem:
        return Option(kind.name, None, explain(problem))
    error = math.sqrt(noise(best, local)) * unit_size
    # A quantile near 1 is taken from below, where doubles are fine enough for any number of keys.
    quantile = NormalDist().inv_cdf
    return Option(
        kind.name,
        best,
        error=error,
        largest=-error * quantile(0.5 * -math.expm1(-math.log(2) / goal.keys)),
        detectable=-error * quantile(0.025 / goal.keys),
        hashes=best.seeds_per_report * best.max_entries,
        server=server,
        shuffled=note,
    )


def _local_goal(kind: type[Mechanism], goal: Goal) -> tuple[Goal, str]:
    """The goal with the local epsilon that shuffling turns into the wanted central one.

    Shuffling amplifies guarantees of whole records only, which are the ones to look for, whatever unit is asked.
    """
    from hubbub.privacy.shuffle import shuffled_guarantee, solve_local_epsilon

    assert goal.central_epsilon is not None
    pure = replace(goal, unit="record", distance=None, delta=0.0)
    if not offers(kind, pure):
        raise Refused(_why_not(kind, pure))

    def make(epsilon: float) -> Mechanism:
        return min(offers(kind, replace(pure, epsilon=epsilon)), key=lambda m: noise(m, pure))

    epsilon = solve_local_epsilon(goal.central_epsilon, goal.delta, goal.users, make)
    promise = shuffled_guarantee(make(epsilon), goal.users, goal.delta)
    return replace(pure, epsilon=epsilon), promise.words()


def _why_not(kind: type[Mechanism], goal: Goal) -> str:
    """The smallest change of the goal that would make a mechanism suitable, as a reason."""
    changes: list[tuple[str, dict[str, Any]]] = [
        ("is for one entry per record", {"max_entries": 1}),
        ("estimates frequencies only", {"quantity": "frequency"}),
        ("estimates means only", {"quantity": "mean"}),
        ("is for signed values", {"values": "signed"}),
        ("is for sets", {"values": "set", "quantity": "frequency"}),
        ("is for fewer keys", {"keys": 16}),
        ("needs a delta", {"delta": 1e-6}),
    ]
    problem = "does not fit this goal"
    for count in (1, 2, 3):
        for combination in combinations(changes, count):
            changed = replace(
                goal, **{name: value for _, change in combination for name, value in change.items()}
            )
            try:
                if offers(kind, changed):
                    return " and ".join(reason for reason, _ in combination)
            except Refused as refusal:
                problem = str(refusal)
    return problem


def offers(kind: type[Mechanism], goal: Goal) -> list[Mechanism]:
    """What a mechanism offers; parameters out of its range are refused in a sentence.

    Whoever hides the whole record hides an entry of it, and a change of it by any distance.
    """
    if goal.open and kind.closed_only:
        raise Refused("needs a closed vocabulary")
    try:
        found = list(kind.candidates(goal))
        if goal.unit != "record":
            found += kind.candidates(replace(goal, unit="record", distance=None))
        return found
    except ValidationError as problem:
        raise Refused(explain(problem)) from None


def _server_cost(mechanism: Mechanism, goal: Goal) -> str:
    if goal.open:
        bits = (goal.keys - 1).bit_length()
        keys = Keys(kind="wide") if bits > LARGEST_BITS else Keys(kind="folded", bits=bits)
    else:
        codes = goal.keys * (2 if mechanism.sided else 1)
        keys = Keys(kind="closed", size=goal.keys, bits=bits_for(codes))
    if mechanism.keeps_reports(keys):
        return "all reports"
    size = 8 * math.prod(mechanism.totals_shape(keys))
    return f"{size / 2**20:.3g} MiB" if size >= 1 << 18 else f"{size / 2**10:.3g} KiB"
