"""What shuffling adds to a local guarantee: proven, tight and computed on the safe side.

A shuffler mixes n reports, and somebody who sees only the mixture asks whether one person, the victim, held one
record or another. `Crowd` answers with delta(epsilon): an upper bound on the smallest delta that goes with
epsilon. For one report per person it comes about in two steps, and a third is for several.

1. Blanket (Balle, Bell, Gascon, Nissim 2019, Lemma 5.3). Let P and P' be the two laws of the victim's
   report, and let the measure B lie below the law of everybody else's. Then everybody else draws from B
   with probability |B|, and we may reveal those who do not. The rest is symmetric, and
       delta(epsilon) <= E[(X_1 + ... + X_n)_+] / n,      alpha = exp(epsilon),
   where the X_i are independent: (P - alpha P')(y) / B(y) for y drawn by B, and 0 with probability 1 - |B|.
   This is the hockey-stick divergence of a pair of laws, for every alpha >= 0, so it also composes.
2. Convex order. Any X with the same mean and more spread gives a larger bound, so the worst P and P' of a
   kind of mechanisms do for all of them. `response` and `any_mechanism` differ only in that.
3. Chain. With up to m reports per person, exchange the victim's reports one after the other. Each exchange
   is a case of the first two steps, whoever sent the other n - 1 reports; so the laws M_0, ..., M_m of what
   is seen have M_i <= a M_{i+1} + (mass delta_1), where a = exp(epsilon / m) and delta_1 = delta(epsilon / m)
   of one report. Put together, M_0 <= a^m M_m + (1 + a + ... + a^(m-1)) delta_1. It does not matter whether
   the m reports are about one record or about m, nor whether they are in one crowd or in several, as long
   as each of these has n reports or more: an exchange changes one crowd, and the others are independent of it.

The worst pair has three kinds of outcomes: favoured by the one record, by the other, by neither.
Theorem 5 of Wang et al. rests on a lemma that has an erratum and is not used: it is not an upper bound
(`hubbub.privacy.bounds.published`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.errors import Refused
from hubbub.privacy.positive_part import ROUNDING, SLACK, mean_positive_part

#: The largest number of reports whose arithmetic stays well inside double precision.
MOST_REPORTS = 10**15


@dataclass(frozen=True)
class Crowd:
    """One victim among `reports` shuffled reports, seen as the pair of laws that is hardest to hide.

    Up to `per_person` of the reports are the victim's. One of them falls on an outcome that the victim's
    record favours with probability `own`, on one that the other record favours with probability `other`,
    on one that neither favours with probability `rest`; exchanging the records exchanges `own` and `other`.
    Every other report covers each of the first two with probability at least `cover` and the third with at
    least `cover_rest`.
    """

    reports: int
    own: Fraction
    other: Fraction
    rest: Fraction
    cover: Fraction
    cover_rest: Fraction
    bound: str
    per_person: int = 1

    def __post_init__(self) -> None:
        if not 2 <= self.reports <= MOST_REPORTS:
            raise Refused(
                f"Shuffling needs at least 2 reports (and at most {MOST_REPORTS:.0e}), not {self.reports}."
            )
        if self.per_person < 1:
            raise Refused(f"A person has at least 1 report in the crowd, not {self.per_person}.")

    @property
    def _top(self) -> float:
        """The epsilon beyond which delta is 0: that of all the victim's reports without a crowd."""
        return self.per_person * math.log(self.own / self.other) * (1 + SLACK)

    def delta(self, epsilon: float, excess: float = 1e-7) -> float:
        """An upper bound on delta at `epsilon` >= 0, as computed and not only on paper.

        Laws are rounded so that every X_i is too large; truncation and rounding of the sum are bounded and
        added (`mean_positive_part`). The result is too large by about `excess`, relatively; by up to a
        few percent where epsilon is near 0 and hardly any other report is expected on a favoured outcome.
        """
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise Refused(f"epsilon must be a finite number of at least 0, not {epsilon!r}.")
        if epsilon > self._top:
            return 0.0
        if self.per_person == 1:
            return _delta_of_one(self, epsilon, excess)
        step = epsilon / self.per_person * (1 - 4 * ROUNDING)
        one = _delta_of_one(self, step, excess)
        if not one:
            return 0.0
        steps = _log_growth(epsilon) - _log_growth(step) if step else math.log(self.per_person)
        return math.exp(min(0.0, math.log(one) + steps + SLACK * (1 + epsilon)))

    def epsilon(self, delta: float, excess: float = 1e-7) -> float:
        """The epsilon that goes with `delta`: `self.delta` of it is at most `delta` and at least (1 - 1e-6) delta."""
        top = self._top
        rough = invert(lambda x: self.delta(x, excess=1e-3), delta, 1e-9 * top, top)
        low = 0.99 * rough
        while low > 1e-9 * top and self.delta(low, excess) <= delta:
            rough, low = low, low / 2
        return invert(lambda x: self.delta(x, excess), delta, low, rough)


