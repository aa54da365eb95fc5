"""The shuffler cannot read, waits for its crowd, mixes fairly, loses nothing and sends nothing twice."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import collected_task, collecting, eventually, some_reports
from live import ask, bearer, keyed_mixer, keys_answer, opaque_items, own_answer

from helpers import QuietServer, contents, fits, python, refuse, refused, small_task, succeed, tilted
from hubbub.checks.conformance import task_for
from hubbub.collect import forward, known_keys, relay, staging
from hubbub.collect import mixer as mixing_module
from hubbub.collect import shuffler as module
from hubbub.collect.keypair import KeyPair
from hubbub.collect.mixer import Mixer
from hubbub.collect.names import Slots
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.staging import Staging, digest
from hubbub.device.client import Client
from hubbub.device.upload import Uploader
from hubbub.mechanisms.registry import make_mechanism
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.protocol.sealing import KEY_BYTES, seal, sealed_width
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

TASK = small_task(size=10, max_entries=3)
WIDTH = sealed_width(TASK)
PAIR = KeyPair(bytes(range(32)))
PATH = f"/v2/tasks/{TASK.digest.hex()}/sealed"


def items(count: int) -> list[bytes]:
    """Items that are no reports, which the shuffler cannot know."""
    return opaque_items(TASK, count)


def split(payload: bytes) -> list[bytes]:
    return [payload[start : start + WIDTH] for start in range(0, len(payload), WIDTH)]


class Collector:
    """Stands in for the collector: counts every batch id once, and can be slow, absent or unwilling."""

    def __init__(self) -> None:
        self.batches: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, bytes]] = []
        self.status, self.asked, self.keys = 200, 0, [PAIR.id]
        self.answers = threading.Event()
        self.answers.set()
        self.received = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, self.headers["Authorization"], body))
                if outer.status == 200:
                    name = "/".join([self.headers["Hubbub-Batch"], *self.headers.get_all("Hubbub-Part", [])])
                    outer.batches.setdefault(name, body)
                    assert outer.batches[name] == body, "another crowd under one id"
                outer.received.set()
                outer.answers.wait(60)
                with suppress(OSError):  # the shuffler may have been killed meanwhile
                    media, said = own_answer(outer.status, self.headers["Hubbub-Batch"])
                    self.send_response(outer.status)
                    self.send_header("Content-Type", media)
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)

            def do_GET(self) -> None:
                outer.asked += 1
                said = keys_answer(*outer.keys) if self.path == "/v1/key" and outer.keys else b""
                self.send_response(200 if said else 404)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def all_items(self) -> list[bytes]:
        return [item for body in self.batches.values() for item in split(body)]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def mixer(tmp_path: Path) -> Iterator[Mixer]:
    made = keyed_mixer(tmp_path / "shuffler.db")
    yield made
    made.close()


def shuffler(
    mixer: Mixer,
    url: str = "http://127.0.0.1:9",
    task: Task = TASK,
    crowd: int = 5,
    token: str = "shuffle",
) -> Shuffler:
    return Shuffler(mixer, [task], url, token, "up", crowd)


# It cannot read


def test_the_process_loads_nothing_that_could_open_a_report() -> None:
    code = (
        "import sys, hubbub.cli.shuffler, hubbub.collect.serving, hubbub.collect.shuffler\n"
        "names = ('hubbub.collect.keypair', 'hubbub.collect.service', 'cryptography')\n"
        "print([name for name in names if name in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_neither_reports_nor_the_private_key_are_in_its_files(tmp_path: Path) -> None:
    """Long reports, so that finding one by chance is out of the question; sealed ones are found."""
    mechanism = make_mechanism("gaussian", epsilon=1.0, max_entries=2, delta=1e-6, size=50)
    task = task_for(mechanism, 50)
    width = task.mechanism.layout.width
    assert width > 60
    reports = [secrets.token_bytes(width) for _ in range(7)]
    sealed = [seal(report, PAIR.public, task) for report in reports]
    store = keyed_mixer(tmp_path / "shuffler.db", PAIR.id)
    mixing = shuffler(store, task=task, crowd=7)
    mixing.accept(task, b"".join(sealed[:6]))
    waiting = b"".join(contents(tmp_path).values())
    mixing.accept(task, sealed[6])
    mixing.step()
    closed = b"".join(contents(tmp_path).values())
    assert store.outgoing()
    for files in (waiting, closed):
        assert all(item[:32] in files for item in sealed[:6])
        assert not any(report[:8] in files for report in reports)
        assert PAIR.private not in files
        assert PAIR.private.hex().encode() not in files
    store.close()


def test_a_delivered_crowd_is_overwritten_and_arrival_is_not_kept(
    tmp_path: Path, collector: Collector
) -> None:
    store = keyed_mixer(tmp_path / "shuffler.db")
    mixing = shuffler(store, collector.url)
    sent = items(5)
    mixing.accept(TASK, b"".join(sent))
    before = b"".join(contents(tmp_path).values())
    assert all(item in before for item in sent)
    assert mixing.step() == (True, 0.0)
    after = b"".join(contents(tmp_path).values())
    assert not any(item[:16] in after for item in sent)
    columns = {
        column[1]
        for table in ("seen", "crowds", "parts")
        for column in store._connection.execute(f"PRAGMA table_info({table})")
    }
    assert columns == {"task", "digest", "batch", "reports", "parts", "part", "payload"}
    store.close()


# It waits


@pytest.mark.parametrize(("minimum", "crowd", "least"), [(0, 5, 5), (9, 5, 9), (3, 5, 5)])
def test_a_crowd_leaves_when_it_is_complete_and_not_before(
    mixer: Mixer, collector: Collector, minimum: int, crowd: int, least: int
) -> None:
    task = TASK.model_copy(update={"minimum_reports": minimum})
    mixing = shuffler(mixer, collector.url, task, crowd)
    assert mixing.least(task) == least
    for count in range(1, least):
        mixing.accept(task, items(1)[0])
        assert mixing.step() == (True, 0.0)
        assert (mixer.waiting(task), mixer.outgoing(), collector.requests) == (count, [], [])
    mixing.accept(task, b"".join(items(3)))
    assert mixing.step() == (True, 0.0)
    ((path, authorization, body),) = collector.requests
    assert path == f"/v2/tasks/{task.digest.hex()}/shuffled"
    assert authorization == "Bearer shuffle"
    assert len(split(body)) == least + 2
    assert mixer.waiting(task) == 0


def payloads(mixer: Mixer, batch: str) -> list[bytes]:
    """The parts of a crowd."""
    return [mixer.part(batch, number) for number in range(mixer.crowd(batch).parts)]


def test_a_long_queue_leaves_as_one_crowd_in_several_parts(
    mixer: Mixer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing_module, "LARGEST_PART", 12 * WIDTH)
    for waiting, least, sizes in [(25, 5, [8, 8, 9]), (24, 11, [12, 12]), (12, 12, [12]), (4, 5, [])]:
        sent = items(waiting)
        mixer.add(TASK, sent)
        assert mixer.close_crowds(TASK, least) == (1 if sizes else 0)
        crowds = [mixer.crowd(batch) for batch in mixer.outgoing()]
        assert [crowd.reports for crowd in crowds] == ([waiting] if sizes else [])
        parts = [part for crowd in crowds for part in payloads(mixer, crowd.batch)]
        assert [len(split(part)) for part in parts] == sizes
        assert sorted(split(b"".join(parts))) == (sorted(sent) if sizes else [])
        for crowd in crowds:
            mixer.forget(crowd.batch)


def test_an_incomplete_crowd_stays_at_shutdown_and_is_there_afterwards(
    tmp_path: Path, collector: Collector
) -> None:
    sent = items(4)
    for _ in range(2):
        mixing = shuffler(Mixer(tmp_path / "shuffler.db"), collector.url)
        with serving(create_shuffler_app(mixing)) as url:
            for item in sent:
                ask(url + PATH, item, bearer("up"))
            time.sleep(0.1)
    assert collector.requests == []
    mixing = shuffler(Mixer(tmp_path / "shuffler.db"), collector.url)
    assert mixing.mixer.waiting(TASK) == 4
    last = items(1)
    with serving(create_shuffler_app(mixing)) as url:
        ask(url + PATH, last[0], bearer("up"))
        assert collector.received.wait(60)
    assert sorted(collector.all_items()) == sorted(sent + last)


def test_tasks_do_not_wait_together(mixer: Mixer, collector: Collector) -> None:
    other = small_task(size=10, max_entries=3, epsilon=2.0)
    mixing = Shuffler(mixer, [TASK, other], collector.url, "shuffle", "up", 5)
    mixing.accept(TASK, b"".join(items(4)))
    mixing.accept(other, b"".join(items(4)))
    mixing.step()
    assert collector.requests == []
    mixing.accept(other, items(1)[0])
    mixing.step()
    assert [path for path, _, _ in collector.requests] == [f"/v2/tasks/{other.digest.hex()}/shuffled"]


# It mixes


def orders(store: Mixer, crowds: int) -> list[int]:
    """How often each of the six orders occurs in three places next to each other, over crowds of three hundred.

    Items are numbered by digest, as the store sorts them. In a random permutation the orders of separate places are
    independent and uniform.
    """
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(crowds):
        sent = items(300)
        store.add(TASK, sent)
        store.close_crowds(TASK, 300)
        (batch,) = store.outgoing()
        place = {item: number for number, item in enumerate(sorted(sent, key=digest))}
        left = [place[item] for item in split(b"".join(payloads(store, batch)))]
        for three in zip(left[::3], left[1::3], left[2::3], strict=True):
            found[tuple(sorted(range(3), key=three.__getitem__))] += 1
        store.forget(batch)
    return [found[order] for order in permutations(range(3))]


@pytest.fixture
def quick(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the disk, which has no say in the order."""
    mixer._connection.execute("PRAGMA synchronous = OFF")
    monkeypatch.setattr(staging, "_to_disk", lambda file: None)


