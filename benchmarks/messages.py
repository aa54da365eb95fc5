"""Several messages in the shuffled model: measured errors and coverage beside what the planner says, and a peer.

    python benchmarks/messages.py

Rehearsals are those of `hubbub simulate --model shuffled`: made-up people, keys that nobody, 1% and 5% hold. The peer
is SDPFE (Luo, Wang and Yi): one item a person, figures as published by its authors on their machine. Ours are measured
here, in one run: the largest error over all keys, rare and frequent ones apart, and the time from reports to all
estimates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hubbub
from hubbub.device.client import privatize
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.server.fold import aggregate
from page import LIGHT, STRONG, Section, duration, prose, table, times
from timing import Row

#: People, keys, entries, messages (0: exactly one), collections.
CASES = (
    (4_000, 4_000, 32, 0, 12),
    (4_000, 4_000, 32, 1, 12),
    (4_000, 4_000, 32, 8, 12),
    (4_000, 4_000, 32, 64, 12),
    (1_000_000, 1_000_000, 32, 1, 1),
)
#: Messages of the peer, its largest error in people, and the seconds of its analysis: published.
PUBLISHED = ((9.5, 57.5, 80.0), (1.06, 222.0, 1175.0))
#: The share from which on a key counts as frequent in the comparison.
FREQUENT = 0.001
#: Keys that are estimated at a time.
_TOGETHER = 1 << 18


def measure(
    cases: Sequence[tuple[int, int, int, float, int]] = CASES,
    people: int = 100_000,
    keys: int = (1 << 24) - 1,
    server_seconds: float = 4.0,
) -> list[Row]:
    """Rows of two kinds: `rehearsed`, one per case and share, and `peer`."""
    rows = [row for case in cases for row in _rehearsed(*case)]
    return rows + [_beside(people, keys, server_seconds, *published) for published in PUBLISHED]


def _rehearsed(people: int, keys: int, entries: int, messages: float, runs: int) -> list[Row]:
    wish = {"keys": keys, "max_entries": entries, "users": people, "messages": messages}
    found = hubbub.plan(**wish, model="shuffled", epsilon=1.0, delta=1e-8)
    shown = hubbub.rehearse(found.task("rehearsal"), people, runs=runs, delta=1e-8)
    case: Row = {"kind": "rehearsed", "people": people, "keys": keys, "entries": entries}
    case |= {"messages": messages, "runs": runs, "mechanism": found.chosen.name}
    case |= {"epsilon": shown.guarantee.epsilon}
    return [{**case, **row.as_dict()} for row in shown.rows]


def zipf_items(people: int, keys: int) -> Entries:
    """One item each, by Zipf's law with exponent 1."""
    rng = np.random.default_rng(1)
    ladder = np.cumsum(1 / np.arange(1, keys + 1))
    drawn = np.searchsorted(ladder, ladder[-1] * rng.random(people)).astype(np.uint64)
    return Entries(drawn, np.full(people, GRID), np.arange(people + 1))


def _beside(
    people: int, keys: int, server_seconds: float, messages: float, error: float, seconds: float
) -> Row:
    """The planner's task for rare keys, within a time for the server; all keys are estimated, a part at a time."""
    wish = {"keys": keys, "max_entries": 1, "users": people, "messages": messages, "share": 0.0}
    found = hubbub.plan(**wish, model="shuffled", epsilon=1.0, delta=1e-10, server_seconds=server_seconds)
    task, entries = found.task("peer"), zipf_items(people, keys)
    truth = np.bincount(entries.ids.astype(np.int64), minlength=keys)
    packed, _ = privatize(task, entries, InsecureCoins(1), SimulatedSeeds(2))
    aggregate(task, packed[:8192])  # compiles
    ids, counts = task.keys.all_ids(), np.zeros(keys)
    start = time.process_time()
    state = aggregate(task, packed)
    for at in range(0, keys, _TOGETHER):
        part = slice(at, at + _TOGETHER)
        frequency = task.mechanism.moments(state, task.keys, ids[part]).frequency
        assert frequency is not None
        counts[part] = people * frequency
    spent = time.process_time() - start
    wrong, frequent = np.abs(counts - truth), truth >= FREQUENT * people
    mechanism: Any = task.mechanism
    return {
        "kind": "peer",
        "people": people,
        "keys": keys,
        "messages": messages,
        "published": error,
        "published_seconds": seconds,
        "mechanism": mechanism.name,
        "a": mechanism.buckets.bit_length() - 1,
        "bytes": mechanism.layout.width,
        "rare": float(wrong[~frequent].max()),
        "frequent": float(wrong[frequent].max()) if frequent.any() else 0.0,
        "frequent_keys": int(frequent.sum()),
        "expected": found.chosen.largest * people,
        "seconds": spent,
    }