@lru_cache(maxsize=1024)
def _delta_of_one(crowd: Crowd, epsilon: float, excess: float) -> float:
    """`Crowd.delta` for the first of the victim's reports alone (steps 1 and 2); planners ask the same again."""
    growth = math.expm1(epsilon)
    own, other = float(crowd.own / crowd.cover), float(crowd.other / crowd.cover)
    gap = float((crowd.own - crowd.other) / crowd.cover)
    slip = 8 * ROUNDING * (own + other) * (1 + growth)
    gains = [gap - other * growth + slip, -gap - own * growth + slip]
    covers = [float(crowd.cover), float(crowd.cover)]
    if gains[0] <= 0:
        return 0.0
    if crowd.rest and growth:
        gains.append(-float(crowd.rest / crowd.cover_rest) * growth * (1 - 8 * ROUNDING))
        covers.append(float(crowd.cover_rest))
    # A blanket rounded down is a blanket, too.
    mass = np.array(covers) * (1 - 4 * ROUNDING)
    return min(1.0, mean_positive_part(crowd.reports, mass, np.array(gains), excess))


def _log_growth(epsilon: float) -> float:
    """log(exp(epsilon) - 1), also where the exponential is too large for a double."""
    return epsilon + math.log(-math.expm1(-epsilon))


def response(reports: int, favoured: int, outcomes: int, weight: int, unit: int) -> Crowd:
    """Mechanisms that favour: t outcomes with weights in [V, W] that sum to Omega = s W + (t - s) V.

    Collision and CoCo (s = max_entries of t buckets) and plain response mechanisms that favour exactly
    s = K of t = N candidates are of this kind, whatever the public seeds, hash conflicts or overlaps;
    mixing over stochastic rounding, dummies or random ties keeps it.

    Proof. B = V / Omega on every outcome is a blanket. Put u = (w - V) / (W - V) in [0, 1] for the victim's
    weights w, and u' for the other record's: both sum to s, and X is affine in u - alpha u'. The mean of a
    convex function of X is convex in each point (u, u'), so it grows when points are split among the corners
    of the square. One outcome at (1, 1) and one at (0, 0) are less spread than one at (1, 0) and one at
    (0, 1): X has the same sum there, and X(1, 0) and X(0, 1) enclose the others. With t >= 2s there are as
    many outcomes at (0, 0) as at (1, 1) or more, so all of the latter can be exchanged. What remains: the
    records favour disjoint sets of s outcomes, and t - 2s outcomes are at (0, 0).
    """
    if not (unit > 0 and weight > unit):
        raise Refused("A favoured outcome must weigh more than another one, and that one more than nothing.")
    if favoured < 1:
        raise Refused(f"At least one outcome must be favoured, not {favoured}.")
    if outcomes < 2 * favoured:
        raise Refused(
            f"The shuffle bound is for mechanisms with at least twice as many outcomes as favoured ones (t >= 2s), "
            f"and {outcomes} are fewer than 2 * {favoured}: use more buckets."
        )
    omega = favoured * weight + (outcomes - favoured) * unit
    cover, rest = Fraction(favoured * unit, omega), Fraction((outcomes - 2 * favoured) * unit, omega)
    name = f"blanket bound for responses that favour {favoured} of {outcomes} outcomes"
    return Crowd(reports, Fraction(favoured * weight, omega), cover, rest, cover, rest, name)


