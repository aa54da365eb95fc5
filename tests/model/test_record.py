"""The rules for untidy records, row by row, for single records and for tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refused, write_csv
from hubbub.checks.exact import Enumeration, law_of
from hubbub.device.client import Client, encode_record
from hubbub.model.record import GRID, Entries, Scale, Summary, plain_record, sample_down
from hubbub.primitives.coins import InsecureCoins
from hubbub.tables.records import encode_table, read_table

Tidy = tuple[dict[str, float], Summary]
Encode = Callable[[Any, list[tuple[str, Any]]], Tidy]


def decoded(task: Any, entries: Entries, summary: Summary) -> Tidy:
    """The one record of a batch as it will be randomized, in the task's units."""
    assert len(entries) == 1
    values = task.scale.center + task.scale.half * entries.values / GRID
    names = [task.keys.name_of(int(place)) for place in entries.ids]
    return dict(zip(names, values.tolist(), strict=True)), summary


def as_mapping(task: Any, rows: list[tuple[str, Any]]) -> Tidy:
    return decoded(task, *encode_record(task, dict(rows)))


@pytest.fixture(params=["record", "table"])
def encode(request: pytest.FixtureRequest, tmp_path: Path) -> Encode:
    """Both ways in: a mapping on a device, or rows of a table."""

    def as_table(task: Any, rows: list[tuple[str, Any]]) -> Tidy:
        table = write_csv(tmp_path / "t.csv", [("u", "k", "v"), *(("somebody", *row) for row in rows)])
        return decoded(task, *encode_table(task, read_table(table, "u", "k", "v")))

    return as_mapping if request.param == "record" else as_table


@pytest.fixture
def ratings(make_task: Any) -> Any:
    return make_task(values="signed", low=1.0, high=5.0)


# One test per row of the table in hubbub.model.record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "many", ""])
def test_no_finite_number_is_refused_in_a_table_and_left_out_on_a_device(
    value: Any, ratings: Any, tmp_path: Path
) -> None:
    rows = [("u", "k", "v"), ("somebody", "1", 2.0), ("somebody", "2", value)]
    with refused():
        encode_table(ratings, read_table(write_csv(tmp_path / "t.csv", rows), "u", "k", "v"))
    record, summary = decoded(ratings, *encode_record(ratings, {"1": 2.0, "2": value}))
    assert record == pytest.approx({"1": 2.0})
    assert summary == Summary(1, 1, unreadable=1)


@pytest.mark.parametrize(
    "value", [None, [], 1j, 10**400, "1.5e"], ids=["none", "list", "complex", "huge", "text"]
)
def test_a_value_that_is_no_number_is_left_out(value: Any, ratings: Any) -> None:
    assert encode_record(ratings, {"1": 2.0, "2": value})[1] == Summary(1, 1, unreadable=1)


def test_values_outside_the_range_are_clipped_and_counted(encode: Encode, ratings: Any) -> None:
    record, summary = encode(ratings, [("1", 0.0), ("2", 1.0), ("3", 5.0), ("4", 5.5), ("5", -1e300)])
    assert record == pytest.approx({"1": 1.0, "2": 1.0, "3": 5.0, "4": 5.0, "5": 1.0})
    assert summary == Summary(1, 5, clipped=3)


def test_a_zero_in_a_set_is_left_out_and_counted(encode: Encode, make_task: Any) -> None:
    record, summary = encode(make_task(), [("1", 0), ("2", 1), ("3", 0.0), ("4", 1.0)])
    assert record == {"2": 1.0, "4": 1.0}
    assert summary == Summary(1, 2, absent=2)


def test_a_zero_among_values_is_a_value(encode: Encode, make_task: Any) -> None:
    record, summary = encode(make_task(values="signed", low=-1.0, high=1.0), [("1", 0), ("2", 0.5)])
    assert record == {"1": 0.0, "2": 0.5}
    assert summary == Summary(1, 2)


@pytest.mark.parametrize("value", [0.5, 2, -1, 1e-9])
def test_a_set_has_no_other_values(value: float, make_task: Any, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [("u", "k", "v"), ("somebody", "1", 1), ("somebody", "2", value)])
    with refused("other than 0 and 1"):
        encode_table(make_task(), read_table(table, "u", "k", "v"))
    assert encode_record(make_task(), {"1": 1, "2": value})[1] == Summary(1, 1, unreadable=1)


