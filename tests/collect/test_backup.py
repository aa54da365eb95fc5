"""Backup, restore, check, purge: what was acknowledged is there again, what is forgotten is not counted twice."""

from __future__ import annotations

import datetime
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from collecting import COLLISION, collected_task, collecting, eventually, some_reports

from helpers import refuse, refused, succeed
from hubbub.collect import retention
from hubbub.collect.backup import back_up, check, restore
from hubbub.collect.database import history, ids, log, segments, states
from hubbub.collect.metrics import Metrics
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.segments import day_number, name_of
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
TASK = collected_task()
NAME = TASK.digest.hex()
NOW = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
DAY = 86400


def batch(name: str, at: int = 0, task: Task = TASK, count: int = 3, seed: int = 1) -> Batch:
    reports = some_reports(task, count, seed=seed)
    return Batch(task.digest.hex(), name, count, reports, name.encode().ljust(16), at)


def fold(store: Store, task: Task = TASK) -> bytes:
    return Folder(store, [task], Metrics()).fold(task).state.to_bytes()


def empty_store(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another place of the same kind."""
    if url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/restored.db"
    make: Callable[[], str] = request.getfixturevalue("new_database")
    return make()


def test_a_backup_under_load_has_all_that_was_acknowledged(
    store_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Senders go on while the copy is made. Restored, the store knows every batch acknowledged before, and its reports.

    What came during the copy is in it whole or not at all, and counts once when it is sent again.
    """
    parts = {f"20261116-{number}": some_reports(TASK, 20, seed=number + 1) for number in range(240)}
    acknowledged: list[str] = []
    target, enough, looked = tmp_path / "copy.db", threading.Event(), threading.Event()
    with collecting(store_url, fold_every=0.02) as collector:

        def send(place: int) -> None:
            for number, name in enumerate(list(parts)[place::4]):
                assert number < 40 or looked.wait(60)  # what is left comes while the copy is made
                assert collector.send(parts[name], name).status == 200
                acknowledged.append(name)
                if len(acknowledged) >= 60:
                    enough.set()

        senders = [threading.Thread(target=send, args=(place,)) for place in range(4)]
        for sender in senders:
            sender.start()
        assert enough.wait(60)
        before = list(acknowledged)
        looked.set()
        said = succeed("store", "backup", target, "--store", store_url)
        for sender in senders:
            sender.join()
        token, sealing = collector.token, collector.service.keys.public
    assert 60 <= len(before) < 240
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert said["problems"] == []
    assert said["tasks"][0]["reports"] == 20 * said["tasks"][0]["batches"] >= 20 * len(before)
    for url in (empty_store(store_url, request, tmp_path), f"sqlite:///{tmp_path}/elsewhere.db"):
        assert succeed("store", "restore", target, "--store", url)["tasks"] == said["tasks"]
        with collecting(url) as again:
            assert again.get(again.path, token).status == 200  # tokens are restored, too
            assert again.service.keys.public == sealing
            kept = {name: payload for name, _, payload, _ in again.service.store.kept(NAME)}
            assert {name_of(name).hex() for name in before} <= kept.keys()
            for name, reports in parts.items():
                answer = again.send(reports, name)
                assert answer.json["repeated"] is (name_of(name).hex() in kept)
                assert kept.get(name_of(name).hex(), reports) == reports
            state = again.service.folder.fold(TASK).state
            assert state.to_bytes() == aggregate(TASK, b"".join(parts.values())).to_bytes()
            assert again.send(some_reports(TASK, 1), "one-more").status == 200
        succeed("store", "check", "--store", url)


def test_a_restored_store_has_another_generation(opened: Opener, store_url: str, tmp_path: Path) -> None:
    opened(store_url).append([batch("one")])
    back_up(store_url, tmp_path / "copy.db")
    restore(tmp_path / "copy.db", f"sqlite:///{tmp_path}/restored.db")
    generations = {
        store.fact("generation", b"")
        for store in (opened(store_url), opened(f"sqlite:///{tmp_path}/restored.db"))
    }
    assert len(generations) == 2


def test_nothing_is_overwritten(opened: Opener, store_url: str, tmp_path: Path) -> None:
    opened(store_url).append([batch("one")])
    back_up(store_url, tmp_path / "copy.db")
    before = (tmp_path / "copy.db").read_bytes()
    assert "nothing is overwritten" in refuse("store", "backup", tmp_path / "copy.db", "--store", store_url)
    words = refuse("store", "restore", tmp_path / "copy.db", "--store", store_url)
    assert "overwritten" in words or "something in it" in words
    assert (tmp_path / "copy.db").read_bytes() == before
    assert "no store" in refuse("store", "check", "--store", f"sqlite:///{tmp_path}/none.db")
    (tmp_path / "noise.db").write_bytes(os.urandom(8192))
    assert "noise.db" in refuse(
        "store", "restore", tmp_path / "noise.db", "--store", f"sqlite:///{tmp_path}/new.db"
    )
    assert not (tmp_path / "new.db").exists()


def harm(store: Store, table: Any, **values: Any) -> None:
    with store.writing() as connection:
        connection.execute(table.update().values(**values))


@pytest.mark.parametrize(
    ("table", "values", "part"),
    [
        (segments, {"payload": some_reports(TASK, 3, seed=99)}, "are damaged"),
        (segments, {"period": 5}, "are damaged"),
        (log, {"payload": b"xyz"}, "are damaged"),
        (states, {"payload": b"hubb" + bytes(200)}, "version 0"),
        (history, {"reports": 7}, "have arrived"),
    ],
    ids=["reports", "period", "waiting", "state", "history"],
)
def test_check_finds_what_was_changed(
    opened: Opener, store_url: str, table: Any, values: dict[str, Any], part: str, tmp_path: Path
) -> None:
    """And such a store is not backed up as if it were sound."""
    store = opened(store_url)
    store.append([batch("one")])
    fold(store)
    store.append([batch("two", seed=2)])
    assert check(store_url).facts() == {
        "tasks": [{"task": NAME, "reports": 6, "batches": 2}],
        "problems": [],
    }
    harm(store, table, **values)
    assert part in refuse("store", "check", "--store", store_url)
    with refused("no backup", part):
        back_up(store_url, tmp_path / "copy.db")
    assert list(tmp_path.glob("copy.db*")) == []


def test_check_finds_missing_reports_and_pages(opened: Opener, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    store = opened(url)
    for number in range(3):
        store.append([batch(f"b{number}", at=3600 * number)])
    fold(store)
    with store.writing() as connection:
        connection.execute(segments.delete().where(segments.c.first == 3))
    assert "are missing" in check(url).problems[0]
    store.close()
    with sqlite3.connect(tmp_path / "s.db") as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ids'").fetchone()
    connection.close()
    pages = bytearray((tmp_path / "s.db").read_bytes())
    pages[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    (tmp_path / "s.db").write_bytes(pages)
    assert "is damaged" in check(url).problems[0]


# Retention


def stamped(day: str, number: int) -> str:
    return f"{day}-{number:032x}"


def test_forgotten_batches_are_never_counted_twice(opened: Opener, store_url: str) -> None:
    """Ids of old days go, and with them, for good, the welcome of batches of these days; later ones are known."""
    store = opened(store_url)
    old = [batch(stamped("20260801", number), seed=number + 1) for number in range(5)]
    young = [batch(stamped("20261110", number), seed=number + 50) for number in range(5)]
    plain = [batch(f"plain-{number}", seed=number + 90) for number in range(5)]
    assert store.append([*old, *young, *plain]) == ["stored"] * 15
    before = fold(store)
    assert purge(store, NAME, Horizons(ids=30), NOW) == {"reports": 0, "ids": 5, "states": 0, "crowds": 0}
    again = store.append([*old, *young, *plain])
    assert again == ["expired"] * 5 + ["repeated"] * 10
    never_sent = batch(stamped("20260801", 77), seed=200)
    assert store.append([never_sent, batch(stamped("20261017", 1), seed=201)]) == ["expired", "stored"]
    purge(store, NAME, Horizons(ids=300), NOW)  # a horizon that is moved back brings nothing back
    assert store.append([old[0]]) == ["expired"]
    assert opened(store_url).append([old[0], batch(stamped("20261017", 1), seed=201)]) == [
        "expired",
        "repeated",
    ]
    assert (
        fold(store)
        == aggregate(
            TASK, b"".join(bytes(b.payload) for b in [*old, *young, *plain]) + some_reports(TASK, 3, seed=201)
        ).to_bytes()
    )
    assert before != fold(store)
    with store.reading() as connection:
        assert connection.execute(sql.select(sql.func.count()).select_from(ids)).scalar_one() == 11


def test_ids_go_day_by_day(opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction for each day, and uploads in between: what is refused is refused from the first one on."""
    store, other = opened(store_url), opened(store_url)
    days = ["20260801", "20260802", "20260803"]
    old = [batch(stamped(day, number), seed=number + 1) for day in days for number in range(4)]
    assert store.append(old) == ["stored"] * 12
    writing, left, came = store.writing, [], []

    @contextmanager
    def watched() -> Iterator[Any]:
        with writing() as connection:
            yield connection
        with other.reading() as reading:
            left.append(reading.execute(sql.select(sql.func.count()).select_from(ids)).scalar_one())
        came.append(other.append([old[0], old[-1], batch(f"new-{len(came)}")]))

    monkeypatch.setattr(store, "writing", watched)
    assert purge(store, NAME, Horizons(ids=30), NOW)["ids"] == 12
    assert left == [12, 8 + 1, 4 + 2, 0 + 3]  # after the watermark, and after each day
    assert came == [["expired", "expired", "stored"]] * 4


def test_uploads_wait_while_something_is_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite lets one write at a time: uploads queue meanwhile, and are acknowledged when the purge is over."""
    url, begun, go_on = f"sqlite:///{tmp_path}/s.db", threading.Event(), threading.Event()
    drop = retention._drop_reports

    def slow(*arguments: Any) -> int:
        begun.set()
        assert go_on.wait(60)
        return drop(*arguments)

    monkeypatch.setattr(retention, "_drop_reports", slow)
    with (
        collecting(url, fold_every=60) as collector,
        closing(Store(url)) as store,
        ThreadPoolExecutor(9) as pool,
    ):
        assert collector.send(some_reports(TASK, 3), "first").status == 200
        assert collector.reports == 3
        purging = pool.submit(purge, store, NAME, Horizons(reports=1), NOW)
        assert begun.wait(60)
        uploads = [pool.submit(collector.send, some_reports(TASK, 3), f"b{number}") for number in range(8)]
        eventually(lambda: len(collector.service.writer) > 0)
        assert not any(upload.done() for upload in uploads)
        go_on.set()
        assert [upload.result().status for upload in uploads] == [200] * 8
        assert purging.result()["reports"] == 0
        assert collector.reports == 27


def test_a_late_device_is_told(tmp_path: Path) -> None:
    """What is refused as too old is final for an uploader, and says why."""
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        assert collector.send(some_reports(TASK, 3), stamped("20200101", 1)).status == 200
        succeed("store", "purge", "--ids", 30, "--store", f"sqlite:///{tmp_path}/s.db")
        answer = collector.send(some_reports(TASK, 3), stamped("20200101", 2))
        assert (answer.status, answer.json["title"]) == (409, "too old")
        assert collector.send(some_reports(TASK, 3), "undated").status == 200
        assert collector.reports == 6


def test_reports_and_states_go_and_estimates_stay(opened: Opener, store_url: str) -> None:
    store, now = opened(store_url), int(NOW.timestamp())
    folder = Folder(store, [TASK], Metrics())
    for number, age in enumerate((90, 60, 20, 10, 1)):
        store.append([batch(f"b{number}", at=now - age * DAY, seed=number + 1)])
        before = folder.fold(TASK).state.to_bytes()
    assert len(store.past(NAME)) == 4
    found = purge(store, NAME, Horizons(reports=30, states=15), NOW)
    assert found == {"reports": 6, "ids": 0, "states": 3, "crowds": 0}
    kept = [name for name, _, _, _ in store.kept(NAME)]
    assert kept == [name_of(f"b{number}").hex() for number in (2, 3, 4)]
    assert len(store.past(NAME)) == 1
    assert len(store.periods(NAME, 10)) == 5
    again = Folder(opened(store_url), [TASK], Metrics())
    assert again.fold(TASK).state.to_bytes() == before
    store.append([batch("b9", at=now, seed=77)])
    assert again.fold(TASK).state.count == 18
    assert check(store_url).problems == []
    assert purge(store, NAME, Horizons(reports=30, states=15), NOW) == {
        "reports": 0,
        "ids": 0,
        "states": 0,
        "crowds": 0,
    }


def test_what_purge_refuses(opened: Opener, store_url: str) -> None:
    """A state that consists of the reports needs them."""
    task = collected_task(mechanism={**COLLISION, "family": "prf"})
    store = opened(store_url)
    store.append([batch("one", task=task)])
    before = fold(store, task)
    assert "consists of" in refuse("store", "purge", "--reports", 1, "--store", store_url)
    assert "Say what" in refuse("store", "purge", "--store", store_url)
    assert "nothing of a task" in refuse(
        "store", "purge", "--ids", 1, "--task", "ff" * 16, "--store", store_url
    )
    assert fold(store, task) == before


def test_a_small_upload_costs_little_for_ever(opened: Opener, tmp_path: Path) -> None:
    """One report per batch, kept, under an uploader's id: at most 60 bytes, index and all. It was 246."""
    store = opened(f"sqlite:///{tmp_path}/s.db")
    folder = Folder(store, [TASK], Metrics())

    def used() -> int:
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        return int(pages - free) * 4096

    def send(count: int) -> None:
        for _ in range(0, count, 500):
            names = [f"20261116-{os.urandom(16).hex()}" for _ in range(500)]
            store.append([Batch(NAME, name, 1, b"\1\2\0", os.urandom(16), 0) for name in names])
            folder.fold(TASK)

    send(5000)
    before = used()
    send(15_000)
    assert (used() - before) / 15_000 <= 60


def test_days_are_counted_alike() -> None:
    assert day_number(datetime.date(2026, 11, 16)) == 9816
