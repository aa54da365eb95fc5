"""Reports in segments: adding to a state costs the same however large it is, and old stores are brought along."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from collecting import COLLISION, collected_task, collecting, sealed_batch, some_reports

from hubbub.collect import migrations
from hubbub.collect import segments as packing
from hubbub.collect import snapshots as folding
from hubbub.collect.database import open_engine, segments, states
from hubbub.collect.metrics import Metrics
from hubbub.collect.segments import Damaged, Lot, Rows, day_of, name_of
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.files import STATE
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
PRF = {**COLLISION, "family": "prf"}
#: Its state consists of the reports themselves, 5 bytes each.
TASK = collected_task(mechanism=PRF)
NAME = TASK.digest.hex()


def batch(task: Task, number: int, reports: bytes, at: int = 0, **more: Any) -> Batch:
    check = hashlib.blake2b(reports, digest_size=16).digest()
    count = len(reports) // task.mechanism.layout.width
    return Batch(task.digest.hex(), f"b{number}", count, reports, check, at, **more)


def folder_for(store: Store, task: Task = TASK) -> Folder:
    return Folder(store, [task], Metrics())


def rows_of(store: Store) -> list[Any]:
    with store.reading() as connection:
        return list(connection.execute(segments.select().order_by(segments.c.first)))


def test_a_lot_tells_its_batches_apart() -> None:
    made = [(name_of(str(i)), i, bytes([i]) * 3 * i) for i in range(1, 6)]
    one, two = Lot.of(7, made[:2]), Lot.of(7, made[2:])
    both = Lot.joined([one, two])
    assert both == Lot.of(7, made)
    assert both.batches() == [(name.hex(), payload) for name, _, payload in made]
    assert (both.count, both.checksum()) != (one.count, one.checksum())
    assert Lot(7, 2, b"", b"", b"abcdef").batches() == [("", b"abcdef")]


def test_many_small_lots_are_one_change_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty uploads that came one by one and then a fold: the last segment is written once, not forty times."""
    changes: list[int] = []
    put = packing.put
    monkeypatch.setattr(packing, "put", lambda *given: (changes.append(given[1][0][2].count), put(*given)))
    task = collected_task()
    name, reports = task.digest.hex(), some_reports(task, 40, seed=3)
    with closing(Store(f"sqlite:///{tmp_path}/s.db")) as store:
        folder = Folder(store, [task], Metrics())
        for period, numbers in ((60, range(25)), (120, range(25, 40))):
            for number in numbers:
                report = reports[3 * number : 3 * number + 3]
                store.append([Batch(name, f"b{number}", 1, report, bytes(16), period)])
        assert folder.fold(task).state.to_bytes() == aggregate(task, reports).to_bytes()
        assert changes == [25, 15]
        assert b"".join(payload for _, _, payload, _ in store.kept(name)) == reports


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("20000102-x", 1),
        ("20261116-" + "0" * 32, 9816),
        ("20261116", 0),
        ("20261316-x", 0),
        ("19991231-x", 0),
        ("2026-11-16-x", 0),
        ("x" * 64, 0),
    ],
)
def test_days_of_ids(name: str, day: int) -> None:
    assert day_of(name) == day


def test_rows_in_memory_never_change_under_a_reader() -> None:
    rows, seen = Rows(3, (0, 0)), []
    everything = np.random.default_rng(1).integers(0, 256, (5000, 3), dtype=np.uint8)
    for start in range(0, 5000, 50):
        rows.add(everything[start : start + 50])
        seen.append(rows.first(rows.count))
    for number, view in enumerate(seen, 1):
        assert np.array_equal(view, everything[: 50 * number])


