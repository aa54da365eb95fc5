"""Login pages, proxies and maintenance pages between sender and collector: nothing is lost, nothing counts twice."""

from __future__ import annotations

import datetime
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collecting import collected_task, collecting, eventually, sealed_batch, some_reports
from live import keyed_mixer, opaque_items, own_answer

from helpers import QuietServer
from hubbub.collect import known_keys
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.shuffler import Shuffler
from hubbub.device import spool, upload
from hubbub.device.upload import Uploader
from hubbub.primitives.envelope import unseal
from hubbub.protocol.delivery import judge, service_address
from hubbub.protocol.sealing import seal, sealed_width
from hubbub.server.fold import aggregate

TASK = collected_task()
PAGE = b"<html><title>Welcome</title>Please log in.</html>"


class Said(NamedTuple):
    status: int
    media: str
    body: bytes
    elsewhere: bool = False  # with a redirect
    cut: int = 0  # bytes that are promised and never come


def problem(status: int, **more: Any) -> bytes:
    return json.dumps({"type": "about:blank", "status": status, "detail": "No.", **more}).encode()


#: Answers that are not the collector's, for a batch with the given id.
FOREIGN: dict[str, Callable[[str], Said]] = {
    "login page": lambda batch: Said(200, "text/html", PAGE),
    "empty 200": lambda batch: Said(200, "text/plain", b""),
    "204": lambda batch: Said(204, "text/plain", b""),
    "other JSON": lambda batch: Said(200, "application/json", b'{"status": "ok"}'),
    "a list": lambda batch: Said(200, "application/json", json.dumps([batch]).encode()),
    "another batch": lambda batch: Said(200, *own_answer(200, "x" * len(batch))),
    "the right words as a page": lambda batch: Said(200, "text/html", own_answer(200, batch)[1]),
    "an echo of the request": lambda batch: Said(
        200, "application/json", json.dumps({"headers": {"Hubbub-Batch": batch}, "batch": batch}).encode()
    ),
    "an answer that is cut off": lambda batch: Said(200, *own_answer(200, batch), cut=10),
    "half of an answer": lambda batch: Said(200, "application/json", own_answer(200, batch)[1][:-3]),
    "nested": lambda batch: Said(200, "application/json", b"[" * 50_000),
    "a problem as 200": lambda batch: Said(200, *own_answer(422, batch)),
    "200 as a problem": lambda batch: Said(422, *own_answer(200, batch)),
    "another status inside": lambda batch: Said(422, *own_answer(409, batch)),
    "a problem of nobody's": lambda batch: Said(422, "application/problem+json", problem(422)),
    "a problem of another batch": lambda batch: Said(409, *own_answer(409, "another")),
    "a proxy's limit": lambda batch: Said(413, "text/html", b"<h1>413 Request Entity Too Large</h1>"),
    **{
        f"{status} elsewhere": lambda batch, status=status: Said(  # type: ignore[misc]
            status, "text/html", PAGE, elsewhere=True
        )
        for status in (301, 302, 303, 307, 308)
    },
    **{
        str(status): lambda batch, status=status: Said(status, "text/html", PAGE)  # type: ignore[misc]
        for status in (400, 405, 407, 409, 410, 411, 414, 415, 421, 422, 431, 451, 501, 511, *range(520, 531))
    },
    **{
        f"own {status}": lambda batch, status=status: Said(status, *own_answer(status, batch))  # type: ignore[misc]
        for status in (400, 401, 403, 404, 408, 411, 429, 500, 503)
    },
}


class Portal:
    """Answers as told, and remembers what it was sent; once nothing is told, it answers as a collector does."""

    def __init__(self) -> None:
        self.answers: list[Callable[[str], Said]] = []
        self.always: Callable[[str], Said] | None = None
        self.sent: list[tuple[str, bytes]] = []
        self.largest = 1 << 30
        self.taken: dict[str, bytes] = {}

    def answer(self, batch: str, body: bytes, part: str = "") -> Said:
        self.sent.append((batch, body))
        if self.always is not None:
            return self.always(batch)
        if self.answers:
            return self.answers.pop(0)(batch)
        if len(body) > self.largest:
            return FOREIGN["a proxy's limit"](batch)
        name = f"{batch} {part}" if part else batch
        assert self.taken.setdefault(name, body) == body, "other reports under one id"
        return Said(200, *own_answer(200, batch))


