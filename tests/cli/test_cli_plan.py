"""hubbub plan: the ranking as a table and as JSON, the winner's task, pictures, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, refuse, run_cli, strict_json, succeed, write_csv
from hubbub.checks.conformance import SIGMAS
from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.populations import distinct_population
from hubbub.simulation.rehearsal import simulate

SETS = ["plan", "--keys", 500, "--max-entries", 4, "--users", 20_000]
MEANS = [*SETS, "--estimate", "mean", "--range"]


def suitable(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The suitable options of a ranking by name, best first."""
    return {option["mechanism"]: option for option in said["options"] if option["suitable"]}


def only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the planner one mechanism."""
    kind = mechanisms()[name]
    monkeypatch.setattr("hubbub.plan.ranking.mechanisms", lambda: {name: kind})


# What is said


def test_json_is_the_ranking() -> None:
    said = succeed(*SETS)
    options = rank(Goal("frequency", 1.0, 4, users=20_000, keys=500))
    assert [option["mechanism"] for option in said["options"]] == [option.name for option in options]
    assert said["file"] is None
    for option, facts in zip(options, said["options"], strict=True):
        if option.mechanism is None:
            assert facts == {"mechanism": option.name, "suitable": False, "reason": option.reason}
            continue
        numbers = [facts[name] for name in ("error", "largest_error", "detectable", "report_bytes")]
        assert numbers == [option.error, option.largest, option.detectable, option.mechanism.layout.width]
        assert make_mechanism(option.name, **facts["parameters"]) == option.mechanism
        assert facts["guarantee"]["epsilon"] == 1.0
        assert facts["device_hashes"] >= 4
    names = {facts["mechanism"]: facts["suitable"] for facts in said["options"]}
    assert (names["sketch_response"], names["coco"], names["hadamard"]) == (True, False, False)
    assert set(names) == set(mechanisms())


def test_the_table_names_everything() -> None:
    result = run_cli(*SETS)
    assert (result.exit_code, result.stderr) == (0, "")
    said = succeed(*SETS)
    for name, option in suitable(said).items():
        row = next(line for line in result.stdout.splitlines() if name in line and "│" in line)
        assert f"{option['error']:.4g}" in row
        assert f" {option['report_bytes']} " in row
    words = " ".join(result.stdout.split())
    assert "Best: sketch_response. epsilon = 1 per record, local model" in words
    assert "Not coco: is for signed values" in words
    assert "Not hadamard: is for one entry per record" in words


def test_thrift_unless_the_best_is_asked_for(tmp_path: Path) -> None:
    """The shortest report within 5% of the least error is taken, and what is said about it is true."""
    changes = [*SETS, "--unit", "l1", "--distance", 2, "--delta", 1e-6, "-o", tmp_path / "t.toml"]
    assert "Taken" not in run_cli(*SETS).stdout
    words = " ".join(run_cli(*changes).stdout.split())
    said = re.search(
        r"Taken: (\S+) with (\d+) instead of (\d+) bytes a report and (\S+)% more error than the best", words
    )
    assert said
    name, fewer, most, percent = said.groups()
    facts = succeed(*changes)
    taken, best = facts["chosen"], facts["options"][0]
    assert (taken["mechanism"], taken["report_bytes"]) == (name, int(fewer))
    assert best["report_bytes"] == int(most) > int(fewer)
    assert 100 * (taken["error"] / best["error"] - 1) == pytest.approx(float(percent), abs=0.051)
    assert float(percent) <= 5
    assert Task.load(tmp_path / "t.toml").mechanism.layout.width == int(fewer)
    assert succeed(*changes, "--best")["chosen"] == best
    assert Task.load(tmp_path / "t.toml").mechanism.layout.width == int(most)
    assert "Best: " in run_cli(*changes, "--best").stdout


def test_one_mechanism() -> None:
    """A named mechanism is ranked alone, as it stands among all."""
    for name in ("collision", "coco"):
        [alone] = succeed(*SETS, "--mechanism", name)["options"]
        assert alone in succeed(*SETS)["options"]
    assert "no mechanism called 'nonsense'" in refuse(*SETS, "--mechanism", "nonsense")


def test_byte_budgets() -> None:
    options = {option["mechanism"]: option for option in succeed(*SETS, "--bytes", 2)["options"]}
    assert options["sketch_response"]["reason"] == "needs 3 bytes a report"
    assert {option["report_bytes"] for option in options.values() if option["suitable"]} <= {1, 2}
    assert suitable(succeed(*SETS, "--bytes", 3))["sketch_response"]["report_bytes"] == 3


def test_shuffled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking is for local epsilons that shuffling brings down to the asked one."""
    only("collision", monkeypatch)
    shuffled = [*SETS, "--model", "shuffled", "--delta", 1e-6, "--epsilon", 0.5]
    [best] = succeed(*shuffled, "-o", tmp_path / "t.toml")["options"]
    assert best["guarantee"]["epsilon"] == best["parameters"]["epsilon"] > 0.5
    assert Task.load(tmp_path / "t.toml").mechanism.epsilon == best["parameters"]["epsilon"]
    assert "shuffled model" in best["shuffled"]
    assert "delta = 1e-06" in best["shuffled"]
    assert best["error"] < succeed(*SETS, "--epsilon", 0.5)["options"][0]["error"]
    assert "--want-error works in the local model" in refuse(*shuffled, "--want-error", 0.1)
    assert best["shuffled"][:40] in " ".join(run_cli(*shuffled).stdout.split())


