"""How much an audit can afford: reports that take seconds, not minutes, on slow machines."""

from __future__ import annotations

from hubbub.primitives.kernel import BULK, numba_available
from hubbub.protocol.task import Task

#: Steps of a randomizer in about ten seconds compiled, and in about three interpreted.
_STEPS = {True: 100_000_000, False: 250_000}
#: Pairs of records that are sampled, at most; each has two sides.
_MOST_PAIRS = 6


def affordable_reports(task: Task, compiled: bool) -> int:
    """How many reports that is. A step is a bit of a report, or an entry under a seed."""
    mechanism = task.mechanism
    steps = max(mechanism.layout.bits, mechanism.max_entries * mechanism.seeds_per_report)
    return _STEPS[compiled and numba_available()] // steps


def affordable_tests(task: Task) -> int:
    """Pairs of records that can be sampled with batches that are compiled; 0 where even one takes too long."""
    return affordable_reports(task, compiled=True) // (2 * BULK) if numba_available() else _MOST_PAIRS


def affordable_samples(task: Task) -> int:
    """Samples per record of a pair: at most 200,000, and enough to be compiled, however many seeds share them."""
    reports = affordable_reports(task, compiled=True) // (2 * _MOST_PAIRS)
    least = BULK * (3 if task.mechanism.layout.fields[0].limit > 1 and affordable_tests(task) >= 3 else 1)
    return min(200_000, max(least, reports)) if numba_available() else max(1000, reports)
