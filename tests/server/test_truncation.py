"""Records that are too long: what is lost is counted privately, told, and corrected for with its uncertainty."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from helpers import refused
from hubbub.checks.audit import exact_audit
from hubbub.checks.conformance import exact_loss, outcomes
from hubbub.checks.exact import Enumeration, law_of
from hubbub.checks.worlds import small_task
from hubbub.device.client import encode_record
from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.model import record
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries, Summary
from hubbub.plan.advice import advised, largest_seen
from hubbub.primitives.errors import Refused
from hubbub.protocol import task as task_module
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.findings import width_for
from hubbub.server.truncation import (
    Truncation,
    _dropped,
    corrected,
    truncation_in_reports,
    truncation_of_table,
)
from hubbub.simulation.rehearsal import simulate

SALT = "5a" * 16


def counting(mechanism: Mechanism, size: int | None = 20, **keys: Any) -> Task:
    universe = {"kind": "closed", "size": size, "salt": SALT, "count_lengths": True, **keys}
    return Task.parse({"name": "t", "keys": universe, "mechanism": mechanism})


def offered() -> list[Mechanism]:
    """An instance of every mechanism that samples records down and takes several entries."""
    found = []
    for name, kind in mechanisms().items():
        for values in ("set", "signed"):
            given: dict[str, Any] = {"epsilon": 3.0, "max_entries": 3, "values": values}
            given |= {"size": 22} if "size" in kind.model_fields else {}
            try:
                made = make_mechanism(name, **given)
                counting(made)
            except Exception:  # not for such records; what is left is counted below
                continue
            found.append(made)
    return found


OFFERED = offered()


def crowd(ids: list[list[int]]) -> Entries:
    lengths = [len(one) for one in ids]
    flat = np.array([key for one in ids for key in one], dtype=np.uint64)
    return Entries(flat, np.full(len(flat), GRID), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


# What a device does


def test_what_a_long_record_becomes_exactly() -> None:
    """Of four entries with a limit of three, two stay, and the mark says lost with probability 1 - 2/4."""
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), size=5)
    entries, _ = encode_record(task, ["0", "1", "2", "3"])

    def run(coins: Enumeration) -> tuple[int, ...]:
        kept, summary = task.shortened(entries, coins)  # type: ignore[arg-type]
        assert (summary.sampled_records, summary.dropped_entries) == (1, 2)
        assert kept.values.tolist() == [GRID] * 3
        *real, mark = kept.ids.tolist()
        return (*sorted(real), mark)

    law = Enumeration().law(run)
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    assert law == {(*pair, mark): Fraction(1, 12) for pair in pairs for mark in (5, 6)}


def test_short_records_stay_as_they_are() -> None:
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), size=5)
    entries = crowd([[0, 1, 2], [], [4]])
    kept, summary = task.shortened(entries, None)  # type: ignore[arg-type]
    assert kept is entries
    assert summary == Summary()


def test_batches_keep_their_shape() -> None:
    """Long and short records in one batch, compiled: every long one has two of its own keys and one mark."""
    from hubbub.primitives.coins import InsecureCoins

    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), size=30)
    lists = [list(range(i % 9)) for i in range(20_000)]
    kept, _ = task.shortened(crowd(lists), InsecureCoins(3))
    marks = Counter()
    for i, old in enumerate(lists):
        new = kept.ids[kept.offsets[i] : kept.offsets[i + 1]].tolist()
        if len(old) <= 3:
            assert new == old
        else:
            assert len(new) == len(set(new)) == 3
            assert set(new[:2]) <= set(old)
            marks[(len(old), new[2])] += 1
    for length in (4, 8):
        kept_marks, lost = marks[(length, 30)], marks[(length, 31)]
        total, odds = kept_marks + lost, 1 - 2 / length
        six_sigmas = 6 * math.sqrt(total * odds * (1 - odds))
        assert abs(lost - total * odds) < six_sigmas
        assert abs(lost - total * (1 - 3 / length)) > six_sigmas  # what it would be without room for the mark


@pytest.mark.parametrize("mechanism", OFFERED, ids=lambda m: f"{m.name}-{m.values}")
def test_privacy_by_enumeration(mechanism: Mechanism) -> None:
    """The exact loss between records of 0 to 3 entries where 2 count, through the shipped code, marks and all."""
    if mechanism.name == "gaussian":
        pytest.skip("cannot be enumerated: see its own tests")
    weak = type(mechanism)(**mechanism.model_dump(exclude=set(mechanism.chosen)) | {"epsilon": 1.0})
    task = small_task(counting(weak), 3)
    if outcomes(task.mechanism) > 200:
        pytest.skip("too many outcomes; the mechanism's own tests enumerate it without marks")
    assert task.keys.count_lengths
    other = 1.0 if mechanism.values == "set" else -1.0
    records = [{}, {"0": 1.0}, {"1": 1.0, "2": other}, {"0": 1.0, "1": other, "2": 1.0}]
    loss = exact_loss(task, records, (0,))
    assert 0.25 <= loss <= 1 + 1e-9


def test_a_mark_on_top_of_a_full_record_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumeration runs into a device that adds its mark without making room for it."""
    plain = record.sample_down

    def greedy(entries: Entries, limit: int, coins: Any, marks: Any = None) -> tuple[Entries, Summary]:
        return plain(entries, limit + 1, coins, marks)

    task = small_task(counting(make_mechanism("collision", epsilon=1.0, max_entries=2)), 4)
    full = dict.fromkeys("0123", 1.0)
    assert exact_loss(task, [{}, full], (0,)) <= 1 + 1e-9
    monkeypatch.setattr(task_module, "sample_down", greedy)
    with pytest.raises(IndexError):
        exact_loss(task, [{}, full], (0,))


