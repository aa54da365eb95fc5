"""Arrays of bits: packed, set in bulk, and flipped by exact randomized response.

Every bit is flipped with probability flip / 2^62, an integer that was rounded up, the private side.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hubbub.primitives.arrays import Bytes, UInt64s
from hubbub.primitives.coins import Coins

#: Flip probabilities are multiples of 2^-PRECISION.
PRECISION = 62
#: Words of 64 bits that are flipped together.
_CHUNK = 1 << 16


def flip_for(gain: Fraction) -> int:
    """The flip probability 1 / (gain + 2), in units of 2^-62, rounded up.

    A bit that is 1 with probability r before the flip is 1 with probability p + r (1 - 2p) after it, and
    that lies in [p, 1 - p]. So a change of r by D changes the odds of what is seen by at most
    1 + D (1 - 2p) / p <= 1 + D gain (Lemma 4.1).
    """
    return math.ceil((1 << PRECISION) / (gain + 2))


def empty(cells: int) -> Bytes:
    """Zero bits, in whole 64-bit words."""
    return np.zeros(8 * -(-cells // 64), dtype=np.uint8)


def set_cells(bits: Bytes, cells: UInt64s) -> None:
    """Set the given bits; repeats are harmless."""
    marks = np.left_shift(np.uint8(1), (cells & np.uint64(7)).astype(np.uint8))
    np.bitwise_or.at(bits, (cells >> np.uint64(3)).astype(np.int64), marks)


def read_cells(bits: Bytes, cells: UInt64s) -> Bytes:
    """The given bits, as 0 or 1."""
    found = bits[(cells >> np.uint64(3)).view(np.int64)]
    return (found >> (cells & np.uint64(7)).astype(np.uint8)) & np.uint8(1)


def flip_cells(bits: Bytes, cells: int, flip: int, coins: Coins) -> None:
    """Randomized response on the first `cells` bits, in place; the filler bits stay 0."""
    if not hasattr(coins, "words"):
        for cell in range(cells):
            bits[cell >> 3] ^= coins.chance(flip, 1 << PRECISION) << (cell & 7)
        return
    words = bits.view("<u8")
    for first in range(0, len(words), _CHUNK):
        part = words[first : first + _CHUNK]
        part ^= noise_words(coins, len(part), flip)
    filler = 64 * len(words) - cells
    words[-1] &= np.uint64((1 << (64 - filler)) - 1)


def noise_words(coins: Coins, count: int, flip: int) -> UInt64s:
    """Words whose 64 bits are independently 1 with probability flip / 2^62.

    Each bit compares a uniform number with the probability, both read from the top, and is settled at the
    first place where they differ: about seven random words settle all 64 bits of a word.
    """
    result = np.zeros(count, dtype=np.uint64)
    unsettled = np.full(count, ~np.uint64(0))
    places = np.arange(count)
    for place in range(PRECISION - 1, -1, -1):
        drawn = coins.words(len(places)).view(np.uint64)
        if flip >> place & 1:
            result[places] |= unsettled & ~drawn
            unsettled &= drawn
        else:
            unsettled &= ~drawn
        left = np.flatnonzero(unsettled)
        if len(left) < len(places):
            unsettled, places = unsettled[left], places[left]
        if not len(places):
            break
    return result


def density(bits: Bytes, cells: int) -> float:
    """The share of bits that are 1."""
    return float(np.bitwise_count(bits.view("<u8")).sum(dtype=np.int64)) / cells
