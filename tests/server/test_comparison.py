"""Differences of two collections: intervals that hold, and nothing shown as different that is not."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import prose, refuse, refused, small_task, succeed
from hubbub.checks.conformance import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Quantity
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.protocol.files import save_state
from hubbub.protocol.task import Task
from hubbub.server.comparison import Comparison, compare, contrast
from hubbub.server.estimates import estimate
from hubbub.server.findings import width_for
from hubbub.server.fold import aggregate
from hubbub.server.truncation import Truncation
from hubbub.simulation.rehearsal import repeated_states, simulate, true_values

KEYS = 24


def crowd(shares: np.ndarray, people: int, seed: int, high: float = 1.0) -> Entries:
    """People who hold key i with probability shares[i], with values that grow with the key."""
    rng = np.random.default_rng(seed)
    held = rng.random((people, len(shares))) < shares
    _, ids = np.nonzero(held)
    values = np.where(rng.random(len(ids)) < high, GRID, -GRID)
    offsets = np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int64)
    return Entries(ids.astype(np.uint64), values.astype(np.int64), offsets)


BEFORE = np.concatenate([[0.5, 0.2, 0.2, 0.05], np.zeros(KEYS - 4)])
AFTER = np.concatenate([[0.3, 0.2, 0.45, 0.05], np.zeros(KEYS - 4)])


def set_task(epsilon: float = 2.0) -> Task:
    return task_for(make_mechanism("collision", epsilon=epsilon, max_entries=4), KEYS)


def signed_task() -> Task:
    return task_for(make_mechanism("sketch_response", epsilon=2.0, max_entries=4, values="signed"), KEYS)


def held_share(task: Task, quantity: str, runs: int, people: int, shrink: float = 1.0) -> tuple[float, float]:
    """How often single intervals and all simultaneous ones together hold; `shrink` plants too narrow ones."""
    signed = quantity != "frequency"
    sides = [
        crowd(BEFORE, people, 1, 0.5 if signed else 1.0),
        crowd(AFTER, people // 2, 2, 0.9 if signed else 1.0),
    ]
    ids = task.keys.all_ids()
    truth = np.subtract(*(true_values(task, side, quantity, ids) for side in reversed(sides)))
    inside, together = [], []
    states = zip(
        *(repeated_states(task, side, runs, 7 + place) for place, side in enumerate(sides)), strict=True
    )
    for one, two in states:
        for simultaneous in (False, True):
            found = compare((task, one), (task, two), None, quantity, simultaneous=simultaneous)
            low = found.difference + shrink * (found.low - found.difference)
            high = found.difference + shrink * (found.high - found.difference)
            held = (low <= truth) & (truth <= high)
            (together.append(held.all()) if simultaneous else inside.append(held.mean()))
    return float(np.mean(inside)), float(np.mean(together))


@pytest.mark.parametrize("people", [120, 1000])
@pytest.mark.parametrize("quantity", ["frequency", "mean"])
def test_intervals_of_differences_hold(quantity: str, people: int) -> None:
    """100 comparisons of 24 keys, one by one and all together; 30% too narrow is noticed.

    If each of 100 runs holds with 95%, fewer than 83 do with probability 2e-6 (and simultaneous intervals hold more
    often than they say). Of 2,400 single intervals 95% is 5 of their standard errors from the limits, and 0.7 times the
    width holds 83%.
    """
    task = set_task() if quantity == "frequency" else signed_task()
    alone, together = held_share(task, quantity, 100, people)
    assert 0.925 <= alone <= 0.975
    assert together >= 0.83
    narrow, _ = held_share(task, quantity, 30, people, 0.7)
    assert narrow < 0.90


def one_comparison(people: int = 20_000, seed: int = 0, **options: object) -> Comparison:
    task = set_task()
    sides = [crowd(shares, people, place) for place, shares in enumerate((BEFORE, AFTER))]
    one, two = (next(repeated_states(task, side, 1, seed + place)) for place, side in enumerate(sides))
    return compare((task, one), (task, two), **options)  # type: ignore[arg-type]


def test_what_moved_is_found_and_nothing_else() -> None:
    """Differences of -0.2 and +0.25 are 15 errors and more; 21 equal keys are all kept together with 95%."""
    found = one_comparison()
    assert set(np.array(found.keys)[found.differs]) == {"0", "2"}
    assert found.difference[0] < -0.1 < 0.1 < found.difference[2]
    assert found.top(2).keys == ("2", "0")
    assert "2 of 24 keys differ between the first and the second" in found.words()
    assert (found.count, found.candidates, found.take([5]).count) == (2, 24, 2)
    assert "cannot be told apart" in str(found)


def test_the_difference_is_that_of_the_estimates_and_so_is_its_error() -> None:
    task, sides = set_task(), [crowd(BEFORE, 100_000, 1), crowd(AFTER, 100_000, 2)]
    one, two = (next(repeated_states(task, side, 1, place)) for place, side in enumerate(sides))
    found = compare((task, one), (task, two))
    each = [estimate(task, state, average=True) for state in (one, two)]
    assert found.difference == pytest.approx(each[1].value - each[0].value)
    assert found.error == pytest.approx(np.sqrt(each[0].error ** 2 + each[1].error ** 2))
    # Counts are large: the interval is the normal one.
    assert found.high - found.difference == pytest.approx(1.959964 * found.error, rel=0.05)


def test_pairs_that_are_compared_together_need_more() -> None:
    alone, many = one_comparison(simultaneous=True), one_comparison(simultaneous=True, pairs=1000)
    assert (many.high - many.low > 1.1 * (alone.high - alone.low)).all()


def test_where_nothing_differs_nothing_is_shown() -> None:
    wide = task_for(make_mechanism("collision", epsilon=1.0, max_entries=4), 500)
    states = list(repeated_states(wide, crowd(np.full(500, 0.004), 3000, 5), 2, 6))
    found = compare((wide, states[0]), (wide, states[1]))
    assert found.count == 0
    assert len(found.worth_showing(20)) == 0
    assert "cannot be told apart in any of 500 keys" in found.words()


def test_a_mean_of_keys_nobody_has_is_unknown() -> None:
    task = task_for(make_mechanism("coco", epsilon=2.0, max_entries=4), KEYS)
    sides = [crowd(BEFORE, 20_000, 1), crowd(AFTER, 20_000, 2, 0.2)]
    one, two = (next(repeated_states(task, side, 1, place)) for place, side in enumerate(sides))
    found = compare((task, one), (task, two), quantity="conditional")
    unknown = ~np.isfinite(found.error)
    assert unknown[4:].sum() >= 15
    assert not found.differs[unknown].any()
    assert found.differs[[0, 2]].all()
    assert found.rows()[int(np.flatnonzero(unknown)[0])]["low"] is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (small_task(size=11), "other keys"),
        (small_task(max_entries=3), "max_entries"),
        (small_task("coco"), "other values"),
    ],
)
def test_only_what_asks_the_same_is_compared(other: Task, words: str) -> None:
    task = small_task()
    states = [aggregate(each, b"\0" * each.mechanism.layout.width * 4) for each in (task, other)]
    with refused(words):
        compare((task, states[0]), (other, states[1]))


def test_another_epsilon_asks_the_same() -> None:
    sides = []
    for place, (epsilon, shares) in enumerate(((4.0, BEFORE), (2.0, AFTER))):
        task = set_task(epsilon)
        sides.append((task, next(repeated_states(task, crowd(shares, 20_000, place), 1, place))))
    found = compare(*sides)
    assert found.guarantee.epsilon == 4.0
    assert any("add up to 6" in note for note in found.notes)
    assert found.differs[[0, 2]].all()


def test_sums_and_odd_wishes_are_refused() -> None:
    with refused("Sums grow"):
        one_comparison(50, quantity="sum")
    with refused("At least one pair"):
        one_comparison(50, pairs=0)
    with refused("level must be"):
        one_comparison(50, level=1.5)


def test_the_command(tmp_path: Path) -> None:
    task, names = set_task(), ("before.state", "after.state")
    for place, (name, shares) in enumerate(zip(names, (BEFORE, AFTER), strict=True)):
        state = next(repeated_states(task, crowd(shares, 20_000, place), 1, place))
        save_state(tmp_path / name, task, state)
    files = [tmp_path / name for name in names]
    said = succeed("compare", *files, "-o", tmp_path / "c.csv")
    assert (said["differ"], said["total"], said["sides"]) == (2, 24, list(names))
    assert [row["key"] for row in said["differences"][:2]] == ["2", "0"]
    assert (
        (tmp_path / "c.csv").read_text().startswith("key,first,second,difference,error,low,high,differs,of")
    )
    text = prose("compare", *files, "0", "5")
    assert "1 of 2 keys differs between before.state and after.state" in text
    assert "cannot be told apart" in text
    for name in ("c.json", "c.parquet"):
        succeed("compare", *files, "--simultaneous", "-o", tmp_path / name)
    assert len(json.loads((tmp_path / "c.json").read_text())["differences"]) == KEYS
    assert "not in the task" in refuse("compare", *files, "nonsense")
    assert "a name that ends in" in refuse("compare", *files, "-o", tmp_path / "c.txt")
    assert not (tmp_path / "c.txt").exists()


@pytest.fixture
def alike_and_long(tmp_path: Path) -> list[Path]:
    """States of the same people twice, who all have 12 keys of which 2 count, and lengths are counted."""
    task = Task.parse(
        {
            **small_task("collision", 30, epsilon=2.0).model_dump(),
            "keys": {"kind": "closed", "size": 30, "count_lengths": True},
        }
    )
    entries = Entries(
        np.tile(np.arange(12, dtype=np.uint64), 4000),
        np.full(48_000, GRID, dtype=np.int64),
        np.arange(0, 48_001, 12, dtype=np.int64),
    )
    paths = [tmp_path / name for name in ("one.state", "two.state")]
    for seed, path in enumerate(paths):
        save_state(path, task, simulate(task, entries, seed).state)
    return paths


def test_warnings_come_first_and_are_in_files(alike_and_long: list[Path], tmp_path: Path) -> None:
    """That nothing differs, and what was dropped on each side: in text, JSON, CSV and Parquet."""
    text = prose("compare", *alike_and_long)
    assert text.startswith("one.state and two.state cannot be told apart in any of 30 keys: ")
    assert text.count("cannot be told apart in any") == 1
    assert text.index("one.state: ") < text.index("two.state: ") < text.index("Somebody who reported")
    said = succeed("compare", *alike_and_long)
    assert next(iter(said)) == "warnings"
    assert [re.sub(r"[\d.]+% ± [\d.]+%", "#", words)[:42] for words in said["warnings"][1:]] == [
        f"{path.name}: # of all records were longer than 2"[:42] for path in alike_and_long
    ]
    for name in ("c.json", "c.csv", "c.parquet"):
        succeed("compare", *alike_and_long, "-o", tmp_path / name)
    assert json.loads((tmp_path / "c.json").read_text())["warnings"] == said["warnings"]
    table = pq.read_table(tmp_path / "c.parquet")
    assert json.loads(table.schema.metadata[b"hubbub"])["warnings"] == said["warnings"]
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    for written in (rows, table.to_pylist()):
        assert written[0]["note"] == " ".join((*said["warnings"], *said["notes"]))
        assert {row["note"] for row in written[1:]} == {""}
        assert all(
            float(row[f"{side}_long_records"]) > 0.7 for row in written for side in ("first", "second")
        )


def test_what_differs_is_said_after_what_was_dropped() -> None:
    found = one_comparison()
    assert found.warnings == ()
    assert str(found).startswith("2 of 24 keys differ")
    lost = Truncation(4, "reports", 0.3, 0.02, 0.2, 0.02)
    cut = replace(found, losses=(("the first", None), ("the second", lost)))
    assert cut.warnings == (f"the second: {lost.words()}",)
    assert str(cut).startswith("the second: 30% ± 2.0% of all records were longer")
    assert cut.about()["warnings"] == list(cut.warnings)


def test_a_handful_of_reports_says_what_it_cannot_see() -> None:
    found = one_comparison(3)
    assert found.count == 0
    assert found.floor == math.inf  # shares differ by 1 at most
    assert found.warnings[0].endswith("no difference, however large, would have been seen.")
    assert (found.low <= found.difference).all()
    assert (found.difference <= found.high).all()


def one_key_each(people: int, keys: int) -> Entries:
    """Three in ten hold key 0, two in ten key 1, the others key 2: the same shares whatever the number."""
    ids = np.repeat([0, 1, 2], [3 * people // 10, 2 * people // 10, people - 5 * people // 10])
    return Entries(
        ids.astype(np.uint64), np.full(people, GRID, dtype=np.int64), np.arange(people + 1, dtype=np.int64)
    )


@pytest.mark.parametrize(
    ("name", "epsilon", "sizes"),
    [
        ("hadamard", 4.0, (100, 1000)),
        ("hadamard", 2.0, (100, 2000)),
        ("compressive", 4.0, (200, 4000)),
        ("sparse_sum", 4.0, (100, 1000)),
        ("sparse_sum", 4.0, (20, 400)),
        ("local_hashing", 4.0, (60, 1500)),
    ],
)
def test_groups_that_are_alike_do_not_differ(name: str, epsilon: float, sizes: tuple[int, int]) -> None:
    """Whatever the mechanism, and however unequal the groups: in 40 collections from groups with equal shares, one in
    twenty may show a difference. (False alarms: 13 or more have probability 4e-8.)
    """
    task = task_for(make_mechanism(name, epsilon=epsilon, max_entries=1), 32)
    crowds = [one_key_each(size, 32) for size in sizes]
    states = zip(*(repeated_states(task, each, 40, 5 + n) for n, each in enumerate(crowds)), strict=True)
    different = sum(bool(compare((task, one), (task, two)).count) for one, two in states)
    assert different < 13


def differs_as_drawn(task: Task, one: State, two: State, quantity: Quantity = "frequency") -> bool:
    """Whether anything would differ with intervals for the people and entries that were drawn."""
    first, second = (estimate(task, state, None, quantity, simultaneous=True) for state in (one, two))
    sides = (first, second)
    return contrast(task, sides, sides, 0.95, True, sides=("one", "two"), pairs=1).count > 0


def test_turns_are_of_different_people() -> None:
    """Where devices take turns, two weeks are of different people, and differ by that, too.

    20,000 people who never change, epsilon 8, four turns; in 40 pairs of weeks, one in twenty may show a difference
    (13 or more: 4e-8). Without what drawing people adds, most of them do.
    """
    held = {"name": "freq_est", "epsilon": 8.0, "max_entries": 1, "size": 16}
    keys = {"kind": "closed", "size": 16, "salt": "00" * 16}
    plain = Task.parse({"name": "turns", "period": "week", "keys": keys, "mechanism": held})
    turns = plain.model_copy(update={"rotation": 4})
    rng = np.random.default_rng(8)
    ids = rng.choice(16, 20_000, p=np.full(16, 1 / 16)).astype(np.uint64)
    found = {1: 0, 4: 0}
    for run in range(40):
        order = rng.permutation(20_000)
        weeks = []
        for week in range(2):
            mine = ids[order[5000 * week : 5000 * (week + 1)]]
            people = Entries(mine, np.full(5000, GRID, dtype=np.int64), np.arange(5001, dtype=np.int64))
            weeks.append(next(iter(repeated_states(plain, people, 1, 100 + 2 * run + week))))
        found[4] += bool(compare((turns, weeks[0]), (turns, weeks[1])).count)
        found[1] += differs_as_drawn(plain, *weeks)
    assert found[4] < 13
    assert found[1] > 20


@pytest.mark.parametrize(("name", "quantity"), [("freq_est", "frequency"), ("pckv_grr", "mean")])
def test_the_same_long_records_do_not_differ(name: str, quantity: Quantity) -> None:
    """Devices draw anew which entries of a long record count: the same people must not differ by that.

    2,000 people who all have 16 keys of which one counts, epsilon 8; in 20 pairs of collections, one in twenty may show
    a difference (9 or more: 2e-7). With intervals for the entries that were drawn, most of them do.
    """
    held = {"name": name, "epsilon": 8.0, "max_entries": 1, "size": 16}
    keys = {"kind": "closed", "size": 16, "salt": "00" * 16}
    task, people = Task.parse({"name": "long", "keys": keys, "mechanism": held}), 2000
    records = Entries(
        np.tile(np.arange(16, dtype=np.uint64), people),
        np.full(16 * people, GRID, dtype=np.int64),
        16 * np.arange(people + 1, dtype=np.int64),
    )
    states, found, drawn = list(repeated_states(task, records, 40, 3)), 0, 0
    for one, two in zip(states[:20], states[20:], strict=True):
        compared = compare((task, one), (task, two), None, quantity)
        assert any("allow for all of them having been drawn" in note for note in compared.notes)
        found += bool(compared.count)
        drawn += differs_as_drawn(task, one, two, quantity)
    assert found < 9 < drawn


def rare_noise(epsilon: float, people: tuple[int, int], runs: int) -> tuple[Task, list[tuple[State, State]]]:
    """A task over 400 keys, and pairs of collections from people who have none of them."""
    task = small_task("collision", 400, epsilon=epsilon)
    crowds = [crowd(np.zeros(400), each, 1) for each in people]
    states = (repeated_states(task, each, runs, 40 + side) for side, each in enumerate(crowds))
    return task, list(zip(*states, strict=True))


def test_who_asks_for_one_key_may_have_seen_the_others() -> None:
    """The key whose difference is luckiest, asked for by name, is judged among all: it differs in 1 of 20 comparisons.

    Judged by itself, as it was before, it differs in all 12. Differing in 8 of 12 has probability 2e-8 at 1 in 20.
    """
    task, states = rare_noise(1.0, (1500, 1500), 12)
    named = alone = 0
    for one, two in states:
        everything = compare((task, one), (task, two))
        luckiest = everything.top(1)
        found = compare((task, one), (task, two), [luckiest.keys[0]])
        assert found.differs.tolist() == luckiest.differs.tolist()
        both = compare((task, one), (task, two), [luckiest.keys[0]], simultaneous=True)
        assert both.differs.tolist() == luckiest.differs.tolist()
        assert found.low == pytest.approx(luckiest.low)
        named += bool(found.count)
        alone += bool(found.low[0] > 0 or found.high[0] < 0)
    assert named < 8
    assert alone == 12


@pytest.mark.parametrize(("epsilon", "people"), [(1.0, (1500, 1500)), (5.0, (1500, 1500)), (5.0, (400, 120))])
def test_the_difference_that_is_seen_every_other_time(epsilon: float, people: tuple[int, int]) -> None:
    """Of a key that nobody has on the side with less noise: in 18% to 82% of 60 pairs (5 standard deviations, false
    alarms below 1e-6). The width of the typical error, taken before, is hardly ever seen at epsilon 5, in under 18%.
    """
    task, states = rare_noise(epsilon, people, 60)
    first = compare((task, states[0][0]), (task, states[0][1]))
    before = width_for(0.95, 400) * float(np.median(first.error))

    def seen(difference: float) -> float:
        shares = np.where(np.arange(400) == 7, difference, 0.0)
        others = repeated_states(task, crowd(shares, people[1], 2), 60, 90)
        pairs = ((one, two) for (one, _), two in zip(states, others, strict=True))
        return float(np.mean([compare((task, one), (task, two), ["7"]).count for one, two in pairs]))

    assert 0.18 < seen(first.floor) < 0.82
    if epsilon > 1:
        assert seen(before) < 0.18
