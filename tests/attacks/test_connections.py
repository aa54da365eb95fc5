"""Connections that are idle, slow, deaf or too many: they are closed, and everybody else is served meanwhile."""

from __future__ import annotations

import itertools
import json
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from collecting import Collector, collected_task, collecting, eventually, sealed_batch, some_reports
from live import Answer, ask, bearer, keyed_mixer, opaque_items

from helpers import python
from hubbub.collect import connections
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app

TASK = collected_task()
SHORT: dict[str, Any] = {
    "header_seconds": 0.5,
    "idle_seconds": 2.0,
    "stall_seconds": 0.5,
    "body_grace": 0.5,
    "slowest_body": 1000,
}


@contextmanager
def dialled(address: str) -> Iterator[socket.socket]:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        yield connection


def closed(connection: socket.socket) -> bool:
    """Whether the other side has hung up; what it said before is read and dropped."""
    while select.select([connection], [], [], 0)[0]:
        try:
            if not connection.recv(1 << 16):
                return True
        except ConnectionError:
            return True
    return False


def said(connection: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def head(path: str, length: int, token: str, batch: str = "slow") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", f"Hubbub-Batch: {batch}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


class Target:
    """A running service and a way to see whether honest senders are served."""

    def __init__(self, address: str, path: str, token: str, body: Callable[[], bytes], service: Any) -> None:
        self.address, self.path, self.token, self.body, self.service = address, path, token, body, service
        self._numbers = itertools.count()

    def upload(self, body: bytes) -> Answer:
        headers = {**bearer(self.token), "Hubbub-Batch": f"honest-{next(self._numbers)}"}
        return ask(self.address + self.path, body, headers)

    def honest(self) -> bool:
        """Whether an upload is taken; one that our own slowness has ended is sent again, as senders do."""
        for _ in range(3):
            with suppress(OSError):
                if (status := self.upload(self.body()).status) != 408:
                    return status == 200
        return False


@pytest.fixture(params=["collector", "shuffler"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """Either service, with little patience and room for thirty."""
    limits = {**SHORT, "connections": 30, "uploads_per_token": 5, "memory": 20_000}
    if request.param == "collector":
        with collecting(f"sqlite:///{tmp_path}/s.db", TASK, **limits) as collector:
            yield Target(
                collector.address,
                f"{collector.path}/reports",
                collector.token,
                lambda: sealed_batch(TASK, some_reports(TASK, 3)),
                collector,
            )
        return
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    mixing = Shuffler(mixer, [TASK], "http://127.0.0.1:9", "t", "up", 10**4)
    with serving(create_shuffler_app(mixing, Settings(**limits))) as address:
        path = f"/v2/tasks/{TASK.digest.hex()}/sealed"
        yield Target(address, path, "up", lambda: opaque_items(TASK, 1)[0], mixing)


# Idle


def test_connections_that_say_nothing_are_closed(target: Target) -> None:
    with dialled(target.address) as one, dialled(target.address) as two:
        two.sendall(b"POST /v1/tas")
        eventually(lambda: closed(one) and closed(two))
    assert target.honest()


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(target: Target) -> None:
    """Also on a connection that has asked something before."""
    for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
        with dialled(target.address) as slow:
            slow.sendall(before)

            def drip(slow: socket.socket = slow) -> bool:
                try:
                    slow.sendall(b"G")
                except OSError:
                    return True
                return closed(slow)

            eventually(drip)


def test_an_idle_connection_is_kept_for_a_while_and_then_closed(target: Target) -> None:
    with dialled(target.address) as idle:
        for _ in range(2):
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):  # head and body may come one after the other
                part = idle.recv(1 << 16)
                assert part
                answer += part
            assert b"200 OK" in answer
        eventually(lambda: closed(idle))


def test_more_idle_connections_than_there_is_room_for(target: Target) -> None:
    """Whoever waits longest makes room: honest senders are served while the others are there, and afterwards."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(dialled(target.address)) for _ in range(90)]
        for connection in crowd[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nHo")
        for _ in range(5):
            assert target.honest()
        eventually(lambda: all(closed(connection) for connection in crowd))
    assert target.honest()


def test_a_head_without_end_is_cut_off(target: Target) -> None:
    with dialled(target.address) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\n")

        def more() -> bool:
            try:
                endless.sendall(b"X-" + b"a" * 2000 + b": b\r\n")
            except OSError:
                return True
            return closed(endless)

        eventually(more)
    assert target.honest()


# Slow


def test_bodies_that_do_not_come_hold_up_nobody(target: Target) -> None:
    """Large ones are announced and not sent: nothing is reserved for them, and they hear 408 in the end."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(dialled(target.address)) for _ in range(20)]
        for number, connection in enumerate(crowd):
            connection.sendall(head(target.path, 4 << 20, target.token, f"slow-{number}"))
        for _ in range(5):
            assert target.honest()
        assert all(b" 408 " in said(connection) for connection in crowd)
    assert target.honest()


def test_a_body_has_to_keep_its_pace(target: Target) -> None:
    """Ten bytes at a time are below a thousand a second, whatever the length that was announced."""
    with dialled(target.address) as slow:
        slow.sendall(head(target.path, 1 << 20, target.token))

        def drip() -> bool:
            try:
                slow.sendall(b"0123456789")
            except OSError:
                return True
            return bool(select.select([slow], [], [], 0)[0])

        eventually(drip)
        assert b" 408 " in said(slow)


def test_when_everybody_is_busy_the_next_is_told_to_come_back(tmp_path: Path) -> None:
    """Thirty bodies under way; then they end, and there is room again."""
    limits = {**SHORT, "body_grace": 60.0, "connections": 30}
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, **limits) as collector:
        with ExitStack() as stack:
            for number in range(30):
                busy = stack.enter_context(dialled(collector.address))
                busy.sendall(
                    head(f"{collector.path}/reports", 1000, collector.token, f"busy-{number}") + b"x"
                )

            def sent_away() -> bool:
                with dialled(collector.address) as late:
                    answer = said(late)
                return b" 503 " in answer and b"Retry-After" in answer

            eventually(sent_away)
        eventually(lambda: collector.send(some_reports(TASK, 3), "honest").status == 200)


def test_a_slow_login_is_not_waited_for(tmp_path: Path) -> None:
    """Anybody may try to log in, so this needs no token."""
    with (
        collecting(f"sqlite:///{tmp_path}/s.db", TASK, **SHORT) as collector,
        dialled(collector.address) as slow,
    ):
        place = urlsplit(collector.address).netloc
        lines = [
            "POST /login HTTP/1.1",
            f"Host: {place}",
            f"Origin: http://{place}",
            "Content-Length: 100",
            "",
            "",
        ]
        slow.sendall("\r\n".join(lines).encode())
        assert b" 408 " in said(slow)


def test_slow_logins_take_nobodys_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Forms that do not come, more of them than there are places, from people without a token."""
    limits = {**SHORT, "body_grace": 600.0, "connections": 30}
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, **limits) as collector:
        place = urlsplit(collector.address).netloc
        lines = ["POST /login HTTP/1.1", f"Host: {place}", f"Origin: http://{place}", "Content-Length: 100"]
        with ExitStack() as stack:
            for _ in range(60):
                slow = stack.enter_context(dialled(collector.address))
                slow.sendall("\r\n".join([*lines, "", ""]).encode())
            for number in range(5):
                assert collector.send(some_reports(TASK, 3), f"honest-{number}").status == 200
        eventually(lambda: not collector.app.state.room._coming)
    assert "failed" not in caplog.text  # those who went away are no mistake of ours


def test_a_client_that_does_not_read_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks for the description of the service a thousand times, and reads nothing of it."""
    ended: list[object] = []
    hang_up = connections.Guarded.hang_up
    monkeypatch.setattr(connections.Guarded, "hang_up", lambda self: (ended.append(self), hang_up(self)))
    with (
        collecting(f"sqlite:///{tmp_path}/s.db", TASK, **SHORT) as collector,
        dialled(collector.address) as deaf,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        question = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"

        def ask_again() -> bool:
            with suppress(OSError):
                deaf.send(question * 50)
            return bool(ended)

        eventually(ask_again, seconds=60)
        assert collector.send(some_reports(TASK, 3), "honest").status == 200
    assert "failed" not in caplog.text


# Tokens


def test_one_token_cannot_take_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store hangs, three batches of a token wait; the fourth is sent away, and another token's is not."""
    body = sealed_batch(TASK, some_reports(TASK, 3))
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, uploads_per_token=3) as collector:
        store, begun, go_on = collector.service.store, threading.Event(), threading.Event()
        greedy, append = collector.service.tokens.new("upload"), store.append

        def hang(group: Any) -> Any:
            begun.set()
            go_on.wait(60)
            return append(group)

        monkeypatch.setattr(store, "append", hang)
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(collector.upload, body, "greedy", greedy)]
            assert begun.wait(60)
            waiting += [
                pool.submit(collector.upload, body, f"greedy-{number}", greedy) for number in range(2)
            ]
            eventually(lambda: len(collector.service.writer) == 2)
            assert collector.upload(body, "one-more", greedy).status == 429
            another = pool.submit(collector.upload, body, "another")
            go_on.set()
        assert [upload.result().status for upload in [*waiting, another]] == [200] * 4
        assert collector.upload(body, "one-more", greedy).status == 200


