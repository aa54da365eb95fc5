"""Uploads: what is acknowledged is kept once, what is not a batch costs little, trouble is said and passes."""

from __future__ import annotations

import json
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sql
from collecting import PRIVKV, Collector, collected_task, collecting, eventually, sealed_batch, some_reports
from live import Answer, ask, bearer

from hubbub.collect.database import history
from hubbub.collect.segments import name_of
from hubbub.collect.store import Unavailable
from hubbub.protocol.sealing import seal
from hubbub.server.fold import aggregate

TASK = collected_task()


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A collector with a report, so that nothing is withheld whichever test comes first."""
    with collecting(f"sqlite:///{tmp_path_factory.mktemp('store')}/s.db") as running:
        assert running.send(some_reports(TASK, 1), "first").status == 200
        yield running


def problem(answer: Answer, status: int, *parts: str) -> None:
    """The answer is problem+json with this status, and its sentence mentions all of these."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == status
    for part in parts:
        assert part in answer.json["detail"]


# What is kept


def test_a_batch_is_acknowledged_and_counted_once(store_url: str) -> None:
    reports = some_reports(TASK, 100)
    with collecting(store_url) as collector:
        said = {"batch": "one", "accepted": 100, "rejected": 0, "repeated": False}
        assert collector.send(reports, "one").json == said
        assert collector.send(reports, "one").json == {**said, "repeated": True}
        problem(collector.send(some_reports(TASK, 3), "one"), 409, "other reports")
        assert collector.reports == 100
    with collecting(store_url) as collector:
        assert collector.send(reports, "one").json["repeated"]
        assert collector.reports == 100
        state = collector.service.folder.fold(TASK).state
        assert state.to_bytes() == aggregate(TASK, reports).to_bytes()


def test_bad_reports_are_refused_one_by_one(store_url: str) -> None:
    """The good ones count; each bad one is named with its place and reason; counters go by reason.

    Of a batch without a good one nothing is kept, so it is refused, and counted, as often as it comes.
    """
    task = collected_task(mechanism=PRIVKV)
    good = some_reports(task, 4)
    wrong_key, wrong_answer = bytes([50]), bytes([3 << 6])
    mixed = good[:1] + wrong_key + good[1:3] + wrong_answer + wrong_key + good[3:]
    with collecting(store_url, task) as collector:
        for again in (False, True):
            assert collector.send(mixed, "mixed").json == {
                "batch": "mixed",
                "accepted": 4,
                "rejected": 3,
                "repeated": again,
                "problems": [
                    {"index": 1, "reason": "key is not below 50"},
                    {"index": 4, "reason": "answer is not below 3"},
                    {"index": 5, "reason": "key is not below 50"},
                ],
            }
        for _ in range(2):
            answer = collector.send(wrong_answer * 150, "all bad")
            problem(answer, 400)
            answer = collector.send(wrong_answer * 150, "all-bad")
            problem(answer, 422, "150", "do not send")
            assert len(answer.json["problems"]) == 100
            assert (answer.json["accepted"], answer.json["rejected"]) == (0, 150)
            assert not answer.json["repeated"]
        seen = collector.get(collector.path).json
        assert seen["reports"] == 4
        assert seen["rejected"] == {"key is not below 50": 2, "answer is not below 3": 301}
        state = collector.service.folder.fold(task).state
        assert state.to_bytes() == aggregate(task, good).to_bytes()


def test_times_are_rounded(tmp_path: Path) -> None:
    for precision, step in (("minute", 60), ("hour", 3600), ("day", 86400)):
        task = collected_task(precision=precision)
        with collecting(f"sqlite:///{tmp_path}/{precision}.db", task) as collector:
            collector.send(some_reports(task, 3), "one")
            assert collector.reports == 3
            with collector.service.store.reading() as connection:
                received = connection.execute(sql.select(history.c.period)).scalar_one()
        assert received % step == 0
        assert 0 <= time.time() - received < step + 60


