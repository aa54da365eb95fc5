"""Forged reports in the service: the verdict in the overview and on the page, and what is said where none are kept."""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLISION, collected_task, collecting, sealed_batch, some_reports
from live import ask, bearer

from hubbub.collect import noticing
from hubbub.collect.lifetimes import merge_old
from hubbub.protocol.periods import period_of
from hubbub.simulation.forgery import forge

KEPT = collected_task(keep_reports=True, minimum_reports=10)
SUMMED = collected_task(keep_reports=False, minimum_reports=10)
SORTED = collected_task(mechanism=COLLISION | {"family": "prf", "buckets": 9}, minimum_reports=10)


def about(collector: Any) -> dict[str, Any]:
    found: dict[str, Any] = collector.get(collector.path).json
    return found


def send(collector: Any, reports: bytes) -> None:
    assert collector.send(reports, secrets.token_hex(16)).status == 200


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.mark.parametrize("task", [KEPT, SORTED], ids=["kept", "state"])
def test_kept_reports_are_looked_at(task: Any, store: str) -> None:
    """Nothing is said below the minimum; then honest reports pass, and many equal ones do not."""
    with collecting(store, task) as collector:
        assert about(collector)["notice"] is None
        send(collector, some_reports(task, 3000, seed=5))
        found = about(collector)["notice"]
        assert (found["noticed"], found["reports"], found["note"]) == (False, 3000, "")
        assert "nothing noticed in 3,000 reports (false alarm: 1 in 1,000)" in found["words"]
        same = forge(task, 1, "maximal", ["3"], seed=1).tobytes()
        send(collector, 300 * same)
        found = about(collector)["notice"]
        assert (found["noticed"], found["reports"]) == (True, 3300)
        page = collector.get(f"/tasks/{task.digest.hex()}").body.decode()
        assert "Do reports look forged?" in page
        assert "not those of an honest crowd" in page


def test_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """One reading looks at so many reports and no more; the next one goes on."""
    monkeypatch.setattr(noticing, "_AT_ONCE", 500)
    with collecting(store, KEPT) as collector:
        send(collector, some_reports(KEPT, 1200, seed=6))
        assert [about(collector)["notice"]["reports"] for _ in range(4)] == [500, 1000, 1200, 1200]


def test_verdicts_are_a_crowd_apart(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """No two readings are about reports that differ by fewer than the minimum."""
    monkeypatch.setattr(noticing, "_AT_ONCE", 500)
    task = collected_task(keep_reports=True, minimum_reports=300)
    with collecting(store, task) as collector:
        send(collector, some_reports(task, 1200, seed=6))
        assert [about(collector)["notice"]["reports"] for _ in range(3)] == [500, 1200, 1200]
        send(collector, some_reports(task, 299, seed=7))
        assert about(collector)["notice"]["reports"] == 1200


def test_sums_say_that_reports_are_not_kept(store: str) -> None:
    """Only the sum is tested: 600 equal reports are not noticed, a share beyond 1 is."""
    with collecting(store, SUMMED) as collector:
        send(collector, some_reports(SUMMED, 3000, seed=5))
        found = about(collector)["notice"]
        assert found["from_state"]
        assert "does not keep its reports" in found["note"]
        assert not found["noticed"]
        send(collector, forge(SUMMED, 2000, "maximal", ["3"], seed=1).tobytes())
        assert about(collector)["notice"]["noticed"]


def test_reports_of_all_groups_and_periods_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Wherever they are kept, and also after old periods were merged, which moves them."""
    monkeypatch.setattr(noticing, "_AT_ONCE", 700)
    task = collected_task(period="week", labels={"country": ["de", "fr"]})
    today = datetime.datetime.now(datetime.UTC).date()
    weeks = [period_of(task, today - datetime.timedelta(days=days)) for days in (0, 7)]
    with collecting(store, task) as collector:
        for number in range(4):
            headers = {**bearer(collector.token), "Hubbub-Batch": f"b{number}"}
            headers |= {"Hubbub-Labels": f"country={'defr'[2 * (number % 2) :][:2]}"}
            headers |= {"Hubbub-Period": weeks[number // 2]}
            body = sealed_batch(task, some_reports(task, 500, seed=number + 1))
            assert ask(f"{collector.address}{collector.path}/reports", body, headers).status == 200
        seen = [about(collector)["notice"] for _ in range(4)]
        assert [found["reports"] for found in seen] == [700, 1400, 2000, 2000]
        assert not any(found["noticed"] for found in seen)
        later = today + datetime.timedelta(days=40)
        assert merge_old(collector.service.store, collector.service.sums, task, 7, later) == 4
        seen = [about(collector)["notice"] for _ in range(4)]
        assert [found["reports"] for found in seen] == [700, 1400, 2000, 2000]
        assert not any(found["noticed"] for found in seen)


def test_reports_that_come_again_are_no_forgery(store: str) -> None:
    """Devices of a task that memoizes send the same bytes week after week."""
    task = collected_task(period="week", memoize="record", memoize_cap=2)
    with collecting(store, task) as collector:
        same = some_reports(task, 500, seed=1)
        for _ in range(5):
            send(collector, same)
        found = about(collector)["notice"]
        assert not found["noticed"]
        assert "nothing can be tested in 2,500 reports" in found["words"]
