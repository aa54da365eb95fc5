"""Releases for a declared list of keys: noise on every key, whether it is in the table or not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refuse, refused, run_cli, succeed, write_csv
from hubbub.checks.exact import Enumeration, Law, worst_ratio
from hubbub.primitives.envelope import unseal
from hubbub.release import Goal, Release, describe, plan, publish, publisher
from hubbub.release.keyspace import KeySpace
from hubbub.release.laplace import Laplace
from hubbub.release.publisher import make_goal, simulate
from hubbub.release.vector import Values

PAGES = tuple(f"page {number}" for number in range(400))


def law_of(table: Any, goal: Goal) -> Law:
    """The exact law of all arrays of a release, through all the code from the table to the arrays."""

    def run(coins: Any) -> Any:
        made = publisher._build(table, goal, coins, lambda _: None)
        return tuple(array.tobytes() for arrays in made.release.arrays for array in arrays.values())

    return Enumeration().law(run)  # type: ignore[return-value]


def worst(tables: Sequence[Any], goal: Goal) -> float:
    return math.log(worst_ratio([law_of(table, goal) for table in tables]))


def short_tails(monkeypatch: pytest.MonkeyPatch, noise: int = 100) -> None:
    """Clamp close to the values, which keeps the largest ratio and makes outcomes few; noise in per cent."""

    def make(values: Values, epsilon: float) -> Laplace:
        numerator, denominator = values.scale(epsilon)
        return Laplace(epsilon=epsilon, scale=(numerator * noise // 100, denominator), limit=values.top + 1)

    monkeypatch.setattr(Laplace, "make", make)


# Privacy, by enumeration


def test_one_unit_of_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit more of a declared key, present or not: exp(epsilon), and one per cent less noise is too little."""
    goal = Goal(epsilon=1, vocabulary=("a", "b"), max_value=2, algorithm="laplace")
    pairs = [({"a": 1, "z": 7}, {"a": 2, "y": 7}), ({"a": 1}, {"a": 1, "b": 1}), ({}, {"b": 1})]
    short_tails(monkeypatch)
    for pair in pairs:
        assert 1 - 1e-6 < worst(pair, goal) <= 1 + 1e-9
    short_tails(monkeypatch, noise=99)
    assert worst(pairs[0], goal) > 1.005


