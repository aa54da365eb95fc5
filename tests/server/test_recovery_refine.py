"""Refined estimates: labelled, better on average, with intervals that hold; from the library and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import run_cli, succeed
from hubbub.checks.conformance import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import save_state
from hubbub.protocol.task import Task
from hubbub.server.estimates import Estimate, estimate
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import simulate, true_values

KEYS, USERS = 3000, 20_000


def one_key_crowd(seed: int = 1) -> Entries:
    """One key each, by Zipf's law with exponent 1.6."""
    law = np.arange(1, KEYS + 1) ** -1.6
    held = np.random.default_rng(seed).choice(KEYS, USERS, p=law / law.sum())
    return Entries(
        held.astype(np.uint64), np.full(USERS, GRID, dtype=np.int64), np.arange(USERS + 1, dtype=np.int64)
    )


def collect(name: str, entries: Entries, seed: int = 1, **parameters: Any) -> tuple[Task, State]:
    task = task_for(make_mechanism(name, **{"epsilon": 1.0, **parameters}), KEYS, salt=f"{seed:016x}" * 2)
    return task, simulate(task, entries, 10 * seed).state


def total_error(result: Estimate, task: Task, entries: Entries) -> float:
    truth = true_values(task, entries, "frequency", task.keys.all_ids())
    return float(np.abs(result.value - truth).sum())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("collision", {"max_entries": 1}),
        ("hadamard", {}),
        ("sketch_response", {"max_entries": 1}),
        ("compressive", {}),
    ],
)
def test_refinement_lowers_the_total_error_and_says_it_is_biased(name: str, parameters: Any) -> None:
    """On skewed data both refinements cut the l1 error over all keys at least tenfold."""
    entries = one_key_crowd()
    task, state = collect(name, entries, **parameters)
    plain = estimate(task, state, refine="none")
    assert not any("biased" in note for note in plain.notes)
    assert plain.value.min() < 0
    for how in ("sparse", "simplex"):
        better = estimate(task, state, refine=how)  # type: ignore[arg-type]
        assert total_error(better, task, entries) < total_error(plain, task, entries) / 10
        assert sum("therefore biased" in note for note in better.notes) == 1
        assert better.about()["notes"] == list(better.notes)
        assert better.value.min() >= 0
        assert (better.low <= better.value).all()
        assert (better.value <= better.high).all()
        assert (better.high >= 0).all()
        if how == "simplex":
            assert better.value.sum() <= 1 + 1e-9


def test_defaults_differ() -> None:
    """Only compressive is refined unless asked: its linear estimates are mostly crosstalk."""
    entries = one_key_crowd()
    for name, how in (("compressive", "sparse"), ("hadamard", "none")):
        task, state = collect(name, entries)
        assert estimate(task, state).rows() == estimate(task, state, refine=how).rows()  # type: ignore[arg-type]


def test_intervals_still_hold() -> None:
    """95% intervals hold the truth for at least 95% of all keys, less six standard errors; half as wide ones do not.

    Keys in the noise are among them, so the half-wide check is on the unbiased estimates' distances.
    """
    entries = one_key_crowd()
    for name, how in (("collision", "sparse"), ("collision", "simplex"), ("compressive", "simplex")):
        parameters = {"max_entries": 1} if name == "collision" else {}
        task, state = collect(name, entries, **parameters)
        truth = true_values(task, entries, "frequency", task.keys.all_ids())
        result = estimate(task, state, refine=how)  # type: ignore[arg-type]
        limit = 0.95 - 6 * np.sqrt(0.05 * 0.95 / KEYS)
        assert ((result.low <= truth) & (truth <= result.high)).mean() > limit
        plain = estimate(task, state, refine="none")
        assert (np.abs(plain.value - truth) < (plain.high - plain.low) / 4).mean() < limit


