"""Mean positive parts: never too small, whichever way they are computed."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from hubbub.privacy import positive_part
from hubbub.privacy.positive_part import mean_positive_part
from hubbub.privacy.shuffle import any_mechanism

#: Probabilities and sizes of steps, exact in doubles; otherwise the step is 0.
LAWS = [
    ([0.25, 0.25], [1.5, -2.0]),
    ([0.5, 0.5], [3.0, -3.0]),
    ([0.125, 0.125, 0.625], [4.0, -6.0, -0.0625]),
    ([2.0**-40, 2.0**-40], [2.0**30, -(2.0**31)]),
]


def exactly(n: int, mass: list[float], gains: list[float]) -> Fraction:
    """By the definition, in fractions, over all sequences of steps."""
    kinds = [(Fraction(p), Fraction(x)) for p, x in zip(mass, gains, strict=True)]
    kinds.append((1 - sum((p for p, _ in kinds), Fraction(0)), Fraction(0)))
    total = Fraction(0)
    for steps in product(kinds, repeat=n):
        total += math.prod((p for p, _ in steps), start=Fraction(1)) * max(
            Fraction(0), sum(x for _, x in steps)
        )
    return total / n


@pytest.mark.parametrize("law", LAWS, ids=range(len(LAWS)))
@pytest.mark.parametrize("n", [2, 3, 6])
def test_few_steps(law: tuple[list[float], list[float]], n: int) -> None:
    truth = exactly(n, *law)
    found = Fraction(mean_positive_part(n, np.array(law[0]), np.array(law[1]), 1e-7))
    assert truth <= found <= truth * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("law", LAWS[:3], ids=range(3))
def test_few_and_many_steps_agree(
    law: tuple[list[float], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is exact; the integral is not below it, and above it by little more than it was asked for."""
    for n in (20, 64):
        listed = mean_positive_part(n, np.array(law[0]), np.array(law[1]), 1e-7)
        with monkeypatch.context() as patch:
            patch.setattr(positive_part, "_FEW", 0)
            integral = mean_positive_part(n, np.array(law[0]), np.array(law[1]), 1e-7)
        assert listed * (1 - 1e-9) <= integral <= listed * 1.001


def test_hardly_any_crowd_hides_nothing() -> None:
    """At epsilon 40 a few reports are worth nothing to each other; finding that out took 40 seconds."""
    for reports in (3, 65, 1_000_000):
        assert any_mechanism(reports, 40.0).epsilon(1e-6) == pytest.approx(40, rel=1e-9)
