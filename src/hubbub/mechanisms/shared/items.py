"""Estimates from reports that name a bucket: how often an item's bucket is named, held or not.

Items are keys (sets), or a key's two sides, key+ and key- (events): a held key is one of its two items, chosen by
stochastic rounding of its value v in [-1, 1], key+ with probability (1 + v) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Moments, Quantity
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, UInt64s


@dataclass(frozen=True)
class ItemRates:
    """Probabilities that a report names the bucket of an item that is held, and of one that is not."""

    held: float
    absent: float
    sided: bool

    def moments(self, mechanism: Hashed, state: State, keys: Keys, ids: UInt64s) -> Moments:
        """Frequencies of keys; with sides also means, from the difference of the two."""
        n = max(state.count, 1)

        def frequencies(items: UInt64s) -> Floats:
            named: Floats = mechanism.tally(state, keys, items)[0] / n
            return (named - self.absent) / (self.held - self.absent)

        plus = frequencies(ids)
        if not self.sided:
            share = np.clip(plus, 0, 1)
            return Moments(plus, self.variance("frequency", n, share, share, share))
        minus = frequencies(keys.other_side(ids))
        frequency, mean = plus + minus, plus - minus
        share, middle, square = plausible(frequency, mean)
        return Moments(
            frequency,
            self.variance("frequency", n, share, middle, square),
            mean,
            self.variance("mean", n, share, middle, square),
            self._side(n, share, middle, square) - self._side(n, share, -middle, square),
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


def plausible(frequency: Any, mean: Any) -> tuple[Any, Any, Any]:
    """Estimates pulled into their possible range, for use in variance formulas.

    The mean square is not estimated; (mean)^2 / frequency is the least it can be, which makes the
    variance, if anything, too large.
    """
    share = np.clip(frequency, 0, 1)
    middle = np.clip(mean, -share, share)
    return share, middle, middle**2 / np.maximum(share, 1e-12)
