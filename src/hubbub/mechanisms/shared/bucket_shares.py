"""How often honest reports name each bucket, over all seeds, whatever the records are.

Theorem. Where the rows of seeds are uniform and independent (family walsh), all buckets but bucket 0 are named equally
often, by every record; in the family prf, all buckets are.

Proof. A mechanism knows buckets only as the values of hash functions: if all hash values of a record are permuted, what
it reports is permuted likewise, in law. In the family walsh the bucket of a code c is R c, R the matrix of rows. For an
invertible A, A R has the law of R, so the record that is hashed to A R c_1, A R c_2, .. has the same law of reports as
itself, and bucket z is named as often as A z. Any bucket but 0 can be taken to any other but 0 by some A. In the family
prf, hash values are independent and uniform, and every permutation leaves their law as it is.

Bucket 0 differs: where codes add up to 0, three keys can all be in bucket 0, and in no other one. How far, `nearness`
says: at most by so much is it named more often, or less, than any other bucket.

Rows are no fresh draws for each report but those of 2^b seeds, made once by the salt. Over salts, a bucket's share, for
one record, is an average over seeds of numbers in an interval of length r. By Hoeffding it is further than
r sqrt(x / 2^(b + 1)) from its mean with probability at most 2 exp(-x), over g seeds of one report by r sqrt(g x /
2^(b + 1)); x is chosen so that this holds for all buckets and all records at once, for all but one of 10^9 salts.
"""

from __future__ import annotations

import math

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.keys import Keys
from hubbub.model.telltale import UNLUCKY, Telltale, Weights, outcome_bounds
from hubbub.primitives.arrays import Int64s, UInt64s

#: Bits of what is hashed in the family prf, and of codes that are not listed.
_WIDE = 64


def bucket_telltale(
    mechanism: Hashed, keys: Keys, weights: Weights, nearness: float | None = None, sides: int = 1
) -> tuple[Telltale, ...]:
    """The bucket that a report names in its first field after the seed, which has so many sides beside or in it.

    Without `nearness`, bucket 0 is only known to be named as often as local privacy allows.
    """
    t = mechanism.buckets
    if t < 3:
        return ()
    outcomes = weights[1] // t
    low, high = outcome_bounds(weights, outcomes)
    if mechanism.family == "prf":
        nearness = 0.0
    if nearness is not None:  # p0 - p1 is at most that, and p0 + (t - 1) p1 = 1
        low, high = (1 / t - nearness * (t - 1) / t, 1 / t + nearness * (t - 1) / t)
    luck = _luck(mechanism, keys, outcome_bounds(weights, outcomes))
    least = np.full(t, (1 - high) / (t - 1))
    most = np.full(t, (1 - low) / (t - 1))
    least[0], most[0] = low, high

    def read(reports: UInt64s) -> Int64s:
        return (reports[:, 1] // np.uint64(sides)).astype(np.int64)

    return (
        Telltale("buckets", "buckets", t, read, np.maximum(least - luck, 0.0), np.minimum(most + luck, 1.0)),
    )


def hits_nearness(entries: int, buckets: int, hit: float, unhit: float) -> float:
    """`nearness` where each of `entries` hits a bucket, one that is hit is named with probability `hit`, others alike.

    With m buckets hit, another one has probability g(m), from 1 / t down to `unhit`. The difference between buckets 0
    and w is the mean of (1{0 is hit} - 1{w is hit}) (hit - g(m)). Each of d different codes hits each of the two with
    probability 1 / t, two of them with 1 / t^2, so by Bonferroni's inequalities the two are hit equally often up to
    d (d - 1) / (2 t^2), each at most with probability d / t, and g(m) is within 1 / t - `unhit` of 1 / t. With one code
    there is no difference.
    """
    if entries == 1:
        return 0.0
    pairs = math.comb(entries, 2) / buckets**2
    return (hit - 1 / buckets) * pairs + (1 / buckets - unhit) * entries / buckets


def _luck(mechanism: Hashed, keys: Keys, bounds: tuple[float, float]) -> float:
    """By how much a salt can make a bucket's share larger or smaller for some record."""
    listed = mechanism.family == "walsh" and keys.kind != "wide"
    words = mechanism.max_entries * (keys.cohorts * keys.bits if listed else _WIDE)
    records = words + 2 * mechanism.max_entries  # each entry is there or not, and has one of two sides
    exponent = math.log(2 * mechanism.buckets / UNLUCKY) + records * math.log(2)
    uneven = mechanism.buckets / 2**32 if mechanism.family == "prf" else 0.0
    spread = (bounds[1] - bounds[0]) * math.sqrt(
        mechanism.seeds_per_report * exponent / 2 ** (mechanism.seed_bits + 1)
    )
    return spread + uneven
