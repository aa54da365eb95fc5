"""Does a collection reach what was planned: measured errors beside predicted ones. `hubbub.rehearse`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hubbub.calls.amplify import amplify, amplify_messages
from hubbub.calls.run import Watch, unwatched
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import noise
from hubbub.primitives.errors import Refused
from hubbub.primitives.markup import aligned
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation import rehearsal
from hubbub.simulation.populations import stated_keys, stated_population


@dataclass(frozen=True)
class Measured:
    """All estimates of keys of one share: `count` of them, over all runs."""

    share: float
    count: int
    #: Standard error by the formula of the planner, and root mean square error as it came out.
    predicted: float
    measured: float
    #: Share of the intervals that hold the truth.
    coverage: float

    @property
    def ratio(self) -> float:
        """Measured over predicted: 1 if the plan is right."""
        return self.measured / self.predicted

    @property
    def chance(self) -> float:
        """How far from 1 the ratio may be by chance: one standard deviation of it for this many estimates."""
        return 1 / math.sqrt(2 * self.count)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "ratio": self.ratio, "chance": self.chance}


@dataclass(frozen=True, repr=False)
class Rehearsal:
    """What simulated collections from a made-up crowd came to. Nothing here is private."""

    task: Task
    people: int
    runs: int
    #: Reports of one collection, on average.
    reports: float
    rows: tuple[Measured, ...]
    level: float
    guarantee: Guarantee

    @property
    def coverage(self) -> float:
        """The share of all intervals that hold the truth."""
        return sum(row.coverage * row.count for row in self.rows) / sum(row.count for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "mechanism": self.task.mechanism.name,
            "parameters": self.task.mechanism.model_dump(exclude_none=True),
            "people": self.people,
            "messages": self.task.messages,
            "runs": self.runs,
            "reports": self.reports,
            "shares": [row.as_dict() for row in self.rows],
            "level": self.level,
            "coverage": self.coverage,
            "guarantee": self.guarantee.as_dict(),
        }

    def title(self) -> str:
        """What was done."""
        many = f"{self.runs:,} collections" if self.runs > 1 else "one collection"
        return (
            f"{self.task.mechanism.name}, {many} from {self.people:,} made-up people, "
            f"{self.reports:,.0f} reports each (simulated)"
        )

    def cells(self) -> list[tuple[str, ...]]:
        """A line of text cells per share, after a line of heads."""
        head = ("share", "predicted", "measured", "ratio", "by chance", "intervals hold", "estimates")
        rows: list[tuple[str, ...]] = [
            (
                f"{100 * row.share:g}%",
                f"{row.predicted:.3g}",
                f"{row.measured:.3g}",
                f"{row.ratio:.3f}",
                f"± {row.chance:.3f}",
                f"{100 * row.coverage:.1f}%",
                f"{row.count:,}",
            )
            for row in self.rows
        ]
        return [head, *rows]

    def closing(self) -> list[str]:
        """What is said below the table."""
        return [
            f"{100 * self.coverage:.1f}% of all intervals hold the truth (meant: {100 * self.level:g}%).",
            f"A real collection of this kind: {self.guarantee.words()}",
        ]

    def __str__(self) -> str:
        return "\n".join([self.title(), *aligned(self.cells()), *self.closing()])

    __repr__ = __str__


def rehearse(
    task: Task,
    people: int = 100_000,
    *,
    runs: int = 1,
    delta: float = 0.0,
    level: float = 0.95,
    seed: int = 1,
    watch: Watch = unwatched,
) -> Rehearsal:
    """Collect from a made-up crowd and compare errors with the prediction, for keys that nobody, 1% and 5% hold.

        task = hubbub.plan(keys=5000, max_entries=8, model="shuffled", epsilon=1.0, delta=1e-8, messages=8).task("t")
    With a `delta` the guarantee is that of the shuffled model, for this many people. Coins are seeded, so that it can
    be repeated: nothing that comes out of this is private.
    """
    mechanism = task.mechanism
    if mechanism.values != "set" or task.keys.kind != "closed" or task.keys.count_lengths:
        raise Refused(
            "A made-up crowd has sets of keys from a closed vocabulary; rehearse other tasks on a table (simulate)."
        )
    if runs < 1:
        raise Refused(f"It takes at least 1 run, not {runs}.")
    guarantee = _promised(task, people, delta)
    crowd = stated_population(people, task.keys.count, mechanism.max_entries, seed)
    truth = crowd.frequency
    groups = stated_keys(task.keys.count, mechanism.max_entries)
    squares, inside = (dict.fromkeys(groups, 0.0) for _ in range(2))
    reports = 0
    with watch("rehearsing", 2 * people * runs, task) as advance:
        for run in range(runs):
            state = rehearsal.simulate(
                task, crowd.entries, seed + 10 * run, lambda _, done: advance(done)
            ).state
            reports += state.count
            found = estimate(task, state, quantity="frequency", level=level)
            holds = (found.low <= truth) & (truth <= found.high)
            for share, keys in groups.items():
                squares[share] += float(((found.value - truth)[keys] ** 2).sum())
                inside[share] += float(holds[keys].sum())
    goal = Goal("frequency", mechanism.epsilon, mechanism.max_entries, users=people)
    goal = replace(goal, central_epsilon=mechanism.epsilon, messages=task.messages)
    rows = []
    for share, keys in groups.items():
        count = runs * len(keys)
        error = math.sqrt(noise(mechanism, goal, share))
        rows.append(Measured(share, count, error, math.sqrt(squares[share] / count), inside[share] / count))
    return Rehearsal(task, people, runs, reports / runs, tuple(rows), level, guarantee)


def _promised(task: Task, people: int, delta: float) -> Guarantee:
    """In the shuffled model where a delta is given."""
    if not delta:
        return task.guarantee
    if task.messages:
        return amplify_messages(task.mechanism, people, task.messages, delta)
    return amplify(task, people * task.reports_per_period, delta)