@contextmanager
def portal() -> Iterator[tuple[Portal, str]]:
    made = Portal()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            said = made.answer(self.headers["Hubbub-Batch"], body, self.headers.get("Hubbub-Part", ""))
            self.send_response(said.status)
            self.send_header("Content-Type", said.media)
            if said.elsewhere:
                self.send_header("Location", "/elsewhere")
            if said.status != 204:
                self.send_header("Content-Length", str(len(said.body) + said.cut))
            self.end_headers()
            self.wfile.write(said.body)
            self.close_connection = self.close_connection or bool(said.cut)

        def do_GET(self) -> None:
            raise AssertionError("a redirect was followed")

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(upload, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(upload, "_LONGEST_PAUSE", 0.01)


def reports_in(portal: Portal) -> bytes:
    return b"".join(bytes(unseal(body, kind=b"R").payload) for body in portal.taken.values())


def same(reports: bytes, others: bytes) -> bool:
    return aggregate(TASK, reports).to_bytes() == aggregate(TASK, others).to_bytes()


@contextmanager
def tarpit(first: bytes, then: bytes) -> Iterator[str]:
    """Answers everybody a little at a time, without end."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(first)
                while not over.wait(0.05):
                    self.request.sendall(then)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_answer_without_end_is_not_waited_for(
    first: bytes, then: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte comes in time, and the last one never: the sender ends it, keeps the batch, and can be closed."""
    with tarpit(first, then) as url:
        uploader = Uploader(url, TASK, "token", tmp_path / "spool", batch=1, timeout=0.5)
        uploader.add(some_reports(TASK, 1))
        eventually(lambda: bool(uploader.trouble))
        uploader.close()
        assert uploader.waiting == 1
        assert not uploader.refused
        mixer = keyed_mixer(tmp_path / "shuffler.db")
        keys = known_keys.KnownKeys(mixer, service_address(url))
        monkeypatch.setattr(known_keys, "_PATIENCE", 0.5)
        with pytest.raises(known_keys.Unanswered):
            keys.ask()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("foreign", [name for name in FOREIGN if name != "a proxy's limit"])
def test_an_answer_of_somebody_else_keeps_the_batch(foreign: str, tmp_path: Path) -> None:
    """It is on disk, it is not set aside, `flush` says so, and the same bytes under the same id go out again."""
    reports = some_reports(TASK, 7)
    with portal() as (between, url), Uploader(url, TASK, "t", tmp_path, linger=60) as uploader:
        between.always = FOREIGN[foreign]
        uploader.add(reports)
        assert not uploader.flush(0)
        assert uploader.waiting == 7
        assert uploader.trouble
        assert uploader.refused == []
        between.always = None
        assert uploader.flush()
        assert uploader.waiting == 0
        assert len(set(between.sent)) == 1
        assert len(between.sent) >= 2
        assert same(reports_in(between), reports)


@pytest.mark.parametrize("status", [409, 422])
def test_only_the_collectors_own_no_is_final(status: int, tmp_path: Path) -> None:
    reports = some_reports(TASK, 7)
    with portal() as (between, url), Uploader(url, TASK, "t", tmp_path, linger=60) as uploader:
        between.answers = [lambda batch: Said(status, *own_answer(status, batch))]
        uploader.add(reports)
        assert not uploader.flush(5)
        assert [path.read_bytes() for path in uploader.refused] == [reports]
        assert uploader.waiting == 0
        assert len(between.sent) == 1


@pytest.mark.usefixtures("quick")
def test_a_proxy_with_a_small_limit_gets_smaller_batches(tmp_path: Path) -> None:
    """Every report arrives once, under one id, and later batches are small from the start."""
    reports, later = some_reports(TASK, 100), some_reports(TASK, 100)
    with portal() as (between, url), Uploader(url, TASK, "t", tmp_path, batch=100, linger=60) as uploader:
        between.largest = 160  # an envelope has 64 bytes more than its reports of 3
        uploader.add(reports)
        assert uploader.flush()
        assert same(reports_in(between), reports)
        asked = len(between.sent)
        uploader.add(later)
        assert uploader.flush()
        assert {batch for batch, _ in between.sent[asked:]} <= between.taken.keys()
        assert same(reports_in(between), reports + later)
        assert uploader.refused == []


@pytest.mark.usefixtures("quick")
def test_a_batch_that_may_have_arrived_is_not_cut(tmp_path: Path) -> None:
    """The collector took it, the answer got lost, and a proxy finds it too large: in halves it would count twice."""
    with portal() as (between, url), Uploader(url, TASK, "t", tmp_path, linger=60) as uploader:
        between.answers = [FOREIGN["an answer that is cut off"], FOREIGN["a proxy's limit"]]
        uploader.add(some_reports(TASK, 10))
        assert uploader.flush()
        assert len({batch for batch, _ in between.sent}) == 1


def test_the_collectors_own_limit_ends_with_single_reports(tmp_path: Path) -> None:
    reports = some_reports(TASK, 5)
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, most_reports=2) as collector:
        token = collector.service.tokens.new("upload")
        with Uploader(collector.address, TASK, token, tmp_path / "spool", batch=5, linger=60) as uploader:
            uploader.add(reports)
            assert uploader.flush()
            assert collector.reports == 5
    with collecting(f"sqlite:///{tmp_path}/t.db", TASK, largest_body=10) as collector:
        token = collector.service.tokens.new("upload")
        with Uploader(collector.address, TASK, token, tmp_path / "spool", batch=5, linger=60) as uploader:
            uploader.add(reports)
            assert not uploader.flush()
            assert [len(path.read_bytes()) for path in uploader.refused] == [3] * 5


