"""What is promised, to whom, about what: epsilon, delta, unit and trust model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hubbub.primitives.errors import Refused
from hubbub.primitives.markup import paragraph, whole

Unit = Literal["record", "entry", "l1"]
#: What a table of many people's data is made of: its holder says which of them is protected.
TableUnit = Literal["value", "user"]
Model = Literal["local", "shuffled", "central"]
#: Who adds the noise of reports: the device; whoever made them; who holds a table of records; nobody, in a simulation.
Noise = Literal["device", "reports", "table", "simulated"]

_LOCAL = {
    "device": "Noise is added on the device, so nobody has to be trusted",
    "reports": "Noise was added where the reports were made: if that was on the devices, nobody has to be trusted",
    "table": "It holds for the reports and what follows from them. Whoever ran this has read the table and is trusted "
    "with it; what is said about the table itself is exact",
    "simulated": "That would hold with secret randomness. Here it is seeded: nothing here is private",
}
_WHO = {
    "shuffled": "Reports pass through a shuffler that mixes them and must not collude with the collector",
    "central": "The data owner adds the noise and is trusted with the data",
}


def _factor(epsilon: float) -> str:
    """exp(epsilon) as people write it; a year of daily reports is easily beyond what a double can hold."""
    if epsilon > 14:
        return f"exp({epsilon:.6g})"
    size = math.exp(epsilon)
    return f"{size:.4g}" if size < 1000 else f"{size:,.0f}"


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for one unit in one trust model.

    unit "record": any two records are hard to tell apart (user level, replace one).
    unit "entry": two records that differ at one key are (event level): there in one only, or with another value. A key
    that takes another's place differs at two, which costs twice epsilon.
    unit "l1": two records whose values differ by at most `distance` in total are.

    Of a table that one data owner has (central model):
    unit "value": two tables that differ by one unit of value are, whoever is behind it (event level).
    unit "user": two tables are of which one has all rows of one user more (user level, add or remove).
    """

    epsilon: float
    unit: Unit | TableUnit = "record"
    model: Model = "local"
    delta: float = 0.0
    distance: float | None = None
    note: str = ""
    noise: Noise = "device"
    #: Where a device sends a random number of reports: their mean. The guarantee is about a single one.
    messages: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise Refused(f"epsilon must be a finite number above 0, not {self.epsilon!r}.")
        if not 0 <= self.delta < 1:
            raise Refused(f"delta must be at least 0 and below 1, not {self.delta!r}.")
        if (self.unit == "l1") != (self.distance is not None):
            raise Refused("A distance goes with the unit 'l1', and only with it.")
        if self.distance is not None and not (math.isfinite(self.distance) and self.distance > 0):
            raise Refused(f"The distance must be a finite number above 0, not {self.distance!r}.")

    def words(self) -> str:
        """The guarantee as sentences for somebody who has to sign it off."""
        what = {
            "record": "one person's record were replaced by any other",
            "entry": "one entry of one person's record were added, removed or given another value (replacing a key by "
            "another counts as two such changes)",
            "l1": f"one person's record were changed by at most {self.distance or 0:g} in total (l1 distance)",
            "value": "one unit of value were added to the table or removed from it",
            "user": "all rows of one user were added to the table or removed from it",
        }[self.unit]
        slip = f", plus {self.delta:.3g}" if self.delta else ""
        who = _LOCAL[self.noise] if self.model == "local" else _WHO[self.model]
        if self.messages and self.noise != "simulated":
            holder = f"{who}. " if self.noise == "table" else ""
            who = holder + (
                f"That is for a single report. A device sends {self.messages:g} on average, and their epsilons add up "
                "for whoever sees which are its own: only a shuffler that mixes them hides that"
            )
        text = (
            f"{self.short()}: if {what}, the probability of any outcome would change by at most a factor of "
            f"{_factor(self.epsilon)}{slip}. {who}."
        )
        return f"{text} {self.note}" if self.note else text

    def short(self) -> str:
        """One line: epsilon, delta, unit, model. Of tables the unit comes first: it is easily taken for another."""
        budget = f"epsilon = {self.epsilon:.6g}" + (f", delta = {self.delta:.3g}" if self.delta else "")
        if self.unit == "value":
            return f"Per unit of value, not per person: {budget}, {self.model} model"
        if self.unit == "user":
            return f"Per user: {budget}, {self.model} model"
        unit = f"l1 distance {self.distance:g}" if self.unit == "l1" else self.unit
        return f"{budget} per {unit}, {self.model} model"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return whole(paragraph(self.words()))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        facts = asdict(self)
        if self.model != "local":
            del facts["noise"]
        return {**facts, "words": self.words()}
