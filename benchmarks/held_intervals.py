"""How often intervals hold the truth, from 0.3 reports a bucket on: normal intervals beside those of hubbub.

A crowd with long-tailed lengths (or a data set in the compact form of `hubbub.experiments.datasets`) is sampled down to
k entries once; that crowd is the truth, and it is collected from `--runs` times with other coins, by a mechanism
in the form that the planner takes for the quantity. Values are in -1:1, 1:5 or -1:3. Counted are keys that have
holders: single intervals (one key at a time, 95%), and runs in which the intervals for all keys together hold for all.
Conditional means: keys of which anything is known (not marked ?), and whose true mean is not an end of the range (there
an interval can miss on one side only); and again those that stand out among all keys.

Keys of one run share its reports. So the spread of a share is that of runs: each is one draw, however many its keys.

    python benchmarks/held_intervals.py                 the rows of the guide that need no data
    python benchmarks/held_intervals.py --data FOLDER   all of them
    python benchmarks/held_intervals.py --only NAME     another mechanism, in all regimes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from hubbub.server.cases import Range
from hubbub.server.estimates import estimate
from hubbub.server.intervals import Wanted, tie_levels
from hubbub.server.quantities import normal_limits
from hubbub.simulation.populations import Population, zipf_population
from hubbub.simulation.rehearsal import repeated_states, true_values

#: What is measured: mechanisms that the planner may choose, by quantity; and in regimes with many reports a bucket.
MECHANISMS: dict[Quantity, tuple[str, ...]] = {
    "frequency": ("sketch_response",),
    "mean": ("coco", "privkv", "pckv_grr"),
    "conditional": ("sketch_response", "collision", "coco", "privkv", "pckv_grr"),
}
OFTEN: dict[Quantity, tuple[str, ...]] = {
    "frequency": ("sketch_response",),
    "mean": ("coco",),
    "conditional": ("collision", "coco"),
}
#: Mechanisms for records of one entry.
ONE_ENTRY = ("hadamard", "local_hashing")
#: Reports a bucket, epsilon and k.
REGIMES = ((0.3, 4.0, 72), (1.5, 4.0, 72), (1.5, 8.0, 2), (10.0, 3.0, 12), (300.0, 2.0, 4))
#: From so many reports a bucket on, fewer mechanisms are looked at.
MANY = 10.0
#: Of real data: mechanism, quantity, reports a bucket, epsilon and k; and the data sets.
REAL: tuple[tuple[str, Quantity, float, float, int, tuple[str, ...]], ...] = (
    ("sketch_response", "frequency", 0.3, 4.0, 72, ("retail_set", "msweb_set", "kosarak_head_set")),
    ("coco", "mean", 0.3, 4.0, 72, ("womens_clothing", "renttherunway", "bookcrossing_explicit")),
    ("coco", "conditional", 620.0, 4.0, 1, ("womens_clothing", "movielens_latest_small")),
)
TITLES = {
    "retail_set": "shopping baskets",
    "msweb_set": "page views",
    "kosarak_head_set": "news read",
    "womens_clothing": "ratings of clothes",
    "renttherunway": "rented clothes",
    "bookcrossing_explicit": "ratings of books",
    "movielens_latest_small": "ratings of films",
}
RANGES = ((-1.0, 1.0), (1.0, 5.0), (-1.0, 3.0))
QUANTITIES: tuple[Quantity, ...] = ("frequency", "mean", "conditional")
KEYS = 200
#: Where reports do not name buckets, or all of them: one size for all regimes.
USERS = 2000


class Share:
    """Intervals that held, run by run."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.of: list[int] = []

    def add(self, inside: Any) -> None:
        """One run: which intervals hold."""
        self.held.append(int(inside.sum()))
        self.of.append(inside.size)

    @property
    def percent(self) -> float:
        """Of all runs' intervals."""
        return 100 * sum(self.held) / max(sum(self.of), 1)

    @property
    def spread(self) -> float:
        """The standard error of `percent`, runs being independent."""
        off = np.array(self.held) - self.percent / 100 * np.array(self.of)
        return 100 * float(np.sqrt((off**2).sum())) / max(sum(self.of), 1)


class Held:
    """Single intervals, those of keys that stand out, and runs in which the intervals for all keys hold."""

    def __init__(self) -> None:
        self.single, self.apart, self.together = Share(), Share(), Share()

    def add(self, inside: Any, apart: Any, together: Any) -> None:
        """One run."""
        self.single.add(inside)
        self.apart.add(inside[apart])
        self.together.add(np.atleast_1d(together.all()))


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


def joined(parts: list[Moments]) -> Moments:
    """The moments of all runs as if they were more keys of one: counts that are alike are then looked at once."""

    def column(name: str, of: list[Any]) -> Any:
        first = getattr(of[0], name)
        return (
            np.concatenate([getattr(each, name) for each in of]) if isinstance(first, np.ndarray) else first
        )

    names = ("frequency", "frequency_variance", "mean", "mean_variance", "covariance")
    counts = [each.counts for each in parts]
    both = None
    if counts[0] is not None:
        both = replace(
            counts[0], **{name: column(name, counts) for name in ("reports", "named", "signed", "around")}
        )
    return Moments(**{name: column(name, parts) for name in names}, counts=both)