def test_the_audit_sees_the_marks() -> None:
    task = counting(make_mechanism("sketch_response", epsilon=1.0, max_entries=4))
    found = exact_audit(task)
    assert not found.refuted
    small = small_task(task, 3)
    assert sum(law_of(small, ["0", "1", "2"], 0).values()) == 1
    with_marks, without = (
        law_of(one, ["0", "1", "2"], 0)
        for one in (
            small,
            small.model_copy(update={"keys": small.keys.model_copy(update={"count_lengths": False})}),
        )
    )
    assert with_marks != without


# What the task says


def test_it_is_part_of_the_task_only_where_it_is_asked_for() -> None:
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=3)
    keys = {"kind": "closed", "size": 20, "salt": SALT}
    plain = Task.parse({"name": "t", "keys": keys, "mechanism": mechanism})
    off = Task.parse({"name": "t", "keys": {**keys, "count_lengths": False}, "mechanism": mechanism})
    on = counting(mechanism)
    assert plain.digest == off.digest != on.digest
    assert b"count_lengths" not in plain.canonical
    assert "count_lengths" not in plain.to_toml()
    assert "count_lengths = true" in on.to_toml()


def test_a_task_file_with_it_returns(tmp_path: Any) -> None:
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3))
    task.save(tmp_path / "t.toml")
    assert Task.load(tmp_path / "t.toml") == task


