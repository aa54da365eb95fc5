"""Which codes a bucket holds, against asking every code."""

from __future__ import annotations

import numpy as np
import pytest

from hubbub.primitives import preimages
from hubbub.primitives.arrays import Int64s
from hubbub.primitives.walsh import scatter, transform


def parities(rows: Int64s, codes: Int64s) -> Int64s:
    """parity(row & code) of every row and code."""
    return np.bitwise_count(rows[..., None] & codes).astype(np.int64) & 1


def case(bits: int, a: int, reports: int) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """Where each report's codes begin, its sign's row, rows, bucket and vote: dependent and empty rows among them."""
    rng = np.random.default_rng([bits, a])
    rows = rng.integers(0, 1 << bits, size=(reports, a))
    if a > 2:
        rows[::5, 2] = rows[::5, 0] ^ rows[::5, 1]
        rows[1::5, 1] = 0
    signs = np.where(rng.random(reports) < 0.5, rng.integers(0, 1 << bits, size=reports), 0)
    shift = rng.integers(0, 2, size=reports) << bits
    return (
        shift,
        signs,
        rows,
        rng.integers(0, 1 << a, size=reports),
        rng.integers(-3, 4, size=(reports, 1)),
    )


def asked_one_by_one(bits: int, given: tuple[Int64s, ...]) -> Int64s:
    shift, signs, rows, bucket, values = given
    codes = np.arange(1 << bits)
    total = np.zeros(2 << bits, dtype=np.int64)
    for i in range(len(shift)):
        place = (parities(rows[i], codes) << np.arange(rows.shape[1])[:, None]).sum(axis=0)
        votes = np.where(place == bucket[i], values[i, 0], 0) * (1 - 2 * parities(signs[i], codes))
        total[shift[i] : shift[i] + len(codes)] += votes
    return total


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("bits", "a"), [(2, 1), (3, 3), (6, 0), (6, 2), (6, 5), (6, 9), (9, 7)])
def test_every_code_of_a_bucket_is_added_once(
    bits: int, a: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are dependent, and where there are more of them than bits."""
    if compiled:
        pytest.importorskip("numba")
    monkeypatch.setattr(preimages, "numba_available", lambda: compiled)
    monkeypatch.setattr(preimages, "_SMALL", 0)
    given = case(bits, a, 60)
    total = np.zeros(2 << bits, dtype=np.int64)
    preimages.add_to_codes(total, *given, bits)
    expected = asked_one_by_one(bits, given)
    assert np.array_equal(total, expected)
    assert expected.any()


def test_codes_and_coefficients_are_each_others_transform() -> None:
    bits, a = 7, 3
    shift, signs, rows, bucket, values = case(bits, a, 200)
    codes, coefficients = np.zeros(1 << bits, dtype=np.int64), np.zeros(1 << bits, dtype=np.int64)
    preimages.add_to_codes(codes, 0 * shift, signs, rows, bucket, values, bits)
    scatter(coefficients, signs, rows, bucket, values)
    assert np.array_equal(transform(coefficients), codes << a)
