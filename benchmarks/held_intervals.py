"""How often intervals hold the truth, from 0.3 reports a bucket on: normal intervals beside those of hubbub.

A crowd with long-tailed lengths (or a data set in the compact form of `hubbub.experiments.datasets`) is sampled down to
k entries once; that crowd is the truth, and it is collected from `--runs` times with other coins, by every mechanism
that the planner knows for the quantity, in the planner's form. Values lie in -1:1, or in 1:5. Counted are keys that
somebody has: single intervals (one key at a time, 95%), those of heavy and of rare keys, and runs in which the
intervals for all keys together hold for all of them. Conditional means: keys of which anything is known (not marked ?),
and whose true mean is not an end of the range (there an interval can miss on one side only).

    python benchmarks/held_intervals.py --runs 200
    python benchmarks/held_intervals.py --data FOLDER --runs 200
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import click
import numpy as np

from hubbub.experiments.datasets import read_compact
from hubbub.model.mechanism import Goal, Mechanism, Moments, Quantity, ValueKind
from hubbub.model.record import GRID, Entries, sample_down
from hubbub.plan.ranking import rank
from hubbub.primitives.coins import InsecureCoins
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.quantities import normal_limits
from hubbub.simulation.populations import Population, zipf_population
from hubbub.simulation.rehearsal import repeated_states, true_values

#: Mechanisms that the planner may choose, for records of several entries, and of one.
SEVERAL = ("sketch_response", "collision", "coco", "privkv", "pckv_grr", "sampled", "sparse_sum")
SINGLE = ("hadamard", "local_hashing", "sampled")
#: Reports a bucket, epsilon and k.
REGIMES = ((0.3, 4.0, 72), (1.5, 4.0, 72), (10.0, 3.0, 12), (300.0, 2.0, 4))
#: For real data: epsilon, k and users.
REAL = ((4.0, 1, 20_000), (4.0, 72, 3_000))
RANGES = ((-1.0, 1.0), (1.0, 5.0))
QUANTITIES: tuple[Quantity, ...] = ("frequency", "mean", "conditional")
KEYS = 200
#: Where reports do not name buckets, or all of them: one size for all regimes.
USERS = 2000
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


def measure(task: Task, crowd: Population, quantity: Quantity, runs: int, seed: int) -> tuple[Held, Held]:
    """How the normal intervals held, and those of `estimate`."""
    ids, old, new = task.keys.all_ids(), Held(), Held()
    truth = true_values(task, crowd.entries, quantity, ids)
    inner = crowd.frequency > 0
    if quantity == "conditional":
        inner &= (truth > task.low + 1e-9) & (truth < task.high - 1e-9)
    for state in repeated_states(task, crowd.entries, runs, seed):
        moments = task.mechanism.moments(state, task.keys, ids)
        plain = moments if moments.counts is None else as_before(moments)
        single, together = (
            estimate(task, state, None, quantity, simultaneous=both) for both in (False, True)
        )
        sides = [(found.low, found.high) for found in (single, together)]
        widths = [-NormalDist().inv_cdf(0.025 / keys) for keys in (1, crowd.keys)]
        with np.errstate(invalid="ignore"):
            normal = [normal_limits(task, plain, quantity, width)[2:] for width in widths]
        every = np.ones(len(ids), dtype=bool)
        shown_before = ~normal[0][2] if quantity == "conditional" else every
        shown_now = np.isfinite(single.error) if quantity == "conditional" else every
        for table, limits, shown in ((old, normal, shown_before), (new, sides, shown_now)):
            one, all_keys = (
                (limit[0] <= truth) & (truth <= limit[1]) | ~np.isfinite(truth) for limit in limits
            )
            shown = shown & inner
            table.add(one[shown], all_keys, crowd.frequency[shown] > HEAVY)
    return old, new


def made_up(users: int, k: int, seed: int, signed: bool) -> Population:
    """A crowd with long-tailed lengths, sampled down to k entries a user."""
    whole = zipf_population(
        users, KEYS, seed, exponent=1.0, entries=max(2.0, 0.5 * k), tail=1.0, signed=signed
    )
    return Population(sample_down(whole.entries, k, InsecureCoins(seed))[0], whole.keys)


def from_file(path: Path, users: int, k: int, seed: int, signed: bool) -> Population:
    """Some users of a data set with its most frequent keys, sampled down to k entries a user."""
    data = read_compact(path)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(data.entries), users, replace=users > len(data.entries)))
    lengths = np.diff(data.entries.offsets)[chosen]
    places = np.concatenate([np.arange(*data.entries.offsets[i : i + 2]) for i in chosen])
    counted = np.bincount(data.entries.ids.astype(np.int64), minlength=data.keys)
    kept = np.argsort(-counted, kind="stable")[:KEYS]
    number = np.full(data.keys, -1)
    number[kept] = np.arange(len(kept))
    ids = number[data.entries.ids[places].astype(np.int64)]
    owner = np.repeat(np.arange(users), lengths)[ids >= 0]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=users))]).astype(np.int64)
    values = data.entries.values[places][ids >= 0]
    entries = Entries(
        ids[ids >= 0].astype(np.uint64), values if signed else np.full_like(values, GRID), offsets
    )
    return Population(sample_down(entries, k, InsecureCoins(seed))[0], len(kept))


def task_with(mechanism: Mechanism, low: float, high: float) -> Task:
    """Over a closed vocabulary."""
    keys = {"kind": "closed", "size": KEYS, "salt": f"{7:032x}"}
    return Task.parse({"name": "intervals", "keys": keys, "mechanism": mechanism, "low": low, "high": high})


def placed(crowd: Population, task: Task) -> Population:
    """The crowd with its values in the task's range, encoded as devices do it."""
    if task.mechanism.values == "set" or task.scale.center or task.low == -task.high:
        return crowd
    value = (task.low + task.high) / 2 + (task.high - task.low) / 2 * crowd.entries.values / GRID
    grid = np.rint(value / task.scale.half * GRID).astype(np.int64)
    return Population(replace(crowd.entries, values=grid), crowd.keys)


