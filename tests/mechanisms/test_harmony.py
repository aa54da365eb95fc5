"""Harmony: accuracy, privacy, and an error that grows with the vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
from measuring import KEYS, check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.harmony import Harmony
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.keys import Keys
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import shuffled_guarantee


@pytest.mark.parametrize(("epsilon", "kind"), [(0.5, "zipf"), (1.5, "uniform"), (3.0, "long")])
def test_accuracy(epsilon: float, kind: str) -> None:
    check_accuracy(Harmony(epsilon=epsilon, max_entries=4, size=KEYS), kind, "mean")


def test_accuracy_with_room_for_more_keys() -> None:
    check_accuracy(Harmony(epsilon=1.5, max_entries=4, size=KEYS + 9), "uniform", "mean")


class Louder(Harmony):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
def test_enumeration_notices_one_percent(epsilon: float) -> None:
    check_privacy(Harmony(epsilon=epsilon, max_entries=2, size=3))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=epsilon, max_entries=2, size=3))


def test_the_law_of_a_value() -> None:
    """P(+1) = 1/2 + x (e^eps - 1) / (2 (e^eps + 1)), Nguyen et al., Algorithm 2."""
    law = law_of(task_for(Harmony(epsilon=1, max_entries=1, size=4)), {"2": 0.5}, 0)
    for key in range(4):
        expected = 0.5 + (0.5 if key == 2 else 0) * math.tanh(0.5) / 2
        assert float(law[key, 1]) == pytest.approx(expected / 4, rel=1e-8)
        assert float(law[key, 0] + law[key, 1]) == pytest.approx(1 / 4)


def test_variance_as_published() -> None:
    """d ((e^eps + 1) / (e^eps - 1))^2 / n, whatever the number of entries; sketch response grows with those instead."""
    published = 256 / math.tanh(0.5) ** 2
    for entries in (1, 64):
        harmony = Harmony(epsilon=1, max_entries=entries, size=256)
        assert harmony.variance("mean", 1) == pytest.approx(published, rel=1e-8)
    ours = make_mechanism("sketch_response", epsilon=1, max_entries=64, values="signed").variance("mean", 1)
    assert 2 < published / ours < 3.5


def test_shuffling_uses_the_weights() -> None:
    assert shuffled_guarantee(Harmony(epsilon=1, max_entries=4, size=64), 10_000, 1e-6).epsilon < 0.15


@pytest.mark.parametrize("wrong", [{"size": 0}, {"values": "set"}, {"size": None}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("harmony", **{"epsilon": 1.0, "max_entries": 2, "size": 9, **wrong})


def test_bad_use() -> None:
    small = Harmony(epsilon=1.0, max_entries=1, size=2)
    with pytest.raises(Refused, match="too small"):
        law_of(task_for(small, size=3), {"1": 1.0}, 0)
    with pytest.raises(Refused, match="closed"):
        law_of(
            task_for(small, size=2).model_copy(update={"keys": Keys(kind="folded", bits=16)}), {"x": 1.0}, 0
        )
