"""What stands out: noise is never a finding, whatever is looked through, and what would have stood out is right."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import small_task
from hubbub.model.record import GRID, Entries
from hubbub.plan.advice import advised
from hubbub.protocol.task import Task
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.findings import Findings, floor_for, side_of, width_for
from hubbub.server.truncation import Truncation
from hubbub.simulation.rehearsal import simulate


def holding(users: int, holders: int, key: int = 0, value: float = 1.0) -> Entries:
    """A crowd of which the first `holders` have one key with this scaled value, and nobody anything else."""
    lengths = np.arange(users) < holders
    values = np.full(holders, round(value * GRID), dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Entries(np.full(holders, key, dtype=np.uint64), values, offsets)


def collected(task: Task, entries: Entries, seed: int = 1, **options: Any) -> Estimate:
    return estimate(task, simulate(task, entries, seed).state, **options)


NOISE = small_task("collision", 400, epsilon=1.0)


def test_noise_is_hardly_ever_a_finding() -> None:
    """400 keys that nobody has, 150 collections: in at most 5% of them any key is found.

    More than 24 of 150 happen with probability below 1e-6 (binomial). The interval of each key by itself, which marked
    rows before, finds keys in all of them; a width 30% too small finds them in far more than 24.
    """
    found, alone, narrow = 0, 0, 0
    for run in range(150):
        result = collected(NOISE, holding(400, 0), seed=10 * run)
        found += result.findings.count > 0
        alone += bool((result.low > 0).any())
        narrow += bool((result.value > 0.7 * width_for(0.95, 400) * result.error).any())
        assert result.findings.count == int((~result.flagged).sum())
        assert not (result.value[~result.flagged] < 0).any()
    assert found <= 24
    assert alone == 150
    assert narrow > 24


def test_a_value_at_the_floor_stands_out_every_other_time() -> None:
    """Between 28% and 72% of 140 collections (5.2 standard deviations, false alarms below 1e-6).

    A floor 30% off is found in nearly all or in nearly none of them.
    """
    users = 2000
    floor = collected(NOISE, holding(users, 0)).findings.floor

    assert 0.28 < found_share(NOISE, users, floor) < 0.72
    assert found_share(NOISE, users, 1.3 * floor) > 0.72
    assert found_share(NOISE, users, 0.7 * floor) < 0.28


def found_share(task: Task, users: int, truth: float, runs: int = 140, **options: Any) -> float:
    """How often a key stands out that this share of a crowd holds."""
    crowd = holding(users, round(truth * users))
    found = (collected(task, crowd, 10 * run, **options) for run in range(runs))
    return float(np.mean([not result.flagged[0] for result in found]))


@pytest.mark.parametrize(
    ("name", "quantity", "entries"), [("collision", "frequency", 200), ("coco", "mean", 50)]
)
def test_the_floor_of_few_reports_is_by_the_rule_that_flags(name: str, quantity: Any, entries: int) -> None:
    """About a report a bucket: a key that is named six times stands out, though its error bar reaches 0.

    By error bars not even a key that everybody has would have stood out, which was said beside keys that did. Between
    18% and 82% of 60 collections (5 standard deviations, false alarms below 1e-6). 30% are less than two reports here,
    so it is half and twice the floor that are told from it.
    """
    task, users = small_task(name, 400, epsilon=4.0, max_entries=entries), 4096
    floor = collected(task, holding(users, 0), quantity=quantity).findings.floor
    if quantity == "frequency":
        assert floor_for(task, quantity, users, width_for(0.95, 400)) > 1.3 * floor
    half, once, twice = (
        found_share(task, users, truth, 60, quantity=quantity) for truth in (0.5 * floor, floor, 2 * floor)
    )
    assert half < 0.18 < once < 0.82 < twice


def test_the_floor_counts_how_many_entries_whole_records_have() -> None:
    """Where records are taken whole, there is no more noise than they make: the bound of 16 entries is no part of it.

    By the formula for full records, which was taken before, a key of the floor stands out in nearly all collections.
    Between 28% and 72% of 140 (5.2 standard deviations, false alarms below 1e-6).
    """
    task, users = small_task("sparse_sum", 40, epsilon=4.0, max_entries=16, unit="entry", buckets=8), 500
    full = floor_for(task, "frequency", users, width_for(0.95, 40))
    floor = collected(task, holding(users, 20)).findings.floor
    assert full > 1.5 * floor
    assert 0.28 < found_share(task, users, floor) < 0.72
    assert found_share(task, users, full, 30) > 0.9


def test_what_it_takes_to_stand_out_is_left_out_where_nothing_would() -> None:
    assert Findings(9, 1, math.inf).words("frequency", 5) == (
        "1 of 9 keys stands out from the noise when all are looked at together."
    )


def test_the_floor_is_the_planners_detectable_value_where_shares_are_small() -> None:
    task = small_task("collision", 1000)
    error = math.sqrt(task.mechanism.variance("frequency", 10**9))
    assert floor_for(task, "frequency", 10**9, 4.0) == pytest.approx(4 * error, rel=0.01)
    assert floor_for(task, "frequency", 2, 4.0) == math.inf


def test_a_floor_that_no_key_can_reach_is_infinite() -> None:
    """Of refined, forged and corrected estimates too, and of means by the largest value; JSON has null."""
    noisy, ratings = small_task("compressive", 12, epsilon=0.3, max_entries=1), in_tens()
    found = [
        collected(noisy, holding(100, 100), refine="sparse"),
        collected(noisy, holding(100, 100), refine="sparse", quantity="sum"),
        collected(small_task("collision", 12, epsilon=0.5), holding(1000, 0), forgers=400),
        collected(ratings, holding(100, 0), refine="sparse"),
    ]
    for each in found:
        assert each.findings.floor == math.inf
        assert "not even a key that everybody has would have stood out" in each.warnings[0]
        assert json.loads(json.dumps(each.about(), allow_nan=False))["findings"]["floor"] is None
    assert 1 < collected(ratings, holding(20_000, 0), refine="sparse").findings.floor < 10


def in_tens() -> Task:
    """Values from -10 to 10."""
    task = small_task("sketch_response", 12, epsilon=0.3, values="signed")
    return Task.parse({**task.model_dump(), "low": -10, "high": 10})


def test_a_floor_that_no_key_can_reach_after_correction_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nine tenths of all keys are lost, a share of 0.5 after sampling down is one of 5 before."""
    lost = Truncation(2, "reports", 0.9, 0.01, 0.9, 0.01)
    monkeypatch.setattr("hubbub.server.estimates.truncation_in_reports", lambda task, state: lost)
    task, crowd = small_task("collision", 12, epsilon=1.0), holding(300, 0)
    assert 0.1 < collected(task, crowd).findings.floor < 1
    assert collected(task, crowd, correct=True).findings.floor == math.inf
    assert 0.1 < collected(task, holding(30_000, 0), correct=True).findings.floor < 1