def any_mechanism(reports: int, epsilon: float) -> Crowd:
    """Any mechanism that is epsilon-LDP (pure, for all pairs of records): randomized response is the worst.

    The number is that of "stronger clones" (Feldman, McMillan, Talwar 2023) at 1 / (e^eps + 1). Their general
    theorem has an erratum; it is not relied on, this proof is. It needs everybody to use the same mechanism.

    Proof. B = max(P, P') / e^eps is a blanket. Let q = e^-eps < alpha < 1/q; outside of that delta is
    1 - alpha or 0. Take an outcome of B-measure b where P' / P = r, q <= r <= 1, so that
    X = x = e^eps (1 - alpha r). Replace it by measure b l of (P, P') ~ (1, q), where X = x1 > 0, and b m of
    (q, 1), where X = x2 < 0: l + q m = 1 and q l + m = r keep P and P', so l, m lie in [0, 1] and
    x = l x1 + m x2. E(X - k)_+ does not fall: if k >= 0, l (x1 - k) = x - m x2 - l k >= x - k; if k <= 0, the same
    argument holds for (k - X)_+ with x2, and the means agree; X = 0 adds nothing to either. So X grows
    in convex order. r > 1 is alike, with P and P' exchanged. In the end P is e^eps / (e^eps + 1) and
    1 / (e^eps + 1) on two points, P' the reverse, and B is 1 / (e^eps + 1) on both.
    """
    ratio = above_exp(epsilon)
    cover = 1 / (ratio + 1)
    return Crowd(
        reports, ratio * cover, cover, Fraction(0), cover, Fraction(0), "bound for any epsilon-LDP mechanism"
    )


def above_exp(epsilon: float) -> Fraction:
    """exp(epsilon), rounded up; a larger ratio is a weaker promise."""
    if not (math.isfinite(epsilon) and 0 < epsilon <= 64):
        raise Refused(f"epsilon must be a finite number above 0 (and at most 64), not {epsilon!r}.")
    return Fraction(math.exp(epsilon) * (1 + 8 * ROUNDING))


def crowd_of(mechanism: Mechanism, reports: int, per_person: int = 1) -> Crowd:
    """The crowd of n reports of a mechanism, up to `per_person` of them from one person.

    A mechanism that has a method `response_weights() -> (s, t, W, V)` vouches that its reports are as `response`
    says, given the public seeds; all others that are pure epsilon-LDP per record are taken for
    randomized response. Guarantees per entry or per l1 distance are refused: other people's
    records are no neighbours of the victim's, so their reports need not cover the victim's.
    """
    local = mechanism.guarantee()
    if local.model != "local" or local.delta:
        raise Refused(
            "Shuffling strengthens pure epsilon guarantees of the local model; this one is not of that kind."
        )
    if local.unit != "record":
        raise Refused(
            f"This guarantee is per {local.unit}: it does not say that two people's reports look alike, "
            "and without that, shuffling proves nothing; use a mechanism with a guarantee per record."
        )
    weights = response_weights(mechanism)
    crowd = any_mechanism(reports, local.epsilon) if weights is None else response(reports, *weights)
    return replace(crowd, per_person=per_person)


def response_weights(mechanism: Mechanism) -> tuple[int, int, int, int] | None:
    """(s, t, W, V) of a mechanism that has a method of this name, see `response`."""
    found: Callable[[], tuple[int, int, int, int]] | None = getattr(mechanism, "response_weights", None)
    return None if found is None else found()


def shuffled_guarantee(mechanism: Mechanism, reports: int, delta: float, per_person: int = 1) -> Guarantee:
    """What a mechanism promises in the shuffled model about all that one person says in crowds of `reports`."""
    crowd = crowd_of(mechanism, reports, per_person)
    return Guarantee(
        min(crowd.epsilon(delta), per_person * mechanism.guarantee().epsilon),
        unit="record",
        model="shuffled",
        delta=delta,
        note=f"Holds for {reports_per_person(per_person)} among {reports:,} shuffled reports ({crowd.bound}).",
    )


def reports_per_person(most: int) -> str:
    """Whom a guarantee is about, in words."""
    if most == 1:
        return "one report per person"
    return f"up to {most:,} reports per person, all together and whatever record each is about,"


