"""Whatever is wrong with the input: exit code 1, one line on stderr, and nothing written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, flips, refuse, run_cli, strict_json, succeed, write_csv

NEW = ["task", "new", "--name", "t", "--epsilon", 1, "--max-entries", 2]
COLUMNS = ["--user", "u", "--key", "k"]
RUN = [*COLUMNS, "--epsilon", 1, "--max-entries", 2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two tasks over the same keys, each with reports and a state, and a table."""
    folder = tmp_path_factory.mktemp("made")
    write_csv(folder / "t.csv", [("u", "k", "v"), (1, 3, 1), (1, 4, 1), (2, 3, 1)])
    for name in ("one", "two"):
        task = folder / f"{name}.toml"
        succeed(*NEW, "--open", 4, "--mechanism", "collision", "-o", task)
        succeed("privatize", folder / "t.csv", task, *COLUMNS, "-o", folder / f"{name}.reports")
        succeed("aggregate", folder / f"{name}.reports", "-o", folder / f"{name}.state")
    return contents(folder)


@pytest.fixture
def folder(made: dict[str, bytes], tmp_path: Path) -> Path:
    """A fresh copy of those files, and an older output that must stay as it is."""
    for name, data in {**made, "out": b"old output"}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def refused_without_trace(folder: Path, *arguments: object) -> str:
    """The reason; every file in the folder is as it was."""
    before = contents(folder)
    line = refuse(*arguments)
    assert contents(folder) == before
    return line


def readers(path: Path, folder: Path) -> list[list[Any]]:
    """Every command that reads a reports or state file."""
    if path.suffix == ".reports":
        return [["aggregate", path, "-o", folder / "out"], ["inspect", path]]
    return [
        ["merge", path, "-o", folder / "out"],
        ["estimate", path, "3", "-o", folder / "out.csv"],
        ["inspect", path],
    ]


# Reports and states


def harmed(data: bytes, harm: str) -> bytes:
    """A file with something wrong; the checksum fits where the harm is not an accident."""
    body = bytearray(data[:-16])
    if harm == "version":
        body[5] = 2
    elif harm == "kind":
        body[4:5] = b"X"
    elif harm == "mechanism":
        body[6] ^= 1
    elif harm == "digest":
        body[8] ^= 1
    else:
        return {"truncated": data[:-5], "over-long": data + b"\0", "empty": b"", "text": b"name = 1"}[harm]
    return bytes(body) + hashlib.blake2b(bytes(body), digest_size=16).digest()


HARMS = {
    "truncated": "truncated",
    "over-long": "longer than it says",
    "version": "format version 2",
    "kind": "unknown kind",
    "mechanism": "another mechanism",
    "digest": "another task",
    "empty": "",
    "text": "",
}


@pytest.mark.parametrize("name", ["one.reports", "one.state"])
@pytest.mark.parametrize("harm", HARMS)
def test_harmed_files(harm: str, name: str, folder: Path) -> None:
    path = folder / name
    path.write_bytes(harmed(path.read_bytes(), harm))
    for arguments in readers(path, folder):
        line = refused_without_trace(folder, *arguments)
        assert HARMS[harm] in line
        assert str(path) in line


@pytest.mark.parametrize("name", ["one.reports", "one.state"])
def test_flipped_bits(name: str, folder: Path) -> None:
    """Every 23rd bit of a file, through the command line; every one of them in tests/protocol/test_files.py."""
    path = folder / name
    for place, damaged in enumerate(flips(path.read_bytes())):
        if place % 23 == 0:
            path.write_bytes(damaged)
            refused_without_trace(folder, *readers(path, folder)[0])


def test_the_wrong_kind_of_file(folder: Path) -> None:
    assert "holds a state, not reports." in refused_without_trace(
        folder, "aggregate", folder / "one.state", "-o", folder / "out"
    )
    assert "holds reports, not a state." in refused_without_trace(
        folder, "merge", folder / "one.reports", "-o", folder / "out"
    )
    assert "holds reports" in refused_without_trace(folder, "estimate", folder / "one.reports")
    assert "not a hubbub file" in refused_without_trace(folder, "estimate", folder / "one.toml")
    assert "task file" in refused_without_trace(
        folder, "privatize", folder / "t.csv", folder / "one.state", *COLUMNS, "-o", folder / "out"
    )


def test_files_of_two_tasks_do_not_mix(folder: Path) -> None:
    for command, kind in (("aggregate", "reports"), ("merge", "state")):
        pair = [folder / f"one.{kind}", folder / f"two.{kind}"]
        line = refused_without_trace(folder, command, *pair, "-o", folder / "out")
        assert "two" in line
        assert "belongs to task" in line


