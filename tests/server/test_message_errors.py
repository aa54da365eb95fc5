"""Error bars where everybody sends a random number of messages: who is heard how often is chance, too."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import refused
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.primitives.arrays import Floats
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import simulate

RUNS, PEOPLE = 60, 300


def half_of_them(values: bool) -> Entries:
    """Every other person has key 0, with values 1 and -0.5 in turn if there are any; key 1 belongs to everybody."""
    ids = np.concatenate([[0, 1], [1]] * (PEOPLE // 2)).astype(np.uint64)
    offsets = np.concatenate([[0], np.cumsum([2, 1] * (PEOPLE // 2))]).astype(np.int64)
    worth = np.full(len(ids), GRID)
    if values:
        worth[ids == 0] = np.resize([GRID, -GRID // 2], PEOPLE // 2)
    return Entries(ids, worth, offsets)


def deviations(messages: float, values: bool, task_for_errors: float | None = None) -> Floats:
    """How far estimates of key 0 are from the truth, in error bars."""

    def make(mean: float) -> Task:
        kind = {"values": "signed"} if values else {}
        mechanism = make_mechanism("collision", epsilon=9.0, max_entries=2, **kind)
        return Task.parse(
            {"name": "t", "keys": {"kind": "closed", "size": 8}, "mechanism": mechanism, "messages": mean}
        )

    task, entries = make(messages), half_of_them(values)
    judge = task if task_for_errors is None else make(task_for_errors)
    quantity, truth = ("mean", 0.125) if values else ("frequency", 0.5)
    found = []
    for run in range(RUNS):
        one = estimate(judge, simulate(task, entries, 100 * run).state, ["0"], quantity)  # type: ignore[arg-type]
        found.append((one.value[0] - truth) / one.error[0])
    return np.array(found)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("messages", [1, 3])
def test_errors_are_those_of_people_drawn_at_random(messages: float, values: bool) -> None:
    """60 squares with mean 1: chi-squared beyond these limits has probability below 1e-6 on either side."""
    squares = float((deviations(messages, values) ** 2).mean())
    assert 0.33 < squares < 2.2


@pytest.mark.parametrize("values", [False, True])
def test_errors_of_one_report_each_are_too_small(values: bool) -> None:
    assert float((deviations(1, values, task_for_errors=0.0) ** 2).mean()) > 2.2


def test_nobody_knows_how_many_people_there_are() -> None:
    mechanism = make_mechanism("collision", epsilon=9.0, max_entries=2)
    task = Task.parse(
        {"name": "t", "keys": {"kind": "closed", "size": 8}, "mechanism": mechanism, "messages": 2}
    )
    with refused("number of people"):
        estimate(task, simulate(task, half_of_them(False), 1).state, quantity="sum")


def test_reports_that_speak_of_one_key_draw_people_once() -> None:
    """privkv asks everybody about one key of all: its law has people drawn at random in it already.

    Counted twice, the mean of a key that everybody holds at the low end of the range was missed nearly always.
    """
    mechanism = make_mechanism("privkv", epsilon=5.0, max_entries=1, size=8, values="signed")
    keys = {"kind": "closed", "size": 8}
    described = {"name": "t", "low": 1.0, "high": 5.0, "keys": keys, "mechanism": mechanism, "messages": 30}
    task = Task.parse(described)
    entries = Entries(np.zeros(PEOPLE, np.uint64), np.full(PEOPLE, -GRID), np.arange(PEOPLE + 1))
    held = 0
    for run in range(60):
        one = estimate(task, simulate(task, entries, 100 * run).state, ["0"], "mean")
        held += int(one.low[0] - 1e-9 <= 1.0 <= one.high[0] + 1e-9)
    assert held >= 45  # of 60; below that with probability 1e-7 at 95%
