"""PrivKV: accuracy of frequencies and means, privacy, what the published protocol wastes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, check_accuracy

from hubbub.checks.conformance import check_privacy, exact_loss, examples_like, task_for
from hubbub.mechanisms.privkv import PrivKV
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import crowd_of
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import repeated_states


@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("quantity", ["mean", "frequency"])
def test_accuracy(quantity: Any, published: bool, kind: str) -> None:
    check_accuracy(PrivKV(epsilon=1.5, max_entries=4, size=KEYS, as_published=published), kind, quantity)


@pytest.mark.parametrize("quantity", ["mean", "frequency"])
def test_accuracy_where_held_keys_weigh_most(quantity: Any) -> None:
    """Forty of 48 keys and little noise: that those asked are a sample matters most."""
    check_accuracy(PrivKV(epsilon=5, max_entries=40, size=KEYS), "uniform", quantity)


class Louder(PrivKV):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
def test_enumeration_notices_one_percent(epsilon: float) -> None:
    check_privacy(PrivKV(epsilon=epsilon, max_entries=2, size=3))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=epsilon, max_entries=2, size=3))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
def test_the_published_protocol_wastes_budget(epsilon: float) -> None:
    """Its exact loss is epsilon / 2 + ln(2 / (1 + e^(-epsilon / 2))); weights 1% up show in it."""
    parameters: dict[str, Any] = {"epsilon": epsilon, "max_entries": 1, "size": 2, "as_published": True}
    task = task_for(PrivKV(**parameters), 2)
    loss = exact_loss(task, examples_like(task, 2), [0])
    half = epsilon / 2
    assert loss == pytest.approx(half + math.log(2 / (1 + math.exp(-half))), rel=1e-8)
    assert loss < 0.9 * epsilon
    louder = task_for(Louder(**parameters), 2)
    assert exact_loss(louder, examples_like(louder, 2), [0]) > loss + 0.01


def test_three_answers_are_better_than_two_steps() -> None:
    for epsilon in (0.25, 1.0, 3.0):
        both = [PrivKV(epsilon=epsilon, max_entries=1, size=9, as_published=p) for p in (False, True)]
        for quantity in ("frequency", "mean"):
            three, two = (m.variance(quantity, 1000) for m in both)  # type: ignore[arg-type]
            assert three < two


def test_nobody_asked() -> None:
    mechanism = PrivKV(epsilon=1, max_entries=1, size=4)
    task = task_for(mechanism)
    state = mechanism.empty(task.keys)
    mechanism.absorb(state, task.keys, np.array([[0, 2, 1]], dtype=np.uint64))
    found = mechanism.moments(state, task.keys, task.keys.all_ids())
    assert found.frequency is not None
    assert found.frequency_variance is not None
    assert found.frequency.tolist()[:2] == [0, 0]
    assert np.isfinite(found.frequency_variance).tolist() == [False, False, True, False]


def test_nothing_is_known_about_keys_that_nobody_was_asked_about() -> None:
    """Their interval is all there is, and the estimate says how many they are."""
    task = task_for(PrivKV(epsilon=1, max_entries=1, size=4))
    state = task.mechanism.empty(task.keys)
    task.mechanism.absorb(state, task.keys, np.array([[0, 2, 1]], dtype=np.uint64))
    share = estimate(task, state, quantity="frequency")
    assert share.low.tolist()[:2] == [0, 0]
    assert share.high.tolist()[:2] == [1, 1]
    assert [row["error"] is None for row in share.rows()] == [True, True, False, True]
    assert "3 keys were in no report" in " ".join(share.notes)
    mean = estimate(task, state, quantity="mean")
    assert (mean.low[0], mean.high[0]) == (-1, 1)
    assert estimate(task, state, quantity="conditional").flagged[0]


def test_unbiased_and_as_variable_as_said_with_two_users_a_key() -> None:
    """One key in seven is asked about by nobody; false alarms below 1e-6, and the old estimate is noticed."""
    size, users, runs = 64, 128, 400
    mechanism = PrivKV(epsilon=2, max_entries=size, size=size)
    task = task_for(mechanism, size)
    share = np.arange(size) / size
    rng = np.random.default_rng(5)
    held = rng.random((users, size)) < share
    entries = Entries(
        np.nonzero(held)[1].astype(np.uint64),
        np.full(int(held.sum()), GRID),
        np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int64),
    )
    truth = held.mean(axis=0)
    ids = task.keys.all_ids()
    states = repeated_states(task, entries, runs, 1)
    found = np.array([mechanism.moments(state, task.keys, ids).frequency for state in states])
    predicted = np.array([mechanism.variance("frequency", users, float(f), float(f)) for f in truth])
    sums = (found - truth).sum(axis=1)
    assert abs(sums.mean()) <= 5 * sums.std(ddof=1) / np.sqrt(runs)
    never = mechanism._nobody(users)
    biased = (found * (1 - never) - truth).sum(axis=1)
    assert abs(biased.mean()) > 5 * biased.std(ddof=1) / np.sqrt(runs)
    ratios = ((found - truth) ** 2 / predicted).mean(axis=1)
    limit = 5 * ratios.std(ddof=1) / np.sqrt(runs)
    assert abs(ratios.mean() - 1) <= limit < 0.2


def test_shuffling() -> None:
    """Three answers as a response, two steps as any mechanism."""
    assert "favour" in crowd_of(PrivKV(epsilon=1, max_entries=1, size=4), 100).bound
    assert "any" in crowd_of(PrivKV(epsilon=1, max_entries=1, size=4, as_published=True), 100).bound


@pytest.mark.parametrize("wrong", [{"size": 0}, {"values": "set"}, {"as_published": 7}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("privkv", **{"epsilon": 1.0, "max_entries": 2, "size": 9, **wrong})
