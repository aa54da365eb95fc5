"""`hubbub release` and `hubbub query`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import contents, prose, python, refuse, run_cli, strict_json, succeed, write_csv
from hubbub.cli.query import command as query_command
from hubbub.cli.release import command as release_command
from hubbub.release import Release
from hubbub.release.goal import ALGORITHMS
from hubbub.release.part import ESTIMATORS

EPSILON = ("--epsilon", 1, "-o", "x")
TABLE = [("url", "n"), *((f"page{i}", 600 // (i + 1)) for i in range(200))]


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "counts.csv", TABLE)


def release(counts: Path, *more: object) -> list[object]:
    """The arguments of a plain release."""
    output = counts.with_name("counts.hub")
    return ["release", counts, "--key", "url", "--count", "n", "--epsilon", 2, "-o", output, *more]


def released(*arguments: object) -> dict[str, Any]:
    """What the command says with --json; facts about the table are on stderr, each marked as the holder's."""
    result = run_cli(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert all(line.startswith("For you only") for line in result.stderr.splitlines())
    said: dict[str, Any] = strict_json(result.stdout)
    return said


def test_from_a_table_to_an_answer(counts: Path) -> None:
    said = released(*release(counts, "--max-sum", 5000, "--max-value", 1000))
    path = counts.with_name("counts.hub")
    assert said["bytes"] == path.stat().st_size
    assert said["plan"]["guarantee"]["epsilon"] == 2
    assert said["plan"]["guarantee"]["model"] == "central"
    assert said["sizes"] is None
    assert said["users"] is None
    assert said["plan"]["guarantee"]["unit"] == "value"
    chosen = said["plan"]["chosen"]
    assert chosen["bytes"] <= said["bytes"] < chosen["bytes"] + 2000
    assert {"small", "middle", "large", "microseconds", "parts"} <= chosen.keys()
    answers = succeed("query", path, "page0", "page99", "elsewhere")
    assert [row["key"] for row in answers["answers"]] == ["page0", "page99", "elsewhere"]
    first = answers["answers"][0]
    assert abs(first["value"] - 600) < 40
    assert first["low"] <= first["value"] <= first["high"]
    assert Release.open(path)["page0"] == first["value"]


def test_what_people_read(counts: Path) -> None:
    result = run_cli(*release(counts))
    assert result.exit_code == 0
    assert "none given, so epsilon = 0.1 of the budget estimated a sum" in result.stdout
    assert "Per unit of value, not per person: epsilon = 2, central model" in result.stdout
    assert "For you only, not private: 200 rows" in result.stderr
    assert "For you only" not in result.stdout
    asked = run_cli("query", counts.with_name("counts.hub"), "page0")
    assert asked.exit_code == 0
    assert "page0" in asked.stdout
    assert "estimator argmax" in asked.stderr


def test_bounds_that_do_not_hold_are_told_to_the_holder_only(counts: Path) -> None:
    result = run_cli(*release(counts, "--max-nonzero", 10, "--max-sum", 50, "--max-value", 20))
    assert result.exit_code == 0
    assert "more keys than declared" in result.stderr
    assert "sum is larger than declared" in result.stderr
    assert "declared" not in result.stdout


def test_keys_from_a_file(counts: Path) -> None:
    released(*release(counts, "--max-sum", 5000))
    listing = counts.with_name("keys.txt")
    listing.write_text("page1\npage5\n")
    answers = succeed("query", counts.with_name("counts.hub"), "--keys-from", listing)
    assert [row["key"] for row in answers["answers"]] == ["page1", "page5"]


@pytest.mark.parametrize("algorithm", ["threshold", "threshold-alp", "histogram", "log", "max"])
def test_algorithm_and_estimator(counts: Path, algorithm: str) -> None:
    options = ("--max-nonzero", 300, "--max-value", 1000, "--delta", 1e-6)
    said = released(*release(counts, *options, "--algorithm", algorithm, "--estimator", "median"))
    assert said["plan"]["chosen"]["algorithm"] == algorithm
    path = counts.with_name("counts.hub")
    assert succeed("query", path, "page1")["estimator"] == "median"
    assert succeed("query", path, "page1", "--estimator", "argmax")["estimator"] == "argmax"


def test_signed_real_values_and_integer_keys(tmp_path: Path) -> None:
    rows = [("place", "change"), *((i, (-1) ** i * 50.5) for i in range(30))]
    path, output = write_csv(tmp_path / "t.csv", rows), tmp_path / "t.hub"
    said = released(
        *("release", path, "--key", "place", "--value", "change", "--signed", "--universe", 1 << 20),
        *("--epsilon", 4, "--max-nonzero", 100, "--max-value", 100, "-o", output),
    )
    assert "tables at l1 distance at most 1" in said["plan"]["guarantee"]["words"]
    even, odd = succeed("query", output, 8, 9)["answers"]
    assert abs(even["value"] - 50.5) < 20
    assert abs(odd["value"] + 50.5) < 20
    assert "not a whole number" in refuse("query", output, "here")


VISITS = [
    ("who", "page", "minutes"),
    *((f"u{i % 40}", f"p{i % 7}", i % 5) for i in range(400)),
    ("", "p1", 9),
]


def test_per_user(tmp_path: Path) -> None:
    """Each user once per page; the unit is in everything that is printed, and in the file."""
    path, output = write_csv(tmp_path / "visits.csv", VISITS), tmp_path / "v.hub"
    plain = (
        "release",
        path,
        "--user",
        "who",
        "--key",
        "page",
        "--epsilon",
        8,
        "--algorithm",
        "max",  # Laplace noise of scale 7/8: above 25 with probability 1e-12
        "--max-sum",
        1000,
        "-o",
        output,
    )
    said = released(*plain, "--max-entries", 7)
    assert said["users"] == {"max_entries": 7, "max_contribution": 1.0}
    assert said["plan"]["guarantee"]["unit"] == "user"
    answers = succeed("query", output, "p1", "p2", "nowhere")
    assert answers["guarantee"]["unit"] == "user"
    assert abs(answers["answers"][0]["value"] - 40) < 25
    assert succeed("inspect", output)["users"]["max_entries"] == 7
    shown = prose("inspect", output)
    assert "users at most 7 keys each" in shown
    assert "guarantee Per user: epsilon = 8, central model" in shown
    assert "flip" not in shown
    assert '"kind": "release"' in prose("inspect", output, "--verbose")
    text = run_cli(*plain, "--max-entries", 7)
    assert "Per user: epsilon = 8, central model: if all rows of one user" in " ".join(text.stdout.split())
    assert "40 users, 0 of them with more keys" in text.stderr
    assert "Per user: epsilon = 8" in run_cli("query", output, "p1").stderr
    assert "40 of them with more keys than count (160 dropped" in run_cli(*plain, "--max-entries", 3).stderr


@pytest.mark.parametrize("column", ["--count", "--value"])
def test_values_per_user(tmp_path: Path, column: str) -> None:
    path, output = write_csv(tmp_path / "visits.csv", VISITS), tmp_path / "v.hub"
    said = released(
        *("release", path, "--user", "who", "--key", "page", column, "minutes", "--max-contribution", 3),
        *("--max-entries", 2, "--delta", 1e-6, "--max-nonzero", 50, "--max-value", 1000, "--epsilon", 4),
        *("--algorithm", "threshold", "-o", output),
    )
    assert said["users"] == {"max_entries": 2, "max_contribution": 3.0}
    assert said["plan"]["chosen"]["parts"][0]["changed"] == 2
    words = succeed("inspect", output)["guarantee"]["words"]
    assert "at most 2 keys, and in a key for at most 3" in words
    assert "1 + exp(epsilon) times this delta" in words


def test_refusals_leave_nothing_behind(counts: Path) -> None:
    before = contents(counts.parent)
    broken = write_csv(counts.with_name("broken.csv"), [("url", "n"), ("a", 1), ("b", "lots")])
    assert "line 3: 'lots'" in refuse(*release(broken))
    broken.unlink()
    assert "no column 'hits'" in refuse(*["hits" if part == "n" else part for part in release(counts)])
    assert "epsilon" in refuse(*release(counts)[:6], "--epsilon", -1, "-o", counts.with_name("x.hub"))
    assert "possible keys" in refuse(*release(counts, "--algorithm", "laplace"))
    negative = write_csv(counts.with_name("negative.csv"), [("url", "n"), ("a", -1)])
    assert "below 0" in refuse(*release(negative))
    negative.unlink()
    assert "does not exist" in refuse(*release(counts.with_name("none.csv")))
    assert "cannot be written" in refuse(*release(counts)[:-1], counts.parent / "no" / "x.hub")
    assert "not a hubbub file" in refuse("query", counts, "a")
    assert contents(counts.parent) == before


def test_wrong_usage_has_exit_code_2(counts: Path) -> None:
    for wrong in (
        [*release(counts), "--value", "n"],
        ["release", counts, "--key", "url", "--epsilon", 1, "-o", "x"],
        release(counts, "--algorithm", "magic"),
        release(counts, "--user", "url"),
        release(counts, "--max-entries", 2),
        release(counts, "--max-contribution", 2),
        release(counts, "--user", "url", "--max-entries", 2),
        ["release", counts, "--key", "url", "--user", "n", "--epsilon", 1, "-o", "x"],
        [
            "release",
            counts,
            "--key",
            "n",
            "--user",
            "url",
            "--max-entries",
            1,
            "--max-contribution",
            1,
            *EPSILON,
        ],
        ["query", counts],
        ["query", counts, "a", "--keys-from", counts],
    ):
        assert run_cli(*wrong).exit_code == 2


def test_choices_are_those_of_the_library() -> None:
    """The commands spell them out so that --help needs no imports."""

    def choices(command: object, name: str) -> tuple[str, ...]:
        return next(tuple(p.type.choices) for p in command.params if p.name == name)  # type: ignore[attr-defined]

    assert choices(release_command, "algorithm") == ALGORITHMS
    assert choices(release_command, "estimator") == choices(query_command, "estimator") == ESTIMATORS


def test_commands_import_little() -> None:
    loaded = python("import sys, hubbub.cli.release, hubbub.cli.query; print('numpy' in sys.modules)")
    assert loaded.strip() == "False"
