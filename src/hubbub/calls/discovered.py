"""Discovery on a table of one's own: the whole way with secret coins, or rehearsed beside the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hubbub.calls.run import Watch, privatized, unwatched
from hubbub.mechanisms.collision import Collision
from hubbub.model.mechanism import Quantity
from hubbub.model.record import Summary
from hubbub.plan.proposal import Wish
from hubbub.plan.prospects import CHANCE, Spelling, least_share, prospect
from hubbub.primitives.arrays import Bools, Floats
from hubbub.protocol.task import Task
from hubbub.server.discovery import Discovery, discover
from hubbub.server.fold import aggregate
from hubbub.server.search import tree_of
from hubbub.server.truncation import truncation_of_table
from hubbub.simulation import rehearsal
from hubbub.tables.records import TableLike, encode_table, read_table


def run_discovery(
    table: TableLike,
    columns: tuple[str | None, str | None, str | None],
    wish: Wish,
    spelling: Spelling,
    *,
    name: str = "table",
    false_finds: float = 0.05,
    level: float = 0.95,
    users: int | None = None,
    watch: Watch = unwatched,
) -> tuple[Discovery, Summary]:
    """Popular keys of a table, found as a collector would who has never seen its keys; and what happened to the input.

    `columns` are those of user, key and value (None: sets). Every record is privatized with secret coins. Whoever calls
    this has the table: the guarantee is about what is found.
    """
    rows = read_table(table, *columns)
    wish = replace(wish, users=max(rows.users, 2) if users is None else users)
    task = prospect(wish, spelling, "local", false_finds).task(name)
    entries, tidied = encode_table(task, rows)
    packed, sampled = privatized(task, entries, watch)
    with watch("aggregating", len(packed), task) as advance:
        state = aggregate(task, packed, progress=advance)
    lost = truncation_of_table(task, np.diff(entries.offsets))
    found = discover(
        task, state, false_finds=false_finds, level=level, quantity=wish.quantity, truncation=lost
    )
    promise = replace(found.estimate.guarantee, noise="table")
    return replace(found, estimate=replace(found.estimate, guarantee=promise)), tidied + sampled


@dataclass(frozen=True)
class Rehearsal:
    """What would have been found, beside the truth. Nothing here is private.

    `truth` has the true shares of found keys, `false` says which of them nobody holds. `share` is what the planner says
    is found with 90%; `popular` keys of the table have it, of which `recalled` were found, and `missed` are the most
    popular keys that were not.
    """

    found: Discovery
    truth: Floats
    false: Bools
    share: float
    popular: int
    recalled: int
    missed: tuple[tuple[str, float], ...]
    summary: Summary

    def rows(self, count: int | None = None) -> list[dict[str, Any]]:
        """One plain dictionary per found key."""
        more = zip(self.found.rows(), self.truth.tolist(), self.false.tolist(), strict=True)
        return [{**row, "truth": true, "false": false} for row, true, false in more][:count]

    def words(self) -> list[str]:
        """What came of it."""
        said = [
            f"{int(self.false.sum()):,} of {len(self.found):,} found keys are held by nobody "
            f"(expected: {100 * self.found.false_finds:g}% at most).",
            f"{self.recalled:,} of {self.popular:,} keys were found whose share is {100 * self.share:.3g}% or more, "
            f"which the plan says are found with {100 * CHANCE:g}%.",
        ]
        if self.missed:
            named = ", ".join(f"{key} ({100 * share:.3g}%)" for key, share in self.missed)
            said.append(f"The most popular keys that were not found: {named}.")
        return said


def rehearse_discovery(
    table: TableLike,
    task: Task,
    columns: tuple[str | None, str | None, str | None],
    *,
    false_finds: float = 0.05,
    level: float = 0.95,
    quantity: Quantity | None = None,
    seed: int = 1,
    watch: Watch = unwatched,
) -> Rehearsal:
    """What a collection from people with these records would have found. Coins are seeded: nothing of it is private."""
    tree = tree_of(task)
    entries, tidied = encode_table(task, read_table(table, *columns))
    with watch("simulating", 2 * len(entries), task) as advance:
        made = rehearsal.simulate(task, entries, seed, lambda _, done: advance(done))
    cut = truncation_of_table(task, np.diff(entries.offsets))
    found = discover(
        task, made.state, false_finds=false_finds, level=level, quantity=quantity, truncation=cut
    )
    promise = replace(found.estimate.guarantee, noise="simulated")
    found = replace(found, estimate=replace(found.estimate, guarantee=promise))
    known, held = np.unique(_once_each(entries.ids, entries.offsets), return_counts=True)
    shares = held / max(1, len(entries))
    place = np.searchsorted(known, found.ids).clip(max=max(0, len(known) - 1))
    there = known[place] == found.ids if len(known) else np.zeros(len(found), dtype=bool)
    assert isinstance(task.mechanism, Collision)
    share = least_share(task.mechanism, tree, max(1, made.state.count), false_finds)
    lost = np.flatnonzero(~np.isin(known, found.ids))
    lost = lost[np.argsort(-shares[lost], kind="stable")][:5]
    popular = shares >= share
    return Rehearsal(
        found,
        np.where(there, shares[place], 0.0) if len(known) else np.zeros(len(found)),
        ~there,
        share,
        int(popular.sum()),
        int(np.isin(known[popular], found.ids).sum()),
        tuple((tree.name_of(int(known[i])), float(shares[i])) for i in lost),
        tidied + made.summary,
    )


def _once_each(ids: Any, offsets: Any) -> Any:
    """The ids of all records, each once per record: long keys that are cut alike are one key."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    pairs = np.unique(np.stack([owner.astype(np.uint64), ids], axis=1), axis=0)
    return pairs[:, 1]
