"""Estimates: intervals of the promised level, in the units of the task, and files that say the same."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import refused, small_task, strict_json
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Moments
from hubbub.model.record import Entries
from hubbub.protocol.task import Task
from hubbub.server.estimates import ABOUT_COLUMNS, COLUMNS, Estimate, estimate
from hubbub.server.findings import Findings
from hubbub.server.fold import aggregate
from hubbub.server.quantities import _conditional
from hubbub.simulation.rehearsal import simulate


def hold(task: Task, records: list[dict[int, float]]) -> Entries:
    """Encoded records; values in the task's units."""
    lengths = [len(record) for record in records]
    ids = np.array([key for record in records for key in record], dtype=np.uint64)
    values, _ = task.scale.encode(np.array([value for record in records for value in record.values()]))
    return Entries(ids, values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


@pytest.fixture
def counted(make_task: Any) -> tuple[Task, Any]:
    """A task over 8 keys and the state of 300 reports."""
    task = make_task(size=8, max_entries=2)
    records = [{i % 3: 1.0, 5: 1.0} for i in range(300)]
    return task, simulate(task, hold(task, records), seed=4).state


@pytest.fixture
def summed(make_task: Any) -> tuple[Task, Any]:
    """The same with a mechanism whose reports speak about every key: sums are normal, whatever their number."""
    task = make_task("sparse_sum", size=8, max_entries=2)
    records = [{i % 3: 1.0, 5: 1.0} for i in range(300)]
    return task, simulate(task, hold(task, records), seed=4).state


# Intervals


def z(level: float, keys: int = 1) -> float:
    """Standard errors either side, by bisection of the error function: another way than the library's."""
    low, high = 0.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > (1 - level) / keys else (low, middle)
    return low


def errors_at(summed: Any, keys: Any, truth: Any) -> Any:
    """The standard errors that estimates would have if these were the truth."""
    task, state = summed
    ids = task.keys.all_ids() if keys is None else task.keys.ids_of(keys)
    return np.sqrt(task.mechanism.moments(state, task.keys, ids).spread.at(truth))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
def test_intervals_follow_the_level(level: float, summed: Any) -> None:
    """An end is so many of its own standard errors away (Wilson's interval)."""
    found = estimate(*summed, level=level)
    assert np.allclose(found.high - found.value, z(level) * errors_at(summed, None, found.high), rtol=1e-9)
    assert np.allclose(found.value - found.low, z(level) * errors_at(summed, None, found.low), rtol=1e-9)
    assert found.level == level
    assert not found.simultaneous


def test_simultaneous_intervals_share_the_odds(summed: Any) -> None:
    """Bonferroni over the asked keys, not over the vocabulary."""
    for keys, count in ((None, 8), (["1", "5", "7"], 3), (["1"], 1)):
        found = estimate(*summed, keys=keys, simultaneous=True)
        own = errors_at(summed, keys, found.high)
        assert np.allclose(found.high - found.value, z(0.95, count) * own, rtol=1e-9)
        single = estimate(*summed, keys=keys)
        assert np.array_equal(found.value, single.value)
        assert ((found.high > single.high) == (count > 1)).all()


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 1.5, math.nan, math.inf])
def test_a_level_is_between_0_and_1(level: float, counted: Any) -> None:
    with refused("level"):
        estimate(*counted, level=level)


def test_a_level_next_to_1_has_wide_intervals(summed: Any) -> None:
    """1 - 2^-53 over 8 keys leaves odds of 1.4e-17: 8.5 standard errors, not an error."""
    found = estimate(*summed, level=math.nextafter(1, 0), simultaneous=True)
    width = z(math.nextafter(1, 0), 8)
    assert 8 < width < 9
    assert np.allclose(found.high - found.value, width * errors_at(summed, None, found.high), rtol=1e-6)


