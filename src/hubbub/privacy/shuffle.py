"""What shuffling adds to a local guarantee: proven, tight and computed on the safe side.

n people send one report each, a shuffler mixes them, and somebody who sees only the mixture asks whether
one of them, the victim, holds one record or another. `Crowd` answers with delta(epsilon): an upper bound
on the smallest delta that goes with epsilon. It comes about in two steps.

1. Blanket (Balle, Bell, Gascon, Nissim 2019, Lemma 5.3). Let P and P' be the two laws of the victim's
   report, and let the measure B lie below the law of everybody else's. Then everybody else draws from B
   with probability |B|, and we may reveal those who do not. The rest is symmetric, and
       delta(epsilon) <= E[(X_1 + ... + X_n)_+] / n,      alpha = exp(epsilon),
   where the X_i are independent: (P - alpha P')(y) / B(y) for y drawn by B, and 0 with probability 1 - |B|.
   This is the hockey-stick divergence of a pair of laws, for every alpha >= 0, so it also composes.
2. Convex order. Any X with the same mean and more spread gives a larger bound, so the worst P and P' of a
   kind of mechanisms do for all of them. `response` and `any_mechanism` differ only in that.

The worst pair has three kinds of outcomes: favoured by the one record, by the other, by neither.
Theorem 5 of Wang et al. rests on a lemma that has an erratum and is not used: it is not an upper bound
(`hubbub.privacy.bounds.published`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused

#: The relative error of one rounding.
_ROUNDING = 2.0**-53
#: What is charged for a few dozen roundings at once; library functions are taken to be within four each.
_SLACK = 256 * _ROUNDING
#: Terms that are smaller than exp(-40) of the largest are left out, and their sum is added as a bound.
_NEGLIGIBLE = 40.0
#: Frequencies beyond this many inverse blurs are left out, likewise.
_CUT = 6.0
#: The largest number of reports whose arithmetic stays well inside double precision.
MOST_REPORTS = 10**15


@dataclass(frozen=True)
class Crowd:
    """One victim among `reports` shuffled reports, seen as the pair of laws that is hardest to hide.

    The report falls on an outcome that the victim's record favours with probability `own`, on one that
    the other record favours with probability `other`, on one that neither favours with probability
    `rest`; exchanging the records exchanges `own` and `other`. Every other report covers each of the
    first two with probability at least `cover` and the third with at least `cover_rest`.
    """

    reports: int
    own: Fraction
    other: Fraction
    rest: Fraction
    cover: Fraction
    cover_rest: Fraction
    bound: str

    def __post_init__(self) -> None:
        if not 2 <= self.reports <= MOST_REPORTS:
            raise Refused(
                f"Shuffling needs at least 2 reports (and at most {MOST_REPORTS:.0e}), not {self.reports}."
            )

    @property
    def _top(self) -> float:
        """The epsilon beyond which delta is 0: that of a single report."""
        return math.log(self.own / self.other) * (1 + _SLACK)

    def delta(self, epsilon: float, excess: float = 1e-7) -> float:
        """An upper bound on delta at `epsilon` >= 0, as computed and not only on paper.

        Laws are rounded so that every X_i is too large; truncation and rounding of the sum are bounded and
        added (`_mean_positive_part`). The result is too large by about `excess`, relatively; by up to a
        few percent where epsilon is near 0 and hardly any other report is expected on a favoured outcome.
        """
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise Refused(f"epsilon must be a finite number of at least 0, not {epsilon!r}.")
        if epsilon > self._top:
            return 0.0
        growth = math.expm1(epsilon)
        own, other = float(self.own / self.cover), float(self.other / self.cover)
        gap = float((self.own - self.other) / self.cover)
        slip = 8 * _ROUNDING * (own + other) * (1 + growth)
        gains = [gap - other * growth + slip, -gap - own * growth + slip]
        covers = [float(self.cover), float(self.cover)]
        if gains[0] <= 0:
            return 0.0
        if self.rest and growth:
            gains.append(-float(self.rest / self.cover_rest) * growth * (1 - 8 * _ROUNDING))
            covers.append(float(self.cover_rest))
        # A blanket rounded down is a blanket, too.
        mass = np.array(covers) * (1 - 4 * _ROUNDING)
        return min(1.0, _mean_positive_part(self.reports, mass, np.array(gains), excess))

    def epsilon(self, delta: float, excess: float = 1e-7) -> float:
        """The epsilon that goes with `delta`: `self.delta` of it is at most `delta` and at least (1 - 1e-6) delta."""
        top = self._top
        rough = invert(lambda x: self.delta(x, excess=1e-3), delta, 1e-9 * top, top)
        low = 0.99 * rough
        while low > 1e-9 * top and self.delta(low, excess) <= delta:
            rough, low = low, low / 2
        return invert(lambda x: self.delta(x, excess), delta, low, rough)


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
    return Fraction(math.exp(epsilon) * (1 + 8 * _ROUNDING))


def crowd_of(mechanism: Mechanism, reports: int) -> Crowd:
    """The crowd of n reports of a mechanism.

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
    return any_mechanism(reports, local.epsilon) if weights is None else response(reports, *weights)


