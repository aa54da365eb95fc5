"""The kernel that all engines share: every report is counted or set aside with where and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers import small_task, steady
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.shared import hashed
from hubbub.model.keys import Keys
from hubbub.protocol.task import Task
from hubbub.server import fold as folding
from hubbub.server.fold import Fold, aggregate, count_reasons, merge_into
from hubbub.simulation.populations import distinct_population
from hubbub.simulation.rehearsal import simulate

#: Two bytes: 8 bits of seed, a bucket below 13 in 4 bits, 4 filler bits. Anything from 13 << 8 on is not a report.
TASK = small_task("collision", family="prf", buckets=13, seed_bits=8)
WALSH = small_task("coco", buckets=4)


def numbered(rows: list[bytes], first: int = 0) -> tuple[Any, Any, Any]:
    """Row numbers, bytes and bounds of rows."""
    bounds = np.cumsum([0, *map(len, rows)])
    return np.arange(first, first + len(rows)), np.frombuffer(b"".join(rows), dtype=np.uint8), bounds


def reports(task: Task, count: int) -> NDArray[np.uint8]:
    return simulate(task, distinct_population(count, 10, 2, seed=1).entries, seed=2).packed


def places(fold: Fold) -> set[tuple[str, int, int, str]]:
    return {
        (lot.source, row, place, lot.reason)
        for lot in fold.rejected
        for row, place in zip(lot.rows.tolist(), lot.places.tolist(), strict=True)
    }


@pytest.mark.parametrize("task", [TASK, WALSH], ids=["kept reports", "totals"])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_any_cut_into_rows_is_one_pass(task: Task, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_CHUNK", chunk)
    packed = reports(task, 60)
    fold, rest = Fold(task), [bytes(row) for row in packed]
    for size in (0, 1, 20, 3, 36):
        row, rest = b"".join(rest[:size]), rest[size:]
        fold.add("file", *numbered([row, b""]))
    assert not rest
    assert fold.finish().to_bytes() == aggregate(task, packed).to_bytes()
    assert fold.rejected == []


@pytest.mark.parametrize("chunk", [2, 5, 1 << 22])
def test_what_is_no_report_is_set_aside_and_the_rest_counts(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_CHUNK", chunk)
    good, bucket, filler = b"\x01\x02", b"\x01\x0d", b"\x01\x12"
    fold = Fold(TASK)
    fold.add("a", *numbered([good + bucket + good, good[:1], good]))
    fold.add("b", *numbered([b"", filler + bucket, good + good + filler], first=100))
    state = fold.finish()
    assert state.to_bytes() == aggregate(TASK, 5 * good).to_bytes()
    assert places(fold) == {
        ("a", 0, 1, "bucket is not below 13"),
        ("a", 1, -1, "the row is not a whole number of reports of 2 bytes"),
        ("b", 101, 0, "filler bits after the last field are set"),
        ("b", 101, 1, "bucket is not below 13"),
        ("b", 102, 2, "filler bits after the last field are set"),
    }
    fold.set_aside("b", "the row is odd", np.array([103, 104]), reports=7)
    counted = count_reasons((lot.reason, lot.size) for lot in fold.rejected)
    assert {reason: size.words() for reason, size in counted.items()} == {
        "bucket is not below 13": "2 reports",
        "filler bits after the last field are set": "2 reports",
        "the row is not a whole number of reports of 2 bytes": "1 row",
        "the row is odd": "2 rows with 7 reports",
    }


@steady
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=9)), max_size=8))
def test_every_row_and_report_is_accounted_for(rows: list[tuple[bool, bytes]]) -> None:
    """Against a loop over reports, for rows that come together (True) or alone."""
    fold = Fold(TASK)
    good, right, lots = b"", set(), [[]]  # type: ignore[var-annotated]
    for number, (together, row) in enumerate(rows):
        lots = lots if together else [*lots, []]
        lots[-1].append((number, row))
        for place in range(0, len(row), 2) if len(row) % 2 == 0 else ():
            number_of = int.from_bytes(row[place : place + 2], "little")
            if number_of < 13 << 8:
                good += row[place : place + 2]
            else:
                right.add((number, place // 2))
        if len(row) % 2:
            right.add((number, -1))
    for lot in lots:
        _, data, bounds = numbered([row for _, row in lot])
        fold.add("x", np.array([number for number, _ in lot], dtype=np.int64), data, bounds)
    assert fold.finish().to_bytes() == aggregate(TASK, good).to_bytes()
    assert {(row, place) for _, row, place, _ in places(fold)} == right


@pytest.mark.parametrize("task", [TASK, WALSH], ids=["kept reports", "totals"])
def test_adding_in_place_is_merging(task: Task) -> None:
    packed = reports(task, 30)
    total, part = aggregate(task, packed[:10]), aggregate(task, packed[10:])
    before = part.to_bytes()
    merge_into(total, part)
    assert total.to_bytes() == aggregate(task, packed).to_bytes()
    assert part.to_bytes() == before


# Adding up the votes of a seed first


CASES = {
    "one-hot": ("collision", {"buckets": 8}),
    "codes": ("collision", {"buckets": 16}),
    "two kinds of votes": ("coco", {"buckets": 4}),
    "one bin": ("sparse_sum", {"values": "signed", "noise": "window"}),
    "dense": ("sparse_sum", {"values": "signed", "unit": "entry", "buckets": 4}),
    "one bucket": ("sketch_response", {"mode": "signed", "values": "signed", "buckets": 1, "seeds": 2}),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
@pytest.mark.parametrize("cohorts", [1, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_votes_of_a_seed_may_be_added_up_first(
    case: Any, cohorts: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is the same, bit for bit, squares included."""
    name, parameters = case
    mechanism = make_mechanism(name, epsilon=1.0, max_entries=3, seed_bits=5, **parameters)
    keys = Keys(kind="closed", size=12, bits=6, cohorts=cohorts, salt="5a" * 16)
    rng = np.random.default_rng(7)
    limits = [field.limit for field in mechanism.layout.fields]
    drawn = np.stack([rng.integers(0, limit, 400, dtype=np.uint64) for limit in limits], axis=1)
    drawn[drawn[:, 0] == 3, 0] = 4  # a seed that nobody has
    apart, together = mechanism.empty(keys), mechanism.empty(keys)
    monkeypatch.setattr(hashed, "_SHARED", 1 << 40)
    mechanism.absorb(apart, keys, drawn)
    monkeypatch.setattr(hashed, "_SHARED", 1)
    monkeypatch.setattr(hashed, "_CHUNK", 200)
    monkeypatch.setattr(hashed, "use_compiled", lambda size: compiled)
    seen: list[NDArray[np.uint64]] = []
    scatter = hashed.Hashed._scatter
    monkeypatch.setattr(hashed.Hashed, "_scatter", lambda *given: seen.append(given[3]) or scatter(*given))
    mechanism.absorb(together, keys, drawn)
    assert np.concatenate(seen).tolist() == list(range(32)), "once per seed"
    assert together.to_bytes() == apart.to_bytes()
    assert apart.totals.any()
