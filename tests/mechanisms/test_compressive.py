"""Compressive privatization: privacy, linear estimates with crosstalk, its three schemes, and odd parameters."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from measuring import check_accuracy, crowd
from scipy.stats import binom

from hubbub.checks.conformance import check_batch, check_merge, check_privacy, check_wire, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal
from hubbub.model.record import GRID, Entries
from hubbub.primitives.errors import Refused
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import repeated_states, simulate, true_values

SIGMAS = 6.0


@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize(("epsilon", "blocks"), [(0.5, 1), (1.0, 2), (2.0, 4), (3.0, 8)])
def test_conformance(family: str, epsilon: float, blocks: int) -> None:
    """One bit and recursive, both matrices, rows that are no power of two included."""
    mechanism = Compressive(epsilon=epsilon, blocks=blocks, family=family, rows=500)
    assert mechanism.parts == blocks
    check_privacy(mechanism, seeds=(0, 7), keys=4)
    check_wire(mechanism)
    check_merge(mechanism)
    check_batch(mechanism)


class Louder(Compressive):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


@pytest.mark.parametrize(("epsilon", "blocks"), [(1.0, 1), (2.0, 4)])
def test_enumeration_notices_one_percent(epsilon: float, blocks: int) -> None:
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=epsilon, blocks=blocks), keys=4)


@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
def test_accuracy_of_one_bit(kind: str) -> None:
    """With as many rows as there are there is hardly any crosstalk: one-bit Hadamard response."""
    check_accuracy(Compressive(epsilon=1.0, rows=1 << 16, blocks=1), kind, "frequency")


def test_accuracy_of_the_recursive_scheme() -> None:
    check_accuracy(Compressive(epsilon=2.0, rows=1 << 14, blocks=4), "uniform", "frequency")


@pytest.mark.parametrize("family", ["walsh", "prf"])
@pytest.mark.parametrize(("epsilon", "blocks"), [(1.0, 1), (2.0, 2)])
def test_error_bars_count_the_crosstalk(family: str, epsilon: float, blocks: int) -> None:
    """Few rows, new public signs every run: squared errors match the error bars (false alarms about 1e-6).

    Bars without the crosstalk, and bars 30% off, are noticed.
    """
    keys, runs = 48, 150
    mechanism = Compressive(epsilon=epsilon, rows=48, blocks=blocks, family=family)
    entries = crowd(mechanism, "zipf")
    truth = np.bincount(entries.ids.astype(np.int64), minlength=keys) / len(entries)
    ratios, plain, lean = [], [], []
    for run in range(runs):
        task = task_for(mechanism, keys, salt=f"{run:016x}" * 2)
        found = mechanism.moments(simulate(task, entries, 10 * run).state, task.keys, task.keys.all_ids())
        assert found.frequency is not None
        assert found.frequency_variance is not None
        error = found.frequency - truth
        noise = mechanism.gain**2 / mechanism.parts / len(entries)
        ratios.append(float(np.mean(error**2 / found.frequency_variance)))
        plain.append(float(np.mean(error**2 / noise)))
        lean.append(float(np.mean(error[:8]) / math.sqrt(noise)))
    ratio, spread = np.mean(ratios), np.std(ratios, ddof=1) / math.sqrt(runs)
    assert SIGMAS * spread < 0.22, "too few runs to notice bars that are 30% off"
    assert abs(ratio - 1) <= SIGMAS * spread
    for wrong in (0.7, 1.3):
        assert abs(ratio / wrong - 1) > SIGMAS * spread / wrong
    assert np.mean(plain) - 1 > SIGMAS * np.std(plain, ddof=1) / math.sqrt(runs)
    assert abs(np.mean(lean)) <= SIGMAS * np.std(lean, ddof=1) / math.sqrt(runs)


def test_one_bit_is_the_symmetric_scheme() -> None:
    """The law of (row drawn evenly, noisy sign) is (11) of the paper with the response matrix [A; -A], exactly."""
    mechanism = Compressive(epsilon=1.0, rows=8, blocks=1)
    task = task_for(mechanism, 5)
    ratio = Fraction(*mechanism.weights)
    for key in range(5):
        column = mechanism.matrix(task.keys, task.keys.all_ids()).signs[:, key]
        response = np.concatenate([column, -column])
        favoured = int((response > 0).sum())
        total = favoured * ratio + len(response) - favoured
        for row in range(8):
            law = law_of(task, {str(key): 1.0}, row)
            for sign, place in ((1, row), (0, row + 8)):
                published = (ratio if response[place] > 0 else 1) / total
                assert Fraction(1, 8) * law[(sign,)] == published


def test_recursive_reports_are_block_and_sign() -> None:
    """(14) of the paper, with 1 / (e^eps + 2L - 1) for every outcome but the true one."""
    mechanism = Compressive(epsilon=2.0, rows=8, blocks=4)
    task = task_for(mechanism, 5)
    matrix = mechanism.matrix(task.keys, task.keys.all_ids())
    ratio = Fraction(*mechanism.weights)
    for key in range(5):
        law = law_of(task, {str(key): 1.0}, 3)
        true = 2 * int(matrix.block[key]) + int(matrix.signs[3, key] > 0)
        assert law == {(z,): (ratio if z == true else 1) / (ratio + 7) for z in range(8)}
    assert law_of(task, {}, 3) == {(z,): Fraction(1, 8) for z in range(8)}


def test_blocks_follow_epsilon() -> None:
    """The lowest variance among powers of two up to exp(epsilon), and up to the sparsity."""
    chosen = [Compressive(epsilon=e).blocks for e in (0.3, 1.0, 2.0, 3.0)]
    assert chosen == [1, 1, 4, 8]
    assert Compressive(epsilon=3.0, sparsity=6).blocks == 4


def test_blocks_out_of_range_are_reduced_and_said() -> None:
    """exp(1) < 16: two blocks are used, and every estimate says so."""
    mechanism = Compressive(epsilon=1.0, blocks=16)
    assert (mechanism.parts, mechanism.layout.fields[1].limit) == (2, 4)
    task = task_for(mechanism, 16)
    state = simulate(task, crowd(mechanism, "uniform").slice(0, 0), 1).state
    state.count, state.totals[0, 0] = 1, 1
    assert "2 are used instead of 16" in estimate(task, state, refine="none").notes[0]
    assert "1 is used instead of 4" in Compressive(epsilon=0.5, blocks=4).remarks[0]
    assert "4 are used instead of 8" in Compressive(epsilon=3.0, blocks=8, sparsity=5).remarks[0]
    assert Compressive(epsilon=3.0, blocks=8).remarks == ()


def test_rows_that_are_no_power_of_two() -> None:
    """500 of 512: the first twelve come twice as often, no other row is ever sent, and the variance knows."""
    mechanism = Compressive(epsilon=1.0, rows=500, blocks=1)
    users = 51_200
    crowd = Entries(np.zeros(users, np.uint64), np.full(users, GRID), np.arange(users + 1))
    seen = simulate(task_for(mechanism), crowd, 1).state.totals.sum(axis=1)
    assert abs(seen[:12].mean() - 200) < SIGMAS * math.sqrt(200 / 12)
    assert abs(seen[12:].mean() - 100) < SIGMAS * math.sqrt(100 / 488)
    drawn = np.array([2] * 12 + [1] * 488) / 512
    crosstalk = mechanism.variance("frequency", users) - mechanism.gain**2 / users
    assert crosstalk == pytest.approx(0.25 * (drawn**2).sum(), rel=1e-9)


def test_the_planner_is_offered_rows_for_unbiased_estimates() -> None:
    """Crosstalk is at most 3% of the variance where the codes have room for the rows, and all rows are used else."""
    for users, keys in ((1000, 100), (20_000, 100), (10_000_000, 100)):
        for made in Compressive.candidates(Goal("frequency", 2.0, 1, users=users, keys=keys)):
            noise = made.gain**2 / made.parts / users
            full = made.rows * made.parts == 1 << 16
            assert made.variance("frequency", users) <= 1.03 * noise * (1 + 1e-9) or full
            assert made.rows == 1 << made.layout.fields[0].bits


def test_fewer_users_than_rows() -> None:
    """Rows without reports are left out, and the note says how many; nothing is found in five reports."""
    mechanism = Compressive(epsilon=1.0)
    task = task_for(mechanism, 100)
    entries = Entries(np.zeros(5, np.uint64), np.full(5, GRID), np.arange(6))
    result = estimate(task, simulate(task, entries, 3).state)
    assert not result.value.any()
    assert np.isfinite(result.error).all()
    assert any("507 of 512 rows have no reports" in note for note in result.notes)
    linear = estimate(task, simulate(task, entries, 3).state, refine="none")
    assert np.isfinite(linear.error).all()


def test_bad_use() -> None:
    with pytest.raises(Refused, match="power of two"):
        make_mechanism("compressive", epsilon=2.0, blocks=3)
    with pytest.raises(Refused, match="cannot be told apart by 10 rows"):
        make_mechanism("compressive", epsilon=1.0, rows=10, sparsity=11)
    small = Keys(kind="closed", size=3, bits=4)
    for use in (lambda m: m.empty(small), lambda m: m.check_keys(small)):
        with pytest.raises(Refused, match="more than the 16 Walsh rows"):
            use(Compressive(epsilon=2.0, rows=8, blocks=4))
    Compressive(epsilon=2.0, rows=8, blocks=4, family="prf").check_keys(small)
    Compressive(epsilon=2.0, rows=4, blocks=4).check_keys(small)
    with pytest.raises(Refused, match="closed vocabulary"):
        Compressive(epsilon=1.0).empty(Keys(kind="folded", bits=16))
    with pytest.raises(Refused, match="cohorts = 1"):
        Compressive(epsilon=1.0).empty(Keys(kind="closed", size=3, cohorts=2))


def test_wire_and_matrix_are_pinned() -> None:
    """Format version 1: a change of these bytes or signs would misread reports that are already out."""
    mechanism = Compressive(epsilon=2.0, rows=512, blocks=4)
    assert (mechanism.layout.bits, mechanism.layout.width) == (12, 2)
    assert mechanism.layout.pack(np.array([[301, 5]], dtype=np.uint64)).tobytes().hex() == "2d0b"
    keys = Keys(kind="closed", size=6, salt="000102030405060708090a0b0c0d0e0f")
    pinned = {"walsh": WALSH, "prf": PRF}
    for family, wanted in pinned.items():
        matrix = mechanism.model_copy(update={"family": family}).matrix(keys, keys.all_ids())
        assert "".join("+" if sign > 0 else "-" for sign in matrix.signs[:4].reshape(-1)) == wanted
        assert matrix.block.tolist() == BLOCKS


WALSH = "--+-+++-++-+-+----+-+++-"
PRF = "+-++++-+-+++-+----+-+---"
BLOCKS = [0, 0, 0, 0, 3, 1]


def test_shuffling_amplifies() -> None:
    """Reports are responses with one favoured outcome of 2 * blocks, which is what the bound needs."""
    promise = shuffled_guarantee(Compressive(epsilon=1.0), 10_000, 1e-6)
    assert promise.epsilon < 0.2


def test_intervals_where_blocks_are_nearly_empty() -> None:
    """300 reports in 128 blocks, 100 collections: 94% of intervals for all keys hold together (once in 10^6).

    Many keys have one holder, or none. Normal intervals, of no width where a block is silent, do not hold. Recovered
    values have errors, too: none is known exactly.
    """
    mechanism = Compressive(epsilon=5.0, blocks=128, rows=512)
    task = task_for(mechanism, size=60)
    users = 300
    ids = np.where(np.arange(users) < 260, np.arange(users) % 3, np.arange(users) - 257).astype(np.uint64)
    entries = Entries(ids, np.full(users, GRID), np.arange(users + 1))
    truth = true_values(task, entries, "frequency", task.keys.all_ids())
    held = normal = 0
    for run, state in enumerate(repeated_states(task, entries, 100, 5)):
        found = estimate(task, state, refine="none", simultaneous=True)
        held += bool(((found.low <= truth) & (truth <= found.high)).all())
        blocks = mechanism.matrix(task.keys, task.keys.all_ids()).block
        named = state.totals.reshape(-1, 128, 2).sum(axis=(0, 2))[blocks] / users
        spread = np.maximum(mechanism.gain**2 * named - np.clip(found.value, 0, 1), 0) / users
        normal += bool((np.abs(found.value - truth) <= 3.34 * np.sqrt(spread)).all())
        if run < 10:
            assert (estimate(task, state).error > 0.001).all()
    assert held >= binom.ppf(1e-6, 100, 0.94)
    assert normal < 75


def test_intervals_where_people_share_rows() -> None:
    """5,000 reports in 64 rows of one block, 100 matrices: 94% of intervals for all keys hold together (once in 10^6).

    What is alike in two columns does not go away with more reports: a frequent key shows in all others. Intervals that
    count votes only do not hold, and find keys that nobody has.
    """
    mechanism = Compressive(epsilon=1.0, blocks=1, rows=64)
    users, size = 5000, 200
    ids = np.where(np.arange(users) < 3000, 0, np.arange(users) % 50).astype(np.uint64)
    entries = Entries(ids, np.full(users, GRID), np.arange(users + 1))
    held = recovered = votes = false = 0
    for run in range(100):
        keys = {"kind": "closed", "size": size, "salt": f"{run:032x}"}
        task = Task(name="rows", keys=keys, mechanism=mechanism)
        truth = true_values(task, entries, "frequency", task.keys.all_ids())
        (state,) = repeated_states(task, entries, 1, run)
        found = estimate(task, state, refine="none", simultaneous=True)
        held += bool(((found.low <= truth) & (truth <= found.high)).all())
        false += bool((~found.flagged & (truth == 0)).any())
        votes += bool((np.abs(found.value - truth) <= 3.66 * mechanism.gain / np.sqrt(users)).all())
        found = estimate(task, state, simultaneous=True)
        recovered += bool(((found.low <= truth) & (truth <= found.high)).all())
    assert held >= binom.ppf(1e-6, 100, 0.94)
    assert recovered >= binom.ppf(1e-6, 100, 0.94)
    assert false <= binom.ppf(1 - 1e-6, 100, 0.06)
    assert votes < 20
