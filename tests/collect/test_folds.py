"""Folds of many strata: one snapshot for all of them, none with too few, and nothing lost wherever it is cut short."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from collecting import COLLISION, SALT, collected_task, some_reports

from hubbub.collect import segments as packing
from hubbub.collect import shelves as shelving
from hubbub.collect import snapshots as folding
from hubbub.collect import store as storing
from hubbub.collect import sums as summing
from hubbub.collect.backup import check
from hubbub.collect.database import segments, states, strata
from hubbub.collect.lifetimes import merge_old
from hubbub.collect.metrics import Metrics
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.segments import Damaged
from hubbub.collect.shelves import shelf_name
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store
from hubbub.collect.sums import Sums
from hubbub.protocol.strata import Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
GROUPS = [f"g{number}" for number in range(6)]
WIDTH = 3


def labelled(**rules: Any) -> Task:
    return collected_task(**{"labels": {"team": GROUPS}, "period": "week", **rules})


def batch(
    task: Task, number: int, group: str, count: int = 3, arrived: int = 0, week: str = "2026-W46"
) -> Batch:
    reports = some_reports(task, count, seed=number + 1)
    text = text_of(task, Stratum((group,), week)) if group else ""
    check = reports[:16].ljust(16)
    return Batch(task.digest.hex(), f"b{number}", count, reports, check, arrived, stratum=text)


def state_of(task: Task, batches: Sequence[Batch]) -> bytes:
    return aggregate(task, b"".join(bytes(each.payload) for each in batches)).to_bytes()


def folder_for(store: Store, task: Task) -> Folder:
    return Folder(store, [task], Metrics())


def check_all(store: Store, task: Task, batches: Sequence[Batch]) -> None:
    """The whole and every stratum are the sums of their batches, bit for bit, and the store is sound."""
    assert folder_for(store, task).fold(task).state.to_bytes() == state_of(task, batches)
    sums, there = Sums(store), store.shelves(task.digest.hex())
    assert {shelf.stratum for shelf in there} == {each.stratum for each in batches if each.stratum}
    for stratum, shelf in sums.strata(task).items():
        mine = [each for each in batches if each.stratum == shelf.stratum]
        assert sums.state(task, [stratum]).to_bytes() == state_of(task, mine)
    assert check(store.engine.url.render_as_string(hide_password=False)).problems == []


def kept_rows(store: Store) -> list[Any]:
    with store.reading() as connection:
        return list(connection.execute(segments.select().order_by(segments.c.task, segments.c.first)))


# One snapshot for many strata


@pytest.mark.parametrize("rules", [{}, {"minimum_reports": 5}, {"keep_reports": False}])
def test_one_snapshot_for_all_strata(opened: Opener, store_url: str, rules: dict[str, Any]) -> None:
    task, store = labelled(**rules), opened(store_url)
    batches = [batch(task, number, GROUPS[number % 6], 3) for number in range(12)]
    store.append(batches)
    few = batch(task, 20, "g0", 4, week="2026-W45")
    store.append([few])
    current = folder_for(store, task).fold(task)
    assert current.head.version == 1
    waits = task.minimum_reports > 4
    assert current.state.count == 36 + (0 if waits else 4)
    assert store.waiting_by(task.digest.hex()) == ({few.stratum: 4} if waits else {})
    check_all(store, task, batches if waits else [*batches, few])


def test_what_is_much_is_folded_in_several_rounds(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 20 reports: small strata go together, a large one by itself and in parts, and none is left out."""
    monkeypatch.setattr(folding, "_ROUND", 20 * WIDTH)
    task, store = labelled(minimum_reports=5), opened(store_url)
    batches = [batch(task, number, GROUPS[number % 6], 6) for number in range(6)]
    batches += [batch(task, number, "g3", 7) for number in range(10, 20)]
    for each in batches:
        store.append([each])
    assert (
        folder_for(store, task).fold(task).head.version == 6
    )  # three strata, the large one in four parts, two more
    check_all(store, task, batches)


