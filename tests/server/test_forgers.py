"""Intervals with forgers hold under the strongest attack, and would not without."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hubbub.checks.conformance import task_for
from hubbub.cli import main
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.mechanisms.shared.several_keys import most_heard
from hubbub.model.hashing import cohort_of, seed_rows
from hubbub.model.record import GRID, Entries
from hubbub.plan.advice import advised
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import save_state
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.server.forgers import influence_on, influence_words
from hubbub.simulation.forgery import forge
from hubbub.simulation.rehearsal import simulate, true_values

_USERS, _FORGERS, _KEYS = 20_000, 1_600, 8
#: Intervals of this level miss once in 10^8 times, so that of all runs here one misses with probability below 1e-5.
_LEVEL = 1 - 1e-8


def _crowd(values: str, seed: int) -> Entries:
    """Key 0 is held by 30%, key 1 by 3%, the rest by everybody else; values of 0.5."""
    keys = np.random.default_rng(seed).choice(_KEYS, _USERS, p=[0.3, 0.03, *[0.67 / 6] * 6])
    size = GRID if values == "set" else GRID // 2
    return Entries(
        keys.astype(np.uint64), np.full(_USERS, size, dtype=np.int64), np.arange(_USERS + 1, dtype=np.int64)
    )


def _runs(task: Task, quantity: Any, runs: int, simultaneous: bool) -> tuple[int, int]:
    """In how many of the runs, up and down in turn, the intervals hold with forgers allowed for, and without."""
    held = [0, 0]
    for run in range(runs):
        crowd = _crowd(task.mechanism.values, run)
        targets, way = ([0], [1])[run // 2 % 2], ("up", "down")[run % 2]
        forged = forge(task, _FORGERS, "maximal", targets, seed=run, quantity=quantity, direction=way)  # type: ignore[arg-type]
        state = simulate(task, crowd, 10 * run).state.merge(aggregate(task, forged))
        truth = true_values(task, crowd, quantity, task.keys.ids_of(targets))
        for place, forgers in enumerate((_FORGERS, 0)):
            options: dict[str, Any] = {"simultaneous": simultaneous, "refine": "none", "forgers": forgers}
            found = estimate(task, state, targets, quantity, _LEVEL, **options)
            held[place] += int(bool(((found.low <= truth) & (truth <= found.high)).all()))
    return held[0], held[1]


_CASES = [
    ("sketch_response", {"max_entries": 8}, 100),
    ("sketch_response", {"max_entries": 8, "values": "signed"}, 8),
    ("sketch_response", {"max_entries": 8, "values": "signed", "mode": "events"}, 8),
    ("collision", {"max_entries": 8, "values": "signed"}, 12),
    ("collision", {"max_entries": 8, "family": "prf"}, 8),
    ("coco", {"max_entries": 8}, 8),
    ("repeated", {"max_entries": 4}, 8),
    ("sampled", {"max_entries": 4, "values": "signed", "count_names": True}, 8),
    ("sparse_sum", {"max_entries": 8, "unit": "entry"}, 8),
    ("sparse_sum", {"max_entries": 8, "values": "signed"}, 8),
    ("local_hashing", {}, 8),
    ("hadamard", {"bits": 8}, 8),
    ("compressive", {"rows": 4096}, 8),
    ("freq_est", {"size": _KEYS}, 8),
    ("gaussian", {"size": _KEYS, "max_entries": 2}, 8),
    ("harmony", {"size": _KEYS, "max_entries": 2}, 8),
    ("pckv_grr", {"size": _KEYS, "max_entries": 2}, 8),
    ("pckv_ue", {"size": _KEYS, "max_entries": 2}, 8),
    ("privkv", {"size": _KEYS, "max_entries": 2}, 8),
    ("value_list", {"size": _KEYS}, 8),
    ("value_list", {"size": _KEYS, "frequencies": (0.3, 0.03, *[0.67 / 6] * 6)}, 8),
]


@pytest.mark.parametrize(("name", "more", "runs"), _CASES)
def test_intervals_hold_under_attack(name: str, more: dict[str, Any], runs: int) -> None:
    """With forgers allowed for they hold in every run, and without in at most half of them."""
    mechanism = make_mechanism(name, epsilon=1.0, **more)
    task = task_for(mechanism, _KEYS)
    for quantity in mechanism.quantities:
        with_forgers, without = _runs(task, quantity, runs, simultaneous=quantity == "mean")
        assert with_forgers == runs, (quantity, with_forgers)
        if quantity != "conditional":
            assert without <= 0.75 * runs, (quantity, without)


@pytest.mark.parametrize(("name", "more"), [(name, more) for name, more, _ in _CASES])
@pytest.mark.parametrize("epsilon", [1.0, 6.0])
def test_more_forgers_never_make_an_interval_shorter(name: str, more: dict[str, Any], epsilon: float) -> None:
    """Up to more than there are reports for a key, or about it; within the values that are possible at all.

    Where more were taken out than there are, intervals for means missed by far if fewer were forged than allowed for.
    """
    if name == "compressive" and epsilon > 1:
        more = {"rows": 16}
    mechanism = make_mechanism(name, epsilon=epsilon, **more)
    task = task_for(mechanism, _KEYS)
    crowd = _crowd(mechanism.values, 1).slice(0, 3000)
    forged = aggregate(task, forge(task, 100, "maximal", [0], seed=2))
    state = simulate(task, crowd, 1).state.merge(forged)
    for quantity in mechanism.quantities:
        low, high = np.full(_KEYS, np.inf), np.full(_KEYS, -np.inf)
        ends = (0.0, 1.0) if quantity == "frequency" else (task.low, task.high)
        for forgers in (50, 100, 250, 400, 1200):
            found = estimate(task, state, None, quantity, simultaneous=True, refine="none", forgers=forgers)
            least, most = np.clip(found.low, *ends), np.clip(found.high, *ends)
            assert (least <= low + 1e-3 * (ends[1] - ends[0])).all(), (quantity, forgers)
            assert (most >= high - 1e-3 * (ends[1] - ends[0])).all(), (quantity, forgers)
            low, high = least, most


@pytest.mark.parametrize(
    ("name", "more", "share"),
    [
        ("coco", {}, 0.01),
        ("collision", {"values": "signed"}, 0.01),
        ("pckv_grr", {"size": 50}, 0.01),
        ("pckv_ue", {"size": 50}, 0.01),
        ("privkv", {"size": 50, "epsilon": 4.0}, 0.5),
    ],
)
def test_fewer_forgers_than_are_allowed_for(name: str, more: dict[str, Any], share: float) -> None:
    """200 reports for a key that 1% hold with the lowest value, and twice as many allowed for: all of 8 hold.

    Each misses with probability below 1e-3 by its own account, and three of 8 with 6e-8. All of them did.
    """
    task = task_for(make_mechanism(name, **{"epsilon": 6.0, "max_entries": 1, **more}), 50)
    users, missed = 20_000, 0
    holders = int(share * users)
    offsets = np.minimum(np.arange(users + 1), holders).astype(np.int64)
    crowd = Entries(np.zeros(holders, np.uint64), np.full(holders, -GRID), offsets)
    for run in range(8):
        forged = forge(task, 200, "maximal", ["0"], seed=run, quantity="mean")
        state = simulate(task, crowd, run).state.merge(aggregate(task, forged))
        found = estimate(task, state, ["0"], "mean", 0.999, forgers=400)
        missed += int(not found.low[0] <= -share <= found.high[0])
    assert missed <= 2


_LOOKING = [
    ("sketch_response", {"max_entries": 4}),
    ("collision", {"max_entries": 4, "values": "signed"}),
    ("coco", {"max_entries": 4}),
    ("hadamard", {"bits": 8, "epsilon": 3.0}),
    ("sparse_sum", {"max_entries": 4}),
    ("sparse_sum", {"max_entries": 4, "unit": "entry"}),
    ("privkv", {"size": _KEYS, "max_entries": 2}),
]


def _subsets(count: int) -> list[tuple[int, ...]]:
    return [some for size in range(1, count + 1) for some in combinations(range(count), size)]


def _loudest(task: Task, way: tuple[float, float], count: int) -> Any:
    """The loudest of reports with seeds drawn at random, in a direction of frequency and mean of key 0."""
    mechanism, key, rng = task.mechanism, task.keys.ids_of([0]), np.random.default_rng(8)
    weights = np.array(way)[:, None]
    columns = [rng.integers(0, field.limit, 32 * count, np.uint64) for field in mechanism.layout.fields]
    reports = mechanism.louder(task.keys, np.stack(columns, axis=1), key, weights)
    gains = np.nan_to_num(mechanism.contributions(task.keys, reports, key))[:, :, 0].T @ weights[:, 0]
    return aggregate(task, mechanism.layout.pack(reports[np.argsort(-gains, kind="stable")[:count]]))


@pytest.mark.parametrize(("name", "more"), _LOOKING)
def test_attacks_that_look_first(name: str, more: dict[str, Any]) -> None:
    """Forgers who see all honest reports before they choose what to say: whatever makes the interval miss.

    A 95% interval misses under any attack only if it would without forgers, so of 16 runs more than 9 miss with
    probability below 1e-8; those for all keys together miss no more often. Allowing for 30% fewer forgers, most miss.
    """
    mechanism, users, forgers = make_mechanism(name, **{"epsilon": 1.0, **more}), 2000, 400
    task = task_for(mechanism, _KEYS)
    asked = [quantity for quantity in mechanism.quantities if quantity != "conditional" or name == "privkv"]
    ways = {"frequency": [(1.0, 0.0), (-1.0, 0.0)], "mean": [(0.0, 1.0), (0.0, -1.0)]}
    sent = {each: [_loudest(task, way, forgers) for way in ways[each]] for each in ways if each in asked}
    sent["conditional"] = [state for states in sent.values() for state in states]
    kinds = [(quantity, kind) for quantity in asked for kind in ("one", "all", "fewer")]
    missed = dict.fromkeys((each for each in kinds if each != ("conditional", "fewer")), 0)
    for run in range(16):
        crowd = _crowd(mechanism.values, run).slice(0, users)
        honest = simulate(task, crowd, run).state
        for quantity, kind in missed:
            truth = true_values(task, crowd, quantity, task.keys.ids_of([0]))[0]
            keys = [0, 1, 2] if kind == "all" else [0]
            allowed = int(0.7 * forgers) if kind == "fewer" else forgers
            options: dict[str, Any] = {"simultaneous": kind == "all", "forgers": allowed}
            rows = (
                estimate(task, honest.merge(each), keys, quantity, **options)["0"] for each in sent[quantity]
            )
            missed[quantity, kind] += any(not row.low <= truth <= row.high for row in rows)
    for quantity in asked:
        assert missed[quantity, "one"] <= 9, missed
        assert missed[quantity, "all"] <= 9, missed
        if quantity != "conditional":
            assert missed[quantity, "fewer"] > 9, missed


def test_files_and_marks(tmp_path: Any) -> None:
    """What stands out does so whatever the forged reports say; files, tables and the command line say how many."""
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2), _KEYS)
    state = simulate(task, _crowd("set", 1), 5).state
    lifted = state.merge(aggregate(task, forge(task, 300, "maximal", [1], seed=3)))
    plain, safe = (estimate(task, lifted, forgers=forgers) for forgers in (0, 300))
    assert not plain.flagged[1]
    assert safe.flagged[1]
    assert not safe.flagged[0]
    assert (safe.low < plain.low).all()
    assert (safe.high > plain.high).all()
    assert np.array_equal(safe.value, plain.value)
    assert safe.findings.floor > plain.findings.floor
    assert safe.about()["forgers"] == 300
    assert "at most 300 of the 20,300 reports are forged" in safe.notes[-1]
    assert estimate(task, lifted, forgers=300 / 20_300).forgers == 300
    safe.save(tmp_path / "safe.csv")
    assert (tmp_path / "safe.csv").read_text().splitlines()[0].endswith(",forgers")
    safe.save(tmp_path / "safe.parquet")
    plain.save(tmp_path / "plain.csv")
    assert "forgers" not in (tmp_path / "plain.csv").read_text()
    save_state(tmp_path / "x.state", task, lifted)
    said = CliRunner().invoke(main, ["estimate", str(tmp_path / "x.state"), "--forgers", "0.02"])
    assert said.exit_code == 0, said.output
    assert "at most 406 of the 20,300" in " ".join(said.output.split())
    totals = estimate(task, lifted, [0], "sum", forgers=300)
    assert totals.low[0] == pytest.approx(safe.low[0] * 20_000)
    assert totals.high[0] == pytest.approx(safe.high[0] * 20_300)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("coco", {"epsilon": 0.5, "values": "signed", "buckets": 2}),
        ("privkv", {"epsilon": 2.0, "size": _KEYS}),
    ],
)
def test_nearly_all_may_be_forged(name: str, more: dict[str, Any]) -> None:
    """One report of 12 that is not: limits are numbers, and numpy has no warnings, whatever is left for the others."""
    task = task_for(make_mechanism(name, max_entries=1, **more), _KEYS)
    honest = simulate(task, _crowd("signed", 1).slice(0, 3), 1).state
    for quantity in task.mechanism.quantities:
        forged = forge(task, 9, "maximal", [0], seed=1, quantity=quantity)
        found = estimate(task, honest.merge(aggregate(task, forged)), None, quantity, forgers=11)
        assert np.isfinite(found.low).all()
        assert np.isfinite(found.high).all()


@pytest.mark.parametrize("name", ["pckv_grr", "privkv"])
@pytest.mark.parametrize(("low", "high", "value"), [(1.0, 5.0, GRID), (-9.0, 1.0, -GRID)])
def test_spreads_are_of_the_reports_that_are_left(name: str, low: float, high: float, value: int) -> None:
    """Means of many reports, the sum of two estimates that go together: forgers do not change how much these do.

    Limits reach those of the honest reports alone, but for 1% of their distance. With the spreads of all reports they
    fell short by 4% and 7% for `pckv_grr`, and by 5% for `privkv` over 1:5.
    """
    task = task_for(make_mechanism(name, epsilon=1.0, size=_KEYS, max_entries=1), _KEYS)
    task, users = task.model_copy(update={"low": low, "high": high}), 60_000
    keys = np.random.default_rng(1).choice(_KEYS, users, p=[0.3, *[0.1] * 7]).astype(np.uint64)
    crowd = Entries(keys, np.full(users, value), np.arange(users + 1, dtype=np.int64))
    honest = simulate(task, crowd, 3).state
    alone = estimate(task, honest, [0], "mean", simultaneous=True)
    slack = 0.01 * (alone.high - alone.low)
    for quantity, way in (("frequency", "up"), ("frequency", "down"), ("mean", "up"), ("mean", "down")):
        forged = forge(task, 18_000, "maximal", [0], seed=5, quantity=quantity, direction=way)  # type: ignore[arg-type]
        attacked = honest.merge(aggregate(task, forged))
        found = estimate(task, attacked, [0], "mean", simultaneous=True, forgers=18_000)
        assert (found.low <= alone.low + slack).all()
        assert (found.high >= alone.high - slack).all()


def test_what_drawing_people_adds_is_told_by_those_who_are_left() -> None:
    """Where devices take turns, frequency and mean vary together: forgers who lower the mean do not say by how much.

    15 collections of 300 reports, 3 more forged ones: limits reach those of the honest reports alone. They fell short
    by up to 8% of their distance where drawing was told by all reports.
    """
    shares = [0.03, 0.3, 0.3, 0.2]
    mechanism = {"name": "value_list", "epsilon": 8.0, "size": 4, "frequencies": shares}
    keys = {"kind": "closed", "size": 4, "salt": "00" * 16}
    turns = {"name": "turns", "low": 1, "high": 5, "period": "week", "rotation": 3}
    task = Task.parse({**turns, "keys": keys, "mechanism": mechanism})
    lowered, short = _loudest(task, (0.0, -1.0), 3), []
    for run in range(15):
        rng = np.random.default_rng(run)
        rated = rng.choice(4, 300, p=[0.03, 0.3, 0.3, 0.37]).astype(np.uint64)
        crowd = Entries(rated, rng.integers(-GRID, GRID, 300), np.arange(301, dtype=np.int64))
        honest = simulate(task, crowd, run).state
        alone = estimate(task, honest, [0], "mean", refine="none")
        found = estimate(task, honest.merge(lowered), [0], "mean", forgers=3)
        short += [*(found.low - alone.low), *(alone.high - found.high)]
    assert max(short) < 1e-9


def test_a_mean_that_forgers_make_unknown() -> None:
    """It has neither value nor error: the middle of the range, and all of it."""
    mechanism = make_mechanism("sampled", epsilon=6.0, max_entries=2, values="signed", mode="events")
    task = task_for(mechanism, _KEYS).model_copy(update={"low": 1.0, "high": 5.0})
    state = simulate(task, _crowd("signed", 1), 5).state
    plain, safe = (estimate(task, state, None, "conditional", forgers=forgers) for forgers in (0, 2000))
    lost = np.isfinite(plain.error) & (safe.low == 1.0) & (safe.high == 5.0)
    assert lost.any()
    assert not (plain.value[lost] == 3.0).all()
    assert (safe.value[lost] == 3.0).all()
    assert np.isinf(safe.error[lost]).all()


def test_seeds_that_are_handed_out() -> None:
    """One for a report is said to be so, and of several the best."""
    made = {"name": "x", "keys": {"kind": "closed", "size": 999}, "seed_from": "server"}
    sketch = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    for more, words in (
        ({}, "no others."),
        ({"seeds": 4}, "and of the 4 for each report they take the best."),
    ):
        assert influence_words(Task.parse({**made, "mechanism": {**sketch, **more}})).endswith(words)


def test_what_cannot_hold_is_refused() -> None:
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2), _KEYS)
    state = simulate(task, _crowd("set", 1), 5).state
    for wrong in (-1, 1.5, float("nan"), float("inf"), 20_000, 30_000):
        with pytest.raises(Refused):
            estimate(task, state, forgers=wrong)
    with pytest.raises(Refused, match="refined or corrected"):
        estimate(task, state, forgers=5, refine="simplex")
    few = task_for(make_mechanism("compressive", epsilon=1.0, rows=64), _KEYS)
    assert estimate(few, simulate(few, _crowd("set", 1), 5).state, forgers=5).forgers == 5


def test_advice_reckons_with_forgers() -> None:
    """What forgers alone can make of a key takes no number of people; beyond it, more people than without forgers."""
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=4), _KEYS)
    offsets = np.zeros(5001, dtype=np.int64)
    nobody = Entries(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), offsets)
    state = simulate(task, nobody, 3).state
    said = {}
    for forgers in (0, 25, 250):
        found = advised(task, estimate(task, state, [1], forgers=forgers))
        assert found.findings.nothing
        said[forgers] = found.findings.advice
    assert "By the plan, a share of 0.1 takes about" in said[0]
    lift = 250 * task.mechanism.influence("frequency").up / 4750
    assert "If 5% of all reports may be forged, no number of people shows a share of 0.1" in said[250]
    assert f"{lift:.3g}" in said[250]
    nearly_all = advised(task, estimate(task, state, [1], forgers=0.999)).findings.advice
    assert "If 99.9% of all reports may be forged" in nearly_all
    # The floor that is left is that of more people with as large a share of forgers.
    words = said[25].split()
    people = int(words[words.index("about") + 1].replace(",", ""))
    many = simulate(task, Entries(nobody.ids, nobody.values, np.zeros(people + 1, dtype=np.int64)), 4).state
    assert estimate(task, many, [1], forgers=0.005).findings.floor == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize("times", [2, 4])
def test_reports_that_count_as_several(times: int) -> None:
    """In a tree some seeds have reports that count as two or four, and forgers know which: limits hold all the same.

    A key that they are against is taken down that much further: without that, intervals that miss once in 10^8 times
    would be too short by more than 0.03, so that limits are looked at beside those of honest reports alone.
    """
    tree = {"longest": 4, "levels": [2, 2], "shares": [1, 1, 1]}
    keys = {"kind": "tree", "bits": 12, "salt": "5a" * 16, "tree": tree}
    settings = {"name": "collision", "epsilon": 1.0, "max_entries": 4}
    task = Task.parse({"name": "words", "keys": keys, "mechanism": settings})
    mechanism, names = task.mechanism, ["aaaa", "bbbb", "cccc", "dddd"]
    ids = task.keys.ids_of(names)[np.random.default_rng(1).integers(0, 4, 30_000)]
    crowd = Entries(ids, np.full(30_000, GRID), np.arange(30_001, dtype=np.int64))
    honest = simulate(task, crowd, 2).state
    seeds = np.arange(1 << 16, dtype=np.uint64)
    asked = np.isin(cohort_of(task.keys, seeds), np.array(task.keys.asked))
    assert isinstance(mechanism, Hashed)
    rows = seed_rows(task.keys, seeds, 4)[:, 1:]
    sums = [np.bitwise_xor.reduce(rows[:, list(some)], axis=1) for some in _subsets(4)]
    vanish = seeds[asked & (1 + sum((each == 0).astype(np.int64) for each in sums) == times)]
    assert len(vanish)
    assert most_heard(mechanism, task.keys) == 4
    assert most_heard(mechanism.model_copy(update={"seed_bits": 40}), task.keys) == mechanism.buckets == 16
    alone = estimate(task, honest, ["aaaa"], level=_LEVEL)
    twice = 0
    heard = set()
    for bucket in range(mechanism.buckets):
        report = mechanism.layout.pack(np.array([[vanish[0], bucket]], dtype=np.uint64))
        heard.add(mechanism.heard(aggregate(task, report), task.keys))
        lower = honest.merge(aggregate(task, np.tile(report, (300, 1))))
        found = estimate(task, lower, ["aaaa"], level=_LEVEL, forgers=300)
        twice += int(found.value[0] < alone.value[0] - 0.05)
        assert found.low[0] <= alone.low[0]
        assert found.high[0] >= alone.high[0]
        moved = (estimate(task, honest.merge(aggregate(task, report)), ["aaaa"]).value - alone.value)[0]
        assert moved >= -1.01 * influence_on(task, "frequency").replaced / 30_000
    assert heard == {0, times}
    assert twice >= 16 // times - 2