def test_a_fold_writes_what_is_new(opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many reports there are, a fold writes what is new and a few bytes for the rest of the state.

    Many small segments become one, which is full one day and then never written again.
    """
    monkeypatch.setattr(packing, "SEGMENT", 500)
    store = opened(store_url)
    folder = folder_for(store)
    everything, before = b"", []
    for number in range(40):
        reports = some_reports(TASK, 25, seed=number + 1)
        everything += reports
        store.append([batch(TASK, number, reports)])
        assert folder.fold(TASK).state.count == 25 * (number + 1)
        after = rows_of(store)
        full = [row for row in before if len(row.payload) + len(row.names) >= 500]
        assert full == after[: len(full)]
        assert before == after[:-1] or len(before) == len(full) + 16 == len(after) + 15
        before = after
        with store.reading() as connection:
            assert len(connection.execute(sql.select(states.c.payload)).scalar_one()) < 100
    assert [row.count for row in before] == [17 * 25, 17 * 25, *[25] * 6]
    expected = aggregate(TASK, everything)
    for one in (folder, folder_for(opened(store_url))):
        assert one.fold(TASK).state.to_bytes() == expected.to_bytes()
    found = estimate(TASK, folder.fold(TASK).state).rows()
    assert found == estimate(TASK, expected).rows()
    kept = {name: payload for name, _, payload, _ in store.kept(NAME)}
    assert len(kept) == 40
    assert kept[name_of("b7").hex()] == some_reports(TASK, 25, seed=8)


def test_processes_read_what_others_have_folded(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders take turns, and one starts over in between: each reads only what is new to it, and all agree."""
    monkeypatch.setattr(packing, "SEGMENT", 200)
    stores = [opened(store_url), opened(store_url)]
    folders = [folder_for(store) for store in stores]
    everything, plain = b"", Store.reports_after
    read: list[int] = []
    monkeypatch.setattr(Store, "reports_after", lambda *asked: _counted(plain(*asked), read))
    for number in range(16):
        reports = some_reports(TASK, 10, seed=number + 1)
        everything += reports
        stores[0].append([batch(TASK, number, reports)])
        if number == 8:
            assert stores[1].start_over(NAME)
        if number == 10:  # by now both have read what was made again
            read.clear()
        state = folders[number % 2].fold(TASK).state
        assert state.to_bytes() == aggregate(TASK, everything).to_bytes()
    assert sum(read) == 6 * 50  # of the 800 bytes that there are, what the other one has added


def _counted(parts: Any, sizes: list[int]) -> Any:
    for part, end in parts:
        sizes.append(len(part))
        yield part, end


def test_reports_that_are_not_kept_are_not_told_apart(opened: Opener, store_url: str) -> None:
    """A state of reports needs them; which of them came together, or under which id, nobody needs."""
    task = collected_task(mechanism=PRF, keep_reports=False)
    store = opened(store_url)
    parts = [some_reports(task, 20, seed=number + 1) for number in range(6)]
    for number, reports in enumerate(parts):
        store.append([batch(task, number, reports)])
    state = folder_for(store, task).fold(task).state
    assert state.to_bytes() == aggregate(task, b"".join(parts)).to_bytes()
    (row,) = rows_of(store)
    assert (bytes(row.names), bytes(row.sizes)) == (b"", b"")
    width = task.mechanism.layout.width
    found = [bytes(row.payload)[at : at + width] for at in range(0, 120 * width, width)]
    assert found == sorted(found)


@pytest.mark.parametrize("keep", [True, False])
def test_past_states_of_reports(store_url: str, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the first so many reports: estimates over time are those of the reports that had come by then."""
    task = collected_task(mechanism=PRF, keep_reports=keep)
    parts = [some_reports(task, 30, seed=number + 1) for number in range(4)]
    monkeypatch.setattr(packing, "SEGMENT", 100)
    with collecting(store_url, task, fold_every=60) as collector:
        store = collector.service.store
        for number, reports in enumerate(parts):
            store.append([batch(task, number, reports, 3600 * number)])
            collector.service.folder.fold(task)
        found = collector.get(f"{collector.path}/history?keys=3").json["estimates"]["3"]
        assert len(zlib.decompress(store.past_state(task.digest.hex(), 0) or b"")) == 24
    for number, point in enumerate(found):
        state = aggregate(task, b"".join(parts[: number + 1]))
        assert {**estimate(task, state, ["3"]).rows()[0], "period": point["period"]} == point
    assert len(found) == 4


def test_a_damaged_segment_is_noticed(opened: Opener, store_url: str) -> None:
    """Reports that were changed on disk are not taken for reports, whether they are a state or are exported."""
    store = opened(store_url)
    store.append([batch(TASK, 1, some_reports(TASK, 30))])
    folder_for(store).fold(TASK)
    changed = some_reports(TASK, 30)
    with store.writing() as connection:
        connection.execute(segments.update().values(payload=changed))
    with pytest.raises(Damaged, match="backup"):
        folder_for(store).fold(TASK)
    with pytest.raises(Damaged, match="backup"):
        list(store.kept(NAME))
    store.append([batch(TASK, 2, some_reports(TASK, 30))])
    with store.writing() as connection:
        connection.execute(sql.text("UPDATE log SET period = period + 1"))
    with pytest.raises(Damaged, match="backup"):
        list(store.unfolded(NAME, 100, 100))


def test_a_missing_segment_is_not_repaired_by_forgetting(opened: Opener, store_url: str) -> None:
    store = opened(store_url)
    for number in range(3):
        store.append([batch(TASK, number, some_reports(TASK, 30), 3600 * number)])
    folder_for(store).fold(TASK)
    with store.writing() as connection:
        connection.execute(segments.delete().where(segments.c.first == 30))
    with pytest.raises(Damaged, match="backup"):
        folder_for(store).fold(TASK)


# Clocks


def test_a_wrong_clock_does_not_stop_the_history(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch stamped ten years from now: when the clock is right again, periods end as before and all is counted."""
    task = collected_task()
    store, clock = opened(store_url), [3600 * 500_000]
    monkeypatch.setattr(folding, "period_now", lambda _: clock[0])
    folder = folder_for(store, task)
    later = clock[0] + 3600 * 24 * 3650

    def arrive(number: int, at: int) -> None:
        store.append([batch(task, number, some_reports(task, 10), at)])
        folder.fold(task)

    arrive(0, clock[0])
    arrive(1, later)  # stamped by another process
    assert store.head(task.digest.hex()).period == clock[0]
    now, clock[0] = clock[0], later + 3600
    arrive(2, later + 3600)  # stamped by this one
    clock[0] = now + 3600
    arrive(3, clock[0])
    clock[0] += 3600
    arrive(4, clock[0])
    assert store.head(task.digest.hex()).period == clock[0]
    assert store.periods(task.digest.hex(), 10) == [(now, 20), (now + 3600, 20), (now + 7200, 10)]
    assert store.past(task.digest.hex()) == [now, now + 3600]
    assert folder_for(opened(store_url), task).fold(task).state.count == 50


# Old stores


def old_store(url: str, rows: list[dict[str, Any]], old_states: list[dict[str, Any]]) -> None:
    """A store as the first version made it."""
    engine = open_engine(url, create=True)
    steps = migrations.STEPS
    try:
        migrations.STEPS = steps[:1]
        with engine.begin() as connection:
            migrations.migrate(connection)
            for row in rows:
                columns = ", ".join(row)
                places = ", ".join(f":{name}" for name in row)
                connection.execute(sql.text(f"INSERT INTO batches ({columns}) VALUES ({places})"), row)
            for row in old_states:
                statement = "INSERT INTO states VALUES (:task, :version, :count, :period, :payload)"
                connection.execute(sql.text(statement), row)
                statement = "INSERT INTO history VALUES (:task, :period, :count, NULL)"
                connection.execute(sql.text(statement), row)
    finally:
        migrations.STEPS = steps
        engine.dispose()


@pytest.mark.parametrize("mechanism", [COLLISION, PRF], ids=["totals", "reports"])
@pytest.mark.parametrize("keep", [True, False])
def test_an_old_store_is_brought_along(store_url: str, mechanism: dict[str, Any], keep: bool) -> None:
    """Counts, states, kept reports, crowds and ids stay what they were; a retry of an old batch is still harmless."""
    task = collected_task(mechanism=mechanism, keep_reports=keep)
    parts = [some_reports(task, 10 + number) for number in range(6)]
    rows = []
    for number, reports in enumerate(parts):
        folded = number < 4
        body = sealed_batch(task, reports)
        check = hashlib.blake2b(body, digest_size=16).digest()
        forgotten = folded and not keep
        rows.append(
            {
                "task": task.digest.hex(),
                "batch": f"b{number}",
                "count": 10 + number,
                "rejected": 0,
                "received": 7200,
                "crowd": 10 + number if number in (2, 3) else None,
                "folded": folded,
                "checksum": None if forgotten else check,
                "payload": None if forgotten else reports,
            }
        )
    rows.append({**rows[0], "batch": "bad", "count": 0, "rejected": 3, "crowd": None, "payload": b""})
    state = aggregate(task, b"".join(parts[:4]))
    sealed = Envelope(STATE, task.code, task.digest, state.count, b"", state.to_bytes()).seal()
    there = {"task": task.digest.hex(), "version": 9, "count": state.count, "period": 7200, "payload": sealed}
    old_store(store_url, rows, [there])
    for _ in range(2):
        with collecting(store_url, task) as collector:
            assert collector.reports == sum(range(10, 16))
            assert collector.service.store.crowds(task.digest.hex()) == (12, 25)
            for number, reports in enumerate(parts):
                assert collector.send(reports, f"b{number}").json["repeated"] is True
            folded = collector.service.folder.fold(task).state
            assert folded.to_bytes() == aggregate(task, b"".join(parts)).to_bytes()
            if keep:
                kept = {
                    name: reports for name, _, reports, _ in collector.service.store.kept(task.digest.hex())
                }
                assert kept == {name_of(f"b{number}").hex(): part for number, part in enumerate(parts)}
            assert collector.get("/readyz").json == {"status": "ready"}
