"""Where audits look: small instances of a task, salts and seeds under which keys collide or do not, telling records.

A fault that shows only when two keys share a bucket, or only when they do not, is found only by somebody who looks at
both. So nothing here is left to the luck of a fixed salt: hashes are looked at, and salts, seeds and keys are picked
for how they fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from hubbub.checks.exact import small_records
from hubbub.checks.finding import entries_in_words
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.guarantee import Guarantee
from hubbub.model.hashing import hash_entries
from hubbub.model.keys import LENGTH_KEYS, Keys
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.protocol.task import Task

#: A record as people write it, in the units of its task.
Plain = dict[str, float]

#: Salts and seeds that are looked through for small instances, and how many of them are then enumerated.
_SALTS = ("5a" * 16, "c3" * 16, "0f" * 16)
_SEEDS = 256
_FEWEST_WORLDS, _MOST_WORLDS = 3, 5
#: Keys of a vocabulary that are looked at when telling ones are picked.
_MOST_KEYS = 4096


def task_for(mechanism: Mechanism, size: int = 4, salt: str = _SALTS[0], count_lengths: bool = False) -> Task:
    """A task over a small closed vocabulary."""
    keys = {"kind": "closed", "size": size, "salt": salt, "count_lengths": count_lengths}
    return Task.parse({"name": "conformance", "keys": keys, "mechanism": mechanism})


def are_neighbours(guarantee: Guarantee, one: Plain, two: Plain) -> bool:
    """Whether a guarantee speaks about exchanging these two records, whose values are in range.

    Unit entry: one key is added or removed, or the value of one key is changed. One key exchanged for another is two
    such steps, and costs twice as much.
    """
    changed = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
    if guarantee.unit == "record":
        return True
    if guarantee.unit == "entry":
        return len(changed) == 1
    return sum(abs(one.get(key, 0) - two.get(key, 0)) for key in changed) <= (guarantee.distance or 0)


def in_range(task: Task, record: Plain) -> Plain:
    """A record as it counts: values clipped to the range, and of sets the keys whose value is 1."""
    if task.scale.kind == "set":
        return {key: value for key, value in record.items() if value == 1}
    return {key: min(max(value, task.scale.low), task.scale.high) for key, value in record.items()}


def neighbours_in(task: Task, one: Plain, two: Plain) -> bool:
    """Whether a task's guarantee speaks about these records: distances are between values that are in range."""
    if task.guarantee.unit == "l1":
        one, two = in_range(task, one), in_range(task, two)
    return are_neighbours(task.guarantee, one, two)


# Small instances


def small_task(task: Task, keys: int, entries: int = 2, **fixed: Any) -> Task:
    """A task with the mechanism of another, small enough to enumerate: few entries, its own other choices, or `fixed`.

    The class of the mechanism is kept, with whatever it overrides. One whose parameters do not allow fewer entries is
    taken as it is.
    """
    mechanism = task.mechanism
    limit = {"max_entries": min(mechanism.max_entries, entries)}
    with suppress(ValidationError):
        mechanism = type(mechanism)(**mechanism.model_dump(exclude=set(mechanism.chosen)) | limit | fixed)
    small = mechanism.miniature()
    counting = task.keys.count_lengths and small.max_entries > 1
    if counting and "size" in type(small).model_fields:
        room = {"size": keys + len(LENGTH_KEYS)}
        small = type(small)(**small.model_dump(exclude=set(small.chosen)) | room)
        return task_for(small, keys, count_lengths=True)
    return task_for(small, min(keys, getattr(small, "size", keys)), count_lengths=counting)


def small_tasks(task: Task, keys: int) -> Iterator[tuple[str, Task]]:
    """Small instances of a task, and what they are: at most two entries, and at most one.

    Buckets are chosen anew for so few entries. Where the task has several and they have one, or the other way round,
    there is one more instance with (at most two of) the task's own. A distance below 1 is mostly slack for rounding,
    on a coarse grid: where that is what is protected, there is one more with distance 1, which shows what noise loses.
    """
    own = task.mechanism
    buckets, distance = getattr(own, "buckets", 0), getattr(own, "distance", None)
    few, few_in_words = {"buckets": min(buckets, 2)}, "1 bucket" if buckets == 1 else "2 buckets"
    for limit in sorted({1, min(2, own.max_entries)}, reverse=True):
        name = f"at most {entries_in_words(limit)}"
        small = small_task(task, keys, limit)
        yield name, small
        chosen = getattr(small.mechanism, "buckets", 0)
        if chosen > buckets or chosen == 1 < buckets:
            yield f"{name}, {few_in_words}", small_task(task, keys, limit, **few)
    if distance and distance < 1 and own.values == "signed":
        yield f"{name}, distance 1", small_task(task, keys, 1, distance=1.0)
        if buckets > 1:
            yield f"{name}, distance 1, {few_in_words}", small_task(task, keys, 1, distance=1.0, **few)