# Units


@pytest.mark.parametrize("name", ["sketch_response", "coco", "sparse_sum", "collision"])
def test_errors_are_in_the_units_of_the_values(name: str) -> None:
    """A range of 1:5, the estimated mean over all users of keys that nobody has: the predicted error comes true.

    Within six standard errors of 50 collections (false alarms below 1e-6), which are below a quarter.
    """
    users, keys, held, runs = 4096, 64, 14, 50
    options = ["plan", "--keys", keys, "--max-entries", 4, "--users", users, "--estimate", "mean"]
    option = suitable(succeed(*options, "--range", "1:5"))[name]
    mechanism = make_mechanism(name, **option["parameters"])
    space = {"kind": "closed", "size": keys, "salt": "5a" * 16}
    task = Task.parse({"name": "t", "low": 1, "high": 5, "keys": space, "mechanism": mechanism})
    crowd = distinct_population(users, held, 4, seed=1).entries
    found = [
        np.mean(estimate(task, simulate(task, crowd, 10 * run).state, quantity="mean").value[held:] ** 2)
        for run in range(runs)
    ]
    ratios = np.array(found) / option["error"] ** 2
    deviation = ratios.std(ddof=1) / math.sqrt(runs)
    assert abs(ratios.mean() - 1) <= SIGMAS * deviation
    assert SIGMAS * deviation < 0.25


def test_errors_of_other_ranges() -> None:
    """Errors of means scale with a range around 0; shares have no unit, and sums count every user."""
    one, five = (suitable(succeed(*MEANS, f"-{top}:{top}")) for top in (1, 5))
    for name, option in one.items():
        assert five[name]["error"] == pytest.approx(5 * option["error"])
    sums = suitable(succeed(*SETS, "--estimate", "sum", "--range", "-5:5"))
    assert sums["coco"]["error"] == pytest.approx(20_000 * five["coco"]["error"])


def test_shares_have_no_unit() -> None:
    one, five = (suitable(succeed(*SETS, "--range", f"-{top}:{top}")) for top in (1, 5))
    assert {name: option["error"] for name, option in one.items()} == {
        name: pytest.approx(option["error"]) for name, option in five.items()
    }


def test_distances_are_in_the_units_of_the_values() -> None:
    option = suitable(succeed(*MEANS, "-5:5", "--unit", "l1", "--distance", 10))["sparse_sum"]
    assert option["parameters"]["distance"] == pytest.approx(2)


# Inverse questions


