"""What one report can do to several chosen keys at once, under the best of all public seeds.

A forger has chosen r keys and looks for the report that says most for all of them. Under a given report, each key lands
by its hash: with some chance it gets the most, or less, or the contrary, independently of the others. So what the r
keys get from one report together is a sum of r draws from one law. There are N reports that are alike but for how keys
land under them: one for every seed and bucket. Of the best of these,

    E[best] <= sum over g of min(1, N P(sum >= g)) (the sum of steps between the values g that it can have),

because P(best >= g) is at most 1 and at most N P(sum >= g). That is what is told: on average over the keys that may be
chosen, the best report does no more. All r get the most if N P(all do) is 1 or more, expected of one report at least.

In the family walsh hashing is linear: if the a rows of a seed have rank q < a, keys are in 2^q of the buckets only, and
in rank 0 all keys are in one. Of all seeds about 2^-((a - q)(k - q)) are so, for codes of k bits: few, but where there
are hardly any keys there are some, and a forger finds them. So there are several laws, each of so many reports, and N P
is a sum over them. Who is given g seeds for a report has g instead of all: of a rank that one seed in a thousand has,
g / 1000 are expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from hubbub.mechanisms.shared.loudness import vote_worth
from hubbub.model.hashing import bucket_bits, cohort_of, seed_rows
from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Floats, UInt64s

if TYPE_CHECKING:
    from hubbub.mechanisms.shared.hashed import Hashed

#: Seeds of at most so many bits are looked at one by one.
_MOST_SEED_BITS = 20
#: Keys of which the law of their sum is worked out; and what is a rounding error.
_COUNTED, _ROUNDING = 512, 1e-9


@dataclass(frozen=True)
class Landing:
    """What a chosen key gets from a report, the most first, with what chances; of 2^bits such reports."""

    values: tuple[float, ...]
    chances: tuple[float, ...]
    bits: float

    def log_mean_exp(self, tilts: Floats) -> Floats:
        """log E[exp(t gain)] of one key, for each t."""
        terms = np.log(np.array(self.chances)) + tilts[:, None] * np.array(self.values)
        return np.asarray(np.logaddexp.reduce(terms, axis=1))

    @property
    def at_once(self) -> float:
        """Keys that all get the most from the best report."""
        if self.chances[0] >= 1:
            return math.inf if self.bits >= -_ROUNDING else 0.0
        return math.floor(self.bits * math.log(2) / -math.log(self.chances[0]) + _ROUNDING)


def most_at_once(landings: Sequence[Landing]) -> float:
    """Keys that all get the most that a key can get."""
    most = max(each.values[0] for each in landings)
    return max(each.at_once for each in landings if each.values[0] >= most - _ROUNDING * abs(most))


def best_together(landings: Sequence[Landing], count: int) -> float:
    """What `count` keys get from the best report together, on average over the choices of keys."""
    return _of_many(lambda part: _best_counted(landings, part), landings, count)


def _of_many(best: Callable[[int], float], landings: Sequence[Landing], count: int) -> float:
    """`best(count)`, or of more keys than it can be worked out for the lower of two bounds, which hold for any number.

    They get no more than if each _COUNTED of them had a best report of their own. And for every t > 0, a largest is at
    most a sum (Jensen): E[best] <= log(sum over laws of N E[exp(t gain)]^count) / t, where laws of which a report is
    hardly ever there may be left out of the sum, if it is added how often one is, times the most that it could gain.
    """
    part = min(count, _COUNTED)
    bound = best(part) * count / part
    if part == count:
        return bound
    often = sorted(landings, key=lambda each: -each.bits)
    all_values = np.concatenate([each.values for each in landings])
    tilts = np.geomspace(1e-4, 20, 200)[:, None] / np.abs(all_values).max()
    logs = np.stack(
        [each.bits * math.log(2) + count * each.log_mean_exp(tilts[:, 0]) for each in often], axis=1
    )
    there = np.array([min(1.0, 2.0**each.bits) for each in often])
    left_out = (there.sum() - np.cumsum(there)) * count * np.ptp(all_values)
    return min(bound, float((np.logaddexp.accumulate(logs, axis=1) / tilts + left_out).min()))


def _best_counted(landings: Sequence[Landing], count: int) -> float:
    """From the law of the sum."""
    laws = [_law_of_sum(*_three(each.values, each.chances), count) for each in landings]
    sums = np.concatenate([law[0] for law in laws])
    logs = [law[1] + each.bits * math.log(2) for law, each in zip(laws, landings, strict=True)]
    order = np.argsort(-sums)
    sums, reached = sums[order], np.logaddexp.accumulate(np.concatenate(logs)[order])
    steps = np.append(sums[:-1] - sums[1:], 0.0)
    return float(sums[-1] + (steps * np.exp(np.minimum(reached, 0.0))).sum())


def _three(values: tuple[float, ...], chances: tuple[float, ...]) -> tuple[Floats, Floats]:
    """At most three values: the rarest count as the next larger ones, which says no less."""
    found = [list(pair) for pair in zip(values, chances, strict=True)]
    while len(found) > 3:
        rarest = min(range(1, len(found)), key=lambda place: found[place][1])
        found[rarest - 1][1] += found.pop(rarest)[1]
    return np.array([pair[0] for pair in found]), np.array([pair[1] for pair in found])


def _law_of_sum(values: Floats, chances: Floats, count: int) -> tuple[Floats, Floats]:
    """The values of a sum of draws, and the logarithms of their probabilities."""
    factorial = np.array([math.lgamma(i + 1) for i in range(count + 1)])
    with np.errstate(divide="ignore"):
        logs = np.log(np.append(chances, np.zeros(3 - len(chances))))
    worth = np.append(values, np.zeros(3 - len(values)))
    times = np.arange(count + 1)
    first, second = np.repeat(times, count + 1), np.tile(times, count + 1)
    inside = first + second <= count if len(values) > 2 else first + second == count
    first, second = first[inside], second[inside]
    drawn = np.stack([first, second, count - first - second])
    terms = np.where(drawn == 0, 0.0, drawn * np.where(np.isfinite(logs), logs, -1e9)[:, None])
    return worth @ drawn, factorial[count] - factorial[drawn].sum(axis=0) + terms.sum(axis=0)


def landings(mechanism: Hashed, keys: Keys, way: Floats, chosen: bool) -> list[Landing]:
    """Of a key in reports that say most in a direction [2] of frequency and mean, for each rank of a seed's rows.

    `chosen`: whether the forger has all seeds to choose from, or those that he was given for a report: as many as
    honest devices choose among.
    """
    buckets, found = mechanism.buckets, list[Landing]()
    signed = any(votes.signed for votes in mechanism.no_votes)
    # As many different seeds as there are different rows.
    rows = keys.bits * (bucket_bits(buckets) + signed) if mechanism.family == "walsh" else math.inf
    seeds = min(mechanism.seed_bits + math.log2(keys.asked_share), rows)
    if not chosen:
        seeds = math.log2(mechanism.seeds_per_report)
    for rank, share in _ranks(mechanism, keys):
        law = _landing(mechanism, tuple(way), rank)
        found.append(Landing(law.values, law.chances, seeds + share + law.bits))
        if rank < buckets:  # a report that names a bucket where no key is
            elsewhere = float(way @ np.nan_to_num(vote_worth(mechanism)[0]))
            found.append(Landing((elsewhere,), (1.0,), seeds + share))
    return found


def most_heard(mechanism: Hashed, keys: Keys) -> int:
    """As how many reports one counts at most where `Hashed.heard_in` adds up coefficients.

    That is 2^(a - rank) of the a rows of a seed, as so many subsets of them cancel. All seeds are looked at; where they
    are too many, rank 0 is taken for possible.
    """
    rows = bucket_bits(mechanism.buckets)
    if mechanism.seed_bits > _MOST_SEED_BITS:
        return 1 << rows
    seeds = np.arange(1 << mechanism.seed_bits, dtype=np.uint64)
    seeds = seeds[np.isin(cohort_of(keys, seeds), np.array(keys.asked, dtype=np.uint64))]
    rank, found = np.zeros(len(seeds), dtype=np.int64), list[UInt64s]()
    for row in seed_rows(keys, seeds, rows)[:, 1:].T:
        for other in found:  # what is left of a row is less than each of the others would make it
            row = np.minimum(row, row ^ other)
        rank += row != 0
        found.append(row)
    return 1 << int(rows - rank.min(initial=rows))


def _ranks(mechanism: Hashed, keys: Keys) -> Iterator[tuple[int, float]]:
    """In how many buckets at most keys are under seeds, and the logarithm (to base 2) of the share of such seeds."""
    if mechanism.family != "walsh":
        yield mechanism.buckets, 0.0
        return
    rows, width, share = bucket_bits(mechanism.buckets), keys.bits, 0.0
    for rank in range(min(rows, width) + 1):
        terms = ((2**rows - 2**i) * (2**width - 2**i) / (2**rank - 2**i) for i in range(rank))
        share += 2.0 ** (sum(map(math.log2, terms)) - rows * width)
        yield 1 << rank, math.log2(min(share, 1.0))


@lru_cache(maxsize=256)
def _landing(mechanism: Hashed, way: tuple[float, float], reached: int) -> Landing:
    """Of keys that are in `reached` of the buckets; bits count the reports of one seed that are alike.

    The report is the one that says most for a key whose sides are in different buckets, and it names one bucket.
    """
    alone, worth = vote_worth(mechanism)
    prices = np.tensordot(np.array(way), np.nan_to_num(worth), 1)
    wanted = np.zeros((1, mechanism.channels, mechanism.buckets))
    for side, price in enumerate(prices):
        wanted[0, :, min(side, mechanism.buckets - 1)] += price
    blank = np.zeros((1, len(mechanism.report_fields())), dtype=np.int64)
    votes = mechanism.votes(mechanism.best_fields(wanted, blank))
    # All that a report says is of one bucket: there, its votes are the largest.
    named = prices * np.array([vote.values[0, np.argmax(np.abs(vote.values[0]))] for vote in votes])
    signed = np.array([vote.signed for vote in votes])
    both_signs = bool(np.abs(named[:, signed]).max(initial=0.0) > 0)
    signs = (1, -1) if both_signs else (1,)
    told: dict[float, float] = {}
    options = [(0, 1 - 1 / reached), *((sign, 1 / reached / len(signs)) for sign in signs)]
    for spots in product(options, repeat=len(prices)):
        gained = float(np.array(way) @ np.nan_to_num(alone))
        for own, (sign, _) in zip(named, spots, strict=True):
            gained += float((own * np.where(signed, sign, abs(sign))).sum())
        told[gained] = told.get(gained, 0.0) + math.prod(chance for _, chance in spots)
    kept = _merged({value: chance for value, chance in told.items() if chance > 0})
    return Landing(*kept, bits=math.log2(reached * len(signs)))


def _merged(told: dict[float, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Values that are the same but for rounding, the largest first."""
    found: list[list[float]] = []
    for value in sorted(told, reverse=True):
        if found and found[-1][0] - value <= 1e-9 * (1 + abs(value)):
            found[-1][1] += told[value]
        else:
            found.append([value, told[value]])
    return tuple(value for value, _ in found), tuple(chance for _, chance in found)


