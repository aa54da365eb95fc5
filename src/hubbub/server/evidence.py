"""What is kept beside a state so that forged reports can be noticed: some of the reports, as they came.

Which ones depends on their places only, by a fixed random choice, never on what they say: so they are a fair choice of
all reports, and the same one wherever and in whatever lots these are counted. Whoever knows at which places his reports
will be counted also knows which of them are looked at. The tests are in `hubbub.server.forgeries`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.model.telltale import Telltale
from hubbub.primitives.arrays import Bytes, Int64s, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task

T = TypeVar("T")
R = TypeVar("R", np.uint8, np.uint64)

#: Reports that are kept: so many, or as have so many numbers, but at least so many; fewer of each of many periods.
_KEPT, _MOST_NUMBERS, _FEWEST, _KEPT_OF_PERIOD = 1 << 19, 1 << 21, 256, 1 << 14
#: Tasks of which something is remembered.
_TASKS = 64
#: Reports after which the choice of places is repeated.
_TILE = 1 << 16


class Remembered(Generic[T]):
    """What follows from a task and takes a while to work out, for the last few tasks."""

    def __init__(self, make: Callable[[Task], T], most: int = _TASKS) -> None:
        self._make, self._most, self._known = make, most, OrderedDict[bytes, T]()

    def __call__(self, task: Task) -> T:
        if task.digest not in self._known:
            self._known[task.digest] = self._make(task)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return self._known[task.digest]


#: What is counted of a task's reports.
telltales_of = Remembered[tuple[Telltale, ...]](lambda task: task.mechanism.telltales(task.keys))


def told_by_states(task: Task) -> bool:
    """Whether the state of a task's reports tells all that can be tested of them, so that none have to be kept."""
    if task.memoize != "off" or task.mechanism.keeps_reports(task.keys):
        return False
    return all(telltale.of_state is not None for telltale in telltales_of(task))


@dataclass
class Sample:
    """One of `stride` of so many reports: all of them as long as there is room, then ever fewer."""

    room: int
    reports: int = 0
    #: Rows of numbers, each with the rank of its place: one of `stride` has a rank below 2^16 / stride.
    parts: list[tuple[NDArray[np.uint16], UInt64s]] = field(default_factory=list)

    @property
    def stride(self) -> int:
        """The least power of two that leaves room for all; of 2^16 reports, one is always kept."""
        return min(_TILE, 1 << max(0, -(-self.reports // self.room) - 1).bit_length())

    @property
    def kept(self) -> UInt64s:
        """The reports that are looked at."""
        if len(self.parts) > 1:
            ranks, rows = zip(*self.parts, strict=True)
            self.parts = [(np.concatenate(ranks), np.concatenate(rows))]
        return self.parts[0][1] if self.parts else np.zeros((0, 1), dtype=np.uint64)

    def add(self, count: int, start: int, take: Callable[[Int64s | None], UInt64s]) -> None:
        """Count reports at the places from `start` on; `take` gets those at given places among them, or all."""
        self._grow(count)
        if self.stride == 1:
            ranks = np.take(_ranks(), np.arange(start, start + count), mode="wrap")
            self.parts.append((ranks, take(None)))
            return
        inside = _places(self.stride)
        tiles = np.arange(start // _TILE, (start + count - 1) // _TILE + 1) * _TILE
        places = (tiles[:, None] + inside).reshape(-1) - start
        begin, end = np.searchsorted(places, [0, count])
        ranks = np.tile(_ranks()[inside], len(tiles))[begin:end]
        self.parts.append((ranks, take(places[begin:end])))

    def merge(self, other: Sample) -> None:
        """Add what was kept elsewhere."""
        before = other.stride
        self._grow(other.reports)
        self.parts += [_thinned(part, self.stride) if self.stride > before else part for part in other.parts]

    def _grow(self, count: int) -> None:
        before = self.stride
        self.reports += count
        if self.stride > before:
            self.parts = [_thinned(part, self.stride) for part in self.parts]


@dataclass
class Evidence:
    """Some of a task's reports: of all together, or of each period where devices say the same again in the next.

    Reports of one period are independent of each other, because everybody is asked once in it, also in tasks that
    memoize. Of several periods they then are not: such reports are only looked at where their period is told.
    """

    task: Task
    #: How many reports are kept, at most.
    most: int = _KEPT
    #: By period, and under "" where reports of all periods are looked at together.
    samples: dict[str, Sample] = field(default_factory=dict)
    #: Reports that are not looked at: nothing tells their period, or their state says all that there is to say.
    untold: int = 0

    @property
    def reports(self) -> int:
        """How many reports these are a choice of."""
        return sum(sample.reports for sample in self.samples.values())

    def add(self, reports: UInt64s, stratum: Stratum = UNTOLD) -> None:
        """Look at reports, unpacked as rows of numbers."""
        self._add(len(reports), stratum, None, lambda places: _rows(reports, places))

    def add_packed(self, packed: Bytes, stratum: Stratum = UNTOLD, start: int | None = None) -> None:
        """Look at reports [n, width] that are known to be valid; `start` is the first one's place, if it is another."""
        layout = self.task.mechanism.layout
        self._add(len(packed), stratum, start, lambda places: layout.unpack(_rows(packed, places)))

    def _add(
        self, count: int, stratum: Stratum, start: int | None, take: Callable[[Int64s | None], UInt64s]
    ) -> None:
        if not count:
            return
        if told_by_states(self.task):
            self.untold += count
            return
        if self.task.memoize == "off":
            name = ""
        elif self.task.period != "once" and len(stratum.period) == PERIOD_BYTES[self.task.period]:
            name = stratum.period
        else:
            self.untold += count
            return
        sample = self._sample(name)
        sample.add(count, sample.reports if start is None else start, take)

    def _sample(self, name: str) -> Sample:
        fields = len(self.task.mechanism.layout.fields)
        most = min(self.most, _KEPT_OF_PERIOD) if name else self.most
        return self.samples.setdefault(name, Sample(max(_FEWEST, min(most, _MOST_NUMBERS // fields))))

    def merge(self, other: Evidence) -> None:
        """Add what was seen elsewhere, in place."""
        if other.task.digest != self.task.digest:
            raise Refused("Counts of different tasks cannot be added up.")
        self.untold += other.untold
        for name, sample in other.samples.items():
            self._sample(name).merge(sample)


def _rows(reports: NDArray[R], places: Int64s | None) -> NDArray[R]:
    """Some rows, or a copy of all."""
    return reports.copy() if places is None else reports.take(places, axis=0)


def _thinned(part: tuple[NDArray[np.uint16], UInt64s], stride: int) -> tuple[NDArray[np.uint16], UInt64s]:
    ranks, rows = part
    chosen = np.flatnonzero(ranks < _TILE // stride)
    return ranks[chosen], rows.take(chosen, axis=0)


@lru_cache(maxsize=1)
def _ranks() -> NDArray[np.uint16]:
    """A fixed random order of the places of a tile."""
    return np.random.default_rng(22).permutation(_TILE).astype(np.uint16)


@lru_cache(maxsize=32)
def _places(stride: int) -> Int64s:
    """One of `stride` places of a tile."""
    return np.flatnonzero(_ranks() < _TILE // stride)
