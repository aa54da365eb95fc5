"""The shared body of mechanisms whose report is a public seed and votes for hash buckets.

A subclass says how a record becomes a report (`kernel_and_shape`), what a report votes for (`votes`) and what the votes
mean (`moments`, `variance`). Hashing, wire, state and counting are the same for all of them and live here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from hubbub.mechanisms.shared import loudness, several_keys
from hubbub.mechanisms.shared.tallies import Lot, add_votes, tally_prf, tally_walsh
from hubbub.mechanisms.shared.tallies import Votes as Votes
from hubbub.model.hashing import Family, bucket_bits, cohort_of, hash_entries, seed_rows
from hubbub.model.influence import direction_of
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Mechanism, Quantity
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.kernel import Kernel, use_compiled
from hubbub.primitives.preimages import add_to_codes
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.primitives.walsh import scatter, transform
from hubbub.primitives.wire import Layout, WireField

#: Numbers (reports times buckets) that are worked on at a time.
_CHUNK = 1 << 22
#: Keys that are looked up at a time: few enough to stay in a cache.
_NAMED = 1 << 16
#: Reports per seed from which on it is quicker to add up the votes of a seed first (about where the two meet).
_SHARED = 4
#: Largest table of seeds and buckets for it: 128 MiB per kind of vote.
_MOST_CELLS = 1 << 24


class HashedRecords(NamedTuple):
    """Records as a kernel sees them: record i owns the places offsets[i] : offsets[i + 1].

    Where a report chooses among g seeds, `bucket` and `sign` hold every entry g times, and twice where a key has two
    sides: see `Hashed.hash`.
    """

    offsets: Int64s
    values: Int64s
    bucket: Int64s
    sign: Int64s


class HashedShape(NamedTuple):
    """What most kernels need: the most entries of a record, the number of buckets, and the weights W and V."""

    limit: int
    buckets: int
    favoured: int
    other: int


class Hashed(Mechanism):
    """A mechanism over hash buckets."""

    chosen: ClassVar[frozenset[str]] = frozenset({"buckets"})

    family: Family = Field(default="walsh", description="hash family: walsh (fast) or prf (as published)")
    buckets: int = Field(default=0, ge=0, le=1 << 20, description="hash buckets (0: chosen by variance)")
    users: int = Field(
        default=100_000, ge=1, le=1 << 40, description="expected users, for the width of the seed"
    )
    seed_bits: int = Field(default=0, ge=0, le=64, description="bits of public seed per report (0: chosen)")

    @model_validator(mode="after")
    def _complete(self) -> Hashed:
        if not self.buckets:
            self._fill(buckets=self.best_buckets())
        if self.family == "walsh" and self.buckets & (self.buckets - 1):
            raise ValueError(f"the walsh family needs a power of two of buckets, not {self.buckets}")
        self.check()
        if not self.seed_bits:
            self._fill(seed_bits=self.default_seed_bits())
        return self

    @abstractmethod
    def best_buckets(self) -> int:
        """The number of buckets with the lowest variance."""

    def check(self) -> None:
        """Refuse (ValueError) parameters for which the guarantee or the estimate would not hold."""

    def default_seed_bits(self) -> int:
        """The fewest whole bytes of seed for which users who share a seed add at most 3% to the variance.

        Under one seed, keys that collide in a bucket collide for all its users: that adds sum f^2 / (t * 2^bits) to the
        variance of a key, f the other keys' frequencies; sum f^2 is taken as a quarter of max_entries.
        """
        least = 16 if self.family == "walsh" else 32
        noise = self.variance(self.quantities[0], self.users)
        wanted = math.log2(self.max_entries / 4 / (self.buckets * 0.03 * noise))
        return min(64, max(least, 8 * math.ceil(wanted / 8)))

    # Integer weights of favoured and other outcomes

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon) rounded down."""
        return favoured_weight(self.epsilon), UNIT

    # On the device

    @property
    def shape(self) -> HashedShape:
        """The parameters as kernels see them."""
        return HashedShape(self.max_entries, self.buckets, *self.weights)

    @abstractmethod
    def report_fields(self) -> tuple[WireField, ...]:
        """Fields of a report after the seed."""

    @property
    def layout(self) -> Layout:
        return Layout((WireField("seed", 1 << self.seed_bits), *self.report_fields()))

    @abstractmethod
    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        """The kernel (tape, start, count, `HashedRecords`, shape, [n, fields after the seed]), and its parameters."""

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        reports = self.respond(keys, entries, seeds, coins, len(self.report_fields()))
        return np.concatenate([seeds[:, None], reports.astype(np.uint64)], axis=1)

    def respond(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins, columns: int) -> Int64s:
        """What the kernel says about records that are hashed under their seeds."""
        records = HashedRecords(entries.offsets, entries.values, *self.hash(keys, entries, seeds))
        reports = np.zeros((len(entries), columns), dtype=np.int64)
        kernel, shape = self.kernel_and_shape()
        run_kernel(kernel, coins, len(entries), records, shape, reports)
        return reports

    def hash(self, keys: Keys, entries: Entries, seeds: UInt64s) -> tuple[Int64s, Int64s]:
        """Bucket and sign of every entry (both sides of it, where keys have two) under each seed of its record.

        Order: records, their seeds, their entries, their sides.
        """
        ids, offsets, repeats = entries.ids, entries.offsets, self.seeds_per_report
        if repeats > 1:
            lengths = np.repeat(np.diff(offsets), repeats)
            starts = np.concatenate([[0], np.cumsum(lengths)])
            within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
            ids = ids[np.repeat(np.repeat(offsets[:-1], repeats), lengths) + within]
            offsets = starts.astype(np.int64)
        if self.sided:
            ids, offsets = np.stack([ids, keys.other_side(ids)], axis=1).reshape(-1), 2 * offsets
        return hash_entries(self.family, keys, seeds, ids, offsets, self.buckets)

    # On the server

    @property
    @abstractmethod
    def channels(self) -> int:
        """How many kinds of votes a report casts."""

    @abstractmethod
    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        """The votes of reports [n, fields after the seed], one per channel."""

    def keeps_reports(self, keys: Keys) -> bool:
        return self.family == "prf" or keys.kind == "wide"

    def totals_shape(self, keys: Keys) -> tuple[int, ...]:
        return self.channels, keys.cohorts, 1 << keys.bits

    def empty(self, keys: Keys) -> State:
        state = super().empty(keys)
        if not self.keeps_reports(keys) and self._sums_codes(keys):
            state.per_code = self.buckets
        return state

    def _sums_codes(self, keys: Keys) -> bool:
        """Whether a report names fewer codes than coefficients: 2^(m-a) of them, against 2^a."""
        one_bucket = all(votes.values.shape[1] == 1 for votes in self.no_votes)
        return one_bucket and keys.bits < 2 * bucket_bits(self.buckets)

    @property
    def no_votes(self) -> tuple[Votes, ...]:
        """The votes of no reports, for their kinds."""
        return self.votes_of(np.zeros((0, len(self.layout.fields)), np.uint64))

    def report_steps(self, keys: Keys) -> int:
        """The shorter of a report's lists of codes and of coefficients; or every asked key, where reports are kept."""
        if self.keeps_reports(keys):
            return self.channels * (keys.places if keys.kind == "closed" else 1)
        a = bucket_bits(self.buckets)
        return self.channels << (max(0, keys.bits - a) if self._sums_codes(keys) else a)

    def absorb(self, state: State, keys: Keys, reports: UInt64s) -> None:
        if self.keeps_reports(keys):
            state.reports = np.concatenate([state.reports, self.layout.pack(reports)])
            for lot in self._lots(len(reports)):
                self._cast(state, reports[lot])
        else:
            before = state.totals[0, :, 0].copy()
            # Where codes are summed up, a report is its rows and the few codes it names.
            step = max(1, _CHUNK // (max(self.report_steps(keys), 64) if state.per_code else self.buckets))
            lots = (self._cast(state, reports[at : at + step]) for at in range(0, len(reports), step))
            shared = self._quicker_by_seed(state, keys, len(reports))
            if shared:
                self._add_by_seed(state, keys, lots)
            else:
                for seeds, votes in lots:
                    add = self._add_codes if state.per_code else self._scatter
                    add(state.totals, keys, seeds, votes)
            if state.per_code and keys.tree is not None:
                self._count_maps(state, keys, reports[:, 0], before)
        state.count += len(reports)

    def _quicker_by_seed(self, state: State, keys: Keys, reports: int) -> bool:
        """Whether it is quicker to add up the votes of a seed first, and whether there is room for it.

        Where codes are summed up, that takes the coefficients of all seeds and a transform of all codes.
        """
        cells = self.buckets << self.seed_bits
        if cells > _MOST_CELLS or reports < _SHARED << self.seed_bits:
            return False
        if state.per_code:
            return 2 * cells + (keys.bits << keys.bits) // 8 <= reports * self.report_steps(keys)
        return reports >= int(state.totals[0].size)

    def _cast(self, state: State, reports: UInt64s) -> Lot:
        """Seeds and votes of reports; the squares of the votes are noted in the state."""
        votes = self.votes_of(reports)
        state.squares += sum(int((each.values**2).sum()) for each in votes)
        return np.ascontiguousarray(reports[:, 0]), votes

    def _add_by_seed(self, state: State, keys: Keys, lots: Iterable[Lot]) -> None:
        """Add coefficients seed by seed; where codes are summed up, by way of one transform."""
        totals = np.zeros_like(state.totals) if state.per_code else state.totals
        for seeds, votes in self._by_seed(lots, max(1, _CHUNK // self.buckets)):
            self._scatter(totals, keys, seeds, votes)
        if state.per_code:
            for sums, coefficients in zip(state.totals, totals, strict=True):
                for cohort in range(keys.cohorts):
                    sums[cohort] += transform(coefficients[cohort]) // self.buckets

    def _by_seed(self, lots: Iterable[Lot], step: int) -> Iterator[Lot]:
        """The same votes with those of one seed added up: one scatter per seed instead of one per report."""
        sums = np.zeros((self.channels, 1 << self.seed_bits, self.buckets), dtype=np.int64)
        signed = [False] * self.channels
        for seeds, votes in lots:
            for channel, vote in enumerate(votes):
                signed[channel] = vote.signed
                if use_compiled(len(seeds)):
                    values = np.ascontiguousarray(vote.values)
                    add_votes.compiled()(sums[channel], seeds.astype(np.int64), vote.bucket, values)
                elif vote.values.shape[1] == self.buckets > 1:
                    np.add.at(sums[channel], seeds, vote.values)
                else:
                    np.add.at(sums[channel], (seeds, np.maximum(vote.bucket, 0)), vote.values[:, 0])
        for start in range(0, sums.shape[1], step):
            seeds = np.arange(start, min(start + step, sums.shape[1]), dtype=np.uint64)
            everywhere = np.full(len(seeds), -1, dtype=np.int64)
            parts = zip(signed, sums[:, start : start + step], strict=True)
            yield seeds, tuple(Votes(side, everywhere, part) for side, part in parts)

    def votes_of(self, reports: UInt64s) -> tuple[Votes, ...]:
        return self.votes(reports[:, 1:].astype(np.int64))

    def _lots(self, count: int) -> Iterator[slice]:
        step = max(1, _CHUNK // max(4, *(votes.values.shape[1] for votes in self.no_votes)))
        return (slice(at, at + step) for at in range(0, count, step))

    def _rows(self, keys: Keys, seeds: UInt64s) -> tuple[Int64s, Int64s]:
        """Rows of seeds, and where the codes of their cohorts begin."""
        rows = seed_rows(keys, seeds, bucket_bits(self.buckets)).astype(np.int64)
        return rows, cohort_of(keys, seeds).astype(np.int64) << keys.bits

    def _scatter(self, totals: Int64s, keys: Keys, seeds: UInt64s, votes: tuple[Votes, ...]) -> None:
        """Add votes to Walsh coefficients."""
        rows, shift = self._rows(keys, seeds)
        for channel, vote in enumerate(votes):
            base = shift | rows[:, 0] if vote.signed else shift
            scatter(totals[channel].reshape(-1), base, rows[:, 1:], vote.bucket, vote.values)

    def _add_codes(self, totals: Int64s, keys: Keys, seeds: UInt64s, votes: tuple[Votes, ...]) -> None:
        """Add votes to the codes that they name."""
        rows, shift = self._rows(keys, seeds)
        for channel, vote in enumerate(votes):
            signs = rows[:, 0] if vote.signed else np.zeros_like(shift)
            named = rows[:, 1:], vote.bucket, vote.values
            add_to_codes(totals[channel].reshape(-1), shift, signs, *named, keys.bits)

    def tally(self, state: State, keys: Keys, ids: UInt64s) -> Int64s:
        """The sum of all votes for each key, per channel: exact integers [channels, keys]."""
        result = np.zeros((self.channels, len(ids)), dtype=np.int64)
        if self.keeps_reports(keys):
            self._tally_reports(state, keys, ids, result)
            return result
        signed = [votes.signed for votes in self.no_votes]
        for cohort in keys.asked:
            for channel in range(self.channels):
                sums = self.code_sums(state, cohort, channel)
                for start in range(0, len(ids), _NAMED):
                    part = slice(start, start + _NAMED)
                    found = sums[keys.codes(ids[part], cohort).astype(np.int64)]
                    result[channel, part] += found * keys.signs(ids[part]) if signed[channel] else found
        return result

    def code_sums(self, state: State, cohort: int, channel: int = 0) -> Int64s:
        """The sum of all votes for every code of a code map, before the keys' signs."""
        totals = state.totals[channel, cohort]
        return totals if state.per_code else transform(totals) // self.buckets

    def heard(self, state: State, keys: Keys) -> int:
        return state.count if keys.tree is None else sum(self.heard_in(state, each) for each in keys.asked)

    def heard_in(self, state: State, cohort: int) -> int:
        """How many reports (of mechanisms that vote 1 for one bucket) were made under a code map of a tree.

        Where codes are summed up, the place of code 0, which is nobody's, counts them. Elsewhere that place has the
        coefficient of the empty subset, which is 1 for every report, and those of other subsets whose rows cancel; at
        most a share buckets / 2^bits of all reports has one, which is at most 2^(-bits/2).
        """
        return int(state.totals[0, cohort, 0])

    def _count_maps(self, state: State, keys: Keys, seeds: UInt64s, before: Int64s) -> None:
        """Have the places of code 0 count reports."""
        counts = np.bincount(cohort_of(keys, seeds).astype(np.int64), minlength=keys.cohorts)
        state.totals[0, :, 0] = before + counts

    def _tally_reports(self, state: State, keys: Keys, ids: UInt64s, result: Int64s) -> None:
        """Hash every asked key for every report: n * keys work, as published."""
        for lot in self._lots(state.count):
            reports = self.layout.unpack(state.reports[lot])
            votes = self.votes_of(reports)
            if use_compiled(state.count):
                seeds = np.ascontiguousarray(reports[:, 0])
                for channel, vote in enumerate(votes):
                    parts = (vote.signed, vote.bucket, np.ascontiguousarray(vote.values), result[channel])
                    if self.family == "prf":
                        salt = np.uint64(keys.salt_words[0])
                        tally_prf.compiled()(salt, seeds, ids, np.uint64(self.buckets), *parts)
                    else:
                        rows = seed_rows(keys, seeds, bucket_bits(self.buckets))
                        codes = np.stack([keys.codes(ids, cohort) for cohort in range(keys.cohorts)])
                        cohorts = cohort_of(keys, seeds).astype(np.int64)
                        tally_walsh.compiled()(rows, cohorts, codes, keys.signs(ids), *parts)
                continue
            for place, key in enumerate(ids):
                for channel, cast in enumerate(self.votes_for(keys, reports, votes, key)):
                    result[channel, place] += int(cast.sum())

    def votes_for(
        self, keys: Keys, reports: UInt64s, votes: tuple[Votes, ...], key: np.uint64
    ) -> Iterator[Int64s]:
        """What each report votes for one key, channel by channel."""
        seeds = np.ascontiguousarray(reports[:, 0])
        same, ones = np.full(len(seeds), key, dtype=np.uint64), np.arange(len(seeds) + 1, dtype=np.int64)
        bucket, sign = hash_entries(self.family, keys, seeds, same, ones, self.buckets)
        for vote in votes:
            yield vote.of(bucket) * sign if vote.signed else vote.of(bucket)

    # What a forger can make of it

    @property
    def names_evenly(self) -> bool:
        """Whether each seed and bucket is reported with the same probability, whatever the record is."""
        return False

    def contributions(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
        return loudness.hashed_contributions(self, keys, reports, ids)

    def louder(self, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
        return loudness.loudest_fields(self, keys, reports, ids, weights)

    def effects(self) -> Floats:
        return loudness.hashed_effects(self)

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        way = direction_of(self, quantity, 0.0, 1.0)
        return several_keys.most_at_once(several_keys.landings(self, keys, way, chosen=True))

    def loudest_together(self, keys: Keys, way: Floats, count: int, chosen: bool) -> float:
        return several_keys.best_together(several_keys.landings(self, keys, way, chosen), count)

    def best_fields(self, wanted: Floats, fields: Int64s) -> Int64s:
        """Fields after the seed with the largest sum of wanted [n, channels, buckets] times votes."""
        return loudness.best_of_all(self, wanted, fields)

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        votes = self.votes_of(reports)
        return sum(
            (next(self.votes_for(keys, reports, votes, key)) for key in ids),
            np.zeros(len(reports), dtype=np.int64),
        )