# Reports that speak of every bucket by itself, for the keys there whose signs are the right ones


def aligned_at_once(bits: float, buckets: int) -> float:
    """The most keys for which 2^bits seeds have one under which keys that share a bucket have the same sign.

    Key by key: with j buckets taken, the next one falls into one of them with chance j / buckets, and then has the
    right sign every other time.
    """
    taken, keys = np.zeros(buckets + 1), 0
    taken[0] = 1.0
    share = np.arange(buckets + 1) / buckets
    while taken.sum() * 2.0**bits >= 1:
        taken = taken * share / 2 + np.append(0.0, (taken * (1 - share))[:-1])
        keys += 1
    return keys - 1


def best_aligned(bits: float, buckets: int, count: int) -> float:
    """How many of `count` keys more have the right sign than the wrong one under the best of 2^bits seeds.

    If every bucket follows the majority of its keys, that is A = sum |D_j|, D_j the sum of signs in bucket j, and for
    every t > 0 the best of S seeds has E[best] <= (log S + log E[exp(t A)]) / t (Jensen, and a sum for the largest).
    The law of A is that of independent buckets with Poisson numbers of keys, given that there are `count` in all. Of
    many keys: A is the most of 2^buckets sums of signs, one for each choice of a side in every bucket.
    """
    sides = Landing((1.0, -1.0), (0.5, 0.5), bits + buckets)
    return _of_many(lambda part: _best_aligned(bits, buckets, part), [sides], count)


