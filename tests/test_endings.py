"""Endings mean what they say: a file's name never promises another format than what is in the file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, refuse, refused, small_task, succeed, write_csv
from hubbub import aggregate
from hubbub.device.client import Client
from hubbub.primitives.envelope import MAGIC
from hubbub.protocol.files import load_reports, load_state, save_reports, save_state
from hubbub.release.publisher import publish

TASK = small_task(size=3)
OTHERS = [".csv", ".CSV", ".json", ".parquet", ".npz", ".txt", ".png", ".gz"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    TASK.save(tmp_path / "task.toml")
    return write_csv(tmp_path / "table.csv", [("user", "key"), ("x", 1), ("y", 2), ("y", 0)])


def privatized(table: Path, name: str) -> Path:
    """The table's reports, written by the command to this name."""
    output = table.with_name(name)
    succeed("privatize", table, table.with_name("task.toml"), "--user", "user", "--key", "key", "-o", output)
    return output


def test_reports_called_parquet_are_parquet(table: Path, tmp_path: Path) -> None:
    """And are counted as such, like those in a reports file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = privatized(table, "r.parquet")
    rows = parquet.read_table(path)
    width = TASK.mechanism.layout.width
    assert [len(cell.as_py()) for cell in rows["reports"]] == [2 * width]
    assert succeed("aggregate", path, "-o", tmp_path / "a.state")["reports"] == 2
    written = b"".join(cell.as_py() for cell in rows["reports"])
    assert load_state(tmp_path / "a.state")[1].to_bytes() == aggregate(TASK, written).to_bytes()
    plain = privatized(table, "r.reports")
    assert plain.read_bytes().startswith(MAGIC)
    assert succeed("aggregate", plain, "-o", tmp_path / "b.state")["reports"] == 2


def test_without_arrow_nothing_is_called_parquet(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    before = contents(table.parent)
    task, output = table.with_name("task.toml"), table.with_name("r.parquet")
    said = refuse("privatize", table, task, "--user", "user", "--key", "key", "-o", output)
    assert "hubbub[lake]" in said
    assert contents(table.parent) == before


def test_an_older_file_of_that_name_is_called_what_it_is(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    privatized(table, "r.reports").rename(tmp_path / "r.parquet")
    said = refuse("aggregate", tmp_path / "r.parquet", "-o", tmp_path / "a.state")
    assert "r.parquet is a hubbub file and no Parquet; give it another ending." in said
    (tmp_path / "r.parquet").write_bytes(b"PAR2")
    assert "is not a readable Parquet file" in refuse("aggregate", tmp_path, "-o", tmp_path / "a.state")


@pytest.mark.parametrize("ending", OTHERS)
def test_what_is_hubbub_s_own_is_not_called_otherwise(ending: str, table: Path) -> None:
    """On the command line, before any work."""
    reports = privatized(table, "r.reports")
    state = table.with_name("a.state")
    succeed("aggregate", reports, "-o", state)
    output = table.with_name(f"out{ending}")
    columns = ("--user", "user", "--key", "key")
    new = ("task", "new", "--name", "x", "--keys", 9, "--epsilon", 1, "--max-entries", 2)
    commands: list[tuple[object, ...]] = [
        ("aggregate", reports),
        ("merge", state),
        ("release", table, *columns, "--epsilon", 1, "--max-entries", 2),
        new,
        ("plan", "--keys", 9),
    ]
    if ending != ".parquet":
        commands.append(("privatize", table, table.with_name("task.toml"), *columns))
    before = contents(table.parent)
    for command in commands:
        assert f"cannot be written as {ending.lower()}" in refuse(*command, "-o", output)
    assert contents(table.parent) == before


@pytest.mark.parametrize(
    ("save", "usual"),
    [
        (lambda path: save_reports(path, TASK, load_reports(made(path))[1]), ".reports"),
        (lambda path: save_state(path, TASK, TASK.mechanism.empty(TASK.keys)), ".state"),
        (lambda path: TASK.save(path), ".toml"),
        (lambda path: publish({"a": 1}, epsilon=1.0, max_nonzero=5, max_sum=5).save(path), ".hub"),
    ],
    ids=["reports", "state", "task", "release"],
)
def test_the_same_in_python(save: Callable[[Path], Any], usual: str, tmp_path: Path) -> None:
    for ending in OTHERS:
        with refused(f"cannot be written as {ending.lower()}", f"such as {usual}."):
            save(tmp_path / f"x{ending}")
    for ending in (usual, "", ".bin", ".2026"):
        save(tmp_path / f"x{ending}")
        assert (tmp_path / f"x{ending}").exists()


@pytest.mark.parametrize("ending", [".csv", ".txt", ".parquet", ".gz"])
def test_ledgers_and_backups_are_called_what_they_are(ending: str, table: Path) -> None:
    from hubbub.collect.store import Store

    Store(f"sqlite:///{table.with_name('hubbub.db')}").close()
    before = contents(table.parent)
    output, store = table.with_name(f"out{ending}"), f"sqlite:///{table.with_name('hubbub.db')}"
    adding = ("--add", table.with_name("task.toml"), "--reports", 1000, "--method", "basic")
    assert f"a ledger of rounds cannot be written as {ending}" in refuse("rounds", output, *adding)
    assert f"a backup cannot be written as {ending}" in refuse("store", "backup", output, "--store", store)
    assert contents(table.parent) == before


@pytest.mark.parametrize(
    "command", ["run missing.csv", "estimate missing.state", "simulate missing.toml --like x.csv"]
)
def test_names_of_estimates_are_looked_at_before_anything_is_read(command: str) -> None:
    columns = ("--user", "user", "--key", "key") if "estimate" not in command else ()
    more = ("--epsilon", 1, "--max-entries", 2) if "run" in command else ()
    for name in ("out.txt", "out", "out.state", "out.csv.gz"):
        said = refuse(*command.split(), *columns, *more, "-o", name)
        assert f"{name}: write estimates to a name that ends in .csv, .json or .parquet." in said


def made(path: Path) -> Path:
    """A file of one report beside a path."""
    report = Client(TASK).report({1})
    source = path.with_name("source.reports")
    if not source.exists():
        save_reports(source, TASK, np.frombuffer(report, dtype=np.uint8).reshape(1, -1))
    return source
