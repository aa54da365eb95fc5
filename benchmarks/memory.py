"""What the collection service takes of memory at its worst: many large uploads at once, and a large export.

The real `hubbub serve` runs with a SQLite store; its peak is what the operating system has seen (VmHWM).

    python benchmarks/memory.py [--uploads 31] [--export 880]
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.primitives.envelope import Envelope
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uploads", type=int, default=31)
    parser.add_argument("--export", type=int, default=880, help="MiB of reports to export")
    options = parser.parse_args()
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
