"""hubbub run: a table in, private estimates out."""

from __future__ import annotations

import csv
import os
import re
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
    prose,
    real_command,
    refuse,
    run_cli,
    seeded_coins,
    small_task,
    strict_json,
    succeed,
    write_csv,
)
from hubbub.cli._cost import cost_of
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

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


@pytest.mark.parametrize("quantity", [None, "mean", "conditional", "frequency", "sum"])
def test_a_named_mechanism_is_the_planned_one(csv_table: Path, quantity: str | None) -> None:
    """Named, sketch response has the mode and the parameters with which it is planned, and is estimated from."""
    asked = ["--estimate", quantity] if quantity else []
    said = succeed("run", csv_table, *VALUES, *asked, "--mechanism", "sketch_response", "--best")
    users, keys = said["reports"], said["keys"]["count"]
    planned = succeed(
        *("plan", "--keys", keys, "--users", users, "--max-entries", 2, "--epsilon", 4, "--range", "1:5"),
        *("--estimate", quantity or "conditional"),
    )
    [row] = [option for option in planned["options"] if option["mechanism"] == "sketch_response"]
    assert {"name": "sketch_response", **row["parameters"]} == said["task"]["mechanism"]
    assert said["quantity"] == (quantity or "conditional")
    assert len(said["estimates"]) == keys


def test_what_a_named_mechanism_cannot_do_is_refused_first(tmp_path: Path, csv_table: Path) -> None:
    """Before the table is read; and where nothing was asked for, what it can do is estimated."""
    missing = tmp_path / "missing.csv"
    line = refuse("run", missing, *SETS, "--mechanism", "coco")
    assert "coco is for signed values: give values and their range, or take " in line
    harmony = [*VALUES, "--mechanism", "harmony"]
    assert "estimates means only" in refuse("run", missing, *harmony, "--estimate", "conditional")
    assert succeed("run", csv_table, *harmony)["quantity"] == "mean"


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


@pytest.fixture
def hopeless(tmp_path: Path) -> Path:
    """3000 users with a key each that nobody else has."""
    return write_csv(tmp_path / "own.csv", [("u", "k"), *((f"user{i}", f"key{i}") for i in range(3000))])


