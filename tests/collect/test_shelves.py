"""Strata in the store: they add up to the whole, bit for bit, whatever is killed, merged, purged or damaged."""

from __future__ import annotations

import csv
import datetime
import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from collecting import COLLISION, PRIVKV, Collector, collected_task, collecting, sealed_batch, some_reports
from live import Answer, ask, bearer

from helpers import refused
from hubbub.collect import sums as summing
from hubbub.collect.backup import back_up, check, restore
from hubbub.collect.database import log, segments, states, strata
from hubbub.collect.lifetimes import check_retention, merge_old
from hubbub.collect.metrics import Metrics
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.segments import Damaged
from hubbub.collect.shelves import shelf_name
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store
from hubbub.collect.sums import Sums
from hubbub.model.state import State
from hubbub.protocol.strata import Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
LABELS = {"country": ["de", "fr"], "version": ["1", "2"]}
TODAY = datetime.datetime.now(datetime.UTC).date()
WIDE = {"kind": "wide", "salt": "0123456789abcdef" * 2}


@pytest.fixture(autouse=True)
def sums_are_kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service waits an hour before it keeps the sum of a few reports."""
    monkeypatch.setattr(summing, "_OFTEN", 0.0)


def labelled(**rules: Any) -> Task:
    return collected_task(**{"labels": LABELS, "period": "week", **rules})


TASK = labelled()


def wide_task(**rules: Any) -> Task:
    """A task whose state consists of its reports."""
    return Task.parse(
        {"name": "wide", "keys": WIDE, "mechanism": COLLISION, "labels": LABELS, "period": "week", **rules}
    )


def reports_of(task: Task, count: int, seed: int) -> bytes:
    return some_reports(
        task if task.keys.kind == "closed" else task.model_copy(update={"keys": TASK.keys}), count, seed
    )


def at(country: str, version: str = "1", week: str = "2026-W46") -> Stratum:
    return Stratum((country, version), week)


def batch(task: Task, number: int, stratum: Stratum, count: int = 3, arrived: int = 0) -> Batch:
    payload = reports_of(task, count, number + 1)
    check = payload[:16].ljust(16)
    text = text_of(task, stratum)
    return Batch(task.digest.hex(), f"b{number}", count, payload, check, arrived, stratum=text)


def expected(task: Task, batches: Sequence[Batch]) -> bytes:
    """The state of some batches, without any store."""
    return aggregate(task, b"".join(bytes(each.payload) for each in batches)).to_bytes()


def some(task: Task, many: int = 12) -> list[Batch]:
    places = [at("de"), at("fr"), at("de", "2"), at("fr", "2", "2026-W45"), Stratum()]
    return [batch(task, number, places[number % 5], number % 4 + 1, 60 * number) for number in range(many)]


def check_sums(store: Store, task: Task, batches: Sequence[Batch]) -> None:
    """Every stratum is the sum of its own batches, the whole is that of all, and the store is sound."""
    whole = Folder(store, [task], Metrics()).fold(task).state
    sums = Sums(store)
    assert whole.to_bytes() == expected(task, batches)
    mine: dict[str, list[Batch]] = {}
    for each in batches:
        mine.setdefault(each.stratum, []).append(each)
    there = sums.strata(task)
    assert {text_of(task, stratum) for stratum in there} == mine.keys() - {""}
    parts = [sums.state(task, [stratum]) for stratum in sorted(there)]
    for stratum, part in zip(sorted(there), parts, strict=True):
        assert part.to_bytes() == expected(task, mine[text_of(task, stratum)])
    untold = aggregate(task, b"".join(bytes(each.payload) for each in mine.get("", [])))
    assert reduce(State.merge, parts, untold).to_bytes() == whole.to_bytes()
    assert check(store.engine.url.render_as_string(hide_password=False)).problems == []


RULES: list[dict[str, Any]] = [{}, {"keep_reports": False}, {"mechanism": PRIVKV}]


@pytest.mark.parametrize("rules", RULES)
def test_strata_add_up_to_the_whole(opened: Opener, store_url: str, rules: dict[str, Any]) -> None:
    """However many folds there are, in whatever order batches come, and after a restart."""
    task, store = labelled(**rules), opened(store_url)
    folder, batches = Folder(store, [task], Metrics()), some(task)
    for part in (batches[:1], batches[1:7], batches[7:]):
        store.append(part)
        folder.fold(task)
    check_sums(opened(store_url), task, batches)


@pytest.mark.parametrize("kept", [True, False])
def test_strata_of_states_that_consist_of_reports(opened: Opener, store_url: str, kept: bool) -> None:
    task, store = wide_task(keep_reports=kept), opened(store_url)
    folder, batches = Folder(store, [task], Metrics()), some(task)
    for part in (batches[:5], batches[5:]):
        store.append(part)
        folder.fold(task)
    check_sums(opened(store_url), task, batches)


def test_sums_are_kept_and_change_nothing(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sum of the first reports, and with a sum of all, the answer is the same; it is read in pieces."""
    monkeypatch.setattr(summing, "_PIECE", 7)
    store, batches = opened(store_url), some(TASK, 20)
    store.append(batches[:10])
    Folder(store, [TASK], Metrics()).fold(TASK)
    Sums(store).keep_up(TASK)
    held = [shelf for shelf in store.shelves(TASK.digest.hex()) if store.head(shelf.name).count]
    assert len(held) == 4
    store.append(batches[10:])
    check_sums(store, TASK, batches)
    Sums(store).keep_up(TASK)
    assert [store.head(shelf.name).count for shelf in store.shelves(TASK.digest.hex())] == [
        shelf.reports for shelf in store.shelves(TASK.digest.hex())
    ]
    check_sums(store, TASK, batches)


