"""The state file of a service: by stratum, of one moment, and no more of it in memory than a few states."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLISION, SALT, Collector, collected_task, collecting, sealed_batch, some_reports
from live import Answer, ask, bearer

from helpers import peak, succeed
from hubbub.collect import sums as summing
from hubbub.collect.lifetimes import merge_old
from hubbub.collect.metrics import Metrics
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Batch, Store
from hubbub.collect.sums import Sums
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.files import STATE, load_state, open_states, total_of
from hubbub.protocol.strata import UNTOLD, Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

Opener = Callable[..., Store]
LABELS = {"country": ["de", "fr"]}
WIDE = {"kind": "wide", "salt": SALT}


def task_with(wide: bool = False, **rules: Any) -> Task:
    if wide:
        return Task.parse(
            {
                "name": "wide",
                "keys": WIDE,
                "mechanism": COLLISION,
                "labels": LABELS,
                "period": "week",
                **rules,
            }
        )
    return collected_task(**{"labels": LABELS, "period": "week", **rules})


def batch(task: Task, number: int, stratum: Stratum, count: int = 5) -> Batch:
    reports = some_reports(collected_task(), count, seed=number + 1)
    check = reports[:16].ljust(16)
    return Batch(task.digest.hex(), f"b{number}", count, reports, check, 0, stratum=text_of(task, stratum))


def written(path: Path, pieces: Any) -> Path:
    with path.open("wb") as file:
        file.writelines(pieces)
    return path


DE, FR, OLD = Stratum(("de",), "2026-W46"), Stratum(("fr",), "2026-W46"), Stratum(("de",), "2026-W01")


@pytest.mark.parametrize(
    "rules", [{}, {"keep_reports": False}, {"wide": True}, {"wide": True, "keep_reports": False}]
)
@pytest.mark.parametrize("untold", [False, True])
def test_strata_are_apart_and_add_up(
    opened: Opener, store_url: str, tmp_path: Path, rules: dict[str, Any], untold: bool
) -> None:
    """Also those of which nobody has told anything, and whether sums of the others are kept or not."""
    task, store = task_with(**rules), opened(store_url)
    places = [DE, FR, OLD, *([UNTOLD] if untold else [])]
    batches = [batch(task, number, places[number % len(places)]) for number in range(12)]
    folder, sums = Folder(store, [task], Metrics()), Sums(store)
    for part in (batches[:7], batches[7:]):
        store.append(part)
        whole = folder.fold(task).state
        if part is batches[:7]:
            sums.keep_up(task)
    same, found = open_states(written(tmp_path / "e.state", sums.file(task)))
    assert same == task
    assert set(found) == set(places)
    for stratum, state in found.items():
        mine = [bytes(each.payload) for each in batches if each.stratum == text_of(task, stratum)]
        assert state.to_bytes() == aggregate(task, b"".join(mine)).to_bytes()
    assert total_of(task, found).to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("rules", [{}, {"keep_reports": False}, {"wide": True}])
def test_it_is_of_one_moment(
    opened: Opener, store_url: str, tmp_path: Path, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pieces, others fold, keep sums, merge a week and drop reports that are in a sum."""
    monkeypatch.setattr(summing, "_OFTEN", 0.0)
    task, store, other = task_with(**rules), opened(store_url), opened(store_url)
    folder = Folder(other, [task], Metrics())
    batches = [batch(task, number, [DE, FR, OLD, UNTOLD][number % 4]) for number in range(8)]
    other.append(batches)
    whole = folder.fold(task).state.to_bytes()
    pieces, made = Sums(store).file(task), []
    for number, piece in enumerate(pieces):
        made.append(bytes(piece))
        other.append([batch(task, 100 + number, DE), batch(task, 200 + number, FR)])
        folder.fold(task)
        Sums(other).keep_up(task)
        if number == 3:
            assert merge_old(other, Sums(other), task, 60, datetime.date(2026, 11, 18)) == 1
    assert number > 8
    same, found = open_states(written(tmp_path / "e.state", made))
    assert total_of(same, found).to_bytes() == whole
    assert found.counts == {UNTOLD: 10, DE: 10, FR: 10, OLD: 10}
    assert Stratum(("de",), "2026") in Sums(other).strata(task)


def test_it_leaves_one_state_at_a_time(tmp_path: Path) -> None:
    """Forty states of half a MiB."""
    groups = [f"g{number}" for number in range(40)]
    task = collected_task(labels={"team": groups}, keep_reports=False)
    store = Store(f"sqlite:///{tmp_path}/s.db")
    store.append([batch(task, number, Stratum((group,))) for number, group in enumerate(groups)])
    store.append([batch(task, 50, UNTOLD)])
    Folder(store, [task], Metrics()).fold(task)
    sums = Sums(store)
    sums.keep_up(task)
    size = sum(len(piece) for piece in sums.file(task))
    with peak() as reached:
        written(tmp_path / "e.state", sums.file(task))
        assert reached() < 5
    store.close()
    assert (tmp_path / "e.state").stat().st_size == size > 20 << 20
    assert len(open_states(tmp_path / "e.state")[1]) == 41


# Through the service


def send(collector: Collector, reports: bytes, name: str, labels: str) -> Answer:
    headers = {**bearer(collector.token), "Hubbub-Batch": name, "Hubbub-Labels": labels}
    return ask(f"{collector.address}{collector.path}/reports", sealed_batch(collector.task, reports), headers)


def test_a_download_answers_for_groups(store_url: str, tmp_path: Path) -> None:
    task = collected_task(labels=LABELS, minimum_reports=20)
    with collecting(store_url, task) as collector:
        german, french, few = (some_reports(task, count) for count in (60, 40, 19))
        assert send(collector, few, "c", "country=de").status == 200
        assert collector.get(f"{collector.path}/state").status == 403
        assert send(collector, german, "a", "country=de").status == 200  # with the 19 that waited
        assert send(collector, french, "b", "country=fr").status == 200
        assert send(collector, few[: 19 * 3], "d", "country=fr").status == 200  # too few to be seen
        counted = collector.get(collector.path).json["in_estimates"]
        answer = collector.get(f"{collector.path}/state")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
        (tmp_path / "e.state").write_bytes(answer.body)
        analyst = collector.service.tokens.new("analyst")
        assert collector.get(f"{collector.path}/state", analyst).status == 403
    _, found = open_states(tmp_path / "e.state")
    assert found.counts in ({Stratum(("de",)): 79, Stratum(("fr",)): each} for each in (40, 59))
    assert sum(found.counts.values()) == counted
    shown = succeed("estimate", tmp_path / "e.state", "7", "--by", "country")
    assert (shown["groups"][0]["country"], shown["groups"][0]["reports"]) == ("de", 79)
    succeed("compare", tmp_path / "e.state", "7", "--compare", "country=de,fr")
    (tmp_path / "again.state").write_bytes(answer.body)
    merged = succeed("merge", tmp_path / "e.state", tmp_path / "again.state", "-o", tmp_path / "m.state")
    assert merged["reports"] == 2 * counted


def test_a_task_without_strata_keeps_its_file(store_url: str, tmp_path: Path) -> None:
    with collecting(store_url) as collector:
        task, reports = collector.task, some_reports(collector.task, 30)
        collector.send(reports, "a")
        answer = collector.get(f"{collector.path}/state")
    state = aggregate(task, reports)
    expected = Envelope(STATE, task.code, task.digest, 30, task.canonical, state.to_bytes()).seal()
    assert answer.body == expected
    (tmp_path / "e.state").write_bytes(answer.body)
    assert load_state(tmp_path / "e.state")[1].to_bytes() == state.to_bytes()
