"""Crowds whose records change slowly, and which report of a person is said when.

Seeded, and therefore insecure. `said_when` is the rule of `hubbub.device.memo` for many people at once; a test compares
the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubbub.model.record import GRID, Entries
from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused


@dataclass(frozen=True)
class Panel:
    """Sets of keys that people hold, period by period."""

    #: One record for each time that somebody has another one than before.
    entries: Entries
    keys: int
    #: Periods by people: the row of `entries` that a person holds. Equal records of one person are one row.
    held: Int64s

    def frequency(self, period: int) -> Floats:
        """True share of people who have each key in a period."""
        return self.shares(self.held[period])

    def shares(self, rows: Int64s) -> Floats:
        """The same for any rows."""
        ids = self.entries.take(rows).ids.astype(np.int64)
        return np.bincount(ids, minlength=self.keys) / len(rows)


def slow_panel(
    people: int,
    keys: int,
    periods: int,
    *,
    change: float,
    seed: int,
    entries: int = 1,
    exponent: float = 1.1,
    drift: float = 0.0,
) -> Panel:
    """People with `entries` different keys each, who exchange all of them with probability `change` between periods.

    Keys follow Zipf's law. With `drift`, so large a part of what is drawn in the last period follows Zipf's law over
    the same keys in another order, and a proportional part of what is drawn before.
    """
    if not (0 <= change <= 1 and 0 <= drift <= 1 and 1 <= entries <= keys and people > 0 and periods > 0):
        raise Refused("A panel has people, periods, at most as many entries as keys, and shares from 0 to 1.")
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    popularity /= popularity.sum()
    later = rng.permutation(popularity)
    begins = rng.random((periods, people)) < change
    begins[0] = True
    row = (np.cumsum(begins.T.ravel()) - 1).reshape(people, periods).T
    owner, when = np.nonzero(begins.T)
    part = drift * when / max(periods - 1, 1)
    chosen = np.empty((len(owner), entries), dtype=np.int64)
    step = max(1, (1 << 23) // keys)
    for start in range(0, len(owner), step):
        mixed = part[start : start + step, None]
        races = rng.standard_exponential((len(mixed), keys)) / ((1 - mixed) * popularity + mixed * later)
        chosen[start : start + step] = np.sort(
            np.argpartition(races, entries - 1, axis=1)[:, :entries], axis=1
        )
    _, first, same = np.unique(
        np.column_stack([owner, chosen]), axis=0, return_index=True, return_inverse=True
    )
    offsets = np.arange(len(owner) + 1, dtype=np.int64) * entries
    values = np.full(len(owner) * entries, GRID, dtype=np.int64)
    everything = Entries(chosen.ravel().astype(np.uint64), values, offsets)
    return Panel(everything, keys, first[same.ravel()][row])


def said_when(held: Int64s, cap: int) -> Int64s:
    """The row whose report a person says, period by period, if the first `cap` distinct rows get a report each."""
    periods, people = held.shape
    known = np.full((people, cap), -1, dtype=np.int64)
    count, said = np.zeros(people, dtype=np.int64), np.empty_like(held)
    last = held[0]
    for period in range(periods):
        now = held[period]
        is_known = (known == now[:, None]).any(axis=1)
        new = np.flatnonzero(~is_known & (count < cap))
        known[new, count[new]] = now[new]
        count[new] += 1
        is_known[new] = True
        said[period] = last = np.where(is_known, now, last)
    return said
