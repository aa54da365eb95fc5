"""Rounds add up to what they are worth: against exact composition, by hand, and in a file."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enumerated import exact_pair

from helpers import refused, small_task
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.privacy.compose import Round, compose, read_rounds, write_rounds
from hubbub.privacy.shuffle import Crowd, any_mechanism, crowd_of, response

E1 = favoured_weight(1.0)


def accounting() -> None:
    pytest.importorskip("dp_accounting")


def exact_composition(one: Crowd, two: Crowd, epsilon: float) -> float:
    """delta of two rounds at epsilon, from the laws of what is seen in each."""
    (p, q), (r, s) = exact_pair(one), exact_pair(two)
    return math.fsum(np.maximum(0.0, np.outer(p, r) - math.exp(epsilon) * np.outer(q, s)).ravel())


def test_two_small_rounds_against_exact_composition() -> None:
    """Above the truth, and one percent less would not be."""
    accounting()
    one, two = response(14, 1, 3, E1, UNIT), response(10, 1, 4, favoured_weight(0.5), UNIT)
    for delta in (1e-2, 1e-4):
        epsilon = compose([one, two], delta).epsilon
        assert exact_composition(one, two, epsilon) <= delta
        assert exact_composition(one, two, 0.99 * epsilon) > delta


def test_ten_rounds() -> None:
    accounting()
    crowd = response(10_000, 4, 17, E1, UNIT)
    guarantee = compose([crowd] * 10, 1e-6)
    assert guarantee.epsilon == pytest.approx(0.1153, abs=1e-4)
    assert (guarantee.unit, guarantee.model, guarantee.delta) == ("record", "shuffled", 1e-6)
    assert "10 rounds among 10,000 shuffled reports (loss composition)" in guarantee.note
    assert compose([crowd] * 10, 1e-6, "basic").epsilon == pytest.approx(0.3905, abs=1e-4)


def test_unequal_rounds_are_worth_more_than_either_and_less_than_their_sum() -> None:
    accounting()
    few, many = [response(10_000, 4, 17, E1, UNIT)] * 3, [any_mechanism(1_000_000, 0.5)] * 20
    parts = [compose(rounds, 1e-6).epsilon for rounds in (few, many)]
    both = compose([*few, *many], 1e-6)
    assert max(parts) < both.epsilon < math.fsum(parts)
    assert both.epsilon == pytest.approx(math.hypot(*parts), rel=0.05)
    assert "10,000 to 1,000,000" in both.note


def test_rounds_of_very_different_size_do_not_spoil_each_other() -> None:
    """A hundred tiny losses on the grid of a large one are still seen as tiny."""
    accounting()
    large = response(1000, 4, 17, E1, UNIT)
    together = compose([large, *[response(10**7, 4, 17, E1, UNIT)] * 100], 1e-6).epsilon
    assert large.epsilon(1e-6) < together < 1.01 * large.epsilon(1e-6)


def test_basic_composition_by_hand() -> None:
    one, two = response(1000, 2, 9, E1, UNIT), any_mechanism(5000, 1.0)
    expected = 2 * one.epsilon(1e-6 / 3) + two.epsilon(1e-6 / 3)
    assert compose([one, two, one], 1e-6, "basic").epsilon == pytest.approx(expected, rel=1e-9)


def test_advanced_composition_by_hand() -> None:
    """Eighty rounds: below the sum, by the formula."""
    crowd = response(10_000, 4, 17, E1, UNIT)
    each = crowd.epsilon(1e-6 / 160)
    drift = 80 * each * (math.exp(each) - 1) / (math.exp(each) + 1)
    expected = drift + math.sqrt(2 * math.log(2e6) * 80 * each**2)
    found = compose([crowd] * 80, 1e-6, "advanced").epsilon
    assert found == pytest.approx(expected, rel=1e-9)
    assert found < compose([crowd] * 80, 1e-6, "basic").epsilon
    few = compose([crowd] * 3, 1e-6, "advanced").epsilon
    assert few == compose([crowd] * 3, 1e-6, "basic").epsilon


def test_composition_by_loss_is_below_the_others() -> None:
    accounting()
    for rounds in (2, 40):
        crowds = [response(100_000, 4, 17, E1, UNIT)] * rounds
        loss, advanced, basic = (compose(crowds, 1e-6, m).epsilon for m in ("loss", "advanced", "basic"))  # type: ignore[arg-type]
        assert loss < advanced <= basic


def test_one_round_is_that_round() -> None:
    crowd = any_mechanism(1000, 1.0)
    for method in ("loss", "advanced", "basic"):
        assert compose([crowd], 1e-6, method).epsilon == crowd.epsilon(1e-6)  # type: ignore[arg-type]


def test_without_dp_accounting_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    crowds = [any_mechanism(1000, 1.0)] * 2
    with refused("pip install 'hubbub[accounting]'", "advanced"):
        compose(crowds, 1e-6, "loss")
    assert compose(crowds, 1e-6, "advanced").epsilon > 0


def test_a_delta_below_the_precision_of_the_convolution_is_refused() -> None:
    accounting()
    with refused("too small", "advanced"):
        compose([any_mechanism(10_000, 1.0)] * 2, 1e-13)


def test_nothing_to_compose() -> None:
    with refused("no rounds"):
        compose([], 1e-6)
    for delta in (0.0, 1.0):
        with refused("delta"):
            compose([any_mechanism(1000, 1.0)], delta)


# The ledger


def test_a_ledger_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    tasks = [small_task("collision", buckets=8), small_task("sparse_sum", epsilon=0.5)]
    rounds = [Round.of(task, 1000 * (i + 1)) for i, task in enumerate(tasks)]
    write_rounds(path, rounds)
    assert read_rounds(path) == rounds
    assert [one.crowd() for one in read_rounds(path)] == [
        crowd_of(task.mechanism, 1000 * (i + 1)) for i, task in enumerate(tasks)
    ]
    assert rounds[0].digest == tasks[0].digest.hex()
    assert [p.name for p in tmp_path.iterdir()] == ["rounds.json"]


def test_a_round_remembers_how_much_one_person_may_say(tmp_path: Path) -> None:
    """And a ledger that says nothing of it is one of the first, which were for one report per person."""
    path = tmp_path / "rounds.json"
    task = small_task(buckets=8).model_copy(update={"reports_per_period": 3, "period": "week"})
    write_rounds(path, [Round.of(task, 1000)])
    (one,) = read_rounds(path)
    assert (one.per_person, one.period) == (3, "week")
    assert one.crowd() == crowd_of(task.mechanism, 1000, 3)
    data = json.loads(path.read_text())
    for key in ("per_person", "period"):
        del data["rounds"][0][key]
    path.write_text(json.dumps(data))
    (first,) = read_rounds(path)
    assert first.crowd() == crowd_of(task.mechanism, 1000)


def test_a_round_without_a_bound_is_refused() -> None:
    with refused("per entry"):
        Round.of(small_task("sparse_sum", unit="entry"), 1000)
    with refused("at least 2"):
        Round.of(small_task(), 1)


def change(key: str, value: Any) -> Any:
    def apply(data: dict[str, Any]) -> None:
        data["rounds"][0][key] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data.update(format=2), "format 2"),
        (lambda data: data.pop("rounds"), "not a ledger"),
        (change("weights", [4, 17, 2.5, 1]), "not a ledger"),
        (change("weights", [4, 17]), "not a ledger"),
        (change("reports", "many"), "not a ledger"),
        (change("reports", True), "not a ledger"),
        (change("reports", 1), "at least 2"),
        (change("weights", [4, 7, 3, 1]), "t >= 2s"),
        (lambda data: data["rounds"][0].pop("epsilon"), "not a ledger"),
        (change("per_person", "two"), "not a ledger"),
        (change("per_person", True), "not a ledger"),
        (change("per_person", 0), "at least 1 report"),
        (change("period", "fortnight"), "not a ledger"),
        (change("epsilon", 10**400), "not a ledger"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: Any, reason: str) -> None:
    path = tmp_path / "rounds.json"
    write_rounds(path, [Round.of(small_task(buckets=8), 1000)])
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with refused(reason):
        read_rounds(path)


def test_files_that_are_no_ledger_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    for content in (b"", b"[]", b"\xff\xfe", b'{"format": 1', b"null", b"[" * 100_000):
        path.write_bytes(content)
        with refused("not a ledger"):
            read_rounds(path)
    with refused("cannot be read"):
        read_rounds(tmp_path / "missing.json")