def test_a_large_batch(collector: Collector) -> None:
    """Large enough to be examined off the event loop."""
    before = collector.reports
    assert collector.send(some_reports(TASK, 50_000), "large").json["accepted"] == 50_000
    assert collector.reports == before + 50_000


# What is refused, and when


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"", 422, "not a hubbub file"),
        (b"hubb" + b"\0" * 200, 422, "version 0"),
        (sealed_batch(TASK, some_reports(TASK, 5))[:-1], 422, "truncated"),
        (sealed_batch(TASK, some_reports(TASK, 5)) + b"x", 422, "longer"),
        (sealed_batch(TASK, some_reports(TASK, 5), kind=b"S"), 422, "state"),
        (sealed_batch(TASK, some_reports(TASK, 5), count=4), 422, "4 reports"),
        (sealed_batch(TASK, b""), 422, "0 reports"),
        (sealed_batch(TASK, some_reports(TASK, 5), mechanism=1), 409, "another mechanism"),
        (sealed_batch(TASK, some_reports(TASK, 5), digest=b"x" * 16), 409, "another task"),
        (sealed_batch(TASK, some_reports(TASK, 1) * 200_001), 413, "200,000"),
    ],
    ids=["nothing", "zeros", "truncated", "longer", "state", "count", "empty", "mechanism", "task", "many"],
)
def test_what_is_not_a_batch(collector: Collector, body: bytes, status: int, part: str) -> None:
    before = collector.reports
    problem(collector.upload(body, "bad"), status, part)
    assert collector.reports == before


def test_a_flipped_bit_is_noticed(collector: Collector) -> None:
    body = bytearray(sealed_batch(TASK, some_reports(TASK, 5)))
    body[-20] ^= 4
    problem(collector.upload(bytes(body), "flipped"), 422, "checksum")


