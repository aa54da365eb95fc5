"""An independent look at a task's privacy claim, by running what ships.

Exact: a small instance of the task's mechanism is enumerated (every record, every outcome of every coin, through
the same code) and the worst ratio found is reported as an epsilon.

Black box: at real size, reports are sampled for pairs of records chosen to be easy to tell apart, with the public
seed held fixed so that nothing hides in the choice of hash function. Half of the samples choose the
event that separates the pair best; the other half give exact (Clopper-Pearson) confidence bounds on its two
probabilities, hence a lower bound on epsilon. The confidence is divided by the number of tests made. A lower
bound above the claim refutes it; one below proves nothing, but shows how much of the claim is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hubbub.device.client import encode_record, privatize
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.hashing import hash_entries
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins, SecretCoins
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: Reports that differ in more ways than this are compared by their score only.
_FEW = 4096


@dataclass(frozen=True)
class Finding:
    """What an audit found."""

    kind: str
    claimed: float
    delta: float
    found: float
    confidence: float
    samples: int
    pairs: int
    worst_pair: str

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return self.found > self.claimed * (1 + 1e-9)

    def words(self) -> str:
        """A paragraph for a privacy reviewer."""
        verdict = "The claim is REFUTED." if self.refuted else "Nothing contradicts the claim."
        promise = f"epsilon = {self.claimed:g}" + (f" with delta = {self.delta:g}" if self.delta else "")
        if self.kind == "exact":
            return (
                f"{verdict} Claimed: {promise}. All {self.pairs:,} pairs of neighbouring records of a small instance "
                f"were enumerated through the shipped code; the largest loss found is epsilon = {self.found:.6f} "
                f"({self.worst_pair})."
            )
        return (
            f"{verdict} Claimed: {promise}. From {self.samples:,} sampled reports over {self.pairs} tests of record "
            f"pairs at real size, epsilon is at least {self.found:.4f} with confidence {self.confidence:g} "
            f"({self.worst_pair}). Sampling can refute a claim, not prove it."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        found = self.found if math.isfinite(self.found) else None
        return {**asdict(self), "found": found, "refuted": self.refuted, "words": self.words()}


def exact_audit(task: Task) -> Finding:
    """Enumerate a small instance of the task's mechanism (two or three keys, few entries, coarse grid)."""
    from hubbub.checks.conformance import examples_like, neighbour_losses, outcomes, small_task

    keys, seeds = (3, (0, 1)) if outcomes(small_task(task, 2).mechanism) <= 60 else (2, (2,))
    keys = 3 if task.keys.count_lengths else keys  # of two keys no record has too many
    small = small_task(task, keys)
    worst, pairs, pair = 0.0, 0, "no pair"
    for loss, one, two in neighbour_losses(small, examples_like(small, keys), seeds):
        pairs += 1
        if loss > worst:
            worst, pair = loss, f"{one} against {two}"
    return Finding("exact", task.guarantee.epsilon, task.guarantee.delta, worst, 1.0, 0, pairs, pair)


