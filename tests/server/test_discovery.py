"""Keys that nobody had listed: found, with the stated share of false ones, and estimated without a lean."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from helpers import run_cli
from hubbub.checks.conformance import SIGMAS
from hubbub.mechanisms.collision import Collision
from hubbub.model.keys import Keys
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.model.tree import Tree
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import load_state, save_state
from hubbub.protocol.task import Task
from hubbub.server import search as searching
from hubbub.server.discovery import discover
from hubbub.server.quantities import of_people_drawn
from hubbub.server.search import Evidence, hashed, step_up, tails
from hubbub.simulation.rehearsal import repeated_states, simulate

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TREE = Tree(longest=6, levels=(2, 2, 2), shares=(2, 3, 4, 1), alphabet=LETTERS)
POPULAR = ("the", "they", "theory", "a", "zebras", "internet")
FOUND = ("the", "they", "theory", "a", "zebras", "inter…")


def task_of(
    epsilon: float = 4.0, max_entries: int = 1, tree: Tree = TREE, bits: int = 16, **more: Any
) -> Task:
    keys = Keys(kind="tree", bits=bits, tree=tree, salt="0b" * 16)
    return Task(
        name="words", keys=keys, mechanism=Collision(epsilon=epsilon, max_entries=max_entries, **more)
    )


def crowd(task: Task, users: int, words: tuple[str, ...], each: float, seed: int) -> Entries:
    """A share `each` of the people hold each of these words, everybody else a word of their own."""
    rng = np.random.default_rng(seed)
    rare = ["".join(row) for row in rng.choice(list(LETTERS), (users, 6))]
    holders = int(each * users)
    held = [word for word in words for _ in range(holders)]
    ids = task.keys.ids_of(held + rare[len(held) :])
    return Entries(ids, np.full(users, GRID), np.arange(users + 1))


@lru_cache(maxsize=1)
def collected() -> tuple[Task, State]:
    task = task_of()
    return task, simulate(task, crowd(task, 60_000, POPULAR, 0.05, seed=1), seed=2).state


def test_popular_words_are_found_with_their_shares() -> None:
    """Those and no others, a cut one marked. Each of 6 intervals at 1 - 1e-7 misses with that probability."""
    task, state = collected()
    found = discover(task, state, level=1 - 1e-7)
    assert set(found.keys) == set(FOUND)
    assert dict(zip(found.keys, found.cut.tolist(), strict=True)) == {key: key == "inter…" for key in FOUND}
    assert (found.estimate.low <= 0.05).all()
    assert (found.estimate.high >= 0.05).all()
    assert (found.estimate.low > 0).sum() >= 3
    assert found.p.max() < 1e-6
    heard = sum(hashed(task).heard_in(state, cohort) for cohort in TREE.cohorts_of(3))
    assert abs(heard - 6000) < SIGMAS * math.sqrt(6000)
    assert any(f"{heard:,} reports" in note for note in found.estimate.notes)


def test_limits() -> None:
    task, state = collected()
    assert set(discover(task, state, deny=["the", "zebras", "not in the alphabet"]).keys) == set(FOUND) - {
        "the",
        "zebras",
    }
    assert set(discover(task, state, prefix="the").keys) == {"the", "they", "theory"}
    assert set(discover(task, state, prefix="they").keys) == {"they"}
    assert discover(task, state, prefix="qu").keys == ()
    allowed = discover(task, state, allow=["they", "zebras", "absent", "Ä"])
    assert set(allowed.keys) == {"they", "zebras"}
    assert allowed.looks[0].candidates == 3
    assert discover(task, state, allow=["they"], deny=["they"]).keys == ()


def evidence_of_strangers(bits: int, heavy: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """p-values of keys that nobody holds, and what the mean of standard scores would make of them.

    Many of them share a code with a popular key in one map: there are few codes and many popular keys.
    """
    task = task_of(epsilon=6.0, bits=bits, tree=Tree(**TREE.model_dump() | {"shares": (1, 1, 4, 1)}))
    words = tuple(f"{a}{b}" for a in LETTERS for b in LETTERS)[:heavy]
    state = simulate(task, crowd(task, 20_000, words, 0.5 / heavy, seed=3), seed=4).state
    rng = np.random.default_rng(5)
    strangers = task.keys.ids_of(["q" + "".join(row) for row in rng.choice(list(LETTERS), (40_000, 5))])
    naive = np.zeros(len(strangers))
    for cohort in TREE.cohorts_of(2):
        reports = hashed(task).heard_in(state, cohort)
        rate = 1 / task.mechanism.model_dump()["buckets"]
        votes = hashed(task).code_sums(state, cohort)[task.keys.codes(strangers, cohort)]
        naive += (votes - reports * rate) / math.sqrt(reports * rate * (1 - rate))
    return tails(Evidence(task, state, 2).of(strangers)), tails(naive / math.sqrt(3))


@pytest.mark.parametrize("level", [0.001, 0.01, 0.1])
def test_p_values_hold_also_where_strangers_collide_with_popular_keys(level: float) -> None:
    """Of 40,000 keys that nobody holds, no more than `level` have such a p-value (false alarms: 1e-6), nor far fewer.

    Scores without a look at the other codes fail this by far.
    """
    p, naive = evidence_of_strangers(bits=10, heavy=60)
    slack = -NormalDist().inv_cdf(1e-6) * math.sqrt(level * (1 - level) / len(p))
    assert 0.7 * level - slack < (p <= level).mean() < level + slack
    assert (naive <= level).mean() > 1.3 * level + slack


def test_step_up() -> None:
    assert step_up(np.array([0.004, 0.021, 0.029, 0.9]), 0.05, 5) == 3
    assert step_up(np.array([0.02, 0.021, 0.031]), 0.05, 5) == 0
    assert step_up(np.zeros(0), 0.05, 5) == 0


def test_noise_is_not_a_finding() -> None:
    """In 60 collections from people without any popular word, a find is false, and 5% have one at most.

    12 of them or more would be an accident of probability below 1e-5; a threshold that is met by one candidate in
    every collection (false_finds close to 1) makes more, so the test can fail.
    """
    task = task_of(
        epsilon=2.0, bits=12, tree=Tree(longest=2, levels=(1, 1), shares=(1, 1, 1), alphabet=LETTERS)
    )
    nothing = Entries(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(301, np.int64))
    found = {0.05: 0, 0.9: 0}
    for state in repeated_states(task, nothing, 60, seed=6):
        for share in found:
            found[share] += bool(len(discover(task, state, false_finds=share)))
    assert found[0.05] < 12 <= found[0.9]


def test_estimates_are_unbiased_with_the_stated_error() -> None:
    """Whole keys, from the people who are asked for them: mean and spread over 1,200 collections.

    False alarms: 1e-6 or less. A variance that is 30% off would not pass.
    """
    runs, users = 1200, 1000
    quarters = Tree(**TREE.model_dump() | {"shares": (1, 1, 1, 1)})
    task = task_of(epsilon=2.0, max_entries=2, bits=14, buckets=8, tree=quarters)
    ids = task.keys.ids_of(["the", "they"])
    lengths = np.where(np.arange(users) % 5, 0, 2)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    entries = Entries(np.tile(ids, users // 5), np.full(offsets[-1], GRID), offsets)
    values, errors = np.zeros((runs, 2)), np.zeros((runs, 2))
    for run, state in enumerate(repeated_states(task, entries, runs, seed=7)):
        heard = task.mechanism.heard(state, task.keys)
        moments = of_people_drawn(task.mechanism.moments(state, task.keys, ids), heard)
        values[run], errors[run] = moments.frequency, moments.frequency_variance
    spread = values.std(axis=0, ddof=1)
    assert (np.abs(values.mean(axis=0) - 0.2) < SIGMAS * spread / math.sqrt(runs)).all()
    # Three of four holders are not asked, which adds 3/4 of the variance of drawing with replacement.
    formula = task.mechanism.variance("frequency", users // 4, 0.2, 0.2, 0.2) + 0.75 * 0.2 * 0.8 / (
        users // 4
    )
    # The mean of two variances, whose estimates hardly depend on each other.
    ratio, slack = float((spread**2).mean() / formula), 5 * math.sqrt(1.1 / runs)
    assert abs(ratio - 1) < slack
    assert abs(ratio / 0.7 - 1) > slack < abs(ratio / 1.3 - 1)
    assert 0.85 < errors.mean() / formula < 1.15


def test_too_many_candidates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task, state = collected()
    monkeypatch.setattr(searching, "MOST_CANDIDATES", 10_000)
    with pytest.raises(Refused, match="--prefix, or make a task with more levels"):
        discover(task, state)
    long = task_of(tree=Tree(longest=6, levels=(6,), shares=(1, 1), alphabet=LETTERS))
    with pytest.raises(Refused, match="more levels of fewer symbols"):
        discover(long, simulate(long, crowd(long, 100, (), 0.0, seed=8), seed=9).state)


def test_other_input_is_refused() -> None:
    task, state = collected()
    with pytest.raises(Refused, match="between 0 and 1"):
        discover(task, state, false_finds=0)
    with pytest.raises(Refused, match="No key of this task begins with 'tHe'"):
        discover(task, state, prefix="tHe")
    closed = Task(name="c", keys=Keys(kind="closed", size=4), mechanism=task.mechanism)
    with pytest.raises(Refused, match="hubbub plan --discover"):
        discover(closed, closed.mechanism.empty(closed.keys))
    with pytest.raises(Refused, match="withheld"):
        discover(task, task.mechanism.empty(task.keys))


def test_command(tmp_path: Path) -> None:
    task, state = collected()
    save_state(tmp_path / "words.state", task, state)
    (tmp_path / "known.txt").write_text("the\n")
    result = run_cli(
        "discover", tmp_path / "words.state", "--deny", tmp_path / "known.txt", "-o", tmp_path / "w.csv"
    )
    assert result.exit_code == 0, result.output
    assert "5 keys were found" in result.output
    assert "at most 5%" in result.output
    lines = (tmp_path / "w.csv").read_text().splitlines()
    assert lines[0].startswith("key,value,error,low,high,cut,p,quantity,level,epsilon,reports,dropped,")
    assert {line.split(",")[0] for line in lines[1:]} == set(FOUND) - {"the"}
    told = json.loads(run_cli("discover", tmp_path / "words.state", "--top", "2", "--json").output)
    assert (told["total"], told["shown"], len(told["keys"])) == (6, 2, 2)
    assert [look["symbols"] for look in told["levels"]] == [2, 4, 6]
    assert run_cli("discover", tmp_path / "words.state", "-o", tmp_path / "w.txt").exit_code == 1


def test_nothing_found_is_an_answer(tmp_path: Path) -> None:
    task = task_of()
    save_state(
        tmp_path / "noise.state", task, simulate(task, crowd(task, 500, (), 0.0, seed=10), seed=11).state
    )
    result = run_cli("discover", tmp_path / "noise.state", "-o", tmp_path / "none.csv")
    assert result.exit_code == 0
    assert "No key was found" in result.output
    assert (tmp_path / "none.csv").read_text().startswith("key,value,error,low,high,cut,p,")
    assert len((tmp_path / "none.csv").read_text().splitlines()) == 1
    assert str(discover(*load_state(tmp_path / "noise.state"))).startswith("No key was found")
