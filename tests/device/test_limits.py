"""The owner's budget over all tasks, kept by the ledger: what is refused, when it is free again, and what is shown."""

from __future__ import annotations

import datetime
import itertools
import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

from helpers import contents, prose, refuse, refused, succeed
from hubbub.collect.keypair import KeyPair
from hubbub.device.budget import Budget, most_messages
from hubbub.device.client import Client
from hubbub.device.ledger import Ledger
from hubbub.primitives.errors import BudgetSpent
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

PAIR = KeyPair(bytes(range(32)))
START = datetime.date(2026, 3, 2)


def after(days: int) -> datetime.date:
    return START + datetime.timedelta(days=days)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


class Unread:
    """A record that nobody may look at."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError("somebody looked at the record")


def limited(path: Path, epsilon: float, per: Any = "year", delta: float = 0.0) -> Ledger:
    ledger = Ledger(path)
    ledger.limit(Budget(epsilon, per, delta), START)
    return ledger


def asked(ledger: Ledger, task: Task, day: datetime.date) -> bool:
    """Whether a fresh report is made."""
    try:
        ledger.fresh(task, ["1"], day)
    except BudgetSpent:
        return False
    return True


def test_tasks_share_a_budget_and_silence_says_nothing_of_the_record(path: Path, make_task: Any) -> None:
    """What does not fit is refused without a look at the record; nothing is written, whichever way it would go."""
    ledger, weekly, once = limited(path, 2.5), make_task(period="week"), make_task(epsilon=0.6)
    assert [asked(ledger, weekly, after(7 * week)) for week in range(4)] == [True, True, False, False]
    before = contents(path.parent)
    for ask in (
        ledger.report,
        ledger.fresh,
        lambda task, record, day: ledger.sealed(task, record, PAIR.public, day),
    ):
        with pytest.raises(
            BudgetSpent, match=r"epsilon = 2.5 in any 365 days.*silent: 2 is spent, and another.*'test'"
        ):
            ask(once, Unread(), after(30))
    assert contents(path.parent) == before
    assert asked(ledger, make_task(epsilon=0.5), after(30))


def test_every_record_gets_the_same_decisions(path: Path, make_task: Any, tmp_path: Path) -> None:
    """A year of three tasks, day by day: when the device is silent does not depend on what it holds."""
    tasks = [make_task(period=period, epsilon=epsilon) for period, epsilon in (("week", 0.3), ("month", 1.0))]
    tasks.append(make_task(epsilon=2.0))
    seen = set()
    for number, record in enumerate(
        ([], ["1"], [str(key) for key in range(60)], {"1": math.nan, "nowhere": 1})
    ):
        ledger = limited(tmp_path / f"{number}.json", 5)
        said = []
        for day, task in itertools.product(range(0, 200, 9), tasks):
            try:
                ledger.report(task, record, after(day))
                said.append("reports")
            except BudgetSpent as silence:
                said.append(str(silence))
        seen.add(tuple(said))
    assert len(seen) == 1
    assert 10 < seen.pop().count("reports") < 60


def test_what_was_said_in_a_period_is_said_again(path: Path, make_task: Any) -> None:
    ledger, task = limited(path, 1), make_task(period="week", seed_bits=64, reports_per_period=3)
    first = ledger.report(task, ["1"], START)
    assert ledger.report(task, ["2"], after(1)) == first
    with pytest.raises(BudgetSpent, match="1 is spent"):
        ledger.report(task, ["2"], after(7))


def test_a_year_is_any_365_days(path: Path, make_task: Any) -> None:
    """No 365 days in a row have more than the budget, also around New Year."""
    ledger, task = limited(path, 3), make_task(period="day")
    made = [day for day in range(0, 1200, 5) if asked(ledger, task, after(day))]
    assert made[:4] == [0, 5, 10, 365]
    assert len(made) == 12
    assert max(sum(first <= day < first + 365 for day in made) for first in range(1200)) == 3


def test_other_spans(tmp_path: Path, make_task: Any) -> None:
    task = make_task(period="day")
    for per, again in (("week", [0, 7, 14]), ("month", [0, 30]), ("ever", [0])):
        ledger = limited(tmp_path / per, 1, per)
        assert [day for day in range(40) if asked(ledger, task, after(day))][: len(again)] == again
    assert not asked(ledger, task, after(100_000))


def test_many_small_reports_are_counted_by_the_better_rule(path: Path, make_task: Any) -> None:
    """With a delta, more of them fit than adding up allows, and as many as `Budget.fits` says."""
    task = make_task(epsilon=0.1, reports_per_period=1000)
    for budget, most in ((Budget(2.0), 20), (Budget(2.0, delta=1e-3), 36)):
        path.unlink(missing_ok=True)
        ledger = Ledger(path)
        ledger.limit(budget)
        assert sum(asked(ledger, task, START) for _ in range(40)) == most


# Clocks


def test_a_clock_that_was_put_back_frees_nothing(path: Path, make_task: Any) -> None:
    """What is made then counts until the clock has caught up, and for a year from then on."""
    ledger, task = limited(path, 2), make_task(period="day")
    assert asked(ledger, task, START)
    for wrong in (datetime.date(1970, 1, 1), datetime.date(1970, 1, 2), datetime.date(1, 1, 1), after(-400)):
        assert asked(ledger, task, wrong) == (wrong.day == 1 and wrong.year == 1970)
    assert [made["day"] for made in ledger.statement(START).as_dict()["tasks"][0]["made"]] == [
        "2026-03-02",
        None,
    ]
    assert not asked(ledger, task, after(100))  # the clock is right again, and this is seen here
    assert [day for day in range(101, 600) if asked(ledger, task, after(day))] == [365, 465]


def test_a_clock_that_was_ahead_counts_on(path: Path, make_task: Any) -> None:
    """What is dated ahead counts now, and so does what was made before."""
    ledger, task = limited(path, 2), make_task(period="day")
    assert asked(ledger, task, START)
    assert asked(ledger, task, after(5000))
    assert not any(asked(ledger, task, after(day)) for day in range(1, 365, 7))
    assert asked(ledger, task, after(365))
    assert not any(asked(ledger, task, after(day)) for day in range(366, 5365, 50))


# What cannot be counted


def test_a_task_that_protects_less_than_a_record_does_not_fit(path: Path, make_task: Any) -> None:
    entries = make_task("sparse_sum", unit="entry", buckets=1)
    with pytest.raises(
        BudgetSpent, match=r"about whole records, and task 'test' protects less \(unit entry\)"
    ):
        limited(path, 100).report(entries, Unread())
    Ledger(path).limit(None)
    Ledger(path).report(entries, ["1"], START)
    limited(path, 100)
    with pytest.raises(BudgetSpent, match="cannot be counted"):
        Ledger(path).report(make_task(), Unread(), START)
    assert "cannot be counted" in Ledger(path).statement(START).words()
    assert asked(Ledger(path), make_task(), after(365))


def test_an_old_ledger_is_counted_as_soon_as_its_tasks_are_known(path: Path, make_task: Any) -> None:
    """Its tasks are known when they are used again; until then the device is silent, for a year at most."""
    old, other, new = make_task(epsilon=2.0, period="week"), make_task(epsilon=3.0), make_task(epsilon=4.0)
    made = {old.digest.hex(): {"2026-W08": [Client(old).report([]).hex()]}}
    made[other.digest.hex()] = {"once": [Client(other).report([]).hex()]}
    path.write_text(json.dumps(made))
    assert "last used before costs were kept" in prose("ledger", "show", path)
    limited(path, 9)
    assert not asked(Ledger(path), new, START)
    assert not asked(Ledger(path), old, START)
    assert not asked(Ledger(path), new, START)
    assert Ledger(path).report(other, Unread(), START).hex() in json.dumps(made)
    assert asked(Ledger(path), new, START)
    found = Ledger(path).statement(START).as_dict()
    assert [each["made"][0]["day"] for each in found["tasks"]] == ["2026-02-22", "2026-03-02", "2026-03-02"]
    assert (found["budget"]["spent"], found["together"]["epsilon"]) == (9.0, 9.0)
    path.write_text(json.dumps(made))
    limited(path, 9)
    assert [day for day in range(300, 400) if asked(Ledger(path), new, after(day))] == [365]


def test_messages_are_counted_by_what_was_sent(path: Path) -> None:
    """As many as are drawn but for a chance of 1e-12 must fit; those that were drawn count."""
    keys = {"kind": "closed", "size": 16, "salt": "5a" * 16}
    mechanism = {"name": "collision", "epsilon": 0.5, "max_entries": 2}
    task = Task.parse({"name": "m", "messages": 3, "period": "day", "keys": keys, "mechanism": mechanism})
    assert task.mean_messages is not None
    most = most_messages(task.mean_messages)
    with pytest.raises(BudgetSpent, match=f"up to {most} messages of task 'm'"):
        limited(path, 0.5 * most - 0.1).sealed(task, Unread(), PAIR.public, START)
    ledger, day, sent = limited(path, 0.5 * most + 8), 0, 0
    while True:
        try:
            sent += len(ledger.sealed(task, ["1"], PAIR.public, after(day))) // sealed_width(task)
        except BudgetSpent:
            break
        day += 1
    against = ledger.statement(after(day)).in_budget()
    assert against is not None
    assert against[0] == ledger.spent(task) == 0.5 * sent
    assert 8 < 0.5 * sent <= 0.5 * most + 8


# Files


@pytest.mark.parametrize(
    "broken",
    [
        {"format": 1, "rounds": []},
        {"format": 2},
        {"format": 2, "tasks": []},
        {"format": 2, "tasks": {}, "budget": {"epsilon": 0}},
        {"format": 2, "tasks": {}, "budget": {"epsilon": -8, "per": "year"}},
        {"format": 2, "tasks": {}, "budget": {"epsilon": math.nan}},
        {"format": 2, "tasks": {}, "budget": {"epsilon": 8, "per": "day"}},
        {"format": 2, "tasks": {}, "budget": None},
        {"format": 2, "tasks": {}, "limit": 5},
        {"format": 2, "tasks": {"a": {"periods": {"once": [{"report": "00"}]}}}},
        {"format": 2, "tasks": {"a": {"periods": {"once": [{"report": "00", "day": "soon"}]}}}},
        {"format": 2, "tasks": {"a": {"periods": {"9999-12": []}}}},
        {"format": 2, "tasks": {"a": {"periods": {"2026-13": []}}}},
        {"format": 2, "tasks": {"a": {"periods": {}, "facts": {"name": "x"}}}},
        *(
            {
                "format": 2,
                "tasks": {
                    "a": {
                        "periods": {},
                        "facts": {"name": "x", "epsilon": 1.0, "delta": 0.0, "unit": "record"} | wrong,
                    }
                },
            }
            for wrong in (
                {"epsilon": -1.0},
                {"epsilon": math.nan},
                {"unit": "user"},
                {"message_width": -1},
                {"delta": 2},
            )
        ),
    ],
)
def test_what_is_no_ledger_is_refused_and_left_alone(broken: Any, path: Path, make_task: Any) -> None:
    path.write_text(json.dumps(broken))
    before = path.read_bytes()
    for use in (
        lambda: Ledger(path).report(make_task(), Unread()),
        lambda: Ledger(path).limit(Budget(1)),
        lambda: Ledger(path).statement(),
    ):
        with refused(str(path), "is not a ledger"):
            use()
    assert path.read_bytes() == before


def test_a_ledger_of_a_later_kind_is_refused(path: Path, make_task: Any) -> None:
    path.write_text('{"format": 4, "tasks": {}}')
    with refused("format 4", "update"):
        Ledger(path).report(make_task(), ["1"])


def test_a_budget_is_there_or_not_at_all(path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(path, 1)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.replace", fail)
        with refused("No space left"):
            Ledger(path).limit(Budget(5))
    assert path.read_bytes() == before


# The command


def test_the_owner_is_told_what_was_sent(path: Path, make_task: Any) -> None:
    ledger, task = limited(path, 8, "ever"), make_task(period="week")
    ledger.report(task, ["1"], START)
    ledger.sealed(task, ["1"], PAIR.public, after(7))
    said = prose("ledger", "show", path)
    assert f"Task test ({task.digest.hex()}): each report costs epsilon = 1 per record" in said
    assert "2026-W10 2026-03-02 1 report to a collector" in said
    assert "2026-W11 2026-03-09 1 report sealed for a shuffler" in said
    assert "in all 2 reports, epsilon = 2 per record" in said
    assert (
        "Together: epsilon = 2 per record, local model: if one person's record were replaced by any other"
        in said
    )
    assert "Budget: epsilon = 8 ever. So far epsilon = 2 was spent, 25% of it." in said
    found = succeed("ledger", "show", path)
    assert [each["to"] for each in found["tasks"][0]["made"]] == ["collector", "shuffler"]
    assert found["budget"] == {
        "epsilon": 8.0,
        "per": "ever",
        "delta": 0.0,
        "words": "epsilon = 8 ever",
        "spent": 2.0,
        "share": 0.25,
    }


def test_the_owner_sets_a_budget(path: Path, make_task: Any) -> None:
    assert "Nothing was sent. Budget: epsilon = 8 in any 365 days." in prose(
        "ledger", "limit", path, "--epsilon", 8
    )
    assert (path.stat().st_mode & 0o077) == 0
    for epsilon in (0, -1, "nan", "inf"):
        before = path.read_bytes()
        assert "above 0" in refuse("ledger", "limit", path, "--epsilon", epsilon)
        assert path.read_bytes() == before
    assert "There is no ledger" in refuse("ledger", "show", path.with_name("none"))
    assert not path.with_name("none").exists()


def test_names_do_nothing_to_a_terminal(path: Path, make_task: Any) -> None:
    data = make_task().model_dump() | {"name": "x\x1b[31m\u202e"}
    Ledger(path).report(Task.parse(data), ["1"])
    assert "x\\u001b[31m\\u202e" in prose("ledger", "show", path)
