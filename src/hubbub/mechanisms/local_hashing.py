"""Local hashing for records of one key (Wang, Blocki, Li, Jha 2017): OLH, and BLH with two buckets.

Device: hash the key into g buckets and report the bucket by randomized response: the true one with probability
e^eps / (e^eps + g - 1). OLH takes g = e^eps + 1, which minimises the variance; BLH takes g = 2.

That is Collision with max_entries = 1, to the letter, and so it is implemented: this class only fixes the number of
entries and the paper's rule for g.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from hubbub.mechanisms.collision import Collision
from hubbub.model.mechanism import Goal


class LocalHashing(Collision):
    """epsilon-LDP per record, for any hash functions.

    Proof. That of Collision with s = 1: the key's bucket has weight W, every other V, an empty record spreads the
    same total evenly, and V <= (W + (g - 1) V) / g <= W. So probabilities differ by at most W / V <= exp(epsilon).
    """

    name: ClassVar[str] = "local_hashing"
    summary: ClassVar[str] = "one key per record: randomized response over hash buckets (OLH, BLH)"

    max_entries: Literal[1] = Field(default=1, description="one key per record")
    values: Literal["set"] = Field(default="set", description="sets of one key")
    binary: bool = Field(default=False, description="two buckets (BLH) instead of about e^epsilon + 1 (OLH)")

    def best_buckets(self) -> int:
        """2 (binary), else g = e^eps + 1, rounded; the walsh family takes the best power of two."""
        if self.binary:
            return 2
        if self.family == "walsh":
            return super().best_buckets()
        return min(1 << 20, round(self.weights[0] / self.weights[1] + 1))

    def check(self) -> None:
        if self.binary and self.buckets != 2:
            raise ValueError(f"binary means 2 buckets, not {self.buckets}")
        super().check()

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[LocalHashing]:
        if (goal.unit, goal.values, goal.quantity, goal.max_entries) == ("record", "set", "frequency", 1):
            for binary in (False, True):
                yield cls.serving(goal, binary=binary)
