"""Harmony: one bit about one coordinate (Nguyen et al. 2016), a baseline of Zhou et al. for means.

Device: the record is a vector of d = size values in [-1, 1], 0 where there is no entry. Draw a coordinate, round its
value at random to +1 or -1, flip that with probability 1 / (e^eps + 1), and report the coordinate and the bit.
Server: add up the bits of each coordinate and scale by d (e^eps + 1) / (e^eps - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.listed import Listed, best_cells, entry_of
from hubbub.model.count_laws import Counts
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, drawn_telltale, outcome_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import below, random_sign, randomized_response
from hubbub.primitives.wire import WireField


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, places, values = records
    key = below(tape, shape.size)
    entry = entry_of(places, offsets[i], offsets[i + 1], key)
    value = values[entry] if entry >= 0 else 0
    bit = (1 + random_sign(tape, value, GRID)) // 2
    reports[i, 0] = key
    reports[i, 1] = randomized_response(tape, bit, 2, shape.favoured, shape.other)


class Harmony(Listed):
    """epsilon-LDP per record.

    Proof. The coordinate is drawn without looking at the record. Given it, and the rounding, the bit has
    probability W / (W + V) or V / (W + V); mixing over roundings keeps it between.

    Unbiased: a coordinate is drawn with probability 1 / d, and its bit then has mean value * (W - V) / (W + V).
    Records of any length are taken whole.
    """

    name: ClassVar[str] = "harmony"
    summary: ClassVar[str] = "one bit about one random coordinate of a closed vocabulary (Nguyen et al.)"

    values: Literal["signed"] = Field(default="signed", description="signed values per key")

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): a pair of bits per coordinate, of weights in [V, W] that sum to W + V."""
        return self.size, 2 * self.size, *self.weights

    @property
    def limits_entries(self) -> bool:
        return False

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("mean",)

    def report_fields(self) -> tuple[WireField, ...]:
        return WireField("key", self.size), WireField("bit", 2)

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, self.shape

    @property
    def columns(self) -> int:
        return 2

    def counts(self, reports: Int64s) -> Int64s:
        return self.histogram(2 * reports[:, 0] + reports[:, 1])

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """The coordinate is drawn blindly; both its bits have bounds."""
        law, two = np.full(self.size, 1 / self.size), np.uint64(2)
        drawn = drawn_telltale("keys", "drawn keys", law, 1, lambda state: state.totals.sum(axis=1))
        bits = outcome_telltales(
            self.response_weights(),
            "bits of keys",
            lambda reports: two * reports[:, 1] + reports[:, 2],
            lambda state: state.totals.reshape(-1),
        )
        return (drawn, *bits)

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """One key, and the bit that is wanted most."""
        cells = best_cells(places, wanted, 2, len(fields))
        return np.where(cells[:, None] < 0, fields, np.stack([cells // 2, cells % 2], axis=1))

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        asked = np.isin(reports[:, 1], ids)
        return np.where(asked, 2 * reports[:, 2].astype(np.int64) - 1, 0)

    @property
    def _gain(self) -> float:
        favoured, other = self.weights
        return (favoured - other) / (favoured + other)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        n = max(state.count, 1)
        minus, plus = state.totals[self.places(keys, ids)].T
        asked, gain = 1 / self.size, self._gain / self.size
        counts = Counts(n, signed=plus - minus, signed_gain=gain, signed_noise=(asked, 0.0))
        variance = (self.size / self._gain**2 - counts.told**2) / n
        return Moments(None, None, counts.mean, variance, counts=counts)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        return (self.size / self._gain**2 - held.square) / users

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Harmony]:
        if (
            goal.unit == "record"
            and goal.values == "signed"
            and goal.quantity == "mean"
            and goal.keys <= 1 << 20
        ):
            yield cls.serving(goal)
