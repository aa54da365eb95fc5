"""Exact sums: a row that changes by D moves the vector by at most D, whatever the other rows are."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import steady
from hubbub.checks.exact import Enumeration
from hubbub.primitives.coins import InsecureCoins
from hubbub.release import sizes
from hubbub.release.amounts import LARGEST, Amounts
from hubbub.release.noise import DIGIT_BITS
from hubbub.release.sizes import estimate_sizes
from hubbub.release.vector import Values, Vector, make_vector

SIGNED = Values(signed=True, max_value=100)
REALS = Values(kind="reals", signed=True, max_value=100.3, fraction_bits=3)

Row = tuple[int, Any]


def exact(amounts: Amounts) -> list[Fraction]:
    """Amounts as fractions, in steps."""
    return [
        int(step)
        + sum((Fraction(int(d), 1 << DIGIT_BITS * (j + 1)) for j, d in enumerate(digits)), Fraction(0))
        for step, digits in zip(amounts.steps, amounts.digits, strict=True)
    ]


def entries(values: Values, rows: list[Row]) -> dict[int, Fraction]:
    """The vector of a table, by key, exactly."""
    ids = np.array([key for key, _ in rows], dtype=np.uint64)
    vector, _ = make_vector(values, ids, [value for _, value in rows])
    return dict(zip(vector.ids.tolist(), exact(vector.amounts), strict=True))


def expected(values: Values, rows: list[Row]) -> dict[int, Fraction]:
    """The same by the rules, with fractions: clip, add, clip."""
    sums: dict[int, Fraction] = {}
    for key, value in rows:
        steps = Fraction(value) * (1 << values.fraction_bits)
        sums[key] = sums.get(key, Fraction(0)) + min(max(steps, Fraction(-LARGEST)), Fraction(LARGEST))
    clipped = {
        key: min(max(value, Fraction(-values.top)), Fraction(values.top)) for key, value in sums.items()
    }
    return {key: value for key, value in clipped.items() if value}


def moved(one: dict[int, Fraction], two: dict[int, Fraction]) -> Fraction:
    return sum((abs(one.get(key, 0) - two.get(key, 0)) for key in one.keys() | two.keys()), Fraction(0))


# The defect that doubles had


@pytest.mark.parametrize(("kind", "bits"), [("counts", 0), ("reals", 3)])
def test_large_rows_that_cancel_leave_the_rest_as_it_is(kind: Any, bits: int) -> None:
    """Sums of doubles jump by 2048 when one row of 8193 changes by 1; the exact ones follow it, up to the bound."""
    values = Values(kind=kind, signed=True, max_value=1400, fraction_bits=bits)
    far = LARGEST >> bits
    found = {}
    for x in (1363, 1364, 1365, 1399, 1401):
        rows = [far] * 4096 + [x] + [-far] * 4096
        found[x] = entries(values, [(1, row) for row in rows])[1] / (1 << bits)
    assert found == {1363: 1363, 1364: 1364, 1365: 1365, 1399: 1399, 1401: 1400}
    doubles = [np.array([2.0**52] * 4096 + [x] + [-(2.0**52)] * 4096) for x in (1364, 1365)]
    assert np.diff([np.add.reduceat(rows, [0])[0] for rows in doubles]) == 2048


# Any rows, one of which changes


LARGE = [LARGEST, LARGEST - 1, (1 << 53) + 1, 1 << 62, (1 << 64) - 1, 10**25, 99, 100, 101]
awkward_counts = st.one_of(
    st.sampled_from([*LARGE, *(-n for n in LARGE), 0, 1, -1]), st.integers(-(1 << 70), 1 << 70)
)
SMALL = [5e-324, 2.0**-1022, 2.0**-60, 0.1, 0.5, 1 / 3, 0.5 - 2.0**-54, 0.5 + 2.0**-53, 1 - 2.0**-53]
HUGE = [2.0**49, 2.0**52, 2.0**53, 1e22, 1e300, 1.7976931348623157e308, 100.3, 100.25, 100.5]
awkward_reals = st.one_of(
    st.sampled_from([sign * x for sign in (1, -1) for x in (*SMALL, *HUGE)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(1 << 70), 1 << 70),
)


def tables(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    """A few keys, and large values that cancel."""
    pairs = st.lists(st.tuples(st.integers(0, 3), rows), max_size=12)
    cancelled = st.lists(
        st.tuples(st.integers(0, 3), rows).map(lambda row: [row, (row[0], -row[1])]), max_size=4
    )
    return st.tuples(pairs, cancelled).flatmap(lambda t: st.permutations([*t[0], *chain(*t[1])]))


@given(tables(awkward_counts), st.integers(0, 3), awkward_counts, st.sampled_from([1, -1]))
@steady
def test_counts_are_summed_exactly(rows: list[Row], key: int, value: int, change: int) -> None:
    one, two = [*rows, (key, value)], [*rows, (key, value + change)]
    found = entries(SIGNED, one)
    assert found == expected(SIGNED, one)
    assert moved(found, entries(SIGNED, two)) <= 1


@given(tables(awkward_reals), st.integers(0, 3), awkward_reals, st.floats(-1, 1))
@steady
def test_reals_are_summed_exactly(rows: list[Row], key: int, value: float, change: float) -> None:
    """The change of the row is that of the two doubles, which is what the table holds."""
    other = float(value) + change
    one, two = [*rows, (key, float(value))], [*rows, (key, other)]
    found = entries(REALS, one)
    assert found == expected(REALS, one)
    assert moved(found, entries(REALS, two)) <= abs(Fraction(other) - Fraction(float(value))) * 8


@given(st.lists(st.tuples(st.integers(0, 2), awkward_counts), max_size=9), awkward_counts)
@steady
def test_how_a_value_is_read_does_not_depend_on_its_neighbours(rows: list[Row], large: int) -> None:
    """An array of numbers has the one type that suits all: one large number would round the others."""
    alone = entries(SIGNED, rows)
    beside = entries(SIGNED, [*rows, (9, large)])
    beside.pop(9, None)
    assert alone == beside
    assert alone == entries(SIGNED, [*rows, (9, 0.0)])


def test_columns_of_every_width_are_read() -> None:
    for kind in (np.int8, np.uint8, np.int64, np.uint64, np.float16, np.float32, np.float64):
        column = np.array([3, 100], dtype=kind)
        for values in (SIGNED, REALS):
            vector, _ = make_vector(values, np.array([1, 2], dtype=np.uint64), column)
            assert exact(vector.amounts) == [3 << values.fraction_bits, 100 << values.fraction_bits]


# Rounding to the grid


@given(awkward_reals.filter(lambda value: abs(value) < 1e6))
@steady
def test_digits_are_those_of_the_double(value: float) -> None:
    amounts = Amounts.of(np.array([float(value)]), 3)
    assert exact(amounts) == [Fraction(float(value)) * 8]
    assert ((amounts.digits >= 0) & (amounts.digits < 1 << DIGIT_BITS)).all()


@pytest.mark.parametrize("rows", [[0.1, 0.2, -0.7], [5e-324, -0.25], [1 / 3] * 3, [-5e-324]])
def test_exact_sums_are_rounded_with_exactly_their_own_odds(rows: list[float]) -> None:
    """By enumeration, although the digits of such sums fit no double."""
    amounts, _ = Amounts.of(np.array(rows), 3).sums(np.array([0]), 100)
    law = Enumeration().law(lambda coins: int(amounts.rounded(coins)[0]))  # type: ignore[arg-type]
    truth = sum((Fraction(value) for value in rows), Fraction(0)) * 8
    assert sum(mass * point for point, mass in law.items()) == truth  # type: ignore[operator]
    assert set(law) <= {math.floor(truth), math.ceil(truth)}


# Sums of the whole vector


def test_the_estimated_sum_does_not_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """5000 entries of 2^52 steps are more than 64 bits hold: the estimate stays at its limit."""
    values = Values(kind="reals", max_value=2.0**40, fraction_bits=12)
    vector = Vector(
        np.arange(5000, dtype=np.uint64), Amounts(np.full(5000, LARGEST), np.zeros((5000, 0), dtype=np.int64))
    )
    monkeypatch.setattr(sizes, "_LIMIT", 1 << 62)
    found = estimate_sizes(vector, values, 1.0, InsecureCoins(1))
    assert found.total == pytest.approx(2.0**50, rel=1e-6)
