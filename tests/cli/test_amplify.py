"""hubbub amplify and hubbub rounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from helpers import prose, refuse, run_cli, small_task, succeed
from hubbub.cli import amplify
from hubbub.privacy.bounds import EARLIER
from hubbub.privacy.compose import compose
from hubbub.privacy.shuffle import crowd_of, shuffled_guarantee
from hubbub.protocol.task import Task

SMALL = ("--epsilon", 1, "--max-entries", 4)
COLLISION = ("--mechanism", "collision", *SMALL, "--set", "buckets=17", "--set", "family=prf")
PEOPLE = ("--people", 10_000, "--messages", 1)


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    small_task("collision", buckets=8).save(path)
    return path


def test_a_mechanism_by_name() -> None:
    said = succeed("amplify", *COLLISION, "--reports", 10_000, "--delta", 1e-6)
    assert said["mechanism"] == "collision"
    assert said["local"]["epsilon"] == 1
    assert said["shuffled"]["epsilon"] == pytest.approx(0.03348, abs=5e-6)
    assert said["shuffled"]["model"] == "shuffled"
    assert "rounds" not in said


def test_in_words() -> None:
    text = prose("amplify", *COLLISION, "--reports", 10_000)
    assert "epsilon = 1 per record, local model" in text
    assert "epsilon = 0.0334776, delta = 1e-06 per record, shuffled model" in text
    assert "must not collude" in text
    assert "10,000 shuffled reports" in text


def test_a_task_file(task_file: Path) -> None:
    said = succeed("amplify", task_file, "--reports", 5000, "--delta", 1e-8)
    expected = shuffled_guarantee(Task.load(task_file).mechanism, 5000, 1e-8)
    assert said["shuffled"] == expected.as_dict()


def test_rounds_without_the_extra() -> None:
    arguments = ("amplify", *COLLISION, "--reports", 10_000, "--rounds", 10)
    said = succeed(*arguments, "--method", "basic")
    assert said["rounds"]["count"] == 10
    assert said["rounds"]["guarantee"]["epsilon"] == pytest.approx(0.3905, abs=1e-4)
    result = run_cli(*arguments, "--method", "advanced")
    assert "10 rounds" in result.stdout


def test_more_rounds_than_can_be_listed_are_refused() -> None:
    """Whoever asks for a billion is told so before they are in memory."""
    for asked in (("--reports", 10_000), PEOPLE):
        assert "1,000,000 rounds" in refuse(
            "amplify", *COLLISION, *asked, "--rounds", 10**9, "--method", "basic"
        )


def test_rounds_by_loss() -> None:
    pytest.importorskip("dp_accounting")
    said = succeed("amplify", *COLLISION, "--reports", 10_000, "--rounds", 10)
    assert said["rounds"]["guarantee"]["epsilon"] == pytest.approx(0.115, abs=5e-4)


def test_rounds_by_loss_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    said = refuse("amplify", *COLLISION, "--reports", 10_000, "--rounds", 2)
    assert "hubbub[accounting]" in said


def periodic(tmp_path: Path, period: str, per_period: int = 1) -> Path:
    path = tmp_path / f"{period}{per_period}.toml"
    rules = {"period": period, "reports_per_period": per_period}
    small_task("collision", buckets=8).model_copy(update=rules).save(path)
    return path


def test_a_task_with_several_reports_per_period(tmp_path: Path) -> None:
    """What is promised is about all of them, in `amplify` and in `rounds` alike."""
    path = periodic(tmp_path, "once", 3)
    said = succeed("amplify", path, "--reports", 5000)
    expected = shuffled_guarantee(Task.load(path).mechanism, 5000, 1e-6, 3)
    assert said["shuffled"] == expected.as_dict()
    assert expected.epsilon > 3 * shuffled_guarantee(Task.load(path).mechanism, 5000, 1e-6).epsilon
    printed = prose("amplify", path, "--reports", 5000)
    assert "up to 3 reports per person, all together" in printed
    assert "in all: epsilon = 3 per record, local model; epsilon = 0." in printed
    rounds = succeed("rounds", tmp_path / "rounds.json", "--add", path, "--reports", 5000)
    assert rounds["guarantee"]["epsilon"] == expected.epsilon
    assert (rounds["rounds"][0]["per_person"], rounds["ahead"]) == (3, {})


@pytest.mark.parametrize(
    ("period", "counts"), [("day", [1, 30, 365]), ("week", [1, 4, 52]), ("month", [1, 12]), ("once", [1])]
)
@pytest.mark.parametrize("method", ["loss", "basic"])
def test_a_month_and_a_year_of_a_task(tmp_path: Path, period: str, counts: list[int], method: str) -> None:
    if method == "loss":
        pytest.importorskip("dp_accounting")
    path, asked = periodic(tmp_path, period, 2), ("--reports", 5000, "--method", method)
    spans = succeed("amplify", path, *asked)["over_time"]
    assert [span["periods"] for span in spans] == counts
    assert [span["local"]["epsilon"] for span in spans] == [2.0 * count for count in counts]
    crowd = crowd_of(Task.load(path).mechanism, 5000, 2)
    for span in spans[1:]:
        assert span["shuffled"] == compose([crowd] * span["periods"], 1e-6, method).as_dict()
    rounds = succeed("rounds", tmp_path / "rounds.json", "--add", path, *asked)
    assert [promise["epsilon"] for promise in rounds["ahead"].values()] == [
        span["shuffled"]["epsilon"] for span in spans[1:]
    ]
    printed = prose("rounds", tmp_path / "rounds.json", *asked[2:])
    assert printed.count("of rounds like the last") == len(counts) - 1


def test_a_month_and_a_year_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advanced composition then, and it says so."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    path = periodic(tmp_path, "day")
    spans = succeed("amplify", path, "--reports", 5000)["over_time"]
    expected = compose([crowd_of(Task.load(path).mechanism, 5000)] * 365, 1e-6, "advanced")
    assert spans[-1]["shuffled"] == expected.as_dict()
    assert "365 rounds among 5,000 shuffled reports (advanced composition)" in spans[-1]["shuffled"]["note"]


def test_a_task_shows_what_its_periods_add_up_to(tmp_path: Path) -> None:
    path = periodic(tmp_path, "day", 2)
    printed = prose("task", "show", path)
    assert "at most 2 reports a day and spends epsilon = 1 on each: epsilon = 2 a day" in printed
    assert "a month (30 days): epsilon = 60 per record" in printed
    assert "a year (365 days): epsilon = 730 per record" in printed
    spans = succeed("task", "show", path)["over_time"]
    assert [(span["span"], span["local"]["epsilon"], span["shuffled"]) for span in spans] == [
        ("one day", 2, None),
        ("a month (30 days)", 60, None),
        ("a year (365 days)", 730, None),
    ]
    assert "spending" not in run_cli("task", "show", periodic(tmp_path, "once")).stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((*COLLISION, "--reports", 1), "at least 2 reports"),
        ((*COLLISION, "--reports", 1000, "--delta", 0), "delta"),
        ((*COLLISION, "--reports", 1000, "--delta", 1), "delta"),
        ((*COLLISION, "--set", "buckets=7", "--reports", 1000), "t >= 2s"),
        (("--mechanism", "nothing", *SMALL, "--reports", 1000), "no mechanism"),
        (("--mechanism", "collision", "--epsilon", "inf", "--max-entries", 4, "--reports", 1000), "epsilon"),
        (("--mechanism", "sparse_sum", *SMALL, "--set", "unit=entry", "--reports", 1000), "per entry"),
        (("nowhere.toml", "--reports", 1000), "cannot be read"),
    ],
)
def test_what_is_refused(arguments: tuple[Any, ...], reason: str) -> None:
    assert reason in refuse("amplify", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--reports", 1000),
        ("--mechanism", "collision", "--reports", 1000),
        ("task.toml", *COLLISION, "--reports", 1000),
        ("task.toml", "--epsilon", 1, "--reports", 1000),
        COLLISION,
        (*COLLISION, "--reports", 1000, "--reports", 2000),
        (*COLLISION, "--reports", 1000, "-o", "figure.png"),
        (*COLLISION, "--reports", 1000, "--rounds", 0),
        ("--compare", "--reports", 1000),
        ("--compare", "--reports", 1000, "--max-entries", 4, "--epsilon", 1),
    ],
)
def test_wrong_usage(arguments: tuple[Any, ...]) -> None:
    assert run_cli("amplify", *arguments).exit_code == 2


def test_refusals_are_json_too() -> None:
    result = run_cli("amplify", *COLLISION, "--reports", 1, "--json")
    assert result.exit_code == 1
    assert "at least 2" in json.loads(result.stdout)["error"]


def test_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(amplify, "_EPSILONS", (0.25, 1.0))
    figure = tmp_path / "figure.png"
    arguments = ("amplify", "--compare", "--max-entries", 4, "--reports", 10**6, "--reports", 10**8)
    said = succeed(*arguments, "-o", figure)
    assert [(row["reports"], row["epsilon"]) for row in said["rows"]] == [
        (10**6, 0.25),
        (10**6, 1.0),
        (10**8, 0.25),
        (10**8, 1.0),
    ]
    assert said["rows"][1]["EFMRTT19"] is None
    assert said["rows"][1]["hubbub"] == pytest.approx(0.002702, abs=1e-6)
    assert figure.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setenv("COLUMNS", "200")
    printed = run_cli(*arguments).stdout
    assert "0.002702" in printed
    earlier = min(value for name, value in said["rows"][1].items() if name in EARLIER and value is not None)
    assert f"{earlier:.4g}" in printed
    assert "the smallest of EFMRTT19; " in printed


def test_compare_another_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amplify, "_EPSILONS", (1.0,))
    said = succeed(
        "amplify", "--compare", "--mechanism", "sparse_sum", "--max-entries", 4, "--reports", 10**6
    )
    (row,) = said["rows"]
    assert row["hubbub"] == row["any mechanism"]


# The ledger of rounds


def test_rounds_are_added_and_shown(tmp_path: Path, task_file: Path) -> None:
    ledger = tmp_path / "rounds.json"
    basic = ("--method", "basic")
    first = succeed("rounds", ledger, "--add", task_file, "--reports", 5000, *basic)
    second = succeed("rounds", ledger, "--add", task_file, "--reports", 20_000, *basic)
    shown = succeed("rounds", ledger, *basic)
    assert shown == second
    assert [one["reports"] for one in shown["rounds"]] == [5000, 20_000]
    assert first["guarantee"]["epsilon"] < second["guarantee"]["epsilon"]
    mechanism = Task.load(task_file).mechanism
    halves = [shuffled_guarantee(mechanism, n, 5e-7).epsilon for n in (5000, 20_000)]
    assert shown["guarantee"]["epsilon"] == pytest.approx(sum(halves), rel=1e-9)
    assert shown["rounds"][0]["digest"] == Task.load(task_file).digest.hex()
    printed = prose("rounds", ledger, *basic)
    assert "20,000" in printed
    assert "2 rounds among 5,000 to 20,000" in printed


def test_a_refused_round_leaves_the_ledger_alone(tmp_path: Path, task_file: Path) -> None:
    ledger = tmp_path / "rounds.json"
    succeed("rounds", ledger, "--add", task_file, "--reports", 5000)
    before = ledger.read_bytes()
    assert "at least 2" in refuse("rounds", ledger, "--add", task_file, "--reports", 1)
    assert ledger.read_bytes() == before
    assert "cannot be read" in refuse("rounds", tmp_path / "none.json")
    assert run_cli("rounds", ledger, "--add", task_file).exit_code == 2
    assert run_cli("rounds", ledger, "--reports", 5).exit_code == 2


def test_one_command_at_a_time_adds_a_round(
    tmp_path: Path, task_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From reading to writing: of four that ran together three rounds were lost, and too little was promised."""
    ledger, waited = tmp_path / "rounds.json", []

    def composed(*given: Any) -> Any:
        with pytest.raises(Timeout):
            FileLock(tmp_path / "rounds.json.lock", timeout=0).acquire()
        waited.append(ledger.exists())
        return compose(*given)

    monkeypatch.setattr("hubbub.privacy.compose.compose", composed)
    for _ in range(2):
        succeed("rounds", ledger, "--add", task_file, "--reports", 5000, "--method", "basic")
    assert waited == [False, True]
    monkeypatch.undo()
    assert len(succeed("rounds", ledger, "--method", "basic")["rounds"]) == 2


