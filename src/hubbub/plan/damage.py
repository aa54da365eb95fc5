"""What forged reports could do to a plan, and plans that withstand them.

One forged report among n moves the estimate of a key by up to `Mechanism.influence` / n. A plan that withstands a share
of forgers has the least root of error^2 + damage^2: noise, and the worst that so many forgers can add to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hubbub.mechanisms.registry import mechanisms
from hubbub.model.influence import Influence
from hubbub.model.keys import Keys, bits_for
from hubbub.model.mechanism import Goal, Mechanism
from hubbub.plan.costs import server_seconds
from hubbub.plan.offers import offers, without_sum
from hubbub.plan.profile import Lengths, Profile
from hubbub.plan.ranking import Option, expected_reports, option_for
from hubbub.primitives.errors import Refused
from hubbub.server.forgers import USUAL_KEY, how_many

#: The most frequent keys that a forger may want to be among.
_TOP = 10
#: The share of forgers that is spoken of where none is given.
USUAL_FORGERS = 0.01


@dataclass(frozen=True)
class Damage:
    """In the units of the values, times n: what one forged report moves the estimate of one key by."""

    up: float
    down: float
    #: How many chosen keys one report can do that to.
    keys_at_once: float
    #: Forged reports that lift a key that nobody has into the top ten, if keys are held by Zipf's law.
    into_top: int | None
    #: A conditional mean: numbers, as errors of plans, are those of a key that everybody has.
    conditional: bool = False
    #: The share of honest reports that are about a key, if no key is asked about more often.
    heard: float = 1.0

    def moved(self, share: float) -> float:
        """What a share of forgers moves a key by at most."""
        return Influence(self.up, self.down, self.up + self.down, self.heard).moved(share)

    def words(self, share: float = USUAL_FORGERS) -> str:
        """One or two sentences."""
        several = "" if self.keys_at_once < 2 else f", {_keys(self.keys_at_once)} of their choice at once"
        of_all = " that everybody has" if self.conditional else ""
        usual = USUAL_KEY if self.heard < 1 else ""
        others = ", others by that divided by their share" if self.conditional else ""
        moved = self.moved(share)
        said = f"{100 * share:.3g}% forgers move a key{of_all}{usual} by at most {moved:.3g}{others}{several}"
        if self.into_top is not None:
            word = "forger lifts" if self.into_top == 1 else "forgers lift"
            said += f"; {self.into_top:,} {word} a key that nobody has into the top {_TOP}"
        return f"{said}."

    def as_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no infinity."""
        at_once = self.keys_at_once if math.isfinite(self.keys_at_once) else None
        return {**asdict(self), "keys_at_once": at_once}


def _keys(count: float) -> str:
    return "all keys" if math.isinf(count) else f"up to {count:,.0f} keys"


def damage_to(mechanism: Mechanism, goal: Goal, unit_size: float = 1.0) -> Damage | None:
    """What forgers can do to this mechanism; None where that is not known."""
    quantity = without_sum(goal.quantity, goal.values)
    center = goal.center if mechanism.centered and quantity == "mean" else 0.0
    try:
        found = mechanism.influence(quantity, 1.0, center, 1 - abs(center))
    except Refused:
        return None
    size = unit_size * (goal.users if goal.quantity == "sum" else 1)
    top = into_top(goal, found) if quantity == "frequency" else None
    at_once = min(mechanism.keys_at_once(quantity, _keys_for(mechanism, goal)), goal.keys)
    return Damage(size * found.up, size * found.down, at_once, top, quantity == "conditional", found.heard)


def _keys_for(mechanism: Mechanism, goal: Goal) -> Keys:
    """As many keys as are planned for."""
    if goal.open:
        return Keys(kind="folded", salt="0" * 32)
    room = bits_for(goal.keys * (2 if mechanism.sided else 1))
    return Keys(kind="closed", size=goal.keys, bits=room, salt="0" * 32)


def into_top(goal: Goal, found: Influence) -> int | None:
    """y forgers of n, heard among h (n - y) others, give their key y u / (y + h (n - y)), u = h * up.

    The tenth key of the others has its share t of n - y reports.
    """
    if goal.keys <= _TOP:
        return None
    lengths = Lengths.of({min(goal.max_entries, goal.keys): 1}, goal.keys)
    profile = Profile.zipf(lengths, goal.keys)
    tenth = float(profile.shares[np.searchsorted(np.cumsum(profile.keys), _TOP)])
    reports, loud = expected_reports(goal), found.up * found.heard
    # Where a report is about one key only, what is said about the tenth key stays as it is.
    diluted = tenth if found.heard == 1 else -tenth * (1 - found.heard)
    return math.ceil(reports * tenth * found.heard / (loud + diluted))


def forged_share(forgers: float, users: int) -> float:
    """Forgers as a share of all reports: given as one, below 1, or as a number."""
    if how_many(forgers, users) >= users:
        raise Refused(f"Forgers are fewer than the {users:,} users, not {forgers:g}.")
    return forgers if forgers < 1 else forgers / users


def strained(option: Option, goal: Goal, unit_size: float, share: float) -> float:
    """Root of the squares of error and of what forgers add: infinite where that is not known."""
    found = None if option.mechanism is None else damage_to(option.mechanism, goal, unit_size)
    return math.inf if found is None else math.hypot(option.error, found.moved(share))


def withstanding(
    goal: Goal, options: Iterable[Option], unit_size: float, most_bytes: int | None, share: float
) -> list[Option]:
    """The options, each in the form that has least error and damage together; the least first.

    Mechanisms over hash buckets are also tried with fewer buckets: less is said by each of them.
    """
    found = []
    for option in options:
        forms = [option, *option.shorter, *_fewer_buckets(option, goal, unit_size, most_bytes)]
        strains = [strained(form, goal, unit_size, share) for form in forms]
        best = int(np.argmin(strains))
        found.append((strains[best], replace(forms[best], shorter=())))
    ordered = sorted(found, key=lambda pair: (pair[1].mechanism is None, pair[0], pair[1].name))
    return [option for _, option in ordered]


def _fewer_buckets(option: Option, goal: Goal, unit_size: float, most_bytes: int | None) -> Sequence[Option]:
    """The same mechanism with fewer buckets, where the planner may choose them."""
    own = getattr(option.mechanism, "buckets", 0)
    if goal.central_epsilon is not None or goal.family == "prf" or own < 2:
        return ()
    plain = replace(goal, quantity=without_sum(goal.quantity, goal.values))
    size = unit_size * (goal.users if goal.quantity == "sum" else 1)
    made = []
    for bits in range((own - 1).bit_length()):
        with suppress(Refused):
            for mechanism in offers(mechanisms()[option.name], plain, {"buckets": 1 << bits}):
                short = most_bytes is None or mechanism.layout.width <= most_bytes
                if short and server_seconds(mechanism, plain) <= goal.server_seconds:
                    made.append(option_for(mechanism, plain, plain, size, None))
    return made
