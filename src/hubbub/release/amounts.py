"""Exact amounts: whole steps of the public grid, and the digits below a step, to the last bit.

Why not doubles: the sum of doubles is rounded, and a rounded sum can move by more than its terms did. Around
4096 rows of 2^52 and 4096 of -2^52 it can be wrong by thousands, so that one row more or less moves it from
far below a bound to far above. A double is a finite binary number, though: its digits are integers, and sums
of integers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.arrays import Bools, Floats, Int64s
from hubbub.primitives.coins import Coins
from hubbub.release.noise import DIGIT_BITS, round_up

#: No single amount is larger than this, in steps of the grid.
LARGEST = 1 << 52
_DIGIT = (1 << DIGIT_BITS) - 1
#: Sums are known exactly up to this times 2^28 steps, which is far beyond LARGEST and any bound.
_FAR = 1 << 30


@dataclass(frozen=True)
class Amounts:
    """Amounts in steps of the grid: amount i is steps[i] + sum over j of digits[i, j] 2^(-28 (j + 1)).

    The digits are at least 0 and below 2^28, so every amount is written in one way only, and steps is its
    floor.
    """

    steps: Int64s
    digits: Int64s

    @classmethod
    def of(cls, numbers: NDArray[Any], fraction_bits: int) -> Amounts:
        """Finite doubles, exactly, or integers; first clipped to LARGEST steps, which keeps distances or shrinks them.

        Nothing is rounded: scaling by a power of two, taking the floor and taking it off are exact in
        doubles.
        """
        if numbers.dtype.kind != "f":
            whole = np.clip(numbers, -LARGEST, LARGEST)
            return cls(whole, np.zeros((len(numbers), 0), dtype=np.int64))
        furthest = 2.0**-fraction_bits * LARGEST
        rest = np.ldexp(np.abs(np.clip(numbers, -furthest, furthest)), fraction_bits)
        columns: list[Int64s] = []
        while not columns or rest.any():
            columns.append(np.floor(rest).astype(np.int64))
            rest = np.ldexp(rest - columns[-1], DIGIT_BITS)
        table = np.stack(columns, axis=1) * np.where(numbers < 0, -1, 1)[:, None]
        return cls(*_carried(table[:, 0], table[:, 1:]))

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Int64s | Bools) -> Amounts:
        """Some of the amounts, or all of them in another order."""
        return Amounts(self.steps[rows], self.digits[rows])

    def sums(self, starts: Int64s, bound: int) -> tuple[Amounts, Bools]:
        """Sums over the runs that begin at `starts`, clipped to [-bound, bound]; and which had to be.

        Exact, hence: if one amount changes by D, one of the sums changes by at most D, and the others not at
        all. (The true sum changes by D, and clipping brings no two numbers further apart.) Halves of 28 bits
        add up to less than 2^63 for up to 2^34 rows, which is more than fit into memory.
        """
        low, digits = _carried(*(_runs(part, starts) for part in (self.steps & _DIGIT, self.digits)))
        high = _runs(self.steps >> DIGIT_BITS, starts) + (low >> DIGIT_BITS)
        steps = (np.clip(high, -_FAR, _FAR) << DIGIT_BITS) + (low & _DIGIT)
        above = (steps > bound) | ((steps == bound) & digits.any(axis=1))
        beyond = above | (steps < -bound)
        return Amounts(np.clip(steps, -bound, bound), np.where(beyond[:, None], 0, digits)), beyond

    def present(self) -> Bools:
        """Which amounts are not 0."""
        marks: Bools = (self.steps != 0) | self.digits.any(axis=1)
        return marks

    def rounded(self, coins: Coins) -> Int64s:
        """Whole steps: up with the probability that keeps the mean, exactly; no coins where nothing is left over."""
        return round_up(self.steps, self.digits, coins) if self.digits.size else self.steps

    def sizes(self) -> Floats:
        """Magnitudes in steps, as doubles, for people to look at."""
        places = 2.0 ** (-DIGIT_BITS * np.arange(1.0, self.digits.shape[1] + 1))
        return np.abs(self.steps + self.digits @ places)


def _carried(steps: Int64s, digits: Int64s) -> tuple[Int64s, Int64s]:
    """The same amounts with every digit in 0 .. 2^28 - 1, from the last place to the first."""
    columns = [steps, *digits.T]
    for place in range(len(columns) - 1, 0, -1):
        columns[place - 1] = columns[place - 1] + (columns[place] >> DIGIT_BITS)
        columns[place] = columns[place] & _DIGIT
    table = np.stack(columns, axis=1)
    return table[:, 0].copy(), table[:, 1:].copy()


def _runs(column: Int64s, starts: Int64s) -> Int64s:
    """Sums of rows, run by run."""
    if len(starts) == len(column):
        return column
    sums: Int64s = np.add.reduceat(column, starts, axis=0)
    return sums
