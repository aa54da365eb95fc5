"""How many entries of a record should count: noise against truncation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank, without_sum
from hubbub.primitives.errors import Refused


@dataclass(frozen=True)
class Limit:
    """What a choice of max_entries costs."""

    max_entries: int
    noise: float
    dropped: float
    bias: float

    @property
    def total(self) -> float:
        """Root mean square error of a key with the asked frequency."""
        return math.hypot(self.noise, self.bias)


def entry_limits(
    goal: Goal,
    histogram: Mapping[int, int],
    frequency: float,
    unit_size: float = 1.0,
    most_bytes: int | None = None,
) -> list[Limit]:
    """Noise against truncation for several values of max_entries, best first.

    `histogram` says how many users have how many entries. A key of the given frequency (and of the largest value),
    held alike by users with few and many entries, loses the share of entries that sampling down drops: that is
    the bias.
    """
    goal = replace(goal, quantity=without_sum(goal.quantity, goal.values))
    lengths = np.array(sorted(histogram), dtype=np.float64)
    users = np.array([histogram[int(length)] for length in lengths], dtype=np.float64)
    if not len(lengths) or lengths.min() < 0 or users.min() < 0 or (lengths * users).sum() == 0:
        raise Refused("The histogram of entries per user is empty.")
    tries = sorted({1, *(int(lengths.max() * 2**-a) or 1 for a in range(12)), int(lengths.max())})
    tries = sorted({*tries, *(max(1, round(x * 2**0.5)) for x in tries if x * 2**0.5 <= lengths.max())})
    found = []
    for limit in tries:
        best = rank(replace(goal, max_entries=limit), unit_size, most_bytes)[0]
        if best.mechanism is None:
            continue
        shortens = best.mechanism.limits_entries
        dropped = shortens * float((np.maximum(lengths - limit, 0) * users).sum() / (lengths * users).sum())
        found.append(Limit(limit, best.error, dropped, frequency * dropped * unit_size))
    if not found:
        raise Refused("No mechanism reaches this goal, whatever max_entries is.")
    return sorted(found, key=lambda limit: limit.total)
