"""The shared body of mechanisms over a list of keys: a closed vocabulary, no hashing, one counter per key and side.

The mechanism is told the number of keys (`size`), because the noise, and often the report, depends on it. A report
names a key's side + or -, or sides of several keys; the state counts them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.items import plausible
from hubbub.model.count_laws import Counts
from hubbub.model.influence import of_both
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Held, Mechanism, Moments, Quantity
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import Kernel, kernel
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.primitives.wire import Layout, WireField


class ListedRecords(NamedTuple):
    """Records as a kernel sees them: record i has the keys places[offsets[i] : offsets[i + 1]]."""

    offsets: Int64s
    places: Int64s
    values: Int64s


class ListedShape(NamedTuple):
    """What most kernels need: the number of keys, the most entries of a record, and the weights W and V."""

    size: int
    limit: int
    favoured: int
    other: int


@kernel
def entry_of(places: Any, first: int, end: int, key: int) -> int:
    """Which of the entries first .. end - 1 has the key, or -1."""
    for entry in range(first, end):
        if places[entry] == key:
            return entry
    return -1


def best_cells(places: Int64s, wanted: Floats, columns: int, count: int) -> Int64s:
    """`count` cells key * columns + column of the most that is wanted, in turn; -1 if nothing is wanted."""
    best = wanted.max(initial=0.0)
    if best <= 0:
        return np.full(count, -1, dtype=np.int64)
    key, column = np.nonzero(wanted >= best * (1 - 1e-12))
    return np.resize(places[key] * columns + column, count)


class Listed(Mechanism):
    """A mechanism for the keys 0 .. size - 1."""

    closed_only: ClassVar[bool] = True

    size: int = Field(ge=1, le=1 << 20, description="keys of the closed vocabulary (or room for more)")

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon) rounded down."""
        return favoured_weight(self.epsilon), UNIT

    @property
    def shape(self) -> ListedShape:
        """The parameters as kernels see them."""
        return ListedShape(self.size, self.max_entries, *self.weights)

    def miniature(self) -> Self:
        """The same with few keys."""
        return type(self)(**self.model_dump() | {"size": min(self.size, 4)})

    def check_keys(self, keys: Keys) -> None:
        super().check_keys(keys)
        if keys.places > self.size:
            raise Refused(f"The vocabulary has {keys.places} keys; size = {self.size} is too small.")

    def places(self, keys: Keys, ids: UInt64s) -> Int64s:
        """Keys as numbers below `size`."""
        self.check_keys(keys)
        return ids.astype(np.int64)

    # On the device

    @abstractmethod
    def report_fields(self) -> tuple[WireField, ...]:
        """Fields of a report; there is no seed."""

    @abstractmethod
    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        """The kernel (tape, start, count, records, shape, reports), and what it needs of the parameters.

        `records` are `ListedRecords`; it fills `reports` [n, fields after the seed].
        """

    @property
    def parts(self) -> int:
        """Parts of a report that are drawn each on its own; the kernel counts records * parts."""
        return 1

    @property
    def layout(self) -> Layout:
        return Layout((WireField("seed", 1), *self.report_fields()))

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        reports = np.zeros((len(entries), len(self.report_fields())), dtype=np.int64)
        respond, shape = self.kernel_and_shape()
        records = ListedRecords(entries.offsets, self.places(keys, entries.ids), entries.values)
        run_kernel(respond, coins, len(entries) * self.parts, records, shape, reports)
        return np.concatenate([seeds[:, None], reports.astype(np.uint64)], axis=1)

    # On the server

    @property
    @abstractmethod
    def columns(self) -> int:
        """Counters per key."""

    @abstractmethod
    def counts(self, reports: Int64s) -> Int64s:
        """What reports [n, fields after the seed] add to the counters [size, columns]."""

    def totals_shape(self, keys: Keys) -> tuple[int, ...]:
        self.check_keys(keys)
        return self.size, self.columns

    def absorb(self, state: State, keys: Keys, reports: UInt64s) -> None:
        state.totals += self.counts(reports[:, 1:].astype(np.int64))
        state.count += len(reports)

    # What a forger can make of it

    @property
    def counter_worth(self) -> Floats:
        """[2, columns]: what one more in a key's counter adds to n times frequency and mean; 0 where not estimated."""
        columns, worth = np.eye(self.columns, dtype=np.int64), []
        keys = Keys(kind="closed", size=1, salt="0" * 32)
        for added in (np.zeros_like(columns[0]), *columns):
            state = self.empty(keys)
            state.count, state.totals[0] = 1, added
            worth.append(of_both(self.uncut.moments(state, keys, keys.all_ids()))[:, 0])
        return np.nan_to_num(np.stack(worth[1:], axis=1) - worth[0][:, None])

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """Fields with the largest sum of wanted [places, columns] times what they add to the counters of these keys."""
        raise Refused(f"It is not known what a forged report could do to mechanism {self.name}.")

    def louder(self, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
        wanted = np.nan_to_num(weights).T @ self.counter_worth
        fields = self.best_fields(self.places(keys, ids), wanted, reports[:, 1:].astype(np.int64))
        return np.concatenate([reports[:, :1], fields.astype(np.uint64)], axis=1)

    def histogram(self, cells: Int64s) -> Int64s:
        """Counters from cells key * columns + column; cells beyond the last key (dummies) are left out."""
        held = self.size * self.columns
        return np.bincount(cells[cells < held], minlength=held).reshape(self.size, self.columns)


@dataclass(frozen=True)
class SideRates:
    """Probabilities that a report names a held key's own side, its other side, one given side of an absent key.

    A report names at most one side of a key. `resampled` is the share of users that were *not* asked about the key,
    where a report answers for a key drawn at random: that those asked are a sample adds to the variance.
    """

    own: float
    other: float
    absent: float

    @property
    def _gaps(self) -> tuple[float, float]:
        """What a held key adds to plus - minus, and to plus + minus."""
        return self.own - self.other, self.own + self.other - 2 * self.absent

    def moments(self, plus: Any, minus: Any, reports: Any, resampled: float = 0.0) -> Moments:
        """Estimates from how often the sides were named in `reports` reports."""
        mean_gap, gap = self._gaps
        idle, both = 2 * self.absent, self.own + self.other
        noise = idle * (1 - idle), gap + idle**2 - both**2, resampled * gap**2
        counts = Counts(reports, plus + minus, idle, gap, noise, plus - minus, mean_gap, (idle, gap))
        share, middle, square = plausible(counts)
        together, people = (1 - both) / gap + resampled * (1 - share), np.maximum(reports, 1)
        return Moments(
            counts.frequency,
            self.variance("frequency", people, share, middle, square, resampled),
            counts.mean,
            self.variance("mean", people, share, middle, square, resampled),
            middle * together / people,
            counts,
        )

    def variance(
        self, quantity: Quantity, reports: Any, frequency: Any, mean: Any, square: Any, resampled: float = 0.0
    ) -> Any:
        """Of a key's estimate, given its frequency, mean and mean square over all users."""
        mean_gap, gap = self._gaps
        seen = 2 * self.absent + gap * frequency
        if quantity == "mean":
            return (seen / mean_gap**2 - square + resampled * (square - mean**2)) / reports
        squares = (1 - frequency) * (2 * self.absent) ** 2 + frequency * (self.own + self.other) ** 2
        return ((seen - squares) / gap**2 + resampled * (frequency - frequency**2)) / reports


class KeyValue(Listed):
    """One report, three estimates: counters of both sides of every key, and one set of rates for all keys."""

    values: Literal["signed"] = Field(default="signed", description="signed values per key")

    @property
    @abstractmethod
    def rates(self) -> SideRates:
        """How often a report names a key's sides."""

    @property
    def centered(self) -> bool:
        return True

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return "frequency", "mean", "conditional"

    @property
    def columns(self) -> int:
        return 2

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        minus, plus = state.totals[self.places(keys, ids)].T
        return self.rates.moments(plus, minus, max(state.count, 1))

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        return float(self.rates.variance(quantity, users, held.frequency, held.mean, held.square))
