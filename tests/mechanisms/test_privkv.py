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
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import crowd_of


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
    assert np.isfinite(found.frequency_variance).all()


def test_shuffling() -> None:
    """Three answers as a response, two steps as any mechanism."""
    assert "favour" in crowd_of(PrivKV(epsilon=1, max_entries=1, size=4), 100).bound
    assert "any" in crowd_of(PrivKV(epsilon=1, max_entries=1, size=4, as_published=True), 100).bound


@pytest.mark.parametrize("wrong", [{"size": 0}, {"values": "set"}, {"as_published": 7}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("privkv", **{"epsilon": 1.0, "max_entries": 2, "size": 9, **wrong})
