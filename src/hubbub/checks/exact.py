"""Exact laws of reports, by running the shipped code once for every way its coins can fall.

`Enumeration` is a set of coins that, instead of flipping, walks the tree of all outcomes: each run
of the real randomizer follows one path, and the path's probability is the product of its branches.
Because kernels ask for `below`, `chance` and `clamped_laplace` only, the tree of a small instance has
a few thousand leaves, and the law of a report is known exactly (as fractions; Laplace branches in
double precision). Nothing is copied from the mechanisms: what is enumerated is what ships.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any, NoReturn

import numpy as np

from hubbub.device.client import encode_record, privatize
from hubbub.model.record import Record
from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: A probability: a fraction, or a float below a Laplace branch.
Mass = Fraction | float
#: A law: probability of every report that can occur.
Law = dict[tuple[int, ...], Mass]

#: Leaves after which an enumeration gives up.
MOST_LEAVES = 2_000_000
#: What double precision may add to a loss that is not made of fractions.
SLACK = 1e-9


class NotEnumerable(Refused):
    """The law of a report cannot be had by enumeration."""


class TooManyOutcomes(NotEnumerable):
    """There are more ways for the coins to fall than one is willing to walk."""


class UnknownQuestion(NotEnumerable, AttributeError):
    """The coins are asked for something else than `below`, `chance` and `clamped_laplace`."""


class Impure(Refused):
    """The same record, seeds and coins gave two different runs: something else is random."""


@dataclass
class _Fork:
    """A question that was asked, its possible answers, the one taken now, and the probability of getting here."""

    question: tuple[int | str, ...]
    options: list[tuple[int, Mass]]
    choice: int
    reached: Mass


class Enumeration:
    """Coins that visit every outcome once; use through `law_of` and `report_law`."""

    def __init__(self) -> None:
        self._path: list[_Fork] = []
        self._depth = 0

    def _branch(
        self, question: tuple[int | str, ...], outcomes: Callable[[], Sequence[tuple[int, Mass]]]
    ) -> int:
        if self._depth == len(self._path):
            possible = [(value, weight) for value, weight in outcomes() if weight > 0]
            self._path.append(_Fork(question, possible, self._first(possible), self._probability()))
        fork = self._path[self._depth]
        if fork.question != question:
            raise Impure("The randomizer does not do the same twice with the same record, seeds and coins.")
        self._depth += 1
        return fork.options[fork.choice][0]

    def _first(self, options: list[tuple[int, Mass]]) -> int:
        return 0

    def below(self, bound: int) -> int:
        each = Fraction(1, bound)
        return self._branch(("below", bound), lambda: [(value, each) for value in range(bound)])

    def chance(self, numerator: int, denominator: int) -> bool:
        yes = Fraction(numerator, denominator)
        return bool(self._branch(("chance", numerator, denominator), lambda: [(0, 1 - yes), (1, yes)]))

    def draw(self, pool: int, bound: int) -> tuple[int, int]:
        return self.below(bound), pool

    def coin(self, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
        return self.chance(numerator, denominator), pool

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        question = ("laplace", value, numerator, denominator, limit)
        return self._branch(question, lambda: laplace_law(value, numerator / denominator, limit))

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownQuestion(f"The randomizer asks its coins for {name!r}, which cannot be enumerated.")

    def _probability(self) -> Mass:
        if not self._path:
            return Fraction(1)
        last = self._path[-1]
        return last.reached * last.options[last.choice][1]

    def _next(self) -> bool:
        """Step to the next path; False when all have been walked."""
        self._depth = 0
        while self._path:
            last = self._path[-1]
            if last.choice + 1 < len(last.options):
                last.choice += 1
                return True
            self._path.pop()
        return False

    def law(self, run: Callable[[Enumeration], Hashable], most: int = MOST_LEAVES) -> dict[Hashable, Mass]:
        """The law of what `run` returns when it flips these coins; refused if it is not a function of them."""
        result: dict[Hashable, Mass] = defaultdict(Fraction)
        for leaf in range(most):
            outcome = run(self)
            if leaf == 0:
                # Once more on the same path: whatever is random besides the coins shows.
                asked, self._depth = self._depth, 0
                if run(self) != outcome or self._depth != asked:
                    raise Impure("The same record, seeds and coins gave two different reports.")
            if self._depth < len(self._path):
                raise Impure("The randomizer does not flip the same coins twice for the same record.")
            result[outcome] += self._probability()
            if not self._next():
                return dict(result)
        raise TooManyOutcomes(f"More than {most:,} outcomes: choose a smaller instance to enumerate.")


class _Descent(Enumeration):
    """One random path, and how many leaves there would be if all of the tree looked like it (Knuth 1975)."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__()
        self._random, self._most, self.leaves = random.Random(seed), most, 1

    def below(self, bound: int) -> int:
        self._allow(bound)
        return super().below(bound)

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        self._allow(2 * limit + 1)
        return super().clamped_laplace(value, numerator, denominator, limit)

    def _first(self, options: list[tuple[int, Mass]]) -> int:
        self._allow(len(options))
        self.leaves *= len(options)
        return self._random.randrange(len(options))

    def _allow(self, outcomes: int) -> None:
        if self.leaves * outcomes > self._most:
            raise TooManyOutcomes(f"More than about {self._most:,} outcomes.")


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


