"""From a table to a release: the one entry point that touches data and draws secret coins.

What the file shows of the table, and what else does. Of two neighbouring tables of the declared kind,
everything that is not in the list below is the same, and the list itself is what the proofs are about:

- the arrays of the parts, whose number, types and lengths follow from the plan; only a threshold's list has a
  length of its own, which is part of what its proof covers;
- the size estimates, if bounds are missing, and the plan made from them: noisy, and paid for.

The kind of keys follows from the goal (whole numbers where a universe is declared, the list where there is one,
text otherwise), the plan from the goal and noisy sizes, the salt from the operating system; there are no dates
and no counts of rows or users in the file. Where a list of keys is declared, rows with other keys are left out
before anything else: whether one is depends on that row alone, so neighbours stay neighbours. Two things are
not private and are meant for the table's holder alone: the summary, and a refusal. A table that is not of the
declared kind (a key outside the universe, a value that is no number or below 0 without `signed`) is refused,
with the reason, and nothing is written; whoever learns of that learns something about the table.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from pydantic import ValidationError

from hubbub.primitives.arrays import Bools, UInt64s
from hubbub.primitives.coins import Coins, InsecureCoins, SecretCoins
from hubbub.primitives.errors import Refused, explain
from hubbub.release.amounts import Amounts
from hubbub.release.artifact import Release
from hubbub.release.design import SHARE, Plan, plan, split
from hubbub.release.goal import Goal
from hubbub.release.sizes import estimate_sizes
from hubbub.release.users import Tally, bound_users, owners_of
from hubbub.release.vector import Summary, add_up, read_amounts

STAGES = 4
#: A table: a map from key to value, or columns side by side: keys and values; or users and keys; or all three.
TableLike = Mapping[Any, Any] | tuple[Iterable[Any], ...]


@dataclass(frozen=True)
class Published:
    """A release with its plan, and what only the table's holder should see: a summary of the table and its users, and
    how many rows were left out because their key is not in the declared list."""

    release: Release
    plan: Plan
    summary: Summary
    tally: Tally | None
    undeclared: int = 0


def publish(table: TableLike, **goal: Any) -> Release:
    """A private release of a table, with coins from the operating system.

    `goal` takes the fields of `Goal`: epsilon, and as far as they are known delta, kind, signed, universe,
    vocabulary, max_nonzero, max_value, max_sum, algorithm, estimator.

    The table is {key: value} or (keys, values), and epsilon is for one unit of value, whoever is behind it.
    With max_entries it is (users, keys) or (users, keys, values), and epsilon is for all rows of one user: at
    most max_entries keys of a user count, for 1 each, or for the user's value of the key up to
    max_contribution.
    """
    return build(table, make_goal(**goal)).release


def make_goal(**fields: Any) -> Goal:
    """A goal, or a sentence about what is wrong with it."""
    try:
        return Goal(**fields)
    except ValidationError as problem:
        raise Refused(explain(problem)) from None


def build(table: TableLike, goal: Goal, tick: Callable[[int], None] = lambda _: None) -> Published:
    """Plan from public bounds, estimate what is missing, project; `tick` is told of each of STAGES stages."""
    return _build(table, goal, SecretCoins(), tick)


def simulate(table: TableLike, goal: Goal, seed: int) -> Published:
    """The same with seeded coins, for experiments. INSECURE: such a release refuses to be saved."""
    return _build(table, goal, InsecureCoins(seed), lambda _: None)


def _build(table: TableLike, goal: Goal, coins: Coins, tick: Callable[[int], None]) -> Published:
    users, keys, raw = _columns(table, goal)
    salt = f"{coins.below(1 << 128):032x}" if isinstance(coins, InsecureCoins) else secrets.token_hex(16)
    space = goal.key_space(salt)
    undeclared = 0
    if goal.vocabulary is not None:
        declared = space.declared(keys)
        undeclared = int((~declared).sum())
        users, keys, raw = (_rows(column, declared) for column in (users, keys, raw))
    ids = space.ids(keys)
    ids, amounts, tally = count_users(goal, users, ids, read_amounts(goal.values(), raw), coins)
    tick(1)
    sizes = None
    if goal.needs_sizes():
        vector, _ = add_up(goal.values(), ids, amounts)
        sizes = estimate_sizes(vector, goal.values(), split(goal.unit_epsilon, SHARE)[0], coins)
    chosen = plan(goal, sizes, salt)
    tick(1)
    vector, summary = add_up(chosen.parameters.values, ids, amounts)
    tick(1)
    release = Release.project(chosen.parameters, vector, coins)
    tick(1)
    return Published(release, chosen, summary, tally, undeclared)


def count_users(
    goal: Goal, users: Any, ids: UInt64s, amounts: Amounts, coins: Coins
) -> tuple[UInt64s, Amounts, Tally | None]:
    """What counts of the rows: everything, or of every user as much as the goal says."""
    if goal.users is None:
        return ids, amounts, None
    owners = owners_of(users)
    if not len(owners) == len(ids) == len(amounts):
        raise Refused(f"There are {len(owners)} users, {len(ids)} keys and {len(amounts)} values.")
    return bound_users(goal.users, goal.values(), owners, ids, amounts, coins)


def _rows(column: Any, which: Bools) -> Any:
    """Some rows of a column that is an array, a list, or not there."""
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[which]
    return list(compress(column, which.tolist()))


def _columns(table: TableLike, goal: Goal) -> tuple[Any, Any, Any]:
    """Users if there are any, keys and values; a column that is no array becomes a list."""
    columns = (list(table), list(table.values())) if isinstance(table, Mapping) else tuple(table)
    found = [column if isinstance(column, np.ndarray) else list(column) for column in columns]
    if goal.users is None:
        if len(found) != 2:
            raise Refused(
                "Two columns are needed, keys and values; with max_entries, users come before them."
            )
        return None, found[0], found[1]
    if isinstance(table, Mapping) or len(found) not in (2, 3):
        raise Refused("With max_entries, the columns are users and keys, or users, keys and values.")
    if len(found) == 2 and goal.max_contribution is not None:
        raise Refused(
            "max_contribution bounds values, and there are none; without them a key counts 1 for a user."
        )
    if len(found) == 3 and goal.max_contribution is None:
        raise Refused("Say how much of a user's value counts in one key: max_contribution.")
    return found[0], found[1], found[2] if len(found) == 3 else np.ones(len(found[1]), dtype=np.int64)
