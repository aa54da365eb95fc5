"""Which entries of a long record count is drawn: intervals hold for what is kept on average, where it is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hubbub.calls.outcome import simulate as rehearsed
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.count_laws import Counts
from hubbub.model.record import GRID, Entries
from hubbub.protocol.task import Task
from hubbub.server import estimates
from hubbub.server.cases import Cases, named_variance
from hubbub.server.estimates import estimate
from hubbub.server.truncation import truncation_in_reports, truncation_of_table
from hubbub.simulation.rehearsal import repeated_states, simulate, true_values

#: Everybody has the same 16 keys of 20, or only the first two of them.
USERS, LONG = 2000, 16


def task_of(count_lengths: bool, entries: int = 2, size: int = 20) -> Task:
    mechanism = make_mechanism("sketch_response", epsilon=8.0, max_entries=entries, users=USERS)
    keys = {"kind": "closed", "size": size, "salt": "00" * 16, "count_lengths": count_lengths}
    return Task.parse({"name": "t", "keys": keys, "mechanism": mechanism})


def alike(lengths: list[int]) -> Entries:
    ids = np.concatenate([np.arange(length, dtype=np.uint64) for length in lengths])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Entries(ids, np.full(len(ids), GRID), offsets)


def held(task: Task, runs: int, lengths: tuple[int, ...] = (LONG,)) -> tuple[int, int]:
    """How many of the intervals for the 16 keys hold what is kept on average, of how many."""
    entries = alike(list(lengths) * (USERS // len(lengths)))
    truth = true_values(task, entries, "frequency", task.keys.all_ids(), sampled_down=True)[:LONG]
    inside = 0
    for state in repeated_states(task, entries, runs, 7):
        found = estimate(task, state, quantity="frequency")
        inside += int(((found.low[:LONG] <= truth) & (truth <= found.high[:LONG])).sum())
    return inside, LONG * runs


def test_intervals_hold_for_what_is_kept_on_average() -> None:
    """At epsilon 8, 94 to 96.5% of 2,400; keys of one collection depend on each other a little, and negatively.

    Beyond these limits once in a million times. Where lengths are not counted, intervals are about the entries that
    were drawn, and hold for less than 90% if one of 16 is: that is noticed.
    """
    inside, of = held(task_of(count_lengths=True), 150)
    assert binom.ppf(5e-7, of, 0.94) <= inside <= binom.ppf(1 - 5e-7, of, 0.965)
    inside, of = held(task_of(count_lengths=False, entries=1), 150)
    assert inside < binom.ppf(5e-7, of, 0.94)


@pytest.mark.parametrize(
    "lengths", [(LONG, 0, 0, 0, 0), (LONG, 1), (2,)], ids=["others empty", "others one", "none"]
)
def test_intervals_hold_whoever_the_others_are(lengths: tuple[int, ...]) -> None:
    """Long records among empty ones, and among those with one entry; and no long records at all. Limits as above."""
    mechanism = make_mechanism("pckv_grr", epsilon=10.0, max_entries=4, size=22)
    keys = {"kind": "closed", "size": 20, "salt": "00" * 16, "count_lengths": True}
    inside, of = held(Task.parse({"name": "t", "keys": keys, "mechanism": mechanism}), 150, lengths)
    assert binom.ppf(5e-7, of, 0.94) <= inside <= binom.ppf(1 - 5e-7, of, 0.965)


def test_the_share_that_is_drawn_is_known_from_the_reports() -> None:
    """Of records of 16 entries one stays: 15/16 of it is drawn. If there are none, next to nothing is for any key."""
    task = task_of(count_lengths=True)
    for lengths, drawn, most in (
        ([LONG] * USERS, 15 / 16, 15 / 256),
        ([LONG, 2] * (USERS // 2), 15 / 16, 15 / 512),
    ):
        found = truncation_in_reports(task, simulate(task, alike(lengths), 3).state)
        assert found is not None
        assert found.drawn == pytest.approx(drawn, abs=0.1)
        assert found.drawn_most == pytest.approx(most, abs=0.05)
    found = truncation_in_reports(task, simulate(task, alike([2] * USERS), 3).state)
    assert found is not None
    assert found.drawn_most < 0.02


def test_the_error_of_what_is_lost_counts_that_it_is_drawn() -> None:
    """Everybody has four entries of which one is kept: the mark says lost with probability 3/4.

    1,500 collections: a variance that is 18% off is noticed but once in a million times, and one that is 30% off is.
    """
    task, users, runs = task_of(count_lengths=True), 400, 1500
    states = list(repeated_states(task, alike([4] * users), runs, 5))
    found = [one for state in states if (one := truncation_in_reports(task, state)) is not None]
    spread, told = np.var([one.lost for one in found], ddof=1), np.mean([one.lost_error**2 for one in found])
    assert len(found) == runs
    assert abs(float(spread / told) - 1) < 5 * np.sqrt(2 / runs) < 0.3
    noise = task.mechanism.moments(states[0], task.keys, task.keys.length_ids()).frequency_variance
    assert noise is not None
    kept = found[0].longer - found[0].lost
    drawn = found[0].lost * kept / found[0].longer / users
    assert found[0].lost_error ** 2 == pytest.approx(float(noise[1]) + drawn)


def test_nothing_that_is_counted_in_a_table_moves_an_interval() -> None:
    """A guarantee covers estimates, errors and intervals; what is said about the table's lengths it does not cover."""
    for count_lengths in (False, True):
        task = task_of(count_lengths)
        state = simulate(task, alike([LONG] * USERS), 3).state
        plain = estimate(task, state)
        known = truncation_of_table(task, np.full(USERS, LONG))
        told = estimate(task, state, truncation=known)
        for column in ("value", "error", "low", "high", "flagged"):
            assert np.array_equal(getattr(plain, column), getattr(told, column))


