"""Several messages in the shuffled model: measured errors and coverage beside what the planner says.

    python benchmarks/messages.py [--people 100000] [--runs 4] [--messages 0 1 8 64]

Everybody holds key 0 with probability 5%, keys 1 .. 20 with 1%, and some of 1,000 others that nobody is asked about;
2,000 keys belong to nobody. Central epsilon 1, delta 1e-8, up to 8 entries. Ratios near 1 mean that the plan is right.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import hubbub
from hubbub.model.record import GRID, Entries
from hubbub.plan.ranking import noise
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import simulate

KEYS, LIMIT = 3021, 8
GROUPS = {"5%": (0.05, range(1)), "1%": (0.01, range(1, 21)), "0": (0.0, range(1021, KEYS))}


def crowd(people: int, rng: np.random.Generator) -> Entries:
    """Records: the keys that are asked about, then others up to a random length."""
    odds = np.array([0.05] + [0.01] * 20)
    held = rng.random((people, 21)) < odds
    rows = []
    for own in held:
        asked = np.flatnonzero(own)[:LIMIT]
        others = 21 + rng.choice(1000, size=rng.integers(0, LIMIT - len(asked) + 1), replace=False)
        rows.append(np.concatenate([asked, others]))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    ids = np.concatenate(rows).astype(np.uint64)
    return Entries(ids, np.full(len(ids), GRID), offsets)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--messages", type=float, nargs="+", default=[0, 1, 8, 64])
    given = parser.parse_args()
    entries = crowd(given.people, np.random.default_rng(1))
    truth = np.bincount(entries.ids.astype(np.int64), minlength=KEYS) / given.people
    for messages in given.messages:
        found = hubbub.plan(
            keys=KEYS,
            max_entries=LIMIT,
            users=given.people,
            model="shuffled",
            epsilon=1.0,
            delta=1e-8,
            messages=messages,
        )
        task = found.task("messages")
        assert found.chosen.mechanism is not None
        started = time.perf_counter()
        errors, inside = [], []
        for run in range(given.runs):
            estimates = estimate(task, simulate(task, entries, 1000 * run).state)
            errors.append(estimates.value - truth)
            inside.append((estimates.low <= truth) & (truth <= estimates.high))
        took = (time.perf_counter() - started) / given.runs
        print(f"messages {messages or 1:g} ({found.chosen.name}, {took:.1f} s a collection)")
        for name, (share, keys) in GROUPS.items():
            measured = float(np.sqrt(np.mean(np.array(errors)[:, list(keys)] ** 2)))
            planned = noise(found.chosen.mechanism, found.goal, share) ** 0.5
            held = float(np.mean(np.array(inside)[:, list(keys)]))
            print(
                f"  share {name:>3}: planned {planned:.3g}, measured {measured:.3g}, ratio {measured / planned:.3f}",
                end="",
            )
            print(f", intervals hold {100 * held:.1f}% of {given.runs * len(keys):,}")


if __name__ == "__main__":
    main()
