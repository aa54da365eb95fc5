"""Frequencies on real sets: market baskets, page visits and a click stream. No paper prints this table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hubbub.experiments.accuracy import (
    collected,
    coverage,
    largest_error,
    mean_absolute_error,
    mean_square_error,
    seed_of,
    with_error,
)
from hubbub.experiments.datasets import read_compact
from hubbub.experiments.runner import Experiment, Job, Request, Row, averaged
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Goal, Mechanism
from hubbub.plan.ranking import choose
from hubbub.primitives.errors import Refused

FILES = {"retail": "retail_set.npz", "kosarak": "kosarak_head_set.npz", "msweb": "msweb_set.npz"}
EPSILONS = (1.0, 2.0)
TOP = 50
#: Records longer than all but this share of records are cut.
LONGEST = 0.99
BY = ("data", "users", "keys", "entries", "dropped", "epsilon", "mechanism", "picked", "bytes")


def line_up(users: int, keys: int, entries: int, epsilon: float) -> dict[str, Mechanism]:
    """What is compared; PCKV takes a set as values of 1."""
    both = {"epsilon": epsilon, "max_entries": entries}
    found = {
        "collision": make_mechanism("collision", users=users, **both),
        "sampled (OLH)": make_mechanism("sampled", users=users, **both),
        "pckv_grr": make_mechanism("pckv_grr", size=keys, **both),
        "sketch_response": make_mechanism("sketch_response", users=users, **both),
    }
    if keys <= 4096:
        found["pckv_ue"] = make_mechanism("pckv_ue", size=keys, **both)
    return found


def measure_set(data: str, name: str, repetition: int) -> list[Row]:
    """One data set at every epsilon: long records are cut at random first, and what is left is the truth."""
    dataset = read_compact(Path(data))
    entries = int(np.quantile(dataset.rated, LONGEST))
    crowd = dataset.cut(entries, seed_of("cut", name, repetition))
    users, truth = len(crowd.entries), crowd.frequency
    top = np.argsort(-truth, kind="stable")[:TOP]
    dropped = round(1 - len(crowd.entries.ids) / len(dataset.entries.ids), 4)
    about = {"data": name, "users": users, "keys": crowd.keys, "entries": entries, "dropped": dropped}
    rows = []
    for epsilon in EPSILONS:
        mechanisms = line_up(users, crowd.keys, entries, epsilon)
        pick = choose(Goal("frequency", epsilon, entries, users=users, keys=crowd.keys), best=True)
        if pick.name not in {mechanism.name for mechanism in mechanisms.values()}:
            mechanisms[pick.name] = pick
        for label, mechanism in mechanisms.items():
            seed = seed_of("sets", name, label, epsilon, repetition)
            ids = np.arange(crowd.keys, dtype=np.uint64)
            found, variance = collected(mechanism, crowd.entries, crowd.keys, ids, "frequency", seed)
            rows.append(
                {
                    **about,
                    "epsilon": epsilon,
                    "mechanism": label,
                    "picked": "yes" if mechanism.name == pick.name else "",
                    "bytes": mechanism.layout.width,
                    "L_inf": largest_error(found, truth),
                    "MSE": mean_square_error(found, truth),
                    "top_50_mean_absolute": mean_absolute_error(found[top], truth[top]),
                    "coverage": coverage(found, variance, truth),
                    "largest_frequency": float(truth.max()),
                    "frequency_50": float(truth[top[-1]]),
                }
            )
    return rows


def _jobs(request: Request) -> list[Job]:
    missing = [file for file in FILES.values() if not (request.data and (request.data / file).is_file())]
    if missing:
        raise Refused(
            f"This needs data that is not shipped: put {', '.join(missing)} into {request.data or 'a folder'} and "
            "give the folder as --data."
        )
    return [
        Job(measure_set, {"data": str(request.data / file), "name": name, "repetition": repetition})
        for name, file in FILES.items()
        if request.data
        for repetition in range(2 if request.quick else 10)
    ]


def about(rows: Sequence[Row]) -> str:
    """The table, and what is in it."""
    lines = [
        "| data | epsilon | mechanism | bytes | L_inf | MSE | mean error, top 50 | coverage |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["data"], row["epsilon"], row["MSE"])):
        chosen = f"**{row['mechanism']}**" if row["picked"] else row["mechanism"]
        errors = [with_error(row, column) for column in ("L_inf", "MSE", "top_50_mean_absolute")]
        cells = (row["data"], f"{row['epsilon']:g}", chosen, f"{row['bytes']}", *errors)
        covered = f"{100 * row['coverage']:.1f}%"
        lines.append(f"| {' | '.join([*cells, covered])} |")
    crowds = {row["data"]: row for row in rows}.values()
    sizes = "; ".join(
        f"{row['data']}: {row['users']:,} users, {row['keys']:,} keys, at most {row['entries']} entries a record "
        f"({100 * row['dropped']:.1f}% of all entries cut away), highest frequency {row['largest_frequency']:.3f}, "
        f"50th {row['frequency_50']:.4f}"
        for row in crowds
    )
    return "\n".join(lines) + (
        f"\n\nWhat the planner picks is in bold. Means of {rows[0]['repetitions']} repetitions. {sizes}.\n\n"
        "The limit is the 99th percentile of the records' lengths; longer records are cut at random, and errors are "
        "measured against the frequencies in the cut records. (For a collection of your own, `hubbub plan` weighs what "
        "cutting loses against the noise, which grows with the limit: a lower limit is often better.) `L_inf` (largest "
        "error) and `MSE` (mean squared error) are over all keys, the mean absolute error over the 50 most frequent "
        "ones. PCKV is given the sets as values of 1 and estimates their frequencies; sampling answers for one random "
        "entry by optimized local hashing. Estimates are unbiased and scored as they are.\n\n"
        "`coverage` is the share of keys whose 95% interval holds the truth. It is too high for pckv_grr: its error "
        "bar grows with the estimated frequency, and where that is mostly noise the bar is wider than it need be.\n\n"
        "retail: Belgian market baskets (Brijs); kosarak: the first 36,682 sessions of a Hungarian news portal "
        "(Bodon), not a random sample; msweb: areas of a web site by user (Breese, Heckerman, Kadie 1998). None of the "
        "data is shipped."
    )


def experiments() -> list[Experiment]:
    """The table."""
    return [
        Experiment(
            "sets",
            "Frequencies on real sets: retail, kosarak, msweb",
            _jobs,
            summarize=lambda rows: averaged(rows, BY),
            remarks=about,
        )
    ]
