"""What forged reports would do to a collection, and whether they would be noticed. `hubbub simulate --forgers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.calls.run import Watch, unwatched
from hubbub.model.mechanism import Quantity
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.primitives.arrays import Bools, Floats, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.evidence import Evidence
from hubbub.server.fold import aggregate
from hubbub.server.forgeries import Notice, notice
from hubbub.server.forgers import heard_as
from hubbub.server.quantities import offered_quantity
from hubbub.simulation import rehearsal
from hubbub.simulation.forgery import Attack, forge

_NOTHING = "What is not noticed is not harmless: some attacks have the very law of an honest crowd's reports."


@dataclass(frozen=True)
class Forged:
    """One collection twice, without forgers and with: estimates of all keys, what moved, and what was noticed."""

    task: Task
    quantity: Quantity
    attack: Attack
    reports: int
    forgers: int
    keys: list[str]
    targets: Bools
    #: NaN where nothing is known about a key.
    before: Floats
    after: Floats
    #: The most that as many forgers can move each key's estimate (None: not bounded).
    most: Floats | None
    noticed: Notice

    @property
    def shift(self) -> Floats:
        """By how much each estimate moved."""
        return self.after - self.before

    @property
    def furthest(self) -> int | None:
        """The place of the key that moved most, of those that are known before and after."""
        known = np.flatnonzero(np.isfinite(self.shift))
        return int(known[np.argmax(np.abs(self.shift[known]))]) if len(known) else None

    def rows(self) -> list[dict[str, Any]]:
        """The targets."""
        columns = {"before": self.before, "after": self.after, "shift": self.shift}
        return [
            {"key": self.keys[place]} | {name: _plain(column[place]) for name, column in columns.items()}
            for place in np.flatnonzero(self.targets)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        place = self.furthest
        return {
            "mechanism": self.task.mechanism.name,
            "quantity": self.quantity,
            "attack": self.attack,
            "reports": self.reports,
            "forgers": self.forgers,
            "targets": self.rows(),
            "furthest": None
            if place is None
            else {"key": self.keys[place], "shift": float(self.shift[place])},
            "bound": None if self.most is None else float(self.most.max()),
            "notice": self.noticed.as_dict(),
        }

    def title(self) -> str:
        """What was done."""
        return (
            f"{self.task.mechanism.name}, {self.quantity}: {self.forgers:,} of {self.reports:,} reports forged, "
            f"attack {self.attack} (simulated)"
        )

    def closing(self) -> list[str]:
        """What is said below the targets."""
        place = self.furthest
        said = ["Nothing is known about any key."]
        if place is not None:
            said = [f"Of all keys, {self.keys[place]} moved furthest, by {self.shift[place]:+.4f}."]
        said += self._bounded()
        said.append(self.noticed.words())
        if not self.noticed.noticed:
            said.append(_NOTHING)
        return said

    def _bounded(self) -> list[str]:
        """What so many forgers can do at most; where a report is about one key, that depends on how many are."""
        if self.most is None:
            return []
        least, largest = self.most.min(), self.most.max()
        said = f"The bound: {self.forgers:,} forgers move no key by more than {largest:.4f}"
        if least < 0.999 * largest:
            said += f", and the one that most reports are about by no more than {least:.4f}"
        plain = " Estimates are not refined here: what is refined has no such bound."
        return [f"{said}.{plain if self.task.mechanism.refinement != 'none' else ''}"]


def _plain(number: float) -> float | None:
    """For JSON, where what is not known is null."""
    return float(number) if np.isfinite(number) else None


def rehearse_forgery(
    task: Task,
    entries: Entries,
    share: float,
    attack: Attack,
    targets: Sequence[str | int] = (),
    *,
    names: list[str] | None = None,
    quantity: Quantity | None = None,
    seed: int = 1,
    watch: Watch = unwatched,
) -> Forged:
    """Collect from these records, once as they are and once with a share of the reports replaced by forged ones.

    `names` are the keys to look at where the vocabulary is open; without targets the key that is held least is one.
    """
    if not 0 < share < 1:
        raise Refused(f"The share of forgers must be above 0 and below 1, not {share:g}.")
    if attack == "random" and targets:
        raise Refused("The attack 'random' has no target keys: leave them out, or take another one.")
    asked = offered_quantity(task, quantity)
    with watch("simulating", 3 * len(entries), task) as advance:
        made = rehearsal.simulate(task, entries, seed, lambda _, done: advance(done))
        count = round(share * len(made.packed))
        if count < 1:
            raise Refused(f"{share:g} of {len(made.packed):,} reports is none; give more forgers.")
        honest = estimate(task, made.state, names, asked, refine="none")
        ids = task.keys.ids_of(honest.keys)
        if not targets:
            held = rehearsal.true_values(task, entries, "frequency", ids)
            targets = [honest.keys[int(np.argmin(held))]]
        packed = made.packed.copy()
        packed[:count] = forge(task, count, attack, targets, seed=seed + 5, quantity=asked)
        others = aggregate(task, packed[count:])
        evidence = Evidence(task)
        state = aggregate(task, packed, progress=advance, evidence=evidence)
    after = estimate(task, state, names, asked, refine="none")
    aimed = np.isin(ids, task.keys.ids_of(list(targets)))
    if attack != "random" and not aimed.any():
        raise Refused("None of the targets is among the keys that are estimated.")
    return Forged(
        task,
        asked,
        attack,
        len(packed),
        count,
        list(honest.keys),
        aimed & (attack != "random"),
        _known(honest),
        _known(after),
        _bound(task, asked, count, others, ids),
        notice(evidence, state),
    )


def _known(found: Estimate) -> Floats:
    return np.where(np.isfinite(found.error), found.value, np.nan)


def _bound(task: Task, quantity: Quantity, forgers: int, others: State, ids: UInt64s) -> Floats | None:
    """The most that so many replaced reports move each estimate; a quotient of two estimates has no such bound.

    Before, a key's estimate is the mean of what the others say (h of them are heard) and some of the m replaced ones;
    afterwards, of the others and up to m forged ones. All that is said lies between two numbers, and each mean gives
    the others a weight of at least h / (h + m), so the two means are at most m / (h + m) times their distance apart.
    (In a tree one report may count as several, and m is that many times more.)
    """
    mechanism = task.mechanism
    if quantity == "conditional" or mechanism.uncut != mechanism:
        return None
    found = mechanism.influence(quantity, 0.0, task.scale.center, task.scale.half, heard=1.0)
    times = others.count + forgers if quantity == "sum" else 1
    forgers *= heard_as(task)
    return times * found.replaced * forgers / mechanism.heard_about(others, task.keys, ids, forgers)
