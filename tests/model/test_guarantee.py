"""Guarantees: what is promised, in numbers and in words."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from helpers import refused
from hubbub.model.guarantee import Guarantee


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_is_finite_and_positive(epsilon: float) -> None:
    with refused("epsilon"):
        Guarantee(epsilon)


@pytest.mark.parametrize("delta", [-0.1, 1.0, 2.0, math.nan])
def test_delta_is_a_small_probability(delta: float) -> None:
    with refused("delta"):
        Guarantee(1.0, delta=delta)


def test_a_distance_goes_with_l1_only() -> None:
    with refused("distance"):
        Guarantee(1.0, unit="l1")
    with refused("distance"):
        Guarantee(1.0, unit="record", distance=2.0)
    for distance in (0.0, -1.0, math.nan, math.inf):
        with refused("distance"):
            Guarantee(1.0, unit="l1", distance=distance)
    assert Guarantee(1.0, unit="l1", distance=2.0).distance == 2.0


@pytest.mark.parametrize(
    ("guarantee", "parts"),
    [
        (
            Guarantee(1.0),
            [
                "epsilon = 1 per record, local model",
                "factor of 2.718",
                "one person's record were replaced by any other",
                "nobody",
            ],
        ),
        (
            Guarantee(0.5, "entry", "central"),
            ["epsilon = 0.5 per entry, central model", "1.649", "one entry"],
        ),
        (
            Guarantee(2.0, "l1", "shuffled", 1e-6, 3.0, "Mind the gap."),
            [
                "epsilon = 2, delta = 1e-06 per l1 distance 3, shuffled model",
                ", plus 1e-06.",
                "at most 3 in total",
                "shuffler",
                "Mind the gap.",
            ],
        ),
        (
            Guarantee(1.0, "value", "central"),
            ["Per unit of value, not per person: epsilon = 1, central model", "one unit of value", "trusted"],
        ),
        (
            Guarantee(1.0, "user", "central", 1e-6),
            [
                "Per user: epsilon = 1, delta = 1e-06, central model",
                "all rows of one user were added",
                "trusted",
            ],
        ),
    ],
)
def test_words_carry_the_numbers(guarantee: Guarantee, parts: list[str]) -> None:
    for part in parts:
        assert part in guarantee.words()
    assert guarantee.words().startswith(guarantee.short())


def test_factors_are_written_as_people_do() -> None:
    for epsilon, size in (
        (1.0, "2.718"),
        (6.9, "992.3"),
        (10.0, "22,026"),
        (14.0, "1,202,604"),
        (15.0, "exp(15)"),
    ):
        assert f"a factor of {size}. " in Guarantee(epsilon).words()


def test_pure_guarantees_do_not_speak_of_failure() -> None:
    assert ", plus" not in Guarantee(1.0).words()
    assert "delta" not in Guarantee(1.0).short()


def test_plain_data_says_everything() -> None:
    guarantee = Guarantee(1.5, "l1", "local", 1e-9, 4.0, "note")
    facts = json.loads(json.dumps(guarantee.as_dict()))
    words = facts.pop("words")
    assert Guarantee(**facts) == guarantee
    assert words == guarantee.words()
    assert (
        "noise" not in Guarantee(1.0, "user", "central").as_dict()
    )  # which its holder adds, whatever the field says


@pytest.mark.parametrize(
    ("name", "parameters", "unit", "delta"),
    [
        ("collision", {}, "record", 0.0),
        ("coco", {}, "record", 0.0),
        ("sparse_sum", {"unit": "entry"}, "entry", 0.0),
        (
            "sparse_sum",
            {"unit": "l1", "distance": 2.0, "delta": 1e-6, "family": "prf", "values": "signed"},
            "l1",
            1e-6,
        ),
    ],
)
def test_a_task_promises_what_its_parameters_say(
    name: str, parameters: dict[str, Any], unit: str, delta: float, make_task: Any
) -> None:
    promise = make_task(name, epsilon=0.75, **parameters).guarantee
    assert (promise.epsilon, promise.unit, promise.delta, promise.model) == (0.75, unit, delta, "local")


def test_a_promise_that_rests_on_hashing_says_so(make_task: Any) -> None:
    with_delta = make_task(
        "sparse_sum", unit="l1", distance=2.0, delta=1e-6, family="prf", values="signed"
    ).guarantee
    assert "hash function" in with_delta.words()
    assert "hash" not in make_task("sparse_sum", unit="l1", distance=2.0, values="signed").guarantee.words()


def test_several_messages_do_not_hide_who_holds_the_table() -> None:
    """Of a table both are said: what holds for one report only, and that its holder is trusted."""
    words = Guarantee(1.0, noise="table", messages=3.0).words()
    assert "trusted with it" in words
    assert "That is for a single report." in words
    assert "nobody has to be trusted" not in Guarantee(1.0, messages=3.0).words()
