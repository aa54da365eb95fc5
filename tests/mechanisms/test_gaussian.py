"""Gaussian noise: an exact sampler, a delta that holds for the discrete law, accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measuring import KEYS, check_accuracy, crowd

from hubbub.checks.audit import exact_audit, sampled_audit
from hubbub.checks.conformance import check_batch, check_merge, check_wire, task_for
from hubbub.mechanisms.gaussian import GaussianNoise, analytic_scale, discrete_gaussian, gaussian_delta
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Goal
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.errors import Refused
from hubbub.simulation.rehearsal import simulate

COMMON: dict[str, Any] = {"epsilon": 1.0, "max_entries": 1, "size": 2}


def noise_law(scale: float, reach: int) -> Any:
    """P(y) for y = -reach .. reach."""
    weight = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    return weight / weight.sum()


def exact_delta(scale: float, steps: tuple[int, ...], epsilon: float) -> float:
    """Hockey-stick divergence of noise on records that differ by `steps`, by summing over the whole lattice."""
    reach = math.ceil(10 * scale) + max(map(abs, steps))
    one = two = np.ones(1)
    for step in steps:
        noise = noise_law(scale, reach)
        moved = np.roll(noise, step)
        one, two = np.multiply.outer(one, noise), np.multiply.outer(two, moved)
    return float(np.maximum(one - math.exp(epsilon) * two, 0).sum())


@pytest.mark.parametrize("scale", [1, 3])
def test_the_sampler_is_exact(scale: int) -> None:
    """20,000 draws against the law: every frequency within 6 standard errors (false alarms 1e-7)."""
    coins, draws = InsecureCoins(5), 20_000
    drawn = np.array([discrete_gaussian(coins, scale) for _ in range(draws)])
    law = noise_law(scale, 30 * scale)
    for y in range(-4 * scale, 4 * scale + 1):
        p = law[30 * scale + y]
        assert abs((drawn == y).mean() - p) <= 6 * math.sqrt(p * (1 - p) / draws) + 6 / draws
    assert abs(drawn.var() / (law @ np.arange(-30 * scale, 30 * scale + 1) ** 2) - 1) < 6 * math.sqrt(
        2 / draws
    )


def test_published_scale() -> None:
    """Balle and Wang's condition, on both sides of the solution, and the classical scale is larger."""
    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-5), (4.0, 1e-9)):
        scale = analytic_scale(epsilon, delta)
        assert gaussian_delta(epsilon, scale) <= delta < gaussian_delta(epsilon, scale * (1 - 1e-8))
    assert analytic_scale(1.0, 1e-5) < 0.8 * math.sqrt(2 * math.log(1.25 / 1e-5))


@pytest.mark.parametrize("grid", [1, 4])
@pytest.mark.parametrize(
    ("values", "limit", "steps"), [("signed", 1, (2,)), ("signed", 2, (2, 2)), ("set", 1, (1, -1))]
)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_delta_holds_for_the_discrete_law(
    values: Any, limit: int, steps: tuple[int, ...], epsilon: float, grid: int
) -> None:
    """Coarse grids, the farthest records: delta is kept; with a scale 2% below the continuous one it is not."""
    mechanism = GaussianNoise(
        epsilon=epsilon, max_entries=limit, values=values, size=2, delta=1e-4, grid=grid
    )
    apart = tuple(grid * step for step in steps)
    assert exact_delta(mechanism.scale, apart, epsilon) <= mechanism.delta
    if grid > 1:
        needed = analytic_scale(epsilon, 1e-4) * math.hypot(*apart)
        assert exact_delta(0.98 * needed, apart, epsilon) > mechanism.delta


def test_delta_of_closer_records() -> None:
    """Pairs that are less than the largest distance apart lose less."""
    mechanism = GaussianNoise(epsilon=1, max_entries=1, values="signed", size=2, delta=1e-4, grid=3)
    for apart in ((3, 3), (3, -3), (6, 0), (5, 0), (2, 1)):
        assert exact_delta(mechanism.scale, apart, 1.0) <= mechanism.delta


def test_a_fine_grid_wastes_little() -> None:
    """At 256 steps and more, one percent louder (a scale 1% lower) is too much already."""
    mechanism = GaussianNoise(epsilon=1, max_entries=1, values="signed", size=1)
    steps = (2 * mechanism.grid,)
    assert 0.9 * mechanism.delta < exact_delta(mechanism.scale, steps, 1.0) <= mechanism.delta
    assert exact_delta(0.99 * mechanism.scale, steps, 1.0) > mechanism.delta


def test_accuracy() -> None:
    check_accuracy(GaussianNoise(epsilon=4, max_entries=3, values="signed", size=KEYS), "uniform", "mean")


def test_sets_come_back() -> None:
    """Frequencies of 4096 sets, each within 6 standard errors (false alarms 1e-7)."""
    mechanism = GaussianNoise(epsilon=4, max_entries=3, size=KEYS)
    task, entries = task_for(mechanism, KEYS), crowd(mechanism, "uniform")
    found = mechanism.moments(simulate(task, entries, 7).state, task.keys, task.keys.all_ids())
    truth = np.bincount(entries.ids.astype(np.int64), minlength=KEYS) / len(entries)
    assert found.frequency is not None
    assert np.abs(found.frequency - truth).max() <= 6 * math.sqrt(
        mechanism.variance("frequency", len(entries))
    )


@pytest.mark.parametrize("values", ["set", "signed"])
def test_conformance(values: Any) -> None:
    """All but enumeration, which is for pure guarantees; delta is summed up above instead."""
    mechanism = GaussianNoise(epsilon=1, max_entries=2, values=values, size=16)
    check_wire(mechanism)
    check_merge(mechanism)
    check_batch(mechanism)


def test_audits() -> None:
    """Enumeration is refused in a sentence; sampling finds no more than was promised."""
    task = task_for(GaussianNoise(epsilon=8, max_entries=1, values="signed", size=2), 2)
    with pytest.raises(Refused, match="sampled audit"):
        exact_audit(task)
    found = sampled_audit(task, samples=20_000, seeds=1, coins=lambda: InsecureCoins(1))
    assert not found.refuted
    assert found.found > 1


def test_rounding_is_unbiased() -> None:
    """A value between grid steps, 4000 times: within 6 standard errors."""
    mechanism = GaussianNoise(epsilon=16, max_entries=1, values="signed", size=1, grid=1, delta=0.5)
    task = task_for(mechanism, 1)
    entries = Entries(
        np.zeros(4000, dtype=np.uint64),
        np.full(4000, -GRID // 4, dtype=np.int64),
        np.arange(4001, dtype=np.int64),
    )
    reports = mechanism.randomize(task.keys, entries, np.zeros(4000, dtype=np.uint64), InsecureCoins(3))
    values = reports[:, 1].astype(np.int64) - mechanism._most
    assert abs(values.mean() + 0.25) <= 6 * values.std() / math.sqrt(4000)


def test_offered_with_a_delta_only() -> None:
    goal = Goal("mean", 1.0, 8, "signed", keys=64)
    assert list(GaussianNoise.candidates(goal)) == []
    goal = Goal("mean", 1.0, 8, "signed", keys=64, delta=1e-6)
    assert [m.delta for m in GaussianNoise.candidates(goal)] == [1e-6]


@pytest.mark.parametrize(
    "wrong",
    [{"delta": 0.0}, {"delta": 1.0}, {"size": 5000}, {"epsilon": 0.001, "max_entries": 65_000, "grid": 99}],
)
def test_bad_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_mechanism("gaussian", **{**COMMON, **wrong})
