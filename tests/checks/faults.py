"""Planted faults: mechanisms that lose more than they say, or rest on what is not so, each by a few wrong lines.

`FAULTS` is the catalogue. Every fault claims epsilon = 1 and has to be caught by an audit. `SCALED` are faults of any
size. `benchmarks/audits.py` prints the tables of docs/audit.md from both; `test_faults.py` compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from pydantic import PrivateAttr

from hubbub.checks.audit import Finding, exact_audit, sampled_audit
from hubbub.checks.conformance import task_for
from hubbub.checks.exact import TooManyOutcomes
from hubbub.device import client
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.freq_est import FreqEst
from hubbub.mechanisms.gaussian import GaussianNoise
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.harmony import Harmony
from hubbub.mechanisms.local_hashing import LocalHashing
from hubbub.mechanisms.pckv_grr import PCKVGRR
from hubbub.mechanisms.pckv_ue import PCKVUE
from hubbub.mechanisms.privkv import PrivKV
from hubbub.mechanisms.repeated import Repeated
from hubbub.mechanisms.sampled import Sampled
from hubbub.mechanisms.sketch_response import SketchResponse
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.mechanisms.value_list import ValueList
from hubbub.model.hashing import hash_entries
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries, Scale, sample_down
from hubbub.primitives.coins import Coins, InsecureCoins, SecretCoins, SimulatedSeeds, SystemSeeds
from hubbub.primitives.kernel import BULK
from hubbub.primitives.samplers import sample_clamped_laplace
from hubbub.primitives.wire import WireField
from hubbub.protocol.task import Task

KEYS = 40


SAMPLES = 60_000


@dataclass(frozen=True)
class Fault:
    """A broken mechanism, and what else has to be broken while it runs."""

    mechanism: Mechanism
    broken: Callable[[], AbstractContextManager[Any]] = nullcontext


def audited_exactly(fault: Fault) -> Finding | None:
    """What enumeration finds; None where there is too much to enumerate."""
    with fault.broken():
        try:
            return exact_audit(_task(fault))
        except TooManyOutcomes:
            return None


#: What coins and seeds of a `Client` come from while faults are looked for.
REPEATABLE = random.Random()


@contextmanager
def repeatable_secrets(seed: int) -> Iterator[None]:
    """Secret coins and system seeds that are always the same."""
    REPEATABLE.seed(seed)

    def words(count: int) -> bytes:
        return REPEATABLE.randbytes(8 * count)

    with (
        patch.object(SecretCoins, "below", lambda self, bound: REPEATABLE.randrange(bound)),
        patch.object(SecretCoins, "words", lambda self, count: np.frombuffer(words(count), dtype=np.int64)),
        patch.object(
            SystemSeeds,
            "draw",
            lambda self, bits, count: np.frombuffer(words(count), dtype=np.uint64) >> np.uint64(64 - bits),
        ),
    ):
        yield


def audited_by_sampling(fault: Fault, samples: int = SAMPLES, seed: int = 1) -> Finding:
    """What sampling finds, always with the same coins; a sound mechanism is refuted with probability 1e-6."""
    secret, public = iter(range(seed, seed + 1000)), iter(range(seed, seed + 1000))
    with repeatable_secrets(seed), fault.broken():
        return sampled_audit(
            _task(fault),
            samples,
            coins=lambda: InsecureCoins(next(secret)),
            public=lambda: SimulatedSeeds(next(public)),
        )


def _task(fault: Fault) -> Task:
    return task_for(fault.mechanism, getattr(fault.mechanism, "size", KEYS))


def figure(finding: Finding | None) -> str:
    """The cell of a table: the loss at which a fault was caught, what gave it away, or that it was missed."""
    if finding is None:
        return "impossible"
    if not finding.refuted:
        return "missed"
    if finding.kind == "exact":
        return f"{finding.found:.4f}" if np.isfinite(finding.found) else "infinite"
    if finding.found > finding.claimed:
        return f"{finding.found:.2f}"
    return "; ".join(sorted({_SIGNS[objection.split()[1]] for objection in finding.objections}))


#: The second word of an objection says what it is about.
_SIGNS = {"delta": "loud sibling", "public": "seed", "are": "coins", "of": "client"}


def louder(kind: type[Mechanism], factor: float) -> type[Mechanism]:
    """Weights of a favoured outcome too large by a factor (and discrete noise too small, where there is some)."""

    class Louder(kind):  # type: ignore[misc, valid-type]
        @property
        def weights(self) -> tuple[int, int]:
            favoured, other = super().weights
            return int(favoured * factor), other

    return Louder


def quieter(kind: type[Mechanism], name: str, factor: float) -> type[Mechanism]:
    """A noise scale (numerator and denominator, or a number) too small by a factor."""

    def scale(self: Any) -> Any:
        found = getattr(super(Quieter, self), name)
        return (int(found[0] * factor), found[1]) if isinstance(found, tuple) else int(found * factor)

    class Quieter(kind):  # type: ignore[misc, valid-type]
        pass

    setattr(Quieter, name, property(scale))
    return Quieter


def shaped(kind: type[Mechanism], **changes: Any) -> type[Mechanism]:
    """A kernel that is told something else than the mechanism claims: functions of its shape."""

    class Shaped(kind):  # type: ignore[misc, valid-type]
        def kernel_and_shape(self) -> Any:
            kernel, shape = super().kernel_and_shape()
            return kernel, shape._replace(**{name: change(shape) for name, change in changes.items()})

    return Shaped


# Seeds and coins


class SeedBit(Collision):
    """The lowest bit of the seed says whether there is anything in the record."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        return super().randomize(keys, entries, seeds | (np.diff(entries.offsets) > 0), coins)