def text(rows: list[Row]) -> str:
    done = [row for row in rows if row["kind"] == "rehearsed"]
    cells = [
        [
            f"{row['people']:,}",
            f"{row['messages']:g}" if row["messages"] else "exactly 1",
            f"{100 * row['share']:g}%",
            f"{row['predicted']:.3g}",
            f"{row['measured']:.3g}",
            f"{row['ratio']:.3f} ± {row['chance']:.3f}",
            f"{100 * row['coverage']:.1f}%",
        ]
        for row in done
    ]
    first = prose(
        f"""Central epsilon 1, delta 1e-8, up to {done[0]["entries"]} entries a record; the planner chose for a key that
        1% hold. Measured are root mean square errors over all keys of a share, with how far the ratio is from 1 by
        chance, and how many 95% intervals hold the truth (`hubbub simulate --model shuffled --messages M`)."""
    )
    heads = ["people", "messages", "share", "predicted error", "measured", "ratio", "intervals hold"]
    peers = [row for row in rows if row["kind"] == "peer"]
    beside = [
        [
            f"{row['messages']:g}",
            f"{row['published']:g}",
            f"{row['rare']:.1f}",
            f"{row['frequent']:.0f}",
            f"{row['published_seconds']:,.0f} s",
            duration(row["seconds"]),
            times(row["published_seconds"] / row["seconds"]),
        ]
        for row in peers
    ]
    one = peers[0]
    second = prose(
        f"""One item a person: {one["people"]:,} people, {one["keys"]:,} keys, central epsilon 1, delta 1e-10, items by
        Zipf's law. Beside SDPFE (Luo, Wang and Yi), whose figures are **published, not measured here**, for 2^24 keys
        and the authors' machine and data. Errors are the largest over all keys, in people. Keys held by less than
        {100 * FREQUENT:g}% are rare; {one["frequent_keys"]} are frequent here, and their errors are larger, because a
        random number of messages thins their counts. The server is given {one["mechanism"]} with 2^{one["a"]} buckets.
        Time is from reports to estimates of all keys, on one core."""
    )
    more = ["messages", "SDPFE, published", "ours, rare keys", "ours, frequent keys"]
    more += ["SDPFE's analysis, published", "ours", "ratio"]
    return "\n\n".join([first, table(heads, cells, words=2), second, table(more, beside)])


def plot(rows: list[Row], figure: Any) -> None:
    axes = figure.subplots()
    done = [row for row in rows if row["kind"] == "rehearsed" and row["messages"]]
    people = min(row["people"] for row in done)
    for share, colour in ((0.05, LIGHT), (0.01, "#4a6a8a"), (0.0, STRONG)):
        own = [row for row in done if row["share"] == share and row["people"] == people]
        many = [row["messages"] for row in own]
        axes.loglog(many, [row["predicted"] for row in own], color=colour)
        axes.loglog(
            many, [row["measured"] for row in own], "o", color=colour, label=f"{100 * share:g}% hold it"
        )
    axes.set_xlabel("messages a person")
    axes.set_ylabel("standard error")
    axes.legend(frameon=False, fontsize=8)


SECTION = Section(
    "messages",
    "Several messages",
    measure,
    text,
    quick={"cases": ((2000, 600, 8, 1, 1), (2000, 600, 8, 4, 1)), "people": 1000, "keys": 4095},
    plot=plot,
    caption="Errors over the number of messages: predicted (lines) and measured (points)",
)

if __name__ == "__main__":
    print(text(measure()))
