"""How many entries of a record should count: noise against truncation.

A low limit has little noise and drops many entries, a high one the opposite. What is compared is the root mean square
error over the keys of a stated profile (`Profile`): the given ones, or the most frequent ones by Zipf's law. For a key
of share f, of which sampling down leaves f',

- a frequency has the variance of a key of share f', and the bias f - f';
- a mean has that of the mean, and the bias r (f - f'), r the mean value of those who hold the key: keys' mean values
  are taken to lie evenly in the range;
- a conditional mean is a quotient of two estimates of the same sampled records, in which the bias cancels; its variance
  is that of its parts over f' squared, and no more than of a guess: a third of half the range squared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from hubbub.model.mechanism import Goal, Mechanism, Quantity
from hubbub.plan.offers import without_sum
from hubbub.plan.profile import Lengths, Profile
from hubbub.plan.ranking import Option, noise, pick, rank
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused

#: Noise is worked out for these limits, and for the best ones; between them it follows a power of the limit.
_ANCHORS = (1, 2, 6, 20, 64)
#: All limits up to the first are tried, then steps of this ratio; so many guesses are worked out at most.
_SINGLE, _STEP, _GUESSES = 16, 2**0.125, 5
#: Mean square of a number that lies evenly in [-1, 1].
_EVEN = 1 / 3


@dataclass(frozen=True)
class Limit:
    """What a choice of max_entries costs: root mean squares over the keys of a profile, in the units of the values."""

    max_entries: int
    noise: float
    dropped: float
    bias: float
    #: How many keys would stand out from zero among all keys.
    found: int
    #: What would be taken with this limit.
    option: Option

    @property
    def total(self) -> float:
        """Root mean square error."""
        return math.hypot(self.noise, self.bias)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        costs = {name: value for name, value in vars(self).items() if name != "option"}
        return {
            **costs,
            "total": self.total,
            "mechanism": self.option.name,
            "report_bytes": self.option.bytes,
        }


def best_entries(
    goal: Goal, histogram: Mapping[int, int], unit_size: float = 1.0, seen: float | None = None
) -> Limit:
    """The max_entries to take, and what it costs.

    `histogram` says how many users have how many entries; keys are taken to follow Zipf's law. If `seen` is the largest
    share that a collection with the max_entries of the goal has shown, then the law is one that goes with it. Errors
    are in units of the values, as in `rank`.
    """
    lengths = Lengths.of(histogram, goal.keys)
    profile = (
        Profile.zipf(lengths, goal.keys)
        if seen is None
        else Profile.seen(lengths, goal.keys, seen, goal.max_entries)
    )
    return entry_limits(goal, profile, unit_size)[0]


def entry_limits(
    goal: Goal,
    profile: Profile,
    unit_size: float = 1.0,
    most_bytes: int | None = None,
    name: str | None = None,
    best: bool = False,
) -> list[Limit]:
    """Noise against truncation for several values of max_entries, best first; the other parameters as for `rank`."""
    goal = replace(goal, quantity=without_sum(goal.quantity, goal.values))
    longest = min(int(profile.lengths.entries.max()), 1 << 16)
    tries = _tries(longest)
    worked_out: dict[int, _Noise | None] = {}
    todo = sorted({min(anchor, longest) for anchor in _ANCHORS})
    while todo:
        for limit in todo:
            option = pick(rank(replace(goal, max_entries=limit), unit_size, most_bytes, name), best)
            mechanism = option.mechanism
            worked_out[limit] = None if mechanism is None else _noise(option, mechanism, goal, profile)
        known = {limit: found for limit, found in sorted(worked_out.items()) if found is not None}
        if not known:
            raise Refused("No mechanism reaches this goal, whatever max_entries is.")
        guesses = {limit: _limit(limit, _between(limit, known), goal, profile, unit_size) for limit in tries}
        guess = min(tries, key=lambda limit: guesses[limit].total)
        todo = [guess] if guess not in worked_out and len(worked_out) < len(_ANCHORS) + _GUESSES else []
    found = [_limit(limit, noise, goal, profile, unit_size) for limit, noise in known.items()]
    return sorted(found, key=lambda limit: limit.total)


@dataclass(frozen=True)
class _Noise:
    """What would be taken with a limit, and its variance for every share of the profile, in scaled units."""

    option: Option
    shortens: bool
    variances: Floats
    #: The least share that stands out from zero among all keys.
    detectable: float


def _noise(option: Option, mechanism: Mechanism, goal: Goal, profile: Profile) -> _Noise:
    """Worked out; a conditional mean's are those of its parts, at a mean value that is even in the range."""
    shares = profile.kept(mechanism.max_entries) if mechanism.limits_entries else profile.shares
    energy = profile.lengths.kept(mechanism.max_entries if mechanism.limits_entries else 1 << 16)
    local = replace(goal, epsilon=mechanism.epsilon)

    def of(share: float) -> float:
        if goal.quantity != "conditional":
            return noise(mechanism, local, share, energy)
        mean = mechanism.variance("mean", goal.users, share, energy=energy)
        return mean + _EVEN * mechanism.variance("frequency", goal.users, share, energy=energy)

    seen: Quantity = "frequency" if "frequency" in mechanism.quantities else "mean"
    size = 1.0 if seen == "frequency" else math.sqrt(_EVEN)
    error = math.sqrt(mechanism.variance(seen, goal.users, energy=energy)) / size
    detectable = -error * NormalDist().inv_cdf(0.025 / goal.keys)
    variances = np.array([of(float(share)) for share in shares])
    return _Noise(option, mechanism.limits_entries, variances, detectable)


