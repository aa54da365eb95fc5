"""For whom, and since when: which strata are asked about, in which groups, and which of these are not shown."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from helpers import refused
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task
from hubbub.server.portions import Choice, by, withheld


def labelled(period: str = "week") -> Task:
    return Task.parse(
        {
            "name": "visits",
            "period": period,
            "labels": {"version": ["1", "2"], "country": ["de", "fr"]},
            "keys": {"kind": "closed", "size": 4, "salt": "0" * 32},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2},
        }
    )


TASK = labelled()
STRATA = [
    Stratum((country, version), period)
    for country, version, period in itertools.product(
        ("de", "fr"), ("1", "2"), ("2026", "2026-W45", "2026-W46")
    )
]


def test_everything_is_chosen_unless_something_is_asked() -> None:
    assert Choice().everything
    assert Choice().of(TASK, [*STRATA, UNTOLD]) == sorted([*STRATA, UNTOLD])
    assert Choice().of(TASK, []) == []
    assert Choice().words() == ""


def test_labels_and_periods_are_chosen() -> None:
    chosen = Choice({"country": "de", "version": "2"}).of(TASK, [*STRATA, UNTOLD])
    assert chosen == [Stratum(("de", "2"), period) for period in ("2026", "2026-W45", "2026-W46")]
    week = Choice({"country": "de"}, "2026-W46", "2026-W46")
    assert week.of(TASK, STRATA) == [Stratum(("de", version), "2026-W46") for version in ("1", "2")]
    assert week.words() == "country de, 2026-W46"
    later = Choice(first="2026-W45")
    assert {stratum.period for stratum in later.of(TASK, STRATA)} == {"2026-W45", "2026-W46"}
    assert Choice(first="2026-W45", last="2026-W46").words() == "from 2026-W45, to 2026-W46"


def test_what_makes_no_sense_is_refused() -> None:
    with refused("has no label 'age'"):
        Choice({"age": "7"}).of(TASK, STRATA)
    with refused("'xx' is no country of task 'visits'; there is de, fr."):
        Choice({"country": "xx"}).of(TASK, STRATA)
    with refused("There are no reports", "country fr", "2026-W50", "Reports are of 2026 to 2026-W46."):
        Choice({"country": "fr"}, "2026-W50", "2026-W50").of(TASK, STRATA)
    with refused("There are no reports"):
        Choice(first="2026-W46", last="2026-W45").of(TASK, STRATA)
    with refused("is no period"):
        Choice(first="yesterday").of(TASK, STRATA)
    with refused("has no periods"):
        Choice(first="2026-W46").of(labelled("once"), [Stratum(("de", "1"))])


def test_groups_by_labels_and_periods() -> None:
    groups = by(TASK, STRATA, ["version"])
    assert list(groups) == ["1", "2"]
    assert all(len(strata) == 6 for strata in groups.values())
    assert list(by(TASK, STRATA, ["period", "country"]))[:2] == ["2026, de", "2026-W45, de"]
    assert list(by(TASK, [*STRATA, UNTOLD], ["country"])) == ["not told", "de", "fr"]
    with refused("has no label 'age'"):
        by(TASK, STRATA, ["age"])
    with refused("has no periods"):
        by(labelled("once"), [], ["period"])
    for names in ([], ["country", "country"]):
        with refused("each named once"):
            by(TASK, STRATA, names)


def test_small_groups_are_withheld_and_cannot_be_computed_from_the_others() -> None:
    assert withheld({"de": 500, "fr": 400}, 100) == {}
    found = withheld({"de": 500, "fr": 400, "us": 99}, 100)
    assert set(found) == {"us", "fr"}
    assert "99 reports are fewer than 100" in found["us"]
    assert "would tell" in found["fr"]
    assert set(withheld({"de": 500, "fr": 60, "us": 60}, 100)) == {"fr", "us"}
    assert withheld({"de": 1}, 0) == {}
    assert set(withheld({"de": 1}, 2)) == {"de"}


@pytest.mark.parametrize("seed", range(40))
def test_no_sum_and_no_difference_of_what_is_shown_has_fewer_reports(seed: int) -> None:
    """All unions of shown groups, and the whole less each of them, enumerated."""
    rng = np.random.default_rng(seed)
    least = int(rng.integers(1, 50))
    reports = {str(place): int(rng.integers(1, 80)) for place in range(7)}
    kept = [reports[name] for name in reports if name not in withheld(reports, least)]
    whole = sum(reports.values())
    for size in range(len(kept) + 1):
        for chosen in itertools.combinations(kept, size):
            assert not 0 < sum(chosen) < least
            assert not 0 < whole - sum(chosen) < min(least, whole)
