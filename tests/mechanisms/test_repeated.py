"""Repeated: accuracy in both units, privacy, and where it stands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import check_accuracy

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.device.client import privatize
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.repeated import Repeated
from hubbub.mechanisms.shared import hashed
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.errors import Refused
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.populations import distinct_population

MODES = {"sets": "set", "signed": "signed", "events": "signed"}


@pytest.mark.parametrize(
    ("unit", "family", "kind"),
    [("record", "walsh", "zipf"), ("entry", "walsh", "uniform"), ("entry", "prf", "long")],
)
@pytest.mark.parametrize(
    ("mode", "quantity"),
    [("sets", "frequency"), ("signed", "mean"), ("events", "mean"), ("events", "frequency")],
)
def test_accuracy(mode: Any, quantity: Any, unit: Any, family: Any, kind: str) -> None:
    values: Any = MODES[mode]
    mechanism = Repeated(epsilon=1.5, max_entries=3, values=values, mode=mode, family=family, unit=unit)
    check_accuracy(mechanism, kind, quantity)


def test_accuracy_where_held_keys_weigh_most() -> None:
    check_accuracy(Repeated(epsilon=3, max_entries=2, unit="entry"), "uniform", "frequency")
    check_accuracy(Repeated(epsilon=3, max_entries=2, values="signed", unit="entry"), "uniform", "mean")


class Louder(Repeated):
    """The favoured weight of every answer raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize("unit", ["record", "entry"])
@pytest.mark.parametrize("mode", ["signed", "events"])
def test_enumeration_notices_one_percent(mode: Any, unit: Any) -> None:
    """In unit entry a value changes sides: the whole ratio of one answer."""
    common: dict[str, Any] = {"epsilon": 1, "max_entries": 2, "values": "signed", "mode": mode, "unit": unit}
    check_privacy(Repeated(**common), seeds=range(8), keys=2)
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(**common), seeds=range(8), keys=2)


def test_enumeration_notices_one_percent_in_sets() -> None:
    """Between two sets of two keys in other buckets both answers differ by the whole ratio."""
    check_privacy(Repeated(epsilon=1, max_entries=2), seeds=range(4), keys=4)
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1, max_entries=2), seeds=range(4), keys=4)


def test_long_records_are_sampled_down_in_unit_entry() -> None:
    """Records with one and two entries too many are among the neighbours."""
    check_privacy(Repeated(epsilon=1, max_entries=1, unit="entry"), keys=3)
    check_privacy(Repeated(epsilon=1, max_entries=2, unit="entry"), keys=4)


class Unshuffled(Repeated):
    """The same with answers in the order of the entries."""

    def kernel_and_shape(self) -> Any:
        respond, shape = super().kernel_and_shape()
        return respond, shape._replace(shuffled=False)


def test_shuffling_the_places_is_needed() -> None:
    """Otherwise a key that is added moves all the others one place on."""
    check_privacy(Repeated(epsilon=1, max_entries=3, unit="entry"), keys=3)
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Unshuffled(epsilon=1, max_entries=3, unit="entry"), seeds=range(6), keys=3)


def test_ranks() -> None:
    """Unit entry: k times the variance of one key. Unit record: far worse, about k^3 times."""
    one = make_mechanism("local_hashing", epsilon=1.0).variance("frequency", 1)
    entry = Repeated(epsilon=1.0, max_entries=16, unit="entry").variance("frequency", 1)
    record = Repeated(epsilon=1.0, max_entries=16).variance("frequency", 1)
    sampled = make_mechanism("sampled", epsilon=1.0, max_entries=16).variance("frequency", 1)
    assert entry == pytest.approx(16 * one, rel=1e-9)
    assert record > 10 * sampled
    assert record == pytest.approx(16**3 * 4, rel=0.1)


def test_the_budget_is_not_overspent_by_rounding() -> None:
    for limit in (1, 3, 7, 48):
        favoured, other = Repeated(epsilon=0.7, max_entries=limit).weights
        assert limit * math.log(favoured / other) <= 0.7 * (1 + 1e-12)


@pytest.mark.parametrize(
    "wrong",
    [{"unit": "l1"}, {"mode": "signed"}, {"max_entries": 5000}, {"epsilon": 1e-7, "max_entries": 4096}],
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("repeated", **{"epsilon": 1.0, "max_entries": 2, **wrong})


def test_votes_for_many_buckets_are_counted_some_reports_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, 300 reports at epsilon 16 took 2.4 GB. The counts are the same, however many there are at a time."""
    mechanism = Repeated(epsilon=6, max_entries=2, unit="entry", family="prf")
    task = task_for(mechanism, 5)
    crowd = distinct_population(users=200, keys=5, entries=2, seed=3).entries
    crowd.values[:] = np.abs(crowd.values)
    packed, _ = privatize(task, crowd, InsecureCoins(3), SimulatedSeeds(3))
    before = estimate(task, aggregate(task, packed))
    cast, sizes = Repeated.votes, []

    def votes(self: Repeated, reports: Any) -> Any:
        sizes.append(len(reports))
        return cast(self, reports)

    monkeypatch.setattr(Repeated, "votes", votes)
    monkeypatch.setattr(hashed, "_CHUNK", 20 * mechanism.buckets)
    assert estimate(task, aggregate(task, packed)).rows() == before.rows()
    assert max(sizes) == 20
