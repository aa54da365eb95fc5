"""Threads in the background meet what nobody expected: it is seen, counted, and they go on."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector, collected_task, collecting, eventually, some_reports
from live import ask, bearer, keyed_mixer, opaque_items
from sqlalchemy.exc import ProgrammingError

from hubbub.collect import forward as module
from hubbub.collect import service, workers
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.store import Store, Unavailable
from hubbub.collect.tokens import Tokens
from hubbub.collect.workers import Worker
from hubbub.model.state import State
from hubbub.protocol.sealing import key_id
from hubbub.protocol.task import Task

TASK = collected_task()
#: What has ended a thread, or could.
SURPRISES = [
    ProgrammingError("SELECT 1", {}, Exception("no such table: tokens")),
    KeyError("a mistake of ours"),
    MemoryError(),
    SystemExit(1),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PAUSES", (0.01, 0.05))
    monkeypatch.setattr("hubbub.collect.health._REMEMBERED", 0.0)


def raising(problem: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise problem

    return fail


def measured(text: str, name: str, worker: str) -> int:
    found = re.search(rf'^hubbub_{name}{{worker="{worker}"}} (\d+)$', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def metrics(collector: Collector) -> str:
    return collector.get("/metrics").body.decode()


@pytest.mark.parametrize("surprise", SURPRISES, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize(
    ("worker", "target", "name"),
    [("tokens", "tokens", "refresh"), ("fold", "folder", "fold")],
    ids=["tokens", "fold"],
)
def test_a_thread_of_the_service_that_meets_a_surprise(
    surprise: BaseException,
    worker: str,
    target: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, fold_every=0.05) as collector:
        assert collector.get("/readyz").status == 200
        with monkeypatch.context() as broken:
            broken.setattr(getattr(collector.service, target), name, raising(surprise))
            for one in collector.service.workers:
                one.wake()
            eventually(lambda: collector.get("/readyz").status == 503)
            assert worker in collector.get("/readyz").json["detail"]
            eventually(lambda: measured(metrics(collector), "worker_failures_total", worker) >= 3)
            assert measured(metrics(collector), "worker_healthy", worker) == 0
            assert collector.get("/healthz").status == 200
        eventually(lambda: collector.get("/readyz").status == 200)
        assert measured(metrics(collector), "worker_healthy", worker) == 1


def test_revocation_goes_on_after_a_surprise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with collecting(url, TASK) as collector:
        token = collector.service.tokens.new("upload")
        number = collector.service.tokens.all()[-1].id
        with monkeypatch.context() as broken:
            broken.setattr(collector.service.tokens, "refresh", raising(SURPRISES[0]))
            collector.service.workers[0].wake()
            eventually(lambda: collector.get("/readyz").status == 503)
        elsewhere = Store(url)
        Tokens(elsewhere).revoke(number)
        elsewhere.close()

        def sent() -> int:
            return ask(f"{collector.address}{collector.path}/reports", b"x", bearer(token)).status

        eventually(lambda: sent() == 401)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_all_the_same_is_seen() -> None:
    """By whatever means; here, because it cannot even wait."""
    worker = Worker("watch", raising(KeyError("first")))

    def cannot(*_: Any, **__: Any) -> None:
        raise SystemExit

    worker._stopping.wait = cannot  # type: ignore[method-assign]
    worker.start()
    eventually(lambda: not worker._thread.is_alive())
    assert worker.trouble == "watch: the thread has ended"


def test_ready_means_that_writes_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that can be read and not written is not ready, whether or not anybody uploads."""
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, fold_every=60) as collector:
        store = collector.service.store
        assert ask(f"{collector.address}/readyz").json == {"status": "ready"}
        with monkeypatch.context() as broken:
            broken.setattr(store, "ping", raising(Unavailable("disk full")))
            assert "cannot be written" in ask(f"{collector.address}/readyz").json["detail"]
        with monkeypatch.context() as broken:
            broken.setattr(store, "append", raising(Unavailable("disk full")))
            assert collector.send(some_reports(TASK, 3), "a").status == 503
            assert "last upload" in ask(f"{collector.address}/readyz").json["detail"]
        assert collector.send(some_reports(TASK, 3), "a").status == 200
        assert ask(f"{collector.address}/readyz").status == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(collector.address + path, method="HEAD").status == 200


def test_a_store_that_cannot_be_written_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.collect.health._REMEMBERED", 0.0)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, fold_every=60) as collector:
        full: list[bool] = []
        begin = collector.service.store.writing

        def writing() -> Any:
            if full:
                raise Unavailable("database or disk is full")
            return begin()

        monkeypatch.setattr(collector.service.store, "writing", writing)
        full.append(True)
        assert ask(f"{collector.address}/readyz").status == 503
        full.clear()
        eventually(lambda: ask(f"{collector.address}/readyz").status == 200, 60)


