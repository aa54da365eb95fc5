"""What reports over hash buckets may speak about: keys, both sides of keys, or keys with a sign.

- sets: a key, by its bucket;
- events: key+ or key-, each with a bucket of its own, by stochastic rounding of the value: frequencies and means;
- signed: a key's bucket and a side, the rounded value times the key's random sign: means only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.mechanism import Goal, Quantity

Mode = Literal["", "sets", "signed", "events"]


class Moded(Hashed):
    """A mechanism over hash buckets that has these three modes."""

    mode: Mode = Field(
        default="", description="sets; signed (means); events (both sides of a key: frequency and mean)"
    )

    def choose_mode(self) -> None:
        """Unless it was given: sets, or means."""
        if not self.mode:
            self._fill(mode="sets" if self.values == "set" else "signed")

    def check(self) -> None:
        self.choose_mode()
        if (self.mode == "sets") != (self.values == "set"):
            raise ValueError(f"mode {self.mode!r} does not go with {self.values!r} values")

    @property
    def signed(self) -> bool:
        """Whether reports name a side of the bucket."""
        return self.mode == "signed"

    @property
    def sided(self) -> bool:
        return self.mode == "events"

    @property
    def centered(self) -> bool:
        return self.mode == "events"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        if self.mode == "events":
            return "frequency", "mean", "conditional"
        return ("frequency",) if self.mode == "sets" else ("mean",)


def modes_for(goal: Goal) -> Iterator[Mode]:
    """Every mode that serves a goal, the likelier one first."""
    if goal.values == "set":
        if goal.quantity == "frequency":
            yield "sets"
        return
    if goal.quantity == "mean":
        yield "signed"
    yield "events"
