"""What forgers can do to a plan, and plans that reckon with them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from hubbub import plan
from hubbub.cli import main
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Goal
from hubbub.plan.damage import damage_to, into_top
from hubbub.primitives.errors import Refused
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import simulate


def test_damage_is_in_the_units_of_the_plan() -> None:
    """Shares, means of values from 1 to 5, sums: as a task with the same range has it."""
    found = plan(keys=1000, max_entries=8, users=50_000)
    damage = found.damage(found.chosen)
    assert damage is not None
    assert found.chosen.mechanism is not None
    assert damage.up == found.chosen.mechanism.influence("frequency").up
    ratings = plan("mean", keys=1000, max_entries=8, range=(1, 5), mechanism="collision")
    task, damage = ratings.task("ratings"), ratings.damage(ratings.chosen)
    assert damage is not None
    same = task.mechanism.influence("mean", center=task.scale.center, half=task.scale.half)
    assert (damage.up, damage.down) == (pytest.approx(same.up), pytest.approx(same.down))
    ratio = plan("conditional", keys=1000, max_entries=8, range=(1, 5), mechanism="collision")
    damage = ratio.damage(ratio.chosen)
    assert damage is not None
    assert damage.up == pytest.approx(task.mechanism.influence("conditional", 1.0, half=task.scale.half).up)
    assert "others by that divided by their share" in damage.words()
    total = plan("sum", keys=1000, max_entries=8, users=50_000)
    summed = total.damage(total.chosen)
    assert summed is not None
    assert summed.up == pytest.approx(50_000 * found.damage(found.chosen).up)  # type: ignore[union-attr]


def test_forgers_change_the_choice() -> None:
    """What is taken has the least root of squares of error and damage of all options, and the trade is told."""
    usual, strong = (plan(keys=1000, max_entries=8, forgers=forgers) for forgers in (0, 0.01))
    assert strong.unforged is not None
    assert strong.unforged.mechanism == usual.chosen.mechanism

    def strain(option: object) -> float:
        damage = strong.damage(option)  # type: ignore[arg-type]
        assert damage is not None
        return math.hypot(option.error, damage.moved(0.01))  # type: ignore[attr-defined]

    assert strain(strong.chosen) == min(strain(option) for option in strong.suitable)
    assert strain(strong.chosen) < 0.5 * strain(usual.chosen)
    assert strong.chosen.error > usual.chosen.error
    assert any(
        "Without forgers the choice would be sketch_response (32 buckets)" in line
        for line in strong.closing()
    )
    counted = plan(keys=1000, max_entries=8, users=50_000, forgers=500)
    assert (
        counted.chosen.mechanism
        == plan(keys=1000, max_entries=8, users=50_000, forgers=0.01).chosen.mechanism
    )
    few = plan(keys=1000, max_entries=8, forgers=1)
    assert few.unforged is not None
    assert few.chosen.error < 1.05 * few.unforged.error
    for wrong in (-1, 1.5, 2.7, 100_000, 100_001, float("nan"), float("inf")):
        with pytest.raises(Refused, match="Forgers are"):
            plan(keys=1000, max_entries=8, forgers=wrong)


def test_where_a_report_is_about_one_key() -> None:
    """Forgers are all about theirs: of 1,000 keys, 1% of them are ten times the others, and not 15.8 people's worth."""
    mechanism = make_mechanism("privkv", epsilon=1.0, size=1000, max_entries=8)
    damage = damage_to(mechanism, Goal("frequency", 1.0, 8, values="signed"))
    assert damage is not None
    most = max(mechanism.effects()[:, 0])
    assert damage.up == pytest.approx(1000 * most)
    assert damage.moved(0.01) == pytest.approx(0.01 / (0.01 + 0.99 / 1000) * most)
    assert "1% forgers move a key that as many reports are about as about any other by at most 1.44" in (
        damage.words()
    )
    # y of 100,000 reports, all about the key, among (100,000 - y) / 1,000 others.
    assert damage.into_top is not None
    lifted = [y * most / (y + (100_000 - y) / 1000) for y in (damage.into_top - 1, damage.into_top)]
    one = damage_to(make_mechanism("collision", epsilon=1.0, max_entries=8), Goal("frequency", 1.0, 8))
    assert one is not None
    assert one.into_top is not None
    tenth = one.up * one.into_top / (100_000 - one.into_top)
    assert lifted[0] < 1.001 * tenth
    assert lifted[1] > 0.999 * tenth


def test_strong_plans_are_affordable() -> None:
    """Reports and the server's time stay within their limits."""
    short = plan(keys=1000, max_entries=8, forgers=0.01, most_bytes=3)
    assert all(option.bytes <= 3 for option in short.suitable)
    quick = plan(keys=1 << 20, max_entries=8, forgers=0.01, server_seconds=5)
    assert all(option.seconds <= 5 for option in quick.suitable)
    shuffled = plan(keys=1000, max_entries=8, forgers=0.01, model="shuffled", delta=1e-6)
    assert shuffled.chosen.mechanism is not None


def test_the_words_of_the_command() -> None:
    """Beside the error, and as data."""
    said = CliRunner().invoke(
        main, ["plan", "--keys", "1000", "--max-entries", "8", "--mechanism", "collision"]
    )
    assert "1% forgers move a key by at most 0.344, up to 4 keys" in " ".join(said.output.split())
    data = json.loads(
        CliRunner()
        .invoke(main, ["plan", "--keys", "9", "--max-entries", "2", "--forgers", "0.1", "--json"])
        .output
    )
    assert data["without_forgers"]["forged"]["up"] > data["chosen"]["forged"]["up"]
    assert data["chosen"]["forged"]["into_top"] is None
    assert "forged" not in next(each for each in data["options"] if not each["suitable"])


def test_so_many_forgers_lift_a_key_into_the_top_ten() -> None:
    """A quarter more of them do, and a quarter fewer do not, in a crowd whose keys have the shares of the plan.

    Twenty runs each; at a quarter of the tenth share the estimate's error is a sixth of that, so that a run
    comes out the other way once in a million times.
    """
    users, keys = 200_000, 50
    mechanism = make_mechanism("collision", epsilon=4.0, max_entries=4, users=users)
    goal = Goal("frequency", 4.0, 4, users=users, keys=keys)
    found = plan(keys=keys, max_entries=4, epsilon=4.0, users=users, mechanism="collision")
    task = found.task("top")
    crowd = zipf_population(users, keys - 1, seed=4, exponent=0.8, entries=4.0, tail=0.01, signed=False)
    state = simulate(task, crowd.entries, 3).state
    tenth = float(np.sort(crowd.frequency)[-10])
    damage = damage_to(mechanism, goal)
    assert damage is not None
    assert damage.into_top == into_top(goal, mechanism.influence("frequency"))
    wanted = math.ceil(users * tenth / (damage.up + tenth))
    assert wanted == pytest.approx(damage.into_top, rel=0.25)
    for factor, lifted in ((0.75, False), (1.25, True)):
        for seed in range(20):
            forged = aggregate(task, forge(task, int(factor * wanted), "maximal", [keys - 1], seed=seed))
            value = estimate(task, state.merge(forged)).value
            assert (int((value > value[-1]).sum()) < 10) == lifted
