"""Tails of sums of votes, and where they fall to given odds: what intervals at small counts are made of.

Tails are saddlepoint approximations for whole numbers (Lugannani and Rice 1980, Daniels 1987, in Barndorff-Nielsen's
form, with the continuity correction that has the hyperbolic sine). From 0.3 expected votes on they are within 5% of the
exact tails wherever these are below 1/10, and nearly always on the large side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hubbub.primitives.arrays import Floats

#: Doublings of a bracket, and halvings of it: to 2^-24 of a few standard errors.
_DOUBLINGS, _HALVINGS = 60, 24
#: Steps of Newton's rule, none longer than 1: saddlepoints are hardly ever further than a few from 0.
_STEPS = 8
#: erfc with a relative error below 1.2e-7 everywhere (Press et al., Numerical Recipes, section 6.2).
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def beyond(z: Any) -> Floats:
    """P(normal > z), with a small relative error however large z is."""
    x = np.minimum(np.abs(z) / np.sqrt(2), 30.0)
    t = 1 / (1 + 0.5 * x)
    power = np.zeros_like(t)
    for coefficient in reversed(_ERFC):
        power = power * t + coefficient
    tail = 0.5 * t * np.exp(power - x**2)
    return np.asarray(np.where(np.asarray(z) >= 0, tail, 1 - tail))


@dataclass(frozen=True)
class Law:
    """The sum of `reports` independent votes, each +1 with probability `plus` and -1 with probability `minus`.

    Arrays, or numbers that hold for all. Reports need not be whole: what counts is the law's mean and variance.
    `span` is the distance between possible sums: 2 if everybody votes.
    """

    reports: Any
    plus: Any
    minus: Any
    span: Any = 1.0

    def surprise(self, count: Any) -> Floats:
        """The z for which a normal number is above z as often as the sum is `count` or more."""
        edge = np.asarray(count, dtype=np.float64) - 0.5 * np.asarray(self.span)
        n, plus, minus = (np.maximum(part, 1e-300) for part in (self.reports, self.plus, self.minus))
        with np.errstate(all="ignore"):
            # The saddlepoint: with votes weighed by tilt^vote the sum has its mean at the edge. A quadratic equation.
            a, b, c = (n - edge) * plus, edge * (1 - plus - minus), (n + edge) * minus
            root = np.sqrt(b**2 + 4 * a * c)
            tilt = np.where(b >= 0, (b + root) / (2 * a), 2 * c / (root - b))
            gained = plus * (tilt - 1) + minus * (1 / tilt - 1)
            spread = n * (plus * tilt + minus / tilt) / (1 + gained) - edge**2 / n
            t = np.log(tilt)
            w = np.sign(t) * np.sqrt(np.maximum(2 * (t * edge - n * np.log1p(gained)), 0))
            step = 2 * np.sinh(self.span * t / 2) / self.span
            lean = plus - minus
            skew = n * lean * (1 - 3 * (plus + minus) + 2 * lean**2) / spread**1.5
            z = np.where(np.abs(w) < 1e-3, w + skew / 6, w + np.log(step * np.sqrt(spread) / w) / w)
        z = np.where(edge >= n, np.inf, np.where(edge <= -n, -np.inf, z))
        return np.where((edge < 0) & (np.asarray(self.minus) <= 0), -np.inf, z)

    @property
    def cast(self) -> Floats:
        """Votes in the mean."""
        return np.asarray(self.reports * (self.plus + self.minus))

    def surprise_below(self, count: Any) -> Floats:
        """The same for `count` or less."""
        return Law(self.reports, self.minus, self.plus, self.span).surprise(-np.asarray(count))

    def at_least(self, count: Any) -> Floats:
        """P(sum >= count)."""
        return beyond(self.surprise(count))

    def at_most(self, count: Any) -> Floats:
        """P(sum <= count). That nothing was named, where there are no votes against, is known exactly."""
        found = beyond(self.surprise_below(count))
        nothing = (np.asarray(count) == 0) & (np.asarray(self.minus) <= 0)
        with np.errstate(divide="ignore"):
            return np.where(nothing, np.exp(self.reports * np.log1p(-np.asarray(self.plus))), found)

    def among_few(
        self, count: Any, limit: Any, part: Any, weights: tuple[float, float] = (1.0, -1.0)
    ) -> Floats:
        """P(sum > count and fewer than `limit` votes are cast), and a part of that of sum = count; exactly.

        Votes may count more or less than 1: `weights` are those of a vote for and of a vote against.
        """
        rest, most = np.maximum(1 - self.plus - self.minus, 1e-12), int(np.max(limit))
        first, found, equal = np.exp(self.reports * np.log(rest)), 0.0, 1e-9 * np.abs(weights).sum()
        for pro in range(most):
            chance = first
            for contra in range(most - pro):
                beyond = weights[0] * pro + weights[1] * contra - count
                counted = (beyond > equal) + part * (np.abs(beyond) <= equal)
                found = found + chance * counted * (pro + contra < limit)
                chance = (
                    chance * np.maximum(self.reports - pro - contra, 0) * self.minus / (rest * (contra + 1))
                )
            first = first * np.maximum(self.reports - pro, 0) * self.plus / (rest * (pro + 1))
        return np.asarray(found)


class Votes(NamedTuple):
    """Independent votes of so many people of one kind, each for, against or not at all."""

    people: Any
    plus: Any
    minus: Any


@dataclass(frozen=True)
class TwoKinds:
    """The sum of votes of two kinds of people: those who hold a key, and the others.

    One kind with the same mean and variance has other tails where holders vote nearly surely: what exceeds the mean
    then comes from the others, who are many and vote rarely.
    """

    holders: Votes
    others: Votes
    span: Any = 1.0

    @property
    def cast(self) -> Floats:
        """Votes in the mean."""
        return np.asarray(sum(kind.people * (kind.plus + kind.minus) for kind in (self.holders, self.others)))

    def surprise(self, count: Any) -> Floats:
        """The z for which a normal number is above z as often as the sum is `count` or more."""
        edge = np.asarray(count, dtype=np.float64) - 0.5 * np.asarray(self.span)
        with np.errstate(all="ignore"):
            mean, spread, third = self._cumulants(1.0)
            skew, t = third / spread**1.5, np.clip((edge - mean) / spread, -1, 1)
            for _ in range(
                _STEPS
            ):  # the saddlepoint, where the tilted sum has its mean at the edge: Newton's rule
                mean, spread, _ = self._cumulants(np.exp(t))
                t = t + np.clip((edge - mean) / np.maximum(spread, 1e-300), -1, 1)
            spread, log_mean = self._cumulants(np.exp(t))[1], 0.0
            for people, plus, minus in (self.holders, self.others):
                log_mean = log_mean + people * np.log1p(plus * np.expm1(t) + minus * np.expm1(-t))
            w = np.sign(t) * np.sqrt(np.maximum(2 * (t * edge - log_mean), 0))
            step = 2 * np.sinh(self.span * t / 2) / self.span
            z = np.where(np.abs(w) < 1e-3, w + skew / 6, w + np.log(step * np.sqrt(spread) / w) / w)
        most = sum(kind.people * (np.asarray(kind.plus) > 0) for kind in (self.holders, self.others))
        least = -sum(kind.people * (np.asarray(kind.minus) > 0) for kind in (self.holders, self.others))
        return np.where(edge >= most, np.inf, np.where(edge <= least, -np.inf, z))

    def _cumulants(self, tilt: Any) -> tuple[Any, Any, Any]:
        """Mean, variance and third central moment of the sum if votes are weighed by tilt^vote."""
        first = second = third = 0.0
        for people, plus, minus in (self.holders, self.others):
            pro, contra = plus * tilt, minus / tilt
            whole = 1 - plus - minus + pro + contra
            pro, contra = pro / whole, contra / whole
            lean, both = pro - contra, pro + contra
            first = first + people * lean
            second = second + people * (both - lean**2)
            third = third + people * lean * (1 - 3 * both + 2 * lean**2)
        return first, second, third

    def surprise_below(self, count: Any) -> Floats:
        """The same for `count` or less."""
        holders, others = (Votes(each.people, each.minus, each.plus) for each in (self.holders, self.others))
        return TwoKinds(holders, others, self.span).surprise(-np.asarray(count))

    def at_least(self, count: Any) -> Floats:
        """P(sum >= count)."""
        return beyond(self.surprise(count))

    def at_most(self, count: Any) -> Floats:
        """P(sum <= count). That nothing was named, where there are no votes against, is known exactly."""
        found = beyond(self.surprise_below(count))
        kinds = (self.holders, self.others)
        with np.errstate(divide="ignore", invalid="ignore"):
            silent = sum(kind.people * np.log1p(-np.minimum(kind.plus, 1)) for kind in kinds)
        nothing = (np.asarray(count) == 0) & np.all([np.asarray(kind.minus) <= 0 for kind in kinds], axis=0)
        return np.where(nothing, np.exp(np.nan_to_num(silent)), found)


@dataclass(frozen=True)
class Ties:
    """How much of the probability of exactly what was seen is counted in the upper tail, and in the lower one."""

    upper: Any
    lower: Any

    def above(self, law: Law | TwoKinds, count: Any) -> Floats:
        """P(sum > count) and a part of P(sum = count)."""
        found = law.at_least(count)
        return (
            found
            if np.all(self.upper == 1)
            else self.upper * found + (1 - self.upper) * law.at_least(count + law.span)
        )

    def below(self, law: Law | TwoKinds, count: Any) -> Floats:
        """P(sum < count) and a part of P(sum = count)."""
        found = law.at_most(count)
        return (
            found
            if np.all(self.lower == 1)
            else self.lower * found + (1 - self.lower) * law.at_most(count - law.span)
        )


#: All of it in both: intervals hold at least as often as promised.
SAFE = Ties(1.0, 1.0)


def solve(tail: Callable[[Floats], Floats], odds: Any, start: Floats, step: Floats, end: float) -> Floats:
    """Where a tail that shrinks from `start` on in the direction of `step` falls to `odds`; `end` if it never does."""

    def within(place: Floats) -> Floats:
        return np.where(step < 0, np.maximum(place, end), np.minimum(place, end))

    near, far = start, within(start + step)
    for _ in range(_DOUBLINGS):
        wide = (tail(far) > odds) & (far != end)
        if not wide.any():
            break
        near, far = np.where(wide, far, near), np.where(wide, within(start + 2 * (far - start)), far)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        inside = tail(middle) > odds
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return np.where((far == end) & (tail(far) > odds), end, near)
