"""Exact answers for small crowds, by writing out every case."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from hubbub.privacy.shuffle import Crowd

Law = dict[Hashable, float]


def shuffled_law(laws: Iterable[Law]) -> dict[tuple[Hashable, ...], float]:
    """The law of a shuffled collection: probability of every multiset of reports."""
    result: dict[tuple[Hashable, ...], float] = {(): 1.0}
    for law in laws:
        result = with_one_more(result, law)
    return result


def divergence(one: Law, two: Law, others: Sequence[Law], epsilon: float) -> float:
    """The smallest delta for a victim with these two laws among these others: nothing is bounded here."""
    left, right = shuffled_law([*others, one]), shuffled_law([*others, two])
    return math.fsum(max(0.0, left[seen] - math.exp(epsilon) * right[seen]) for seen in left)


def worst_divergences(laws: Sequence[Law], n: int, epsilons: Sequence[float]) -> list[float]:
    """The largest divergence at each epsilon, over all victims and all n - 1 others who hold any of these laws."""
    worst = [0.0] * len(epsilons)
    for others in combinations_with_replacement(laws, n - 1):
        crowd = shuffled_law(others)
        seen = [with_one_more(crowd, law) for law in laws]
        table = np.array([[law[place] for place in seen[0]] for law in seen])
        for index, epsilon in enumerate(epsilons):
            for row in table:
                beyond = np.maximum(0.0, row - math.exp(epsilon) * table).sum(axis=1).max()
                worst[index] = max(worst[index], float(beyond))
    return worst


def with_one_more(crowd: dict[tuple[Hashable, ...], float], law: Law) -> dict[tuple[Hashable, ...], float]:
    """The shuffled law of a crowd and one more report."""
    result: dict[tuple[Hashable, ...], float] = defaultdict(float)
    for seen, p in crowd.items():
        for report, q in law.items():
            result[tuple(sorted((*seen, report)))] += p * q  # type: ignore[type-var]
    return result


def favouring(favoured: Iterable[int], outcomes: int, ratio: float) -> Law:
    """A response law: weight `ratio` on the favoured outcomes, 1 on the others."""
    chosen = set(favoured)
    total = len(chosen) * ratio + outcomes - len(chosen)
    return {y: (ratio if y in chosen else 1.0) / total for y in range(outcomes)}


def exact_pair(crowd: Crowd) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two laws whose divergence `crowd.delta` bounds, over all (a, b, r) of a small crowd.

    a, b, r count the reports on outcomes favoured by the one record, by the other and by neither.
    """
    n = crowd.reports
    a, b, r = (axis.ravel() for axis in np.meshgrid(*[np.arange(n + 1)] * 3, indexing="ij"))
    silent = float(1 - 2 * crowd.cover - crowd.cover_rest)
    possible = (a + b + r <= n) if silent > 1e-15 else (a + b + r == n)
    possible &= (r == 0) | (crowd.cover_rest > 0)
    a, b, r = a[possible], b[possible], r[possible]
    log = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    weight = log[n] - log[a] - log[b] - log[r] - log[n - a - b - r] + (a + b) * math.log(crowd.cover)
    for count, mass in ((r, float(crowd.cover_rest)), (n - a - b - r, silent)):
        weight = weight + count * math.log(mass if mass > 1e-15 else 1.0)
    own, other = float(crowd.own / crowd.cover), float(crowd.other / crowd.cover)
    rest = float(crowd.rest / crowd.cover_rest) if crowd.rest else 0.0
    mass = np.exp(weight) / n
    return mass * (own * a + other * b + rest * r), mass * (other * a + own * b + rest * r)


def exact_delta(crowd: Crowd, epsilon: float) -> float:
    """What `crowd.delta` bounds, by summing over all cases."""
    one, two = exact_pair(crowd)
    return math.fsum(np.maximum(0.0, one - math.exp(epsilon) * two))


def binary_pair(
    n: int, per_person: int, epsilon: float, ones: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Binary randomized response: the law of the number of ones among n shuffled reports, written out.

    `per_person` of them are a victim's who holds 1, or 0 in the second law; of the others, `ones` hold 1.
    """
    truth = math.exp(epsilon) / (math.exp(epsilon) + 1)
    others = np.convolve(_binomial(ones, truth), _binomial(n - per_person - ones, 1 - truth))
    own = (_binomial(per_person, truth), _binomial(per_person, 1 - truth))
    return np.convolve(others, own[0]), np.convolve(others, own[1])


def binary_delta(n: int, per_person: int, epsilon: float, central: float) -> float:
    """The smallest delta of that crowd at `central`, for the worst of a few kinds of others and both orders."""
    left = n - per_person
    worst = 0.0
    for ones in {0, left // 4, left // 2, left}:
        one, two = binary_pair(n, per_person, epsilon, ones)
        for p, q in ((one, two), (two, one)):
            worst = max(worst, math.fsum(np.maximum(0.0, p - math.exp(central) * q)))
    return worst


def _binomial(n: int, p: float) -> NDArray[np.float64]:
    log = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    k = np.arange(n + 1)
    return np.exp(log[n] - log - log[::-1] + k * math.log(p) + (n - k) * math.log1p(-p))


def worst_person(laws: Sequence[Law], n: int, per_person: int, epsilons: Sequence[float]) -> list[float]:
    """The largest divergence at each epsilon when all `per_person` reports of a victim are exchanged for any others.

    Over all records in each of the victim's reports, before and after, and over all records of n - per_person others.
    """
    worst = [0.0] * len(epsilons)
    for others in combinations_with_replacement(laws, n - per_person):
        crowd = shuffled_law(others)
        seen = []
        for own in combinations_with_replacement(laws, per_person):
            law = crowd
            for one in own:
                law = with_one_more(law, one)
            seen.append(law)
        table = np.array([[law[place] for place in seen[0]] for law in seen])
        for index, epsilon in enumerate(epsilons):
            for row in table:
                beyond = np.maximum(0.0, row - math.exp(epsilon) * table).sum(axis=1).max()
                worst[index] = max(worst[index], float(beyond))
    return worst
