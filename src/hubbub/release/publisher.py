"""From a table to a release: the one entry point that touches data and draws secret coins."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hubbub.primitives.coins import Coins, InsecureCoins, SecretCoins
from hubbub.primitives.errors import Refused, explain
from hubbub.release.artifact import Release
from hubbub.release.design import SHARE, Goal, Plan, plan, split
from hubbub.release.keyspace import ALL
from hubbub.release.sizes import estimate_sizes
from hubbub.release.vector import Summary, make_vector

STAGES = 4
#: A table: a map from key to value, or keys and values side by side.
TableLike = Mapping[Any, Any] | tuple[Iterable[Any], Iterable[Any]]


@dataclass(frozen=True)
class Published:
    """A release with its plan, and a summary of the table that only its holder should see."""

    release: Release
    plan: Plan
    summary: Summary


def publish(table: TableLike, **goal: Any) -> Release:
    """A private release of a table, with coins from the operating system.

    `goal` takes the fields of `Goal`: epsilon, and as far as they are known delta, kind, signed, universe,
    max_nonzero, max_value, max_sum, algorithm, estimator.
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
    keys, raw = _columns(table)
    if goal.universe is None and _whole(keys):
        goal = goal.model_copy(update={"universe": ALL})
    salt = f"{coins.below(1 << 128):032x}" if isinstance(coins, InsecureCoins) else secrets.token_hex(16)
    ids = goal.key_space(salt).ids(keys)
    tick(1)
    sizes = None
    if goal.needs_sizes():
        vector, _ = make_vector(goal.values(), ids, raw)
        sizes = estimate_sizes(vector, goal.values(), split(goal.epsilon, SHARE)[0], coins)
    chosen = plan(goal, sizes, salt)
    tick(1)
    vector, summary = make_vector(chosen.parameters.values, ids, raw)
    tick(1)
    release = Release.project(chosen.parameters, vector, coins)
    tick(1)
    return Published(release, chosen, summary)


def _columns(table: TableLike) -> tuple[Any, NDArray[Any]]:
    keys, values = (list(table), list(table.values())) if isinstance(table, Mapping) else table
    raw = values if isinstance(values, np.ndarray) else np.asarray(list(values))
    if raw.size == 0:
        raw = np.zeros(0, dtype=np.int64)
    return (keys if isinstance(keys, np.ndarray) else list(keys)), raw


def _whole(keys: Any) -> bool:
    """Whether keys are whole numbers by type: then they are their own coordinates."""
    if isinstance(keys, np.ndarray):
        return keys.dtype.kind in "iu"
    return len(keys) > 0 and all(
        isinstance(key, int | np.integer) and not isinstance(key, bool) for key in keys
    )
