"""A store that is lost or damaged under a running service: nothing is acknowledged that would not be there later."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql
from collecting import Collector, collected_task, collecting, eventually, some_reports
from live import ask

from helpers import refused
from hubbub.collect import transactions
from hubbub.collect.api import create_app
from hubbub.collect.database import meta, states
from hubbub.collect.integrity import damaged_pages
from hubbub.collect.store import Store, Unavailable

TASK = collected_task()


def refuses(collector: Collector) -> None:
    """Uploads and readiness are answered 503, now and from now on."""
    for number in range(2):
        answer = collector.send(some_reports(TASK, 2), f"after-{number}")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert collector.get("/readyz").status == 503
    assert collector.get("/healthz").status == 200


def remove(path: Path) -> None:
    path.unlink()


def exchange(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def blank(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "file"),
    [
        (remove, "s.db"),
        (exchange, "s.db"),
        (cut, "s.db"),
        (blank, "s.db"),
        (remove, "s.db-wal"),
        (exchange, "s.db-wal"),
        (blank, "s.db-wal"),
    ],
)
def test_a_store_that_is_harmed_acknowledges_nothing(
    tmp_path: Path, harm: Callable[[Path], None], file: str
) -> None:
    """Removed, replaced, cut short or overwritten while the service runs: SQLite itself would go on writing."""
    with collecting(f"sqlite:///{tmp_path}/s.db", fold_every=60, check_every=0.05) as collector:
        assert collector.send(some_reports(TASK, 2000), "before").status == 200
        with collector.service.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint")
        assert collector.send(some_reports(TASK, 10), "more").status == 200
        harm(tmp_path / file)
        if harm is blank and file == "s.db":  # of the same size and the same file: only its pages tell
            eventually(lambda: collector.service.store.damage != "")
        refuses(collector)


def test_ordinary_life_is_no_damage(tmp_path: Path) -> None:
    """Other programs read, checkpoint, vacuum and back up while the service runs."""
    with collecting(f"sqlite:///{tmp_path}/s.db", check_every=0.05) as collector:
        for number in range(8):
            assert collector.send(some_reports(TASK, 5000), f"b{number}").status == 200
            other = sqlite3.connect(tmp_path / "s.db", isolation_level=None, timeout=10)
            if number == 3:  # something to vacuum
                other.execute("CREATE TABLE other AS SELECT randomblob(1000000) AS bytes")
                other.execute("DROP TABLE other")
            statement = ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA quick_check")[number % 3]
            other.execute(statement).fetchall()
            other.close()
        collector.service.store.look_closely()
        assert collector.get("/readyz").json == {"status": "ready"}
        assert collector.reports == 40_000


def test_connections_that_are_all_closed_are_no_damage(tmp_path: Path) -> None:
    """SQLite removes its log with the last connection. Here one stays, so the pool may close all of its own."""
    url = f"sqlite:///{tmp_path}/s.db"
    with collecting(url, TASK, fold_every=60) as collector:
        for number in range(3):
            assert collector.send(some_reports(TASK, 5), f"b{number}").status == 200
            collector.service.store.engine.dispose()
            Store(url).close()  # as every command does that is run beside the service
            assert (tmp_path / "s.db-wal").exists()
        assert collector.get("/readyz").json == {"status": "ready"}
        assert collector.reports == 15
    assert not (tmp_path / "s.db-wal").exists()  # at the end everything is in the file


def test_a_look_at_all_pages_can_be_stopped(tmp_path: Path) -> None:
    """What is wrong is in the last of two million rows, and a look that is stopped does not come so far."""
    path = tmp_path / "large.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, word TEXT)")
        some = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000)"
        db.execute(f"INSERT INTO numbers {some} SELECT i, CASE WHEN i < 2000000 THEN 'a' END FROM n")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'TEXT NOT NULL')")
        db.commit()
    assert "NULL value" in damaged_pages(path)
    assert damaged_pages(path, stopped=lambda: True) == ""
    assert damaged_pages(path, seconds=1e-6) == ""


def test_the_end_does_not_wait_for_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that would take for ever is under way when the service is asked to end."""
    begun = threading.Event()

    def endless(path: Path, seconds: float, stopped: Callable[[], bool]) -> str:
        if seconds:
            return ""  # the first look has a limit of its own
        begun.set()
        eventually(stopped, seconds=60)
        return ""

    monkeypatch.setattr(transactions, "damaged_pages", endless)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        assert begun.wait(60)
        assert collector.send(some_reports(TASK, 5), "meanwhile").status == 200


def test_damage_is_noticed_at_the_start(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        collector.send(some_reports(TASK, 20_000), "one")
        assert collector.reports == 20_000
    file = tmp_path / "s.db"
    pages = bytearray(file.read_bytes())
    with sqlite3.connect(file) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history'").fetchone()
    connection.close()
    pages[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    file.write_bytes(pages)
    store = Store(f"sqlite:///{file}")
    with refused("cannot be used", "backup"):
        create_app(store, [TASK])
    store.close()


def test_a_restored_store_is_another_one(store_url: str) -> None:
    """What a process remembers is of one generation; it does not go on with the next, on either database."""
    with collecting(store_url) as collector:
        assert collector.send(some_reports(TASK, 5), "one").status == 200
        other = Store(store_url)
        with other.writing() as connection:
            connection.execute(meta.update().where(meta.c.name == "generation").values(value=b"x" * 16))
        other.close()
        refuses(collector)
    with collecting(store_url) as collector:
        assert collector.send(some_reports(TASK, 5), "one-more").status == 200
        assert collector.reports == 10


def test_one_damaged_task_leaves_the_others_alone(store_url: str) -> None:
    """It takes nothing and shows nothing, and says so; the other task is collected, listed and read."""
    bad, good = collected_task(keep_reports=False), collected_task()
    with collecting(store_url, bad, good) as collector:
        for task in (bad, good):
            collector.task, collector.path = task, f"/v1/tasks/{task.digest.hex()}"
            assert collector.send(some_reports(task, 10), "one").status == 200
            assert collector.reports == 10
    store, mine = Store(store_url), states.c.task == bad.digest.hex()
    with store.writing() as connection:
        connection.execute(states.update().where(mine).values(payload=b"damaged"))
    store.close()
    with collecting(store_url, bad, good, fold_every=0.05) as collector:
        eventually(lambda: bad.digest.hex() in collector.service.folder.damaged)
        assert collector.send(some_reports(bad, 10), "two").status == 503
        assert collector.get(collector.path).status == 503
        ready = {"status": "ready", "damaged_tasks": 1}
        assert collector.get("/readyz").json == {**ready, "damaged": [bad.digest.hex()]}
        assert ask(f"{collector.address}/readyz").json == ready  # to others it names nobody
        first, second = collector.get("/v1/tasks").json["tasks"]
        assert "backup" in first["damaged"]
        assert second["reports"] == 10
        assert collector.get("/").status == 200
        collector.task, collector.path = good, f"/v1/tasks/{good.digest.hex()}"
        assert collector.send(some_reports(good, 10), "two").status == 200
        assert collector.reports == 20


def test_a_damaged_store_is_still_read(tmp_path: Path) -> None:
    """Nothing is written any more, but what can be read is."""
    store = Store(f"sqlite:///{tmp_path}/s.db")
    store.damage = "something is wrong"
    with pytest.raises(Unavailable, match="wrong"):
        store.fact("name", b"")
    with store.reading() as connection:
        assert connection.execute(sql.select(meta.c.name)).all()
    store.close()
