"""The store: a log in which a batch counts once, and a snapshot that is never half a step behind."""

from __future__ import annotations

import sqlite3
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from collecting import collected_task, some_reports

from helpers import reason, refused
from hubbub.collect import migrations
from hubbub.collect import snapshots as folding
from hubbub.collect.database import history, log, segments, states
from hubbub.collect.metrics import Metrics
from hubbub.collect.segments import Damaged, name_of
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Head, Store, Unavailable
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
TASK = collected_task()
NAME = TASK.digest.hex()


def batch(number: int, count: int = 3, at: int = 0, **changes: Any) -> Batch:
    """A batch with reports of its own."""
    payload = some_reports(TASK, count, seed=number + 1)
    parts = {"payload": payload, "checksum": payload[:16].ljust(16), "received": at}
    return Batch(**{"task": NAME, "id": f"b{number}", "count": count, **parts, **changes})


def folder_for(store: Store, task: Task = TASK) -> Folder:
    return Folder(store, [task], Metrics())


def test_rules_for_the_collector_are_part_of_the_task() -> None:
    """At their defaults they leave the digests of older tasks alone; changed, they make another task."""
    assert b"precision" not in TASK.canonical
    assert b"keep_reports" not in TASK.canonical
    assert collected_task(precision="hour", keep_reports=True).digest == TASK.digest
    others = {collected_task(precision="day").digest, collected_task(keep_reports=False).digest}
    assert len(others | {TASK.digest}) == 3
    assert "precision" not in TASK.to_toml()
    changed = collected_task(precision="day", keep_reports=False)
    assert Task.parse(tomllib.loads(changed.to_toml())) == changed
    with refused("precision"):
        collected_task(precision="second")


# The log


def test_a_batch_is_stored_once(opened: Opener, store_url: str) -> None:
    """Sent again, alone or in the same group, it is known; its id with other reports is a conflict."""
    store = opened(store_url)
    one, two = batch(1), batch(2)
    assert store.append([one, two, one]) == ["stored", "stored", "repeated"]
    assert store.append([two, batch(3), batch(1, checksum=b"x" * 16)]) == ["repeated", "stored", "conflict"]
    other = "ff" * 16
    assert store.append([batch(1, task=other)]) == ["stored"]
    assert len(list(store.kept(NAME))) == 3
    assert [name for name, _, _, _ in store.kept(other)] == [name_of("b1").hex()]


def test_reject_counters_change_with_their_batch(opened: Opener, store_url: str) -> None:
    store = opened(store_url)
    bad = batch(1, rejects={"broken": 2, "odd": 1})
    store.append([bad, batch(2, rejects={"broken": 5}), bad])
    store.append([bad])
    assert store.rejected(NAME) == {"broken": 7, "odd": 1}
    assert store.rejected("ff" * 16) == {}


