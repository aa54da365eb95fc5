"""The exact audit: what a task's mechanism loses, by enumeration of everything that is small enough.

Instances of the mechanism that was given, its class and whatever that overrides included: with two entries at most,
with one, with more of its own parameters where these would be lost (`worlds.small_tasks`), and as it is. The small
ones are enumerated for telling records under salts and seeds for which keys meet and part; the task as it is, for full
records of telling keys, as far as the leaves are few enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hubbub.checks.exact import (
    Impure,
    Mass,
    NotEnumerable,
    TooManyOutcomes,
    exceeds,
    largest_ratio,
    leaves_of,
    loss_with_delta,
    report_law,
)
from hubbub.checks.finding import Finding
from hubbub.checks.worlds import (
    Plain,
    TellingKeys,
    World,
    ends,
    full_records,
    neighbours_in,
    small_tasks,
    telling_records,
    worlds,
)
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.protocol.task import Task

#: Leaves of one record's law that are walked; of a small instance, of one more that differs from it, and as given.
_MOST_OF_A_RECORD = 1500
_MOST_OF_AN_INSTANCE, _MOST_OF_A_VARIANT, _MOST_AS_GIVEN = 16_000, 6_000, 15_000
#: Keys of a small instance.
_KEYS = 5


@dataclass(frozen=True)
class Loss:
    """What two neighbours lose, and whether that is more than was claimed."""

    epsilon: float
    refutes: bool
    one: Plain
    two: Plain


def neighbour_losses(task: Task, records: Sequence[Plain], seed: int) -> Iterator[Loss]:
    """The exact privacy loss of every pair of neighbours among these records, for a seed."""
    laws = [report_law(task, record, seed) for record in records]
    return losses_between(task, records, laws)


def losses_between(task: Task, records: Sequence[Plain], laws: Sequence[dict[bytes, Mass]]) -> Iterator[Loss]:
    """The losses of all pairs of neighbours whose laws are known."""
    claim = task.guarantee
    for i, one in enumerate(records):
        for j in range(i):
            if not neighbours_in(task, one, records[j]):
                continue
            ratio = largest_ratio(laws[i], laws[j])
            found, refutes = math.log(ratio), exceeds(ratio, claim.epsilon)
            if claim.delta and refutes:
                found = loss_with_delta(laws[i], laws[j], claim.delta)
                refutes = found > claim.epsilon * (1 + 1e-9)
            yield Loss(found, refutes, one, records[j])


def exact_loss(task: Task, records: Sequence[Plain], seeds: Sequence[int]) -> float:
    """The largest privacy loss between neighbours among these records, by exact enumeration."""
    return max(
        (loss.epsilon for seed in seeds for loss in neighbour_losses(task, records, seed)), default=0.0
    )


@dataclass
class _Looked:
    """What has been seen so far."""

    laws: int = 0
    pairs: int = 0
    pairs_as_given: int = 0
    worst: float = 0.0
    where: str = "no pair"
    refuted: bool = False

    def add(self, loss: Loss, name: str) -> None:
        self.pairs += 1
        if loss.epsilon > self.worst or (loss.refutes and not self.refuted):
            self.worst, self.where = max(loss.epsilon, self.worst), f"{name}: {loss.one} against {loss.two}"
        self.refuted |= loss.refutes


def exact_audit(task: Task) -> Finding:
    """Enumerate what was given: small instances of the mechanism, and itself where that is small enough."""
    if task.guarantee.delta and isinstance(task.mechanism, Hashed):
        raise NotEnumerable(
            "Delta is the share of bad hash functions here, so nothing is promised for a seed that is given."
        )
    looked = _Looked()
    objections: list[str] = []
    try:
        for name, small in small_tasks(task, _KEYS):
            places, records = worlds(small), telling_records(small)
            room = (_MOST_OF_A_VARIANT if "," in name else _MOST_OF_AN_INSTANCE) // len(places)
            for world in places:
                _look(looked, world, records, f"{name}, seed {world.seed}", room)
        before = looked.pairs
        for seed in (0, 1):
            records = list(_records_as_given(task, seed))
            _look(looked, World(task, seed), records, f"as given, seed {seed}", _MOST_AS_GIVEN // 2)
        looked.pairs_as_given = looked.pairs - before
    except Impure as problem:
        objections.append(str(problem))
    if not looked.laws and not objections:
        raise TooManyOutcomes(
            f"Mechanism {task.mechanism.name} has too many outcomes to be enumerated: use the sampled audit."
        )
    claim = task.guarantee
    if looked.refuted:
        objections.append(
            "a report is more than exp(epsilon) times as likely for one record as for its neighbour"
        )
    return Finding(
        "exact",
        claim.epsilon,
        claim.delta,
        looked.worst,
        1.0,
        0,
        looked.pairs,
        looked.where,
        objections=tuple(objections),
        entries=min(2, task.mechanism.max_entries),
        pairs_as_given=looked.pairs_as_given,
    )


def _look(looked: _Looked, world: World, records: Sequence[Plain], name: str, room: int) -> None:
    """Enumerate the records whose trees are small, the smallest first, and compare neighbours."""
    task, seed = world.task, world.seed
    sizes = [leaves_of(task, record, seed, _MOST_OF_A_RECORD) for record in records]
    known, laws = [], []
    for place in sorted(range(len(records)), key=lambda each: sizes[each]):
        if sizes[place] > min(_MOST_OF_A_RECORD, room):
            break
        with suppress(TooManyOutcomes):
            laws.append(report_law(task, records[place], seed, 2 * _MOST_OF_A_RECORD))
            known.append(records[place])
        room -= sizes[place]
    looked.laws += len(laws)
    for loss in losses_between(task, known, laws):
        looked.add(loss, name)


def _records_as_given(task: Task, seed: int) -> Iterator[Plain]:
    """Full records of telling keys, values at both ends and between, shortened and extended, and empty."""
    (top, bottom), guarantee = ends(task), task.guarantee
    signed = task.scale.kind != "set"
    yield {}
    yield {TellingKeys(task, seed).names[-1]: top}
    for _, first, second in full_records(task, seed):
        for value in (top, bottom) if signed else (top,):
            yield dict.fromkeys(first, value)
            yield dict.fromkeys(second, value)
        yield dict.fromkeys(first[1:], top)
        yield {first[0]: top}
        if signed:
            far = 7 * (top - bottom)
            for value in (bottom, 0.7 * top + 0.3 * bottom, top + far, bottom - far):
                yield {**dict.fromkeys(first, top), first[0]: value}
            yield {first[0]: bottom - far}
        if guarantee.unit == "l1" and signed:
            yield {first[0]: min(top, bottom + (guarantee.distance or 0))}
            yield {first[0]: bottom}
