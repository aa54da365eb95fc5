"""The planner: its predictions come true, its ranking holds, its reasons and inverse questions are right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hubbub
from helpers import refused
from hubbub.checks.conformance import SIGMAS, task_for
from hubbub.mechanisms.registry import mechanisms
from hubbub.model.mechanism import Goal, Mechanism, Quantity
from hubbub.model.record import GRID, Entries
from hubbub.plan.inverse import Inverse
from hubbub.plan.ranking import Option, choose, pick, rank
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.simulation.populations import distinct_population, zipf_population
from hubbub.simulation.rehearsal import simulate

# Predictions against simulations

USERS, KEYS, HELD = 4096, 80, 14

GOALS = {
    "one key": Goal("frequency", 1.0, 1),
    "sets": Goal("frequency", 2.0, 8),
    "means": Goal("mean", 1.0, 4, "signed"),
    "frequencies of values": Goal("frequency", 0.5, 2, "signed"),
    "conditional means": Goal("conditional", 1.0, 3, "signed"),
    "one value": Goal("conditional", 1.0, 1, "signed"),
    "means, one entry protected": Goal("mean", 2.0, 2, "signed", unit="entry"),
    "sets, distance protected": Goal("frequency", 1.0, 2, unit="l1", distance=2.0),
    "means, with delta": Goal("mean", 1.0, 2, "signed", delta=1e-5),
}
CROWDS = ["zipf", "full", "heavy"]


def runs(name: str) -> int:
    """Simulated collections; more of them where mechanisms are close to 10% apart."""
    return 48 if name in ("one key", "means") else 36


def crowd(kind: str, limit: int, signed: bool) -> Entries:
    """Records over the first HELD of KEYS keys.

    zipf: Zipf keys and long-tailed lengths, many longer than the limit; full: `limit` uniform keys each; heavy: nine
    in ten users have key 0, and up to limit - 1 others.
    """
    if kind == "zipf":
        return zipf_population(USERS, HELD, seed=5, entries=1.2 * limit, tail=0.8, signed=signed).entries
    if kind == "full":
        entries = distinct_population(USERS, HELD, limit, seed=6, exponent=0.0).entries
        return entries if signed else replace(entries, values=np.full(len(entries.ids), GRID))
    rng = np.random.default_rng(7)
    races = rng.random((USERS, HELD))
    races[rng.random(USERS) < 0.9, 0] = -1
    lengths = rng.integers(1, limit + 1, USERS)
    ids = np.argsort(races, axis=1)[np.arange(HELD) < lengths[:, None]]
    values = rng.choice([-GRID, GRID], len(ids)) if signed else np.full(len(ids), GRID)
    return Entries(ids.astype(np.uint64), values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def parts(quantity: Quantity) -> list[Quantity]:
    """What is estimated for a goal; a conditional mean rests on two estimates."""
    return ["mean", "frequency"] if quantity == "conditional" else [quantity]


def squares(mechanism: Mechanism, entries: Entries, quantity: Quantity, count: int) -> NDArray[np.float64]:
    """Mean squared error over the keys that nobody has, in each of `count` seeded collections."""
    task = task_for(mechanism, KEYS)
    ids = task.keys.all_ids()[HELD:]
    found = []
    for run in range(count):
        moments = mechanism.moments(simulate(task, entries, seed=10 * run).state, task.keys, ids)
        found.append(sum(float(np.mean(getattr(moments, part) ** 2)) for part in parts(quantity)))
    return np.array(found)


@cache
def measured(name: str, kind: str) -> dict[str, tuple[Option, float, float]]:
    """Per suitable mechanism: its option, the measured mean squared error and that one's standard error."""
    goal = replace(GOALS[name], users=USERS, keys=KEYS)
    entries = crowd(kind, goal.max_entries, goal.values == "signed")
    found = {}
    for option in rank(goal):
        if option.mechanism is not None:
            each = squares(option.mechanism, entries, goal.quantity, runs(name))
            found[option.name] = (option, float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))))
    return found