def background(task: Task) -> float:
    """The reports of one user that name an absent key, in the mean; 0 where reports do not name keys."""
    with np.errstate(all="ignore"):
        nobody = task.mechanism.empty(task.keys)
        counts = task.mechanism.moments(nobody, task.keys, task.keys.all_ids()).counts
    if counts is None or counts.named is None:
        return 0.0
    return counts.idle / (KEYS if isinstance(counts.reports, np.ndarray) else 1)


def settings(
    name: str, quantity: Quantity, epsilon: float, k: int, users: int, rate: float | None = None
) -> Iterator[tuple[Task, int]]:
    """The planner's form of a mechanism, for both ranges, and the users (those that make a rate); none out of reach."""
    values: ValueKind = "set" if quantity == "frequency" else "signed"
    for low, high in RANGES if quantity == "mean" else RANGES[:1]:
        center = (low + high) / 2 / max(abs(low), abs(high))
        for _ in range(3):  # the form depends a little on the users
            goal = Goal(quantity, epsilon, k, values, users=users, keys=KEYS, center=center)
            mechanism = rank(goal, name=name)[0].mechanism
            if mechanism is None:
                return
            task = task_with(mechanism, low, high)
            named = background(task)
            users = round(rate / named) if rate and named else users
            if not 20 <= users <= 40_000:
                return
        yield task, users


def measured(
    data: Path | None, sets: tuple[str, ...], users: int, k: int, signed: bool
) -> Iterator[tuple[str, Population]]:
    """The crowds to collect from, by name."""
    if data is None:
        yield "zipf", made_up(users, k, 7, signed)
        return
    for path in sorted(data.glob("*.npz")):
        if signed != path.stem.endswith("_set") and (not sets or path.stem in sets):
            yield path.stem, from_file(path, users, k, 7, signed)


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Folder with .npz files.")
@click.option("--least", default=0.0, help="Leave out regimes with fewer reports a bucket.")
@click.option("--most", default=np.inf, help="Leave out regimes with more reports a bucket.")
@click.option("--only", multiple=True, help="These mechanisms.")
@click.option("--quantity", multiple=True, type=click.Choice(QUANTITIES), default=QUANTITIES)
@click.option("--sets", multiple=True, help="These data sets of the folder.")
def main(
    runs: int,
    data: Path | None,
    least: float,
    most: float,
    only: tuple[str, ...],
    quantity: tuple[Quantity, ...],
    sets: tuple[str, ...],
) -> None:
    """Print the table."""
    print(
        "reports a bucket, mechanism, quantity, range, crowd, users; share of intervals that hold, in percent:\n"
        "normal (all, heavy, rare, together), then hubbub (the same)"
    )
    made: list[tuple[float | None, float, int, int]] = [
        (rate, epsilon, k, USERS) for rate, epsilon, k in REGIMES if least <= rate <= most
    ]
    real: list[tuple[float | None, float, int, int]] = [(None, *each) for each in REAL]
    for (rate, epsilon, k, size), single in product(made if data is None else real, (False, True)):
        for name, wanted in product(SINGLE if single else SEVERAL, quantity):
            if (only and name not in only) or (single and wanted != "frequency"):
                continue
            limit = 1 if single else k
            for task, users in settings(name, wanted, epsilon, limit, size, rate):
                signed = task.mechanism.values == "signed"
                span = f"{task.low:g}:{task.high:g}" if signed else "sets"
                for title, crowd in measured(data, sets, users, limit, signed):
                    old, new = measure(task, placed(crowd, task), wanted, runs, 1000)
                    print(
                        f"{users * background(task):7.2g} {name:16} {wanted:12} {span:5} {title:22} {users:7,} "
                        f"{old}   {new}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
