"""PCKV-UE: accuracy, privacy, the published probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.pckv_ue import PCKVUE
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.errors import Refused


@pytest.mark.parametrize(("epsilon", "kind"), [(1.5, "zipf"), (3.0, "uniform"), (1.0, "long")])
@pytest.mark.parametrize("quantity", ["mean", "frequency"])
def test_accuracy(quantity: Any, epsilon: float, kind: str) -> None:
    check_accuracy(PCKVUE(epsilon=epsilon, max_entries=3, size=KEYS), kind, quantity)


def test_accuracy_where_held_keys_weigh_most() -> None:
    check_accuracy(PCKVUE(epsilon=4, max_entries=1, size=KEYS), "zipf", "frequency")
    check_accuracy(PCKVUE(epsilon=4, max_entries=1, size=KEYS), "uniform", "mean")


class Louder(PCKVUE):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_enumeration_notices_one_percent(epsilon: float) -> None:
    """One entry, where the bound is met."""
    check_privacy(PCKVUE(epsilon=epsilon, max_entries=1, size=2), keys=2)
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=epsilon, max_entries=1, size=2), keys=2)


def test_the_law_as_published() -> None:
    """a = 1/2, b = 2 / (e^eps + 3), p = e^eps / (e^eps + 1), for a key with value 1 and one without."""
    e = math.exp(1.0)
    law = law_of(task_for(PCKVUE(epsilon=1, max_entries=1, size=2), 2), {"0": 1.0}, 0)
    own = {0: 1 / 2, 1: 0.5 / (e + 1), 2: 0.5 * e / (e + 1)}
    absent = {0: (e + 1) / (e + 3), 1: 1 / (e + 3), 2: 1 / (e + 3)}
    assert len(law) == 9
    for (report,), mass in law.items():
        second, first = divmod(report, 3)
        assert float(mass) == pytest.approx(own[first] * absent[second], rel=1e-8)


def test_variance_as_derived() -> None:
    """For a rare key: b (1 - b) (k / (a - b))^2 for the frequency, b (k / (a (2p - 1)))^2 for the mean."""
    e, k = math.exp(1.0), 8
    b = 2 / (e + 3)
    mechanism = PCKVUE(epsilon=1, max_entries=k, size=100)
    assert mechanism.variance("frequency", 1) == pytest.approx(b * (1 - b) * (k / (0.5 - b)) ** 2, rel=1e-7)
    assert mechanism.variance("mean", 1) == pytest.approx(b * (2 * k / math.tanh(0.5)) ** 2, rel=1e-7)


def test_wire_is_base_three() -> None:
    """Symbols 0, 1, 2 as digits, 39 to a field of 62 bits; every number is a report."""
    mechanism = PCKVUE(epsilon=1, max_entries=4, size=100)
    assert [field.limit for field in mechanism.layout.fields[1:]] == [3**39, 3**39, 3**22]
    assert (mechanism.layout.bits, mechanism.layout.width) == (159, 20)
    task = task_for(mechanism, 100)
    state = mechanism.empty(task.keys)
    report = np.array([[0, 2 * 3**38, 1, 2 * 3**21 + 3]], dtype=np.uint64)
    mechanism.absorb(state, task.keys, report)
    assert np.argwhere(state.totals).tolist() == [[38, 1], [39, 0], [79, 0], [99, 1]]
    assert mechanism.scores(task.keys, report, task.keys.ids_of([38, 40, 99])).tolist() == [2]


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 4097}, {"values": "set"}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("pckv_ue", **{"epsilon": 1.0, "max_entries": 2, "size": 9, **wrong})
