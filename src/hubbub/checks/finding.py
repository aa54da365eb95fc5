"""What an audit found, for people and for machines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

#: Probability with which the smallest excess that is stated would have been found.
POWER = 0.95
#: The share of a claim that an event must show before anything is said about its power.
TELLING = 0.8


def entries_in_words(count: int) -> str:
    """1 entry, 2 entries."""
    return f"{count} entries" if count > 1 else "1 entry"


@dataclass(frozen=True)
class Finding:
    """What an audit found."""

    kind: str
    claimed: float
    delta: float
    found: float
    confidence: float
    samples: int
    pairs: int
    worst_pair: str
    #: What contradicts the claim, or what it rests on, in sentences.
    objections: tuple[str, ...] = ()
    #: Exact: the most entries of the small instances, and how many of the pairs are of the task as it is.
    entries: int = 0
    pairs_as_given: int = 0
    #: Sampled: the smallest excess over the claim, as a share of it, that would have been found with probability 0.95.
    smallest_excess: float | None = None
    #: Sampled: what else was looked at, and what was not, or would have taken too long.
    tested: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    #: Sampled: in what the instance differs from the task, if its reports are too long; empty if in nothing.
    narrowed: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return self.found > self.claimed * (1 + 1e-9) or bool(self.objections)

    @property
    def size(self) -> str:
        """At which size reports were sampled."""
        return f"with {self.narrowed}" if self.narrowed else "at real size"

    def words(self) -> str:
        """A paragraph for a privacy reviewer."""
        verdict = "The claim is REFUTED" if self.refuted else "Nothing contradicts the claim"
        promise = f"epsilon = {self.claimed:g}" + (f" with delta = {self.delta:g}" if self.delta else "")
        reasons = f": {'; '.join(self.objections)}" if self.objections else ""
        return f"{verdict}{reasons}. Claimed: {promise}. {self._exact() if self.kind == 'exact' else self._sampled()}"

    def _exact(self) -> str:
        return (
            f"{self.pairs:,} pairs of neighbouring records were enumerated through the shipped code, "
            f"{self.pairs_as_given:,} of them in the task as it is, the others with at most "
            f"{entries_in_words(self.entries)}; the largest loss found is epsilon = {self.found:.6f} "
            f"({self.worst_pair})."
        )

    def _sampled(self) -> str:
        power = ""
        if self.smallest_excess is not None:
            power = (
                f" A loss of {1 + self.smallest_excess:.3g} times the claim in the event tested would have been found "
                f"with probability {POWER:g}."
            )
        elif not self.refuted:
            power = (
                " What excess would have been found is not known: these events do not show most of the claim."
            )
        return (
            f"From {self.samples:,} sampled reports of {self.pairs} pairs of records {self.size}, epsilon is at least "
            f"{self.found:.4f} with confidence {self.confidence:g} ({self.worst_pair}).{power} Sampling can refute "
            "a claim, not prove it."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        found = self.found if math.isfinite(self.found) else None
        return {**asdict(self), "found": found, "refuted": self.refuted, "words": self.words()}
