"""Exact laws of reports, by running the shipped code once for every way its coins can fall.

`Enumeration` is a set of coins that, instead of flipping, walks the tree of all outcomes: each run
of the real randomizer follows one path, and the path's probability is the product of its branches.
Because kernels ask for `below`, `chance` and `clamped_laplace` only, the tree of a small instance has
a few thousand leaves, and the law of a report is known exactly (as fractions; Laplace branches in
double precision). Nothing is copied from the mechanisms: what is enumerated is what ships.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from hubbub.device.client import encode_record
from hubbub.model.record import Record, sample_down
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: A probability: a fraction, or a float below a Laplace branch.
Mass = Fraction | float
#: A law: probability of every report that can occur.
Law = dict[tuple[int, ...], Mass]

#: Leaves after which an enumeration gives up.
MOST_LEAVES = 2_000_000


class Enumeration:
    """Coins that visit every outcome once; use through `law_of`."""

    def __init__(self) -> None:
        self._path: list[tuple[int, list[tuple[int, Mass]]]] = []
        self._depth = 0

    def _branch(self, outcomes: Callable[[], Sequence[tuple[int, Mass]]]) -> int:
        if self._depth == len(self._path):
            possible = [(value, weight) for value, weight in outcomes() if weight > 0]
            self._path.append((0, possible))
        choice, options = self._path[self._depth]
        self._depth += 1
        return options[choice][0]

    def below(self, bound: int) -> int:
        return self._branch(lambda: [(value, Fraction(1, bound)) for value in range(bound)])

    def chance(self, numerator: int, denominator: int) -> bool:
        yes = Fraction(numerator, denominator)
        return bool(self._branch(lambda: [(0, 1 - yes), (1, yes)]))

    def draw(self, pool: int, bound: int) -> tuple[int, int]:
        return self.below(bound), pool

    def coin(self, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
        return self.chance(numerator, denominator), pool

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        return self._branch(lambda: laplace_law(value, numerator / denominator, limit))

    def _probability(self) -> Mass:
        whole: Mass = Fraction(1)
        for choice, options in self._path:
            whole = whole * options[choice][1]
        return whole

    def _next(self) -> bool:
        """Step to the next path; False when all have been walked."""
        self._depth = 0
        while self._path:
            choice, options = self._path.pop()
            if choice + 1 < len(options):
                self._path.append((choice + 1, options))
                return True
        return False

    def law(self, run: Callable[[Enumeration], Hashable]) -> dict[Hashable, Mass]:
        """The law of what `run` returns when it flips these coins."""
        result: dict[Hashable, Mass] = defaultdict(Fraction)
        for _ in range(MOST_LEAVES):
            outcome = run(self)
            result[outcome] += self._probability()
            if not self._next():
                return dict(result)
        raise Refused(f"More than {MOST_LEAVES:,} outcomes: choose a smaller instance to enumerate.")


def laplace_law(value: int, scale: float, limit: int) -> list[tuple[int, float]]:
    """Discrete Laplace noise around `value`, clamped to [-limit, limit]: outcomes and probabilities."""
    decay = math.exp(-1 / scale)

    def tail(distance: int) -> float:
        """P(noise >= distance) for distance >= 1."""
        return decay**distance / (1 + decay)

    inner = range(-limit + 1, limit)
    law = [(y, (1 - decay) / (1 + decay) * decay ** abs(y - value)) for y in inner]
    low, high = -limit - value, limit - value
    at_low = tail(-low) if low < 0 else 1 - tail(low + 1)
    at_high = tail(high) if high > 0 else 1 - tail(1 - high)
    return [(-limit, at_low), *law, (limit, at_high)]


def law_of(task: Task, record: Record, seed: int) -> Law:
    """The exact law of a report (fields after the seed) for one record under one public seed.

    Where a report chooses among several seeds, these are seed, seed + 1, ..., and the law is that of the
    whole report.
    """
    entries, _ = encode_record(task, record)
    mechanism = task.mechanism
    seeds = np.arange(seed, seed + mechanism.seeds_per_report, dtype=np.uint64)
    first = 1 if mechanism.seeds_per_report == 1 else 0

    def run(coins: Enumeration) -> Hashable:
        kept = entries
        if mechanism.limits_entries:
            kept, _ = sample_down(entries, mechanism.max_entries, coins)  # type: ignore[arg-type]
        report = mechanism.randomize(task.keys, kept, seeds, coins)  # type: ignore[arg-type]
        return tuple(int(number) for number in report[0, first:])

    return Enumeration().law(run)  # type: ignore[return-value]


def worst_ratio(laws: Sequence[Law]) -> float:
    """The largest ratio of probabilities of one report under two of the laws (inf if one has none)."""
    worst = 1.0
    for one, two in combinations(laws, 2):
        for report in one.keys() | two.keys():
            p, q = one.get(report, Fraction(0)), two.get(report, Fraction(0))
            if p == 0 or q == 0:
                return math.inf
            worst = max(worst, float(p / q), float(q / p))
    return worst


def hockey_stick(one: Law, two: Law, epsilon: float) -> float:
    """sum of (p - e^epsilon q)_+ over all reports: the smallest delta that goes with epsilon."""
    factor = math.exp(epsilon)
    return sum(max(0.0, float(p) - factor * float(two.get(report, 0))) for report, p in one.items())


def exact_epsilon(task: Task, records: Sequence[Record], seeds: Sequence[int]) -> float:
    """The smallest epsilon that holds for all pairs of these records under all of these seeds."""
    return math.log(max(worst_ratio([law_of(task, record, seed) for record in records]) for seed in seeds))


def small_records(keys: Sequence[str], values: Sequence[float], most: int) -> Iterator[dict[str, float]]:
    """Every record over a few keys with at most `most` entries and these values."""

    def extend(start: int, record: dict[str, float]) -> Iterator[dict[str, float]]:
        yield record
        if len(record) < most:
            for place in range(start, len(keys)):
                for value in values:
                    yield from extend(place + 1, {**record, keys[place]: value})

    return extend(0, {})