@pytest.mark.parametrize("limits", [{"most_reports": 4}, {"largest_body": 60}, {"largest_body": 10}])
def test_a_stored_batch_is_not_cut_when_the_limits_are_lowered(
    limits: dict[str, int], tmp_path: Path
) -> None:
    """It was taken, the answer got lost, and the operator allows less from now on: it counts once."""
    url, task = f"sqlite:///{tmp_path}/s.db", collected_task()
    reports, other = some_reports(task, 20), sealed_batch(task, some_reports(task, 20))
    with Uploader("http://127.0.0.1:9", task, "t", tmp_path / "spool", batch=20) as uploader:
        uploader.add(reports)
    (path,) = (tmp_path / "spool").rglob("*.batch")
    with collecting(url, task) as collector:
        assert collector.send(path.read_bytes(), path.stem).json["accepted"] == 20
        token = collector.service.tokens.new("upload")
    with collecting(url, task, **limits) as collector:
        with Uploader(collector.address, task, token, tmp_path / "spool", batch=20) as uploader:
            assert uploader.flush()
        again = collector.send(reports, path.stem)
        assert (again.status, again.json["repeated"]) == (200, True)
        assert collector.upload(other, path.stem).status == 409  # other reports under the same name
        assert collector.upload(other, "never-seen").status == 413
        assert collector.reports == 20
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9)
        purge(collector.service.store, task.digest.hex(), Horizons(ids=3), now)
        late = collector.send(reports, path.stem)
        assert (late.status, late.json["title"]) == (
            409,
            "too old",
        )  # nobody knows, and in halves it might count


def test_a_stored_crowd_is_acknowledged_whatever_its_size(tmp_path: Path) -> None:
    url, task = f"sqlite:///{tmp_path}/s.db", collected_task()
    with collecting(url, task) as collector:
        public, width = collector.service.keys.public, task.mechanism.layout.width
        reports = some_reports(task, 10)
        crowd = b"".join(seal(reports[i : i + width], public, task) for i in range(0, len(reports), width))
        assert collector.upload(crowd, "crowd", path=collector.shuffled).json["accepted"] == 10
    with collecting(url, task, most_reports=4) as collector:
        assert collector.upload(crowd, "crowd", path=collector.shuffled).json["repeated"] is True
        assert collector.upload(crowd, "other", path=collector.shuffled).status == 413
        assert collector.reports == 10


