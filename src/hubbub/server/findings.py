"""What stands out from noise when many keys are looked through, and what would have.

Of a million keys that nobody has, 25,000 have an interval of level 95% above 0, and a ranked list shows the luckiest of
them. So a key counts as found only if its interval for all keys together is away from 0: with probability `level` no
key that nobody has is found. How many keys were looked through stays with an estimate when rows are taken out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hubbub.model.mechanism import Quantity
from hubbub.primitives.arrays import Floats

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

#: Which values can be real: shares are never negative, and neither are means of values that are not.
Side = Literal["above", "below", "both"]

#: A share of people that is next to none.
_LITTLE = 1e-3

_WHAT = {"frequency": "a share", "mean": "a mean", "sum": "a sum"}


@dataclass(frozen=True)
class Findings:
    """How many keys were estimated together, how many of them stand out, and what would have.

    `floor` is the smallest true value that stands out every other time (of a conditional mean: the smallest share that
    does), infinite where not even a key that everybody has would. `advice` is what a planner adds where nothing does.
    Where people are in `groups`, as many keys were looked through in each of them, and stand out among all.
    """

    candidates: int
    count: int
    floor: float
    advice: str = ""
    groups: int = 1

    @property
    def nothing(self) -> bool:
        """Whether keys were looked at and none stands out."""
        return self.candidates > 0 and self.count == 0

    def words(self, quantity: Quantity, reports: int) -> str:
        """A few sentences; where nothing stands out, that comes first."""
        would = self._would(quantity)
        if self.count:
            verb = "stands" if self.count == 1 else "stand"
            takes = f"; with {_counted(reports)} that takes {would}" if math.isfinite(self.floor) else ""
            return (
                f"{self.count:,} of {_keys(self.candidates)} {verb} out from the noise when all {self._all()}are "
                f"looked at together{takes}."
            )
        if math.isfinite(self.floor):
            outlook = f"With {_counted(reports)}, {would} would have stood out."
        else:
            outlook = f"With {_counted(reports)}, not even a key that everybody has would have stood out."
        none = (
            "the one key that was asked for cannot"
            if self.candidates == 1
            else f"none of {_keys(self.candidates)} can"
        )
        if self.groups > 1:
            none += f", looked at with those of all {self.groups:,} groups,"
        return " ".join(
            filter(None, [f"Nothing stands out: {none} be told from noise. {outlook}", self.advice])
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no infinity."""
        plain = {**asdict(self), "floor": self.floor if math.isfinite(self.floor) else None}
        return plain if self.groups > 1 else {name: fact for name, fact in plain.items() if name != "groups"}

    def _would(self, quantity: Quantity) -> str:
        what = "a share" if quantity == "conditional" else _WHAT[quantity]
        return f"{what} of about {self.floor:.3g} or more{' from 0' if quantity == 'mean' else ''}"

    def _all(self) -> str:
        return f"keys of all {self.groups:,} groups " if self.groups > 1 else ""


@dataclass(frozen=True)
class OneKey(Findings):
    """The same of one key in several groups: `candidates` are these, and in each of them `floor` stands out."""

    def words(self, quantity: Quantity, reports: int) -> str:
        known = math.isfinite(self.floor)
        many = f"{self.candidates:,} {'group' if self.candidates == 1 else 'groups'}"
        if self.count:
            takes = f"; {self._would(quantity)} does in all of them" if known else ""
            return (
                f"In {self.count:,} of {many} this key stands out from the noise when all keys of all groups are "
                f"looked at together{takes}."
            )
        would = self._would(quantity) if known else "not even a key that everybody has"
        return (
            f"Nothing stands out: in none of {many} can this key be told from noise, looked at with all keys of all "
            f"groups. {would[0].upper()}{would[1:]} would have stood out in all of them."
        )


def _counted(reports: int) -> str:
    return f"{reports:,} {'report' if reports == 1 else 'reports'}"


def _keys(count: int) -> str:
    return f"{count:,} {'key' if count == 1 else 'keys'}"


