"""What is asked for, from what a mechanism measures: frequency, mean or conditional mean in the units of the task."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from hubbub.model.mechanism import Moments, Quantity
from hubbub.primitives.arrays import Bools, Floats
from hubbub.server.cases import least_named

if TYPE_CHECKING:
    from hubbub.protocol.task import Task


def read_quantity(
    task: Task, moments: Moments, quantity: Quantity, width: float
) -> tuple[Floats, Floats, Floats, Floats, Bools]:
    """value, error, low, high and flags of a quantity in the units of the task."""
    if quantity == "frequency":
        value, variance = moments.frequency, moments.frequency_variance
    elif moments.frequency is None or task.scale.center == 0:
        value = None if moments.mean is None else moments.mean * task.scale.half
        variance = None if moments.mean_variance is None else moments.mean_variance * task.scale.half**2
    else:
        value, variance = _uncentered(task, moments)
    if quantity == "conditional":
        return _conditional(task, moments, width)
    assert value is not None
    assert variance is not None
    error = np.sqrt(variance)
    return value, error, value - width * error, value + width * error, np.zeros(len(value), dtype=bool)


def _uncentered(task: Task, moments: Moments) -> tuple[Floats, Floats]:
    """center * frequency + half * mean, with its variance."""
    center, half = task.scale.center, task.scale.half
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    value = center * moments.frequency + half * moments.mean
    variance = (
        center**2 * moments.frequency_variance
        + half**2 * moments.mean_variance
        + 2 * center * half * moments.covariance
    )
    return value, variance


def _conditional(task: Task, moments: Moments, width: float) -> tuple[Floats, Floats, Floats, Floats, Bools]:
    """mean / frequency with a Fieller interval, cut to the value range.

    Fieller: all ratios q for which mean - q * frequency is within `width` standard errors of 0. Where the
    frequency itself is that close to 0 the set is unbounded: the whole range is given and flagged.
    """
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    f, vf, m, vm = moments.frequency, moments.frequency_variance, moments.mean, moments.mean_variance
    cov = moments.covariance
    flagged = f <= width * np.sqrt(vf)
    if moments.counts is not None:
        flagged = moments.counts.named < least_named(moments.counts, 2 * NormalDist().cdf(-width))
    vf, vm = np.where(flagged, 0.0, vf), np.where(flagged, 0.0, vm)
    safe = np.where(flagged, 1.0, f)
    ratio = np.where(flagged, 0.0, m / safe)
    a = np.where(flagged, 1.0, np.maximum(safe**2 - width**2 * vf, 1e-300))
    b = m * safe - width**2 * cov
    c = m**2 - width**2 * vm
    root = np.sqrt(np.maximum(b**2 - a * c, 0))
    low, high = np.where(flagged, -1.0, (b - root) / a), np.where(flagged, 1.0, (b + root) / a)
    error = np.sqrt(np.maximum(vm - 2 * ratio * cov + ratio**2 * vf, 0)) / np.abs(safe)
    error = np.where(flagged, np.inf, error)
    bottom, top = task.low, task.high

    def restore(scaled: Floats) -> Floats:
        return np.clip(task.scale.center + task.scale.half * scaled, bottom, top)

    value = np.where(flagged, (bottom + top) / 2, restore(ratio))
    return value, task.scale.half * error, restore(low), restore(high), flagged
