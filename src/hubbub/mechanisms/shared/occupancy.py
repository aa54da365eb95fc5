"""How full the fullest hash buckets are: the law that sets sketch response's gain.

k balls fall into each of g rows of t buckets, independently. A bucket's load is the number of its balls, or,
for signed balls, the sum of their random signs. Wanted is the expected sum of the K highest scores, a score
being a load (sets), or a load for each of a bucket's two sides with opposite signs (signed). Because that
sum is the sum over levels v >= 1 of min(K, number of scores >= v), it follows from the law of the
number of buckets that reach a level. That law comes from a generating function: independent Poisson loads,
conditioned on k balls in all (one Fourier coefficient in the balls, the other transform in the count).
Errors, from cutting tails beyond eight standard deviations, are below 1e-8.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.samplers import UNIT, favoured_weight

#: Hash evaluations a device may spend on a report unless told otherwise: several seeds for short records.
_DEVICE_COST = 64
_MOST_SEEDS = 8
#: Entries per record up to which every number of buckets is tried, and up to which those near the scaled one are.
_TRIED, _SEARCHED = 64, 1024
#: Levels reached by fewer buckets than this on average do not matter.
_NEGLIGIBLE = 1e-9


class Occupancy:
    """Loads of g rows of t buckets with k balls each."""

    def __init__(self, balls: int, buckets: int, rows: int, signed: bool) -> None:
        self.balls = balls
        self.buckets = buckets
        self.rows = rows
        self.signed = signed

    @property
    def candidates(self) -> int:
        """Number of scores."""
        return self.rows * self.buckets * (2 if self.signed else 1)

    @cached_property
    def most(self) -> int:
        """Largest favoured set considered: no more than there are balls, nor than half of the candidates."""
        return max(1, min(self.candidates // 2, self.rows * self.balls))

    @cached_property
    def _levels(self) -> list[tuple[float, Floats]]:
        """For v = 1, 2, ...: the mean number of scores >= v, and E[min(K, that number)] for K = 0 .. most."""
        found: list[tuple[float, Floats]] = []
        for level in range(1, self.balls + 1):
            law = self._count_law(level)
            mean = float(law @ np.arange(len(law)))
            if mean < _NEGLIGIBLE and found:
                break
            beyond = np.maximum(1 - np.cumsum(law), 0)
            capped = np.zeros(self.most + 1)
            steps = min(self.most, len(beyond))
            capped[1 : steps + 1] = np.cumsum(beyond[:steps])
            capped[steps + 1 :] = capped[steps]
            found.append((mean, capped))
        return found

    @cached_property
    def top_sums(self) -> Floats:
        """E[sum of the K highest scores] for K = 0 .. most."""
        total = np.zeros(self.most + 1)
        for _, capped in self._levels:
            total += capped
        return total

    def favour_rates(self, favoured: int) -> Floats:
        """Probability that a score of exactly 0, 1, 2, ... is among the `favoured` highest."""
        means = np.array([mean for mean, _ in self._levels] + [0.0])
        caps = np.array([capped[favoured] for _, capped in self._levels] + [0.0])
        zeros = self.candidates - (2 if self.signed else 1) * means[0]
        at_zero = (favoured - caps[0]) / zeros if zeros > 1e-9 else 0.0
        there = means[:-1] - means[1:]
        rates = np.divide(caps[:-1] - caps[1:], there, out=np.zeros(len(there)), where=there > 1e-300)
        return np.asarray(np.clip(np.concatenate([[at_zero], rates]), 0, 1))

    def held_load_law(self) -> Floats:
        """P(|load| = 0, 1, 2, ...) of the bucket that a given ball lies in."""
        others = np.arange(self.balls)
        share = 1 / self.buckets
        if share == 1:
            mass = (others == self.balls - 1).astype(np.float64)
        else:
            facts = _log_factorials(self.balls)
            ways = facts[self.balls - 1] - facts[others] - facts[self.balls - 1 - others]
            mass = np.exp(ways + others * math.log(share) + (self.balls - 1 - others) * math.log1p(-share))
        if not self.signed:
            return np.concatenate([[0.0], mass])
        likely = np.flatnonzero(mass > 1e-14)
        furthest = math.ceil(8 * math.sqrt(likely[-1] + 1)) + 2
        steps = likely + 1
        return np.array([mass[likely] @ _walk_mass(steps, place) for place in range(furthest + 1)])

    def _count_law(self, level: int) -> Floats:
        """P(c of all buckets have |load| >= level), c = 0, 1, ..."""
        rate = self.balls / self.buckets
        degree = self.balls + math.ceil(8 * math.sqrt(self.balls)) + 20
        loads = np.arange(degree)
        mass = np.exp(loads * math.log(rate) - rate - _log_factorials(degree)[:degree])
        reach = mass * self._reach(level, degree)
        # Fourier transforms: over balls (degree points), over counts (as many as can matter).
        per_row = self.buckets * float(reach.sum())
        size = self.rows * self.buckets + 1
        window = min(size, 2 * math.ceil(8 * math.sqrt(self.rows * per_row + 1) + 20))
        # With many buckets only low frequencies matter: twenty inverse standard deviations of the count, and of the
        # balls what goes with them.
        share, joint = float(reach.sum()), float(loads @ reach)
        link = self.buckets * (joint - rate * share)
        spread = self.rows * (self.buckets * share * (1 - share) - link**2 / self.balls)
        few = self.buckets <= 16
        furthest = math.pi if few else min(math.pi, 20 / math.sqrt(max(spread, 1e-9)))
        kept = np.arange(min(window // 2, math.ceil(furthest * window / (2 * math.pi))) + 1)
        widest = math.pi if few else furthest * abs(link) / self.balls + 60 / math.sqrt(self.balls)
        place = np.arange(degree)
        turn = 2 * math.pi / degree * np.minimum(place, degree - place)
        # A signed load has the parity of its balls, which is a second peak half a turn away.
        near = place[np.minimum(turn, math.pi - turn) <= widest] if self.signed else place[turn <= widest]
        turns = np.exp(-2j * np.pi * kept / window)
        all_hat, reach_hat = np.fft.fft(mass)[near], np.fft.fft(reach)[near]
        powers = _power(all_hat[:, None] + reach_hat[:, None] * (turns[None, :] - 1), self.buckets)
        row_hat = (np.exp(2j * np.pi * self.balls * near / degree) @ powers) / degree
        count_hat = np.zeros(window // 2 + 1, dtype=np.complex128)
        count_hat[kept] = _power(row_hat / row_hat[0], self.rows)
        law = np.fft.irfft(count_hat, window)
        if window == size:
            return np.maximum(law, 0)
        # The window holds counts modulo its length: put them back around their mean.
        start = max(0, round(self.rows * per_row) - window // 2)
        whole = np.zeros(start + window)
        counts = np.arange(start, start + window)
        whole[counts] = np.maximum(law[counts % window], 0)
        return whole[:size]

    def _reach(self, level: int, degree: int) -> Floats:
        """P(|load| >= level) for a bucket with 0, 1, .. degree - 1 balls."""
        if not self.signed:
            return (np.arange(degree) >= level).astype(np.float64)
        # Levels are asked for in order; each takes one value of |load| off the last.
        if level == 1 or self._tail[0] != level - 1:
            self._tail = (0, np.ones(degree))
        while self._tail[0] < level:
            done, tail = self._tail
            self._tail = (done + 1, np.maximum(tail - _walk_mass(np.arange(degree), done), 0))
        return self._tail[1]

    _tail: tuple[int, Floats] = (0, np.ones(0))


def _walk_mass(steps: Int64s, place: int) -> Floats:
    """P(|sum of random signs| = place) for each number of signs."""
    fits = (steps >= place) & ((steps - place) % 2 == 0)
    chosen = steps[fits]
    ups = (chosen + place) // 2
    facts = _log_factorials(int(steps.max(initial=0)) + 1)
    mass = np.zeros(len(steps))
    both = math.log(2) if place else 0.0
    mass[fits] = np.exp(facts[chosen] - facts[ups] - facts[chosen - ups] - chosen * math.log(2) + both)
    return mass


@lru_cache(maxsize=8)
def _log_factorials(count: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1, dtype=np.float64)))])


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base ** exponent by squaring, many times faster than the complex power function."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result


# The parameters of sketch response


@lru_cache(maxsize=256)
def occupancy_of(balls: int, buckets: int, rows: int, signed: bool) -> Occupancy:
    """The same, kept for the next question."""
    return Occupancy(balls, buckets, rows, signed)


def gains_of(occupancy: Occupancy, epsilon: float) -> Floats:
    """kappa for every size of the favoured set, from 0."""
    w = favoured_weight(epsilon) / UNIT
    size = np.arange(occupancy.most + 1)
    base = 0.0 if occupancy.signed else size / occupancy.buckets
    step = (w - 1) / (size * w + occupancy.candidates - size)
    return np.asarray(step * (occupancy.top_sums / occupancy.balls - base))


def best_favoured(occupancy: Occupancy, epsilon: float) -> tuple[float, int]:
    """(variance of one report, size) of the best favoured set."""
    gains = gains_of(occupancy, epsilon)
    size = int(np.argmax(gains[1:])) + 1
    t = occupancy.buckets
    spread = 1 / t if occupancy.signed else (1 / t) * (1 - 1 / t)
    return spread / float(gains[size]) ** 2, size


@lru_cache(maxsize=256)
def best_buckets(balls: int, epsilon: float, seeds: int, signed: bool, family: str) -> int:
    """The number of buckets with the lowest variance: powers of two first, then between them (prf).

    With many entries the best number grows in proportion to them: it is then looked for near the scaled one, and from
    a thousand entries on taken as it is.
    """

    def scaled(fewer: int) -> int:
        best = best_buckets(fewer, epsilon, seeds, signed, family)
        return min(1 << 20, best << round(math.log2(balls / fewer)))

    if balls > _SEARCHED:
        return scaled(_SEARCHED)

    def loss(buckets: int) -> float:
        return best_favoured(occupancy_of(balls, buckets, seeds, signed), epsilon)[0]

    first = 0 if signed else 1
    found: dict[int, float] = {}
    if balls > _TRIED:
        best = 1 << (scaled(_TRIED).bit_length() - 1)
        while best not in found or not {max(best // 2, 1 << first), min(2 * best, 1 << 20)} <= set(found):
            for near in {max(best // 2, 1 << first), best, min(2 * best, 1 << 20)} - set(found):
                found[near] = loss(near)
            best = min(found, key=found.__getitem__)
    for a in range(first, 21) if balls <= _TRIED else ():
        found[1 << a] = loss(1 << a)
        # There can be one optimum at very few buckets and one at about max_entries * exp(epsilon).
        if 1 << a >= 2 * balls * (1 + math.exp(epsilon)) and found[1 << a] > found[1 << (a - 1)]:
            break
    best = min(found, key=found.__getitem__)
    if family == "prf":
        step = max(1, best // 4)
        while step >= max(1, best // 64):
            for near in (best - step, best + step):
                if near >= 1 << first and near not in found:
                    found[near] = loss(near)
            best = min(found, key=found.__getitem__)
            step //= 2
    return best


@lru_cache(maxsize=256)
def best_seeds(balls: int, epsilon: float, signed: bool, family: str) -> int:
    """The fewest seeds within half a percent of the best that the device's cost allows."""
    most = min(_MOST_SEEDS, max(1, _DEVICE_COST // balls))
    losses = {}
    for seeds in (1 << a for a in range(most.bit_length())):
        buckets = best_buckets(balls, epsilon, seeds, signed, family)
        losses[seeds] = best_favoured(occupancy_of(balls, buckets, seeds, signed), epsilon)[0]
    return min(seeds for seeds, loss in losses.items() if loss <= 1.005 * min(losses.values()))
