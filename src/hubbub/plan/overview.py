"""A plan: every mechanism for a goal, ranked, and the one to take. `hubbub.plan` and `hubbub plan`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hubbub.model.guarantee import Unit
from hubbub.model.mechanism import MOST_EPSILON, Goal, Quantity
from hubbub.plan.damage import USUAL_FORGERS, Damage, damage_to, forged_share, withstanding
from hubbub.plan.proposal import Wish
from hubbub.plan.ranking import Option, expected_reports, pick, rank
from hubbub.plan.yearly import CAPS, Period, Way, Year, periods_in_year, turns_in_year
from hubbub.primitives.errors import Refused
from hubbub.primitives.markup import Markup, escaped, paragraph, table, whisker, whole
from hubbub.primitives.samplers import exact_messages
from hubbub.privacy.shuffle import check_delta
from hubbub.protocol.task import Task

Trust = Literal["local", "shuffled"]

#: In the shuffled model noise is so small that frequent keys are what people look at, and their errors are larger. In
#: turns, so is the error of the sample.
_USUAL_SHARE = 0.01


@dataclass(frozen=True)
class Plan:
    """What every mechanism would reach for one goal, best first, the unsuitable last; and which one is taken.

    Errors are in the units of the values. Nothing has been collected: these are the mechanisms' own predictions, the
    formulas behind error bars.
    """

    wish: Wish
    keys: Mapping[str, Any]
    goal: Goal
    options: tuple[Option, ...]
    chosen: Option
    #: For several messages: the error that exactly one report each would have.
    once: float = math.inf
    #: What would be taken if nobody forged reports, where forgers are reckoned with.
    unforged: Option | None = None
    #: How a year's budget could be spent, where one is given; the plan is for the best way.
    year: Year | None = None

    @property
    def largest(self) -> float:
        """The largest value, in whose units distances are."""
        return max(map(abs, self.wish.span or (-1.0, 1.0)))

    def damage(self, option: Option) -> Damage | None:
        """What forged reports could do to an option; None if that is not known."""
        size = unit_size(self.wish, self.goal.quantity)
        return None if option.mechanism is None else damage_to(option.mechanism, self.goal, size)

    def as_dict(self, option: Option) -> dict[str, Any]:
        """An option as plain data, with what forged reports could do to it."""
        found = self.damage(option)
        data = option.as_dict(self.largest)
        return (
            data
            if option.mechanism is None
            else data | {"forged": None if found is None else found.as_dict()}
        )

    @property
    def suitable(self) -> tuple[Option, ...]:
        """The mechanisms that reach the goal."""
        return tuple(option for option in self.options if option.mechanism is not None)

    def task(self, name: str) -> Task:
        """The task of the mechanism that is taken."""
        mechanism = self.chosen.mechanism
        if mechanism is None:
            raise Refused("No mechanism reaches this goal; no task was written.")
        return self.wish.task_with(name, self.keys, mechanism, messages=self.goal.messages)

    def verdict(self, how: str = "best=True") -> str:
        """What is taken, and what that costs beside the least error."""
        best, chosen = self.options[0], self.chosen
        if self.unforged is not None:
            return f"Best with forgers: {chosen.name}{_buckets(chosen)}."
        if chosen is best:
            return f"Best: {best.name}."
        return (
            f"Taken: {chosen.name} with {chosen.bytes} instead of {best.bytes} bytes a report and "
            f"{100 * (chosen.error / best.error - 1):.1f}% more error than the best ({how} takes that)."
        )

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per mechanism."""
        return [self.as_dict(option) for option in self.options]

    def meanings(self) -> str:
        """What the columns of the ranking are."""
        held = f"a key that {100 * self.goal.share:.3g}% hold" if self.goal.share else "a rare key"
        all_keys = "all keys, which are rare" if self.goal.share else "all keys"
        return (
            f"error: standard error of {held}; largest: median of the largest error of {all_keys}; detectable: "
            "smallest true value that stands out from zero among all keys (95%)"
        )

    def title(self) -> str:
        """What was planned for."""
        turns = f", each in one of {self.wish.rotation} {self.wish.period}s" if self.wish.rotation > 1 else ""
        return f"{self.goal.quantity}, {self.goal.users:,} users{turns}, {self.goal.keys:,} keys"

    def closing(self, how: str = "best=True") -> list[str]:
        """What is said below the table: what is taken and promised, and why the others are not in it."""
        return [*self._taken(how), *(f"Not {option.name}: {option.reason}" for option in self._unsuitable)]

    def _taken(self, how: str = "best=True") -> list[str]:
        if self.chosen.mechanism is None:
            return []
        said = [f"{self.verdict(how)} {self.chosen.promise(self.largest).words()}"]
        if self.goal.messages:
            said.append(
                f"That is for a single report. Everybody sends {self.goal.messages:g} of them on average."
            )
            if self.once <= self.chosen.error:
                said.append(
                    f"Exactly one report each has no more error, {self.once:.4g}: leave the messages out, or take more."
                )
        if self.chosen.shuffled:
            said.append(self.chosen.shuffled)
        return [*said, *self._forged(), self._times()]

    def _forged(self) -> list[str]:
        """What forgers could do; and what it costs to reckon with them."""
        found, share = self.damage(self.chosen), forged_share(self.wish.forgers, self.goal.users)
        if found is None:
            return ["What forged reports could do to it is not known."]
        said = [found.words(share or USUAL_FORGERS)]
        if self.unforged is None:
            return said
        together = math.hypot(self.chosen.error, found.moved(share))
        said.append(
            f"With {100 * share:.3g}% forgers, error and what they add come to {together:.4g} (root of the sum of "
            "squares), the least of all options."
        )
        usual = self.damage(self.unforged)
        if usual is None or self.unforged.mechanism == self.chosen.mechanism:
            return [*said, "Without forgers the choice would be the same."]
        moved = usual.moved(share)
        strain = math.hypot(self.unforged.error, moved)
        return [
            *said,
            f"Without forgers the choice would be {self.unforged.name}{_buckets(self.unforged)} with an error of "
            f"{self.unforged.error:.4g} instead of {self.chosen.error:.4g}; so many forgers would move a key of it by "
            f"{moved:.3g}, which comes to {strain:.4g}.",
        ]

    def _times(self) -> str:
        """What a report takes to add up and to make."""
        server, device = self.chosen.seconds, 1000 * self.chosen.device
        return (
            f"A million reports take a core of the server about {server:.2g} s; a device makes one in about "
            f"{device:.2g} ms."
        )

    @property
    def _unsuitable(self) -> list[Option]:
        return [option for option in self.options if option.mechanism is None]

    def __str__(self) -> str:
        """The ranking as a table of text."""
        lines = [] if self.year is None else [str(self.year)]
        lines += [self.title(), f"  {'mechanism':<16} {'error':>10} {'detectable':>10} {'bytes':>6}"]
        lines += [
            f"  {option.name:<16} {option.error:>10.4g} {option.detectable:>10.4g} {option.bytes:>6}"
            for option in self.suitable
        ]
        return "\n".join([*lines, *self.closing()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the ranking, what is taken in bold, a bar for each error, the guarantee below."""
        worst = max((option.error for option in self.suitable), default=1.0)
        rows = [
            (
                Markup(f"<strong>{escaped(option.name)}</strong>")
                if option.name == self.chosen.name
                else option.name,
                whisker(0.0, option.error, option.error, (0.0, worst), option.name != self.chosen.name),
                *(f"{number:.4g}" for number in (option.error, option.largest, option.detectable)),
                option.bytes,
            )
            for option in self.suitable
        ]
        head = ("mechanism", "", "error per key", "largest error", "detectable", "bytes")
        parts = [] if self.year is None else [Markup(self.year._repr_html_())]
        parts += [paragraph(self.title()), table(head, rows), paragraph(f"{self.meanings()}.")]
        others = "; ".join(f"{option.name} {option.reason}" for option in self._unsuitable)
        said = [*self._taken(), *([f"Not suitable: {others}."] if others else [])]
        return whole(*parts, *map(paragraph, said))


def _buckets(option: Option) -> str:
    """How many buckets, where there are some to choose."""
    buckets = getattr(option.mechanism, "buckets", 0)
    return f" ({buckets} buckets)" if buckets > 1 else ""


def plan(
    quantity: Quantity = "frequency",
    *,
    keys: int | Iterable[str],
    max_entries: int,
    epsilon: float | None = None,
    users: int = 100_000,
    range: tuple[float, float] | None = None,
    unit: Unit = "record",
    distance: float | None = None,
    delta: float = 0.0,
    model: Trust = "local",
    most_bytes: int | None = None,
    mechanism: str | None = None,
    best: bool = False,
    share: float | None = None,
    messages: float = 0.0,
    server_seconds: float = 60.0,
    forgers: float = 0.0,
    per_year: float | None = None,
    period: Period | None = None,
) -> Plan:
    """Which mechanism reaches a goal, with what error, before anything is collected; as the command `hubbub plan`.

        found = hubbub.plan("mean", keys=1000, max_entries=8, range=(1, 5), users=50_000)
        found.chosen.error, found.task("ratings")

    `keys` is how many there are, or a list of them. `epsilon` is that of one report (left out: 1), or with model
    "shuffled" that of the shuffled model, as `delta`. `range` is that of the values; without one, records are sets.
    What is taken is the shortest report within 5% of the least error, or with `best` the least error itself;
    `mechanism` looks at one alone. `share` is that of the key whose error counts (left out: a rare one, in the shuffled
    model one that 1% hold); `messages` is how many reports everybody sends on average, a random number of them (left
    out: exactly one). Nothing is recommended that takes a server more than `server_seconds` of one core per million
    reports. With `forgers`, a share of the reports or a number, what is taken has the least error and damage together,
    see `hubbub.plan.damage`.

    Where people are asked once a `period` (day, week or month), `per_year` in place of `epsilon` is what all reports of
    a person may cost in a year. What is taken has the best rotation then; `year` compares all, see
    `hubbub.plan.yearly`.
    """
    if (per_year is None) != (period is None) or (per_year is not None and epsilon is not None):
        raise Refused("A year's epsilon (per_year) goes with a period, and takes the place of epsilon.")
    space: dict[str, Any] = {"kind": "closed"}
    if isinstance(keys, Iterable):
        space["vocabulary"] = [str(key) for key in keys]
    else:
        space["size"] = int(keys)
    each = (1.0 if epsilon is None else epsilon) if per_year is None else per_year
    wish = Wish(each, max_entries, range, quantity, unit, distance, delta, users=users, best=best)
    wish = replace(wish, mechanism=mechanism, share=share, messages=messages, server_seconds=server_seconds)
    wish = replace(wish, forgers=forgers)
    if period is not None:
        return planned_year(replace(wish, period=period), space, model, most_bytes)
    return planned(wish, space, model, most_bytes)


def planned(wish: Wish, keys: Mapping[str, Any], model: Trust, most_bytes: int | None) -> Plan:
    """The plan for a wish; `keys` are those of a task, as plain data."""
    goal = goal_in(wish, keys, model)
    rules = unit_size(wish, goal.quantity), most_bytes, wish.mechanism
    options = rank(goal, *rules)
    # A random number of messages thins the counts of frequent keys: with few of them, one report each can be better.
    once = pick(rank(replace(goal, messages=0.0), *rules), wish.best).error if goal.messages else math.inf
    chosen, share = pick(options, wish.best), forged_share(wish.forgers, goal.users)
    if not share:
        return Plan(wish, keys, goal, tuple(options), chosen, once)
    strong = withstanding(goal, options, rules[0], most_bytes, share)
    return Plan(wish, keys, goal, tuple(strong), strong[0], once, chosen)


def planned_year(wish: Wish, keys: Mapping[str, Any], model: Trust, most_bytes: int | None) -> Plan:
    """The plan for a wish whose epsilon is that of a year, for the way to spend it that has the least error."""
    period, budget = wish.period, wish.epsilon
    if model != "local" or wish.messages or wish.delta or wish.forgers:
        raise Refused("A year is planned in the local model, without a delta, several messages and forgers.")
    if wish.quantity == "sum":
        raise Refused(
            "Sums are over those who report, who differ from period to period: plan a frequency or mean."
        )
    wish = replace(wish, share=_USUAL_SHARE if wish.share is None else wish.share)
    spent = {(turns, 0): budget * turns / periods_in_year(period) for turns in turns_in_year(period)}
    spent |= {(1, cap): budget / cap for cap in CAPS}
    plans = {
        (turns, cap): planned(replace(wish, epsilon=each, rotation=turns), keys, model, most_bytes)
        for (turns, cap), each in spent.items()
        if each <= MOST_EPSILON
    }
    if all(cap for _, cap in plans):
        raise Refused(
            f"A {period}'s share of epsilon = {budget:g} a year is above {MOST_EPSILON}, the most of a report."
        )
    ways = {
        (turns, cap): Way(turns, cap, spent[turns, cap], expected_reports(found.goal), found.chosen)
        for (turns, cap), found in plans.items()
    }
    fresh = [which for which in ways if not which[1]]
    best = min(fresh, key=lambda which: (ways[which].option.mechanism is None, ways[which].option.error))
    year = Year(period, budget, plans[best].goal.share, tuple(ways.values()), ways[best])
    return replace(plans[best], year=year)


def goal_in(wish: Wish, keys: Mapping[str, Any], model: Trust) -> Goal:
    """What a wish asks for in a trust model, checked."""
    if wish.delta and wish.unit != "l1" and model == "local":
        raise Refused("A delta goes with unit l1, or with the shuffled model.")
    if model == "shuffled":
        check_delta(wish.delta)
    goal = wish.goal(keys)
    if goal.quantity in ("mean", "conditional") and wish.span is None:
        raise Refused(
            "Means need values: give their range, --range LOW:HIGH, or in Python range=(LOW, HIGH)."
        )
    if wish.messages and goal.quantity == "sum":
        raise Refused("Sums need the number of people, which a random number of messages each does not tell.")
    shuffled = model == "shuffled"
    return replace(
        goal,
        central_epsilon=goal.epsilon if shuffled else None,
        share=wish.share if wish.share is not None else (_USUAL_SHARE if shuffled else 0.0),
        messages=float(exact_messages(wish.messages)) if wish.messages else 0.0,
    )


def unit_size(wish: Wish, quantity: Quantity) -> float:
    """What 1 on the scale of [-1, 1] stands for."""
    if quantity == "frequency" or wish.span is None:
        return 1.0
    low, high = wish.span
    return (high - low) / 2 if quantity == "conditional" else max(abs(low), abs(high))
