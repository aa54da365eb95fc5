"""Releases against OpenDP's ALP queryable on the same table: build, size, queries, error by true count.

    python benchmarks/release.py [--entries 10000] [--large]

OpenDP runs in the peers' environment (benchmarks/peers). Times are the best of three in one process for each library.
`--large` builds 10 million entries as well.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.coins import SecretCoins
from hubbub.primitives.errors import Refused
from hubbub.release import Goal, Release, build, plan
from hubbub.release.alp import Alp
from hubbub.release.artifact import Parameters
from hubbub.release.vector import make_vector
from page import LIGHT, MUTED, STRONG, Headline, Section, amount, duration, prose, table, times
from peers.environment import ask
from timing import Row, best, peak_bytes

LARGEST = 5000
#: Epsilon for one unit of value: all of it, and what is left where a person counts for 4 keys, or for 16.
BUDGETS = (1.0, 1 / 4, 1 / 16)
#: Releases over which errors are averaged.
REPEATS = 5
BANDS = ((1, 1), (2, 9), (10, 99), (100, LARGEST))


def counts_table(entries: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Zipf counts from 5000 down to 1, on keys drawn from 2^32."""
    rng = np.random.default_rng(1)
    keys = rng.permutation(np.unique(rng.integers(0, 1 << 32, 2 * entries, dtype=np.uint64)))[:entries]
    return keys, np.maximum(1, np.rint(LARGEST / np.arange(1, entries + 1))).astype(np.int64)


def errors(found: NDArray[np.float64], truth: NDArray[np.int64], absent: NDArray[np.float64]) -> Row:
    """Mean absolute errors of some releases: all keys, absent keys, and by true count where the table has any."""
    off = np.abs(found - truth)
    inside = {f"{low}-{high}": off[:, (truth >= low) & (truth <= high)] for low, high in BANDS}
    bands = {name: float(part.mean()) for name, part in inside.items() if part.size}
    return {"nonzero": float(off.mean()), "absent": float(np.abs(absent).mean()), "bands": bands}


def ours(name: str, parameters: Parameters, keys: Any, counts: Any, absent: Any) -> Row:
    vector, _ = make_vector(parameters.values, parameters.keys.ids(keys), counts)
    seconds, release = best(lambda: Release.project(parameters, vector, SecretCoins()))
    with tempfile.TemporaryDirectory() as folder:
        size = release.save(Path(folder) / "counts.hub")
        opened = Release.open(Path(folder) / "counts.hub")
        asking, _ = best(lambda: opened.query(keys))
    releases = [Release.project(parameters, vector, SecretCoins()) for _ in range(REPEATS)]
    found, zeros = (np.array([made.query(asked).value for made in releases]) for asked in (keys, absent))
    row = {"name": name, "build": seconds, "bytes": size, "query": asking / len(keys)}
    return {**row, **errors(found, counts, zeros)}


def opendp(epsilon: float, total: int, keys: Any, counts: Any, absent: Any) -> Row:
    """The peer asks OpenDP itself whether its parameter spends this epsilon on one unit of one entry."""
    question = {"keys": keys.tolist(), "counts": counts.tolist(), "absent": absent[:2000].tolist()}
    found = ask(
        "alp", {**question, "total": total, "largest": LARGEST, "epsilon": epsilon, "repeats": REPEATS}
    )
    row = {name: found[name] for name in ("build", "query")}
    measured = errors(np.array(found["found"]), counts, np.array(found["absent"]))
    return {"name": f"OpenDP {found['version']}", **row, "bytes": found["cells"], **measured}


def listed(goal: Goal, keys: Any, counts: Any, absent: Any) -> Row:
    """The same table when its keys, and as many others, are declared beforehand: noise on every key."""
    names = tuple(map(str, np.concatenate([keys, absent[: len(keys)]]).tolist()))
    declared = goal.model_copy(
        update={"universe": None, "vocabulary": tuple(dict.fromkeys(names)), "algorithm": None}
    )
    parameters = plan(declared).parameters
    return ours(f"hubbub, {parameters.algorithm} on a list", parameters, keys, counts, absent[: len(keys)])


def measure(entries: int = 10_000, large: int = 0) -> list[Row]:
    """Rows of our releases and OpenDP's, by budget; with `large`, one of that many entries."""
    keys, counts = counts_table(entries)
    absent = np.random.default_rng(2).integers(0, 1 << 32, 20_000, dtype=np.uint64)
    total = int(1.1 * counts.sum())
    rows = [
        {"entries": entries, "total": total, "epsilon": epsilon, **row}
        for epsilon in BUDGETS
        for row in _rows(epsilon, total, keys, counts, absent)
    ]
    return [*rows, _large(large)] if large else rows


