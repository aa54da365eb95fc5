"""Per user: at most so many keys of a person count, each for at most so much, and what that promises to the person.

Of every user (`max_entries` = k, `max_contribution` = B): the values of a key are summed and clipped to [-B,
B]; of more than k keys that are then not 0 a uniform sample of k is drawn with the release's coins; and what
is left of all users is added up. Rows without a user (None or empty text) count for nothing: they might be
anybody's, so no bound covers them.

Proof that epsilon / (k B) per unit of value is epsilon per user, when all rows of one user are added or
removed. Which rows of a user count depends on that user's rows and on coins drawn for that user alone. So
give every other user the same coins in both tables: the others then count for the same. Whatever the one
user's sample is, it moves at most k entries by at most B each. Sums are exact and clipping brings nothing
further apart (`vector`), so the two vectors are at l1 distance k B at most. A part with budget e per unit of
value changes the odds of anything by at most exp(e d) for vectors at distance d: counts are walked in single
units, reals see `vector`. With e = epsilon / (k B), rounded down, that is exp(epsilon), and so it is for
every part in turn and their sum (Lemma 2.3). It holds for every sample, hence for the mixture of all samples.
How delta depends on k and B is proved where it is spent, in `threshold`.

Rows that are *replaced* are removed, and others added: twice epsilon, and (1 + exp(epsilon)) delta.

Uniform sampling is fair to the keys; the proof only needs that nobody's sample depends on other people's
rows. That rules out a choice by how popular keys are, and one stream of numbers from a known seed: a user
less would shift the numbers, and with them the samples, of all who come later. Coins that nobody knows have
no such order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hubbub.model.record import Entries, sample_down
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.release.amounts import Amounts
from hubbub.release.vector import Values, runs

#: The owner of a row without a user.
NOBODY = -1


class Users(BaseModel):
    """Public bounds on what one user counts for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_entries: int = Field(ge=1, le=1 << 20, description="keys of a user that count")
    max_contribution: float = Field(gt=0, le=2.0**40, description="for how much a user counts in one key")

    @property
    def reach(self) -> Fraction:
        """The largest l1 distance between a table with a user and without."""
        return self.max_entries * Fraction(self.max_contribution)

    def steps(self, values: Values) -> int:
        """The largest contribution in steps of the grid; a whole number, or the bound would not be kept."""
        steps = Fraction(self.max_contribution) * (1 << values.fraction_bits)
        if steps.denominator != 1:
            raise ValueError("max_contribution is not a whole number of steps of the grid")
        return int(steps)


@dataclass(frozen=True)
class Tally:
    """What happened to users on the way in. For the table's holder only."""

    users: int
    sampled_users: int
    dropped_entries: int
    clipped_contributions: int
    rows_without_user: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def owners_of(users: Iterable[Any] | NDArray[Any]) -> Int64s:
    """A number for every user; 17 and "17" are the same one, as among keys, and rows without a user have NOBODY."""
    numbers: dict[str, int] = {"": NOBODY}
    labels = users.tolist() if isinstance(users, np.ndarray) else users
    return np.array([numbers.setdefault(_name(label), len(numbers) - 1) for label in labels], dtype=np.int64)


def _name(label: Any) -> str:
    if label is None:
        return ""
    if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
        raise Refused(f"A user must be text or a whole number, not {type(label).__name__}.")
    return str(label)


def bound_users(
    users: Users, values: Values, owners: Int64s, ids: UInt64s, amounts: Amounts, coins: Coins
) -> tuple[UInt64s, Amounts, Tally]:
    """What counts of every user: at most max_entries ids, each once and for at most max_contribution."""
    known = owners != NOBODY
    owners, ids, amounts = owners[known], ids[known], amounts.take(known)
    order, starts = runs(owners, ids)
    sums, beyond = amounts.take(order).sums(starts, users.steps(values))
    present = sums.present()
    rows = order[starts][present]
    ids, sums = ids[rows], sums.take(present)
    _, offsets = runs(owners[rows])
    places = np.arange(len(rows), dtype=np.uint64)
    batch = Entries(places, np.zeros(len(rows), dtype=np.int64), np.append(offsets, len(rows)))
    chosen, sampled = sample_down(batch, users.max_entries, coins)
    kept = chosen.ids.astype(np.int64)
    tally = Tally(
        len(np.unique(owners)),
        sampled.sampled_records,
        sampled.dropped_entries,
        int(beyond.sum()),
        int((~known).sum()),
    )
    return ids[kept], sums.take(kept), tally
