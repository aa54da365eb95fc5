"""How many reports a second one core of the collection service takes, and how long a sender waits.

The real `hubbub serve` runs on one core (taskset), the load generator and, if used, PostgreSQL on the others.
Senders keep their connections open and send batches of 1,000 reports as fast as they are acknowledged. Afterwards the
service must have counted what was acknowledged. Memory is the service's resident set, second by second.

    python benchmarks/service.py [--seconds 20] [--senders 24] [--store sqlite|postgresql] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from crashes import postgresql
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.task import Task

BATCH = 1000


@dataclass
class Load:
    """What the senders saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)


def bodies(task: Task, count: int) -> list[bytes]:
    """Batches of random reports."""
    rng = np.random.default_rng(1)
    layout = task.mechanism.layout
    found = []
    for _ in range(count):
        columns = [rng.integers(0, field.limit, BATCH, dtype=np.uint64) for field in layout.fields]
        reports = layout.pack(np.stack(columns, axis=1)).tobytes()
        found.append(Envelope(b"R", task.code, task.digest, BATCH, b"", reports).seal())
    return found


async def send(
    address: str, path: str, token: str, batches: list[bytes], number: int, until: float, load: Load
) -> None:
    """One sender: a request, its answer, the next request."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    run, sent = secrets.token_hex(8), 0
    while time.perf_counter() < until:
        body = batches[(number + sent) % len(batches)]
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Hubbub-Batch: {run}-{number}-{sent}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        status = int(answer[9:12])
        if status == 200:
            load.seconds.append(time.perf_counter() - started)
        else:
            await asyncio.sleep(0.05)
        load.statuses[status] = load.statuses.get(status, 0) + 1
        sent += 1
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def run_load(
    address: str, path: str, token: str, task: Task, senders: int, seconds: float, pid: int
) -> tuple[Load, float, list[float]]:
    """All senders for some seconds; what they saw, how long it took, and the service's memory in MB."""
    load, batches, memory = Load(), bodies(task, 64), []
    started = time.perf_counter()
    until = started + seconds
    jobs = [
        asyncio.create_task(send(address, path, token, batches, number, until, load))
        for number in range(senders)
    ]
    while not all(job.done() for job in jobs):
        memory.append(resident(pid))
        await asyncio.wait(jobs, timeout=1)
    await asyncio.gather(*jobs)
    return load, time.perf_counter() - started, memory


def processor(pid: int) -> float:
    """Processor seconds that a process has used."""
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def ask(address: str, path: str, token: str) -> Any:
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])


def measure(store: str, seconds: float, senders: int) -> dict[str, Any]:
    """Start the service on one core, load it from the others, and check its count."""
    keys = {"kind": "closed", "size": 1000}
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 64}
    task = Task.parse({"name": "load", "keys": keys, "mechanism": mechanism})
    opened = Store(store)
    token = Tokens(opened).new("admin")
    opened.close()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder) / "task.toml")
        program = Path(sys.executable).with_name("hubbub")
        command = ["taskset", "-c", str(cores[0]), str(program), "serve", f"{folder}/task.toml"]
        service = subprocess.Popen(
            [*command, "--store", store, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert service.stdout is not None
            address = json.loads(service.stdout.readline())["address"]
            path = f"/v1/tasks/{task.digest.hex()}"
            os.sched_setaffinity(0, set(cores[1:]) or set(cores))
            arguments = (address, f"{path}/reports", token, task, senders)
            asyncio.run(run_load(*arguments, 2.0, service.pid))  # warm up
            before = asyncio.run(ask(address, path, token))["reports"]
            used = processor(service.pid)
            load, spent, memory = asyncio.run(run_load(*arguments, seconds, service.pid))
            used = processor(service.pid) - used
            counted = asyncio.run(ask(address, path, token))["reports"] - before
        finally:
            os.sched_setaffinity(0, set(cores))
            service.terminate()
            service.wait(60)
            assert service.stdout is not None
            service.stdout.close()
    accepted = BATCH * len(load.seconds)
    assert counted == accepted, f"{counted} reports were counted, {accepted} were acknowledged"
    p50, p99, slowest = np.quantile(load.seconds, [0.5, 0.99, 1.0])
    third = max(len(memory) // 3, 1)
    return {
        "reports_per_second": round(accepted / spent),
        "reports_per_processor_second": round(accepted / used),
        "p50_ms": round(1000 * p50, 1),
        "p99_ms": round(1000 * p99, 1),
        "slowest_ms": round(1000 * slowest, 1),
        "statuses": load.statuses,
        "memory_mb": [round(one) for one in memory[:: max(len(memory) // 12, 1)]],
        "memory_first_third_mb": round(float(np.mean(memory[:third])), 1),
        "memory_last_third_mb": round(float(np.mean(memory[-third:])), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--senders", type=int, default=24)
    parser.add_argument("--store", action="append", choices=["sqlite", "postgresql"])
    parser.add_argument("--json", type=Path, help="Write what was measured to this file.")
    options = parser.parse_args()
    found = {}
    for kind in options.store or ["sqlite", "postgresql"]:
        with contextlib.ExitStack() as stack:
            if kind == "postgresql":
                url = stack.enter_context(postgresql())
            else:
                url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/store.db"
            found[kind] = measure(url, options.seconds, options.senders)
        print(kind, json.dumps(found[kind]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
