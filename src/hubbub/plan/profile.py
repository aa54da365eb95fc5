"""Which keys are held by whom, as far as it can be said beforehand: shares of keys, and what sampling down leaves.

The model: everybody draws keys, with odds that are the same for all, until the record is full. A record of L entries
then holds a key of odds p with probability 1 - exp(-c p), where c, the draws that L different keys take, solves
sum over keys of (1 - exp(-c p)) = L. So a rare key is held in proportion to a record's length, and the most frequent
ones by nearly everybody, however short the record: sampling long records down costs the rare keys most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused

#: Keys up to this rank are looked at one by one, later ones in groups of this ratio.
_SINGLE, _RATIO = 32, 1.15
#: Exponents of Zipf's law that are considered, and the one that is taken where nothing is said: the largest shares of
#: books and clothes that people rate fit 0.55 and 0.6, those of shopping baskets and clicks 1.0 and 1.25.
_FLATTEST, _STEEPEST, USUAL = 0.0, 4.0, 0.8
#: The most frequent keys, which are those that people look at: as many as `hubbub run` shows.
TOP = 20


@dataclass(frozen=True)
class Lengths:
    """How many entries records have: lengths in ascending order, and the share of users with each."""

    entries: Floats
    users: Floats

    @classmethod
    def of(cls, histogram: Mapping[int, int], keys: int) -> Lengths:
        """From the number of users with each number of entries; a record holds a key at most once."""
        entries = np.array(sorted(histogram), dtype=np.float64)
        users = np.array([histogram[int(length)] for length in entries], dtype=np.float64)
        if not len(entries) or entries.min() < 0 or users.min() < 0 or (entries * users).sum() == 0:
            raise Refused("The histogram of entries per user is empty.")
        return cls(np.minimum(entries, keys)[users > 0], users[users > 0] / users.sum())

    def dropped(self, limit: int) -> float:
        """The share of all entries that sampling down to `limit` drops."""
        beyond = np.maximum(self.entries - limit, 0)
        return float(beyond @ self.users / (self.entries @ self.users))

    def kept(self, limit: int) -> float:
        """Entries of a record that are left, in the mean."""
        return float(np.minimum(self.entries, limit) @ self.users)


@dataclass(frozen=True)
class Profile:
    """Shares of keys, how many keys have each, and the chance that a record of each length holds one."""

    lengths: Lengths
    shares: Floats
    keys: Floats
    #: [shares, lengths]
    held: Floats
    #: Of Zipf's law; none for shares that are given, or those of a table.
    exponent: float | None = None
    #: How many of the most frequent keys count, all alike; None: every key.
    most: int | None = None

    @classmethod
    def zipf(cls, lengths: Lengths, keys: int, largest: float | None = None) -> Profile:
        """Keys by Zipf's law whose shares add up to the mean number of entries.

        The exponent is the usual one, or the one with which the most frequent key has the share `largest`.
        """
        if largest is None:
            return cls._of_exponent(lengths, keys, USUAL)
        least, most = (
            float(cls._of_exponent(lengths, keys, end).shares[0]) for end in (_FLATTEST, _STEEPEST)
        )
        if not least <= largest <= most:
            raise Refused(
                f"With these lengths the most frequent of {keys:,} keys has a share between {least:.3g} and "
                f"{most:.3g}, not {largest:g}."
            )
        return cls.seen(lengths, keys, largest, int(lengths.entries.max()))

    @classmethod
    def seen(cls, lengths: Lengths, keys: int, largest: float, limit: int) -> Profile:
        """The same where `largest` is what sampling down to `limit` left of it, or as near to it as can be.

        What is left grows with the exponent.
        """
        low, high = _FLATTEST, _STEEPEST
        while high - low > 1e-4:
            middle = (low + high) / 2
            reached = float(cls._of_exponent(lengths, keys, middle).kept(limit)[0])
            low, high = (middle, high) if reached < largest else (low, middle)
        return cls._of_exponent(lengths, keys, high)

    @classmethod
    def _of_exponent(cls, lengths: Lengths, keys: int, exponent: float) -> Profile:
        ranks, counts = _ranks(keys)
        odds = ranks**-exponent
        held = -np.expm1(-odds[:, None] * _draws(lengths, odds, counts)[None, :])
        return cls(lengths, held @ lengths.users, counts, held, exponent, TOP)

    @classmethod
    def given(cls, lengths: Lengths, keys: int, shares: Mapping[float, int]) -> Profile:
        """So many keys with such shares; who holds them is taken from Zipf's law with the usual exponent."""
        wanted = np.array(sorted(shares, reverse=True), dtype=np.float64)
        counts = np.array([shares[float(share)] for share in wanted], dtype=np.float64)
        if not len(wanted) or wanted.min() <= 0 or wanted.max() > 1 or counts.min() < 0 or not counts.any():
            raise Refused("Shares lie above 0 and are at most 1, and some key has to have one.")
        ranks, places = _ranks(keys)
        draws = _draws(lengths, ranks**-USUAL, places)
        odds = np.geomspace(1e-12 / draws.max(), 50 / draws[draws > 0].min(), 600)
        reached = -np.expm1(-odds[:, None] * draws[None, :]) @ lengths.users
        found = np.exp(np.interp(np.log(wanted), np.log(reached), np.log(odds)))
        held = -np.expm1(-found[:, None] * draws[None, :])
        return cls(lengths, held @ lengths.users, counts, held)

    @classmethod
    def of_records(cls, owners: Int64s, keys: Int64s, users: int) -> Profile:
        """Those of a table: whose each entry is and which key it has, numbered from 0, no entry twice.

        Who holds a key is counted, nothing is assumed. Rare keys are taken together with others that are as frequent.
        """
        if not len(keys):
            raise Refused("No record of the table has an entry.")
        entries, which, people = np.unique(
            np.bincount(owners, minlength=users), return_inverse=True, return_counts=True
        )
        holders = np.bincount(keys)
        _, counts = _ranks(int((holders > 0).sum()))
        group = np.full(len(holders), len(counts) - 1)
        order = np.argsort(-holders, kind="stable")[: int(counts.sum())]
        group[order] = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
        cells = np.bincount(group[keys] * len(entries) + which[owners], minlength=len(counts) * len(entries))
        held = cells.reshape(len(counts), len(entries)) / (counts[:, None] * people)
        lengths = Lengths(entries.astype(np.float64), people / users)
        return cls(lengths, held @ lengths.users, counts, held, None, TOP)

    @property
    def weights(self) -> Floats:
        """How much each share counts."""
        most = min(float(self.keys.sum()), np.inf if self.most is None else self.most)
        before = np.cumsum(self.keys) - self.keys
        return np.asarray(np.clip(most - before, 0, self.keys) / most)

    def kept(self, limit: int) -> Floats:
        """The shares after sampling down: a key of a record of L entries stays with probability limit / L."""
        stays = np.minimum(1, limit / np.maximum(self.lengths.entries, 1)) * self.lengths.users
        return np.asarray(self.held @ stays)

    def words(self) -> str:
        """In a few words, for people."""
        number = f"{self.keys.sum():,.0f} keys"
        if self.most is None:
            return f"{number} with the given shares"
        law = f"in the table (largest share {self.shares[0]:.2g})"
        if self.exponent is not None:
            law = f"by Zipf's law (exponent {self.exponent:.2g}, largest share {self.shares[0]:.2g})"
        return (
            f"the {self.most} most frequent of {number} {law}"
            if self.keys.sum() > self.most
            else f"{number} {law}"
        )


def _ranks(keys: int) -> tuple[Floats, Floats]:
    """Ranks that stand for all ranks 1 .. keys, and for how many each."""
    edges = np.arange(1.0, min(keys, _SINGLE) + 2)
    if keys > _SINGLE:
        steps = math.ceil(math.log(keys / _SINGLE) / math.log(_RATIO))
        later = np.unique(np.rint(np.geomspace(_SINGLE + 1.0, keys + 1.0, steps + 2)))
        edges = np.unique(np.concatenate([edges, later]))
    counts = np.diff(edges)
    return np.sqrt(edges[:-1] * np.maximum(edges[1:] - 1, edges[:-1])), counts


def _draws(lengths: Lengths, odds: Floats, counts: Floats) -> Floats:
    """How many draws (in units of the odds) bring as many different keys as each length has."""
    tries = np.concatenate([[0.0], np.geomspace(1e-3 / (odds @ counts), 40 / odds.min(), 400)])
    different = counts @ -np.expm1(-odds[:, None] * tries[None, :])
    found: Floats = np.interp(lengths.entries, different, tries)
    return found
