"""Wang et al.: the crowd, the errors and the rates behind the figures, and that every figure has a name that runs."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from helpers import fits, tilted
from hubbub.checks.conformance import task_for
from hubbub.cli import main
from hubbub.experiments import wang, wang_rates
from hubbub.experiments.catalogue import catalogue
from hubbub.experiments.runner import Job, Request
from hubbub.model.mechanism import Moments
from hubbub.model.record import GRID
from hubbub.simulation.populations import uniform_population


@pytest.mark.parametrize(("users", "crowds"), [(3000, 9), (27_000, 1)], ids=["interpreted", "compiled"])
def test_the_crowd_is_uniform(users: int, crowds: int) -> None:
    """All 15 pairs of 6 keys and both signs are as likely, in any order (false alarms at most 1e-6 each)."""
    entries = [uniform_population(users, 6, 2, seed).entries for seed in range(crowds)]
    ids = np.concatenate([part.ids.astype(np.int64).reshape(users, 2) for part in entries])
    values = np.concatenate([part.values for part in entries])
    pairs = list(itertools.combinations(range(6), 2))
    counts = [int((np.sort(ids, axis=1) == pair).all(axis=1).sum()) for pair in pairs]
    assert sum(counts) == users * crowds
    assert set(values.tolist()) == {-GRID, GRID}
    first, plus = np.bincount(ids[:, 0], minlength=6), int((values > 0).sum())
    for found in (counts, first, [plus, len(values) - plus]):
        law = np.full(len(found), 1 / len(found))
        assert fits(found, law)
        assert not fits(found, tilted(law))


def test_errors_by_hand() -> None:
    """Two keys, all users have the first with +1: sides (1, 0, 0, 0), s = 1."""
    crowd = uniform_population(10, 2, 1, seed=1)
    crowd.entries.ids[:] = 0
    crowd.entries.values[:] = GRID
    frequency, mean = np.array([0.9, 0.5]), np.array([0.7, -0.3])
    variance = np.array([0.01, 0.01])
    row = wang.errors(Moments(frequency, variance, mean, variance), crowd, entries=1)
    # Sides 0.8, 0.1 and 0.1, 0.4 with sum 1.4: 0.1 is taken off each, which leaves 0.7, 0, 0, 0.3.
    assert math.exp(row["ln_frequency_projected_tve"]) == pytest.approx(0.6)
    assert math.exp(row["ln_frequency_projected_mae"]) == pytest.approx(0.3)
    assert math.exp(row["ln_mean_projected_tve"]) == pytest.approx(0.6)
    assert math.exp(row["ln_mean_tve"]) == pytest.approx(0.6)
    assert math.exp(row["ln_mean_mae"]) == pytest.approx(0.3)
    # 1.96 standard errors are 0.196: 0.1 off is covered, 0.5 and 0.3 are not.
    assert (row["frequency_coverage"], row["mean_coverage"]) == (0.5, 0.0)
    alone = wang.errors(Moments(None, None, mean, variance), crowd, entries=1)
    assert alone == {name: row[name] for name in ("ln_mean_tve", "ln_mean_mae", "mean_coverage")}


def test_a_measurement_is_what_the_variance_predicts() -> None:
    """Total errors of means are sums of 64 nearly normal ones, mean sqrt(2 v / pi) and deviation 0.6 sqrt(v) each.

    Over 4 crowds the sum's deviation is about 0.75 / sqrt(256) = 4.7% of its mean, so 24% is five of them: false
    alarms below 1e-6 for each of ten mechanisms. A variance that is 30% off would hide in that, so
    their product is tested as well: 1.5%, margin five of them, and 30% in variance are 14%.
    """
    users, keys, entries, epsilon = 5000, 64, 4, 1.0
    rows = [row for r in range(4) for row in wang.measure(users, keys, entries, epsilon, r)]
    mechanisms = wang.mechanisms_at(users, keys, entries, epsilon)
    assert list(dict.fromkeys(row["mechanism"] for row in rows)) == list(mechanisms)
    ratios = []
    for name, mechanism in mechanisms.items():
        found = np.mean([math.exp(row["ln_mean_tve"]) for row in rows if row["mechanism"] == name])
        variance = mechanism.variance("mean", users, frequency=entries / keys)
        ratios.append(found / (keys * math.sqrt(2 * variance / math.pi)))
        assert ratios[-1] == pytest.approx(1, abs=0.24), name
    together = math.exp(np.mean(np.log(ratios)))
    assert together == pytest.approx(1, abs=0.075)
    for wrong in (0.7, 1.3):
        assert together / math.sqrt(wrong) != pytest.approx(1, abs=0.075)


def test_a_measurement_repeats_itself() -> None:
    arguments = {"users": 60, "keys": 16, "entries": 4, "epsilon": 0.4, "repetition": 2}
    assert wang.measure(**arguments) == wang.measure(**arguments)
    assert wang.measure(**arguments) != wang.measure(**{**arguments, "repetition": 3})


def test_published_numbers_of_buckets() -> None:
    """Theorem 7 with s = 4: s e^eps + s + 2 is 10.004, 16.87 and 35.6, the next even numbers are 12, 18 and 36."""
    pairs = [wang_rates.published_coco(epsilon, 4).model_dump()["buckets"] for epsilon in (0.001, 1.0, 2.0)]
    assert pairs == [6, 9, 18]


def test_rates_by_hand() -> None:
    """Equation 7 and Table 2 for t = 24, s = 8, epsilon = 0.5; Collision: e^eps / Omega and 1 / t."""
    rows = {row["mechanism"]: row for row in wang_rates.rates_over_sizes([24])}
    e = math.exp(0.5)
    omega = 8 * e + 24 - 8
    assert rows["Collision"]["P_t"] == pytest.approx(e / omega, rel=1e-8)
    assert rows["Collision"]["P_o"] == rows["Collision"]["P_f"] == 1 / 24
    overwritten = 1 - sum((11 / 12) ** (8 - k) for k in range(1, 9)) / 8
    shared = overwritten * (e + 1) / (2 * omega)
    assert rows["CoCo"]["P_t"] == pytest.approx(shared + (1 - overwritten) * e / omega, rel=1e-8)
    assert rows["CoCo"]["P_o"] == pytest.approx(shared + (1 - overwritten) / omega, rel=1e-8)
    assert rows["CoCo"]["P_f"] == 1 / 24
    assert rows["CoCo"]["P_o"] < rows["CoCo"]["P_f"]


@pytest.mark.parametrize("name", wang_rates.mechanisms_with(24))
def test_rates_are_those_of_reports(name: str) -> None:
    """Reports name held, opposite and absent sides as often as the formulas say (chi-square, false alarms 1e-6)."""
    mechanism = wang_rates.mechanisms_with(24)[name]
    crowd = uniform_population(6000, 24, wang_rates.ENTRIES, seed=5)
    plus, minus = wang_rates.named_sides(task_for(mechanism, 24), crowd, seed=6)
    held = np.zeros((6000, 24), dtype=np.int64)
    owner = np.repeat(np.arange(6000), wang_rates.ENTRIES)
    held[owner, crowd.entries.ids.astype(np.int64)] = crowd.entries.values // GRID
    rates = wang_rates.rates_of(mechanism)
    named = [
        plus[held > 0].sum() + minus[held < 0].sum(),
        plus[held < 0].sum() + minus[held > 0].sum(),
        plus[held == 0].sum() + minus[held == 0].sum(),
    ]
    asked = [(held != 0).sum(), (held != 0).sum(), 2 * (held == 0).sum()]
    for count, times, rate in zip(named, asked, rates, strict=True):
        # What one report says about several keys is as good as independent: a bucket has about one of them.
        assert fits([count, times - count], [rate, 1 - rate])
        assert not fits([count, times - count], tilted([rate, 1 - rate]))


def test_errors_of_one_report_are_predicted() -> None:
    """Means over 4096 runs within five standard errors of the formula (false alarms below 1e-6); 30% off is not."""
    for row in wang_rates.errors_at(24, 4096):
        for what in ("minus", "plus"):
            if f"{what}_error" not in row:
                assert row["mechanism"] == "sketch_response, signed"
                continue
            found, standard = row[f"{what}_error"], row[f"{what}_standard"]
            predicted = row[f"{what}_predicted"]
            assert abs(found - predicted) <= 5 * standard
            for wrong in (0.7, 1.3):
                assert abs(found - wrong * predicted) > 5 * standard


def test_every_figure_has_a_name() -> None:
    known = catalogue()
    for figure in (2, *range(4, 17)):
        assert f"Figure {figure})" in known[f"wang-fig{figure}"].title
    for setting in wang.SETTINGS:
        jobs = known[setting.whole.name].jobs(Request(quick=False))
        assert len(jobs) == 100 * 9 * 4
        assert len({job.key for job in jobs}) == len(jobs)
        for figure in setting.figures:
            part = known[f"wang-fig{figure}"]
            assert setting.whole.name in part.title
            assert [job.key for job in part.jobs(Request(quick=False))] == [job.key for job in jobs]


def test_a_figure_runs_the_whole(tmp_path: Path) -> None:
    """A small crowd through Figure 12: the shared table, page and both pictures are written."""
    setting = wang.SETTINGS[0]
    small = [
        Job(wang.measure, {"users": 100, "keys": 32, "entries": 4, "epsilon": epsilon, "repetition": r})
        for r in range(2)
        for epsilon in (0.4, 2.0)
    ]
    whole = dataclasses.replace(setting.whole, jobs=lambda request: small)
    part = setting.part(12)
    assert isinstance(part, wang.Part)
    dataclasses.replace(part, whole=whole).run(tmp_path, Request())
    name = "wang-n100000-d256"
    endings = (".csv", ".md", ".png", "-means.png", ".times.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name + ending for ending in endings)
    with (tmp_path / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 10
    assert {row["repetitions"] for row in rows} == {"2"}
    assert all(row["ln_frequency_projected_tve"] == "" for row in rows if row["mechanism"] == "SUCCINCT")
    page = (tmp_path / f"{name}.md").read_text()
    assert f"({name}-means.png)" in page
    assert "| means, TVE, not post-processed: CoCo below Collision | 15 |" in page
    assert "nan" not in page
    for picture in tmp_path.glob("*.png"):
        assert picture.stat().st_size < 200_000


def test_figure_4_on_the_command_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["reproduce", "wang-fig4", "-o", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    files = {Path(file).name for file in json.loads(result.stdout)["files"]}
    assert {"wang-fig4.csv", "wang-fig4.md", "wang-fig4.png"} <= files
