"""Each command says what is true of it: who adds the noise, and who has seen what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import run_cli, small_task, succeed, write_csv
from hubbub import Client, Guarantee, aggregate, estimate
from hubbub.protocol.files import save_state

TASK = small_task(size=3)
COLUMNS = ("--user", "user", "--key", "key")
NOBODY = "so nobody has to be trusted"
PARTS = {
    "device": NOBODY,
    "reports": "where the reports were made: if that was on the devices, nobody has to be trusted",
    "table": "Whoever ran this has read the table and is trusted with it",
    "simulated": "nothing here is private",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, a task, and a state of reports."""
    TASK.save(tmp_path / "task.toml")
    write_csv(tmp_path / "table.csv", [("user", "key"), ("x", 1), ("y", 2), ("y", 0)])
    save_state(tmp_path / "a.state", TASK, aggregate(TASK, Client(TASK).report({1})))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "noise"),
    [
        ("run {0}/table.csv --epsilon 1 --max-entries 2 -o {0}/out.json", "table"),
        ("privatize {0}/table.csv {0}/task.toml -o {0}/out.reports", "table"),
        ("simulate {0}/task.toml --like {0}/table.csv -o {0}/out.json", "simulated"),
        ("estimate {0}/a.state -o {0}/out.json", "reports"),
        ("inspect {0}/a.state", "reports"),
        ("task show {0}/task.toml", "device"),
        ("plan --keys 9 --max-entries 1", "device"),
    ],
    ids=["run", "privatize", "simulate", "estimate", "inspect", "task", "plan"],
)
def test_a_command_says_who_is_trusted(command: str, noise: str, folder: Path) -> None:
    """For people and for machines, and in what it writes."""
    words: list[object] = list(command.format(folder).split())
    if words[0] in ("run", "privatize", "simulate"):
        words += COLUMNS
    said = run_cli(*words)
    assert said.exit_code == 0, said.output
    text = " ".join(said.stdout.split())
    assert {part for part in PARTS.values() if part in text} == {PARTS[noise]}
    told = succeed(*words)
    found = [row["guarantee"] for row in (told, *told.get("options", ())) if "guarantee" in row]
    assert found
    found += [span["local"] for span in told.get("over_time", ())]
    if (folder / "out.json").exists():
        found.append(json.loads((folder / "out.json").read_text())["guarantee"])
    for guarantee in found:
        assert guarantee["noise"] == noise
        assert PARTS[noise] in guarantee["words"]


def test_an_estimate_does_not_know_who_made_the_reports() -> None:
    found = estimate(TASK, aggregate(TASK, Client(TASK).report({1})))
    assert PARTS["reports"] in found.guarantee.words()
    assert NOBODY in TASK.guarantee.words()


def test_words_about_noise_are_for_the_local_model() -> None:
    assert (
        Guarantee(1.0, "user", "central", noise="table").words() == Guarantee(1.0, "user", "central").words()
    )
