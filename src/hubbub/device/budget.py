"""How much a device may say about its owner in a span of time, over all tasks, and what its reports add up to.

A budget is about everything that one person's device says: whatever records its reports are about, if all of them
were replaced by any others, the probability of any outcome changes by at most a factor of exp(epsilon), plus delta,
for all reports of any `days` days in a row. Whether a further report fits is decided by one of two rules.

Sum. Epsilons add up: the probability of a sequence of reports is a product, and each factor changes by exp(epsilon_i).
Being about products, it also holds where the next task is chosen after a look at the reports so far.

Rényi divergence of one order a > 1, if there is a delta d. A report that is epsilon-DP has a likelihood ratio in
[e^-epsilon, e^epsilon], with mean 1 under the second law. E[ratio^a] is convex in the ratio, so it is largest where
only the ends occur, which is randomized response: D_a <= (g((a - 1/2) epsilon) - g(epsilon / 2)) / (a - 1),
g = log cosh. (That is epsilon times a mean of tanh, so at most a epsilon tanh(epsilon / 2), where pure epsilon-DP is
said to be concentrated.) Divergences of one order add up, also for tasks that are chosen after a look, as long as
their sum never exceeds a bound B that was fixed before. Then for the loss Z, delta = E[(1 - e^(epsilon - Z))_+] is at
most e^((a - 1)(B - epsilon)) (1 / a)(1 - 1 / a)^(a - 1), because (1 - e^-x) e^-((a - 1) x) is largest at
e^-x = 1 - 1 / a. The order follows from the budget alone, and so does the B at which this is d.

Either rule. Sequences of reports that end within the sum have a ratio of at most exp(epsilon), each by itself. All
others are within B and as likely as they would be for a device that goes by B alone. So the deltas of the two parts
are 0 and d, and together (epsilon, d) holds. Half of the budget's delta is d; the other half is for deltas that
tasks bring with them, which add up (a report is then epsilon-DP except with probability delta_i).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from hubbub.primitives.errors import Refused

Per = Literal["week", "month", "year", "ever"]
#: The length of a span. It is any so many days in a row: a calendar year would allow twice as much around New Year.
DAYS: dict[str, int | None] = {"week": 7, "month": 30, "year": 365, "ever": None}
#: Where a device sends a random number of messages: how likely it is that they are more than a budget reckons with.
UNLIKELY = 1e-12


class Cost(NamedTuple):
    """What some reports of one task cost: each epsilon and delta. Infinite where nobody knows."""

    epsilon: float
    delta: float
    reports: int


@dataclass(frozen=True)
class Budget:
    """At most (epsilon, delta) for all that a device says, over all tasks, in any `per` (365 days for a year)."""

    epsilon: float
    per: Per = "year"
    delta: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.epsilon, self.delta):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Refused(f"The epsilon and delta of a budget are numbers, not {value!r}.")
        if not 0 < self.epsilon <= sys.float_info.max:
            raise Refused(
                f"The epsilon of a budget must be a finite number above 0, not {self.epsilon!r}: with 0, "
                "nothing could be said at all."
            )
        if not 0 <= self.delta < 1:
            raise Refused(f"The delta of a budget must be at least 0 and below 1, not {self.delta!r}.")
        if self.per not in get_args(Per):
            raise Refused(f"A budget is per {', '.join(get_args(Per)[:-1])} or ever, not {self.per!r}.")

    @property
    def days(self) -> int | None:
        """How many days in a row it is for; None for all time."""
        return DAYS[self.per]

    @cached_property
    def _order(self) -> tuple[float, float, float] | None:
        """An order, the bound on divergences of this order, and what it takes to turn them into epsilon.

        The order is the one of a grid with room for most reports of small epsilon; any would be valid.
        """
        if not self.delta:
            return None
        found = []
        for step in range(1, 160):
            order = 1 + 2.0 ** (step / 8 - 6)
            excess = -math.log(order) + (order - 1) * math.log1p(-1 / order) - math.log(self.delta / 2)
            found.append((order, self.epsilon - excess / (order - 1), excess / (order - 1)))
        best = max(found, key=lambda each: each[1] / each[0])
        return best if best[1] > 0 else None

    def spent(self, costs: Sequence[Cost]) -> float:
        """The epsilon that these add up to (with delta, if the budget has one): the smaller of both rules."""
        total = _total(costs)
        if self._order is None or math.isinf(total):
            return total
        order, _, excess = self._order
        return min(total, _divergence(costs, order) + excess)

    def fits(self, costs: Sequence[Cost]) -> bool:
        """Whether reports with these costs are within the budget."""
        if _total(costs, "delta") > self.delta / 2 or math.isinf(_total(costs)):
            return False
        if _total(costs) <= self.epsilon:
            return True
        return self._order is not None and _divergence(costs, self._order[0]) <= self._order[1]

    def words(self) -> str:
        """The budget in a few words."""
        slip = f" and delta = {self.delta:.3g}" if self.delta else ""
        span = "ever" if self.days is None else f"in any {self.days} days"
        return f"epsilon = {self.epsilon:.6g}{slip} {span}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"epsilon": self.epsilon, "per": self.per, "delta": self.delta}


def _total(costs: Sequence[Cost], part: Literal["epsilon", "delta"] = "epsilon") -> float:
    """The sum, exact for numbers as people write them: ten times 0.1 is 1."""
    parts = [(getattr(cost, part), cost.reports) for cost in costs if cost.reports]
    if any(math.isinf(each) for each, _ in parts):
        return math.inf
    return float(sum((Fraction(repr(each)) * count for each, count in parts), Fraction(0)))


def _divergence(costs: Sequence[Cost], order: float) -> float:
    """The sum of the Rényi divergences of this order, as the module says."""
    return math.fsum(cost.reports * divergence(cost.epsilon, order) for cost in costs)


def divergence(epsilon: float, order: float) -> float:
    """The largest Rényi divergence of this order that an epsilon-DP report can have: randomized response's."""
    return (_log_cosh((order - 0.5) * epsilon) - _log_cosh(epsilon / 2)) / (order - 1)


def _log_cosh(x: float) -> float:
    """Also right where it is tiny: many reports of next to no epsilon must not count as nothing."""
    if x < 1:
        return math.log1p(2 * math.sinh(x / 2) ** 2)
    return x + math.log1p(math.exp(-2 * x)) - math.log(2)


def most_messages(mean: Fraction) -> int:
    """A number that a Poisson number with this mean exceeds with a probability of at most `UNLIKELY`.

    Chernoff: P(number >= n) <= e^-mean (e mean / n)^n for n above the mean, which falls with n.
    """
    rate = float(mean)
    number = math.ceil(rate) + 1
    while number * (1 + math.log(rate / number)) - rate > math.log(UNLIKELY):
        number += 1
    return number