@pytest.mark.usefixtures("quick")
def test_every_order_is_equally_likely(mixer: Mixer) -> None:
    """Chi-square over 20,000 orders, false alarms 1e-6 at most (the coins are the system's, so not repeatable).

    An order that is 30% too frequent is noticed: noncentrality 20000 * 0.0096 = 192, standard deviation 28,
    against a limit of 49.
    """
    counts, uniform = orders(mixer, 200), [1 / 6] * 6
    assert fits(counts, uniform)
    assert not fits(counts, tilted(uniform))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", ["no order", "the same order every time"])
def test_a_shuffler_that_does_not_mix_afresh_is_noticed(
    mixer: Mixer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lazy(count: int) -> Slots:
        order = np.arange(count, dtype=np.uint32)
        if fault != "no order":
            np.random.default_rng(7).shuffle(order)
        return order

    monkeypatch.setattr(mixing_module, "permutation", lazy)
    assert not fits(orders(mixer, 40), [1 / 6] * 6)


# It loses nothing and sends nothing twice


def test_repeated_items_count_once_even_after_they_have_left(mixer: Mixer, collector: Collector) -> None:
    mixing = shuffler(mixer, collector.url)
    sent = items(5)
    assert mixing.accept(TASK, sent[0] + sent[0] + sent[1]) == (2, 1)
    assert mixing.accept(TASK, b"".join(sent)) == (3, 2)
    mixing.step()
    assert mixing.accept(TASK, b"".join(sent)) == (0, 5)
    mixing.step()
    assert sorted(collector.all_items()) == sorted(sent)


def test_a_silent_or_unwilling_collector_gets_the_same_batch_later(
    mixer: Mixer, collector: Collector
) -> None:
    absent = shuffler(mixer)
    sent = items(5)
    absent.accept(TASK, b"".join(sent))
    assert absent.step()[0] is False
    (batch,) = mixer.outgoing()
    (payload,) = payloads(mixer, batch)
    mixing = shuffler(mixer, collector.url)
    for status in (503, 401, 404, 302):
        collector.status = status
        assert mixing.step()[0] is False
        assert mixer.outgoing() == [batch]
    collector.status = 200
    assert mixing.step() == (True, 0.0)
    assert collector.batches == {batch: payload}
    assert {body for _, _, body in collector.requests} == {payload}
    assert mixer.outgoing() == []


def test_a_crowd_that_the_collector_cannot_open_does_not_block_the_next(
    mixer: Mixer, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    mixing = shuffler(mixer, collector.url)
    collector.status = 422
    mixing.accept(TASK, b"".join(items(5)))
    assert mixing.step() == (True, 0.0)
    assert "refuses (422) a crowd of 5 reports" in caplog.text
    collector.status = 200
    good = items(6)
    mixing.accept(TASK, b"".join(good))
    mixing.step()
    assert sorted(collector.all_items()) == sorted(good)


def test_a_crowd_that_the_collector_cannot_open_is_sent_again_after_a_restart(
    mixer: Mixer, collector: Collector
) -> None:
    collector.status = 422
    sent = items(5)
    first = shuffler(mixer, collector.url)
    first.accept(TASK, b"".join(sent))
    first.step()
    asked = len(collector.requests)
    assert first.step() == (True, 0.0)
    assert len(collector.requests) == asked
    collector.status = 200
    shuffler(mixer, collector.url).step()
    assert sorted(collector.all_items()) == sorted(sent)


class Process:
    """A real `hubbub shuffler`."""

    def __init__(self, folder: Path, collector: str, *options: object) -> None:
        TASK.save(folder / "task.toml")
        command = ["shuffler", "task.toml", "--collector", collector, "--port", 0, "--json", *options]
        environment = {**os.environ, "HUBBUB_SHUFFLER_TOKEN": "shuffle", "HUBBUB_UPLOAD_TOKEN": "up"}
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("hubbub"), *(str(word) for word in command)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]

    def post(self, body: bytes) -> dict[str, Any]:
        answer = ask(self.url + PATH, body, bearer("up"))
        assert answer.status == 200
        found: dict[str, Any] = answer.json
        return found

    def end(self, how: signal.Signals) -> str:
        self._process.send_signal(how)
        said = self._process.communicate(timeout=60)[1]
        assert self._process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 0)
        return said


