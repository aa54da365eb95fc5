"""PCKV-GRR: accuracy with and without amplification, privacy, what amplification is worth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, check_accuracy

from hubbub.checks.conformance import check_privacy, exact_loss, examples_like, task_for
from hubbub.mechanisms.pckv_grr import PCKVGRR
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import sample_down
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import repeated_states, true_values


@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
@pytest.mark.parametrize("amplified", [False, True])
@pytest.mark.parametrize("quantity", ["mean", "frequency"])
def test_accuracy(quantity: Any, amplified: bool, kind: str) -> None:
    check_accuracy(PCKVGRR(epsilon=3, max_entries=3, size=KEYS, amplified=amplified), kind, quantity)


def test_accuracy_where_held_keys_weigh_most() -> None:
    check_accuracy(PCKVGRR(epsilon=5, max_entries=1, size=KEYS), "uniform", "frequency")
    check_accuracy(PCKVGRR(epsilon=4, max_entries=1, size=KEYS), "uniform", "mean")


def test_error_bars_on_long_records() -> None:
    """Bars are as long as errors where estimates are mostly noise (false alarms below 1e-6; 30% off is noticed).

    Bars from frequencies that are cut at 0, noise and all, were too long.
    """
    mechanism = PCKVGRR(epsilon=1, max_entries=40, size=200)
    task = task_for(mechanism, 200)
    crowd = zipf_population(2000, 200, 3, exponent=1.0, entries=15, tail=0.5).entries
    crowd = sample_down(crowd, 40, InsecureCoins(1))[0]
    ids = task.keys.all_ids()
    for quantity in ("frequency", "mean"):
        truth = true_values(task, crowd, quantity, ids)
        ratios, cut = [], []
        for state in repeated_states(task, crowd, 40, 1):
            found = mechanism.moments(state, task.keys, ids)
            value = found.frequency if quantity == "frequency" else found.mean
            bars = found.frequency_variance if quantity == "frequency" else found.mean_variance
            assert found.counts is not None
            share = np.clip(found.counts.frequency, 0, 1)
            before = mechanism.rates.variance(quantity, 2000, share, 0.0, 0.0)
            ratios.append(float(((value - truth) ** 2).mean() / bars.mean()))  # type: ignore[operator, union-attr]
            cut.append(float(((value - truth) ** 2).mean() / before.mean()))  # type: ignore[operator]
        slack = 5 * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
        assert slack < 0.15
        assert abs(np.mean(ratios) - 1) <= 0.05 + slack
        for wrong in (0.7, 1.3):
            assert abs(np.mean(ratios) / wrong - 1) > (0.05 + slack) / wrong
        assert np.mean(cut) < np.mean(ratios) - 0.05


class Louder(PCKVGRR):
    """The favoured weight raised by 1%, before amplification."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_enumeration_notices_one_percent(limit: int) -> None:
    """Amplified, the bound is met exactly, whatever the number of entries."""
    check_privacy(PCKVGRR(epsilon=1, max_entries=limit, size=3))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, max_entries=limit, size=3))
    plain = task_for(PCKVGRR(epsilon=1, max_entries=limit, size=3, amplified=False), 3)
    loss = exact_loss(plain, examples_like(plain, 3), [0])
    assert loss == pytest.approx(math.log((math.e + limit - 1) / limit), rel=1e-8)


def test_weights_as_published() -> None:
    """epsilon' = ln(k (e^eps - 1) + 1)."""
    for limit in (1, 8):
        favoured, other = PCKVGRR(epsilon=1.5, max_entries=limit, size=9)._response
        assert math.log(favoured / other) == pytest.approx(math.log(limit * math.expm1(1.5) + 1), rel=1e-8)


def test_amplification_pays() -> None:
    for quantity in ("frequency", "mean"):
        errors = [
            PCKVGRR(epsilon=1, max_entries=8, size=256, amplified=a).variance(quantity, 1)  # type: ignore[arg-type]
            for a in (True, False)
        ]
        assert 50 < errors[1] / errors[0] < 64


def test_dummies_are_not_counted() -> None:
    """Answers beyond the last key leave all counters alone."""
    mechanism = PCKVGRR(epsilon=1, max_entries=2, size=4)
    task = task_for(mechanism)
    state = mechanism.empty(task.keys)
    reports = mechanism.layout.unpack(bytes([8, 11, 7]))
    mechanism.absorb(state, task.keys, reports)
    assert (state.count, state.totals.sum(), state.totals[3, 1]) == (3, 1, 1)


def test_shuffling_uses_the_weights() -> None:
    """The weights in use; without amplification a report reveals less to begin with."""
    loud, quiet = (
        shuffled_guarantee(PCKVGRR(epsilon=1, max_entries=4, size=64, amplified=a), 10_000, 1e-6).epsilon
        for a in (True, False)
    )
    assert quiet < loud < 0.15


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"values": "set"}, {"epsilon": 16, "max_entries": 60_000, "size": 9}]
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("pckv_grr", **{"epsilon": 1.0, "max_entries": 2, "size": 9, **wrong})
