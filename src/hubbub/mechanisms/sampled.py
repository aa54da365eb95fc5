"""Sampled: one random entry of the record, then a mechanism for one key (Zhou et al., "sampling + 1-sparse").

Device: fill the record up to k = max_entries places with dummies, draw a place, and answer for its entry by
randomized response over hash buckets (local hashing; `shared.one_key` has the three modes). Server: decode as for one
key and multiply by k, so that the variance grows with k^2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

from hubbub.mechanisms.shared.bucket_shares import bucket_telltale
from hubbub.mechanisms.shared.moded import modes_for
from hubbub.mechanisms.shared.one_key import OneKey, true_outcome
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal
from hubbub.model.telltale import Telltale
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import below, randomized_response
from hubbub.primitives.wire import WireField


class _Shape(NamedTuple):
    kind: int
    limit: int
    outcomes: int
    favoured: int
    other: int


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets = records.offsets
    place = offsets[i] + below(tape, shape.limit)
    truth = -1
    if place < offsets[i + 1]:
        truth = true_outcome(tape, place, shape.kind, records)
    reports[i, 0] = randomized_response(tape, truth, shape.outcomes, shape.favoured, shape.other)


class Sampled(OneKey):
    """epsilon-LDP per record, for any hash functions.

    Proof. Fix the seed, the place and the rounding. With N outcomes and T = W + (N - 1) V, every outcome of an entry
    has weight V or W over the total T; a dummy's have T / N, which lies between. So all probabilities of all records
    lie in [V / T, W / T], and mixing over places and roundings keeps them there. (Sampling does not amplify: all
    keys of a record can share a bucket.)

    Unbiased: a held key is drawn with probability 1 / k, and whoever is drawn instead, dummy or not, names the key's
    bucket with probability 1 / t (pairwise independent hashing).
    """

    name: ClassVar[str] = "sampled"
    summary: ClassVar[str] = "one random entry by local hashing (baseline of Zhou et al.)"

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to W + (t - 1) V; see `hubbub.privacy.shuffle`."""
        return 1, self.outcomes, *self.weights

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """The bucket of one key is any of them; a dummy's, too."""
        sides = 2 if self.signed else 1
        return (*super().telltales(keys), *bucket_telltale(self, keys, self.response_weights(), 0.0, sides))

    @property
    def answers(self) -> int:
        return 1

    @property
    def spoken_for(self) -> float:
        return 1 / self.max_entries

    def report_fields(self) -> tuple[WireField, ...]:
        return (WireField("answer", self.outcomes),)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(self.kind, self.max_entries, self.outcomes, *self.weights)

    def miniature(self) -> Self:
        """The same with few buckets."""
        return type(self)(**self.model_dump() | {"buckets": min(self.buckets, 16)})

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Sampled]:
        if goal.unit == "record":
            for mode in modes_for(goal):
                yield cls.serving(goal, mode=mode, count_names=mode == "signed")
