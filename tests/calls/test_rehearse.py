"""A rehearsal: errors and intervals of several messages come out as planned, and a wrong plan would be noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hubbub
from helpers import refuse, refused, run_cli, strict_json, succeed
from hubbub.calls.rehearse import Rehearsal
from hubbub.protocol.task import Task
from hubbub.simulation.populations import stated_keys, stated_population

PEOPLE, KEYS, LIMIT = 4000, 1000, 8


def planned(messages: float, share: float = 0.01) -> Task:
    wish = {"keys": KEYS, "max_entries": LIMIT, "users": PEOPLE, "mechanism": "collision", "share": share}
    found = hubbub.plan(**wish, model="shuffled", epsilon=2.0, delta=1e-6, messages=messages)
    # The salt decides which codes keys have: fixed, so that a run can be repeated.
    described = found.task("t").model_dump()
    return Task.parse({**described, "keys": {**described["keys"], "salt": "7" * 32}})


def test_a_stated_crowd_has_the_shares_that_it_says() -> None:
    crowd, keys = stated_population(PEOPLE, KEYS, LIMIT, seed=3), stated_keys(KEYS, LIMIT)
    shares = crowd.frequency
    assert {share: len(found) for share, found in keys.items()} == {0.0: 500, 0.01: 200, 0.05: 40}
    for share, found in keys.items():
        assert np.all(shares[found] == share)
    records = crowd.entries.ids.reshape(PEOPLE, LIMIT)
    assert all(len(set(record)) == LIMIT for record in records.tolist())
    with refused("at least 100 people and 496 keys"):
        stated_population(PEOPLE, 495, LIMIT, seed=1)


def agrees(found: Rehearsal) -> bool:
    """Squares of 500, 200 and 40 estimates a run are as predicted, and intervals hold as often as they should.

    Within 6 standard deviations of the ratio, and 6 of the share of 740 intervals: false alarms below 1e-6.
    """
    width = 6 * (0.95 * 0.05 / sum(row.count for row in found.rows)) ** 0.5
    close = all(abs(row.ratio - 1) < 6 * row.chance for row in found.rows)
    return close and abs(found.coverage - 0.95) < width


@pytest.mark.parametrize("messages", [0, 1, 8])
def test_errors_and_intervals_are_those_of_the_plan(messages: float) -> None:
    """30% more error, or 30% less, would be noticed at every share."""
    found = hubbub.rehearse(planned(messages), PEOPLE, runs=12, delta=1e-6, seed=5)
    assert agrees(found)
    assert found.reports == pytest.approx(PEOPLE * (messages or 1), rel=0.05)
    assert found.guarantee.model == "shuffled"
    assert found.guarantee.epsilon <= 2
    for row in range(3):
        for wrong in (0.7, 1.3):
            other = replace(found.rows[row], predicted=found.rows[row].predicted * wrong)
            assert not agrees(replace(found, rows=(*found.rows[:row], other, *found.rows[row + 1 :])))


def test_half_the_messages_are_noticed() -> None:
    """A task that promises 8 messages, judged as one of 4: errors are smaller than they should be."""
    task = planned(8)
    found = hubbub.rehearse(task, PEOPLE, runs=2, seed=5)
    half = hubbub.rehearse(Task.parse({**task.model_dump(), "messages": 4}), PEOPLE, runs=2, seed=5)
    rows = zip(found.rows, half.rows, strict=True)
    assert not agrees(replace(found, rows=tuple(replace(a, predicted=b.predicted) for a, b in rows)))


def test_names_of_keys_make_no_difference() -> None:
    task = planned(1)
    names = [f"key {place}" for place in range(KEYS)]
    keys = {**task.keys.model_dump(), "size": None, "vocabulary": names}
    named = Task.parse({**task.model_dump(), "keys": keys})
    one, other = (hubbub.rehearse(each, PEOPLE, seed=2).rows for each in (task, named))
    assert [row.measured for row in one] == pytest.approx([row.measured for row in other])


def test_on_the_command_line(tmp_path: Path) -> None:
    crowd = ["--users", PEOPLE, "--keys", KEYS, "--max-entries", LIMIT]
    command = ["simulate", "--model", "shuffled", "--messages", 2, *crowd, "--delta", "1e-6", "--seed", 4]
    said = succeed(*command)
    assert [row["share"] for row in said["shares"]] == [0, 0.01, 0.05]
    assert said["messages"] == 2
    assert said["guarantee"]["model"] == "shuffled"
    assert 0.99 < said["guarantee"]["epsilon"] <= 1
    assert all(abs(row["ratio"] - 1) < 6 * row["chance"] for row in said["shares"])
    text = " ".join(run_cli(*command).stdout.split())
    assert "made-up people" in text
    assert "2 on average, among 4,000 people" in text
    task = tmp_path / "t.toml"
    planned(2).save(task)
    from_file = strict_json(run_cli("simulate", task, "--users", PEOPLE, "--json").stdout)
    assert from_file["guarantee"]["model"] == "shuffled"
    local = succeed("simulate", *crowd, "--epsilon", 2)
    assert local["guarantee"]["model"] == "local"
    assert "--keys is in the task" in refuse("simulate", task, "--keys", 10)
    assert "give --like" in refuse("simulate", task, "--user", "u")
    assert "goes with --model shuffled" in refuse("simulate", "--delta", "1e-6")
    assert "at least 100 people" in refuse("simulate", "--keys", 100)
    assert "shuffled model" in refuse("simulate", "--messages", 3)


def test_what_a_made_up_crowd_is_not_for() -> None:
    values = hubbub.plan("mean", keys=KEYS, max_entries=2, range=(-1, 1)).task("t")
    with refused("rehearse other tasks on a table"):
        hubbub.rehearse(values)
    with refused("at least 1 run"):
        hubbub.rehearse(planned(1), PEOPLE, runs=0)
