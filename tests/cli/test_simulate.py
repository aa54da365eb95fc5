"""hubbub simulate: truth against estimate on a table; the truth is recomputed here from the file."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, refuse, run_cli, seeded_coins, strict_json, succeed, write_csv

COLUMNS = ["--user", "u", "--key", "k"]
KEYS = 200


@pytest.fixture(autouse=True)
def same_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coins of a simulation are seeded by its own option; a task's salt decides about hashes, too."""
    seeded_coins(monkeypatch)


def make_task(path: Path, *options: object, keys: int = KEYS) -> Path:
    """A task file for records of up to four entries."""
    succeed("task", "new", "--name", "t", "--keys", keys, "--max-entries", 4, *options, "-o", path)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3000 users with up to four of 200 keys (nobody has the last ten); ratings from 0 to 6, and some rows twice."""
    rng = np.random.default_rng(3)
    rows: list[tuple[Any, ...]] = [("u", "k", "v")]
    for user in range(3000):
        keys = np.unique(np.minimum((190 * rng.random(4) ** 3).astype(int), 189))
        for key in keys.tolist():
            value = round(float(1 + key % 5 + rng.normal(0, 0.6)), 3)
            rows += [(f"user {user}", key, value)] * (1 + (user + key) % 7 // 6)
            if user % 50 == 0:
                rows.append((f"user {user}", key, 3))
    return write_csv(tmp_path_factory.mktemp("like") / "like.csv", rows)


def truth(table: Path, quantity: str) -> dict[str, float | None]:
    """By plain counting: the last row of a user and key counts, values are clipped to 1:5."""
    with table.open(newline="") as file:
        last = {(row["u"], row["k"]): min(max(float(row["v"]), 1.0), 5.0) for row in csv.DictReader(file)}
    users = len({user for user, _ in last})
    found: dict[str, float | None] = {}
    for key in map(str, range(KEYS)):
        held = [value for (_, other), value in last.items() if other == key]
        if quantity == "conditional":
            found[key] = math.fsum(held) / len(held) if held else None
        else:
            found[key] = (len(held) if quantity == "frequency" else math.fsum(held)) / users
    return found


def check(said: dict[str, Any], expected: dict[str, float | None]) -> None:
    """Every row has the right truth and verdict; coverage and error are those of the rows."""
    rows = said["estimates"]
    assert {row["key"]: row["truth"] for row in rows} == {
        key: None if value is None else pytest.approx(value, abs=1e-8) for key, value in expected.items()
    }
    known = [row for row in rows if row["truth"] is not None]
    for row in rows:
        assert row["inside"] == (row["truth"] is not None and row["low"] <= row["truth"] <= row["high"])
    assert said["coverage"] == pytest.approx(sum(row["inside"] for row in known) / len(known))
    errors = [(row["value"] - row["truth"]) ** 2 for row in known if row["error"] is not None]
    assert said["root_mean_square_error"] == pytest.approx(math.sqrt(sum(errors) / len(errors)))


TASKS: dict[str, list[Any]] = {
    "sets": ["--epsilon", 2],
    "means": ["--epsilon", 2, "--range", "1:5", "--estimate", "mean"],
    "ratings": ["--epsilon", 4, "--range", "1:5", "--estimate", "conditional"],
}
CASES = [
    ("sets", "frequency"),
    ("means", "mean"),
    ("ratings", "frequency"),
    ("ratings", "mean"),
    ("ratings", "conditional"),
]


@pytest.mark.parametrize(("name", "quantity"), CASES)
def test_truth_and_coverage(name: str, quantity: str, table: Path, tmp_path: Path) -> None:
    """Of about 200 intervals with level 0.95 at least 85% hold the truth, of those with 0.5 between 30% and 70%.

    Six standard deviations of independent intervals (false alarms below 1e-6; seeded). Fieller intervals of
    conditional means are wider where little is known, so there only the lower limits hold.
    """
    task = make_task(tmp_path / "t.toml", *TASKS[name])
    options = [task, "--like", table, *COLUMNS, *([] if name == "sets" else ["--value", "v"])]
    for level, least, most in ((0.95, 0.85, 1.0), (0.5, 0.3, 0.7)):
        said = succeed(
            "simulate", *options, "--estimate", quantity, "--top", KEYS, "--seed", 7, "--interval", level
        )
        check(said, truth(table, quantity))
        assert said["coverage"] >= least
        assert said["coverage"] <= most or quantity == "conditional"
        assert (said["quantity"], said["level"], said["reports"]) == (quantity, level, 3000)
        summary = said["summary"]
        assert summary["records"] == 3000
        assert summary["repeated"] > 0
        assert (summary["clipped"] > 0) == (name != "sets")
        assert summary["dropped_entries"] == 0


def test_the_largest_truths_are_shown(table: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t.toml", *TASKS["sets"])
    said = succeed("simulate", task, "--like", table, *COLUMNS, "--top", 5)
    expected = sorted(truth(table, "frequency").values(), key=lambda share: -(share or 0))[:5]
    assert [row["truth"] for row in said["estimates"]] == pytest.approx(expected)
    text = run_cli("simulate", task, "--like", table, *COLUMNS, "--top", 5)
    assert (text.exit_code, text.stderr) == (0, "")
    for row in said["estimates"]:
        assert f"{row['truth']:.4f}" in text.stdout
        assert f"{row['value']:.4f}" in text.stdout
    words = " ".join(text.stdout.split())
    assert "3,000 records with" in words
    assert f"{100 * said['coverage']:.1f}% of 200 intervals hold the truth (meant: 95%)" in words


def test_a_seed_is_a_result(table: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t.toml", *TASKS["sets"])
    command = ["simulate", task, "--like", table, *COLUMNS, "--seed"]
    one, same, other = (succeed(*command, seed) for seed in (1, 1, 2))
    assert one == same
    assert [row["truth"] for row in one["estimates"]] == [row["truth"] for row in other["estimates"]]
    assert [row["value"] for row in one["estimates"]] != [row["value"] for row in other["estimates"]]


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_all_rows_are_written(suffix: str, table: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t.toml", *TASKS["sets"])
    path = tmp_path / f"out{suffix}"
    said = succeed("simulate", task, "--like", table, *COLUMNS, "--top", KEYS, "-o", path)
    text = path.read_text()
    if suffix == ".csv":
        written = {row["key"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}
    else:
        written = {row["key"]: row["value"] for row in strict_json(text)["estimates"]}
    assert written == {row["key"]: pytest.approx(row["value"]) for row in said["estimates"]}


def test_open_vocabularies_are_asked_for_the_keys_of_the_table(tmp_path: Path) -> None:
    task = tmp_path / "t.toml"
    succeed("task", "new", "--name", "t", "--open", 20, "--epsilon", 4, "--max-entries", 1, "-o", task)
    table = write_csv(tmp_path / "l.csv", [("u", "k"), *((i, "ab"[i % 4 == 0]) for i in range(400))])
    said = succeed("simulate", task, "--like", table, *COLUMNS)
    assert [(row["key"], row["truth"]) for row in said["estimates"]] == [("a", 0.75), ("b", 0.25)]


def test_long_records_are_counted_whole_in_the_truth(tmp_path: Path) -> None:
    """Everybody has all eight keys, half of them are reported: that shows up as a bias (here six errors are 0.2)."""
    task = make_task(tmp_path / "t.toml", "--epsilon", 8, keys=8)
    rows = [(user, key) for user in range(4000) for key in range(8)]
    said = succeed("simulate", task, "--like", write_csv(tmp_path / "l.csv", [("u", "k"), *rows]), *COLUMNS)
    assert (said["summary"]["sampled_records"], said["summary"]["dropped_entries"]) == (4000, 16_000)
    assert {row["truth"] for row in said["estimates"]} == {1.0}
    assert said["coverage"] == 0
    assert all(0.3 < row["value"] < 0.7 for row in said["estimates"])
    assert said["coverage_after_sampling_down"] > 0.5
    assert said["warnings"][0].startswith("50% of all entries were dropped")


def test_both_truths_are_covered_or_said_not_to_be(tmp_path: Path) -> None:
    """Whole records in vain, records after sampling down as promised; with a correction, whole records, too."""
    names = ["--keys", 60, "--epsilon", 6, "--count-lengths"]
    task = tmp_path / "t.toml"
    succeed("task", "new", "--name", "t", *names, "--max-entries", 4, "-o", task)
    rng = np.random.default_rng(4)
    rows = [(user, key) for user in range(3000) for key in rng.permutation(60)[:12].tolist()]
    command = ["simulate", task, "--like", write_csv(tmp_path / "l.csv", [("u", "k"), *rows]), *COLUMNS]
    said = succeed(*command)
    assert said["coverage"] < 0.1
    assert said["coverage_after_sampling_down"] > 0.75
    text = " ".join(run_cli(*command).stdout.split())
    share = 100 * said["coverage_after_sampling_down"]
    assert f"{share:.1f}% hold the truth of records after sampling down" in text
    assert text.startswith("75% of all entries were dropped")
    assert succeed(*command, "--correct")["coverage"] > 0.75


def test_too_few_users_for_conditional_means(tmp_path: Path) -> None:
    """Nothing is known about any key: there is no error to average, and none is made up."""
    task = make_task(tmp_path / "t.toml", *TASKS["ratings"][2:], "--epsilon", 0.1, keys=5)
    table = write_csv(tmp_path / "l.csv", [("u", "k", "v"), (1, 0, 3), (2, 1, 4), (3, 0, 5)])
    said = succeed("simulate", task, "--like", table, *COLUMNS, "--value", "v", "--estimate", "conditional")
    assert all(row["flagged"] for row in said["estimates"])
    assert said["root_mean_square_error"] is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--like", "missing.csv"], "missing.csv"),
        (["--user", "who"], "'who'"),
        (["--value", "w"], "'w'"),
        (["--interval", 1.5], "interval"),
        (["--interval", "nan"], "interval"),
        (["--estimate", "mean"], "mean"),
        (["--like", "strange.csv"], "'77'"),
        (["--like", "empty.csv"], ""),
        (["-o", "out.xyz"], ".csv, .json or .parquet"),
    ],
    ids=str,
)
def test_bad_input(options: list[Any], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_task(tmp_path / "t.toml", "--epsilon", 1, keys=9)
    for name, keys in (("fine", [3, 4]), ("strange", [3, 77]), ("empty", [])):
        write_csv(tmp_path / f"{name}.csv", [("u", "k"), *((1, key) for key in keys)])
    before = contents(tmp_path)
    assert part in refuse("simulate", "t.toml", "--like", "fine.csv", *COLUMNS, *options)
    assert contents(tmp_path) == before


def test_values_need_their_column(table: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t.toml", *TASKS["means"])
    assert "name the column" in refuse("simulate", task, "--like", table, *COLUMNS)


def test_negative_seeds(table: Path, tmp_path: Path) -> None:
    """Refused or fine, but no traceback."""
    task = make_task(tmp_path / "t.toml", *TASKS["sets"])
    result = run_cli("simulate", task, "--like", table, *COLUMNS, "--seed", -1)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)


def test_what_cannot_be_estimated_is_refused_first(tmp_path: Path) -> None:
    """Before the table is read: there is none."""
    task = make_task(
        tmp_path / "t.toml", "--epsilon", 1, "--range", "-1:1", "--mechanism", "sparse_sum", keys=9
    )
    line = refuse(
        "simulate",
        task,
        "--like",
        tmp_path / "missing",
        *COLUMNS,
        "--value",
        "v",
        "--estimate",
        "conditional",
    )
    assert "cannot estimate 'conditional'" in line
