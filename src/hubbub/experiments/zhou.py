"""The paper on sparse vector aggregation (Zhou et al.): Figures 1 to 3 and Tables IV to VI.

A job makes one crowd and shows it to all mechanisms; `hubbub.experiments.zhou_pages` draws and explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from hubbub.experiments import zhou_claims, zhou_pages
from hubbub.experiments.accuracy import collected, coverage, largest_error, mean_square_error, seed_of
from hubbub.experiments.datasets import PUBLISHED, load
from hubbub.experiments.runner import Experiment, Job, Request, Row, averaged
from hubbub.mechanisms.gaussian import GaussianNoise, analytic_scale
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.guarantee import Unit
from hubbub.model.mechanism import Goal, Mechanism
from hubbub.model.record import GRID, Entries
from hubbub.plan.ranking import noise, rank
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.kernel import kernel, use_compiled
from hubbub.simulation.populations import Population, distinct_population

USERS = 100_000
DELTA = 1e-5
ASKED = 100
REPETITIONS = 10
#: What tells the rows of a table apart; all other columns are averaged over repetitions.
BY = ("panel", "users", "keys", "entries", "epsilon", "unit", "distance", "mechanism", "parameters")


# The crowd of Section V


@kernel
def _first_distinct(drawn: Any, place: Any, last_owner: Any, chosen: Any) -> None:
    """Deal a stream of keys to users, who each keep the first ones that differ; `place` says where to go on."""
    users, entries = chosen.shape
    user, kept = place[0], place[1]
    for key in drawn:
        if user == users:
            break
        if last_owner[key] != user:
            last_owner[key] = user
            chosen[user, kept] = key
            kept += 1
            if kept == entries:
                user, kept = user + 1, 0
    place[0], place[1] = user, kept


def zipf_keys(users: int, keys: int, entries: int, seed: int, exponent: float = 1.4) -> Int64s:
    """`entries` distinct keys for every user, [users, entries], drawn one after the other by Zipf's law.

    Where records hold a good part of all keys, most draws would be repetitions, and exponential races (the same law)
    are quicker.
    """
    if keys < 32 * entries:
        raced = distinct_population(users, keys, entries, seed, exponent).entries.ids
        return raced.view(np.int64).reshape(users, entries)
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    ladder = np.cumsum(popularity / popularity.sum())
    chosen = np.zeros((users, entries), dtype=np.int64)
    last_owner, place = np.full(keys, -1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    deal = _first_distinct.compiled() if use_compiled(users) else _first_distinct
    while place[0] < users:
        drawn = np.minimum(np.searchsorted(ladder, rng.random(1 << 20)), keys - 1)
        deal(drawn, place, last_owner, chosen)
    return chosen


def crowd(users: int, keys: int, entries: int, seed: int) -> Population:
    """Distinct Zipf keys with exponent 1.4; values from a normal law (1, 0.3), cut to [-1, 1]."""
    chosen = zipf_keys(users, keys, entries, seed).reshape(-1)
    values = np.random.default_rng(seed + 1).normal(GRID, 0.3 * GRID, len(chosen))
    np.rint(np.clip(values, -GRID, GRID, out=values), out=values)
    offsets = np.arange(users + 1, dtype=np.int64) * entries
    return Population(Entries(chosen.view(np.uint64), values.astype(np.int64), offsets), keys)


# Who is compared


@dataclass(frozen=True)
class Setting:
    """What is asked of every mechanism."""

    users: int
    keys: int
    entries: int
    epsilon: float
    unit: Unit = "record"
    distance: float | None = None

    def make(self, name: str, **parameters: Any) -> Mechanism:
        return make_mechanism(
            name, epsilon=self.epsilon, max_entries=self.entries, values="signed", **parameters
        )

    @property
    def goal(self) -> Goal:
        return Goal(
            "mean",
            self.epsilon,
            self.entries,
            "signed",
            self.unit,
            self.distance,
            delta=DELTA if self.unit == "l1" else 0.0,
            users=self.users,
            keys=self.keys,
        )

    @property
    def l2_distance(self) -> float:
        """Of two neighbours whose values lie in [-1, 1]."""
        l1 = {"record": 2.0 * self.entries, "entry": 2.0}.get(self.unit, self.distance or 0.0)
        return 2.0 if self.unit == "entry" else math.sqrt(l1 * min(l1, 2.0))


@lru_cache(maxsize=16)
def line_up(setting: Setting) -> dict[str, Mechanism]:
    """Published mechanisms and ours, by what they are called in pictures and tables.

    Those that hide the whole record hide an entry, too. Left out are k-fold repetition where the record is to be
    hidden, as in the paper (its answers would have epsilon / k each), and the naive Gaussian, which is not simulated
    user by user (`naive`). What the planner picks is added; where the record is hidden it mostly is sketch_response,
    and is added only if it promises less error than all of these.
    """
    published = {"family": "prf", "seed_bits": 40, "users": setting.users}
    found: dict[str, Mechanism] = {}
    if setting.unit == "l1":
        found |= _for_distance(setting, published)
    else:
        entry = setting.unit == "entry"
        own = {"unit": "entry"} if entry else {"as_published": True}
        found["sparse_sum as published"] = setting.make("sparse_sum", **own, **published)
        if entry:
            found["repeated"] = setting.make("repeated", unit="entry", users=setting.users)
        found["sampled"] = setting.make("sampled", users=setting.users, mode="signed")
        found["harmony"] = setting.make("harmony", size=setting.keys)
        found["pckv_grr"] = setting.make("pckv_grr", size=setting.keys)
        if not entry:
            found["sparse_sum tuned"] = setting.make("sparse_sum", users=setting.users)
        found["sketch_response"] = setting.make("sketch_response", users=setting.users, mode="signed")
    picked = rank(setting.goal)[0].mechanism
    least = min(noise(mechanism, setting.goal) for mechanism in found.values())
    if picked is not None and (setting.unit != "record" or noise(picked, setting.goal) < least * (1 - 1e-9)):
        found["planner's pick"] = picked
    return found


def _for_distance(setting: Setting, published: dict[str, Any]) -> dict[str, Mechanism]:
    """Algorithm 1 for an l1 distance: pure, and with delta and the paper's bound where that holds."""
    pure = {"unit": "l1", "distance": setting.distance, **published}
    found = {"sparse_sum for a distance as published": setting.make("sparse_sum", **pure)}
    length = (setting.distance or 0.0) + 2 * setting.entries / (1 << 16)
    bins = [b for b in range(1, setting.entries + 1) if length / b >= math.log(2 * b / DELTA)]
    if bins:
        loose = {**pure, "seed_bits": 64, "delta": DELTA, "as_published": True}
        tried = [setting.make("sparse_sum", buckets=b, **loose) for b in bins]
        best = min(tried, key=lambda mechanism: noise(mechanism, setting.goal))
        found["sparse_sum with delta as published"] = best
    return found