def test_a_run_where_nothing_can_be_learned_says_so_first(
    hopeless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First in the text, in JSON and in files; no row of noise is listed, and the planner says what would help."""
    seeded_coins(monkeypatch)
    options = [hopeless, *SETS[:4], "--epsilon", 0.5, "--max-entries", 2]
    text = prose("run", *options, "-o", tmp_path / "o.csv")
    first = text.partition(" task ")[0]
    assert first.startswith(
        "Nothing stands out: none of 3,000 keys can be told from noise. With 3,000 reports, "
    )
    assert "By the plan, a share of 0.1 takes about " in first
    assert "key1" not in text
    assert first in (tmp_path / "o.csv").read_text().splitlines()[1]
    said = succeed("run", *options)
    assert next(iter(said)) == "warnings"
    assert [words.split()[0] for words in said["warnings"]] == ["Nothing"]
    assert all(row["flagged"] for row in said["estimates"])
    assert said["findings"]["count"] == 0


def test_the_plan_for_what_would_have_stood_out_keeps_its_word(
    hopeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the epsilon that is named, the named share is what the planner calls detectable."""
    seeded_coins(monkeypatch)
    options = [hopeless, *SETS[:4], "--epsilon", 0.5, "--max-entries", 2]
    words = succeed("run", *options)["warnings"][0]
    named = re.search(
        r"a share of ([\d.]+) takes about ([\d,]+) people at epsilon 0.5, or epsilon ([\d.]+)", words
    )
    assert named is not None
    share, people, epsilon = (float(part.replace(",", "")) for part in named.groups())
    goal = Goal("frequency", epsilon, 2, users=3000, keys=3000)
    assert rank(goal)[0].detectable == pytest.approx(share, rel=0.03)
    goal = Goal("frequency", 0.5, 2, users=round(people), keys=3000)
    assert rank(goal)[0].detectable == pytest.approx(share, rel=0.03)


def test_keys_in_the_noise_are_marked_among_all_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody has one key; of 400 others that hardly anybody has, the luckiest are shown and marked."""
    seeded_coins(monkeypatch)
    rows = [(i, key) for i in range(3000) for key in ("all", f"rare{i % 400}")]
    table = write_csv(tmp_path / "t.csv", [("u", "k"), *rows])
    text = run_cli("run", table, *SETS).stdout
    assert text.count("in the noise") == 19
    assert "1 of 401 keys stands out from the noise" in " ".join(text.split())
    assert text.startswith("task ")
    steps = [table, tmp_path / "t.toml", "--user", "u", "--key", "k"]
    names = tmp_path / "names.txt"
    names.write_text("\n".join(["all", *(f"rare{i}" for i in range(400))]))
    succeed("task", "new", "--name", "t", "--vocabulary", names, *SETS[4:], "-o", tmp_path / "t.toml")
    succeed("privatize", *steps, "-o", tmp_path / "r.bin")
    succeed("aggregate", tmp_path / "r.bin", "-o", tmp_path / "s.bin")
    said = succeed("estimate", tmp_path / "s.bin")
    assert said["findings"]["count"] == 1
    assert sum(row["flagged"] for row in said["estimates"]) == 19
    text = run_cli("estimate", tmp_path / "s.bin", "rare1").stdout
    assert text.startswith("Nothing stands out: the one key that was asked for cannot be told from noise.")
    assert "in the noise" in text


@pytest.fixture
def long_records(tmp_path: Path) -> Path:
    """2000 users with 8 of 20 keys each, one key always among them."""
    rows = [(i, key) for i in range(2000) for key in ("all", *(f"k{(i + 3 * j) % 19}" for j in range(7)))]
    return write_csv(tmp_path / "long.csv", [("u", "k"), *rows])


def test_a_run_that_drops_three_quarters_warns_everywhere(
    long_records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First in the text, in JSON, in CSV and in the metadata of Parquet, with what the planner would take."""
    seeded_coins(monkeypatch)
    first = prose("run", long_records, *SETS, "-o", tmp_path / "o.csv").partition(" task ")[0]
    assert first.startswith("75% of all entries were dropped, because records count with at most 2: ")
    assert "after sampling down" in first
    assert "too low by a factor of up to 4." in first
    named = re.search(r"By the plan, max_entries = (\d+) would have the least error", first)
    assert named is not None
    assert int(named[1]) > 2
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    assert rows[0]["note"].startswith(first)
    assert {row["dropped"] for row in rows} == {"0.75"}
    assert {(row["long_records"], row["long_records_error"]) for row in rows} == {("1.0", "0.0")}
    said = succeed("run", long_records, *SETS, "-o", tmp_path / "o.parquet")
    assert said["warnings"] == [first]
    assert (said["truncation"]["dropped"], said["truncation"]["factor"]) == (0.75, 4.0)
    assert said["truncation"]["suggested"] == int(named[1])
    metadata = strict_json(pq.read_table(tmp_path / "o.parquet").schema.metadata[b"hubbub"])
    assert metadata["warnings"] == [first]
    succeed("run", long_records, *SETS, "-o", tmp_path / "o.json")
    assert strict_json((tmp_path / "o.json").read_bytes())["warnings"] == [first]


def test_lengths_that_are_counted_and_corrected_for(
    long_records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight entries one stays beside the mark: seven eighths are lost. A collector knows that from the reports."""
    seeded_coins(monkeypatch)
    options = ["--epsilon", 6, "--max-entries", 3, "--count-lengths"]
    said = succeed("run", long_records, *SETS[:4], *options, "--correct")
    assert said["truncation"]["source"] == "table"
    assert said["truncation"]["dropped"] == pytest.approx(0.75)
    row = next(row for row in said["estimates"] if row["key"] == "all")
    assert row["low"] < 1 < row["high"]
    assert any("assumes that short and long records hold a key alike" in note for note in said["notes"])
    assert "--count-lengths" in refuse("run", long_records, *SETS, "--correct")
    names = tmp_path / "names.txt"
    names.write_text("\n".join(["all", *(f"k{i}" for i in range(19))]))
    task = tmp_path / "t.toml"
    succeed("task", "new", "--name", "t", "--vocabulary", names, *options, "-o", task)
    assert "count_lengths = true" in task.read_text()
    succeed("privatize", long_records, task, "--user", "u", "--key", "k", "-o", tmp_path / "r.bin")
    succeed("aggregate", tmp_path / "r.bin", "-o", tmp_path / "s.bin")
    found = succeed("estimate", tmp_path / "s.bin")
    lost = found["truncation"]
    assert lost["source"] == "reports"
    assert abs(lost["lost"] - 0.75) < 6 * lost["lost_error"] < 0.3
    text = run_cli("estimate", tmp_path / "s.bin", "--correct").stdout
    assert "of all records were longer than 3 entries" in text.splitlines()[0]
    assert "Corrected for what was lost" in " ".join(text.split())
    assert "count_lengths" in refuse(
        "task",
        "new",
        "--name",
        "t",
        "--keys",
        9,
        *SETS[4:6],
        "--max-entries",
        1,
        "--count-lengths",
        "-o",
        task,
    )


def test_few_long_records_may_hold_most_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2% of the people have 100 of 120 keys, the others 2: half of all entries are dropped. A count of long records
    cannot tell how many, so no file says that it can, and the warning is there wherever the noise took the count."""
    seeded_coins(monkeypatch)
    rows = [(i, f"k{(i + j) % 120}") for i in range(3000) for j in range(100 if i % 50 == 0 else 2)]
    table = write_csv(tmp_path / "few.csv", [("u", "k"), *rows])
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"k{i}" for i in range(120)))
    told = {}
    for name, options in (("counted", ["--count-lengths"]), ("not", [])):
        task, out = tmp_path / f"{name}.toml", tmp_path / f"{name}.csv"
        sizes = ["--epsilon", 3, "--max-entries", 4, *options]
        succeed("task", "new", "--name", "t", "--vocabulary", names, *sizes, "-o", task)
        made = succeed("privatize", table, task, "--user", "u", "--key", "k", "-o", tmp_path / "r.bin")
        assert made["truncation"]["dropped"] == pytest.approx(0.49, abs=0.01)
        succeed("aggregate", tmp_path / "r.bin", "-o", tmp_path / "s.bin")
        said = succeed("estimate", tmp_path / "s.bin", "-o", out)
        told[name] = said, list(csv.DictReader(out.read_text().splitlines()))
    said, written = told["counted"]
    lost = said["truncation"]
    assert lost["dropped"] is None
    assert lost["dropped_least"] < 0.49 < lost["dropped_most"] < 1
    assert lost["factor"] == 120 / 3
    warning = next(each for each in said["warnings"] if "of all records were longer than 4 entries" in each)
    assert "nor what share of all entries was dropped: up to" in warning
    assert "by a factor of up to 40" in warning
    assert warning in written[0]["note"]
    assert {row["dropped"] for row in written} == {""}
    assert {float(row["long_records"]) for row in written} == {lost["longer"]}
    assert {float(row["long_records_error"]) for row in written} == {lost["longer_error"]}
    said, written = told["not"]
    assert said["truncation"] is None
    assert "Estimates are of records after sampling down to at most 4 entries, and" in written[0]["note"]
    assert "by a factor of up to 30" in written[0]["note"]
    assert {row["dropped"] + row["long_records"] for row in written} == {""}


