"""FREQ-EST: a noisy bit for every key (Girgis, Data, Diggavi, Algorithm 3).

Device: the record is one key. Its bit is 1 with probability e^(eps/2) / (e^(eps/2) + 1), the bit of every other key
with 1 / (e^(eps/2) + 1) (lines 5 to 8). Elsewhere this is called symmetric unary encoding.

Server: count the ones and undo the flips (lines 12 and 13). The paper then cuts frequencies off below at its delta, a
public lower bound on all of them (line 14; nothing to do with privacy): `floor` here, and left out unless given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hubbub.mechanisms.shared.listed import Listed
from hubbub.model.count_laws import Counts
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.state import State
from hubbub.model.telltale import KeyCoins, Telltale, tally_telltale
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel, kernel
from hubbub.primitives.samplers import UNIT, chance, favoured_weight
from hubbub.primitives.wire import WireField

#: Every key costs every report a bit, and every device a coin.
MOST_KEYS = 1024


@kernel
def only_entry(offsets: Any, record: int) -> Any:
    """Where a record's entry is, or -1. Should there be more than one, the others are not looked at."""
    return offsets[record] if offsets[record] < offsets[record + 1] else -1


@kernel
def noisy_bit(tape: Any, held: bool, favoured: int, other: int) -> int:
    """1 with probability W / (W + V) for the key that is held, V / (W + V) for any other."""
    return 1 if chance(tape, favoured if held else other, favoured + other) else 0


class _Shape(NamedTuple):
    size: int
    favoured: int
    other: int
    units: Int64s