def test_killed_while_forwarding(tmp_path: Path, collector: Collector) -> None:
    """The collector has the crowd, its answer never arrives: sent again under the same id, counted once."""
    collector.answers.clear()
    sent = items(8)
    process = Process(tmp_path, collector.url, "--crowd", 8)
    assert process.post(b"".join(sent)) == {"accepted": 8, "repeated": 0}
    assert collector.received.wait(60)
    process.end(signal.SIGKILL)
    collector.received.clear()
    collector.answers.set()
    process = Process(tmp_path, collector.url, "--crowd", 8)
    assert collector.received.wait(60)
    assert process.post(b"".join(sent)) == {"accepted": 0, "repeated": 8}
    process.end(signal.SIGTERM)
    assert len(collector.requests) == 2
    assert sorted(collector.all_items()) == sorted(sent)


def test_killed_at_random_moments(tmp_path: Path, collector: Collector) -> None:
    """A device that retries until acknowledged, a shuffler killed again and again: all arrive, once each."""
    dice = random.Random(5)
    left = [items(5) for _ in range(60)]
    sent = [item for batch in left for item in batch]
    for _ in range(5):
        process = Process(tmp_path, collector.url, "--crowd", 7)
        killer = threading.Timer(dice.uniform(0.01, 0.25), process.end, [signal.SIGKILL])
        killer.start()
        with suppress(OSError):
            while left:
                process.post(b"".join(left[0]))
                left.pop(0)
        killer.join()
    process = Process(tmp_path, collector.url, "--crowd", 7)
    extra = items(7)
    for batch in [*left, extra]:
        process.post(b"".join(batch))
    eventually(lambda: len(set(collector.all_items())) >= len(sent + extra))
    log = process.end(signal.SIGTERM)
    assert sorted(collector.all_items()) == sorted(sent + extra)
    assert min(len(split(body)) for body in collector.batches.values()) >= 7
    lines = [json.loads(line) for line in log.splitlines()]
    assert {line["about"] for line in lines} == {"hubbub.shuffler"}
    assert not any("127.0.0.1" in line["message"] for line in lines)


