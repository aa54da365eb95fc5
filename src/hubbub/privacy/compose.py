"""Several shuffled rounds: what they promise together, and a file that remembers them.

A person who reports in each of several rounds gives something away in all of them. Rounds may differ in
task, mechanism, number of reports and reports per person. Three ways to add up, each valid, from loose to tight:

- basic: epsilons and deltas add;
- advanced (Kairouz, Oh, Viswanath 2015, Theorem 3.5): epsilons grow with the square root of the rounds;
- loss: the law of the privacy loss itself is convolved (by dp-accounting, an optional dependency).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.primitives.arrays import Floats
from hubbub.primitives.envelope import locked, read_file, refuse_ending, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.privacy.messages import PoissonCrowd
from hubbub.privacy.shuffle import (
    Crowd,
    any_mechanism,
    check_delta,
    crowd_of,
    reports_per_person,
    response,
    response_weights,
)
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.sealing import check_sealable
from hubbub.protocol.task import Task

Method = Literal["loss", "advanced", "basic"]

#: The least epsilon that is said, where nothing at all is lost.
_LEAST = 1e-12
#: Points between 0 and the largest loss of a round at which its delta(epsilon) is computed.
_POINTS = 100


def compose(rounds: Sequence[Crowd | PoissonCrowd], delta: float, method: Method = "loss") -> Guarantee:
    """What these rounds together promise about all that one person said in them."""
    check_delta(delta)
    if not rounds:
        raise Refused("There are no rounds to add up.")
    add_up = {"loss": _loss, "advanced": _advanced, "basic": _basic}[method]
    epsilon = add_up(rounds, delta) if len(rounds) > 1 else rounds[0].epsilon(delta)
    if not math.isfinite(epsilon):  # more than the grid of losses holds
        epsilon = _advanced(rounds, delta)
    epsilon = max(epsilon, _LEAST)
    number = "1 round" if len(rounds) == 1 else f"{len(rounds):,} rounds"
    whom, among = _whom(rounds)
    return Guarantee(
        epsilon,
        unit="record",
        model="shuffled",
        delta=delta,
        note=f"Holds for {whom} in each of {number} among {among} ({method} composition).",
    )


def _whom(rounds: Sequence[Crowd | PoissonCrowd]) -> tuple[str, str]:
    """Whose reports, and among how many."""
    sizes = sorted({crowd.people if isinstance(crowd, PoissonCrowd) else crowd.reports for crowd in rounds})
    among = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    if any(isinstance(crowd, PoissonCrowd) for crowd in rounds):
        return "all reports of one person", f"{among} people"
    most = max(crowd.per_person for crowd in rounds if isinstance(crowd, Crowd))
    return reports_per_person(most), f"{among} shuffled reports"


def _basic(rounds: Sequence[Crowd | PoissonCrowd], delta: float) -> float:
    """Sum of epsilons, each at an equal share of delta."""
    share = delta / len(rounds)
    return math.fsum(count * crowd.epsilon(share) for crowd, count in Counter(rounds).items())


def _advanced(rounds: Sequence[Crowd | PoissonCrowd], delta: float) -> float:
    """sum eps_i tanh(eps_i / 2) + sqrt(2 log(1/d) sum eps_i^2), half of delta for d and half for the rounds."""
    counts = Counter(rounds)
    epsilons = [(crowd.epsilon(delta / 2 / len(rounds)), count) for crowd, count in counts.items()]
    drift = math.fsum(count * epsilon * math.tanh(epsilon / 2) for epsilon, count in epsilons)
    square = math.fsum(count * epsilon**2 for epsilon, count in epsilons)
    return min(drift + math.sqrt(2 * math.log(2 / delta) * square), _basic(rounds, delta))


def _loss(rounds: Sequence[Crowd | PoissonCrowd], delta: float) -> float:
    """Convolve privacy losses on a grid, rounded so that delta(epsilon) is too large everywhere.

    What a crowd's delta(epsilon) bounds is the same for both orders of a pair of laws, so delta(-x) = 1 - e^-x +
    e^-x delta(x). The truth is convex in e^epsilon, so straight lines in that are above it, between the points where
    it is computed and between those of the grid (Doroshenko et al. 2022), and so is the largest convex curve below
    those points, which is the curve of a pair of laws; losses beyond the grid count as infinite.
    The rounding errors of the Fourier transforms that convolve are bounded by their number times a few
    units of double precision, and taken off delta beforehand.
    """
    try:
        from dp_accounting.pld import pld_pmf
    except ImportError:
        raise Refused(
            "Composition of privacy losses needs dp-accounting: pip install 'hubbub[accounting]', "
            "or ask for advanced composition, which is looser."
        ) from None
    counts = Counter(rounds)
    tops = {crowd: crowd.epsilon(1e-3 * delta / len(rounds)) for crowd in counts}
    gap = max(min(tops.values()) / _POINTS, max(tops.values()) / (10 * _POINTS))
    parts = []
    for crowd, count in counts.items():
        known = np.linspace(0.0, tops[crowd], _POINTS)
        curve = np.minimum.accumulate([crowd.delta(float(x), excess=1e-5) for x in known])
        last = math.ceil(tops[crowd] / gap)
        grid = gap * np.arange(last + 1)
        above = np.interp(np.expm1(grid), np.expm1(known), curve)
        below = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * above[:0:-1]
        ratios = np.exp(gap * np.arange(-last, last + 1))
        deltas = _convex(ratios, np.concatenate([below, above]))
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -last, last, deltas)
        parts.append(one.to_dense_pmf().self_compose(count))
    total = reduce(lambda one, two: one.compose(two), parts)
    slack = 2.0**-48 * len(rounds) * total.size
    if slack > delta / 2:
        raise Refused(
            f"delta = {delta:g} is too small for the precision of the convolution; ask for advanced composition."
        )
    return float(total.get_epsilon_for_delta(delta - slack))


def _convex(places: Floats, heights: Floats) -> Floats:
    """The largest convex curve below these points, at their places (Andrew's monotone chain)."""
    corners: list[int] = []
    for right in range(len(places)):
        while len(corners) > 1:
            left, middle = corners[-2:]
            ahead = (heights[right] - heights[left]) * (places[middle] - places[left])
            if (heights[middle] - heights[left]) * (places[right] - places[left]) < ahead:
                break
            corners.pop()
        corners.append(right)
    return np.interp(places, places[corners], heights[corners])


@dataclass(frozen=True)
class Round:
    """The facts of one shuffled collection that its guarantee depends on."""

    task: str
    digest: str
    mechanism: str
    reports: int
    epsilon: float
    weights: tuple[int, int, int, int] | None
    per_person: int = 1
    period: str = "once"

    @classmethod
    def of(cls, task: Task, reports: int) -> Round:
        """One period of a task with this many reports; refused where no bound applies."""
        check_sealable(task)
        if task.messages:
            raise Refused(
                "A ledger of rounds is for one report per person or a fixed number; this task sends a random number of "
                "messages: hubbub amplify --people --rounds adds those up."
            )
        crowd_of(task.mechanism, reports, task.reports_per_period)
        return cls(
            task.name,
            task.digest.hex(),
            task.mechanism.name,
            reports,
            task.guarantee.epsilon,
            response_weights(task.mechanism),
            task.reports_per_period,
            task.period,
        )

    def crowd(self) -> Crowd:
        """What composition needs to know."""
        if self.weights is None:
            crowd = any_mechanism(self.reports, self.epsilon)
        else:
            crowd = response(self.reports, *self.weights)
        return replace(crowd, per_person=self.per_person)


def read_rounds(path: str | Path) -> list[Round]:
    """The rounds in a ledger file; what cannot be understood is refused."""
    try:
        data = json.loads(read_file(path))
        if data["format"] != 1:
            raise Refused(f"{path} has format {data['format']!r}; this hubbub reads format 1.")
        rounds = [_round(item) for item in data["rounds"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        if isinstance(problem, Refused):
            raise
        raise Refused(f"{path} is not a ledger of rounds.") from None
    return rounds


def _round(item: dict[str, Any]) -> Round:
    weights = item["weights"]
    # The first ledgers were for one report per person, and said nothing of it.
    per_person, period = item.get("per_person", 1), item.get("period", "once")
    numbers = [item["reports"], per_person, *(weights or ())]
    if not all(type(number) is int for number in numbers) or len(numbers) not in (2, 6):
        raise ValueError("counts and weights are whole numbers")
    if period not in PERIOD_BYTES:
        raise ValueError("a round is one period")
    found = Round(
        str(item["task"]),
        str(item["digest"]),
        str(item["mechanism"]),
        item["reports"],
        float(item["epsilon"]),
        None if weights is None else tuple(weights),
        per_person,
        period,
    )
    found.crowd()
    return found


def adding_rounds(path: str | Path) -> AbstractContextManager[object]:
    """While a ledger is read, added to and written: one at a time, so that no round is lost."""
    _check_name(path)
    return locked(path)


def write_rounds(path: str | Path, rounds: Sequence[Round]) -> None:
    """Write a ledger file, whole or not at all."""
    _check_name(path)
    data = {"format": 1, "rounds": [asdict(one) for one in rounds]}
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())


def _check_name(path: str | Path) -> None:
    refuse_ending(path, "a ledger of rounds", ".json")
