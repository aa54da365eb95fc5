"""hubbub notice, and hubbub simulate --forgers: what they say about honest and forged reports, in files and lakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import prose, refuse, run_cli, succeed
from hubbub.checks.worlds import task_for
from hubbub.engines.arrow import save_parquet
from hubbub.mechanisms.registry import make_mechanism
from hubbub.protocol.files import load_reports, save_reports, save_reports_by, save_state
from hubbub.protocol.strata import Stratum
from hubbub.protocol.task import Task
from hubbub.server import evidence
from hubbub.server.fold import aggregate
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import simulate

TASK = task_for(make_mechanism("collision", epsilon=1.0, max_entries=4, users=40_000), 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Honest reports and forged ones, as files, a state and a lake."""
    folder = tmp_path_factory.mktemp("noticed")
    honest = simulate(TASK, zipf_population(40_000, 200, 1, entries=3, signed=False).entries, 1).packed
    mixed = np.concatenate([honest, forge(TASK, 800, "maximal", [150, 151, 152], seed=2)])
    for name, packed in (("honest", honest), ("forged", mixed)):
        save_reports(folder / f"{name}.reports", TASK, packed)
        save_state(folder / f"{name}.state", TASK, aggregate(TASK, packed))
        (folder / name).mkdir()
        for part, rows in enumerate(np.array_split(packed, 3)):
            save_parquet(folder / name / f"{part}.parquet", TASK, rows, None)
    return folder


@pytest.mark.parametrize("name", ["honest", "forged"])
def test_files_and_lakes_say_the_same(folder: Path, name: str) -> None:
    """The verdict, each test with its odds, and the false-alarm rate."""
    file = succeed("notice", folder / f"{name}.reports")
    lake = succeed("notice", folder / name)
    assert file["noticed"] is lake["noticed"] is (name == "forged")
    assert file["reports"] == lake["reports"] == (40_800 if name == "forged" else 40_000)
    assert file["false_alarms"] == 1e-3
    tests = [[(row["test"], row["odds"]) for row in found["tests"]] for found in (file, lake)]
    assert tests[0] == tests[1]
    assert any(row["failed"] for row in file["tests"]) is (name == "forged")


def test_words(folder: Path) -> None:
    said = prose("notice", folder / "forged.reports")
    assert "not those of an honest crowd" in said
    assert "failed" in said
    assert "invented records cannot be noticed" in said
    said = prose("notice", folder / "honest.reports")
    assert "nothing noticed in 40,000 reports (false alarm: 1 in 1,000)" in said
    assert "Looked at" not in said


def test_how_many_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, it is said how many were looked at."""
    monkeypatch.setattr(evidence, "_MOST_NUMBERS", 1 << 15)
    found = succeed("notice", folder / "honest.reports")
    assert 9000 < found["looked_at"] < 11_000
    said = prose("notice", folder / "honest.reports")
    assert f"Looked at one by one: {found['looked_at']:,} of them, chosen by their places" in said


def test_a_state_says_that_it_is_one(folder: Path) -> None:
    found = succeed("notice", folder / "forged.state")
    assert found["from_state"] is True
    assert found["noticed"] is False
    assert "the state of" in found["words"]


def by_stratum(folder: Path, memoize: str, parts: dict[str, list[str]]) -> dict[str, Any]:
    """What is said of reports by period and country, given as the names of files of the folder."""
    task = Task.parse(
        json.loads(TASK.canonical)
        | {"period": "week", "labels": {"country": ["de", "fr"]}, "memoize": memoize}
        | ({} if memoize == "off" else {"memoize_cap": 2})
    )
    packed = {
        Stratum(("de",), week): np.concatenate(
            [load_reports(folder / f"{name}.reports")[1] for name in names]
        )
        for week, names in parts.items()
    }
    save_reports_by(folder / f"{memoize}.reports", task, packed)
    found: dict[str, Any] = succeed("notice", folder / f"{memoize}.reports")
    return found


def test_files_with_labels_and_periods(folder: Path) -> None:
    """All strata together."""
    found = by_stratum(folder, "off", {"2026-W01": ["honest"], "2026-W02": ["forged"]})
    assert found["noticed"] is True
    assert found["reports"] == 80_800


def test_reports_that_are_said_again(folder: Path) -> None:
    """Period by period, where they are told; otherwise it is said why not."""
    found = by_stratum(folder, "record", {"2026-W01": ["honest"], "2026-W02": ["honest"]})
    assert found["noticed"] is False
    assert found["reports"] == 80_000
    assert {row["words"].split(":")[0] for row in found["tests"]} == {"2026-W01", "2026-W02"}
    found = by_stratum(folder, "record", {"2026-W01": ["honest"], "2026-W02": ["forged"]})
    assert found["noticed"] is True
    assert all(row["words"].startswith("2026-W02") for row in found["tests"] if row["failed"])
    found = by_stratum(folder, "record", {"2026": ["honest", "honest"]})
    assert found["tests"] == []
    assert "devices say the same in every period" in found["words"]


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    """Damaged bytes, files that are not there or none of ours, options that do not go together."""
    damaged = bytearray((folder / "honest.reports").read_bytes())
    damaged[-40] ^= 1
    (tmp_path / "damaged.reports").write_bytes(bytes(damaged))
    refuse("notice", tmp_path / "damaged.reports")
    refuse("notice", tmp_path / "nothing.reports")
    refuse("notice", tmp_path)
    refuse("notice", folder / "honest.reports", "--jobs", 2)


def test_rehearsal_of_forgers(tmp_path: Path) -> None:
    """What moved stays within the bound, three targets are noticed, and there is a picture."""
    options = [
        "simulate",
        "--forgers",
        "0.02",
        "--users",
        20_000,
        "--keys",
        800,
        "--max-entries",
        4,
    ]
    found = succeed(*options, "--target", 7, "--target", 8, "--target", 9)
    assert found["notice"]["noticed"] is True
    assert [row["key"] for row in found["targets"]] == ["7", "8", "9"]
    shifts = [abs(row["shift"]) for row in found["targets"]]
    assert all(0.5 * found["bound"] < shift <= found["bound"] for shift in shifts)
    assert abs(found["furthest"]["shift"]) <= found["bound"]
    mild = succeed(*options, "--attack", "input", "--target", 7)
    assert mild["notice"]["noticed"] is False
    assert abs(mild["targets"][0]["shift"]) < 0.2 * mild["bound"]
    pytest.importorskip("matplotlib")
    said = prose(*options, "--attack", "random", "--plot", tmp_path / "attack.png")
    assert "attack random" in said
    assert (tmp_path / "attack.png").read_bytes().startswith(b"\x89PNG")


def test_rehearsal_refuses(tmp_path: Path) -> None:
    refuse("simulate", "--forgers", "0.01", "--users", 20_000, "--runs", 2)
    refuse("simulate", "--forgers", "0.000001", "--users", 20_000)
    refuse("simulate", "--forgers", "0.01", "--users", 20_000, "--target", "no such key")
    said = refuse("simulate", "--forgers", "0.01", "--users", 20_000, "--attack", "random", "--target", 7)
    assert "has no target keys" in said
    for option in (("--attack", "input"), ("--target", 7), ("--plot", "x.png")):
        assert "go with --forgers" in run_cli("simulate", "--users", 200, *option).stderr
