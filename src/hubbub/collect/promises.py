"""What is promised of a task, by what has arrived: by every report, and by the crowds that came through a shuffler.

The collector sees which reports came in one crowd, and which labels they have, so a report hides among its own crowd,
which is of one combination of labels, and not among all reports. A period is promised what the smallest of its crowds
gives, and all periods together what so many rounds with the smallest crowd of all give. Where devices send several
messages, a crowd is worth its people, of whom a lower bound is known
(`hubbub.privacy.people`).
"""

from __future__ import annotations

import threading
from typing import Any

from hubbub.collect.crowds import Period, by_period
from hubbub.collect.store import Store
from hubbub.model.guarantee import Guarantee
from hubbub.primitives.errors import Refused
from hubbub.privacy.over_time import DELTA, Span, all_rounds, crowd_in, over_time, round_guarantee
from hubbub.privacy.people import FAILURE, people_among
from hubbub.protocol.task import Task
from hubbub.server.forgers import influence_words

#: Periods whose guarantees are shown, the latest.
_SHOWN = 30
#: Guarantees that are remembered: each takes a moment to compute.
_REMEMBERED = 1000


class Promises:
    """Guarantees of tasks, remembered until other crowds come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spans: dict[bytes, tuple[int, list[Span], str]] = {}
        self._known: dict[tuple[bytes, int, int], Guarantee | None] = {}
        self._lock = threading.Lock()

    def of(self, task: Task) -> dict[str, Any]:
        """The part of a task's overview that is about guarantees."""
        crowd, reports = self._store.crowds(task.digest.hex())
        spans, unamplified = self._over_time(task, crowd)
        periods = [] if task.period == "once" else by_period(self._store, task.digest.hex())
        shuffled = None
        if spans[0].shuffled is not None:
            shuffled = _shuffled(task, spans[0], crowd, reports)
            shuffled["periods"] = [self._period(task, each) for each in periods[-_SHOWN:]]
            so_far, rounds = None, len({each.period.rpartition("@")[2] for each in periods})
            # Stores of earlier versions did not count crowds by period: nobody knows how many periods these were.
            if periods and sum(each.reports for each in periods) >= reports:
                so_far = self._promise(task, min(each.smallest for each in periods), rounds)
            shuffled["so_far"] = so_far and {"periods": rounds, **so_far.as_dict()}
        return {
            "guarantee": {"local": task.guarantee.as_dict(), "shuffled": shuffled},
            "unamplified": unamplified,
            "over_time": [span.as_dict() for span in spans],
            "forged": influence_words(task),
        }

    def _over_time(self, task: Task, crowd: int) -> tuple[list[Span], str]:
        """What is promised over time, and why shuffling adds nothing to it if reports were shuffled in vain."""
        with self._lock:
            known = self._spans.get(task.digest)
        if known is None or known[0] != crowd:
            size = people_in(task, crowd)
            people, reports = (size, None) if task.messages else (None, size)
            try:
                known = (crowd, over_time(task, reports, people=people) if crowd else over_time(task), "")
            except Refused as problem:
                known = (crowd, over_time(task), str(problem))
            with self._lock:
                self._spans[task.digest] = known
        return known[1:]

    def _period(self, task: Task, found: Period) -> dict[str, Any]:
        promise = self._promise(task, found.smallest, 1)
        epsilon = None if promise is None else promise.epsilon
        return {**found._asdict(), "people": people_in(task, found.smallest), "epsilon": epsilon}

    def _promise(self, task: Task, crowd: int, rounds: int) -> Guarantee | None:
        """What so many rounds promise whose crowds have so many reports; None if that is nothing more."""
        asked = (task.digest, crowd, rounds)
        with self._lock:
            if asked in self._known:
                return self._known[asked]
        size = people_in(task, crowd)
        try:
            made = (
                round_guarantee(task, size)
                if rounds == 1
                else all_rounds(crowd_in(task, size), rounds, DELTA)
            )
        except Refused:
            made = None
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[asked] = made
        return made


def people_in(task: Task, reports: int) -> int:
    """So many people's reports are in a crowd at least; without several messages, reports."""
    mean = task.mean_messages
    return reports if mean is None else people_among(reports, mean)


def _shuffled(task: Task, period: Span, crowd: int, reports: int) -> dict[str, Any]:
    """The guarantee of reports that came through the shuffler."""
    promise, people = period.shuffled, people_in(task, crowd)
    assert promise is not None
    which = "" if task.period == "once" else f" a person's reports of {period.name}, among"
    words = (
        f"{promise.words()} This is for{which} the {reports:,} reports that came through the shuffler: each hides "
        f"in its own crowd, and the smallest crowd had {crowd:,} reports"
    )
    if task.messages:
        words += (
            f", which are those of at least {people:,} people (but for one chance in {1 / FAILURE:,.0f}, if everybody "
            "sends as the task says)"
        )
    facts = {
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "crowd": crowd,
        "people": people,
        "reports": reports,
    }
    return {**facts, "per_person": task.reports_per_period, "words": f"{words}."}
