"""Reports that nobody's record stands behind, for rehearsals. Seeded, and therefore insecure.

Three attacks, from the bluntest to the strongest:

- random: any valid report, all of them alike;
- input: what an honest device sends that holds the target keys, with the values that the forger likes;
- maximal: the report that moves the estimates of the target keys most. Where a report has a public seed, a forger looks
  for seeds under which one report speaks for as many of the targets as possible (Cao, Jia and Gong's maximal gain
  attack), and sends only these. What a report says of other keys is what an empty record would have said. Where seeds
  come from the collector (`seed_from = "server"`), he takes the best of those that he gets for each report: as many as
  an honest device chooses among.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from hubbub.device.client import one_each, records_at_a_time
from hubbub.model.mechanism import Quantity
from hubbub.model.record import GRID, Entries
from hubbub.primitives.arrays import Bytes, Floats, Int64s, UInt64s
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

Attack = Literal["random", "input", "maximal"]
Direction = Literal["up", "down"]

#: Seeds that a forger tries, where there are more; and numbers that may be worked out for it.
_TRIED, _MOST_NUMBERS = 1 << 16, 1 << 26


def forge(
    task: Task,
    count: int,
    attack: Attack,
    targets: Sequence[str | int] = (),
    *,
    seed: int,
    quantity: Quantity | None = None,
    direction: Direction = "up",
) -> Bytes:
    """`count` forged reports [count, width] of a task, against what it says about the target keys.

    `quantity` is the one to be moved (left out: the mechanism's first), up or down. A conditional mean is moved by way
    of the mean. Attacks other than random need targets.
    """
    if attack not in get_args(Attack):
        raise Refused(f"There is no attack called {attack!r}; known are {', '.join(get_args(Attack))}.")
    if direction not in get_args(Direction):
        raise Refused(f"An attack goes up or down, not {direction!r}.")
    if count < 0:
        raise Refused(f"The number of forged reports cannot be {count}.")
    if attack == "random":
        return _random(task, count, seed)
    ids = np.unique(task.keys.ids_of(list(targets)))
    if not len(ids):
        raise Refused(f"The attack {attack!r} needs target keys.")
    if attack == "input":
        return _honest(task, _invented(task, ids, count, seed, direction), seed)
    return _maximal(task, ids, count, seed, aims(task, len(ids), quantity, direction))


def aims(task: Task, keys: int, quantity: Quantity | None, direction: Direction) -> Floats:
    """[2, keys]: how much of a key's frequency and mean is in what the forger wants to grow."""
    base = quantity or task.mechanism.quantities[0]
    if base == "sum":
        base = "mean" if "mean" in task.mechanism.quantities else "frequency"
    if base != "conditional" and base not in task.mechanism.quantities:
        raise Refused(f"Mechanism {task.mechanism.name} cannot estimate {base!r} here.")
    way = 1.0 if direction == "up" else -1.0
    center = task.scale.center if base == "mean" else 0.0
    each = (way, 0.0) if base == "frequency" else (way * center, way * task.scale.half)
    return np.repeat(np.array(each)[:, None], keys, axis=1)


def _random(task: Task, count: int, seed: int) -> Bytes:
    rng, layout = np.random.default_rng(seed), task.mechanism.layout
    columns = [
        rng.integers(0, field.limit - 1, count, dtype=np.uint64, endpoint=True) for field in layout.fields
    ]
    return layout.pack(np.stack(columns, axis=1))


def _invented(task: Task, ids: UInt64s, count: int, seed: int, direction: Direction) -> Entries:
    """Records that hold as many of the targets as count; downwards with the lowest value, and of sets none at all."""
    mechanism, rng = task.mechanism, np.random.default_rng(seed)
    if direction == "down" and mechanism.values == "set":
        return Entries(ids[:0], np.zeros(0, dtype=np.int64), np.zeros(count + 1, dtype=np.int64))
    held = min(len(ids), mechanism.max_entries)
    order = np.argsort(rng.random((count, len(ids))), axis=1)[:, :held]
    extreme = task.scale.high if direction == "up" else task.scale.low
    value = GRID if mechanism.values == "set" else int(task.scale.encode(np.array([extreme]))[0][0])
    offsets = np.arange(count + 1, dtype=np.int64) * held
    return Entries(ids[order].reshape(-1), np.full(count * held, value, dtype=np.int64), offsets)


def _honest(task: Task, entries: Entries, seed: int) -> Bytes:
    """One report of each record, as a device would make it."""
    coins, seeds = InsecureCoins(seed), SimulatedSeeds(seed + 1)
    step = records_at_a_time(task)
    made = [np.zeros((0, task.mechanism.layout.width), dtype=np.uint8)]
    for start in range(0, len(entries), step):
        part = entries.slice(start, min(start + step, len(entries)))
        made.append(one_each(task, part, coins, seeds)[0])
    return np.concatenate(made)


def _maximal(task: Task, ids: UInt64s, count: int, seed: int, weights: Floats) -> Bytes:
    """The loudest reports of the best seeds that were tried, as different ones as there are.

    Of seeds that are given, the i-th report takes the best of the i-th group, as the collector checks.
    """
    mechanism, layout = task.mechanism, task.mechanism.layout
    given, spread = task.seed_from == "server", layout.fields[0].limit
    tried = count * mechanism.seeds_per_report if given else count
    if spread > 1 and not given:
        room = _MOST_NUMBERS // (len(ids) * getattr(mechanism, "buckets", 1) * len(layout.fields))
        tried = max(count, min(_TRIED, spread, room))
    nobody = Entries(ids[:0], np.zeros(0, dtype=np.int64), np.zeros(tried + 1, dtype=np.int64))
    quiet = layout.unpack(_honest(task, nobody, seed))
    if given:
        quiet[:, 0] = mechanism.reported_seeds(SimulatedSeeds(seed + 1).draw(layout.fields[0].bits, tried))
    elif 1 < spread == tried:
        quiet[:, 0] = np.arange(spread, dtype=np.uint64)
    loud = mechanism.louder(task.keys, quiet, ids, weights)
    if spread == 1:
        return layout.pack(loud)
    gains = _gains(task, loud, ids, weights).sum(axis=0)
    if given:  # the seeds of a report are next to each other
        groups = np.arange(tried).reshape(count, mechanism.seeds_per_report)
        best = groups[np.arange(count), gains[groups].argmax(axis=1)]
    else:
        best = _best(gains, count, seed)
    return layout.pack(loud[best])


def _gains(task: Task, reports: UInt64s, ids: UInt64s, weights: Floats) -> Floats:
    """[2, reports]: what each report adds to the weighted sums of frequencies and of means."""
    said = task.mechanism.contributions(task.keys, reports, ids)
    return np.asarray(np.einsum("qrk,qk->qr", np.nan_to_num(said), weights))


def _best(gains: Floats, count: int, seed: int) -> Int64s:
    """`count` of the reports that gain most, none twice unless there are fewer."""
    rng = np.random.default_rng(seed)
    best = np.flatnonzero(gains >= gains.max(initial=-np.inf) - 1e-9 * np.abs(gains).max(initial=1.0))
    return rng.choice(best, count, replace=count > len(best))