@pytest.mark.parametrize(
    "command", ["aggregate", "merge", "estimate", "inspect", "privatize", "run", "task show"]
)
def test_files_that_are_not_there(command: str, folder: Path) -> None:
    missing = folder / "missing.csv"
    more: dict[str, list[Any]] = {
        "aggregate": ["-o", folder / "out"],
        "merge": ["-o", folder / "out"],
        "privatize": [folder / "one.toml", *COLUMNS, "-o", folder / "out"],
        "run": RUN,
    }
    assert str(missing) in refused_without_trace(folder, *command.split(), missing, *more.get(command, []))


# Tasks

TASK = """name = "t"
[keys]
kind = "closed"
size = 10
{keys}
[mechanism]
name = "{name}"
epsilon = {epsilon}
max_entries = 4
{more}
"""


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"epsilon": "0.0"}, "epsilon"),
        ({"epsilon": "-1.0"}, "epsilon"),
        ({"epsilon": "nan"}, "epsilon"),
        ({"epsilon": "inf"}, "epsilon"),
        ({"epsilon": "1e-12"}, "epsilon"),
        ({"epsilon": "'one'"}, "epsilon"),
        ({"keys": "bits = 31"}, "30"),
        ({"keys": "bits = 3"}, "bits"),
        ({"keys": "cohorts = 1000"}, "cohorts"),
        ({"keys": "colour = 'red'"}, "colour"),
        ({"name": "coco", "more": "buckets = 4"}, "t >= 2s + 2"),
        ({"more": "buckets = 1073741824"}, "buckets"),
        ({"more": "buckets = 4"}, "buckets"),
        ({"more": "flavour = 3"}, "flavour"),
        ({"name": "telepathy"}, "telepathy"),
        ({"more": "name = 'again'"}, "not a task file"),
        ({"more": "= ="}, "not a task file"),
        ({"more": "seeds = [[[["}, ""),
    ],
    ids=str,
)
def test_bad_task_files(changes: dict[str, str], part: str, folder: Path) -> None:
    path = folder / "bad.toml"
    path.write_text(TASK.format(**{"name": "collision", "epsilon": "1.0", "keys": "", "more": "", **changes}))
    line = refused_without_trace(folder, "task", "show", path)
    assert part in line
    assert str(path) in line
    refused_without_trace(folder, "privatize", folder / "t.csv", path, *COLUMNS, "-o", folder / "out")


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\0", b"", b"hubbR" + bytes(100)], ids=["binary", "empty", "magic"]
)
def test_files_that_are_no_task(data: bytes, folder: Path) -> None:
    (folder / "bad.toml").write_bytes(data)
    for command in (["task", "show"], ["inspect"]):
        refused_without_trace(folder, *command, folder / "bad.toml")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--keys", 9, "--epsilon", 0], "epsilon"),
        (["--keys", 9, "--epsilon", -1], "epsilon"),
        (["--keys", 9, "--epsilon", "nan"], "epsilon"),
        (["--keys", 9, "--epsilon", "inf"], "epsilon"),
        (["--keys", 9, "--epsilon", 17], "epsilon"),
        (["--keys", 9, "--epsilon", "1e-12"], "epsilon"),
        (["--keys", 9, "--epsilon", "nan", "--mechanism", "collision"], "epsilon"),
        (["--keys", 9, "--max-entries", 0], "max_entries"),
        (["--keys", 9, "--max-entries", 100_000], "max_entries"),
        (["--keys", 0], "(given: 0)"),
        (["--keys", 0, "--range", "1:5", "--mechanism", "collision"], "(given: 0)"),
        (["--keys", -4], "not -4"),
        (["--keys", 1 << 40], "fewer than 2^30 keys, not 1099511627776"),
        (["--keys", 1 << 29, "--range", "0:1", "--mechanism", "harmony"], "is for fewer keys"),
        (["--open", 31], "30"),
        (["--open", 1], "between 2 and 30"),
        (["--keys", 9, "--cohorts", 0], "cohorts"),
        (["--keys", 9, "--minimum-reports", -1], "minimum_reports"),
        (["--keys", 9, "--values"], "--range"),
        (["--keys", 9, "--range", "5:1"], "empty"),
        (["--keys", 9, "--range", "1:1"], "empty"),
        (["--keys", 9, "--range", "0:0"], "empty"),
        (["--keys", 9, "--range", "1"], "LOW:HIGH"),
        (["--keys", 9, "--range", "1:2:3"], "LOW:HIGH"),
        (["--keys", 9, "--range", "low:high"], "LOW:HIGH"),
        (["--keys", 9, "--range", "nan:5"], ""),
        (["--keys", 9, "--range", "0:inf"], ""),
        (["--keys", 9, "--range=-1e300:1e300"], "another unit"),
        (["--keys", 9, "--unit", "l1"], "distance"),
        (["--keys", 9, "--unit", "l1", "--distance", -1], "distance"),
        (["--keys", 9, "--unit", "l1", "--distance", "nan"], "distance"),
        (["--keys", 9, "--distance", 2], "istance"),
        (["--keys", 9, "--delta", 0.1], "delta"),
        (["--keys", 9, "--unit", "l1", "--distance", 2, "--delta", 3], "delta"),
        (["--keys", 9, "--estimate", "mean"], ""),
        (["--keys", 9, "--mechanism", "telepathy"], "telepathy"),
        (["--keys", 9, "--set", "buckets=8"], "--mechanism"),
        (["--keys", 9, "--mechanism", "collision", "--set", "buckets"], "NAME=VALUE"),
        (["--keys", 9, "--mechanism", "collision", "--set", "flavour=3"], "flavour"),
        (["--keys", 9, "--mechanism", "collision", "--set", "buckets=many"], "buckets"),
        (["--keys", 9, "--mechanism", "collision", "--set", "buckets=" + "[" * 2000], "buckets"),
        (["--keys", 9, "--mechanism", "collision", "--set", "epsilon=2"], "epsilon"),
        (["--keys", 9, "--mechanism", "collision", "--set", "max_entries=3"], "max_entries"),
        (["--keys", 9, "--mechanism", "collision", "--set", "name=coco"], "name"),
        (["--keys", 9, "--mechanism", "coco"], "values"),
        (["--keys", 9, "--range", "-1:1", "--mechanism", "coco", "--set", "buckets=2"], "t >= 2s + 2"),
    ],
    ids=str,
)
def test_bad_options_of_a_new_task(options: list[Any], part: str, folder: Path) -> None:
    line = refused_without_trace(folder, *NEW, *options, "-o", folder / "out")
    assert part in line