class SeedRedrawn(Collision):
    """The seed is drawn again until no two keys of the record share a bucket: fewer collisions, better estimates."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        seeds = seeds.copy()
        for _ in range(100):
            bucket, _ = hash_entries(self.family, keys, seeds, entries.ids, entries.offsets, self.buckets)
            owner = np.repeat(np.arange(len(entries)), np.diff(entries.offsets))
            cells, counts = np.unique(owner * self.buckets + bucket, return_counts=True)
            again = np.unique(cells[counts > 1] // self.buckets)
            if not len(again):
                break
            seeds[again] = (seeds[again] * np.uint64(5) + np.uint64(1)) % np.uint64(1 << self.seed_bits)
        return super().randomize(keys, entries, seeds, coins)


class RowOfTheKey(Compressive):
    """Only rows where the key has sign +: the row is no longer drawn without looking at the record."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        rows = seeds % np.uint64(self.rows)
        _, sign = hash_entries(self.family, keys, rows, entries.ids, entries.offsets, 1)
        held = np.diff(entries.offsets) > 0
        flipped = np.zeros(len(entries), dtype=np.uint64)
        flipped[held] = sign < 0
        return super().randomize(keys, entries, (seeds + flipped) % np.uint64(self.rows), coins)


class SeedAsCoins(Collision):
    """The public seed also seeds the secret coins."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        each = [
            super(SeedAsCoins, self).randomize(
                keys, entries.slice(i, i + 1), seeds[i : i + 1], InsecureCoins(int(seeds[i]))
            )
            for i in range(min(len(entries), 200))
        ]
        return np.tile(np.concatenate(each), (len(entries) // 200 + 1, 1))[: len(entries)]


class SameBuffer(Collision):
    """Every batch is given the same coins."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        return super().randomize(keys, entries, seeds, InsecureCoins(7))


class CoinsInPairs(Sampled):
    """Two neighbours in a batch share their coins."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        reports = super().randomize(keys, entries, seeds, coins)
        alike = np.diff(entries.offsets)[1::2] == np.diff(entries.offsets)[:-1:2]
        reports[1::2][alike, 1:] = reports[:-1:2][alike, 1:]
        return reports


# What a report says besides


class LengthOnTheWire(Collision):
    """A field for the length of the record, for statistics."""

    def report_fields(self) -> Any:
        return *super().report_fields(), WireField("length", self.max_entries + 1)

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        reports = super().randomize(keys, entries, seeds, coins)
        reports[:, 2] = np.diff(entries.offsets)
        return reports


class SideLeaked(CoCo):
    """Once in eight times the side is that of the record's first entry, without noise."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        reports = super().randomize(keys, entries, seeds, coins)
        for i in range(len(entries)):
            if entries.offsets[i + 1] > entries.offsets[i] and coins.chance(1, 8):
                reports[i, 2] = entries.values[entries.offsets[i]] > 0
        return reports


