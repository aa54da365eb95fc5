"""For whom, and since when, on the command line: from a table with labels to estimates and differences of groups."""

from __future__ import annotations

import csv
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import prose, refuse, refused, run_cli, seeded_coins, succeed, write_csv
from hubbub.calls.run import privatize, run_by
from hubbub.protocol.files import load_reports_by, load_state, open_states, total_of
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.tables.attributes import grouped
from hubbub.tables.records import read_table

PAGES = ("home", "search", "help", "cart")
USER, KEY = ("--user", "user", "--key", "page"), ("--epsilon", 2, "--max-entries", 4)


def rows(people: int = 3000, seed: int = 3) -> list[tuple[Any, ...]]:
    """People of three countries; more of France have a cart. Everybody has been home."""
    rng = np.random.default_rng(seed)
    made: list[tuple[Any, ...]] = [("user", "page", "country", "when")]
    for user in range(people):
        country = ("de", "fr", "us")[user % 3]
        chances = {"home": 1.0, "search": 0.3, "help": 0.1, "cart": 0.7 if country == "fr" else 0.2}
        day = f"2026-11-{2 + 7 * (user % 2):02}"  # in the weeks 45 and 46
        made += [(f"u{user}", page, country, day) for page in PAGES if rng.random() < chances[page]]
    return made


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    seeded_coins(monkeypatch)
    return write_csv(tmp_path / "visits.csv", rows())


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return new_task(tmp_path)


def new_task(folder: Path, *options: object) -> Path:
    (folder / "pages.txt").write_text("\n".join(PAGES))
    path = folder / "task.toml"
    described = ("--name", "visits", "--vocabulary", folder / "pages.txt", *KEY)
    labels = ("--labels", "country=de,fr,us", "--period", "week")
    succeed("task", "new", *described, *labels, *options, "-o", path)
    return path


@pytest.fixture
def state(table: Path, task: Path, tmp_path: Path) -> Path:
    succeed("privatize", table, task, *USER, "--day", "when", "-o", tmp_path / "v.reports")
    succeed("aggregate", tmp_path / "v.reports", "-o", tmp_path / "v.state")
    return tmp_path / "v.state"


# Privatize


def test_labels_and_days_become_strata(table: Path, task: Path, tmp_path: Path) -> None:
    said = succeed("privatize", table, task, *USER, "--day", "when", "-o", tmp_path / "v.reports")
    assert said["reports"] == 3000
    assert said["strata"] == {
        f"country={country}@2026-W{week}": 500 for country in ("de", "fr", "us") for week in (45, 46)
    }
    loaded, parts = load_reports_by(tmp_path / "v.reports")
    assert loaded == Task.load(task)
    assert {at: len(part) for at, part in parts.items()}[Stratum(("de",), "2026-W45")] == 500
    said = succeed("privatize", table, task, *USER, "--period", "2026-W46", "-o", tmp_path / "w.reports")
    assert list(said["strata"]) == [f"country={country}@2026-W46" for country in ("de", "fr", "us")]
    assert "labels country (de, fr, us); they are public" in prose("inspect", tmp_path / "v.reports")


def test_parquet_has_the_column_and_adds_up_to_the_same(task: Path, tmp_path: Path) -> None:
    """Each row of reports is in its stratum, and all of them are the whole, bit for bit."""
    table = write_csv(tmp_path / "visits.csv", rows())
    succeed("privatize", table, task, *USER, "-o", tmp_path / "v.parquet")
    column = pq.read_table(tmp_path / "v.parquet")["stratum"].to_pylist()
    assert set(column) == {"country=de", "country=fr", "country=us"}
    succeed("aggregate", tmp_path / "v.parquet", "-o", tmp_path / "p.state")
    loaded, states = open_states(tmp_path / "p.state")
    raw = b"".join(pq.read_table(tmp_path / "v.parquet")["reports"].to_pylist())
    assert total_of(loaded, states).to_bytes() == aggregate(loaded, raw).to_bytes()
    assert {at: one.count for at, one in states.items()} == {Stratum((c,)): 1000 for c in ("de", "fr", "us")}


