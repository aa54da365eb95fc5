"""How many of up to 2^64 empty entries are noticed, and which: exact, and never one by one.

`binomial` inverts the distribution function with integers: a uniform number is drawn bit by bit until
bounds on the function, kept as integers rounded down and up, leave one outcome. `subset` is Floyd's
algorithm. Both have exactly the law that flipping a coin for every entry would have.
"""

from __future__ import annotations

import numpy as np

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.samplers import Tape

#: Expected successes in one inversion; larger counts are sums of several.
_MEAN = 32
#: Up to here coins are flipped one by one.
_FEW = 64
_GUARD = 192


def binomial(coins: Tape, count: int, mantissa: int, exponent: int) -> int:
    """The number of successes in `count` trials of probability mantissa / 2^exponent."""
    if count <= _FEW:
        return sum(coins.chance(mantissa, 1 << exponent) for _ in range(count))
    block = (_MEAN << exponent) // mantissa
    whole, rest = divmod(count, block)
    return sum(_invert(coins, trials, mantissa, exponent) for trials in [block] * whole + [rest] * (rest > 0))


def _invert(coins: Tape, trials: int, mantissa: int, exponent: int) -> int:
    precision = 128
    drawn = coins.below(1 << precision)
    while (found := _locate(drawn, precision, trials, mantissa, exponent)) is None:
        precision += 64
        drawn = (drawn << 64) | coins.below(1 << 64)
    return found


def _locate(drawn: int, precision: int, trials: int, mantissa: int, exponent: int) -> int | None:
    """The outcome whose share of [0, 1) holds all of [drawn, drawn + 1) / 2^precision, if one does."""
    bits = precision + _GUARD
    low, high = _none_succeeds(trials, mantissa, exponent, bits)
    odds_below = (1 << exponent) - mantissa
    first, last = drawn << _GUARD, (drawn + 1) << _GUARD
    total_low, total_high = low, high
    for successes in range(trials):
        if last <= total_low:
            return successes
        if first < total_high:
            return None
        ways, over = (trials - successes) * mantissa, (successes + 1) * odds_below
        low, high = low * ways // over, -(-high * ways // over)
        total_low, total_high = total_low + low, total_high + high
    return trials


def _none_succeeds(trials: int, mantissa: int, exponent: int, bits: int) -> tuple[int, int]:
    """Bounds on (1 - mantissa / 2^exponent)^trials, in units of 2^-bits."""
    shifted = ((1 << exponent) - mantissa) << bits
    low, high = shifted >> exponent, -(-shifted >> exponent)
    result_low = result_high = 1 << bits
    while trials:
        if trials & 1:
            result_low, result_high = (result_low * low) >> bits, -((-result_high * high) >> bits)
        low, high = (low * low) >> bits, -((-high * high) >> bits)
        trials >>= 1
    return result_low, result_high


def subset(coins: Tape, size: int, count: int) -> UInt64s:
    """A uniform set of `count` of the numbers 0 .. size - 1, in order (Floyd)."""
    chosen: set[int] = set()
    for last in range(size - count, size):
        pick = coins.below(last + 1)
        chosen.add(last if pick in chosen else pick)
    return np.array(sorted(chosen), dtype=np.uint64)


def skip(places: UInt64s, taken: UInt64s) -> UInt64s:
    """The places-th numbers that are not in the sorted array `taken`."""
    free_before = taken - np.arange(len(taken), dtype=np.uint64)
    return places + np.searchsorted(free_before, places, side="right").astype(np.uint64)
