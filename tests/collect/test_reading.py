"""Reading: estimates that reflect every acknowledged report, withheld while too few, for those who may."""

from __future__ import annotations

import datetime
import io
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet
import pytest
import sqlalchemy as sql
from collecting import (
    COLLISION,
    Collector,
    collected_task,
    collecting,
    eventually,
    sealed_batch,
    some_reports,
)
from live import ask, bearer

from helpers import refuse, refused, strict_json, succeed
from hubbub.collect import ingest, service, tokens
from hubbub.collect import snapshots as folding
from hubbub.collect.database import history, states
from hubbub.collect.segments import name_of
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.privacy.over_time import over_time
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.protocol.files import load_state
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate

TASK = collected_task(minimum_reports=100)
REPORTS = some_reports(TASK, 2000, seed=99)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service with 2,000 reports in it."""
    with collecting(f"sqlite:///{tmp_path_factory.mktemp('store')}/s.db", TASK) as running:
        running.send(REPORTS, "all")
        yield running


def test_estimates_are_those_of_the_reports(collector: Collector) -> None:
    expected = estimate(TASK, aggregate(TASK, REPORTS))
    answer = collector.get(f"{collector.path}/estimates?top=5")
    found = strict_json(answer.body)
    assert found.pop("estimates") == expected.top(5).rows()
    assert found == strict_json(json.dumps(expected.about()))
    asked = collector.get(f"{collector.path}/estimates?keys=7&keys=31&level=0.9&simultaneous=true").json
    again = estimate(TASK, aggregate(TASK, REPORTS), ["7", "31"], level=0.9, simultaneous=True)
    assert asked["estimates"] == again.rows()
    assert (asked["level"], asked["simultaneous"]) == (0.9, True)
    assert asked["guarantee"]["epsilon"] == 1


def test_every_acknowledged_report_is_in_the_next_reading(store_url: str) -> None:
    """Each reading comes right after an acknowledgement, long before the background would have folded."""
    task = collected_task()
    with collecting(store_url, task, fold_every=60) as running:
        for number in range(1, 8):
            assert running.send(some_reports(task, 10), f"b{number}").status == 200
            assert running.get(f"{running.path}/estimates?keys=1").json["reports"] == 10 * number


def test_the_background_folds_by_itself(store_url: str) -> None:
    task = collected_task()
    with collecting(store_url, task, fold_every=0.05) as running:
        running.send(some_reports(task, 10), "one")
        eventually(lambda: not running.service.store.waiting(task.digest.hex()))


@pytest.mark.parametrize(
    "path", ["/estimates", "/estimates.csv", "/estimates.json", "/history?keys=1", "/state"]
)
def test_withheld_below_the_minimum(tmp_path: Path, path: str) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as running:
        for reports, status in ((REPORTS[:297], 403), (REPORTS[297:300], 200)):
            running.send(reports, f"b{len(reports)}")
            answer = running.get(running.path + path)
            assert answer.status == status
            seen = running.get(running.path).json
            assert (seen["withheld"], seen["minimum"]) == (status == 403, 100)
            if status == 403:
                assert answer.json["title"] == "withheld"
                assert "99 reports have arrived" in answer.json["detail"]
                assert running.get(f"{running.path}/history").status == 200


def test_the_task_and_its_promise(collector: Collector) -> None:
    found = strict_json(collector.get(collector.path).body)
    assert Task.parse(tomllib.loads(found["toml"])).digest == TASK.digest
    assert (found["name"], found["digest"], found["reports"]) == ("collected", TASK.digest.hex(), 2000)
    assert found["guarantee"] == {"local": TASK.guarantee.as_dict(), "shuffled": None}
    assert found["per_period"] == "A device reports once and spends epsilon = 1 per record, local model."
    (listed,) = collector.get("/v1/tasks").json["tasks"]
    assert {**listed, "toml": found["toml"]} == found


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"period": "day"}, "at most 1 report a day and spends epsilon = 1 on each: epsilon = 1 a day"),
        (
            {"period": "week", "reports_per_period": 3},
            "3 reports a week and spends epsilon = 1 on each: epsilon = 3 a",
        ),
        ({"reports_per_period": 2}, "2 reports in all"),
    ],
)
def test_spending_in_words(rules: dict[str, Any], words: str) -> None:
    assert words in service.spending(collected_task(**rules))


def sealed_crowd(task: Task, public: bytes, reports: int) -> bytes:
    """A crowd as a shuffler sends it."""
    width, period = task.mechanism.layout.width, period_of(task, datetime.date(2024, 3, 6))
    made = some_reports(task, reports)
    return b"".join(seal(made[i : i + width], public, task, period) for i in range(0, len(made), width))


@pytest.mark.parametrize("per_period", [1, 3])
def test_what_periods_compose_to(per_period: int, tmp_path: Path) -> None:
    """All reports of a person, in a day, a month and a year, at the smallest crowd that came."""
    task = collected_task(period="day", reports_per_period=per_period)
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as running:
        path, public = running.shuffled, running.service.keys.public
        before = running.get(running.path).json
        assert [span["local"]["epsilon"] for span in before["over_time"]] == [
            per_period * days for days in (1, 30, 365)
        ]
        assert {span["shuffled"] for span in before["over_time"]} == {None}
        seen = {}
        for crowd in (300, 120, 200):
            running.upload(sealed_crowd(task, public, crowd), f"c{crowd}", path=path)
            seen[crowd] = strict_json(running.get(running.path).body)
    assert seen[120]["over_time"] == seen[200]["over_time"]
    for crowd in (300, 120):
        expected = over_time(task, crowd)
        assert seen[crowd]["over_time"] == [span.as_dict() for span in expected]
        shuffled = seen[crowd]["guarantee"]["shuffled"]
        one = shuffled_guarantee(task.mechanism, crowd, 1e-6, per_period)
        assert (shuffled["epsilon"], shuffled["per_person"]) == (one.epsilon, per_period)
        assert "a person's reports of one day" in shuffled["words"]
        assert (f"up to {per_period} reports per person" in shuffled["words"]) == (per_period > 1)


def test_a_crowd_without_a_bound_is_said_to_add_nothing(tmp_path: Path) -> None:
    """A guarantee per entry is not amplified, and the reason is given."""
    mechanism = {"name": "sparse_sum", "epsilon": 1.0, "max_entries": 2, "values": "set", "unit": "entry"}
    task = collected_task(mechanism=mechanism)
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as running:
        assert running.get(running.path).json["unamplified"] == ""
        crowd = sealed_crowd(task, running.service.keys.public, 100)
        assert running.upload(crowd, "c", path=running.shuffled).json["accepted"] == 100
        about = running.get(running.path).json
        token = running.service.tokens.new("analyst")
        page = running.get(f"/tasks/{task.digest.hex()}", token).body.decode()
    assert about["guarantee"]["shuffled"] is None
    assert "per entry" in about["unamplified"]
    assert "Shuffling adds nothing" in page
    assert about["unamplified"].replace("'", "&#39;") in page
    reach = task.mechanism.influence("frequency").up
    assert f"moves the share of a key by at most {reach:.3g} / n" in about["forged"]
    assert about["forged"] in page


def test_files(collector: Collector, tmp_path: Path) -> None:
    """CSV and JSON hold all keys, the state is a state file, and Parquet holds every report with its task."""
    full = estimate(TASK, aggregate(TASK, REPORTS))
    rows = collector.get(f"{collector.path}/estimates.csv")
    assert rows.headers["content-type"].startswith("text/csv")
    assert "attachment" in rows.headers["content-disposition"]
    assert len(rows.body.decode().splitlines()) == 51
    assert strict_json(collector.get(f"{collector.path}/estimates.json").body)["estimates"] == full.rows()
    assert collector.get(f"{collector.path}/estimates.xlsx").status == 404
    (tmp_path / "state.hubbub").write_bytes(collector.get(f"{collector.path}/state").body)
    task, state = load_state(tmp_path / "state.hubbub")
    assert task == TASK
    assert state.to_bytes() == aggregate(TASK, REPORTS).to_bytes()
    table = pyarrow.parquet.read_table(io.BytesIO(collector.get(f"{collector.path}/reports.parquet").body))
    assert table.schema.metadata[b"hubbub.protocol.task"] == TASK.canonical
    (row,) = table.to_pylist()
    assert row["task"] == TASK.digest.hex()
    assert row["batch"] == name_of("all").hex()
    assert row["reports"] == REPORTS
    assert abs(row["day"] - datetime.datetime.now(datetime.UTC).date()) <= datetime.timedelta(days=1)


def test_dropped_reports_cannot_be_exported(tmp_path: Path) -> None:
    task = collected_task(keep_reports=False)
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as running:
        running.send(some_reports(task, 10), "one")
        answer = running.get(f"{running.path}/reports.parquet")
        assert (answer.status, answer.json["title"]) == (409, "not kept")
        assert running.reports == 10


def test_history(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts by period, and for a key the estimates at the end of every period: those of the reports until then.

    With 20 reports in a period and steps of at least 25, only every other period has a state of its own.
    """
    task = collected_task(minimum_reports=25)
    clock = [3600 * 1000]
    monkeypatch.setattr(ingest, "period_now", lambda task: clock[0])
    parts = [some_reports(task, 20) for _ in range(4)]
    with collecting(store_url, task) as running:
        for number, reports in enumerate(parts):
            running.send(reports, f"b{number}")
            running.get(running.path)
            clock[0] += 3600
        found = strict_json(running.get(f"{running.path}/history?keys=3&keys=9").body)
        again = strict_json(running.get(f"{running.path}/history?keys=3&keys=9").body)
    assert found == again
    assert [row["reports"] for row in found["periods"]] == [20] * 4
    assert [row["total"] for row in found["periods"]] == [20, 40, 60, 80]
    assert found["periods"][0]["period"] == "1970-02-11T16:00:00Z"
    assert found["guarantee"]["epsilon"] == 1
    for place, key in enumerate(("3", "9")):
        expected = []
        for number in (1, 3):
            state = aggregate(task, b"".join(parts[: number + 1]))
            row = estimate(task, state, ["3", "9"]).rows()[place]
            expected.append({"period": found["periods"][number]["period"], **row})
        assert found["estimates"][key] == expected


