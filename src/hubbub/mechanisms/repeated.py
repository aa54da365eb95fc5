"""Repeated: one answer for every entry (Zhou et al., "k-fold repetition of 1-sparse").

Device: fill the record up to k = max_entries places with dummies and answer for every place by randomized response
over hash buckets, as if k people had one entry each (`shared.one_key` has the three modes). Unit entry: each answer has
the whole epsilon, and the places are shuffled. Unit record: each has epsilon / k.

The answers of a report share one seed. That costs nothing: two answers agree on a key's bucket no more often than
if they had a hash function each, because distinct keys are hashed independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.moded import modes_for
from hubbub.mechanisms.shared.one_key import OneKey, true_outcome
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal
from hubbub.model.telltale import Telltale
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.batch import per_record_in
from hubbub.primitives.kernel import Kernel, kernel
from hubbub.primitives.samplers import below, randomized_response
from hubbub.primitives.wire import WireField


class _Shape(NamedTuple):
    kind: int
    limit: int
    shuffled: bool
    outcomes: int
    favoured: int
    other: int


@kernel
def _room(shape: Any) -> Any:
    return np.zeros(shape.limit, dtype=np.int64)


@per_record_in(_room)
def _respond(tape: Any, i: int, records: Any, shape: Any, place: Any, reports: Any) -> None:
    offsets = records.offsets
    length = offsets[i + 1] - offsets[i]
    for j in range(shape.limit):
        place[j] = j
    for j in range(shape.limit):
        if shape.shuffled:
            swap = j + below(tape, shape.limit - j)
            place[j], place[swap] = place[swap], place[j]
        truth = -1
        if place[j] < length:
            truth = true_outcome(tape, offsets[i] + place[j], shape.kind, records)
        reports[i, j] = randomized_response(tape, truth, shape.outcomes, shape.favoured, shape.other)


def _agreeing(reports: UInt64s) -> Int64s:
    """How many answers of each report are its most frequent one."""
    answers = np.sort(reports[:, 1:], axis=1)
    run, longest = np.ones(len(answers), dtype=np.int64), np.ones(len(answers), dtype=np.int64)
    for column in range(1, answers.shape[1]):
        run = np.where(answers[:, column] == answers[:, column - 1], run + 1, 1)
        longest = np.maximum(longest, run)
    return longest


class Repeated(OneKey):
    """epsilon-DP per entry, or epsilon-LDP per record, for any hash functions.

    Proof, record: every answer's weights lie in [V, W] and have the same total whatever its entry, so an answer's
    probabilities differ by at most W / V <= exp(epsilon / k) between records, and k answers' by at most exp(epsilon).

    Proof, entry: let two records differ at one key. Their entries can be put into places so that both have the law
    of a shuffle and all places but one hold the same: where the key is in one record only, its place holds a dummy in
    the other. That remains so when long records are first sampled down: a uniform k-subset of m + 1 entries is a
    uniform k-subset of m of them in which, with probability k / (m + 1), a random member is replaced by the new one.
    So one answer differs, by at most W / V <= exp(epsilon), and mixing over shuffles, samples and rounding keeps that.

    Unbiased: a held key has an answer of its own, all others name its bucket with probability 1 / t.
    """

    name: ClassVar[str] = "repeated"
    summary: ClassVar[str] = "every entry answers for itself by local hashing (baseline of Zhou et al.)"

    max_entries: int = Field(ge=1, le=4096, description="entries of a record that count")
    unit: Literal["record", "entry"] = Field(
        default="record", description="what is protected: record or entry"
    )

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit=self.unit, model="local")

    @property
    def answer_epsilon(self) -> float:
        """epsilon, or epsilon / k rounded down."""
        if self.unit == "entry" or self.max_entries == 1:
            return self.epsilon
        return math.nextafter(self.epsilon / self.max_entries, 0.0)

    @property
    def answers(self) -> int:
        return self.max_entries

    @property
    def spoken_for(self) -> float:
        return 1.0

    def report_fields(self) -> tuple[WireField, ...]:
        return tuple(WireField(f"answer {place}", self.outcomes) for place in range(self.max_entries))

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(
            self.kind, self.max_entries, self.unit == "entry", self.outcomes, *self.weights
        )

    def miniature(self) -> Self:
        """The same with two buckets."""
        return type(self)(**self.model_dump() | {"buckets": min(self.buckets, 2)})

    @property
    def _likeliest_answer(self) -> float:
        favoured, other = self.weights
        return favoured / (favoured + (self.outcomes - 1) * other)

    def likeliest(self) -> float:
        return float(self._likeliest_answer**self.answers / 2**self.seed_bits)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """The seed; and how many answers of a report agree: m given ones do with probability p^(m - 1) at most."""
        p, k = self._likeliest_answer, self.answers
        most = np.array([0.0] + [min(1.0, math.comb(k, m) * p ** (m - 1)) for m in range(1, k + 1)])
        agreeing = Telltale("answers", "equal answers in a report", k + 1, _agreeing, np.zeros(k + 1), most)
        return (*super().telltales(keys), *((agreeing,) if k > 1 else ()))

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Repeated]:
        if goal.unit != "l1" and goal.max_entries <= 4096:
            for mode in modes_for(goal):
                yield cls.serving(goal, mode=mode, count_names=mode == "signed", unit=goal.unit)