def _rows(epsilon: float, total: int, keys: Any, counts: Any, absent: Any) -> list[Row]:
    goal = Goal(
        epsilon=epsilon,
        universe=1 << 32,
        max_nonzero=len(keys),
        max_value=LARGEST,
        max_sum=total,
        algorithm="alp",
    )
    base = plan(goal).parameters
    rows = [ours("hubbub, planned alp", base, keys, counts, absent)]
    if epsilon == 1:
        cells = 1 << (total * 50 // 4 - 1).bit_length()
        pair = Alp.make(base.values, 1.0, span=cells, levels=LARGEST // 2, gap=2)
        same = base.model_copy(update={"parts": (pair,)})
        rows.append(ours("hubbub, same bits c=2", same, keys, counts, absent))
    rows.append(listed(goal, keys, counts, absent))
    try:
        rows.append(opendp(epsilon, total, keys, counts, absent))
    except Refused as problem:
        rows.append({"name": "OpenDP", "failed": str(problem)})
    return rows


def _large(entries: int) -> Row:
    """Many entries: time, file, and memory beyond the table's own."""
    rng = np.random.default_rng(1)
    keys = rng.permutation(np.arange(entries, dtype=np.uint64) * np.uint64(400))
    counts = np.minimum(LARGEST, rng.zipf(1.8, entries))
    goal = Goal(
        epsilon=1,
        universe=1 << 32,
        max_nonzero=entries,
        max_value=LARGEST,
        max_sum=18.0 * entries,
        algorithm="alp",
    )
    seconds, made = best(lambda: build((keys, counts), goal).release, 1)
    with tempfile.TemporaryDirectory() as folder:
        size = made.save(Path(folder) / "large.hub")
    error = float(np.abs(made.query(keys[:20_000]).value - counts[:20_000]).mean())
    peak = peak_bytes(lambda: build((keys, counts), goal))
    return {
        "name": "large",
        "entries": entries,
        "build": seconds,
        "bytes": size,
        "nonzero": error,
        "peak": peak,
    }


def text(rows: list[Row]) -> str:
    compared = _compared(rows)
    bands = [f"{low}-{high}" for low, high in BANDS]
    cells = [
        [
            f"{row['epsilon']:g}",
            row["name"],
            duration(row["build"]),
            f"{row['bytes']:,}",
            duration(row["query"]),
            f"{row['nonzero']:.2f}",
            f"{row['absent']:.2f}",
            *(f"{row['bands'][band]:.2f}" if band in row["bands"] else "" for band in bands),
        ]
        for row in compared
    ]
    heads = [
        "epsilon",
        "release",
        "build",
        "bytes",
        "per query",
        "error",
        "absent keys",
        *(f"count {band}" for band in bands),
    ]
    words = prose(
        f"""{rows[0]["entries"]:,} Zipf counts up to {LARGEST:,} on keys out of 2^32, declared sum {rows[0]["total"]:,},
        by epsilon for one unit of value. Errors are mean absolute errors over {REPEATS} releases. OpenDP's size is its
        array in memory; it has no file. *Same bits* gives our array as many bits as OpenDP's has bytes; *on a list*
        declares the keys, and as many others, beforehand, and the file holds their names. See [Releases beside OpenDP's
        ALP](release-opendp.md) for the reasons."""
    )
    parts = [words, table(heads, cells)]
    parts += [f"OpenDP is missing: {row['failed']}" for row in rows if "failed" in row]
    parts += [
        f"{row['entries']:,} entries: built in {duration(row['build'])}, {amount(row['bytes'], ' bytes')}, "
        f"at most {amount(row['peak'], ' bytes')} of memory, mean error {row['nonzero']:.2f}."
        for row in rows
        if row["name"] == "large"
    ]
    return "\n\n".join(parts)


def _compared(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["name"] != "large" and "failed" not in row]


def plot(rows: list[Row], figure: Any) -> None:
    own = [row for row in _compared(rows) if row["epsilon"] == 1]
    colours = [STRONG, MUTED, LIGHT, "black"]
    axes = figure.subplots()
    bands = [f"{low}-{high}" for low, high in BANDS if f"{low}-{high}" in own[0]["bands"]]
    for i, (row, colour) in enumerate(zip(own, colours, strict=False)):
        heights = [row["absent"], *(row["bands"][band] for band in bands)]
        axes.bar([x + 0.2 * i for x in range(len(heights))], heights, 0.19, color=colour, label=row["name"])
    axes.set_xticks([x + 0.3 for x in range(len(bands) + 1)], ["0", *bands])
    axes.set_xlabel("true count")
    axes.set_ylabel("mean absolute error")
    axes.margins(y=0.3)
    axes.legend(frameon=False, fontsize=8, ncols=2)


def headlines(rows: list[Row]) -> list[Headline]:
    lines = []
    for peer in _compared(rows):
        if not peer["name"].startswith("OpenDP"):
            continue
        own = next(row for row in rows if row.get("epsilon") == peer["epsilon"])
        error = times(peer["nonzero"] / own["nonzero"])
        if peer["epsilon"] == 1:
            lines += [
                Headline("building a release, against OpenDP", times(peer["build"] / own["build"])),
                Headline("querying a release, against OpenDP", times(peer["query"] / own["query"])),
            ]
        lines.append(
            Headline(f"error of a release at epsilon {peer['epsilon']:g}: OpenDP over hubbub", error)
        )
    return lines


SECTION = Section(
    "release",
    "Releases beside OpenDP",
    measure,
    text,
    full={"large": 1_000_000},
    quick={"entries": 500},
    plot=plot,
    caption="Error of releases by true count",
    headlines=headlines,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument(
        "--large", action="store_const", const=10_000_000, default=0, help="10 million entries too"
    )
    options = parser.parse_args()
    found = measure(options.entries, options.large)
    print(text(found), *(f"{line.what}: {line.figure}" for line in headlines(found)), sep="\n")