def test_a_column_may_be_called_otherwise(tmp_path: Path, task: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [("user", "page", "Home country"), ("a", "home", "de")])
    said = refuse("privatize", path, task, *USER, "-o", tmp_path / "f.reports")
    assert "no column 'country'" in said
    assert "--label country=COLUMN" in said
    named = ("--label", "country=Home country")
    assert succeed("privatize", path, task, *USER, *named, "-o", tmp_path / "f.reports")["reports"] == 1
    assert "has no label 'age'" in refuse(
        "privatize", path, task, *USER, *named, "--label", "age=user", "-o", tmp_path / "f.reports"
    )
    for odd, words in (("country", "written --label LABEL=COLUMN"), ("=x", "written --label")):
        assert words in refuse("privatize", path, task, *USER, "--label", odd, "-o", tmp_path / "g.reports")
    assert "named twice" in refuse(
        "privatize", path, task, *USER, *named, *named, "-o", tmp_path / "g.reports"
    )
    assert not (tmp_path / "g.reports").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([("a", "home", ""), ("b", "home", "de")], "1 of 2 users have no country (row 1 is the first)"),
        (
            [("a", "home", "de"), ("b", "home", "xx")],
            "a country that task 'visits' does not list, such as 'xx'",
        ),
        (
            [("a", "home", "de"), ("a", "cart", "fr"), ("b", "home", "de")],
            "1 of 2 users have rows with different values of country",
        ),
    ],
)
def test_missing_unknown_and_contradictory_labels_are_counted(
    changed: list[tuple[str, ...]], words: str, task: Path, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "t.csv", [("user", "page", "country"), *changed])
    said = refuse("privatize", path, task, *USER, "-o", tmp_path / "f.reports")
    assert words in said
    assert "correct the table, or leave them out" in said
    assert not (tmp_path / "f.reports").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--period", "2026-W99"), "neither a day"),
        (("--period", "2026-11"), "neither a day"),
        (("--period", "2900-W02"), "2900-W02 has not begun"),
        (("--period", "2026-W46", "--day", "when"), "not both"),
        (("--day", "page"), "'cart' is neither a day"),
    ],
)
def test_periods_that_cannot_be(
    options: tuple[str, ...], words: str, table: Path, task: Path, tmp_path: Path
) -> None:
    assert words in refuse("privatize", table, task, *USER, *options, "-o", tmp_path / "f.reports")


def test_a_task_without_periods_or_labels(table: Path, tmp_path: Path) -> None:
    (tmp_path / "pages.txt").write_text("\n".join(PAGES))
    plain = tmp_path / "plain.toml"
    succeed("task", "new", "--name", "p", "--vocabulary", tmp_path / "pages.txt", *KEY, "-o", plain)
    for options, words in (
        (("--period", "2026-W46"), "has no periods"),
        (("--day", "when"), "has no periods"),
        (("--label", "country=country"), "has no label 'country': it has none"),
    ):
        assert words in refuse("privatize", table, plain, *USER, *options, "-o", tmp_path / "f.reports")
    succeed("privatize", table, plain, *USER, "-o", tmp_path / "f.reports")
    assert list(load_reports_by(tmp_path / "f.reports")[1]) == [UNTOLD]


def test_several_messages_are_made_stratum_by_stratum(table: Path) -> None:
    fields = {
        "name": "m",
        "labels": {"country": ["de", "fr", "us"]},
        "messages": 2.0,
        "keys": {"kind": "closed", "vocabulary": list(PAGES), "salt": "0" * 32},
        "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 4},
    }
    made = privatize(table, Task.parse(fields), "user", "page")
    assert len(made.parts) == 3
    assert sum(map(len, made.parts.values())) == len(made)
    assert 5000 < len(made) < 7000  # a mean of 2 each: 13 standard deviations either side


RULES = [("--rotation", 4), ("--memoize-cap", 1), ("--rotation", 4, "--memoize-cap", 1)]