def test_many_who_ask_cost_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask: within a second the store is looked at once."""
    monkeypatch.setattr("hubbub.collect.health._REMEMBERED", 600.0)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        looks: list[int] = []
        ping = collector.service.store.ping
        monkeypatch.setattr(collector.service.store, "ping", lambda: (looks.append(1), ping()))
        for _ in range(30):
            assert ask(f"{collector.address}/readyz").status == 200
        assert len(looks) <= 1


@pytest.mark.parametrize(
    "surprise",
    [UnicodeError("label empty or too long"), sqlite3.OperationalError("disk I/O error"), *SURPRISES[1:]],
)
def test_the_forwarding_thread_meets_a_surprise(
    surprise: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector whose name cannot be resolved in a new way: said, counted, and crowds leave once it is over."""
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK) as collector:
        token = collector.service.tokens.new("shuffler")
        mixer = Mixer(tmp_path / "shuffler.db")
        mixing = Shuffler(mixer, [TASK], collector.address, token, "up", 5)
        with monkeypatch.context() as broken:
            broken.setattr(module, "post", raising(surprise))
            with serving(create_shuffler_app(mixing)) as url:
                path = f"{url}/v2/tasks/{TASK.digest.hex()}/sealed"
                body = b"".join(opaque_items(TASK, 5, key_id(collector.service.keys.public)))
                assert ask(path, body, bearer("up")).json["accepted"] == 5
                eventually(lambda: mixing.worker.failures >= 3)
                eventually(lambda: ask(f"{url}/readyz").status == 503)
                text = ask(f"{url}/metrics").body.decode()
                assert measured(text, "worker_failures_total", "forward") >= 3
                assert measured(text, "worker_healthy", "forward") == 0
                assert ask(f"{url}/healthz").status == 200
                broken.undo()
                eventually(lambda: ask(f"{url}/readyz").status == 200)


def test_items_that_nobody_writes_are_said(tmp_path: Path) -> None:
    """The thread that writes what comes to a shuffler has ended: it is not ready."""
    mixing = Shuffler(keyed_mixer(tmp_path / "shuffler.db"), [TASK], "http://127.0.0.1:9", "t", "up", 5)
    app = create_shuffler_app(mixing)
    with serving(app) as url:
        assert ask(f"{url}/readyz").status == 200
        next(iter(app.state.intakes.values())).stop()
        answer = ask(f"{url}/readyz")
        assert answer.status == 503
        assert "the thread has ended" in answer.json["detail"]


def test_the_first_reader_waits_for_nothing_that_could_be_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of task, with reports and without: estimates were made once, and nothing of it is shown or kept."""
    made: list[tuple[str, int]] = []
    estimate = service.estimate

    def spy(task: Task, state: State, *arguments: Any, **options: Any) -> Any:
        found = estimate(task, state, *arguments, **options)
        made.append((task.name, state.count))
        return found

    monkeypatch.setattr(service, "estimate", spy)
    law = {"epsilon": 1.0, "max_entries": 2}
    kinds = {
        "closed": ({"kind": "closed", "size": 20}, {**law, "name": "collision"}),
        "prf": ({"kind": "closed", "size": 20}, {**law, "name": "collision", "family": "prf"}),
        "folded": ({"kind": "folded", "bits": 10}, {**law, "name": "collision"}),
        "wide": ({"kind": "wide"}, {**law, "name": "collision", "family": "prf"}),
        "values": ({"kind": "closed", "size": 20}, {**law, "name": "privkv", "values": "signed", "size": 20}),
        "listed": ({"kind": "closed", "size": 20}, {**law, "name": "gaussian", "delta": 1e-6, "size": 20}),
    }
    tasks = [
        Task.parse({"name": name, "keys": keys, "mechanism": mechanism, "minimum_reports": 3})
        for name, (keys, mechanism) in kinds.items()
    ]
    with collecting(f"sqlite:///{tmp_path}/s.db", *tasks) as collector:
        eventually(lambda: len(made) == len(tasks))
        assert sorted(made) == sorted((name, 1) for name in kinds)
        assert not any(worker.failures for worker in collector.service.workers)
        assert collector.reports == 0
        assert collector.get(f"{collector.path}/estimates").status == 403
        collector.send(some_reports(tasks[0], 7), "a")
        assert collector.reports == 7
    made.clear()
    with collecting(f"sqlite:///{tmp_path}/s.db", tasks[0]) as collector:
        eventually(lambda: made == [("closed", 7)] and bool(collector.service._answers))
        assert collector.get(f"{collector.path}/estimates").json["reports"] == 7
        assert len(made) == 1  # it was remembered