@pytest.mark.parametrize(
    ("name", "parameters", "part"),
    [
        ("collision", {"max_entries": 1}, "max_entries must be 2 or more"),
        ("sparse_sum", {"max_entries": 3, "unit": "entry"}, "does not"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(name: str, parameters: dict[str, Any], part: str) -> None:
    with refused("count_lengths", part):
        counting(make_mechanism(name, epsilon=1.0, **parameters))


@pytest.mark.parametrize(
    "keys", [{}, {"kind": "folded", "bits": 20, "size": None}, {"kind": "wide", "size": None}]
)
def test_nobody_can_name_the_keys_that_count(keys: dict[str, Any]) -> None:
    """No text has their ids, and they are not among the keys that are listed."""
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), **keys)
    marks = set(task.keys.length_ids().tolist())
    assert len(marks) == 2
    names = [str(i) for i in range(3000)] + ["kept", "lost", "\\xffkept", "ÿlost", "ÿkept", ""]
    ids, _ = task.keys.known(names)
    assert not marks & set(ids.tolist())
    if task.keys.kind == "closed":
        assert (task.keys.count, task.keys.places) == (20, 22)
        assert not marks & set(task.keys.all_ids().tolist())
        assert len(set(task.keys.codes(np.arange(22, dtype=np.uint64), 0).tolist())) == 22


def test_room_for_two_codes_of_every_key() -> None:
    mechanism = make_mechanism("coco", epsilon=1.0, max_entries=3, values="signed", target="conditional")
    if mechanism.sided:
        with refused("bits"):
            counting(mechanism, size=31, bits=6)
        assert counting(mechanism, size=29, bits=6).keys.places == 31


# What the server says

#: 60% of the records have two entries, 40% have eight, of which (with three that count) two stay.
LONG = [
    [int(k) for k in np.random.default_rng(i).permutation(20)[: 8 if i % 5 < 2 else 2]] for i in range(6000)
]
LONGER, LOST = 0.4, 0.4 * (1 - 2 / 8)


@pytest.mark.parametrize("mechanism", OFFERED, ids=lambda m: f"{m.name}-{m.values}")
def test_every_mechanism_counts_lengths(mechanism: Mechanism) -> None:
    """Within six standard errors, which tell the truth from 0 for all but the noisiest."""
    task = counting(mechanism)
    state = simulate(task, crowd(LONG), seed=3).state
    found = truncation_in_reports(task, state)
    assert found is not None
    assert abs(found.lost - LOST) < 6 * found.lost_error
    assert abs(found.longer - LONGER) < 6 * found.longer_error
    assert found.lost_error < (0.03 if mechanism.name in ("collision", "sketch_response") else 0.6)


def test_at_least_these_mechanisms_count_lengths() -> None:
    names = {m.name for m in OFFERED}
    assert {"collision", "coco", "sketch_response", "sparse_sum", "sampled", "repeated", "gaussian"} <= names


@pytest.mark.parametrize("keys", [{"kind": "folded", "bits": 16}, {"kind": "wide"}])
def test_open_vocabularies_count_lengths(keys: dict[str, Any]) -> None:
    task = counting(make_mechanism("collision", epsilon=3.0, max_entries=3), **{"size": None, **keys})
    names = task.keys.ids_of([str(k) for k in range(20)])
    entries = crowd(LONG[:2000])
    state = simulate(
        task, Entries(names[entries.ids.astype(np.int64)], entries.values, entries.offsets), 3
    ).state
    found = truncation_in_reports(task, state)
    assert found is not None
    assert abs(found.lost - LOST) < 6 * found.lost_error < 0.3


def test_tasks_that_count_nothing_say_nothing() -> None:
    task = Task.parse(
        {
            "name": "t",
            "keys": {"kind": "closed", "size": 20, "salt": SALT},
            "mechanism": make_mechanism("collision", epsilon=3.0, max_entries=3),
        }
    )
    state = simulate(task, crowd(LONG[:300]), seed=3).state
    assert truncation_in_reports(task, state) is None
    result = estimate(task, state)
    assert result.truncation is None
    assert any("How many were longer is not known here" in note for note in result.notes)
    with refused("count_lengths"):
        estimate(task, state, correct=True)


def test_tables_are_counted_exactly() -> None:
    """By plain fractions."""
    lengths = [0, 2, 3, 4, 27, 8]
    plain = Task.parse(
        {
            "name": "t",
            "keys": {"kind": "closed", "size": 50, "salt": SALT},
            "mechanism": make_mechanism("collision", epsilon=1.0, max_entries=3),
        }
    )
    for task, kept in ((plain, 3), (counting(plain.mechanism, 50), 2)):
        found = truncation_of_table(task, np.array(lengths))
        assert found is not None
        long = [length for length in lengths if length > 3]
        assert found.longer == pytest.approx(len(long) / 6)
        assert found.dropped == pytest.approx(sum(length - kept for length in long) / sum(lengths))
        assert found.lost == pytest.approx(sum(1 - kept / length for length in long) / 6)
        assert found.factor == pytest.approx(27 / kept)
        assert found.alarming
        assert "no guarantee covers" in found.words()
    whole = Task.parse(
        {
            **plain.model_dump(),
            "mechanism": make_mechanism("sparse_sum", epsilon=1.0, max_entries=3, unit="entry"),
        }
    )
    assert truncation_of_table(whole, np.array(lengths)) is None


def test_what_is_a_warning() -> None:
    """Five percent of a table; in reports, whatever may be that much, unless hardly a record can have been long."""
    plain = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), 50)
    for short, alarming in ((37, False), (36, True)):  # of 40 or 39 entries, two are dropped
        found = truncation_of_table(plain, np.array([1] * (short - 1) + [4]))
        assert found is not None
        assert found.dropped == pytest.approx(2 / (short + 3))
        assert found.alarming == alarming

    def made(longer: float, error: float, most: float = 1.0) -> Truncation:
        return Truncation(3, "reports", longer, error, longer, error, dropped_most=most)

    assert made(0.02, 0.014).alarming  # they may hold most entries
    assert made(0.0, 0.014).alarming  # and they may be there
    assert not made(0.0, 0.004).alarming  # but not one in a hundred
    assert not made(0.001, 0.0004).alarming
    assert made(0.001, 0.0002).alarming  # some for certain, and nobody knows how long
    assert not made(0.02, 0.014, most=0.05).alarming


