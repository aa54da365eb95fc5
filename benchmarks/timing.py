"""What the benchmarks share: timing, crowds and tasks to time with, slopes, and a description of the machine."""

from __future__ import annotations

import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.device.client import privatize
from hubbub.engines.pool import cores
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.primitives.kernel import numba_available
from hubbub.protocol.task import Task

Row = dict[str, Any]


def best(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Shortest wall time of several runs, and the last result."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def lap(run: Callable[[], Any], least: float = 0.2) -> float:
    """Seconds of one run, the best of as many as take `least` seconds together, and of three at least."""
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < least and len(seconds) < 1000):
        seconds.append(best(run, 1)[0])
    return min(seconds)


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most memory that one run had allocated at a time, arrays included, beyond what was there before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent of a power law, fitted by least squares on logarithms."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def crowd(users: int, keys: int, entries: int) -> Entries:
    """Random records; repeated keys do not matter for timing."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, keys, users * entries, dtype=np.uint64)
    values = np.full(len(ids), GRID, dtype=np.int64)
    return Entries(ids, values, np.arange(users + 1, dtype=np.int64) * entries)


def task_of(name: str, keys: int, entries: int, **parameters: Any) -> Task:
    """A task over a closed vocabulary at epsilon 1."""
    mechanism = {"name": name, "epsilon": 1.0, "max_entries": entries, **parameters}
    return Task.parse({"name": "bench", "keys": {"kind": "closed", "size": keys}, "mechanism": mechanism})


def reports_of(task: Task, count: int, distinct: int = 100_000) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Packed reports of random records; beyond `distinct` they repeat, which keeps the making short.

    With 100,000 reports of a few dozen buckets each, the places that are added to cover the whole array either way.
    """
    made = min(count, distinct)
    records = crowd(made, task.keys.count, task.mechanism.max_entries)
    packed, _ = privatize(task, records, SecretCoins(), SystemSeeds())
    return np.tile(packed, (-(-count // made), 1))[:count]


def machine() -> dict[str, str]:
    """What the figures were measured on: no names of hosts, users or folders."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": str(cores()),
        "memory": f"{memory:.0f} GiB",
        "system": platform.system(),
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "numba": metadata.version("numba") if numba_available() else "not used",
    }


def _processor() -> str:
    """The processor's name; its architecture where the system does not tell."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()