def _best_aligned(bits: float, buckets: int, count: int) -> float:
    """The same, from the law."""
    if count <= aligned_at_once(bits, buckets):
        return float(count)
    usual = count / buckets
    lengths = np.arange(count + 1)
    factorial = np.array([math.lgamma(length + 1) for length in lengths])
    poisson = np.exp(lengths * math.log(usual) - usual - factorial)
    whole = count * math.log(count) - count - factorial[count]
    best = float(count)
    for t in np.geomspace(0.02, 8.0, 40).tolist():
        alike = _majorities(count, t)
        mean = _power(poisson * alike, buckets, count)[count]
        if mean > 0:
            best = min(best, count + (bits * math.log(2) + math.log(mean) - float(whole)) / t)
    return best


def _majorities(most: int, t: float) -> Floats:
    """[lengths]: E exp(t (|D| - length)), D a sum of `length` random signs."""
    found, law = np.ones(most + 1), np.ones(1)
    for length in range(1, most + 1):
        law = (np.append(law, 0.0) + np.append(0.0, law)) / 2
        size = np.abs(length - 2 * np.arange(length + 1))
        found[length] = float((law * np.exp(t * (size - length))).sum())
    return found


def _power(series: Floats, exponent: int, most: int) -> Floats:
    """A power of a power series, as far as x^most."""
    result = np.zeros(most + 1)
    result[0] = 1.0
    while exponent:
        if exponent & 1:
            result = np.convolve(result, series)[: most + 1]
        series = np.convolve(series, series)[: most + 1]
        exponent >>= 1
    return result