def limits(task: Task, moments: Moments, quantity: Quantity, levels: Any) -> tuple[Any, Any, Any]:
    """Ends of the intervals of `estimate`, and which keys nothing is known of; for all keys together without levels."""
    odds = 0.05 if levels is not None else 0.05 / KEYS
    value, _, low, high, unknown = normal_limits(task, moments, quantity, -NormalDist().inv_cdf(odds / 2))
    if moments.counts is not None:
        values = Range(task.low, task.high, task.scale.center, task.scale.half)
        if moments.counts.named is None and quantity == "frequency":
            quantity, values = "mean", Range(0.0, 1.0, 0.0, 1.0)
        wanted = Wanted(quantity, odds, values, levels, KEYS if levels is not None else 1)
        low, high = wanted.limits(moments.counts, low, high, unknown)
        low, high = np.minimum(low, value), np.maximum(high, value)
    return low, high, unknown


def measure(task: Task, crowd: Population, quantity: Quantity, runs: int, seed: int) -> tuple[Held, Held]:
    """How the normal intervals held, and those of `estimate`."""
    ids, old, new = task.keys.all_ids(), Held(), Held()
    truth = true_values(task, crowd.entries, quantity, ids)
    inner = crowd.frequency > 0
    if quantity == "conditional":
        inner &= (truth > task.low + 1e-9) & (truth < task.high - 1e-9)
    parts, ties, first = [], [], None
    for state in repeated_states(task, crowd.entries, runs, seed):
        moments = task.mechanism.moments(state, task.keys, ids)
        parts.append(moments)
        ties.append(np.zeros(len(ids)) if moments.counts is None else tie_levels(moments.counts, state, ids))
        if first is None:
            first = [estimate(task, state, None, quantity, simultaneous=both) for both in (False, True)]
    moments, apart = joined(parts), -NormalDist().inv_cdf(0.025 / KEYS)
    sides = [limits(task, moments, quantity, levels) for levels in (np.concatenate(ties), None)]
    for (low, high, _), found in zip(sides, first or (), strict=True):
        assert np.allclose(low[: len(ids)], found.low), "these are not the intervals of estimate"
        assert np.allclose(high[: len(ids)], found.high), "these are not the intervals of estimate"
    plain = moments if moments.counts is None else as_before(moments)
    with np.errstate(invalid="ignore"):  # the plain variance of a rare key may be below 0
        normal = [
            normal_limits(task, plain, quantity, width)[2:]
            for width in (-NormalDist().inv_cdf(0.025 / keys) for keys in (1, KEYS))
        ]
    clear = np.zeros((runs, len(ids)), dtype=bool)
    if quantity == "conditional" and moments.counts is not None:
        strength = Wanted(quantity, 0.05, Range(-1, 1, 0, 1), None).surprise(moments.counts)
        clear = (strength > apart).reshape(runs, -1)
    for table, ends in ((old, normal), (new, sides)):
        one, all_keys = (
            ((low.reshape(runs, -1) <= truth) & (truth <= high.reshape(runs, -1))) | ~np.isfinite(truth)
            for low, high, _ in ends
        )
        shown = ~ends[0][2].reshape(runs, -1) & inner
        for run in range(runs):
            table.add(one[run][shown[run]], clear[run][shown[run]], all_keys[run])
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
    """The planner's form of a mechanism, for all ranges, and the users (those that make a rate); none out of reach."""
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


def wanted(
    data: Path | None, only: tuple[str, ...], quantities: tuple[Quantity, ...]
) -> Iterator[tuple[str, Quantity, float, float, int, str]]:
    """Mechanism, quantity, reports a bucket, epsilon, k and crowd of each row."""
    for (rate, epsilon, k), quantity in product(REGIMES, quantities):
        for name in only or (OFTEN if rate >= MANY else MECHANISMS)[quantity]:
            yield name, quantity, rate, epsilon, 1 if name in ONE_ENTRY else k, ""
    for name, quantity, rate, epsilon, k, sets in REAL if data else ():
        if quantity in quantities and (not only or name in only):
            for each in sets:
                yield name, quantity, rate, epsilon, k, each


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Folder with .npz files.")
@click.option("--least", default=0.0, help="Leave out regimes with fewer reports a bucket.")
@click.option("--most", default=np.inf, help="Leave out regimes with more reports a bucket.")
@click.option("--only", multiple=True, help="These mechanisms, in all regimes.")
@click.option("--quantity", multiple=True, type=click.Choice(QUANTITIES), default=QUANTITIES)
@click.option("--sets", multiple=True, help="These data sets of the folder, and no made-up crowd.")
def main(
    runs: int,
    data: Path | None,
    least: float,
    most: float,
    only: tuple[str, ...],
    quantity: tuple[Quantity, ...],
    sets: tuple[str, ...],
) -> None:
    """Print the table, as it is in the guide."""
    print(
        "| reports a bucket | mechanism | quantity | values | crowd | collections | single | stand out | together |\n"
        "|---|---|---|---|---|---:|---|---|---|"
    )
    for name, asked, rate, epsilon, k, file in wanted(data, only, quantity):
        if not least <= rate <= most or (sets and file not in sets):
            continue
        for task, users in settings(name, asked, epsilon, k, USERS, rate):
            signed = task.mechanism.values == "signed"
            span = f"{task.low:g}:{task.high:g}" if signed else ""
            crowd = (
                from_file(data / f"{file}.npz", users, k, 7, signed)
                if data and file
                else made_up(users, k, 7, signed)
            )
            old, new = measure(task, placed(crowd, task), asked, runs, 1000)
            apart = f"{new.apart.percent:.1f} ± {new.apart.spread:.1f}" if asked == "conditional" else ""
            title = TITLES.get(file, "made up")
            print(
                f"| {users * background(task):.3g} | {name} | {asked} | {span} | {title} | {runs} "
                f"| {new.single.percent:.1f} ± {new.single.spread:.1f} ({old.single.percent:.1f}) | {apart} "
                f"| {new.together.percent:.1f} ({old.together.percent:.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