@pytest.mark.parametrize("rules", RULES)
def test_rules_that_devices_keep_are_not_for_tables(
    rules: tuple[object, ...], table: Path, tmp_path: Path
) -> None:
    """Who has a table has no ledger: 4 weeks of one record would be 4 reports, where the task says 1 over all time."""
    task, output = new_task(tmp_path, *rules), tmp_path / "f.reports"
    for when in (("--day", "when"), ("--period", "2026-W46"), ()):
        said = refuse("privatize", table, task, *USER, *when, "-o", output)
        assert "devices keep with a ledger" in said
        assert "hubbub simulate" in said
        assert all(
            ("rotation = 4" in said, "memoize" in said)[option == "--memoize-cap"] for option in rules[::2]
        )
    assert not output.exists()
    with refused("a table has no ledger"):
        privatize({"ann": ["home"]}, Task.load(task))


@pytest.mark.parametrize("rules", RULES)
def test_such_tasks_can_be_rehearsed(rules: tuple[object, ...], table: Path, tmp_path: Path) -> None:
    task = new_task(tmp_path, *rules)
    assert succeed("simulate", task, "--like", table, *USER)["reports"] == 3000
    large = tmp_path / "large.toml"
    succeed("task", "new", "--name", "x", "--keys", 300, *KEY, "--period", "week", *rules, "-o", large)
    assert succeed("simulate", large, "--users", 1000)["people"] == 1000


def test_frames_and_mappings(task: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"user": [1, 2, 2], "page": ["home", "home", "cart"], "country": ["de", "fr", "fr"]})
    made = privatize(frame, Task.load(task), "user", "page")
    assert {at: len(part) for at, part in made.parts.items()} == {Stratum(("de",)): 1, Stratum(("fr",)): 1}
    with refused("column 'country' has 1 missing values"):
        privatize(frame.assign(country=["de", None, "fr"]), Task.load(task), "user", "page")
    with refused("has no columns that tell more"):
        privatize({"a": ["home"]}, Task.load(task))
    today = datetime.date.today().isoformat()
    by_day = privatize(frame.assign(when=f"{today}T10:00:00"), Task.load(task), "user", "page", day="when")
    assert len(by_day) == 2


def test_another_list_of_labels_is_another_task(table: Path, task: Path, tmp_path: Path) -> None:
    """Also if nothing else has changed; nothing is added up."""
    changed = tmp_path / "changed.toml"
    changed.write_text(task.read_text().replace('"us"]', '"us", "uk"]'))
    for name, described in (("one", task), ("two", changed)):
        succeed("privatize", table, described, *USER, "-o", tmp_path / f"{name}.reports")
        succeed("aggregate", tmp_path / f"{name}.reports", "-o", tmp_path / f"{name}.state")
    for command, ending in (("aggregate", "reports"), ("merge", "state")):
        files = [tmp_path / f"{name}.{ending}" for name in ("one", "two")]
        said = refuse(command, *files, "-o", tmp_path / "both.state")
        assert "lists of labels are part of a task" in said
    assert not (tmp_path / "both.state").exists()
    assert succeed("compare", tmp_path / "one.state", tmp_path / "two.state")["differ"] == 0


# Estimate


