"""Crowds that come in parts: counted once and whole, or not at all, whatever is sent and in whatever order."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from collecting import Collector, collected_task, collecting, eventually, some_reports
from live import Answer, ask, bearer

from hubbub.collect import parts as module
from hubbub.collect.crowds import by_period
from hubbub.collect.database import ids, log, parts, unfinished
from hubbub.collect.keypair import KeyPair
from hubbub.collect.openers import Openers
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.store import Store
from hubbub.protocol.sealing import seal, sealed_width
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

TASK = collected_task(keep_reports=True)
NAME = TASK.digest.hex()


def sealed(collector: Collector, reports: bytes, task: Task = TASK, period: str = "once") -> list[bytes]:
    width = task.mechanism.layout.width
    rows = [reports[start : start + width] for start in range(0, len(reports), width)]
    return [seal(row, collector.service.keys.public, task, period) for row in rows]


def send(collector: Collector, body: bytes, part: str, crowd: str = "c", task: Task = TASK) -> Answer:
    headers = {**bearer(collector.token), "Hubbub-Batch": crowd, "Hubbub-Part": part}
    return ask(f"{collector.address}/v3/tasks/{task.digest.hex()}/shuffled", body, headers)


def nothing_shows(collector: Collector) -> bool:
    """No reading tells that anything has come."""
    about = collector.get(collector.path).json
    numbers = (about["reports"], about["in_estimates"], sum(about["rejected"].values()))
    states = {collector.get(f"{collector.path}/{name}").status for name in ("state", "estimates")}
    exported = b"".join(payload for _, _, payload, _ in collector.service.store.kept(NAME))
    accepted = f'hubbub_reports_accepted_total{{task="{NAME}"}}' in collector.get("/metrics").body.decode()
    return numbers == (0, 0, 0) and states == {403} and not exported and not accepted


def counted(collector: Collector, reports: bytes) -> bool:
    """Exactly these reports count, as one crowd."""
    state = collector.service.folder.fold(TASK).state
    crowd = len(reports) // TASK.mechanism.layout.width
    return (
        state.to_bytes() == aggregate(TASK, reports).to_bytes()
        and collector.service.store.crowds(NAME) == (crowd, crowd)
        and [(each.crowds, each.reports) for each in by_period(collector.service.store, NAME)] == [(1, crowd)]
    )


def test_a_crowd_counts_when_it_is_complete(store_url: str) -> None:
    """Before, nothing of it can be seen but in the metrics; afterwards its parts are recognised."""
    reports = some_reports(TASK, 30)
    with collecting(store_url, TASK) as collector:
        items = sealed(collector, reports)
        bodies = [b"".join(items[start : start + 10]) for start in (0, 10, 20)]
        for number in (1, 0):
            answer = send(collector, bodies[number], f"{number + 1}/3/30").json
            assert answer == {"batch": "c", "accepted": 10, "rejected": 0, "repeated": False}
            assert send(collector, bodies[number], f"{number + 1}/3/30").json["repeated"] is True
            assert nothing_shows(collector)
        eventually(lambda: b"hubbub_crowds_unfinished 1" in collector.get("/metrics").body)
        assert send(collector, bodies[2], "3/3/30").json["accepted"] == 10
        assert counted(collector, reports)
        assert f'hubbub_reports_accepted_total{{task="{NAME}"}} 30' in collector.get("/metrics").body.decode()
        for number in range(3):
            assert send(collector, bodies[number], f"{number + 1}/3/30").json["repeated"] is True
        with collector.service.store.reading() as connection:
            for table in (parts, unfinished):
                assert connection.execute(sql.select(sql.func.count()).select_from(table)).scalar() == 0
        exported = {name for name, _, _, _ in collector.service.store.kept(NAME)}
        assert len(exported) == 1
    with collecting(store_url, TASK) as collector:
        assert counted(collector, reports)


def test_the_last_part_waits_for_the_others(store_url: str) -> None:
    reports = some_reports(TASK, 20)
    with collecting(store_url, TASK) as collector:
        items = sealed(collector, reports)
        first, second = b"".join(items[:10]), b"".join(items[10:])
        early = send(collector, second, "2/2/20")
        assert (early.status, early.headers["retry-after"]) == (503, "1")
        assert "Other parts" in early.json["detail"]
        with collector.service.store.reading() as connection:  # and nothing of it stays
            assert connection.execute(sql.select(sql.func.count()).select_from(unfinished)).scalar() == 0
        assert send(collector, first, "1/2/20").status == 200
        assert send(collector, second, "2/2/20").status == 200
        assert counted(collector, reports)


def test_hostile_parts_are_refused_and_change_nothing(store_url: str) -> None:
    """Other bytes, other totals, too many items, another period, key or task: after all that, the crowd counts."""
    daily = collected_task(name="daily", period="day", keep_reports=True)
    reports = some_reports(TASK, 20)
    with collecting(store_url, TASK, daily) as collector:
        items = sealed(collector, reports)
        first, second, other = (
            b"".join(items[:10]),
            b"".join(items[10:]),
            b"".join(sealed(collector, reports[:30])),
        )
        assert send(collector, first, "1/2/20").status == 200
        refused: list[tuple[str, bytes, int]] = [
            ("1/2/20", other, 409),  # the same part with other bytes
            ("1/2/21", first, 409),  # and with another total
            ("2/3/20", second, 409),  # another number of parts
            ("2/2/21", second, 409),  # another total
            ("2/2/20", second + items[0], 409),  # more items than were said
            ("2/2/20", b"".join(items[10:19]), 409),  # and fewer
            ("2/2/20", second[:-1], 422),
            ("2/2/20", b"", 422),
            *(
                (header, second, 400)
                for header in ("", "2", "0/2/20", "3/2/20", "2/2/1", "-1/2/20", "2/2/20/1")
            ),
        ]
        for header, body, status in refused:
            assert send(collector, body, header).status == status, header
        foreign = KeyPair.fresh()
        width = TASK.mechanism.layout.width
        theirs = [seal(reports[:width], foreign.public, TASK) for _ in range(10)]
        assert send(collector, b"".join(theirs), "2/2/20").status == 422
        collector.service.keys.new()  # the same crowd for another key of ours
        assert send(collector, b"".join(sealed(collector, reports[10 * width :])), "2/2/20").status == 409
        days = [sealed(collector, reports[: 10 * width], daily, day) for day in ("2026-11-16", "2026-11-17")]
        assert send(collector, b"".join(days[0]), "1/2/20", task=daily).status == 200
        assert send(collector, b"".join(days[1]), "2/2/20", task=daily).status == 409
        assert nothing_shows(collector)
        assert (
            ask(f"{collector.address}/v3/tasks/{NAME}/shuffled", second, bearer(collector.token)).status
            == 400
        )
        uploader = collector.service.tokens.new("upload")
        headers = {**bearer(uploader), "Hubbub-Batch": "c", "Hubbub-Part": "2/2/20"}
        assert ask(f"{collector.address}/v3/tasks/{NAME}/shuffled", second, headers).status == 403
        assert send(collector, second, "2/2/20").status == 200
        assert counted(collector, reports)


def test_a_part_without_a_good_report_does_not_stop_its_crowd(tmp_path: Path) -> None:
    """Whoever sends nonsense under the right key's name must not keep others' reports out."""
    reports = some_reports(TASK, 10)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        good = sealed(collector, reports)
        nonsense = [secrets.token_bytes(sealed_width(TASK) - 4) + good[0][-4:] for _ in range(5)]
        assert send(collector, b"".join(nonsense), "1/2/15").json["rejected"] == 5
        assert send(collector, b"".join(good), "2/2/15").status == 200
        assert counted(collector, reports)
        assert sum(collector.get(collector.path).json["rejected"].values()) == 5


def test_crowds_that_never_end_are_bounded_and_can_be_dropped(store_url: str) -> None:
    """They take no more than the setting allows, and once they are dropped, they may come again from the beginning."""
    reports = some_reports(TASK, 4)
    with collecting(store_url, TASK, unfinished=2000) as collector:
        items = sealed(collector, reports)
        found = [send(collector, items[0], "1/2/2", crowd=f"c{number}").status for number in range(20)]
        assert found == [200] * 9 + [503] * 11  # 203 bytes each
        assert send(collector, items[1], "2/2/2", crowd="c0").status == 200  # what makes room is taken
        store, now = collector.service.store, datetime.datetime.now(datetime.UTC)
        assert purge(store, NAME, Horizons(crowds=2), now)["crowds"] == 0
        later = now + datetime.timedelta(days=3)
        assert purge(store, NAME, Horizons(crowds=2), later)["crowds"] == 8
        with store.reading() as connection:
            left = [
                connection.execute(sql.select(sql.func.count()).select_from(each)).scalar()
                for each in (parts, ids)
            ]
        assert left == [0, 2]
        assert send(collector, items[2], "1/2/2", crowd="c1").json["repeated"] is False
        assert send(collector, items[3], "2/2/2", crowd="c1").status == 200
        assert collector.reports == 4


def test_a_part_that_the_disk_changed_is_sent_again(tmp_path: Path) -> None:
    reports = some_reports(TASK, 6)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        items = sealed(collector, reports)
        bodies = [b"".join(items[start : start + 2]) for start in (0, 2, 4)]
        for number in (0, 1):
            send(collector, bodies[number], f"{number + 1}/3/6")
        with collector.service.store.writing() as connection:
            connection.execute(parts.update().where(parts.c.part == 1).values(payload=bytes(6)))
        assert send(collector, bodies[2], "3/3/6").status == 503
        assert collector.reports == 0
        for number in range(3):
            assert send(collector, bodies[number], f"{number + 1}/3/6").json["repeated"] is False
        assert counted(collector, reports)


def test_nothing_is_counted_if_counting_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that counts a crowd is all or nothing; the part is sent again, and the crowd counts once."""
    reports = some_reports(TASK, 4)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        items = sealed(collector, reports)
        send(collector, b"".join(items[:2]), "1/2/4")
        with monkeypatch.context() as broken:
            broken.setattr(module, "note_crowds", lambda *_: 1 / 0)
            assert send(collector, b"".join(items[2:]), "2/2/4").status == 500
        with collector.service.store.reading() as connection:
            assert connection.execute(sql.select(sql.func.count()).select_from(log)).scalar() == 0
        assert nothing_shows(collector)
        assert send(collector, b"".join(items[2:]), "2/2/4").status == 200
        assert counted(collector, reports)


