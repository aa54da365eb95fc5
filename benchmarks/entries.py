"""Does `hubbub plan --entries` find the best max_entries? Its choice beside the best one found by simulation.

For five kinds of record lengths and three quantities: the planner sees the lengths, the number of keys, the share of
the most frequent key, and nothing else. Then the crowd is collected from with many values of max_entries, as devices
and a server would, and the root mean square error is measured over the 20 most frequent keys. `excess` is how much
larger it is at the planner's choice than at the best of the values tried. Then come the choice and the excess when
the planner is not told the share, and takes Zipf's law with its usual exponent; and when it sees the records, as
with `hubbub plan --like`.

    python benchmarks/entries.py [--data FOLDER] [--runs 12] [--epsilon 2]

FOLDER holds real data as described in `hubbub.experiments.datasets` (retail_set.npz and others).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hubbub.experiments.datasets import read_compact
from hubbub.model.mechanism import Goal, Quantity, ValueKind
from hubbub.model.record import GRID, Entries
from hubbub.plan.entries import Limit, best_entries, entry_limits
from hubbub.plan.profile import TOP, Lengths, Profile
from hubbub.plan.ranking import choose
from hubbub.primitives.arrays import Int64s
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.populations import Population
from hubbub.simulation.rehearsal import simulate, true_values

USERS, KEYS = 20_000, 2000
REAL = (
    "retail_set",
    "bookcrossing_explicit",
    "kosarak_head_set",
    "msweb_set",
    "renttherunway",
    "movielens_latest_small",
)
QUANTITIES: tuple[Quantity, ...] = ("frequency", "mean", "conditional")


@dataclass(frozen=True)
class Row:
    """One crowd and quantity: the planner's choices, told the largest share and not, and errors by max_entries."""

    name: str
    quantity: Quantity
    taken: Limit
    guessed: Limit
    counted: Limit
    seconds: float
    measured: dict[int, float]

    @property
    def best(self) -> int:
        return min(self.measured, key=self.measured.__getitem__)

    def excess(self, limit: Limit) -> float:
        return self.measured[limit.max_entries] / self.measured[self.best] - 1

    def words(self) -> str:
        taken, guessed = self.taken.max_entries, self.guessed.max_entries
        return (
            f"{self.name:<22} {self.quantity:<12} {self.seconds:7.2f} {taken:>6} {self.taken.total:10.4f} "
            f"{self.measured[taken]:10.4f} {self.best:>6} {self.measured[self.best]:10.4f} "
            f"{100 * self.excess(self.taken):7.1f}% {guessed:>8} {100 * self.excess(self.guessed):7.1f}% "
            f"{self.counted.max_entries:>8} {100 * self.excess(self.counted):7.1f}%"
        )


