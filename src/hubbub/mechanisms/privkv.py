"""PrivKV: is a random key there, and with which sign? (Ye, Hu, Meng, Zheng 2019), a baseline of Wang et al.

Device: draw one of d = size keys, whether the record has it or not. The truth is one of three: +, - (its value,
rounded at random), or absent. Report the key and a randomized answer.

- As Wang et al. describe it: randomized response over the three, with all of epsilon.
- `as_published`, the Local Perturbation Protocol: keep or flip the presence with epsilon / 2; if it says present, send
  the sign, kept or flipped with epsilon / 2 (a random one if there is none). Its worst case, present and + against
  absent, loses only epsilon / 2 + ln(2 / (1 + e^(-epsilon / 2))): some of the budget is wasted.

The server looks at the reports about each key, however many there are, and corrects presence and sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.listed import KeyValue, SideRates, best_cells, entry_of
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, drawn_telltale, outcome_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel, kernel
from hubbub.primitives.samplers import UNIT, below, favoured_weight, random_sign, randomized_response
from hubbub.primitives.wire import WireField

#: Asked users per key from which on the mean of one over their number is told by its first terms.
_MANY = 50
#: As many answers the frequency of all keys together counts for in the variance of one.
_PRIOR = 4


@kernel
def _asked(tape: Any, i: int, records: Any, size: int) -> Any:
    """A random key; whether record i has it; and its value there."""
    key = below(tape, size)
    entry = entry_of(records.places, records.offsets[i], records.offsets[i + 1], key)
    return key, entry >= 0, records.values[entry] if entry >= 0 else 0


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    key, held, value = _asked(tape, i, records, shape.size)
    truth = (1 + random_sign(tape, value, GRID)) // 2 if held else 2
    reports[i, 0] = key
    reports[i, 1] = randomized_response(tape, truth, 3, shape.favoured, shape.other)


@per_record
def _respond_in_two_steps(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    key, held, value = _asked(tape, i, records, shape.size)
    reports[i, 0] = key
    reports[i, 1] = 2
    if randomized_response(tape, 1 if held else 0, 2, shape.favoured, shape.other):
        side = (1 + random_sign(tape, value, GRID)) // 2
        reports[i, 1] = randomized_response(tape, side, 2, shape.favoured, shape.other)


class PrivKV(KeyValue):
    """epsilon-LDP per record.

    Proof. The key is drawn without looking at the record; fix it, and the rounding. Three-way: every answer has weight
    W or V over W + 2 V. In two steps: presence and sign are randomized responses with W / V <= exp(epsilon / 2) each;
    both depend on the record, so the answers' probabilities differ by at most (W / V)^2 <= exp(epsilon).

    Unbiased: those asked about a key are a random sample of the users. A key that nobody was asked about has the value
    0, and nothing is known about it; that this happens, with a known probability P, is made up for by dividing the
    others' estimates by 1 - P.
    """

    name: ClassVar[str] = "privkv"
    summary: ClassVar[str] = "presence and sign of one random key of a closed vocabulary (Ye et al.)"

    as_published: bool = Field(default=False, description="presence and sign in two steps of epsilon / 2")

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon) rounded down, or exp(epsilon / 2) for each of two steps."""
        return favoured_weight(self.epsilon / 2 if self.as_published else self.epsilon), UNIT

    def response_weights(self) -> tuple[int, int, int, int] | None:
        """(s, t, W, V): three answers per key, of weights in [V, W] that sum to W + 2 V; two steps are not alike."""
        return None if self.as_published else (self.size, 3 * self.size, *self.weights)

    @property
    def limits_entries(self) -> bool:
        return False

    def report_fields(self) -> tuple[WireField, ...]:
        return WireField("key", self.size), WireField("answer", 3)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """The key is drawn blindly; its three answers have bounds."""
        law, three = np.full(self.size, 1 / self.size), np.uint64(3)
        drawn = drawn_telltale("keys", "drawn keys", law, 1, lambda state: state.totals.sum(axis=1))
        answers = outcome_telltales(
            self.response_weights(),
            "answers about keys",
            lambda reports: three * reports[:, 1] + reports[:, 2],
            lambda state: state.totals.reshape(-1),
        )
        return (drawn, *answers)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond_in_two_steps if self.as_published else _respond, self.shape

    @property
    def columns(self) -> int:
        return 3

    def counts(self, reports: Int64s) -> Int64s:
        return self.histogram(3 * reports[:, 0] + reports[:, 1])

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """One key, and the answer that is wanted most. That it is asked about at all dilutes what others say."""
        cells = best_cells(places, wanted - wanted.min(initial=0.0), 3, len(fields))
        return np.where(cells[:, None] < 0, fields, np.stack([cells // 3, cells % 3], axis=1))

    def effects(self) -> Floats:
        """Of a report about the key, among those about it; the others add nothing."""
        return np.concatenate([super().effects() / self.size, np.zeros((1, 2))])

    @property
    def heard_share(self) -> float:
        return 1 / self.size

    def heard_about(self, state: State, keys: Keys, ids: UInt64s, more: int = 0) -> Floats:
        asked = state.totals[self.places(keys, ids)].sum(axis=1) + more
        return np.asarray(asked * (1 - self._nobody(state.count + more)))

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        return (np.isin(reports[:, 1], ids) & (reports[:, 2] < 2)).astype(np.int64)

    @property
    def rates(self) -> SideRates:
        """Given that a report is about the key."""
        favoured, other = self.weights
        if not self.as_published:
            total = favoured + 2 * other
            return SideRates(favoured / total, other / total, other / total)
        kept = favoured / (favoured + other)
        return SideRates(kept**2, kept * (1 - kept), (1 - kept) / 2)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        minus, plus, neither = state.totals[self.places(keys, ids)].T
        asked = minus + plus + neither
        found = self.rates.moments(plus, minus, asked, 1 - 1 / self.size)
        known = 1 - self._nobody(state.count)
        assert found.counts is not None
        share = self._usual_share(state, asked, found.counts.frequency)
        middle = np.clip(found.counts.mean, -share, share)
        held = share, middle, middle**2 / np.maximum(share, 1e-12), 1 - 1 / self.size

        def unbiased(column: Floats | None) -> Floats:
            assert column is not None
            return np.where(asked > 0, column / known, 0.0)

        def spread(column: Floats) -> Floats:
            return np.where(asked > 0, column / known**2, np.inf)

        return Moments(
            unbiased(found.frequency),
            spread(self.rates.variance("frequency", np.maximum(asked, 1), *held)),
            unbiased(found.mean),
            spread(self.rates.variance("mean", np.maximum(asked, 1), *held)),
            unbiased(found.covariance) / known,
            found.counts,
        )

    def _usual_share(self, state: State, asked: Int64s, frequency: Floats) -> Floats:
        """Frequencies for use in variances: a few answers say little about a key's own, so all keys' count, too."""
        minus, plus, neither = state.totals.sum(axis=0)
        all_keys = self.rates.moments(plus, minus, max(int(minus + plus + neither), 1)).frequency
        assert all_keys is not None
        return np.clip((asked * frequency + _PRIOR * all_keys) / (asked + _PRIOR), 0, 1)

    def _nobody(self, users: int) -> float:
        """Probability that nobody is asked about a key."""
        return math.exp(users * math.log1p(-1 / self.size)) if self.size > 1 else 0.0

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """Averaged over how many are asked, m: what one answer varies by, times the mean of 1 / m."""
        missed, nobody = 1 - 1 / self.size, self._nobody(users)
        each = self.rates.variance(quantity, 1, held.frequency, held.mean, held.square, missed)
        truth = held.frequency if quantity == "frequency" else held.mean
        return float(each * self._inverse_asked(users) + truth**2 * nobody * (1 - nobody)) / (1 - nobody) ** 2

    def _inverse_asked(self, users: int) -> float:
        """The mean of 1 / m, m binomial and 0 counting nothing."""
        asked, missed = users / self.size, 1 - 1 / self.size
        if asked > _MANY or self.size == 1:
            return (1 + missed / asked + missed * (3 * missed - 1 + 2 / self.size) / asked**2) / asked
        law, total = self._nobody(users), 0.0
        for m in range(1, min(users, 4 * _MANY) + 1):
            law *= (users - m + 1) / (m * (self.size - 1))
            total += law / m
        return total

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[PrivKV]:
        if goal.unit == "record" and goal.values == "signed" and goal.keys <= 1 << 20:
            for published in (False, True):
                yield cls.serving(goal, as_published=published)
