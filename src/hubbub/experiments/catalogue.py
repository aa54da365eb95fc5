"""Published tables and figures that can be run again: one entry each, with what was printed beside what comes out.

Seeds are fixed, so a rerun gives the same numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub.envelope import write_atomic

Row = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """A figure or table: its rows (quick or full), its picture, the numbers the paper prints, and remarks."""

    name: str
    title: str
    rows: Callable[[bool], list[Row]]
    plot: Callable[[Sequence[Row], Path], None] | None
    published: Callable[[Sequence[Row]], list[tuple[str, float, float]]] = lambda rows: []
    remarks: str = ""

    def run(self, folder: Path, quick: bool) -> list[Path]:
        """Write NAME.csv, NAME.png and NAME.md; returns what was written."""
        rows = self.rows(quick)
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        table, page, picture = (folder / f"{self.name}.{kind}" for kind in ("csv", "md", "png"))
        write_atomic(table, text.getvalue().encode())
        if self.plot is not None:
            self.plot(rows, picture)
        write_atomic(page, self._page(rows, quick).encode())
        return [table, page] + ([picture] if self.plot is not None else [])

    def _page(self, rows: Sequence[Row], quick: bool) -> str:
        lines = [f"# {self.title}", ""]
        lines.append(
            f"Made by `hubbub reproduce {self.name} --{'quick' if quick else 'full'}`; all rows are in "
        )
        lines[-1] += f"[{self.name}.csv]({self.name}.csv)."
        if self.plot is not None:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        compared = self.published(rows)
        if compared:
            lines += ["", "| | published | here |", "|---|---|---|"]
            lines += [f"| {what} | {theirs:g} | {ours:.4g} |" for what, theirs, ours in compared]
        if self.remarks:
            lines += ["", self.remarks]
        return "\n".join(lines) + "\n"


def catalogue() -> dict[str, Experiment]:
    """Everything that can be run again, by name."""
    from hubbub.privacy.bounds import compare, draw, published_setting
    from hubbub.release import figures

    def lines(x: str, y: str, *by: str) -> Callable[[Sequence[Row], Path], None]:
        return lambda rows, path: figures.plot([row for row in rows if row.get(y)], x, y, path, by)

    def bounds(quick: bool) -> list[Row]:
        epsilons = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0) if quick else tuple(0.1 + 0.35 * i for i in range(15))
        return compare(
            lambda e: published_setting(e, max_entries=4), epsilons, (1000, 10_000, 1_000_000), 1e-6
        )

    def moments(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
        printed = {
            0.1: {"mean_absolute": 6.4, "deviation": 11, "bias": 2.3, "percentile_90": 15.8},
            0.01: {"mean_absolute": 4.8, "deviation": 7.8, "bias": 0.2, "percentile_90": 11.5},
        }
        return [
            (f"collision {row['collision']:g}: {what}", theirs, row[what])
            for row in rows
            if row["curve"] == "argmax"
            for what, theirs in printed[row["collision"]].items()
        ]

    entries = [
        Experiment(
            "wang-fig2",
            "Bounds on shuffling, Collision with four entries (Wang et al., Figure 2)",
            bounds,
            draw,
            remarks="The curve of the paper's Theorem 5 is drawn as published; it is not an upper bound for t > 2s. "
            'The column "saved" compares hubbub\'s proven bound with the best earlier proven one.',
        ),
        Experiment(
            "aumuller-fig3",
            "Error of ALP over alpha (Aumüller et al., Figure 3)",
            lambda quick: figures.figure3(trials=500 if quick else 4000),
            lines("alpha", "error", "curve", "collision"),
        ),
        Experiment(
            "aumuller-fig4",
            "Error distribution of ALP at alpha = 3 (Aumüller et al., Figure 4)",
            lambda quick: figures.figure4(trials=20_000 if quick else 100_000),
            None,
            moments,
            "The posterior estimators (median, mean) are not in the paper.",
        ),
        Experiment(
            "aumuller-fig5",
            "Error over epsilon, histogram variant (Aumüller et al., Figure 5)",
            lambda quick: figures.figure5(trials=2000 if quick else 10_000),
            lines("epsilon", "error", "curve"),
            remarks="The curve with c units per bit is not in the paper; c = 1 is its Algorithm 10.",
        ),
        Experiment(
            "aumuller-integers",
            "Counts with c units per bit",
            lambda quick: figures.integer_gaps(trials=8000 if quick else 40_000),
            None,
            remarks="Not in the paper: one bit covers c units and flips with probability 1 / (c (e^eps - 1) + 2).",
        ),
        Experiment(
            "aumuller-table2",
            "Space, access and error of the algorithms (Aumüller et al., Table 2)",
            lambda quick: figures.table2(entries=500 if quick else 2000),
            None,
            remarks="The paper gives orders of growth; the numbers are measured on one vector.",
        ),
    ]
    return {entry.name: entry for entry in entries}
