"""Tiny releases whose every outcome is walked, through the code that ships."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from hubbub.checks.exact import Enumeration, Law, hockey_stick, worst_ratio
from hubbub.release.amounts import Amounts
from hubbub.release.artifact import Parameters, Release
from hubbub.release.keyspace import KeySpace
from hubbub.release.part import Arrays, Part
from hubbub.release.vector import Values, Vector

#: A vector as the tests write it: coordinate -> value.
Plain = dict[int, float]

#: Rounding of doubles in laws with Laplace branches.
DUST = 1e-9


def vector(values: Values, plain: Plain) -> Vector:
    entries = sorted((key, value) for key, value in plain.items() if value)
    kind = np.int64 if values.kind == "counts" else np.float64
    amounts = Amounts.of(np.array([v for _, v in entries], dtype=kind), values.fraction_bits)
    return Vector(np.array([key for key, _ in entries], dtype=np.uint64), amounts)


def keys(universe: int, seed: int = 0) -> KeySpace:
    return KeySpace(kind="integers", universe=universe, salt=f"{seed:032x}")


def outcome(arrays: Arrays) -> tuple[Any, ...]:
    return tuple((name, array.tobytes()) for name, array in sorted(arrays.items()))


def part_law(part: Part, values: Values, space: KeySpace, plain: Plain) -> Law:
    """The exact law of the arrays that a part makes of a vector."""
    run: Callable[[Any], Any] = lambda coins: outcome(  # noqa: E731
        part.project(vector(values, plain), values, space, coins)
    )
    return Enumeration().law(run)  # type: ignore[return-value]


def release_law(parts: Sequence[Part], values: Values, space: KeySpace, plain: Plain) -> Law:
    """The exact law of a whole release."""
    parameters = Parameters(
        algorithm="tiny", values=values, keys=space, parts=tuple(parts), epsilon=1.0, delta=0.1
    )

    def run(coins: Any) -> Any:
        made = Release.project(parameters, vector(values, plain), coins)
        return tuple(outcome(arrays) for arrays in made.arrays)

    return Enumeration().law(run)  # type: ignore[return-value]


def distance(one: Plain, two: Plain) -> float:
    return sum(abs(one.get(key, 0) - two.get(key, 0)) for key in one.keys() | two.keys())


def grid(coordinates: int, values: Sequence[float]) -> Iterator[Plain]:
    """Every vector over the first coordinates with these values."""
    shape = (len(values),) * coordinates
    for places in np.ndindex(*shape):
        yield {key: values[place] for key, place in enumerate(places)}


def excess(laws: Sequence[tuple[Plain, Law]], epsilon: float) -> float:
    """The worst log-ratio over all pairs, minus epsilon times their distance: at most 0 if private."""
    return max(
        math.log(worst_ratio([p, q])) - epsilon * distance(one, two)
        for (one, p), (two, q) in combinations(laws, 2)
    )


def needed_delta(laws: Sequence[tuple[Plain, Law]], epsilon: float) -> float:
    """The smallest delta that goes with epsilon over all pairs at distance at most 1, both ways round."""
    return max(
        max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
        for (one, p), (two, q) in combinations(laws, 2)
        if distance(one, two) <= 1
    )