def width_for(level: float, keys: int = 1) -> float:
    """Standard errors either side of an estimate, for intervals that hold for this many keys together (Bonferroni)."""
    return -NormalDist().inv_cdf((1 - level) / max(keys, 1) / 2)


def side_of(task: Task, quantity: Quantity) -> Side:
    """On which side of 0 the quantity can be."""
    if quantity in ("frequency", "conditional") or task.scale.kind == "set" or task.low >= 0:
        return "above"
    return "below" if task.high <= 0 else "both"


def strength(value: Floats, error: Floats, side: Side) -> Floats:
    """Standard errors from 0, towards where the truth can be."""
    return towards(value / np.maximum(error, 1e-300), side)


def towards(distance: Floats, side: Side) -> Floats:
    """How far it is from 0 towards where the truth can be."""
    return {"above": distance, "below": -distance, "both": np.abs(distance)}[side]


def largest_value(task: Task) -> float:
    """The size of the largest value that an entry can have."""
    return max(abs(task.scale.low), abs(task.scale.high))


def most_of(task: Task, base: Quantity) -> float:
    """The most that a key can have of a quantity, other than a sum."""
    return 1.0 if base in ("frequency", "conditional") else largest_value(task)


def attainable(floor: float, task: Task, base: Quantity) -> float:
    """A floor, infinite where it is more than a key that everybody has can have."""
    return floor if floor <= most_of(task, base) else math.inf


def floor_for(task: Task, quantity: Quantity, reports: int, width: float) -> float:
    """The smallest value whose own error bar, `width` standard errors long, does not reach 0 (normal estimates).

    From the formula behind planner and error bars, for a key that a share f of the users hold with the largest value:
    the least f whose estimate, if it comes out as it should, stands out.
    """
    largest = most_of(task, quantity)
    return largest * _least(
        lambda f: largest * f - width * math.sqrt(variance_at(task, quantity, reports, f))
    )


def variance_at(task: Task, quantity: Quantity, reports: int, share: float) -> float:
    """By the formula, in the units of the task, for a key that a share of the users hold with the largest value.

    Of a conditional mean it is that of the share.
    """
    mechanism, held = task.mechanism, (share, share, share)
    if quantity in ("frequency", "conditional"):
        return mechanism.variance("frequency", reports, *held)
    variance = task.scale.half**2 * mechanism.variance("mean", reports, *held)
    if task.scale.center:
        variance += task.scale.center**2 * mechanism.variance("frequency", reports, *held)
    return variance


def difference_for(
    task: Task, quantity: Quantity, reports: int, width: float, noise: float, reach: float
) -> float:
    """The same for a difference: of a key that one side has with the largest value, and one has not.

    `reach` is how far the interval of a key that nobody has goes up on the other side. On this side such keys have this
    `noise`, and by the formula there is more for a key that is held. The lower limit of an estimate is as far below it
    as its own noise says, and further where counts are small: the skewness of a Poisson count is as its variance grows
    with its mean (Cornish and Fisher).
    """
    largest, absent = most_of(task, quantity), variance_at(task, quantity, reports, 0.0)

    def more(share: float) -> float:
        return max(variance_at(task, quantity, reports, share) - absent, 0.0)

    skew = more(_LITTLE) / (largest * _LITTLE) * (width**2 - 1) / 6

    def below(share: float) -> float:
        return width * math.sqrt(noise**2 + more(share)) + skew

    # Seen if it is as large as both limits' distances from their estimates together.
    least = _least(lambda f: largest * f + below(f) - math.hypot(reach, below(f)))
    return largest * least + below(least) if math.isfinite(least) else math.inf


def _least(clear: Callable[[float], float]) -> float:
    """The least share f up to 1 with clear(f) >= 0, infinite if there is none, by bisection on a log scale."""
    if clear(1.0) < 0:
        return math.inf
    low, high = 1e-12, 1.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if clear(middle) >= 0 else (middle, high)
    return high