def damage_sums(store: Store) -> None:
    with store.writing() as connection:
        for row in connection.execute(states.select()).all():
            payload = bytearray(row.payload)
            payload[len(payload) // 2] ^= 1
            if row.task != TASK.digest.hex():
                connection.execute(
                    states.update().where(states.c.task == row.task).values(payload=bytes(payload))
                )


def test_a_damaged_sum_is_made_again_or_said(opened: Opener, store_url: str) -> None:
    store, batches = opened(store_url), some(TASK)
    store.append(batches)
    Folder(store, [TASK], Metrics()).fold(TASK)
    Sums(store).keep_up(TASK)
    damage_sums(store)
    assert check(store_url).problems
    check_sums(store, TASK, batches)


def test_a_damaged_sum_without_reports_is_said(opened: Opener, store_url: str) -> None:
    task, store = labelled(keep_reports=False), opened(store_url)
    store.append(some(task))
    Folder(store, [task], Metrics()).fold(task)
    Sums(store).keep_up(task)
    with store.writing() as connection:
        name = shelf_name(task.digest.hex(), text_of(task, at("de")))
        connection.execute(states.update().where(states.c.task == name).values(payload=b"nonsense"))
    with pytest.raises(Damaged, match="restore the store"):
        Sums(store).state(task, [at("de")])
    store.append([batch(task, 20, at("de")), batch(task, 21, at("fr"))])
    Folder(store, [task], Metrics()).fold(task)
    Sums(store).keep_up(task)  # of the others
    assert [store.head(shelf.name).count == shelf.reports for shelf in store.shelves(task.digest.hex())] == [
        "country=de,version=1@" not in shelf.stratum for shelf in store.shelves(task.digest.hex())
    ]


def test_a_changed_report_is_noticed_where_it_is(opened: Opener, store_url: str) -> None:
    """Neither bytes nor the stratum of what is stored can be changed unnoticed."""
    store = opened(store_url)
    store.append(some(TASK))
    with store.writing() as connection:
        change = log.update().where(log.c.stratum == text_of(TASK, at("de")))
        connection.execute(change.values(stratum=text_of(TASK, at("fr"))))
    with pytest.raises(Damaged):
        Folder(store, [TASK], Metrics()).fold(TASK)


def test_a_damaged_whole_is_made_again_with_its_strata(opened: Opener, store_url: str) -> None:
    store, batches = opened(store_url), some(TASK)
    store.append(batches)
    Folder(store, [TASK], Metrics()).fold(TASK)
    Sums(store).keep_up(TASK)
    with store.writing() as connection:
        mine = states.c.task == TASK.digest.hex()
        connection.execute(states.update().where(mine).values(payload=b"nonsense"))
    check_sums(store, TASK, batches)


def test_what_is_too_little_waits_for_the_whole_as_well(opened: Opener, store_url: str) -> None:
    """With a minimum, everything that can be read changes by lots of so many reports of one stratum."""
    task, store = labelled(minimum_reports=5), opened(store_url)
    folder, sums, name = Folder(store, [task], Metrics()), Sums(store), task.digest.hex()
    seen = [(0, 0, 0)]
    generator = np.random.default_rng(5)
    for number in range(60):
        where = [at("de"), at("fr")][int(generator.integers(2))]
        store.append([batch(task, number, where, int(generator.integers(1, 4)), 60 * number)])
        whole = folder.fold(task).state.count
        there = {shelf.stratum: shelf.reports for shelf in store.shelves(name)}
        german, french = (there.get(text_of(task, at(country)), 0) for country in ("de", "fr"))
        assert whole == german + french == sums.state(task, list(sums.strata(task))).count
        assert store.arrived(name) >= whole
        seen.append((whole, german, french))
    for before, after in itertools.pairwise(seen):
        for old, new in zip(before, after, strict=True):
            assert new == old or new - old >= 5
    assert seen[-1][0] > 80


def test_small_remainders_wait_for_a_longer_period(opened: Opener, store_url: str) -> None:
    task, store = labelled(minimum_reports=5), opened(store_url)
    folder, sums = Folder(store, [task], Metrics()), Sums(store)
    batches = [
        batch(task, number, at("de", "1", f"2026-W{30 + number}"), 2, 60 * number) for number in range(4)
    ]
    store.append(batches)
    assert folder.fold(task).state.count == 0
    assert merge_old(store, sums, task, 0, datetime.date(2026, 8, 5)) == 0
    assert folder.fold(task).state.count == 0
    merge_old(store, sums, task, 0, datetime.date(2026, 9, 30))
    assert folder.fold(task).state.to_bytes() == expected(task, batches)
    assert [text_of(task, each) for each in sums.strata(task)] == ["country=de,version=1@2026"]
    store.append([batch(task, 9, at("fr", "1", "2026-W33"), 2)])
    merge_old(store, sums, task, 0, datetime.date(2026, 9, 30))
    merge_old(store, sums, task, 0, datetime.date(2027, 2, 1))
    assert store.waiting_by(task.digest.hex()) == {"country=fr,version=1": 2}


@pytest.mark.parametrize("rules", [*RULES, {"wide": True}])
def test_old_periods_are_merged_and_nothing_is_lost(
    opened: Opener, store_url: str, rules: dict[str, Any]
) -> None:
    task = wide_task() if rules.get("wide") else labelled(**rules)
    store = opened(store_url)
    weeks = ["2026-W01", "2026-W02", "2026-W40", "2026-W46"]
    batches = [batch(task, number, at("de", "1", weeks[number % 4]), 3, 60 * number) for number in range(12)]
    folder, sums = Folder(store, [task], Metrics()), Sums(store)
    store.append(batches[:9])
    whole = folder.fold(task).state.to_bytes()
    sums.keep_up(task)
    today = datetime.date(2026, 11, 18)
    assert merge_old(store, sums, task, 60, today) == 2
    assert merge_old(store, sums, task, 60, today) == 0
    assert Folder(store, [task], Metrics()).fold(task).state.to_bytes() == whole
    store.append(batches[9:])  # late ones make the week again, which is merged again
    folder.fold(task)
    assert merge_old(store, sums, task, 60, today) == 1
    moved = [
        Batch(**{**vars_of(each), "stratum": "country=de,version=1@2026"}) if "W0" in each.stratum else each
        for each in batches
    ]
    check_sums(opened(store_url), task, moved)
    with refused("retention"):
        check_retention(task, 6)
    check_retention(collected_task(), 1)


def vars_of(each: Batch) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__dataclass_fields__}


