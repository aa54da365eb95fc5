"""Public hash functions: linear ones are exactly pairwise independent, both families have one meaning."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import fits, tilted
from hubbub.model.hashing import _walsh_entries, bucket_bits, cohort_of, hash_entries, seed_rows
from hubbub.model.keys import Keys
from hubbub.primitives import kernel as kernels
from hubbub.primitives.siphash import siphash

SALT = "fedcba98765432100123456789abcdef"
SEEDS = np.arange(400, dtype=np.uint64)


@pytest.mark.parametrize(("buckets", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 20, 20)])
def test_bucket_bits(buckets: int, bits: int) -> None:
    assert bucket_bits(buckets) == bits


def test_walsh_hashes_are_exactly_pairwise_independent() -> None:
    """All 16^3 rows of 4 bits, all 15 codes: buckets and signs of any two keys are exactly uniform."""
    rows = np.array(list(product(range(16), repeat=3)), dtype=np.uint64)
    codes = np.tile(np.arange(1, 16, dtype=np.uint64), len(rows))
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * 15
    bucket, sign = np.zeros(len(codes), dtype=np.int64), np.ones(len(codes), dtype=np.int64)
    _walsh_entries.compiled()(codes, rows, offsets, bucket, sign)
    place = (2 * bucket + (sign < 0)).reshape(len(rows), 15)
    assert place.max() == 7
    for one in range(15):
        assert np.array_equal(np.bincount(place[:, one]), np.full(8, len(rows) // 8))
        for two in range(one):
            pairs = np.bincount(8 * place[:, one] + place[:, two], minlength=64)
            assert np.array_equal(pairs, np.full(64, len(rows) // 64))


def crowd(keys: Keys) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Ids and offsets of 400 records of 0 to 6 entries."""
    lengths = np.arange(len(SEEDS)) % 7
    names = np.random.default_rng(3).integers(0, 50, lengths.sum())
    return keys.ids_of(names.tolist()), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@pytest.mark.parametrize("kind", ["closed", "folded", "wide"])
@pytest.mark.parametrize("cohorts", [1, 3])
@pytest.mark.parametrize(("family", "buckets"), [("walsh", 1), ("walsh", 16), ("prf", 1), ("prf", 13)])
def test_compiled_and_interpreted_hashes_agree(
    family: Any, buckets: int, cohorts: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(kind=kind, size=50 if kind == "closed" else None, cohorts=cohorts, salt=SALT)
    ids, offsets = crowd(keys)
    arguments = (family, keys, SEEDS, ids, offsets, buckets)
    monkeypatch.setattr(kernels, "BULK", 1 << 60)
    bucket, sign = hash_entries(*arguments)
    monkeypatch.setattr(kernels, "BULK", 1)
    assert [column.tolist() for column in hash_entries(*arguments)] == [bucket.tolist(), sign.tolist()]
    assert set(bucket.tolist()) == set(range(buckets))
    assert set(sign.tolist()) == {-1, 1}


def test_walsh_by_its_definition() -> None:
    """Parities of row AND code, one bit of the bucket per row; the sign is sigma times the first row's."""
    keys = Keys(kind="folded", bits=9, cohorts=2, salt=SALT)
    ids, offsets = crowd(keys)
    bucket, sign = hash_entries("walsh", keys, SEEDS, ids, offsets, 8)
    rows = seed_rows(keys, SEEDS, 3)
    for i, seed in enumerate(SEEDS.tolist()):
        for j in range(offsets[i], offsets[i + 1]):
            code = int(keys.codes(ids[j : j + 1], seed % 2)[0])
            first, *rest = [(int(row) & code).bit_count() % 2 for row in rows[i]]
            assert bucket[j] == sum(bit << place for place, bit in enumerate(rest))
            assert sign[j] == int(keys.signs(ids[j : j + 1])[0]) * (-1) ** first


def test_prf_by_its_definition() -> None:
    """SipHash of the key's id under (salt, seed): the low half is scaled to a bucket, the top bit is the sign."""
    keys = Keys(kind="closed", size=50, salt=SALT)
    ids, offsets = crowd(keys)
    bucket, sign = hash_entries("prf", keys, SEEDS, ids, offsets, 13)
    owner = np.repeat(SEEDS, np.diff(offsets)).tolist()
    hashed = [
        siphash(keys.salt_words[0], seed, key.to_bytes(8, "little"))
        for seed, key in zip(owner, ids.tolist(), strict=True)
    ]
    assert bucket.tolist() == [(word % (1 << 32)) * 13 >> 32 for word in hashed]
    assert sign.tolist() == [-1 if word >> 63 else 1 for word in hashed]


@pytest.mark.parametrize(("family", "buckets"), [("walsh", 4), ("prf", 3)])
def test_hashes_over_seeds_are_uniform_in_pairs(family: Any, buckets: int) -> None:
    """Bucket and sign of two keys over 20000 seeds: false-alarm rate at most 1e-6, 30% off is rejected."""
    keys = Keys(kind="closed", size=50, salt=SALT)
    seeds = np.arange(20_000, dtype=np.uint64)
    offsets = np.arange(len(seeds) + 1, dtype=np.int64)
    places = []
    for key in (3, 31):
        bucket, sign = hash_entries(
            family, keys, seeds, np.full(len(seeds), key, np.uint64), offsets, buckets
        )
        places.append(2 * bucket + (sign < 0))
    cells = (2 * buckets) ** 2
    counts = np.bincount(2 * buckets * places[0] + places[1], minlength=cells)
    law = np.full(cells, 1 / cells)
    assert fits(counts, law)
    assert not fits(counts, np.repeat(tilted(np.full(2, 0.5)), cells // 2) * 2 / cells)


@pytest.mark.parametrize("bits", [4, 16, 30, 64])
def test_rows_have_the_bits_of_the_codes(bits: int) -> None:
    """A top bit never set in 1600 rows has probability 2^-1600."""
    keys = Keys(kind="wide" if bits == 64 else "folded", bits=bits, salt=SALT)
    rows = seed_rows(keys, SEEDS, 3)
    assert rows.shape == (400, 4)
    assert all(int(row) < 1 << bits for row in rows.reshape(-1))
    assert any(int(row) >> (bits - 1) for row in rows.reshape(-1))
    if bits >= 30:
        assert len(set(rows.reshape(-1).tolist())) == 1600


def test_cohort_follows_from_the_seed() -> None:
    keys = Keys(kind="folded", cohorts=3, salt=SALT)
    assert cohort_of(keys, SEEDS[:7]).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_few_keys_are_hashed_like_many(monkeypatch: pytest.MonkeyPatch, make_task: Any) -> None:
    """One by one or as arrays: the same buckets and signs."""
    keys = make_task(size=64).keys
    rng = np.random.default_rng(7)
    for count in (1, 3, 7):
        seeds, ids = rng.integers(0, 1 << 63, count, dtype=np.uint64), keys.all_ids()[:count]
        given = ("prf", keys, seeds, ids, np.arange(count + 1), 11)
        few = hash_entries(*given)
        with monkeypatch.context() as patch:
            patch.setattr("hubbub.model.hashing._FEW", 0)
            many = hash_entries(*given)
        assert few[0].tolist() == many[0].tolist()
        assert few[1].tolist() == many[1].tolist()