@pytest.mark.parametrize("packed", [b"", b"nonsense", zlib.compress(b"another task's")], ids=str)
def test_a_damaged_past_state_is_a_missing_point(
    packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task, clock = collected_task(), [3600 * 1000]
    monkeypatch.setattr(ingest, "period_now", lambda task: clock[0])
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as running:
        for number in range(4):
            running.send(some_reports(task, 20), f"b{number}")
            running.get(running.path)
            clock[0] += 3600
        with running.service.store.engine.begin() as connection:
            connection.execute(history.update().where(history.c.period == 3600 * 1001).values(state=packed))
        found = strict_json(running.get(f"{running.path}/history?keys=3").body)
    assert [row["reports"] for row in found["periods"]] == [20] * 4
    assert [point["period"][11:13] for point in found["estimates"]["3"]] == ["16", "18", "19"]
    assert "1970-02-11T17:00:00Z is damaged" in caplog.text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("top=0", 422),
        ("top=x", 422),
        ("level=1", 422),
        ("level=nan", 422),
        ("quantity=mean", 422),
        ("quantity=x", 422),
        ("keys=nobody", 422),
        ("keys=50", 422),
        ("keys=", 422),
        ("keys=%00%ff", 422),
        ("&".join(f"keys={i % 50}" for i in range(1001)), 422),
    ],
)
def test_questions_that_make_no_sense(collector: Collector, query: str, status: int) -> None:
    answer = collector.get(f"{collector.path}/estimates?{query}")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json["detail"].endswith(".")


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("/history?where=country=de", ["'where'", "keys, level, quantity"]),
        ("/estimates?by=country&keys=1", ["'by'"]),
        ("/estimates?period=2026&perod=2027", ["'perod'"]),
        ("/estimates.csv?limit=3", ["'limit'"]),
        ("/estimates?KEYS=1&<script>=1", ["'KEYS'", "'<script>'"]),
        ("/compare?group=country", ["'group'"]),
        ("/compare.csv?top=3", ["'top'"]),
        ("/trend?keys=1&by=country", ["'by'"]),
        ("/strata?period=2026-W46", ["'period'", "no parameters"]),
        ("/discovered?keys=1", ["'keys'"]),
        ("/discovered.toml?where=country=de", ["'where'"]),
        ("/state?period=2026", ["'period'"]),
        ("/reports.parquet?where=country=de", ["'where'"]),
        ("/device?period=2026", ["'period'"]),
        ("?where=country=de", ["'where'"]),
        ("/estimates?" + "&".join(f"%1b{'x' * 5000}{i}=" for i in range(9)), ["u001b"]),
    ],
)
def test_a_parameter_that_a_question_does_not_have_is_refused(
    collector: Collector, question: str, names: list[str]
) -> None:
    """The answer would be one to another question: everybody in place of a country."""
    answer = collector.get(f"{collector.path}{question}")
    assert (answer.status, answer.headers["content-type"]) == (422, "application/problem+json")
    assert all(name in answer.json["detail"] for name in names)
    assert len(answer.json["detail"]) < 1000