def test_purged_reports_leave_the_sums(opened: Opener, store_url: str) -> None:
    """What is not in a sum yet is not dropped; after that, new reports and merging go on as before."""
    task, store, sums = TASK, opened(store_url), None
    batches = [
        batch(task, number, at("de", "1", f"2026-W4{number % 2}"), 3, 60 * number) for number in range(10)
    ]
    store.append(batches[:6])
    folder, sums = Folder(store, [task], Metrics()), Sums(store)
    whole = folder.fold(task).state.to_bytes()
    now = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
    name = task.digest.hex()
    assert purge(store, name, Horizons(reports=1), now)["reports"] == 0
    sums.keep_up(task)
    assert purge(store, name, Horizons(reports=1), now)["reports"] == 18
    with store.reading() as connection:
        assert connection.execute(sql.select(sql.func.count()).select_from(segments)).scalar() == 0
    assert folder.fold(task).state.to_bytes() == whole
    store.append(batches[6:])
    folder.fold(task)
    check_sums(opened(store_url), task, batches)
    assert merge_old(store, Sums(store), task, 10, datetime.date(2026, 11, 18)) == 2
    merged = [Batch(**{**vars_of(each), "stratum": "country=de,version=1@2026"}) for each in batches]
    check_sums(opened(store_url), task, merged)
    store.append([batch(task, 20, at("de", "1", "2026"), 2, 60 * 20)])
    folder.fold(task)
    check_sums(opened(store_url), task, [*merged, batch(task, 20, at("de", "1", "2026"), 2)])


