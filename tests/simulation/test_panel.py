"""Crowds over time: what they are, and what devices that memoize say about them."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hubbub.device.client import privatize
from hubbub.device.ledger import Ledger
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import noise
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.panel import Panel, said_when, slow_panel

START = datetime.date(2026, 1, 5)


def test_a_panel_changes_as_often_as_it_should() -> None:
    """51 chances for each of 4,000 people. Binomial: false alarms below 1e-6 at five standard deviations."""
    panel = slow_panel(4000, 1000, 52, change=0.02, seed=1, entries=3)
    changes = int((panel.held[1:] != panel.held[:-1]).sum())
    trials = 51 * 4000
    assert abs(changes - 0.02 * trials) < 5 * math.sqrt(trials * 0.02)
    assert abs(changes - 1.3 * 0.02 * trials) > 5 * math.sqrt(trials * 0.02)
    assert panel.frequency(7).sum() == pytest.approx(3)
    assert len(np.unique(panel.entries.ids.reshape(-1, 3), axis=0)) > 1000


def test_equal_records_of_a_person_are_one_row() -> None:
    panel = slow_panel(300, 2, 40, change=0.5, seed=2)
    for person in range(300):
        rows = panel.held[:, person]
        assert len(set(rows)) == len(set(panel.entries.ids[rows]))


def test_drift_moves_shares() -> None:
    still, moved = (slow_panel(20_000, 20, 10, change=0.5, seed=3, drift=drift) for drift in (0.0, 1.0))
    moves = [np.abs(panel.frequency(9) - panel.frequency(0)).max() for panel in (still, moved)]
    assert moves[0] < 0.02 < 0.1 < moves[1]


@pytest.mark.parametrize("wrong", [{"change": 1.5}, {"entries": 9}, {"drift": -1.0}])
def test_panels_that_are_none(wrong: dict[str, Any]) -> None:
    with refused("A panel has people"):
        slow_panel(10, 8, 3, **{"change": 0.1, "seed": 1, **wrong})


@pytest.mark.parametrize("cap", [1, 2, 4])
def test_the_rule_is_the_ledgers(cap: int, tmp_path: Path, make_task: Any) -> None:
    """The same report in the same weeks, person by person."""
    rules = {"period": "week", "memoize": "record", "memoize_cap": cap}
    task = make_task(size=4, max_entries=1, seed_bits=64, **rules)
    panel = slow_panel(12, 4, 25, change=0.4, seed=cap)
    said = said_when(panel.held, cap)
    assert any(len(set(said[:, person])) == cap for person in range(12))
    for person in range(12):
        ledger = Ledger(tmp_path / str(person))
        reports = [
            ledger.report(task, [str(panel.entries.ids[row])], START + datetime.timedelta(days=7 * week))
            for week, row in enumerate(panel.held[:, person])
        ]
        assert (np.array(reports)[:, None] == np.array(reports)).tolist() == (
            said[:, person, None] == said[:, person]
        ).tolist()
        assert ledger.spent(task) == len(set(said[:, person]))


def weekly_errors(task: Any, panel: Panel, seed: int) -> Any:
    """Estimate minus truth, weeks by keys, of a collection that memoizes."""
    said = said_when(panel.held, task.memoize_cap)
    rows, place = np.unique(said, return_inverse=True)
    packed, _ = privatize(task, panel.entries.take(rows), InsecureCoins(seed), SimulatedSeeds(seed))
    place = place.reshape(said.shape)
    names = [str(key) for key in range(panel.keys)]
    return np.array(
        [
            estimate(task, aggregate(task, packed[now].tobytes()), names).value - panel.frequency(week)
            for week, now in enumerate(place)
        ]
    )


def test_the_error_of_a_year_of_weeks_is_the_predicted_one(make_task: Any) -> None:
    """52 weeks of 3,000 people, memoized, 2% of whom change in a week: the error of a week is that of fresh reports of
    the same epsilon, as the planner has it, and what a device spends is at most cap times epsilon.

    The error is nearly the same in all weeks, so many keys and three panels are averaged. Seeded. With 12 other seeds,
    measured / predicted was 0.998 and varied by 0.0067: 5% is more than seven of these.
    """
    keys, people, cap = 1024, 3000, 6
    rules = {"period": "week", "memoize": "record", "memoize_cap": cap}
    task = make_task(size=keys, epsilon=1.0, max_entries=4, **rules)
    squares, predicted, goal = [], [], Goal("frequency", 1.0, 4, users=people)
    for seed in range(3):
        panel = slow_panel(people, keys, 52, change=0.02, seed=seed, entries=4)
        found = weekly_errors(task, panel, seed + 10)
        squares.append(np.mean(found**2))
        shares = panel.frequency(26)
        predicted.append(np.mean([noise(task.mechanism, goal, float(p)) for p in shares]))
        # One device's noise stays: the mean of all weeks is hardly better than a week.
        assert np.mean(found.mean(axis=0) ** 2) > 0.4 * np.mean(found**2)
        made = [len(np.unique(column)) for column in said_when(panel.held, cap).T]
        assert max(made) == cap
        assert np.mean(made) == pytest.approx(1 + 51 * 0.02, rel=0.05)
    measured, expected = math.sqrt(np.mean(squares)), math.sqrt(np.mean(predicted))
    assert measured == pytest.approx(expected, rel=0.05)
    assert measured != pytest.approx(1.3 * expected, rel=0.05)
