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
from hubbub.server.forgeries import FALSE_ALARMS, level_of
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
        send(collector, some_reports(task, 2592, seed=5))
        found = about(collector)["notice"]
        assert (found["noticed"], found["reports"], found["note"]) == (False, 2592, "")
        assert "nothing noticed in 2,592 reports (false alarm: 1 in 1,000)" in found["words"]
        same = forge(task, 1, "maximal", ["3"], seed=1).tobytes()
        send(collector, 1296 * same)
        found = about(collector)["notice"]
        assert (found["noticed"], found["reports"]) == (True, 3888)
        page = collector.get(f"/tasks/{task.digest.hex()}").body.decode()
        assert "Do reports look forged?" in page
        assert "not those of an honest crowd" in page


def test_the_ladder() -> None:
    """Rungs are by half larger, none is closer to the next one or to what there is than the minimum."""
    assert [noticing.rung_below(count, 1) for count in (0, 255, 256, 257, 512, 1151, 1152)] == [
        (0, 0), (0, 0), (1, 256), (1, 256), (2, 512), (3, 768), (4, 1152),
    ]  # fmt: skip
    for step in (1, 10, 300, 5000):
        last = (0, 0)
        for count in range(step, 40 * step + 5000, max(step // 3, 1)):
            number, rung = noticing.rung_below(count, step)
            assert rung == 0 or count == rung or count - rung >= step
            assert count - rung < max(2 * step, 512, rung) + step
            if count % step == 0:  # snapshots grow by that much at least
                assert (number, rung) >= last
                last = number, rung


def test_looks_are_few_and_each_has_a_smaller_share() -> None:
    """All of them together: 1 in 1,000."""
    levels = [level_of(look) for look in range(1, 100_000)]
    assert sum(levels) < FALSE_ALARMS
    assert sum(levels) > 0.999 * FALSE_ALARMS
    assert sorted(levels, reverse=True) == levels


def test_a_verdict_stands_until_the_next_look(store: str) -> None:
    """Readings in between change nothing; a service that is started anew says what the old one said."""
    with collecting(store, KEPT) as collector:
        send(collector, some_reports(KEPT, 600, seed=6))
        first = about(collector)["notice"]
        assert first["reports"] == 512
        send(collector, 150 * forge(KEPT, 1, "maximal", ["3"], seed=1).tobytes())
        assert about(collector)["notice"] == first
        send(collector, some_reports(KEPT, 30, seed=7))
        second = about(collector)["notice"]
        assert second["reports"] == 768
    with collecting(store, KEPT) as collector:
        assert about(collector)["notice"] == second
        send(collector, some_reports(KEPT, 20, seed=8))
        assert about(collector)["notice"] == second


def test_a_failing_test_does_not_take_the_overview_down(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(noticing, "notice", broken)
    with collecting(store, KEPT) as collector:
        send(collector, some_reports(KEPT, 600, seed=6))
        found = about(collector)
        assert found["reports"] == 600
        assert "failed" in found["notice"]["words"]
        assert not found["notice"]["noticed"]
        assert collector.get(f"/tasks/{KEPT.digest.hex()}").status == 200


@pytest.mark.parametrize("kept", [True, False])
def test_blind_draws_with_many_reports_in_each_cell(kept: bool, store: str) -> None:
    """A thousand reports about each of 64 keys: usual, and no error (false alarms: below 1e-3, seeded)."""
    harmony = {"name": "harmony", "epsilon": 1.0, "max_entries": 2, "values": "signed", "size": 64}
    task = collected_task(size=64, mechanism=harmony, minimum_reports=10, keep_reports=kept)
    with collecting(store, task) as collector:
        for seed in range(1, 4):
            send(collector, some_reports(task, 22_000, seed=seed))
            found = about(collector)["notice"]
            assert "nothing noticed in" in found["words"]
            assert not found["noticed"]


def test_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """One reading looks at so many reports and no more, and says nothing before it has seen all of them."""
    with collecting(store, KEPT) as collector:
        send(collector, some_reports(KEPT, 1200, seed=6))
        monkeypatch.setattr(noticing, "_AT_ONCE", 500)
        seen = [about(collector)["notice"] for _ in range(4)]
        assert [found["reports"] for found in seen] == [500, 1000, 1152, 1152]
        assert ["no verdict yet" in found["words"] for found in seen] == [True, True, False, False]


def test_verdicts_are_a_crowd_apart(store: str) -> None:
    """No two readings are about reports that differ by fewer than the minimum."""
    task = collected_task(keep_reports=True, minimum_reports=300)
    with collecting(store, task) as collector:
        send(collector, some_reports(task, 1350, seed=6))
        assert about(collector)["notice"]["reports"] == 1350
        send(collector, some_reports(task, 299, seed=7))
        assert about(collector)["notice"]["reports"] == 1350


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


def send_in(collector: Any, task: Any, name: str, body: bytes, period: str, country: str = "") -> None:
    """Send a batch with a name, of a period and a group."""
    headers = {**bearer(collector.token), "Hubbub-Batch": name, "Hubbub-Period": period}
    if country:
        headers |= {"Hubbub-Labels": f"country={country}"}
    sent = ask(f"{collector.address}{collector.path}/reports", sealed_batch(task, body), headers)
    assert sent.status == 200


def weeks_of(task: Any, today: datetime.date) -> list[str]:
    return [period_of(task, today - datetime.timedelta(days=days)) for days in (0, 7)]


def test_reports_of_all_groups_and_periods_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Wherever they are kept, and also after old periods were merged, which moves them."""
    task = collected_task(period="week", labels={"country": ["de", "fr"]})
    today = datetime.datetime.now(datetime.UTC).date()
    with collecting(store, task) as collector:
        for number in range(4):
            body = some_reports(task, 512, seed=number + 1)
            week = weeks_of(task, today)[number // 2]
            send_in(collector, task, f"b{number}", body, week, ["de", "fr"][number % 2])
        monkeypatch.setattr(noticing, "_AT_ONCE", 700)
        seen = [about(collector)["notice"] for _ in range(4)]
        assert [found["reports"] for found in seen] == [700, 1400, 2048, 2048]
        assert not any(found["noticed"] for found in seen)
        later = today + datetime.timedelta(days=40)
        assert merge_old(collector.service.store, collector.service.sums, task, 7, later) == 4
        seen = [about(collector)["notice"] for _ in range(4)]
        assert [found["reports"] for found in seen][-1] >= 1536
        assert not any(found["noticed"] for found in seen)


def test_reports_that_come_again_are_no_forgery(store: str) -> None:
    """Devices of a task that memoizes send the same bytes week after week: weeks are looked at one by one."""
    task = collected_task(period="week", memoize="record", memoize_cap=2)
    today = datetime.datetime.now(datetime.UTC).date()
    this, last = weeks_of(task, today)
    with collecting(store, task) as collector:
        same = some_reports(task, 512, seed=1)
        for week in (this, last):
            send_in(collector, task, f"honest {week}".replace(" ", "-"), same, week)
        found = about(collector)["notice"]
        assert "nothing noticed in 1,024 reports" in found["words"]
        send_in(collector, task, "forged", 256 * forge(task, 1, "maximal", ["3"], seed=1).tobytes(), this)
        found = about(collector)["notice"]
        assert found["noticed"]
        assert found["reports"] == 1280
