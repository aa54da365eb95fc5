"""The steps one by one, and that together they are `hubbub run`."""

from __future__ import annotations

import importlib.metadata
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import (
    contents,
    prose,
    real_command,
    refuse,
    run_cli,
    seeded_coins,
    strict_json,
    succeed,
    write_csv,
)
from hubbub.protocol.files import load_reports, load_state
from hubbub.protocol.task import Task

NEW = ["task", "new", "--name", "pages", "--epsilon", 1, "--max-entries", 2]
COLUMNS = ["--user", "u", "--key", "k"]


def people(count: int, first: int = 0) -> list[tuple[Any, ...]]:
    """Rows of users with two entries each, after a header."""
    keys = "abcde"
    rows: list[tuple[Any, ...]] = [("u", "k", "v")]
    for i in range(first, first + count):
        rows += [(f"{i:03}", keys[i % 3], 1 + i % 5), (f"{i:03}", keys[3 + i % 2], 3)]
    return rows


@pytest.mark.parametrize("valued", [False, True], ids=["sets", "values"])
def test_the_steps_together_are_a_run(valued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one sequence of coins, two tables that are aggregated apart and merged give the very same numbers."""
    whole, one, two = (
        write_csv(tmp_path / f"{name}.csv", rows)
        for name, rows in (("pages", people(60)), ("one", people(25)), ("two", people(35, 25)))
    )
    (tmp_path / "keys.txt").write_text("a\nb\nc\nd\ne\n")
    values = ["--value", "v"] if valued else []
    options = ["--epsilon", 1, "--max-entries", 2, *(["--range", "1:5"] if valued else [])]
    seeded_coins(monkeypatch)
    at_once = succeed("run", whole, *COLUMNS, *values, *options)

    seeded_coins(monkeypatch)
    task = tmp_path / "task.toml"
    made = succeed(
        *("task", "new", "--name", "pages", "--vocabulary", tmp_path / "keys.txt", "--users", 60),
        *options,
        *("-o", task),
    )
    assert made["digest"] == at_once["digest"]
    states = []
    for table in (one, two):
        reports, state = table.with_suffix(".reports"), table.with_suffix(".state")
        said = succeed("privatize", table, task, *COLUMNS, *values, "-o", reports)
        assert said["reports"] == said["summary"]["records"]
        assert succeed("aggregate", reports, "-o", state)["reports"] == said["reports"]
        states.append(state)
    merged = tmp_path / "all.state"
    assert succeed("merge", *states, "-o", merged)["reports"] == 60
    stepwise = succeed("estimate", merged, "--estimate", at_once["quantity"])
    assert stepwise["estimates"] == at_once["estimates"]
    for fact in ("quantity", "level", "reports", "findings"):
        assert stepwise[fact] == at_once[fact]
    own = {"noise", "words"}  # who added the noise is known to whoever did
    for fact in stepwise["guarantee"].keys() - own:
        assert stepwise["guarantee"][fact] == at_once["guarantee"][fact]
    together = tmp_path / "together.state"
    succeed("aggregate", one.with_suffix(".reports"), two.with_suffix(".reports"), "-o", together)
    assert together.read_bytes() == merged.read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A table, a task, its reports and its state."""
    found = {name: tmp_path / name for name in ("t.csv", "t.toml", "t.reports", "t.state")}
    write_csv(found["t.csv"], people(40))
    (tmp_path / "keys.txt").write_text("a\nb\nc\nd\ne\n")
    succeed(*NEW, "--vocabulary", tmp_path / "keys.txt", "-o", found["t.toml"])
    succeed("privatize", found["t.csv"], found["t.toml"], *COLUMNS, "-o", found["t.reports"])
    succeed("aggregate", found["t.reports"], "-o", found["t.state"])
    return found


def test_a_real_process_for_every_step(files: dict[str, Path], tmp_path: Path) -> None:
    for command in (
        ["task", "show", files["t.toml"]],
        ["privatize", files["t.csv"], files["t.toml"], *COLUMNS, "-o", tmp_path / "r"],
        ["aggregate", tmp_path / "r", "-o", tmp_path / "s"],
        ["merge", tmp_path / "s", files["t.state"], "-o", tmp_path / "m"],
        ["estimate", tmp_path / "m"],
        ["inspect", tmp_path / "m"],
    ):
        done = real_command(*command, "--json")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert strict_json(done.stdout)
    assert load_state(tmp_path / "m")[1].count == 80


# Tasks


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--keys", 500], {"kind": "closed", "size": 500, "count": 500}),
        (["--open", 12], {"kind": "folded", "bits": 12}),
        (["--open", 64], {"kind": "wide", "bits": 64}),
        (["--keys", 500, "--cohorts", 3], {"cohorts": 3}),
        (["--keys", 60_000, "--values", "--range", "1:5", "--mechanism", "collision"], {"bits": 17}),
    ],
)
def test_kinds_of_keys(options: list[Any], keys: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    said = succeed(*NEW, *options, "-o", path)
    assert said["keys"] | keys == said["keys"]
    assert Task.load(path).digest.hex() == said["digest"]
    assert said["file"] == str(path)


def test_collection_rules_are_in_the_task(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    rules = ["--period", "week", "--reports-per-period", 2, "--minimum-reports", 30]
    succeed(*NEW, "--keys", 9, *rules, "-o", path)
    task = Task.load(path)
    assert (task.period, task.reports_per_period, task.minimum_reports) == ("week", 2, 30)


def test_seeds_from_the_server_are_one_for_each_report(tmp_path: Path) -> None:
    """Whichever way the mechanism is chosen, unless its setting says otherwise."""
    path, sketch = tmp_path / "t.toml", ["--mechanism", "sketch_response"]
    new = ["task", "new", "--name", "p", "--epsilon", 1, "--max-entries", 8, "--keys", 99, "-o", path]
    for options, seeds in ((["--best"], 1), (sketch, 1), ([*sketch, "--set", "seeds=4"], 4)):
        succeed(*new, *options, "--seed-from", "server")
        task = Task.load(path)
        assert (task.seed_from, task.mechanism.name) == ("server", "sketch_response")
        assert task.mechanism.seeds_per_report == seeds
    succeed(*new, *sketch)
    assert Task.load(path).mechanism.seeds_per_report == 8


def test_two_new_tasks_are_never_the_same(tmp_path: Path) -> None:
    digests = {succeed(*NEW, "--keys", 9, "-o", tmp_path / name)["digest"] for name in "ab"}
    assert len(digests) == 2


def test_units(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    options = ["--keys", 9, "--range", "-1:1", "-o", path]
    assert succeed(*NEW, *options, "--unit", "entry")["guarantee"]["unit"] == "entry"
    promise = succeed(*NEW, *options, "--unit", "l1", "--distance", 2)["guarantee"]
    assert (promise["unit"], promise["distance"]) == ("l1", 2.0)
    # Whoever hides the whole record hides an entry of it.
    stronger = succeed(*NEW, *options, "--unit", "entry", "--mechanism", "collision")["guarantee"]
    assert stronger["unit"] == "record"


def test_a_shown_task_says_what_is_promised(files: dict[str, Path]) -> None:
    text = run_cli("task", "show", files["t.toml"]).stdout
    facts = succeed("task", "show", files["t.toml"])
    for part in (
        "pages",
        facts["digest"],
        "5 keys",
        f"{facts['report_bytes']} bytes",
        "epsilon = 1 per record",
    ):
        assert part in text


# Reports, states, estimates


def test_reports_are_bare_and_of_fixed_width(files: dict[str, Path]) -> None:
    task, packed = load_reports(files["t.reports"])
    assert packed.shape == (40, task.mechanism.layout.width)
    facts = succeed("inspect", files["t.reports"], "--report", 39)
    assert (facts["kind"], facts["count"], facts["digest"]) == ("reports", 40, task.digest.hex())
    names = [field.name for field in task.mechanism.layout.fields]
    assert facts["report"] == dict(zip(names, task.mechanism.layout.unpack(packed)[39].tolist(), strict=True))
    assert "number 40" in refuse("inspect", files["t.reports"], "--report", 40)
    assert "seed" in run_cli("inspect", files["t.reports"], "--report", 0).stdout


def test_inspecting_tasks_and_states(files: dict[str, Path]) -> None:
    task, state = succeed("inspect", files["t.toml"]), succeed("inspect", files["t.state"])
    assert (task["kind"], state["kind"], state["count"]) == ("task", "state", 40)
    assert task["digest"] == state["digest"]
    assert "state, 40 reports" in prose("inspect", files["t.state"])


def test_asked_keys(files: dict[str, Path], tmp_path: Path) -> None:
    everything = {row["key"]: row for row in succeed("estimate", files["t.state"])["estimates"]}
    assert set(everything) == set("abcde")
    some = succeed("estimate", files["t.state"], "d", "a")["estimates"]
    assert {row["key"] for row in some} == {"a", "d"}
    alone = {"flagged"}  # stands out among two keys, or among five
    for row in some:
        assert {k: v for k, v in row.items() if k not in alone} == {
            k: v for k, v in everything[row["key"]].items() if k not in alone
        }
    (tmp_path / "asked.txt").write_text("a\nd\n")
    from_file = succeed("estimate", files["t.state"], "--keys-from", tmp_path / "asked.txt")["estimates"]
    assert {row["key"]: row for row in from_file} == {row["key"]: row for row in some}
    assert "'z'" in refuse("estimate", files["t.state"], "a", "z")


def test_estimates_from_a_state_are_written(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    said = succeed("estimate", files["t.state"], "--top", 2, "-o", path)
    assert len(said["estimates"]) == 2
    written = strict_json(path.read_bytes())
    assert [row["key"] for row in written["estimates"]] == list("abcde")
    assert all(math.isfinite(row["value"]) for row in written["estimates"])


def test_open_vocabularies_are_asked_by_name(tmp_path: Path) -> None:
    task, reports, state = (tmp_path / name for name in ("t.toml", "r", "s"))
    for bits in (10, 64):
        succeed(*NEW, "--open", bits, "-o", task)
        succeed("privatize", write_csv(tmp_path / "t.csv", people(40)), task, *COLUMNS, "-o", reports)
        succeed("aggregate", reports, "-o", state)
        assert "name the keys" in refuse("estimate", state)
        rows = succeed("estimate", state, "a", "never seen")["estimates"]
        assert {row["key"] for row in rows} == {"a", "never seen"}


def test_estimates_are_withheld_below_the_minimum(tmp_path: Path) -> None:
    task, reports, state = (tmp_path / name for name in ("t.toml", "r", "s"))
    succeed(*NEW, "--open", 10, "--minimum-reports", 41, "-o", task)
    succeed("privatize", write_csv(tmp_path / "t.csv", people(40)), task, *COLUMNS, "-o", reports)
    succeed("aggregate", reports, "-o", state)
    assert "withheld below 41" in refuse("estimate", state, "a")


def test_a_file_named_twice_would_count_twice(files: dict[str, Path], tmp_path: Path) -> None:
    before = contents(tmp_path)
    for command, name in (("aggregate", "t.reports"), ("merge", "t.state")):
        other = files[name].parent / "." / ".." / files[name].parent.name / name
        assert "twice" in refuse(command, files[name], other, "-o", tmp_path / "out")
    assert contents(tmp_path) == before


def test_what_can_be_listed() -> None:
    found = succeed("mechanisms")["mechanisms"]
    assert {"collision", "coco", "sparse_sum"} <= set(found)
    assert found["collision"]["parameters"]["epsilon"] == "privacy parameter of one report"
    assert "sparse_sum noised sums" in prose("mechanisms")
    assert "seed_bits" not in prose("mechanisms")
    assert "seed_bits bits of public seed" in prose("mechanisms", "--verbose")


def test_help_names_every_command() -> None:
    text = run_cli("--help").stdout
    for command in (
        "aggregate",
        "demo",
        "estimate",
        "inspect",
        "mechanisms",
        "merge",
        "privatize",
        "run",
        "task",
    ):
        assert f"\n  {command} " in text


def test_the_module_is_the_command() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "hubbub", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"hubbub, version {importlib.metadata.version('hubbub')}\n"
