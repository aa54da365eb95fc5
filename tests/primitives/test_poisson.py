"""A Poisson number, from exact coins: its law by enumeration, and of the compiled form by counting."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hubbub.checks.exact import Enumeration
from hubbub.device.client import _message_counts
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.samplers import poisson, try_poisson


class Cut(Enumeration):
    """Coins whose seventh in a row is tails: the tree has an end, and what ends earlier has its own probability."""

    def __init__(self, denominator: int) -> None:
        super().__init__()
        self.last = 7 * denominator

    def chance(self, numerator: int, denominator: int) -> bool:
        return False if denominator == self.last else super().chance(numerator, denominator)


@pytest.mark.parametrize("mean", [Fraction(1, 2), Fraction(1, 3), Fraction(53, 150), Fraction(1, 1000)])
def test_a_try_has_poissons_law_exactly(mean: Fraction) -> None:
    coins = Cut(mean.denominator)
    law = coins.law(lambda tape: try_poisson(tape, mean.numerator, mean.denominator))
    for k in range(6):
        assert law[k] == (1 - mean) * mean**k / math.factorial(k)
    assert sum(law.values()) == 1


class Again(Exception):
    """A try that was not taken."""


class Once(Cut):
    """The same, for a whole draw: it ends where a try is not taken, so the tree has an end."""

    def __init__(self, numerator: int, denominator: int) -> None:
        super().__init__(denominator)
        self.numerator = numerator

    def chance(self, numerator: int, denominator: int) -> bool:
        heads = super().chance(numerator, denominator)
        if numerator != self.numerator and not heads:
            raise Again
        return heads


@pytest.mark.parametrize("mean", [Fraction(2, 3), Fraction(1, 5), Fraction(3, 4)])
def test_a_whole_draw_has_poissons_law_exactly(mean: Fraction) -> None:
    """All parts together, where no try is repeated; a repeated one is as if nothing had happened before."""
    parts = -(-2 * mean.numerator // mean.denominator)
    coins = Once(mean.numerator, mean.denominator * parts)

    def draw(tape: Any) -> int:
        try:
            return poisson(tape, mean.numerator, mean.denominator)
        except Again:
            return -1

    law = coins.law(draw)
    for k in range(6):
        assert law[k] == (1 - mean / parts) ** parts * mean**k / math.factorial(k)
    assert sum(law.values()) == 1


class Counted:
    """Coins that are always tails, then accepted: they count how many parts a mean is split into."""

    def __init__(self) -> None:
        self.asked: list[Fraction] = []

    def chance(self, numerator: int, denominator: int) -> bool:
        self.asked.append(Fraction(numerator, denominator))
        return len(self.asked) % 2 == 0


@pytest.mark.parametrize("mean", [Fraction(1, 1000), Fraction(1, 2), Fraction(53, 50), Fraction(8)])
def test_the_parts_of_a_mean_add_up_to_it(mean: Fraction) -> None:
    """A sum of independent Poisson numbers is one with the sum of their means."""
    coins = Counted()
    assert poisson(coins, mean.numerator, mean.denominator) == 0
    parts = coins.asked[::2]
    assert sum(parts) == mean
    assert max(parts) <= Fraction(1, 2)


def misfit(drawn: np.ndarray[tuple[int], np.dtype[np.int64]], mean: float) -> float:
    """How far the counts of 0, 1, 2, ... are from Poisson's, as the largest difference in standard deviations."""
    k = np.arange(12)
    odds = np.exp(k * math.log(mean) - mean - np.array([math.lgamma(j + 1) for j in k]))
    found = np.bincount(drawn, minlength=12)[:12] / len(drawn)
    return float(np.abs((found - odds) / np.sqrt(odds * (1 - odds) / len(drawn))).max())


@pytest.mark.parametrize("mean", [Fraction(1, 10), Fraction(53, 50), Fraction(3)])
def test_many_at_once(mean: Fraction) -> None:
    """Compiled. Twelve counts beyond 5.5 standard deviations: less than 1e-6. A mean that is 30% off is seen."""
    drawn = _message_counts(100_000, mean, InsecureCoins(3))
    assert misfit(drawn, float(mean)) < 5.5
    assert misfit(drawn, 1.3 * float(mean)) > 20
