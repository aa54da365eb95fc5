"""Matrices that are never stored, and what the pursuits find through them."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.checks.conformance import task_for
from hubbub.mechanisms.compressive import Compressive
from hubbub.model.keys import Keys
from hubbub.model.measurements import Measurements, SignMatrix
from hubbub.model.record import GRID, Entries
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.recovery.pursuit import (
    Recovered,
    pursue_blocks,
    pursue_noise,
    pursue_sparsity,
    refit,
    threshold,
)
from hubbub.server.recovery.refine import block_sparsity
from hubbub.simulation.rehearsal import simulate

Floats = NDArray[np.float64]
SIGMAS = 6.0


def matrix_of(size: int, rows: int, blocks: int = 1, family: str = "walsh", salt: int = 1) -> SignMatrix:
    keys = Keys(kind="closed", size=size, salt=f"{salt:016x}" * 2)
    mechanism = Compressive(epsilon=8.0, rows=rows, blocks=blocks, family=family)
    return mechanism.matrix(keys, keys.all_ids())


def full(matrix: SignMatrix) -> Floats:
    """[rows * blocks, keys], stored."""
    dense = np.zeros((matrix.rows, matrix.blocks, len(matrix.ids)))
    dense[:, matrix.block, np.arange(len(matrix.ids))] = matrix.signs
    return dense.reshape(-1, len(matrix.ids))


def measure(matrix: SignMatrix, truth: Floats, noise: float, seed: int) -> Measurements:
    """Exact measurements with normal noise, of another size in every row."""
    rng = np.random.default_rng(seed)
    spread = noise * rng.uniform(0.5, 2, (matrix.rows, matrix.blocks))
    values = (full(matrix) @ truth).reshape(spread.shape) + rng.normal(size=spread.shape) * spread
    return Measurements(matrix, values, 1 / spread**2)


def sparse_truth(size: int, count: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    truth = np.zeros(size)
    truth[rng.choice(size, count, replace=False)] = rng.uniform(0.5, 1.5, count) / count
    return truth


@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_the_implicit_matrix_is_the_stored_one(family: str, blocks: int) -> None:
    matrix = matrix_of(300, 40, blocks, family)
    dense, rng = full(matrix), np.random.default_rng(2)
    assert set(np.unique(matrix.signs)) == {-1, 1}
    assert set(matrix.block) == set(range(blocks))
    residual, precision = rng.normal(size=(40, blocks)), rng.uniform(0, 2, (40, blocks))
    assert matrix.adjoint(residual) == pytest.approx(dense.T @ residual.reshape(-1))
    assert matrix.squares(precision) == pytest.approx((dense**2).T @ precision.reshape(-1))
    places = np.array([7, 250, 0])
    measured = Measurements(matrix, residual, precision)
    weighted = np.sqrt(precision).reshape(-1, 1)
    assert measured.columns(places) == pytest.approx(dense[:, places] * weighted)
    assert measured.columns(places[:0]).shape == (40 * blocks, 0)


def test_a_large_walsh_matrix_in_compiled_code() -> None:
    """Past the size where the compiled transform takes over."""
    matrix, rng = matrix_of(70_000, 30, 2), np.random.default_rng(3)
    residual, places = rng.normal(size=(30, 2)), np.array([0, 1, 34_567, 69_999])
    own = np.array(
        [matrix.columns(places)[:, i] @ residual[:, matrix.block[p]] for i, p in enumerate(places)]
    )
    assert matrix.adjoint(residual)[places] == pytest.approx(own)


def test_hadamard_over_the_blocks_changes_nothing() -> None:
    """The paper's A1 (x) A2 with A1 = H_L is this matrix times an orthogonal one: same fit, same correlations."""
    matrix = matrix_of(60, 20, 4)
    dense, rng = full(matrix), np.random.default_rng(4)
    hadamard = np.array([[1 - 2 * ((i & j).bit_count() & 1) for j in range(4)] for i in range(4)]) / 2
    outer = np.kron(np.eye(20), hadamard)
    values = rng.normal(size=80)
    assert (outer @ dense).T @ (outer @ values) == pytest.approx(dense.T @ values)
    places = np.array([3, 17, 40, 41])
    ours = refit(Measurements(matrix, values.reshape(20, 4), np.ones((20, 4))), places).values
    theirs = np.linalg.lstsq(outer @ dense[:, places], outer @ values, rcond=None)[0]
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize(("blocks", "sparsity"), [(1, 5), (1, 12), (4, 9)])
def test_matching_pursuit_against_scikit_learn(family: str, blocks: int, sparsity: int) -> None:
    """The same keys with the same values on a stored matrix, noise included."""
    sklearn: Any = pytest.importorskip("sklearn.linear_model")
    matrix = matrix_of(200, 60, blocks, family)
    truth = sparse_truth(200, sparsity, seed=5)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        values = full(matrix) @ truth + rng.normal(0, 0.1, 60 * blocks)
        found = pursue_sparsity(
            Measurements(matrix, values.reshape(60, blocks), np.ones((60, blocks))), sparsity
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            oracle = sklearn.OrthogonalMatchingPursuit(n_nonzero_coefs=sparsity, fit_intercept=False)
            oracle.fit(full(matrix), values)
        assert found.dense() == pytest.approx(oracle.coef_, abs=1e-8)


def test_no_noise_no_error() -> None:
    """Without noise all three find the truth to rounding."""
    truth = sparse_truth(2000, 12, seed=6)
    one = Measurements(matrix_of(2000, 128), np.zeros(0), np.zeros(0))
    exact = (one.matrix.columns(np.arange(2000)) @ truth)[:, None]
    measured = Measurements(one.matrix, exact, np.full((128, 1), 1e12))
    assert pursue_sparsity(measured, 12).dense() == pytest.approx(truth, abs=1e-9)
    assert pursue_noise(measured).dense() == pytest.approx(truth, abs=1e-4)
    blocked = measure(matrix_of(2000, 128, 4), truth, 1e-9, seed=1)
    assert pursue_blocks(blocked, block_sparsity(12, 4)).dense() == pytest.approx(truth, abs=1e-6)


def test_refitted_errors_are_right() -> None:
    """(value - truth) / error has mean square 1 on the right keys (false alarms 1e-6); 30% wrong is noticed."""
    matrix, squares = matrix_of(2000, 200), []
    for seed in range(120):
        truth = sparse_truth(2000, 10, seed)
        found = refit(measure(matrix, truth, 0.03, seed), np.flatnonzero(truth))
        squares.append(float(np.mean(((found.values - truth[found.places]) / found.errors) ** 2)))
    mean, spread = np.mean(squares), np.std(squares, ddof=1) / math.sqrt(len(squares))
    assert SIGMAS * spread < 0.4
    assert abs(mean - 1) <= SIGMAS * spread
    for wrong in (0.7, 1.3):
        assert abs(mean / wrong**2 - 1) > SIGMAS * spread / wrong**2


def test_pure_noise_finds_nothing() -> None:
    """At most 5% of noise-only measurements give any key; with a limit 30% lower most do.

    False alarms: 48 or more of 400 at a probability of 0.05 happen with probability below 1e-6.
    """
    matrix = matrix_of(500, 64)
    found = [len(pursue_noise(measure(matrix, np.zeros(500), 1.0, seed)).places) > 0 for seed in range(400)]
    assert sum(found) < 48
    loose = 500 * (1 - _normal(0.7 * threshold(500)))
    often = [
        len(pursue_noise(measure(matrix, np.zeros(500), 1.0, s), odds=loose).places) > 0 for s in range(50)
    ]
    assert sum(often) > 25


def _normal(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def test_keys_chosen_by_crosstalk_are_dropped_again() -> None:
    """With many equal keys the first choices are often wrong; nothing is left that does not stand out at the end."""
    matrix = matrix_of(4000, 128)
    for seed in range(10):
        truth = np.zeros(4000)
        truth[np.random.default_rng(seed).choice(4000, 18, replace=False)] = 1 / 18
        found = pursue_noise(measure(matrix, truth, 0.05, seed))
        assert (found.values >= threshold(4000) * found.errors).all()
        assert found.complete


def test_too_many_keys_for_the_rows_is_said() -> None:
    truth = np.full(400, 1 / 40)
    found = pursue_noise(measure(matrix_of(400, 16), truth, 1e-3, seed=1))
    assert len(found.places) <= 8
    assert not found.complete


def test_equal_columns_are_chosen_once() -> None:
    """Eight Walsh rows tell few keys apart; what cannot be told apart is not chosen twice, and nothing divides by 0."""
    keys = Keys(kind="closed", size=15, bits=4, salt="01" * 16)
    matrix = Compressive(epsilon=1.0, rows=3).matrix(keys, keys.all_ids())
    measured = Measurements(matrix, np.ones((3, 1)), np.ones((3, 1)))
    for found in (pursue_sparsity(measured, 3), pursue_blocks(measured, 3), pursue_noise(measured)):
        assert np.isfinite(found.values).all()
        assert np.isfinite(found.errors).all()


def test_sparsity_out_of_range() -> None:
    measured = measure(matrix_of(100, 16), np.zeros(100), 1.0, seed=1)
    for pursue in (pursue_sparsity, pursue_blocks):
        for sparsity in (0, 17):
            with pytest.raises(Refused, match="ask for 1 to 16"):
                pursue(measured, sparsity)


def test_block_sparsity_holds_with_probability_95() -> None:
    rng = np.random.default_rng(1)
    for sparsity, blocks in ((25, 8), (10, 2), (3, 16), (5, 1)):
        allowed = block_sparsity(sparsity, blocks)
        largest = np.array(
            [np.bincount(rng.integers(0, blocks, sparsity), minlength=blocks).max() for _ in range(4000)]
        )
        assert (largest > allowed).mean() < 0.05 + SIGMAS * math.sqrt(0.05 / 4000)
    assert block_sparsity(5, 1) == 5


# Through the mechanism


def crowd_of(truth: Floats, users: int, seed: int) -> Entries:
    """Users who hold one key each, by the law `truth`."""
    held = np.random.default_rng(seed).choice(len(truth), users, p=truth).astype(np.uint64)
    return Entries(held, np.full(users, GRID, dtype=np.int64), np.arange(users + 1, dtype=np.int64))


def uniform(keys: int, count: int, seed: int) -> Floats:
    truth = np.zeros(keys)
    truth[np.random.default_rng(seed).choice(keys, count, replace=False)] = 1 / count
    return truth


def geometric(keys: int, rate: float, seed: int) -> Floats:
    law = rate * (1 - rate) ** np.arange(40)
    truth = np.zeros(keys)
    truth[np.random.default_rng(seed).choice(keys, 40, replace=False)] = law / law.sum()
    return truth


def collected(truth: Floats, users: int, seed: int, **parameters: Any) -> tuple[Task, Measurements]:
    mechanism = Compressive(**{"epsilon": 1.0, "rows": 500, "blocks": 1, **parameters})
    task = task_for(mechanism, len(truth), salt=f"{seed:016x}" * 2)
    state = simulate(task, crowd_of(truth, users, seed), 10 * seed).state
    return task, mechanism.measurements(state, task.keys)


def distance(found: Recovered, truth: Floats) -> float:
    return float(np.abs(found.dense() - truth).sum())


def test_published_setting() -> None:
    """Unif(10), k = 1e4, m = 500, epsilon = 1: l1 errors of 0.077 / 0.038 / 0.017 at n = 5e4 / 2e5 / 1e6.

    That is what least squares on the ten keys has: ten normal errors of variance (c^2 - 0.1) / (n (1 - 10 / 500)).
    Measured over predicted is 1 within six standard errors (false alarms 1e-6); 30% off is noticed. The noise level
    finds the same keys, and one too many in at most 5% of the runs (14 of 48 happen with probability below 1e-6).
    """
    ratios, extra = [], 0
    for users, runs in ((50_000, 30), (200_000, 14), (1_000_000, 4)):
        predicted = 10 * math.sqrt(2 / math.pi * (Compressive(epsilon=1.0).gain ** 2 - 0.1) / users / 0.98)
        for seed in range(runs):
            truth = uniform(10_000, 10, seed)
            _, measured = collected(truth, users, seed)
            found = pursue_sparsity(measured, 10)
            assert np.array_equal(np.sort(found.places), np.flatnonzero(truth))
            ratios.append(distance(found, truth) / predicted)
            told = pursue_noise(measured)
            assert set(found.places) <= set(told.places)
            extra += len(told.places) - 10
    mean, spread = np.mean(ratios), np.std(ratios, ddof=1) / math.sqrt(len(ratios))
    assert SIGMAS * spread < 0.25
    assert abs(mean - 1) <= SIGMAS * spread
    for wrong in (0.7, 1.3):
        assert abs(mean / wrong - 1) > SIGMAS * spread / wrong
    assert extra < 14


@pytest.mark.parametrize(("rate", "limit", "given"), [(0.8, 0.03, 2), (0.6, 0.05, 3)])
def test_the_noise_level_keeps_improving_where_a_given_sparsity_stalls(
    rate: float, limit: float, given: int
) -> None:
    """Geometric laws are only nearly sparse; errors averaged over four crowds."""
    errors = {users: [0.0, 0.0] for users in (50_000, 200_000, 1_000_000)}
    for seed in range(4):
        truth = geometric(10_000, rate, seed)
        for users, sums in errors.items():
            _, measured = collected(truth, users, seed)
            sums[0] += distance(pursue_noise(measured), truth) / 4
            sums[1] += distance(pursue_sparsity(measured, given), truth) / 4
    by_noise, by_number = zip(*errors.values(), strict=True)
    assert by_noise[0] > by_noise[1] > by_noise[2]
    assert by_noise[2] < limit
    assert by_number[2] > (1 - rate) ** given


def test_walsh_and_rademacher_are_equally_good() -> None:
    """Mean l1 errors of both matrices over 40 crowds each differ by no more than chance (6 standard errors).

    The comparison would notice errors that are 30% larger.
    """
    errors = {}
    for family in ("walsh", "prf"):
        errors[family] = []
        for seed in range(40):
            truth = uniform(600, 30, seed)
            _, measured = collected(truth, 100_000, seed, epsilon=2.0, rows=300, family=family)
            errors[family].append(distance(pursue_noise(measured), truth))
    means = {family: np.mean(found) for family, found in errors.items()}
    spread = math.hypot(*(np.std(found, ddof=1) / math.sqrt(40) / means[f] for f, found in errors.items()))
    ratio = means["walsh"] / means["prf"]
    assert abs(ratio - 1) <= SIGMAS * spread
    for wrong in (0.7, 1.3):
        assert abs(ratio / wrong - 1) > SIGMAS * spread / wrong


def test_recursive_recovery_beats_one_bit_at_medium_epsilon() -> None:
    """epsilon = 3: eight blocks have 0.42 / 1.22 of one bit's variance per row and key, so 0.59 of the error."""
    errors = {1: 0.0, 8: 0.0}
    for seed in range(6):
        truth = uniform(5000, 16, seed)
        for blocks in errors:
            _, measured = collected(truth, 30_000, seed, epsilon=3.0, blocks=blocks, rows=512)
            errors[blocks] += distance(pursue_noise(measured), truth)
            if blocks == 8:
                found = pursue_blocks(measured, block_sparsity(16, 8))
                assert set(np.flatnonzero(truth)) <= set(found.places)
    assert 0.4 < errors[8] / errors[1] < 0.8


def test_a_million_keys_in_little_memory() -> None:
    """k = 1e6, m = 500, s = 25: the pursuit's arrays stay below 200 MB (a stored matrix would be 500 or more)."""
    truth = uniform(1_000_000, 25, 1)
    _, measured = collected(truth, 400_000, 1, epsilon=2.0)
    measured.scores(measured.whitened)
    tracemalloc.start()
    found = pursue_sparsity(measured, 25)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = sum(a.nbytes for a in vars(measured.matrix).values() if isinstance(a, np.ndarray))
    assert np.array_equal(np.sort(found.places), np.flatnonzero(truth))
    assert peak + kept < 200e6
