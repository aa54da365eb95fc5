"""Projections onto the simplex and least squares on it, against brute force, optimality and scipy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers import steady
from hubbub.model.measurements import Measurements
from hubbub.primitives.errors import Refused
from hubbub.server.recovery.simplex import least_squares, project, project_l1, project_sparse, project_within

Floats = NDArray[np.float64]

VECTORS = st.lists(st.floats(-3, 3, allow_nan=False, width=32), min_size=1, max_size=12)
TOTALS = st.sampled_from([0.25, 1.0, 4.0])


def corners(size: int, total: float) -> Floats:
    """The corners of the simplex: a linear function is largest on it at one of them."""
    return total * np.eye(size)


@steady
@given(VECTORS, TOTALS)
def test_projection_is_the_nearest_point(values: list[float], total: float) -> None:
    """x is nearest iff (v - x)(y - x) <= 0 for every y of the simplex, which its corners decide."""
    v = np.array(values)
    x = project(v, total)
    assert x.min() >= 0
    assert x.sum() == pytest.approx(total, abs=1e-9)
    assert ((corners(len(v), total) - x) @ (v - x)).max() <= 1e-9
    assert project(x, total) == pytest.approx(x, abs=1e-9)


@steady
@given(VECTORS, TOTALS)
def test_projection_within(values: list[float], total: float) -> None:
    """The same with the origin as one more corner."""
    v = np.array(values)
    x = project_within(v, total)
    assert x.min() >= 0
    assert x.sum() <= total + 1e-9
    everything = np.vstack([corners(len(v), total), np.zeros(len(v))])
    assert ((everything - x) @ (v - x)).max() <= 1e-9


@steady
@given(VECTORS, TOTALS)
def test_l1_projection_is_as_near_as_can_be(values: list[float], total: float) -> None:
    v = np.array(values)
    x = project_l1(v, total)
    assert x.min() >= 0
    assert x.sum() == pytest.approx(total, abs=1e-9)
    bound = np.maximum(-v, 0).sum() + abs(np.maximum(v, 0).sum() - total)
    assert np.abs(v - x).sum() == pytest.approx(bound, abs=1e-6)
    for other in (project(v, total), *corners(len(v), total)):
        assert np.abs(v - other).sum() >= bound - 1e-9


@steady
@given(
    st.lists(st.floats(-3, 3, allow_nan=False, width=32), min_size=1, max_size=7), TOTALS, st.integers(1, 7)
)
def test_sparse_projection_is_the_best_of_all_supports(
    values: list[float], total: float, sparsity: int
) -> None:
    v = np.array(values)
    sparsity = min(sparsity, len(v))
    x = project_sparse(v, sparsity, total)
    assert np.count_nonzero(x) <= sparsity
    distances = []
    for support in combinations(range(len(v)), sparsity):
        y = np.zeros(len(v))
        y[list(support)] = project(v[list(support)], total)
        distances.append(float(((v - y) ** 2).sum()))
    assert float(((v - x) ** 2).sum()) == pytest.approx(min(distances), abs=1e-9)


def test_rows_are_projected_one_by_one() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 4, 50))
    for function in (project, project_within, project_l1, lambda v: project_sparse(v, 7)):
        together = function(rows)
        assert together.shape == rows.shape
        assert all(np.allclose(together[i, j], function(rows[i, j])) for i in range(3) for j in range(4))


def test_extreme_values() -> None:
    assert project([1e300, -1e300, 0.0]).tolist() == [1.0, 0.0, 0.0]
    assert project([5.0]).tolist() == [1.0]
    assert project(np.zeros(4)).tolist() == [0.25] * 4
    assert project_l1([-1.0, -2.0], 3.0).tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    "function", [project, project_within, project_l1, lambda v, t: project_sparse(v, 1, t)]
)
def test_bad_input(function: Any) -> None:
    for values, total in (([], 1.0), (3.0, 1.0), ([np.nan], 1.0), ([np.inf, 0], 1.0)):
        with pytest.raises(Refused):
            function(values, total)
    for total in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(Refused, match="positive"):
            function([1.0], total)


def test_bad_sparsity() -> None:
    for sparsity in (0, 3):
        with pytest.raises(Refused, match="between 1 and 2"):
            project_sparse([0.0, 1.0], sparsity)


@dataclass(frozen=True)
class Dense:
    """A stored matrix of one block, behind the interface of the implicit ones."""

    array: Floats

    @property
    def rows(self) -> int:
        return len(self.array)

    blocks = 1

    @property
    def block(self) -> NDArray[np.int64]:
        return np.zeros(self.array.shape[1], dtype=np.int64)

    def columns(self, places: NDArray[np.int64]) -> Floats:
        return self.array[:, places]

    def adjoint(self, residual: Floats) -> Floats:
        return self.array.T @ residual[:, 0]

    def squares(self, precision: Floats) -> Floats:
        return (self.array**2).T @ precision[:, 0]


@pytest.mark.parametrize("seed", range(6))
def test_least_squares_against_scipy(seed: int) -> None:
    """Weighted, under-determined and constrained: the same misfit as a general solver, and feasible."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    rows, keys, total = 12, 20, (1.0, 0.3)[seed % 2]
    array, precision = rng.normal(size=(rows, keys)), rng.uniform(0.5, 2, (rows, 1))
    wanted = array @ project(rng.normal(size=keys)) + rng.normal(0, 0.3, rows)
    found = least_squares(Measurements(Dense(array), wanted[:, None], precision), total)

    def misfit(x: Floats) -> float:
        return float(precision[:, 0] @ (wanted - array @ x) ** 2)

    oracle = minimize(
        misfit,
        np.full(keys, total / keys),
        jac=lambda x: -2 * array.T @ (precision[:, 0] * (wanted - array @ x)),
        bounds=[(0, None)] * keys,
        constraints={"type": "ineq", "fun": lambda x: total - x.sum()},
        options={"ftol": 1e-13, "maxiter": 2000},
        method="SLSQP",
    )
    assert found.min() >= 0
    assert found.sum() <= total + 1e-9
    assert misfit(found) <= misfit(np.maximum(oracle.x, 0)) * (1 + 1e-3) + 1e-9
