"""What a task promises over time, in words and numbers that are true."""

from __future__ import annotations

import math
from typing import Any

import pytest

from helpers import refused, small_task
from hubbub.checks.conformance import task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.guarantee import Guarantee
from hubbub.privacy.over_time import all_reports, over_time, spending
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.protocol.task import Task


def task(period: str, per_period: int = 1, **parameters: Any) -> Task:
    rules = {"period": period, "reports_per_period": per_period}
    return small_task(**{"buckets": 8, **parameters}).model_copy(update=rules)


def test_reports_add_up_locally_to_the_truth() -> None:
    """Three reports of a tiny mechanism, all outcomes written out: the worst loss is three epsilons and no more."""
    small = small_task("collision", 3, max_entries=1, buckets=4, family="walsh")
    one, two = (law_of(small, record, 5) for record in ({"0": 1.0}, {"1": 1.0}))
    worst = max(
        math.log(one[a] * one[b] * one[c] / (two[a] * two[b] * two[c])) for a in one for b in one for c in one
    )
    promise = all_reports(small.guarantee, 3)
    assert promise is not None
    assert 2.99 < worst <= promise.epsilon == 3.0
    assert "up to 3 reports per person" in promise.note


def test_deltas_add_up_until_nothing_is_left() -> None:
    one = Guarantee(0.5, "l1", delta=0.01, distance=3.0, note="Rests on a hash.")
    thirty = all_reports(one, 30)
    assert thirty is not None
    assert (thirty.epsilon, thirty.unit, thirty.distance) == (15, "l1", 3.0)
    assert thirty.delta == pytest.approx(0.3)
    assert thirty.note.startswith("Rests on a hash. Holds for")
    assert all_reports(one, 100) is None
    assert all_reports(one, 1) is one


@pytest.mark.parametrize(
    ("period", "names"),
    [
        ("day", ["one day", "a month (30 days)", "a year (365 days)"]),
        ("week", ["one week", "a month (4 weeks)", "a year (52 weeks)"]),
        ("month", ["one month", "a year (12 months)"]),
        ("once", ["in all"]),
    ],
)
def test_spans(period: str, names: list[str]) -> None:
    spans = over_time(task(period, 2), 3000)
    assert [span.name for span in spans] == names
    assert spans[0].shuffled == shuffled_guarantee(task(period).mechanism, 3000, 1e-6, 2)
    epsilons = [span.shuffled.epsilon for span in spans if span.shuffled is not None]
    assert len(epsilons) == len(names)
    assert epsilons == sorted(epsilons)
    for span in spans:
        assert span.local is not None
        assert span.shuffled is not None
        assert (span.local.model, span.shuffled.model, span.shuffled.delta) == ("local", "shuffled", 1e-6)
        assert span.shuffled.epsilon <= span.local.epsilon
        assert span.words() == f"{span.name}: {span.local.short()}; {span.shuffled.short()}"


def test_without_a_shuffler_nothing_is_said_of_one() -> None:
    for span in over_time(task("week")):
        assert span.shuffled is None
        assert "shuffled" not in span.words()


def test_what_shuffling_does_not_cover_is_refused() -> None:
    with refused("per entry"):
        over_time(task("day", name="sparse_sum", buckets=1, unit="entry"), 1000)
    with refused("at least 2 reports"):
        over_time(task("day"), 1)


def test_a_year_beyond_the_range_of_doubles_is_said_in_words() -> None:
    year = over_time(task("day", 3))[-1].as_dict()
    assert year["local"]["epsilon"] == 1095
    assert "a factor of exp(1095)" in year["local"]["words"]


def test_nothing_is_promised_once_delta_is_used_up() -> None:
    mechanism = make_mechanism("gaussian", epsilon=1.0, max_entries=2, delta=0.01, size=10)
    words = spending(task_for(mechanism, 10).model_copy(update={"period": "day"}))
    assert "in a year (365 days): nothing is promised locally" in words
