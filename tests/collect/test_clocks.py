"""A clock that is wrong for a while: nothing is lost, nothing is merged by it, and nothing untrue is acknowledged."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector, collected_task, collecting, sealed_batch, some_reports
from live import Answer, ask, bearer

from hubbub.collect import clock as clocks
from hubbub.collect import writing
from hubbub.collect.clock import TRUSTED_DAYS, Clock
from hubbub.collect.lifetimes import lasting, merge_old
from hubbub.collect.metrics import Metrics
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store, Unavailable
from hubbub.collect.sums import Sums
from hubbub.collect.writing import Collected
from hubbub.device.upload import Uploader
from hubbub.protocol.periods import open_periods, period_of
from hubbub.protocol.strata import first_day, stratum_in
from hubbub.protocol.task import Task

WEEKLY = collected_task(period="week")
DAILY = collected_task(period="day")
LABELLED = collected_task(labels={"country": ["de", "fr"]})
HOUR, DAY = 3600, 24 * 3600


class Shown:
    """What the clock of the service shows: noon of today, but for what it is wrong by. It moves as a test says."""

    def __init__(self) -> None:
        self._noon = int(time.time()) // DAY * DAY + DAY // 2
        self.wrong = 0

    def __call__(self) -> int:
        return self._noon + self.wrong

    def jump(self, days: float) -> None:
        """From now on it is wrong by so many days."""
        self.wrong = int(days * DAY)

    @property
    def today(self) -> datetime.date:
        """The day that it shows."""
        return datetime.datetime.fromtimestamp(self(), datetime.UTC).date()

    def right(self, days: int = 0) -> datetime.date:
        """The day by a clock that is right, or so many days from it."""
        noon = datetime.datetime.fromtimestamp(self._noon, datetime.UTC)
        return (noon + datetime.timedelta(days=days)).date()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found = Shown()
    monkeypatch.setattr(clocks, "_now", found)
    return found


def post(collector: Collector, name: str, reports: bytes, task: Task | None = None, **headers: str) -> Answer:
    """A batch, with headers such as `Period`."""
    task = task or collector.task
    given = {f"Hubbub-{each}": value for each, value in {"Batch": name, **headers}.items()}
    address = f"{collector.address}/v1/tasks/{task.digest.hex()}/reports"
    return ask(address, sealed_batch(task, reports), {**bearer(collector.token), **given})


def strata(collector: Collector, task: Task | None = None) -> dict[str | None, int]:
    """Reports by period."""
    task = task or collector.task
    rows = collector.get(f"/v1/tasks/{task.digest.hex()}/strata").json["strata"]
    return {row["period"]: row["reports"] for row in rows}


def stay(clock: Clock, shown: Shown, seconds: int, step: int = 600) -> None:
    """The clock goes on, and somebody looks."""
    for _ in range(0, seconds, step):
        shown.wrong += step
        clock.look()


# A service that is behind


@pytest.mark.parametrize("count", [5, 40_000], ids=["whole", "large"])
def test_what_has_not_begun_is_taken_once_the_clock_is_right(
    tmp_path: Path, shown: Shown, count: int
) -> None:
    """The first clock that the store ever sees is two weeks behind, so it is believed."""
    shown.jump(-14)
    week, reports = period_of(WEEKLY, shown.right()), some_reports(WEEKLY, count)
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY) as collector:
        for _ in range(2):
            answer = post(collector, "early", reports, Period=week)
            assert answer.status == 429
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["retry-after"] == "3600"
            assert (answer.json["status"], answer.json["batch"]) == (429, "early")
            assert answer.json["begins"] == str(first_day(week))
            assert "has not begun" in answer.json["detail"]
        assert collector.service.store.known(WEEKLY.digest.hex(), "early") is None
        about = collector.get(collector.path).json
        assert (about["reports"], about["rejected"]) == (0, {})
        shown.jump(0)
        said = {"batch": "early", "accepted": count, "rejected": 0, "repeated": False}
        assert post(collector, "early", reports, Period=week).json == said
        assert post(collector, "early", reports, Period=week).json == {**said, "repeated": True}
        assert strata(collector) == {week: count}


def test_an_uploader_keeps_what_is_early_and_sends_the_rest(tmp_path: Path, shown: Shown) -> None:
    """In whatever order they are, and with uploaders that live for one attempt."""
    shown.jump(-14)
    task, token = WEEKLY, ""
    today, old = period_of(task, shown.right()), period_of(task, shown.right(-14))

    def flush(collector: Collector) -> tuple[bool, int, int]:
        with Uploader(collector.address, task, token, tmp_path / "spool") as uploader:
            return uploader.flush(5), uploader.waiting, len(uploader.refused)

    with collecting(f"sqlite:///{tmp_path}/s.db", task) as collector:
        token = collector.service.tokens.new("upload")
        folder = tmp_path / "spool" / task.digest.hex()
        folder.mkdir(parents=True)
        day = f"{shown.right():%Y%m%d}"
        for name, week in (("0", today), ("5", old), ("9", today), ("a", old)):
            (folder / f"{day}-{name * 32}@{week}.batch").write_bytes(some_reports(task, 2))
        assert flush(collector) == (False, 4, 0)
        assert strata(collector) == {old: 4}
        shown.jump(0)
        assert flush(collector) == (True, 0, 0)
        assert strata(collector) == {old: 4, today: 4}


def test_a_clock_that_has_just_gone_back_refuses_nothing(tmp_path: Path, shown: Shown) -> None:
    """The store knows a later day: what is open on it is open, for as long as the clock is in doubt."""
    week = period_of(WEEKLY, shown.right())
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY) as collector:
        shown.jump(-60)
        assert post(collector, "one", some_reports(WEEKLY, 5), Period=week).status == 200
        assert post(collector, "two", some_reports(WEEKLY, 3)).status == 200  # of which nobody knows the week
        assert strata(collector) == {week: 5}
        assert collector.reports == 8
        stay(collector.service.clock, shown, DAY + HOUR)
        assert post(collector, "three", some_reports(WEEKLY, 5), Period=week).status == 429


# What is refused as a whole, and sent again


def test_a_batch_of_which_nothing_was_taken_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was wrong with it, the second answer is the first; and once it is good, it is taken and counted."""
    seeded = collected_task(seed_from="server")
    good, bad = some_reports(LABELLED, 4), b"\xff\xff\xff" * 4
    with collecting(f"sqlite:///{tmp_path}/s.db", LABELLED, seeded, WEEKLY) as collector:
        assert post(collector, "de", good, Labels="country=de").json["accepted"] == 4
        monkeypatch.setattr(writing, "MOST_COMBINATIONS", 1)
        cases: list[tuple[Task, str, bytes, dict[str, str]]] = [
            (LABELLED, "none", good, {}),
            (LABELLED, "other", good, {"Labels": "country=it"}),
            (LABELLED, "many", good, {"Labels": "country=fr"}),
            (LABELLED, "bad", bad, {"Labels": "country=de"}),
            (LABELLED, "large", bad * 10_000, {"Labels": "country=de"}),
            (seeded, "nonce", some_reports(seeded, 4), {}),
            (WEEKLY, "period", some_reports(WEEKLY, 4), {"Period": "2026-11"}),
        ]
        for task, name, reports, headers in cases:
            first = post(collector, name, reports, task, **headers)
            assert first.status == 422
            assert (first.json["accepted"], first.json["repeated"]) == (0, False)
            again = post(collector, name, reports, task, **headers)
            assert (again.status, again.json) == (422, first.json)
            assert collector.service.store.known(task.digest.hex(), name) is None
        assert collector.reports == 4
        monkeypatch.setattr(writing, "MOST_COMBINATIONS", 2)
        assert post(collector, "many", good, Labels="country=fr").json["accepted"] == 4
        assert collector.reports == 8


