"""hubbub demo: a simulated crowd and an honest picture of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest

from helpers import contents, refuse, run_cli, seeded_coins, succeed
from hubbub.simulation import populations

SMALL = ["demo", "--users", 2000, "--keys", 200, "--max-entries", 8]


def test_the_demo_keeps_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """95% intervals over 200 keys: 87% to 100% hold the truth (five standard deviations; seeded)."""
    seeded_coins(monkeypatch)
    said = succeed(*SMALL, "-o", tmp_path / "out")
    assert 0.873 < said["coverage"] <= 1
    assert (said["users"], said["keys"], len(said["top"])) == (2000, 200, 20)
    truths = [abs(row["truth"]) for row in said["top"]]
    assert truths == sorted(truths, reverse=True)
    for row in said["top"]:
        assert row["hit"] == (row["low"] <= row["truth"] <= row["high"])
    assert contents(tmp_path / "out")["demo.png"].startswith(b"\x89PNG")
    assert said["picture"] == str(tmp_path / "out" / "demo.png")


def test_the_crowd_is_repeatable_and_the_coins_are_not(tmp_path: Path) -> None:
    one, two = (succeed(*SMALL, "-o", tmp_path)["top"] for _ in range(2))
    assert [row["truth"] for row in one] == [row["truth"] for row in two]
    assert [row["value"] for row in one] != [row["value"] for row in two]
    other = succeed(*SMALL, "--seed", 2, "-o", tmp_path)["top"]
    assert [row["truth"] for row in one] != [row["truth"] for row in other]


def test_the_text_for_people(tmp_path: Path) -> None:
    said = run_cli(*SMALL, "-o", tmp_path)
    assert said.exit_code == 0
    text = " ".join(said.stdout.split())
    assert "largest true mean" not in text  # some are far below 0
    for part in (
        "Keys whose true mean is furthest from 0",
        "2,000 simulated users",
        "epsilon = 1 per record",
        "promised: 95%",
        "true mean",
    ):
        assert part in text


@pytest.mark.parametrize("missing", [[], ["matplotlib"], ["numba"], ["matplotlib", "numba"]], ids=str)
def test_without_extras_there_is_a_table_and_it_says_first_what_is_missing(
    missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is said before the crowd is made up."""
    if "matplotlib" in missing:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("hubbub.primitives.kernel.numba_available", lambda: "numba" not in missing)
    making = populations.zipf_population

    def spy(*given: Any) -> Any:
        click.echo("now it works", err=True)
        return making(*given)

    with monkeypatch.context() as watched:
        watched.setattr(populations, "zipf_population", spy)
        said = run_cli(*SMALL, "-o", tmp_path / "out")
    assert said.exit_code == 0
    before, _, after = said.stderr.partition("now it works\n")
    assert after == ""
    assert [name in before for name in ("matplotlib", "numba")] == [
        name in missing for name in ("matplotlib", "numba")
    ]
    assert len(before.splitlines()) == len(missing)
    assert "promised: 95%" in said.stdout
    assert list(contents(tmp_path)) == ([] if "matplotlib" in missing else ["out/demo.png"])
    assert ("Picture:" in said.stdout) == ("matplotlib" not in missing)
    told = succeed(*SMALL, "-o", tmp_path / "out")
    assert told["notes"] == before.splitlines()
    assert (told["picture"] is None) == ("matplotlib" in missing)


@pytest.mark.parametrize("epsilon", [0, -1, "nan", "inf", 17])
def test_an_impossible_epsilon_is_refused(epsilon: object, tmp_path: Path) -> None:
    assert "epsilon" in refuse(*SMALL, "--epsilon", epsilon, "-o", tmp_path / "out")
    assert contents(tmp_path) == {}


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    refuse(*SMALL, "-o", tmp_path / "file" / "out")
    assert contents(tmp_path) == {"file": b"old"}


def test_too_few_users_are_wrong_usage(tmp_path: Path) -> None:
    assert run_cli("demo", "--users", 10, "-o", tmp_path / "out").exit_code == 2
    assert contents(tmp_path) == {}
