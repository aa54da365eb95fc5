"""Exact samplers: what a kernel may ask its coins, in integers only.

Kernels flip coins through `below`, `chance` and `clamped_laplace`, and what is built on them. Interpreted, these ask
the coins object, or an enumeration of everything it could answer; compiled, they read random words from a buffer.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import kernel, primitive

#: Integer weight of an unfavoured outcome; a favoured one weighs floor(exp(epsilon) * UNIT).
UNIT = 1 << 32


class TapeEmpty(Exception):
    """A compiled kernel has used up its buffer of random words."""


class Tape(Protocol):
    """What an interpreted kernel needs from its coins."""

    def below(self, bound: int) -> int: ...
    def chance(self, numerator: int, denominator: int) -> bool: ...
    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int: ...


@lru_cache(maxsize=256)
def favoured_weight(epsilon: float, unit: int = UNIT) -> int:
    """W = floor(exp(epsilon) * unit), rounded down by exact arithmetic.

    `Decimal.exp` is correctly rounded, so at 60 digits it is within one unit of the last digit of
    the true value; taking that unit off before the floor keeps W / unit <= exp(epsilon) as integers.
    """
    context = Context(prec=60, rounding=ROUND_FLOOR)
    power = context.next_minus(context.exp(Decimal(epsilon)))
    floor = int(context.multiply(power, Decimal(unit)).to_integral_value(rounding=ROUND_FLOOR))
    weight = max(unit, floor)  # exp(epsilon) is at least 1, even where 60 digits cannot tell it from 1
    if weight > 1 << 56:
        raise Refused(f"epsilon = {epsilon:g} is too large for exact 64-bit weights; use at most 16.")
    return weight


def _native_below() -> Any:
    import numba

    @numba.njit(nogil=True)
    def below(tape: Any, bound: Any) -> Any:
        if bound < 1:
            raise ValueError("there is no number below 0 to draw")
        words, cursor = tape
        mask = np.int64(bound) - 1
        for shift in (1, 2, 4, 8, 16, 32):
            mask |= mask >> shift
        while True:
            if cursor[0] >= len(words):
                raise TapeEmpty
            value = words[cursor[0]] & mask
            cursor[0] += 1
            if value < bound:
                return value

    return below


@primitive(_native_below)
def below(tape: Tape, bound: int) -> int:
    """A uniform integer in 0 .. bound - 1 (rejection, never modulo)."""
    return tape.below(int(bound))


def _native_chance() -> Any:
    import numba

    # Inlined: a call between compiled functions counts references to the tape, which takes longer than the flip.
    draw = numba.njit(nogil=True, inline="always")(below.compiled().py_func)

    @numba.njit(nogil=True)
    def chance(tape: Any, numerator: Any, denominator: Any) -> Any:
        return draw(tape, denominator) < numerator

    return chance


@primitive(_native_chance)
def chance(tape: Tape, numerator: int, denominator: int) -> bool:
    """True with probability exactly numerator / denominator."""
    return tape.chance(int(numerator), int(denominator))


@kernel
def accept_exp(tape: Any, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), for 0 <= numerator <= denominator.

    Canonne, Kamath, Steinke 2020, Algorithm 1: the first k with a failed Bernoulli(gamma / k) is odd
    with probability 1 - gamma + gamma^2/2! - ... = exp(-gamma).
    """
    k = 1
    while chance(tape, numerator, denominator * k):
        k += 1
    return k % 2 == 1


@kernel
def sample_clamped_laplace(tape: Any, value: int, numerator: int, denominator: int, limit: int) -> int:
    """value + discrete Laplace noise of scale numerator / denominator, clamped to [-limit, limit].

    Noise law: P(y) = (e^(1/s) - 1) / (e^(1/s) + 1) * e^(-|y|/s), s the scale (Canonne, Kamath,
    Steinke 2020, Algorithm 2): u + numerator * v is geometric with rate 1 / numerator, dividing by
    the denominator makes the rate denominator / numerator, and a negative zero is drawn again.
    """
    while True:
        u = below(tape, numerator)
        if not accept_exp(tape, u, numerator):
            continue
        v = 0
        while accept_exp(tape, 1, 1):
            v += 1
        magnitude = (u + numerator * v) // denominator
        negative = below(tape, 2) == 1
        if negative and magnitude == 0:
            continue
        noised = value - magnitude if negative else value + magnitude
        clamped: int = min(max(noised, -limit), limit)
        return clamped


@primitive(lambda: sample_clamped_laplace.compiled())
def clamped_laplace(tape: Tape, value: int, numerator: int, denominator: int, limit: int) -> int:
    """Exact discrete Laplace noise around `value`, clamped; one branch point for enumeration."""
    return tape.clamped_laplace(int(value), int(numerator), int(denominator), int(limit))


@kernel
def random_sign(tape: Any, numerator: int, denominator: int) -> int:
    """+1 or -1 with mean exactly numerator / denominator (the papers' unbiased RandRound)."""
    if numerator == denominator:
        return 1
    if numerator == -denominator:
        return -1
    return 1 if chance(tape, denominator + numerator, 2 * denominator) else -1


@kernel
def randomized_response(tape: Any, truth: int, outcomes: int, favoured: int, other: int) -> Any:
    """`truth` with weight `favoured`, anything else with weight `other`; truth < 0: anything alike.

    With T = W + (N - 1) V the truth has (W - V) / T + (N V / T) / N = W / T, all others (N V / T) / N = V / T.
    """
    if truth >= 0 and chance(tape, favoured - other, favoured + (outcomes - 1) * other):
        return truth
    return below(tape, outcomes)
