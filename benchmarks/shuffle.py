"""The shuffle accountant: time, memory and precision over the number of reports.

    python benchmarks/shuffle.py [--epsilon 1] [--delta 1e-6]

The yardstick is the usual way to compute such bounds: condition on the number of clones and sum one pair of
binomial tails for each (Feldman, McMillan, Talwar 2021), over a window that leaves out 1e-20. It covers mechanisms
without outcomes that neither record favours, so both are run for randomized response. It needs scipy.
Times are the best of three, in one process.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hubbub.primitives.errors import Refused, optional
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.privacy.compose import compose
from hubbub.privacy.shuffle import Crowd, any_mechanism, response
from page import LIGHT, STRONG, Headline, Section, amount, duration, prose, table, times
from timing import Row, best, peak_bytes

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 1_000_000_000, 1_000_000_000_000)


def by_tails(crowd: Crowd, epsilon: float) -> float:
    """delta(epsilon) of a crowd without neutral outcomes, one pair of binomial tails per number of clones."""
    from scipy.stats import binom

    n, alpha = crowd.reports, math.exp(epsilon)
    own, other, active = (
        float(x) for x in (crowd.own / crowd.cover, crowd.other / crowd.cover, 2 * crowd.cover)
    )
    width = 9.6 * math.sqrt(n * active * (1 - active)) + 60
    clones = np.arange(max(1, int(n * active - width)), min(n, int(n * active + width)) + 1, dtype=np.float64)
    gap = (own - other) * (1 + alpha)
    level = clones * (alpha * own - other) / gap
    last = np.floor(level)
    mean = clones / 2 * binom.sf(last - 1, clones - 1, 0.5) - level * binom.sf(last, clones, 0.5)
    return float(binom.pmf(clones, n, active) @ (gap * mean)) / n


def measure(
    sizes: Sequence[int] = SIZES,
    most_tails: int = 1_000_000_000,
    rounds: Sequence[int] = (10_000, 1_000_000),
    epsilon: float = 1.0,
    delta: float = 1e-6,
) -> list[Row]:
    """Rows of three kinds: `epsilon` of Collision, `delta` beside the yardstick, and `rounds` of ten."""
    optional("scipy", "dev")
    weight = favoured_weight(epsilon)
    shared = {"local": epsilon, "delta": delta}
    rows = [_epsilon(response(n, 4, 17, weight, UNIT), delta) for n in sizes]
    rows += [_against_tails(any_mechanism(n, epsilon), delta) for n in sizes if n <= most_tails]
    for n in rounds:
        for method in ("loss", "basic"):
            rows += _ten_rounds(response(n, 4, 17, weight, UNIT), delta, method)
    return [{**shared, **row} for row in rows]


def _epsilon(crowd: Crowd, delta: float) -> Row:
    seconds, found = best(lambda: crowd.epsilon(delta))
    memory = peak_bytes(lambda: crowd.epsilon(delta))
    return {"kind": "epsilon", "reports": crowd.reports, "epsilon": found, "seconds": seconds, "peak": memory}


def _against_tails(crowd: Crowd, delta: float) -> Row:
    epsilon = crowd.epsilon(delta)
    ours, value = best(lambda: crowd.delta(epsilon))
    theirs, other = best(lambda: by_tails(crowd, epsilon))
    return {
        "kind": "delta",
        "reports": crowd.reports,
        "seconds": ours,
        "tails": theirs,
        "difference": value / other - 1,
    }


def _ten_rounds(crowd: Crowd, delta: float, method: Any) -> list[Row]:
    try:
        seconds, total = best(lambda: compose([crowd] * 10, delta, method), 1)
    except Refused:  # the loss distribution comes with an extra
        return []
    return [
        {
            "kind": "rounds",
            "reports": crowd.reports,
            "method": method,
            "epsilon": total.epsilon,
            "seconds": seconds,
        }
    ]


def text(rows: list[Row]) -> str:
    single = [row for row in rows if row["kind"] == "epsilon"]
    beside = {row["reports"]: row for row in rows if row["kind"] == "delta"}
    cells = []
    for row in single:
        other = beside.get(row["reports"])
        compared = (
            [
                duration(other["seconds"]),
                times(other["tails"] / other["seconds"]),
                f"{other['difference']:.0e}",
            ]
            if other
            else ["", "", ""]
        )
        cells.append([f"{row['reports']:,}", f"{row['epsilon']:.4g}", duration(row["seconds"]), *compared])
    heads = ["reports", "central epsilon", "time", "one delta", "faster than by tails", "relative difference"]
    memory = max(row["peak"] for row in single)
    rounds = [row for row in rows if row["kind"] == "rounds"]
    composed = [
        [f"{row['reports']:,}", row["method"], f"{row['epsilon']:.4g}", duration(row["seconds"])]
        for row in rounds
    ]
    words = prose(
        f"""Epsilon after shuffling at delta = {rows[0]["delta"]:g}, Collision with 4 entries, 17 buckets and local
        epsilon {rows[0]["local"]:g}; at most {amount(memory, " bytes")} of memory. The last three columns are one value
        of delta for randomized response, beside one pair of binomial tails per number of clones, the usual way."""
    )
    parts = [words, table(heads, cells)]
    if rounds:
        parts += ["Ten rounds composed:", table(["reports", "method", "epsilon", "time"], composed, words=2)]
    return "\n\n".join(parts)


def plot(rows: list[Row], figure: Any) -> None:
    own = [row for row in rows if row["kind"] == "delta"]
    axes = figure.subplots()
    sizes = [row["reports"] for row in own]
    axes.loglog(sizes, [row["tails"] for row in own], "o-", color=LIGHT, label="pairs of tails")
    axes.loglog(sizes, [row["seconds"] for row in own], "o-", color=STRONG, label="hubbub")
    axes.set_xlabel("reports")
    axes.set_ylabel("seconds for one delta")
    axes.legend(frameon=False, fontsize=8)


def headlines(rows: list[Row]) -> list[Headline]:
    last = [row for row in rows if row["kind"] == "delta"][-1]
    what = f"shuffle accountant at {amount(last['reports'])} reports, against sums of binomial tails"
    return [Headline(what, times(last["tails"] / last["seconds"]))]


SECTION = Section(
    "shuffle",
    "Shuffle accountant",
    measure,
    text,
    quick={"sizes": (1000, 10_000), "rounds": ()},
    plot=plot,
    caption="Time of the shuffle accountant over the number of reports",
    headlines=headlines,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    print(text(measure(**vars(parser.parse_args()))))