def test_a_failing_transaction_leaves_nothing(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last statement of the transaction fails; the batches before it are gone, too."""
    store = opened(store_url)
    with monkeypatch.context() as broken:
        broken.setattr(store, "_add", lambda *_, **__: sql.text("SELECT 1 FROM nowhere"))
        with pytest.raises((Unavailable, sql.exc.DBAPIError)):
            store.append([batch(1), batch(2, rejects={"odd": 1})])
    assert list(store.kept(NAME)) == []
    assert store.append([batch(1)]) == ["stored"]


def test_many_writers_share_one_log(opened: Opener, store_url: str) -> None:
    """Eight threads with stores of their own send the same batches in different orders: each counts once."""
    group = [batch(number) for number in range(40)]
    stores = [opened(store_url) for _ in range(8)]
    outcomes: list[str] = []

    def send(place: int) -> None:
        mine = group[place * 5 :] + group[: place * 5]
        if place % 2:
            mine.reverse()
        for start in range(0, 40, 8):
            outcomes.extend(stores[place].append(mine[start : start + 8]))

    threads = [threading.Thread(target=send, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 320
    assert outcomes.count("stored") == 40
    assert outcomes.count("repeated") == 280
    assert len(list(stores[0].kept(NAME))) == 40


# Folding


def test_the_state_is_that_of_a_single_pass(
    opened: Opener, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(store_url)
    folder = folder_for(store)
    assert folder.fold(TASK).state.count == 0
    for number in range(12):
        store.append([batch(number, at=3600 * (number // 5))])
        if number % 4 == 3:
            assert folder.fold(TASK).state.count == 3 * (number + 1)
    everything = b"".join(payload for _, _, payload, _ in store.kept(NAME))
    expected = aggregate(TASK, everything).to_bytes()
    assert folder.fold(TASK).state.to_bytes() == expected
    assert folder_for(opened(store_url)).fold(TASK).state.to_bytes() == expected
    assert not store.waiting(NAME)
    assert store.head(NAME) == Head(3, 36, 7200)
    assert caplog.records == []  # nothing had to be repaired


def test_folding_in_rounds(opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_ROUND", 25)  # bytes; a batch has 9
    store = opened(store_url)
    for number in range(10):
        store.append([batch(number)])
    assert folder_for(store).fold(TASK).state.count == 30
    assert store.head(NAME).version == 4


def test_an_old_snapshot_is_not_advanced(opened: Opener, store_url: str) -> None:
    """Two folders that start from the same snapshot: the second one's work changes nothing."""
    store = opened(store_url)
    store.append([batch(1)])
    rows = store.unfolded(NAME, 1, 10)

    def advance(old: Head, new: Head) -> bool:
        kept: Any = {"folded": rows, "kept": [row.lot for row in rows]}
        return store.advance(NAME, old, new, b"state", **kept, arrived={0: 3}, closed={}, most_states=120)

    assert advance(Head(0, 0, None), Head(1, 3, 0))
    assert not advance(Head(0, 0, None), Head(1, 3, 0))
    assert not advance(Head(5, 3, 0), Head(6, 6, 0))
    assert store.head(NAME) == Head(1, 3, 0)
    assert store.periods(NAME, 10) == [(0, 3)]


def test_folders_of_several_processes_count_once(opened: Opener, store_url: str) -> None:
    """Four folders at once while batches keep arriving: every report is in the state exactly once."""
    store = opened(store_url)
    folders = [folder_for(opened(store_url)) for _ in range(4)]
    done = threading.Event()
    troubles: list[BaseException] = []

    def fold(folder: Folder) -> None:
        try:
            while not done.is_set():
                folder.fold(TASK)
        except BaseException as problem:
            troubles.append(problem)

    threads = [threading.Thread(target=fold, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for number in range(60):
        store.append([batch(number)])
    done.set()
    for thread in threads:
        thread.join()
    assert troubles == []
    expected = aggregate(TASK, b"".join(payload for _, _, payload, _ in store.kept(NAME))).to_bytes()
    assert [folder.fold(TASK).state.to_bytes() for folder in folders] == [expected] * 4
    assert sum(reports for _, reports in store.periods(NAME, 10)) == 180


def test_dropped_reports_are_gone_and_stay_counted(opened: Opener, store_url: str) -> None:
    """Ids and digests remain, so that a retry is harmless and other reports under the same id are noticed."""
    task = collected_task(keep_reports=False)
    name = task.digest.hex()
    store = opened(store_url)
    folder = folder_for(store, task)
    mine = [batch(number, task=name) for number in range(3)]
    store.append(mine)
    assert folder.fold(task).state.count == 9
    with store.reading() as connection:
        assert connection.execute(log.select()).all() == []
        assert connection.execute(segments.select()).all() == []
    assert store.append(mine) == ["repeated"] * 3
    assert store.append([batch(0, task=name, checksum=b"x" * 16)]) == ["conflict"]
    assert folder.fold(task).state.count == 9


# History


def test_past_periods_keep_their_state(opened: Opener, store_url: str) -> None:
    store = opened(store_url)
    folder = folder_for(store)
    for number in range(6):
        store.append([batch(number, at=3600 * (number // 2))])
    folder.fold(TASK)
    assert store.periods(NAME, 10) == [(0, 6), (3600, 6), (7200, 6)]
    assert store.periods(NAME, 2) == [(3600, 6), (7200, 6)]
    assert store.past(NAME) == [0, 3600]
    store.append([batch(7, at=3600)])  # a latecomer counts where it belongs, and closes nothing
    folder.fold(TASK)
    assert store.periods(NAME, 10)[1] == (3600, 9)
    assert store.head(NAME).period == 7200
    assert store.past(NAME) == [0, 3600]


def test_history_is_thinned_evenly(opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_MOST_STATES", 6)
    store = opened(store_url)
    folder = folder_for(store)
    for number in range(20):
        store.append([batch(number, at=60 * number)])
        folder.fold(TASK)
    past = store.past(NAME)
    assert 3 <= len(past) <= 6
    assert past[0] <= 60 * 5
    assert past[-1] == 60 * 18
    assert len(store.periods(NAME, 100)) == 20


def test_folding_looks_at_unfolded_batches_only(opened: Opener, tmp_path: Path) -> None:
    """However much there is: all questions are answered from the log alone, in the order of its indexes."""
    store = opened(f"sqlite:///{tmp_path}/s.db")
    store.append([batch(1)])
    asked: list[str] = []
    sql.event.listen(store.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    assert store.waiting(NAME)
    store.unfolded(NAME, store.last(), 10)
    store.unfolded(NAME, store.last(), 10, strata=["country=de"])
    queries = [query for query in asked if query.startswith("SELECT")]
    assert len(queries) == 5
    with store.reading() as connection:
        for query in queries:
            places = (NAME, 1, "country=de")[: query.count("?")]
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", places).all()
            assert len(plan) == 1
            assert plan[0][3].startswith("SEARCH log")
            index = "log_order (task=?"
            index = "log_strata (task=?" if "sum(" in query else index
            index = "log_strata (task=? AND stratum=?" if " IN (" in query else index
            assert (index in plan[0][3]) == ("WHERE" in query)


# Damage


def damage(store: Store, **changes: Any) -> None:
    with store.writing() as connection:
        connection.execute(states.update().values(**changes))


def flipped(store: Store) -> bytes:
    _, payload, _ = store.snapshot(NAME)
    assert payload is not None
    return payload[:-30] + bytes([payload[-30] ^ 1]) + payload[-29:]


@pytest.mark.parametrize("how", ["flipped", "history", "lost"])
def test_a_damaged_state_is_made_again(opened: Opener, store_url: str, how: str) -> None:
    """A flipped bit, counts that do not agree, no state at all: all of them are noticed and repaired."""
    store = opened(store_url)
    store.append([batch(number, at=60 * number) for number in range(5)])
    good = folder_for(store).fold(TASK).state.to_bytes()
    if how == "flipped":
        damage(store, payload=flipped(store))
    elif how == "history":
        with store.writing() as connection:
            connection.execute(history.delete().where(history.c.period == 60))
    else:
        with store.writing() as connection:
            connection.execute(states.delete())
            connection.execute(history.delete())
    assert folder_for(opened(store_url)).fold(TASK).state.to_bytes() == good
    assert sum(reports for _, reports in store.periods(NAME, 10)) == 15


def test_damage_without_reports_is_said_loudly(opened: Opener, store_url: str) -> None:
    task = collected_task(keep_reports=False)
    store = opened(store_url)
    store.append([batch(1, task=task.digest.hex())])
    folder_for(store, task).fold(task)
    damage(store, payload=b"not a state")
    with pytest.raises(Damaged, match="backup"):
        folder_for(store, task).fold(task)
    with store.reading() as connection:
        assert bytes(connection.execute(sql.select(states.c.payload)).scalar_one()) == b"not a state"


def test_too_large_a_state_is_refused_at_once(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_LARGEST_STATE", 1000)
    with refused("fewer bits", "hubbub aggregate"):
        folder_for(opened(f"sqlite:///{tmp_path}/s.db"))


# Opening


def test_tables_are_migrated_step_by_step(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new step runs once; one that fails leaves the store at its old version, with nothing half done."""
    opened(store_url).append([batch(1)])
    first = migrations.STEPS
    broken = ("CREATE TABLE more (number INTEGER)", "CREATE TABLE meta (name INTEGER)")
    monkeypatch.setattr(migrations, "STEPS", (*first, broken))
    with pytest.raises((sql.exc.DBAPIError, ValueError)):
        opened(store_url)
    monkeypatch.setattr(migrations, "STEPS", (*first, ("CREATE TABLE more (number INTEGER)",)))
    for _ in range(2):
        assert len(list(opened(store_url).kept(NAME))) == 1
    monkeypatch.setattr(migrations, "STEPS", first)
    with refused(f"version {len(first) + 1}", "newer hubbub"):
        opened(store_url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hubbub.db",
        "sqlite://",
        "mysql://localhost/x",
        "postgresql://user:secret@host:1x/base",
        "sqlite:///no/such/folder/x.db",
        "postgresql://127.0.0.1:1/x",
    ],
)
def test_stores_that_cannot_be_opened(opened: Opener, url: str) -> None:
    with refused("store"):
        opened(url)


def test_a_password_is_not_shown(opened: Opener) -> None:
    assert "secret" not in reason(lambda: opened("postgresql://somebody:secret@127.0.0.1:1/x"))


def test_not_a_database(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"something else entirely" * 100)
    with refused("cannot be opened"):
        opened(f"sqlite:///{tmp_path}/s.db")
    with refused("no store"):
        opened(f"sqlite:///{tmp_path}/t.db", create=False)


def test_acknowledged_means_on_disk(opened: Opener, tmp_path: Path) -> None:
    """The settings on which durability rests."""
    store = opened(f"sqlite:///{tmp_path}/s.db")
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_locked_database_is_unavailable_until_it_is_free(opened: Opener, tmp_path: Path) -> None:
    store = opened(f"sqlite:///{tmp_path}/s.db")
    blocker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        store.append([batch(1)])
    assert list(store.kept(NAME)) == []
    blocker.close()
    assert store.append([batch(1)]) == ["stored"]


def test_facts_are_settled_by_the_first(opened: Opener, store_url: str) -> None:
    store = opened(store_url)
    assert store.fact("key", b"one") == b"one"
    assert opened(store_url).fact("key", b"two") == b"one"
