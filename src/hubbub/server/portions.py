"""Which strata a question is about: for whom, and since when.

Choices and groups are of strata by name, so that whoever keeps their states reads only those that are asked for. Who
has all of them adds up what was chosen (`chosen_strata`, `sum_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hubbub.model.state import State
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible
from hubbub.protocol.files import counts_in
from hubbub.protocol.strata import Stratum, check_label, is_within, label_names
from hubbub.protocol.task import Task
from hubbub.server.fold import merge_into

#: What groups can be made by besides labels.
PERIOD = "period"
#: How strata are called of which something is not told.
NOT_TOLD = "not told"


@dataclass(frozen=True)
class Choice:
    """Values of labels that strata must have, and the first and last period that they may be of."""

    where: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None
    last: str | None = None

    @property
    def everything(self) -> bool:
        """Whether no stratum is left out."""
        return not self.where and self.first is None and self.last is None

    def words(self) -> str:
        """What is chosen, in a few words; "" if it is everything."""
        parts = [f"{name} {value}" for name, value in sorted(self.where.items())]
        if self.first is not None and self.first == self.last:
            parts.append(self.first)
        else:
            parts += [f"from {self.first}"] if self.first else []
            parts += [f"to {self.last}"] if self.last else []
        return ", ".join(parts)

    def of(self, task: Task, strata: Iterable[Stratum]) -> list[Stratum]:
        """The strata that are chosen; `Refused` if the question makes no sense for the task, or there are none."""
        names = label_names(task)
        for name, value in self.where.items():
            check_label(task, name)
            if value not in task.labels[name]:
                known = ", ".join(task.labels[name][:20])
                raise Refused(f"{visible(value)!r} is no {name} of task {task.name!r}; there is {known}.")
        timed = self.first is not None or self.last is not None
        if timed and task.period == "once":
            raise Refused(f"Task {task.name!r} has no periods: all its reports are of one time.")
        for bound in (self.first, self.last):
            is_within("2000-01-01", bound, bound)  # refuses what is no period
        there = sorted(strata)
        found = [
            stratum
            for stratum in there
            if (not self.where or stratum.labels)
            and all(stratum.labels[names.index(name)] == value for name, value in self.where.items())
            and (not timed or (stratum.period and is_within(stratum.period, self.first, self.last)))
        ]
        if not found and not self.everything:
            periods = sorted({stratum.period for stratum in there if stratum.period})
            kept = f" Reports are of {periods[0]} to {periods[-1]}." if periods and timed else ""
            raise Refused(f"There are no reports of what was asked for ({self.words()}).{kept}")
        return found


def choice_of(
    where: Iterable[str] = (), period: str | None = None, first: str | None = None, last: str | None = None
) -> Choice:
    """A choice as it is written: labels as country=de, and one period or the first and the last."""
    labels: dict[str, str] = {}
    for part in where:
        name, equals, value = part.partition("=")
        if not equals or name in labels:
            raise Refused(f"Labels are chosen as country=de, each once; this is {visible(part[:100])!r}.")
        labels[name] = value
    if period is not None and (first is not None or last is not None):
        raise Refused("Name one period, or the first and the last one, not both.")
    return Choice(labels, period or first, period or last)


def by(task: Task, strata: Iterable[Stratum], names: Sequence[str]) -> dict[str, list[Stratum]]:
    """Strata in groups, by what they are called: values of these labels, and "period" for periods."""
    order = label_names(task)
    if not names or len(set(names)) < len(names):
        raise Refused("Groups are made by one or several labels, each named once.")
    for name in names:
        if name == PERIOD and task.period == "once":
            raise Refused(f"Task {task.name!r} has no periods: all its reports are of one time.")
        if name != PERIOD:
            check_label(task, name)
    groups: dict[str, list[Stratum]] = {}
    for stratum in sorted(strata):
        values = [
            stratum.period if name == PERIOD else stratum.labels[order.index(name)] if stratum.labels else ""
            for name in names
        ]
        groups.setdefault(", ".join(value or NOT_TOLD for value in values), []).append(stratum)
    return groups


def withheld(reports: Mapping[str, int], least: int) -> dict[str, str]:
    """Which groups are not shown beside the others and the whole, with the reason; `least` is the task's minimum.

    A group with fewer reports than `least` is not shown. Nor can it be computed from what is shown: what is missing
    from the whole is all withheld groups together, so while these have fewer than `least` reports, the smallest group
    that is shown is withheld, too. Then everything that can be had by adding and subtracting what is shown is a union
    of shown groups, or the whole less such a union, and has `least` reports or more: the former because each shown
    group has, the latter because the withheld groups together have, or a shown group is left in it (or it is empty).
    """
    order = sorted(reports, key=lambda name: (reports[name], name))
    few = [name for name in order if reports[name] < max(least, 1)]
    reasons = {
        name: f"{reports[name]:,} {'report is' if reports[name] == 1 else 'reports are'} fewer than {max(least, 1):,}, "
        "below which estimates are withheld"
        for name in few
    }
    missing = sum(reports[name] for name in few)
    for name in order[len(few) :]:
        if not 0 < missing < least:
            break
        reasons[name] = "withheld, too: the whole less the groups that are shown would tell what is withheld"
        missing += reports[name]
    return reasons


def chosen_strata(task: Task, states: Mapping[Stratum, State], choice: Choice) -> list[Stratum]:
    """The strata of a choice, unless they must not be shown apart from the others (`minimum_reports`).

    Labels are looked at first, then periods among those with the labels. In both steps what is chosen must have all
    groups that would be withheld beside the others, or none of them.
    """
    found = choice.of(task, states)
    labels = Choice(choice.where).of(task, states)
    if choice.where:
        _check_shown(by(task, states, sorted(choice.where)), labels, states, task.minimum_reports)
    if (choice.first, choice.last) != (None, None):
        _check_shown(by(task, labels, [PERIOD]), found, states, task.minimum_reports)
    return found


def _check_shown(
    groups: Mapping[str, list[Stratum]],
    chosen: Iterable[Stratum],
    states: Mapping[Stratum, State],
    least: int,
) -> None:
    hidden = withheld(counts_of(groups, states), least)
    wanted = set(chosen)
    touched = [group for group in hidden if wanted & set(groups[group])]
    if touched and len(touched) < len(hidden):
        raise Refused(f"{touched[0]} is not shown: {hidden[touched[0]]}.")


def sum_of(task: Task, states: Mapping[Stratum, State], strata: Iterable[Stratum]) -> State:
    """The state of some strata together."""
    total = task.mechanism.empty(task.keys)
    for stratum in strata:
        merge_into(total, states[stratum])
    return total


def reports_in(states: Mapping[Stratum, State]) -> int:
    """All of them: what a share of forgers is a share of, whichever strata these have chosen."""
    return sum(state.count for state in states.values())


def heard_in(task: Task, states: Mapping[Stratum, State], strata: Iterable[Stratum]) -> int:
    """Reports that say something about keys."""
    return sum(task.mechanism.heard(states[stratum], task.keys) for stratum in strata)


def counts_of(groups: Mapping[str, list[Stratum]], states: Mapping[Stratum, State]) -> dict[str, int]:
    """Reports of each group."""
    counts = counts_in(states)
    return {group: sum(counts[stratum] for stratum in strata) for group, strata in groups.items()}