def _between(limit: int, known: Mapping[int, _Noise]) -> _Noise:
    """From the nearest limits that have been worked out: for every share a power of the limit.

    Where another mechanism is taken from some limit between them on, variances may leap there: up to it, those of the
    first one grow in proportion.
    """
    if limit in known:
        return known[limit]
    limits = np.array(list(known), dtype=np.float64)
    if len(limits) == 1:
        return next(iter(known.values()))
    place = int(np.clip(np.searchsorted(limits, limit), 1, len(limits) - 1))
    below, above = known[int(limits[place - 1])], known[int(limits[place])]
    if below.option.name != above.option.name and limits[place - 1] < limit < limits[place]:
        return replace(below, variances=below.variances * limit / limits[place - 1])
    along = math.log(limit / limits[place - 1]) / math.log(limits[place] / limits[place - 1])
    nearest = above if along > 0.5 else below
    powers = (1 - along) * np.log(below.variances) + along * np.log(above.variances)
    return replace(nearest, variances=np.exp(powers))


def _limit(limit: int, found: _Noise, goal: Goal, profile: Profile, unit_size: float) -> Limit:
    """Variances and biases over the profile."""
    kept = profile.kept(limit) if found.shortens else profile.shares
    variances, biases = found.variances, profile.shares - kept
    if goal.quantity == "conditional":
        variances, biases = np.minimum(variances / kept**2, _EVEN), np.zeros(len(kept))
    elif goal.quantity == "mean":
        biases = biases * math.sqrt(goal.center**2 + (1 - abs(goal.center)) ** 2 * _EVEN)
    rms = (math.sqrt(float(profile.weights @ squares)) * unit_size for squares in (variances, biases**2))
    dropped = profile.lengths.dropped(limit) if found.shortens else 0.0
    apart = int(profile.keys[kept > found.detectable].sum())
    return Limit(limit, next(rms), dropped, next(rms), apart, found.option)


def _tries(longest: int) -> list[int]:
    """Limits worth a guess."""
    steps = math.ceil(math.log(max(longest / _SINGLE, 1), _STEP))
    later = (round(_SINGLE * _STEP**step) for step in range(steps))
    return sorted({*range(1, min(longest, _SINGLE) + 1), *(x for x in later if x < longest), longest})
