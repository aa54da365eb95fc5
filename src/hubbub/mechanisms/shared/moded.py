"""What reports over hash buckets may speak about: keys, both sides of keys, or keys with a sign.

- sets: a key, by its bucket;
- events: key+ or key-, each with a bucket of its own, by stochastic rounding of the value: frequencies and means;
- signed: a key's bucket and a side, the rounded value times the key's random sign: means only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.model.count_laws import Counts
from hubbub.model.mechanism import Goal, Quantity
from hubbub.primitives.arrays import Int64s

Mode = Literal["", "sets", "signed", "events"]


class Moded(Hashed):
    """A mechanism over hash buckets that has these three modes."""

    mode: Mode = Field(
        default="", description="sets; signed (means); events (both sides of a key: frequency and mean)"
    )

    count_names: bool = Field(
        default=False, description="signed: count also how often keys are named, for errors that are right"
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
    def channels(self) -> int:
        """A second one says how often keys are named, whatever the side; with one bucket that is known."""
        return 2 if self.signed and self.count_names and self.buckets > 1 else 1

    def both_votes(self, bucket: Int64s, sides: Int64s) -> tuple[Votes, ...]:
        """Signed votes, and what they are without their signs where that is counted."""
        signed = Votes(True, bucket, sides)
        return (signed, Votes(False, bucket, np.abs(sides))) if self.channels == 2 else (signed,)

    def signed_counts(self, tally: Int64s, reports: int, gain: float, absent: float, excess: float) -> Counts:
        """The law of the counts: a key is named with probability `absent`, and by `excess` more if it is held."""
        if self.channels == 1:
            return Counts(reports, signed=tally[0], signed_gain=gain, signed_noise=(absent, excess))
        held = absent + excess
        noise = absent * (1 - absent), held * (1 - held) - absent * (1 - absent), 0.0
        return Counts(reports, tally[1], absent, excess, noise, tally[0], gain, (absent, excess))

    @property
    def remarks(self) -> tuple[str, ...]:
        if self.channels == 2 or not self.signed or self.buckets == 1:
            return ()
        return (
            "This task does not count how often keys are named (count_names): errors are right for keys whose values "
            "are all of the largest size and of one sign, and too small for frequent keys with other values.",
        )

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
