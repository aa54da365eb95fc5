"""Run a task on a simulated crowd. Seeded and therefore insecure: for learning what would be learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.device.client import privatize
from hubbub.device.coins import InsecureCoins, SimulatedSeeds
from hubbub.record import Entries, Summary
from hubbub.server.fold import aggregate
from hubbub.server.state import State
from hubbub.task import Task


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