def test_groups_and_choices(state: Path, tmp_path: Path) -> None:
    said = succeed("estimate", state, "--by", "country", "-o", tmp_path / "e.csv")
    assert [group["country"] for group in said["groups"]] == ["de", "fr", "us"]
    assert {group["reports"] for group in said["groups"]} == {1000}
    carts = {
        group["country"]: next(row["value"] for row in group["estimates"] if row["key"] == "cart")
        for group in said["groups"]
    }
    assert carts["fr"] > max(carts["de"], carts["us"])
    found = list(csv.DictReader((tmp_path / "e.csv").read_text().splitlines()))
    assert len(found) == 12
    assert list(found[0])[:2] == ["country", "key"]
    trend = succeed("estimate", state, "cart", "--by", "period", "--where", "country=fr", "--simultaneous")
    assert [(group["period"], group["reports"]) for group in trend["groups"]] == [
        ("2026-W45", 500),
        ("2026-W46", 500),
    ]
    both = succeed("estimate", state, "--by", "country,period")
    assert len(both["groups"]) == 6
    assert succeed("estimate", state, "--by", "country", "--by", "period")["by"] == ["country", "period"]
    one = succeed("estimate", state, "--where", "country=fr", "--period", "2026-W46")
    assert (one["reports"], one["group"]) == (500, "country fr, 2026-W46")
    assert succeed("estimate", state, "--from", "2026-W46")["reports"] == 1500
    assert succeed("estimate", state, "--from", "2026-W45", "--to", "2026-W45")["reports"] == 1500
    assert succeed("estimate", state)["reports"] == 3000
    assert "group" not in succeed("estimate", state)
    words = prose("estimate", state, "--by", "country")
    assert "when all keys of all 3 groups are looked at together" in words
    assert "Labels are public" in words
    assert "Only country fr:" in prose("estimate", state, "--where", "country=fr")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--by", "age"), "has no label 'age'"),
        (("--by", "country,country"), "each named once"),
        (("--by", ""), "has no label ''"),
        (("--where", "country=xx"), "'xx' is no country"),
        (("--where", "country"), "written --where LABEL=VALUE"),
        (("--where", "country=de", "--where", "country=fr"), "named twice"),
        (("--period", "soon"), "is no period"),
        (("--period", "2031-W02"), "There are no reports of what was asked for (2031-W02)"),
        (("--from", "2026-W47"), "There are no reports"),
    ],
)
def test_questions_that_make_no_sense(options: tuple[str, ...], words: str, state: Path) -> None:
    assert words in refuse("estimate", state, *options)


def test_period_and_range_do_not_go_together(state: Path) -> None:
    assert run_cli("estimate", state, "--period", "2026-W46", "--from", "2026-W45").exit_code == 2


def test_small_groups_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded_coins(monkeypatch)
    people = [
        (f"{country}{place}", "home", country)
        for country, many in (("de", 90), ("fr", 30), ("us", 9))
        for place in range(many)
    ]
    path = write_csv(tmp_path / "t.csv", [("user", "page", "country"), *people])
    task = new_task(tmp_path, "--minimum-reports", 10)
    succeed("privatize", path, task, *USER, "-o", tmp_path / "v.reports")
    succeed("aggregate", tmp_path / "v.reports", "-o", tmp_path / "v.state")
    said = succeed("estimate", tmp_path / "v.state", "--by", "country")
    assert [group["country"] for group in said["groups"]] == ["de"]
    assert set(said["withheld"]) == {"us", "fr"}
    words = prose("estimate", tmp_path / "v.state", "--by", "country")
    assert "us is not shown: 9 reports are fewer than 10" in words
    assert "fr is not shown: withheld, too" in words
    for country in ("us", "fr"):
        assert f"{country} is not shown" in refuse(
            "estimate", tmp_path / "v.state", "--where", f"country={country}"
        )
        assert "is not shown" in refuse("compare", tmp_path / "v.state", "--compare", f"country=de,{country}")


def test_states_that_keep_nothing_apart(state: Path, tmp_path: Path) -> None:
    from hubbub.protocol.files import save_state

    save_state(tmp_path / "sum.state", *load_state(state))
    assert "Nothing is told about the country" in refuse(
        "estimate", tmp_path / "sum.state", "--by", "country"
    )
    assert succeed("estimate", tmp_path / "sum.state")["reports"] == 3000


# Compare


def test_groups_are_compared(state: Path, tmp_path: Path) -> None:
    said = succeed("compare", state, "--compare", "country=de,fr", "-o", tmp_path / "c.csv")
    assert said["sides"] == ["country de", "country fr"]
    assert [row["key"] for row in said["differences"] if row["differs"]] == ["cart"]
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 5
    words = prose("compare", state, "home", "cart", "--compare", "country=de,fr")
    assert "1 of 2 keys differs between country de and country fr" in words
    assert "cannot be told apart" in words
    weeks = succeed("compare", state, "--compare", "period=2026-W45,2026-W46", "--where", "country=de")
    assert (weeks["differ"], weeks["reports"]) == (0, [500, 500])
    several = succeed("compare", state, "--compare", "country=de,fr,us", "-o", tmp_path / "c.json")
    assert [one["sides"][1] for one in several["comparisons"]] == ["country fr", "country us"]
    assert len(json.loads((tmp_path / "c.json").read_text())["comparisons"]) == 2
    succeed("compare", state, "--compare", "country=de,fr,us", "-o", tmp_path / "c.parquet")
    assert pq.read_table(tmp_path / "c.parquet").num_rows == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--compare", "country=de"), "two or more different values"),
        (("--compare", "country"), "written --compare LABEL=VALUE,VALUE"),
        (("--compare", "country=de,xx"), "'xx' is no country"),
        (("--compare", "age=1,2"), "has no label 'age'"),
        (("--compare", "period=2026-W45,2026-W50"), "There are no reports"),
        (("--compare", "country=de,fr", "nonsense"), "not in the task"),
    ],
)
def test_comparisons_that_make_no_sense(options: tuple[str, ...], words: str, state: Path) -> None:
    assert words in refuse("compare", state, *options)


