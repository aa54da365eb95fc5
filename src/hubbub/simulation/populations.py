"""Simulated crowds with known truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.model.record import GRID, Entries
from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import kernel, use_compiled


@dataclass(frozen=True)
class Population:
    """Encoded records over keys 0 .. keys - 1, with values in [-1, 1]."""

    entries: Entries
    keys: int

    @property
    def frequency(self) -> Floats:
        """True share of users who have each key."""
        return np.bincount(self.entries.ids.astype(np.int64), minlength=self.keys) / len(self.entries)

    @property
    def mean(self) -> Floats:
        """True mean value of each key over all users."""
        weights = self.entries.values / GRID
        sums = np.bincount(self.entries.ids.astype(np.int64), weights=weights, minlength=self.keys)
        return sums / len(self.entries)


def zipf_population(
    users: int,
    keys: int,
    seed: int,
    exponent: float = 1.1,
    entries: float = 8.0,
    tail: float = 0.6,
    signed: bool = True,
) -> Population:
    """Keys by Zipf's law, a lognormal number of draws per user; every key is mostly liked or mostly disliked.

    Draws that hit a key twice count once, so records have somewhat fewer entries than draws.
    """
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    ladder = np.cumsum(popularity / popularity.sum())
    draws = np.rint(rng.lognormal(np.log(entries), tail, users)).astype(np.int64)
    owner = np.repeat(np.arange(users), draws)
    drawn = np.minimum(np.searchsorted(ladder, rng.random(len(owner))), keys - 1)
    pairs = np.unique(owner * keys + drawn)
    owner, drawn = pairs // keys, pairs % keys
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=users))]).astype(np.int64)
    if signed:
        liking = rng.choice([-1.0, 1.0], keys) * rng.uniform(0.5, 1, keys)
        values = np.clip(liking[drawn] + rng.normal(0, 0.3, len(drawn)), -1, 1)
    else:
        values = np.ones(len(drawn))
    grid = np.rint(values * GRID).astype(np.int64)
    return Population(Entries(drawn.astype(np.uint64), grid, offsets), keys)


def distinct_population(users: int, keys: int, entries: int, seed: int, exponent: float = 1.4) -> Population:
    """Exactly `entries` distinct Zipf keys per user, values +1, or -1 for every third key.

    Keys are drawn without replacement, more popular ones first (exponential races).
    """
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    chosen = np.empty((users, entries), dtype=np.uint64)
    step = max(1, (1 << 23) // keys)
    for start in range(0, users, step):
        count = min(step, users - start)
        races = rng.standard_exponential((count, keys), dtype=np.float32) / popularity.astype(np.float32)
        chosen[start : start + count] = np.argpartition(races, entries - 1, axis=1)[:, :entries]
    values = np.where(chosen % np.uint64(3) == 0, -GRID, GRID).astype(np.int64)
    offsets = np.arange(users + 1, dtype=np.int64) * entries
    return Population(Entries(chosen.reshape(-1), values.reshape(-1), offsets), keys)


@kernel
def _deal(choices: Any, deck: Any, dealt: Any) -> None:
    """dealt[i]: the first cards of a deck after a few swaps (Fisher and Yates); the deck need not be sorted before."""
    users, entries = choices.shape
    for i in range(users):
        for j in range(entries):
            other = j + choices[i, j]
            card = deck[other]
            deck[other] = deck[j]
            deck[j] = card
            dealt[i, j] = card


def uniform_population(users: int, keys: int, entries: int, seed: int) -> Population:
    """Exactly `entries` distinct keys per user, all sets as likely, values +1 or -1 with even odds."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, np.arange(keys, keys - entries, -1), size=(users, entries))
    dealt = np.zeros((users, entries), dtype=np.int64)
    deal = _deal.compiled() if use_compiled(users) else _deal
    deal(choices, np.arange(keys), dealt)
    values = GRID * (2 * rng.integers(0, 2, size=users * entries) - 1)
    offsets = np.arange(users + 1, dtype=np.int64) * entries
    return Population(Entries(dealt.reshape(-1).astype(np.uint64), values, offsets), keys)


#: Shares that are stated, and how many keys have them per entry of a record.
_STATED = {0.05: 5, 0.01: 25}


def stated_keys(keys: int, entries: int) -> dict[float, Int64s]:
    """Which keys of a `stated_population` have which share; 0 is that of the upper half, which nobody holds."""
    per_entry = sum(_STATED.values())
    place = np.arange(per_entry * entries) % per_entry
    found = {0.0: np.arange(keys // 2, keys)}
    for share, first in ((0.01, _STATED[0.05]), (0.05, 0)):
        found[share] = np.flatnonzero((place >= first) & (place < first + _STATED[share]))
    return found


def stated_population(users: int, keys: int, entries: int, seed: int) -> Population:
    """Records of exactly `entries` keys, among them some that exactly 5% and 1% hold; half of all keys nobody holds.

    For every entry, people are shuffled anew, and the first twentieth holds the first key, and so on: a quarter holds
    a key of 5%, a quarter one of 1%, and the rest one of the other keys that are held at all. The keys of different
    entries are different ones, so shares are exact, and who holds one key tells nothing about the next entry's.
    """
    shares = np.repeat(list(_STATED), list(_STATED.values()))
    asked = len(shares) * entries
    others = (keys // 2 - asked) // entries
    if others < 1 or users < 100:
        raise Refused(
            f"A made-up crowd with {entries} entries a record needs at least 100 people and "
            f"{2 * (asked + entries):,} keys."
        )
    rng = np.random.default_rng(seed)
    ends = np.cumsum(np.rint(shares * users).astype(np.int64))
    chosen = np.empty((users, entries), dtype=np.int64)
    for entry in range(entries):
        place = rng.permutation(users)
        known = entry * len(shares) + np.searchsorted(ends, place, side="right")
        rest = asked + entry * others + rng.integers(0, others, users)
        chosen[:, entry] = np.where(place < ends[-1], known, rest)
    values = np.full(users * entries, GRID, dtype=np.int64)
    offsets = np.arange(users + 1, dtype=np.int64) * entries
    return Population(Entries(chosen.reshape(-1).astype(np.uint64), values, offsets), keys)
