"""From a body to the disk: which reports are good, and many batches in one transaction.

Batches that are waiting (`hubbub.collect.groups`) are looked at together, since most uploads hold one report or a few
and a look at a thousand takes hardly longer than a look at one, and are committed together.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hubbub.collect.clock import TRUSTED_DAYS
from hubbub.collect.lifetimes import lasting
from hubbub.collect.quotas import Quota
from hubbub.collect.segments import Outcome
from hubbub.collect.store import Batch, Store
from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.nonces import check_seeds
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import (
    LONGEST,
    MOST_COMBINATIONS,
    NotBegun,
    Stratum,
    first_day,
    labels_in,
    stratum_of,
    text_of,
)
from hubbub.protocol.task import Task

#: Numbers in reports that are looked at together: of larger lots, nothing but the bad ones is remembered.
_TOGETHER = 1 << 20
#: Refused reports that an answer lists.
_LISTED = 100
#: What batches say of their strata, that is remembered.
_REMEMBERED = 10_000
#: Why whole batches are refused.
BAD_LABELS = "labels that are missing, or not in the task's lists"
BAD_PERIOD = "a period that is none of the task's"
BAD_NONCE = "a batch id that is no nonce for these reports"
#: Why single ones are.
_BAD_SEED = "a seed that does not follow from the nonce"


@dataclass(frozen=True, slots=True)
class Examined:
    """The good reports of a batch, and what is wrong with the others."""

    payload: bytes | memoryview
    count: int
    problems: Sequence[dict[str, Any]] = ()
    rejects: Mapping[str, int] | None = None
    #: The name of the key that the reports were sealed for, and of their period, if they were.
    key: str = ""
    label: str = ""
    #: Why none of them is taken, in a sentence, if that is not about single reports.
    refusal: str = ""

    @property
    def rejected(self) -> int:
        """How many were refused."""
        return sum(self.rejects.values()) if self.rejects else 0


class Placed(NamedTuple):
    """The stratum that a batch belongs to; or why it belongs to none, as it is counted and as it is said.

    If that is because its period has not begun, the day on which it `begins`.
    """

    stratum: str
    reason: str = ""
    refusal: str = ""
    begins: datetime.date | None = None


def today_twice() -> tuple[datetime.date, datetime.date]:
    """The day, by a clock that nobody doubts."""
    today = datetime.datetime.now(datetime.UTC).date()
    return today, today


class Collected:
    """A task, with all that an upload needs to know of it at hand.

    `days` tells the earliest and the latest day that it may be (`hubbub.collect.clock`), and `retention` how long
    periods are kept apart.
    """

    def __init__(
        self,
        task: Task,
        days: Callable[[], tuple[datetime.date, datetime.date]] = today_twice,
        retention: int = 0,
    ) -> None:
        self.task, self.name, self.code, self.digest = task, task.digest.hex(), task.code, task.digest
        self.layout = task.mechanism.layout
        self.width = self.layout.width
        self.together = max(1, _TOGETHER // len(self.layout.fields))
        self._days, self._retention = days, retention
        self._places: dict[tuple[str, str, datetime.date, datetime.date], Placed] = {}
        #: Combinations of labels that are known to have come.
        self.combinations: set[str] = set()

    def quota(self, token: int, most: int) -> Quota | None:
        """What a token may send of this task now; None where there is no limit.

        A clock that jumps ahead gives nobody a new one.
        """
        return Quota(token, period_of(self.task, self._days()[0]), most) if most else None

    def placed(self, labels: str, period: str) -> Placed:
        """The stratum of a batch by what it says of itself, or why there is none."""
        asked = (labels[:LONGEST], period[:LONGEST], *self._days())
        found = self._places.get(asked)
        if found is None:
            reason = BAD_LABELS
            try:
                labels_in(self.task, labels)
                reason = BAD_PERIOD
                found = Placed(text_of(self.task, self._stratum(*asked)))
            except NotBegun as problem:
                found = Placed("", reason, str(problem), problem.begins)
            except Refused as problem:
                found = Placed("", reason, str(problem))
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[asked] = found
        return found

    def _stratum(self, labels: str, period: str, earliest: datetime.date, latest: datetime.date) -> Stratum:
        """The same as a stratum, or `Refused`: judged on the day, of those that it may be, that suits it best."""
        if not period and earliest < latest:
            return Stratum(labels_in(self.task, labels))
        begun = first_day(period)
        day = latest if begun is None else min(max(begun, earliest), latest)
        found = stratum_of(self.task, labels, period, day)
        # What was merged by a clock that was a week ahead does not begin anew.
        furthest = earliest + datetime.timedelta(days=TRUSTED_DAYS)
        return found._replace(period=lasting(found.period, self._retention, furthest))


@dataclass(slots=True)
class Arrival:
    """A batch that is to be written: whole reports, of which nobody knows yet which are good unless `examined` says."""

    collected: Collected
    id: str
    reports: bytes | memoryview
    checksum: bytes
    period: int
    crowd: int | None = None
    examined: Examined | None = None
    stratum: str = ""
    quota: Quota | None = None

    def batch(self) -> Batch:
        """As the store takes it."""
        found = self.examined
        assert found is not None
        rejects = found.rejects or {}
        name, check = self.collected.name, self.checksum
        about = (self.period, self.crowd, rejects, found.label, self.stratum, self.quota)
        return Batch(name, self.id, found.count, found.payload, check, *about)

    def refuse(self, reason: str, refusal: str) -> None:
        """Take none of its reports."""
        count = len(self.reports) // self.collected.width
        self.examined = Examined(b"", 0, rejects={reason: count}, refusal=refusal)


def bad_reports(collected: Collected, packed: Bytes) -> tuple[Int64s, Int64s]:
    """Places of the rows that are no reports, and the codes of the reasons."""
    places, codes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(packed), collected.together):
        _, reasons = collected.layout.unpack_each(packed[start : start + collected.together])
        bad = np.flatnonzero(reasons)
        places.append(start + bad)
        codes.append(reasons[bad])
    return np.concatenate(places), np.concatenate(codes)


def examine(
    collected: Collected,
    reports: bytes | memoryview,
    unopened: Mapping[int, str] | None = None,
    batch: str = "",
) -> Examined:
    """Separate good reports from bad ones. `unopened` are places of what was sent that are not among the reports.

    Where seeds come from here, those of a batch follow from its id.
    """
    packed = np.frombuffer(reports, dtype=np.uint8).reshape(-1, collected.width)
    bad, codes = bad_reports(collected, packed)
    reasons = {}
    if collected.task.seed_from == "server":
        wrong = check_seeds(collected.task, batch, collected.layout.unpack_each(packed)[0])
        reasons = dict.fromkeys(wrong.tolist(), _BAD_SEED)
    for place, code in zip(bad, codes, strict=True):
        reasons[int(place)] = collected.layout.reason(int(code))
    if not reasons and not unopened:
        return Examined(reports, len(packed))
    missing = unopened or {}
    sent = np.delete(np.arange(len(packed) + len(missing)), list(missing))
    found = {int(sent[place]): reason for place, reason in reasons.items()}
    found.update(missing)
    listed = [{"index": index, "reason": found[index]} for index in sorted(found)[:_LISTED]]
    good = np.delete(packed, list(reasons), axis=0)
    return Examined(good.tobytes(), len(good), listed, dict(Counter(found.values())))


def examine_together(arrivals: Sequence[Arrival]) -> None:
    """Examine all that are not: those of one task with one look, and one by one only if something is wrong."""
    waiting: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        if arrival.examined is None:
            waiting.setdefault(arrival.collected.name, []).append(arrival)
    for mine in waiting.values():
        collected = mine[0].collected
        packed = np.frombuffer(b"".join([arrival.reports for arrival in mine]), dtype=np.uint8)
        bad, _ = bad_reports(collected, packed.reshape(-1, collected.width))
        for arrival in mine:
            if len(bad) or collected.task.seed_from == "server":
                arrival.examined = examine(collected, arrival.reports, batch=arrival.id)
            else:
                arrival.examined = Examined(arrival.reports, len(arrival.reports) // collected.width)


#: What a sender waits for: what became of the batch, and what was in it.
Written = tuple[Outcome, Examined]


def write_together(store: Store, arrivals: Sequence[Arrival]) -> list[Written]:
    """Examine batches and append them to the log, all in one transaction."""
    examine_together(arrivals)
    new: dict[str, set[str]] = defaultdict(set)
    for arrival in arrivals:
        collected, labels = arrival.collected, arrival.stratum.partition("@")[0]
        mine, good = new[collected.name], arrival.examined is not None and arrival.examined.count > 0
        if labels and good and labels not in collected.combinations and labels not in mine:
            # Those that are about to be written are not among the known ones before they are: it may fail.
            known = store.known_strata(collected.name)
            collected.combinations |= {stratum.partition("@")[0] for stratum in known}
            mine.add(labels)
            if len(collected.combinations | mine) > MOST_COMBINATIONS:
                mine.remove(labels)
                words = f"More than {MOST_COMBINATIONS:,} combinations of labels would be too many."
                arrival.refuse(BAD_LABELS, words)
    outcomes = store.append([arrival.batch() for arrival in arrivals])
    return [
        (outcome, arrival.examined)
        for outcome, arrival in zip(outcomes, arrivals, strict=True)
        if arrival.examined is not None
    ]
