"""Groups side by side: intervals that hold for all of them, noise that is no finding, and small groups not shown."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from helpers import refused
from hubbub.cli import main
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.protocol.files import save_states, total_of
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import RESERVED, Task
from hubbub.server.breakdown import Breakdown, compare_groups, estimate_by
from hubbub.server.estimates import estimate
from hubbub.server.findings import width_for
from hubbub.server.fold import aggregate
from hubbub.server.portions import Choice
from hubbub.server.truncation import Truncation
from hubbub.simulation.forgery import forge
from hubbub.simulation.rehearsal import repeated_states, simulate, true_values

KEYS = 64
COUNTRIES = ("de", "fr", "us")


def labelled(
    keys: int = KEYS, countries: tuple[str, ...] = COUNTRIES, least: int = 0, period: str = "once"
) -> Task:
    return Task.parse(
        {
            "name": "visits",
            "period": period,
            "minimum_reports": least,
            "labels": {"country": countries},
            "keys": {"kind": "closed", "size": keys, "salt": "0" * 32},
            "mechanism": {"name": "collision", "epsilon": 2.0, "max_entries": 4},
        }
    )


def crowd(shares: np.ndarray, people: int, seed: int) -> Entries:
    """People who hold key i with probability shares[i]."""
    held = np.random.default_rng(seed).random((people, len(shares))) < shares
    _, ids = np.nonzero(held)
    offsets = np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int64)
    return Entries(ids.astype(np.uint64), np.full(len(ids), GRID, dtype=np.int64), offsets)


def shares(first: float) -> np.ndarray:
    return np.concatenate([[first, 0.2, 0.2, 0.05], np.full(KEYS - 4, 0.02)])


def states_of(
    task: Task, people: dict[str, int], first: dict[str, float] | None = None
) -> dict[Stratum, State]:
    """One state per country, in which this share has key 0."""
    made = {}
    for place, (country, number) in enumerate(people.items()):
        entries = crowd(shares((first or {}).get(country, 0.5)), number, place)
        made[Stratum((country,))] = simulate(task, entries, seed=10 + place).state
    return made


# Statistics


def test_intervals_of_differences_between_groups_hold() -> None:
    """200 times two comparisons of three groups and 64 keys, one by one and all together.

    Of 25,600 single intervals (two pairs share a side, so as good as 17,000), 95% is more than 5 of their standard
    errors from 94% and 96%: false alarms below 1e-6. If all together hold with 95%, they do in fewer than 173 of 200
    runs with probability below 1e-6. Intervals 30% too narrow miss both limits by far.
    """
    task, runs = labelled(), 200
    crowds = [crowd(shares(first), 700, place) for place, first in enumerate((0.5, 0.3, 0.5))]
    ids = task.keys.all_ids()
    truths = [true_values(task, entries, "frequency", ids) for entries in crowds]
    single: dict[float, list[float]] = {1.0: [], 0.7: []}
    together: dict[float, list[bool]] = {1.0: [], 0.7: []}
    lots = [repeated_states(task, entries, runs, 5 + place) for place, entries in enumerate(crowds)]
    for made in zip(*lots, strict=True):
        states = {Stratum((country,)): state for country, state in zip(COUNTRIES, made, strict=True)}
        for simultaneous in (False, True):
            pairs = compare_groups(task, states, "country", COUNTRIES, simultaneous=simultaneous)
            for shrink in (1.0, 0.7):
                held = []
                for found, truth in zip(pairs, truths[1:], strict=True):
                    middle, true = found.difference, truth - truths[0]
                    low, high = (
                        middle + shrink * (found.low - middle),
                        middle + shrink * (found.high - middle),
                    )
                    held.append((low <= true) & (true <= high))
                if simultaneous:
                    together[shrink].append(bool(np.all(held)))
                else:
                    single[shrink].append(float(np.mean(held)))
    assert 0.94 <= np.mean(single[1.0]) <= 0.96
    assert np.mean(together[1.0]) >= 173 / 200
    assert np.mean(single[0.7]) < 0.90
    assert np.mean(together[0.7]) < 0.5


def test_noise_is_hardly_ever_a_finding_in_any_group() -> None:
    """8 groups of 40 keys that nobody has, 60 collections: in at most 5% of them anything stands out anywhere.

    More than 14 of 60 happen with probability below 1e-6 (binomial). A width 30% too small finds something in most.
    """
    countries = tuple(f"c{place}" for place in range(8))
    task = labelled(40, countries)
    nobody = crowd(np.zeros(40), 300, 0)
    lots = [repeated_states(task, nobody, 60, place) for place in range(8)]
    found = narrow = 0
    for made in zip(*lots, strict=True):
        states = {Stratum((country,)): state for country, state in zip(countries, made, strict=True)}
        groups = list(estimate_by(task, states, "country"))
        found += any(one.findings.count for one in groups)
        narrow += any((one.significance > 0.7 * width_for(0.95, 8 * 40)).any() for one in groups)
    assert found <= 14
    assert narrow > 14


def test_simultaneous_intervals_hold_for_all_groups() -> None:
    """In 100 runs of 3 groups fewer than 82 times with probability below 1e-6; 30% too narrow ones do."""
    task, runs = labelled(), 100
    crowds = [crowd(shares(0.5), 500, place) for place in range(3)]
    truths = [true_values(task, entries, "frequency", task.keys.all_ids()) for entries in crowds]
    held: dict[float, int] = {1.0: 0, 0.7: 0}
    lots = [repeated_states(task, entries, runs, 50 + place) for place, entries in enumerate(crowds)]
    for made in zip(*lots, strict=True):
        states = {Stratum((country,)): state for country, state in zip(COUNTRIES, made, strict=True)}
        groups = list(estimate_by(task, states, "country", simultaneous=True))
        for shrink in held:
            held[shrink] += all(
                bool(
                    (
                        (one.value + shrink * (one.low - one.value) <= truth)
                        & (truth <= one.value + shrink * (one.high - one.value))
                    ).all()
                )
                for one, truth in zip(groups, truths, strict=True)
            )
    assert held[1.0] >= 82
    assert held[0.7] < 82


# Groups


@pytest.fixture(scope="module")
def three() -> dict[Stratum, State]:
    return states_of(labelled(), {"de": 20_000, "fr": 20_000, "us": 20_000}, {"fr": 0.3})


def test_a_group_is_estimated_as_its_state_and_knows_its_name(three: dict[Stratum, State]) -> None:
    found = estimate_by(labelled(), three, "country")
    assert [one.group for one in found] == ["de", "fr", "us"]
    assert len(found) == 3
    assert "de" in found
    for country in COUNTRIES:
        whole = estimate(labelled(), three[Stratum((country,))])
        assert found[country].value == pytest.approx(whole.value)
        assert found[country].low == pytest.approx(whole.low, abs=1e-4)
        assert found[country].findings.groups == 3
    assert found["fr"]["0"].value == pytest.approx(0.3, abs=0.05)
    assert "when all keys of all 3 groups are looked at together" in found["fr"].findings.words(
        "frequency", 1
    )
    assert "Labels are public" in str(found)
    with refused("'xx' is not among the 3 groups: de, fr, us"):
        found["xx"]


def test_one_key_over_all_groups(three: dict[Stratum, State]) -> None:
    found = estimate_by(labelled(), three, "country").of(0)
    assert found.keys == COUNTRIES
    assert found.value == pytest.approx([0.5, 0.3, 0.5], abs=0.05)
    assert found.reports == 60_000
    with refused("'1000' is not among"):
        estimate_by(labelled(), three, "country").of(1000)


def test_more_groups_take_more_to_stand_out(three: dict[Stratum, State]) -> None:
    task = labelled()
    alone = estimate(task, three[Stratum(("de",))], simultaneous=True)
    found = estimate_by(task, three, "country", simultaneous=True)["de"]
    assert (found.high - found.low > alone.high - alone.low).all()
    assert found.findings.floor > alone.findings.floor


def test_what_moved_between_groups(three: dict[Stratum, State]) -> None:
    first, second = compare_groups(labelled(), three, "country", ["de", "fr", "us"])
    assert first.sides == ("country de", "country fr")
    assert list(np.array(first.keys)[first.differs]) == ["0"]
    assert not second.differs.any()
    assert any("Labels are public" in note for note in first.notes)


def test_periods_are_groups_too() -> None:
    task = labelled(period="week")
    made = states_of(task, {"de": 5000, "fr": 5000}, {"fr": 0.2})
    weeks = {
        Stratum(("de",), "2026-W45"): made[Stratum(("de",))],
        Stratum(("de",), "2026-W46"): made[Stratum(("fr",))],
    }
    assert list(estimate_by(task, weeks, "period").groups) == ["2026-W45", "2026-W46"]
    assert list(estimate_by(task, weeks, ["country", "period"]).groups) == ["de, 2026-W45", "de, 2026-W46"]
    (moved,) = compare_groups(task, weeks, "period", ["2026-W45", "2026-W46"])
    assert list(np.array(moved.keys)[moved.differs]) == ["0"]
    assert moved.difference[0] < 0
    chosen = estimate_by(task, weeks, "country", choice=Choice(first="2026-W46", last="2026-W46"))
    assert chosen["de"].value == pytest.approx(estimate(task, made[Stratum(("fr",))]).value)
    with refused("overlap"):
        compare_groups(task, weeks, "period", ["2026", "2026-W46"])
    with refused("without from and to"):
        compare_groups(task, weeks, "period", ["2026-W45", "2026-W46"], choice=Choice(first="2026-W46"))


def test_the_groups_are_the_whole_to_the_bit(three: dict[Stratum, State]) -> None:
    task, entries = labelled(), crowd(shares(0.5), 900, 3)
    made = simulate(task, entries, 4)
    cuts = np.array_split(made.packed, 3)
    from hubbub.server.fold import aggregate

    parts = {Stratum((country,)): aggregate(task, cut) for country, cut in zip(COUNTRIES, cuts, strict=True)}
    assert total_of(task, parts).to_bytes() == made.state.to_bytes()


# What is not shown


def test_small_groups_are_not_shown() -> None:
    task = labelled(least=1000)
    states = states_of(task, {"de": 5000, "fr": 3000, "us": 999})
    found = estimate_by(task, states, "country")
    assert list(found.groups) == ["de"]
    assert "us is not shown: 999 reports are fewer than 1,000" in str(found)
    assert "fr is not shown: withheld, too" in str(found)
    with refused("us: 999 reports are fewer"):
        found["us"]
    for country in ("us", "fr"):
        with refused(f"{country} is not shown"):
            estimate_by(task, states, "country", choice=Choice({"country": country}))
        with refused("is not shown"):
            compare_groups(task, states, "country", ["de", country])
    assert found.about()["withheld"].keys() == {"us", "fr"}


def test_if_no_group_is_large_enough_none_is_shown() -> None:
    task = labelled(least=1000)
    with refused("None of 2 groups has 1,000 reports"):
        estimate_by(task, states_of(task, {"de": 600, "fr": 700}), "country")


def test_a_period_must_not_give_away_a_small_one() -> None:
    task = labelled(least=1000, period="week")
    made = list(states_of(task, {"de": 3000, "fr": 2000, "us": 10}).values())
    weeks = {Stratum(("de",), f"2026-W4{place}"): state for place, state in enumerate(made, start=4)}
    assert list(estimate_by(task, weeks, "period").groups) == ["2026-W44"]
    for first, last in (("2026-W46", "2026-W46"), ("2026-W45", "2026-W45"), ("2026-W44", "2026-W45")):
        with refused("is not shown"):
            estimate_by(task, weeks, "country", choice=Choice(first=first, last=last))
    both = estimate_by(task, weeks, "country", choice=Choice(first="2026-W45", last="2026-W46"))
    assert both["de"].reports == 2010


# Refusals and files


def test_what_makes_no_sense_is_refused(three: dict[Stratum, State]) -> None:
    task = labelled()
    with refused("has no label 'age'"):
        estimate_by(task, three, "age")
    with refused("has no periods"):
        estimate_by(task, three, "period")
    with refused("Nothing is told about the country"):
        estimate_by(task, {UNTOLD: three[Stratum(("de",))]}, "country")
    with refused("two or more different values"):
        compare_groups(task, three, "country", ["de"])
    with refused("two or more different values"):
        compare_groups(task, three, "country", ["de", "de"])
    with refused("'xx' is no country"):
        compare_groups(task, three, "country", ["de", "xx"])
    with refused("chosen and compared at once"):
        compare_groups(task, three, "country", ["de", "fr"], choice=Choice({"country": "de"}))
    with refused("has no periods"):
        compare_groups(task, three, "period", ["2026-W45", "2026-W46"])


def saved(found: Breakdown, path: Path) -> Path:
    found.save(path)
    return path


def test_files_have_a_column_for_every_label(three: dict[Stratum, State], tmp_path: Path) -> None:
    found = estimate_by(labelled(), {**three, UNTOLD: three[Stratum(("de",))]}, "country", [0, 1])
    rows = list(csv.DictReader(saved(found, tmp_path / "f.csv").read_text().splitlines()))
    assert [(row["country"], row["key"]) for row in rows][:4] == [
        ("not told", "0"),
        ("not told", "1"),
        ("de", "0"),
        ("de", "1"),
    ]
    assert rows[2]["reports"] == "20000"
    table = pq.read_table(saved(found, tmp_path / "f.parquet"))
    assert table.column_names == list(rows[0])
    assert table["value"].to_pylist() == pytest.approx([float(row["value"]) for row in rows])
    plain = json.loads(saved(found, tmp_path / "f.json").read_text())
    assert plain["by"] == ["country"]
    assert [group["country"] for group in plain["groups"]] == ["not told", "de", "fr", "us"]
    assert plain["groups"][1]["estimates"][0]["key"] == "0"
    assert found.to_pandas().shape == (8, 7)
    assert found.to_polars().shape == (8, 7)
    assert found.to_arrow().num_rows == 8
    assert len(found.rows()) == 8
    with refused("a name that ends in"):
        found.save(tmp_path / "f.txt")


def test_no_label_is_called_as_what_is_beside_it(three: dict[Stratum, State], tmp_path: Path) -> None:
    """Every column of files and every field of JSON besides the labels is reserved, and nothing else."""
    task, used = labelled(), set()
    for options in ({}, {"forgers": 5}, {"simultaneous": True}):
        found = estimate_by(task, three, "country", choice=Choice({"country": "de"}), **options)
        found.save(tmp_path / "e.csv")
        found.save(tmp_path / "e.parquet")
        with (tmp_path / "e.csv").open(newline="", encoding="utf-8") as file:
            used |= set(next(csv.reader(file)))
        used |= set(pq.read_table(tmp_path / "e.parquet").column_names)
        used |= {name for group in found.plain()["groups"] for name in group} | set(found.rows()[0])
    assert used - {"country"} | {"period"} == RESERVED
    for name in sorted(RESERVED):
        with refused(f"{name!r} is no name for a label: files have something else of that name"):
            Task.parse({**task.model_dump(), "labels": {name: ["de", "fr"]}})


def test_notebooks_show_every_group(three: dict[Stratum, State]) -> None:
    page = estimate_by(labelled(), three, "country", [0])._repr_html_()
    assert page.index("country de") < page.index("country fr") < page.index("country us")
    assert page.count("<table") == 3


def test_one_key_can_be_drawn_over_all_groups(three: dict[Stratum, State]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    axes = estimate_by(labelled(), three, "country").plot(0)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["de", "fr", "us"]
    assert axes.get_title(loc="left").startswith("0: share of users")


# Warnings


def lost(dropped: float) -> Truncation:
    """So much of all entries, of a table."""
    return Truncation(4, "table", 1.0, 0.0, dropped, 0.0, dropped, 1 / (1 - dropped), dropped_most=dropped)


def with_losses(states: dict[Stratum, State], dropped: dict[str, float]) -> Breakdown:
    def truncation(strata: list[Stratum]) -> Truncation:
        return lost(dropped[strata[0].labels[0]])

    return estimate_by(labelled(), states, "country", truncation=truncation)


def noise(people: int = 40) -> dict[Stratum, State]:
    """Three groups in which nobody has any key."""
    return {
        Stratum((country,)): simulate(labelled(), crowd(np.zeros(KEYS), people, 1), seed=place).state
        for place, country in enumerate(COUNTRIES)
    }


def test_warnings_of_every_group_are_in_every_form(three: dict[Stratum, State], tmp_path: Path) -> None:
    """What was dropped, with the name of the group: in Python, frames, Arrow, JSON and the metadata of Parquet."""
    found = with_losses(three, {"de": 0.75, "fr": 0.01, "us": 0.8})
    assert [warning[:35] for warning in found.warnings] == [
        "de: 75% of all entries were dropped",
        "us: 80% of all entries were dropped",
    ]
    written = pq.read_table(saved(found, tmp_path / "f.parquet")).schema.metadata[b"hubbub"]
    forms = [
        found.to_pandas().attrs["hubbub"],
        json.loads(found.to_arrow().schema.metadata[b"hubbub"]),
        json.loads(written),
        json.loads(saved(found, tmp_path / "f.json").read_text()),
    ]
    for said in forms:
        assert said["warnings"] == list(found.warnings)
        assert [group["country"] for group in said["groups"]] == list(COUNTRIES)
        assert [len(group["warnings"]) for group in said["groups"]] == [1, 0, 1]
        assert said["groups"][0]["truncation"]["dropped"] == 0.75
    nothing = estimate_by(labelled(), noise(), "country").to_pandas().attrs["hubbub"]
    assert [warning.split(": ")[:2] for warning in nothing["warnings"]] == [
        [country, "Nothing stands out"] for country in COUNTRIES
    ]


def test_one_key_over_groups_says_what_has_to_be_known(three: dict[Stratum, State]) -> None:
    """That nothing stands out, or in which groups it does, and what was dropped in each: first in text and HTML."""
    found = with_losses(three, {"de": 0.75, "fr": 0.01, "us": 0.8}).of(0)
    assert [warning[:8] for warning in found.warnings] == ["de: 75% ", "us: 80% "]
    assert str(found).startswith("de: 75% of all entries were dropped")
    assert "In 3 of 3 groups this key stands out from the noise" in str(found)
    assert found.about()["warnings"] == list(found.warnings)
    silent = estimate_by(labelled(), noise(), "country").of(0)
    first = "Nothing stands out: in none of 3 groups can this key be told from noise"
    assert str(silent).startswith(first)
    assert first in silent._repr_html_().partition("<table")[0]
    assert (silent.findings.count, len(silent.worth_showing(20))) == (0, 3)
    assert len(silent.worth_showing(2)) == 0


def test_one_key_over_groups_has_each_groups_own_notes(three: dict[Stratum, State]) -> None:
    """What all say is said once, the rest with the name of its group."""
    found = estimate_by(labelled(), three, "country")
    groups = {
        group: replace(one, notes=("for all", f"{place} keys were found"))
        for place, (group, one) in enumerate(found.groups.items())
    }
    assert replace(found, groups=groups).of(0).notes == (
        "for all",
        "de: 0 keys were found",
        "fr: 1 keys were found",
        "us: 2 keys were found",
    )


def test_no_list_of_noise_where_no_group_has_a_finding(three: dict[Stratum, State]) -> None:
    """Few keys in several groups are many rows, and a ranking of noise; one key by itself is none."""
    silent = estimate_by(labelled(), noise(), "country", list(range(10)))
    assert sum(map(len, silent.worth_showing(20))) == 0
    assert sum(map(len, silent.worth_showing(30))) == 30
    assert sum(map(len, estimate_by(labelled(), noise(), "country", [0]).worth_showing(2))) == 3
    mixed = estimate_by(labelled(), three, "country", list(range(10))).worth_showing(20)
    assert sum(map(len, mixed)) == 30


def test_a_picture_of_one_key_over_groups_has_warnings(three: dict[Stratum, State]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    axes = with_losses(three, {"de": 0.75, "fr": 0.01, "us": 0.8}).plot(0)
    assert "In 2 groups entries were dropped, most in us: 80% of all entries were" in axes.get_xlabel()
    assert estimate_by(labelled(), noise(), "country").plot(0).get_xlabel().startswith("Nothing stands out.")


# Forged reports


def test_forgers_may_all_be_in_one_group() -> None:
    """They choose their labels: a share of all is that many in every group, and a group of fewer is not shown.

    20 runs of all forgers in the smaller group: intervals that miss once in 10^8 times hold, and those that allow for
    1% of the group only do not.
    """
    task, level = labelled(), 1 - 1e-8
    missed = 0
    for run in range(20):
        states = states_of(task, {"de": 20_000, "fr": 2_000, "us": 150})
        forged = aggregate(task, forge(task, 220, "maximal", [0], seed=run))
        states[Stratum(("fr",))] = states[Stratum(("fr",))].merge(forged)
        entries = crowd(shares(0.5), 2_000, 1)
        truth = true_values(task, entries, "frequency", task.keys.ids_of([0]))[0]
        found = estimate_by(task, states, "country", [0], "frequency", level, forgers=0.01)
        assert (found["de"].forgers, found["fr"].forgers) == (224, 224)
        assert found["fr"].low[0] <= truth <= found["fr"].high[0]
        alone = estimate(task, states[Stratum(("fr",))], [0], "frequency", level, forgers=0.01)
        missed += not alone.low[0] <= truth <= alone.high[0]
        assert list(found.withheld) == ["us"]
        with refused("us", "224 forged"):
            found["us"]
    assert missed == 20
    with refused("state fewer forgers"):
        estimate_by(task, states, "country", forgers=50_000)


def test_forgers_among_chosen_reports(tmp_path: Path) -> None:
    """The command allows for as many in what is chosen, as in the whole."""
    task = labelled()
    save_states(tmp_path / "visits.state", task, states_of(task, {"de": 20_000, "fr": 2_000}))
    asked = [
        "estimate",
        str(tmp_path / "visits.state"),
        "--where",
        "country=fr",
        "--forgers",
        "0.01",
        "--json",
    ]
    said = CliRunner().invoke(main, asked)
    assert json.loads(said.output)["forgers"] == 220
