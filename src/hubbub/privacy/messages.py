"""Several messages through the shuffler: a Poisson number of reports per person, and the exact loss.

A device sends R reports, each made afresh from its record, with R ~ Poisson(M) drawn without a look at the record. All
reports together are then a Poisson process, and the counts of different reports are independent of each other.

Theorem. Let the reports of a mechanism have weights in [V, W] over N outcomes, with sum Omega = K W + (N - K) V, and
let n people take part. Put
    beta = n M V / Omega,      sigma = M (W - V) / Omega.
If one person's record were replaced by any other, the law of all reports together changes no more than that of two
independent counts (X, Y) ~ (Poisson(K (beta + sigma)), Poisson(K beta)) changes to that of (Y, X). The loss of
that pair is (X - Y) log(1 + sigma / beta): the difference is a Skellam variable.

Proof. The reports of record x are a Poisson process of intensity M V / Omega + sigma u_x(y), with u_x in [0, 1] and
sum K. Everybody else adds M V / Omega at least, and what they add above it is independent of the victim's record, so
post-processing. Any u_x is an average of indicators of K-sets: write the two processes as superpositions over pairs
(A, A') of such sets, each part with its share of beta and of sigma. Superposition is post-processing of the
independent parts. Within a part, points outside of A and A', and in both, have the same law for both records; the
others change by the factor 1 + sigma / beta each, up on A without A', down on A' without A. So the likelihood ratio of
all parts depends on two counts alone: of points in A without A', and in A' without A, with means of at most
K (beta + sigma) and K beta. Where the sets overlap these means are smaller, which is a thinning of the same pair.

Public seeds are part of a report: given the seed, the above holds, and reports of different seeds are parts, too.
People who are missing or dishonest add nothing to beta that can be relied on: n counts the honest ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused
from hubbub.privacy.positive_part import ROUNDING
from hubbub.privacy.shuffle import MOST_REPORTS, check_delta, invert, response_weights

#: Larger means of counts are taken for this, as if there were fewer people: less cover, which is on the safe side.
_MOST_POINTS = 10.0**9
#: The mass of the difference's tail that is not looked at, but added to delta: exp(-110).
_TAIL = 110.0
#: A mean difference of this many squared standard deviations hides nothing.
_HOPELESS = 300.0


@dataclass(frozen=True)
class PoissonCrowd:
    """One victim among `people`, each of whom sends Poisson(`messages`) reports that favour K of N outcomes."""

    people: int
    messages: Fraction
    favoured: int
    outcomes: int
    weight: int
    unit: int

    def __post_init__(self) -> None:
        if not 2 <= self.people <= MOST_REPORTS:
            raise Refused(
                f"Shuffling needs at least 2 people (and at most {MOST_REPORTS:.0e}), not {self.people}."
            )
        if not (self.unit > 0 and self.weight > self.unit and 0 < self.favoured < self.outcomes):
            raise Refused(
                "Some outcomes must be favoured, and weigh more than the others, which weigh something."
            )

    @property
    def reports(self) -> int:
        """Expected number of reports."""
        return round(self.people * self.messages)

    @property
    def bound(self) -> str:
        """What the guarantee rests on."""
        return f"Skellam bound for responses that favour {self.favoured} of {self.outcomes} outcomes"

    @property
    def words(self) -> str:
        """Whom the guarantee is about."""
        return f"all reports of one person, {float(self.messages):g} on average, among {self.people:,} people"

    @cached_property
    def _means(self) -> tuple[float, float]:
        """K beta, or what of it is used, and K sigma."""
        omega = self.favoured * self.weight + (self.outcomes - self.favoured) * self.unit
        cover = self.favoured * self.people * self.messages * Fraction(self.unit, omega)
        extra = self.favoured * self.messages * Fraction(self.weight - self.unit, omega)
        return min(float(cover), _MOST_POINTS), float(extra)

    @property
    def _step(self) -> float:
        """log(1 + sigma / beta), the loss of one point more, rounded up; for the beta that is used."""
        low, extra = self._means
        return math.log1p(extra / low) * (1 + 16 * ROUNDING)

    @cached_property
    def _law(self) -> tuple[Floats, float]:
        """P(X - Y = d) for d = 0, 1, ..., rounded up, and a bound on the mass beyond.

        The law is (m1 / m2)^(d/2) I_d(z) up to a factor, z = 2 sqrt(m1 m2), and P(X - Y = -d) is exp(-d step) of it.
        The ratios r_d = I_d / I_(d-1) = 1 / (2 d / z + r_(d+1)) are computed from above: all terms are positive, so
        every step adds a few roundings and nothing is lost, and the error of the first one shrinks by r^2 at every
        step. Products of them are then normalised. The tail is Bernstein's.
        """
        low, extra = self._means
        high, spread = low + extra, 2 * low + extra
        if extra**2 > 2 * _HOPELESS * spread:
            return np.zeros(0), 1.0
        reach = extra + _TAIL / 3 + math.sqrt((_TAIL / 3) ** 2 + 2 * _TAIL * spread)
        last = math.ceil(reach) + 1
        start = last + 2 * math.ceil(math.sqrt(spread)) + 200
        z = 2 * math.sqrt(low * high)
        ratio = z / (start + 1 + math.hypot(start + 1, z))
        ratios = np.empty(last)
        for d in range(start, 0, -1):
            ratio = 1 / (2 * d / z + ratio)
            if d <= last:
                ratios[d - 1] = ratio
        growth = math.sqrt(high / low)
        law = np.concatenate([[1.0], np.cumprod(ratios * growth)])
        below = np.concatenate([[1.0], np.cumprod(ratios / growth)])
        slack = 64 * (last + 64) * ROUNDING
        return law / (law.sum() + below[1:].sum()) * (1 + slack), math.exp(-_TAIL)

    def delta(self, epsilon: float, excess: float = 0.0) -> float:
        """An upper bound on delta at `epsilon` >= 0: the mean of (1 - exp(epsilon - loss))_+, rounded up.

        It is exact but for rounding, so `excess` is not needed; it is there because crowds of one message have it.
        """
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise Refused(f"epsilon must be a finite number of at least 0, not {epsilon!r}.")
        law, beyond = self._law
        losses = self._step * np.arange(len(law))
        kept = -np.expm1(np.minimum(epsilon * (1 - 4 * ROUNDING) - losses, 0))
        return min(1.0, float(law @ kept) * (1 + 64 * (len(law) + 1) * ROUNDING) + beyond)

    def epsilon(self, delta: float, excess: float = 0.0) -> float:
        """The epsilon that goes with `delta`."""
        check_delta(delta)
        law, beyond = self._law
        top = self._step * len(law)
        if len(law) and beyond >= delta:
            raise Refused(f"delta = {delta:g} is smaller than what this bound can tell from 0.")
        if beyond >= delta:
            raise Refused(
                f"{float(self.messages):g} messages a person with these weights are hidden by {self.people:,} people "
                "no better than not at all: ask for fewer messages or for a smaller epsilon per report."
            )
        return invert(self.delta, delta, 1e-9 * top, top)


def poisson_crowd(mechanism: Mechanism, people: int, messages: Fraction) -> PoissonCrowd:
    """The crowd of a mechanism that has `response_weights`; others are refused, since the law needs weights."""
    local = mechanism.guarantee()
    weights = response_weights(mechanism)
    if weights is None or local.model != "local" or local.delta or local.unit != "record":
        raise Refused(
            f"Several messages are for mechanisms that favour some outcomes of all, per record; {mechanism.name} "
            "is none of them: use sketch_response, collision or coco."
        )
    return PoissonCrowd(people, messages, *weights)


def messages_guarantee(mechanism: Mechanism, people: int, messages: Fraction, delta: float) -> Guarantee:
    """What is promised about all reports of one person in a crowd of this many people."""
    crowd = poisson_crowd(mechanism, people, messages)
    return Guarantee(
        crowd.epsilon(delta),
        unit="record",
        model="shuffled",
        delta=delta,
        note=f"Holds for {crowd.words} ({crowd.bound}).",
    )
