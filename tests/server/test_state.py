"""States: sums of integers that merge in any order and refuse what does not belong."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import only_refused, refused, small_task, steady
from hubbub.model.state import State, sort_rows
from hubbub.server.fold import aggregate
from hubbub.simulation.populations import distinct_population
from hubbub.simulation.rehearsal import simulate

TASKS = {
    "codes": small_task("collision", buckets=1024),
    "totals": small_task("coco", epsilon=1.0),
    "kept reports": small_task("collision", family="prf"),
    "squares": small_task("sparse_sum", values="signed", unit="entry", buckets=2),
}


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request: pytest.FixtureRequest) -> Any:
    return request.param


def reports(task: Any, count: int = 40) -> Any:
    crowd = distinct_population(count, 10, 2, seed=1)
    return simulate(task, crowd.entries, seed=2).packed


def test_merging_is_adding_in_any_order(task: Any) -> None:
    packed = reports(task)
    whole = aggregate(task, packed)
    parts = [aggregate(task, packed[start : start + 10]) for start in range(0, 40, 10)]
    for one, two, three, four in permutations(parts):
        assert one.merge(two).merge(three.merge(four)).to_bytes() == whole.to_bytes()
    assert whole.count == 40
    assert task.mechanism.empty(task.keys).merge(whole).to_bytes() == whole.to_bytes()


def test_merging_leaves_both_states_alone(task: Any) -> None:
    packed = reports(task)
    one, two = aggregate(task, packed[:15]), aggregate(task, packed[15:])
    before = one.to_bytes(), two.to_bytes()
    one.merge(two)
    aggregate(task, packed, one)
    assert (one.to_bytes(), two.to_bytes()) == before


def test_states_of_other_shapes_are_refused() -> None:
    states = [task.mechanism.empty(task.keys) for task in TASKS.values()]
    for one, two in permutations(states, 2):
        with refused("different tasks"):
            one.merge(two)


def test_a_saved_state_comes_back_whole(task: Any) -> None:
    state = aggregate(task, reports(task))
    back = task.mechanism.empty(task.keys).load(state.to_bytes())
    assert (back.count, back.squares) == (state.count, state.squares)
    assert np.array_equal(back.totals, state.totals)
    assert np.array_equal(back.reports, sort_rows(state.reports))
    more = reports(task, 5)
    assert aggregate(task, more, back).to_bytes() == aggregate(task, more, state).to_bytes()


def test_layout_of_a_saved_state() -> None:
    state = State(np.array([[-2, 3]]), np.array([[9, 1], [2, 2]], dtype=np.uint8), 2, -5)
    right = (
        bytes([2, 0, 0, 0, 0, 0, 0, 0])
        + bytes([0xFB])
        + bytes([0xFF]) * 15
        + bytes([0xFE])
        + bytes([0xFF]) * 7
        + bytes([3, 0, 0, 0, 0, 0, 0, 0])
        + bytes([2, 2, 9, 1])
    )
    assert state.to_bytes() == right


def test_sums_of_squares_may_need_more_than_64_bits() -> None:
    state = State(np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.uint8), 1, 1 << 100)
    assert state.load(state.to_bytes()).squares == 1 << 100


def test_a_payload_of_another_size_is_refused(task: Any) -> None:
    """Cut anywhere in its first 200 bytes and its last 50, or longer than it should be."""
    payload = aggregate(task, reports(task)).to_bytes()
    empty = task.mechanism.empty(task.keys)
    for length in {*range(min(200, len(payload))), *range(len(payload) - 50, len(payload))}:
        with refused("size does not fit"):
            empty.load(payload[:length])
    with refused("size does not fit"):
        empty.load(payload + b"\0")


@steady
@given(st.binary(max_size=120), st.sampled_from(sorted(TASKS)))
def test_random_payloads_are_states_or_refused(payload: bytes, which: str) -> None:
    task = TASKS[which]
    state = only_refused(lambda: task.mechanism.empty(task.keys).load(payload))
    if state is not None:
        assert len(state.to_bytes()) == len(payload)


def test_rows_are_sorted_as_byte_strings() -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 4, (200, 3), dtype=np.uint8)
    assert [bytes(row) for row in sort_rows(rows)] == sorted(bytes(row) for row in rows)
    assert sort_rows(rows[:0]).shape == (0, 3)


# Folding report bytes into a state


@pytest.mark.parametrize("harm", ["truncated", "filler", "out of range"])
def test_bad_bytes_change_nothing(harm: str) -> None:
    task = small_task("collision", family="prf", buckets=13, seed_bits=16)
    good = reports(task)
    state = aggregate(task, good)
    before = state.to_bytes()
    bad = bytearray(good.tobytes())
    bad = {
        "truncated": bad[:-1],
        "filler": bad[:-1] + bytes([0x80]),
        "out of range": bad[:-1] + bytes([0x0F]),
    }[harm]
    with refused():
        aggregate(task, bytes(bad), state)
    assert state.to_bytes() == before


def test_folding_in_chunks_is_folding_at_once(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = reports(task)
    whole = aggregate(task, packed.tobytes())
    done: list[int] = []
    monkeypatch.setattr("hubbub.server.fold._CHUNK", 15)
    assert aggregate(task, packed, progress=done.append).to_bytes() == whole.to_bytes()
    assert done == [15, 15, 10]


@steady
@given(st.binary(max_size=60))
def test_random_bytes_are_counted_or_refused(data: bytes) -> None:
    task = TASKS["kept reports"]
    state = aggregate(task, reports(task, 2))
    before = state.to_bytes()
    more = only_refused(lambda: aggregate(task, data, state))
    assert state.to_bytes() == before
    if more is not None:
        assert more.count == 2 + len(data) // task.mechanism.layout.width
