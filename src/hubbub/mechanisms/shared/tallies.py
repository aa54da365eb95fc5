"""Votes, counted one by one: by seed and bucket; or, where reports are kept, for every asked key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.kernel import kernel, parity
from hubbub.primitives.siphash import siphash_word

#: Hashes that are worked out at a time.
_WORDS = 1024


@dataclass(frozen=True)
class Votes:
    """What reports say: `values[i, 0]` for the keys in `bucket[i]`, or `values[i, j]` for bucket j (bucket -1).

    Signed votes are multiplied by the key's random sign under the report's seed.
    """

    signed: bool
    bucket: Int64s
    values: Int64s

    def of(self, place: Int64s) -> Int64s:
        """Each report's vote for a key that its hash puts into `place`."""
        if self.values.shape[1] > 1:
            return self.values[np.arange(len(place)), place]
        return np.where((self.bucket == place) | (self.bucket < 0), self.values[:, 0], 0)


#: Seeds of some reports, and what they vote for.
Lot = tuple[UInt64s, tuple[Votes, ...]]


@kernel
def _hash_seeds(salt: Any, seeds: Any, key: Any, words: Any) -> None:
    """Hash one key under many seeds: a loop of its own, which the compiler turns into vector instructions."""
    for i in range(len(seeds)):
        words[i] = siphash_word(salt, seeds[i], key)


@kernel
def tally_prf(
    salt: Any, seeds: Any, ids: Any, buckets: Any, signed: bool, bucket: Any, values: Any, totals: Any
) -> None:
    """Add every report's vote for every key."""
    words = np.zeros(_WORDS, dtype=np.uint64)
    for key in range(len(ids)):
        total = 0
        for start in range(0, len(seeds), _WORDS):
            stop = min(start + _WORDS, len(seeds))
            _hash_seeds(salt, seeds[start:stop], ids[key], words)
            for i in range(start, stop):
                word = words[i - start]
                place = np.int64(((word & 0xFFFFFFFF) * buckets) >> 32)
                chosen = place if bucket[i] < 0 else 0
                vote = values[i, chosen] if bucket[i] < 0 or bucket[i] == place else 0
                total += -vote if signed and word >> 63 else vote
        totals[key] += total


@kernel
def tally_walsh(
    rows: Any, cohorts: Any, codes: Any, signs: Any, signed: bool, bucket: Any, values: Any, totals: Any
) -> None:
    """The same with linear hashing: a few popcounts per report and key."""
    for key in range(len(signs)):
        total = 0
        for i in range(len(cohorts)):
            code = codes[cohorts[i], key]
            place = 0
            for bit in range(1, rows.shape[1]):
                place |= parity(code & rows[i, bit]) << (bit - 1)
            chosen = place if bucket[i] < 0 else 0
            vote = values[i, chosen] if bucket[i] < 0 or bucket[i] == place else 0
            total += -vote if signed and parity(code & rows[i, 0]) else vote
        totals[key] += total * signs[key] if signed else total


@kernel
def add_votes(sums: Any, seeds: Any, bucket: Any, values: Any) -> None:
    """sums[seed, j] += the report's vote for bucket j."""
    for i in range(len(seeds)):
        if bucket[i] < 0:
            for j in range(values.shape[1]):
                sums[seeds[i], j] += values[i, j]
        else:
            sums[seeds[i], bucket[i]] += values[i, 0]