def test_asked_keys_come_in_the_asked_order(counted: Any) -> None:
    whole = estimate(*counted)
    part = estimate(*counted, keys=[5, "0", "5"])
    assert part.keys == ("5", "0", "5")
    assert part.value.tolist() == whole.value[[5, 0, 5]].tolist()
    assert whole.keys == tuple(str(k) for k in range(8))
    assert len(estimate(*counted, keys=[])) == 0
    with refused("'8'"):
        estimate(*counted, keys=["1", "8"])


def test_a_sum_is_the_number_of_reports_times_the_share_or_mean(counted: Any, make_task: Any) -> None:
    share, total = estimate(*counted), estimate(*counted, quantity="sum")
    assert total.quantity == "sum"
    for name in ("value", "error", "low", "high"):
        assert np.allclose(getattr(total, name), 300 * getattr(share, name), rtol=1e-12)
    task = make_task("coco", size=8, max_entries=2, low=1.0, high=5.0, target="conditional")
    state = simulate(task, hold(task, [{0: 4.0}] * 50), seed=1).state
    mean, total = estimate(task, state, quantity="mean"), estimate(task, state, quantity="sum")
    assert np.allclose(total.value, 50 * mean.value, rtol=1e-12)
    assert np.allclose(total.error, 50 * mean.error, rtol=1e-12)


def test_what_cannot_be_estimated_is_refused(counted: Any) -> None:
    with refused("collision", "'mean'", "frequency"):
        estimate(*counted, quantity="mean")


def test_estimates_are_withheld_below_the_minimum(make_task: Any) -> None:
    task = make_task(minimum_reports=10, size=8, max_entries=2)
    packed = simulate(task, hold(task, [{1: 1.0}] * 10), seed=1).packed
    with refused("9 reports have arrived", "below 10"):
        estimate(task, aggregate(task, packed[:9]))
    assert estimate(task, aggregate(task, packed)).reports == 10
    with refused("0 reports"):
        estimate(make_task(), aggregate(make_task(), b""))


def test_folded_vocabularies_say_how_likely_aliases_are(make_task: Any) -> None:
    task = make_task(keys={"kind": "folded", "bits": 10}, max_entries=2)
    state = simulate(task, hold(task, [{3: 1.0}] * 50), seed=1).state
    assert "0.00098" in estimate(task, state, keys=["x"]).notes[0]
    with refused("name the keys"):
        estimate(task, state)


# Fieller's interval


def fieller_share(frequency: float, width: float, seed: int, runs: int = 20_000) -> tuple[float, Any]:
    """How often the interval of this width holds the true ratio 0.4, and all that was computed.

    Means and frequencies are jointly normal with known covariance; the frequency's standard error is 0.03.
    """
    covariance = np.array([[0.03**2, 0.5 * 0.03 * 0.04], [0.5 * 0.03 * 0.04, 0.04**2]])
    drawn = np.random.default_rng(seed).multivariate_normal([frequency, 0.4 * frequency], covariance, runs)
    full = [np.full(runs, c) for c in (covariance[0, 0], covariance[1, 1], covariance[0, 1])]
    moments = Moments(drawn[:, 0], full[0], drawn[:, 1], full[1], full[2])
    result = _conditional(small_task("coco", target="conditional"), moments, width)
    _, _, low, high, _ = result
    return float(((low <= 0.4) & (high >= 0.4)).mean()), result


def agrees(share: float, promised: float, runs: int = 20_000) -> bool:
    """Within 5.5 standard deviations of a binomial share: false alarms below 1e-6."""
    return abs(share - promised) < 5.5 * math.sqrt(promised * (1 - promised) / runs)


@pytest.mark.parametrize("frequency", [0.2, 0.5])
def test_fieller_intervals_hold_the_ratio(frequency: float) -> None:
    """95% of 20000, false alarms below 1e-6; widths 30% off are rejected."""
    width = NormalDist().inv_cdf(0.975)
    share, (_, _, _, _, flagged) = fieller_share(frequency, width, seed=3)
    assert not flagged.any()
    assert agrees(share, 0.95)
    for wrong in (0.7, 1.3):
        assert not agrees(fieller_share(frequency, wrong * width, seed=3)[0], 0.95)


