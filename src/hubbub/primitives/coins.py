"""Who flips: secret coins, seeded ones for simulation, and the public randomness that is neither.

`SecretCoins` come from the operating system and are the only coins a client accepts. `InsecureCoins` are seeded, for
simulation and tests: anybody who knows the seed can undo the noise, so they are a different type and nothing that
ships a report takes them. Public seeds (which hash function a report uses) are drawn from their own sources, never
from coins.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import Protocol

import numpy as np

from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.samplers import Tape, sample_clamped_laplace


class Coins(Tape, Protocol):
    """Coins that can also fill the buffer of a compiled kernel."""

    def words(self, count: int) -> Int64s: ...


class _Sampler:
    """Exact samplers on top of `below`; shared by all coins that really flip."""

    def below(self, bound: int) -> int:
        raise NotImplementedError

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def draw(self, pool: int, bound: int) -> tuple[int, int]:
        return self.below(bound), pool

    def coin(self, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
        return self.chance(numerator, denominator), pool

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        return int(sample_clamped_laplace.function(self, value, numerator, denominator, limit))


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