def test_floors_of_means_are_in_the_units_of_the_values() -> None:
    """Twice the range, twice the floor; a conditional mean is known from a share on."""
    narrow, wide = (
        Task.parse({**small_task("coco", 100, values="signed").model_dump(), "low": -size, "high": size})
        for size in (1.0, 2.0)
    )
    assert floor_for(wide, "mean", 10**6, 4.0) == pytest.approx(2 * floor_for(narrow, "mean", 10**6, 4.0))
    ratings = Task.parse({**small_task("coco", target="conditional").model_dump(), "low": 1.0, "high": 5.0})
    assert 0 < floor_for(ratings, "conditional", 10**6, 4.0) < 1
    assert floor_for(ratings, "mean", 10**6, 4.0) > floor_for(ratings, "conditional", 10**6, 4.0)


def test_what_is_remembered_when_rows_are_taken_out() -> None:
    result = collected(NOISE, holding(20_000, 20_000))
    assert (result.findings.candidates, result.findings.count) == (400, 1)
    for part in (result.top(3), result.take([5, 0]), result.top(9).take([0])):
        assert part.findings == result.findings
        assert part.flagged.tolist() == [key != "0" for key in part.keys]
    assert result.top(1).keys == ("0",)


def test_who_asks_for_one_key_may_have_seen_the_others() -> None:
    """A share that would stand out by itself, and not as the luckiest of 400: it does not when asked for by name."""
    users = 2000
    alone, all_keys = (floor_for(NOISE, "frequency", users, width_for(0.95, keys)) for keys in (1, 400))
    crowd = holding(users, round(math.sqrt(alone * all_keys) * users))
    seed = next(s for s in range(100) if alone < collected(NOISE, crowd, s).value[0] < 0.9 * all_keys)
    named = collected(NOISE, crowd, seed, keys=["0"])
    assert named.findings.nothing
    assert "judged among all 400 keys" in " ".join(named.notes)
    assert collected(NOISE, crowd, seed).flagged[0]


