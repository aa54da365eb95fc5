"""What is counted beside a state so that forged reports can be noticed: integers that add up.

The tests are in `hubbub.server.forgeries`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from hubbub.model.telltale import Telltale
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

T = TypeVar("T")

#: Reports that are kept whole for the tests of pairs: so many, or as have so many numbers, but at least so many.
_KEPT, _MOST_NUMBERS, _FEWEST = 1 << 15, 1 << 20, 256
#: Tasks of which something is remembered.
_TASKS = 64
#: Reports after which the choice of places is repeated.
_TILE = 1 << 16


class Remembered(Generic[T]):
    """What follows from a task and takes a while to work out, for the last few tasks."""

    def __init__(self, make: Callable[[Task], T]) -> None:
        self._make, self._known = make, OrderedDict[bytes, T]()

    def __call__(self, task: Task) -> T:
        if task.digest not in self._known:
            self._known[task.digest] = self._make(task)
            while len(self._known) > _TASKS:
                self._known.popitem(last=False)
        return self._known[task.digest]


#: What is counted of a task's reports.
telltales_of = Remembered[tuple[Telltale, ...]](lambda task: task.mechanism.telltales(task.keys))


@dataclass
class Evidence:
    """Integers that are counted beside a state: how often each cell of each telltale was met, and some reports.

    All reports are counted. Of `stride` reports one is kept, and ever fewer. Which ones depends on their places only,
    by a fixed random choice, never on what they say, so they are a fair choice also where reports are sorted.
    """

    task: Task
    reports: int = 0
    stride: int = 1
    counts: list[Int64s] = field(init=False)
    kept: UInt64s = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [np.zeros(telltale.cells, dtype=np.int64) for telltale in telltales_of(self.task)]
        self.kept = np.zeros((0, len(self.task.mechanism.layout.fields)), dtype=np.uint64)

    @property
    def _room(self) -> int:
        """How many reports are kept at most; fewer, where they are wide."""
        return max(_FEWEST, min(_KEPT, _MOST_NUMBERS // len(self.task.mechanism.layout.fields)))

    def add(self, reports: UInt64s) -> None:
        """Count reports, unpacked as rows of numbers."""
        self._keep(reports)
        self.reports += len(reports)
        for telltale, counts in zip(telltales_of(self.task), self.counts, strict=True):
            counts += np.bincount(telltale.read(reports), minlength=telltale.cells)

    def _keep(self, reports: UInt64s) -> None:
        while len(self.kept) + len(reports) // self.stride > self._room:
            self._thin(2 * self.stride)
        self.kept = np.concatenate([self.kept, _some(reports, self.reports, self.stride)])

    def _thin(self, stride: int) -> None:
        self.kept, self.stride = _some(self.kept, 0, stride // self.stride), stride

    def merge(self, other: Evidence) -> None:
        """Add what was counted elsewhere, in place."""
        if other.task.digest != self.task.digest:
            raise Refused("Counts of different tasks cannot be added up.")
        self._thin(max(self.stride, other.stride))
        more = _some(other.kept, 0, self.stride // other.stride)
        while len(self.kept) + len(more) > self._room:
            self._thin(2 * self.stride)
            more = _some(more, 0, 2)
        self.kept = np.concatenate([self.kept, more])
        self.reports += other.reports
        for counts, others in zip(self.counts, other.counts, strict=True):
            counts += others


@lru_cache(maxsize=1)
def _ranks() -> Int64s:
    """A fixed random order of the places of a tile."""
    return np.random.default_rng(22).permutation(_TILE)


@lru_cache(maxsize=32)
def _places(share: int) -> Int64s:
    """One of `share` places of a tile."""
    return np.flatnonzero(_ranks() < _TILE // min(share, _TILE))


def _some(reports: UInt64s, start: int, share: int) -> UInt64s:
    """One of `share` reports, about, of those at the places from `start` on."""
    if share == 1 or not len(reports):
        return reports
    if len(reports) < _TILE:
        chosen = np.take(_ranks(), np.arange(start, start + len(reports)), mode="wrap") < _TILE // min(
            share, _TILE
        )
        return reports[chosen]
    tiles, fields = len(reports) // _TILE, reports.shape[1]
    whole = (
        reports[: tiles * _TILE]
        .reshape(tiles, _TILE, fields)
        .take(_places(share), axis=1)
        .reshape(-1, fields)
    )
    return np.concatenate([whole, _some(reports[tiles * _TILE :], 0, share)])