def naive(setting: Setting, truth: Floats, seed: int) -> tuple[Floats, Floats, int]:
    """Gaussian noise on every key: estimates, variances and bytes.

    The sum of n discrete Gaussians of scale s >= 256 is a discrete Gaussian of scale s sqrt(n), but for a factor of
    1 +- e^-1000000, so the sum is drawn at once instead of n times d numbers.
    """
    spread = setting.l2_distance * analytic_scale(setting.epsilon, DELTA) / math.sqrt(setting.users)
    found = truth + np.random.default_rng(seed).normal(0, spread, len(truth))
    one_key = cast(GaussianNoise, setting.make("gaussian", size=1, delta=DELTA))
    width = math.ceil(one_key.report_fields()[0].bits * setting.keys / 8)
    return found, np.full(len(truth), spread**2), width


def described(mechanism: Mechanism) -> str:
    """Name and parameters, without what the row says anyway."""
    said = {"epsilon", "max_entries", "values", "users", "size", "kappa", "unit", "distance"}
    chosen = mechanism.model_dump(exclude=said, exclude_none=True, exclude_defaults=True)
    return " ".join([mechanism.name, *(f"{name}={value}" for name, value in chosen.items())])


# Jobs


def scored(found: Floats, variance: Floats, truth: Floats) -> Row:
    """The paper's measures, also as its program takes them: with estimates cut to [-1, 1]."""
    cut = np.clip(found, -1, 1)
    return {
        "L_inf": largest_error(found, truth),
        "MSE": mean_square_error(found, truth),
        "L_inf_cut": largest_error(cut, truth),
        "MSE_cut": mean_square_error(cut, truth),
        "coverage": coverage(found, variance, truth),
    }


def measured(
    population: Population, setting: Setting, ids: UInt64s, panel: str, repetition: int
) -> list[Row]:
    """One row per mechanism."""
    truth = population.mean[ids.astype(np.int64)]
    row = {"panel": panel, **{name: getattr(setting, name) for name in BY[1:7]}}
    parts = tuple(row.values())
    found, variance, width = naive(setting, truth, seed_of("gaussian", repetition, *parts))
    rows = [
        {**row, "mechanism": "gaussian", "parameters": f"gaussian delta={DELTA:g}", "bytes": width}
        | scored(found, variance, truth)
    ]
    for label, mechanism in line_up(setting).items():
        seed = seed_of(label, repetition, *parts)
        found, variance = collected(mechanism, population.entries, setting.keys, ids, "mean", seed)
        about = {"mechanism": label, "parameters": described(mechanism), "bytes": mechanism.layout.width}
        rows.append({**row, **about, **scored(found, variance, truth)})
    return rows


def measure_crowd(
    panel: str,
    users: int,
    keys: int,
    entries: int,
    epsilons: Sequence[float],
    unit: Unit,
    distance: float | None,
    repetition: int,
) -> list[Row]:
    """A simulated crowd; over d and epsilon only the keys with the largest means are asked for, as in the paper."""
    population = crowd(users, keys, entries, seed_of("crowd", users, keys, entries, repetition))
    ids = np.arange(keys, dtype=np.uint64)
    if panel in ("epsilon", "keys"):
        ids = np.sort(np.argsort(-np.abs(population.mean), kind="stable")[:ASKED]).astype(np.uint64)
    settings = [Setting(users, keys, entries, epsilon, unit, distance) for epsilon in epsilons]
    return [row for setting in settings for row in measured(population, setting, ids, panel, repetition)]


