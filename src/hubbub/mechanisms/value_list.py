"""Value lists: one key and its value per record, values known to lie in a range (Girgis, Data, Diggavi).

Device (Algorithm 1, DIST-EST-AS): a number for every key. That of the record's own key is its value, all others are
the low end of the range, and all get Laplace noise of scale 2 b / eps, b the width of the range. Here in units of b
above the low end: u in [0, 1] for the record's key, 0 for the others, noise of scale 2 / eps.

Server: the mean over all users of a key's number, divided by the key's frequency, is its mean value among those who
hold it. Where frequencies come from:

- `frequencies`: they are known (DIST-EST-AS, Assumption 1), and all of epsilon goes into the numbers;
- otherwise (Algorithm 2, DIST-EST) half of epsilon goes into the bits of FREQ-EST, `hubbub.mechanisms.freq_est`, and
  half into the numbers. The two stages are the server's. A device needs none of the server's results, so it sends both
  parts at once: one report, one guarantee, one entry in the ledger, and both parts count the same people.

Values are rounded at random to a grid of `grid` steps in the range, and the noise is the exact discrete one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from hubbub.mechanisms.freq_est import (
    MOST_KEYS,
    BitRates,
    Digits,
    cut_off,
    floor_remarks,
    named_tally,
    noisy_bit,
    only_entry,
)
from hubbub.mechanisms.shared.listed import Listed
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Moments, Quantity
from hubbub.model.record import GRID
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, laplace_beyond, rare_telltale
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record
from hubbub.primitives.kernel import Kernel
from hubbub.primitives.samplers import UNIT, chance, clamped_laplace, favoured_weight
from hubbub.primitives.wire import WireField

#: Laplace scales are sensitivity * 2^20 / floor(epsilon * 2^20): epsilon rounded down, exactly.
_EPSILON_STEPS = 1 << 20
#: Grid steps in one scale of the noise, at least, when the grid is chosen: rounding then adds below 0.2% of variance.
_FINE = 8
#: Natural log of one over the share of a value that clamping noise to the wire's range may cost.
_RANGE_LOG = math.log(1e6)


class _Shape(NamedTuple):
    size: int
    bit_fields: int
    favoured: int
    other: int
    bit_units: Int64s
    grid: int
    numerator: int
    denominator: int
    most: int
    units: Int64s


@per_record
def _respond(tape: Any, part: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, places, values = records
    bit_units, units = shape.bit_units, shape.units
    i, key = part // shape.size, part % shape.size
    entry = only_entry(offsets, i)
    held = entry >= 0 and places[entry] == key
    bit = noisy_bit(tape, held, shape.favoured, shape.other) if shape.bit_fields > 0 else 0
    exact = 0
    if held:
        fine = (values[entry] + GRID) * shape.grid
        exact = fine // (2 * GRID)
        up = fine % (2 * GRID)
        if up > 0 and chance(tape, up, 2 * GRID):
            exact += 1
    number = clamped_laplace(tape, exact, shape.numerator, shape.denominator, shape.most)
    # Written after the last coin: a part that is begun again must not have left anything.
    if shape.bit_fields > 0:
        reports[i, key // len(bit_units)] += bit * bit_units[key % len(bit_units)]
    field = shape.bit_fields + key // len(units)
    reports[i, field] += (number + shape.most) * units[key % len(units)]


class ValueList(Listed):
    """epsilon-LDP per record.

    Proof. Fix the rounding. A record's numbers before noise are integers: between 0 and g = `grid` for its own key, 0
    for all others. Two records with different keys differ in two numbers by at most g each; if the keys are the same,
    or there is none, in one number. That is at most 2 g in total, so discrete Laplace noise of scale s >= 2 g / eps_v
    on each number changes probabilities by at most exp(2 g / s) <= exp(eps_v). Rounding stays within 0 .. g: the grid
    has no slack to pay for. Mixing over roundings and clamping afterwards keep the bound. With known frequencies
    eps_v = epsilon, and this is all. Otherwise eps_v = epsilon / 2, and the bits, drawn independently of the numbers,
    are FREQ-EST at epsilon / 2 (W / V <= exp(epsilon / 4), two bits): together epsilon.

    Unbiased (frequencies and means; clamping costs a value at most a millionth of itself, and absent keys nothing),
    except with a floor. Known frequencies are taken as exact.
    """

    name: ClassVar[str] = "value_list"
    summary: ClassVar[str] = "one value per record: a noisy number for every key (Girgis et al.)"
    chosen: ClassVar[frozenset[str]] = frozenset({"grid"})

    max_entries: Literal[1] = Field(default=1, description="one key per record")
    values: Literal["signed"] = Field(default="signed", description="one value per record")
    size: int = Field(ge=1, le=MOST_KEYS, description="keys of the closed vocabulary (or room for more)")
    frequencies: tuple[float, ...] | None = Field(
        default=None, description="share of users with each key, if known: no budget is spent on it"
    )
    floor: float | None = Field(
        default=None, ge=0, lt=1, description="least frequency there is, known beforehand: cut off below"
    )
    grid: int = Field(default=0, ge=0, le=1 << 16, description="grid steps in the range (0: chosen)")

    _narrow: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.grid:
            self._fill(grid=max(1, math.ceil(_FINE * self.value_epsilon / 2)))
        if self.frequencies is not None:
            self._check_known(self.frequencies)
        if self.value_epsilon * _EPSILON_STEPS < 1:
            raise ValueError("epsilon is too small for exact 64-bit noise")
        return self

    def _check_known(self, frequencies: tuple[float, ...]) -> None:
        if len(frequencies) != self.size:
            raise ValueError(f"{len(frequencies)} frequencies are known, for {self.size} keys")
        if not all(0 < share <= 1 for share in frequencies) or sum(frequencies) > 1 + 1e-6:
            raise ValueError("known frequencies are above 0 and at most 1 together")
        if self.floor is not None:
            raise ValueError("a floor is for frequencies that are not known")

    @property
    def value_epsilon(self) -> float:
        """The part of epsilon that the numbers have."""
        return self.epsilon if self.frequencies else self.epsilon / 2

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V) of the bits: W / V is exp(epsilon / 4) rounded down, for each of two bits."""
        return favoured_weight(self.epsilon / 4), UNIT

    @property
    def scale(self) -> tuple[int, int]:
        """s, in grid steps, as numerator and denominator."""
        return 2 * self.grid * _EPSILON_STEPS, math.floor(self.value_epsilon * _EPSILON_STEPS)

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def centered(self) -> bool:
        return True

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("conditional", "mean") if self.frequencies else ("conditional", "mean", "frequency")

    @property
    def remarks(self) -> tuple[str, ...]:
        if self.frequencies:
            return (
                "Frequencies are those of the task, taken as exact: errors do not cover their being wrong.",
            )
        return floor_remarks(self.floor)

    # On the device

    @property
    def _bits(self) -> Digits:
        return Digits("bits", 2, 0 if self.frequencies else self.size)

    @property
    def _most(self) -> int:
        """Largest number on the wire, on each side of 0."""
        if self._narrow:
            return self.grid
        return math.ceil(self.grid + _RANGE_LOG * self.scale[0] / self.scale[1])

    @property
    def _numbers(self) -> Digits:
        return Digits("numbers", 2 * self._most + 1, self.size)

    def report_fields(self) -> tuple[WireField, ...]:
        return self._bits.fields + self._numbers.fields

    @property
    def parts(self) -> int:
        return self.size

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        numerator, denominator = self.scale
        favoured, other = self.weights
        return _respond, _Shape(
            size=self.size,
            bit_fields=len(self._bits.fields),
            favoured=favoured,
            other=other,
            bit_units=self._bits.units,
            grid=self.grid,
            numerator=numerator,
            denominator=denominator,
            most=self._most,
            units=self._numbers.units,
        )

    def miniature(self) -> Self:
        """The same with three keys, no grid between the ends, and noise clamped to them.

        Clamping keeps the largest ratio: beyond the ends it is the same for every number.
        """
        few = {"size": min(self.size, 3), "frequencies": self.frequencies and self.frequencies[:3], "grid": 1}
        small = type(self)(**self.model_dump() | few)
        small._narrow = True
        return small

    # On the server

    @property
    def columns(self) -> int:
        return 1 if self.frequencies else 2

    def _split(self, reports: Int64s) -> tuple[Int64s, Int64s]:
        """The fields of the bits, and those of the numbers."""
        first = len(self._bits.fields)
        return reports[:, :first], reports[:, first:]

    def counts(self, reports: Int64s) -> Int64s:
        bits, numbers = self._split(reports)
        sums = self._numbers.sums(numbers) - len(reports) * self._most
        return sums[:, None] if self.frequencies else np.stack([sums, self._bits.sums(bits)], axis=1)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """Noise seldom reaches the end of the wire; and how many bits are set."""
        first = 1 + len(self._bits.fields)
        places, last = np.arange(self.size), 2 * self._most

        def at_an_end(reports: UInt64s) -> Int64s:
            numbers = self._numbers.read(reports[:, first:].astype(np.int64), places)
            return np.asarray(((numbers == 0) | (numbers == last)).any(axis=1), dtype=np.int64)

        beyond = self.size * laplace_beyond(self._most - self.grid, self.scale[0] / self.scale[1])
        ends = rare_telltale("ends", "numbers at the end of their range", at_an_end, beyond)
        bits = () if self.frequencies else (named_tally(self._bits, self.weights, slice(1, first)),)
        return (*ends, *bits)

    def likeliest(self) -> float:
        decay = math.exp(-self.scale[1] / self.scale[0])
        favoured, other = self.weights
        bit = 1.0 if self.frequencies else favoured / (favoured + other)
        number = max(
            (1 - decay) / (1 + decay), laplace_beyond(self._most - self.grid, self.scale[0] / self.scale[1])
        )
        return float((bit * number) ** self.size)

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """All: a report speaks of every key by itself."""
        return self.size

    @property
    def uncut(self) -> Self:
        return self.model_copy(update={"floor": None})

    def best_fields(self, places: Int64s, wanted: Floats, fields: Int64s) -> Int64s:
        """Every key's number and bit by itself."""
        bits, numbers = self._split(fields)
        extreme = np.where(wanted[:, 0] > 0, 2 * self._most, 0)
        moved = wanted[:, 0] != 0
        numbers = self._numbers.written(numbers, places[moved], extreme[moved])
        if not self.frequencies:
            bits = self._bits.written(bits, places, (wanted[:, 1] > 0).astype(np.int64))
        return np.concatenate([bits, numbers], axis=1)

    def effects(self) -> Floats:
        """Known frequencies are no report's contribution, neither by themselves nor as a part of the mean."""
        if not self.frequencies:
            return super().effects()
        most = 2 * self._most / self.grid
        return np.array([[np.nan, most], [np.nan, -most]])

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        """How much likelier a report is with the asked keys at the top of the range than without them."""
        bits, numbers = self._split(reports[:, 1:].astype(np.int64))
        places = self.places(keys, ids)
        above = 2 * (self._numbers.read(numbers, places) - self._most) - self.grid
        leaning = np.clip(above, -self.grid, self.grid)
        if not self.frequencies:
            leaning += self.grid * (2 * self._bits.read(bits, places) - 1)
        return np.asarray(leaning.sum(axis=1))

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        """A key's mean number is (frequency + mean) / 2: values -1 .. 1 are sent as shares u = (1 + value) / 2."""
        n, places = max(state.count, 1), self.places(keys, ids)
        if self.frequencies:
            frequency = np.array(self.frequencies)[places]
        else:
            frequency = cut_off(BitRates(*self.weights).frequency(state.totals[places, 1], n), self.floor)
        mean = 2 * state.totals[places, 0] / (n * self.grid) - frequency
        spread, mean_spread = (np.full(len(places), self.variance(what, n)) for what in ("frequency", "mean"))
        return Moments(frequency, spread, mean, mean_spread, -spread)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """The same for every key. Rounding values to the grid, which those who hold the key add, is left out."""
        bits = 0.0 if self.frequencies else BitRates(*self.weights).variance(users)
        if quantity == "frequency":
            return bits
        decay = math.exp(-self.scale[1] / self.scale[0])
        noise = 2 * decay / (1 - decay) ** 2 / self.grid**2
        return 4 * noise / users + bits

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[ValueList]:
        """Frequencies are never taken as known: whoever knows them says so in the task."""
        fits = goal.unit == "record" and goal.values == "signed" and goal.max_entries == 1
        if fits and goal.keys <= MOST_KEYS:
            yield cls.serving(goal)
