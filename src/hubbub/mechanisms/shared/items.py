"""Estimates from reports that name a bucket: how often an item's bucket is named, held or not.

Items are keys (sets), or a key's two sides, key+ and key- (events): a held key is one of its two items, chosen by
stochastic rounding of its value v in [-1, 1], key+ with probability (1 + v) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.count_laws import Counts
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Moments, Quantity
from hubbub.model.state import State
from hubbub.primitives.arrays import Int64s, UInt64s


@dataclass(frozen=True)
class ItemRates:
    """Probabilities that a report names the bucket of an item that is held, and of one that is not."""

    held: float
    absent: float
    sided: bool

    def moments(self, mechanism: Hashed, state: State, keys: Keys, ids: UInt64s) -> Moments:
        """Frequencies of keys; with sides also means, from the difference of the two."""
        n = max(mechanism.heard(state, keys), 1)
        plus = mechanism.tally(state, keys, ids)[0]
        if not self.sided:
            counts = self._counts(n, plus)
            share = counts.told
            return Moments(
                counts.frequency, self.variance("frequency", n, share, share, share), counts=counts
            )
        minus = mechanism.tally(state, keys, keys.other_side(ids))[0]
        counts = self._counts(n, plus + minus, plus - minus)
        share, middle, square = plausible(counts)
        return Moments(
            counts.frequency,
            self.variance("frequency", n, share, middle, square),
            counts.mean,
            self.variance("mean", n, share, middle, square),
            self._side(n, share, middle, square) - self._side(n, share, -middle, square),
            counts,
        )

    def _counts(self, reports: int, named: Int64s, signed: Int64s | None = None) -> Counts:
        """Votes for a key (sets), or for its two sides, whose buckets are independent of each other."""
        absent, gap, sides = self.absent, self.held - self.absent, 2 if self.sided else 1
        alone, held = sides * absent * (1 - absent), gap * (1 - 2 * absent)
        return Counts(
            reports, named, sides * absent, gap, (alone, held - gap**2, 0.0), signed, gap, (alone, held)
        )

    def variance(self, quantity: Quantity, users: int, frequency: Any, mean: Any, square: Any) -> Any:
        """Variance of a key's estimate, given its frequency, mean and mean square."""
        if not self.sided:
            return self._side(users, frequency, frequency, frequency)
        both = self._side(users, frequency, mean, square) + self._side(users, frequency, -mean, square)
        # Rounding to one side rules out the other: the sides' covariance is -(frequency - square) / 4n.
        rounding = (frequency - square) / (2 * users)
        return both + rounding if quantity == "mean" else both - rounding

    def _side(self, users: int, frequency: Any, mean: Any, square: Any) -> Any:
        """Variance of the frequency of key+ (of key-: with -mean)."""
        gap = self.held - self.absent
        rounded, rounded_twice = (frequency + mean) / 2, (frequency + 2 * mean + square) / 4
        noise = (
            self.absent * (1 - self.absent) + gap * (1 - 2 * self.absent) * rounded - gap**2 * rounded_twice
        )
        return noise / (users * gap**2)


def plausible(counts: Counts) -> tuple[Any, Any, Any]:
    """Frequency, mean and mean square for use in variance formulas: possible ones, without what may be noise.

    The mean square is not estimated; the least it can be makes the variance, if anything, too large.
    """
    share = counts.told
    return share, np.clip(counts.mean, -share, share), counts.square