class FixedSeeds:
    """The same few public seeds for every report."""

    def __init__(self, first: int, count: int) -> None:
        self._seeds = np.arange(first, first + count, dtype=np.uint64)

    def draw(self, bits: int, count: int) -> UInt64s:
        return np.tile(self._seeds, count // len(self._seeds))


def _report(task: Task, record: Record, seed: int) -> Callable[[Enumeration], bytes]:
    """The bytes that leave the device, as a function of the coins: the whole path, from record to wire."""
    entries, _ = encode_record(task, record)
    seeds = FixedSeeds(seed, task.mechanism.seeds_per_report)
    return lambda coins: privatize(task, entries, coins, seeds)[0].tobytes()


def report_law(task: Task, record: Record, seed: int, most: int = MOST_LEAVES) -> dict[bytes, Mass]:
    """The exact law of the bytes of a report, the public seed that it carries among them.

    The seed that was drawn is given. What the report says about it is part of the law, so a seed that is exchanged
    for another because of the record shows as a report that other records cannot have. Where a report chooses among
    several seeds, these are seed, seed + 1, ...
    """
    return Enumeration().law(_report(task, record, seed), most)  # type: ignore[return-value]


def leaves_of(task: Task, record: Record, seed: int, most: int) -> int:
    """About how many leaves the enumeration of a report has; more than `most` are not counted."""
    run, found = _report(task, record, seed), 0
    for attempt in range(10):
        coins = _Descent(attempt, most)
        try:
            run(coins)
        except TooManyOutcomes:
            return most + 1
        found = max(found, coins.leaves)
    return found


def law_of(task: Task, record: Record, seed: int) -> Law:
    """The exact law of a report (fields after the seed) for one record under one public seed.

    Where a report chooses among several seeds, these are seed, seed + 1, ..., and the law is that of the
    whole report.
    """
    first = 1 if task.mechanism.seeds_per_report == 1 else 0
    law: Law = defaultdict(Fraction)
    for packed, mass in report_law(task, record, seed).items():
        law[tuple(int(number) for number in task.mechanism.layout.unpack(packed)[0, first:])] += mass
    return dict(law)


def largest_ratio(one: Mapping[Any, Mass], two: Mapping[Any, Mass]) -> Mass:
    """The largest ratio of probabilities of one report under two laws, either way (inf if one has none)."""
    if one.keys() != two.keys():
        return math.inf
    # By floats first: fractions are compared only where floats cannot tell.
    ratios = [(float(p), float(two[report]), report) for report, p in one.items()]
    if any(p == 0 or q == 0 for p, q, _ in ratios):
        return math.inf
    rough = max(max(p / q, q / p) for p, q, _ in ratios)
    close = [report for p, q, report in ratios if max(p / q, q / p) >= rough * (1 - SLACK)]
    return max(max(one[report] / two[report], two[report] / one[report]) for report in close)


def worst_ratio(laws: Sequence[Mapping[Any, Mass]]) -> float:
    """The largest ratio of probabilities of one report under two of the laws (inf if one has none)."""
    return max((float(largest_ratio(one, two)) for one, two in combinations(laws, 2)), default=1.0)


def exceeds(ratio: Mass, epsilon: float) -> bool:
    """Whether a ratio is above exp(epsilon): to 60 digits for fractions, else to what double precision shows."""
    if isinstance(ratio, float):
        return ratio > math.exp(epsilon * (1 + SLACK))
    return ratio > _above_exp(epsilon)


@lru_cache(maxsize=64)
def _above_exp(epsilon: float) -> Fraction:
    """exp(epsilon), rounded up in the 60th digit."""
    context = Context(prec=60)
    return Fraction(context.next_plus(context.exp(Decimal(epsilon))))


def hockey_stick(one: Mapping[Any, Mass], two: Mapping[Any, Mass], epsilon: float) -> float:
    """sum of (p - e^epsilon q)_+ over all reports: the smallest delta that goes with epsilon."""
    factor = math.exp(epsilon)
    return sum(max(0.0, float(p) - factor * float(two.get(report, 0))) for report, p in one.items())


def loss_with_delta(one: Mapping[Any, Mass], two: Mapping[Any, Mass], delta: float) -> float:
    """The smallest epsilon that holds for two laws together with delta, either way."""

    def holds(epsilon: float) -> bool:
        return max(hockey_stick(one, two, epsilon), hockey_stick(two, one, epsilon)) <= delta

    low, high = 0.0, 64.0
    if not holds(high):
        return math.inf
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def exact_epsilon(task: Task, records: Sequence[Record], seeds: Sequence[int]) -> float:
    """The smallest epsilon that holds for all pairs of these records under all of these seeds."""
    return math.log(
        max(worst_ratio([report_law(task, record, seed) for record in records]) for seed in seeds)
    )


def small_records(keys: Sequence[str], values: Sequence[float], most: int) -> Iterator[dict[str, float]]:
    """Every record over a few keys with at most `most` entries and these values."""

    def extend(start: int, record: dict[str, float]) -> Iterator[dict[str, float]]:
        yield record
        if len(record) < most:
            for place in range(start, len(keys)):
                for value in values:
                    yield from extend(place + 1, {**record, keys[place]: value})

    return extend(0, {})