@pytest.mark.parametrize("limit", [2, 3, 7])
def test_the_two_keys_leave_limits_for_what_was_dropped(limit: int) -> None:
    """For exact counts and thousands of crowds the truth is within them, and next to one where lengths are extreme."""
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=limit), 40)
    rng, room = np.random.default_rng(limit), limit - 1

    def limits(lengths: Any) -> tuple[float, float, float]:
        long = lengths[lengths > limit]
        kept, lost = (float(part.sum()) / len(lengths) for part in (room / long, 1 - room / long))
        known = truncation_of_table(task, lengths)
        assert known is not None
        assert known.dropped is not None
        return known.dropped, *_dropped(task, (kept, 0.0), (lost, 0.0))

    for _ in range(1000):
        lengths = rng.integers(1, rng.integers(2, 41), 50)
        dropped, least, most = limits(lengths)
        assert least - 1e-12 <= dropped <= most + 1e-12
    dropped, least, _ = limits(np.array([limit] * 40 + [20] * 10))
    assert least == pytest.approx(dropped, abs=0.03)
    dropped, _, most = limits(np.array([1] * 40 + [limit + 1] * 5 + [40] * 5))
    assert most == pytest.approx(dropped, abs=0.05)


def test_noise_widens_the_limits_and_an_open_vocabulary_has_none() -> None:
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=3)
    task = counting(mechanism, 40)
    least, most = _dropped(task, (0.1, 0.0), (0.3, 0.0))
    wide = _dropped(task, (0.1, 0.02), (0.3, 0.02))
    assert wide[0] < least < most < wide[1]
    assert _dropped(counting(mechanism, None, kind="folded", bits=20), (0.1, 0.0), (0.3, 0.0)) == (least, 1.0)
    assert _dropped(counting(mechanism, 3), (0.1, 0.1), (0.3, 0.1)) == (0.0, 0.0)
    assert _dropped(task, (0.0, 0.0), (0.0, 0.0)) == (0.0, 0.0)


