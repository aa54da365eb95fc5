"""An analyst who reads again and again, and compares: no two readings differ by a few reports."""

from __future__ import annotations

import zlib
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector, collected_task, collecting, some_reports

from hubbub.collect import ingest, shelves, store
from hubbub.collect.metrics import Metrics
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Store
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

LEAST = 8
PRF = {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8, "family": "prf"}


def kept_states(url: str, task: Task) -> list[int]:
    """How many reports are in each of the states that `history` reads."""
    with closing(Store(url)) as opened:
        packed = [opened.past_state(task.digest.hex(), period) for period in opened.past(task.digest.hex())]
    empty = task.mechanism.empty(task.keys)
    return [empty.load(zlib.decompress(each)).count for each in packed if each is not None]


@pytest.mark.parametrize("mechanism", [None, PRF], ids=["walsh", "prf"])
def test_estimates_advance_by_crowds(
    mechanism: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One report at a time, in periods that end after seven of them, with restarts and with two services on one store.

    All that was ever shown is a chain of sums, and neighbours in it are at least `minimum_reports` apart.
    """
    task, url = collected_task(mechanism=mechanism, minimum_reports=LEAST), f"sqlite:///{tmp_path}/s.db"
    clock = [3600 * 1000]
    monkeypatch.setattr(ingest, "period_now", lambda task: clock[0] // 7 * 3600)
    width, reports = task.mechanism.layout.width, some_reports(task, 45)
    shown: dict[int, list[Any]] = {0: []}
    for start in range(0, 45, 15):
        with ExitStack() as stack:
            both = [stack.enter_context(collecting(url, task, fold_every=60)) for _ in range(2)]
            analyst = both[0].service.tokens.new("analyst")
            both[1].service.tokens.refresh()
            for number in range(start, start + 15):
                collector = both[number % 2]
                assert (
                    collector.send(reports[number * width : (number + 1) * width], f"b{number}").status == 200
                )
                clock[0] += 1
                look(both, analyst, shown, number + 1)
    assert len(shown) > 4
    chain = sorted({*shown, *kept_states(url, task)})
    assert len(chain) > len(shown) - 1
    assert min(after - before for before, after in pairwise(chain)) >= LEAST


def look(both: list[Collector], analyst: str, shown: dict[int, list[Any]], arrived: int) -> None:
    """Ask both services; whoever has the same reports says the same."""
    for collector in both:
        about = collector.get(collector.path, analyst).json
        assert about["reports"] == arrived
        answer = collector.get(f"{collector.path}/estimates?top=50", analyst)
        if about["withheld"]:
            assert answer.status == 403
            assert about["in_estimates"] == 0
        else:
            assert about["in_estimates"] == answer.json["reports"]
            assert (
                shown.setdefault(answer.json["reports"], answer.json["estimates"]) == answer.json["estimates"]
            )
        for path in ("/state", "/reports.parquet"):
            assert collector.get(collector.path + path, analyst).status == 403


def test_a_large_minimum_and_many_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More batches make one step than a statement can name."""
    for module in (shelves, store):
        monkeypatch.setattr(module, "MOST_LOTS", 7)
    task = collected_task(minimum_reports=50)
    with collecting(f"sqlite:///{tmp_path}/s.db", task, fold_every=60) as collector:
        reports = some_reports(task, 120)
        for number in range(120):
            collector.send(reports[number * 3 : number * 3 + 3], f"b{number}")
        about = collector.get(collector.path).json
        assert (about["reports"], about["in_estimates"]) == (120, 100)
        state = Folder(collector.service.store, [task], Metrics()).fold(task).state
        assert state.to_bytes() == aggregate(task, reports[:300]).to_bytes()


def test_a_task_without_a_minimum_says_so(tmp_path: Path) -> None:
    """Its readings move with every report; the docs say that, too."""
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        for count in (1, 2, 3):
            collector.send(some_reports(collector.task, 1), f"b{count}")
            assert collector.get(collector.path).json["in_estimates"] == count