@pytest.mark.parametrize("role", ["upload", "analyst", "admin", "shuffler"])
def test_roles(collector: Collector, role: Any) -> None:
    token = collector.service.tokens.new(role)
    body = sealed_batch(TASK, some_reports(TASK, 2))
    sent = collector.upload(body, f"by-{role}", token)
    assert sent.status == (200 if role in ("upload", "admin") else 403)
    crowd = collector.upload(b"", f"by-{role}", token, collector.shuffled)
    assert crowd.status == (422 if role in ("shuffler", "admin") else 403)
    for path, allowed in (
        ("", ("analyst", "admin")),
        ("/estimates", ("analyst", "admin")),
        ("/state", ("admin",)),
        ("/reports.parquet", ("admin",)),
    ):
        assert collector.get(collector.path + path, token).status == (200 if role in allowed else 403)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer hub_upload_" + "x" * 43, "Basic eDp5", "Bearer \xff\xfe"], ids=repr
)
def test_without_a_token(collector: Collector, given: str) -> None:
    headers = {"Hubbub-Batch": "one", "Authorization": given}
    for path, body in (("/reports", b"x"), ("/shuffled", b"x"), ("", None), ("/state", None)):
        answer = ask(collector.address + collector.path + path, body, headers)
        problem(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_revoked_token_is_refused(collector: Collector) -> None:
    token = collector.service.tokens.new("upload")
    body = sealed_batch(TASK, some_reports(TASK, 2))
    assert collector.upload(body, "before", token).status == 200
    collector.service.tokens.revoke(collector.service.tokens.all()[-1].id)
    problem(collector.upload(body, "after", token), 401)


def test_unknown_tasks_and_batch_ids(collector: Collector) -> None:
    body = sealed_batch(TASK, some_reports(TASK, 2))
    problem(collector.upload(body, "one", path=f"/v1/tasks/{'0' * 32}/reports"), 404, "digest")
    problem(collector.upload(body, "one", path="/v1/tasks/collected/reports"), 404)
    for name in ("", "x" * 65, "a b", "a/b", "ä"):
        problem(collector.upload(body, name), 400, "Hubbub-Batch")
    assert collector.upload(body, "x" * 64).status == 200


def raw(collector: Collector, text: str) -> str:
    """The first line of the answer to a request that ends where its body should begin."""
    place = urlsplit(collector.address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode())
        return connection.recv(100).split(b"\r\n")[0].decode()


def test_the_body_of_a_hopeless_request_is_not_waited_for(collector: Collector) -> None:
    """Each answer comes although not a byte of the body was sent."""
    start = f"POST {collector.path}/reports HTTP/1.1\nHost: x\nHubbub-Batch: one\n"
    token = f"Authorization: Bearer {collector.token}\n"
    assert "401" in raw(collector, start + "Content-Length: 5000\n\n")
    assert "413" in raw(collector, start + token + f"Content-Length: {1 << 40}\n\n")
    assert "411" in raw(collector, start + token + "Transfer-Encoding: chunked\n\n")
    assert "400" in raw(collector, start.replace("one", "o n e") + token + "Content-Length: 5000\n\n")
    elsewhere = start.replace(TASK.digest.hex(), "0" * 32)
    assert "404" in raw(collector, elsewhere + token + "Content-Length: 5000\n\n")


def test_a_sender_who_goes_away_leaves_nothing(collector: Collector) -> None:
    before = collector.reports
    body = sealed_batch(TASK, some_reports(TASK, 1000))
    place = urlsplit(collector.address)
    for size in (0, 10, len(body) - 1):
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            head = f"POST {collector.path}/reports HTTP/1.1\nHost: x\nHubbub-Batch: gone-{size}\n"
            head += f"Authorization: Bearer {collector.token}\nContent-Length: {len(body)}\n\n"
            connection.sendall(head.replace("\n", "\r\n").encode() + body[:size])
    assert collector.upload(body, "gone-10").json["repeated"] is False
    assert collector.reports == before + 1000


def test_a_slow_sender_is_cut_off(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", body_grace=0.3) as collector:
        head = f"POST {collector.path}/reports HTTP/1.1\nHost: x\nHubbub-Batch: slow\n"
        head += f"Authorization: Bearer {collector.token}\nContent-Length: 5000\n\n"
        assert "408" in raw(collector, head)


# Many at once


def upload_all(collector: Collector, count: int, name: str) -> list[Answer]:
    """`count` uploads at the same time."""
    bodies = [sealed_batch(TASK, some_reports(TASK, 10)) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda i: collector.upload(bodies[i], f"{name}-{i}"), range(count)))


def test_uploads_share_a_transaction(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one group is being written the next one gathers: 24 uploads in 2 transactions, or 1."""
    store = collector.service.store
    sizes: list[int] = []
    append = store.append

    def slow(group: Any) -> Any:
        sizes.append(len(group))
        if len(sizes) == 1:
            eventually(lambda: len(collector.service.writer) == 24 - len(group))
        return append(group)

    monkeypatch.setattr(store, "append", slow)
    assert {answer.status for answer in upload_all(collector, 24, "shared")} == {200}
    assert sum(sizes) == 24
    assert len(sizes) <= 2


def test_too_many_are_sent_away_and_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs, and room for three batches: the others hear 429 and Retry-After, none is lost."""
    with collecting(f"sqlite:///{tmp_path}/s.db", queue=3) as collector:
        store, go_on = collector.service.store, threading.Event()
        append = store.append
        monkeypatch.setattr(store, "append", lambda group: go_on.wait(60) and append(group))
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(upload_all, collector, 12, "many")
            eventually(lambda: "429" in collector.service.metrics.text(0, []))
            go_on.set()
        done = answers.result()
        accepted = [answer for answer in done if answer.status == 200]
        for answer in done:
            if answer.status != 200:
                problem(answer, 429, "again")
                assert answer.headers["retry-after"] == "1"
        assert 3 <= len(accepted) < 12
        assert collector.reports == 10 * len(accepted)
        assert upload_all(collector, 2, "later")[0].status == 200


def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders hear 503 when their patience ends, one after the other; the same batches go through later, once."""
    with collecting(f"sqlite:///{tmp_path}/s.db", patience=0.3) as collector:
        store, go_on = collector.service.store, threading.Event()
        append = store.append
        monkeypatch.setattr(store, "append", lambda group: go_on.wait(60) and append(group))
        bodies = [sealed_batch(TASK, some_reports(TASK, 10)) for _ in range(3)]
        for number, body in enumerate(bodies):
            problem(collector.upload(body, f"b{number}"), 503, "later")
        go_on.set()
        for number, body in enumerate(bodies):
            eventually(lambda body=body, number=number: collector.upload(body, f"b{number}").status == 200)  # type: ignore[misc]
        assert collector.reports == 30


# Trouble


def test_a_failing_store_is_said_and_forgotten(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 while it lasts; then the same batch goes through, without a restart."""
    with collecting(store_url) as collector:
        store = collector.service.store
        body = sealed_batch(TASK, some_reports(TASK, 10))

        def fail(_: Any) -> Any:
            raise Unavailable("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(store, "append", fail)
            answer = collector.upload(body, "one")
            problem(answer, 503, "later")
            assert answer.headers["retry-after"] == "1"
        assert collector.upload(body, "one").json["repeated"] is False
        assert collector.reports == 10


def test_full_disk(tmp_path: Path) -> None:
    """SQLite may not grow: 503 and nothing half-written; when there is room again, everything goes on."""
    with collecting(f"sqlite:///{tmp_path}/s.db", fold_every=60) as collector:
        engine = collector.service.store.engine
        limits = [0]

        def limit(connection: Any) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {limits[0] or 1 << 30}")

        sql.event.listen(engine, "begin", limit, insert=True)
        with engine.connect() as connection:
            limits[0] = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 20
        answers = [collector.send(some_reports(TASK, 10_000), f"b{i}") for i in range(8)]
        assert answers[0].status == 200
        problem(answers[-1], 503)
        kept = sum(answer.status == 200 for answer in answers)
        assert len(list(collector.service.store.kept(TASK.digest.hex()))) == kept
        problem(collector.get(collector.path), 503)  # the fold needs room, too
        limits[0] = 0
        assert collector.send(some_reports(TASK, 10_000), "room").status == 200
        assert collector.reports == 10_000 * (kept + 1)


def test_locked_database(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", fold_every=60) as collector:
        blocker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        body = sealed_batch(TASK, some_reports(TASK, 10))
        problem(collector.upload(body, "one"), 503)
        assert collector.get("/healthz").status == 200
        blocker.close()
        assert collector.upload(body, "one").status == 200
        assert collector.reports == 10


def test_lost_connection(new_database: Callable[[], str]) -> None:
    """PostgreSQL ends all connections, then lets nobody in for a while: 503, and recovery without a restart."""
    url = new_database()
    name = url.split("/")[3].split("?")[0]
    other = sql.create_engine(new_database().replace("postgresql:", "postgresql+psycopg:"))
    end_all = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    with collecting(url) as collector, other.connect() as admin:
        admin.execution_options(isolation_level="AUTOCOMMIT")
        assert collector.send(some_reports(TASK, 10), "before").status == 200
        admin.exec_driver_sql(end_all)
        answers = [collector.send(some_reports(TASK, 10), f"cut-{i}").status for i in range(6)]
        assert answers[-1] == 200
        admin.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.exec_driver_sql(end_all)
        body = sealed_batch(TASK, some_reports(TASK, 10))
        problem(collector.upload(body, "closed"), 503)
        problem(collector.get(collector.path), 503)
        assert collector.get("/readyz").status == 503
        assert collector.get("/healthz").status == 200
        admin.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        eventually(lambda: collector.upload(body, "closed").status == 200)
        eventually(lambda: collector.get("/readyz").status == 200, seconds=60)
        assert collector.reports == 10 * (2 + answers.count(200))
    other.dispose()


def test_a_mistake_of_ours_is_a_plain_500(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says nothing about the inside, has the security headers, and is in the log; the writer lives on."""
    store = collector.service.store

    def fail(_: Any) -> Any:
        raise RuntimeError("inside")

    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR, "hubbub.api"):
        broken.setattr(store, "append", fail)
        answer = collector.send(some_reports(TASK, 2), "mistake")
    problem(answer, 500, "log")
    assert "inside" not in answer.body.decode()
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "RuntimeError: inside" in caplog.text
    assert collector.send(some_reports(TASK, 2), "mistake").status == 200


# Shuffled crowds


def test_a_shuffled_crowd(store_url: str) -> None:
    """Items are opened; those that do not open or are no reports are counted by reason; the crowd is noted."""
    with collecting(store_url) as collector:
        token = collector.service.tokens.new("shuffler")
        key = bytes.fromhex(ask(f"{collector.address}/v1/key").json["key"])
        reports = some_reports(TASK, 300)
        items = [seal(reports[i : i + 3], key, TASK) for i in range(0, 900, 3)]
        items[7] = bytes([items[7][0] ^ 1]) + items[7][1:]
        items[8] = seal(b"\xff\xff\xff", key, TASK)
        crowd, path = b"".join(items), collector.shuffled
        answer = collector.upload(crowd, "crowd", token, path)
        assert answer.json["accepted"] == 298
        assert [found["index"] for found in answer.json["problems"]] == [7, 8]
        assert collector.upload(crowd, "crowd", token, path).json["repeated"]
        problem(collector.upload(crowd[:-1], "cut", token, path), 422, "whole number")
        seen = collector.get(collector.path).json
        assert seen["reports"] == 298
        assert sum(seen["rejected"].values()) == 2
        shuffled = seen["guarantee"]["shuffled"]
        assert (shuffled["crowd"], shuffled["reports"]) == (298, 298)
        assert 0 < shuffled["epsilon"] < seen["guarantee"]["local"]["epsilon"]
        collector.send(some_reports(TASK, 500), "direct")
        collector.upload(b"".join(items[10:60]), "small", token, path)
        weaker = collector.get(collector.path).json["guarantee"]["shuffled"]
        assert (weaker["crowd"], weaker["reports"]) == (50, 348)
        assert weaker["epsilon"] > shuffled["epsilon"]
        assert "348 reports" in weaker["words"]
        assert "50 reports" in weaker["words"]
        expected = reports[:21] + reports[27:] + reports[30:180]
        kept = b"".join(
            payload
            for name, _, payload, _ in collector.service.store.kept(TASK.digest.hex())
            if name != name_of("direct").hex()
        )
        assert aggregate(TASK, kept).to_bytes() == aggregate(TASK, expected).to_bytes()


def test_metrics(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        collector.send(some_reports(TASK, 10) + b"\xff\xff\xff", "one")
        collector.send(b"\xff\xff\xff", "two")
        ask(f"{collector.address}{collector.path}/reports", b"x", bearer("wrong"))
        answer = collector.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[0] != "#")
    name = TASK.digest.hex()
    assert lines['hubbub_uploads_total{status="200"}'] == "1"
    assert lines['hubbub_uploads_total{status="401"}'] == "1"
    assert lines[f'hubbub_reports_accepted_total{{task="{name}"}}'] == "10"
    assert lines[f'hubbub_reports_rejected_total{{task="{name}"}}'] == "2"
    assert lines['hubbub_upload_seconds_bucket{le="+Inf"}'] == lines["hubbub_upload_seconds_count"] == "3"
    assert json.loads(lines["hubbub_batches_waiting"]) == 0