class Hiding(Protocol):
    """A crowd of whatever kind: how well it hides somebody."""

    def delta(self, epsilon: float, excess: float = ...) -> float: ...


def solve_local_epsilon(
    central_epsilon: float, delta: float, reports: int, make: Callable[[float], Mechanism]
) -> float:
    """The largest local epsilon, up to 16, whose shuffled guarantee is at most (central_epsilon, delta).

    `make` builds the mechanism for a local epsilon, and may refuse one. What is returned meets the goal. Parameters
    that `make` chooses can jump with epsilon (hash buckets do), so a grid is searched and not only bisected: the
    result is the largest but for jumps over less than 2% of epsilon, and for a relative 1e-4.
    """
    meets = _meeting(central_epsilon, delta, lambda epsilon: crowd_of(make(epsilon), reports))
    # A local epsilon that is no larger than the goal meets it, unless it is refused: then say why.
    good = min(central_epsilon, 16.0)
    crowd_of(make(good), reports)
    while good < 16 and meets(min(1.5 * good, 16.0)):
        good = min(1.5 * good, 16.0)
    next_try, misses = good, 0
    while next_try < 16 and misses < 3:
        next_try = min(1.1 * next_try, 16.0)
        good, misses = (next_try, 0) if meets(next_try) else (good, misses + 1)
    bad = min(1.1 * good, 16.0)
    grid = [good + (bad - good) * step / 6 for step in range(7)]
    best = next((step for step in reversed(range(1, 6)) if meets(grid[step])), 0)
    good, bad = grid[best], grid[best + 1]
    while bad - good > 1e-4 * good:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if meets(middle) else (good, middle)
    return good


def bisect_local_epsilon(
    central_epsilon: float, delta: float, crowd: Callable[[float], Hiding], precision: float
) -> float:
    """The same where nothing jumps with the local epsilon: `crowd` is the crowd that it makes."""
    meets = _meeting(central_epsilon, delta, crowd)
    good, bad = 1e-3, 16.0
    crowd(good)
    if not meets(good):
        raise Refused("no local epsilon is small enough for this goal; ask for fewer messages")
    while bad > (1 + precision) * good:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if meets(middle) else (good, middle)
    return good


def _meeting(
    central_epsilon: float, delta: float, crowd: Callable[[float], Hiding]
) -> Callable[[float], bool]:
    """Whether the crowd that a local epsilon makes is good enough."""
    check_delta(delta)
    if not (math.isfinite(central_epsilon) and central_epsilon > 0):
        raise Refused(f"epsilon must be a finite number above 0, not {central_epsilon!r}.")

    def meets(epsilon: float) -> bool:
        # The bound is too large by this much of delta, never too small; more precision would move epsilon by less
        # than what is promised.
        try:
            found = crowd(epsilon)
        except ValueError:
            return False
        return found.delta(central_epsilon, excess=1e-3) <= delta

    return meets


def check_delta(delta: float) -> None:
    """Refuse a delta that no guarantee of the shuffled model can have."""
    if not 0 < delta < 1:
        raise Refused(f"delta must be above 0 and below 1 in the shuffled model, not {delta!r}.")


def invert(curve: Callable[[float], float], delta: float, low: float, high: float) -> float:
    """A point x in [low, high] with curve(x) <= delta, and not below (1 - 1e-6) delta unless x is `low`.

    `curve` falls and is at most `delta` at `high`. Geometric bisection, then regula falsi (Illinois) on log(curve).
    """
    check_delta(delta)

    def height(x: float) -> float:
        value = curve(x)
        # Aim at the middle of what is accepted.
        return max(math.log(value / delta) + 5e-7, -50.0) if value > 0 else -50.0

    at_low, at_high = height(low), height(high)
    if at_low <= 5e-7:
        return low
    side = 0
    while high - low > 1e-12 * high:
        x = math.sqrt(low * high)
        if high < 2 * low and at_high > -50:
            x = low + (high - low) * at_low / (at_low - at_high)
        at = height(x)
        if abs(at) < 5e-7:
            return x
        if at > 0:
            low, at_low, at_high, side = x, at, at_high / (2 if side > 0 else 1), 1
        else:
            high, at_high, at_low, side = x, at, at_low / (2 if side < 0 else 1), -1
    return high
