"""PCKV-UE: one entry of the record in unary: a symbol 0, + or - for every key (Gu et al. 2020).

Device: fill the record up to k = max_entries places with dummies and draw a place. Its key's symbol is its side (the
rounded value) with probability a p, the other side with a (1 - p), and 0 with 1 - a. All other keys' symbols are +
and - with probability b / 2 each. The paper's choice: a = 1 / 2, p = e^eps / (e^eps + 1), b = 2 / (e^eps + 3).

The paper also sends the symbols of k dummy keys, which nobody reads; they are left out. Symbols are sent as the digits
of base-3 numbers, 39 of them in 62 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hubbub.mechanisms.freq_est import Digits
from hubbub.mechanisms.shared.listed import KeyValue, SideRates
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Quantity
from hubbub.model.record import GRID
from hubbub.model.telltale import KeyCoins, Telltale, tally_telltale
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import below, chance, random_sign, randomized_response
from hubbub.primitives.wire import WireField

_MOST_KEYS = 4096
#: Symbols in one field: 3^39 is the largest power of 3 that fits 62 bits.
_DIGITS = 39
#: Symbols that are counted at once, by a table of 3^13 numbers.
_AT_ONCE = 13


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, places, values = records
    drawn = offsets[i] + below(tape, shape.limit)
    key = -1
    if drawn < offsets[i + 1]:
        key = places[drawn]
    unit = 1
    for j in range(shape.size):
        if j % _DIGITS == 0:
            unit = 1
            reports[i, j // _DIGITS] = 0
        symbol = 0
        if j == key:
            if chance(tape, 1, 2):
                side = (1 + random_sign(tape, values[drawn], GRID)) // 2
                symbol = 1 + randomized_response(tape, side, 2, shape.favoured, shape.other)
        elif chance(tape, 2 * shape.other, shape.favoured + 3 * shape.other):
            symbol = 1 + below(tape, 2)
        reports[i, j // _DIGITS] += symbol * unit
        unit *= 3


@lru_cache(maxsize=1)
def _named_by() -> NDArray[np.int8]:
    """How many of the digits of each number of so many digits are not 0."""
    named = np.zeros(1, dtype=np.int8)
    for _ in range(_AT_ONCE):
        named = np.concatenate([named, named + np.int8(1), named + np.int8(1)])
    return named


class PCKVUE(KeyValue):
    """epsilon-LDP per record.

    Proof. Fix the place and the rounding, and let w = W / V <= e^eps. Two records whose place holds the same key differ
    in that key's symbol only: + and - by p / (1 - p) = w, and not at all in 0. If it holds x and y, the symbol of x is
    likelier by at most a p / (b / 2) = w (w + 3) / (2 (w + 1)) (its own side), and that of y by at most
    (1 - b) / (1 - a) = (b / 2) / (a (1 - p)) = 2 (w + 1) / (w + 3): together w. If one of them has a dummy
    there, only one of the two factors appears, and both are at most w. All other symbols have the same law.

    Unbiased: a held key is drawn with probability 1 / k, and has the law of an absent one otherwise.
    """

    name: ClassVar[str] = "pckv_ue"
    summary: ClassVar[str] = "one random entry, a noisy symbol for every key (Gu et al.)"

    size: int = Field(ge=1, le=_MOST_KEYS, description="keys of the closed vocabulary (or room for more)")

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def miniature(self) -> Self:
        """The same with three keys."""
        return type(self)(**self.model_dump() | {"size": min(self.size, 3)})

    def report_fields(self) -> tuple[WireField, ...]:
        starts = range(0, self.size, _DIGITS)
        return tuple(
            WireField(f"keys from {start}", 3 ** min(_DIGITS, self.size - start)) for start in starts
        )

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        return _respond, self.shape

    def _symbols(self, reports: Int64s, place: int) -> Int64s:
        """One key's symbol in every report."""
        field, digit = divmod(place, _DIGITS)
        symbols: Int64s = reports[:, field] // 3**digit % 3
        return symbols

    def counts(self, reports: Int64s) -> Int64s:
        found = []
        for field, first in enumerate(range(0, self.size, _DIGITS)):
            rest = reports[:, field]
            for _ in range(min(_DIGITS, self.size - first)):
                higher = rest // 3
                symbols = (rest - 3 * higher).astype(np.int8)
                found.append([np.count_nonzero(symbols == side) for side in (1, 2)])
                rest = higher
        return np.array(found, dtype=np.int64)

    def likeliest(self) -> float:
        """The likeliest symbol of an absent key, and of the one that is spoken for at most 1."""
        favoured, other = self.weights
        total = favoured + 3 * other
        return float((max(favoured + other, other) / total) ** (self.size - 1))

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        favoured, other = self.weights
        idle = 2 * other / (favoured + 3 * other)
        coins = KeyCoins(self.size, idle, 0.5, self._named)
        return (tally_telltale("keys named by a report", coins, self._tally),)

    def _named(self, reports: UInt64s) -> NDArray[np.uint8]:
        """Whether the symbol of each key is not 0."""
        named = np.zeros((self.size, len(reports)), dtype=np.uint8)
        for field, first in enumerate(range(0, self.size, _DIGITS)):
            rest = reports[:, 1 + field].astype(np.int64)
            for place in range(first, min(first + _DIGITS, self.size)):
                higher = rest // 3
                named[place] = rest != 3 * higher
                rest = higher
        return named.T

    def _tally(self, reports: UInt64s) -> Int64s:
        """How many symbols of each report are not 0."""
        named, table = np.zeros(len(reports), dtype=np.int64), _named_by()
        for rest in reports[:, 1:].T.astype(np.int64):
            for _ in range(_DIGITS // _AT_ONCE):
                rest, last = np.divmod(rest, len(table))
                named += table[last]
        return named

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """All: a report speaks of every key by itself."""
        return self.size

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """Every key's symbol by itself."""
        symbols = np.argmax(np.concatenate([np.zeros((len(places), 1)), wanted], axis=1), axis=1)
        return Digits("keys", 3, self.size).written(fields, places, symbols)

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        fields = reports[:, 1:].astype(np.int64)
        named = [self._symbols(fields, int(place)) > 0 for place in self.places(keys, ids)]
        return np.sum(named, axis=0, dtype=np.int64) if named else np.zeros(len(reports), dtype=np.int64)

    @property
    def rates(self) -> SideRates:
        favoured, other = self.weights
        absent, kept = other / (favoured + 3 * other), favoured / (favoured + other)
        drawn = 1 / self.max_entries
        rest = (1 - drawn) * absent
        return SideRates(drawn * kept / 2 + rest, drawn * (1 - kept) / 2 + rest, absent)

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[PCKVUE]:
        if goal.unit == "record" and goal.values == "signed" and goal.keys <= _MOST_KEYS:
            yield cls.serving(goal)
