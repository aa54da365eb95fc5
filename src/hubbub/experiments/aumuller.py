"""The release paper (Aumüller, Lebeda, Pagh): its figures and its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hubbub.experiments import aumuller_figures as figures
from hubbub.experiments.runner import Comparison, Experiment, Job, Request, Row


def _lines(x: str, y: str, *by: str) -> Callable[[Sequence[Row], Path], None]:
    return lambda rows, path: figures.plot([row for row in rows if row.get(y)], x, y, path, by)


def _trials(function: Callable[..., list[Row]], quick: int, full: int) -> Callable[[Request], list[Job]]:
    return lambda request: [Job(function, {"trials": quick if request.quick else full})]


def _moments(rows: Sequence[Row]) -> Comparison:
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


def experiments() -> list[Experiment]:
    """Figures 3 to 5, Table 2, and counts with several units per bit."""
    return [
        Experiment(
            "aumuller-fig3",
            "Error of ALP over alpha (Aumüller et al., Figure 3)",
            _trials(figures.figure3, 500, 4000),
            _lines("alpha", "error", "curve", "collision"),
        ),
        Experiment(
            "aumuller-fig4",
            "Error distribution of ALP at alpha = 3 (Aumüller et al., Figure 4)",
            _trials(figures.figure4, 20_000, 100_000),
            published=_moments,
            remarks="The posterior estimators (median, mean) are not in the paper.",
        ),
        Experiment(
            "aumuller-fig5",
            "Error over epsilon, histogram variant (Aumüller et al., Figure 5)",
            _trials(figures.figure5, 2000, 10_000),
            _lines("epsilon", "error", "curve"),
            remarks="The curve with c units per bit is not in the paper; c = 1 is its Algorithm 10.",
        ),
        Experiment(
            "aumuller-integers",
            "Counts with c units per bit",
            _trials(figures.integer_gaps, 8000, 40_000),
            remarks="Not in the paper: one bit covers c units and flips with probability 1 / (c (e^eps - 1) + 2).",
        ),
        Experiment(
            "aumuller-table2",
            "Space, access and error of the algorithms (Aumüller et al., Table 2)",
            lambda request: [Job(figures.table2, {"entries": 500 if request.quick else 2000})],
            remarks="The paper gives orders of growth; the numbers are measured on one vector.",
        ),
    ]