def test_backups_have_strata(opened: Opener, store_url: str, tmp_path: Any) -> None:
    store, batches = opened(store_url), some(TASK)
    store.append(batches[:8])
    Folder(store, [TASK], Metrics()).fold(TASK)
    store.append(batches[8:])
    back_up(store_url, tmp_path / "copy.db")
    restore(tmp_path / "copy.db", f"sqlite:///{tmp_path / 'again.db'}")
    check_sums(opened(f"sqlite:///{tmp_path / 'again.db'}"), TASK, batches)
    with store.writing() as connection:
        connection.execute(strata.update().values(count=strata.c.count + 1000))
    assert any("more reports" in problem for problem in check(store_url).problems)


# Through the service


def send(
    collector: Collector, reports: bytes, name: str, labels: str | None, period: str | None = None
) -> Answer:
    headers = {**bearer(collector.token), "Hubbub-Batch": name}
    headers |= {} if labels is None else {"Hubbub-Labels": labels}
    headers |= {} if period is None else {"Hubbub-Period": period}
    return ask(f"{collector.address}{collector.path}/reports", sealed_batch(collector.task, reports), headers)


def week(days_ago: int = 0) -> str:
    found = (TODAY - datetime.timedelta(days=days_ago)).isocalendar()
    return f"{found.year}-W{found.week:02}"