def test_many_small_lots_starve_nobody(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More lots make a round of several strata than are read at a time."""
    for module in (shelving, storing):
        monkeypatch.setattr(module, "MOST_LOTS", 7)
    task, store = labelled(minimum_reports=5), opened(store_url)
    batches = [batch(task, number, GROUPS[number % 6], 1) for number in range(36)]
    for each in batches:
        store.append([each])
    folder_for(store, task).fold(task)
    assert store.waiting(task.digest.hex()) == 0
    check_all(store, task, batches)


@pytest.mark.parametrize("kept", [True, False])
def test_no_two_readings_differ_by_a_few_of_a_stratum(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Two processes fold what comes in periods that end in between.

    Snapshots and states of ended periods are a chain, and in every stratum neighbours are alike or `least` apart.
    """
    least, generator = 4, np.random.default_rng(7)
    task = labelled(minimum_reports=least, keep_reports=kept)
    stores = [opened(store_url), opened(store_url)]
    folders = [folder_for(store, task) for store in stores]
    monkeypatch.setattr(folding, "period_now", lambda task: 10**9)
    shown: list[Counter[str]] = [Counter()]
    seen = b""
    plain = Store.advance

    def watched(self: Store, name: str, old: Any, new: Any, payload: bytes, **given: Any) -> bool:
        nonlocal seen
        done = plain(self, name, old, new, payload, **given)
        if done:
            lots = [found.lot for found in given["folded"]]
            for period, packed in sorted(given["closed"].items()):
                mine = [lot for lot in lots if lot.period <= period]
                ended = b"".join(lot.payload for lot in mine)
                if zlib.decompress(packed) == aggregate(task, seen).to_bytes():
                    ends["the snapshot before"] += 1
                else:
                    assert zlib.decompress(packed) == aggregate(task, seen + ended).to_bytes()
                    shown.append(shown_at[-1] + counted(mine))
                    ends["between two snapshots"] += 1
            shown_at.append(shown_at[-1] + counted(lots))
            shown.append(shown_at[-1])
            seen += b"".join(lot.payload for lot in lots)
        return done

    def counted(lots: Sequence[Any]) -> Counter[str]:
        counts = Counter[str]()
        for lot in lots:
            counts[lot.stratum] += lot.count
        return counts

    shown_at, ends = [Counter[str]()], Counter[str]()
    monkeypatch.setattr(Store, "advance", watched)
    number = 0
    for turn in range(90):
        for _ in range(int(generator.integers(1, 9))):
            group = ["", *GROUPS[:3]][int(generator.integers(4))]
            arrived = 3600 * (turn // 3 + int(generator.integers(2)))
            stores[0].append([batch(task, number, group, int(generator.integers(1, 5)), arrived)])
            number += 1
        whole = folders[turn % 2].fold(task)
        there = {shelf.stratum: shelf.reports for shelf in stores[0].shelves(task.digest.hex())}
        assert there == {stratum: count for stratum, count in shown_at[-1].items() if stratum}
        assert whole.state.to_bytes() == aggregate(task, seen).to_bytes()
    for before, after in itertools.pairwise(shown):
        for stratum in before | after:
            assert after[stratum] == before[stratum] or after[stratum] - before[stratum] >= least
    assert min(ends.values()) >= 3
    assert ends.total() >= 25
    assert shown[-1].total() > 300


@pytest.mark.parametrize("kept", [True, False])
def test_small_segments_become_one(opened: Opener, store_url: str, kept: bool) -> None:
    """However often a few reports are folded, their stratum is in a few segments, none of them lost."""
    task, store = labelled(keep_reports=kept), opened(store_url)
    folder, batches, most = folder_for(store, task), [], 0
    for number in range(60):
        more = [batch(task, 2 * number + place, GROUPS[place], 1 + number % 3) for place in range(2)]
        store.append(more)
        batches += more
        folder.fold(task)
        most = max(most, len(kept_rows(store)))
    assert 32 <= most < 2 * 50
    assert len(kept_rows(store)) < 2 * 33
    check_all(store, task, batches)


def test_segments_of_a_period_that_is_over_become_one(opened: Opener, store_url: str) -> None:
    """However quiet a collection is, it does not end with a segment for every report."""
    task, store = labelled(), opened(store_url)
    folder, batches = folder_for(store, task), []
    for number in range(40):
        more = [
            batch(task, 2 * number + place, ["g0", ""][place], 1, 3600 * (number // 5)) for place in range(2)
        ]
        store.append(more)
        batches += more
        folder.fold(task)
    assert [row.count for row in kept_rows(store)] == 2 * [*[5] * 7, *[1] * 5]
    check_all(store, task, batches)


# Reports that are not kept


def test_reports_go_when_they_are_in_a_sum(opened: Opener, store_url: str) -> None:
    """Until then they are there without names and in no order; a sum that came too late takes only what is in it."""
    task, store = labelled(keep_reports=False), opened(store_url)
    folder, sums = folder_for(store, task), Sums(store)
    batches = [batch(task, number, ["g0", "g1", ""][number % 3], 5) for number in range(12)]
    store.append(batches[:6])
    folder.fold(task)
    rows = kept_rows(store)
    assert [(row.count, bytes(row.names), bytes(row.sizes)) for row in rows] == [(10, b"", b"")] * 2
    for row in rows:
        found = [bytes(row.payload)[at : at + WIDTH] for at in range(0, 30, WIDTH)]
        assert found == sorted(found)
    check_all(store, task, batches[:6])
    old = store.shelves(task.digest.hex())
    store.append(batches[6:])
    folder.fold(task)
    for shelf in old:  # a sum of the first ten, when there are twenty in one segment
        with store.writing() as connection:
            lots = [lot for _, lot in packing.after(connection, shelf.name, 0, shelf.stratum)]
            connection.execute(segments.delete().where(segments.c.task == shelf.name))
            packing.extend(connection, shelf.name, lots)
        total = sums.of(task, [shelf])
        assert total.count == 10
        store.keep_sum(shelf, folding.sealed(task, total))
    assert [(row.first, row.count) for row in kept_rows(store)] == [(10, 10)] * 2
    check_all(store, task, batches)
    sums.keep_up(task)
    assert kept_rows(store) == []
    check_all(store, task, batches)
    sums.keep_up(task)
    store.append([batch(task, 30, "g0", 2)])
    folder.fold(task)
    check_all(store, task, [*batches, batch(task, 30, "g0", 2)])


def test_sums_are_brought_up_to_date_for_a_share_of_the_time(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and then after twenty times as long as it took; much is added at once."""
    clock = [1000.0]
    monkeypatch.setattr(summing.time, "monotonic", lambda: clock[0])
    task, store = labelled(keep_reports=False), opened(store_url)
    folder, sums = folder_for(store, task), Sums(store)
    plain = store.keep_sum
    monkeypatch.setattr(
        store, "keep_sum", lambda *given: (plain(*given), clock.__setitem__(0, clock[0] + 1.5))
    )

    def arrive(number: int) -> None:
        store.append([batch(task, number, "g0"), batch(task, number + 1, "g1")])
        folder.fold(task)

    arrive(0)
    sums.keep_up(task)  # takes three seconds
    assert kept_rows(store) == []
    arrive(2)
    clock[0] += 59.0
    sums.keep_up(task)
    assert len(kept_rows(store)) == 2
    clock[0] += 2.0
    sums.keep_up(task)
    assert kept_rows(store) == []
    arrive(4)
    monkeypatch.setattr(summing, "_many", lambda state: 3 * WIDTH)
    sums.keep_up(task, stopped=lambda: True)
    assert len(kept_rows(store)) == 2
    sums.keep_up(task)
    assert kept_rows(store) == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_shelf_that_moves_while_it_is_read(
    opened: Opener, store_url: str, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Another process folds, keeps sums and merges between the look at the shelves and the look at their reports."""
    task, store, other = labelled(keep_reports=kept), opened(store_url), opened(store_url)
    monkeypatch.setattr(summing, "_OFTEN", 0.0)
    folder, sums = folder_for(other, task), Sums(store)
    batches = [batch(task, 0, "g0", 5, week="2026-W01")]
    other.append(batches)
    folder.fold(task)
    plain, moves = Sums.strata, list("abc")

    def strata_then_move(self: Sums, asked: Task) -> Any:
        found = plain(self, asked)
        if self is sums and moves:
            moves.pop()
            batches.append(batch(task, len(batches), "g0", 5, week="2026-W01"))
            other.append(batches[-1:])
            folder.fold(task)
            Sums(other).keep_up(task)
            if not moves:
                assert merge_old(other, Sums(other), task, 60, datetime.date(2026, 11, 18)) == 1
        return found

    monkeypatch.setattr(Sums, "strata", strata_then_move)
    found = sums.state(task, [Stratum(("g0",), "2026-W01"), Stratum(("g0",), "2026")])
    assert found.to_bytes() == state_of(task, batches)


@pytest.mark.parametrize("wide", [True, False])
def test_a_shelf_of_the_same_name_is_another_one(opened: Opener, store_url: str, wide: bool) -> None:
    """Late reports make a week again that was merged: what is remembered of the old one is not said of the new one."""
    task = labelled()
    if wide:
        rules = {"labels": {"team": GROUPS}, "period": "week", "mechanism": COLLISION}
        task = Task.parse({"name": "wide", "keys": {"kind": "wide", "salt": SALT}, **rules})
    alike = task if not wide else task.model_copy(update={"keys": labelled().keys})
    store = opened(store_url)
    folder, sums = folder_for(store, task), Sums(store)
    week = Stratum(("g0",), "2026-W01")

    def arrive(number: int) -> bytes:
        reports = some_reports(alike, 3, seed=number + 1)
        text = text_of(task, week)
        store.append([Batch(task.digest.hex(), f"b{number}", 3, reports, bytes(16), 0, stratum=text)])
        return reports

    first = arrive(0)
    folder.fold(task)
    assert sums.state(task, [week]).to_bytes() == aggregate(task, first).to_bytes()
    assert merge_old(store, sums, task, 60, datetime.date(2026, 11, 18)) == 1
    late = arrive(1)
    assert folder.fold(task).state.to_bytes() == aggregate(task, first + late).to_bytes()
    assert sums.state(task, [week]).to_bytes() == aggregate(task, late).to_bytes()


def test_check_misses_no_report_that_waits_for_its_sum(opened: Opener, store_url: str) -> None:
    task, store = labelled(keep_reports=False), opened(store_url)
    folder = folder_for(store, task)
    store.append([batch(task, 0, "g0", 5)])
    folder.fold(task)
    Sums(store).keep_up(task)
    store.append([batch(task, 1, "g0", 4), batch(task, 2, "g1", 4)])
    folder.fold(task)
    assert check(store_url).problems == []
    name = shelf_name(task.digest.hex(), text_of(task, Stratum(("g0",), "2026-W46")))
    with store.writing() as connection:
        connection.execute(segments.delete().where(segments.c.task == name))
    assert ["5 of 9 reports" in problem for problem in check(store_url).problems] == [True]
    with pytest.raises(Damaged, match="are missing"):
        Sums(store).state(task, [Stratum(("g0",), "2026-W46")])
    with store.writing() as connection:
        connection.execute(states.delete().where(states.c.task == name))
        connection.execute(strata.delete().where(strata.c.shelf == name))
        connection.execute(segments.update().values(first=2))
    assert any("0 to 2" in problem for problem in check(store_url).problems)


@pytest.mark.parametrize("kept", [True, False])
def test_everybody_at_once(
    opened: Opener, store_url: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fold, two keep sums, one merges, purges and reads, while batches arrive: nobody is in another's way."""
    monkeypatch.setattr(summing, "_OFTEN", 0.0)
    monkeypatch.setattr(summing, "_SHARE", 0)
    monkeypatch.setattr(packing, "_MOST_SMALL", 2)
    task, today = labelled(keep_reports=kept), datetime.date(2026, 11, 18)
    weeks, done = ["2026-W01", "2026-W46"], threading.Event()
    batches = [
        batch(task, number, GROUPS[number % 3], 3, week=weeks[number // 3 % 2]) for number in range(60)
    ]
    stores = [opened(store_url) for _ in range(6)]

    def again_and_again(work: Callable[[], object]) -> None:
        while not done.is_set():
            work()
            time.sleep(0.002)

    def purge_and_read(store: Store, sums: Sums) -> None:
        merge_old(store, sums, task, 60, today)
        purge(
            store,
            task.digest.hex(),
            Horizons(reports=0),
            datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC),
        )
        strata_now = list(sums.strata(task))
        assert sums.state(task, strata_now).count % 3 == 0

    stores[0].append(batches[:1])
    works = [partial(folder_for(store, task).fold, task) for store in stores[1:3]]
    works += [partial(Sums(store).keep_up, task) for store in stores[3:5]]
    works.append(partial(purge_and_read, stores[5], Sums(stores[5])))
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(again_and_again, work) for work in works]
        for each in batches[1:]:
            stores[0].append([each])
        deadline = time.monotonic() + 60
        while stores[0].waiting(task.digest.hex()) and time.monotonic() < deadline:
            time.sleep(0.01)
        done.set()
    for each in running:
        each.result()
    moved = [
        replace(each, stratum=each.stratum.replace("2026-W01", "2026")) if "W01" in each.stratum else each
        for each in batches
    ]
    merge_old(stores[0], Sums(stores[0]), task, 60, today)
    check_all(opened(store_url), task, moved)


# Cut short anywhere


class Cut(Exception):
    """The process ends here."""


def cut_after(store: Store, changes: int) -> None:
    """Let so many statements that change something pass, and commits of them, and no more."""
    left, changed = [changes], [False]

    def count(*given: Any) -> None:
        if len(given) == 1:
            change, changed[0] = changed[0], False
        else:
            change = not given[2].startswith(("BEGIN", "SELECT"))
            changed[0] |= change
        left[0] -= change
        if left[0] < 0:
            raise Cut

    sql.event.listen(store.engine, "before_cursor_execute", count)
    sql.event.listen(store.engine, "commit", count)


@pytest.mark.parametrize(
    "rules", [{"keep_reports": False}, {"keep_reports": False, "minimum_reports": 3}, {}]
)
def test_cut_short_at_every_statement(
    store_url: str, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fold, keep sums, merge: before every change and every commit the process ends, and another one goes on."""
    monkeypatch.setattr(summing, "_OFTEN", 0.0)
    monkeypatch.setattr(packing, "_MOST_SMALL", 2)
    task, today = labelled(**rules), datetime.date(2026, 11, 18)
    weeks = ["2026-W01", "2026-W46"]
    batches: list[Batch] = []
    finished = False
    for cuts in range(200):
        if finished:
            break
        more = [
            batch(task, len(batches) + number, GROUPS[number % 2], 3, 60 * (cuts > 30), weeks[number // 2])
            for number in range(4)
        ]
        with closing(Store(store_url)) as store:
            store.append(more)
            batches += more
            try:
                cut_after(store, cuts)
                sums = Sums(store)
                folder_for(store, task).fold(task)
                sums.keep_up(task)
                merge_old(store, sums, task, 60, today)
                finished = True
            except Cut:
                pass
        with closing(Store(store_url)) as store:
            assert store.arrived(task.digest.hex()) == sum(each.count for each in batches)
            merged = {shelf.stratum for shelf in store.shelves(task.digest.hex())}
            counted = sum(shelf.reports for shelf in store.shelves(task.digest.hex()))
            whole = folder_for(store, task)._newest(task).state
            assert whole.count == counted
            parts = Sums(store).state(task, list(Sums(store).strata(task)))
            assert parts.to_bytes() == whole.to_bytes()
            assert check(store_url).problems == []
            assert merged <= {f"team={group}@{week}" for group in ("g0", "g1") for week in (*weeks, "2026")}
    with closing(Store(store_url)) as store:
        assert folder_for(store, task).fold(task).state.to_bytes() == state_of(task, batches)
        Sums(store).keep_up(task)
        assert bool(kept_rows(store)) == task.keep_reports
        check_whole = Sums(store).state(task, list(Sums(store).strata(task)))
        assert check_whole.to_bytes() == state_of(task, batches)
    assert finished
    assert cuts > 20