def response_weights(mechanism: Mechanism) -> tuple[int, int, int, int] | None:
    """(s, t, W, V) of a mechanism that has a method of this name, see `response`."""
    found: Callable[[], tuple[int, int, int, int]] | None = getattr(mechanism, "response_weights", None)
    return None if found is None else found()


def shuffled_guarantee(mechanism: Mechanism, reports: int, delta: float) -> Guarantee:
    """What a mechanism promises in the shuffled model when `reports` people report once each."""
    crowd = crowd_of(mechanism, reports)
    return Guarantee(
        min(crowd.epsilon(delta), mechanism.guarantee().epsilon),
        unit="record",
        model="shuffled",
        delta=delta,
        note=f"Holds for one report per person among {reports:,} shuffled reports ({crowd.bound}).",
    )


def solve_local_epsilon(
    central_epsilon: float, delta: float, reports: int, make: Callable[[float], Mechanism]
) -> float:
    """The largest local epsilon, up to 16, whose shuffled guarantee is at most (central_epsilon, delta).

    `make` builds the mechanism for a local epsilon, and may refuse one. What is returned meets the goal. Parameters
    that `make` chooses can jump with epsilon (hash buckets do), so a grid is searched and not only bisected:
    the result is the largest but for jumps over less than 1% of epsilon, and for a relative 1e-5.
    """
    check_delta(delta)
    if not (math.isfinite(central_epsilon) and central_epsilon > 0):
        raise Refused(f"epsilon must be a finite number above 0, not {central_epsilon!r}.")

    def meets(epsilon: float) -> bool:
        try:
            crowd = crowd_of(make(epsilon), reports)
        except ValueError:
            return False
        return crowd.delta(central_epsilon, excess=1e-5) <= delta

    # A local epsilon that is no larger than the goal meets it, unless it is refused: then say why.
    good = next_try = min(central_epsilon, 16.0)
    crowd_of(make(good), reports)
    misses = 0
    while next_try < 16 and misses < 3:
        next_try = min(1.1 * next_try, 16.0)
        good, misses = (next_try, 0) if meets(next_try) else (good, misses + 1)
    bad = min(1.1 * good, 16.0)
    grid = [good + (bad - good) * step / 12 for step in range(13)]
    best = next((step for step in reversed(range(1, 12)) if meets(grid[step])), 0)
    good, bad = grid[best], grid[best + 1]
    while bad - good > 1e-5 * good:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if meets(middle) else (good, middle)
    return good


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


