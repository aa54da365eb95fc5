"""What a sealed item says of its stratum, and that it opens for no other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from helpers import refused, small_task
from hubbub.collect.keypair import KeyPair
from hubbub.protocol.sealing import KEY_BYTES, OVERHEAD, binding, key_id, seal, sealed_width
from hubbub.protocol.strata import (
    UNTOLD,
    Stratum,
    combination,
    item_numbers,
    number_of,
    prefix_of,
    prefix_width,
    stratum_from,
)
from hubbub.protocol.task import Task

LABELS = {"version": ("1", "2"), "country": ("de", "fr", "it")}
PAIR = KeyPair(bytes(range(32)))


def labelled(period: str = "once", labels: dict[str, Any] = LABELS) -> Task:
    plain = small_task(size=10, max_entries=3)
    return Task.parse({**plain.model_dump(), "period": period, "labels": labels})


def test_numbers_are_places_in_lists_and_the_first_label_counts_most() -> None:
    task = labelled()
    assert [number_of(task, made) for made in itertools.product(("de", "fr", "it"), ("1", "2"))] == list(
        range(6)
    )
    assert prefix_of(task, Stratum(("fr", "2"))) == b"0003"
    assert prefix_of(labelled("week"), Stratum(("it", "1"), "2026-W46")) == b"2026-W460004"


@pytest.mark.parametrize(
    "labels",
    [LABELS, {"a": [str(n) for n in range(256)], "b": [f"x{n}" for n in range(256)]}, {"one": ["x"]}],
)
@pytest.mark.parametrize(
    ("period", "name"), [("once", ""), ("day", "2026-11-18"), ("week", "2026-W47"), ("month", "2026-11")]
)
def test_every_combination_has_one_prefix(period: str, name: str, labels: dict[str, Any]) -> None:
    """All of them for short lists; of the longest lists there may be, every 997th."""
    task = labelled(period, labels)
    count = math.prod(len(values) for values in task.labels.values())
    assert len(item_numbers(task)) == count
    for number in [*range(0, count, 1 if count < 100 else 997), count - 1]:
        stratum = Stratum(combination(task, number), name)
        prefix = prefix_of(task, stratum)
        assert (number_of(task, stratum.labels), len(prefix)) == (number, prefix_width(task))
        assert stratum_from(task, prefix) == stratum
        assert prefix[len(name) :] in item_numbers(task)


def test_labels_that_no_header_could_hold_are_refused() -> None:
    """Each may be short, and each may have one value: together they are said with every batch."""
    many = {f"label_{number}": ["x" * 40] for number in range(18)}
    assert len(labelled(labels=many).labels) == 18
    with refused("more than 900 characters"):
        labelled(labels={**many, "another": ["x" * 40]})


def test_what_is_no_prefix_is_refused() -> None:
    task = labelled("week")
    for wrong in (
        b"",
        b"2026-W46",
        b"0001",
        b"2026-W460006",  # six combinations, from 0 to 5
        b"2026-W46ffff",
        b"2026-W46000A",
        b"2026-W46 001",
        b"2026-W46+001",
        b"2026-W4600010",
        b"2026-W540001",
        b"2026-w460001",
        b"2026-1-10001",
        b"\xff026-W460001",
    ):
        with refused(""):
            stratum_from(task, wrong)
    for labels, period in (
        ((), "2026-W46"),
        (("de",), "2026-W46"),
        (("de", "3"), "2026-W46"),
        (("2", "de"), "2026-W46"),
        (("de", "1", "1"), "2026-W46"),
        (("de", "1"), ""),
        (("de", "1"), "2026-11"),
        (("de", "1"), "2025-W53"),
    ):
        with refused(""):
            prefix_of(task, Stratum(labels, period))
    with refused("has 0 labels"):
        prefix_of(small_task(), Stratum(("de",)))


def test_tasks_without_labels_have_the_prefix_that_they_had() -> None:
    plain = small_task(size=10, max_entries=3)
    assert (prefix_width(plain), prefix_of(plain, UNTOLD), stratum_from(plain, b"")) == (0, b"", UNTOLD)
    weekly = plain.model_copy(update={"period": "week"})
    assert prefix_of(weekly, Stratum((), "2026-W46")) == b"2026-W46"
    assert item_numbers(weekly) == {b""}


def test_an_item_opens_for_its_own_labels_and_no_others() -> None:
    task, report = labelled("week"), bytes(3)
    item = seal(report, PAIR.public, task, "2026-W46", ("de", "2"))
    assert len(item) == sealed_width(task) == 8 + 4 + OVERHEAD + 3
    assert item.startswith(b"2026-W460001")
    info = binding(task.digest, b"2026-W460001", key_id(PAIR.public))
    assert info == b"hubbub sealed report v2" + task.digest + b"2026-W460001" + PAIR.id
    assert PAIR.decrypt(item[12:-KEY_BYTES], info) == report
    others = [b"2026-W46%04x" % number + item[12:] for number in range(6) if number != 1]
    opened, bad = PAIR.open_each(task, item + b"".join(others))
    assert (opened.tobytes(), bad) == (report, [1, 2, 3, 4, 5])
    with refused("is missing"):
        seal(report, PAIR.public, task, "2026-W46")
    with refused("is no version"):
        seal(report, PAIR.public, task, "2026-W46", ("de", "3"))
