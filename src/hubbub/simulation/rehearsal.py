"""Run a task on a simulated crowd. Seeded and therefore insecure: for learning what would be learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.device.client import privatize
from hubbub.model.mechanism import Quantity
from hubbub.model.record import GRID, Entries, Summary
from hubbub.model.state import State
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.server.truncation import kept_of_long

#: Records that are privatized at a time where several collections are made.
_TOGETHER = 20_000


@dataclass(frozen=True)
class Simulation:
    """What a simulated collection produced."""

    packed: NDArray[np.uint8]
    state: State
    summary: Summary


def simulate(
    task: Task,
    entries: Entries,
    seed: int,
    progress: Callable[[str, int], None] = lambda step, done: None,
) -> Simulation:
    """Privatize, pack and aggregate a crowd with repeatable coins."""
    coins, seeds = InsecureCoins(seed), SimulatedSeeds(seed + 1)
    packed, summary = privatize(task, entries, coins, seeds, lambda done: progress("privatizing", done))
    state = aggregate(task, packed, progress=lambda done: progress("aggregating", done))
    return Simulation(packed, state, summary)


def repeated_states(task: Task, entries: Entries, runs: int, seed: int) -> Iterator[State]:
    """The states of many collections from one crowd; small crowds are privatized many at a time, which is quicker."""
    users, together = len(entries), max(1, min(runs, _TOGETHER // len(entries)))
    shift = np.arange(together)[:, None] * entries.offsets[-1]
    tiled = Entries(
        np.tile(entries.ids, together),
        np.tile(entries.values, together),
        np.concatenate([[0], (entries.offsets[1:] + shift).reshape(-1)]).astype(np.int64),
    )
    for first in range(0, runs, together):
        packed = simulate(task, tiled, seed + 10 * first).packed
        for run in range(min(together, runs - first)):
            yield aggregate(task, packed[run * users : (run + 1) * users])


def true_values(
    task: Task, entries: Entries, quantity: Quantity, ids: NDArray[np.uint64], sampled_down: bool = False
) -> NDArray[np.float64]:
    """What an estimate of these keys should have been, in the task's units (NaN where nobody has the key).

    With `sampled_down`, of records as they are reported: an entry counts with the probability that it is kept.
    """
    users = max(len(entries), 1)
    if not len(entries.ids):
        return np.full(len(ids), np.nan if quantity == "conditional" else 0.0)
    known, place = np.unique(entries.ids, return_inverse=True)
    counts = _kept(task, entries) if sampled_down else np.ones(len(entries.ids))
    held = np.bincount(place, weights=counts, minlength=len(known))
    values = task.scale.center * held + task.scale.half * np.bincount(
        place, weights=counts * (entries.values / GRID), minlength=len(known)
    )
    where = np.searchsorted(known, ids)
    where[where == len(known)] = 0
    found = known[where] == ids
    if quantity == "conditional":
        return np.where(found, values[where] / np.maximum(held[where], 1e-300), np.nan)
    column = held / users if quantity == "frequency" else values / users
    return np.where(found, column[where], 0.0)


def _kept(task: Task, entries: Entries) -> NDArray[np.float64]:
    """The probability with which each entry is part of the report."""
    if not task.mechanism.limits_entries:
        return np.ones(len(entries.ids))
    lengths = np.diff(entries.offsets)
    each = np.where(lengths > task.mechanism.max_entries, kept_of_long(task) / np.maximum(lengths, 1), 1.0)
    return np.repeat(each, lengths)