def test_of_a_repeated_key_in_a_table_the_last_row_counts(tmp_path: Path, ratings: Any) -> None:
    rows = [
        ("u", "k", "v"),
        ("b", "7", 2),
        ("a", "7", 9),
        ("b", "8", 3),
        ("b", "7", 4),
        ("a", "7", 5),
        ("b", "7", 1.5),
    ]
    entries, summary = encode_table(ratings, read_table(write_csv(tmp_path / "t.csv", rows), "u", "k", "v"))
    assert summary == Summary(2, 3, repeated=3)
    assert entries.offsets.tolist() == [0, 1, 3]
    assert decoded(ratings, entries.slice(0, 1), summary)[0] == pytest.approx({"7": 5.0})
    assert decoded(ratings, entries.slice(1, 2), summary)[0] == pytest.approx({"7": 1.5, "8": 3.0})


def test_a_last_zero_takes_a_key_out_of_a_set(tmp_path: Path, make_task: Any) -> None:
    rows = [("u", "k", "v"), ("a", "7", 1), ("a", "7", 0), ("b", "7", 0), ("b", "7", 1)]
    table = read_table(write_csv(tmp_path / "t.csv", rows), "u", "k", "v")
    entries, summary = encode_table(make_task(), table)
    assert entries.offsets.tolist() == [0, 0, 1]
    assert summary == Summary(2, 1, absent=1, repeated=2)


def test_a_key_twice_in_a_collection_is_in_the_set_once(make_task: Any) -> None:
    record, summary = decoded(make_task(), *encode_record(make_task(), ["7", 7, "3"]))
    assert record == {"7": 1.0, "3": 1.0}
    assert summary == Summary(1, 2)


def test_long_records_are_sampled_down_and_counted(make_task: Any) -> None:
    client = Client(make_task(max_entries=2))
    client.report([str(k) for k in range(7)])
    client.report(["1", "2"])
    assert client.summary == Summary(2, 9, sampled_records=1, dropped_entries=5)


def test_long_records_are_kept_where_no_limit_is_needed(make_task: Any) -> None:
    client = Client(make_task("sparse_sum", values="signed", unit="entry", max_entries=2))
    client.report({str(k): 1.0 for k in range(7)})
    assert client.summary == Summary(1, 7)


def test_long_records_are_refused_in_a_table_where_the_guarantee_does_not_cover_them(
    make_task: Any, tmp_path: Path
) -> None:
    """A device reports all the same, and the guarantee says what that costs."""
    task = make_task("sparse_sum", values="signed", unit="l1", distance=1.0, max_entries=2)
    rows = [("u", "k", "v"), *(("somebody", key, 1.0) for key in "123")]
    with refused("more than 2 entries"):
        encode_table(task, read_table(write_csv(tmp_path / "t.csv", rows), "u", "k", "v"))
    client = Client(task)
    client.report({"1": 1.0, "2": 1.0, "3": 1.0})
    assert client.summary == Summary(1, 3)
    assert "up to 2 entries" in task.guarantee.words()
    planned = make_task(
        "sparse_sum", values="signed", unit="l1", distance=1.0, max_entries=2, round_at="bins"
    )
    assert "up to" not in planned.guarantee.note
    encode_table(planned, read_table(tmp_path / "t.csv", "u", "k", "v"))


def test_no_entries_are_fine(encode: Encode, make_task: Any) -> None:
    task = make_task()
    assert encode_record(task, {})[1] == Summary(1, 0)
    assert encode(task, [("1", 0)]) == ({}, Summary(1, 0, absent=1))
    assert len(Client(task).report([])) == task.mechanism.layout.width


# Sampling