def test_two_states_by_label(state: Path, table: Path, task: Path, tmp_path: Path) -> None:
    succeed("privatize", table, task, *USER, "-o", tmp_path / "o.reports")
    succeed("aggregate", tmp_path / "o.reports", "-o", tmp_path / "o.state")
    said = succeed("compare", state, tmp_path / "o.state", "--where", "country=fr")
    assert said["reports"] == [1000, 1000]
    assert said["differ"] == 0
    assert run_cli("compare", state).exit_code == 2


# Run


def test_run_by_a_column(table: Path, tmp_path: Path) -> None:
    said = succeed("run", table, *USER, *KEY, "--by", "country", "-o", tmp_path / "e.parquet")
    assert [group["country"] for group in said["groups"]] == ["de", "fr", "us"]
    assert pq.read_table(tmp_path / "e.parquet").column_names[0] == "country"
    words = prose("run", table, *USER, *KEY, "--by", "country")
    assert "The keys in the table were taken as publicly known" in words
    named = succeed("run", table, *USER, *KEY, "--by", "nation", "--label", "nation=country")
    assert named["by"] == ["nation"]
    found = run_by(table, ["country"], "user", "page", epsilon=2, max_entries=4)
    assert list(found.groups) == ["de", "fr", "us"]
    assert found["fr"].group == "fr"


def test_a_run_of_groups_where_nothing_can_be_learned_says_so_first(tmp_path: Path) -> None:
    """Everybody has a key of their own: no row of noise, and the groups' warnings before all else, also of a state."""
    table = write_csv(
        tmp_path / "t.csv",
        [("user", "page", "country"), *((i, f"k{i % 15}", ("de", "fr")[i % 2]) for i in range(60))],
    )
    asked = ("run", table, *USER, "--key", "page", "--epsilon", 0.1, "--max-entries", 1, "--by", "country")
    text = prose(*asked)
    assert text.startswith("de: Nothing stands out: none of 15 keys can")
    assert text.index("fr: Nothing stands out") < text.index(" task ")
    assert text.count("Nothing stands out") == 2
    assert "in the noise" not in text
    assert "de: 30 reports." in text
    assert "fr: 30 reports." in text
    said = succeed(*asked)
    assert next(iter(said)) == "warnings"
    assert [words.partition(":")[0] for words in said["warnings"]] == ["de", "fr"]
    task = tmp_path / "t.toml"
    (tmp_path / "names.txt").write_text("\n".join(f"k{i}" for i in range(15)))
    made = ("--vocabulary", tmp_path / "names.txt", "--epsilon", 0.1, "--max-entries", 1)
    succeed("task", "new", "--name", "t", *made, "--labels", "country=de,fr", "-o", task)
    succeed("privatize", table, task, *USER, "--key", "page", "-o", tmp_path / "t.reports")
    succeed("aggregate", tmp_path / "t.reports", "-o", tmp_path / "t.state")
    text = prose("estimate", tmp_path / "t.state", "--by", "country")
    assert text.startswith("de: Nothing stands out: none of 15 keys can")
    assert "in the noise" not in text
    assert "in the noise" in prose("estimate", tmp_path / "t.state", "k1", "--by", "country")


