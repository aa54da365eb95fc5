"""Exact noise for central releases: discrete Laplace, stochastic rounding, and how rare a large draw is.

Only integers decide what is published. A scale is a fraction whose inverse was rounded down, a tail
probability is a fraction that was rounded up, and a real number is rounded to the grid with exactly the
probability its binary expansion says.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hubbub.primitives.arrays import Int64s
from hubbub.primitives.batch import per_record, run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import chance, clamped_laplace

#: Numerator and denominator of the scale of discrete Laplace noise, in steps of the grid.
Scale = tuple[int, int]

#: Digits below a step of the grid are taken this many bits at a time.
DIGIT_BITS = 28
_ONE = 1 << 40
DROWNED = "epsilon is too small for this grid: the noise would drown everything."
_DOWN = Context(prec=60, rounding=ROUND_FLOOR)
_UP = Context(prec=60, rounding=ROUND_CEILING)
#: Entries per call of a compiled kernel: bounds the memory that random words take.
_CHUNK = 1 << 20


def log1p_down(gain: Fraction) -> Fraction:
    """ln(1 + gain), rounded down."""
    sum_down = _DOWN.divide(Decimal(gain.numerator + gain.denominator), Decimal(gain.denominator))
    return Fraction(max(_DOWN.next_minus(_DOWN.ln(sum_down)), Decimal(0)))


def laplace_scale(step_epsilon: Fraction) -> Scale:
    """The smallest scale on offer with exp(1 / scale) <= exp(step_epsilon): its inverse is rounded down."""
    inverse = math.floor(step_epsilon * _ONE)
    if inverse < 2:
        raise Refused(DROWNED)
    return _ONE, inverse


def decay(scale: Scale) -> float:
    """The factor between the probabilities of y and y + 1."""
    return math.exp(-scale[1] / scale[0])


def tail_up(scale: Scale, least: int) -> tuple[int, int]:
    """P(noise >= least), least >= 1, rounded up to a 48-bit mantissa: (a, b) stands for a / 2^b.

    With r = exp(-1 / scale) the probability is r^least / (1 + r).
    """
    one_step = _DOWN.divide(Decimal(-scale[1]), Decimal(scale[0]))
    power = _UP.next_plus(_UP.exp(_UP.divide(Decimal(-scale[1] * least), Decimal(scale[0]))))
    below = _DOWN.add(Decimal(1), _DOWN.next_minus(_DOWN.exp(one_step)))
    exact = Fraction(_UP.divide(power, below))
    exponent = 48 + exact.denominator.bit_length() - exact.numerator.bit_length()
    return math.ceil(exact * (1 << exponent)), exponent


def tail(scale: Scale, least: int) -> Fraction:
    """An upper bound on P(noise >= least)."""
    mantissa, exponent = tail_up(scale, least)
    return Fraction(mantissa, 1 << exponent)


def least_with_tail(scale: Scale, probability: float) -> int:
    """The smallest n >= 1 with P(noise >= n) <= probability."""
    wanted = Fraction(probability)
    guess = -math.log(probability * (1 + decay(scale))) * scale[0] / scale[1]
    least = max(1, math.floor(guess) - 1)
    while tail(scale, least) > wanted:
        least += 1
    return least


class _Laplace(NamedTuple):
    numerator: int
    denominator: int
    limit: int


@per_record
def _noise(tape: Any, i: int, columns: Any, shape: Any, noised: Any) -> None:
    noised[i] = clamped_laplace(tape, columns[0][i], shape.numerator, shape.denominator, shape.limit)


@per_record
def _climb(tape: Any, i: int, places: Any, breaks: Any, levels: Any) -> None:
    """Round up from break `floors[i]` to the next with the probability that keeps the mean."""
    values, floors = places
    j = floors[i]
    levels[i] = j
    if j + 1 < len(breaks) and values[i] > breaks[j]:
        levels[i] = j + chance(tape, values[i] - breaks[j], breaks[j + 1] - breaks[j])


@per_record
def _round(tape: Any, i: int, parts: Any, base: int, rounded: Any) -> None:
    """Add 1 if a uniform number, drawn digit by digit, is below the one whose digits to the base are given."""
    wholes, digits = parts
    last = digits.shape[1] - 1
    up = 0
    for j in range(last + 1):
        if chance(tape, digits[i, j], base):
            up = 1
            break
        if j == last or not chance(tape, 1, base - digits[i, j]):
            break
    rounded[i] = wholes[i] + up


def _run(batch: Kernel, coins: Coins, inputs: tuple[Int64s, ...], shape: Any) -> Int64s:
    """Run a kernel that maps rows of `inputs` to one array, a chunk at a time."""
    result = np.zeros(len(inputs[0]), dtype=np.int64)
    for first in range(0, len(result), _CHUNK):
        part = slice(first, first + _CHUNK)
        arrays = tuple(column[part] for column in inputs)
        run_kernel(batch, coins, len(arrays[0]), arrays, shape, result[part])
    return result


def add_noise(values: Int64s, scale: Scale, limit: int, coins: Coins) -> Int64s:
    """values + discrete Laplace noise, clamped to [-limit, limit] (which is post-processing)."""
    return _run(_noise, coins, (values,), _Laplace(*scale, limit))


def beyond(count: int, scale: Scale, limit: int, coins: Coins) -> Int64s:
    """How far `count` draws that reached a threshold lie above it, clamped to limit.

    Noise has no memory: given noise >= t >= 1, noise - t is geometric, (1 - r) r^j. Folding two-sided
    noise, y -> y for y >= 0 and -y - 1 for y < 0, gives that law from one draw.
    """
    drawn = add_noise(np.zeros(count, dtype=np.int64), scale, limit + 1, coins)
    return np.minimum(np.where(drawn >= 0, drawn, -drawn - 1), limit)


def round_to_breaks(values: Int64s, breaks: Int64s, coins: Coins) -> Int64s:
    """Stochastic rounding of values >= 0 to one of the increasing breaks; returns its index.

    Between neighbouring breaks the mean is kept (RandRound, Lemma 2.6); outside them the nearest is taken.
    """
    floors = np.maximum(np.searchsorted(breaks, values, side="right") - 1, 0).astype(np.int64)
    return _run(_climb, coins, (values, floors), breaks)


def round_up(wholes: Int64s, digits: Int64s, coins: Coins) -> Int64s:
    """wholes[i] + 1 with probability 0.digits[i, 0] digits[i, 1] ... to the base 2^28, wholes[i] otherwise.

    A uniform digit is below the given one with probability digit / base. Of the others it is the same with probability
    1 / (base - digit), and then the next digit decides: digit / base + (1 / base) * (what follows), as it should be.
    """
    return _run(_round, coins, (wholes, digits), 1 << DIGIT_BITS)