def test_frequencies_next_to_zero_are_flagged() -> None:
    """Flagged exactly where the frequency is within the width of 0, and then the whole range is given.

    That is safe: at least 95% hold the ratio (false alarms below 1e-6).
    """
    width = NormalDist().inv_cdf(0.975)
    share, (value, error, low, high, flagged) = fieller_share(0.03, width, seed=4)
    assert agrees(float(flagged.mean()), NormalDist(1.0, 1.0).cdf(width))
    assert not agrees(float(flagged.mean()), NormalDist(1.0, 1.0).cdf(0.7 * width))
    assert set(low[flagged]) == {-1.0}
    assert set(high[flagged]) == {1.0}
    assert set(value[flagged]) == {0.0}
    assert np.isinf(error[flagged]).all()
    assert np.isfinite(error[~flagged]).all()
    assert share > 0.95 - 5.5 * math.sqrt(0.95 * 0.05 / 20_000)


def test_the_conditional_error_is_the_delta_method() -> None:
    """Spread of the ratio itself, where the frequency is far from 0 (within 4%: 5.6 standard deviations)."""
    _, (value, error, *_) = fieller_share(0.5, 1.96, seed=5)
    assert np.median(error) == pytest.approx(float(np.std(value)), rel=0.04)


# Units


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("collision", {"values": "signed"}),
        ("coco", {"target": "conditional"}),
        ("coco", {"target": "mean"}),
        ("sparse_sum", {"values": "signed", "unit": "entry"}),
    ],
)
def test_estimates_are_in_the_units_of_the_values(
    name: str, parameters: dict[str, Any], make_task: Any
) -> None:
    """Range 1:5. Everybody gives key 0 a 4, every second user gives key 1 a 2; at most six standard errors off.

    Those are less than 0.72; scaled values would be off by 2.5 and values not shifted back by 3.
    """
    task = make_task(name, size=8, max_entries=2, epsilon=6.0, low=1.0, high=5.0, **parameters)
    records = [{0: 4.0} if i % 2 else {0: 4.0, 1: 2.0} for i in range(20_000)]
    state = simulate(task, hold(task, records), seed=6).state
    truth = {"mean": (4.0, 1.0, 0.0), "frequency": (1.0, 0.5, 0.0), "conditional": (4.0, 2.0)}
    for quantity in task.mechanism.quantities:
        asked = [0, 1] if quantity == "conditional" else [0, 1, 2]
        found = estimate(task, state, asked, quantity)
        assert (found.error < (0.02 if quantity == "frequency" else 0.12)).all()
        assert (np.abs(found.value - truth[quantity]) < 6 * found.error).all()
        assert found.quantity == quantity


@pytest.mark.parametrize(
    ("name", "parameters"), [("collision", {"values": "signed"}), ("coco", {"target": "conditional"})]
)
def test_error_bars_of_shifted_means_are_right(name: str, parameters: dict[str, Any], make_task: Any) -> None:
    """Range 1:5; a third of the squared error or more is due to the covariance of frequency and scaled mean.

    Squared errors over squared error bars, 8 keys in 250 simulated collections: false alarms about 1e-6, bars whose
    squares are 30% off are rejected.
    """
    keys = {"kind": "closed", "size": 8, "bits": 12, "salt": "ab" * 16}
    task = make_task(name, keys=keys, epsilon=4.0, max_entries=2, low=1.0, high=5.0, **parameters)
    rng = np.random.default_rng(1)
    ids = np.argsort(rng.random((4096, 8)), axis=1)[:, :2].astype(np.uint64)
    values, _ = task.scale.encode(np.full(ids.size, 5.0))
    entries = Entries(ids.reshape(-1), values, np.arange(4097, dtype=np.int64) * 2)
    truth = 5.0 * np.bincount(ids.reshape(-1).astype(np.int64)) / 4096
    ratios = []
    for run in range(250):
        found = estimate(task, simulate(task, entries, seed=10 * run).state, quantity="mean")
        ratios.append(float((((found.value - truth) / found.error) ** 2).mean()))
    ratio, slack = float(np.mean(ratios)), 6 * float(np.std(ratios)) / math.sqrt(len(ratios))
    assert slack < 0.22
    assert abs(ratio - 1) < slack
    for wrong in (0.7, 1.3):
        assert abs(ratio / wrong - 1) > slack / wrong