def test_recovered_intervals_hold_on_found_keys() -> None:
    """Twelve crowds: of the keys found, 95% are in their intervals (within six standard errors of a proportion)."""
    inside = []
    for seed in range(12):
        entries = one_key_crowd(seed=seed)
        task, state = collect("compressive", entries, seed=seed, epsilon=2.0)
        truth = true_values(task, entries, "frequency", task.keys.all_ids())
        result = estimate(task, state)
        found = result.value > 0
        assert 3 <= found.sum() <= 40
        inside += list((result.low <= truth)[found] & (truth <= result.high)[found])
        missed = ~found & (truth > result.high)
        assert missed.mean() < 0.05
    assert np.mean(inside) > 0.95 - 6 * np.sqrt(0.05 * 0.95 / len(inside))


def test_sparse_means_keep_both_signs() -> None:
    """Found means keep their estimates; all others are 0, and their intervals reach 0."""
    entries = zipf_population(USERS, KEYS, 1).entries
    task, state = collect("coco", entries, max_entries=8, epsilon=4.0)
    plain, better = (
        estimate(task, state, quantity="mean"),
        estimate(task, state, quantity="mean", refine="sparse"),
    )
    found = better.value != 0
    assert {-1, 1} <= set(np.sign(better.value[found]))
    assert np.array_equal(better.value[found], plain.value[found])
    assert (np.abs(plain.value / plain.error)[~found] < np.abs(plain.value / plain.error)[found].min()).all()
    assert ((better.low <= 0) & (better.high >= 0))[~found].all()


def test_sums_are_refined_before_they_are_scaled() -> None:
    entries = one_key_crowd()
    for name in ("hadamard", "compressive"):
        task, state = collect(name, entries)
        for how in ("sparse", "simplex"):
            share = estimate(task, state, refine=how)  # type: ignore[arg-type]
            sums = estimate(task, state, quantity="sum", refine=how)  # type: ignore[arg-type]
            assert sums.value == pytest.approx(USERS * share.value)
            assert sums.error == pytest.approx(USERS * share.error)


def test_asked_keys_are_recovered_like_all() -> None:
    """Recovery looks at every key, whichever are asked for."""
    task, state = collect("compressive", one_key_crowd())
    everything = estimate(task, state)
    asked = estimate(task, state, keys=["7", "0", "2999"])
    assert asked.rows() == everything.take([7, 0, 2999]).rows()


def test_given_sparsity() -> None:
    """As many keys as the task says: matching pursuit, or thresholding with a share for every block."""
    entries = one_key_crowd()
    task, state = collect("compressive", entries, sparsity=6)
    result = estimate(task, state)
    assert np.count_nonzero(result.value) == 6
    assert "matching pursuit, 6 keys" in result.notes[0]
    task, state = collect("compressive", entries, sparsity=8, epsilon=2.0)
    assert task.mechanism.parts == 4  # type: ignore[attr-defined]
    assert "hierarchical thresholding, 5 keys a block" in estimate(task, state).notes[0]


def test_what_cannot_be_refined() -> None:
    entries = zipf_population(500, KEYS, 1).entries
    task, state = collect("coco", entries, max_entries=8, target="conditional")
    with pytest.raises(Refused, match="conditional mean cannot be refined"):
        estimate(task, state, quantity="conditional", refine="sparse")
    with pytest.raises(Refused, match="known total"):
        estimate(task, state, quantity="mean", refine="simplex")
    sets = zipf_population(500, KEYS, 1, signed=False).entries
    task, state = collect("sparse_sum", sets, max_entries=8, unit="entry")
    assert not task.mechanism.limits_entries
    with pytest.raises(Refused, match="limits no record"):
        estimate(task, state, refine="simplex")


def test_command_line(tmp_path: Path) -> None:
    """--refine, with the label in --json and in the table."""
    for name in ("hadamard", "compressive"):
        task, state = collect(name, one_key_crowd())
        file = tmp_path / f"{name}.state"
        save_state(file, task, state)
        for how in ("sparse", "simplex"):
            data = succeed("estimate", file, "--refine", how)
            wanted = estimate(task, state, refine=how)  # type: ignore[arg-type]
            assert data["estimates"] == wanted.top(20).rows()
            assert any("therefore biased" in note for note in data["notes"])
        plain = succeed("estimate", file, "--refine", "none")
        assert not any("biased" in note for note in plain["notes"])
    assert "therefore biased" in " ".join(run_cli("estimate", file).stdout.split())
    assert run_cli("estimate", file, "--refine", "magic").exit_code == 2
