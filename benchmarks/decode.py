"""Decoding all keys: one Walsh transform against hashing every key for every report (the prf family).

Ratios are measured in one run. The slow side is timed on a slice of the keys and scaled up, which is said.

    python benchmarks/decode.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hubbub.model.state import State
from hubbub.server.fold import aggregate
from page import LIGHT, STRONG, Headline, Section, amount, duration, prose, table, times
from timing import Row, best, reports_of, task_of

#: Users, keys, entries per record, and how many keys the slow side is asked for.
CASES = ((100_000, 4096, 64, 256), (1_000_000, 4096, 64, 32), (100_000, (1 << 20) - 1, 64, 64))


def measure(cases: Sequence[tuple[int, int, int, int]] = CASES) -> list[Row]:
    """From report bytes to estimates of all keys, both ways."""
    return [_case(*case) for case in cases]


def _case(users: int, keys: int, entries: int, asked: int) -> Row:
    row: Row = {"users": users, "keys": keys, "entries": entries, "asked": min(asked, keys)}
    row["walsh_absorb"], row["walsh_decode"], state = _timed("walsh", users, keys, entries, keys)
    row["prf_absorb"], slice_of, _ = _timed("prf", users, keys, entries, row["asked"])
    return {**row, "prf_decode": slice_of * keys / row["asked"], "state": state.totals.nbytes}


def _timed(family: str, users: int, keys: int, entries: int, asked: int) -> tuple[float, float, State]:
    """Seconds to absorb and to decode the asked keys, and the state."""
    task = task_of("collision", keys, entries, family=family)
    packed, ids = reports_of(task, users), task.keys.all_ids()[:asked]
    task.mechanism.moments(aggregate(task, packed[:8192]), task.keys, ids[:64])  # compiles
    absorbing, state = best(lambda: aggregate(task, packed), 2)
    decoding, _ = best(lambda: task.mechanism.moments(state, task.keys, ids), 2)
    return absorbing, decoding, state


def ratio(row: Row) -> float:
    """How much longer the published decode takes, reading the reports included."""
    return float((row["prf_absorb"] + row["prf_decode"]) / (row["walsh_absorb"] + row["walsh_decode"]))


def text(rows: list[Row]) -> str:
    heads = ["users", "keys", "entries", "absorb", "all keys", "as published", "ratio", "state"]
    cells = [
        [
            f"{row['users']:,}",
            f"{row['keys']:,}",
            str(row["entries"]),
            duration(row["walsh_absorb"]),
            duration(row["walsh_decode"]),
            duration(row["prf_absorb"] + row["prf_decode"]),
            times(ratio(row)),
            amount(row["state"], " bytes"),
        ]
        for row in rows
    ]
    slices = ", ".join(f"{row['asked']:,}" for row in rows)
    pair = 1e9 * rows[0]["prf_decode"] / rows[0]["users"] / rows[0]["keys"]
    words = prose(
        f"""From report bytes to estimates with error bars for every key, mechanism `collision`, epsilon 1. *As
        published* hashes every key for every report (family `prf`, compiled as well); it is timed on {slices} keys
        and scaled up to all of them: {pair:.1f} ns per report and key. The other columns add reports into one array
        and transform it once (family `walsh`)."""
    )
    return words + "\n\n" + table(heads, cells)


def plot(rows: list[Row], figure: Any) -> None:
    axes = figure.subplots()
    labels = [f"{amount(row['users'])} users\n{row['keys']:,} keys" for row in rows]
    here = [row["walsh_absorb"] + row["walsh_decode"] for row in rows]
    there = [row["prf_absorb"] + row["prf_decode"] for row in rows]
    for shift, heights, colour, label in (
        (-0.2, here, STRONG, "one transform"),
        (0.2, there, LIGHT, "as published"),
    ):
        places = [i + shift for i in range(len(rows))]
        bars = axes.bar(places, heights, 0.38, color=colour, label=label)
        axes.bar_label(bars, [duration(height) for height in heights], fontsize=8, padding=2)
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), labels)
    axes.set_ylabel("seconds")
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def headlines(rows: list[Row]) -> list[Headline]:
    row = rows[-1]
    return [
        Headline(
            f"decode of all {row['keys']:,} keys from {row['users']:,} reports, against the published decode",
            times(ratio(row)),
        )
    ]


SECTION = Section(
    "decode",
    "Decoding all keys",
    measure,
    text,
    quick={"cases": [(5000, 512, 8, 64), (5000, 4096, 8, 64)]},
    plot=plot,
    caption="Time to decode all keys: one transform, and as published",
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