def test_estimates_carry_it_and_warn() -> None:
    task = counting(make_mechanism("collision", epsilon=3.0, max_entries=3))
    state = simulate(task, crowd(LONG), seed=3).state
    result = estimate(task, state)
    assert result.truncation is not None
    (warning,) = result.warnings
    assert "of all records were longer than 3 entries" in warning
    assert str(result).startswith(warning)
    assert result.about()["truncation"]["source"] == "reports"
    known = truncation_of_table(task, np.diff(crowd(LONG).offsets))
    told = estimate(task, state, truncation=known)
    assert told.truncation == known
    assert told.warnings[0].startswith("55% of all entries were dropped")


# Correction


def test_corrected_intervals_hold_the_whole_truth() -> None:
    """A key that all records hold, short and long ones alike, in 240 collections.

    95% within 5 standard deviations (false alarms below 1e-6). Uncorrected intervals, and corrected ones that do not
    count how uncertain the correction is, are rejected.
    """
    task = counting(make_mechanism("collision", epsilon=1.0, max_entries=3), bits=10)
    rng = np.random.default_rng(5)
    lengths = [8 if i % 5 < 2 else 2 for i in range(4000)]
    entries = crowd([[0, *(1 + rng.permutation(19))[: length - 1].tolist()] for length in lengths])
    truth = 1.0
    hits = Counter()
    for run in range(240):
        state = simulate(task, entries, seed=7000 + 31 * run).state
        plain = estimate(task, state, ["0"])
        assert plain.truncation is not None
        columns, sure = (
            (plain.value, plain.error, plain.low, plain.high),
            replace(plain.truncation, lost_error=0.0),
        )
        for name, lost in (("fixed", plain.truncation), ("sure", sure)):
            _, _, low, high = corrected(columns, lost, width_for(0.95))
            hits[name] += bool(low[0] <= truth <= high[0])
        hits["plain"] += bool(plain.low[0] <= truth <= plain.high[0])
    slack = 5 * math.sqrt(0.95 * 0.05 / 240)
    assert abs(hits["fixed"] / 240 - 0.95) < slack
    assert hits["plain"] / 240 < 0.95 - slack
    assert hits["sure"] / 240 < 0.95 - slack


@pytest.mark.parametrize("every", [1, 5], ids=["75% lost", "15% lost"])
def test_corrected_intervals_hold_where_they_are_given(every: int) -> None:
    """For 94% or more of 400 collections of 1000 people who all have the key, where all or every fifth have too many.

    Fewer hits than this would give once in a million tries are an alarm. Intervals that are 30% too short raise it.
    With three quarters lost, some collections are refused, but not many.
    """
    task = counting(make_mechanism("collision", epsilon=2.0, max_entries=2), bits=10)
    rng = np.random.default_rng(5)
    lengths = [2 if i % every else 4 for i in range(1000)]
    entries = crowd([[0, *(1 + rng.permutation(19))[: length - 1].tolist()] for length in lengths])
    given, hits, short = 0, 0, 0
    for run in range(400):
        plain = estimate(task, simulate(task, entries, seed=7000 + 31 * run).state, ["0"])
        lost, value = plain.truncation, plain.value
        assert lost is not None
        columns = (value, plain.error, plain.low, plain.high)
        narrow = (value, plain.error, 0.3 * value + 0.7 * plain.low, 0.3 * value + 0.7 * plain.high)
        try:
            _, _, low, high = corrected(columns, lost, width_for(0.95))
        except Refused:
            continue
        given += 1
        hits += bool(low[0] <= 1 <= high[0])
        _, _, low, high = corrected(narrow, replace(lost, lost_error=0.7 * lost.lost_error), width_for(0.95))
        short += bool(low[0] <= 1 <= high[0])
    assert given > 370
    least = binom.ppf(1e-6, given, 0.94)
    assert hits >= least > short