def examples_like(task: Task, keys: int) -> list[Plain]:
    """Every record over `keys` keys with up to one entry too many (values: both ends and one between)."""
    mechanism = task.mechanism
    values = [1.0] if mechanism.values == "set" else [-1.0, 1.0, 0.3]
    most = mechanism.max_entries if mechanism.refuses_longer else mechanism.max_entries + 1
    records = list(small_records([str(k) for k in range(keys)], values, min(most, keys)))
    return [r for r in records if len(r) < 3 or 0.3 not in r.values()]


def telling_records(task: Task) -> list[Plain]:
    """Records over the keys 0 .. 4 of a small task: short, full and too long; exchanged, extended and shortened.

    The longest have twice the entries that count, and one more. Values lie at both ends, far beyond them, in the
    middle, and between the points of any grid that is not very fine, so that rounding happens. With unit l1 some are
    exactly as far apart as is protected.
    """
    mechanism = task.mechanism
    a, b, c, d, e = (str(place % task.keys.count) for place in range(5))
    limit = mechanism.max_entries
    most = limit if mechanism.refuses_longer else 2 * limit + 1
    if mechanism.values == "set":
        records = list(small_records(sorted({a, b, c, d}), [1.0], min(limit + 1, most)))
        records += [dict.fromkeys(keys, 1.0) for keys in ((a, b, c), (a, b, c, d), (a, b, c, d, e))]
        records += [{e: 1.0}, {a: 7.0}, {a: 1.0, b: 0.0}]
    else:
        reach = min(task.guarantee.distance or 1.0, 1.0)
        records = [
            {},
            *({a: value} for value in (1.0, -1.0, 0.0, 0.3, reach, 0.3 - reach)),
            *({b: value} for value in (1.0, -1.0, -0.7)),
            *({a: value} for value in (7.0, -7.0)),
            {e: 1.0},
            {a: 1.0, b: 1.0},
            {a: -1.0, b: -1.0},
            {a: 1.0, b: -1.0},
            {a: 0.3, b: -0.7},
            {a: reach / 4, b: reach * 3 / 4},
            {a: 7.0, b: -7.0},
            {c: 1.0, d: 1.0},
            {c: -1.0, d: -1.0},
            {b: 1.0, c: 1.0},
            {b: 1.0, d: 1.0},
            {a: 1.0, b: 1.0, c: 1.0},
            {a: 1.0, b: -1.0, c: 1.0},
            {b: 1.0, c: 1.0, d: 1.0},
            {a: 1.0, b: 1.0, c: 1.0, d: 1.0},
            {a: 1.0, b: 1.0, c: 1.0, d: 1.0, e: 1.0},
        ]
    fitting = [record for record in records if len(record) <= most]
    return [record for place, record in enumerate(fitting) if record not in fitting[:place]]


@dataclass(frozen=True)
class World:
    """A task (with its salt) and the first public seed of every report."""

    task: Task
    seed: int