@per_record
def _respond(tape: Any, part: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, places, _ = records
    i, key = part // shape.size, part % shape.size
    entry = only_entry(offsets, i)
    bit = noisy_bit(tape, entry >= 0 and places[entry] == key, shape.favoured, shape.other)
    reports[i, key // len(shape.units)] += bit * shape.units[key % len(shape.units)]


@dataclass(frozen=True)
class Digits:
    """A number below `base` for each of `count` keys on the wire: digits, as many to a field as fit 62 bits."""

    what: str
    base: int
    count: int

    @property
    def units(self) -> Int64s:
        """What the digits of a field are worth."""
        held = 1
        while self.base ** (held + 1) <= 1 << 62:
            held += 1
        return np.array([self.base**digit for digit in range(held)], dtype=np.int64)

    @property
    def fields(self) -> tuple[WireField, ...]:
        held = len(self.units)
        starts = range(0, self.count, held)
        return tuple(
            WireField(f"{self.what} from key {start}", self.base ** min(held, self.count - start))
            for start in starts
        )

    def read(self, fields: Int64s, places: Int64s) -> Int64s:
        """The digits of the keys at these places, [reports, places]."""
        units = self.units
        digits: Int64s = fields[:, places // len(units)] // units[places % len(units)] % self.base
        return digits

    def written(self, fields: Int64s, places: Int64s, digits: Int64s) -> Int64s:
        """The same fields with these digits for the keys at these places."""
        units, changed = self.units, fields.copy()
        for place, digit in zip(places.tolist(), digits.tolist(), strict=True):
            column, unit = place // len(units), int(units[place % len(units)])
            changed[:, column] += (digit - changed[:, column] // unit % self.base) * unit
        return changed

    def sums(self, fields: Int64s) -> Int64s:
        """Every key's digits added up: the first digits of all fields, then the second, and so on."""
        digits = [(fields // unit % self.base).sum(axis=0) for unit in self.units]
        return np.stack(digits, axis=1).reshape(-1)[: self.count]


@dataclass(frozen=True)
class BitRates:
    """Bits that are kept with weight W and flipped with weight V."""

    favoured: int
    other: int

    def frequency(self, ones: Int64s, reports: int) -> Floats:
        """Lines 12 and 13: unbiased."""
        total = self.favoured + self.other
        return (ones / reports - self.other / total) * (total / (self.favoured - self.other))

    def counts(self, ones: Int64s, reports: int) -> Counts:
        """How often a bit is 1: as variable whether the key is held or not."""
        kept, flipped = (weight / (self.favoured + self.other) for weight in (self.favoured, self.other))
        return Counts(reports, ones, flipped, kept - flipped, (kept * flipped, 0.0, 0.0))

    def variance(self, reports: int) -> float:
        """The same for every key: p (1 - p) / (2 p - 1)^2 per report, p = W / (W + V), held or not."""
        return self.favoured * self.other / (reports * (self.favoured - self.other) ** 2)


def cut_off(frequency: Floats, floor: float | None) -> Floats:
    """Line 14: frequencies below the floor are raised to it (None: none is known)."""
    return frequency if floor is None else np.maximum(frequency, floor)


def floor_remarks(floor: float | None) -> tuple[str, ...]:
    """What must stand beside estimates that were cut off."""
    if floor is None:
        return ()
    return (
        f"Frequencies are cut off below at {floor:g}, in the belief that none is lower: not unbiased any more.",
    )


def named_tally(bits: Digits, weights: tuple[int, int], fields: slice) -> Telltale:
    """How many of the bits in these fields are set."""
    favoured, other = weights
    total, held = favoured + other, len(bits.units)

    def count(reports: UInt64s) -> Int64s:
        return np.asarray(np.bitwise_count(reports[:, fields]).sum(axis=1, dtype=np.int64))

    def named(reports: UInt64s) -> NDArray[np.uint8]:
        flat = np.ascontiguousarray(reports[:, fields]).view(np.uint8).reshape(len(reports), -1, 8)
        each = np.unpackbits(flat, axis=2, bitorder="little")[:, :, :held]
        return each.reshape(len(reports), -1)[:, : bits.count]

    coins = KeyCoins(bits.count, other / total, favoured / total, named)
    return tally_telltale("keys named by a report", coins, count)


class FreqEst(Listed):
    """epsilon-LDP per record.

    Proof. Bits are independent, and a record decides about the bit of its own key only. Two records with keys x and y
    have different laws for the bits of x and y, each by a factor of at most W / V <= exp(epsilon / 2); all other bits
    have the same. An empty record differs from another in one bit. So whole reports differ by at most exp(epsilon).

    Unbiased, except with a floor. Then errors are not larger than without, if no frequency is below it, but lean
    upwards.
    """

    name: ClassVar[str] = "freq_est"
    summary: ClassVar[str] = "one key per record: a noisy bit for every key (Girgis et al., unary encoding)"

    max_entries: Literal[1] = Field(default=1, description="one key per record")
    values: Literal["set"] = Field(default="set", description="sets of one key")
    size: int = Field(ge=1, le=MOST_KEYS, description="keys of the closed vocabulary (or room for more)")
    floor: float | None = Field(
        default=None, ge=0, lt=1, description="least frequency there is, known beforehand: cut off below"
    )

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon / 2) rounded down, for each of two bits."""
        return favoured_weight(self.epsilon / 2), UNIT

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",)

    @property
    def remarks(self) -> tuple[str, ...]:
        return floor_remarks(self.floor)

    @property
    def _bits(self) -> Digits:
        return Digits("bits", 2, self.size)

    def report_fields(self) -> tuple[WireField, ...]:
        return self._bits.fields

    @property
    def parts(self) -> int:
        return self.size

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, _Shape(self.size, *self.weights, self._bits.units)

    @property
    def columns(self) -> int:
        return 1

    def counts(self, reports: Int64s) -> Int64s:
        return self._bits.sums(reports)[:, None]

    def likeliest(self) -> float:
        favoured, other = self.weights
        return float((favoured / (favoured + other)) ** self.size)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        return (named_tally(self._bits, self.weights, slice(1, None)),)

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """All: a report speaks of every key by itself."""
        return self.size

    @property
    def uncut(self) -> Self:
        return self.model_copy(update={"floor": None})

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """Every key's bit by itself."""
        return self._bits.written(fields, places, (wanted[:, 0] > 0).astype(np.int64))

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        bits = self._bits.read(reports[:, 1:].astype(np.int64), self.places(keys, ids))
        return np.asarray(bits.sum(axis=1))

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        n = max(state.count, 1)
        rates = BitRates(*self.weights)
        ones = state.totals[self.places(keys, ids), 0]
        frequency = cut_off(rates.frequency(ones, n), self.floor)
        counts = None if self.floor is not None else rates.counts(ones, n)
        return Moments(frequency, np.full(len(frequency), rates.variance(n)), counts=counts)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        return BitRates(*self.weights).variance(users)

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[FreqEst]:
        fits = goal.unit == "record" and goal.values == "set" and goal.quantity == "frequency"
        if fits and goal.max_entries == 1 and goal.keys <= MOST_KEYS:
            yield cls.serving(goal)
