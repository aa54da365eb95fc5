"""Predicted errors of each part, from public parameters alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hubbub.release.alp import Alp
from hubbub.release.heights import fall_for
from hubbub.release.laplace import Laplace
from hubbub.release.maximum import MaxProjection
from hubbub.release.noise import Scale, decay
from hubbub.release.part import Part
from hubbub.release.threshold import Threshold
from hubbub.release.trials import height_error, ones_after

#: Mean absolute and mean square error, in steps of the grid.
Error = tuple[float, float]


@dataclass(frozen=True)
class Crowd:
    """What public bounds say about the other entries: how often a cell is hit, and how large they are."""

    load: float
    mean_size: float
    mean_square: float


def laplace_error(scale: Scale) -> Error:
    """Of discrete Laplace noise: 2r / (1 - r^2) and 2r / (1 - r)^2."""
    r = decay(scale)
    return 2 * r / (1 - r * r), 2 * r / (1 - r) ** 2


def predict(parts: tuple[Part, ...], value: int, crowd: Crowd) -> Error:
    """The error at one true value, in steps."""
    first, rest = parts[0], parts[1:]
    if isinstance(first, Laplace):
        return laplace_error(first.scale)
    if isinstance(first, Alp):
        return _alp_error(first, value, crowd)
    if isinstance(first, MaxProjection):
        noise, square = laplace_error(first.scale)
        return noise + crowd.load * crowd.mean_size, square + crowd.load * crowd.mean_square
    assert isinstance(first, Threshold)
    unlisted = predict(rest, value, crowd) if rest else (float(value), float(value) ** 2)
    return _listed_or(first, value, unlisted)


def _listed_or(part: Threshold, value: int, unlisted: Error) -> Error:
    """Noise where the noisy value reaches the threshold, the other part's error (or the value) elsewhere."""
    seen, absolute, square = _from(part.scale, part.threshold - value)
    if part.delta and value == 0:
        seen = absolute = square = 0.0
    return absolute + (1 - seen) * unlisted[0], square + (1 - seen) * unlisted[1]


def _from(scale: Scale, least: int) -> tuple[float, float, float]:
    """P(noise >= least), and the parts of E|noise| and of E noise^2 that come from there."""
    if least <= 0:
        mass, absolute, square = _from(scale, 1 - least)
        whole = laplace_error(scale)
        return 1 - mass, whole[0] - absolute, whole[1] - square
    # Given noise >= least it is least + G, where G is geometric: E G = r / (1 - r), E G^2 = r (1 + r) / (1 - r)^2.
    r = decay(scale)
    mass, mean = r**least / (1 + r), r / (1 - r)
    return mass, mass * (least + mean), mass * (least**2 + 2 * least * mean + mean * (1 + r) / (1 - r))


def _alp_error(part: Alp, value: int, crowd: Crowd) -> Error:
    q = ones_after(part.p, crowd.load)
    if part.growth == 1:
        # Far from both ends the law of the error is the same everywhere.
        last, far = part.gap * part.levels, 200 * part.gap
        if value <= last - far and value > 2 * far:
            value = far + value % part.gap
        return height_error(float(value), float(part.gap), part.levels, part.p, q)
    breaks = part.breaks
    height = float(np.interp(value, breaks, np.arange(len(breaks))))
    inside = float(breaks[0]) * part.growth**height
    levels_off = height_error(height, 1.0, part.levels, part.p, q)[0]
    spread = inside * (part.growth**levels_off - 1) + abs(inside - value)
    return spread, spread**2


def reads(part: Part, value: int, crowd: Crowd) -> int:
    """Cells that a query looks at."""
    if not isinstance(part, Alp):
        return 1
    q = ones_after(part.p, crowd.load)
    fall = fall_for(2.0**-40, q)
    if fall is None:
        return part.levels
    height = int(np.searchsorted(part.breaks, value))
    return min(part.levels, height + math.ceil(fall / (1 - 2 * q)))
