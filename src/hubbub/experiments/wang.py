"""The paper on Collision and CoCo (Wang et al.): its figures.

Figures 6 to 16 show one simulation from several sides: frequencies or means, total or largest error, before or after
the projection onto the simplex. So there are three experiments, one for each number of users and keys, and
`wang-fig6` to `wang-fig16` are other names for them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.experiments import wang_pages
from hubbub.experiments.accuracy import coverage, largest_error, total_variation_error
from hubbub.experiments.runner import Experiment, Job, Request, Row, averaged
from hubbub.experiments.wang_rates import published_coco
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism, Moments
from hubbub.primitives.arrays import Floats
from hubbub.privacy.bounds import compare, draw
from hubbub.privacy.bounds import published_setting as published_collision
from hubbub.protocol.task import Task
from hubbub.simulation.populations import Population, uniform_population
from hubbub.simulation.rehearsal import simulate

ENTRIES = (4, 8, 16, 32)
EPSILONS = (0.001, 0.01, 0.1, 0.2, 0.4, 0.8, 1.0, 1.5, 2.0)
FEW_EPSILONS = (0.01, 0.1, 0.4, 1.0, 2.0)
REPETITIONS = 100


def shuffle_bounds(epsilons: list[float]) -> list[Row]:
    """Figure 2: central epsilon by every bound, Collision with four entries, delta 1e-6."""
    return compare(
        lambda epsilon: published_collision(epsilon, max_entries=4), epsilons, (1000, 10_000, 1_000_000), 1e-6
    )


def mechanisms_at(users: int, keys: int, entries: int, epsilon: float) -> dict[str, Mechanism]:
    """Everything that is compared, by its name in the pictures; the paper's competitors come first."""

    def make(name: str, **parameters: Any) -> Mechanism:
        return make_mechanism(name, epsilon=epsilon, max_entries=entries, values="signed", **parameters)

    return {
        "PCKV-UE": make("pckv_ue", size=keys),
        "PrivKV": make("privkv", size=keys),
        "PCKV-GRR": make("pckv_grr", size=keys, amplified=False),
        "PCKV-AGRR": make("pckv_grr", size=keys),
        "SUCCINCT": make("sparse_sum", as_published=True, users=users),
        "Collision": published_collision(epsilon, entries, values="signed", users=users),
        "CoCo": published_coco(epsilon, entries, users=users),
        "sparse_sum, tuned": make("sparse_sum", users=users),
        "sketch_response, events": make("sketch_response", mode="events", users=users),
        "sketch_response, signed": make("sketch_response", mode="signed", users=users),
    }


