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

import numpy as np
from pydantic import ValidationError

from hubbub.mechanisms.collision import Collision
from hubbub.model.tree import Tree
from hubbub.plan.overview import Plan, Trust, planned
from hubbub.plan.proposal import Wish
from hubbub.primitives.errors import Refused, explain
from hubbub.protocol.task import Task
from hubbub.server.discovery import Discovery
from hubbub.server.search import MOST_CANDIDATES, ROOM, prefixes_with_room, tree_of

#: With which probability a key is found that is as popular as the plan says.
CHANCE = 0.9
#: Most pieces of one level that a plan considers.
_MOST_PIECES = 1 << 18
#: Votes per code from which on they are as good as normal, and how finely evidence is counted below.
_MANY_VOTES, _STEP = 200.0, 0.01
#: Shares of the key whose error counts, among which the shuffled model's buckets are chosen.
_SHARES = (0.0, 0.001, 0.01)
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
    """The best tree for a wish, and in the shuffled model the best buckets: those that find the least popular keys."""
    if not 0 < false_finds < 1:
        raise Refused(f"The share of false finds must be between 0 and 1, not {false_finds:g}.")
    try:
        trees = spelling.trees()
    except ValidationError as problem:
        raise Refused(explain(problem)) from None
    keys: Mapping[str, Any] = {"kind": "tree", "bits": 20, "tree": trees[0]}
    reports = round(wish.users * (wish.messages or 1))
    looked_at = _SHARES if model == "shuffled" else _SHARES[:1]
    wanted = replace(wish, mechanism=wish.mechanism or "collision")
    plans = [planned(replace(wanted, share=share), keys, model, most_bytes) for share in looked_at]

    def share_of(plan: Plan, tree: Tree) -> float:
        mechanism = plan.chosen.mechanism
        if mechanism is None:
            raise Refused(f"Mechanism {plan.chosen.name} {plan.chosen.reason.rstrip('.')}.")
        if not isinstance(mechanism, Collision):
            raise Refused("Keys are discovered with collision or local_hashing; name one of them, or none.")
        return least_share(mechanism, tree, reports, false_finds)

    found = min(plans, key=lambda plan: share_of(plan, trees[0]))
    share, place = min((share_of(found, tree), place) for place, tree in enumerate(trees))
    tree = trees[place]
    return Prospect(replace(found, keys={**keys, "tree": tree}), tree, false_finds, share)


def next_round(found: Discovery) -> Task:
    """The task of a next round, in which people are asked how the keys go on that were cut; others say nothing new.

    The same mechanism and epsilon: a person who takes part in both rounds spends both.
    """
    tree, before = tree_of(found.task), found.task
    starts = [tree.named(int(number))[0] for number in found.ids[found.cut]]
    if not starts:
        raise Refused("None of the found keys was cut: there is nothing to ask for in a next round.")
    if not isinstance(before.mechanism, Collision):
        raise Refused("Keys are discovered with collision or local_hashing.")
    longest = min(tree.longest, Tree.most_symbols(tree.base, len(starts)))
    if longest < 2:
        raise Refused(
            f"{len(starts):,} keys that were cut are too many to go on from: leave some out with --deny."
        )
    spelling = Spelling(longest, tree.alphabet, tree.replacement, tuple(starts), tree.maps)
    reports = max(2, found.estimate.reports)
    options = [
        (least_share(before.mechanism, each, reports, found.false_finds), each) for each in spelling.trees()
    ]
    _, best = min(options, key=lambda option: option[0])
    data = before.model_dump(exclude_none=True) | {"name": f"{before.name}, next round"[-100:]}
    keys = {
        "kind": "tree",
        "bits": before.keys.bits,
        "tree": best,
        "count_lengths": before.keys.count_lengths,
    }
    return Task.parse({**data, "keys": keys, "mechanism": before.mechanism})


def whole_keys(found: Discovery) -> list[str]:
    """The found keys that can be asked for by name: those that were cut stand for many."""
    tree, whole = tree_of(found.task), ~found.cut
    pairs = zip(found.ids[whole].tolist(), np.array(found.keys, dtype=object)[whole], strict=True)
    return [key for number, key in pairs if tree.id_of(key) == number]  # bytes may be no text


def listing_task(found: Discovery) -> Task:
    """A task that asks for the found keys by name: the same mechanism, epsilon and rules with a closed vocabulary.

    Keys that were cut are left out. A person who takes part in both tasks spends both.
    """
    before, names = found.task, whole_keys(found)
    if not names:
        raise Refused("No whole key was found, so there is nothing to list in a task.")
    data = before.model_dump(exclude_none=True) | {"name": f"{before.name}, found keys"[-100:]}
    keys = {"kind": "closed", "vocabulary": names, "count_lengths": before.keys.count_lengths}
    return Task.parse({**data, "keys": keys, "mechanism": before.mechanism})


def least_share(mechanism: Collision, tree: Tree, reports: int, false_finds: float) -> float:
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
        candidates = min(MOST_CANDIDATES, max(kept * tree.piece_counts[level], ROOM if level else 1))
        if level == len(tree.levels) - 1:
            bars.append(-quantile(false_finds / candidates))
        else:
            kept = min(candidates, prefixes_with_room(tree, level + 1))
            bars.append(-quantile(min(0.5, kept / candidates)))
    return bars


def _chance(mechanism: Collision, tree: Tree, reports: int, bars: list[float], share: float) -> float:
    """The probability that a key of this share passes all levels."""
    chance = 1.0
    for bar, part in zip(bars, tree.shares, strict=False):
        heard = max(1, reports * part // sum(tree.shares))
        idle = heard * mechanism.rates.absent / tree.maps
        if idle > _MANY_VOTES:
            alone = math.sqrt(mechanism.variance("frequency", heard))
            drawn = share * (1 - share) / heard  # who of the holders is asked at this level
            spread = math.sqrt(mechanism.variance("frequency", heard, share, share, share) + drawn)
            chance *= NormalDist().cdf((share - bar * alone) / spread)
        else:
            gain = heard * share * (mechanism.rates.held - mechanism.rates.absent) / tree.maps
            chance *= _chance_of_few(idle, idle + gain, bar * math.sqrt(tree.maps), tree.maps)
    return chance


def _chance_of_few(idle: float, held: float, bar: float, maps: int) -> float:
    """The probability that the evidence of all maps adds up to `bar` where votes are few: they are Poisson then.

    A code that nobody holds gets `idle` votes in every map on average, the key's code `held`. Evidence is rounded down.
    """
    counts = np.arange(int(held + 12 * math.sqrt(held) + 20))
    logs = np.cumsum(np.log(np.maximum(counts, 1)))
    alone, own = (np.exp(counts * math.log(mean) - mean - logs) for mean in (idle, held))
    tail = np.clip(np.cumsum(alone[::-1])[::-1], 1e-15, 1 - 1e-15)
    steps = np.floor(np.array([-NormalDist().inv_cdf(each) for each in tail.tolist()]) / _STEP).astype(
        np.int64
    )
    law = np.bincount(steps - steps[0], weights=own)
    total = law
    for _ in range(maps - 1):
        total = np.convolve(total, law)
    least = math.ceil(bar / _STEP) - maps * int(steps[0])
    return float(min(1.0, total[max(0, least) :].sum()))
