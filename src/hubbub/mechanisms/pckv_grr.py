"""PCKV-GRR: one entry of the record by randomized response over all keys and sides (Gu et al. 2020).

Device: fill the record up to k = max_entries places with k different dummy keys, draw a place, round its value to + or
- (a dummy's at random), and report (key, side) by randomized response over all 2 (d + k) of them, d = size.

`amplified` (PCKV-AGRR in Wang et al.): since a report speaks for one of k different keys, randomized response may use
epsilon' = ln(k (e^eps - 1) + 1). In integers: W' = k (W - V) + V.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from hubbub.mechanisms.shared.listed import KeyValue, ListedShape, SideRates, best_cells
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, outcome_bounds
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import below, random_sign, randomized_response
from hubbub.primitives.wire import WireField


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, places, values = records
    place = below(tape, shape.limit)
    key, value = shape.size + place, 0
    if offsets[i] + place < offsets[i + 1]:
        key, value = places[offsets[i] + place], values[offsets[i] + place]
    truth = 2 * key + (1 + random_sign(tape, value, GRID)) // 2
    reports[i, 0] = randomized_response(
        tape, truth, 2 * (shape.size + shape.limit), shape.favoured, shape.other
    )


class PCKVGRR(KeyValue):
    """epsilon-LDP per record.

    Proof. Let T = W' + (2 (d + k) - 1) V. A place's answer has weight W' or V over T, so each outcome has at least
    V / T. Different places favour different outcomes, so averaged over the k places an outcome has at most
    (W' + (k - 1) V) / (k T). Amplified, that is W / T by the choice of W'; otherwise W' = W and it is less. So two
    records differ by at most W / V <= exp(epsilon); mixing over roundings and samples of long records keeps that.

    Unbiased: a held key is drawn with probability 1 / k; any other outcome is reported with probability V / T.
    """

    name: ClassVar[str] = "pckv_grr"
    summary: ClassVar[str] = "one random entry by randomized response over all keys (Gu et al.)"

    amplified: bool = Field(
        default=True, description="count that one of max_entries keys is drawn (PCKV-AGRR)"
    )

    @model_validator(mode="after")
    def _complete(self) -> PCKVGRR:
        if self._response[0] + self.outcomes * self._response[1] >= 1 << 62:
            raise ValueError("epsilon, max_entries and size are together too large for exact 64-bit weights")
        return self

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def outcomes(self) -> int:
        """Keys and dummies, two sides each."""
        return 2 * (self.size + self.max_entries)

    @property
    def _response(self) -> tuple[int, int]:
        """(W', V) of the randomized response."""
        favoured, other = self.weights
        return (self.max_entries * (favoured - other) + other if self.amplified else favoured), other

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V), k-fold: outcomes of a record have weights in [k V, W' + (k - 1) V] and a fixed total."""
        k, (favoured, other) = self.max_entries, self._response
        return k, self.outcomes, favoured + (k - 1) * other, k * other

    def report_fields(self) -> tuple[WireField, ...]:
        return (WireField("answer", self.outcomes),)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, ListedShape(self.size, self.max_entries, *self._response)

    def counts(self, reports: Int64s) -> Int64s:
        return self.histogram(reports[:, 0])

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """Both sides of every key, and all dummies as one, as a state counts them."""
        held = 2 * self.size
        (least, most), (least_dummies, most_dummies) = (
            outcome_bounds(self.response_weights(), outcomes) for outcomes in (1, self.outcomes - held)
        )

        def counted(state: State) -> Int64s:
            return np.append(state.totals.reshape(-1), state.count - state.totals.sum())

        return (
            Telltale(
                "outcomes",
                "answers",
                held + 1,
                lambda reports: np.minimum(reports[:, 1], np.uint64(held)).astype(np.int64),
                np.append(np.full(held, least), least_dummies),
                np.append(np.full(held, most), most_dummies),
                counted,
            ),
        )

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """One side of one key; a dummy, where none is wanted."""
        cells = best_cells(places, wanted, 2, len(fields))
        return np.where(cells < 0, self.outcomes - 1, cells)[:, None]

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        return np.isin(reports[:, 1] // np.uint64(2), ids).astype(np.int64)

    @property
    def rates(self) -> SideRates:
        favoured, other = self._response
        total = favoured + (self.outcomes - 1) * other
        return SideRates(
            (favoured - other) / total / self.max_entries + other / total, other / total, other / total
        )

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[PCKVGRR]:
        if goal.unit == "record" and goal.values == "signed" and goal.keys <= 1 << 20:
            for amplified in (True, False):
                yield cls.serving(goal, amplified=amplified)