def crowd_of(lengths: Int64s, keys: int, seed: int, exponent: float) -> Population:
    """Different Zipf keys for every user, popular ones first (exponential races); keys are liked or disliked."""
    rng = np.random.default_rng(seed)
    odds = np.arange(1, keys + 1, dtype=np.float32) ** np.float32(-exponent)
    rows = []
    for start in range(0, len(lengths), 1000):
        part = lengths[start : start + 1000]
        order = np.argsort(rng.standard_exponential((len(part), keys), dtype=np.float32) / odds, axis=1)
        rows += [np.sort(line[:length]) for line, length in zip(order, part, strict=True)]
    ids = np.concatenate(rows).astype(np.uint64)
    # Mean values whose square is that of numbers which lie evenly in the range, as the planner takes them to do.
    liking = rng.choice([-1.0, 1.0], keys) / np.sqrt(3)
    values = np.clip(liking[ids.astype(np.int64)] + rng.normal(0, 0.2, len(ids)), -1, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Population(Entries(ids, np.rint(values * GRID).astype(np.int64), offsets), keys)


def crowds(data: Path | None) -> Iterator[tuple[str, Population]]:
    """The five kinds of lengths; real data where there is any."""
    rng = np.random.default_rng(3)
    kinds = {
        "constant": np.full(USERS, 12),
        "geometric": rng.geometric(1 / 8, USERS),
        "long-tailed": np.minimum(np.ceil(rng.pareto(1.1, USERS) * 3), 500).astype(np.int64),
        "bimodal": np.where(rng.random(USERS) < 0.85, 3, 80),
    }
    for seed, (name, lengths) in enumerate(kinds.items()):
        yield name, crowd_of(np.minimum(lengths, KEYS), KEYS, seed, exponent=(1.0, 0.7, 0.9, 1.2)[seed])
    for name in REAL if data is not None else ():
        assert data is not None
        found = read_compact(data / f"{name}.npz")
        yield name, Population(found.entries, found.keys)


def measured_error(goal: Goal, crowd: Population, runs: int) -> float:
    """Root mean square error over the most frequent keys, of the task that would be taken."""
    entries = crowd.entries
    if goal.values == "set":
        entries = Entries(entries.ids, np.full(len(entries.ids), GRID), entries.offsets)
    mechanism = choose(goal)
    top = np.argsort(-crowd.frequency, kind="stable")[:TOP]
    squares = []
    for run in range(runs):
        bits = (2 * crowd.keys).bit_length()
        space = {"kind": "closed", "size": crowd.keys, "bits": bits, "salt": f"{run:032x}"}
        task = Task.parse({"name": "entries", "keys": space, "mechanism": mechanism})
        found = estimate(task, simulate(task, entries, 1000 + 2 * run).state, quantity=goal.quantity)
        truth = true_values(task, entries, goal.quantity, task.keys.all_ids())
        squares.append(np.mean((found.value - truth)[top] ** 2))
    return float(np.sqrt(np.mean(squares)))


def ladder(longest: int) -> list[int]:
    """Values of max_entries to try."""
    steps = np.rint(2.0 ** np.arange(0, 16, 0.5)).astype(int)
    return sorted({*(int(step) for step in steps if step < longest), longest})


def measure(name: str, crowd: Population, quantity: Quantity, epsilon: float, runs: int) -> Row:
    """The planner's choices and the errors near them."""
    lengths = np.diff(crowd.entries.offsets)
    values: ValueKind = "set" if quantity == "frequency" else "signed"
    goal = Goal(quantity, epsilon, 1, values, users=len(lengths), keys=crowd.keys)
    histogram = Counter(lengths.tolist())
    began = time.perf_counter()
    known = Lengths.of(histogram, crowd.keys)
    taken = entry_limits(goal, Profile.zipf(known, crowd.keys, float(crowd.frequency.max())))[0]
    seconds = time.perf_counter() - began
    guessed = best_entries(goal, histogram)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    counted = entry_limits(
        goal, Profile.of_records(owners, crowd.entries.ids.astype(np.int64), len(lengths))
    )[0]
    # Far from its own choice on both sides the error rises for good, so nothing is looked for there.
    near = [k for k in ladder(int(lengths.max())) if taken.max_entries / 5 <= k <= 5 * taken.max_entries]
    tried = sorted({*near, taken.max_entries, guessed.max_entries, counted.max_entries})
    measured = {k: measured_error(replace(goal, max_entries=k), crowd, runs) for k in tried}
    return Row(name, quantity, taken, guessed, counted, seconds, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--only", nargs="*", help="These kinds of lengths.")
    parser.add_argument("--quantities", nargs="*", default=QUANTITIES, choices=QUANTITIES)
    chosen = parser.parse_args()
    print(
        "lengths                quantity     seconds  taken  predicted   measured   best   measured   excess"
        "  untold   excess  counted   excess"
    )
    for name, crowd in crowds(chosen.data):
        for quantity in chosen.quantities if not chosen.only or name in chosen.only else ():
            if quantity != "frequency" and name.endswith("_set"):
                continue
            print(measure(name, crowd, quantity, chosen.epsilon, chosen.runs).words(), flush=True)


if __name__ == "__main__":
    main()