def test_batches_go_where_they_say(store_url: str) -> None:
    with collecting(store_url, TASK) as collector:
        made = {name: some_reports(TASK, 4) for name in ("now", "late", "old", "never", "unset")}
        assert send(collector, made["now"], "now", "version=2,country=de").status == 200
        assert send(collector, made["late"], "late", "country=de,version=2", week(7)).status == 200
        assert send(collector, made["old"], "old", "country=de,version=2", week(60)).status == 200
        assert send(collector, made["unset"], "unset", "country=fr,version=1", "1970-W01").status == 200
        again = send(collector, made["late"], "late", "country=de,version=2", week(7))
        assert (again.status, again.json["repeated"]) == (200, True)
        moved = send(collector, made["late"], "late", "country=fr,version=2", week(7))
        assert (moved.status, moved.json["title"]) == (409, "batch id taken")
        for number, (labels, period, words) in enumerate(
            [
                (None, None, "is missing"),
                ("country=de", None, "is missing"),
                ("country=at,version=1", None, "another task"),
                ("country=de,version=1,planet=mars", None, "no label"),
                ("country=de,version=1,version=2", None, "each once"),
                ("<script>", None, "each once"),
                ("country=de,version=1", "2026-11", "no period"),
                ("country=de,version=1", "yesterday", "no period"),
                ("x" * 5000, None, "each once"),
            ]
        ):
            for _ in range(2):  # nothing is kept of it, so the answer is the same again
                answer = send(collector, made["never"], f"bad{number}", labels, period)
                assert (answer.status, answer.json["batch"]) == (422, f"bad{number}"), answer.json
                assert words in answer.json["detail"]
        assert send(collector, made["never"], "early", "country=de,version=1", week(-30)).status == 429
        rejected = collector.get(collector.path).json["rejected"]
        assert sorted(rejected.values()) == [2 * 2 * 4, 2 * 7 * 4]
        assert collector.reports == 16
        rows = {
            row["stratum"]: row["reports"] for row in collector.get(f"{collector.path}/strata").json["strata"]
        }
        years = week(60)[:4]
        assert rows == {
            f"country=de,version=2@{week()}": 4,
            f"country=de,version=2@{week(7)}": 4,
            f"country=de,version=2@{years}": 4,
            "country=fr,version=1": 4,
        }


def test_old_devices_without_a_period_belong_to_today(store_url: str) -> None:
    task = collected_task(period="day")
    with collecting(store_url, task) as collector:
        assert collector.send(some_reports(task, 5), "old").status == 200
        found = collector.get(f"{collector.path}/strata").json
        assert found["periods"] == [TODAY.isoformat()]
        assert found["strata"][0]["reports"] == 5


