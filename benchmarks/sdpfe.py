"""One item a person in the shuffled model, beside SDPFE (Luo, Wang and Yi), whose figures are the published ones.

    python benchmarks/sdpfe.py

Theirs: 10^5 people, 2^24 keys, central epsilon 1, delta 1e-10; the largest error over all keys, and the time of the
analysis, on their machine and data. Ours: the same sizes, items by Zipf's law, the same numbers of messages. The
largest of 16 million errors varies from run to run, so there are several, with seeds 1, 2, ...; all of them count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hubbub.device.client import privatize
from hubbub.model.mechanism import Goal
from hubbub.model.record import GRID, Entries
from hubbub.plan.ranking import rank
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from page import Headline, Section, duration, prose, table, times
from timing import Row

#: Messages, the largest error in people, and the seconds of the analysis: published.
PUBLISHED = {9.5: (57.5, 80.0), 1.06: (222.0, 1175.0)}
#: Messages, and bits of buckets. 14 is what the planner takes for rare keys; the others show how much depends on it.
SETTINGS = ((9.5, 14), (9.5, 13), (9.5, 15), (1.06, 14))
#: Bits of buckets and seed together: the most for which the votes of a seed are added up first.
_CELL_BITS = 24
#: The share from which on a key counts as frequent.
FREQUENT = 0.001
#: Keys that are estimated at a time.
_TOGETHER = 1 << 18


def measure(
    people: int = 100_000,
    keys: int = (1 << 24) - 1,
    settings: Sequence[tuple[float, int]] = SETTINGS,
    runs: int = 5,
) -> list[Row]:
    """One row per setting and run."""
    entries = zipf_items(people, keys)
    truth = np.bincount(entries.ids.astype(np.int64), minlength=keys)
    return [row for setting in settings for row in _setting(entries, truth, *setting, runs)]


def zipf_items(people: int, keys: int) -> Entries:
    """One item each, by Zipf's law with exponent 1."""
    rng = np.random.default_rng(1)
    ladder = np.cumsum(1 / np.arange(1, keys + 1))
    drawn = np.searchsorted(ladder, ladder[-1] * rng.random(people)).astype(np.uint64)
    return Entries(drawn, np.full(people, GRID), np.arange(people + 1))


def _setting(entries: Entries, truth: Any, messages: float, bits: int, runs: int) -> list[Row]:
    people, keys = len(entries), len(truth)
    goal = Goal(
        "frequency", 1.0, 1, users=people, keys=keys, central_epsilon=1.0, delta=1e-10, messages=messages
    )
    settings = {"buckets": 1 << bits, "seed_bits": _CELL_BITS - bits}
    mechanism = rank(goal, name="collision", settings=settings)[0].mechanism
    space = {"kind": "closed", "size": keys, "salt": "5" * 32}
    task = Task.parse({"name": "sdpfe", "keys": space, "mechanism": mechanism, "messages": messages})
    frequent = truth >= FREQUENT * people
    rows: list[Row] = []
    for seed in range(1, runs + 1):
        packed, _ = privatize(task, entries, InsecureCoins(2 * seed), SimulatedSeeds(2 * seed + 1))
        aggregate(task, packed[:8192])  # compiles
        spent, counts = _analysed(task, packed, people)
        wrong = np.abs(counts - truth)
        row: Row = {"people": people, "keys": keys, "messages": messages, "a": bits, "seed": seed}
        row |= {"rare": float(wrong[~frequent].max()), "frequent": float(wrong[frequent].max())}
        rows.append(row | {"frequent_keys": int(frequent.sum()), "seconds": spent})
    return rows


def _analysed(task: Task, packed: Any, people: int) -> tuple[float, Any]:
    """Processor time from reports to estimates of all keys, and the estimates as numbers of people."""
    ids = task.keys.all_ids()
    counts = np.zeros(len(ids))
    start = time.process_time()
    state = aggregate(task, packed)
    for at in range(0, len(ids), _TOGETHER):
        part = slice(at, at + _TOGETHER)
        frequency = task.mechanism.moments(state, task.keys, ids[part]).frequency
        assert frequency is not None
        counts[part] = people * frequency
    return time.process_time() - start, counts


def _groups(rows: list[Row]) -> list[list[Row]]:
    """Rows of the same setting, in their order."""
    settings = dict.fromkeys((row["messages"], row["a"]) for row in rows)
    return [[row for row in rows if (row["messages"], row["a"]) == setting] for setting in settings]


def text(rows: list[Row]) -> str:
    cells = []
    for own in _groups(rows):
        error, seconds = PUBLISHED[own[0]["messages"]]
        rare, spent = [row["rare"] for row in own], statistics.median(row["seconds"] for row in own)
        cells.append(
            [
                f"{own[0]['messages']:g}",
                f"2^{own[0]['a']}",
                f"{error:g}",
                f"{statistics.median(rare):.1f} ({min(rare):.1f} to {max(rare):.1f})",
                f"{statistics.median(row['frequent'] for row in own):.0f}",
                f"{seconds:,.0f} s",
                duration(spent),
                times(seconds / spent),
            ]
        )
    one, runs = rows[0], len(_groups(rows)[0])
    words = prose(
        f"""{one["people"]:,} people with one item each of {one["keys"]:,} keys, central epsilon 1, delta 1e-10, items
        by Zipf's law. Figures of SDPFE are **published, not measured here**: for 2^24 keys, with its authors' data and
        machine. Errors are the largest over all keys, in people; ours are the median of {runs} runs, and all of them in
        brackets. Keys that less than {100 * FREQUENT:g}% hold are rare; {one["frequent_keys"]} are frequent here, whose
        counts a random number of messages thins. The planner takes 2^14 buckets; the others are there to show how much
        depends on it. Seeds are set by hand, to so few bits that the votes of a seed can be added up first; with the
        planner's longer seeds the analysis takes longer. It is from reports to estimates of all keys, on one core."""
    )
    heads = [
        "messages",
        "buckets",
        "SDPFE",
        "rare keys",
        "frequent keys",
        "SDPFE's analysis",
        "ours",
        "ratio",
    ]
    return words + "\n\n" + table(heads, cells)


def headlines(rows: list[Row]) -> list[Headline]:
    own = _groups(rows)[0]
    spent = statistics.median(row["seconds"] for row in own)
    what = (
        f"analysis of {own[0]['keys']:,} keys at {own[0]['messages']:g} messages, against SDPFE as published"
    )
    return [Headline(what, times(PUBLISHED[own[0]["messages"]][1] / spent))]


SECTION = Section(
    "sdpfe",
    "One item a person, beside SDPFE",
    measure,
    text,
    quick={"people": 2000, "keys": (1 << 16) - 1, "settings": ((9.5, 14), (1.06, 14)), "runs": 2},
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