def test_want_error() -> None:
    said = succeed(*SETS, "--want-error", 0.02)
    users, epsilon = said["users_for_error"], said["epsilon_for_error"]
    for change in (["--users", users], ["--epsilon", epsilon]):
        error = succeed(*SETS, *change)["options"][0]["error"]
        assert error == pytest.approx(0.02, rel=0.01)
        assert error <= 0.02 * (1 + 1e-9)
    text = " ".join(run_cli(*SETS, "--want-error", 0.02).stdout.split())
    assert f"An error of 0.02 per key takes {users:,} users at epsilon 1, or epsilon {epsilon:.3g}" in text
    assert "sum" in refuse(*SETS, "--estimate", "sum", "--want-error", 10)


def test_entries(tmp_path: Path) -> None:
    """90 users have one entry and 10 four (on two lines): 30, 20 and 10 of 130 entries can be dropped."""
    lines = "entries,users\n1,90\n\n 4 , 7\n4,3\n"
    (tmp_path / "h.csv").write_text(lines)
    options = ["plan", "--keys", 500, "--users", 20_000, "--entries", tmp_path / "h.csv", "--frequency", 0.26]
    said = succeed(*options)
    limits = said["max_entries"]
    for limit in limits:
        assert limit["dropped"] == pytest.approx((4 - limit["max_entries"]) / 13)
        assert limit["total"] == pytest.approx(math.hypot(limit["noise"], limit["bias"]))
        planned = succeed("plan", "--keys", 500, "--users", 20_000, "--max-entries", limit["max_entries"])
        assert planned["chosen"]["mechanism"] == limit["mechanism"]
        assert limit["noise"] == pytest.approx(planned["chosen"]["error"], rel=0.1)
        assert limit["noise"] > planned["chosen"]["error"]
    assert [limit["total"] for limit in limits] == sorted(limit["total"] for limit in limits)
    assert "largest share 0.26" in said["profile"]
    best = limits[0]
    assert said["chosen"]["parameters"]["max_entries"] == best["max_entries"]
    shown = run_cli(*options).stdout.replace("\n", " ").split("stand out from zero:")[1].split()
    assert shown[:3] == [str(best["max_entries"]), "error", f"{best['total']:.4f}"]
    assert "a guess" not in run_cli(*options).stdout
    assert "a guess" in run_cli(*options[:-2]).stdout
    given = succeed(*options, "--max-entries", 3)
    assert given["max_entries"] == limits
    assert given["chosen"]["parameters"]["max_entries"] == 3


