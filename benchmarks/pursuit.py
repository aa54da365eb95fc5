"""Sparse recovery on implicit matrices, beside scikit-learn's matching pursuit on the dense matrix.

    python benchmarks/pursuit.py

Both are given the same measurements of one compressive collection and the same number of keys to find. The dense
matrix exists for the peer alone; hubbub keeps an index and a sign per key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.mechanisms.compressive import Compressive
from hubbub.model.measurements import Measurements
from hubbub.model.record import GRID, Entries
from hubbub.server.recovery.pursuit import pursue_sparsity
from hubbub.simulation.rehearsal import simulate
from page import LIGHT, STRONG, Headline, Section, amount, duration, prose, table, times
from peers.environment import ask
from timing import Row, lap, peak_bytes, task_of


def measure(
    sizes: Sequence[int] = (1 << 10, 1 << 12, 1 << 14, 1 << 17, 1_000_000),
    dense: int = 1 << 14,
    users: int = 500_000,
    sparsity: int = 25,
) -> list[Row]:
    """One row per number of keys; the peer runs up to `dense` of them."""
    return [_case(keys, keys <= dense, users, sparsity) for keys in sizes]


def _case(keys: int, dense: bool, users: int, sparsity: int) -> Row:
    measured = _collected(keys, users, sparsity)
    found = pursue_sparsity(measured, sparsity)
    row: Row = {
        "keys": keys,
        "rows": measured.precision.size,
        "sparsity": sparsity,
        "users": users,
        "seconds": lap(lambda: pursue_sparsity(measured, sparsity)),
        "peak": peak_bytes(lambda: pursue_sparsity(measured, sparsity)),
        "dense": measured.precision.size * keys * 8,
    }
    if not dense:
        return row
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, matrix=measured.columns(np.arange(keys)), values=measured.whitened)
        peer = ask("omp", {"problem": str(path), "sparsity": sparsity})
    alike = len(set(peer["places"]) & set(found.places.tolist()))
    return {**row, "peer": peer["seconds"], "version": peer["version"], "alike": alike}


def _collected(keys: int, users: int, sparsity: int) -> Measurements:
    """Measurements of a crowd in which `sparsity` keys are held by Zipf's law."""
    rng = np.random.default_rng(1)
    task = task_of("compressive", keys, 1)
    held = rng.choice(keys, sparsity, replace=False).astype(np.uint64)
    shares = 1 / np.arange(1, sparsity + 1)
    ids = rng.choice(held, users, p=shares / shares.sum())
    values = np.full(users, GRID, dtype=np.int64)
    state = simulate(task, Entries(ids, values, np.arange(users + 1, dtype=np.int64)), seed=1).state
    assert isinstance(task.mechanism, Compressive)
    return task.mechanism.measurements(state, task.keys)


def text(rows: list[Row]) -> str:
    first = rows[0]
    cells = [
        [
            f"{row['keys']:,}",
            duration(row["seconds"]),
            amount(row["peak"], " bytes"),
            duration(row["peer"]) if "peer" in row else "",
            times(row["peer"] / row["seconds"]) if "peer" in row else "",
            amount(row["dense"], " bytes"),
            f"{row['alike']} of {row['sparsity']}" if "peer" in row else "",
        ]
        for row in rows
    ]
    versions = " ".join(sorted({row["version"] for row in rows if "version" in row}))
    words = prose(
        f"""Orthogonal matching pursuit of {first["sparsity"]} keys from {first["rows"]:,} measurements, which
        {first["users"]:,} users made with mechanism `compressive` at epsilon 1. hubbub never stores the matrix;
        scikit-learn {versions} gets it dense, in double precision, and is timed without the making of it. Both find
        the same keys where signal stands out; the last keys are decided by noise."""
    )
    heads = ["keys", "hubbub", "its memory", "scikit-learn", "ratio", "dense matrix", "keys in common"]
    return words + "\n\n" + table(heads, cells)


def plot(rows: list[Row], figure: Any) -> None:
    axes = figure.subplots()
    axes.loglog([r["keys"] for r in rows], [r["seconds"] for r in rows], "o-", color=STRONG, label="hubbub")
    peers = [row for row in rows if "peer" in row]
    axes.loglog(
        [r["keys"] for r in peers], [r["peer"] for r in peers], "o-", color=LIGHT, label="scikit-learn, dense"
    )
    axes.set_xlabel("keys")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, fontsize=8)


def headlines(rows: list[Row]) -> list[Headline]:
    last = [row for row in rows if "peer" in row][-1:]
    return [
        Headline(
            f"sparse recovery among {row['keys']:,} keys, against dense scikit-learn",
            times(row["peer"] / row["seconds"]),
        )
        for row in last
    ]


SECTION = Section(
    "recovery",
    "Sparse recovery",
    measure,
    text,
    quick={"sizes": (256, 1024), "dense": 256, "users": 20_000, "sparsity": 5},
    plot=plot,
    caption="Time of matching pursuit over the number of keys",
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
