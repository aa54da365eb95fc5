"""Which mechanism: every candidate that reaches the goal, ranked by its own predicted error.

Predictions are the mechanisms' `variance()`, the formula that also draws the error bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

from pydantic import ValidationError

from hubbub.mechanisms.registry import mechanisms
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Goal, Mechanism, Quantity
from hubbub.plan.costs import device_hashes, device_seconds, server_seconds, state_size
from hubbub.plan.offers import offers, why_not, without_sum
from hubbub.primitives.errors import Refused, explain
from hubbub.primitives.samplers import exact_messages
from hubbub.privacy.messages import messages_guarantee, poisson_crowd
from hubbub.privacy.shuffle import (
    Hiding,
    bisect_local_epsilon,
    crowd_of,
    shuffled_guarantee,
    solve_local_epsilon,
)

#: How exactly local epsilons are solved for while buckets are compared, and at last.
_ROUGHLY, _EXACTLY = 0.02, 1e-5
#: Numbers of buckets that are tried: powers of two.
_BUCKET_BITS = range(1, 21)
#: How much more error than the least a shorter report may have and still be taken.
THRIFT = 1.05


@dataclass(frozen=True)
class Option:
    """One way to reach a goal, or why it is none."""

    name: str
    mechanism: Mechanism | None
    reason: str = ""
    #: What to ask for instead, if it is none.
    remedy: str = ""
    error: float = math.inf
    largest: float = math.inf
    detectable: float = math.inf
    hashes: int = 0
    server: str = ""
    #: Of a server's core per million reports, and of a device per report, about.
    seconds: float = 0.0
    device: float = 0.0
    #: The goal whose crowd this is for, if the guarantee is asked for in the shuffled model.
    crowd: Goal | None = None
    #: The same mechanism with ever shorter reports and more error.
    shorter: tuple[Option, ...] = ()

    @property
    def bytes(self) -> int:
        return self.mechanism.layout.width if self.mechanism else 0

    @cached_property
    def shuffled(self) -> str:
        """The guarantee in the shuffled model, in words; "" if it is not asked for."""
        if self.crowd is None or self.mechanism is None:
            return ""
        users, delta = self.crowd.users, self.crowd.delta
        if self.crowd.messages:
            messages = exact_messages(self.crowd.messages)
            return messages_guarantee(self.mechanism, users, messages, delta).words()
        return shuffled_guarantee(self.mechanism, users, delta).words()

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
            "server_seconds_per_million": self.seconds,
            "device_seconds": self.device,
            "guarantee": self.promise(largest).as_dict(),
            "shuffled": self.shuffled,
            "parameters": self.mechanism.model_dump(exclude_none=True),
        }


def expected_reports(goal: Goal) -> int:
    """How many reports are expected in a period, and seeds have to be enough for."""
    return min(1 << 40, max(1, round(goal.users / goal.rotation * (goal.messages or 1))))


def noise(
    mechanism: Mechanism, goal: Goal, frequency: float | None = None, energy: float | None = None
) -> float:
    """Variance that decides, for a key of this frequency (the goal's share); for a conditional mean both parts do.

    With several messages there are as many more reports, each of a person drawn at random. In turns there are fewer, of
    a sample in which each of n people is with chance 1 / w: that adds (w - 1) / n times the variance between people.
    """
    held = goal.share if frequency is None else frequency
    reports = expected_reports(goal)
    drawn = (1 / reports if goal.messages else 0.0) + (goal.rotation - 1) / goal.users

    def variance(quantity: Quantity) -> float:
        found = mechanism.variance(quantity, reports, held, energy=energy)
        return found + drawn * (held * (1 - held) if quantity == "frequency" else held)

    if goal.quantity == "conditional":
        return variance("mean") + variance("frequency")
    if goal.quantity == "mean" and mechanism.centered:
        # center * frequency + half * mean, in units of the largest value
        return goal.center**2 * variance("frequency") + (1 - abs(goal.center)) ** 2 * variance("mean")
    return variance(goal.quantity)


def rank(
    goal: Goal,
    unit_size: float = 1.0,
    most_bytes: int | None = None,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Option]:
    """All mechanisms (or the named one), each with its best parameters: best first, the unsuitable last.

    Errors are in the units of the values (`unit_size` is what 1 in [-1, 1] stands for); for sums they are
    multiplied by the number of users. `settings` fix parameters; the others are the best for the goal.
    """
    if goal.quantity == "sum":
        unit_size *= goal.users
        goal = replace(goal, quantity=without_sum(goal.quantity, goal.values))
    kinds = mechanisms()
    if name is not None and name not in kinds:
        raise Refused(f"There is no mechanism called {name!r}; known are {', '.join(kinds)}.")
    wanted = kinds.values() if name is None else [kinds[name]]
    options = [_best_of(kind, goal, unit_size, most_bytes, settings or {}) for kind in wanted]
    return sorted(options, key=lambda option: (option.mechanism is None, option.error, option.name))


def pick(ranking: Sequence[Option], best: bool = False) -> Option:
    """What to take of a ranking: the shortest report within 5% of the least error, or the least error itself."""
    first = ranking[0]
    if best or first.mechanism is None:
        return first
    near = (found for option in ranking for found in (option, *option.shorter))
    return min(
        (found for found in near if found.error <= THRIFT * first.error),
        key=lambda found: (found.bytes, found.error),
    )


def suits(goal: Goal, name: str, settings: Mapping[str, Any] | None = None) -> bool:
    """Whether the named mechanism can reach the goal."""
    return rank(goal, name=name, settings=settings)[0].mechanism is not None


def choose(
    goal: Goal,
    most_bytes: int | None = None,
    *,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    best: bool = False,
) -> Mechanism:
    """The mechanism to take (`pick`), or the named one with the parameters that are best for the goal."""
    ranking = rank(goal, most_bytes=most_bytes, name=name, settings=settings)
    found = pick(ranking, best)
    if found.mechanism is not None:
        return found.mechanism
    if name is None:
        raise Refused(
            f"No mechanism estimates the {goal.quantity} of {goal.values} values with unit {goal.unit!r} under these "
            f"limits. {found.name}: {found.reason.rstrip('.')}."
        )
    instead = pick(rank(goal, most_bytes=most_bytes), best)
    advice = [found.remedy] if found.remedy else []
    advice += [f"take {instead.name}, which fits this goal"] if instead.mechanism is not None else []
    end = f": {', or '.join(advice)}" if advice else ""
    raise Refused(f"Mechanism {name} {found.reason.rstrip('.')}{end}.")


def _best_of(
    kind: type[Mechanism], goal: Goal, unit_size: float, most_bytes: int | None, settings: Mapping[str, Any]
) -> Option:
    local, crowd = goal, None
    try:
        if goal.central_epsilon is not None:
            crowd = goal
            local, found = _shuffled(kind, goal, most_bytes, settings)
        else:
            found = _in_time(kind, goal, settings)
    except Refused as problem:
        return Option(kind.name, None, str(problem))
    if not found:
        return Option(kind.name, None, *why_not(kind, local))
    fitting = _short_enough(found, most_bytes)
    if not fitting:
        return Option(
            kind.name, None, _too_long(found), f"allow {min(m.layout.width for m in found)} bytes a report"
        )
    by_hand = bool(settings) or goal.family == "prf"
    quick = [m for m in fitting if by_hand or server_seconds(m, local) <= goal.server_seconds]
    if not quick:
        least = min(server_seconds(m, local) for m in fitting)
        return Option(
            kind.name,
            None,
            f"would take a server about {least:,.0f} s of one core per million reports",
            "fold keys to fewer bits, allow the server more time, or set its buckets by hand",
        )
    try:
        options = [option_for(mechanism, goal, local, unit_size, crowd) for mechanism in quick]
    except ValidationError as problem:
        return Option(kind.name, None, explain(problem))
    first, *others = sorted(options, key=lambda option: option.error)
    shorter: list[Option] = []
    for other in others:
        if other.bytes < min(option.bytes for option in (first, *shorter)):
            shorter.append(other)
    return replace(first, shorter=tuple(shorter))


def _chooses_buckets(kind: type[Mechanism], goal: Goal, settings: Mapping[str, Any]) -> bool:
    """Whether the planner may choose buckets: nobody fixed a parameter, and the server's time depends on them."""
    return "buckets" in kind.model_fields and not settings and goal.family != "prf"


def _in_time(kind: type[Mechanism], goal: Goal, settings: Mapping[str, Any]) -> list[Mechanism]:
    """What a mechanism offers; with other buckets, if all of that would take the server too long."""
    found = offers(kind, goal, settings)
    slow = found and min(server_seconds(m, goal) for m in found) > goal.server_seconds
    if slow and _chooses_buckets(kind, goal, settings):
        for bits in _BUCKET_BITS:
            with suppress(Refused):
                found += offers(kind, goal, {"buckets": 1 << bits})
    return found


def option_for(mechanism: Mechanism, goal: Goal, local: Goal, unit_size: float, crowd: Goal | None) -> Option:
    error, rare = (math.sqrt(noise(mechanism, local, share)) * unit_size for share in (None, 0.0))
    # A quantile near 1 is taken from below, where doubles are fine enough for any number of keys.
    quantile = NormalDist().inv_cdf
    return Option(
        mechanism.name,
        mechanism,
        error=error,
        largest=-rare * quantile(0.5 * -math.expm1(-math.log(2) / goal.keys)),
        detectable=-rare * quantile(0.025 / goal.keys),
        hashes=device_hashes(mechanism),
        server=state_size(mechanism, goal),
        seconds=server_seconds(mechanism, goal),
        device=device_seconds(mechanism),
        crowd=crowd,
    )


def _short_enough(found: Sequence[Mechanism], most_bytes: int | None) -> list[Mechanism]:
    return [m for m in found if most_bytes is None or m.layout.width <= most_bytes]


def _too_long(found: Sequence[Mechanism]) -> str:
    return f"needs {min(m.layout.width for m in found)} bytes a report"


def _shuffled(
    kind: type[Mechanism], goal: Goal, most_bytes: int | None, settings: Mapping[str, Any]
) -> tuple[Goal, list[Mechanism]]:
    """The goal with the local epsilon that shuffling turns into the wanted central one, and the mechanism that does.

    Shuffling amplifies guarantees of whole records only, which are the ones to look for, whatever unit is asked. A
    mechanism chooses its buckets for rare keys and one report, without a look at the server's time; where something
    else is asked for, or that would take too long, others are tried.
    """
    pure = replace(goal, unit="record", distance=None, delta=0.0)
    if not offers(kind, pure, settings):
        return pure, []
    searched = _chooses_buckets(kind, goal, settings)
    if searched and not goal.share and not goal.messages:
        usual = _hidden(kind, pure, goal.delta, most_bytes, settings)
        searched = server_seconds(usual, goal) > goal.server_seconds
    found: list[Mechanism] = []
    for bits in _BUCKET_BITS if searched else ():
        with suppress(Refused):
            found.append(_hidden(kind, pure, goal.delta, most_bytes, {"buckets": 1 << bits}, _ROUGHLY))
        rising = len(found) > 2 and noise(found[-1], pure) > noise(found[-2], pure) > noise(found[-3], pure)
        if rising and server_seconds(min(found, key=lambda m: noise(m, pure)), goal) <= goal.server_seconds:
            break
    if found:
        quick = [m for m in found if server_seconds(m, goal) <= goal.server_seconds] or found
        near = min(quick, key=lambda mechanism: noise(mechanism, pure))
        settings = {"buckets": near.model_dump()["buckets"]}
    best = _hidden(kind, pure, goal.delta, most_bytes, settings, _EXACTLY if found else None)
    return replace(pure, epsilon=best.epsilon), [best]


def _hidden(
    kind: type[Mechanism],
    goal: Goal,
    delta: float,
    most_bytes: int | None,
    settings: Mapping[str, Any],
    precision: float | None = None,
) -> Mechanism:
    """The best mechanism of a kind whose reports a crowd hides as well as is asked for, to this precision."""
    assert goal.central_epsilon is not None

    def make(epsilon: float) -> Mechanism:
        found = offers(kind, replace(goal, epsilon=epsilon, users=expected_reports(goal)), settings)
        fitting = _short_enough(found, most_bytes)
        if not fitting:
            raise Refused(_too_long(found))
        return min(fitting, key=lambda m: noise(m, goal))

    def crowd(epsilon: float) -> Hiding:
        if goal.messages:
            return poisson_crowd(make(epsilon), goal.users, exact_messages(goal.messages))
        return crowd_of(make(epsilon), goal.users)

    if precision is not None or goal.messages:
        return make(bisect_local_epsilon(goal.central_epsilon, delta, crowd, precision or _EXACTLY))
    return make(solve_local_epsilon(goal.central_epsilon, delta, goal.users, make))
