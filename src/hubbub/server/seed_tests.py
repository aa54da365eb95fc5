"""Tests of public seeds: whether they were drawn, or chosen because they serve several keys at once.

A forger looks for seeds under which the keys that he lifts share a bucket, or have signs that go together. Hashing is
linear in the family walsh, so that this depends on the difference of two keys' codes alone, and one transform looks at
all differences. Seeds are drawn before the record is looked at: honest reports have such seeds as often as they are
among all seeds, up to what a record does to a seed where it chooses among several.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.hashing import bucket_bits, seed_rows
from hubbub.model.keys import Keys
from hubbub.model.telltale import sharing
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.walsh import scatter, transform
from hubbub.protocol.task import Task
from hubbub.server.evidence import Remembered, telltales_of
from hubbub.server.odds import Finding, outlier

#: Bits of seeds of which all are looked at, for buckets and for signs; seeds at a time.
_FEW_SEEDS, _MORE_SEEDS, _CHUNK = 16, 24, 1 << 20
#: The largest universe of codes that is searched for pairs, and how many numbers are added up for that: one for every
#: seed and bucket.
_MOST_BITS, _MOST_NUMBERS = 20, 1 << 24


def seed_findings(task: Task, kept: UInt64s) -> list[Finding]:
    """The tests of the seeds of these reports, where keys have linear codes, few enough to look at all differences."""
    mechanism, keys = task.mechanism, task.keys
    if not isinstance(mechanism, Hashed) or mechanism.family != "walsh":
        return []
    if keys.kind == "wide" or keys.bits > _MOST_BITS:
        return []
    seeds = telltales_of(task)[0]
    excess = seeds.cells * float(seeds.most)  # by which factor a record makes a seed likelier, at most
    found = [_shared(task, mechanism, kept, excess)] if mechanism.buckets > 1 else []
    if mechanism.names_evenly and keys.cohorts == 1 < mechanism.buckets:
        found.append(_named(mechanism, keys, kept))
    return [*found, _signed(task, kept, excess)] if any(vote.signed for vote in mechanism.no_votes) else found


def _shared(task: Task, mechanism: Hashed, kept: UInt64s, excess: float) -> Finding:
    """Seeds under which two keys share a bucket, whichever two: where forgers look for seeds that serve several keys.

    Honest devices report such seeds as often as they are among all seeds, up to what a record does to a seed. Where
    there are many buckets, as many reports are looked at as can be in a moment.
    """
    keys = task.keys
    share = np.minimum(1.0, excess * _sharing(task))
    seeds = np.ascontiguousarray(kept[:, 0])
    if _counted(mechanism):
        counts = np.bincount(seeds.view(np.int64), minlength=1 << mechanism.seed_bits)
        together = shared_buckets(mechanism, keys, _all_rows(task), counts)
    else:
        seeds = seeds[: max(_MOST_NUMBERS // mechanism.buckets, 1)]
        together = shared_buckets(mechanism, keys, _rows(task, seeds))
    words = f"two keys share a bucket in {together.max():,} of {len(seeds):,} reports"
    return Finding("shared_buckets", words, outlier(together, len(seeds), 0.0, share))


def _named(mechanism: Hashed, keys: Keys, kept: UInt64s) -> Finding:
    """Codes whose bucket is named, whichever code: where no record changes which bucket is, once in `buckets` times.

    Given its seed, such a report names each bucket with the same probability, so the count of each code is binomial.
    """
    kept = kept[: max(_MOST_NUMBERS // mechanism.buckets, 1)]
    rows = seed_rows(keys, np.ascontiguousarray(kept[:, 0]), bucket_bits(mechanism.buckets))[:, 1:]
    named = shared_buckets(mechanism, keys, rows.astype(np.int64), bucket=kept[:, 1].astype(np.int64))
    words = f"a key's bucket is named in {named.max():,} of {len(kept):,} reports"
    return Finding(
        "named_keys", words, outlier(named, len(kept), 1 / mechanism.buckets, 1 / mechanism.buckets)
    )


def _counted(mechanism: Hashed) -> bool:
    """Whether all seeds can be looked at with all buckets."""
    return mechanism.seed_bits <= _FEW_SEEDS and mechanism.buckets << mechanism.seed_bits <= _MOST_NUMBERS


def _signed(task: Task, kept: UInt64s, excess: float) -> Finding:
    """Seeds under which two keys have the same sign, or opposite ones: as often as they are among all seeds.

    By linearity, what counts is the difference x of their codes: they are alike where r_0 and x have even parity, or
    where it is odd, depending on the keys' own signs.
    """
    seeds = np.ascontiguousarray(kept[:, 0])
    if task.mechanism.layout.fields[0].bits <= _FEW_SEEDS:
        drawn = np.bincount(seeds.view(np.int64), minlength=task.mechanism.layout.fields[0].limit)
        even = _even(task.keys, np.arange(len(drawn), dtype=np.uint64), drawn)
    else:
        even = _even(task.keys, seeds, np.ones(len(seeds), dtype=np.int64))
    shares = _even_shares(task)
    most = np.minimum(1.0, excess * shares[1])
    least = np.maximum(0.0, 1 - excess * (1 - shares[0]))
    furthest = int(np.maximum(even, len(kept) - even).max())
    words = f"two keys have the same sign, or opposite ones, in {furthest:,} of {len(kept):,} reports"
    return Finding("shared_signs", words, outlier(even, len(kept), least, most))


def _even(keys: Keys, seeds: UInt64s, counts: Int64s) -> Int64s:
    """For every x but 0: how many seeds, each so often, have a row r_0 of even parity with it."""
    totals = np.zeros(1 << keys.bits, dtype=np.int64)
    np.add.at(totals, seed_rows(keys, seeds, 0)[:, 0].astype(np.int64), counts)
    return np.asarray((transform(totals)[1:] + counts.sum()) // 2)


def _shares_of_even(task: Task) -> tuple[Any, Any]:
    """Of all seeds, the share that has even parity with each x; or at least, and at most."""
    mechanism = task.mechanism
    assert isinstance(mechanism, Hashed)
    if mechanism.seed_bits > _MORE_SEEDS:
        most = sharing(2, mechanism.seed_bits, task.keys.bits)
        return 1 - most, most
    count, found = 1 << mechanism.seed_bits, np.zeros((1 << task.keys.bits) - 1, dtype=np.int64)
    for start in range(0, count, _CHUNK):
        seeds = np.arange(start, min(start + _CHUNK, count), dtype=np.uint64)
        found += _even(task.keys, seeds, np.ones(len(seeds), dtype=np.int64))
    return found / count, found / count


_even_shares = Remembered(_shares_of_even)


def _rows(task: Task, seeds: UInt64s) -> Int64s:
    """The rows of seeds that buckets are made of."""
    assert isinstance(task.mechanism, Hashed)
    return seed_rows(task.keys, seeds, bucket_bits(task.mechanism.buckets))[:, 1:].astype(np.int64)


def _rows_of_all(task: Task) -> Int64s:
    assert isinstance(task.mechanism, Hashed)
    return _rows(task, np.arange(1 << task.mechanism.seed_bits, dtype=np.uint64))


_all_rows = Remembered(_rows_of_all, 8)


def _share_of_seeds(task: Task) -> Any:
    """Of all seeds, those under which two codes share a bucket, for each difference of codes, or at most."""
    mechanism = task.mechanism
    assert isinstance(mechanism, Hashed)
    if not _counted(mechanism):
        return sharing(mechanism.buckets, mechanism.seed_bits, task.keys.bits)
    return shared_buckets(mechanism, task.keys, _all_rows(task)) / (1 << mechanism.seed_bits)


_sharing = Remembered(_share_of_seeds)


def shared_buckets(
    mechanism: Hashed, keys: Keys, rows: Int64s, counts: Int64s | None = None, bucket: Int64s | None = None
) -> Int64s:
    """For every x but 0: under how many seeds two codes that differ by x share a bucket (family walsh).

    `rows` are those of the seeds; with `counts`, a seed counts so often. With `bucket`, one for each seed: under how
    many the code x is in it.

    Hashing is linear: they do where x itself has bucket 0. So these are the sums of one vote for bucket 0 per seed.
    """
    totals = np.zeros(1 << keys.bits, dtype=np.int64)
    zeros = np.zeros(len(rows), dtype=np.int64)
    scatter(
        totals,
        zeros,
        rows,
        zeros if bucket is None else bucket,
        (zeros + 1 if counts is None else counts)[:, None],
    )
    return transform(totals)[1:] // mechanism.buckets
