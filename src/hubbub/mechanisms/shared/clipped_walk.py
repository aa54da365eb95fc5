"""A clipped sum of k random signs on the device, its law, and the best noise for it.

At user level a record of exactly k entries, each +1 or -1 after rounding and multiplied by its key's random
sign, sums to a simple random walk of k steps. The estimate for a held key works because the clipped walk still
leans towards its value: `lean` = E[clip(1 + walk of k - 1 steps)]. Everything here depends on k only.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hubbub.model.record import GRID
from hubbub.primitives.arrays import Floats
from hubbub.primitives.batch import per_record
from hubbub.primitives.samplers import UNIT, below, chance, clamped_laplace, favoured_weight, random_sign


class WalkShape(NamedTuple):
    """reach < 0: Laplace; reach = 0: one bit; reach > 0: a favoured window of that half-width around the load."""

    limit: int
    clip: int
    reach: int
    favoured: int
    other: int
    numerator: int
    denominator: int
    steps: int


@per_record
def respond_walk(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    """One clipped bin of exactly `limit` steps of +1 or -1."""
    offsets, values, sign = records.offsets, records.values, records.sign
    clip, reach, favoured, other = shape.clip, shape.reach, shape.favoured, shape.other
    length = offsets[i + 1] - offsets[i]
    load = 0
    for j in range(offsets[i], offsets[i + 1]):
        load += sign[j] * random_sign(tape, values[j], GRID)
    for _ in range(shape.limit - length):
        load += random_sign(tape, 0, 1)
    load = min(max(load, -clip), clip)
    if reach < 0:
        reports[i, 0] = (
            clamped_laplace(tape, load, shape.numerator, shape.denominator, shape.steps) + shape.steps
        )
    elif reach == 0:
        plus = random_sign(tape, load * (favoured - other), clip * (favoured + other)) > 0
        reports[i, 0] = 1 if plus else 0
    else:
        window, rest = 2 * reach + 1, 2 * clip
        if chance(tape, window * favoured, window * favoured + rest * other):
            reports[i, 0] = load + clip + below(tape, window)
        else:
            place = below(tape, rest)
            reports[i, 0] = place + window if place >= load + clip else place


class Walk:
    """Moments of the clipped walk for every clip at once."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @cached_property
    def largest(self) -> int:
        """No clip beyond this is ever worth considering (five standard deviations)."""
        return min(self.steps, math.ceil(5 * math.sqrt(self.steps)) + 1)

    @cached_property
    def _clips(self) -> Floats:
        return np.arange(1, self.largest + 1, dtype=np.float64)

    @cached_property
    def leans(self) -> Floats:
        """lean[c - 1] = E[clip_c(1 + R)], R a walk of steps - 1."""
        places, mass = _walk_law(self.steps - 1)
        return np.array([mass @ np.clip(1 + places, -c, c) for c in self._clips])

    @cached_property
    def squares(self) -> Floats:
        """E[clip_c(R)^2], R a walk of all steps."""
        places, mass = _walk_law(self.steps)
        return np.array([mass @ np.clip(places, -c, c) ** 2 for c in self._clips])

    def unit(self, kind: str, epsilon: float, clip: int, reach: int) -> float:
        """What a report must be multiplied by to estimate a held key without bias."""
        return _gain(kind, epsilon, float(clip), float(reach)) / self._lean(clip)

    def noise(self, kind: str, epsilon: float, clip: int, reach: int) -> float:
        """Mean square of that estimate for an absent key, one user."""
        spread = self._square(clip)
        gain = _gain(kind, epsilon, float(clip), float(reach))
        return _mean_square(kind, epsilon, float(clip), float(reach), spread) * (gain / self._lean(clip)) ** 2

    def _lean(self, clip: int) -> float:
        return float(self.leans[min(clip, self.largest) - 1])

    def _square(self, clip: int) -> float:
        return float(self.squares[min(clip, self.largest) - 1])

    def best(self, kind: str, epsilon: float, clip: int = 0, reach: int = 0) -> tuple[float, str, int, int]:
        """(variance, kind, clip, reach) with the lowest variance; a given clip or reach is kept."""
        found = (math.inf, kind, clip or 1, reach)
        clips = [clip] if clip else range(1, self.largest + 1)
        for c in clips:
            reaches = [reach] if kind != "window" or reach else _reaches(c, epsilon)
            for r in reaches:
                found = min(found, (self.noise(kind, epsilon, c, r), kind, c, r))
        return found


def _reaches(clip: int, epsilon: float) -> range:
    """Half-widths worth trying: around clip / (e^(epsilon / 2) - 1), the continuous optimum."""
    center = clip / math.expm1(epsilon / 2)
    step = max(1, int(center / 16))
    return range(max(1, int(center / 4)), int(2 * center) + 3, step)


def _gain(kind: str, epsilon: float, clip: float, reach: float) -> float:
    """1 / slope of the report's mean in the clipped load."""
    w = favoured_weight(epsilon) / UNIT
    if kind == "bit":
        return clip * (w + 1) / (w - 1)
    if kind == "window":
        window = 2 * reach + 1
        return (window * w + 2 * clip) / (window * (w - 1))
    return 1.0


def _mean_square(kind: str, epsilon: float, clip: float, reach: float, spread: float) -> float:
    """E[report^2] when the clipped load has mean square `spread`."""
    w = favoured_weight(epsilon) / UNIT
    if kind == "bit":
        return 1.0
    if kind == "laplace":
        decay = math.exp(-epsilon / (2 * clip))
        return spread + 2 * decay / (1 - decay) ** 2
    # All outcomes -m .. m with weight 1, and W - 1 more on the window around the load.
    m, window = clip + reach, 2 * reach + 1
    everywhere = m * (m + 1) * (2 * m + 1) / 3
    inside = window * spread + reach * (reach + 1) * (2 * reach + 1) / 3
    return (everywhere + (w - 1) * inside) / (window * w + 2 * clip)


def _walk_law(steps: int) -> tuple[Floats, Floats]:
    """Places and probabilities of a simple random walk."""
    ups = np.arange(steps + 1, dtype=np.float64)
    logs = np.array([math.lgamma(steps + 1) - math.lgamma(u + 1) - math.lgamma(steps - u + 1) for u in ups])
    logs -= steps * math.log(2)
    likely = (
        logs > -200
    )  # what is left out weighs less than 1e-80, and numbers that small slow everything down
    mass = np.exp(logs[likely])
    return 2 * ups[likely] - steps, mass / mass.sum()
