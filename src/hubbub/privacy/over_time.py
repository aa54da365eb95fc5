"""What a task promises over time: in one period, in a month of periods and in a year of them.

The unit is a person: everything that one device may say in that time, which its ledger limits to
`reports_per_period` reports in each period (or in one of `rotation` periods, where devices take turns), about one
record or about as many as there are reports. Locally, the epsilons and deltas of these reports add up. Shuffled, each
period is a round whose crowds hold reports of that period alone, with up to `reports_per_period` of one person
(`hubbub.privacy.shuffle`, step 3); rounds compose (`hubbub.privacy.compose`). Rounds in which it is not a person's turn
hold nothing of that person.

Where records are memoized, no more than `memoize_cap` reports are made over all time (`hubbub.device.memo`), and their
epsilons are all that adds up. There is no shuffled guarantee then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hubbub.model.guarantee import Guarantee
from hubbub.primitives.errors import Refused
from hubbub.privacy.compose import Method, compose
from hubbub.privacy.messages import PoissonCrowd, messages_guarantee, poisson_crowd
from hubbub.privacy.shuffle import Crowd, crowd_of, shuffled_guarantee
from hubbub.protocol.periods import CHANGES_SHOW
from hubbub.protocol.sealing import check_sealable
from hubbub.protocol.task import Task

#: The delta of shuffled guarantees, unless somebody asks for another.
DELTA = 1e-6
#: One period, and how many make a month and a year.
SPANS = {
    "once": (("in all", 1),),
    "day": (("one day", 1), ("a month (30 days)", 30), ("a year (365 days)", 365)),
    "week": (("one week", 1), ("a month (4 weeks)", 4), ("a year (52 weeks)", 52)),
    "month": (("one month", 1), ("a year (12 months)", 12)),
}
_PLAIN = {"once": "in all", "day": "a day", "week": "a week", "month": "a month"}


@dataclass(frozen=True)
class Span:
    """Some periods in a row, and what is promised about all that one person says in them."""

    name: str
    periods: int
    #: None if the deltas of that many reports add up to 1 or more, or their number is random: nothing is promised.
    local: Guarantee | None
    #: None if there is no shuffler.
    shuffled: Guarantee | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        promises = {"local": self.local, "shuffled": self.shuffled}
        found = {model: None if promise is None else promise.as_dict() for model, promise in promises.items()}
        return {"span": self.name, "periods": self.periods, **found}

    def words(self) -> str:
        """One line: how long, and what is promised in each model."""
        text = f"{self.name}: {'nothing is promised locally' if self.local is None else self.local.short()}"
        return text if self.shuffled is None else f"{text}; {self.shuffled.short()}"


def over_time(
    task: Task,
    reports: int | None = None,
    delta: float = DELTA,
    method: Method = "loss",
    people: int | None = None,
) -> list[Span]:
    """One period, a month and a year of a task; with `reports`, of one whose crowds have that many or more.

    For a task with several messages, `people` takes the place of `reports`.

    `delta` is that of each shuffled guarantee, however long it lasts. Refused where no shuffle bound applies.
    """
    most = task.reports_per_period
    found = []
    for name, length in SPANS[task.period]:
        shuffled, periods = None, math.ceil(length / task.rotation)
        if reports is not None and task.messages:
            raise Refused(
                "This task asks for several messages: what is promised depends on the number of people, not of reports."
            )
        crowd = people if task.messages else reports
        if crowd is not None and periods == 1:
            shuffled = round_guarantee(task, crowd, delta)
        elif crowd is not None:
            shuffled = all_rounds(crowd_in(task, crowd), periods, delta, method)
        local = None if task.messages else all_reports(task.guarantee, _distinct(task, periods * most))
        if local is not None and task.memoize != "off" and _distinct(task, periods) > 1:
            local = replace(local, note=f"{local.note} {CHANGES_SHOW}".lstrip())
        found.append(Span(name, length, local, shuffled))
    return found


def _distinct(task: Task, reports: int) -> int:
    """How many of so many reports are made anew, at most."""
    return reports if task.memoize == "off" else min(reports, task.memoize_cap)


def crowd_in(task: Task, people: int) -> Crowd | PoissonCrowd:
    """A crowd of a task, of so many people; without several messages, of so many reports."""
    check_sealable(task)
    mean = task.mean_messages
    if mean is None:
        return crowd_of(task.mechanism, people, task.reports_per_period)
    return poisson_crowd(task.mechanism, people, mean)


def round_guarantee(task: Task, people: int, delta: float = DELTA) -> Guarantee:
    """What is promised about all that one person says in a period, in a crowd of so many."""
    check_sealable(task)
    mean = task.mean_messages
    if mean is None:
        return shuffled_guarantee(task.mechanism, people, delta, task.reports_per_period)
    return messages_guarantee(task.mechanism, people, mean, delta)


def all_reports(one: Guarantee, reports: int) -> Guarantee | None:
    """What this many reports of one person promise in the local model, or None if that is nothing."""
    if reports == 1:
        return one
    if reports * one.delta >= 1:
        return None
    note = f"{one.note} Holds for all of up to {reports:,} reports per person, whatever record each is about.".lstrip()
    return replace(one, epsilon=reports * one.epsilon, delta=reports * one.delta, note=note)


def all_rounds(crowd: Crowd | PoissonCrowd, periods: int, delta: float, method: Method = "loss") -> Guarantee:
    """What this many equal rounds promise; where the loss cannot be convolved, by advanced composition."""
    rounds = [crowd] * periods
    if method == "loss":
        try:
            return compose(rounds, delta, "loss")
        except Refused:
            # No dp-accounting, or not precise enough; if something else is wrong, the next method refuses it, too.
            method = "advanced"
    return compose(rounds, delta, method)


def spending(task: Task) -> str:
    """What one device spends, in words."""
    one = task.guarantee
    if task.messages:
        each = "" if task.period == "once" else f" {_PLAIN[task.period]}"
        return (
            f"A device sends {task.messages:g} messages on average{each}, a random number, and spends epsilon = "
            f"{one.epsilon:.6g} on each; only a shuffler bounds what they say together (hubbub amplify --people)."
        )
    if task.period == "once" and task.reports_per_period == 1:
        return f"A device reports once and spends {one.short()}."
    number, each = task.reports_per_period, _PLAIN[task.period]
    delta = f" and delta = {number * one.delta:.3g}" if one.delta else ""
    reports = "1 report" if number == 1 else f"{number} reports"
    text = _memoized(task) or (
        f"A device makes at most {reports} {each} and spends epsilon = {one.epsilon:.6g} on each: "
        f"epsilon = {number * one.epsilon:.6g}{delta} {each}, added up."
    )
    if task.rotation > 1:
        text += f" It takes part in one of {task.rotation} {task.period}s, drawn once, and is silent in the others."
    later = [f"in {span.words()}" for span in over_time(task)[1:]]
    return f"{text} Together {'; '.join(later)}." if later else text


def _memoized(task: Task) -> str:
    """The same where a record that was reported before gets its report again; "" where it does not."""
    if task.memoize == "off":
        return ""
    cap, one = task.memoize_cap, task.guarantee
    delta = f" and delta = {cap * one.delta:.3g}" if one.delta else ""
    records = "the first record that it is asked about" if cap == 1 else f"at most {cap} distinct records"
    text = (
        f"Once {_PLAIN[task.period]}, a device answers. It makes a report for {records}, ever, and spends epsilon = "
        f"{one.epsilon:.6g} on each: epsilon = {cap * one.epsilon:.6g}{delta} over all time, added up. All other "
        "answers are these reports again."
    )
    return text if cap == 1 else f"{text} {CHANGES_SHOW}"
