"""Whether coins are used twice: reports of the same record under the same seed must agree by chance only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hubbub.checks.effort import affordable_reports
from hubbub.checks.events import binomial_bound, binomial_tail
from hubbub.checks.exact import FixedSeeds
from hubbub.checks.reports import packed_sample
from hubbub.checks.worlds import Plain, ends, full_records
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
    """Batches of one record under one seed, from the same coins, one after the other.

    Reports any power of two apart, and at the same places of two batches, must not agree more often than reports that
    have nothing to do with each other. All comparisons share `odds`.
    """
    records: tuple[Plain, ...] = ({}, dict.fromkeys(next(iter(full_records(task, 0)))[1], ends(task)[0]))
    sizes = batch_sizes(task)
    for record in records:
        for size, count in sizes.items():
            seeds = FixedSeeds(0, task.mechanism.seeds_per_report)
            batches = [packed_sample(task, record, size, seeds, coins) for _ in range(count)]
            between = [size * further for further in range(1, count)]
            share = odds / (len(records) * len(sizes))
            lag = agreeing_lag(np.concatenate(batches), between, share)
            if lag is not None:
                where = (
                    f"batches of {size}" if lag in between else f"reports {lag} apart in batches of {size}"
                )
                yield f"coins are used twice: {where} agree more often than by chance"
                return


def agreeing_lag(reports: NDArray[np.generic], further: Sequence[int], odds: float) -> int | None:
    """A distance at which reports agree more often than by chance: a power of two, or one of these.

    For every lag, all pairs, in two halves of disjoint ones; by chance, disjoint pairs at random. If reports are
    independent all counts are binomial with the same probability, so Clopper-Pearson intervals overlap, but for `odds`.
    """
    _, kinds = np.unique(reports, axis=0, return_inverse=True)
    kinds, places = kinds.reshape(-1), np.arange(len(reports))
    lags = sorted({1 << power for power in range(len(reports).bit_length() - 1)} | set(further))
    half = len(reports) // 2
    mixed = np.random.default_rng(half).permutation(kinds)
    share = odds / (3 * len(lags))
    by_chance = binomial_bound(int((mixed[:half] == mixed[half : 2 * half]).sum()), half, share, upper=True)
    for lag in lags:
        for turn in (0, 1):
            first = places[(places // lag % 2 == turn) & (places + lag < len(reports))]
            agreeing = int((kinds[first] == kinds[first + lag]).sum())
            if binomial_tail(agreeing, len(first), by_chance, lower_tail=False) < share:
                return lag
    return None