def test_every_question_about_tasks_has_that_rule(collector: Collector) -> None:
    """All that the description of the interface lists; what is for everybody may be asked with anything."""
    paths = [path for path, ways in collector.get("/openapi.json").json["paths"].items() if "get" in ways]
    asked = [path for path in paths if path.startswith("/v1/tasks")]
    assert len(asked) >= 13
    for path in asked:
        real = path.format(task=TASK.digest.hex(), form="csv")
        assert "'nonsense'" in collector.get(f"{real}?nonsense=1").json["detail"]
    for path in ("/v1/key", "/healthz", "/readyz", "/metrics"):
        assert collector.get(f"{path}?nonsense=1").status == 200


def test_open_vocabularies_are_asked_by_key(tmp_path: Path) -> None:
    task = Task.parse({"name": "open", "keys": {"kind": "folded", "bits": 16}, "mechanism": COLLISION})
    evil = "<script>alert(1)</script>"
    layout = task.mechanism.layout
    packed = layout.pack(np.random.default_rng(5).integers(0, 8, (50, 2), dtype=np.uint64)).tobytes()
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as running:
        running.send(packed, "one")
        assert running.get(f"{running.path}/estimates").status == 422
        answer = running.get(f"{running.path}/estimates?keys=%3Cscript%3Ealert(1)%3C/script%3E")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["estimates"][0]["key"] == evil