def _seed(*parts: Any) -> int:
    """A number that depends on all parts."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7], "little")


def measure(users: int, keys: int, entries: int, epsilon: float, repetition: int) -> list[Row]:
    """One crowd, asked by every mechanism: one row each, errors as natural logarithms."""
    place = (users, keys, entries, repetition)
    crowd = uniform_population(*place[:3], seed=_seed("crowd", *place))
    salt = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
    rows = []
    for name, mechanism in mechanisms_at(users, keys, entries, epsilon).items():
        described = {"kind": "closed", "size": keys, "salt": salt}
        task = Task.parse({"name": name, "keys": described, "mechanism": mechanism})
        state = simulate(task, crowd.entries, _seed(name, epsilon, *place)).state
        found = mechanism.moments(state, task.keys, task.keys.all_ids())
        setting: Row = {"entries": entries, "epsilon": epsilon, "mechanism": name}
        rows.append({**setting, "bytes": mechanism.layout.width, **errors(found, crowd, entries)})
    return rows


def errors(found: Moments, crowd: Population, entries: int) -> Row:
    """Natural logarithms of TVE and MAE, with the coverage of 95% intervals.

    The paper's frequencies are those of a key with a sign. A mechanism gives frequency f and mean m of a key, that is
    (f + m) / 2 of + and (f - m) / 2 of -. Together they are at least 0 and add up to `entries`: projected means come
    from frequencies projected onto that. Whoever estimates means alone has nothing to project.
    """
    assert found.mean is not None
    assert found.mean_variance is not None
    row = _logarithms("mean", found.mean, crowd.mean)
    row["mean_coverage"] = coverage(found.mean, found.mean_variance, crowd.mean)
    if found.frequency is None or found.frequency_variance is None:
        return row
    plus, minus = possible_sides(found.frequency, found.mean, entries)
    truth = np.concatenate(sides(crowd.frequency, crowd.mean))
    row |= _logarithms("frequency_projected", np.concatenate([plus, minus]), truth)
    row |= _logarithms("mean_projected", plus - minus, crowd.mean)
    row["frequency_coverage"] = coverage(found.frequency, found.frequency_variance, crowd.frequency)
    return row


def sides(frequency: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """How many hold a key with value +1, and with value -1."""
    return (frequency + mean) / 2, (frequency - mean) / 2


def possible_sides(frequency: Floats, mean: Floats, entries: int) -> tuple[Floats, Floats]:
    """The nearest frequencies of the two sides that are not negative and add up to `entries` over all keys."""
    from hubbub.server.recovery.simplex import project

    plus, minus = np.split(project(np.concatenate(sides(frequency, mean)), total=float(entries)), 2)
    return plus, minus


def _logarithms(what: str, found: Floats, truth: Floats) -> Row:
    return {
        f"ln_{what}_tve": math.log(total_variation_error(found, truth)),
        f"ln_{what}_mae": math.log(largest_error(found, truth)),
    }


def _jobs(users: int, keys: int) -> Callable[[Request], list[Job]]:
    """Whole repetitions one after the other; every job simulates one crowd and one epsilon."""

    def jobs(request: Request) -> list[Job]:
        repetitions = max(1, 50_000 // users) if request.quick else REPETITIONS
        return [
            Job(measure, {"users": users, "keys": keys, **point, "repetition": repetition})
            for repetition in range(repetitions)
            for point in (
                {"entries": entries, "epsilon": epsilon}
                for entries in ENTRIES
                for epsilon in (FEW_EPSILONS if request.quick else EPSILONS)
            )
        ]

    return jobs


def summarize(rows: list[Row]) -> list[Row]:
    """Means over repetitions with their standard errors, six digits of each."""
    means = averaged(rows, by=["entries", "epsilon", "mechanism", "bytes"])
    return [
        {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in means
    ]


@dataclass(frozen=True)
class Setting:
    """A number of users and of keys, and the figures of the paper that show it."""

    users: int
    keys: int
    figures: dict[int, wang_pages.Curves]

    @property
    def whole(self) -> Experiment:
        """The one simulation that all these figures are drawn from."""
        numbers = [str(number) for number in sorted(self.figures)]
        return Experiment(
            f"wang-n{self.users}-d{self.keys}",
            f"{self.users:,} users, {self.keys} keys: frequencies and means "
            f"(Wang et al., Figures {', '.join(numbers[:-1])} and {numbers[-1]})",
            _jobs(self.users, self.keys),
            lambda rows, path: wang_pages.pictures(rows, path, self.users, self.keys, self.figures),
            summarize,
            published=wang_pages.claims,
            remarks=lambda rows: wang_pages.remarks(rows, self.users, self.keys, self.figures),
        )

    def part(self, figure: int) -> Experiment:
        """One figure: another name for the simulation that it is drawn from."""
        title = f"{self.figures[figure].title} (Wang et al., Figure {figure}): runs {self.whole.name}"
        return Part(f"wang-fig{figure}", title, self.whole.jobs, whole=self.whole)


@dataclass(frozen=True, kw_only=True)
class Part(Experiment):
    """A figure that is drawn from a larger experiment, which is what is run and written."""

    whole: Experiment

    def run(
        self,
        folder: Path,
        request: Request,
        workers: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Path]:
        return self.whole.run(folder, request, workers, progress)


SETTINGS = (
    Setting(
        100_000,
        256,
        {
            6: wang_pages.FREQUENCY_TVE,
            7: wang_pages.FREQUENCY_MAE,
            12: wang_pages.MEAN,
            13: wang_pages.MEAN_MAE,
            14: wang_pages.MEAN_TVE,
        },
    ),
    Setting(
        100_000,
        512,
        {8: wang_pages.FREQUENCY_TVE, 9: wang_pages.FREQUENCY_MAE, 15: wang_pages.MEAN_TVE},
    ),
    Setting(
        10_000,
        256,
        {10: wang_pages.FREQUENCY_TVE, 11: wang_pages.FREQUENCY_MAE, 16: wang_pages.MEAN_TVE},
    ),
)


def experiments() -> list[Experiment]:
    """Figure 2, and Figures 6 to 16 as three simulations and a name for each figure."""
    few, many = [0.1, 0.5, 1.0, 2.0, 3.0, 5.0], [0.1 + 0.35 * i for i in range(15)]
    shuffle = Experiment(
        "wang-fig2",
        "Bounds on shuffling, Collision with four entries (Wang et al., Figure 2)",
        lambda request: [Job(shuffle_bounds, {"epsilons": few if request.quick else many})],
        draw,
        published=wang_pages.saved_budget,
        remarks=wang_pages.about_bounds,
    )
    parts = {number: setting.part(number) for setting in SETTINGS for number in setting.figures}
    return [shuffle, *(setting.whole for setting in SETTINGS), *(parts[number] for number in sorted(parts))]