def test_a_key_that_nobody_has_gets_no_conditional_mean(make_task: Any) -> None:
    task = make_task("coco", target="conditional", size=8, max_entries=2, low=1.0, high=5.0, epsilon=4.0)
    state = simulate(task, hold(task, [{0: 4.0}] * 2000), seed=7).state
    found = estimate(task, state, [0, 5], level=1 - 1e-6)
    assert found.flagged.tolist() == [False, True]
    assert (found.low[1], found.high[1], found.value[1]) == (1.0, 5.0, 3.0)
    assert any("cannot be told from 0" in note for note in found.notes)
    assert found.rows()[1]["error"] is None
    assert 1.0 < found.low[0] < 4.0 < found.high[0] <= 5.0


# Tables and files


@pytest.fixture
def made() -> Estimate:
    """Four keys with awkward names; one of them flagged, with an infinite error."""
    return Estimate(
        ("plain", 'comma, "quote"', "new\nline", "ünïcode"),
        np.array([0.25, -1 / 3, 0.0, 1e-17]),
        np.array([0.125, 0.1, np.inf, 1e-9]),
        np.array([0.0, -0.5, -1.0, -1e-8]),
        np.array([0.5, -0.1, 1.0, 1e-8]),
        np.array([2.0, 3.3, 0.1, 1e-8]),
        "conditional",
        0.95,
        True,
        1234,
        Guarantee(1.0),
        np.array([False, False, True, False]),
        ("a note",),
        Findings(4, 3, 0.125),
    )


def test_the_keys_that_stand_out_come_first(made: Estimate) -> None:
    assert made.top(2).keys == ('comma, "quote"', "plain")
    assert made.top(2).value.tolist() == [-1 / 3, 0.25]
    assert made.top(99).keys == ('comma, "quote"', "plain", "new\nline", "ünïcode")


def test_what_stands_out_is_significance_not_size(counted: Any) -> None:
    found = estimate(*counted)
    ratio = found.value / found.error
    assert found.top(8).keys == tuple(str(k) for k in np.argsort(-ratio))
    assert found.top(1).keys == ("5",)


def test_conditional_means_are_ranked_by_how_sure_their_frequency_is(make_task: Any) -> None:
    """A mean next to 0 of a key that everybody has stands out from one that nobody has."""
    task = make_task("coco", target="conditional", size=8, max_entries=2, epsilon=4.0)
    state = simulate(task, hold(task, [{3: 0.0}] * 2000), seed=8).state
    assert estimate(task, state).top(1).keys == ("3",)


def expected_rows(made: Estimate) -> list[tuple[Any, ...]]:
    errors = [None if math.isinf(error) else error for error in made.error]
    columns = (made.keys, made.value, errors, made.low, made.high, made.flagged)
    return list(zip(*columns, strict=True))


def test_rows_and_json(made: Estimate, tmp_path: Path) -> None:
    assert [tuple(row.values()) for row in made.rows()] == expected_rows(made)
    assert tuple(made.rows()[0]) == COLUMNS
    made.save(tmp_path / "e.json")
    said = strict_json((tmp_path / "e.json").read_bytes())
    assert [tuple(row.values()) for row in said["estimates"]] == expected_rows(made)
    assert (said["quantity"], said["level"], said["simultaneous"], said["reports"]) == (
        "conditional",
        0.95,
        True,
        1234,
    )
    assert said["guarantee"]["epsilon"] == 1.0
    assert said["notes"] == ["a note"]
    assert "who have the key" in said["meaning"]


