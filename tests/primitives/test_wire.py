"""Reports as bytes: one encoding per report, and the same bytes for ever."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import GOLDEN, only_refused, refused, steady
from hubbub.mechanisms.registry import mechanisms
from hubbub.primitives.wire import Layout, WireField
from hubbub.protocol.task import Task

WIRE = json.loads((GOLDEN / "wire.json").read_text())


def layout_of(*limits: int) -> Layout:
    return Layout(tuple(WireField(f"field {place}", limit) for place, limit in enumerate(limits)))


# Golden bytes


@pytest.mark.parametrize("golden", WIRE, ids=lambda g: f"{g['task']['mechanism']['name']}-{g['digest'][:4]}")
def test_golden_reports(golden: dict[str, Any]) -> None:
    """Digest, mechanism code and packed bytes of version 1 stay what they are."""
    task = Task.parse(golden["task"])
    assert task.digest.hex() == golden["digest"]
    assert task.code == golden["code"]
    layout = task.mechanism.layout
    packed = bytes.fromhex("".join(golden["packed"]))
    assert layout.unpack(packed).tolist() == golden["numbers"]
    numbers = np.array(golden["numbers"], dtype=np.uint64)
    assert [row.tobytes().hex() for row in layout.pack(numbers)] == golden["packed"]


def test_the_first_mechanisms_are_pinned_and_still_there() -> None:
    pinned = {golden["task"]["mechanism"]["name"] for golden in WIRE}
    assert pinned == {"collision", "coco", "sparse_sum", "sketch_response", "hadamard"}
    assert pinned <= set(mechanisms())


# Packing by its definition


def reference(layout: Layout, numbers: list[int]) -> bytes:
    """The fields as the digits of one big number, least significant first."""
    whole, shift = 0, 0
    for field, number in zip(layout.fields, numbers, strict=True):
        whole |= number << shift
        shift += field.bits
    return whole.to_bytes(layout.width, "little")


@st.composite
def filled_layouts(draw: st.DrawFn) -> tuple[Layout, list[list[int]]]:
    limits = draw(st.lists(st.integers(1, 1 << 64), min_size=1, max_size=5))
    rows = st.tuples(*(st.integers(0, limit - 1) for limit in limits)).map(list)
    return layout_of(2, *limits), [[1, *row] for row in draw(st.lists(rows, max_size=4))]


@steady
@given(filled_layouts())
def test_packing_is_little_endian_bit_by_bit(case: tuple[Layout, list[list[int]]]) -> None:
    layout, rows = case
    numbers = np.array(rows, dtype=np.uint64).reshape(len(rows), len(layout.fields))
    packed = layout.pack(numbers)
    assert packed.tobytes() == b"".join(reference(layout, row) for row in rows)
    assert layout.unpack(packed.tobytes()).tolist() == rows


@pytest.mark.parametrize(("limit", "bits"), [(1, 0), (2, 1), (3, 2), (256, 8), (257, 9), (1 << 64, 64)])
def test_bits_of_a_field(limit: int, bits: int) -> None:
    assert WireField("x", limit).bits == bits


@pytest.mark.parametrize("limits", [(5, 7, 300), (8, 8, 1000), (2, 3), (256, 256)])
def test_every_report_has_exactly_one_encoding(limits: tuple[int, ...]) -> None:
    """Of all byte strings of the right length, as many are accepted as there are reports, each packed alike."""
    layout = layout_of(*limits)
    count = 1 << (8 * layout.width)
    every = np.arange(count, dtype="<u4").view(np.uint8).reshape(count, 4)[:, : layout.width]
    numbers, reasons = layout.unpack_each(every)
    good = reasons == 0
    assert good.sum() == np.prod(limits)
    assert np.array_equal(layout.pack(numbers[good]), every[good])
    assert (numbers[good] < np.array(limits, dtype=np.uint64)).all()


# Refusals


def test_what_is_wrong_with_a_report_is_said() -> None:
    layout = Layout((WireField("seed", 16), WireField("bucket", 5), WireField("side", 2)))
    assert layout.width == 1
    assert layout.unpack(bytes([0b1_100_1111])).tolist() == [[15, 4, 1]]
    with refused("Report 1 is not valid", "bucket is not below 5"):
        layout.unpack(bytes([0, 5 << 4, 6 << 4]))
    reports, reasons = layout.unpack_each(bytes([0, 5 << 4, 0xFF]))
    assert reasons.tolist() == [0, 2, 2]
    assert reports[0].tolist() == [0, 0, 0]


def test_filler_bits_must_be_zero() -> None:
    layout = layout_of(8, 2)
    for filler in range(4, 8):
        with refused("filler bits"):
            layout.unpack(bytes([1 << filler]))
    assert layout.unpack(b"\x0f").tolist() == [[7, 1]]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7])
def test_a_wrong_length_is_refused(length: int) -> None:
    with refused(f"{length} bytes", "reports of 3 bytes"):
        layout_of(1 << 16, 16).unpack(bytes(length))


def test_no_reports_are_fine() -> None:
    assert layout_of(1 << 16, 16).unpack(b"").shape == (0, 2)


@steady
@given(st.binary(max_size=40), st.sampled_from(WIRE))
def test_random_bytes_are_reports_or_refused(data: bytes, golden: dict[str, Any]) -> None:
    layout = Task.parse(golden["task"]).mechanism.layout
    numbers = only_refused(lambda: layout.unpack(data))
    if numbers is not None:
        assert layout.pack(numbers).tobytes() == data
