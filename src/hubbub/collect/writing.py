"""From a body to the disk: which reports are good, and many batches in one transaction.

Batches that are waiting (`hubbub.collect.groups`) are looked at together, since most uploads hold one report or a few
and a look at a thousand takes hardly longer than a look at one, and are committed together.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hubbub.collect.quotas import Quota
from hubbub.collect.segments import Outcome
from hubbub.collect.store import Batch, Store
from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.nonces import check_seeds
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import LONGEST, MOST_COMBINATIONS, labels_in, stratum_of, text_of
from hubbub.protocol.task import Task

#: Numbers in reports that are looked at together: of larger lots, nothing but the bad ones is remembered.
_TOGETHER = 1 << 20
#: Refused reports that an answer lists.
_LISTED = 100
#: What batches say of their strata, that is remembered.
_REMEMBERED = 10_000
#: Why whole batches are refused.
BAD_LABELS = "labels that are missing, or not in the task's lists"
BAD_PERIOD = "a period that is none of the task's, or has not begun"
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
    """The stratum that a batch belongs to; or why it belongs to none, as it is counted and as it is said."""

    stratum: str
    reason: str = ""
    refusal: str = ""


class Collected:
    """A task, with all that an upload needs to know of it at hand."""

    def __init__(self, task: Task) -> None:
        self.task, self.name, self.code, self.digest = task, task.digest.hex(), task.code, task.digest
        self.layout = task.mechanism.layout
        self.width = self.layout.width
        self.together = max(1, _TOGETHER // len(self.layout.fields))
        self._places: dict[tuple[str, str, datetime.date], Placed] = {}
        #: Combinations of labels that are known to have come.
        self.combinations: set[str] = set()

    def quota(self, token: int, most: int) -> Quota | None:
        """What a token may send of this task now; None where there is no limit."""
        today = datetime.datetime.now(datetime.UTC).date()
        return Quota(token, period_of(self.task, today), most) if most else None

    def placed(self, labels: str, period: str) -> Placed:
        """The stratum of a batch by what it says of itself, or why there is none."""
        asked = (labels[:LONGEST], period[:LONGEST], datetime.datetime.now(datetime.UTC).date())
        found = self._places.get(asked)
        if found is None:
            reason = BAD_LABELS
            try:
                labels_in(self.task, labels)
                reason = BAD_PERIOD
                found = Placed(text_of(self.task, stratum_of(self.task, *asked)))
            except Refused as problem:
                found = Placed("", reason, str(problem))
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[asked] = found
        return found


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
    for arrival in arrivals:
        collected, labels = arrival.collected, arrival.stratum.partition("@")[0]
        if labels and labels not in collected.combinations:
            known = store.known_strata(collected.name)
            collected.combinations |= {stratum.partition("@")[0] for stratum in known}
            if len(collected.combinations | {labels}) > MOST_COMBINATIONS:
                words = f"More than {MOST_COMBINATIONS:,} combinations of labels would be too many."
                arrival.refuse(BAD_LABELS, words)
            else:
                collected.combinations.add(labels)
    outcomes = store.append([arrival.batch() for arrival in arrivals])
    return [
        (outcome, arrival.examined)
        for outcome, arrival in zip(outcomes, arrivals, strict=True)
        if arrival.examined is not None
    ]
