"""Named mechanisms: the planner's form of them, for every goal; what they cannot do is refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import refused
from hubbub.mechanisms.registry import mechanisms
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import THRIFT, choose, noise, pick, rank

GOALS = [
    Goal("frequency", 1.0, 8),
    Goal("frequency", 1.0, 1, keys=30),
    Goal("frequency", 1.0, 4, "signed"),
    Goal("mean", 2.0, 4, "signed", center=0.5),
    Goal("mean", 1.0, 8, "signed", unit="l1", distance=2.0, delta=1e-6),
    Goal("conditional", 1.0, 4, "signed"),
    Goal("sum", 1.0, 4, "signed"),
    Goal("frequency", 1.0, 8, unit="entry"),
]


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_a_name_is_its_row_of_the_ranking(goal: Goal) -> None:
    """A mechanism that is asked for by name is the one of the ranking, with its error; thrift keeps within 5% of it."""
    for option in rank(goal):
        if option.mechanism is None:
            with refused(option.name, option.reason):
                choose(goal, name=option.name)
            continue
        assert choose(goal, name=option.name, best=True) == option.mechanism
        shorter = choose(goal, name=option.name)
        assert shorter.layout.width <= option.bytes
        plain: Any = {"sum": "mean"}.get(goal.quantity, goal.quantity)
        goal_of_share = Goal(**{**vars(goal), "quantity": plain})
        assert noise(shorter, goal_of_share) <= THRIFT**2 * noise(option.mechanism, goal_of_share) * (
            1 + 1e-9
        )


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_thrift(goal: Goal) -> None:
    """Nothing that is offered within 5% of the least error has a shorter report than what is taken."""
    ranking = rank(goal)
    taken = pick(ranking)
    assert taken.error <= THRIFT * ranking[0].error
    assert pick(ranking, best=True) is ranking[0]
    for budget in range(1, taken.bytes):
        assert rank(goal, most_bytes=budget)[0].error > THRIFT * ranking[0].error
    assert choose(goal) == taken.mechanism


def test_thrift_saves() -> None:
    """Many bins are a little better than a quarter of them, and four times as long."""
    goal = Goal("mean", 1.0, 64, "signed", unit="entry")
    best, taken = choose(goal, best=True), choose(goal)
    assert taken.layout.width < best.layout.width / 2
    assert noise(taken, goal) <= THRIFT**2 * noise(best, goal)


def test_modes_follow_the_goal() -> None:
    """Values for a mean, and for a conditional mean: two modes, whoever names the mechanism."""
    for quantity, mode in (("mean", "signed"), ("conditional", "events"), ("frequency", "events")):
        goal = Goal(quantity, 1.0, 4, "signed")  # type: ignore[arg-type]
        for name in ("sketch_response", "sampled"):
            assert getattr(choose(goal, name=name), "mode", None) == mode


def test_settings_are_kept_and_the_rest_is_chosen() -> None:
    goal = Goal("mean", 1.0, 4, "signed")
    kept = choose(goal, name="sketch_response", settings={"seed_bits": 40, "seeds": 2})
    assert (kept.model_dump()["seed_bits"], kept.model_dump()["seeds"]) == (40, 2)
    assert kept.quantities == ("mean",)
    with refused("sketch_response", "conditional", "mean"):
        choose(Goal("conditional", 1.0, 4, "signed"), name="sketch_response", settings={"mode": "signed"})
    with refused("sketch_response", "nonsense"):
        choose(goal, name="sketch_response", settings={"nonsense": 1})


def test_settings_may_fit_some_of_what_is_offered() -> None:
    """The form that hides whole records has one bin; what hides single entries may have 16."""
    goal = Goal("frequency", 1.0, 4, unit="entry", keys=50)
    found = choose(goal, name="sparse_sum", settings={"buckets": 16})
    assert (found.guarantee().unit, found.model_dump()["buckets"]) == ("entry", 16)
    with refused("sparse_sum", "power of two"):
        choose(goal, name="sparse_sum", settings={"buckets": 3})


def test_advice() -> None:
    """Whoever names what does not fit is told what would, and what fits instead."""
    with refused("coco is for signed values", "give values and their range", "sketch_response"):
        choose(Goal("frequency", 1.0, 4), name="coco")
    with refused("hadamard is for one entry per record", "max_entries 1"):
        choose(Goal("frequency", 1.0, 4), name="hadamard")
    with refused("sparse_sum estimates means only", "ask for the mean"):
        choose(Goal("conditional", 1.0, 4, "signed"), name="sparse_sum")
    with refused("collision needs", "bytes a report", "allow"):
        choose(Goal("frequency", 1.0, 4), 1, name="collision")
    with refused("no mechanism called 'nonsense'", *mechanisms()):
        choose(Goal("frequency", 1.0, 4), name="nonsense")


def test_shuffled_reports_within_a_budget_are_solved_for_as_they_are() -> None:
    """The central epsilon is that of the instance which fits the budget, not of the best one without it."""
    from hubbub.privacy.shuffle import shuffled_guarantee

    goal = Goal("frequency", 1.0, 1, delta=1e-6, users=1000, central_epsilon=1.0)
    for budget in (None, 3):
        for option in rank(goal, most_bytes=budget, name="local_hashing"):
            assert option.mechanism is not None
            assert shuffled_guarantee(option.mechanism, goal.users, goal.delta).epsilon <= 1.0