def test_too_many_combinations_are_refused(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.collect.writing.MOST_COMBINATIONS", 2)
    with collecting(store_url, TASK) as collector:
        outcomes = [
            send(
                collector,
                some_reports(TASK, 2),
                f"b{country}{version}",
                f"country={country},version={version}",
            ).status
            for country in ("de", "fr")
            for version in ("1", "2")
        ]
        assert outcomes == [200, 200, 422, 422]
        assert collector.reports == 4


def _csv(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200
    return list(csv.DictReader(answer.body.decode().splitlines()))


def test_questions_about_groups_and_periods(store_url: str) -> None:
    """Estimates of groups are those of their reports; comparisons and trends are made from them."""
    from hubbub.server.comparison import compare
    from hubbub.server.estimates import estimate

    with collecting(store_url, TASK) as collector:
        german, french, before = (some_reports(TASK, 300) for _ in range(3))
        send(collector, german, "a", "country=de,version=1", week())
        send(collector, french, "b", "country=fr,version=1", week())
        send(collector, before, "c", "country=de,version=2", week(7))
        ask_for = lambda query: collector.get(f"{collector.path}/{query}")  # noqa: E731
        found = ask_for("estimates?where=country=de&keys=7&keys=9").json
        assert found["estimates"] == estimate(TASK, aggregate(TASK, german + before), ["7", "9"]).rows()
        assert found["chosen"] == "country de"
        found = ask_for(f"estimates?period={week()}&where=version=1&keys=7").json
        assert found["estimates"] == estimate(TASK, aggregate(TASK, german + french), ["7"]).rows()
        found = ask_for(f"compare?by=country&first=de&second=fr&period={week()}&top=50").json
        sides = ((TASK, aggregate(TASK, german)), (TASK, aggregate(TASK, french)))
        assert found["differences"] == compare(*sides, sides=("de", "fr")).top(50).rows()
        latest = ask_for("compare").json
        assert latest["sides"] == [week(7), week()]
        assert latest["reports"] == [300, 600]
        went = ask_for("trend?keys=7&keys=9").json
        assert [row["period"] for row in went["reports"]] == [week(7), week()]
        assert [row["change"] is None for row in went["estimates"]["7"]] == [True, False]
        (row, *_) = _csv(
            ask_for("compare.csv?by=country&first=de&second=fr&where=version=1&simultaneous=true")
        )
        assert (row["of"], row["by"], row["group"]) == ("fr - de", "country", "version 1")
        assert (row["first_reports"], row["second_reports"], row["simultaneous"]) == ("300", "300", "True")
        assert float(row["epsilon"]) == TASK.mechanism.epsilon
        assert "group" not in _csv(ask_for("compare.csv?by=country&first=de&second=fr"))[0]
        (row, *_) = _csv(ask_for(f"estimates.csv?where=country=de&period={week()}"))
        assert (row["group"], row["reports"]) == (f"country de, {week()}", "300")
        assert "group" not in _csv(ask_for("estimates.csv"))[0]
        rows = _csv(ask_for("trend.csv?keys=7&keys=9&where=country=de"))
        assert [(row["period"], row["key"], row["reports"]) for row in rows] == [
            (period, key, "300") for key in ("7", "9") for period in (week(7), week())
        ]
        of_germans = ask_for("trend?keys=7&keys=9&where=country=de").json["estimates"]
        for row, point in zip(rows, of_germans["7"] + of_germans["9"], strict=True):
            assert [float(row[name]) for name in ("value", "error", "low", "high")] == [
                pytest.approx(point[name]) for name in ("value", "error", "low", "high")
            ]
            change = point["change"]
            assert row["change"] == ("" if change is None else row["change"])
            assert change is None or float(row["change"]) == pytest.approx(change["difference"])
            assert row["changed"] == str(bool(change and change["differs"]))
            assert (row["group"], row["simultaneous"], float(row["epsilon"])) == (
                "country de",
                "False",
                TASK.mechanism.epsilon,
            )
        assert "group" not in _csv(ask_for("trend.csv?keys=7"))[0]
        for query, words in (
            ("estimates?where=country=at", "no country"),
            ("estimates?where=planet=mars", "no label"),
            ("estimates?where=country", "each once"),
            ("estimates?period=never", "no period"),
            ("estimates?period=2020-W10", "no reports"),
            (f"estimates?period={week()}&from=2020-W01", "not both"),
            ("compare?by=country&first=de", "name both"),
            ("compare?by=country", "no two periods"),
            ("compare?by=country&first=de&second=at", "no reports"),
            ("trend?keys=7&period=2020-W10", "no reports"),
        ):
            answer = ask_for(query)
            assert (answer.status, words in answer.json["detail"]) == (422, True), (query, answer.json)


def test_groups_below_the_minimum_are_withheld(store_url: str) -> None:
    task = labelled(minimum_reports=20)
    with collecting(store_url, task) as collector:
        send(collector, some_reports(task, 40), "a", "country=de,version=1", week())
        send(collector, some_reports(task, 19), "b", "country=fr,version=1", week())
        assert collector.get(f"{collector.path}/estimates?where=country=de&keys=7").status == 200
        answer = collector.get(f"{collector.path}/estimates?where=country=fr&keys=7")
        assert answer.status == 422
        assert "no reports" in answer.json["detail"]
        assert collector.get(collector.path).json["in_estimates"] == 40