def measured_once(names: Iterable[str]) -> list[Any]:
    """Goals as parameters: tests of one goal run in one process, which measures it once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"plan: {name}")) for name in names]


def test_the_goals_reach_every_mechanism() -> None:
    suitable = {option.name for goal in GOALS.values() for option in rank(goal) if option.mechanism}
    assert suitable == set(mechanisms())


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize("name", measured_once(GOALS))
def test_predictions_come_true(name: str, kind: str) -> None:
    """Mean squared errors are within six standard errors of the prediction (false alarms below 1e-6 each).

    Those are small enough to notice a prediction that is 30% off. Where noise is added to whole bins, other
    entries in a key's bin are noise, too: the planner reckons with full records, and here with those there are.
    """
    goal = GOALS[name]
    entries = crowd(kind, goal.max_entries, goal.values == "signed")
    energy = float(((entries.values / GRID) ** 2).sum() / USERS)
    for option, error, deviation in measured(name, kind).values():
        assert option.mechanism is not None
        predicted = sum(
            option.mechanism.variance(part, USERS, energy=energy) for part in parts(goal.quantity)
        )
        assert abs(error - predicted) <= SIGMAS * deviation, option.name
        assert SIGMAS * deviation <= 0.3 * predicted, option.name
        if kind == "full" or goal.unit == "record":
            assert option.error == pytest.approx(math.sqrt(predicted))


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize("name", measured_once(name for name, goal in GOALS.items() if goal.unit == "record"))
def test_the_ranking_is_the_measured_one(name: str, kind: str) -> None:
    """Wherever two predicted errors are more than 10% apart, the measured ones are in the same order.

    More exactly, the log of their ratio is at most five standard errors below the prediction (false alarms 1e-6 or
    less), and those are at most a quarter of it: nearly all gaps are resolved, and none is contradicted.
    """
    found = list(measured(name, kind).values())
    resolved = 0
    for place, (better, low, low_error) in enumerate(found):
        for worse, high, high_error in found[place + 1 :]:
            gap = 2 * math.log(worse.error / better.error)
            if gap > 2 * math.log(1.1):
                deviation = math.hypot(low_error / low, high_error / high)
                assert gap >= 4 * deviation, "more runs are needed"
                assert math.log(high / low) > min(0, gap - 5 * deviation), (better.name, worse.name)
                resolved += gap >= 5 * deviation
    assert resolved


def test_errors_over_all_keys() -> None:
    """largest: half of all collections have no larger error; detectable: 5% shared by the keys (Bonferroni)."""
    normal = NormalDist()
    for keys in (1, 30, 5000):
        option = rank(Goal("frequency", 1.0, 4, keys=keys))[0]
        inside = 2 * normal.cdf(option.largest / option.error) - 1
        assert inside**keys == pytest.approx(0.5)
        assert 2 * keys * normal.cdf(-option.detectable / option.error) == pytest.approx(0.05)


# Choice


@pytest.mark.parametrize("limit", [8, 32])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("quantity", "values"), [("frequency", "set"), ("mean", "signed")])
def test_sketches_win(quantity: Any, values: Any, epsilon: float, limit: int) -> None:
    goal = Goal(quantity, epsilon, limit, values)
    best, *others = rank(goal)
    assert best.name == "sketch_response"
    assert choose(goal) == best.mechanism
    assert best.mechanism is not None
    assert best.mechanism.model_dump()["family"] == "walsh"
    assert best.mechanism.quantities[0] == quantity
    assert (best.mechanism.epsilon, best.mechanism.max_entries) == (epsilon, limit)
    assert all(best.error < other.error for other in others)


@pytest.mark.parametrize(("quantity", "values"), [("frequency", "set"), ("mean", "signed")])
def test_large_epsilons_have_a_choice(quantity: Any, values: Any) -> None:
    """A mechanism that cannot be had with so large an epsilon does not take the others with it."""
    errors = [rank(Goal(quantity, epsilon, 4, values))[0].error for epsilon in (4.0, 8.0, 12.0)]
    assert all(math.isfinite(error) for error in errors)
    assert errors == sorted(errors, reverse=True)


ONE, SIGNED, SETS = (
    "is for one entry per record",
    "is for signed values",
    "is for sets",
)
REASONS: list[tuple[Goal, dict[str, str]]] = [
    (Goal("frequency", 1.0, 1), {"coco": SIGNED}),
    (Goal("frequency", 1.0, 2), {"coco": SIGNED, "hadamard": ONE}),
    (
        Goal("frequency", 1.0, 1, unit="entry"),
        {"coco": SIGNED},
    ),
    (
        Goal("mean", 1.0, 8, "signed", unit="l1", distance=1.0),
        {"hadamard": f"{ONE} and {SETS}"},
    ),
    (Goal("mean", 1.0, 1, "signed"), {"hadamard": SETS}),
    (Goal("mean", 1.0, 3, "signed"), {"hadamard": f"{ONE} and {SETS}"}),
    # A sparse sum takes values as well, so being for sets is not what is wrong with it.
    (
        Goal("conditional", 1.0, 8, "signed"),
        {"hadamard": f"{ONE} and {SETS}", "sparse_sum": "estimates means only"},
    ),
    (Goal("frequency", 1.0, 1, "signed"), {"hadamard": SETS, "sparse_sum": "estimates means only"}),
]


@pytest.mark.parametrize(("goal", "reasons"), REASONS, ids=lambda part: str(part)[:60])
def test_reasons(goal: Goal, reasons: dict[str, str]) -> None:
    """The mechanisms that are named are unsuitable for this reason; any other has some reason, or is suitable."""
    options = rank(goal)
    known = {option.name: option.reason for option in options}
    assert {name: known[name] for name in reasons} == reasons
    shipped = {"coco", "collision", "hadamard", "sketch_response", "sparse_sum"}
    assert {option.name for option in options if option.mechanism is None} & shipped == set(reasons)
    assert {option.name for option in options} == set(mechanisms())
    assert [option.mechanism is None for option in options] == sorted(o.mechanism is None for o in options)
    for option in options:
        facts = option.as_dict()
        assert facts["suitable"] == math.isfinite(option.error) == (option.mechanism is not None)
        assert facts["suitable"] == (option.reason == "")


@pytest.mark.parametrize(
    "goal",
    [Goal("frequency", 1.0, 1), Goal("mean", 3.0, 8, "signed"), Goal("frequency", 1.0, 8, unit="entry")],
    ids=str,
)
def test_byte_budgets(goal: Goal) -> None:
    """What fits stays as it was or becomes worse; what does not fit says how much it needs."""
    free = {option.name: option for option in rank(goal)}
    widths = {option.bytes for option in free.values() if option.mechanism}
    for budget in sorted(widths | {width - 1 for width in widths} | {3}):
        for option in rank(goal, most_bytes=budget):
            if free[option.name].mechanism is None:
                assert option.reason == free[option.name].reason
            elif option.mechanism is None:
                words = option.reason.split()
                assert (words[0], *words[2:]) == ("needs", "bytes", "a", "report")
                assert budget < int(words[1]) <= free[option.name].bytes
            else:
                assert option.bytes <= budget
                assert option.error >= free[option.name].error
                assert (option.error == free[option.name].error) == (budget >= free[option.name].bytes)
    with refused(goal.quantity, goal.values, goal.unit):
        choose(goal, most_bytes=1)


def test_goals_out_of_reach_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    coco = mechanisms()["coco"]
    monkeypatch.setattr("hubbub.plan.ranking.mechanisms", lambda: {"coco": coco})
    with refused("frequency", "set", "entry"):
        choose(Goal("frequency", 1.0, 8, unit="entry"))
    with refused("is for signed values"):
        Inverse(Goal("frequency", 1.0, 8, unit="entry")).users_for(0.1)


SMALLER = [{"unit": "entry"}, {"unit": "l1", "distance": 1.0}, {"unit": "l1", "distance": 16.0}]


@pytest.mark.parametrize("change", SMALLER, ids=str)
@pytest.mark.parametrize(("quantity", "values"), [("frequency", "set"), ("mean", "signed")])
def test_what_hides_records_hides_less(quantity: Any, values: Any, change: dict[str, Any]) -> None:
    """Asking for less protection never costs accuracy, and what is offered protects at least what is asked."""
    whole = Goal(quantity, 1.0, 8, values)
    options = {option.name: option for option in rank(replace(whole, **change))}
    for option in rank(whole):
        assert options[option.name].error <= option.error
    for option in options.values():
        if option.mechanism is not None:
            promise = option.mechanism.guarantee()
            assert promise.unit == "record" or (promise.unit, promise.distance) == (
                change["unit"],
                change.get("distance"),
            )
    best = choose(replace(whole, **change))
    assert best.guarantee().unit == ("record" if change.get("distance") == 16 else change["unit"])


def test_shuffled_goals_are_about_records() -> None:
    goal = Goal("frequency", 1.0, 2, delta=1e-6, users=10_000, central_epsilon=1.0)
    assert choose(replace(goal, unit="entry")) == choose(goal)


@pytest.mark.parametrize("name", GOALS)
def test_states_are_as_large_as_said(name: str) -> None:
    for option in rank(replace(GOALS[name], keys=30_000)):
        if option.mechanism is not None:
            task = task_for(option.mechanism, 30_000)
            size = task.mechanism.empty(task.keys).totals.nbytes
            kept = task.mechanism.keeps_reports(task.keys)
            number, unit = option.server.split()
            if kept:
                assert option.server == "all reports"
            else:
                scale = {"KiB": 2**10, "MiB": 2**20}[unit]
                assert float(number) * scale == pytest.approx(size, rel=0.005), option.name


def test_open_vocabularies() -> None:
    """Folded codes have an array of their size; wide ones, and their worst key of 2^64, are no trouble."""
    folded, wide = (rank(Goal("frequency", 1.0, 4, keys=1 << bits, open=True))[0] for bits in (20, 64))
    assert folded.server == "8 MiB"
    assert wide.server == "all reports"
    assert wide.error == folded.error < folded.detectable < wide.detectable < 10 * wide.error
    with refused("closed vocabulary", "2^30"):
        Goal("frequency", 1.0, 4, keys=1 << 30)


@pytest.mark.parametrize(("values", "quantity"), [("set", "frequency"), ("signed", "mean")])
def test_sums_are_users_times_as_wrong(values: Any, quantity: Any) -> None:
    goal = Goal("sum", 1.0, 4, values, users=12_345)
    for total, share in zip(rank(goal, 5.0), rank(replace(goal, quantity=quantity), 5.0), strict=True):
        assert (total.name, total.mechanism, total.reason) == (share.name, share.mechanism, share.reason)
        if total.mechanism:
            assert total.error == pytest.approx(12_345 * share.error)
            assert total.detectable == pytest.approx(12_345 * share.detectable)
    assert choose(goal) == choose(replace(goal, quantity=quantity))


# Inverse questions

INVERTED = [
    Goal("frequency", 1.0, 8),
    Goal("mean", 0.7, 4, "signed", users=20_000),
    Goal("conditional", 1.0, 2, "signed"),
    Goal("frequency", 1.0, 4, unit="entry"),
]


def taken(goal: Goal, **change: Any) -> float:
    """The error of what would be taken for a changed goal."""
    return pick(rank(replace(goal, **change))).error


@pytest.mark.parametrize("goal", INVERTED, ids=str)
def test_how_many_users(goal: Goal) -> None:
    usual = taken(goal)
    for factor in (0.1, 0.9, 3.0):
        needed = Inverse(goal).users_for(factor * usual)
        assert taken(goal, users=needed) == pytest.approx(factor * usual, rel=0.01)
        assert taken(goal, users=needed) <= factor * usual * (1 + 1e-9)
        assert Inverse(goal, unit_size=7.0).users_for(7 * factor * usual) == pytest.approx(needed, abs=1)
    assert Inverse(goal, best=True).users_for(usual) <= Inverse(goal).users_for(usual)
    with refused("sum"):
        Inverse(replace(goal, quantity="sum")).users_for(1.0)


@pytest.mark.parametrize("goal", INVERTED, ids=str)
def test_which_epsilon(goal: Goal) -> None:
    """The error comes down to what is wanted, by the 5% of thrift more where another report becomes the shortest."""
    usual = taken(goal)
    for factor in (0.6, 1.0, 2.5):
        needed = Inverse(goal).epsilon_for(factor * usual)
        assert taken(goal, epsilon=needed) == pytest.approx(factor * usual, rel=0.06)
        assert taken(goal, epsilon=needed) <= factor * usual
        best = Inverse(goal, best=True).epsilon_for(factor * usual)
        assert rank(replace(goal, epsilon=best))[0].error == pytest.approx(factor * usual, rel=0.01)
        assert best <= 1.01 * needed
    assert Inverse(goal, unit_size=7.0).epsilon_for(7 * usual) == pytest.approx(goal.epsilon, rel=0.06)
    with refused("epsilon up to 8", "users"):
        Inverse(goal).epsilon_for(1e-6 * usual)


# Shuffled


@pytest.mark.parametrize(
    ("quantity", "values", "central", "delta"),
    [("frequency", "set", 1.0, 1e-6), ("mean", "signed", 0.3, 1e-8)],
)
def test_shuffled_goals(
    quantity: Any, values: Any, central: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is solved for is the local epsilon: the shuffled guarantee holds and is used up, and errors shrink."""
    some = {name: mechanisms()[name] for name in ("coco", "collision", "hadamard", "sketch_response")}
    monkeypatch.setattr("hubbub.plan.ranking.mechanisms", lambda: some)
    users = 10_000
    goal = Goal(quantity, central, 2, values, delta=delta, users=users, central_epsilon=central)
    local = {option.name: option for option in rank(replace(goal, central_epsilon=None, delta=0.0))}
    options = rank(goal)
    assert options[0].mechanism is not None
    for option in options:
        if option.mechanism is None:
            assert option.reason == local[option.name].reason
            continue
        promise = shuffled_guarantee(option.mechanism, users, delta)
        assert 0.95 * central <= promise.epsilon <= central
        assert option.mechanism.epsilon > 1.2 * central
        assert option.mechanism.guarantee().epsilon == option.mechanism.epsilon
        assert option.shuffled == promise.words()
        assert option.error < local[option.name].error
        assert option.error == pytest.approx(math.sqrt(option.mechanism.variance(quantity, users)))


