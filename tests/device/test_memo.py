"""Records that are memoized: one report each, said again while the record is the same, and a cap for all time."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import prose, refused
from hubbub.calls.amplify import amplify
from hubbub.checks.exact import Enumeration, FixedSeeds, worst_ratio
from hubbub.collect.keypair import KeyPair
from hubbub.collect.shuffler import Shuffler
from hubbub.device import ledger as ledger_module
from hubbub.device import memo
from hubbub.device.budget import Budget
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.primitives.errors import BudgetSpent
from hubbub.privacy.compose import Round
from hubbub.privacy.over_time import over_time, spending
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task

START = datetime.date(2026, 1, 5)
WEEKS = [START + datetime.timedelta(days=7 * week) for week in range(60)]
PUBLIC = KeyPair(bytes(range(32))).public


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


@pytest.fixture
def make(make_task: Any) -> Any:
    """A weekly task that memoizes, with reports that are never alike by chance."""

    def make(cap: int = 3, **parameters: Any) -> Task:
        rules = {"period": "week", "seed_bits": 64, "memoize": "record", "memoize_cap": cap}
        task: Task = make_task(**{**rules, **parameters})
        return task

    return make


def say(
    ledger: Ledger, task: Task, records: Sequence[Any], weeks: Sequence[datetime.date] = WEEKS
) -> list[bytes]:
    """What is seen week by week; silence is b""."""
    said = []
    for record, day in zip(records, weeks, strict=False):
        try:
            said.append(ledger.report(task, record, day))
        except BudgetSpent:
            said.append(b"")
    return said


def pattern(said: Sequence[bytes]) -> tuple[int, ...]:
    """Which answers are alike, numbered by first appearance."""
    numbers: dict[bytes, int] = {}
    return tuple(numbers.setdefault(each, len(numbers)) for each in said)


def test_one_report_per_distinct_record(path: Path, make: Any) -> None:
    """A record that is back is known again. A fourth one says what was said last, and known ones go on as they were."""
    a, b, c, d = ["1"], ["2", "3"], [], ["9"]
    task = make(cap=3)
    said = say(Ledger(path), task, [a, a, b, a, c, d, b, d, ["11"], c, a])
    assert pattern(said) == (0, 0, 1, 0, 2, 2, 1, 1, 1, 2, 0)
    assert Ledger(path).spent(task) == 3.0
    assert len(Ledger(path).report(task, a, WEEKS[11])) == task.mechanism.layout.width


def test_the_first_answer_of_a_period_stands(path: Path, make: Any) -> None:
    task, ledger = make(), Ledger(path)
    first = ledger.fresh(task, ["1"], START)
    before = path.read_bytes()
    assert ledger.report(task, ["2"], START + datetime.timedelta(days=3)) == first
    with pytest.raises(BudgetSpent, match="1 of 1 reports made"):
        ledger.fresh(task, ["2"], START)
    assert path.read_bytes() == before
    assert ledger.fresh(task, ["1"], WEEKS[1]) == first  # to be sent, and counted, in this week, too
    assert ledger.report(task, ["2"], WEEKS[2]) != first
    assert ledger.report(task, ["2"], START) == first  # a clock that was put back


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        (["1", "2"], ["2", "1"], True),
        (["1", "2"], {"2": 1.0, "1": True, "3": 0}, True),
        (["1"], [1, "1", "nobody", None], True),
        ([], {"1": math.nan}, True),
        (["1"], ["2"], False),
        (["1"], [], False),
        ([str(key) for key in range(30)], [str(key) for key in reversed(range(30))], True),
        ([str(key) for key in range(30)], [str(key) for key in range(31)], False),
    ],
)
def test_equal_sets(one: Any, two: Any, alike: bool, path: Path, make: Any) -> None:
    """What is left out does not count, and records that are too long are compared whole."""
    said = say(Ledger(path), make(), [one, two])
    assert (said[0] == said[1]) == alike


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        ({"1": 0.5, "2": -1}, {"2": -1, "1": 0.5}, True),
        ({"1": 1.0}, {"1": 7.0}, True),  # clipped
        ({"1": 0.25}, {"1": 0.25 + 1e-12}, True),  # less than the grid has
        ({"1": 0.0}, {"1": -0.0}, True),
        ({"1": 0.0}, {}, False),
        ({"1": 0.25}, {"1": 0.26}, False),
        ({"1": 0.5, "2": 1}, {"1": 1, "2": 0.5}, False),
    ],
)
def test_equal_values(one: Any, two: Any, alike: bool, path: Path, make: Any) -> None:
    task = make(name="sketch_response", values="signed")
    said = say(Ledger(path), task, [one, two])
    assert (said[0] == said[1]) == alike


def test_a_record_that_can_be_read_once(path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is what is randomized."""
    seen = []
    shipped = memo.privatize
    monkeypatch.setattr(
        memo,
        "privatize",
        lambda task, entries, *rest: seen.append(len(entries.ids)) or shipped(task, entries, *rest),
    )
    Ledger(path).report(make(), (key for key in ("1", "2", "3")), START)
    assert seen == [3]