class _FixedSeeds:
    """The same few public seeds for every report."""

    def __init__(self, seeds: UInt64s) -> None:
        self._seeds = seeds

    def draw(self, bits: int, count: int) -> UInt64s:
        return np.tile(self._seeds, count // len(self._seeds))


def sampled_audit(
    task: Task,
    samples: int = 200_000,
    confidence: float = 1 - 1e-6,
    seeds: int = 3,
    coins: Callable[[], Coins] = SecretCoins,
    progress: Callable[[int], None] = lambda done: None,
) -> Finding:
    """A lower bound on epsilon from sampled reports; `samples` for each record of a pair."""
    if not 0 < confidence < 1:
        raise Refused(f"The confidence must be between 0 and 1, not {confidence:g}.")
    if samples < 1000:
        raise Refused("At least 1000 samples are needed.")
    mechanism = task.mechanism
    tests = [(first, *pair) for first in range(seeds) for pair in _pairs(task, first)]
    # Two directions for every pair and seed share the error probability.
    odds = (1 - confidence) / (2 * len(tests))
    worst, which = 0.0, "no pair"
    for first, name, one, two in tests:
        fixed = np.arange(first, first + mechanism.seeds_per_report, dtype=np.uint64)
        sides = [_sample(task, record, samples, fixed, coins()) for record in (one, two)]
        progress(2 * samples)
        views = _views(task, sides[0], sides[1], one, two)
        for p, q in (views, views[::-1]):
            bound = _lower_bound(p, q, odds, task.guarantee.delta)
            if bound > worst:
                worst, which = bound, f"{name}, public seed {first}"
    claim = task.guarantee
    made = 2 * samples * len(tests)
    return Finding("sampled", claim.epsilon, claim.delta, worst, confidence, made, len(tests), which)


def _pairs(task: Task, seed: int) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Neighbouring records that are easy to tell apart for somebody who knows the hash function of `seed`."""
    mechanism, scale = task.mechanism, task.scale
    top = 1.0 if scale.kind == "set" else scale.center + scale.half
    bottom = 0.0 if scale.kind == "set" else scale.center - scale.half
    plus, minus = _telling_keys(task, seed)
    limit = min(mechanism.max_entries, len(plus), len(minus))
    one = (plus or minus)[0]
    full = dict.fromkeys(plus[:limit], top)
    unit = task.guarantee.unit
    if unit == "record":
        yield "full records without a common key", full, dict.fromkeys(minus[:limit], top)
        yield "a full record against an empty one", full, {}
        if scale.kind != "set":
            yield "the same keys with opposite values", full, dict.fromkeys(plus[:limit], bottom)
    elif unit == "entry" and scale.kind != "set":
        yield "one value from end to end", {one: top}, {one: bottom}
    elif unit == "entry":
        yield "one key in or out", {one: top}, {}
    else:
        reach = float(task.guarantee.distance or 0)
        count = min(int(reach // abs(top)), limit)
        record = dict.fromkeys(plus[:count], top) if count or scale.kind == "set" else {one: reach}
        yield "as far from nothing as is protected", record, {}


def _telling_keys(task: Task, seed: int) -> tuple[list[str], list[str]]:
    """Keys with sign + and with sign - under a seed, those in different buckets first."""
    closed = task.keys.kind == "closed"
    count = min(task.keys.count, 4096) if closed else 4096
    names = [task.keys.name_of(place) if closed else f"key {place}" for place in range(count)]
    if not isinstance(task.mechanism, Hashed):
        return names[: (count + 1) // 2], names[(count + 1) // 2 :]
    ids, offsets = task.keys.ids_of(names), np.array([0, count], dtype=np.int64)
    bucket, sign = hash_entries(
        task.mechanism.family,
        task.keys,
        np.array([seed], dtype=np.uint64),
        ids,
        offsets,
        task.mechanism.buckets,
    )
    _, firsts = np.unique(bucket, return_index=True)
    late = np.ones(count, dtype=bool)
    late[firsts] = False
    order = np.argsort(late, kind="stable")
    return [names[i] for i in order if sign[i] > 0], [names[i] for i in order if sign[i] < 0]


def _sample(task: Task, record: dict[str, float], samples: int, seeds: UInt64s, coins: Coins) -> UInt64s:
    entries, _ = encode_record(task, record)
    length = len(entries.ids)
    many = Entries(
        np.tile(entries.ids, samples),
        np.tile(entries.values, samples),
        np.arange(samples + 1, dtype=np.int64) * length,
    )
    packed, _ = privatize(task, many, coins, _FixedSeeds(seeds))
    return task.mechanism.layout.unpack(packed)


def _views(
    task: Task, one: UInt64s, two: UInt64s, first: dict[str, float], second: dict[str, float]
) -> tuple[Int64s, Int64s]:
    """Both sides' reports as small integers: which report it is, or its score where there are too many."""
    both = np.concatenate([one, two])
    # One number per report; only equality matters, so wrapping around is harmless.
    number = both[:, 0] * np.uint64(0x9E3779B97F4A7C15)
    for column, field in zip(both.T[1:], task.mechanism.layout.fields[1:], strict=True):
        number = number * np.uint64(field.limit) + column
    kinds, codes = np.unique(number, return_inverse=True)
    if len(kinds) > _FEW:
        mechanism, keys = task.mechanism, task.keys
        only = [key for key in first if first[key] != second.get(key)]
        other = [key for key in second if second[key] != first.get(key) and key not in only]
        score = mechanism.scores(keys, both, keys.ids_of(only)) - mechanism.scores(
            keys, both, keys.ids_of(other)
        )
        _, codes = np.unique(score, return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64)
    return codes[: len(one)], codes[len(one) :]


def _lower_bound(p: Int64s, q: Int64s, odds: float, delta: float) -> float:
    """A lower bound on epsilon that fails with probability at most `odds`.

    Events are "one of the m outcomes with the highest ratio"; the training half picks m, the other half is counted.
    """
    size = int(max(p.max(), q.max())) + 1
    half = len(p) // 2
    train_p, train_q = np.bincount(p[:half], minlength=size), np.bincount(q[:half], minlength=size)
    order = np.argsort(-(train_p + 0.5) / (train_q + 0.5), kind="stable")
    hits_p, hits_q = np.cumsum(train_p[order]), np.cumsum(train_q[order])
    # Rough bounds choose the event; only the exact ones below count.
    rough = np.log(np.maximum(hits_p - 5 * np.sqrt(hits_p + 1) - delta * half, 1e-9)) - np.log(
        hits_q + 5 * np.sqrt(hits_q + 1)
    )
    event = np.zeros(size, dtype=bool)
    event[order[: int(np.argmax(rough)) + 1]] = True
    rest = len(p) - half
    low = binomial_bound(int(event[p[half:]].sum()), rest, odds / 2, upper=False)
    high = binomial_bound(int(event[q[half:]].sum()), rest, odds / 2, upper=True)
    return math.log((low - delta) / high) if low > delta else 0.0


def binomial_bound(hits: int, trials: int, odds: float, upper: bool) -> float:
    """The Clopper-Pearson bound on a probability: violated with probability at most `odds`.

    Bisection on the exact binomial tail, summed from its largest term outwards.
    """
    if (upper and hits == trials) or (not upper and hits == 0):
        return 1.0 if upper else 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = _tail(hits, trials, middle, upper)
        # upper: P(X <= hits) falls as the probability grows; lower: P(X >= hits) rises.
        if (tail > odds) == upper:
            low = middle
        else:
            high = middle
    return high if upper else low


def _tail(hits: int, trials: int, probability: float, lower_tail: bool) -> float:
    """P(X <= hits) or P(X >= hits)."""
    mean = trials * probability
    if (lower_tail and hits >= mean) or (not lower_tail and hits <= mean):
        return 1.0
    log_p, log_q = math.log(probability), math.log1p(-probability)
    term = math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(trials - hits + 1)
        + hits * log_p
        + (trials - hits) * log_q
    )
    total, place, odds = 0.0, hits, probability / (1 - probability)
    while term > 1e-18 * total and 0 <= place <= trials:
        total += term
        term *= place / ((trials - place + 1) * odds) if lower_tail else (trials - place) / (place + 1) * odds
        place += -1 if lower_tail else 1
    return total