@pytest.mark.parametrize("target", ["collector", "shuffler"], indirect=True)
def test_silent_requests_of_a_token_keep_nobody_out(target: Target) -> None:
    """Twenty bodies that do not come, with the token that everybody has, where five may be on their way."""
    with ExitStack() as stack:
        silent = [stack.enter_context(dialled(target.address)) for _ in range(20)]
        for number, connection in enumerate(silent):
            connection.sendall(head(target.path, 1000, target.token, f"silent-{number}"))
        answers = [said(connection) for connection in silent[:15]]
        assert all(b" 408 " in answer and b"others came after it" in answer for answer in answers)
        assert target.honest()
        with dialled(
            target.address
        ) as slow:  # one that comes in two parts pushes another one out, and gets through
            body = target.body()
            slow.sendall(head(target.path, len(body), target.token, "in-parts") + body[:10])
            assert b"others came after it" in said(silent[15])
            slow.sendall(body[10:])
            assert b" 200 " in slow.recv(1 << 16)


def test_only_what_has_come_takes_room(tmp_path: Path) -> None:
    """Room for 10,000 bytes of a token: an announcement takes none of it, 9,000 bytes that have come do."""
    limits = {**SHORT, "body_grace": 20.0, "memory_per_token": 10_000}
    body = sealed_batch(TASK, some_reports(TASK, 1000))
    with collecting(f"sqlite:///{tmp_path}/s.db", TASK, **limits) as collector:
        with dialled(collector.address) as half:
            half.sendall(head(f"{collector.path}/reports", 9500, collector.token))
            assert collector.upload(body, "first").status == 200
            half.sendall(b"x" * 9000)
            eventually(lambda: full(collector, body))
            other = collector.service.tokens.new("upload")
            assert collector.upload(body, "second", other).status == 200
        eventually(lambda: collector.upload(body, "third").status == 200)
        assert collector.reports == 3000


