"""hubbub run: a table in, private estimates out."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import (
    contents,
    real_command,
    refuse,
    run_cli,
    seeded_coins,
    strict_json,
    succeed,
    write_csv,
)

SETS = ["--user", "u", "--key", "k", "--epsilon", 4, "--max-entries", 2]
VALUES = [*SETS, "--value", "v", "--range", "1:5"]


def columns() -> dict[str, list[Any]]:
    """3000 users: all have key a (value 4), every third b (value 2); c is there once."""
    rows = [(f"user{i:04}", "a", 4.0) for i in range(3000)]
    rows += [(f"user{i:04}", "b", 2.0) for i in range(0, 3000, 3)]
    rows.append(("user0001", "c", 1.0))
    return dict(zip(("u", "k", "v"), map(list, zip(*rows, strict=True)), strict=True))


@pytest.fixture(params=[".csv", ".parquet", ".npz"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path, data = tmp_path / f"pages{request.param}", columns()
    if request.param == ".csv":
        write_csv(path, [list(data), *zip(*data.values(), strict=True)])
    elif request.param == ".parquet":
        pq.write_table(pa.table(data), path)
    else:
        np.savez(path, **{name: np.array(column) for name, column in data.items()})
    return path


@pytest.fixture
def csv_table(tmp_path: Path) -> Path:
    data = columns()
    return write_csv(tmp_path / "pages.csv", [list(data), *zip(*data.values(), strict=True)])


def check(rows: list[dict[str, Any]], truth: dict[str, float], within: float) -> None:
    """Every estimate is within six of its standard errors, and those are small."""
    found = {row["key"]: row for row in rows}
    assert set(truth) <= set(found)
    for key, value in truth.items():
        assert found[key]["error"] < within
        assert abs(found[key]["value"] - value) < 6 * found[key]["error"]


def test_sets(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded_coins(monkeypatch)
    said = succeed("run", table, *SETS)
    assert said["summary"] | {"records": 3000, "entries": 4001, "sampled_records": 0} == said["summary"]
    assert (said["quantity"], said["reports"], said["keys"]["count"]) == ("frequency", 3000, 3)
    assert said["task"]["name"] == "pages"
    check(said["estimates"], {"a": 1.0, "b": 1 / 3, "c": 1 / 3000}, within=0.04)


def test_values(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without 0 in the middle of the range, the mean among those who have the key is asked for."""
    seeded_coins(monkeypatch)
    said = succeed("run", table, *VALUES)
    assert said["quantity"] == "conditional"
    check(said["estimates"], {"a": 4.0, "b": 2.0}, within=0.22)
    said = succeed(
        "run", table, *VALUES, "--estimate", "mean", "--mechanism", "coco", "--set", "seed_bits=20"
    )
    assert said["quantity"] == "mean"
    assert said["task"]["mechanism"]["seed_bits"] == 20
    check(said["estimates"], {"a": 4.0, "b": 2 / 3}, within=0.22)


def test_a_range_around_zero_asks_for_the_mean(csv_table: Path) -> None:
    assert succeed("run", csv_table, *VALUES[:-1], "-5:5")["quantity"] == "mean"


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_all_rows_are_written(suffix: str, csv_table: Path, tmp_path: Path) -> None:
    """What is on disk is what --json says, whatever --top shows."""
    path = tmp_path / f"out{suffix}"
    said = succeed("run", csv_table, *SETS, "-o", path)
    assert said["file"] == str(path)
    if suffix == ".csv":
        with path.open(newline="") as file:
            written = [{"key": row["key"], "value": float(row["value"])} for row in csv.DictReader(file)]
    elif suffix == ".json":
        written = strict_json(path.read_bytes())["estimates"]
    else:
        written = pq.read_table(path).to_pylist()
    assert {row["key"]: row["value"] for row in written} == {
        row["key"]: row["value"] for row in said["estimates"]
    }
    assert [row["key"] for row in written] == ["a", "b", "c"]
    assert len(succeed("run", csv_table, *SETS, "--top", 1, "-o", path)["estimates"]) == 1


def test_a_vocabulary_adds_keys_that_nobody_has(csv_table: Path, tmp_path: Path) -> None:
    names = tmp_path / "keys.txt"
    names.write_text("c\r\nb\n\na\nnobody has it\n")
    said = succeed("run", csv_table, *SETS, "--vocabulary", names)
    assert {row["key"] for row in said["estimates"]} == {"a", "b", "c", "nobody has it"}
    names.write_text("a\nb\n")
    assert "'c'" in refuse("run", csv_table, *SETS, "--vocabulary", names)


def test_intervals_follow_the_options(csv_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded_coins(monkeypatch)
    said = succeed("run", csv_table, *SETS, "--interval", 0.5, "--simultaneous")
    assert (said["level"], said["simultaneous"]) == (0.5, True)
    for row in said["estimates"]:
        assert (row["high"] - row["low"]) / (2 * row["error"]) == pytest.approx(1.3829941, rel=0.1)


def test_the_text_for_people_has_the_promise_and_the_note(csv_table: Path) -> None:
    said = run_cli("run", csv_table, *SETS)
    assert said.exit_code == 0
    assert said.stderr == ""
    text = " ".join(said.stdout.split())
    assert "3,000 records with 4,001 entries" in text
    assert "epsilon = 4 per record, local model" in text
    assert "taken as publicly known" in text
    assert "a" in text


def test_untidy_records_are_counted(tmp_path: Path) -> None:
    rows = [("u", "k", "v"), (1, "a", 9), (1, "a", 0), (2, "a", 2), (2, "b", 2), (2, "c", 2)]
    table = write_csv(tmp_path / "t.csv", rows)
    summary = succeed("run", table, *VALUES)["summary"]
    assert summary == {
        "records": 2,
        "entries": 4,
        "clipped": 1,
        "absent": 0,
        "repeated": 1,
        "sampled_records": 1,
        "dropped_entries": 1,
        "unknown": 0,
        "unreadable": 0,
    }


# In a process of its own


def test_the_installed_command(csv_table: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    done = real_command("run", csv_table, *SETS, "-o", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert strict_json(done.stdout)["reports"] == 3000
    assert path.read_text().startswith("key,value,error,low,high,flagged\n")


def test_the_installed_command_refuses(csv_table: Path, tmp_path: Path) -> None:
    """With --json the reason is on stdout as well, for machines."""
    before = contents(tmp_path)
    done = real_command("run", csv_table, *SETS[:-2], "--max-entries", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("hubbub: ")
    assert done.stderr.count("\n") == 1
    done = real_command("run", csv_table, "--user", "nobody", *SETS[2:], "--json")
    assert done.returncode == 1
    assert done.stderr == f"hubbub: {strict_json(done.stdout)['error']}\n"
    assert contents(tmp_path) == before


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from hubbub.cli import main
main()
"""


def test_control_c_leaves_no_file(tmp_path: Path) -> None:
    """Stopped while it reads its table from a pipe."""
    pipe, old = tmp_path / "t.csv", tmp_path / "out.csv"
    os.mkfifo(pipe)
    old.write_text("old")
    command = [sys.executable, "-c", INTERRUPTED, "run", pipe, *SETS, "-o", old]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
    with pipe.open("w") as writer:
        writer.write("u,k\n1,a\n")
        writer.flush()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode not in (0, 2)
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "t.csv"]
    assert old.read_text() == "old"
