"""Decoding all keys: one Walsh transform against hashing every key for every report (the prf family).

Ratios are measured in one run. The slow side is timed on a slice of the keys and scaled up, which is said.

    python benchmarks/decode.py
"""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np

from hubbub.device.client import Client, privatize
from hubbub.device.coins import SecretCoins, SystemSeeds
from hubbub.kernel import numba_available
from hubbub.record import GRID, Entries
from hubbub.server.fold import aggregate
from hubbub.task import Task


def crowd(users: int, keys: int, entries: int) -> Entries:
    """Random records; repeated keys do not matter for timing."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, keys, users * entries, dtype=np.uint64)
    values = np.full(len(ids), GRID, dtype=np.int64)
    return Entries(ids, values, np.arange(users + 1, dtype=np.int64) * entries)


def task_of(name: str, keys: int, entries: int, **parameters: Any) -> Task:
    mechanism = {"name": name, "epsilon": 1.0, "max_entries": entries, **parameters}
    return Task.parse({"name": "bench", "keys": {"kind": "closed", "size": keys}, "mechanism": mechanism})


def timed(action: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def decode(users: int, keys: int, entries: int, slice_of: int) -> None:
    records = crowd(users, keys, entries)
    seconds = {}
    for family in ("walsh", "prf"):
        task = task_of("collision", keys, entries, family=family)
        packed, _ = privatize(task, records, SecretCoins(), SystemSeeds())
        asked = task.keys.all_ids() if family == "walsh" else task.keys.all_ids()[:slice_of]
        aggregate(task, packed[:8192])

        def run(task: Task = task, packed: Any = packed, asked: Any = asked) -> Any:
            return task.mechanism.moments(aggregate(task, packed), task.keys, asked)

        run() if family == "walsh" else None
        spent, _ = timed(run)
        seconds[family] = spent * keys / len(asked)
    note = f"prf from {slice_of:,} keys, scaled" if slice_of < keys else "prf in full"
    ratio = seconds["prf"] / seconds["walsh"]
    print(
        f"  n={users:,} d={keys:,} k={entries}: walsh {seconds['walsh']:.2f} s, "
        f"prf {seconds['prf']:.1f} s ({note}): {ratio:,.0f}x"
    )


def large() -> None:
    users, keys, entries = 1_000_000, 1 << 20, 32
    task = task_of("collision", (1 << 20) - 1, entries)
    packed, _ = privatize(task, crowd(100_000, keys - 1, entries), SecretCoins(), SystemSeeds())
    packed = np.tile(packed, (users // len(packed), 1))
    aggregate(task, packed[:8192])
    absorbed, state = timed(lambda: aggregate(task, packed))
    decoded, _ = timed(lambda: task.mechanism.moments(state, task.keys, task.keys.all_ids()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"  n=1e6 d=2^20 k=32 collision: absorb {absorbed:.1f} s, all keys {decoded:.2f} s, "
        f"state {state.totals.size:,} integers, process peak {peak:.2f} GiB"
    )


def device() -> None:
    entries = 32
    for name, parameters in (
        ("collision", {}),
        ("coco", {"values": "signed"}),
        ("sketch_response", {"seeds": 1}),
        ("sketch_response", {"seeds": 1, "values": "signed"}),
        ("sparse_sum", {"values": "signed"}),
    ):
        task = task_of(name, 4096, entries, **parameters)
        records = crowd(200_000, 4096, entries)
        privatize(task, records.slice(0, 8192), SecretCoins(), SystemSeeds())
        bulk, _ = timed(
            lambda task=task, records=records: privatize(task, records, SecretCoins(), SystemSeeds())
        )
        client, record = Client(task), {str(key): 1.0 for key in range(entries)}
        client.report(record)
        single, _ = timed(lambda client=client, record=record: [client.report(record) for _ in range(500)])
        note = parameters.get("values", "set")
        print(
            f"  {name} ({note}): {200_000 / bulk:,.0f} records/s in bulk, {500 / single:,.0f} one by one, "
            f"{task.mechanism.layout.width} bytes"
        )


def main() -> None:
    print(f"numba: {'yes' if numba_available() else 'no'}")
    print("decoding all keys:")
    decode(100_000, 4096, 64, slice_of=256)
    decode(100_000, (1 << 20) - 1, 64, slice_of=64)
    print("a million reports:")
    large()
    print("on the device, k = 32:")
    device()


if __name__ == "__main__":
    main()
