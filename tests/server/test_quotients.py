"""Conditional means of keys that are shown because their frequency came out large, from normal estimates."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import small_task
from hubbub.model.mechanism import Moments
from hubbub.primitives.arrays import Bools
from hubbub.server.quantities import _conditional
from hubbub.server.quotients import selected_normal_limits

#: Half of a 95% interval; and what stands out among 30 keys.
WIDTH, APART = 1.96, 3.14
#: Of 40,000 shown keys, 5 standard deviations of their number that are covered: 5.7e-7 on both sides together.
SLACK = 5 * np.sqrt(0.95 * 0.05 / 40_000)


def shown(strength: float, ratio: float, correlation: float) -> Moments:
    """40,000 estimates of one key that are not marked with a question mark: frequency and mean in standard errors."""
    rng = np.random.default_rng(1)
    first, other = rng.standard_normal((2, 4_000_000))
    frequency = 1e-3 * (strength + first)
    mean = 1e-3 * (ratio * strength + correlation * first + np.sqrt(1 - correlation**2) * other)
    chosen = np.flatnonzero(frequency > WIDTH * 1e-3)[:40_000]
    assert len(chosen) == 40_000
    variance = np.full(40_000, 1e-6)
    return Moments(frequency[chosen], variance, mean[chosen], variance, np.full(40_000, correlation * 1e-6))


def covered(ends: tuple[np.ndarray, np.ndarray], ratio: float) -> Bools:
    return np.asarray((ends[0] <= ratio) & (ratio <= ends[1]))


@pytest.mark.parametrize("correlation", [0.0, 0.4, -0.5])
@pytest.mark.parametrize("strength", [1.0, 2.5, 4.0, 7.0])
@pytest.mark.parametrize("ratio", [0.0, 0.6, -0.8])
def test_means_of_selected_keys_hold(strength: float, ratio: float, correlation: float) -> None:
    """94 to 97% of them, whatever the key; a key just at the threshold may hold a little more often."""
    found = covered(selected_normal_limits(shown(strength, ratio, correlation), WIDTH, APART), ratio).mean()
    assert 0.94 - SLACK < found < 0.97 + SLACK


def test_fieller_misses_them_and_so_does_a_share_that_is_30_percent_off() -> None:
    """The interval that does not know of the selection holds for less than 94%; a wrong one is noticed."""
    weak = shown(1.0, 0.8, 0.0)
    task = small_task("coco", target="conditional")
    low, high = _conditional(task, weak, WIDTH)[2:4]
    assert covered((low, high), 0.8).mean() < 0.94 - SLACK
    sure = shown(7.0, 0.6, 0.0)
    assert covered(selected_normal_limits(sure, WIDTH, APART), 1.3 * 0.6).mean() < 0.94 - SLACK


def test_without_selection_it_is_fiellers_interval() -> None:
    """A frequency that is far from 0 was not selected for anything."""
    sure = shown(40.0, 0.5, 0.3)
    task = small_task("coco", target="conditional")
    low, high = _conditional(task, sure, WIDTH)[2:4]
    found = selected_normal_limits(sure, WIDTH, APART)
    assert np.abs(found[0] - low).max() < 5e-4  # half of it is 0.05
    assert np.abs(found[1] - high).max() < 5e-4  # half of it is 0.05