# Headers, sessions, logs


def test_security_headers_are_on_every_answer(collector: Collector) -> None:
    for path, body in (
        ("/v1/tasks", None),
        ("/nowhere", None),
        ("/healthz", None),
        ("/openapi.json", None),
        (f"{collector.path}/reports", b"x"),
        (f"{collector.path}/state", None),
    ):
        for headers in ({}, bearer(collector.token)):
            found = ask(collector.address + path, body, headers).headers
            assert found["x-content-type-options"] == "nosniff"
            assert found["referrer-policy"] == "no-referrer"
            assert found["cache-control"] == "no-store"
            policy = found["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "server" not in found


def test_sessions(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has the role of its token, ends by logout, by time, and with its token; the store has no secret."""
    store = Store(store_url)
    known = Tokens(store)
    token = known.new("analyst", "somebody")
    assert known.login("hub_analyst_wrong") is None
    one, two, three = (known.login(token) for _ in range(3))
    assert one is not None
    assert two is not None
    assert three is not None
    assert len({one, two, three}) == 3
    assert tokens.allows(known.session_grant(one), "analyst")
    assert known.session_grant("wrong") is None
    known.logout(one)
    assert known.session_grant(one) is None
    assert tokens.allows(known.session_grant(two), "analyst")
    with monkeypatch.context() as later:
        tomorrow = time.time() + 12 * 3600 + 2
        later.setattr(tokens.time, "time", lambda: tomorrow)
        assert known.session_grant(two) is None
    with store.reading() as connection:
        rows = [str(connection.execute(table.select()).all()) for table in (tokens.tokens, tokens.sessions)]
    assert not any(secret in row for row in rows for secret in (token, two, three))
    known.revoke(known.all()[0].id)
    assert known.session_grant(three) is None
    assert known.grant_of(token) is None
    store.close()


def test_a_session_reads_but_does_not_upload(collector: Collector) -> None:
    """A cookie alone sends no reports: other sites cannot make a browser do so."""
    secret = collector.service.tokens.login(collector.token)
    cookie = {"Cookie": f"{tokens.COOKIE}={secret}", "Hubbub-Batch": "by-cookie"}
    assert ask(collector.address + collector.path, headers=cookie).status == 200
    body = sealed_batch(TASK, REPORTS[:30])
    assert ask(f"{collector.address}{collector.path}/reports", body, cookie).status == 401


@contextmanager
def hubbub_serve(folder: Path, *arguments: object) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """The real command with --json; what it said first, and the process."""
    program = Path(sys.executable).with_name("hubbub")
    command = [program, "serve", *arguments, "--port", "0", "--json"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert running.stdout is not None
        try:
            said = strict_json(running.stdout.readline())
            eventually(lambda: ask(f"{said['address']}/healthz").status == 200, 60)
            yield said, running
        finally:
            running.terminate()
            running.wait(60)
            running.stdout.close()


def test_the_command_and_what_it_writes_down(tmp_path: Path) -> None:
    """Tokens are shown once and work; neither they nor anybody's address are in the log or in the store."""
    TASK.save(tmp_path / "task.toml")
    url = f"sqlite:///{tmp_path}/store.db"
    with hubbub_serve(tmp_path, tmp_path / "task.toml", "--store", url) as (said, running):
        upload, analyst = said["tokens"]["upload"], said["tokens"]["analyst"]
        path = f"{said['address']}/v1/tasks/{said['tasks'][0]['digest']}"
        headers = {**bearer(upload), "Hubbub-Batch": "one", "X-Forwarded-For": "203.0.113.7"}
        assert ask(f"{path}/reports", sealed_batch(TASK, REPORTS), headers).status == 200
        assert ask(f"{path}/reports", b"x", headers).status == 422
        assert ask(f"{path}/estimates?keys=1", headers=bearer(analyst)).json["reports"] == 2000
        assert ask(f"{path}/estimates?keys=secretkey", headers=bearer(analyst)).status == 422
        made = succeed("token", "new", "admin", "--label", "me", "--store", url)
        eventually(lambda: ask(path, headers=bearer(made["token"])).status == 200)
        succeed("token", "revoke", made["id"], "--store", url)
        eventually(lambda: ask(path, headers=bearer(made["token"])).status == 401)
        listed = succeed("token", "list", "--store", url)["tokens"]
        assert [row["role"] for row in listed] == ["upload", "analyst", "admin"]
        assert listed[2]["revoked"] is not None
    assert running.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[-1]["message"] == "stopped"
    written = (tmp_path / "log").read_bytes() + b"".join(p.read_bytes() for p in tmp_path.glob("store.db*"))
    for secret in (upload, analyst, made["token"], "127.0.0.1", "203.0.113.7", "secretkey"):
        assert secret.encode() not in written
    with hubbub_serve(tmp_path, tmp_path / "task.toml", "--store", url) as (said, running):
        assert said["tokens"] == {}
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def test_several_processes(new_database: Callable[[], str], tmp_path: Path) -> None:
    """Two processes share port and store; one is killed and replaced; every report is counted once."""
    task = collected_task()
    task.save(tmp_path / "task.toml")
    url = new_database()
    arguments = (tmp_path / "task.toml", "--store", url, "--processes", 2)
    with hubbub_serve(tmp_path, *arguments) as (said, running):
        path = f"{said['address']}/v1/tasks/{said['tasks'][0]['digest']}"
        children = f"/proc/{running.pid}/task/{running.pid}/children"

        def workers() -> list[int]:
            found = [int(number) for number in Path(children).read_text().split()]
            return [n for n in found if b"spawn_main" in Path(f"/proc/{n}/cmdline").read_bytes()]

        eventually(lambda: len(workers()) == 2)
        victim = workers()[0]
        for number in range(40):
            headers = {**bearer(said["tokens"]["upload"]), "Hubbub-Batch": f"b{number}"}
            body = sealed_batch(task, REPORTS[number * 150 : number * 150 + 150])
            for _ in range(2):
                answer = None
                while answer is None or answer.status != 200:
                    try:
                        answer = ask(f"{path}/reports", body, headers)
                    except OSError:
                        time.sleep(0.05)
            if number == 10:
                os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(workers()) == 2 and victim not in workers())
        assert ask(f"{path}/estimates", headers=bearer(said["tokens"]["analyst"])).json["reports"] == 2000
        assert ask(f"{path}/state", headers=bearer(said["tokens"]["analyst"])).status == 403
        admin = succeed("token", "new", "admin", "--store", url)["token"]
        eventually(lambda: ask(f"{path}/state", headers=bearer(admin)).status == 200)  # both have heard of it
        eventually(
            lambda: aggregate(task, REPORTS).to_bytes() in ask(f"{path}/state", headers=bearer(admin)).body
        )
    assert running.returncode == 0


def test_processes_end_with_the_one_that_started_them(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    """The parent is killed: nobody is left on the port."""
    collected_task().save(tmp_path / "task.toml")
    arguments = (tmp_path / "task.toml", "--store", new_database(), "--processes", 2)
    with hubbub_serve(tmp_path, *arguments) as (said, running):
        place = urlsplit(said["address"])
        eventually(lambda: ask(f"{said['address']}/healthz").status == 200)
        running.kill()

        def nobody() -> bool:
            try:
                socket.create_connection((place.hostname, place.port), timeout=1).close()
            except OSError:
                return True
            return False

        eventually(nobody, seconds=60)


def test_a_role_without_rights_is_refused_in_a_sentence(new_database: Callable[[], str]) -> None:
    url = new_database()
    name = f"reader_{secrets.token_hex(4)}"
    engine = sql.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    engine.dispose()
    other = sql.make_url(url).set(username=name).render_as_string(hide_password=False)
    with refused("cannot be opened", "permission denied"):
        Store(other)


def test_what_the_command_refuses(tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    TASK.save(task)
    store = f"sqlite:///{tmp_path}/s.db"
    assert "--demo" in refuse("serve")
    assert "named twice" in refuse("serve", task, task, "--store", store)
    assert "PostgreSQL" in refuse("serve", task, "--store", store, "--processes", 2)
    assert "store" in refuse("serve", task, "--store", "mysql://x")
    assert "cannot be read" in refuse("serve", tmp_path / "none.toml", "--store", store)
    assert "no store" in refuse("token", "list", "--store", f"sqlite:///{tmp_path}/none.db")
    assert "number 7" in refuse("token", "revoke", 7, "--store", store)
    assert "one line" in refuse("token", "new", "admin", "--label", "a\nb", "--store", store)


# Health


def test_health(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A state that is damaged beyond repair makes the service unready and its readings fail, loudly."""
    task = collected_task(keep_reports=False)
    url = f"sqlite:///{tmp_path}/s.db"
    with collecting(url, task) as running:
        running.send(some_reports(task, 10), "one")
        assert running.reports == 10
        assert running.get("/readyz").json == {"status": "ready"}
    store = Store(url)
    with store.writing() as connection:
        connection.execute(states.update().values(payload=b"damaged"))
    store.close()
    with caplog.at_level(logging.ERROR), collecting(url, task, fold_every=60) as running:
        for path in (running.path, f"{running.path}/estimates"):
            answer = running.get(path)
            assert (answer.status, answer.json["title"]) == (503, "damaged")
        eventually(lambda: running.get("/readyz").status == 503)
        said = running.get("/readyz").json
        assert ("every task is damaged" in said["detail"], said["damaged"]) == (True, [task.digest.hex()])
        said = ask(f"{running.address}/readyz").json  # to those without a token it names nobody
        assert ("every task is damaged" in said["detail"], said["damaged_tasks"]) == (True, 1)
        assert task.digest.hex() not in str(said)
        assert running.get("/healthz").json == {"status": "alive"}
        refused = running.send(some_reports(task, 10), "two")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "is damaged" in caplog.text


def test_precision_of_time() -> None:
    for precision, step in folding.SECONDS.items():
        assert folding.period_now(collected_task(precision=precision)) % step == 0


def role_of(tokens: Tokens, token: str) -> str | None:
    grant = tokens.grant_of(token)
    return None if grant is None else grant.role


def test_many_tokens_cost_no_more_than_one(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is looked up, not searched for; all of them are read again only after one was made or revoked."""
    store = Store(store_url)
    known, other = Tokens(store), Tokens(store)
    made = [known.new("upload", f"device {number}") for number in range(50)]
    reads: list[str] = []
    sql.event.listen(store.engine, "before_cursor_execute", lambda *given: reads.append(given[2]))
    looked: list[bytes] = []

    class Counting(dict[bytes, Any]):
        def get(self, key: bytes, default: Any = None) -> Any:
            looked.append(key)
            return super().get(key, default)

        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError("all tokens are gone through")

    other.refresh()
    known._known = Counting(known._known)
    assert [role_of(known, token) for token in [*made, "hub_upload_wrong"]] == ["upload"] * 50 + [None]
    assert len(looked) == 51
    reads.clear()
    for each in (known, other):
        each.refresh()
    assert not [query for query in reads if "FROM tokens" in query]
    first, late = made[0], other.new("analyst")
    known.refresh()
    assert role_of(known, late) == "analyst"
    other.revoke(1)
    assert (role_of(known, first), role_of(other, first)) == ("upload", None)
    known.refresh()
    assert role_of(known, first) is None
    both = known.new("admin"), other.new("shuffler")  # neither has read of the other's
    for each in (known, other):
        each.refresh()
        assert [role_of(each, token) for token in both] == ["admin", "shuffler"]
    store.close()
