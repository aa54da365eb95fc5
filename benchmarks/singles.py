"""One report per request, as real devices send: the service and the shuffler beside an endpoint that does nothing.

Each runs on one core (taskset) over the same HTTP server; the senders run on the others. The bare endpoint is
Starlette's: it reads the body and answers a line of JSON. The service and the shuffler acknowledge what is on disk.

    python benchmarks/singles.py [--seconds 2] [--rounds 3] [--senders 256] [--tokens 1 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from hubbub.collect.keypair import KeyPair
from hubbub.collect.mixer import Mixer
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens, tokens
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task
from service import processor
from timing import Row

KEYS = {"kind": "closed", "size": 1000}
TASK = Task.parse(
    {"name": "singles", "keys": KEYS, "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 8}}
)
#: The first is the servers', the others are the senders'.
CORES = sorted(os.sched_getaffinity(0))
#: Makes the next request.
Maker = Callable[[], bytes]


class Sender(asyncio.Protocol):
    """A request, its answer, the next request; on one connection, or each on a new one."""

    def __init__(self, make: Maker, until: float, statuses: dict[int, int], keep: bool) -> None:
        self._make, self._until, self._statuses, self._keep = make, until, statuses, keep
        self._answer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._make())

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        status = int(head[9:12])
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._answer = b""
        if self._keep and time.perf_counter() < self._until:
            self._transport.write(self._make())
        else:
            self._transport.close()

    def connection_lost(self, problem: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def send(address: str, make: Maker, seconds: float, senders: int, keep: bool) -> dict[int, int]:
    """Statuses of all answers within some seconds."""
    place, statuses = urlsplit(address), {}
    until = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()

    async def one() -> None:
        while time.perf_counter() < until:
            _, sender = await loop.create_connection(
                lambda: Sender(make, until, statuses, keep), place.hostname, place.port
            )
            await sender.done

    await asyncio.gather(*(one() for _ in range(senders)))
    return statuses


def request(path: str, token: str, body: bytes, keep: bool) -> bytes:
    """The bytes of an upload, under an id of its own."""
    close = "" if keep else "Connection: close\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{close}"
        f"Hubbub-Batch: {secrets.token_hex(16)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def on_one_core(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run a server that says its address as JSON, and its process; this one moves to the other cores."""
    server = subprocess.Popen(
        ["taskset", "-c", str(CORES[0]), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        address = said.get("address") or said["url"]
        os.sched_setaffinity(0, set(CORES[1:]) or set(CORES))
        yield address, server.pid
    finally:
        os.sched_setaffinity(0, set(CORES))
        server.terminate()
        server.wait(30)


def some_bodies(count: int = 256) -> list[bytes]:
    """Envelopes of one random report."""
    layout, rng = TASK.mechanism.layout, np.random.default_rng(1)
    columns = [rng.integers(0, field.limit, count, dtype=np.uint64) for field in layout.fields]
    packed = layout.pack(np.stack(columns, axis=1))
    return [Envelope(b"R", TASK.code, TASK.digest, 1, b"", row.tobytes()).seal() for row in packed]


def bare() -> None:
    """An endpoint that reads a body and answers."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from hubbub.collect.serving import address, listen, run_app
    from hubbub.collect.settings import Settings

    async def answer(request: Request) -> Response:
        await request.body()
        return JSONResponse({"accepted": 1})

    sock = listen("127.0.0.1", 0)
    print(json.dumps({"address": address(sock)}), flush=True)
    app = Starlette(routes=[Route("/v1/tasks/{task}/reports", answer, methods=["POST"])])
    app.state.settings = Settings()  # the same guard at the door
    run_app(app, sock)


def rates(
    server: tuple[str, int], make: Maker, seconds: float, senders: int, keep: bool
) -> tuple[float, float]:
    """Requests a second, and a processor's second of the server, that were answered 200; there must be no others."""
    address, pid = server
    started, before = time.perf_counter(), processor(pid)
    statuses = asyncio.run(send(address, make, seconds, senders, keep))
    assert set(statuses) == {200}, statuses
    passed, used = time.perf_counter() - started, processor(pid) - before
    return statuses[200] / passed, statuses[200] / used


def wait_until_idle(pid: int, longest: float = 120.0) -> None:
    """A service compiles in the background when it has started, which is no request's cost."""
    deadline, used = time.perf_counter() + longest, -1.0
    while processor(pid) - used > 0.05 and time.perf_counter() < deadline:
        used = processor(pid)
        time.sleep(1.0)


@dataclass(frozen=True)
class Subject:
    """A server, and what is sent to it: over connections that stay open, or one after another."""

    what: str
    tokens: int
    server: tuple[str, int]
    make: Callable[[bool], bytes]


def start_service(stack: ExitStack, folder: str, program: str, count: int, bodies: list[bytes]) -> Subject:
    """The collection service over a store with so many tokens."""
    store = f"sqlite:///{folder}/store-{count}.db"
    with closing(Store(store)) as opened:
        token = Tokens(opened).new("upload")
        digests = [hashlib.sha256(number.to_bytes(4, "little")).digest() for number in range(count - 1)]
        others = [{"role": "upload", "digest": digest, "label": "", "created": 0} for digest in digests]
        if others:
            with opened.writing() as connection:
                connection.execute(tokens.insert(), others)
    command = [program, "serve", f"{folder}/task.toml", "--store", store, "--port", "0", "--json"]
    server = stack.enter_context(on_one_core(command))
    path = f"/v1/tasks/{TASK.digest.hex()}/reports"
    return Subject("service", count, server, lambda keep: request(path, token, secrets.choice(bodies), keep))


def start_shuffler(stack: ExitStack, folder: str, program: str, bodies: list[bytes]) -> Subject:
    """A shuffler whose crowd never gets complete."""
    pair, width = KeyPair.fresh(), TASK.mechanism.layout.width
    items = [seal(body[-16 - width : -16], pair.public, TASK) for body in bodies for _ in range(20)]
    mixer = Mixer(f"{folder}/shuffler.db")
    mixer.remember_keys([pair.id])  # as if the collector had been asked before
    mixer.close()
    os.environ.update({"HUBBUB_SHUFFLER_TOKEN": "hub_shuffler_x", "HUBBUB_UPLOAD_TOKEN": "up"})
    crowd = ["--crowd", "100000", "--collector", "http://127.0.0.1:1", "--store", f"{folder}/shuffler.db"]
    command = [program, "shuffler", f"{folder}/task.toml", *crowd, "--port", "0", "--json"]
    path = f"/v2/tasks/{TASK.digest.hex()}/sealed"
    server = stack.enter_context(on_one_core(command))
    return Subject("shuffler", 1, server, lambda keep: request(path, "up", secrets.choice(items), keep))


def measure(
    seconds: float = 2.0, rounds: int = 3, senders: int = 256, token_counts: Sequence[int] = (1, 10_000)
) -> list[Row]:
    """Medians over rounds in which all take turns, so that whatever else the machine does happens to all of them."""
    bodies, program = some_bodies(), str(Path(sys.executable).with_name("hubbub"))
    path = f"/v1/tasks/{TASK.digest.hex()}/reports"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        TASK.save(Path(folder) / "task.toml")
        server = stack.enter_context(on_one_core([sys.executable, __file__, "--bare"]))
        subjects = [Subject("bare", 0, server, lambda keep: request(path, "x", secrets.choice(bodies), keep))]
        subjects += [start_service(stack, folder, program, count, bodies) for count in token_counts]
        subjects.append(start_shuffler(stack, folder, program, bodies))
        for subject in subjects:
            wait_until_idle(subject.server[1])
        found: dict[tuple[int, bool], list[tuple[float, float]]] = {}
        for turn in range(rounds + 1):
            for place, subject in enumerate(subjects):
                for keep in (True, False):
                    make = partial(subject.make, keep)
                    measured = rates(subject.server, make, seconds, senders, keep)
                    if turn:  # the first one warms up
                        found.setdefault((place, keep), []).append(measured)
    rows: list[Row] = []
    for place, subject in enumerate(subjects):
        row: Row = {"what": subject.what, "tokens": subject.tokens, "senders": senders}
        row |= {"seconds": seconds, "rounds": rounds}
        for name, keep in (("kept", True), ("new", False)):
            row[name], row[f"{name}_processor"] = (round(x) for x in np.median(found[place, keep], axis=0))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--senders", type=int, default=256)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 10_000])
    parser.add_argument("--bare", action="store_true", help="be the endpoint that does nothing")
    options = parser.parse_args()
    if options.bare:
        bare()
        return
    rows = measure(options.seconds, options.rounds, options.senders, options.tokens)
    base = rows[0]
    for row in rows:
        names = ("kept", "kept_processor", "new", "new_processor")
        shares = ", ".join(f"{name} {row[name]:,}/s ({row[name] / base[name]:.2f})" for name in names)
        print(f"{row['what']:<14} {row['tokens']:>6} tokens: {shares}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