# With a real collector


def test_from_the_device_to_the_estimate(tmp_path: Path) -> None:
    """Sealed reports arrive through the shuffler, all of them, once; bad items are counted by reason."""
    task = collected_task(minimum_reports=100)
    reports = some_reports(task, 150, seed=1)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as service:
        public = bytes.fromhex(service.get("/v1/key").json["key"])
        token = service.service.tokens.new("shuffler")
        mixing = shuffler(Mixer(tmp_path / "shuffler.db"), service.address, task, 153, token)
        with serving(create_shuffler_app(mixing)) as url:
            item = seal(reports[: task.mechanism.layout.width], public, task)
            changed = bytes([item[0] ^ 1]) + item[1:]
            elsewhere = seal(reports[: task.mechanism.layout.width], public, collected_task(name="another"))
            bad = seal(b"\xff" * task.mechanism.layout.width, public, task)
            path = f"{url}/v2/tasks/{task.digest.hex()}/sealed"
            assert ask(path, changed + elsewhere + bad, bearer("up")).json["accepted"] == 3
            with Uploader(url, task, "up", tmp_path / "spool", linger=0.01, sealed_for=public) as uploader:
                width = task.mechanism.layout.width
                people = [reports[start : start + width] for start in range(0, len(reports), width)]
                uploader.add_sealed([seal(report, public, task) for report in people])
                assert uploader.flush()
            eventually(lambda: service.reports > 0)
        about = service.get(service.path).json
        state = service.service.folder.fold(task).state
    assert state.to_bytes() == aggregate(task, reports).to_bytes()
    assert about["rejected"] == {
        "sealed for another key or task, or changed on the way": 2,
        "filler bits after the last field are set": 1,
    }
    shuffled = about["guarantee"]["shuffled"]
    assert (shuffled["crowd"], shuffled["reports"]) == (150, 150)
    assert shuffled["epsilon"] < about["guarantee"]["local"]["epsilon"]