@pytest.mark.parametrize(
    ("data", "part"),
    [(b"", "no keys"), (b"\n\n", "no keys"), (b"\xff", "UTF-8"), (b"a\nb\na\n", "twice")],
)
def test_bad_vocabularies(data: bytes, part: str, folder: Path) -> None:
    (folder / "keys.txt").write_bytes(data)
    assert part in refused_without_trace(
        folder, *NEW, "--vocabulary", folder / "keys.txt", "-o", folder / "out"
    )


def test_a_vocabulary_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    """As tables may: both come out of the same spreadsheets."""
    (folder / "keys.txt").write_bytes("\ufeff3\r\n4\r\n".encode())
    table = folder / "t.csv"
    said = succeed("run", table, *RUN, "--vocabulary", folder / "keys.txt")
    assert {row["key"] for row in said["estimates"]} == {"3", "4"}


# Tables


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", ["no column 'u'"]),
        (b"u,k,v\n", ["no rows"]),
        (b"u,key,v\n1,3,1\n", ["no column 'k'", "u, key, v"]),
        (b"u,k,v\n1,3,1\n2,4\n", ["line 3", "2 columns where the header has 3"]),
        (b"u,k,v\n1,3,1\n2,4,lots\n", ["line 3", "'lots'"]),
        (b"u,k,v\n1,3,nan\n", ["line 2", "nan"]),
        (b"u,k,v\n1,3,\n", ["line 2"]),
        (b"u,k,v\n1,\xe9,1\n", ["UTF-8"]),
        (b"\x89PNG\r\n\x1a\n", []),
    ],
    ids=["empty", "header", "column", "ragged", "text", "nan", "hole", "latin", "picture"],
)
@pytest.mark.parametrize("command", ["run", "privatize"])
def test_bad_tables(command: str, text: bytes, parts: list[str], folder: Path) -> None:
    path = folder / "bad.csv"
    path.write_bytes(text)
    task = folder / "values.toml"
    succeed(*NEW, "--open", 10, "--range", "0:2", "-o", task)
    more = [*RUN, "--range", "0:2"] if command == "run" else [task, *COLUMNS]
    output = folder / ("out.csv" if command == "run" else "out.reports")
    line = refused_without_trace(folder, command, path, *more, "--value", "v", "-o", output)
    assert str(path) in line
    for part in parts:
        assert part in line


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"PAR1", b"u,k\n1,2\n"])
def test_bad_binary_tables(suffix: str, data: bytes, folder: Path) -> None:
    path = folder / f"bad{suffix}"
    path.write_bytes(data)
    assert str(path) in refused_without_trace(folder, "run", path, *RUN)


def test_a_lone_array_is_no_table(folder: Path) -> None:
    np.save(folder / "bad.npy", np.arange(5))
    (folder / "bad.npy").rename(folder / "bad.npz")
    assert "bad.npz" in refused_without_trace(folder, "run", folder / "bad.npz", *RUN)


