"""Whether coins are used twice: reports of the same record under the same seed must agree by chance only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hubbub.checks.effort import affordable_reports
from hubbub.checks.events import binomial_bound
from hubbub.checks.exact import FixedSeeds
from hubbub.checks.worlds import Plain, ends, full_records
from hubbub.device.client import encode_record, privatize
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Bytes
from hubbub.primitives.coins import Coins
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: Batches of a size, compiled and interpreted; the size of the latter; and fewer than these would show nothing.
_COMPILED, _INTERPRETED = 4, 2
_SMALL, _SMALLEST = 256, 48


def batch_sizes(task: Task) -> dict[int, int]:
    """Sizes of batches that can be afforded, and how many of each: one size that is compiled, one that is not."""
    small = min(_SMALL, affordable_reports(task, compiled=False) // (2 * _INTERPRETED))
    sizes = {small: _INTERPRETED} if small >= _SMALLEST else {}
    if affordable_reports(task, compiled=True) >= 2 * _COMPILED * BULK:
        sizes[BULK] = _COMPILED
    return sizes


def repeated_coins(task: Task, coins: Coins, odds: float) -> Iterator[str]:
    """Batches of one record under one seed, from the same coins.

    Places of two batches, and neighbours within a batch, must not agree more often than places that have nothing to do
    with each other: two binomials, whose Clopper-Pearson intervals have to overlap. All comparisons share `odds`.
    """
    records: tuple[Plain, ...] = ({}, dict.fromkeys(next(iter(full_records(task, 0)))[1], ends(task)[0]))
    sizes = batch_sizes(task)
    share = odds / (len(records) * sum(sizes.values()) or 1)
    for record in records:
        for size, count in sizes.items():
            batches = [_batch(task, record, size, coins) for _ in range(count)]
            first = batches[0]
            by_chance = (first[:-7] == batches[1][7:]).all(axis=1)
            for place, other in enumerate(batches[1:], 2):
                if _more_often((first == other).all(axis=1), by_chance, share):
                    yield f"coins are used twice: batches 1 and {place} of {size} agree more often than by chance"
                    return
            if _more_often((first[:-1] == first[1:]).all(axis=1)[::2], by_chance, share):
                yield f"coins are used twice: neighbours in a batch of {size} agree more often than by chance"
                return


def _batch(task: Task, record: Plain, size: int, coins: Coins) -> Bytes:
    entries, _ = encode_record(task, record)
    offsets = np.arange(size + 1, dtype=np.int64) * len(entries.ids)
    many = Entries(np.tile(entries.ids, size), np.tile(entries.values, size), offsets)
    return privatize(task, many, coins, FixedSeeds(0, task.mechanism.seeds_per_report))[0]


def _more_often(agreeing: NDArray[np.bool_], by_chance: NDArray[np.bool_], odds: float) -> bool:
    low = binomial_bound(int(agreeing.sum()), len(agreeing), odds / 2, upper=False)
    return low > binomial_bound(int(by_chance.sum()), len(by_chance), odds / 2, upper=True)
