"""Accuracy at one published setting: 1e5 users, 4096 keys, 64 distinct Zipf(1.4) keys each, epsilon 1.

The mean squared error of every mechanism on the same crowd beside its own prediction, and the systematic error on
the 50 heaviest keys of an all-positive crowd (where linear codes are tested hardest).

    python benchmarks/accuracy.py [--runs 3]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from device import WIDE, suitable, task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import Entries
from hubbub.protocol.task import Task
from hubbub.simulation.populations import Population, distinct_population
from hubbub.simulation.rehearsal import simulate
from page import LIGHT, MUTED, STRONG, Headline, Section, prose, table, times
from timing import Row

#: Keys over which the slope is fitted.
HEAVY = 50


def positive(entries: Entries) -> Entries:
    """The same records with all values +1."""
    return Entries(entries.ids, np.abs(entries.values), entries.offsets)


def cases(users: int, keys: int, entries: int) -> list[tuple[str, Mechanism]]:
    """Every mechanism that hides whole records with delta 0, tuned, and the first paper's with its own constants."""
    found = [
        (f"{name}, {values}", mechanism)
        for values in ("set", "signed")
        for name, mechanism in suitable(values, keys, entries, users)
    ]
    published = make_mechanism(
        "sparse_sum", epsilon=1.0, max_entries=entries, values="signed", as_published=True
    )
    return [*found, ("sparse_sum, signed, as published", published)]


def measure(runs: int = 3, users: int = 100_000, keys: int = 4096, entries: int = 64) -> list[Row]:
    """One row per mechanism; errors are averages over runs with other codes and coins."""
    crowd = distinct_population(users, keys, entries, seed=1)
    rows = []
    for name, mechanism in cases(users, keys, entries):
        part = crowd.entries.slice(0, users // 20) if mechanism.layout.width > WIDE else crowd.entries
        rows.append({"mechanism": name, **_row(mechanism, Population(part, keys), entries, runs)})
    return rows


def _row(mechanism: Mechanism, crowd: Population, entries: int, runs: int) -> Row:
    sets, users = mechanism.values == "set", len(crowd.entries)
    truth = crowd.frequency if sets else crowd.mean
    share = np.sort(crowd.frequency)[::-1][:HEAVY]
    heavy = np.argsort(-crowd.frequency, kind="stable")[:HEAVY]
    squares, largest, slopes = [], [], []
    for run in range(runs):
        task = task_for(mechanism, crowd.keys, salt=run)
        value = _estimate(task, positive(crowd.entries) if sets else crowd.entries, run)
        squares.append(float(np.mean((value - truth) ** 2)))
        largest.append(float(np.abs(value - truth).max()))
        bright = value if sets else _estimate(task, positive(crowd.entries), run + 100)
        slopes.append(float(bright[heavy] @ share / (share @ share)))
    return {
        "values": mechanism.values,
        "bytes": mechanism.layout.width,
        "users": users,
        "entries": entries,
        "keys": crowd.keys,
        "runs": runs,
        "error": float(np.mean(squares)),
        "predicted": mechanism.variance(
            "frequency" if sets else "mean", users, frequency=entries / crowd.keys, energy=entries
        ),
        "largest": float(np.mean(largest)),
        "slope": float(np.mean(slopes)),
        "slope_error": float(np.std(slopes, ddof=1)) / runs**0.5 if runs > 1 else 0.0,
    }


def _estimate(task: Task, entries: Entries, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    state = simulate(task, entries, seed).state
    moments = task.mechanism.moments(state, task.keys, task.keys.all_ids())
    value = moments.frequency if moments.mean is None else moments.mean
    assert value is not None
    return value


def text(rows: list[Row]) -> str:
    first = rows[0]
    cells = [
        [
            row["mechanism"],
            f"{row['bytes']:,}",
            f"{row['users']:,}",
            f"{row['error'] * row['users'] / row['entries']:.3g}",
            f"{row['predicted'] * row['users'] / row['entries']:.3g}",
            f"{row['slope']:.3f} ± {row['slope_error']:.3f}",
        ]
        for row in rows
    ]
    heads = ["mechanism", "bytes", "users", "n x MSE / k", "predicted", "slope on the heaviest"]
    words = prose(
        f"""{first["users"]:,} users with {first["entries"]} distinct keys each out of {first["keys"]:,} (Zipf 1.4),
        epsilon 1 and delta 0 for the whole record, every mechanism in the planner's best form. The error is the mean
        squared error over all keys, times users over entries, so that it hardly depends on either; mechanisms with
        long reports are simulated with fewer users. Averages over {first["runs"]} collections. The slope is estimate
        over truth on the {HEAVY} heaviest keys of a crowd with all values +1; 1 is unbiased."""
    )
    return words + "\n\n" + table(heads, cells)


def plot(rows: list[Row], figure: Any) -> None:
    panels = figure.subplots(1, 2)
    for axes, values in zip(panels, ("set", "signed"), strict=True):
        own = [row for row in rows if row["values"] == values][::-1]
        heights = [row["error"] * row["users"] / row["entries"] for row in own]
        colours = [STRONG if row["mechanism"].startswith("sketch") else MUTED for row in own]
        axes.barh(range(len(own)), heights, color=colours)
        marks = [row["predicted"] * row["users"] / row["entries"] for row in own]
        axes.plot(marks, range(len(own)), "|", color="black", markersize=10, label="predicted")
        axes.set_yticks(range(len(own)), [row["mechanism"].replace(f", {values}", "") for row in own])
        axes.set_xscale("log")
        axes.set_xlim(left=min(heights) / 2)
        axes.set_xlabel("n x MSE / k")
        axes.set_title("frequency of sets" if values == "set" else "mean of signed values", fontsize=9)
        axes.grid(axis="x", color=LIGHT, alpha=0.4)
        axes.set_axisbelow(True)
    panels[0].legend(frameon=False, fontsize=8)


def headlines(rows: list[Row]) -> list[Headline]:
    found = []
    for values, what in (("set", "frequencies"), ("signed", "means")):
        own = {row["mechanism"].partition(",")[0]: row for row in rows if row["values"] == values}
        for other, paper in (("collision", "Collision"), ("coco", "CoCo")):
            if other in own and "sketch_response" in own and (values == "signed") == (other == "coco"):
                ratio = own[other]["error"] / own["sketch_response"]["error"]
                found.append(Headline(f"squared error of {what}: {paper} over sketch response", times(ratio)))
    return found


SECTION = Section(
    "accuracy",
    "Accuracy at equal epsilon",
    measure,
    text,
    quick={"runs": 1, "users": 8192, "keys": 128, "entries": 4},
    plot=plot,
    caption="Squared error of every mechanism at epsilon 1, measured and predicted",
    size=(8.0, 3.4),
    headlines=headlines,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    print(text(measure(runs=parser.parse_args().runs)))
