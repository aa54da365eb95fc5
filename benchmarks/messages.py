"""Several messages in the shuffled model: measured errors and coverage beside what the planner says.

    python benchmarks/messages.py

These are the rehearsals of `hubbub simulate --model shuffled`: made-up people, keys that nobody, 1% and 5% hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hubbub
from page import LIGHT, MUTED, STRONG, Section, prose, table
from timing import Row

#: People, keys, entries, messages (0: exactly one), collections.
CASES = (
    (4_000, 4_000, 32, 0, 12),
    (4_000, 4_000, 32, 1, 12),
    (4_000, 4_000, 32, 8, 12),
    (4_000, 4_000, 32, 64, 12),
    (1_000_000, 1_000_000, 32, 1, 1),
)


def measure(cases: Sequence[tuple[int, int, int, float, int]] = CASES) -> list[Row]:
    """A row per case and share."""
    return [row for case in cases for row in _rehearsed(*case)]


def _rehearsed(people: int, keys: int, entries: int, messages: float, runs: int) -> list[Row]:
    wish = {"keys": keys, "max_entries": entries, "users": people, "messages": messages}
    found = hubbub.plan(**wish, model="shuffled", epsilon=1.0, delta=1e-8)
    shown = hubbub.rehearse(found.task("rehearsal"), people, runs=runs, delta=1e-8)
    case: Row = {"people": people, "keys": keys, "entries": entries}
    case |= {"messages": messages, "runs": runs, "mechanism": found.chosen.name}
    case |= {"epsilon": shown.guarantee.epsilon}
    return [{**case, **row.as_dict()} for row in shown.rows]


def text(rows: list[Row]) -> str:
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
        for row in rows
    ]
    first = prose(
        f"""Central epsilon 1, delta 1e-8, up to {rows[0]["entries"]} entries a record; the planner chose for a key that
        1% hold. Measured are root mean square errors over all keys of a share, with how far the ratio is from 1 by
        chance, and how many 95% intervals hold the truth (`hubbub simulate --model shuffled --messages M`)."""
    )
    heads = ["people", "messages", "share", "predicted error", "measured", "ratio", "intervals hold"]
    return first + "\n\n" + table(heads, cells, words=2)


def plot(rows: list[Row], figure: Any) -> None:
    axes = figure.subplots()
    done = [row for row in rows if row["messages"]]
    people = min(row["people"] for row in done)
    for share, colour in ((0.05, LIGHT), (0.01, MUTED), (0.0, STRONG)):
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
    quick={"cases": ((2000, 600, 8, 1, 1), (2000, 600, 8, 4, 1))},
    plot=plot,
    caption="Errors over the number of messages: predicted (lines) and measured (points)",
)

if __name__ == "__main__":
    print(text(measure()))
