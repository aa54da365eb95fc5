"""The task that somebody's wishes describe: the planner chooses what was left open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, get_args

from hubbub.mechanisms.registry import mechanisms
from hubbub.model.guarantee import Guarantee, Unit
from hubbub.model.keys import LENGTH_KEYS, bits_for
from hubbub.model.mechanism import Goal, Mechanism, Quantity
from hubbub.plan.offers import without_sum
from hubbub.plan.ranking import choose, suits
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: Parameters of mechanisms that a wish has fields for.
_OWN = ("name", "epsilon", "max_entries")
#: What may be asked for by name.
_CHOICES = {
    "quantity": (None, *get_args(Quantity)),
    "unit": get_args(Unit),
    "family": ("walsh", "prf"),
    "seed_from": ("device", "server"),
}


@dataclass(frozen=True)
class Wish:
    """What is wanted of a collection, before anything is chosen.

    `span` is the range of the values, None for sets. `mechanism` is one by name, None for the planner's choice;
    `settings` fix its parameters. The other fields are those of `Goal`.
    """

    epsilon: float
    max_entries: int
    span: tuple[float, float] | None = None
    quantity: Quantity | None = None
    unit: Unit = "record"
    distance: float | None = None
    delta: float = 0.0
    family: Literal["walsh", "prf"] = "walsh"
    users: int = 100_000
    count_lengths: bool = False
    mechanism: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    best: bool = False
    #: None: that of a rare key, and in the shuffled model that of a key that 1% hold.
    share: float | None = None
    messages: float = 0.0
    server_seconds: float = 60.0
    #: Forged reports that are reckoned with, a number or a share below 1.
    forgers: float = 0.0
    #: How often a device may report, and in how many periods in a row it does so once.
    period: Literal["once", "day", "week", "month"] = "once"
    rotation: int = 1
    #: Who draws public seeds.
    seed_from: Literal["device", "server"] = "device"

    def __post_init__(self) -> None:
        for name in ("epsilon", "max_entries", "delta", "users"):
            if not isinstance(getattr(self, name), Real):
                raise Refused(f"{name} is a number, not {getattr(self, name)!r}.")
        for name in ("max_entries", "users"):
            if not float(getattr(self, name)).is_integer():
                raise Refused(f"{name} is a whole number, not {getattr(self, name)!r}.")
        for name, offered in _CHOICES.items():
            if getattr(self, name) not in offered:
                raise Refused(
                    f"{name} is one of {', '.join(filter(None, offered))}, not {getattr(self, name)!r}."
                )
        if self.span is not None:
            if not isinstance(self.span, Sequence) or [isinstance(end, Real) for end in self.span] != [
                True,
                True,
            ]:
                raise Refused(f"A range is two numbers, (LOW, HIGH), not {self.span!r}.")
            low, high = self.span
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise Refused(f"The value range {low:g}:{high:g} is empty or infinite.")
        Guarantee(self.epsilon, self.unit, delta=self.delta, distance=self.distance)

    @property
    def usual_quantity(self) -> Quantity:
        """What people want to know first, where it can be had."""
        if self.span is None:
            return "frequency"
        return "mean" if self.span[0] == -self.span[1] or self.unit != "record" else "conditional"

    def quantity_for(self, task: Task) -> Quantity:
        """What to estimate: what is asked for, or the usual quantity, or what the task's mechanism offers first."""
        offered = task.mechanism.quantities
        return self.quantity or (self.usual_quantity if self.usual_quantity in offered else offered[0])

    def goal(self, keys: Mapping[str, Any]) -> Goal:
        """What is asked of the planner; `keys` are those of a task, as plain data."""
        low, high = self.span or (-1.0, 1.0)
        largest = max(abs(low), abs(high))
        return Goal(
            self.quantity or self.usual_quantity,
            self.epsilon,
            self.max_entries,
            "set" if self.span is None else "signed",
            self.unit,
            None if self.distance is None else self.distance / largest,
            self.delta,
            self.users,
            keys=_count_of(keys) or 1 << (64 if keys["kind"] == "wide" else keys.get("bits") or 20),
            family=self.family,
            center=(low + high) / 2 / largest if self.span else 0.0,
            open=keys["kind"] != "closed",
            server_seconds=self.server_seconds,
            rotation=self.rotation,
            seed_from=self.seed_from,
        )

    def task(self, name: str, keys: Mapping[str, Any]) -> Task:
        """The task: with the mechanism that the planner takes, or the best parameters of the named one."""
        keys = {**keys, "count_lengths": True} if self.count_lengths else dict(keys)
        known = set() if self.mechanism is None else _parameters_of(self.mechanism)
        if self.delta and self.unit != "l1" and "delta" not in known:
            raise Refused("A delta goes with unit l1; guarantees per record and per entry are pure.")
        if self.settings and self.mechanism is None:
            raise Refused("Settings are for a mechanism that is named: --mechanism, or in Python mechanism=.")
        for taken in _OWN:
            if taken in self.settings:
                raise Refused(f"The {taken} has an option of its own; settings are for other parameters.")
        goal = self.goal(keys)
        goal = replace(goal, quantity=without_sum(goal.quantity, goal.values))
        if self.mechanism and not self.quantity and not suits(goal, self.mechanism, self.settings):
            # Nobody asked for the usual quantity: what the named mechanism can do will be as good.
            others = (replace(goal, quantity=other) for other in ("mean", "frequency"))
            goal = next((other for other in others if suits(other, self.mechanism, self.settings)), goal)
        mechanism = choose(goal, name=self.mechanism, settings=self.settings, best=self.best)
        return self.task_with(name, keys, mechanism)

    def task_with(self, name: str, keys: Mapping[str, Any], mechanism: Mechanism, **rules: Any) -> Task:
        """The task with this mechanism."""
        low, high = self.span or (-1.0, 1.0)
        described = {"name": name, "low": low, "high": high, "mechanism": mechanism}
        rules |= {"period": self.period, "rotation": self.rotation, "seed_from": self.seed_from}
        return Task.parse({**described, **rules, "keys": with_bits(keys, mechanism)})


def with_bits(keys: Mapping[str, Any], mechanism: Mechanism) -> dict[str, Any]:
    """Room for two codes per key where a mechanism needs them."""
    if not mechanism.sided or keys["kind"] != "closed" or keys.get("bits"):
        return dict(keys)
    return {**keys, "bits": bits_for(2 * _count_of(keys))}


def _count_of(keys: Mapping[str, Any]) -> int:
    """How many keys a closed vocabulary has, with those that count lengths; 0 for an open one."""
    listed: int = keys.get("size") or len(keys.get("vocabulary") or ())
    return listed + len(LENGTH_KEYS) if listed and keys.get("count_lengths") else listed


def _parameters_of(name: str) -> set[str]:
    """Parameter names of a mechanism; an unknown one is refused."""
    known = mechanisms()
    if name not in known:
        raise Refused(f"There is no mechanism called {name!r}; known are {', '.join(known)}.")
    return set(known[name].model_fields)


def span_for(span: tuple[float, float] | None, has_values: bool) -> tuple[float, float] | None:
    """The range of values if there are any; a range without values is refused, and values without one."""
    if not has_values and span is not None:
        raise Refused("A range is for values, and these are sets: name the values, or leave it out.")
    if has_values and span is None:
        raise Refused(
            "Values need a range, decided before looking at the data: --range LOW:HIGH, or in Python "
            "range=(LOW, HIGH)."
        )
    return span
