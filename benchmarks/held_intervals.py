"""How often intervals hold the truth, from 0.3 to 1,000 reports a bucket: normal intervals beside those of hubbub.

A crowd with long-tailed lengths (or a data set in the compact form of `hubbub.experiments.datasets`) is sampled down to
k entries once; that crowd is the truth, and it is collected from `--runs` times with other coins. Counted are keys that
somebody has: single intervals (one key at a time, 95%), those of heavy and of rare keys, and runs in which the
intervals for all keys together hold for all of them. Conditional means: keys that are not marked.

    python benchmarks/held_intervals.py --runs 200
    python benchmarks/held_intervals.py --data FOLDER --runs 40
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import click
import numpy as np

from hubbub.checks.conformance import task_for
from hubbub.experiments.datasets import read_compact
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Moments, Quantity
from hubbub.model.record import GRID, Entries, sample_down
from hubbub.primitives.coins import InsecureCoins
from hubbub.protocol.task import Task
from hubbub.server.estimates import _quantity, estimate
from hubbub.simulation.populations import Population, zipf_population
from hubbub.simulation.rehearsal import repeated_states, true_values

#: (mechanism, parameters, epsilon, k): what the planner may choose, from large reports to small ones.
MECHANISMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sketch_response", {}),
    ("collision", {}),
    ("sketch_response", {"values": "signed", "count_names": True}),
    ("sketch_response", {"values": "signed", "mode": "events"}),
    ("coco", {"values": "signed", "target": "conditional"}),
    ("pckv_grr", {"values": "signed"}),
    ("privkv", {"values": "signed"}),
)
#: Reports a bucket, epsilon and k.
REGIMES = (
    (0.3, 4.0, 72),
    (1.0, 4.0, 32),
    (1.5, 4.0, 72),
    (3.0, 3.0, 32),
    (10.0, 3.0, 16),
    (100.0, 2.0, 8),
    (1000.0, 1.0, 8),
)
HEAVY = 0.05


@dataclass
class Held:
    """Intervals looked at and intervals that held, and the same for runs."""

    keys: int = 0
    held: int = 0
    heavy: int = 0
    heavy_held: int = 0
    runs: int = 0
    all_held: int = 0

    def add(self, inside: Any, together: Any, heavy: Any) -> None:
        """One run: which single intervals hold, which of those for all keys, and which keys are heavy."""
        self.keys += len(inside)
        self.held += int(inside.sum())
        self.heavy += int(heavy.sum())
        self.heavy_held += int(inside[heavy].sum())
        self.runs += 1
        self.all_held += bool(together.all())

    def __str__(self) -> str:
        shares = (
            (self.held, self.keys),
            (self.heavy_held, self.heavy),
            (self.held - self.heavy_held, self.keys - self.heavy),
            (self.all_held, self.runs),
        )
        return " ".join(f"{100 * part / whole:6.1f}" if whole else "     -" for part, whole in shares)


def as_before(moments: Moments) -> Moments:
    """The variances of plain normal intervals: with the estimated frequency cut at 0 and 1, noise and all."""
    counts = moments.counts
    assert counts is not None
    n = np.maximum(counts.reports, 1)
    alone, held = counts.signed_noise
    if moments.frequency is None:
        share = np.minimum(np.abs(counts.mean), 1)
        mean = (alone + held * share) / counts.signed_gain**2 - share**2
        return replace(moments, mean_variance=mean / n, counts=None)
    share = np.clip(counts.frequency, 0, 1)
    noise = counts.noise[0] + counts.noise[1] * share + counts.noise[2] * share * (1 - share)
    if counts.signed is None:
        return replace(moments, frequency_variance=noise / (n * counts.gain**2), counts=None)
    middle = np.clip(counts.mean, -share, share)
    square = middle**2 / np.maximum(share, 1e-12)
    asked = counts.noise[2] / counts.gain**2
    mean = (alone + held * share) / counts.signed_gain**2 - square + asked * (square - middle**2)
    covariance = middle * ((1 - counts.idle - counts.gain) / counts.gain + asked * (1 - share))
    return replace(
        moments,
        frequency_variance=noise / (n * counts.gain**2),
        mean_variance=mean / n,
        covariance=covariance / n,
        counts=None,
    )


def measure(task: Task, crowd: Population, runs: int, seed: int) -> Iterator[tuple[Quantity, Held, Held]]:
    """Per quantity: how the normal intervals held, and those of `estimate`."""
    ids = task.keys.all_ids()
    quantities = task.mechanism.quantities
    tables: dict[Quantity, tuple[Held, Held]] = {quantity: (Held(), Held()) for quantity in quantities}
    truths = {quantity: true_values(task, crowd.entries, quantity, ids) for quantity in quantities}
    for state in repeated_states(task, crowd.entries, runs, seed):
        moments = as_before(task.mechanism.moments(state, task.keys, ids))
        for quantity in quantities:
            truth = truths[quantity]
            single, together = (
                estimate(task, state, None, quantity, simultaneous=both) for both in (False, True)
            )
            new = [(found.low, found.high, found.flagged) for found in (single, together)]
            old = [
                _quantity(task, moments, quantity, -NormalDist().inv_cdf(0.025 / keys))[2:]
                for keys in (1, crowd.keys)
            ]
            for table, sides in zip(tables[quantity], (old, new), strict=True):
                inside, all_inside = (
                    ((low <= truth) & (truth <= high) | ~np.isfinite(truth), ~flagged)
                    for low, high, flagged in sides
                )
                shown = inside[1] & (crowd.frequency > 0)
                table.add(inside[0][shown], all_inside[0], crowd.frequency[shown] > HEAVY)
    for quantity in quantities:
        yield quantity, *tables[quantity]


def crowds(
    users: int, k: int, seed: int, folder: Path | None, signed: bool
) -> Iterator[tuple[str, Population]]:
    """Long-tailed crowds of this size, made up or from files, sampled down to k entries a user."""
    if folder is None:
        whole = zipf_population(
            users, 400, seed, exponent=1.0, entries=max(2.0, 0.5 * k), tail=1.0, signed=signed
        )
        yield "zipf", Population(sample_down(whole.entries, k, InsecureCoins(seed))[0], whole.keys)
        return
    for path in sorted(folder.glob("*.npz")):
        data = read_compact(path)
        if len(data.entries) < users or signed == path.stem.endswith("_set"):
            continue
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(len(data.entries), users, replace=False))
        lengths = np.diff(data.entries.offsets)[chosen]
        places = np.concatenate([np.arange(*data.entries.offsets[i : i + 2]) for i in chosen])
        kept = np.argsort(
            -np.bincount(data.entries.ids.astype(np.int64), minlength=data.keys), kind="stable"
        )[:2000]
        number = np.full(data.keys, -1)
        number[kept] = np.arange(len(kept))
        ids = number[data.entries.ids[places].astype(np.int64)]
        owner = np.repeat(np.arange(users), lengths)[ids >= 0]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=users))]).astype(np.int64)
        values = data.entries.values[places][ids >= 0]
        entries = Entries(
            ids[ids >= 0].astype(np.uint64), values if signed else np.full_like(values, GRID), offsets
        )
        yield path.stem, Population(sample_down(entries, k, InsecureCoins(seed))[0], len(kept))


def background(mechanism: Any) -> float:
    """Reports by which an absent key is named, out of all."""
    if hasattr(mechanism, "buckets"):
        return float(1 / mechanism.buckets)
    rates = mechanism.rates
    return float(2 * rates.absent) / (mechanism.size if mechanism.name == "privkv" else 1)


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Folder with .npz files.")
@click.option("--least", default=0.0, help="Leave out regimes with fewer reports a bucket.")
@click.option("--most", default=np.inf, help="Leave out regimes with more reports a bucket.")
@click.option("--only", default="", help="One mechanism.")
def main(runs: int, data: Path | None, least: float, most: float, only: str) -> None:
    """Print the table."""
    print(
        "reports a bucket, mechanism, quantity, crowd, users; share of intervals that hold, in percent:\n"
        "normal (all, heavy, rare, together), then hubbub (the same)"
    )
    for rate, epsilon, k in REGIMES:
        for name, parameters in MECHANISMS:
            if not least <= rate <= most or (only and only != name):
                continue
            size = {"size": 400 if data is None else 2000} if name in ("pckv_grr", "privkv") else {}
            mechanism = make_mechanism(name, epsilon=epsilon, max_entries=k, **parameters, **size)
            users = round(rate / background(mechanism))
            if users > 200_000 or users < 20:
                continue
            signed = mechanism.values == "signed"
            for title, crowd in crowds(users, k, 7, data, signed):
                task = task_for(mechanism, crowd.keys)
                for quantity, old, new in measure(task, crowd, runs, 1000):
                    mode = parameters.get("mode", "")
                    print(
                        f"{rate:7g} {name + ' ' + mode:24} {quantity:12} {title:20} {users:7,} {old}   {new}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
