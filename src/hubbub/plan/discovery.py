"""What can be discovered before anything is collected: how popular a key must be to be found.

A key that a share f of the people hold has, at a stage with n reports, evidence (see `hubbub.server.search`) of mean
f / s(0) and standard error s(f) / s(0), where s(f)^2 is the mechanism's own variance of a frequency and that of who is
asked. It is found if it
stands out at every level: there among the candidates that are kept in any case, at the last one as far as the share of
false finds asks of a first key. Its beginnings are at least as popular as the key; nothing more is assumed of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from pydantic import ValidationError

from hubbub.model.mechanism import Mechanism
from hubbub.model.tree import Tree
from hubbub.plan.overview import Plan, Trust, planned
from hubbub.plan.proposal import Wish
from hubbub.primitives.errors import Refused, explain
from hubbub.protocol.task import Task
from hubbub.server.search import MOST_CANDIDATES, ROOM, prefixes_with_room

#: With which probability a key is found that is as popular as the plan says.
CHANCE = 0.9
#: Most pieces of one level that a plan considers.
_MOST_PIECES = 1 << 18
#: People for the estimates, as a share of those for the search.
_FOR_ESTIMATES = 9


@dataclass(frozen=True)
class Spelling:
    """What keys look like: symbols of the longest one, the alphabet (empty: bytes of UTF-8), what stands for others."""

    longest: int = 6
    alphabet: str = ""
    replacement: str = ""
    starts: tuple[str, ...] = ()
    maps: int = 3

    def trees(self) -> list[Tree]:
        """Trees with pieces of 1, 2, ... symbols, more people for each level than for the one before."""
        base = len(self.alphabet) + 2 if self.alphabet else 256
        most = max(1, int(math.log(_MOST_PIECES, base)))
        fewest = max(1, math.ceil(self.longest / most))
        found = []
        for count in range(fewest, min(self.longest, fewest + 3) + 1):
            shares = list(range(2, count + 2))
            found.append(
                Tree(
                    longest=self.longest,
                    levels=tuple(len(part) for part in _parts(self.longest, count)),
                    shares=(*shares, max(1, round(sum(shares) / _FOR_ESTIMATES))),
                    maps=self.maps,
                    alphabet=self.alphabet,
                    replacement=self.replacement,
                    starts=self.starts,
                )
            )
        return found


def _parts(longest: int, count: int) -> list[range]:
    """`longest` symbols in `count` runs of nearly the same length, the longer ones first."""
    bounds = [-(-longest * place // count) for place in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Prospect:
    """A way to discover keys: the plan behind it, its tree, and the share from which on keys are found."""

    plan: Plan
    tree: Tree
    false_finds: float
    share: float

    @property
    def people(self) -> int:
        """How many hold a key that is just popular enough."""
        return math.ceil(self.share * self.plan.goal.users)

    def task(self, name: str) -> Task:
        """The task to collect with."""
        return self.plan.task(name)

    def words(self) -> str:
        """What can be found, in one sentence."""
        users, found = self.plan.goal.users, f"{100 * CHANCE:g}%"
        if not math.isfinite(self.share):
            return f"With {users:,} people nothing can be found: not even a key that everybody holds."
        return (
            f"With {users:,} people, a key that {100 * self.share:.3g}% of them hold ({self.people:,} people) is "
            f"found with {found}; more popular ones more often, others less."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "found_from_share": self.share if math.isfinite(self.share) else None,
            "chance": CHANCE,
            "false_finds": self.false_finds,
            "tree": self.tree.model_dump(exclude_defaults=True),
            **self.plan.chosen.as_dict(),
        }


def prospect(
    wish: Wish, spelling: Spelling, model: Trust, false_finds: float = 0.05, most_bytes: int | None = None
) -> Prospect:
    """The best tree for a wish: the one that finds the least popular keys."""
    if not 0 < false_finds < 1:
        raise Refused(f"The share of false finds must be between 0 and 1, not {false_finds:g}.")
    try:
        trees = spelling.trees()
    except ValidationError as problem:
        raise Refused(explain(problem)) from None
    keys: Mapping[str, Any] = {"kind": "tree", "bits": 20, "tree": trees[0]}
    found = planned(
        replace(wish, mechanism=wish.mechanism or "collision", share=0.0), keys, model, most_bytes
    )
    mechanism = found.chosen.mechanism
    if mechanism is None:
        raise Refused(f"Mechanism {found.chosen.name} {found.chosen.reason.rstrip('.')}.")
    reports = round(wish.users * (wish.messages or 1))
    options = [(least_share(mechanism, tree, reports, false_finds), tree) for tree in trees]
    share, tree = min(options, key=lambda option: option[0])
    return Prospect(replace(found, keys={**keys, "tree": tree}), tree, false_finds, share)


def least_share(mechanism: Mechanism, tree: Tree, reports: int, false_finds: float) -> float:
    """The share of people from which on a key is found with 90%; infinite where not even one that all hold is."""
    low, high = 1e-9, 1.0
    bars = _bars(tree, false_finds)
    if _chance(mechanism, tree, reports, bars, high) < CHANCE:
        return math.inf
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        found = _chance(mechanism, tree, reports, bars, middle) >= CHANCE
        low, high = (low, middle) if found else (middle, high)
    return high


def _bars(tree: Tree, false_finds: float) -> list[float]:
    """The evidence that a candidate needs at every level."""
    quantile, bars, kept = NormalDist().inv_cdf, [], max(1, len(tree.starts))
    for level in range(len(tree.levels)):
        candidates = min(MOST_CANDIDATES, max(kept * len(tree.pieces(level)[0]), ROOM if level else 1))
        if level == len(tree.levels) - 1:
            bars.append(-quantile(false_finds / candidates))
        else:
            kept = min(candidates, prefixes_with_room(tree, level + 1))
            bars.append(-quantile(min(0.5, kept / candidates)))
    return bars


def _chance(mechanism: Mechanism, tree: Tree, reports: int, bars: list[float], share: float) -> float:
    """The probability that a key of this share passes all levels."""
    chance = 1.0
    for bar, part in zip(bars, tree.shares, strict=False):
        heard = max(1, reports * part // sum(tree.shares))
        alone = math.sqrt(mechanism.variance("frequency", heard))
        drawn = share * (1 - share) / heard  # who of the holders is asked at this level
        spread = math.sqrt(mechanism.variance("frequency", heard, share, share, share) + drawn)
        chance *= NormalDist().cdf((share - bar * alone) / spread)
    return chance