def test_all_rows_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has two keys that count and one that does not, with one key and with two that may count."""
    short_tails(monkeypatch)
    others = [("u", "a"), ("v", "b")]
    for most in (1, 2):
        goal = Goal(epsilon=1, vocabulary=("a", "b"), max_entries=most, max_value=2, algorithm="laplace")
        tables = [
            tuple(zip(*rows, strict=True)) for rows in (others, [*others, ("w", "a"), ("w", "b"), ("w", "z")])
        ]
        assert 1 - 1e-6 < worst(tables, goal) <= 1 + 1e-9
    short_tails(monkeypatch, noise=99)
    assert worst(tables, goal) > 1.005


def test_rows_with_other_keys_leave_no_trace() -> None:
    """Nor do users who have no others, though they are counted for the holder."""
    goal = Goal(epsilon=1, vocabulary=("a", "b"), max_value=9)
    one, two = (simulate(table, goal, seed=3) for table in ({"a": 4}, {"a": 4, "c": 5, "d": 1}))
    assert (one.undeclared, two.undeclared) == (0, 2)
    assert one.release.parameters == two.release.parameters
    assert one.release.arrays[0]["dense"].tolist() == two.release.arrays[0]["dense"].tolist()
    assert one.summary == two.summary


# The choice, and the error


@pytest.mark.parametrize("bounds", [{}, {"max_sum": 50_000, "max_value": 5000}, {"max_entries": 4}], ids=str)
def test_noise_on_every_key_is_chosen(bounds: dict[str, Any]) -> None:
    """No bound is needed, no budget goes to estimates of sizes, and the error is that of the noise alone."""
    goal = make_goal(epsilon=1, vocabulary=PAGES, **bounds)
    chosen = plan(goal)
    assert chosen.chosen.algorithm == "laplace"
    assert chosen.parameters.sizes is None
    share = 1 / bounds.get("max_entries", 1)
    assert chosen.parameters.parts[0].epsilon == pytest.approx(share)
    decay = math.exp(-share)
    assert chosen.chosen.small == pytest.approx(2 * decay / (1 - decay**2))
    assert all(other.worst > chosen.chosen.worst for other in chosen.others)


def test_it_errs_less_than_a_projection() -> None:
    """0.85 at epsilon 1, a third of the array's error, within six standard errors (false alarms below 1e-6)."""
    counts = {name: 5000 // (place + 1) for place, name in enumerate(PAGES[:300])}
    truth = np.array([counts.get(name, 0) for name in PAGES])
    bounds: dict[str, Any] = {"epsilon": 1, "max_sum": 50_000, "max_value": 5000}
    listed = simulate(counts, Goal(vocabulary=PAGES, **bounds), seed=1).release.query()
    array = simulate(counts, Goal(**bounds), seed=1).release.query(PAGES)
    errors = np.abs(listed.value - truth)
    assert abs(errors.mean() - 0.851) <= 6 * errors.std() / 20 < 0.35
    assert np.abs(array.value - truth).mean() > 2 * errors.mean()
    inside = ((listed.low <= truth) & (truth <= listed.high)).mean()
    assert inside >= 0.95 - 5 * math.sqrt(0.05 * 0.95 / 400)


# Files and questions


def test_files_know_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "counts.hub"
    publish({"red": 5, "blue": 2, "pink": 9}, epsilon=16, vocabulary=["blue", "red", "7"]).save(path)
    opened = Release.open(path)
    everything = opened.query()
    assert everything.keys == ("blue", "red", "7") or list(everything.keys) == ["blue", "red", "7"]
    assert everything.value == pytest.approx([2, 5, 0], abs=2)
    assert opened.query([7, "red"]).value.tolist() == [everything.value[2], everything.value[1]]
    for asked in (["pink"], ["red", "Red"], [""]):
        with refused("not in the list"):
            opened.query(asked)
    assert describe(path)["keys"] == {"kind": "listed", "universe": 3, "salt": opened.parameters.keys.salt}
    with refused("no list of keys"):
        publish({"red": 5}, epsilon=1, max_sum=10).query()


def test_other_files_are_as_they_were(tmp_path: Path) -> None:
    """A file without a list says nothing about one: hubbubs that know none read it."""
    publish({"red": 5}, epsilon=1, max_sum=10).save(tmp_path / "a.hub")
    assert "names" not in json.loads(bytes(unseal((tmp_path / "a.hub").read_bytes()).task))["keys"]


def test_the_planned_size_is_that_of_the_file(tmp_path: Path) -> None:
    goal = make_goal(epsilon=1, vocabulary=PAGES, max_value=1000)
    size = publisher.build({}, goal).release.save(tmp_path / "a.hub")
    assert plan(goal).chosen.bytes == pytest.approx(size, abs=600)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"vocabulary": ["a"], "universe": 5}, "either listed"),
        ({"vocabulary": ["a", "b", "a"]}, "twice"),
        ({"vocabulary": []}, "vocabulary"),
        ({"vocabulary": [1, 2]}, "vocabulary"),
    ],
)
def test_bad_lists(fields: dict[str, Any], why: str) -> None:
    with refused(why):
        make_goal(epsilon=1, **fields)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "listed", "universe": 2},
        {"kind": "text", "names": ("a",)},
        {"kind": "listed", "names": ("a", "a")},
    ],
)
def test_inconsistent_lists_in_files(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="list"):
        KeySpace(**wrong, salt="0" * 32)


# The command


def test_the_command(tmp_path: Path) -> None:
    rows = [("user", "page"), *((f"u{user}", f"page {user % 3}") for user in range(60))]
    table = write_csv(tmp_path / "visits.csv", rows)
    (tmp_path / "pages.txt").write_text("page 0\npage 1\npage 9\n")
    output = tmp_path / "visits.hub"
    options = ["release", table, "--user", "user", "--key", "page", "--max-entries", 1, "--epsilon", 16]
    said = run_cli(*options, "--vocabulary", tmp_path / "pages.txt", "-o", output)
    assert said.exit_code == 0
    assert "* laplace" in said.stdout
    assert "20 rows left out whose key is not in the list" in said.stderr
    answers = {row["key"]: row["value"] for row in succeed("query", output, "--all")["answers"]}
    assert answers == {
        "page 0": pytest.approx(20, abs=2),
        "page 1": pytest.approx(20, abs=2),
        "page 9": pytest.approx(0, abs=2),
    }
    assert "not in the list" in refuse("query", output, "page 2")
    assert run_cli("query", output, "page 0", "--all").exit_code == 2
    assert "universe" in refuse(
        *options, "--vocabulary", tmp_path / "pages.txt", "--universe", 5, "-o", output
    )
    assert "no such list" in refuse(*options, "--vocabulary", tmp_path / "no such list", "-o", output)