def test_with_forgers_it_does_not_matter_what_reports_say_of_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be forged. Without forgers, it does matter."""
    task = task_of(count_lengths=True)
    state = simulate(task, alike([LONG] * USERS), 3).state
    told = truncation_in_reports(task, state)
    assert told is not None
    widths = []
    for one in (told, replace(told, lost=0.0, longer=0.0, drawn=0.0, drawn_most=0.0)):
        monkeypatch.setattr(estimates, "truncation_in_reports", lambda *_, one=one: one)
        found = [estimate(task, state, forgers=forgers) for forgers in (0, 20)]
        widths.append([each.high - each.low for each in found])
    (plain, safe), (lied, lied_to) = widths
    assert np.array_equal(safe, lied_to)
    assert (plain[:LONG] > lied[:LONG]).all()
    assert (safe > plain).all()


def test_no_long_records_are_no_people_drawn() -> None:
    """Noise may say that all of next to nothing is drawn: holders stay a kind of their own."""
    counts = Counts(1000, np.array([370]), 0.01, 0.9, (0.0099, 0.08, 0.0))
    assert replace(counts, drawn=1.0, drawn_most=0.0).two_kinds
    assert not replace(counts, drawn=1.0).two_kinds


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("signed", "answers"), [(False, 1), (False, 2), (True, 1)])
def test_the_laws_have_the_variance_of_drawing(drawn: float, signed: bool, answers: int) -> None:
    """400 of 1000 hold a key, each of whom might not have with this probability: by hand, and from the law's tails.

    A person may answer several times, and is drawn once.
    """
    people, frequency, idle, step = 1000, 0.4, 0.01, 0.9
    reports, gain = people * answers, step / answers
    held = ((idle + step) * (1 - idle - step) - idle * (1 - idle)) / answers
    noise = (idle * (1 - idle), held, 0.0)
    counts = Counts(reports, np.array([370]), idle, gain, noise, drawn=drawn, answers=answers)
    if signed:
        counts = Counts(
            people, signed=np.array([360]), signed_gain=gain, signed_noise=(idle, gain), drawn=drawn
        )
    cases = Cases(counts, None, 0.05)
    law: Any = cases.signed_law(frequency, frequency) if signed else cases.named_law(frequency)
    tails = law.at_least(np.arange(0, reports + 1))
    mean = float(tails[1:].sum())
    spread = float((2 * np.arange(reports) + 1) @ tails[1:]) - mean**2
    chance = step**2 * frequency * min(drawn, 1 - frequency)
    fixed = answers * (noise[0] + noise[1] * frequency)
    if signed:  # votes for the key alone, and of others as many for as against it
        fixed = idle + gain * frequency - (gain * frequency) ** 2 - (gain**2) * frequency * (1 - frequency)
    else:
        assert answers * named_variance(counts, frequency) == pytest.approx(fixed + chance)
    assert mean == pytest.approx(people * ((0 if signed else answers * idle) + step * frequency), rel=0.01)
    assert spread == pytest.approx(people * (fixed + chance), rel=0.06)


def test_intervals_are_as_wide_as_errors_say_where_people_answer_twice() -> None:
    """Everybody has the same three keys of which one is kept; at this size intervals are nearly normal.

    If drawing counted for each answer by itself, they would be 7% too short, and hold for 93%.
    """
    mechanism = make_mechanism("repeated", epsilon=8.0, max_entries=2, users=USERS)
    keys = {"kind": "closed", "size": 20, "salt": "00" * 16, "count_lengths": True}
    task = Task.parse({"name": "t", "keys": keys, "mechanism": mechanism})
    found = estimate(task, simulate(task, alike([3] * USERS), 3).state).take(range(3))
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * found.error, rel=0.02)


def test_a_rehearsal_is_compared_with_the_entries_that_were_kept() -> None:
    """At epsilon 8 with one entry of 16: intervals hold for just these, and not for what is kept on average."""
    task = task_of(count_lengths=False, entries=1)
    table = {str(user): [str(key) for key in range(LONG)] for user in range(USERS)}
    kept, average = 0, 0
    for seed in range(40):
        found = rehearsed(table, task, seed=10 * seed)
        kept += round(20 * found.coverage_sampled_down)
        truth = np.where(np.arange(20) < LONG, 1 / LONG, 0.0)
        average += int(((found.estimate.low <= truth) & (truth <= found.estimate.high)).sum())
    assert kept >= binom.ppf(1e-6, 800, 0.94) > average
    assert found.summary.dropped_entries == (LONG - 1) * USERS
