"""Exact samplers: what a kernel may ask its coins, in integers only.

Kernels flip coins through `below`, `chance` and `clamped_laplace`, and what is built on them. Interpreted, these ask
the coins object, or an enumeration of everything it could answer; compiled, they read random words from a buffer.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import Kernel, kernel, primitive

#: Integer weight of an unfavoured outcome; a favoured one weighs floor(exp(epsilon) * UNIT).
UNIT = 1 << 32


class TapeEmpty(Exception):
    """A compiled kernel has used up its buffer of random words."""


class Tape(Protocol):
    """What an interpreted kernel needs from its coins."""

    def below(self, bound: int) -> int: ...
    def chance(self, numerator: int, denominator: int) -> bool: ...
    def draw(self, pool: int, bound: int) -> tuple[int, int]: ...
    def coin(self, pool: int, numerator: int, denominator: int) -> tuple[bool, int]: ...
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


# The same from a pool of digits. A digit is 8 random bits; a pool is a number that holds some of them below a first 1.

#: A pool without digits.
EMPTY = 1
#: Denominators from here on leave no room for a digit in a 64-bit number.
_WIDE = 1 << 54


def _native_word() -> Any:
    import numba

    @numba.njit(nogil=True, inline="always")
    def word(tape: Any) -> Any:
        words, cursor = tape
        if cursor[0] >= len(words):
            raise TapeEmpty
        cursor[0] += 1
        return words[cursor[0] - 1]

    return word


@primitive(_native_word)
def word(tape: Any) -> int:
    """64 random bits, as a signed number: the next word of the tape."""
    return int(tape.word())


def _pooled_below(tape: Any, pool: int, bound: int) -> tuple[int, int]:
    """A uniform number of 0 .. bound - 1 as `below` finds it; what is left of its words goes to the pool.

    Whether a word is rejected depends on its low bits alone, so the digits from its high bits are as good as others.
    """
    mask = bound - 1
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> shift
    while True:
        drawn = word(tape)
        if mask < 1 << 24 and pool < 1 << 22:
            pool = pool << 40 | (drawn >> 24) & 0xFFFFFFFFFF
        elif mask < 1 << 40 and pool < 1 << 38:
            pool = pool << 24 | (drawn >> 40) & 0xFFFFFF
        if drawn & mask < bound:
            return drawn & mask, pool


def _pooled_coin(tape: Any, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
    """Whether a uniform number of [0, 1) is below numerator / denominator, from as many of its digits as that takes.

    With rest / denominator what is left of the fraction: the next digit D of the number is less than the fraction's if
    256 rest - D denominator is at least denominator, greater if it is negative, and the same otherwise, where that is
    the new rest. The first digit that differs decides; if the fraction ends before, the number is not below it. So the
    answer is true with exactly that probability. It takes 256 / 255 digits on average, or fewer.
    """
    if numerator <= 0 or numerator >= denominator:
        return numerator > 0, pool
    if denominator >= _WIDE:
        return chance(tape, numerator, denominator), pool
    rest = numerator
    while rest > 0:
        if pool == EMPTY:
            pool = word(tape) & 0xFFFFFFFFFFFFFF | 1 << 56
        rest = (rest << 8) - (pool & 255) * denominator
        pool >>= 8
        if rest < 0 or rest >= denominator:
            return rest > 0, pool
    return False, pool


pooled_below, pooled_coin = Kernel(_pooled_below, inline=True), Kernel(_pooled_coin, inline=True)


@primitive(lambda: pooled_below.compiled())
def draw(tape: Tape, pool: int, bound: int) -> tuple[int, int]:
    """What `below` draws, and the pool that is left."""
    return tape.draw(pool, int(bound))


@primitive(lambda: pooled_coin.compiled())
def coin(tape: Tape, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
    """What `chance` flips, with the same probability, and the pool that is left."""
    return tape.coin(pool, int(numerator), int(denominator))


def _accept_exp(tape: Any, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
    """True with probability exp(-numerator / denominator), for 0 <= numerator <= denominator; and the pool.

    Canonne, Kamath, Steinke 2020, Algorithm 1: the first k with a failed Bernoulli(gamma / k) is odd
    with probability 1 - gamma + gamma^2/2! - ... = exp(-gamma).
    """
    k = 1
    while True:
        again, pool = coin(tape, pool, numerator, denominator * k)
        if not again:
            return k % 2 == 1, pool
        k += 1


def _accept_inverse_e(tape: Any, pool: int) -> tuple[bool, int]:
    """accept_exp of 1, with its first twelve coins in one.

    These stop at an odd k with probability 1 - 1 + 1/2! - 1/3! + ... - 1/11! = 176214840 / 12!, and go on to the
    thirteenth with probability 1 / 12!.
    """
    accepted, pool = coin(tape, pool, 176214840, 479001600)
    if accepted:
        return True, pool
    further, pool = coin(tape, pool, 1, 479001600 - 176214840)
    if not further:
        return False, pool
    k = 13
    while True:
        again, pool = coin(tape, pool, 1, k)
        if not again:
            return k % 2 == 1, pool
        k += 1


accept_exp, accept_inverse_e = Kernel(_accept_exp, inline=True), Kernel(_accept_inverse_e, inline=True)


@kernel
def sample_clamped_laplace(tape: Any, value: int, numerator: int, denominator: int, limit: int) -> int:
    """value + discrete Laplace noise of scale numerator / denominator, clamped to [-limit, limit].

    Noise law: P(y) = (e^(1/s) - 1) / (e^(1/s) + 1) * e^(-|y|/s), s the scale (Canonne, Kamath,
    Steinke 2020, Algorithm 2): u + numerator * v is geometric with rate 1 / numerator, dividing by
    the denominator makes the rate denominator / numerator, and a negative zero is drawn again.
    """
    pool = EMPTY
    while True:
        u, pool = draw(tape, pool, numerator)
        accepted, pool = accept_exp(tape, pool, u, numerator)
        if not accepted:
            continue
        v = -1
        while accepted:
            v += 1
            accepted, pool = accept_inverse_e(tape, pool)
        magnitude = (u + numerator * v) // denominator
        negative, pool = coin(tape, pool, 1, 2)
        if negative and magnitude == 0:
            continue
        noised = value - magnitude if negative else value + magnitude
        clamped: int = min(max(noised, -limit), limit)
        return clamped


@primitive(lambda: sample_clamped_laplace.compiled())
def clamped_laplace(tape: Tape, value: int, numerator: int, denominator: int, limit: int) -> int:
    """Exact discrete Laplace noise around `value`, clamped; one branch point for enumeration."""
    return tape.clamped_laplace(int(value), int(numerator), int(denominator), int(limit))


def _rounded(tape: Any, pool: int, value: int, step: int) -> tuple[int, int]:
    """value / step, rounded up or down so that the mean is exact; and the pool."""
    up, pool = coin(tape, pool, value % step, step)
    return value // step + (1 if up else 0), pool


rounded = Kernel(_rounded, inline=True)


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


# How many messages


#: Messages per person, at most, and their decimals.
MOST_MESSAGES, _DECIMALS = 10_000, 3


def exact_messages(mean: float | str | Fraction) -> Fraction:
    """The mean number of messages as it is written down."""
    try:
        exact = Fraction(str(mean))
    except (ValueError, ZeroDivisionError):
        raise Refused(f"messages must be a number, not {mean!r}.") from None
    if not 0 < exact <= MOST_MESSAGES or (exact * 10**_DECIMALS).denominator != 1:
        raise Refused(
            f"messages must be above 0 and at most {MOST_MESSAGES:,}, with up to {_DECIMALS} decimals, not {mean!r}."
        )
    return exact


@kernel
def try_poisson(tape: Any, numerator: int, denominator: int) -> int:
    """A number k with probability (1 - l) l^k / k!, l = numerator / denominator at most 1/2; or -1: try again.

    The k-th coin is heads with probability l / k, and the next one tails with 1 - l / (k + 1); of these, (1 - l) in
    1 - l / (k + 1) are taken. So what is taken at last has Poisson's law with mean l, exactly.
    """
    k = 0
    while chance(tape, numerator, denominator * (k + 1)):
        k += 1
    if chance(tape, (denominator - numerator) * (k + 1), denominator * (k + 1) - numerator):
        return k
    return -1


@kernel
def poisson(tape: Any, numerator: int, denominator: int) -> int:
    """A Poisson number with mean numerator / denominator: the sum of as many as have means of at most 1/2."""
    parts = (2 * numerator + denominator - 1) // denominator
    total = 0
    for _ in range(parts):
        found = -1
        while found < 0:
            found = try_poisson(tape, numerator, denominator * parts)
        total += found
    return total