def test_entries_for_given_shares(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("entries,users\n4,10\n")
    (tmp_path / "s.csv").write_text("share,keys\n0.2, 3\n.1,1\n0.2,1\n")
    options = [*SETS, "--entries", tmp_path / "h.csv", "--shares", tmp_path / "s.csv"]
    said = succeed(*options)
    assert said["profile"] == "5 keys with the given shares"
    one = next(limit for limit in said["max_entries"] if limit["max_entries"] == 1)
    assert one["bias"] == pytest.approx(0.75 * math.sqrt((4 * 0.2**2 + 0.1**2) / 5), rel=0.001)
    assert "not both" in refuse(*options, "--frequency", 0.2)
    assert "--entries" in refuse(*SETS, "--shares", tmp_path / "s.csv")
    assert "--entries" in refuse(*SETS, "--frequency", 0.2)
    assert "between" in refuse(*options[:-2], "--frequency", 2)
    for line in ("1.5,1", "0,1", "-1,1", "0.1", "a,1", "0.1,1.5", "1e-3,1", "0x1,1", "nan,1"):
        (tmp_path / "s.csv").write_text(f"share,keys\n{line}\n")
        refuse(*options)


def test_a_table_says_it_all(tmp_path: Path) -> None:
    """Users, keys, lengths and who holds what; the file may be of any kind that tables are."""
    rows = "".join(f"u{user},k{key}\n" for user in range(300) for key in range(1 + user % 5))
    (tmp_path / "t.csv").write_text("person,thing\n" + rows + "u1,k0\n")
    table = ["plan", "--like", tmp_path / "t.csv", "--user", "person", "--key", "thing"]
    found = succeed(*table, "--epsilon", 4)
    assert found["assumed"] == {}
    assert "5 keys in the table (largest share 1)" in found["profile"]
    limits = [limit["max_entries"] for limit in found["max_entries"]]
    assert set(limits) <= {1, 2, 3, 4, 5}
    assert found["chosen"]["parameters"]["max_entries"] == limits[0]
    assert "frequency, 300 users, 5 keys" in run_cli(*table).stdout
    assert "frequency, 50,000 users, 9 keys" in run_cli(*table, "--users", 50_000, "--keys", 9).stdout
    for more, words in (
        (["--entries", tmp_path / "t.csv"], "--like goes without --entries"),
        (["--frequency", 0.1], "--like goes without --entries"),
        (["--messages", 4, "--model", "shuffled", "--delta", 1e-6], "for one report each"),
        (["-o", tmp_path / "t.toml"], "A task needs its keys"),
    ):
        assert words in refuse(*table, *more)
    assert "give --like" in refuse(*SETS, "--user", "person")
    assert "has 5 keys, and there are to be 3" in refuse(*table, "--keys", 3)
    assert "with --user and --key" in refuse("plan", "--like", tmp_path / "t.csv")
    (tmp_path / "one.csv").write_text("person,thing\na,b\n")
    one = ["plan", "--like", tmp_path / "one.csv", "--user", "person", "--key", "thing"]
    assert "has one user" in refuse(*one)
    assert "frequency, 40 users, 1 keys" in run_cli(*one, "--users", 40).stdout
    assert "nobody" in refuse("plan", "--like", tmp_path / "t.csv", "--user", "nobody", "--key", "thing")


def test_hopeless_entries_are_told(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("entries,users\n1,5\n500,5\n")
    said = run_cli("plan", "--keys", 5000, "--users", 100, "--entries", tmp_path / "h.csv").stdout
    assert "No key would stand out from zero" in " ".join(said.split())


BAD_LINES = ["4", "4,5,6", "4,", ",4", "a,4", "4,-1", "4.0,1", "nan,1", "²,3", "1,1e3"]


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_histogram_lines(line: str, tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text(f"entries,users\n1,90\n{line}\n5,5\n")
    assert f"{path}, line 3:" in refuse(*SETS, "--entries", path)


@pytest.mark.parametrize("text", ["", "entries,users\n", "entries,users\n0,5\n", "entries,users\n3,0\n"])
def test_empty_histograms(text: str, tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text(text)
    assert "histogram" in refuse(*SETS, "--entries", tmp_path / "h.csv")


def test_histograms_with_absurd_numbers(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "h.csv", [("entries", "users"), (1, 5), (3, "9" * 400)])
    refuse(*SETS, "--entries", path)


UNREACHABLE = ["--unit", "entry"]


def test_goals_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no error of the input: the reasons are the answer. But there is no task to write."""
    only("coco", monkeypatch)
    [option] = succeed(*SETS, *UNREACHABLE)["options"]
    assert option == {"mechanism": "coco", "suitable": False, "reason": "is for signed values"}
    line = refuse(*SETS, *UNREACHABLE, "-o", tmp_path / "t.toml")
    assert line == "hubbub: No mechanism reaches this goal; no task was written.\n"
    assert contents(tmp_path) == {}


def test_limits_of_goals_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no best limit then: one sentence says so, as text and as JSON, and nothing else is said."""
    only("coco", monkeypatch)
    path = write_csv(tmp_path / "h.csv", [("entries", "users"), (1, 5), (3, 4)])
    sentence = "No mechanism reaches this goal, whatever max_entries is."
    assert refuse(*SETS, *UNREACHABLE, "--entries", path) == f"hubbub: {sentence}\n"
    found = run_cli(*SETS, *UNREACHABLE, "--entries", path, "--json")
    assert found.exit_code == 1
    assert strict_json(found.stdout) == {"error": sentence}


def test_no_picture_of_goals_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only("coco", monkeypatch)
    refuse(*SETS, *UNREACHABLE, "--plot", tmp_path / "x.png")
    assert contents(tmp_path) == {}


# Tasks


@pytest.mark.parametrize(
    ("options", "low", "high", "count"),
    [
        (["--keys", 500], -1, 1, 500),
        (["--keys", 500, "--estimate", "mean", "--range", "-2:3"], -2, 3, 500),
        (["--keys", 40_000, "--estimate", "conditional", "--range", "1:5"], 1, 5, 40_000),
        (["--open", 12, "--estimate", "sum"], -1, 1, 0),
        (["--open", 64], -1, 1, 0),
        (["--keys", 9, "--unit", "l1", "--distance", 2, "--delta", 1e-6], -1, 1, 9),
    ],
    ids=str,
)
def test_the_winner_is_written(
    options: list[Any], low: float, high: float, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "task.toml"
    said = succeed("plan", "--max-entries", 3, "--users", 9999, *options, "-o", path, "--name", "pages")
    task, best = Task.load(path), said["chosen"]
    assert task.mechanism == make_mechanism(best["mechanism"], **best["parameters"])
    assert (task.name, task.low, task.high, task.keys.count) == ("pages", low, high, count)
    assert task.keys.kind == ("closed" if count else "wide" if 64 in options else "folded")
    assert said["file"] == str(path)
    assert sorted(contents(tmp_path)) == ["task.toml"]


def test_the_vocabulary_is_written(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("red\ngreen\nblue\n")
    common = ["plan", "--max-entries", 2, "-o", tmp_path / "t.toml"]
    said = succeed(*common, "--vocabulary", tmp_path / "words")
    assert [Task.load(tmp_path / "t.toml").keys.name_of(place) for place in range(3)] == [
        "red",
        "green",
        "blue",
    ]
    assert said["options"][0]["detectable"] == pytest.approx(
        rank(Goal("frequency", 1.0, 2, keys=3))[0].detectable
    )
    text = run_cli(*common, "--vocabulary", tmp_path / "words").stdout
    assert "Task of sketch_response written to" in text or "Task of collision written to" in text
    both = run_cli(*common, "--vocabulary", tmp_path / "words", "--keys", 3)
    assert both.exit_code == 2


# Pictures


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[float, float]]]:
    """What a picture shows, by label, once it has been drawn."""
    from matplotlib import pyplot

    shown: dict[str, list[tuple[float, float]]] = {}
    close = pyplot.close

    def remember(figure: Any) -> None:
        for line in figure.axes[0].lines:
            shown[line.get_label()] = [(float(x), float(y)) for x, y in line.get_xydata()]
        close(figure)

    monkeypatch.setattr(pyplot, "close", remember)
    return shown


GOALS = {
    "sets": [],
    "means": ["--estimate", "mean", "--range", "-5:5"],
    "sums": ["--estimate", "sum"],
    "entries": ["--unit", "entry"],
}


@pytest.mark.parametrize("against", ["epsilon", "users", "bytes"])
@pytest.mark.parametrize("goal", GOALS)
def test_pictures(
    goal: str, against: str, tmp_path: Path, curves: dict[str, list[tuple[float, float]]]
) -> None:
    """A curve for every leading mechanism; it passes through the error that the table has."""
    path = tmp_path / "x.png"
    said = succeed(*SETS, *GOALS[goal], "--plot", path, "--against", against)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    options = suitable(said)
    assert set(curves) == set(list(options)[:5])
    for name, points in curves.items():
        here = {"epsilon": 1.0, "users": 20_000, "bytes": options[name]["report_bytes"]}[against]
        near = [error for place, error in points if place == pytest.approx(here)]
        assert min(near) == pytest.approx(options[name]["error"])
        if against == "epsilon" or (against == "users" and goal != "sums"):
            errors = [error for _, error in sorted(points)]
            assert len(errors) >= 7
            assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("epsilon", [0.01, 5, 12])
def test_pictures_at_the_ends(epsilon: float, tmp_path: Path) -> None:
    """Where the range of the picture leaves what is possible, it is cut, and the plan stays."""
    succeed(*SETS, "--epsilon", epsilon, "--plot", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_mentioned(tmp_path: Path) -> None:
    result = run_cli(*SETS, "--plot", tmp_path / "x.png", "--against", "bytes")
    assert "Picture: " in " ".join(result.stdout.split())
    assert sorted(contents(tmp_path)) == ["x.png"]


@pytest.mark.parametrize("name", ["missing/x.png", "x.nonsense"])
def test_pictures_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    refuse(*SETS, "--plot", tmp_path / name)
    assert contents(tmp_path) == {}


# Bad input


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--epsilon", 0], "epsilon"),
        (["--epsilon", "nan"], "epsilon"),
        (["--epsilon", "inf"], "epsilon"),
        (["--epsilon", -1], "epsilon"),
        (["--epsilon", 100], "epsilon"),
        (["--epsilon", 100, "--estimate", "mean", "--range", "-1:1"], "epsilon"),
        (["--max-entries", 0], "max_entries"),
        (["--max-entries", 0, "--estimate", "mean", "--range", "-1:1"], "max_entries"),
        (["--max-entries", 1 << 17], "max_entries"),
        (["--distance", 1], "distance"),
        (["--unit", "l1"], "distance"),
        (["--unit", "l1", "--distance", -1], "distance"),
        (["--unit", "l1", "--distance", "nan"], "distance"),
        (["--delta", 1e-6], "delta"),
        (["--delta", 1, "--unit", "l1", "--distance", 1], "delta"),
        (["--delta", "nan", "--model", "shuffled"], "delta"),
        (["--model", "shuffled"], "delta"),
        (["--estimate", "mean"], "--range LOW:HIGH"),
        (["--estimate", "conditional"], "--range LOW:HIGH"),
        (["--estimate", "mean", "--range", "1-5"], "LOW:HIGH"),
        (["--estimate", "mean", "--range", "1:2:3"], "LOW:HIGH"),
        (["--estimate", "mean", "--range", "a:b"], "LOW:HIGH"),
        (["--estimate", "mean", "--range", ""], "LOW:HIGH"),
        (["--estimate", "mean", "--range", "5:1"], "range"),
        (["--estimate", "mean", "--range", "nan:1"], ""),
        (["--estimate", "mean", "--range", "0:inf"], ""),
        (["--estimate", "mean", "--range", "0:0", "--unit", "l1", "--distance", 1], "range"),
        (["--users", 1 << 50], "users"),
        (["--want-error", 0], "error"),
        (["--want-error", "nan"], "error"),
        (["--want-error", -1], "error"),
        (["--want-error", 1e-12], "epsilon up to 8"),
        (["--vocabulary", "no such file"], "no such file"),
        (["--entries", "no such file"], "no such file"),
        (["--keys", 9, "-o", "no such folder/t.toml"], "no such folder"),
        (["-o", "t.toml"], "--keys, --vocabulary or --open"),
    ],
    ids=str,
)
def test_bad_input(options: list[Any], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, exit code 1, nothing written."""
    monkeypatch.chdir(tmp_path)
    line = refuse("plan", *options)
    assert part in line
    assert line.rstrip().endswith(".")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "options",
    [["--users", -5], ["--users", 1], ["--keys", 0], ["--bytes", 0], ["--estimate", "mode"], ["--unit", "x"]],
    ids=str,
)
def test_wrong_usage(options: list[Any]) -> None:
    result = run_cli("plan", *options)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("bits", [-5, 0, 1, 31, 100])
def test_open_vocabularies_of_impossible_size(bits: int) -> None:
    result = run_cli("plan", "--open", bits)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (1, 2)


def test_refusals_are_json_too() -> None:
    result = run_cli("plan", "--epsilon", 0, "--json")
    assert result.exit_code == 1
    assert list(strict_json(result.stdout)) == ["error"]
    assert result.stderr.startswith("hubbub: epsilon")
