"""Decoding by the shorter side: a report names 2^(m-a) codes or 2^a coefficients, and is added to the fewer.

    python benchmarks/shorter.py

Measured are the time per report over the number of buckets, both ways (the longer one is what it took before); the time
over the number of reports; and a whole plan of the shuffled model, from a file of reports to estimates of all keys, in
a process of its own, whose memory is that of everything it does. Seconds are those of one core (processor time).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hubbub
from hubbub.device.client import privatize
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.files import load_reports, save_reports
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.populations import stated_population
from page import LIGHT, STRONG, Headline, Section, amount, duration, prose, table
from timing import Row, slope, task_of

#: Additions that one measurement may take, about.
_ADDITIONS = 1 << 25


def measure(
    bits: int = 20,
    buckets: Sequence[int] = (2, 4, 6, 8, 9, 10, 11, 12, 14, 16, 18, 20),
    reports: Sequence[int] = (1 << 14, 1 << 16, 1 << 18, 1 << 20),
    plans: Sequence[tuple[int, int, int, float]] = ((10**6, 10**6, 32, 0.01), (10**6, 10**6, 32, 0.0)),
) -> list[Row]:
    """Rows of three kinds: `buckets`, `reports` and `plan`."""
    rows = [_both_ways(bits, a) for a in buckets]
    task = task_of("collision", (1 << bits) - 1, 1, buckets=1 << bits * 3 // 4, users=1 << 30)
    made = _random_reports(task.mechanism, max(reports))
    rows += [{"kind": "reports", "n": n, "seconds": _absorbing(task, made[:n], True)} for n in reports]
    return rows + [_plan(*plan) for plan in plans]


def _random_reports(mechanism: Mechanism, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Any seeds and buckets: what they say makes no difference to the time."""
    rng = np.random.default_rng(1)
    fields = mechanism.layout.fields
    return np.stack([rng.integers(0, field.limit, count, dtype=np.uint64) for field in fields], axis=1)


def _absorbing(task: Task, reports: np.ndarray[Any, np.dtype[np.uint64]], shorter: bool) -> float:
    """Seconds to add reports to a state: by the shorter side, or to coefficients; the better of two."""
    found = []
    for _ in range(2):
        state = task.mechanism.empty(task.keys)
        if not shorter:
            state.per_code = 0
        start = time.process_time()
        task.mechanism.absorb(state, task.keys, reports)
        found.append(time.process_time() - start)
    return min(found)


def _both_ways(bits: int, a: int) -> Row:
    task = task_of("collision", (1 << bits) - 1, 1, buckets=1 << a, users=1 << 30)
    row: Row = {"kind": "buckets", "m": bits, "a": a}
    for name, steps in (("now", min(a, bits - a)), ("before", a)):
        count = max(64, min(1 << 17, _ADDITIONS >> steps))
        reports = _random_reports(task.mechanism, count)
        row[name] = _absorbing(task, reports, name == "now") / count
    return row