def test_a_crowd_that_is_too_large_for_the_collector_goes_in_smaller_parts(tmp_path: Path) -> None:
    """Its own 413 means that it does not have it: the same crowd goes in halves under a new id, and stays one crowd."""
    mixer, sent, width = keyed_mixer(tmp_path / "shuffler.db"), opaque_items(TASK, 24), sealed_width(TASK)
    with portal() as (between, url):
        mixing = Shuffler(mixer, [TASK], url, "t", "up", 5)
        mixing.accept(TASK, b"".join(sent))
        between.answers = [lambda batch: Said(413, *own_answer(413, batch))] * 2  # all of them, and one half
        for _ in range(3):
            mixing.step()
        assert mixer.outgoing() == []
        parts = list(between.taken.values())
        assert [len(body) // width for body in parts] == [6, 6, 6, 6]
        (crowd,) = {name.split()[0] for name in between.taken}
        assert list(between.taken) == [f"{crowd} {number}/4/24" for number in (1, 2, 3, 4)]
        got = b"".join(parts)
        assert sorted(got[at : at + width] for at in range(0, len(got), width)) == sorted(sent)
        assert len({batch for batch, _ in between.sent}) == 3
    mixer.close()


def test_a_crowd_of_which_no_part_is_small_enough_is_kept(tmp_path: Path) -> None:
    """Single items are not cut: the crowd is set aside, whole, and tried again at the next start."""
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    with portal() as (between, url):
        mixing = Shuffler(mixer, [TASK], url, "t", "up", 5)
        mixing.accept(TASK, b"".join(opaque_items(TASK, 5)))
        between.always = lambda batch: Said(413, *own_answer(413, batch))
        steps = [mixing.step() for _ in range(6)]
        assert steps[-1] == (True, 0.0)
        assert [mixer.crowd(batch).reports for batch in mixer.outgoing()] == [5]
        assert list(mixing.forward.refused) == mixer.outgoing()
    mixer.close()


@pytest.mark.usefixtures("quick")
def test_a_crash_while_a_batch_is_cut_leaves_every_report_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after the first half; the next uploader makes the same two halves."""
    reports = some_reports(TASK, 8)
    write, written = spool.write_atomic, []

    def full(path: Path, data: bytes, private: bool) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(path, data, private)

    with portal() as (between, url):
        between.largest = 80
        with monkeypatch.context() as broken:
            broken.setattr(spool, "write_atomic", full)
            with Uploader(url, TASK, "t", tmp_path, batch=8, linger=60) as uploader:
                uploader.add(reports)
                eventually(lambda: "No space left" in uploader.trouble)
                assert uploader.waiting >= 8
        with Uploader(url, TASK, "t", tmp_path) as uploader:
            assert uploader.flush()
            assert uploader.waiting == 0
        assert same(reports_in(between), reports)


@pytest.mark.usefixtures("quick")
def test_one_batch_that_cannot_pass_holds_up_nobody(tmp_path: Path) -> None:
    """Something on the way dislikes one body for ever; all others arrive."""
    with portal() as (between, url), Uploader(url, TASK, "t", tmp_path, batch=5, linger=60) as uploader:
        bad = some_reports(TASK, 5)
        answer = between.answer

        def dislike(batch: str, body: bytes, part: str = "") -> Said:
            return FOREIGN["405"](batch) if bad in body else answer(batch, body)

        between.answer = dislike  # type: ignore[method-assign]
        uploader.add(bad)
        good = some_reports(TASK, 50)
        uploader.add(good)
        assert not uploader.flush(0.5)
        assert uploader.waiting == 5
        assert same(reports_in(between), good)


@pytest.mark.parametrize(
    "foreign", ["login page", "another batch", "302 elsewhere", "405", "a proxy's limit", "522"]
)
def test_a_shuffler_keeps_a_crowd_until_the_collector_itself_has_it(foreign: str, tmp_path: Path) -> None:
    width = sealed_width(TASK)
    sent = opaque_items(TASK, 60)
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    with portal() as (between, url):
        mixing = Shuffler(mixer, [TASK], url, "t", "up", 60)
        mixing.accept(TASK, b"".join(sent))
        between.answers = [FOREIGN[foreign]] * 2
        for _ in range(2):
            assert mixing.step()[0] is False
            assert len(mixer.outgoing()) == 1
        assert mixing.step() == (True, 0.0)
        assert mixer.outgoing() == []
        (body,) = between.taken.values()
        assert sorted(body[start : start + width] for start in range(0, len(body), width)) == sorted(sent)
        assert len(set(between.sent)) == 1
    mixer.close()


@pytest.mark.parametrize("status", [409, 422])
def test_a_crowd_that_the_collector_refuses_is_kept(status: int, tmp_path: Path) -> None:
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    with portal() as (between, url):
        mixing = Shuffler(mixer, [TASK], url, "t", "up", 5)
        mixing.accept(TASK, b"".join(opaque_items(TASK, 5)))
        between.answers = [lambda batch: Said(status, *own_answer(status, batch))]
        assert mixing.step() == (True, 0.0)
        assert mixing.step() == (True, 0.0)
        assert len(between.sent) == 1
        assert len(mixer.outgoing()) == 1
    mixer.close()


def test_the_collectors_own_answers_are_recognised(tmp_path: Path) -> None:
    """What the service really says, judged as a sender does."""
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, largest_body=200, most_reports=20) as collector:

        def verdict(found: Any, batch: str) -> str:
            return judge(found.status, found.headers["content-type"], found.body, batch)

        reports = some_reports(TASK, 5)
        assert verdict(collector.send(reports, "a"), "a") == "taken"
        assert verdict(collector.send(reports, "a"), "a") == "taken"
        assert verdict(collector.send(some_reports(TASK, 5), "a"), "a") == "refused"
        assert verdict(collector.send(some_reports(TASK, 60), "b"), "b") == "too large"
        assert verdict(collector.send(some_reports(TASK, 30), "b"), "b") == "too large"
        assert verdict(collector.upload(b"nonsense", "b"), "b") == "refused"
        assert verdict(collector.send(reports, "a"), "b") == "later"
        assert verdict(collector.upload(b"nonsense", "b", token="wrong"), "b") == "later"