def test_values_that_are_not_asked_for(folder: Path) -> None:
    """A set with values other than 0 and 1, a task with values and no column, a key that is not in the task."""
    table = write_csv(folder / "t.csv", [("u", "k", "v"), (1, 3, 7)])
    out = ["-o", folder / "out"]
    task = folder / "one.toml"
    assert "0 and 1" in refused_without_trace(
        folder, "privatize", table, task, *COLUMNS, "--value", "v", *out
    )
    succeed(*NEW, "--keys", 2, "--range", "0:9", "-o", task)
    assert "name the column" in refused_without_trace(folder, "privatize", table, task, *COLUMNS, *out)
    assert "'3'" in refused_without_trace(folder, "privatize", table, task, *COLUMNS, "--value", "v", *out)


@pytest.mark.parametrize("level", [0, 1, -1, 2, "nan"])
def test_bad_levels(level: Any, folder: Path) -> None:
    state = folder / "one.state"
    line = refused_without_trace(folder, "estimate", state, "3", "--interval", level, "-o", folder / "o.csv")
    assert "level" in line


def test_an_extreme_level_is_no_accident(folder: Path) -> None:
    """Eight standard errors would do for a normal law; so few reports have a longer tail, which ends all the same."""
    rows = succeed("estimate", folder / "one.state", "3", "--interval", 1 - 2**-53)["estimates"]
    assert 8 < (rows[0]["high"] - rows[0]["value"]) / rows[0]["error"] < 100


# Outputs


@pytest.mark.parametrize("place", ["missing/out", "one.toml/out"])
@pytest.mark.parametrize("command", ["task new", "privatize", "aggregate", "merge", "estimate", "run"])
def test_outputs_that_cannot_be_written(command: str, place: str, folder: Path) -> None:
    more: dict[str, list[Any]] = {
        "task new": [*NEW[2:], "--keys", 9],
        "privatize": [folder / "t.csv", folder / "one.toml", *COLUMNS],
        "aggregate": [folder / "one.reports"],
        "merge": [folder / "one.state"],
        "estimate": [folder / "one.state", "3"],
        "run": [folder / "t.csv", *RUN],
    }
    path = folder / f"{place}.csv"
    line = refused_without_trace(folder, *command.split(), *more[command], "-o", path)
    assert str(path) in line


def test_an_unknown_ending_is_refused(folder: Path) -> None:
    arguments = ["estimate", folder / "one.state", "3", "-o", folder / "out"]
    assert ".csv, .json or .parquet" in refused_without_trace(folder, *arguments)


def test_a_failing_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    line = refused_without_trace(folder, "aggregate", folder / "one.reports", "-o", folder / "out")
    assert "No space left on device" in line


def test_control_c_during_a_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = contents(folder)
    monkeypatch.setattr("os.replace", interrupt)
    result = run_cli("aggregate", folder / "one.reports", "-o", folder / "out")
    monkeypatch.undo()
    assert result.exit_code not in (0, 2)
    assert isinstance(result.exception, SystemExit)
    assert contents(folder) == before


# Wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["--no-such-option"],
        ["run"],
        ["run", "t.csv"],
        ["run", "t.csv", *RUN, "--top", 0],
        ["run", "t.csv", *RUN, "--unit", "planet"],
        ["run", "t.csv", *RUN, "--family", "md5"],
        ["run", "t.csv", *COLUMNS, "--epsilon", "one", "--max-entries", 2],
        ["task"],
        ["task", "new", "--name", "x", "--epsilon", 1, "--max-entries", 2, "-o", "out"],
        [*NEW, "--keys", 9, "--open", 10, "-o", "out"],
        [*NEW, "--keys", 9],
        [*NEW, "--keys", "nine", "-o", "out"],
        [*NEW, "--keys", 9, "--period", "year", "-o", "out"],
        [*NEW, "--keys", 9, "--users", 0, "-o", "out"],
        ["privatize", "t.csv"],
        ["aggregate", "-o", "out"],
        ["merge", "one.state"],
        ["estimate"],
        ["estimate", "one.state", "--estimate", "median"],
        ["inspect", "one.state", "--report", -1],
    ],
    ids=lambda arguments: " ".join(str(argument) for argument in arguments),
)
def test_wrong_usage(arguments: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    result = run_cli(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.stderr
    assert contents(folder) == before


def test_the_reason_is_on_stdout_too_for_machines(folder: Path) -> None:
    result = run_cli("estimate", folder / "one.reports", "--json")
    assert result.exit_code == 1
    assert result.stderr == f"hubbub: {strict_json(result.stdout)['error']}\n"