def _mean_positive_part(n: int, mass: Floats, gains: Floats, excess: float) -> float:
    """An upper bound on E[(X_1 + ... + X_n)_+] / n; X_i is gains[j] with probability mass[j], otherwise 0.

    With z = c + i w and c > 0, E[T_+] is the integral of E[exp(z T)] / z^2 over w, by 2 pi. It is summed in steps
    of 2 pi / L, for T = X_1 + ... + X_n + Gaussian noise of width `blur`. The result is not too small:
    - Noise raises E[T_+] (Jensen), by a factor of about 1 + (c blur)^2 / 2 = 1 + excess.
    - By Poisson summation the infinite sum is that of exp(c k L) E[(T - k L)_+] over all integers k. The term
      k = 0 is wanted, no other is negative, and L makes all others together about exp(-30) of it.
    - Left-out terms are replaced by bounds on their absolute values: beyond `cut` by the noise's, elsewhere
      by |phi(w)|^2 <= 1 - 2 p_0 p_1 (1 - cos(w (x_0 - x_1))), where phi belongs to the law p tilted by exp(c x).
    - Roundings are bounded term by term: an error e in phi changes phi^n by (|phi| + e)^n - |phi|^n at most.
    Only w near the peaks of the bound on |phi| are visited, and the larger n, the fewer there are.
    """
    tilt = _saddle(n, mass, gains)
    growth = np.expm1(tilt * gains)
    log_scale = n * math.log1p(float(mass @ growth))
    if log_scale < -690:
        # Out of the range of doubles: x_+ <= exp(c x) / (e c), and the e pays for the rounding of log_scale.
        return math.exp(-690) / (tilt * n)
    tilted = mass * (1 + growth) / (1 + float(mass @ growth))
    center, size = float(tilted @ gains), float(tilted @ np.abs(gains))
    variance = float(tilted @ (gains - center) ** 2) + max(0.0, 1 - float(tilted.sum())) * center**2
    # exp(-30) of the tilted law lies beyond n * center + tail (Bernstein), and of what is wanted, below -length.
    jump = 10 * float(gains[0])
    tail = jump + math.sqrt(jump**2 + 60 * n * variance)
    length = max(n * center + tail, (30 + tilt**2 * n * variance / 2) / tilt)
    step = 2 * math.pi / length
    blur = math.sqrt(2 * excess) / tilt
    cut = _CUT / blur
    w = step * _nodes(n, 2 * float(tilted[0] * tilted[1]), float(gains[0] - gains[1]), step, cut)

    real, imaginary = np.zeros(len(w)), np.zeros(len(w))
    for p, x in zip(tilted, gains, strict=True):
        half = w * (x / 2)
        sine = np.sin(half)
        real -= 2 * p * sine * sine
        imaginary += 2 * p * sine * np.cos(half)
    floor = 2.0**-50
    square = np.maximum(real * (2 + real) + imaginary**2, floor - 1)
    log_modulus, argument = np.log1p(square) / 2, np.arctan2(imaginary, 1 + real)
    terms = np.exp(n * log_modulus - (blur * w) ** 2 / 2) / (tilt**2 + w**2)
    angle = n * argument + tilt * blur**2 * w - 2 * np.arctan2(w, tilt)
    first = 1 / tilt**2
    total = first + 2 * float(terms @ np.cos(angle))

    modulus = np.exp(log_modulus)
    off = _SLACK * (w * size + np.abs(argument) - log_modulus) + np.where(square == floor - 1, modulus, 0)
    rounding = 2 * float(terms @ (np.expm1(n * np.log1p(off / modulus)) + _SLACK * 16)) + _SLACK * 16 * first
    skipped = math.exp(1 - _NEGLIGIBLE) * (math.pi / tilt / step + 2 * first)
    beyond = 2 * math.exp(-(_CUT**2) / 2) * (1 / (cut * step) + 1 / cut**2)
    log_scale += (tilt * blur) ** 2 / 2
    log_scale += _SLACK * (n * float(mass @ np.abs(growth)) + abs(log_scale) + 16)
    whole = math.exp(log_scale) * (total + rounding + skipped + beyond) * step / (2 * math.pi)
    # Where all X_i are 0, the noise alone is summed: at least E[Z_+] = blur / sqrt(2 pi) of it can be taken off.
    silent = 1 - float(mass.sum()) - _SLACK
    if silent > 0:
        log_silent = n * math.log(silent)
        whole -= math.exp(log_silent + _SLACK * (log_silent - 1)) * blur / math.sqrt(2 * math.pi)
    return whole / n


def _saddle(n: int, mass: Floats, gains: Floats) -> float:
    """The tilt c that makes exp(n log E[exp(c X)]) / c^2 smallest; any c > 0 would give a bound."""
    pairs = [(float(p), float(x)) for p, x in zip(mass, gains, strict=True)]

    def slope(tilt: float) -> float:
        weights = [p * math.exp(tilt * x) for p, x in pairs]
        whole = 1 + sum(p * math.expm1(tilt * x) for p, x in pairs)
        return n * sum(weight * x for weight, (_, x) in zip(weights, pairs, strict=True)) / whole - 2 / tilt

    low = high = min(1 / math.sqrt(n * float(mass @ gains**2)), 1 / float(gains[0]))
    while slope(high) < 0:
        high *= 2
    while slope(low) > 0:
        low /= 2
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high


def _nodes(n: int, product: float, period: float, step: float, cut: float) -> Floats:
    """The integers j >= 1 with j * step <= cut where (1 - product (1 - cos(j step period)))^(n/2) > exp(-40)."""
    last = math.floor(cut / step)
    dip = -math.expm1(-2 * _NEGLIGIBLE / n)
    if dip >= 2 * product:
        return np.arange(1, last + 1, dtype=np.float64)
    reach = math.acos(1 - dip / product) / period
    peaks = np.arange(math.floor(cut * period / (2 * math.pi)) + 2) * (2 * math.pi / period)
    start = np.maximum(np.floor((peaks - reach) / step), 1)
    stop = np.minimum(np.ceil((peaks + reach) / step), last)
    count = np.maximum(stop - start + 1, 0).astype(np.int64)
    offset = np.repeat(start - np.cumsum(count) + count, count)
    return offset + np.arange(count.sum())
