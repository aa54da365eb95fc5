"""What labels cost the collector: the same reports without labels, and with a hundred groups; one run, in turns.

python benchmarks/strata.py

Batches are written to a store and folded, which is all that a server does with an upload besides HTTP: as usual, with a
minimum of reports, and without keeping them. Each arm is a process of its own, so that the memory is its own, too; arms
take turns, and figures are medians. Before the clock starts, every group has half a segment of reports, as it would
after a while. What is done in the background, sums of groups, is measured by itself.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.primitives.errors import optional
from hubbub.protocol.strata import Stratum, text_of
from hubbub.protocol.task import Task
from page import Headline, Section, duration, prose, table
from timing import Row

BATCH = 1000
#: What a task may ask for, by what it is called.
CASES: dict[str, dict[str, Any]] = {
    "as usual": {},
    "minimum_reports = 500": {"minimum_reports": 500},
    "keep_reports = false": {"keep_reports": False},
}


def task_with(groups: int, keys: int, rules: dict[str, Any]) -> Task:
    """Sets of up to 8 keys, with one label of so many values, or none."""
    mechanism = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    labels = {"team": [f"g{number}" for number in range(groups)]} if groups else {}
    universe = {"kind": "closed", "size": keys, "salt": "0123456789abcdef" * 2}
    return Task.parse({"name": "cost", "keys": universe, "mechanism": mechanism, "labels": labels, **rules})


def arm(case: str, groups: int, keys: int, batches: int, rounds: int, before: int) -> dict[str, float]:
    """Write and fold batches of random reports; seconds of processor and wall time, and the memory that it took."""
    from hubbub.collect.metrics import Metrics
    from hubbub.collect.snapshots import Folder
    from hubbub.collect.store import Store
    from hubbub.collect.sums import Sums
    from hubbub.collect.writing import Arrival, Collected, write_together

    task = task_with(groups, keys, CASES[case])
    layout, generator = task.mechanism.layout, np.random.default_rng(1)
    collected, numbers = Collected(task), iter(range(1 << 30))

    def made(count: int, size: int) -> Iterator[Arrival]:
        """So many batches, of one group after another."""
        limits = [field.limit for field in layout.fields]
        fields = [generator.integers(0, limit, count * size, dtype=np.uint64) for limit in limits]
        packed = layout.pack(np.stack(fields, axis=1))
        for place in range(count):
            number = next(numbers)
            stratum = text_of(task, Stratum((f"g{place % groups}",))) if groups else ""
            body = packed[place * size : (place + 1) * size].tobytes()
            yield Arrival(collected, f"b{number}", body, number.to_bytes(16, "little"), 3600, stratum=stratum)

    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/store.db")
        fold, sums = Folder(store, [task], Metrics()), Sums(store)
        write_together(store, list(made(100, before)))
        fold.fold(task)
        arrivals = list(made(batches, BATCH))
        began, busy = time.perf_counter(), time.process_time()
        for part in np.array_split(np.arange(batches), rounds):
            for start in range(part[0], part[-1] + 1, 10):
                write_together(store, arrivals[start : min(start + 10, part[-1] + 1)])
            fold.fold(task)
        took = {"seconds": time.perf_counter() - began, "processor": time.process_time() - busy}
        took["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began = time.perf_counter()
        sums.keep_up(task)  # all at once where reports are not kept, in the other cases nothing yet
        took["background"] = time.perf_counter() - began
        store.close()
    return took


def measure(
    keys: int = 10**6,
    groups: int = 100,
    batches: int = 2000,
    rounds: int = 20,
    turns: int = 3,
    before: int = 40_000,
) -> list[Row]:
    """All cases without labels and with so many groups, one process after another, several times over."""
    optional("sqlalchemy", "serve")
    arms = [(case, number) for case in CASES for number in (0, groups)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {each: [] for each in arms}
    for _ in range(turns):
        for case, number in arms:
            asked = json.dumps([case, number, keys, batches, rounds, before])
            command = [sys.executable, str(Path(__file__)), "--arm", asked]
            made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[case, number].append(json.loads(made))
    rows: list[Row] = []
    for case in CASES:
        row: Row = {"case": case, "keys": keys, "groups": groups, "reports": batches * BATCH}
        row |= {"folds": rounds, "turns": turns}
        for name, number in (("plain", 0), ("labelled", groups)):
            for what in ("seconds", "processor", "memory", "background"):
                row[f"{name}_{what}"] = statistics.median(each[what] for each in found[case, number])
        for what in (
            "seconds",
            "processor",
        ):  # of neighbours in time, so that what else the machine does matters less
            ratios = zip(found[case, groups], found[case, 0], strict=True)
            row[f"ratio_{what}"] = statistics.median(one[what] / two[what] for one, two in ratios)
        rows.append(row)
    return rows


def text(rows: list[Row]) -> str:
    cells = [
        [
            f"`{row['case']}`" if "=" in row["case"] else row["case"],
            f"{row['plain_seconds']:.2f} s",
            f"{row['labelled_seconds']:.2f} s",
            f"{row['ratio_seconds']:.2f}",
            f"{row['ratio_processor']:.2f}",
            f"{row['plain_memory']:.0f} MB, {row['labelled_memory']:.0f} MB",
        ]
        for row in rows
    ]
    first = rows[0]
    background = max(row["labelled_background"] for row in rows)
    words = prose(
        f"""What [labels](groups.md) cost the collector: {first["reports"]:,} reports of a task with {first["keys"]:,}
        keys are written to SQLite and folded {first["folds"]} times, without labels and with {first["groups"]} groups;
        medians of {first["turns"]} turns, ratios of neighbouring ones. The sums of groups are brought up to date in the
        background, which took {duration(background)}: once an hour, or where reports are not kept as often as that
        takes a twentieth of the time."""
    )
    head = ["", "without", f"{first['groups']} groups", "ratio", "ratio of processor time", "memory"]
    return words + "\n\n" + table(head, cells)


def headlines(rows: list[Row]) -> list[Headline]:
    worst = max(row["ratio_seconds"] for row in rows)
    return [
        Headline(
            f"time to take reports with {rows[0]['groups']} groups, over that without labels, at worst",
            f"{worst:.2f}x",
        )
    ]


SECTION = Section(
    "strata",
    "Labels",
    measure,
    text,
    quick={"keys": 1000, "groups": 5, "batches": 20, "rounds": 2, "turns": 1, "before": 100},
    headlines=headlines,
)


def main() -> None:
    choose = argparse.ArgumentParser()
    choose.add_argument("--groups", type=int, default=100)
    choose.add_argument("--batches", type=int, default=2000)
    choose.add_argument("--rounds", type=int, default=20)
    choose.add_argument("--turns", type=int, default=3)
    choose.add_argument("--arm", help=argparse.SUPPRESS)
    asked = choose.parse_args()
    if asked.arm is not None:
        print(json.dumps(arm(*json.loads(asked.arm))))
        return
    options = {"groups": asked.groups, "batches": asked.batches, "rounds": asked.rounds}
    print(text(measure(**options, turns=asked.turns)))


if __name__ == "__main__":
    main()