def measure_data(data: str, name: str, unit: Unit, repetition: int) -> list[Row]:
    """A table on real data: epsilon 1, all keys; long records are cut at random first."""
    dataset, printed = load(name, data), PUBLISHED[name]
    population = dataset.cut(printed.limit, seed_of("cut", name, repetition))
    setting = Setting(len(population.entries), population.keys, printed.limit, 1.0, unit)
    rows = measured(population, setting, np.arange(population.keys, dtype=np.uint64), name, repetition)
    truth = population.mean
    nothing = {"mechanism": "0 for every key", "parameters": "nothing is collected", "bytes": 0}
    same = {name: rows[0][name] for name in BY[:7]}
    rows.append({**same, **nothing, **scored(0 * truth, 0 * truth, truth)})
    return [{**row, "records": dataset.left(printed.limit)} for row in rows]


def summary(rows: list[Row]) -> list[Row]:
    """Averages over the repetitions, with standard errors."""
    return averaged(rows, [name for name in (*BY, "bytes", "records") if name in rows[0]])


# What can be run

_KEYS, _ENTRIES = 4096, 64


def _points(unit: Unit, request: Request) -> list[Job]:
    """Figures 1 and 2: over k, over epsilon, over d."""
    few = request.quick
    sizes = (1, 16, 64) if few else (1, 4, 16, 64, 256, 1024)
    budgets = [(0.5,), (1.0,), (3.5,)] if few else [(0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)]
    widths = (64, 1024, 100_000) if few else (64, 256, 1024, 4096, 16_384, 100_000)
    points = [
        *(("entries", _KEYS, entries, (1.0,)) for entries in reversed(sizes)),
        *(("epsilon", 100_000, _ENTRIES, together) for together in budgets),
        *(("keys", keys, _ENTRIES, (1.0,)) for keys in widths),
    ]
    return [
        _job(panel, keys, entries, epsilons, unit, None, repetition)
        for panel, keys, entries, epsilons in points
        for repetition in range(1 if few else REPETITIONS)
    ]


def _job(
    panel: str,
    keys: int,
    entries: int,
    epsilons: Sequence[float],
    unit: str,
    distance: float | None,
    repetition: int,
) -> Job:
    arguments = {
        "panel": panel,
        "users": USERS,
        "keys": keys,
        "entries": entries,
        "epsilons": list(epsilons),
        "unit": unit,
        "distance": distance,
        "repetition": repetition,
    }
    return Job(measure_crowd, arguments)


def _distances(request: Request) -> list[Job]:
    """Figure 3: over the l1 distance, up to 2k, which is the whole record; and what hides the record anyway."""
    distances = [1.0, 8.0, 32.0, 128.0] if request.quick else [float(1 << a) for a in range(8)]
    return [
        _job("distance", _KEYS, _ENTRIES, (1.0,), unit, distance, repetition)
        for unit, distance in [("record", None), *(("l1", distance) for distance in distances)]
        for repetition in range(1 if request.quick else REPETITIONS)
    ]


def _table(name: str, request: Request) -> list[Job]:
    path: Path = PUBLISHED[name].find(request.data)
    return [
        Job(measure_data, {"data": str(path), "name": name, "unit": unit, "repetition": repetition})
        for unit in ("entry", "record")
        for repetition in range(2 if request.quick else REPETITIONS)
    ]


def experiments() -> list[Experiment]:
    """Figures 1 to 3, Tables IV to VI."""
    figures = [
        Experiment(
            f"zhou-fig{number}",
            f"Means of sparse vectors, {what} (Zhou et al., Figure {number})",
            lambda request, unit=unit: _points(unit, request),  # type: ignore[misc]
            zhou_pages.draw_panels,
            summary,
            zhou_claims.CLAIMS[unit],
            remarks=zhou_pages.about_figure,
            theirs="the text",
        )
        for number, what, unit in ((1, "hiding the record", "record"), (2, "hiding an entry", "entry"))
    ]
    distances = Experiment(
        "zhou-fig3",
        "Means of sparse vectors, hiding an l1 distance (Zhou et al., Figure 3)",
        _distances,
        zhou_pages.draw_panels,
        summary,
        zhou_claims.CLAIMS["l1"],
        remarks=zhou_pages.about_figure,
        theirs="the text",
    )
    tables = [
        Experiment(
            f"zhou-table{number}",
            f"Means on real data: {name} (Zhou et al., Table {roman})",
            lambda request, name=name: _table(name, request),  # type: ignore[misc]
            summarize=summary,
            published=zhou_pages.beside_the_table,
            remarks=zhou_pages.about_table,
        )
        for number, roman, name in ((4, "IV", "Clothing"), (5, "V", "Renting"), (6, "VI", "Movies"))
    ]
    return [*figures, distances, *tables]