def test_whoever_makes_the_reports_is_warned(
    long_records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters are dropped: privatize says so first, like run, because the reports do not."""
    seeded_coins(monkeypatch)
    first = prose("run", long_records, *SETS).partition(" task ")[0]
    names = tmp_path / "names.txt"
    names.write_text("\n".join(["all", *(f"k{i}" for i in range(19))]))
    task, made = tmp_path / "t.toml", tmp_path / "r.bin"
    succeed("task", "new", "--name", "t", "--vocabulary", names, *SETS[4:], "-o", task)
    steps = ["privatize", long_records, task, *SETS[:4], "-o", made]
    assert prose(*steps).startswith(f"{first} 2,000 records with 16,000 entries; ")
    said = succeed(*steps)
    assert said["warnings"] == [first]
    assert said["truncation"]["dropped"] == 0.75
    assert f"max_entries = {said['truncation']['suggested']} " in first
    short = write_csv(tmp_path / "short.csv", [("u", "k"), *((i, "all") for i in range(20))])
    said = succeed("privatize", short, task, *SETS[:4], "-o", made)
    assert (said["warnings"], said["truncation"]["dropped"]) == ([], 0.0)


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


# What it will take


def gaussian_task(tmp_path: Path, keys: int) -> Path:
    path = tmp_path / "g.toml"
    options = ["--epsilon", 1, "--max-entries", 2, "--mechanism", "gaussian", "--delta", 1e-5]
    succeed("task", "new", "--name", "g", "--keys", keys, *options, "-o", path)
    return path


def test_long_work_is_announced_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism that draws a number for every key, asked for by name: time and memory, then it goes on."""

    def stop(*_: Any, **__: Any) -> None:
        raise Refused("The work has started.")

    monkeypatch.setattr("hubbub.device.client.privatize", stop)
    table = tmp_path / "t.npz"
    np.savez(table, u=np.arange(40_000), k=np.arange(40_000) % 3700)
    options = ["--user", "u", "--key", "k", "--epsilon", 1, "--max-entries", 2]
    said = run_cli("run", table, *options, "--mechanism", "gaussian", "--delta", 1e-5)
    announced, started = said.stderr.splitlines()
    assert (started, said.stdout) == ("hubbub: The work has started.", "")
    assert announced.startswith("gaussian draws 3,701 numbers for every record: up to about ")
    assert re.search(r"about [\d.]+ (minutes|hours) and 0\.[78] GB for 40,000 records", announced)
    assert refuse("run", table, *options) == "hubbub: The work has started.\n"


def test_the_announced_cost_grows_with_numbers_and_bytes(tmp_path: Path) -> None:
    wide, narrow = (Task.load(gaussian_task(tmp_path, keys)) for keys in (2000, 20))
    assert cost_of(narrow, 10**9) == (0.0, 0)
    seconds, size = cost_of(wide, 10**6)
    assert cost_of(wide, 2 * 10**6)[0] == pytest.approx(2 * seconds)
    assert size > 10**6 * wide.mechanism.layout.width
    assert seconds > 10**6 * 2001 * 1e-6


# In a process of its own


def test_the_installed_command(csv_table: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    done = real_command("run", csv_table, *SETS, "-o", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert strict_json(done.stdout)["reports"] == 3000
    assert path.read_text().startswith(
        "key,value,error,low,high,flagged,quantity,level,simultaneous,epsilon,reports,dropped,long_records,"
        "long_records_error,note\n"
    )


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


def test_a_table_is_not_written_over(tmp_path: Path) -> None:
    """Under whatever name: neither by estimates nor by reports."""
    path, link = tmp_path / "t.parquet", tmp_path / "again.parquet"
    pq.write_table(pa.table({"user": [1, 2], "key": ["a", "b"]}), path)
    link.symlink_to(path)
    before, task = path.read_bytes(), tmp_path / "task.toml"
    small_task(size=3).save(task)
    columns = ("--user", "user", "--key", "key")
    for output in (path, link):
        words = refuse("run", path, *columns, "--epsilon", 1, "--max-entries", 2, "-o", output)
        assert "is the table itself" in words
        assert "is the table itself" in refuse("privatize", path, task, *columns, "-o", output)
    assert path.read_bytes() == before


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