# What is seen, exactly


def laws(task: Task, folder: Path, records: Sequence[Any], weeks: int, monkeypatch: Any) -> dict[Any, Any]:
    """The exact law of all that is seen, for every sequence of these records, through the ledger that ships."""
    number = itertools.count()

    def law(sequence: Sequence[Any]) -> Any:
        def run(coins: Any) -> Any:
            monkeypatch.setattr(memo, "SecretCoins", lambda: coins)
            ledger = Ledger(folder / f"{next(number)}.json")
            return tuple(say(ledger, task, [records[each] for each in sequence]))

        return Enumeration().law(run)

    monkeypatch.setattr(memo, "SystemSeeds", lambda: FixedSeeds(0, task.mechanism.seeds_per_report))
    monkeypatch.setattr(ledger_module, "write_atomic", lambda path, data, private: path.write_bytes(data))
    return {each: law(each) for each in itertools.product(range(len(records)), repeat=weeks)}


def shown(sequence: Sequence[int], cap: int) -> tuple[int, ...]:
    """The pattern of a sequence: which report is said when, numbered as they are made."""
    made: dict[int, int] = {}
    said: list[int] = []
    for record in sequence:
        if record not in made and len(made) < cap:
            made[record] = len(made)
        said.append(made.get(record, said[-1] if said else 0))
    return tuple(said)