def test_a_sealing_uploader_sends_the_same_items_again(tmp_path: Path, collector: Collector) -> None:
    """Its batches hold what was sealed once and for all, so a repeated one is recognised."""
    report = Client(TASK).report({1})
    with Uploader("http://127.0.0.1:9", TASK, "up", tmp_path / "spool", sealed_for=PAIR.public) as uploader:
        uploader.add_sealed([seal(report, PAIR.public, TASK) for _ in range(2)])
        assert not uploader.flush(0)
    (first,) = [data for name, data in contents(tmp_path / "spool").items() if name.endswith(".batch")]
    mixing = shuffler(keyed_mixer(tmp_path / "shuffler.db", PAIR.id), collector.url, crowd=2)
    mixing.accept(TASK, first)
    with (
        serving(create_shuffler_app(mixing)) as url,
        Uploader(url, TASK, "up", tmp_path / "spool", sealed_for=PAIR.public) as uploader,
    ):
        assert uploader.flush()
        assert uploader.waiting == 0
    assert sorted(collector.all_items()) == sorted(split(first))
    assert PAIR.open_each(TASK, first)[0].tobytes() == report + report


# Requests


def test_requests_that_are_refused(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    one = items(1)[0]
    mixing = shuffler(mixer)
    with serving(create_shuffler_app(mixing)) as url:
        for headers in ({}, bearer(""), bearer("down"), {"Authorization": "up"}):
            assert ask(url + PATH, one, headers).status == 401
        for task in ("0" * 32, "%00", TASK.digest.hex().upper()):
            assert ask(f"{url}/v1/tasks/{task}/sealed", one, bearer("up")).status == 404
        for body in (b"", one[:-1], one + b"x"):
            answer = ask(url + PATH, body, bearer("up"))
            assert answer.status == 422
            assert answer.headers["content-type"] == "application/problem+json"
        monkeypatch.setattr(relay, "LARGEST_BODY", WIDTH)
        assert ask(url + PATH, one + one, bearer("up")).status == 413
        assert ask(url + PATH, iter([one, one]), bearer("up")).status == 413
        monkeypatch.setattr(module, "MOST_OUTGOING", -1)
        busy = ask(url + PATH, one, bearer("up"))
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        monkeypatch.undo()
        assert mixer.waiting(TASK) == 0
        assert ask(url + PATH, one, bearer("up")).json == {"accepted": 1, "repeated": 0}
        assert ask(f"{url}/healthz").json == {"status": "ok"}


def test_only_keys_that_the_collector_has(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up names are refused at once, a key that was just made is taken at once, and neither waits for ever."""
    monkeypatch.setattr(known_keys, "APART", 0.05)
    named = {name: opaque_items(TASK, 1, name)[0] for name in (b"new1", b"new2", b"mine")}
    mixing = shuffler(Mixer(tmp_path / "shuffler.db"), collector.url, crowd=50)
    with serving(create_shuffler_app(mixing)) as url:
        eventually(lambda: mixing.keys.any)
        mixed = named[b"mine"] + items(1)[0]
        assert ask(url + PATH, mixed, bearer("up")).json == {"accepted": 1, "repeated": 0, "refused": 1}
        collector.keys.append(b"new1")
        assert ask(url + PATH, named[b"new1"], bearer("up")).json == {"accepted": 1, "repeated": 0}
        asked = collector.asked
        assert ask(url + PATH, named[b"new1"], bearer("up")).json == {"accepted": 0, "repeated": 1}
        assert collector.asked == asked  # those that are known cost no question
        known, collector.keys = collector.keys, []  # nobody there who could be asked
        answer = ask(url + PATH, named[b"new2"], bearer("up"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert ask(url + PATH, items(1)[0], bearer("up")).json["accepted"] == 1
        assert mixing.mixer.waiting(TASK) == 3
    mixing = shuffler(Mixer(tmp_path / "shuffler.db"), collector.url, crowd=50)
    with serving(create_shuffler_app(mixing)) as url:  # after a restart, too
        assert ask(url + PATH, items(1)[0], bearer("up")).json["accepted"] == 1
        assert ask(url + PATH, named[b"new2"], bearer("up")).status == 503
        collector.keys = [*known, b"new2"]
        assert ask(url + PATH, named[b"new2"], bearer("up")).json["accepted"] == 1
        assert ask(url + PATH, named[b"mine"], bearer("up")).json["refused"] == 1


def test_a_shuffler_without_keys_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.collect.health._REMEMBERED", 0.0)
    with serving(create_shuffler_app(shuffler(Mixer(tmp_path / "shuffler.db")))) as url:
        assert "which keys" in ask(f"{url}/readyz").json["detail"]
        assert ask(url + PATH, items(1)[0], bearer("up")).status == 503


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"[]", b"{}", b"nonsense", b"[" * 50_000, b'{"id": 7}', b'{"opens": "6b657931"}'),
        *(b'{"opens": ["00000000"]}', b'{"opens": ["xyz"]}', b'{"opens": ["6b6579"]}'),
    ],
    ids=range(10),
)
def test_an_answer_without_keys_changes_nothing(
    said: bytes, mixer: Mixer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixing = shuffler(mixer, collector.url)
    with monkeypatch.context() as strange:
        strange.setitem(globals(), "keys_answer", lambda *_: said or b" ")
        with pytest.raises(known_keys.Unanswered):
            mixing.keys.ask()
        assert b"key1" in mixing.keys.names
        strange.setitem(globals(), "keys_answer", lambda *_: b'{"key": "", "id": "6b657932"}')
        mixing.keys.ask()  # as an older collector says it
    assert mixing.keys.names == {b"key2", bytes(4)}


def test_what_waits_is_bounded(mixer: Mixer, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that make no crowd fill the room for them; when their crowd leaves, there is room again."""
    monkeypatch.setattr(module, "MOST_WAITING", 3 * WIDTH)
    with serving(create_shuffler_app(shuffler(mixer, collector.url, crowd=5))) as url:
        assert ask(url + PATH, b"".join(items(4)), bearer("up")).json["accepted"] == 4
        busy = ask(url + PATH, items(1)[0], bearer("up"))
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        assert "store is full" in busy.json["detail"]
        assert mixer.waiting(TASK) == 4
        monkeypatch.setattr(module, "MOST_WAITING", 4 * WIDTH)
        assert ask(url + PATH, items(1)[0], bearer("up")).json["accepted"] == 1
        eventually(lambda: mixer.waiting(TASK) == 0)
        assert ask(url + PATH, items(1)[0], bearer("up")).json["accepted"] == 1


def test_what_is_refused_is_bounded(
    mixer: Mixer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two refused crowds are kept; with the third, the oldest goes, and nothing else."""
    monkeypatch.setattr(forward, "MOST_REFUSED", 14 * WIDTH)
    mixing, kept = shuffler(mixer, collector.url, crowd=5), []
    collector.status = 422
    for _ in range(3):
        mixing.accept(TASK, b"".join(items(5)))
        mixing.step()
        kept += [batch for batch in mixer.outgoing() if batch not in kept]
    assert len(kept) == 3
    assert set(mixer.outgoing()) == set(kept[1:])
    assert not mixing.full()
    collector.status = 200
    again = shuffler(mixer, collector.url, crowd=5)  # the next start
    assert again.step() == (True, 0.0)
    assert set(collector.batches) == set(kept[1:])


def test_requests_share_a_wait_for_the_disk(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one group is on its way to the disk the next one gathers: 24 requests in 2 waits, or 1."""
    waits: list[int] = []
    to_disk = staging._to_disk

    def slow(file: int) -> None:
        waits.append(file)
        if len(waits) == 1:  # of those that are still to come, all queue up
            eventually(lambda: mixer.waiting(TASK) + len(relay._writer) == 25)
        to_disk(file)

    app = create_shuffler_app(shuffler(mixer, crowd=100))
    relay = app.state.intakes[PATH]
    with serving(app) as url:
        assert ask(url + PATH, items(1)[0], bearer("up")).status == 200
        monkeypatch.setattr(staging, "_to_disk", slow)
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda one: ask(url + PATH, one, bearer("up")), items(24)))
    assert [answer.json for answer in answers] == [{"accepted": 1, "repeated": 0}] * 24
    assert len(waits) <= 2


def test_a_full_disk_is_said_and_loses_nothing(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for a larger file; what was acknowledged before is still there."""
    sent, before = items(2000), items(1000)
    with serving(create_shuffler_app(shuffler(mixer, crowd=10_000))) as url:
        assert ask(url + PATH, b"".join(before), bearer("up")).json["accepted"] == 1000
        with monkeypatch.context() as broken:
            write = os.write
            broken.setattr(
                os, "write", lambda file, data: full() if len(data) > 2048 * WIDTH else write(file, data)
            )
            full_disk = ask(url + PATH, b"".join(sent), bearer("up"))
        assert (full_disk.status, full_disk.headers["retry-after"]) == (503, "1")
        assert mixer.waiting(TASK) == 1000
        assert ask(url + PATH, b"".join(sent), bearer("up")).json == {"accepted": 2000, "repeated": 0}
        assert mixer.waiting(TASK) == 3000


def full() -> int:
    raise OSError(28, "No space left on device")


def test_a_disk_that_lost_what_was_written_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync a second one would succeed and mean nothing: the file is written anew."""
    store, kept, lost = Mixer(tmp_path / "shuffler.db"), items(5), items(3)
    assert store.add(TASK, kept) == (5, 0)
    with monkeypatch.context() as broken:
        broken.setattr(staging, "_to_disk", lambda file: full())
        with pytest.raises(OSError, match="No space"):
            store.add(TASK, lost)
    assert store.waiting(TASK) == 5
    (path,) = tmp_path.glob("*.waiting")
    place = path.stat().st_ino
    assert store.add(TASK, lost) == (3, 0)
    assert path.stat().st_ino != place
    store.close()
    again = Mixer(tmp_path / "shuffler.db")
    assert again.add(TASK, kept + lost) == (0, 8)
    again.close()


def test_crashes_between_the_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd is in the database, and its items are not overwritten yet: they do not leave a second time."""
    store, sent = Mixer(tmp_path / "shuffler.db"), items(9)
    store.add(TASK, sent)
    with monkeypatch.context() as broken:
        broken.setattr(Staging, "_write", lambda *_: full())
        with pytest.raises(OSError, match="No space"):
            store.close_crowds(TASK, 9)
    store.close()
    (path,) = tmp_path.glob("*.waiting")
    assert all(item in path.read_bytes() for item in sent)
    half = bytearray(path.read_bytes())
    half[half.index(bytes(16 + WIDTH)) + 20] = 1  # and the power went in the middle of writing another
    path.write_bytes(half)
    again = Mixer(tmp_path / "shuffler.db")
    assert again.waiting(TASK) == 0
    assert not any(path.read_bytes())
    assert again.add(TASK, sent) == (0, 9)
    assert again.crowd(again.outgoing()[0]).reports == 9
    again.close()


def test_the_file_grows_and_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All items are drawn new places; the old file, which is still open here, holds nothing any more."""
    store, sent = Mixer(tmp_path / "shuffler.db"), items(1024)
    store.add(TASK, sent)
    (path,) = tmp_path.glob("*.waiting")
    before = path.read_bytes()
    with path.open("rb") as old:
        assert store.add(TASK, items(1)) == (1, 0)
        assert not any(old.read())
    after = path.read_bytes()
    assert len(after) == 2 * len(before)
    assert all(item in after for item in sent)
    assert sum(before.index(item) == after.index(item) for item in sent) < 20  # one in two is expected
    store.close()


def test_what_leaves_and_what_was_never_finished_is_overwritten(tmp_path: Path) -> None:
    """Zeros in the slots of items that have gone, and in a new file that a crash left; seen by another name of it."""
    store, sent, left = Mixer(tmp_path / "shuffler.db"), items(6), items(3)
    store.add(TASK, sent)
    (path,) = tmp_path.glob("*.waiting")
    place = {item: path.read_bytes().index(item) for item in sent}
    store.close_crowds(TASK, 6)
    data = path.read_bytes()
    assert not any(data)
    assert len(data) == 1024 * (16 + WIDTH)
    assert len(set(place.values())) == 6
    store.close()
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_bytes(b"".join(left))
    os.link(unfinished, tmp_path / "seen")
    again = Mixer(tmp_path / "shuffler.db")
    assert again.waiting(TASK) == 0
    again.close()
    assert not unfinished.exists()
    assert (tmp_path / "seen").read_bytes() == bytes(3 * WIDTH)


def test_a_store_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    """Waiting items move to the file of slots, digests stay, and nothing of the old table is left."""
    waiting, gone = items(4), items(3)
    with closing(sqlite3.connect(tmp_path / "shuffler.db")) as db:
        db.execute(
            "CREATE TABLE items (task BLOB, digest BLOB, item BLOB, PRIMARY KEY (task, digest)) WITHOUT ROWID"
        )
        rows = [(TASK.digest, digest(item), item[:-KEY_BYTES]) for item in waiting]
        rows += [(TASK.digest, digest(item), None) for item in gone]
        db.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        db.commit()
    for _ in range(2):
        store = Mixer(tmp_path / "shuffler.db")
        assert store.add(TASK, waiting + gone) == (0, 7)
        assert store.waiting(TASK) == 4
        store.close()
    assert not any(item[:16] in (tmp_path / "shuffler.db").read_bytes() for item in waiting)


def test_health_and_metrics(mixer: Mixer, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came, what waits and what has left; not ready when nothing can be written or the store is full."""
    monkeypatch.setattr("hubbub.collect.health._REMEMBERED", 0.0)
    mixing = shuffler(mixer, collector.url)

    def numbers() -> dict[str, float]:
        lines = ask(f"{url}/metrics").body.decode().splitlines()
        return {
            name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }

    with serving(create_shuffler_app(mixing)) as url:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(url + path, method="HEAD").status == 200
        collector.status = 503
        sent = items(5)
        ask(url + PATH, b"".join([*sent, sent[0]]), bearer("up"))
        eventually(lambda: numbers()["hubbub_shuffler_backlog"] == 1)
        found = numbers()
        assert found['hubbub_shuffler_items_total{outcome="accepted"}'] == 5
        assert found['hubbub_shuffler_items_total{outcome="repeated"}'] == 1
        assert found["hubbub_shuffler_backlog_bytes"] == 5 * WIDTH
        assert ask(f"{url}/readyz").json["status"] == "ready"  # it can take more
        monkeypatch.setattr(module, "MOST_OUTGOING", 1)
        assert "store is full" in ask(f"{url}/readyz").json["detail"]
        collector.status = 200
        eventually(lambda: numbers()["hubbub_shuffler_backlog"] == 0)
        ask(url + PATH, items(1)[0], bearer("up"))
        found = numbers()
        assert found["hubbub_shuffler_forwarded_total"] == 5
        assert found["hubbub_shuffler_crowds_total"] == 1
        assert found['hubbub_shuffler_waiting{task=""}'] == 1
        assert found['hubbub_worker_healthy{worker="forward"}'] == 1
        with monkeypatch.context() as broken:
            broken.setattr(mixer, "ping", lambda: full())
            assert "cannot be written" in ask(f"{url}/readyz").json["detail"]
        assert ask(f"{url}/readyz").status == 200


def test_it_says_what_its_crowds_are_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all reports of a person in a period; or why shuffling adds nothing."""
    monkeypatch.setattr("hubbub.collect.serving.run_app", lambda app, sock: sock.close())
    tasks = [
        small_task(size=10, max_entries=3).model_copy(update={"reports_per_period": 3}),
        small_task("sparse_sum", unit="entry"),
    ]
    paths = [tmp_path / f"{number}.toml" for number in range(2)]
    for task, path in zip(tasks, paths, strict=True):
        task.save(path)
    tokens = ("--token", "a", "--upload-token", "b", "--store", tmp_path / "s.db", "--port", 0)
    said = succeed("shuffler", *paths, "--collector", "http://x", *tokens, "--crowd", 500)["promises"]
    amplified, not_amplified = (said[Task.load(path).digest.hex()] for path in paths)
    expected = shuffled_guarantee(tasks[0].mechanism, 500, 1e-6, 3)
    assert amplified == f"{expected.short()}. {expected.note}"
    assert "up to 3 reports per person" in amplified
    assert not_amplified.startswith(
        "no more than the reports themselves promise. This guarantee is per entry"
    )


def test_wrong_settings_are_refused(mixer: Mixer, tmp_path: Path) -> None:
    with refused("at least 2"):
        shuffler(mixer, crowd=1)
    for url in ("collector.example", "ftp://collector.example", "http://", "http://collector..example"):
        with refused("address"):
            shuffler(mixer, url)
    for path in (tmp_path, tmp_path / "shuffler.db"):  # a folder, and the store that somebody has open
        with refused("store"):
            Mixer(path)
    tokens = ("--token", "a", "--upload-token", "b")
    assert "cannot be read" in refuse("shuffler", tmp_path / "no.toml", "--collector", "http://x", *tokens)
