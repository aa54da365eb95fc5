"""The shared body of mechanisms that answer for one entry at a time, by randomized response over hash buckets.

An *answer* speaks for one entry of the record, or for a dummy outside the universe. Its outcomes are

- sets: the bucket of the key;
- events: the bucket of key+ or key-, by stochastic rounding of the value: frequencies and means;
- signed: the bucket of the key and a side, the rounded value times the key's random sign: means only.

The true outcome has weight W, all others V; a dummy's answer is uniform. `hubbub.mechanisms.sampled` gives one answer
for a random place of the record, `hubbub.mechanisms.repeated` one for every place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Votes
from hubbub.mechanisms.shared.items import ItemRates
from hubbub.mechanisms.shared.moded import Moded
from hubbub.model.count_laws import Counts
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.kernel import kernel
from hubbub.primitives.samplers import UNIT, favoured_weight, random_sign

#: Numbers that stand for the modes in kernels.
_KINDS = {"sets": 0, "events": 1, "signed": 2}


@kernel
def true_outcome(tape: Any, entry: int, kind: int, records: Any) -> Any:
    """The outcome that an entry favours; kind as in `OneKey.kind`."""
    if kind == 0:
        return records.bucket[entry]
    up = random_sign(tape, records.values[entry], GRID)
    if kind == 1:
        return records.bucket[2 * entry] if up > 0 else records.bucket[2 * entry + 1]
    return 2 * records.bucket[entry] + (1 + up * records.sign[entry]) // 2


class OneKey(Moded):
    """Parameters, estimates and variances; a subclass says how many answers there are and whose."""

    # Parameters

    @property
    @abstractmethod
    def answers(self) -> int:
        """Answers in a report."""

    @property
    @abstractmethod
    def spoken_for(self) -> float:
        """Probability that a given one of the answers to be counted speaks for a given entry at all."""

    @property
    def answer_epsilon(self) -> float:
        """What one answer may reveal."""
        return self.epsilon

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V) of one answer: W / V is exp(answer_epsilon) rounded down."""
        return favoured_weight(self.answer_epsilon), UNIT

    def best_buckets(self) -> int:
        """Lowest variance of an absent key: about w + 1 buckets, or (w - 1) / 2 with sides, w = W / V."""
        self.choose_mode()
        w, signed = self.weights[0] / self.weights[1], self.signed
        middle = (w - 1) / 2 if signed else w + 1
        tries = [1 << a for a in range(21)] if self.family == "walsh" else [int(middle), int(middle) + 1]
        least = 1 if signed else 2
        fitting = [min(max(t, least), 1 << 20) for t in tries]

        def loss(t: int) -> float:
            return (w + 2 * t - 1) ** 2 / t if signed else (w + t - 1) ** 2 / (t - 1)

        return min(fitting, key=loss)

    def check(self) -> None:
        super().check()
        if not self.signed and self.buckets < 2:
            raise ValueError("needs at least 2 buckets")
        if self.weights[0] == self.weights[1]:
            raise ValueError("epsilon is too small for so many entries")
        if self.weights[0] + self.outcomes * self.weights[1] >= 1 << 62:
            raise ValueError("epsilon and buckets are together too large for exact 64-bit weights")

    @property
    def outcomes(self) -> int:
        """What one answer can be."""
        return self.buckets * (2 if self.signed else 1)

    @property
    def kind(self) -> int:
        """The mode as a number, for kernels."""
        return _KINDS[self.mode]

    def votes(self, reports: Int64s) -> tuple[Votes, ...]:
        signed = self.signed
        bucket, values = (reports // 2, 2 * (reports % 2) - 1) if signed else (reports, np.ones_like(reports))
        if self.answers == 1:
            return self.both_votes(bucket[:, 0], values) if signed else (Votes(False, bucket[:, 0], values),)
        kinds = [(signed, values), (False, np.abs(values))][: self.channels]
        return tuple(Votes(kind, *self._added_up(bucket, cast)) for kind, cast in kinds)

    def _added_up(self, bucket: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
        """The votes of all answers of a report, bucket by bucket."""
        sums = np.zeros((len(values), self.buckets), dtype=np.int64)
        for column in range(self.answers):
            sums[np.arange(len(values)), bucket[:, column]] += values[:, column]
        return np.full(len(values), -1, dtype=np.int64), sums

    def best_fields(self, wanted: Floats, fields: Int64s) -> Int64s:
        """Answers add up, so every one of them is the best that one can be."""
        every = np.arange(self.outcomes)
        bucket, side = (every // 2, 2 * (every % 2) - 1) if self.signed else (every, np.ones_like(every))
        total = wanted[:, 0, bucket] * side
        if self.channels == 2:
            total += wanted[:, 1, bucket]
        best = total.max(axis=1)
        stays = np.take_along_axis(total, fields, axis=1) >= best[:, None]
        return np.where(stays, fields, np.argmax(total, axis=1)[:, None])

    # Estimates: of n records with c answers each as if n * c people had given one answer each

    @property
    def _step(self) -> float:
        """(W - V) / T times the chance of being spoken for: what holding a key adds to its outcome."""
        favoured, other = self.weights
        return self.spoken_for * (favoured - other) / (favoured + (self.outcomes - 1) * other)

    @property
    def _rates(self) -> ItemRates:
        absent = 1 / self.buckets
        return ItemRates(absent + self._step * (1 - absent), absent, self.sided)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        c = self.answers
        people = replace(state, count=c * state.count)
        if self.signed:
            n = max(people.count, 1)
            absent = 1 / self.buckets
            excess = self._step * (1 - absent)
            counts = self.signed_counts(self.tally(state, keys, ids), n, self._step, absent, excess)
            variance = self._signed_variance(n, counts.told, np.minimum(counts.square * c, counts.told))
            found = Moments(None, None, counts.mean, variance, counts=counts)
        else:
            found = self._rates.moments(self, people, keys, ids)

        def scaled(column: Floats | None, factor: int) -> Floats | None:
            return None if column is None else column * factor

        return Moments(
            scaled(found.frequency, c),
            scaled(found.frequency_variance, c**2),
            scaled(found.mean, c),
            scaled(found.mean_variance, c**2),
            scaled(found.covariance, c**2),
            self._per_person(found.counts),
        )

    def _per_person(self, counts: Counts | None) -> Counts | None:
        """The same counts, their laws told by shares of people instead of shares of answers."""
        if counts is None:
            return None
        (alone, held, _), (signed_alone, signed_held), c = counts.noise, counts.signed_noise, self.answers
        return replace(
            counts,
            gain=counts.gain / c,
            noise=(alone, held / c, 0.0),
            signed_gain=counts.signed_gain / c,
            signed_noise=(signed_alone, signed_held / c),
            answers=c,
        )

    def _signed_variance(self, people: int, frequency: Any, square: Any) -> Any:
        """The key's bucket is named with probability 1/t, or more by step * (1 - 1/t) by who speaks for it."""
        seen = 1 / self.buckets + self._step * (1 - 1 / self.buckets) * frequency
        return (seen - self._step**2 * square) / (people * self._step**2)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        c = self.answers
        frequency, mean, square = held.frequency / c, held.mean / c, held.square / c
        if self.signed:
            return float(c**2 * self._signed_variance(c * users, frequency, square))
        return float(c**2 * self._rates.variance(quantity, c * users, frequency, mean, square))