def rows_of(*lengths: int) -> Entries:
    """Records whose entries are numbered through, with values that tell the number again."""
    count = sum(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Entries(np.arange(count, dtype=np.uint64), np.arange(count, dtype=np.int64) * 10, offsets)


@pytest.mark.parametrize(("length", "limit"), [(4, 2), (5, 2), (4, 1), (4, 3), (3, 3)])
def test_sampling_down_is_exactly_uniform(length: int, limit: int) -> None:
    """Every way the coins can fall: each subset has the same probability, as fractions."""
    entries = rows_of(length)

    def run(tree: Enumeration) -> frozenset[int]:
        kept, _ = sample_down(entries, limit, tree)  # type: ignore[arg-type]
        assert kept.values.tolist() == [10 * int(place) for place in kept.ids]
        return frozenset(kept.ids.tolist())

    subsets = [frozenset(subset) for subset in combinations(range(length), limit)]
    assert Enumeration().law(run) == dict.fromkeys(subsets, Fraction(1, len(subsets)))


def test_sampling_leaves_short_records_as_they_are() -> None:
    entries = rows_of(2, 0, 5, 3, 4)
    kept, summary = sample_down(entries, 3, InsecureCoins(1))
    assert kept.offsets.tolist() == [0, 2, 2, 5, 8, 11]
    assert summary == Summary(sampled_records=2, dropped_entries=3)
    assert kept.ids[:2].tolist() == [0, 1]
    assert kept.ids[5:8].tolist() == [7, 8, 9]
    assert set(kept.ids[2:5].tolist()) < set(range(2, 7))
    assert set(kept.ids[8:].tolist()) < set(range(10, 14))
    assert kept.values.tolist() == [10 * int(place) for place in kept.ids]


def test_slices_of_a_batch() -> None:
    part = rows_of(2, 0, 5, 3).slice(1, 3)
    assert len(part) == 2
    assert part.offsets.tolist() == [0, 0, 5]
    assert part.ids.tolist() == [2, 3, 4, 5, 6]


# What a record may be


@pytest.mark.parametrize("record", ["page", b"page", 5, None, 1.5])
def test_neither_map_nor_collection_is_refused(record: Any) -> None:
    with refused("neither"):
        plain_record(record)


@pytest.mark.parametrize("key", [True, 1.0, None, b"a", ("a",), np.float64(1)])
def test_keys_are_text_or_whole_numbers(key: Any) -> None:
    assert plain_record({key: 1.0, "1": 2.0}) == ({"1": 2.0}, 1)


class Rude:
    """A value that does not want to be read."""

    def __float__(self) -> float:
        raise ZeroDivisionError


#: Records that used to be refused, one for each reason, and what is left of them.
UNTIDY = {
    "unknown": ({"1": 1.0, "cola": 1.0}, {"1": 1.0}),
    "only unknown": ({"cola": 1.0}, {}),
    "not a number": ({"1": 1.0, "2": math.nan}, {"1": 1.0}),
    "rude": ({"1": 1.0, "2": Rude()}, {"1": 1.0}),
    "endless key": ({"1": 1.0, 10**5000: 1.0}, {"1": 1.0}),
    "surrogate": ({"1": 1.0, chr(0xD800): 1.0}, {"1": 1.0}),
    "set of halves": ({"1": 1.0, "2": 0.5}, {"1": 1.0}),
    "tuple": ([("1", 1.0)], {}),
}


@pytest.mark.parametrize("keys", [{"kind": "closed", "size": 10}, {"kind": "folded"}, {"kind": "wide"}])
@pytest.mark.parametrize("name", UNTIDY)
def test_whether_a_device_reports_does_not_depend_on_its_record(
    name: str, keys: dict[str, Any], make_task: Any
) -> None:
    """A refusal is an output: it would tell these records from all others with certainty."""
    untidy, rest = UNTIDY[name]
    task = make_task(keys=keys)
    client = Client(task)
    assert len(client.report(untidy)) == task.mechanism.layout.width  # type: ignore[arg-type]
    if "unknown" in name and keys["kind"] != "closed":
        rest = dict.fromkeys(untidy, 1.0)  # type: ignore[arg-type]
    left, expected = encode_record(task, untidy)[0], encode_record(task, rest)[0]  # type: ignore[arg-type]
    assert left.ids.tolist() == expected.ids.tolist()
    assert left.values.tolist() == expected.values.tolist()
    lost = len(untidy) - len(rest)  # type: ignore[arg-type]
    assert client.summary.unknown + client.summary.unreadable == lost


@pytest.mark.parametrize("high", [-9.0, 10.0])
def test_a_range_without_nothing_in_it(high: float, make_task: Any) -> None:
    """With the unit l1 an absent key counts 0. Clipped up to 9, a value of 0 would move a record by 9 for nothing."""
    low = high - 1
    common = {"values": "signed", "unit": "l1", "distance": 1.0, "max_entries": 4, "low": low, "high": high}
    task = make_task("sparse_sum", **common, round_at="bins")
    assert encode_record(task, {"1": 0.0, "2": 0.0})[0].values.tolist() == [0, 0]
    rng = np.random.default_rng(3)
    for _ in range(200):
        one, two = rng.uniform(-12, 12, (2, 3)) * (rng.random((2, 3)) < 0.7)
        moved = sum(abs(a - b) for a, b in zip(*(_grid(task, list(row)) for row in (one, two)), strict=True))
        assert moved <= np.abs(one - two).sum() / max(abs(low), abs(high)) + 1e-8
    entry = make_task("sparse_sum", **common | {"unit": "entry", "distance": None})
    assert encode_record(entry, {"1": 0.0})[1].clipped == 1


def _grid(task: Any, values: list[float]) -> list[float]:
    """What a record of these values, 0 standing for absent keys, adds to its keys."""
    entries, _ = encode_record(task, {str(key): value for key, value in enumerate(values) if value})
    held = dict(zip(entries.ids.tolist(), (entries.values / GRID).tolist(), strict=True))
    return [held.get(key, 0.0) for key in range(len(values))]


def test_records_at_distance_nothing_both_report(make_task: Any) -> None:
    """With the unit l1, an entry of 0 more changes nothing: {1, -1} and {1, -1, 0} have the same law."""
    common = {"values": "signed", "unit": "l1", "distance": 1.0, "max_entries": 2, "epsilon": 4.0}
    for round_at in ("entries", "bins"):
        task = make_task("sparse_sum", **common, grid_bits=0, buckets=1, round_at=round_at)
        laws = [law_of(task, record, 3) for record in ({"0": 1, "1": -1}, {"0": 1, "1": -1, "2": 0.0})]
        assert laws[0] == laws[1]


def test_many_kinds_of_records_mean_the_same() -> None:
    right = {"1": 1.0, "2": 1.0}
    assert plain_record({1: 1, "2": True}) == (right, 0)
    assert plain_record({1, 2}) == (right, 0)
    assert plain_record(np.array([1, 2])) == (right, 0)
    assert plain_record(str(k) for k in (1, 2)) == (right, 0)
    assert plain_record({np.str_("1"): np.float32(1), np.int8(2): Fraction(1)}) == (right, 0)


# The grid


@pytest.mark.parametrize(
    ("centered", "low", "high", "value", "grid"),
    [
        (True, 1.0, 5.0, 1.0, -GRID),
        (True, 1.0, 5.0, 3.0, 0),
        (True, 1.0, 5.0, 4.0, GRID // 2),
        (False, 1.0, 5.0, 5.0, GRID),
        (False, 1.0, 5.0, 0.0, GRID // 5),
        (False, -2.0, 1.0, -2.0, -GRID),
        (False, -2.0, 1.0, 1.0, GRID // 2),
    ],
)
def test_values_on_the_grid(
    centered: bool, low: float, high: float, value: float, grid: int, make_task: Any
) -> None:
    """The middle of the range is 0 where the frequency can undo it; otherwise 0 stays 0."""
    target = "conditional" if centered else "mean"
    scale = make_task("coco", target=target, low=low, high=high).scale
    encoded, _ = scale.encode(np.array([value]))
    assert abs(int(encoded[0]) - grid) <= 1


def test_the_grid_is_never_left() -> None:
    """Ranges whose middle is not exact in binary still end at -1 and 1."""
    scale = Scale("signed", 0.1, 0.7, 0.4, 0.3)
    encoded, clipped = scale.encode(np.array([0.1, 0.7, -9.0, 9.0]))
    assert encoded.tolist() == [-GRID, GRID, -GRID, GRID]
    assert clipped.tolist() == [0, 0, 1, 1]


def test_summaries_add_and_speak() -> None:
    one = Summary(1000, 2, 3, 4, 5, 6, 7)
    assert one + one == Summary(2000, 4, 6, 8, 10, 12, 14)
    assert Summary(*one.as_dict().values()) == one
    assert Summary(1000, 2000).words() == "1,000 records with 2,000 entries"
    text = one.words()
    for part in (
        "3 values clipped",
        "4 zero entries",
        "5 repeated",
        "6 records sampled down",
        "7 entries dropped",
    ):
        assert part in text