def test_all_routes_share_the_memory(target: Target) -> None:
    """Of 20,000 bytes one body has taken 19,000: on no route of the process is there room for 2,000 more."""
    paths = [target.path]
    if isinstance(target.service, Collector):
        paths += [target.service.shuffled, f"{target.service.path}/shuffled"]
    for path, other in itertools.product(paths, paths):
        with dialled(target.address) as half:
            half.sendall(head(path, 20_000, target.token, "half") + b"x" * 19_000)

            def refused(other: str = other) -> bool:
                headers = {**bearer(target.token), "Hubbub-Batch": "more"}
                return ask(target.address + other, b"x" * 2000, headers).status == 429

            eventually(refused)
        eventually(target.honest)


@pytest.mark.parametrize("limit", ["memory", "memory_per_token"])
def test_bodies_that_stop_before_their_end_keep_nobody_out(limit: str, tmp_path: Path) -> None:
    """They may take their time, since much of them has come; but when the room is full, they make room."""
    limits: dict[str, Any] = {**SHORT, "body_grace": 600.0, limit: 10_000}
    body = sealed_batch(TASK, some_reports(TASK, 1000))
    with (
        collecting(f"sqlite:///{tmp_path}/s.db", TASK, **limits) as collector,
        dialled(collector.address) as one,
        dialled(collector.address) as two,
    ):
        for number, half in enumerate((one, two)):
            half.sendall(head(f"{collector.path}/reports", 6000, collector.token, f"half-{number}"))
            half.sendall(b"x" * 4500)
        eventually(lambda: collector.app.state.room.held == 9000)
        assert collector.upload(body, "honest").status == 429
        eventually(lambda: collector.upload(body, "honest").status == 200)
        assert b"others came after it" in said(one)  # the older of the two
        assert not closed(two)


def full(collector: Collector, body: bytes) -> bool:
    answer = collector.upload(body, "third")
    if answer.status == 429:
        assert answer.headers["retry-after"] == "1"
        return True
    assert answer.status == 200
    return False


# Files


def test_few_files_and_many_connections(tmp_path: Path) -> None:
    """A real service that may have 128 files open, and 300 connections that say nothing: uploads go on."""
    TASK.save(tmp_path / "task.toml")
    store = f"sqlite:///{tmp_path}/s.db"
    command = [Path(sys.executable).with_name("hubbub"), "serve", tmp_path / "task.toml", "--store", store]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(
            [str(word) for word in [*command, "--port", 0, "--json"]],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
        )
    try:
        assert service.stdout is not None
        told = json.loads(service.stdout.readline())
        path = f"{told['address']}/v1/tasks/{TASK.digest.hex()}/reports"
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(dialled(told["address"]))
            for number in range(5):
                headers = {**bearer(told["tokens"]["upload"]), "Hubbub-Batch": f"b{number}"}
                assert ask(path, sealed_batch(TASK, some_reports(TASK, 3)), headers).status == 200
        assert "Too many open files" not in (tmp_path / "log").read_text()
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
        assert service.stdout is not None
        service.stdout.close()


def test_the_limit_follows_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((128, 64), (1024, 768), (20_000, 4096)):
        monkeypatch.setattr(connections, "most_files", lambda files=files: files)
        assert connections.Door(Settings()).most == most


def test_as_many_files_as_the_system_allows() -> None:
    """A process that may ask for more files does so; one that asks in vain, or need not ask, knows what it has."""
    code = (
        "import resource, sys\n"
        "from hubbub.collect.connections import most_files\n"
        "limits = tuple(int(word) for word in sys.argv[1:3])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "if sys.argv[3] == 'vain':\n"
        "    def refuse(*_): raise ValueError('not allowed to raise maximum limit')\n"
        "    resource.setrlimit = refuse\n"
        "print(most_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    for soft, hard, how, found in (
        (100, 300, "asked", "300 300"),
        (300, 300, "asked", "300 300"),
        (100, 300, "vain", "100 100"),
    ):
        assert python(code, soft, hard, how).split() == found.split()
