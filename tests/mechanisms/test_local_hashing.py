"""Local hashing: a corner of Collision, the published variance, privacy, accuracy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from measuring import check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.local_hashing import LocalHashing
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.errors import Refused


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("family", "kind"), [("walsh", "zipf"), ("prf", "long")])
def test_accuracy(binary: bool, family: Any, kind: str) -> None:
    check_accuracy(LocalHashing(epsilon=1.5, family=family, binary=binary), kind, "frequency")


class Louder(LocalHashing):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("binary", [False, True])
def test_enumeration_notices_one_percent(binary: bool) -> None:
    check_privacy(LocalHashing(epsilon=1, family="prf", binary=binary))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, family="prf", binary=binary))


@pytest.mark.parametrize("buckets", [2, 4])
def test_the_law_is_that_of_collision(buckets: int) -> None:
    here = task_for(LocalHashing(epsilon=1, buckets=buckets))
    there = task_for(Collision(epsilon=1, max_entries=1, buckets=buckets))
    for record in ({}, {"2": 1.0}):
        assert law_of(here, record, 5) == law_of(there, record, 5)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.0])
def test_variance_as_published(epsilon: float) -> None:
    """4 e^eps / (n (e^eps - 1)^2) with g = e^eps + 1, up to rounding g; ((e^eps + 1) / (e^eps - 1))^2 / n with 2."""
    e = math.exp(epsilon)
    olh, blh = (LocalHashing(epsilon=epsilon, family="prf", binary=binary) for binary in (False, True))
    assert olh.buckets == round(e + 1)
    assert olh.variance("frequency", 1) == pytest.approx(4 * e / (e - 1) ** 2, rel=0.02)
    assert blh.variance("frequency", 1) == pytest.approx(((e + 1) / (e - 1)) ** 2, rel=1e-6)


@pytest.mark.parametrize("wrong", [{"max_entries": 2}, {"values": "signed"}, {"binary": True, "buckets": 4}])
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("local_hashing", **{"epsilon": 1.0, **wrong})