def test_processes_that_open_reports_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many items are opened elsewhere: the same reports in the same places, and the processes end with their owner."""
    pair = KeyPair.fresh()
    width = TASK.mechanism.layout.width
    reports = some_reports(TASK, 250)
    rows = [reports[start : start + width] for start in range(0, len(reports), width)]
    items = b"".join([seal(row, pair.public, TASK) for row in rows])
    items = items[:200] + bytes([items[200] ^ 1]) + items[201:]
    openers = Openers()
    monkeypatch.setattr("hubbub.collect.openers.WORTH", 100)
    monkeypatch.setattr("hubbub.collect.openers._PIECE", 60)
    openers._jobs = 2
    try:
        from hubbub.collect.keypair import open_each

        elsewhere, bad = open_each([pair], TASK, items, openers.run)
        assert openers._pool is not None
    finally:
        openers.close()
    here, also_bad = open_each([pair], TASK, items)
    assert elsewhere.tobytes() == here.tobytes()
    assert bad == also_bad == [200 // sealed_width(TASK)]


def test_two_processes_take_the_last_two_parts_at_once(
    store_url: str, opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts of a crowd of three arrive at the same moment at different processes, many times: counted once."""
    from concurrent.futures import ThreadPoolExecutor

    one, two = opened(store_url), opened(store_url)
    made = some_reports(TASK, 3)
    width = TASK.mechanism.layout.width

    def part(crowd: int, number: int) -> Any:
        payload = made[number * width : (number + 1) * width]
        batch = module.Batch(NAME, f"crowd{crowd}", 1, payload, bytes([number]) * 16, 0, 1, {}, "")
        return module.Part(batch, number, 3, 3, 1, b"kind")

    def take(store: Store, crowd: int, number: int) -> str:
        while (found := module.append_part(store, part(crowd, number), 1 << 20).outcome) == "missing":
            pass
        return found

    with ThreadPoolExecutor(2) as pool:
        for crowd in range(8):
            assert module.append_part(one, part(crowd, 0), 1 << 20).outcome == "stored"
            pair = [pool.submit(take, one, crowd, 1), pool.submit(take, two, crowd, 2)]
            assert [each.result(30) for each in pair] == ["stored", "stored"]
    assert one.waiting(NAME) == 24
    assert one.crowds(NAME) == (3, 24)
