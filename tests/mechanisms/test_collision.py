"""Collision: parameters as in the paper, privacy that fails when weights grow, accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measuring import check_accuracy

from hubbub.checks.conformance import check_privacy
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.errors import Refused


@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize(
    ("values", "quantity"), [("set", "frequency"), ("signed", "frequency"), ("signed", "mean")]
)
def test_accuracy(values: Any, quantity: Any, family: Any, kind: str) -> None:
    check_accuracy(Collision(epsilon=1.5, max_entries=4, values=values, family=family), kind, quantity)


def test_accuracy_where_held_keys_weigh_most() -> None:
    """One entry and a large epsilon: the variance of held and absent keys differs most."""
    check_accuracy(Collision(epsilon=3, max_entries=1), "uniform", "frequency")
    check_accuracy(Collision(epsilon=3, max_entries=1, values="signed"), "uniform", "mean")


class Louder(Collision):
    """Collision with the favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("values", ["set", "signed"])
def test_enumeration_notices_one_percent(values: Any) -> None:
    check_privacy(Collision(epsilon=1, max_entries=2, values=values))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, max_entries=2, values=values))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("limit", [1, 3, 4])
def test_enumeration_over_parameters(epsilon: float, limit: int) -> None:
    check_privacy(Collision(epsilon=epsilon, max_entries=limit, buckets=8), keys=4)
    check_privacy(Collision(epsilon=epsilon, max_entries=limit, buckets=2 * limit + 1, family="prf"), keys=4)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("limit", [4, 32])
def test_buckets_as_published(epsilon: float, limit: int) -> None:
    """The paper's floor(s e^eps + 2s - 1) is close to the optimum; a few buckets more or less hardly matter."""
    chosen = Collision(epsilon=epsilon, max_entries=limit, family="prf")
    published = int(limit * np.exp(epsilon) + 2 * limit - 1)
    as_published = Collision(epsilon=epsilon, max_entries=limit, family="prf", buckets=published)
    assert chosen.variance("frequency", 1) <= as_published.variance("frequency", 1)
    assert as_published.variance("frequency", 1) <= 1.02 * chosen.variance("frequency", 1)
    loss = {
        b: Collision(epsilon=epsilon, max_entries=limit, family="prf", buckets=b).variance("frequency", 1)
        for b in (chosen.buckets - 2, chosen.buckets, chosen.buckets + 2)
    }
    assert min(loss, key=loss.__getitem__) == chosen.buckets


def test_a_power_of_two_costs_little() -> None:
    for limit in (4, 32, 64):
        walsh = Collision(epsilon=1, max_entries=limit).variance("frequency", 1)
        prf = Collision(epsilon=1, max_entries=limit, family="prf").variance("frequency", 1)
        assert prf <= walsh <= 1.04 * prf


@pytest.mark.parametrize(
    "wrong",
    [
        {"buckets": 2},
        {"buckets": 6},
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"max_entries": 0},
        {"seed_bits": 65},
        {"family": "sha"},
        {"nonsense": 1},
        {
            "epsilon": 16,
            "max_entries": 65_536,
            "family": "prf",
        },  # terabytes of candidates, all of them too large
    ],
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("collision", **{"epsilon": 1.0, "max_entries": 2, **wrong})
