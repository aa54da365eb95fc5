"""What forged reports would do to a collection, and whether they would be noticed. `hubbub simulate --forgers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.calls.run import Watch, unwatched
from hubbub.model.mechanism import Quantity
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Bools, Floats
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate, offered_quantity
from hubbub.server.evidence import Evidence
from hubbub.server.fold import aggregate
from hubbub.server.forgeries import Notice, notice
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
    before: Floats
    after: Floats
    #: The most that as many forgers can move any key's estimate (None: not bounded).
    most: float | None
    noticed: Notice

    @property
    def shift(self) -> Floats:
        """By how much each estimate moved."""
        return self.after - self.before

    @property
    def furthest(self) -> int:
        """The place of the key that moved most."""
        return int(np.nanargmax(np.abs(self.shift)))

    def rows(self) -> list[dict[str, Any]]:
        """The targets."""
        places = np.flatnonzero(self.targets)
        return [
            {
                "key": self.keys[place],
                "before": float(self.before[place]),
                "after": float(self.after[place]),
                "shift": float(self.shift[place]),
            }
            for place in places
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
            "furthest": {"key": self.keys[place], "shift": float(self.shift[place])},
            "bound": self.most,
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
        said = [f"Of all keys, {self.keys[place]} moved furthest, by {self.shift[place]:+.4f}."]
        if self.most is not None:
            said.append(f"The bound: {self.forgers:,} forgers move no key by more than {self.most:.4f}.")
        said.append(self.noticed.words())
        if not self.noticed.noticed:
            said.append(_NOTHING)
        return said


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
    asked = offered_quantity(task, quantity)
    with watch("simulating", 3 * len(entries), task) as advance:
        made = rehearsal.simulate(task, entries, seed, lambda _, done: advance(done))
        count = round(share * len(made.packed))
        if count < 1:
            raise Refused(f"{share:g} of {len(made.packed):,} reports is none; give more forgers.")
        honest = estimate(task, made.state, names, asked)
        ids = task.keys.ids_of(honest.keys)
        if not targets:
            held = rehearsal.true_values(task, entries, "frequency", ids)
            targets = [honest.keys[int(np.argmin(held))]]
        packed = made.packed.copy()
        packed[:count] = forge(task, count, attack, targets, seed=seed + 5, quantity=asked)
        evidence = Evidence(task)
        state = aggregate(task, packed, progress=advance, evidence=evidence)
    after = estimate(task, state, names, asked)
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
        honest.value,
        after.value,
        _bound(task, asked, count, len(packed)),
        notice(evidence, state),
    )


def _bound(task: Task, quantity: Quantity, forgers: int, reports: int) -> float | None:
    """The most that so many replaced reports move an estimate; a quotient of two estimates has no such bound."""
    if quantity == "conditional" or task.mechanism.uncut != task.mechanism:
        return None
    found = task.mechanism.influence(quantity, 0.0, task.scale.center, task.scale.half)
    return found.replaced * forgers / reports
