"""Public hash functions of a report: which bucket and which sign a key has under a seed.

Two families:

- `walsh`: linear over GF(2). With rows r_1 .. r_a derived from the seed and c the key's code, the
  bucket is (parity(r_1 & c), ..., parity(r_a & c)) and the sign is sigma * (-1)^parity(r_0 & c). All
  keys are decoded at once by one Walsh-Hadamard transform. Exactly pairwise independent.
- `prf`: SipHash-2-4 keyed by (salt, seed), as the papers' random oracle; any number of buckets.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.kernel import kernel, parity, use_compiled
from hubbub.primitives.siphash import ROW, derive_all, siphash, siphash_word

Family = Literal["walsh", "prf"]
#: Keys that are hashed one by one, where there are no more.
_FEW = 8


def bucket_bits(buckets: int) -> int:
    """Bits that number the buckets."""
    return (buckets - 1).bit_length()


def seed_rows(keys: Keys, seeds: UInt64s, count: int) -> UInt64s:
    """Rows r_0 (the sign's) and r_1 .. r_count (the bucket's bits) of each seed, as [n, count + 1]."""
    rows = derive_all(keys.salt_words[1], range(ROW, ROW + count + 1), seeds)
    return rows >> np.uint64(64 - keys.bits)


def cohort_of(keys: Keys, seeds: UInt64s) -> UInt64s:
    """Which code map a seed uses."""
    return seeds % np.uint64(keys.cohorts) if keys.tree is None else keys.tree.cohort_of(seeds)


@kernel
def _walsh_entries(codes: Any, rows: Any, offsets: Any, bucket: Any, sign: Any) -> None:
    for i in range(len(offsets) - 1):
        for j in range(offsets[i], offsets[i + 1]):
            place = 0
            for bit in range(1, rows.shape[1]):
                place |= parity(codes[j] & rows[i, bit]) << (bit - 1)
            bucket[j] = place
            sign[j] *= 1 - 2 * parity(codes[j] & rows[i, 0])


@kernel
def prf_place(word: Any, buckets: Any) -> Any:
    """Bucket of a key whose hash under a seed is `word`: the low half of it, scaled to the number of buckets."""
    return ((word & 0xFFFFFFFF) * buckets) >> 32


@kernel
def prf_flip(word: Any) -> Any:
    """1 where the key's sign is -1: the top bit of the same hash."""
    return word >> 63


@kernel
def _prf_entries(salt: Any, seeds: Any, ids: Any, offsets: Any, buckets: Any, bucket: Any, sign: Any) -> None:
    for i in range(len(offsets) - 1):
        for j in range(offsets[i], offsets[i + 1]):
            word = siphash_word(salt, seeds[i], ids[j])
            bucket[j] = prf_place(word, buckets)
            if prf_flip(word):
                sign[j] = -1


def _words(salt: UInt64s, seeds: UInt64s, ids: UInt64s) -> UInt64s:
    """The hash of each key under its seed; a few are quicker one by one than as arrays."""
    if len(ids) >= _FEW:
        words: UInt64s = siphash_word(salt, seeds, ids)
        return words
    pairs = zip(seeds.tolist(), ids.tolist(), strict=True)
    return np.array(
        [siphash(int(salt[0]), seed, key.to_bytes(8, "little")) for seed, key in pairs], np.uint64
    )


def hash_entries(
    family: Family, keys: Keys, seeds: UInt64s, ids: UInt64s, offsets: Int64s, buckets: int
) -> tuple[Int64s, Int64s]:
    """Bucket and sign of every entry: record i owns ids[offsets[i] : offsets[i + 1]] and seeds[i]."""
    bucket = np.zeros(len(ids), dtype=np.int64)
    compiled = use_compiled(len(ids))
    owner = np.repeat(np.arange(len(seeds)), np.diff(offsets)) if keys.cohorts > 1 or not compiled else None
    if family == "prf":
        sign = np.ones(len(ids), dtype=np.int64)
        salt, width = np.array([keys.salt_words[0]], dtype=np.uint64), np.uint64(buckets)
        if compiled:
            _prf_entries.compiled()(salt[0], seeds, ids, offsets, width, bucket, sign)
            return bucket, sign
        words = _words(salt, seeds[owner], ids)
        bucket[:] = prf_place(words, width)
        return bucket, sign - 2 * prf_flip(words).astype(np.int64)
    rows = seed_rows(keys, seeds, bucket_bits(buckets))
    codes = keys.codes(ids, cohort_of(keys, seeds)[owner] if keys.cohorts > 1 else 0)
    sign = keys.signs(ids)
    if compiled:
        _walsh_entries.compiled()(codes, rows, offsets, bucket, sign)
        return bucket, sign
    own_rows = rows[owner]
    for bit in range(1, rows.shape[1]):
        flips = np.bitwise_count(codes & own_rows[:, bit]).astype(np.int64) & 1
        bucket |= flips << (bit - 1)
    return bucket, sign * (1 - 2 * (np.bitwise_count(codes & own_rows[:, 0]).astype(np.int64) & 1))
