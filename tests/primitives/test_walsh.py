"""The decode engine against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.hashing import seed_rows
from hubbub.model.keys import Keys
from hubbub.primitives import walsh
from hubbub.primitives.walsh import scatter, spectra, transform, transform_rows

Int64s = NDArray[np.int64]
SALT = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


@pytest.fixture(params=["numpy", "compiled"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of doing the same sums, whatever the size."""
    monkeypatch.setattr(walsh, "_SMALL", 0 if request.param == "compiled" else 1 << 60)
    return str(request.param)


def hadamard(size: int) -> Int64s:
    """The matrix (-1)^popcount(i & j), by Sylvester's doubling."""
    matrix = np.ones((1, 1), dtype=np.int64)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("size", [1, 2, 4, 32, 256])
def test_transform_is_the_hadamard_product(size: int, engine: str) -> None:
    """And doing it twice is multiplying by the size; the input is left alone."""
    data = np.random.default_rng(size).integers(-(1 << 40), 1 << 40, size)
    before = data.copy()
    once = transform(data)
    assert np.array_equal(once, hadamard(size) @ data)
    assert np.array_equal(transform(once), size * data)
    assert np.array_equal(data, before)


def test_transform_of_rows() -> None:
    rows = np.random.default_rng(1).integers(-9, 9, (5, 16))
    assert np.array_equal(transform_rows(rows), rows @ hadamard(16))


def test_spectra_of_single_votes_are_those_of_their_rows() -> None:
    bucket = np.array([0, 3, 7, 5])
    values = np.array([[1], [-2], [3], [0]])
    dense = np.zeros((4, 8), dtype=np.int64)
    dense[np.arange(4), bucket] = values[:, 0]
    right = dense @ hadamard(8)
    assert np.array_equal(spectra(bucket, values, 8), right)
    assert np.array_equal(spectra(np.full(4, -1), dense, 8), right)
    assert spectra(np.array([0, -1]), np.array([[5], [6]]), 1).tolist() == [[5], [6]]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("bits", [0, 1, 3])
def test_scatter_adds_every_subset_of_rows(bits: int, dense: bool, engine: str) -> None:
    """total[base ^ XOR of the rows in S] += V[S], written as four plain loops."""
    rng = np.random.default_rng(bits)
    count, buckets = 30, 1 << bits
    base, rows = rng.integers(0, 64, count), rng.integers(0, 64, (count, bits))
    if dense:
        bucket, values = np.full(count, -1), rng.integers(-9, 9, (count, buckets))
    else:
        bucket, values = rng.integers(0, buckets, count), rng.integers(-9, 9, (count, 1))
    right = np.arange(64, dtype=np.int64)
    for i in range(count):
        for subset in range(buckets):
            place = base[i]
            for bit in range(bits):
                place ^= rows[i, bit] if subset >> bit & 1 else 0
            for j in range(buckets):
                vote = values[i, j] if dense else values[i, 0] * (j == bucket[i])
                right[place] += vote * (-1) ** (subset & j).bit_count()
    total = np.arange(64, dtype=np.int64)
    scatter(total, base, rows, bucket, values)
    assert np.array_equal(total, right)


# From reports to tallies


CASES = {
    "one-hot, unsigned": ("collision", {"buckets": 8}),
    "one-hot, both sides of a key": ("collision", {"buckets": 8, "values": "signed"}),
    "one-hot, signed and unsigned": ("coco", {"buckets": 4}),
    "one bin": ("sparse_sum", {"values": "signed", "noise": "window"}),
    "dense, signed": ("sparse_sum", {"values": "signed", "unit": "entry", "buckets": 4}),
    "one-hot, signed": ("sketch_response", {"mode": "signed", "values": "signed", "buckets": 4, "seeds": 2}),
}
UNIVERSES = {
    "closed": {"kind": "closed", "size": 12, "bits": 6},
    "closed, cohorts": {"kind": "closed", "size": 12, "bits": 6, "cohorts": 3},
    "folded": {"kind": "folded", "bits": 5},
    "folded, cohorts": {"kind": "folded", "bits": 5, "cohorts": 2},
    "wide": {"kind": "wide"},
    "wide, cohorts": {"kind": "wide", "cohorts": 3},
}


def random_reports(mechanism: Any, count: int, seed: int) -> NDArray[np.uint64]:
    rng = np.random.default_rng(seed)
    limits = [field.limit for field in mechanism.layout.fields]
    return np.stack([rng.integers(0, limit, count, dtype=np.uint64) for limit in limits], axis=1)


def count_votes(mechanism: Any, keys: Keys, reports: NDArray[np.uint64], ids: NDArray[np.uint64]) -> Int64s:
    """Every report's vote for every key, looked up one by one."""
    bits = (mechanism.buckets - 1).bit_length()
    rows = seed_rows(keys, np.ascontiguousarray(reports[:, 0]), bits)
    sigma = keys.signs(ids)
    codes = [keys.codes(ids, cohort) for cohort in range(keys.cohorts)]
    tally = np.zeros((mechanism.channels, len(ids)), dtype=np.int64)
    for channel, votes in enumerate(mechanism.votes(reports[:, 1:].astype(np.int64))):
        for i, seed in enumerate(reports[:, 0].tolist()):
            for k, code in enumerate(codes[seed % keys.cohorts].tolist()):
                first, *rest = [(int(row) & code).bit_count() & 1 for row in rows[i]]
                place = sum(bit << at for at, bit in enumerate(rest))
                if votes.values.shape[1] > 1:
                    vote = votes.values[i, place]
                else:
                    vote = votes.values[i, 0] if votes.bucket[i] in (-1, place) else 0
                tally[channel, k] += vote * (sigma[k] * (-1) ** first if votes.signed else 1)
    return tally


@pytest.mark.parametrize("universe", UNIVERSES.values(), ids=UNIVERSES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tally_is_the_sum_of_all_votes(case: Any, universe: dict[str, Any], engine: str) -> None:
    """Transformed, or counted key by key where codes have 64 bits: the same as brute force."""
    name, parameters = case
    mechanism = make_mechanism(name, epsilon=1.0, max_entries=3, **parameters)
    keys = Keys(**universe, salt=SALT)
    reports = random_reports(mechanism, 60, seed=5)
    state = mechanism.empty(keys)
    mechanism.absorb(state, keys, reports[:25])
    mechanism.absorb(state, keys, reports[25:])
    assert state.count == 60
    ids = keys.ids_of(list(range(12)))
    if mechanism.sided:
        ids = np.concatenate([ids, keys.other_side(ids)])
    tally = mechanism.tally(state, keys, ids)
    right = count_votes(mechanism, keys, reports, ids)
    assert right.any()
    assert np.array_equal(tally, right)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_large_batches_are_absorbed_in_steps(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, parameters = case
    mechanism = make_mechanism(name, epsilon=1.0, max_entries=3, **parameters)
    keys = Keys(kind="closed", size=12, bits=6, salt=SALT)
    reports = random_reports(mechanism, 50, seed=6)
    whole, stepped = mechanism.empty(keys), mechanism.empty(keys)
    mechanism.absorb(whole, keys, reports)
    monkeypatch.setattr("hubbub.mechanisms.shared.hashed._CHUNK", 16)
    mechanism.absorb(stepped, keys, reports)
    assert stepped.to_bytes() == whole.to_bytes()
