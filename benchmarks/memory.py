"""What the collection service takes of memory at its worst: many large uploads at once, and a large export.

The real `hubbub serve` runs with a SQLite store; its peak is what the operating system has seen (VmHWM).

    python benchmarks/memory.py [--uploads 31] [--export 880]
    python benchmarks/memory.py --crowd 2000000 [--sealed 20000]

With `--crowd`, one crowd of so many items goes through a real `hubbub shuffler` to the service instead. So many of
them are `--sealed`, one report each; the others are random bytes, which cost the collector as much to find out: key
agreement, key derivation and decryption, of which only the last comparison fails.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hubbub.collect.keyring import KeyRing
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.device.client import Client
from hubbub.engines.pool import cores
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.sealing import KEY_BYTES, binding, seal, sealed_width, suite
from hubbub.protocol.task import Task

#: Of a body, just below the largest that is taken.
BYTES = (8 << 20) - 100


def peak(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def large_body(task: Task) -> bytes:
    """As many random reports as fit."""
    layout = task.mechanism.layout
    count = min(BYTES // layout.width, 200_000)
    rng = np.random.default_rng(1)
    columns = [rng.integers(0, field.limit, count, dtype=np.uint64) for field in layout.fields]
    reports = layout.pack(np.stack(columns, axis=1)).tobytes()
    return Envelope(b"R", task.code, task.digest, count, b"", reports).seal()


def wait_for(pattern: bytes, address: str, seconds: float) -> float:
    """Wait until a line is in the metrics; how long that took."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            if pattern in answer.read():
                return time.monotonic() - began
        time.sleep(0.2)
    raise TimeoutError(pattern)


def bare(items: list[bytes], private: bytes, task: Task) -> float:
    """Openings a second of the HPKE library alone, on one core."""
    key, hpke = X25519PrivateKey.from_private_bytes(private), suite()
    info = binding(task.digest, b"", items[0][-KEY_BYTES:])
    began = time.perf_counter()
    for item in items:
        hpke.decrypt(item[:-KEY_BYTES], key, info=info)
    return len(items) / (time.perf_counter() - began)


