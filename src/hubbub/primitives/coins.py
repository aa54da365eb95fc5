"""Secret randomness, and exact samplers that use integers only.

`SecretCoins` come from the operating system and are the only coins a client accepts.
`InsecureCoins` are seeded, for simulation and tests: anybody who knows the seed can undo the noise,
so they are a different type and nothing that ships a report takes them. Public seeds (which hash
function a report uses) are drawn from their own sources, never from coins.

Kernels flip coins through three functions: `below`, `chance` and `clamped_laplace`. Interpreted,
these ask the coins object; compiled, they read random words from a buffer. A kernel stops before a
record when few words are left, and goes on with more; should one record need more than the reserve, it
is run again on the *same* words followed by fresh ones, so that running out never changes the law of a
report, and the reserve grows.
"""

from __future__ import annotations

import os
import random
import secrets
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import Kernel, kernel, primitive, use_compiled

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

#: Words that must be left on the tape when a record begins, at first.
RESERVE = 1 << 12
#: Words that are drawn at a time.
MOST_WORDS = 1 << 22

#: Integer weight of an unfavoured outcome; a favoured one weighs floor(exp(epsilon) * UNIT).
UNIT = 1 << 32


class TapeEmpty(Exception):
    """A compiled kernel has used up its buffer of random words."""


class Tape(Protocol):
    """What an interpreted kernel needs from its coins."""

    def below(self, bound: int) -> int: ...
    def chance(self, numerator: int, denominator: int) -> bool: ...
    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int: ...


class Coins(Tape, Protocol):
    """Coins that can also fill the buffer of a compiled kernel."""

    def words(self, count: int) -> Int64s: ...


class _Sampler:
    """Exact samplers on top of `below`; shared by all coins that really flip."""

    def below(self, bound: int) -> int:
        raise NotImplementedError

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        return int(_clamped_laplace.function(self, value, numerator, denominator, limit))


class SecretCoins(_Sampler):
    """Coins from the operating system. Nothing is buffered, so a forked process never repeats them."""

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def words(self, count: int) -> Int64s:
        return np.frombuffer(os.urandom(8 * count), dtype=np.int64)


class InsecureCoins(_Sampler):
    """Seeded coins for simulation. INSECURE: the seed reveals every report made with them."""

    def __init__(self, seed: int) -> None:
        self._scalar = random.Random(seed)
        self._bulk = np.random.Generator(np.random.PCG64(seed))

    def below(self, bound: int) -> int:
        return self._scalar.randrange(bound)

    def words(self, count: int) -> Int64s:
        return self._bulk.integers(-(1 << 63), 1 << 63, size=count, dtype=np.int64)


class SystemSeeds:
    """Public randomness from the operating system: one hash function per report."""

    def draw(self, bits: int, count: int) -> UInt64s:
        drawn = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return drawn >> np.uint64(64 - bits)


class SimulatedSeeds:
    """Repeatable public randomness for simulations."""

    def __init__(self, seed: int) -> None:
        self._bulk = np.random.Generator(np.random.PCG64(seed))

    def draw(self, bits: int, count: int) -> UInt64s:
        return self._bulk.integers(0, 1 << 64, size=count, dtype=np.uint64) >> np.uint64(64 - bits)


class SeedSource(Protocol):
    """Where the public seed of a report comes from."""

    def draw(self, bits: int, count: int) -> UInt64s: ...


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


def _native_begin() -> Any:
    import numba

    @numba.njit(nogil=True)
    def begin_record(tape: Any, index: Any) -> Any:
        words, cursor = tape
        cursor[1] = cursor[0]
        cursor[2] = index
        cursor[3] = len(words) - cursor[0] < cursor[4]
        return cursor[3] == 0

    return begin_record


@primitive(_native_begin)
def begin_record(tape: Tape, index: int) -> bool:
    """Note where record `index` begins on the tape; False: stop before it, the tape is about to end."""
    return True


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
def _clamped_laplace(tape: Any, value: int, numerator: int, denominator: int, limit: int) -> int:
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


@primitive(lambda: _clamped_laplace.compiled())
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


def run_kernel(batch: Kernel, coins: Coins, count: int, *args: Any) -> None:
    """Run `batch(tape, start, count, *args)` over records 0 .. count - 1, compiled when worth it.

    The kernel writes into arrays among `args` and calls `begin_record` before each record.
    """
    if not use_compiled(count) or not hasattr(coins, "words"):
        batch(coins, 0, count, *args)
        return
    step = batch.compiled()
    words, cursor = coins.words(4 * count + 2 * RESERVE), np.array([0, 0, 0, 0, RESERVE])
    used = 0
    while True:
        try:
            step((words, cursor), int(cursor[2]), count, *args)
            if not cursor[3]:
                return
        except TapeEmpty:
            # One record alone needs more than the reserve. An exception leaves compiled code with its arrays
            # never freed, so this must stay rare.
            cursor[4] *= 4
        done = int(cursor[2])
        used += int(cursor[1])
        wanted = 11 * used * (count - done) // (10 * max(done, 1))
        drawn = max(min(max(wanted, len(words)), MOST_WORDS), 2 * int(cursor[4]))
        words = np.concatenate([words[cursor[1] :], coins.words(drawn)])
        cursor[:2] = 0
        cursor[3] = 0