def test_the_servers_time_is_said_and_bounded() -> None:
    """A million people and keys in the shuffled model: a report names one code of 2^20, not 2^20 coefficients."""
    goal = Goal("frequency", 1.0, 32, users=10**6, keys=10**6, central_epsilon=1.0, delta=1e-8)
    found = {option.name: option for option in rank(goal)}
    assert found["collision"].mechanism is not None
    assert found["collision"].mechanism.buckets == 1 << 20  # type: ignore[attr-defined]
    assert found["collision"].seconds < 3
    assert found["sketch_response"].error <= found["collision"].error * (1 + 1e-9)


def test_what_takes_a_server_too_long_is_not_recommended() -> None:
    """Codes of 30 bits: with 2^14 buckets or so a report is 2^14 additions, so other buckets are taken; or none."""
    goal = Goal("frequency", 1.0, 32, users=10**6, keys=1 << 30, open=True, central_epsilon=1.0, delta=1e-8)
    for messages in (0.0, 8.0):
        asked = replace(goal, share=0.01, messages=messages)
        found = rank(asked, name="collision")[0]
        free = rank(replace(asked, server_seconds=1e9), name="collision")[0]
        assert free.seconds > 60 >= found.seconds
        assert free.error < found.error < 2 * free.error
    strict = rank(replace(goal, server_seconds=1.0), name="collision")[0]
    assert strict.mechanism is None
    assert "s of one core per million reports" in strict.reason
    by_hand = rank(goal, name="collision", settings={"buckets": 1 << 14})[0]
    assert by_hand.mechanism is not None
    assert by_hand.seconds > 60


def test_the_local_model_has_the_servers_time_in_mind_too() -> None:
    goal = Goal("frequency", 6.0, 8, users=10**6, keys=1 << 30, open=True)
    free, found = (rank(replace(goal, server_seconds=most), name="collision")[0] for most in (1e9, 60.0))
    assert found.mechanism is not None
    assert found.seconds <= 60 < free.seconds
    assert free.error < found.error < 1.5 * free.error
    with refused("above 0 seconds"):
        replace(goal, server_seconds=0.0)


def test_one_report_each_is_named_where_it_is_as_good() -> None:
    """Few messages of one entry: their random number thins frequent keys' counts more than it helps."""
    wish = {"keys": 1000, "max_entries": 1, "users": 10_000, "model": "shuffled", "delta": 1e-6}
    few, many = (hubbub.plan(**wish, share=0.05, messages=messages) for messages in (2, 64))
    assert few.once <= few.chosen.error
    assert "Exactly one report each has no more error" in str(few)
    assert many.once > many.chosen.error
    assert "Exactly one report" not in str(many)
    assert many.once == hubbub.plan(**wish, share=0.05).chosen.error