def test_advice_to_who_asks_for_one_key_is_about_all_keys() -> None:
    """More people are said to be needed than there are, as many for one key as for all: both are judged alike.

    To find one key by itself takes 3,300, of whom not even a share of 0.1 stands out; to find it among 400, 13,000.
    """
    for users in (3000, 4000):
        everything = advised(NOISE, collected(NOISE, holding(users, 0)))
        named = advised(NOISE, collected(NOISE, holding(users, 0), keys=["7"]))
        assert named.findings.nothing
        assert named.findings.floor > 0.1
        assert named.findings.advice == everything.findings.advice
        people = re.search(r"a share of 0\.1 takes about ([\d,]+) people", named.findings.advice)
        assert people is not None
        assert int(people[1].replace(",", "")) > users


def test_negative_shares_are_noise_and_negative_means_may_be_real() -> None:
    signed = small_task("coco", 50, values="signed", epsilon=2.0)
    result = collected(signed, holding(3000, 3000, value=-1.0))
    assert (result.top(1).keys, result.flagged[0]) == (("0",), False)
    assert result.value[0] < 0
    upwards = Task.parse({**signed.model_dump(), "low": 0.0, "high": 1.0})
    assert side_of(upwards, "mean") == "above"
    assert side_of(Task.parse({**signed.model_dump(), "low": -1.0, "high": 0.0}), "sum") == "below"
    shares = collected(NOISE, holding(400, 0))
    assert shares.value.min() < 0
    assert shares.flagged[shares.value < 0].all()
    assert shares.top(50).value.min() > 0


def test_conditional_means_are_flagged_by_the_share_of_holders_among_all_keys() -> None:
    """Among 300 keys that nobody has, some have intervals of their own, and none is a finding."""
    task = small_task("coco", 300, target="conditional", epsilon=2.0)
    result = collected(task, holding(4000, 4000), quantity="conditional")
    assert result.findings.count == 1
    known = np.isfinite(result.error)
    assert known.sum() > 1
    assert result.flagged[~known].all()
    assert result.flagged[1:].all()
    assert "in the noise" in str(result)
    # also where the rows shown have no ?
    assert f"Marked ?: {(~known).sum()} of 300 keys, " in str(result)


def test_where_nothing_stands_out_that_is_the_answer() -> None:
    """First, on paper and in a notebook; no selection of noise is listed, but what was asked for is."""
    result = collected(NOISE, holding(2000, 0))
    floor = result.findings.floor
    first, *rest = str(result).splitlines()
    assert first.startswith("Nothing stands out: none of 400 keys can be told from noise.")
    assert f"a share of about {floor:.3g} or more would have stood out" in first
    assert not any(line.startswith("  ") for line in rest)
    assert repr(result) == str(result)
    assert result.about()["warnings"] == [first]
    assert next(iter(result.about())) == "warnings"
    asked = collected(NOISE, holding(2000, 0), keys=["0", "1"])
    assert str(asked).count("in the noise") == 2
    few = collected(NOISE, holding(10, 0))
    assert few.findings.floor == math.inf
    assert few.about()["findings"]["floor"] is None
    assert "not even a key that everybody has" in str(few)


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_files_say_it_too(ending: str, tmp_path: Path) -> None:
    result = collected(NOISE, holding(2000, 0))
    path = tmp_path / f"e.{ending}"
    result.save(path)
    (warning,) = result.warnings
    if ending == "csv":
        header, first, second = path.read_text().splitlines()[:3]
        assert warning in first
        assert warning not in second
        assert header.endswith(",note")
    elif ending == "json":
        said = json.loads(path.read_text())
        assert said["warnings"] == [warning]
        assert all(row["flagged"] for row in said["estimates"])
        assert warning in path.read_text().splitlines()[2]
    else:
        table = pq.read_table(path)
        assert json.loads(table.schema.metadata[b"hubbub"])["warnings"] == [warning]
        assert all(table["flagged"].to_pylist())


def test_refined_estimates_are_flagged_by_what_they_became() -> None:
    result = collected(NOISE, holding(20_000, 20_000), refine="sparse")
    assert (result.findings.count, result.value[0] > 0.9) == (1, True)
    assert result.flagged[result.value == 0].all()