def worlds(task: Task, most: int = _MOST_WORLDS) -> list[World]:
    """A few salts and seeds such that every two keys collide in one of them and not in another.

    Both sides of a key count as keys where they have buckets of their own. "Meet" is the same bucket, once with equal
    and once with opposite signs where signs matter. Some of it may be impossible, and is then not waited for.
    """
    mechanism = task.mechanism
    if not isinstance(mechanism, Hashed | Compressive):
        return [World(task, 0)]
    names = [task.keys.name_of(place) for place in range(min(task.keys.count, 4))]
    seeds = np.arange(min(_SEEDS, mechanism.layout.fields[0].limit), dtype=np.uint64)
    signed = isinstance(mechanism, Compressive) or _votes_by_sign(mechanism)
    found: list[World] = []
    relations = []
    for salt in (task.keys.salt, *(salt for salt in _SALTS if salt != task.keys.salt)):
        salted = task.model_copy(update={"keys": Keys(**task.keys.model_dump() | {"salt": salt})})
        bucket, sign = (part.reshape(len(seeds), -1) for part in _falls(salted, seeds, names))
        first, second = np.triu_indices(bucket.shape[1], 1)
        met = bucket[:, first] == bucket[:, second]
        turned = (sign[:, first] != sign[:, second]) & signed
        relations.append(np.concatenate([~met, met & ~turned, met & turned], axis=1))
        found += [World(salted, int(seed)) for seed in seeds]
    shown = np.concatenate(relations)
    apart = shown[:, : shown.shape[1] // 3].sum(axis=1)
    seen = np.zeros(shown.shape[1], dtype=bool)
    chosen: list[World] = []
    while len(chosen) < most:
        fresh = (shown & ~seen).sum(axis=1)
        if not fresh.any():
            break
        # Where it makes no difference, other salts come first, and keys that part.
        used = {world.task.keys.salt for world in chosen}
        other = np.array([world.task.keys.salt not in used for world in found])
        best = int(np.argmax(1000 * fresh + 100 * other + apart))
        chosen.append(found[best])
        seen |= shown[best]
    if len(chosen) < min(most, _FEWEST_WORLDS):
        # All apart and all together has been seen: now half of them.
        chosen.append(found[int(np.argmin(np.abs(2 * apart - shown.shape[1] // 3)))])
    return chosen


def _votes_by_sign(mechanism: Hashed) -> bool:
    """Whether a report's vote for a key depends on the key's sign."""
    nothing = np.zeros((0, len(mechanism.layout.fields) - 1), dtype=np.int64)
    return any(votes.signed for votes in mechanism.votes(nothing))


# Telling keys and values of a task of any size


def ends(task: Task) -> tuple[float, float]:
    """The largest and the smallest value (of a set: there or not)."""
    scale = task.scale
    return (1.0, 0.0) if scale.kind == "set" else (scale.high, scale.low)


def _falls(task: Task, seeds: UInt64s, names: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Bucket and sign of keys under seeds, as [seeds, keys, sides]; block and sign of a row for sensing matrices."""
    mechanism, ids = task.mechanism, task.keys.ids_of(names)
    shape, many = (len(seeds), len(names), -1), np.tile(ids, len(seeds))
    entries = Entries(
        many, np.ones(len(many), dtype=np.int64), np.arange(len(seeds) + 1, dtype=np.int64) * len(names)
    )
    if isinstance(mechanism, Hashed):
        each = mechanism.seeds_per_report
        drawn = np.repeat(seeds, each) + np.tile(np.arange(each, dtype=np.uint64), len(seeds))
        bucket, sign = mechanism.hash(task.keys, entries, drawn)
        # Of several seeds, the first.
        return tuple(part.reshape(len(seeds), each, -1)[:, 0].reshape(shape) for part in (bucket, sign))  # type: ignore[return-value]
    if isinstance(mechanism, Compressive):
        _, sign = hash_entries(mechanism.family, task.keys, seeds, many, entries.offsets, 1)
        return np.tile(mechanism.block_of(task.keys, ids), len(seeds)).reshape(shape), sign.reshape(shape)
    alone = np.tile(np.arange(len(names)), len(seeds)).reshape(shape)
    return alone, np.ones_like(alone)


def _names(keys: Keys) -> list[str]:
    """Some keys of a task."""
    if keys.tree is not None:
        return keys.tree.some_keys(_MOST_KEYS)
    if keys.kind == "closed":
        return [keys.name_of(place) for place in range(min(keys.count, _MOST_KEYS))]
    return [f"key {place}" for place in range(_MOST_KEYS)]


class TellingKeys:
    """Keys of a task, to be picked by how they fall under a seed."""

    def __init__(self, task: Task, seed: int) -> None:
        self.names = _names(task.keys)
        bucket, sign = _falls(task, np.array([seed], dtype=np.uint64), self.names)
        self._bucket, self._sign = bucket[0, :, 0], sign[0, :, 0]

    def pick(self, count: int, buckets: int, sign: int = 1, without: Sequence[str] = ()) -> list[str]:
        """`count` keys of a sign in `buckets` buckets: not these, and not in their buckets; all as far as possible."""
        given = np.isin(self.names, list(without))
        taken = np.isin(self._bucket, self._bucket[given])
        wrong = self._sign != sign
        left = sorted(np.flatnonzero(~given).tolist(), key=lambda place: (taken[place], wrong[place]))
        rank: dict[int, int] = {}
        depth: dict[int, int] = {}
        order = []
        for place in left:
            own = int(self._bucket[place])
            number = rank.setdefault(own, len(rank))
            depth[own] = depth.get(own, -1) + 1
            # The buckets that are wanted first, one key of each after the other.
            order.append((number >= buckets, bool(wrong[place]), depth[own], number, place))
        return [self.names[place] for *_, place in sorted(order)[:count]]


def full_records(task: Task, seed: int, entries: int = 0) -> Iterator[tuple[str, list[str], list[str]]]:
    """Pairs of full records without a common key, by how their keys fall: a name, and the keys of both.

    With `entries`, the first of them has so many, as far as there are keys.
    """
    mechanism, keys = task.mechanism, TellingKeys(task, seed)
    limit = entries or min(mechanism.max_entries, max(1, len(keys.names) // 2))
    weights = getattr(mechanism, "response_weights", lambda: None)()
    favoured = weights[0] if weights else limit
    for name, buckets in (
        ("in as many buckets as can be favoured", min(limit, favoured)),
        ("each in one bucket", 1),
    ):
        first = keys.pick(limit, buckets)
        yield name, first, keys.pick(limit, buckets, -1, without=first)
        if limit == 1 or not isinstance(mechanism, Hashed):
            return
