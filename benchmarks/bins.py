"""Noise on every bin: sparse_sum with unit entry, beside a plain program with floating-point noise.

    python benchmarks/bins.py
    HUBBUB_BEFORE=../older/src python benchmarks/book.py bins

The plain programs do what the paper's Algorithm 1 says, in the way one writes it down: hash the keys of a record to
bins and signs, add up, and add Laplace noise to every bin, from a seeded generator of ordinary random numbers. One is
vectorized NumPy, the other a loop compiled by numba. Their noise is a double-precision number made of a logarithm,
which is not exactly Laplace and gives away more than epsilon says (Mironov 2012), and their reports are arrays, not
bytes. hubbub's coins come from the operating system, its noise is exact, and its reports are packed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from page import Headline, Section, prose, table, times
from tables import versions
from timing import Row, best

#: What a process of another version runs: it says how long the best of three takes by the clock and the processor.
_WORKER = """
import json, sys, time
import numpy as np
from hubbub.device.client import privatize
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.protocol.task import Task
records, bins, entries, keys = map(int, sys.argv[1:])
mechanism = {"name": "sparse_sum", "epsilon": 1.0, "max_entries": entries, "values": "signed", "unit": "entry"}
closed = {"kind": "closed", "size": keys}
task = Task.parse({"name": "bench", "keys": closed, "mechanism": {**mechanism, "buckets": bins}})
rng = np.random.default_rng(1)
ids = rng.integers(0, keys, records * entries, dtype=np.uint64)
offsets = np.arange(records + 1, dtype=np.int64) * entries
people = Entries(ids, rng.integers(-GRID, GRID + 1, len(ids)), offsets)
privatize(task, people.slice(0, 8192), SecretCoins(), SystemSeeds())
found = []
for _ in range(3):
    start, used = time.perf_counter(), time.process_time()
    privatize(task, people, SecretCoins(), SystemSeeds())
    found.append((time.process_time() - used, time.perf_counter() - start))
print(json.dumps(min(found)))
"""


def measure(
    records: int = 100_000, bins: tuple[int, ...] = (16, 256), entries: int = 32, keys: int = 4096
) -> list[Row]:
    """Seconds for all records, for every number of bins."""
    found = []
    for count in bins:
        row = {"records": records, "bins": count, "entries": entries}
        for how, program in (("NumPy", by_numpy), ("numba", by_numba)):
            if program is not None:
                found.append(
                    row | {"how": f"plain program, {how}"} | _plain(program, records, count, entries, keys)
                )
        for how, sources in versions().items():
            found.append(row | {"how": f"hubbub {how}"} | _own(sources, records, count, entries, keys))
    return found


def _own(sources: str | None, records: int, bins: int, entries: int, keys: int) -> Row:
    environment = dict(os.environ) | ({"PYTHONPATH": sources} if sources else {})
    script = [sys.executable, "-c", _WORKER, *map(str, (records, bins, entries, keys))]
    said = subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout
    cpu, seconds = json.loads(said)
    return {"seconds": seconds, "cpu": cpu}


def _plain(program: Any, records: int, bins: int, entries: int, keys: int) -> Row:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, keys, (records, entries), dtype=np.uint64)
    values = rng.uniform(-1, 1, (records, entries))
    program(ids[:100], values[:100], bins, 2.0)
    used = time.process_time()
    seconds, noised = best(lambda: program(ids, values, bins, 2.0), 3)
    assert noised.shape == (records, bins)
    return {"seconds": seconds, "cpu": (time.process_time() - used) / 3}


def by_numpy(ids: Any, values: Any, bins: int, scale: float) -> Any:
    """All records at a time."""
    rng = np.random.default_rng(7)
    seeds = rng.integers(0, 1 << 63, len(ids), dtype=np.uint64)
    words = (ids + seeds[:, None]) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    places = ((words >> np.uint64(33)) % np.uint64(bins)).astype(np.int64)
    signed = values * (1.0 - 2.0 * (words & np.uint64(1)))
    places += np.arange(len(ids))[:, None] * bins
    sums = np.bincount(places.reshape(-1), signed.reshape(-1), len(ids) * bins)
    return sums.reshape(-1, bins) + rng.laplace(0.0, scale, (len(ids), bins))


def _loop(ids: Any, values: Any, seeds: Any, scale: float, rng: Any, noised: Any) -> None:
    bins = noised.shape[1]
    for i in range(len(ids)):
        for j in range(ids.shape[1]):
            word = (ids[i, j] + seeds[i]) * np.uint64(0x9E3779B97F4A7C15)
            word = (word ^ (word >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            noised[i, (word >> np.uint64(33)) % np.uint64(bins)] += values[i, j] * (
                1.0 - 2.0 * (word & np.uint64(1))
            )
        for b in range(bins):
            half = rng.random() - 0.5
            size = -scale * np.log(1.0 - 2.0 * abs(half))
            noised[i, b] += size if half > 0 else -size


def _compiled() -> Any:
    from hubbub.primitives.kernel import numba_available

    if not numba_available():
        return None
    import numba

    loop = numba.njit(_loop)

    def by_numba(ids: Any, values: Any, bins: int, scale: float) -> Any:
        """Record by record."""
        rng = np.random.default_rng(7)
        seeds = rng.integers(0, 1 << 63, len(ids), dtype=np.uint64)
        noised = np.zeros((len(ids), bins))
        loop(ids, values, seeds, scale, rng, noised)
        return noised

    return by_numba


by_numba = _compiled()


def headlines(rows: list[Row]) -> list[Headline]:
    found = {(row["bins"], row["how"]): row["cpu"] for row in rows}
    return [
        Headline(
            f"noise on {bins} bins, against the version before", times(found[bins, "hubbub before"] / cpu)
        )
        for (bins, how), cpu in found.items()
        if how == "hubbub now" and (bins, "hubbub before") in found
    ]


def text(rows: list[Row]) -> str:
    cells = [
        [
            f"{row['bins']}",
            row["how"],
            f"{row['seconds']:.2f} s",
            f"{row['cpu']:.2f} s",
            f"{1e9 * row['cpu'] / row['records'] / row['bins']:.0f} ns",
        ]
        for row in rows
    ]
    words = prose(
        f"""`sparse_sum` with unit `entry`: exact Laplace noise on every bin of {rows[0]["records"]:,} records with
        {rows[0]["entries"]} entries, on one core. The plain programs are Algorithm 1 of Zhou et al. as one writes it
        down, with hashing that is cheaper than a keyed one, seeded random numbers and floating-point noise, and their
        reports are arrays. hubbub's coins come from the operating system (which takes about 25 ns for 8 bytes, the
        least that a bin could be given), its noise is exact, and its reports are packed into bytes."""
    )
    return words + "\n\n" + table(["bins", "", "clock", "processor", "per bin"], cells, words=2)


SECTION = Section(
    "bins",
    "Noise on every bin",
    measure,
    text,
    quick={"records": 9000, "bins": (16,)},
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
