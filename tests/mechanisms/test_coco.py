"""CoCo: rates as in the paper, privacy that fails when weights grow, accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measuring import check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.errors import Refused


@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize("quantity", ["mean", "frequency"])
def test_accuracy(quantity: Any, family: Any, kind: str) -> None:
    check_accuracy(CoCo(epsilon=1.5, max_entries=4, family=family, target=quantity), kind, quantity)


def test_accuracy_where_held_keys_weigh_most() -> None:
    check_accuracy(CoCo(epsilon=3, max_entries=1), "uniform", "mean")
    check_accuracy(CoCo(epsilon=3, max_entries=1), "zipf", "frequency")


class Louder(CoCo):
    """CoCo with the favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


def test_enumeration_notices_one_percent() -> None:
    check_privacy(CoCo(epsilon=1, max_entries=2))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, max_entries=2))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.5])
def test_enumeration_over_parameters(epsilon: float) -> None:
    check_privacy(CoCo(epsilon=epsilon, max_entries=2, buckets=3, family="prf"), seeds=[0, 1, 2])
    check_privacy(CoCo(epsilon=epsilon, max_entries=1, buckets=2), seeds=[0, 1, 2])


def test_rates_by_enumeration() -> None:
    """P_t and P_o of Table 2, averaged over many hash functions, from the law of the shipped code.

    Over 400 seeds the average bucket conflict deviates by at most 6 standard errors (false alarms 2e-9).
    """
    mechanism = CoCo(epsilon=1, max_entries=2, buckets=4, family="prf")
    task = task_for(mechanism)
    true, opposite, _ = mechanism.rates
    own, other = [], []
    for seed in range(400):
        law = law_of(task, {"0": 1.0, "1": -1.0}, seed)
        reports = np.array([[seed, pair, side] for pair, side in law], dtype=np.uint64)
        single = mechanism.empty(task.keys)
        for report, mass in zip(reports, law.values(), strict=True):
            single = mechanism.empty(task.keys)
            mechanism.absorb(single, task.keys, report[None])
            vote = int(mechanism.tally(single, task.keys, task.keys.all_ids()[:1])[0, 0])
            (own if vote > 0 else other).append((seed, float(mass) * abs(vote)))
    for found, expected in ((own, true), (other, opposite)):
        sums = np.bincount([s for s, _ in found], weights=[m for _, m in found], minlength=400)
        assert abs(sums.mean() - expected) <= 6 * sums.std(ddof=1) / 20


def test_overwriting_as_published() -> None:
    """Equation 7 as a sum over ranks."""
    mechanism = CoCo(epsilon=1, max_entries=5, buckets=8)
    ranks = [1 - (1 - 2 / 16) ** (5 - rank) for rank in range(1, 6)]
    assert mechanism.overwritten == pytest.approx(np.mean(ranks), rel=1e-12)
    assert CoCo(epsilon=1, max_entries=1).overwritten == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("limit", [4, 8, 32])
def test_buckets_near_the_published_choice(limit: int) -> None:
    """The optimum of each target is at least as good as the paper's rule for it."""
    for target, published in (
        ("mean", np.exp(1) * limit + limit + 2),
        ("frequency", np.exp(1) * limit + 5 * limit),
    ):
        rule = CoCo(
            epsilon=1, max_entries=limit, family="prf", target=target, buckets=int(np.ceil(published / 2))
        )
        best = CoCo(epsilon=1, max_entries=limit, family="prf", target=target)
        assert best.variance(target, 1) <= rule.variance(target, 1) <= 1.05 * best.variance(target, 1)


def test_better_than_collision_for_means() -> None:
    for limit in (4, 32):
        events = make_mechanism("collision", epsilon=1, max_entries=limit, values="signed")
        assert CoCo(epsilon=1, max_entries=limit).variance("mean", 1) < events.variance("mean", 1)


@pytest.mark.parametrize("wrong", [{"buckets": 2}, {"buckets": 3}, {"values": "set"}, {"target": "median"}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("coco", **{"epsilon": 1.0, "max_entries": 2, **wrong})