def test_a_run_of_groups_that_drops_three_quarters_warns_first(tmp_path: Path) -> None:
    people = [(i, f"k{j}", ("de", "fr")[i % 2]) for i in range(400) for j in range(8)]
    table = write_csv(tmp_path / "t.csv", [("user", "page", "country"), *people])
    asked = ("run", table, *USER, "--key", "page", "--epsilon", 4, "--max-entries", 2, "--by", "country")
    text = prose(*asked)
    assert text.index("de: 75% of all entries") < text.index("fr: 75% of all entries") < text.index("task ")
    said = succeed(*asked, "-o", tmp_path / "e.parquet")
    assert sum("75% of all entries were dropped" in words for words in said["warnings"]) == 2
    metadata = json.loads(pq.read_table(tmp_path / "e.parquet").schema.metadata[b"hubbub"])
    assert sum("75% of all entries were dropped" in words for words in metadata["warnings"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--by", "Country"), "no column 'Country'"),
        (("--by", "country,country"), "each named once"),
        (("--by", "page"), "users have rows with different values of page"),
        (("--by", "reports", "--label", "reports=country"), "NAME --label NAME=country"),
        (("--by", "value"), "Files have something else that is called 'value'"),
    ],
)
def test_runs_that_make_no_sense(options: tuple[str, ...], words: str, table: Path) -> None:
    assert words in refuse("run", table, *USER, *KEY, *options)


def test_run_with_blank_labels_says_how_many(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "t.csv", [("user", "page", "country"), ("a", "home", " "), ("b", "home", "de")]
    )
    assert "1 of 2 users have no country" in refuse("run", path, *USER, *KEY, "--by", "country")
    assert run_cli("run", path, *USER, *KEY, "--label", "a=b").exit_code == 2


PLACES = ["United States", "Zürich", "Korea, Republic of", '"quoted"', "=1+1", "\u202etxt", "x" * 60]


def test_run_by_whatever_a_table_has(tmp_path: Path) -> None:
    """A column of any name, with values of any text: people see the table's own, and files do nothing."""
    people = [
        (f"u{place}-{one}", page, text, ("a", "b, c")[one % 2], one % 2)
        for place, text in enumerate(PLACES)
        for one in range(40)
        for page in ("home", "cart")
    ]
    path = write_csv(tmp_path / "t.csv", [("user", "page", "Home, of", "Plan", "day"), *people])
    given = ("--by", "Home", "--label", "Home=Home, of")
    said = succeed("run", path, *USER, *KEY, *given, "-o", tmp_path / "e.csv")
    assert [group["Home"] for group in said["groups"]] == sorted(PLACES)
    assert {group["reports"] for group in said["groups"]} == {40}
    rows = list(csv.DictReader((tmp_path / "e.csv").read_text(encoding="utf-8").splitlines()))
    seen = {row["Home"] for row in rows}
    assert {"United States", "Zürich", "Korea, Republic of", "'=1+1", "\\u202etxt"} < seen
    succeed("run", path, *USER, *KEY, *given, "-o", tmp_path / "e.parquet")
    assert set(pq.read_table(tmp_path / "e.parquet")["Home"].to_pylist()) == set(PLACES)
    words = prose("run", path, *USER, *KEY, *given)
    assert "Zürich: 40 reports" in words
    assert "\u202e" not in words
    both = run_by(path, ["Plan", "Home, of"], "user", "page", epsilon=2, max_entries=4)
    assert len(both) == 2 * len(PLACES)
    assert both.labels_of('"b, c", "Korea, Republic of"') == {
        "Plan": "b, c",
        "Home, of": "Korea, Republic of",
    }
    assert both["a, Zürich"].reports == 20
    assert not both["a, Zürich"].task.labels  # type: ignore[union-attr]
    assert "Plan and Home, of a, Zürich" in str(both)
    by_plan = succeed("run", path, *USER, *KEY, "--by", "Plan")
    assert [(group["Plan"], group["reports"]) for group in by_plan["groups"]] == [("a", 140), ("b, c", 140)]


def test_groups_of_a_table_are_those_of_a_task(table: Path, task: Path) -> None:
    """The same people in the same groups, in the order of what the columns are asked for in."""
    found = run_by(table, ["when", "country"], "user", "page", epsilon=2, max_entries=4)
    assert list(found.values.values()) == [
        (day, country) for day in ("2026-11-02", "2026-11-09") for country in ("de", "fr", "us")
    ]
    assert {one.reports for one in found} == {500}
    assert found["2026-11-02, fr"]["cart"].value > found["2026-11-02, de"]["cart"].value