def crowd(count: int, sealed: int) -> None:
    """One crowd from devices to the count, and what it takes."""
    keys = {"kind": "closed", "size": 1000}
    mechanism = {"name": "collision", "epsilon": 1.0, "max_entries": 4}
    task = Task.parse({"name": "crowd", "keys": keys, "mechanism": mechanism, "minimum_reports": 100})
    program, width = str(Path(sys.executable).with_name("hubbub")), sealed_width(task)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        task.save(folder / "task.toml")
        store = f"sqlite:///{folder}/store.db"
        with closing(Store(store)) as opened:
            token, ring = Tokens(opened).new("shuffler"), KeyRing(opened)
            public, private = ring.public, ring.all()[-1].private
        assert private is not None

        def start(*words: str) -> tuple[int, str]:
            command = [program, *words, "--port", "0", "--json"]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.terminate)
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            return process.pid, said.get("url") or said["address"]

        collecting, collector = start("serve", f"{folder}/task.toml", "--store", store)
        tokens = ("--token", token, "--upload-token", "up", "--crowd", str(count), "--collector", collector)
        mixing, shuffler = start(
            "shuffler", f"{folder}/task.toml", *tokens, "--store", f"{folder}/shuffler.db"
        )
        wait_for(b'worker_healthy{worker="keys"} 1', shuffler, 60)
        reports = [Client(task).report({1, 2}) for _ in range(sealed)]
        items = [seal(report, public, task) for report in reports]
        speed = bare(items[:2000], private, task)
        began, sent, step = time.monotonic(), 0, (4 << 20) // width
        while sent < count:
            mine = items[sent : sent + step]
            more = min(step, count - sent) - len(mine)
            noise = (
                np.frombuffer(secrets.token_bytes(more * width), dtype=np.uint8).reshape(more, width).copy()
            )
            noise[:, -KEY_BYTES:] = np.frombuffer(items[0][-KEY_BYTES:], dtype=np.uint8)
            body = b"".join(mine) + noise.tobytes()
            request = urllib.request.Request(f"{shuffler}/v2/tasks/{task.digest.hex()}/sealed", body)
            request.add_header("Authorization", "Bearer up")
            with urllib.request.urlopen(request) as answer:
                sent += json.load(answer)["accepted"]
        taken = time.monotonic() - began
        print(f"shuffler: {peak(mixing):.0f} MiB at most so far, {taken:.0f} s", flush=True)
        closed = wait_for(b"hubbub_shuffler_backlog 1", shuffler, 3600)
        print(
            f"shuffler: {peak(mixing):.0f} MiB at most until the crowd is closed, {closed:.0f} s", flush=True
        )
        waited = closed + wait_for(b"hubbub_shuffler_crowds_total 1", shuffler, 3 * 3600)
        with urllib.request.urlopen(f"{collector}/metrics") as answer:
            counted = sum(
                float(line.split()[-1])
                for line in answer.read().decode().splitlines()
                if line.startswith("hubbub_reports_accepted_total")
            )
        print(
            f"{count:,} items of {width} bytes in one crowd, {sealed:,} of them reports; {counted:,.0f} counted\n"
            f"shuffler: {peak(mixing):.0f} MiB at most; {count / taken:,.0f} items/s taken\n"
            f"collector: {peak(collecting):.0f} MiB at most, besides {cores()} processes that open\n"
            f"closing, sending and opening: {waited:.0f} s, {count / waited:,.0f} items/s\n"
            f"bare HPKE openings in one process, before: {speed:,.0f} a second"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uploads", type=int, default=31)
    parser.add_argument("--export", type=int, default=880, help="MiB of reports to export")
    parser.add_argument("--crowd", type=int, help="items of one crowd that goes through a shuffler")
    parser.add_argument("--sealed", type=int, default=20_000, help="how many of them are reports")
    options = parser.parse_args()
    if options.crowd:
        crowd(options.crowd, options.sealed)
        return
    # Wide reports of many numbers, so that a batch of 200,000 is nearly as large as a body may be.
    keys = {"kind": "closed", "size": 300}
    mechanism = {"name": "repeated", "epsilon": 1.0, "max_entries": 300}
    task = Task.parse({"name": "memory", "keys": keys, "mechanism": mechanism})
    body = large_body(task)
    print(f"{len(body) / 2**20:.1f} MiB a body, {task.mechanism.layout.width} bytes a report")
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/store.db"
        with closing(Store(store)) as opened:
            token = Tokens(opened).new("admin")
        task.save(Path(folder) / "task.toml")
        program = Path(sys.executable).with_name("hubbub")
        command = [str(program), "serve", f"{folder}/task.toml", "--store", store, "--port", "0", "--json"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert service.stdout is not None
        try:
            place = urlsplit(json.loads(service.stdout.readline())["address"])
            path = f"/v1/tasks/{task.digest.hex()}"

            def ask(method: str, where: str, data: bytes | None = None) -> tuple[int, int]:
                with closing(http.client.HTTPConnection(place.netloc, timeout=300)) as connection:
                    headers = {"Authorization": f"Bearer {token}", "Hubbub-Batch": secrets.token_hex(16)}
                    connection.request(method, path + where, data, headers)
                    answer = connection.getresponse()
                    size = 0
                    while chunk := answer.read(1 << 20):
                        size += len(chunk)
                    return answer.status, size

            ask("POST", "/reports", body)
            ask("GET", "")
            print(f"at rest: {peak(service.pid):.0f} MiB")
            with ThreadPoolExecutor(options.uploads) as pool:
                found = list(pool.map(lambda _: ask("POST", "/reports", body)[0], range(options.uploads)))
            ask("GET", "")
            total = options.uploads * len(body) / 2**20
            print(f"{found.count(200)} uploads at once ({total:.0f} MiB): peak {peak(service.pid):.0f} MiB")
            there = (found.count(200) + 1) * len(body)
            while there < options.export << 20:
                assert ask("POST", "/reports", body)[0] == 200
                there += len(body)
            ask("GET", "")
            before = peak(service.pid)
            status, size = ask("GET", "/reports.parquet")
            print(
                f"export ({status}) of {size / 2**20:.0f} MiB: peak {before:.0f}, then {peak(service.pid):.0f} MiB"
            )
        finally:
            service.terminate()
            service.wait(60)


if __name__ == "__main__":
    main()
