"""Accuracy at one published setting: 1e5 users, 4096 keys, 64 distinct Zipf(1.4) keys each, epsilon 1.

Prints the mean squared error of every mechanism on the same crowd beside its own prediction, and the
systematic error on the 50 heaviest keys of an all-positive crowd (where linear codes are tested hardest).

    python benchmarks/accuracy.py [--runs 3]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from hubbub.experiments.populations import Population, distinct_population
from hubbub.experiments.simulate import simulate
from hubbub.record import Entries
from hubbub.task import Task

USERS, KEYS, ENTRIES = 100_000, 4096, 64
CASES: list[tuple[str, dict[str, Any]]] = [
    ("collision", {"values": "set"}),
    ("sketch_response", {"values": "set"}),
    ("coco", {"values": "signed"}),
    ("sketch_response", {"values": "signed"}),
    ("sparse_sum", {"values": "signed"}),
    ("sparse_sum", {"values": "signed", "as_published": True}),
    ("sparse_sum", {"values": "signed", "unit": "entry", "buckets": 16}),
]


def task_of(name: str, parameters: dict[str, Any], salt: int = 0) -> Task:
    keys = {"kind": "closed", "size": KEYS, "salt": f"{salt:032x}"}
    mechanism = {"name": name, "epsilon": 1.0, "max_entries": ENTRIES, **parameters}
    return Task.parse({"name": "accuracy", "keys": keys, "mechanism": mechanism})


def positive(crowd: Population) -> Entries:
    """The same records with all values +1."""
    return Entries(crowd.entries.ids, np.abs(crowd.entries.values), crowd.entries.offsets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    crowd = distinct_population(USERS, KEYS, ENTRIES, seed=1)
    print(
        f"{'mechanism':<34}{'bytes':>6}{'MSE':>11}{'predicted':>11}{'largest':>9}{'slope on the heaviest':>24}"
    )
    for name, parameters in CASES:
        sets = parameters["values"] == "set"
        truth = crowd.frequency if sets else crowd.mean
        heavy = np.argsort(-crowd.frequency)[:50]
        squares, largest, slopes = [], [], []
        for run in range(runs):
            task = task_of(name, parameters, salt=run)
            entries = positive(crowd) if sets else crowd.entries
            value = _estimate(task, entries, run)
            squares.append(float(np.mean((value - truth) ** 2)))
            largest.append(float(np.abs(value - truth).max()))
            bright = value if sets else _estimate(task, positive(crowd), run + 100)
            share = crowd.frequency[heavy]
            slopes.append(float(bright[heavy] @ share / (share @ share)))
        mechanism = task.mechanism
        predicted = mechanism.variance(mechanism.quantities[0], USERS, energy=ENTRIES)
        spread = np.std(slopes, ddof=1) / runs**0.5 if runs > 1 else 0.0
        note = " ".join(str(v) for k, v in parameters.items() if k != "as_published")
        note += " as published" if parameters.get("as_published") else ""
        print(
            f"{name + ' ' + note:<34}{mechanism.layout.width:>6}{np.mean(squares):>11.3e}{predicted:>11.3e}"
            f"{np.mean(largest):>9.3f}{np.mean(slopes):>15.4f} +- {spread:.4f}",
            flush=True,
        )


def _estimate(task: Task, entries: Entries, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    state = simulate(task, entries, seed).state
    moments = task.mechanism.moments(state, task.keys, task.keys.all_ids())
    value = moments.frequency if moments.mean is None else moments.mean
    assert value is not None
    return value


if __name__ == "__main__":
    main()