def test_too_many_groups_of_a_table(tmp_path: Path) -> None:
    people = [(f"u{place}", "home", f"c{place}") for place in range(1001)]
    path = write_csv(tmp_path / "t.csv", [("user", "page", "city"), *people])
    assert "city make 1,001 groups of the users, and at most 1,000" in refuse(
        "run", path, *USER, *KEY, "--by", "city"
    )
    path = write_csv(tmp_path / "t.csv", [("user", "page", "city"), *people[1:]])
    assert len(grouped(read_table(path, "user", "page", more=["city"]), ["city"])[1]) == 1000


def test_privatize_says_what_to_do_about_values(tmp_path: Path, task: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [("user", "page", "country"), ("a", "home", "United States")])
    said = refuse("privatize", path, task, *USER, "-o", tmp_path / "f.reports")
    assert "does not list, such as 'United States'" in said
    assert (
        "Write the task's own values, such as 'de', into a column, and name it with --label country=COLUMN"
        in said
    )


# Files


def written(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, as text or as they are."""
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]


def test_files_say_which_group_they_are_of(state: Path, tmp_path: Path) -> None:
    """In CSV and Parquet alike, as JSON does; and nothing where it is everybody."""
    for path in (tmp_path / "e.csv", tmp_path / "e.parquet"):
        asked = ("--where", "country=fr", "--period", "2026-W46", "--simultaneous")
        succeed("estimate", state, *asked, "-o", path)
        assert {row["group"] for row in written(path)} == {"country fr, 2026-W46"}
        assert {str(row["simultaneous"]) for row in written(path)} == {"True"}
        assert {str(row["reports"]) for row in written(path)} == {"500"}
        succeed("estimate", state, "--by", "period", "--where", "country=fr", "-o", path)
        assert {(row["period"], row["group"]) for row in written(path)} == {
            ("2026-W45", "country fr"),
            ("2026-W46", "country fr"),
        }
        succeed("estimate", state, "-o", path)
        assert "group" not in written(path)[0]
        succeed("compare", state, "--compare", "country=de,fr", "--period", "2026-W46", "-o", path)
        (said,) = {
            tuple(
                str(row[name])
                for name in ("of", "by", "group", "simultaneous", "first_reports", "second_reports")
            )
            for row in written(path)
        }
        assert said == ("country fr - country de", "country", "2026-W46", "False", "500", "500")
        assert {float(row["epsilon"]) for row in written(path)} == {2.0}
        succeed("compare", state, state, "--where", "country=fr", "-o", path)
        assert {row["group"] for row in written(path)} == {"country fr"}
    grouped = succeed("estimate", state, "--by", "period", "--where", "country=fr")
    assert grouped["group"] == "country fr"
    assert succeed("compare", state, "--compare", "country=de,fr", "--period", "2026-W46")["by"] == "country"


# Shuffled


def test_the_smallest_crowd_decides(state: Path, task: Path, tmp_path: Path) -> None:
    """Each stratum is a crowd of its own, since its labels are seen; who is alone in one has the local guarantee."""
    from hubbub.calls.amplify import amplify, amplify_by

    said = succeed("amplify", state)
    assert len(said["crowds"]) == 6
    assert said["shuffled"]["epsilon"] == pytest.approx(amplify(Task.load(task), 500).epsilon)
    assert said["shuffled"]["epsilon"] > 1.5 * amplify(Task.load(task), 3000).epsilon
    assert "country=de@2026-W45" in prose("amplify", state)
    assert succeed("amplify", tmp_path / "v.reports")["shuffled"] == said["shuffled"]
    found = amplify_by(Task.load(task), {"de": 1000, "fr": 1})
    assert (found["fr"].epsilon, found["fr"].model) == (2.0, "local")
    assert found["de"].epsilon < 1
    note = succeed("amplify", task, "--reports", 1000)["note"]
    assert "one combination of labels" in note
    assert run_cli("amplify", state, "--reports", 5).exit_code == 2
