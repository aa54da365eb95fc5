"""Strata: one spelling each, periods by the calendar, and everything else refused in one sentence."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from helpers import refused
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import (
    MOST_COMBINATIONS,
    UNTOLD,
    Stratum,
    check_number,
    first_day,
    is_period,
    is_within,
    labels_from,
    labels_in,
    longer,
    stratum_in,
    stratum_of,
    text_of,
)
from hubbub.protocol.task import Task

TODAY = datetime.date(2026, 11, 18)


def labelled(period: str = "once", labels: Any = None) -> Task:
    return Task.parse(
        {
            "name": "visits",
            "period": period,
            "labels": {"version": ["1", "2"], "country": ["de", "fr"]} if labels is None else labels,
            "keys": {"kind": "closed", "size": 4, "salt": "0" * 32},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2},
        }
    )


TASK = labelled("week")
PLAIN = labelled(labels={})


@pytest.mark.parametrize(
    ("stratum", "text"),
    [
        (UNTOLD, ""),
        (Stratum(("de", "2")), "country=de,version=2"),
        (Stratum(("fr", "1"), "2026-W46"), "country=fr,version=1@2026-W46"),
        (Stratum((), "2026-W46"), "@2026-W46"),
        (Stratum(("fr", "1"), "2026"), "country=fr,version=1@2026"),
    ],
)
def test_a_stratum_has_one_spelling(stratum: Stratum, text: str) -> None:
    assert text_of(TASK, stratum) == text
    assert stratum_in(TASK, text) == stratum


@pytest.mark.parametrize(
    "text",
    [
        "version=2,country=de",
        "country=de",
        "country=de,version=3",
        "country=de,version=2@",
        "country=de,version=2@2026-W60",
        "country=de,version=2@2025-W53",
        "country=de,version=2@2026-11-18",
        "country=de,version=2@2026-11",
        "country=de,version=2@once",
        "country=de,version=2@2026-W46@2026-W46",
        " country=de,version=2",
        "country=de,,version=2",
        "country=de,version=2,age=7",
        "de,2",
        "country=de,version=2\0",
        "x" * 2000,
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    with refused():
        stratum_in(TASK, text)


def test_a_task_without_periods_has_no_strata_of_one() -> None:
    with refused("is no period of task 'visits'"):
        stratum_in(labelled(), "country=de,version=2@2026-W46")
    with refused("has no label 'country': it has none"):
        stratum_in(PLAIN, "country=de")


def test_missing_and_unknown_labels_are_named() -> None:
    assert labels_from(TASK, {"version": "1", "country": "de"}) == ("de", "1")
    assert labels_in(TASK, "version=1, country=de") == ("de", "1")
    with refused("The label 'version' is missing: every report of task 'visits' has one."):
        labels_from(TASK, {"country": "de"})
    with refused("'xx' is no country of task 'visits'", "to change one, make another task"):
        labels_from(TASK, {"country": "xx", "version": "1"})
    with refused("has no label 'age': its labels are country, version"):
        labels_from(TASK, {"country": "de", "version": "1", "age": "7"})
    with refused("each once"):
        labels_in(TASK, "country=de,country=de,version=1")


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_every_day_of_years_has_a_period_that_merges_into_a_longer_one(period: str) -> None:
    """Also over the turn of years, where weeks are numbered in another year than their days."""
    task = labelled(period)
    for offset in range(366 * 9):
        day = datetime.date(2019, 12, 20) + datetime.timedelta(days=offset)
        name = period_of(task, day)
        first = first_day(name)
        assert first is not None
        assert first <= day
        assert is_period(task, name)
        assert is_within(name, name, name)
        while longer(name) != name:
            assert is_period(task, longer(name))
            if period == "week":
                assert is_within(name, longer(name), longer(name))
            else:
                assert is_within(name, longer(name), longer(name)) == (name[:4] == longer(name)[:4])
            name = longer(name)


def test_what_lies_within() -> None:
    assert is_within("2026-W46", "2026-W45", "2026-W47")
    assert not is_within("2026-W46", "2026-W47", None)
    assert not is_within("2026-W46", None, "2026-W45")
    assert not is_within("2026", "2026-W10", None)  # a year does not lie in a part of it
    assert is_within("2026", "2026-W01", "2026-W53")
    assert is_within("2026-11-18", "2026-11", "2026-11")
    assert not is_within("2026-11", "2026-11-02", None)
    for odd in ("", "2026-13", "2026-W00", "soon", "20261118", "2026-11-31"):
        with refused("is no period"):
            is_within("2026-W46", odd, None)


def test_a_batch_belongs_where_it_says_and_the_calendar_allows() -> None:
    labels = "country=de,version=2"
    assert stratum_of(TASK, labels, "", TODAY) == Stratum(("de", "2"), "2026-W47")
    assert stratum_of(TASK, labels, "2026-W46", TODAY) == Stratum(("de", "2"), "2026-W46")
    late = stratum_of(TASK, labels, "2026-W30", TODAY)
    assert late == Stratum(("de", "2"), "2026")  # nothing that was said of the week changes any more
    with refused("has not begun", "clock"):
        stratum_of(TASK, labels, "2026-W49", TODAY)
    with refused("is no period of task 'visits', which has one a week"):
        stratum_of(TASK, labels, "2026-11-18", TODAY)
    with refused("The label 'country' is missing"):
        stratum_of(TASK, "", "", TODAY)
    assert stratum_of(PLAIN, "", "once", TODAY) == UNTOLD
    with refused("has no periods"):
        stratum_of(PLAIN, "", "2026-W46", TODAY)


def test_combinations_have_a_limit() -> None:
    many = labelled(labels={"place": [str(place) for place in range(MOST_COMBINATIONS + 1)]})
    strata = [Stratum((str(place),)) for place in range(MOST_COMBINATIONS + 1)]
    check_number(many, strata[:-1])
    with refused("more than 1,000 combinations"):
        check_number(many, strata)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"Country": ["de"]}, "no name for a label"),
        *(
            ({name: ["de"]}, "files have something else of that name")
            for name in ("period", "value", "reports")
        ),
        ({"country": []}, "needs a list of different values"),
        ({"country": ["de", "de"]}, "needs a list of different values"),
        ({"country": ["de,fr"]}, "no value for a label"),
        ({"country": ["d e"]}, "no value for a label"),
        ({"a": [str(n) for n in range(300)], "b": [str(n) for n in range(300)]}, "more than 65,536"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels: Any, words: str) -> None:
    with refused(words):
        labelled(labels=labels)


def test_labels_are_part_of_the_task_and_old_tasks_stay_what_they_were() -> None:
    """In whatever order they are written; a task without labels has the digest it always had."""
    swapped = labelled("week", {"country": ["de", "fr"], "version": ["1", "2"]})
    assert swapped.digest == TASK.digest
    assert labelled("week", {"country": ["de", "fr", "us"], "version": ["1", "2"]}).digest != TASK.digest
    assert b"labels" not in PLAIN.canonical
    assert "labels" not in PLAIN.to_toml()