@pytest.mark.parametrize(("cap", "epsilon"), [(1, 1.0), (2, 0.5), (3, 1.0)])
def test_three_weeks_exactly(
    cap: int, epsilon: float, tmp_path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sequence of three records over three weeks, every way that coins can fall, all that is seen.

    Sequences with one pattern differ by epsilon for each report that they made: by epsilon if the record never changes,
    by cap times epsilon at most. Sequences with different patterns can be told apart for certain, as is said.
    """
    rules = {"period": "week", "memoize": "record", "memoize_cap": cap}
    task = make_task("local_hashing", size=3, epsilon=epsilon, max_entries=1, buckets=2, **rules)
    found = laws(task, tmp_path, ([], ["0"], ["1"]), 3, monkeypatch)
    assert all(sum(law.values()) == 1 for law in found.values())
    assert not any(b"" in said for law in found.values() for said in law)  # nobody is silent
    alike: dict[tuple[int, ...], list[Any]] = {}
    for sequence, law in found.items():
        alike.setdefault(shown(sequence, cap), []).append(law)
    assert len(alike) == {1: 1, 2: 4, 3: 5}[cap]
    for seen, those in alike.items():
        made = 1 + max(seen)
        loss = math.log(worst_ratio(those))
        assert loss <= made * epsilon + 1e-9
        if made <= 2:  # for three of them, a universe of three is too small to use all of it
            assert loss == pytest.approx(made * epsilon, abs=1e-9)
    if cap > 1:
        assert math.isinf(worst_ratio([found[0, 0, 0], found[0, 1, 0]]))
    else:
        assert math.log(worst_ratio(list(found.values()))) == pytest.approx(epsilon, abs=1e-9)


def test_a_louder_memo_is_noticed(tmp_path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that makes a report anew for an unchanged record fails the enumeration above."""
    rules = {"period": "week", "memoize": "record", "memoize_cap": 3}
    task = make_task("local_hashing", size=3, epsilon=1.0, max_entries=1, buckets=2, **rules)
    monkeypatch.setattr(memo.Memo, "name", lambda self, entries: bytes([len(self.reports)] * 16))
    found = laws(task, tmp_path, ([], ["0"], ["1"]), 3, monkeypatch)
    constant = [law for sequence, law in found.items() if len(set(sequence)) == 1]
    assert math.log(worst_ratio(constant)) > 1.5


# Budgets, turns, silence


def test_a_budget_sets_the_cap_aside(path: Path, make: Any) -> None:
    """The owner's budget is charged once, with all records that may come; after that the task is never silent."""
    task, ledger = make(cap=3, epsilon=0.5), Ledger(path)
    ledger.limit(Budget(1.4, "ever"), START)
    assert set(say(ledger, task, [["1"], [], ["1"]])) == {b""}
    with pytest.raises(BudgetSpent, match="for each of up to 3 distinct records"):
        ledger.report(task, ["1"], START)
    ledger.limit(Budget(1.5, "ever"), START)
    assert b"" not in say(ledger, task, [[str(week)] for week in range(60)])
    assert ledger.spent(task) == 1.5
    ledger.limit(Budget(1.0, "ever"), START)
    late = WEEKS[-1] + datetime.timedelta(days=7)
    assert [say(ledger, task, [record], [late]) for record in (["1"], ["99"])] == [[b""], [b""]]


@pytest.mark.parametrize("per", ["year", "ever"])
def test_other_tasks_learn_nothing_from_a_budget(per: Any, tmp_path: Path, make: Any, make_task: Any) -> None:
    """When another task falls silent does not depend on how often the record of this one changes."""
    other = make_task(period="week", epsilon=0.25)
    heard = []
    for number, records in enumerate(
        ([["1"]] * 60, [[str(week)] for week in range(60)], [["1"], ["2"]] * 30)
    ):
        ledger = Ledger(tmp_path / f"{number}.json")
        ledger.limit(Budget(2.0, per), START)
        silent = []
        for record, day in zip(records, WEEKS, strict=True):
            ledger.report(make(cap=3, epsilon=0.5), record, day)
            silent.append(say(ledger, other, [["5"]], [day]) == [b""])
        heard.append(silent)
    assert heard[0] == heard[1] == heard[2]
    assert heard[0].index(True) == 2


def test_a_budget_gets_back_what_is_no_longer_used(path: Path, make: Any) -> None:
    """Set aside until a year after the last answer, which may be the first report again."""
    task, ledger = make(cap=2, epsilon=0.5), Ledger(path)
    ledger.limit(Budget(1.0, "year"), START)
    say(ledger, task, [["1"]] * 30)
    other = make(cap=1, epsilon=0.75)
    last = WEEKS[29]
    assert say(ledger, other, [["1"]], [last + datetime.timedelta(days=364)]) == [b""]
    assert say(ledger, other, [["1"]], [last + datetime.timedelta(days=365)]) != [b""]
    assert say(ledger, task, [["1"], ["2"]], [last + datetime.timedelta(days=372 + n) for n in (0, 7)]) == [
        b"",
        b"",
    ]


def test_turns(path: Path, make: Any) -> None:
    """Silent when it is not its turn, whatever the record is; in its turn, as always."""
    task = make(cap=2, rotation=4)
    said = say(Ledger(path), task, [["1"]] * 20 + [["2"]] * 20)
    spoke = [each != b"" for each in said]
    assert sum(spoke) == 10
    assert spoke == spoke[:4] * 10
    assert len(set(said) - {b""}) == 2
    assert Ledger(path).spent(task) == 2.0


def test_the_owner_is_told(path: Path, make: Any) -> None:
    task, ledger = make(cap=4, epsilon=0.5), Ledger(path)
    say(ledger, task, [["1"], ["1"], ["2"], ["1"]])
    ledger.limit(Budget(8.0), WEEKS[3])
    words = prose("ledger", "show", path)
    assert "gets the same report again, which costs nothing" in words
    assert "at most 4 reports for as many distinct records, ever: epsilon = 2" in words
    assert words.count("1 report to a collector") == 2
    assert words.count("an earlier report again, to a collector") == 2
    assert "in all 2 reports, epsilon = 1 per record" in words
    assert "that a record changed, and that it is again what it was, shows" in words
    found = ledger.statement(WEEKS[3])
    assert "epsilon = 2 was spent or set aside for records that are still to come, 25% of it" in found.words()
    (told,) = found.as_dict()["tasks"]
    assert (told["reports"], told["memoize_cap"]) == (2, 4)
    assert [made["again"] for made in told["made"]] == [False, True, False, True]
    promise = found.together()
    assert promise is not None
    assert promise.epsilon == 1.0


# The file


def test_a_copied_ledger_says_the_same(path: Path, make: Any, tmp_path: Path) -> None:
    """What the pages warn of: two devices with one ledger are linked, and each counts its cap alone."""
    task = make(cap=2)
    say(Ledger(path), task, [["1"]])
    shutil.copy(path, tmp_path / "copy.json")
    one, two = (
        say(Ledger(file), task, [["1"], ["2"]], WEEKS[1:3]) for file in (path, tmp_path / "copy.json")
    )
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert [Ledger(file).spent(task) for file in (path, tmp_path / "copy.json")] == [2.0, 2.0]


def test_the_record_is_not_in_the_file(path: Path, make: Any, tmp_path: Path) -> None:
    """Another ledger has another salt, and nothing in common."""
    task = make(cap=5)
    for file in (path, tmp_path / "other.json"):
        say(Ledger(file), task, [["1"], ["2"]])
    memos = [
        json.loads(file.read_text())["tasks"][task.digest.hex()]["memo"]
        for file in (path, tmp_path / "other.json")
    ]
    assert len({each["salt"] for each in memos}) == 2
    assert len({name for each in memos for name in each["reports"]}) == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_ledgers_without_memos_are_written_as_before(path: Path, make: Any, make_task: Any) -> None:
    """A format of its own only where it is needed; older ledgers are read and go on."""
    plain = make_task(period="week")
    Ledger(path).report(plain, ["1"], START)
    assert json.loads(path.read_text())["format"] == 2
    assert "memoize_cap" not in path.read_text()
    Ledger(path).report(make(), ["1"], START)
    assert json.loads(path.read_text())["format"] == 3
    assert Ledger(path).spent(plain) == 1.0
    path.write_text(path.read_text().replace('"format": 3', '"format": 4'))
    with refused("a ledger of format 4; this hubbub reads up to 3"):
        Ledger(path).report(plain, ["1"], START)


def damages(account: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What somebody, or a failing disk, may make of an account."""
    held, periods = account["memo"], account["periods"]
    first = next(iter(periods))
    yield {key: value for key, value in account.items() if key != "memo"}
    yield {**account, "memo": {}}
    yield {**account, "memo": []}
    yield {**account, "memo": {**held, "more": 1}}
    yield {**account, "memo": {**held, "salt": "00"}}
    yield {**account, "memo": {**held, "salt": 5}}
    yield {**account, "memo": {**held, "reports": {}}}
    yield {**account, "memo": {**held, "reports": {"00": next(iter(held["reports"].values()))}}}
    yield {**account, "memo": {**held, "reports": dict.fromkeys(held["reports"], "00")}}
    yield {**account, "periods": {}}
    yield {**account, "periods": {**periods, first: [{**periods[first][0], "again": True}]}}
    yield {**account, "periods": {**periods, first: [{**periods[first][0], "again": False}]}}
    yield {**account, "periods": {**periods, first: [{**periods[first][0], "report": "00" * 9}]}}
    yield {**account, "facts": {**account["facts"], "memoize_cap": "3"}}


def test_damaged_memos_are_refused(path: Path, make: Any) -> None:
    task = make()
    say(Ledger(path), task, [["1"], ["1"], ["2"]])
    whole = json.loads(path.read_text())
    for account in damages(whole["tasks"][task.digest.hex()]):
        path.write_text(json.dumps({**whole, "tasks": {task.digest.hex(): account}}))
        before = path.read_bytes()
        with refused("is not a ledger; nothing is reported"):
            Ledger(path).report(task, ["1"], WEEKS[5])
        assert path.read_bytes() == before
    path.write_text(json.dumps(whole))
    assert Ledger(path).spent(task) == 2.0


def test_more_reports_than_the_cap_are_refused(path: Path, make: Any) -> None:
    """Such a ledger was not written under this task's rule."""
    small, large = make(cap=1), make(cap=2)
    say(Ledger(path), large, [["1"], ["2"]])
    path.write_text(path.read_text().replace(large.digest.hex(), small.digest.hex()))
    with refused("is not a ledger"):
        Ledger(path).report(small, ["1"], WEEKS[3])


def test_what_cannot_be_written_is_not_said(path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not a second time: what was made and lost is made anew, and nobody has seen the first."""
    task, ledger = make(), Ledger(path)
    say(ledger, task, [["1"]])
    before = path.read_bytes()

    def full(*given: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_module, "write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        ledger.report(task, ["2"], WEEKS[1])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert pattern(say(ledger, task, [["1"], ["2"], ["1"]])) == (0, 1, 0)


def test_processes_at_once(path: Path, make: Any, tmp_path: Path) -> None:
    """Four of them, each with records of its own, in the same weeks: never more than the cap, and one answer a week."""
    task = make(cap=3)
    task.save(tmp_path / "task.toml")
    script = """
import datetime, sys
from hubbub.device.ledger import Ledger
from hubbub.protocol.task import Task
task = Task.load(sys.argv[2])
for week in range(8):
    day = datetime.date(2026, 1, 5) + datetime.timedelta(days=7 * week)
    print(Ledger(sys.argv[1]).report(task, [sys.argv[3] if week % 2 else "0"], day).hex())
"""
    command = [sys.executable, "-c", script, str(path), str(tmp_path / "task.toml")]
    running = [
        subprocess.Popen([*command, str(one)], stdout=subprocess.PIPE, text=True) for one in range(1, 5)
    ]
    heard = [each.communicate(timeout=120)[0].split() for each in running]
    assert all(len(each) == 8 for each in heard)
    assert all(len(set(week)) == 1 for week in zip(*heard, strict=True))
    assert Ledger(path).spent(task) <= 3.0


# The rule in a task, and what it excludes


def test_the_rule_is_part_of_the_task(tmp_path: Path, make_task: Any, make: Any) -> None:
    """Older tasks keep their digest and their file."""
    plain = make_task(period="week")
    assert plain.digest == make_task(period="week", memoize="off", memoize_cap=0).digest
    assert b"memoize" not in plain.canonical
    assert "memoize" not in plain.to_toml()
    task = make(cap=4)
    assert task.digest not in (plain.digest, make(cap=5).digest)
    task.save(tmp_path / "task.toml")
    assert Task.load(tmp_path / "task.toml") == task
    command = "task new --name x --keys 9 --epsilon 1 --max-entries 2 --period week --memoize-cap 4 -o"
    text = prose(*command.split(), tmp_path / "new.toml")
    assert (Task.load(tmp_path / "new.toml").memoize, Task.load(tmp_path / "new.toml").memoize_cap) == (
        "record",
        4,
    )
    assert "epsilon = 4 over all time" in text


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"memoize_cap": 0}, "memoize needs memoize_cap"),
        ({"memoize_cap": -1}, "memoize_cap"),
        ({"memoize_cap": 1001}, "memoize_cap"),
        ({"memoize": "off"}, "memoize_cap is for tasks that memoize"),
        ({"memoize": "key"}, "memoize"),
        ({"period": "once"}, "memoize is over periods"),
        ({"reports_per_period": 2}, "reports_per_period must be 1"),
        ({"messages": 3.0}, "memoize and messages exclude each other"),
    ],
)
def test_what_does_not_go_together(rules: dict[str, Any], why: str, make: Any) -> None:
    with refused(why):
        make(**rules)


def test_no_shuffler(path: Path, make: Any, tmp_path: Path) -> None:
    """Whoever seals, mixes or promises refuses, and nothing is spent."""
    task = make()
    with refused("link a person"):
        Ledger(path).sealed(task, ["1"], PUBLIC, START)
    assert not path.exists()
    with refused("link a person"):
        seal(bytes(task.mechanism.layout.width), PUBLIC, task, "2026-W02")
    with refused("link a person"):
        Uploader("http://localhost", task, "token", tmp_path / "spool", sealed_for=PUBLIC)
    with refused("link a person"):
        Shuffler(None, [task], "http://localhost", "token", "token", 100)  # type: ignore[arg-type]
    with refused("link a person"):
        over_time(task, 10_000)
    with refused("link a person"):
        amplify(task, 10_000)
    with refused("link a person"):
        Round.of(task, 10_000)


def test_all_time(make: Any) -> None:
    """No more than the cap, however long; what shows is said wherever more than one record may be reported."""
    spans = over_time(make(cap=3))
    assert [span.local.epsilon for span in spans if span.local] == [1, 3, 3]
    assert [bool(span.local and "shows by the bytes" in span.local.note) for span in spans] == [
        False,
        True,
        True,
    ]
    assert "epsilon = 3 over all time" in spending(make(cap=3))
    once = over_time(make(cap=1))
    assert [span.local.epsilon for span in once if span.local] == [1, 1, 1]
    assert "shows" not in spending(make(cap=1)) + "".join(
        str(span.local and span.local.note) for span in once
    )
    turns = over_time(make(cap=3, rotation=26))
    assert [span.local.epsilon for span in turns if span.local] == [1, 1, 2]


def test_names_do_not_depend_on_order(make: Any) -> None:
    """Of ids and values, sorted together."""
    held, random = memo.Memo(), np.random.default_rng(1)
    from hubbub.model.record import Entries

    ids, values = random.integers(0, 9, 12).astype(np.uint64), random.integers(-3, 3, 12)
    names = set()
    for _ in range(5):
        order = random.permutation(12)
        names.add(held.name(Entries(ids[order], values[order], np.array([0, 12]))))
    assert len(names) == 1
    assert held.name(Entries(ids, values[::-1].copy(), np.array([0, 12]))) not in names