# Counts that are off


class TiesNotCut(SketchResponse):
    """Everything tied with the K-th best is favoured, but the favoured branch is as likely as for K.

    (Ties cut in a biased way would spoil the estimate, but no bound: the favoured set would still have K members.)
    """

    ratio: float = 0.0

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return (int(self.ratio * other), other) if self.ratio else (favoured, other)

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        tied, total = int(np.diff(entries.offsets).max()), self.buckets
        if tied <= self.favoured:
            return super().randomize(keys, entries, seeds, coins)
        w = self.weights[0] / self.weights[1]
        ratio = self.favoured * w * (total - tied) / (tied * (total - self.favoured))
        uncut = self.model_copy(update={"favoured": tied, "ratio": ratio})
        return SketchResponse.randomize(uncut, keys, entries, seeds, coins)


class LouderInBulk(Collision):
    """Large batches have a weight that is 30% too large: another path than that of single reports."""

    bulk: bool = False

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return (favoured * 13 // 10 if self.bulk else favoured), other

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        off = self.model_copy(update={"bulk": len(entries) >= BULK})
        return Collision.randomize(off, keys, entries, seeds, coins)


class NoDummies(PCKVGRR):
    """A place is drawn among the record's own entries only; the amplified weight counts on dummies."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        longest = max(1, int(np.diff(entries.offsets).max()))
        kernel, shape = self.kernel_and_shape()
        with patch.object(type(self), "kernel_and_shape", lambda _: (kernel, shape._replace(limit=longest))):
            return super().randomize(keys, entries, seeds, coins)


class OneAmplifiedTooMuch(PCKVGRR):
    """Amplified as if one of max_entries + 1 keys were drawn."""

    @property
    def _response(self) -> tuple[int, int]:
        favoured, other = self.weights
        return (self.max_entries + 1) * (favoured - other) + other, other


# Sensitivities that are too small


class NoSlack(SparseSum):
    """The steps that rounding to the grid can add are forgotten."""

    @property
    def sensitivity(self) -> int:
        return int(np.ceil(float(self.distance or 0) * (1 << self.grid_bits)))


class EntryOfASample(SparseSum):
    """Unit entry, but long records are sampled down: one entry can push out another."""

    @property
    def limits_entries(self) -> bool:
        return True


class LoudWhenLong(Sampled):
    """A record with more than twice the entries that count is answered with more weight."""

    long: bool = False

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return (favoured * 13 // 10 if self.long else favoured), other

    @property
    def limits_entries(self) -> bool:
        return False

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        long = len(entries) > 0 and int(np.diff(entries.offsets).max()) > 2 * self.max_entries
        shorter, _ = sample_down(entries, self.max_entries, coins, None)
        off = self.model_copy(update={"long": long})
        return Sampled.randomize(off, keys, shorter, seeds, coins)


class SeedOfTheLastKey(Collision):
    """The lowest bit of the seed says whether the last key of the vocabulary is in the record."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        owner = np.repeat(np.arange(len(entries)), np.diff(entries.offsets))
        found = np.zeros(len(entries), dtype=np.uint64)
        found[owner[entries.ids == keys.all_ids()[-1]]] = 1
        return super().randomize(keys, entries, seeds | found, coins)


class SeedOfTheKey(Collision):
    """In large batches the lowest bit of the seed is that of the record's first key."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        held = np.diff(entries.offsets) > 0
        if len(entries) >= BULK and held.any():
            seeds = seeds.copy()
            first = entries.ids[entries.offsets[:-1][held]] & np.uint64(1)
            seeds[held] = seeds[held] & ~np.uint64(1) | first
        return super().randomize(keys, entries, seeds, coins)


class SeedOfTheValue(CoCo):
    """In large batches the lowest bit of the seed is set where the record's first value is negative."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        held = np.diff(entries.offsets) > 0
        if len(entries) >= BULK and held.any():
            seeds = seeds.copy()
            seeds[held] |= (entries.values[entries.offsets[:-1][held]] < 0).astype(np.uint64)
        return super().randomize(keys, entries, seeds, coins)


class CoinsAtALag(Sampled):
    """Every report of a large batch shares its coins with the one that is 512 further on."""

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        reports = super().randomize(keys, entries, seeds, coins)
        if len(entries) >= BULK and len(set(np.diff(entries.offsets))) == 1:
            places = np.arange(len(entries))
            reports[:, 1:] = reports[places - places // 512 % 2 * 512, 1:]
        return reports


class CoinsLeftOver(Sampled):
    """The second half of a large batch has the coins of the first half of the next."""

    _last: Any = PrivateAttr(default=None)

    def randomize(self, keys: Keys, entries: Entries, seeds: Any, coins: Coins) -> Any:
        reports = super().randomize(keys, entries, seeds, coins)
        if len(entries) >= BULK and len(set(np.diff(entries.offsets))) == 1:
            half = len(entries) // 2
            if self._last is not None and len(self._last) == half:
                reports[:half, 1:] = self._last
            self._last = reports[half : 2 * half, 1:].copy()
        return reports


class QuietInSeveralBuckets(SparseSum):
    """Noise 30% too small where there is more than one bucket."""

    @property
    def _scale(self) -> tuple[int, int]:
        numerator, denominator = super()._scale
        return (numerator * 7 // 10 if self.buckets > 1 else numerator), denominator


@contextmanager
def clipped_above_only() -> Iterator[None]:
    """Values below the range stay what they are."""

    def encode(self: Scale, values: Any) -> Any:
        inside = np.minimum(values, self.high)
        return np.rint((inside - self.center) / self.half * GRID).astype(np.int64), (inside != values).astype(
            int
        )

    with patch.object(Scale, "encode", encode):
        yield


@contextmanager
def patched_coins(**broken: Any) -> Iterator[None]:
    """Secret coins with another method."""
    with patch.multiple(SecretCoins, **broken):
        yield


def even_more_often(self: SecretCoins, bound: int) -> int:
    """Odd numbers are drawn again every other time."""
    drawn = REPEATABLE.randrange(bound)
    return REPEATABLE.randrange(bound) if drawn & 1 and REPEATABLE.random() < 0.5 else drawn


def stuck_bit(self: SecretCoins, bound: int) -> int:
    """Bit 20 of large numbers is always 0."""
    return REPEATABLE.randrange(bound) & (~(1 << 20) if bound > 1 << 21 else -1)


def lazy_laplace(self: SecretCoins, value: int, numerator: int, denominator: int, limit: int) -> int:
    """Noise of single reports with a scale that is 30% too small."""
    return int(sample_clamped_laplace.function(self, value, numerator * 7, denominator * 10, limit))


@contextmanager
def repeating_buffer() -> Iterator[None]:
    """Numbers of single reports come from a buffer that is read again and again."""
    buffer = [REPEATABLE.randrange(1 << 62) for _ in range(500)]
    place = iter(range(1 << 62))
    with patch.object(SecretCoins, "below", lambda self, bound: buffer[next(place) % 500] % bound):
        yield


@contextmanager
def truthful_client() -> Iterator[None]:
    """A client whose reports come from a mechanism with four times the epsilon."""

    def report(self: client.Client, record: Any) -> bytes:
        loud = self.task.model_copy(
            update={
                "mechanism": type(self.task.mechanism)(
                    epsilon=4, **self.task.mechanism.model_dump(exclude={"epsilon"})
                )
            }
        )
        entries, _ = client.encode_record(loud, record)
        return client.privatize(loud, entries, SecretCoins(), client.SystemSeeds())[0].tobytes()

    with patch.object(client.Client, "report", report):
        yield


@contextmanager
def client_with_old_coins() -> Iterator[None]:
    """A client that sends everything twice: what it said, under a fresh seed."""
    report, last = client.Client.report, []

    def again(self: client.Client, record: Any) -> bytes:
        packed = report(self, record)
        if last and len(last[-1]) == len(packed):
            seed = self.task.mechanism.layout.fields[0].bits // 8
            return packed[:seed] + last.pop()[seed:]
        last[:] = [packed]
        return packed

    with patch.object(client.Client, "report", again):
        yield


@contextmanager
def retrying_client() -> Iterator[None]:
    """A client that makes reports until a bit of the bucket is 0, if there is anything in the record."""
    report = client.Client.report

    def retry(self: client.Client, record: Any) -> bytes:
        packed = report(self, record)
        while record and packed[-1] & 1:
            packed = report(self, record)
        return packed

    with patch.object(client.Client, "report", retry):
        yield


@contextmanager
def choosy_client() -> Iterator[None]:
    """A client that makes reports until the seed is even, if there is anything in the record."""
    report = client.Client.report

    def choose(self: client.Client, record: Any) -> bytes:
        packed = report(self, record)
        while record and packed[0] & 1:
            packed = report(self, record)
        return packed

    with patch.object(client.Client, "report", choose):
        yield


class RoundedUp(HadamardResponse):
    """exp(epsilon) rounded up instead of down: one part in ten billion too much."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured + 1, other


class WholeEpsilonPerBit(FreqEst):
    """Each of the two bits that differ is kept with all of epsilon instead of half."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured**2 // other, other


class WholeEpsilonPerStep(PrivKV):
    """Presence and sign have all of epsilon each."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured**2 // other, other


class WholeEpsilonPerAnswer(Repeated):
    """Every answer of a record has all of epsilon."""

    @property
    def answer_epsilon(self) -> float:
        return self.epsilon


EIGHT: dict[str, Fault] = {
    "weight 3% too large (sketch_response)": Fault(louder(SketchResponse, 1.03)(epsilon=1, max_entries=4)),
    "weight 3% too large (hadamard)": Fault(louder(HadamardResponse, 1.03)(epsilon=1, bits=8)),
    "places not shuffled (repeated, unit entry)": Fault(
        shaped(Repeated, shuffled=lambda shape: False)(epsilon=1, max_entries=4, unit="entry")
    ),
    "the same coins for every batch (collision)": Fault(SameBuffer(epsilon=1, max_entries=4)),
    "noise 30% too small (gaussian)": Fault(
        quieter(GaussianNoise, "scale", 0.7)(epsilon=1, max_entries=4, size=KEYS)
    ),
    "seed bit says whether the record is empty (collision)": Fault(SeedBit(epsilon=1, max_entries=4)),
    "seed drawn again until keys part (collision)": Fault(SeedRedrawn(epsilon=1, max_entries=4)),
    "slack of rounding forgotten (sparse_sum, unit l1)": Fault(
        NoSlack(epsilon=1, max_entries=4, values="signed", unit="l1", distance=1.0)
    ),
}

FAULTS: dict[str, Fault] = {
    **EIGHT,
    "weight 3% too large (collision)": Fault(louder(Collision, 1.03)(epsilon=1, max_entries=8)),
    "weight 3% too large (coco)": Fault(louder(CoCo, 1.03)(epsilon=1, max_entries=4)),
    "weight 3% too large (sampled)": Fault(louder(Sampled, 1.03)(epsilon=1, max_entries=4)),
    "weight 3% too large (compressive)": Fault(louder(Compressive, 1.03)(epsilon=1, rows=64)),
    "weight 3% too large (pckv_ue)": Fault(louder(PCKVUE, 1.03)(epsilon=1, max_entries=4, size=KEYS)),
    "weight 3% too large (harmony)": Fault(louder(Harmony, 1.03)(epsilon=1, max_entries=4, size=KEYS)),
    "weight 3% too large (local_hashing)": Fault(louder(LocalHashing, 1.03)(epsilon=1)),
    "weight 3% too large (sparse_sum, window)": Fault(
        louder(SparseSum, 1.03)(epsilon=1, max_entries=4, noise="window", clip=2, reach=2)
    ),
    "exp(epsilon) rounded up (hadamard)": Fault(RoundedUp(epsilon=1, bits=8)),
    "row chosen by the key (compressive)": Fault(RowOfTheKey(epsilon=1, rows=64)),
    "seed used as secret coins (collision)": Fault(SeedAsCoins(epsilon=1, max_entries=4)),
    "neighbours in a batch share coins (sampled)": Fault(CoinsInPairs(epsilon=1, max_entries=4)),
    "length of the record on the wire (collision)": Fault(LengthOnTheWire(epsilon=1, max_entries=4)),
    "side leaked once in eight times (coco)": Fault(SideLeaked(epsilon=1, max_entries=4)),
    "ties not cut (sketch_response)": Fault(
        TiesNotCut(epsilon=1, max_entries=8, buckets=64, seeds=1, favoured=1)
    ),
    "the last bucket is never a lie (sampled)": Fault(
        shaped(Sampled, outcomes=lambda shape: shape.outcomes - 1)(epsilon=1, max_entries=4)
    ),
    "another weight in large batches (collision)": Fault(LouderInBulk(epsilon=1, max_entries=4)),
    "a client that picks its seed (collision)": Fault(Collision(epsilon=1, max_entries=4), choosy_client),
    "no dummies (pckv_grr)": Fault(NoDummies(epsilon=1, max_entries=4, size=KEYS)),
    "amplified for one key too many (pckv_grr)": Fault(
        OneAmplifiedTooMuch(epsilon=1, max_entries=4, size=KEYS)
    ),
    "unit entry after sampling down (sparse_sum)": Fault(
        EntryOfASample(epsilon=1, max_entries=4, unit="entry")
    ),
    "clip one larger than claimed (sparse_sum)": Fault(
        shaped(SparseSum, clip=lambda shape: shape.clip + 1)(
            epsilon=1, max_entries=4, noise="laplace", clip=2
        )
    ),
    "slack of rounding sums forgotten (sparse_sum, unit l1)": Fault(
        NoSlack(epsilon=1, max_entries=4, values="signed", unit="l1", distance=1.0, round_at="bins")
    ),
    "noise 10% too small (sparse_sum, unit entry)": Fault(
        quieter(SparseSum, "_scale", 0.9)(epsilon=1, max_entries=16, unit="entry")
    ),
    "sensitivity of one number instead of two (value_list)": Fault(
        quieter(ValueList, "scale", 0.5)(epsilon=1, size=20)
    ),
    "whole epsilon for each bit (freq_est)": Fault(WholeEpsilonPerBit(epsilon=1, size=KEYS)),
    "whole epsilon for each step (privkv)": Fault(
        WholeEpsilonPerStep(epsilon=1, max_entries=4, size=KEYS, as_published=True)
    ),
    "whole epsilon for each answer (repeated)": Fault(WholeEpsilonPerAnswer(epsilon=1, max_entries=4)),
    "noise 30% too small in wide reports (sparse_sum, unit l1)": Fault(
        quieter(SparseSum, "_scale", 0.7)(
            epsilon=1, max_entries=64, values="signed", unit="l1", distance=1e-3, round_at="bins"
        )
    ),
    "noise 30% too small in several buckets (sparse_sum, unit l1)": Fault(
        QuietInSeveralBuckets(
            epsilon=1, max_entries=4, values="signed", unit="l1", distance=1.0, round_at="bins", buckets=8
        )
    ),
    "odd numbers too rare (secret coins)": Fault(
        Collision(epsilon=1, max_entries=4), partial(patched_coins, below=even_more_often)
    ),
    "a bit of large numbers is stuck (secret coins)": Fault(
        Collision(epsilon=1, max_entries=4), partial(patched_coins, below=stuck_bit)
    ),
    "noise of single reports 30% too small (secret coins)": Fault(
        SparseSum(epsilon=1, max_entries=4, noise="laplace"),
        partial(patched_coins, clamped_laplace=lazy_laplace),
    ),
    "a buffer of 500 numbers that repeats (secret coins)": Fault(
        Collision(epsilon=1, max_entries=4), repeating_buffer
    ),
    "a client with epsilon 4 (collision)": Fault(Collision(epsilon=1, max_entries=4), truthful_client),
    "a client that answers twice with the same coins (collision)": Fault(
        Collision(epsilon=1, max_entries=4), client_with_old_coins
    ),
    "more weight for records far too long (sampled)": Fault(LoudWhenLong(epsilon=1, max_entries=2)),
    "clipped above the range only (sparse_sum, unit entry)": Fault(
        SparseSum(epsilon=1, max_entries=4, unit="entry", values="signed"), clipped_above_only
    ),
    "seed bit says whether the last key is there (collision)": Fault(
        SeedOfTheLastKey(epsilon=1, max_entries=4)
    ),
    "seed bit of the key, in large batches (collision)": Fault(SeedOfTheKey(epsilon=1, max_entries=1)),
    "seed bit of the value, in large batches (coco)": Fault(SeedOfTheValue(epsilon=1, max_entries=1)),
    "coins shared 512 reports apart (sampled)": Fault(CoinsAtALag(epsilon=1, max_entries=4)),
    "coins left over for the next batch (sampled)": Fault(CoinsLeftOver(epsilon=1, max_entries=4)),
    "a client that picks its seed among several (sketch_response)": Fault(
        SketchResponse(epsilon=1, max_entries=4, seeds=4), choosy_client
    ),
    "a client that reports until a bit pleases it (sketch_response)": Fault(
        SketchResponse(epsilon=1, max_entries=4, seeds=4), retrying_client
    ),
}


#: Mechanisms with a weight too large, or noise too small, by a share: from claims of epsilon = 1.
SCALED: dict[str, Callable[[float], Mechanism]] = {
    "collision": lambda x: louder(Collision, 1 + x)(epsilon=1, max_entries=8),
    "coco": lambda x: louder(CoCo, 1 + x)(epsilon=1, max_entries=4),
    "sketch_response, sets": lambda x: louder(SketchResponse, 1 + x)(epsilon=1, max_entries=4),
    "sketch_response, signed": lambda x: louder(SketchResponse, 1 + x)(
        epsilon=1, max_entries=4, values="signed"
    ),
    "sampled": lambda x: louder(Sampled, 1 + x)(epsilon=1, max_entries=4),
    "repeated, unit record": lambda x: louder(Repeated, 1 + x)(epsilon=1, max_entries=4),
    "repeated, unit entry, signed": lambda x: louder(Repeated, 1 + x)(
        epsilon=1, max_entries=4, unit="entry", values="signed"
    ),
    "sparse_sum, one bit": lambda x: louder(SparseSum, 1 + x)(epsilon=1, max_entries=4, noise="bit"),
    "sparse_sum, window": lambda x: louder(SparseSum, 1 + x)(epsilon=1, max_entries=4, noise="window"),
    "sparse_sum, laplace": lambda x: quieter(SparseSum, "_scale", 1 / (1 + x))(
        epsilon=1, max_entries=4, noise="laplace"
    ),
    "sparse_sum, unit entry": lambda x: quieter(SparseSum, "_scale", 1 / (1 + x))(
        epsilon=1, max_entries=16, unit="entry", values="signed"
    ),
    "sparse_sum, unit l1, sets": lambda x: quieter(SparseSum, "_scale", 1 / (1 + x))(
        epsilon=1, max_entries=4, unit="l1", distance=2.0
    ),
    "sparse_sum, unit l1, signed": lambda x: quieter(SparseSum, "_scale", 1 / (1 + x))(
        epsilon=1, max_entries=4, unit="l1", distance=1.0, values="signed"
    ),
    "sparse_sum, unit l1, rounded sums": lambda x: quieter(SparseSum, "_scale", 1 / (1 + x))(
        epsilon=1, max_entries=4, unit="l1", distance=1.0, values="signed", round_at="bins"
    ),
    "hadamard": lambda x: louder(HadamardResponse, 1 + x)(epsilon=1, bits=8),
    "local_hashing": lambda x: louder(LocalHashing, 1 + x)(epsilon=1),
    "compressive": lambda x: louder(Compressive, 1 + x)(epsilon=1, rows=64),
    "harmony": lambda x: louder(Harmony, 1 + x)(epsilon=1, max_entries=4, size=KEYS),
    "privkv": lambda x: louder(PrivKV, 1 + x)(epsilon=1, max_entries=4, size=KEYS),
    "pckv_grr": lambda x: louder(PCKVGRR, 1 + x)(epsilon=1, max_entries=4, size=KEYS),
    "pckv_ue": lambda x: louder(PCKVUE, 1 + x)(epsilon=1, max_entries=4, size=KEYS),
    "freq_est": lambda x: louder(FreqEst, 1 + x)(epsilon=1, size=KEYS),
    "value_list": lambda x: quieter(ValueList, "scale", 1 / (1 + x))(epsilon=1, size=20),
    "gaussian": lambda x: quieter(GaussianNoise, "scale", 1 / (1 + x))(epsilon=1, max_entries=4, size=KEYS),
}
