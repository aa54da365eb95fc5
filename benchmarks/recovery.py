"""What refinement gains: errors of refined estimates beside the unbiased ones, on Zipf and on real sets.

    python benchmarks/recovery.py [--data FOLDER] [--runs 3]

The folder holds sets as .npz files (arrays `user` and `item`, numbers `n` and `d`); retail_set.npz and
kosarak_head_set.npz are read if they are there. Longer records are cut at random to the mechanism's entries first, and
what is left is the truth. Everything of one row comes from the same reports.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.experiments.accuracy import mean_absolute_error, mean_square_error, seed_of
from hubbub.experiments.datasets import read_compact
from hubbub.model.record import sample_down
from hubbub.primitives.coins import InsecureCoins
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.populations import Population, zipf_population
from hubbub.simulation.rehearsal import simulate

FILES = {"retail": "retail_set.npz", "kosarak": "kosarak_head_set.npz"}
#: Mechanism, entries of a record and epsilon.
CASES = [
    ("sketch_response", 8, 1.0),
    ("sketch_response", 8, 2.0),
    ("collision", 8, 2.0),
    ("hadamard", 1, 1.0),
    ("compressive", 1, 1.0),
    ("compressive", 1, 3.0),
]
TOP = 20


def populations(folder: Path | None) -> dict[str, Population]:
    """Zipf, and what the folder has."""
    found = {"Zipf(1.3)": zipf_population(100_000, 10_000, seed=1, exponent=1.3, signed=False)}
    for name, file in FILES.items():
        if folder is not None and (folder / file).is_file():
            dataset = read_compact(folder / file)
            found[name] = Population(dataset.entries, dataset.keys)
    return found


def errors(crowd: Population, name: str, entries: int, epsilon: float, run: int) -> dict[str, list[float]]:
    """Mean squared error over all keys, and mean error of the most popular, for every refinement."""
    seed = seed_of(name, entries, epsilon, run)
    cut, _ = sample_down(crowd.entries, entries, InsecureCoins(seed))
    truth = Population(cut, crowd.keys).frequency
    keys = {"kind": "closed", "size": crowd.keys, "salt": f"{seed:016x}" * 2}
    mechanism = {"name": name, "epsilon": epsilon, "max_entries": entries}
    if name == "hadamard":
        mechanism["bits"] = crowd.keys.bit_length()
    task = Task.parse({"name": "recovery", "keys": keys, "mechanism": mechanism})
    state = simulate(task, cut, seed).state
    top = np.argsort(-truth, kind="stable")[:TOP]
    found: dict[str, list[float]] = {}
    ways: tuple[Any, ...] = ("none", "sparse", "simplex")
    for how in ways:
        value = estimate(task, state, refine=how).value
        found[how] = [mean_square_error(value, truth), mean_absolute_error(value[top], truth[top])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with sets as .npz files")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(f"Root mean squared error over all keys / mean error of the {TOP} most popular keys.")
    print(
        f"{'data':<11}{'mechanism':<22}{'epsilon':>7}"
        + "".join(f"{w:>20}" for w in ("none", "sparse", "simplex"))
    )
    for data, crowd in populations(given.data).items():
        for name, entries, epsilon in CASES:
            runs = [errors(crowd, name, entries, epsilon, run) for run in range(given.runs)]
            cells = []
            for how in runs[0]:
                square, popular = np.mean([run[how] for run in runs], axis=0)
                cells.append(f"{square**0.5:.5f} / {popular:.4f}")
            label = f"{name}, {entries} {'entry' if entries == 1 else 'entries'}"
            print(
                f"{data:<11}{label:<28}{epsilon:>4.1f}" + "".join(f"{cell:>20}" for cell in cells), flush=True
            )


if __name__ == "__main__":
    main()
