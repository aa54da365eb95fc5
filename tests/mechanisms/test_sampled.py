"""Sampled: accuracy in all modes, privacy, and the price of answering for one entry only."""

from __future__ import annotations

from typing import Any

import pytest
from measuring import check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.sampled import Sampled
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import shuffled_guarantee

MODES = {"sets": "set", "signed": "signed", "events": "signed"}


@pytest.mark.parametrize(("family", "kind"), [("walsh", "zipf"), ("walsh", "uniform"), ("prf", "long")])
@pytest.mark.parametrize(
    ("mode", "quantity"),
    [("sets", "frequency"), ("signed", "mean"), ("events", "mean"), ("events", "frequency")],
)
def test_accuracy(mode: Any, quantity: Any, family: Any, kind: str) -> None:
    values: Any = MODES[mode]
    check_accuracy(
        Sampled(epsilon=1.5, max_entries=3, values=values, mode=mode, family=family), kind, quantity
    )


@pytest.mark.parametrize(("mode", "quantity"), [("sets", "frequency"), ("signed", "mean")])
def test_accuracy_where_held_keys_weigh_most(mode: Any, quantity: Any) -> None:
    values: Any = MODES[mode]
    check_accuracy(Sampled(epsilon=3, max_entries=1, values=values, mode=mode), "uniform", quantity)


class Louder(Sampled):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("mode", MODES)
def test_enumeration_notices_one_percent(mode: Any) -> None:
    """With one entry: with two, sampling hides a little more unless both have one bucket."""
    values: Any = MODES[mode]
    check_privacy(Sampled(epsilon=1, max_entries=1, values=values, mode=mode))
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, max_entries=1, values=values, mode=mode))


def test_sampling_does_not_amplify() -> None:
    """Where both keys of a record share a bucket, their report gives away as much as that of one key."""
    task = task_for(Sampled(epsilon=1, max_entries=2, buckets=2))
    tops = {float(max(law_of(task, {"0": 1, "1": 1}, seed).values())) for seed in range(8)}
    assert max(tops) == pytest.approx(
        float(max(law_of(task_for(Sampled(epsilon=1, max_entries=1, buckets=2)), {"0": 1}, 0).values()))
    )


@pytest.mark.parametrize("mode", ["sets", "signed"])
def test_variance_grows_with_the_square(mode: Any) -> None:
    """k^2 times that of one key; sketch response, which answers for all entries at once, grows with k."""
    quantity: Any = "frequency" if mode == "sets" else "mean"
    common: dict[str, Any] = {"epsilon": 1.0, "values": MODES[mode]}
    one = Sampled(**common, max_entries=1).variance(quantity, 1)
    for limit in (4, 32):
        many = Sampled(**common, max_entries=limit).variance(quantity, 1)
        assert many == pytest.approx(limit**2 * one, rel=1e-9)
        best = make_mechanism("sketch_response", **common, max_entries=limit)
        assert many > 0.5 * limit * best.variance(quantity, 1)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_for_one_key_it_is_sketch_response(epsilon: float) -> None:
    for values, quantity in (("set", "frequency"), ("signed", "mean")):
        common: dict[str, Any] = {"epsilon": epsilon, "max_entries": 1, "values": values, "family": "prf"}
        here, there = (make_mechanism(name, **common) for name in ("sampled", "sketch_response"))
        assert here.variance(quantity, 1) == pytest.approx(there.variance(quantity, 1), rel=0.02)  # type: ignore[arg-type]


def test_shuffling_uses_the_weights() -> None:
    promise = shuffled_guarantee(Sampled(epsilon=1, max_entries=8), 10_000, 1e-6)
    assert promise.epsilon < 0.15


@pytest.mark.parametrize(
    "wrong", [{"mode": "signed"}, {"mode": "events"}, {"buckets": 1}, {"values": "signed", "mode": "sets"}]
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("sampled", **{"epsilon": 1.0, "max_entries": 2, **wrong})
