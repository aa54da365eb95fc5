"""How cost grows: absorbing with users, decoding with keys, both with entries; memory with the array only.

Every series is a power law on logarithmic axes, and its fitted exponent is what the design promises: absorb linear in
n, decode d log d, memory in the array of 2^m integers and not in n.

    python benchmarks/scaling.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hubbub.device.client import privatize
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.server.fold import aggregate
from page import LIGHT, MUTED, STRONG, Section, prose, table
from timing import Row, best, crowd, lap, peak_bytes, reports_of, slope, task_of

#: Series: what is measured, what it grows with, and the exponent that the design promises.
SERIES = {
    "absorb": ("absorb, seconds", "reports n", 1.0),
    "decode": ("decode all keys, seconds", "d log2 d", 1.0),
    "published": ("decode as published, seconds per million reports", "keys d", 1.0),
    "device": ("make a report, seconds", "entries k", 1.0),
    "memory n": ("peak memory of absorb, bytes", "reports n", 0.0),
    "memory d": ("peak memory of absorb and decode, bytes", "array 2^m", 1.0),
}


def measure(
    reports: Sequence[int] = (1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20),
    lots: Sequence[int] = (1 << 22, 1 << 23, 1 << 24),
    bits: Sequence[int] = (16, 17, 18, 19, 20, 21, 22),
    entries: Sequence[int] = (8, 16, 32, 64, 128, 256),
) -> list[Row]:
    """Points of all series."""
    return [
        *_by_reports(reports),
        *_memory_by_reports(lots),
        *(row for m in bits for row in _by_keys(m)),
        *_published(),
        *(_by_entries(k) for k in entries),
    ]


def _by_reports(counts: Sequence[int]) -> list[Row]:
    """Seeds of a task for a billion users are all different, so that every report is added by itself."""
    task = task_of("collision", 4096, 32, users=1 << 30)
    packed = reports_of(task, max(counts))
    aggregate(task, packed[:8192])

    def one(count: int) -> Row:
        spent, _ = best(lambda: aggregate(task, packed[:count]))
        return {"series": "absorb", "x": count, "y": spent}

    return [one(count) for count in counts]


def _memory_by_reports(counts: Sequence[int]) -> list[Row]:
    """From four million reports on, which is what is unpacked at a time."""
    task = task_of("collision", 4096, 32)
    packed = reports_of(task, max(counts))

    def one(count: int) -> Row:
        return {"series": "memory n", "x": count, "y": peak_bytes(lambda: aggregate(task, packed[:count]))}

    return [one(count) for count in counts]


def _by_keys(bits: int) -> list[Row]:
    task = task_of("collision", (1 << bits) - 1, 32)
    packed, ids = reports_of(task, 20_000), task.keys.all_ids()
    state = aggregate(task, packed)
    spent, _ = best(lambda: task.mechanism.moments(state, task.keys, ids))
    peak = peak_bytes(lambda: task.mechanism.moments(aggregate(task, packed), task.keys, ids))
    return [
        {"series": "decode", "x": bits * 2**bits, "y": spent},
        {"series": "memory d", "x": 1 << bits, "y": peak},
    ]


def _published(keys: Sequence[int] = (16, 32, 64, 128), reports: int = 50_000) -> list[Row]:
    task = task_of("collision", 4096, 32, family="prf")
    state = aggregate(task, reports_of(task, reports))

    def one(asked: int) -> Row:
        ids = task.keys.all_ids()[:asked]
        spent = lap(lambda: task.mechanism.moments(state, task.keys, ids))
        return {"series": "published", "x": asked, "y": spent * 1e6 / reports}

    return [one(asked) for asked in keys]


def _by_entries(entries: int, users: int = 16_384) -> Row:
    task, people = task_of("collision", 4096, entries), crowd(users, 4096, entries)
    privatize(task, people.slice(0, 8192), SecretCoins(), SystemSeeds())
    spent, _ = best(lambda: privatize(task, people, SecretCoins(), SystemSeeds()))
    return {"series": "device", "x": entries, "y": spent / users}


def points(rows: list[Row], name: str) -> tuple[list[float], list[float]]:
    """Both coordinates of a series."""
    own = [row for row in rows if row["series"] == name]
    return [row["x"] for row in own], [row["y"] for row in own]


def text(rows: list[Row]) -> str:
    cells = [
        [what, against, f"{promised:g}", f"{slope(*points(rows, name)):.2f}"]
        for name, (what, against, promised) in SERIES.items()
    ]
    x, y = points(rows, "memory n")
    words = prose(
        f"""Exponents fitted to times and sizes on logarithmic axes (`collision`, epsilon 1). The time to absorb
        grows with the number of reports, the time to decode with d log d, and memory with the array alone:
        {max(x) / min(x):.0f} times more reports needed {max(y) / min(y):.2f} times the memory. As published, decoding
        grows with n times d. A report costs its entries' hashes, besides a fixed part."""
    )
    return words + "\n\n" + table(["cost", "grows with", "promised exponent", "fitted"], cells)


def plot(rows: list[Row], figure: Any) -> None:
    panels = figure.subplots(2, 3).flat
    for axes, (name, (what, against, promised)) in zip(panels, SERIES.items(), strict=True):
        x, y = points(rows, name)
        fitted = slope(x, y)
        middle = np.exp(np.log(y).mean() - fitted * np.log(x).mean())
        axes.plot(x, y, "o", color=MUTED if name == "published" else STRONG, markersize=4)
        axes.plot(x, middle * np.array(x) ** fitted, color=LIGHT, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        if promised == 0:
            axes.set_ylim(min(y) / 10, max(y) * 10)
        axes.set_xlabel(against, fontsize=8)
        axes.set_title(what.replace(", seconds", ",\nseconds").replace(", bytes", ",\nbytes"), fontsize=8)
        axes.text(0.05, 0.88, f"exponent {fitted:.2f}", transform=axes.transAxes, fontsize=8)


SECTION = Section(
    "scaling",
    "How cost grows",
    measure,
    text,
    quick={
        "reports": (4096, 8192, 16_384),
        "lots": (4096, 8192),
        "bits": (16, 17, 18),
        "entries": (4, 8, 16),
    },
    plot=plot,
    caption="Cost against users, keys and entries, on logarithmic axes",
    size=(8.0, 4.6),
)

if __name__ == "__main__":
    print(text(measure()))
