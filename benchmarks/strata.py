"""What labels cost the collector: the same reports without labels, and with a hundred groups; one run, in turns.

python benchmarks/strata.py

Batches are written to a store and folded, which is all that a server does with an upload besides HTTP. Each arm is a
process of its own, so that the memory is its own, too; arms take turns, and figures are medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hubbub.collect.metrics import Metrics
from hubbub.collect.snapshots import Folder
from hubbub.collect.store import Store
from hubbub.collect.sums import Sums
from hubbub.collect.writing import Arrival, Collected, write_together
from hubbub.protocol.strata import Stratum, text_of
from hubbub.protocol.task import Task

KEYS, BATCH = 10**6, 1000


def task_with(groups: int) -> Task:
    """Sets of up to 8 of a million keys, with one label of so many values, or none."""
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    labels = {"group": [f"g{number}" for number in range(groups)]} if groups else {}
    keys = {"kind": "closed", "size": KEYS, "salt": "0123456789abcdef" * 2}
    return Task.parse({"name": "cost", "keys": keys, "mechanism": mechanism, "labels": labels})


def arm(groups: int, batches: int, rounds: int) -> dict[str, float]:
    """Write and fold batches of random reports; seconds of processor and wall time, and the memory that it took."""
    task = task_with(groups)
    layout, generator = task.mechanism.layout, np.random.default_rng(1)
    fields = [generator.integers(0, field.limit, BATCH * batches, dtype=np.uint64) for field in layout.fields]
    packed = layout.pack(np.stack(fields, axis=1))
    collected = Collected(task)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/store.db")
        fold, sums = Folder(store, [task], Metrics()), Sums(store)
        fold.fold(task)
        began, busy = time.perf_counter(), time.process_time()
        for place, part in enumerate(np.array_split(np.arange(batches), rounds)):
            arrivals = []
            for number in part:
                stratum = text_of(task, Stratum((f"g{number % groups}",))) if groups else ""
                body = packed[number * BATCH : (number + 1) * BATCH].tobytes()
                check = int(number).to_bytes(16, "little")
                arrivals.append(
                    Arrival(collected, f"b{number}", body, check, 3600 * (place // 8), stratum=stratum)
                )
            for start in range(0, len(arrivals), 10):
                write_together(store, arrivals[start : start + 10])
            fold.fold(task)
            sums.keep_up(task)
        took = {"seconds": time.perf_counter() - began, "processor": time.process_time() - busy}
        asked = time.perf_counter()
        if groups:
            sums.state(task, [Stratum(("g1",))])
        took["question"] = time.perf_counter() - asked
        store.close()
    return {**took, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    choose = argparse.ArgumentParser()
    choose.add_argument("--groups", type=int, default=100)
    choose.add_argument("--batches", type=int, default=2000)
    choose.add_argument("--rounds", type=int, default=20)
    choose.add_argument("--turns", type=int, default=3)
    choose.add_argument("--arm", type=int)
    asked = choose.parse_args()
    if asked.arm is not None:
        print(json.dumps(arm(asked.arm, asked.batches, asked.rounds)))
        return
    found: dict[int, list[dict[str, float]]] = {0: [], asked.groups: []}
    for _ in range(asked.turns):
        for groups, rows in found.items():
            options = ["--batches", str(asked.batches), "--rounds", str(asked.rounds), "--arm", str(groups)]
            command = [sys.executable, str(Path(__file__)), *options]
            made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append(json.loads(made))
    middle = {
        groups: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for groups, rows in found.items()
    }
    plain, labelled = middle[0], middle[asked.groups]
    reports = asked.batches * BATCH
    print(f"{reports:,} reports of a task with {KEYS:,} keys, medians of {asked.turns} turns:")
    for name, row in (("without labels", plain), (f"with {asked.groups} groups", labelled)):
        print(
            f"  {name:18} {reports / row['seconds']:>12,.0f} reports/s, {row['processor']:.1f} s of processor time, "
            f"{row['memory']:.0f} MB"
        )
    print(f"labels cost {labelled['seconds'] / plain['seconds']:.2f} times the time,", end=" ")
    print(f"{labelled['processor'] / plain['processor']:.2f} times the processor time,", end=" ")
    print(f"{labelled['memory'] / plain['memory']:.2f} times the memory;", end=" ")
    print(f"a question about one group takes {labelled['question']:.2f} s.")


if __name__ == "__main__":
    main()