# Several messages


def test_several_messages() -> None:
    said = succeed("amplify", *COLLISION, *PEOPLE, "--rounds", 10, "--method", "advanced")
    assert said["shuffled"]["epsilon"] == pytest.approx(0.033483, abs=5e-7)
    assert said["rounds"]["guarantee"]["epsilon"] > 2 * said["shuffled"]["epsilon"]
    text = " ".join(run_cli("amplify", *COLLISION, *PEOPLE).output.split())
    assert "all reports of one person, 1 on average, among 10,000 people" in text
    assert "no bound for all reports" in text


def test_people_who_are_missing_hide_nobody() -> None:
    said = succeed("amplify", *COLLISION, *PEOPLE, "--missing", 5_000)
    fewer = succeed("amplify", *COLLISION, "--people", 5_000, "--messages", 1)
    assert said["people"] == 5_000
    assert said["shuffled"]["epsilon"] == fewer["shuffled"]["epsilon"] > 0.04


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*COLLISION, "--messages", 2), "--messages goes with --people"),
        ((*COLLISION, "--people", 10), "--people is for several messages"),
        ((*COLLISION, *PEOPLE, "--reports", 10), "without --reports"),
        ((*COLLISION, "--reports", 10, "--missing", 1), "--missing goes with --people"),
        ((*COLLISION,), "Give --reports or --people"),
    ],
)
def test_messages_and_what_they_go_with(arguments: tuple[Any, ...], words: str) -> None:
    result = run_cli("amplify", *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_messages_that_cannot_be_hidden() -> None:
    few = ("--people", 10, "--missing", 9, "--messages", 1)
    assert "messages must be above 0" in refuse("amplify", *COLLISION, "--people", 10_000, "--messages", 0)
    assert "at least 2 people" in refuse("amplify", *COLLISION, *few)


def test_a_task_with_several_messages(tmp_path: Path) -> None:
    task = small_task("collision", buckets=32, max_entries=4)
    path = tmp_path / "t.toml"
    Task.parse({**task.model_dump(), "mechanism": task.mechanism, "messages": 1}).save(path)
    weights = ("--mechanism", "collision", *SMALL, "--set", "buckets=32")
    expected = succeed("amplify", *weights, *PEOPLE)["shuffled"]["epsilon"]
    assert succeed("amplify", path, "--people", 10_000)["shuffled"]["epsilon"] == expected
    assert "how many people" in refuse("amplify", path, "--reports", 10_000)
    one = tmp_path / "one.toml"
    task.save(one)
    wrong = run_cli("amplify", one, "--people", 10_000)
    assert (wrong.exit_code, "give --reports" in wrong.output) == (2, True)
    Task.parse({**task.model_dump(), "mechanism": task.mechanism, "messages": 1, "period": "week"}).save(path)
    spans = succeed("amplify", path, "--people", 10_000, "--method", "advanced")["over_time"]
    assert [span["periods"] for span in spans] == [1, 4, 52]
    losses = [span["shuffled"]["epsilon"] for span in spans]
    assert losses == sorted(losses)
    assert losses[0] == pytest.approx(expected, rel=1e-6)
    assert all(span["local"] is None for span in spans)
