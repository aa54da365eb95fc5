"""What can be read off a report whose probability is known whatever the record is: what forged reports may get wrong.

Local privacy bounds the law of a report for every record at once. A mechanism names numbers that can be read off its
reports, each below `cells`, and between which bounds an honest report's probability of each lies. Counts of honest
reports are then between two binomials, whatever the records are; `hubbub.server.forgeries` has the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.rare_counts import binomial_chance

#: Bits of a seed that are counted together: its low ones, and the high ones of longer seeds.
_LOW, _HIGH = 16, 8
#: The most cells of one count; outcomes beyond are not counted one by one.
MOST_CELLS = 1 << 18
#: The share of salts for which bounds that rest on a salt's luck may fail.
UNLUCKY = 1e-9

#: (s, t, W, V): t outcomes with weights in [V, W] that sum to s W + (t - s) V.
Weights = tuple[int, int, int, int]


@dataclass(frozen=True)
class KeyCoins:
    """Whether a report names a key, for so many keys: coins that fall independently of each other.

    Each names its key with probability `idle`, but for one of them, if any, which does with up to `held`.
    """

    keys: int
    idle: float
    held: float
    #: Reports to 0 and 1, [n, keys].
    named: Callable[[UInt64s], NDArray[np.uint8]]


@dataclass(frozen=True)
class Telltale:
    """A number below `cells` for every report, and the least and most probability of each for an honest one.

    Bounds are one number for all cells, or one for each. They hold for every record, on average over the public seed.
    """

    name: str
    #: What is counted, in words that fit "... named too often".
    what: str
    cells: int
    read: Callable[[UInt64s], Int64s]
    least: float | Floats
    most: float | Floats
    #: How often each number was met, where a state has these counts anyway.
    of_state: Callable[[State], Int64s] | None = None
    #: The coins behind the number, where it counts the keys that a report names.
    coins: KeyCoins | None = None

    @property
    def exact(self) -> bool:
        """Whether the law does not depend on the record at all."""
        return bool(np.all(np.equal(self.least, self.most)))


def seed_telltales(bits: int, most: float = 1.0, least: float = 1.0) -> tuple[Telltale, ...]:
    """A seed of so many bits, uniform before the record is looked at, or up to factors `least` and `most`."""
    low, high = min(bits, _LOW), min(max(bits - _LOW, 0), _HIGH)
    found = []
    if low:
        mask = np.uint64((1 << low) - 1)
        what = "seeds" if low == bits else "low bits of seeds"
        found.append(_bits("seeds", what, low, lambda reports: reports[:, 0] & mask, least, most))
    if high:
        shift = np.uint64(bits - high)
        found.append(
            _bits(
                "high_seeds", "high bits of seeds", high, lambda reports: reports[:, 0] >> shift, least, most
            )
        )
    return tuple(found)


def _bits(
    name: str, what: str, bits: int, read: Callable[[UInt64s], UInt64s], least: float, most: float
) -> Telltale:
    cells = 1 << bits
    return Telltale(
        name, what, cells, lambda reports: read(reports).view(np.int64), least / cells, most / cells
    )


def drawn_telltale(
    name: str, what: str, law: Floats, column: int, of_state: Callable[[State], Int64s]
) -> Telltale:
    """A field that is drawn by a law without looking at the record; the cells of a long one are added up."""
    step = -(-len(law) // MOST_CELLS)
    starts, divisor = np.arange(0, len(law), step), np.uint64(step)
    folded = np.add.reduceat(law, starts)
    return Telltale(
        name,
        what,
        len(folded),
        lambda reports: (reports[:, column] // divisor).astype(np.int64),
        folded,
        folded,
        lambda state: np.add.reduceat(of_state(state), starts),
    )


def outcome_telltales(
    weights: Weights | None,
    what: str,
    read: Callable[[UInt64s], UInt64s],
    of_state: Callable[[State], Int64s] | None = None,
) -> tuple[Telltale, ...]:
    """Whole outcomes of a mechanism by weights, where there are few enough to count each."""
    if weights is None or weights[1] > MOST_CELLS:
        return ()
    least, most = outcome_bounds(weights, 1)
    return (
        Telltale(
            "outcomes",
            what,
            weights[1],
            lambda reports: read(reports).astype(np.int64),
            least,
            most,
            of_state,
        ),
    )


def outcome_bounds(weights: Weights, outcomes: int) -> tuple[float, float]:
    """The least and most probability that an honest report is one of so many given outcomes.

    At most s of them have weight W, and at least as many as the t - s places of weight V do not hold.
    """
    favoured_count, count, favoured, other = weights
    total = favoured_count * favoured + (count - favoured_count) * other
    up = min(outcomes, favoured_count)
    down = max(0, outcomes - (count - favoured_count))
    return tuple((number * favoured + (outcomes - number) * other) / total for number in (down, up))  # type: ignore[return-value]


def likeliest_report(mechanism: Any) -> float:
    """The most probability of one report: that its seed is drawn, times the most of an outcome by weights."""
    weights: Weights | None = getattr(mechanism, "response_weights", lambda: None)()
    drawn: float = mechanism.seeds_per_report / mechanism.layout.fields[0].limit
    return drawn * (outcome_bounds(weights, 1)[1] if weights else 1.0)


def rare_telltale(
    name: str, what: str, read: Callable[[UInt64s], Int64s], most: float
) -> tuple[Telltale, ...]:
    """Reports that an honest device sends with probability `most` at most (`read` says 1 for them, else 0)."""
    if most >= 1:
        return ()
    return (Telltale(name, what, 2, read, np.array([1 - most, 0.0]), np.array([1.0, most])),)


def ends_telltale(fields: slice, last: int, most: float) -> tuple[Telltale, ...]:
    """Numbers in these fields at an end of their range, 0 or `last`, where noise alone seldom gets."""
    end = np.uint64(last)

    def at_an_end(reports: UInt64s) -> Int64s:
        numbers = reports[:, fields]
        return np.asarray(((numbers == 0) | (numbers == end)).any(axis=1), dtype=np.int64)

    return rare_telltale("ends", "numbers at the end of their range", at_an_end, most)


def tally_telltale(what: str, coins: KeyCoins, read: Callable[[UInt64s], Int64s]) -> Telltale:
    """How many of its keys a report names."""
    keys, idle, held = coins.keys, coins.idle, coins.held
    alone, others = (binomial_chance(np.arange(count + 1), count, idle) for count in (keys, keys - 1))
    one = np.convolve(others, [1 - held, held])
    return Telltale(
        "tally", what, keys + 1, read, np.minimum(alone, one), np.maximum(alone, one), coins=coins
    )


def laplace_beyond(distance: float, scale: float) -> float:
    """P(|noise| >= distance) of discrete Laplace noise, at most."""
    return min(1.0, 2 * float(np.exp(-max(distance, 0.0) / scale)) / (1 + float(np.exp(-1 / scale))))


def sharing(buckets: int, seed_bits: int, code_bits: int) -> float:
    """The share of seeds under which two codes share a bucket, at most: for all codes, and all but 1e-9 of all salts.

    Proof. Rows are uniform and independent over seeds, by the salt, so whether two given codes share a bucket are coins
    of chance 1 / t, one per seed. The probability that their sum is v above its mean is at most exp(-v^2 / (2 (s + v /
    3))), s its variance (Bernstein), which is exp(-x) for v = x / 3 + sqrt(x^2 / 9 + 2 x s). It depends on the codes by
    their difference only, of which there are fewer than 2^m: x = log(2^m / 1e-9) is enough for all of them.
    """
    seeds, x = 2.0**seed_bits, code_bits * math.log(2) + math.log(1 / UNLUCKY)
    variance = seeds / buckets * (1 - 1 / buckets)
    return min(1.0, 1 / buckets + (x / 3 + math.sqrt(x**2 / 9 + 2 * x * variance)) / seeds)