def test_a_corrected_estimate_says_what_it_assumes() -> None:
    task = counting(make_mechanism("collision", epsilon=3.0, max_entries=3))
    state = simulate(task, crowd(LONG), seed=3).state
    plain, fixed = estimate(task, state), estimate(task, state, correct=True)
    assert plain.truncation is not None
    kept = 1 - plain.truncation.lost
    assert np.allclose(fixed.value, plain.value / kept)
    assert fixed.findings.floor == pytest.approx(plain.findings.floor / kept)
    assert any("assumes that short and long records hold a key alike" in note for note in fixed.notes)
    assert np.array_equal(fixed.flagged, plain.flagged)
    total = estimate(task, state, quantity="sum", correct=True)
    assert np.allclose(total.high, 6000 * fixed.high)
    # What is said first does not say that they come out too low, which somebody might correct once more.
    table = truncation_of_table(task, np.full(6000, 9))
    for lost in (None, table):
        low, right = (estimate(task, state, truncation=lost, correct=way) for way in (False, True))
        assert "sampling down" in low.warnings[0]
        assert "sampling down" not in right.warnings[0]
        assert (
            "Estimates are corrected for it, as if short and long records held a key alike"
            in right.warnings[0]
        )
        assert low.truncation is not None
        assert right.truncation is not None
        assert "of what was kept" in low.truncation.short() or "that were kept" in low.truncation.short()
        assert "corrected for it" in right.truncation.short()
        assert "corrected" not in estimate(task, state, truncation=lost).truncation.words()
    # The largest share that was seen is what sampling down left of it.
    kept_of_it = largest_seen(task, estimate(task, state, truncation=table))
    assert kept_of_it is not None
    seen = largest_seen(task, estimate(task, state, truncation=table, correct=True))
    assert seen == pytest.approx(kept_of_it / kept * (1 - table.lost))


def test_without_uncertainty_the_correction_only_scales() -> None:
    columns = (np.array([0.5, -0.1]), np.array([0.1, 0.1]), np.array([0.2, -0.4]), np.array([0.9, 0.1]))
    exact = Truncation(3, "reports", 0.4, 0.0, 0.2, 0.0)
    for old, new in zip(columns, corrected(columns, exact, 1.96), strict=True):
        assert np.allclose(new, old / 0.8)
    corrected(columns, Truncation(3, "reports", 0.9, 0.1, 0.7, 0.15), 1.96)
    with refused("nothing can be corrected"):
        corrected(columns, Truncation(3, "reports", 0.9, 0.2, 0.7, 0.16), 1.96)


def test_conditional_means_need_no_correction() -> None:
    """A quotient of two estimates that lose the same share."""
    mechanism = make_mechanism("coco", epsilon=3.0, max_entries=3, values="signed", target="conditional")
    task = counting(mechanism)
    state = simulate(task, crowd(LONG), seed=3).state
    plain, fixed = (estimate(task, state, quantity="conditional", correct=way) for way in (False, True))
    assert np.array_equal(plain.value, fixed.value)


def test_a_limit_with_which_nothing_stands_out_is_not_praised() -> None:
    """Few people, many keys, long records: the least error is one entry's, and says nothing about any key."""
    task = Task.parse(
        {
            "name": "hopeless",
            "keys": {"kind": "closed", "size": 20_000, "salt": SALT},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 4},
        }
    )
    lengths = np.array([1] * 900 + [60] * 100)
    records = Entries(
        np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(1001, dtype=np.int64)
    )
    state = simulate(task, records, 1).state
    found = estimate(task, state, truncation=truncation_of_table(task, lengths))
    told = advised(task, found, dict(Counter(lengths.tolist()))).truncation
    assert told is not None
    assert told.outstanding == 0
    assert told.words().endswith("though no key is planned to stand out even then.")
    assert replace(told, outstanding=3).words().endswith("would have the least error.")
