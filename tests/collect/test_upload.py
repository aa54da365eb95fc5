"""The uploader: what it took goes out once, whatever the network, the collector or the power does."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from collecting import collected_task, collecting, eventually, some_reports
from live import own_answer

from helpers import QuietServer, python, refused
from hubbub.device.upload import Uploader
from hubbub.primitives.envelope import unseal
from hubbub.server.fold import aggregate

TASK = collected_task()


class Fake:
    """A collector that answers what the test says, and remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.sent: list[tuple[str, bytes, float]] = []
        self.address = ""


@contextmanager
def fake_collector(port: int = 0) -> Iterator[Fake]:
    fake = Fake()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fake.sent.append((self.headers["Hubbub-Batch"], body, time.monotonic()))
            status, headers = fake.answers.pop(0) if fake.answers else (200, {})
            if status == 0:  # cut the line after the batch was taken
                self.close_connection = True
                return
            media, said = own_answer(status, self.headers["Hubbub-Batch"])
            self.send_response(status)
            for name, value in {"Content-Type": media, **headers, "Content-Length": len(said)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", port), Handler)
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sent_reports(fake: Fake) -> bytes:
    """Reports of all batches, each id once; the same id must always have come with the same bytes."""
    bodies: dict[str, bytes] = {}
    for name, body, _ in fake.sent:
        assert bodies.setdefault(name, body) == body
    return b"".join(bytes(unseal(body, kind=b"R").payload) for body in bodies.values())


def same(reports: bytes, others: bytes) -> bool:
    """Whether these are the same reports, in whatever order."""
    return aggregate(TASK, reports).to_bytes() == aggregate(TASK, others).to_bytes()


def test_reports_reach_a_collector(tmp_path: Path) -> None:
    reports = some_reports(TASK, 250)
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        token = collector.service.tokens.new("upload")
        with Uploader(collector.address, TASK, token, tmp_path / "spool", batch=100) as uploader:
            for start in range(0, 250 * 3, 3):
                uploader.add(reports[start : start + 3])
            assert uploader.flush()
            assert uploader.waiting == 0
            assert uploader.trouble == ""
        assert collector.service.folder.fold(TASK).state.to_bytes() == aggregate(TASK, reports).to_bytes()
        names = [len(payload) // 3 for _, _, payload, _ in collector.service.store.kept(TASK.digest.hex())]
        assert sorted(names) == [50, 100, 100]


def test_a_batch_leaves_when_it_is_full_or_old(tmp_path: Path) -> None:
    with (
        fake_collector() as fake,
        Uploader(fake.address, TASK, "t", tmp_path, batch=5, linger=0.4) as uploader,
    ):
        uploader.add(some_reports(TASK, 12))
        eventually(lambda: len(fake.sent) == 2)
        eventually(lambda: uploader.waiting == 2)
        eventually(lambda: len(fake.sent) == 3)
        eventually(lambda: uploader.waiting == 0)


def test_retries_have_the_same_id_and_bytes(tmp_path: Path) -> None:
    """Whatever goes wrong in between; even when the batch was taken and only the answer got lost."""
    with fake_collector() as fake:
        fake.answers = [(503, {}), (0, {}), (429, {}), (500, {})]
        with Uploader(fake.address, TASK, "t", tmp_path) as uploader:
            reports = some_reports(TASK, 7)
            uploader.add(reports)
            assert uploader.flush()
        assert len(fake.sent) == 5
        assert len({name for name, _, _ in fake.sent}) == 1
        assert same(sent_reports(fake), reports)


def test_pauses_grow_and_wishes_are_honoured(tmp_path: Path) -> None:
    with fake_collector() as fake:
        fake.answers = [(503, {}), (503, {}), (503, {"Retry-After": "1"}), (503, {"Retry-After": "soon"})]
        with Uploader(fake.address, TASK, "t", tmp_path, batch=7) as uploader:
            uploader.add(some_reports(TASK, 7))
            eventually(lambda: len(fake.sent) == 3)
            uploader.add(some_reports(TASK, 7))  # new reports do not shorten the wait
            eventually(lambda: uploader.waiting == 0, seconds=60)
        times = [moment for _, _, moment in fake.sent]
        pauses = [after - before for before, after in pairwise(times)]
        least = [0.25, 0.25, 1, 0.9]
        assert all(pause >= wanted for pause, wanted in zip(pauses, least, strict=False))


def test_a_folder_that_cannot_be_read_for_a_while(tmp_path: Path) -> None:
    """Sending goes on when it can be again."""
    unreadable = tmp_path / TASK.digest.hex() / "0.batch"
    unreadable.mkdir(parents=True)
    with fake_collector() as fake, Uploader(fake.address, TASK, "t", tmp_path, batch=5) as uploader:
        reports = some_reports(TASK, 5)
        uploader.add(reports)
        eventually(lambda: "cannot be used" in uploader.trouble)
        assert fake.sent == []
        unreadable.rmdir()
        eventually(lambda: uploader.waiting == 0, seconds=60)
        assert same(sent_reports(fake), reports)


def test_reports_wait_for_the_network(tmp_path: Path) -> None:
    """Nobody listens; the reports stay on disk, a later uploader finds them, and sends on reconnect."""
    first, second = some_reports(TASK, 20), some_reports(TASK, 30)
    kept = socket.socket()  # bound and deaf: nobody else is given the port meanwhile
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = kept.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with Uploader(address, TASK, "t", tmp_path, batch=10) as uploader:
        uploader.add(first)
        assert not uploader.flush(0.1)
        assert "cannot be reached" in uploader.trouble
        assert uploader.waiting == 20
    with Uploader(address, TASK, "t", tmp_path, batch=10) as uploader:
        uploader.add(second)
        assert uploader.waiting == 50
        with kept, fake_collector(port) as fake:
            eventually(lambda: uploader.waiting == 0)
            assert same(sent_reports(fake), first + second)
            assert len(fake.sent) == 5


def test_what_is_refused_for_good_is_set_aside(tmp_path: Path) -> None:
    """It is not sent again, it is not deleted, and it does not hold up the others."""
    with fake_collector() as fake:
        fake.answers = [(422, {})]
        with Uploader(fake.address, TASK, "t", tmp_path, batch=5) as uploader:
            bad, good = some_reports(TASK, 5), some_reports(TASK, 5)
            uploader.add(bad)
            eventually(lambda: len(fake.sent) == 1)
            uploader.add(good)
            assert not uploader.flush()  # not everything was acknowledged
            assert uploader.flush()  # nothing has been refused since
            assert [path.read_bytes() for path in uploader.refused] == [bad]
        with Uploader(fake.address, TASK, "t", tmp_path) as uploader:
            assert uploader.flush()
        assert len(fake.sent) == 2


def test_a_token_that_is_not_valid_yet_keeps_the_reports(tmp_path: Path) -> None:
    with fake_collector() as fake:
        fake.answers = [(401, {}), (404, {})]
        with Uploader(fake.address, TASK, "t", tmp_path) as uploader:
            uploader.add(some_reports(TASK, 5))
            assert uploader.flush()
            assert uploader.refused == []
        assert len(fake.sent) == 3


def test_bad_arguments(tmp_path: Path) -> None:
    for url in (
        *("", "collector.example", "ftp://collector.example", "https://", "http://collector..example"),
        *(
            "http://[",
            "http://collector.example:99999",
            "http://collector.example:0",
            f"http://{'x' * 64}.example",
        ),
    ):
        with refused("https://"):
            Uploader(url, TASK, "t", tmp_path)
    with refused("at least 1"):
        Uploader("http://127.0.0.1:1", TASK, "t", tmp_path, batch=0)
    (tmp_path / "file").write_bytes(b"")
    with refused("cannot be written"):
        Uploader("http://127.0.0.1:1", TASK, "t", tmp_path / "file")
    with Uploader("http://127.0.0.1:1", TASK, "t", tmp_path) as uploader:
        with refused("3 bytes"):
            uploader.add(b"1234")
        with refused("3 bytes"):
            uploader.add(b"")
        with refused("folder of its own"):
            Uploader("http://127.0.0.1:1", TASK, "t", tmp_path)
        assert uploader.waiting == 0


def test_a_report_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    reports = some_reports(TASK, 4)
    folder = tmp_path / TASK.digest.hex()
    folder.mkdir()
    (folder / "open").write_bytes(reports[:-1])
    with fake_collector() as fake, Uploader(fake.address, TASK, "t", tmp_path) as uploader:
        assert uploader.flush()
        assert sent_reports(fake) == reports[:9]


def test_a_full_disk_is_refused_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up in the middle of a write: none of the new reports is taken, all of the old ones are."""
    reports = some_reports(TASK, 6)
    with fake_collector() as fake, Uploader(fake.address, TASK, "t", tmp_path, linger=60) as uploader:
        uploader.add(reports[:9])
        write = os.write

        def full(handle: int, data: bytes) -> int:
            if len(data) < 9:
                raise OSError(28, "No space left on device")
            return write(handle, data[:4])

        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            with refused("No space left"):
                uploader.add(reports[9:])
        assert uploader.flush()
        assert sent_reports(fake) == reports[:9]


KILLED = """
import sys
from hubbub.device.upload import Uploader
from hubbub.protocol.task import Task
task, address, token, spool, reports = Task.load(sys.argv[1]), *sys.argv[2:5], open(sys.argv[5], "rb").read()
with Uploader(address, task, token, spool, batch=7, linger=0.01) as uploader:
    for start in range(0, len(reports), 3):
        uploader.add(reports[start : start + 3])
        print(start, flush=True)
    assert uploader.flush()
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """kill -9 five times, going on behind the last report that was taken: each counts once.

    A report whose `add` had not returned may or may not have been taken: it is not sent again here, so up to one
    per kill may be missing, and those that are there must be exactly the ones that were given.
    """
    reports = some_reports(TASK, 1000)
    TASK.save(tmp_path / "task.toml")
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        token = collector.service.tokens.new("upload")
        left, unsure, kills = reports, [], 0
        while True:
            (tmp_path / "left").write_bytes(left)
            arguments = [
                tmp_path / "task.toml",
                collector.address,
                token,
                tmp_path / "spool",
                tmp_path / "left",
            ]
            device = subprocess.Popen(
                [sys.executable, "-c", KILLED, *map(str, arguments)], stdout=subprocess.PIPE, text=True
            )
            assert device.stdout is not None
            limit = 20 + 37 * kills if kills < 5 else 10**9
            seen = -3
            for line in device.stdout:
                seen = int(line)
                if seen >= 3 * limit:
                    device.send_signal(signal.SIGKILL)
                    break
            for line in device.stdout:
                seen = int(line)
            device.stdout.close()
            if device.wait() == 0:
                break
            unsure.append(left[seen + 3 : seen + 6])
            left, kills = left[seen + 6 :], kills + 1
        kept = b"".join(payload for _, _, payload, _ in collector.service.store.kept(TASK.digest.hex()))
        assert kills == 5
        extra = check_multiset(kept, reports, unsure)
        assert 0 <= extra <= 5
        assert collector.reports == len(kept) // 3


def check_multiset(kept: bytes, reports: bytes, unsure: list[bytes]) -> int:
    """How many of the unsure reports were kept; every other report must have been kept exactly once."""

    def rows(data: bytes) -> Counter[bytes]:
        return Counter(data[i : i + 3] for i in range(0, len(data), 3))

    surely = rows(reports) - Counter(unsure)
    found = rows(kept)
    assert not surely - found
    assert not found - rows(reports)
    return len(kept) // 3 - surely.total()


def test_a_device_loads_nothing_heavy() -> None:
    code = """
import sys, hubbub.device.upload
heavy = ["requests", "httpx", "fastapi", "sqlalchemy", "uvicorn", "scipy", "pandas", "hubbub.collect", "hubbub.server"]
print([name for name in heavy if name in sys.modules])
"""
    assert python(code).strip() == "[]"