def _plan(people: int, keys: int, entries: int, share: float) -> Row:
    """The planner's choice, rehearsed: reports of made-up people in a file, then decoded by another process."""
    wish = {"users": people, "keys": keys, "max_entries": entries, "share": share}
    found = hubbub.plan(**wish, model="shuffled", epsilon=1.0, delta=1e-8)
    task, crowd = found.task("plan"), stated_population(people, keys, entries, seed=1)
    parts = [crowd.entries.slice(at, min(at + 100_000, people)) for at in range(0, people, 100_000)]
    packed = np.concatenate([_made(task, part, seed) for seed, part in enumerate(parts)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.reports"
        save_reports(path, task, packed)
        done = subprocess.run(
            [sys.executable, __file__, "--decode", str(path)], capture_output=True, text=True, check=True
        )
    mechanism: Any = task.mechanism
    row = {**wish, "mechanism": mechanism.name, "a": mechanism.buckets.bit_length() - 1, "m": task.keys.bits}
    return {"kind": "plan", **row, "promised": found.chosen.seconds, **json.loads(done.stdout)}


def _made(task: Task, entries: Entries, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return privatize(task, entries, InsecureCoins(2 * seed), SimulatedSeeds(2 * seed + 1))[0]


def decode(path: str) -> Row:
    """From a file of reports to estimates of all keys, with error bars and intervals."""
    start, wall = time.process_time(), time.perf_counter()
    task, packed = load_reports(Path(path))
    state = aggregate(task, packed)
    added = time.process_time() - start
    found = estimate(task, state)
    row: Row = {"absorb": added, "seconds": time.process_time() - start, "wall": time.perf_counter() - wall}
    return {**row, "peak": _peak(), "reports": state.count, "estimates": len(found)}


def _peak() -> int:
    """The most memory that this process had; that of `resource` would count the parent's before this began."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def text(rows: list[Row]) -> str:
    steps = [row for row in rows if row["kind"] == "buckets"]
    cells = [
        [
            f"2^{row['a']}",
            f"2^{min(row['a'], row['m'] - row['a'])}",
            duration(row["now"]),
            duration(row["before"]),
        ]
        for row in steps
    ]
    plans = [row for row in rows if row["kind"] == "plan"]
    whole = [
        [
            f"{row['users']:,}",
            f"{row['keys']:,}",
            f"{100 * row['share']:g}%",
            f"2^{row['a']}",
            duration(row["absorb"]),
            duration(row["seconds"]),
            amount(row["peak"], " bytes"),
        ]
        for row in plans
    ]
    grown = [row for row in rows if row["kind"] == "reports"]
    exponent = slope([row["n"] for row in grown], [row["seconds"] for row in grown])
    first = prose(
        f"""A report with 2^a buckets names 2^(m-a) codes of m bits, or 2^a Walsh coefficients, and is added to
        whichever are fewer. Time to add one report at m = {steps[0]["m"]} (`collision`, processor time of one core);
        *before* all reports were added to coefficients. Over n, from {grown[0]["n"]:,} to {grown[-1]["n"]:,} reports,
        the time grows with the power {exponent:.2f}."""
    )
    heads = ["buckets 2^a", "additions 2^min(a, m-a)", "a report, now", "before"]
    second = prose(
        """The plans of the shuffled model at central epsilon 1 and delta 1e-8, up to 32 entries a record, for a key of
        the given share: from a file of reports to estimates with intervals for all keys, in one process. Memory is the
        largest that the whole process had."""
    )
    more = ["people", "keys", "share", "buckets", "reports added", "all estimates", "memory"]
    return "\n\n".join([first, table(heads, cells), second, table(more, whole)])


def plot(rows: list[Row], figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    steps = [row for row in rows if row["kind"] == "buckets"]
    for name, colour, label in (("before", LIGHT, "2^a"), ("now", STRONG, "2^min(a, m-a)")):
        left.semilogy(
            [row["a"] for row in steps], [row[name] for row in steps], "o-", color=colour, label=label
        )
    left.set_xlabel("a, buckets are 2^a")
    left.set_ylabel("seconds a report")
    left.legend(frameon=False, fontsize=8)
    grown = [row for row in rows if row["kind"] == "reports"]
    right.loglog([row["n"] for row in grown], [row["seconds"] for row in grown], "o-", color=STRONG)
    right.set_xlabel("reports n")
    right.set_ylabel("seconds")


def headlines(rows: list[Row]) -> list[Headline]:
    plan = next(row for row in rows if row["kind"] == "plan")
    what = f"estimates of all {plan['keys']:,} keys from {plan['users']:,} reports of the shuffled model, one core"
    return [Headline(what, duration(plan["seconds"]))]


SECTION = Section(
    "shorter",
    "Decoding by the shorter side",
    measure,
    text,
    quick={"bits": 12, "buckets": (4, 8), "reports": (1000, 4000), "plans": ((4000, 1000, 8, 0.01),)},
    plot=plot,
    caption="Time to add a report over the number of buckets, and reports over their number",
    headlines=headlines,
)

if __name__ == "__main__":
    if "--decode" in sys.argv:
        print(json.dumps(decode(sys.argv[-1])))
    else:
        print(text(measure()))