def test_csv(made: Estimate, tmp_path: Path) -> None:
    made.save(tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS + ABOUT_COLUMNS
    for row, right in zip(rows, expected_rows(made), strict=True):
        assert row[6:14] == ["conditional", "0.95", "True", "1.0", "1234", "", "", ""]
        assert row[14:] == ["a note" if row is rows[0] else ""]
        assert row[0] == right[0]
        assert [float(cell) if cell else None for cell in row[1:5]] == list(right[1:5])
        assert row[5] == str(right[5])


def test_csv_with_odd_keys_and_numbers(made: Estimate, tmp_path: Path) -> None:
    """What a spreadsheet would trip over is quoted; numbers of every size read back as themselves."""
    keys = ('a,"b"', "line\nfeed\r", "", " ü")
    value = np.array([1e-300, -5e-324, 1e22, 3.0])
    odd = replace(made, keys=keys, value=value)
    odd.save(tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert tuple(row[0] for row in rows) == keys
    assert [float(row[1]) for row in rows] == value.tolist()
    odd.take([]).save(tmp_path / "none.csv")
    assert (tmp_path / "none.csv").read_text() == ",".join(COLUMNS + ABOUT_COLUMNS) + "\n"


def test_arrow_and_parquet(made: Estimate, tmp_path: Path) -> None:
    """A file says in columns, too, what its numbers are: most who read it never see its metadata."""
    made.save(tmp_path / "e.parquet")
    written = pq.read_table(tmp_path / "e.parquet")
    for table, names in ((made.to_arrow(), COLUMNS), (written, COLUMNS + ABOUT_COLUMNS)):
        assert tuple(table.column_names) == names
        assert table["key"].to_pylist() == list(made.keys)
        for name in ("value", "error", "low", "high", "flagged"):
            assert table[name].to_pylist() == getattr(made, name).tolist()
        assert json.loads(table.schema.metadata[b"hubbub"]) == made.about()
    about = {"quantity": made.quantity, "level": made.level, "epsilon": made.guarantee.epsilon}
    for name, value in {**about, "reports": made.reports}.items():
        assert written[name].to_pylist() == [value] * len(made)
    made.take([]).save(tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").schema == written.schema


def test_polars(made: Estimate) -> None:
    frame = pytest.importorskip("polars").DataFrame(made.columns())
    assert made.to_polars().equals(frame)
    assert frame.columns == list(COLUMNS)
    assert frame["error"].is_null().to_list() == [False, False, True, False]


def test_one_key_and_all_keys(made: Estimate) -> None:
    assert [row.key for row in made] == list(made.keys)
    assert len(made) == len(list(made)) == 4
    for place, row in enumerate(made):
        assert made[row.key] == row
        assert row.interval == (made.low[place], made.high[place])
        assert (row.value, row.flagged) == (made.value[place], made.flagged[place])
        assert row.key in made
        assert (row.error is None) == (not np.isfinite(made.error[place]))
    assert "nowhere" not in made
    with refused("'nowhere' is not among the 4 keys"):
        made["nowhere"]


def test_pandas(made: Estimate) -> None:
    frame = made.to_pandas()
    assert tuple(frame.columns) == COLUMNS
    assert frame["key"].tolist() == list(made.keys)
    assert frame["value"].tolist() == made.value.tolist()
    assert frame["error"].isna().tolist() == [False, False, True, False]
    assert frame["flagged"].tolist() == made.flagged.tolist()


def test_other_endings_are_refused(made: Estimate, tmp_path: Path) -> None:
    with refused(".csv, .json or .parquet"):
        made.save(tmp_path / "e.xlsx")
    assert not list(tmp_path.iterdir())


def test_printing_shows_the_top_and_the_promise(counted: Any, make_task: Any) -> None:
    text = str(estimate(*counted))
    assert "300 reports" in text
    assert "95% intervals" in text
    assert text.endswith(Guarantee(1.0).short())
    task = make_task(size=64, max_entries=2, epsilon=4.0)
    many = str(estimate(task, simulate(task, hold(task, [{1: 1.0}] * 100), seed=1).state, simultaneous=True))
    assert "44 more keys" in many
    assert "for all keys together" in many
    assert "1 of 64 keys stands out" in many
    assert many.count("in the noise") == 19
    assert len(many.splitlines()) == 25