def test_a_bad_batch_under_the_id_of_a_good_one_is_a_conflict(store_url: str) -> None:
    """And what is said of a batch with good and bad reports is true both times."""
    good, bad = some_reports(LABELLED, 4), b"\xff\xff\xff"
    told = {"Labels": "country=de"}
    with collecting(store_url, LABELLED) as collector:
        assert post(collector, "one", good, **told).json["accepted"] == 4
        assert post(collector, "one", bad, **told).status == 409
        for again in (False, True):
            said = post(collector, "two", good + bad, **told).json
            assert (said["accepted"], said["rejected"], said["repeated"]) == (4, 1, again)
        assert post(collector, "two", bad * 2, **told).status == 409
        assert collector.reports == 8
        assert sum(collector.get(collector.path).json["rejected"].values()) == 1


def test_combinations_that_were_not_written_take_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches that are all bad, or that the store could not take."""
    monkeypatch.setattr(writing, "MOST_COMBINATIONS", 1)
    reports = some_reports(LABELLED, 2)
    with collecting(f"sqlite:///{tmp_path}/s.db", LABELLED) as collector:
        assert post(collector, "bad", b"\xff\xff\xff", Labels="country=fr").status == 422

        def full(group: Any) -> Any:
            raise Unavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(collector.service.store, "append", full)
            assert post(collector, "lost", reports, Labels="country=fr").status == 503
        assert post(collector, "de", reports, Labels="country=de").status == 200
        assert post(collector, "fr", reports, Labels="country=fr").status == 422


# A clock that jumps ahead


def test_a_clock_that_jumps_ahead_merges_nothing(tmp_path: Path, shown: Shown) -> None:
    """By 300 days, with a retention of 90: all is as it was once it is back, and while it is away."""
    weeks = [period_of(WEEKLY, shown.right(-days)) for days in (0, 7)]
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY, retention=90) as collector:
        service = collector.service
        for number, week in enumerate(weeks):
            assert post(collector, f"b{number}", some_reports(WEEKLY, 100), Period=week).status == 200
        before = strata(collector)
        assert before == dict.fromkeys(weeks, 100)
        shown.jump(300)
        service._tidy()
        assert post(collector, "named", some_reports(WEEKLY, 5), Period=weeks[0]).status == 200
        assert post(collector, "unnamed", some_reports(WEEKLY, 3)).status == 200
        service._tidy()
        after = {weeks[0]: 105, weeks[1]: 100}
        assert strata(collector) == after
        shown.jump(0)
        service._tidy()
        assert strata(collector) == after
        assert collector.reports == 208
        assert collector.get(f"{collector.path}/compare").json["sides"] == [weeks[1], weeks[0]]


def test_after_a_long_absence_nothing_is_lost_and_merging_goes_on_a_day_later(
    tmp_path: Path, shown: Shown
) -> None:
    """A service that was off for 120 days cannot know that its clock is right. Devices name the weeks in between."""
    url = f"sqlite:///{tmp_path}/s.db"
    shown.jump(-120)
    old = period_of(WEEKLY, shown.right(-120))
    with collecting(url, WEEKLY, retention=30) as collector:
        assert post(collector, "old", some_reports(WEEKLY, 9), Period=old).status == 200
    shown.jump(0)
    with collecting(url, WEEKLY, retention=30) as collector:
        named = [period_of(WEEKLY, shown.right(-days)) for days in (90, 40, 0)]
        for week in named:
            assert post(collector, week, some_reports(WEEKLY, 2), Period=week).status == 200
        collector.service._tidy()
        assert strata(collector) == {old: 9, **dict.fromkeys(named, 2)}
        stay(collector.service.clock, shown, DAY + HOUR)
        collector.service._tidy()
        merged: dict[str | None, int] = {}
        for week, count in ((old, 9), *((week, 2) for week in named)):
            where = lasting(week, 30, shown.today)
            merged[where] = merged.get(where, 0) + count
        assert strata(collector) == merged
        assert old not in merged
        assert named[2] in merged
        assert post(collector, "today", some_reports(WEEKLY, 2)).status == 200
        assert strata(collector)[period_of(WEEKLY, shown.today)] >= 2


def test_when_a_clock_is_believed(store_url: str, opened: Callable[..., Store], shown: Shown) -> None:
    """A day within a week at once, and any other after 24 hours there: jumps and absence do not count for hours."""
    store, far = opened(store_url), 300
    clock = Clock(store)
    right = shown.today

    def in_doubt() -> bool:
        """Whoever looks, also after a restart."""
        clock.look()
        (found,) = {clock.days(), Clock(store).days()}
        assert found in ((shown.today, shown.today), tuple(sorted((right, shown.today))))
        return found[0] != found[1]

    for days in (TRUSTED_DAYS, 0, -TRUSTED_DAYS, 0):
        shown.jump(days)
        assert clock.days() == (shown.today, shown.today)
        assert not in_doubt()
    shown.jump(far)
    assert clock.days() == (right, shown.today)  # before anybody has looked
    stay(clock, shown, 23 * HOUR)
    assert in_doubt()
    shown.wrong += 3 * DAY  # nobody was here: ten minutes at most
    assert in_doubt()
    shown.wrong += 30 * DAY  # another jump, from which it begins anew
    stay(clock, shown, 23 * HOUR)
    assert in_doubt()
    shown.jump(-far)
    stay(clock, shown, 23 * HOUR)
    assert in_doubt()
    shown.jump(0)
    assert not in_doubt()
    shown.jump(far)
    others = [Clock(store) for _ in range(4)]  # several processes make time pass no faster
    for _ in range(23 * 6):
        shown.wrong += 600
        for each in others:
            each.look()
    assert in_doubt()
    stay(clock, shown, 2 * HOUR)
    assert not in_doubt()
    assert others[0].days() == (right, shown.today)
    others[0].look()
    assert others[0].days() == (shown.today, shown.today)


def test_a_jump_gives_nobody_another_quota(tmp_path: Path, shown: Shown) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY, reports_per_token=5) as collector:
        assert post(collector, "one", some_reports(WEEKLY, 5)).status == 200
        shown.jump(300)
        assert post(collector, "two", some_reports(WEEKLY, 1)).status == 429


# Strata of the future


def test_a_period_that_has_not_begun_is_not_the_latest(tmp_path: Path, shown: Shown) -> None:
    """Some clock was wrong when its reports came. It can be asked for by name, and counts for the whole."""
    weeks = [period_of(WEEKLY, shown.right(days)) for days in (-7, 0, 280)]
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY) as collector:
        for number, week in enumerate(weeks):
            payload = some_reports(WEEKLY, 100)
            batch = Batch(
                WEEKLY.digest.hex(), week, 100, payload, payload[:16], 60 * number, stratum=f"@{week}"
            )
            collector.service.store.append([batch])
        assert strata(collector) == dict.fromkeys(weeks, 100)
        assert collector.get(f"{collector.path}/compare").json["sides"] == weeks[:2]
        went = collector.get(f"{collector.path}/trend?keys=1").json
        assert [row["period"] for row in went["reports"]] == weeks[:2]
        asked = f"{collector.path}/compare?first={weeks[1]}&second={weeks[2]}"
        assert collector.get(asked).json["sides"] == weeks[1:]
        assert collector.get(f"{collector.path}/estimates?period={weeks[2]}").json["reports"] == 100
        assert collector.get(f"{collector.path}/estimates").json["reports"] == 300


# Retention that is shorter than the time for which late reports are taken


def test_late_reports_make_no_merged_day_anew(tmp_path: Path, shown: Shown) -> None:
    """With a retention of one day: 2,000 reports of a day, then 3 late ones, at any time after."""
    day = shown.right(-60)
    month, year = str(day)[:7], str(day)[:4]
    shown.jump(-60)
    with collecting(f"sqlite:///{tmp_path}/s.db", DAILY, retention=1) as collector:
        assert post(collector, "day", some_reports(DAILY, 2000), Period=str(day)).status == 200
        total = 2000
        for later in range(1, 55):  # as many days after, by a clock that goes on
            shown.jump(-60 + later)
            collector.service._tidy()
            assert post(collector, f"late-{later}", some_reports(DAILY, 3), Period=str(day)).status == 200
            total += 3
            there = strata(collector)
            assert sum(there.values()) == total
            assert there.get(str(day), 2000) >= 2000
            assert there.get(month, 2000) >= 3 * (later > 8)
            if str(day) not in there:
                assert later > 15
                asked = collector.get(f"{collector.path}/estimates?period={day}")
                assert asked.status in (403, 422)
        assert set(there) <= {month, year}


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_what_is_open_is_never_merged_and_what_is_merged_never_made_anew(period: str) -> None:
    """For every day of three years and clocks that are wrong by a week: where a batch is put lasts until that day."""
    task = collected_task(period=period)
    least = {"day": 1, "week": 7, "month": 31}[period]
    begin = datetime.date(2025, 1, 1)
    for number in range(0, 1100, 3):
        today = begin + datetime.timedelta(days=number)
        for wrong in (-TRUSTED_DAYS, 0, TRUSTED_DAYS):
            other = today + datetime.timedelta(days=wrong)
            assert all(lasting(name, least, other) == name for name in open_periods(task, today))
        collected = Collected(task, lambda day=today: (day, day), 40)  # type: ignore[misc]
        for ago in (0, 8, 9, 20, 50, 100, 300, 399):
            name = period_of(task, today - datetime.timedelta(days=ago))
            where = stratum_in(task, collected.placed("", name).stratum).period
            for wrong in range(TRUSTED_DAYS + 1):
                assert lasting(where, 40, today + datetime.timedelta(days=wrong)) == where


def test_old_months_of_days_go_straight_to_their_year(opened: Callable[..., Store], store_url: str) -> None:
    store = opened(store_url)
    for number, place in enumerate(("2026-03-05", "2026-03", "2026-09-20", "2026-11-17")):
        payload = some_reports(DAILY, 4)
        store.append(
            [Batch(DAILY.digest.hex(), f"b{number}", 4, payload, payload[:12], 60, stratum=f"@{place}")]
        )
    whole = Folder(store, [DAILY], Metrics()).fold(DAILY).state.to_bytes()
    sums, today = Sums(store), datetime.date(2026, 11, 18)
    assert merge_old(store, sums, DAILY, 50, today) == 3
    assert {shelf.stratum: shelf.reports for shelf in store.shelves(DAILY.digest.hex())} == {
        "@2026": 8,
        "@2026-09": 4,
        "@2026-11-17": 4,
    }
    assert Folder(store, [DAILY], Metrics()).fold(DAILY).state.to_bytes() == whole
