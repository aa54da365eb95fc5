"""What is wanted of a release: a budget and its unit, the kind of values, and bounds that are public."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubbub.primitives.errors import Refused
from hubbub.release.amounts import LARGEST
from hubbub.release.keyspace import ALL, KeySpace
from hubbub.release.part import Estimator
from hubbub.release.users import Users
from hubbub.release.vector import Values

Algorithm = Literal[
    "laplace",
    "threshold",
    "alp",
    "histogram",
    "threshold-alp",
    "log",
    "threshold-log",
    "max",
    "threshold-max",
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_LARGEST = 2.0**40
#: So few possible keys are bound enough on the number of entries.
_SMALL_UNIVERSE = 1 << 20


class Goal(BaseModel):
    """What is wanted: budget, kind of values and public bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0, le=16, allow_inf_nan=False)
    delta: float = Field(default=0.0, ge=0, le=0.1)
    kind: Literal["counts", "reals"] = "counts"
    signed: bool = False
    universe: int | None = Field(default=None, ge=1, le=ALL, description="keys are whole numbers below this")
    vocabulary: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="all keys there can be; rows with others do not count"
    )
    max_entries: int | None = Field(default=None, ge=1, le=1 << 20, description="keys of a user that count")
    max_contribution: float | None = Field(
        default=None, gt=0, le=_LARGEST, description="for how much a user counts in one key (1 if not given)"
    )
    max_nonzero: int | None = Field(default=None, ge=1)
    max_value: float | None = Field(default=None, gt=0, le=_LARGEST)
    max_sum: float | None = Field(default=None, gt=0, le=2.0**52)
    algorithm: Algorithm | None = None
    estimator: Estimator = "argmax"

    @model_validator(mode="after")
    def _check(self) -> Goal:
        if self.max_contribution is not None and self.max_entries is None:
            raise ValueError("max_contribution is about users, who need max_entries as well")
        if self.vocabulary is not None and self.universe is not None:
            raise ValueError("keys are either listed (vocabulary) or whole numbers (universe)")
        if self.vocabulary is not None and len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError("the vocabulary lists a key twice")
        if self.kind == "counts" and self._contribution != math.floor(self._contribution):
            raise ValueError("a user's contribution to a count is a whole number")
        return self

    @property
    def _contribution(self) -> float:
        return 1.0 if self.max_contribution is None else self.max_contribution

    @property
    def fraction_bits(self) -> int:
        """The grid of reals is fine enough to cost 0.4 per cent of epsilon, and 0.8 of a contribution, at most."""
        if self.kind == "counts":
            return 0
        spread = (self.max_entries or 1) * self._contribution
        bits = max(0, math.ceil(math.log2(128 * self.epsilon / spread)))
        while math.floor(self._contribution * 2**bits) < self._contribution * 2**bits * (1 - 1 / 128):
            bits += 1
        if bits > 40:
            raise Refused(
                f"Contributions of at most {self._contribution:g} are too small; scale the values up."
            )
        return bits

    @property
    def users(self) -> Users | None:
        """What a user counts for, in whole steps of the grid; None where the unit is one of value."""
        if self.max_entries is None:
            return None
        steps = math.floor(self._contribution * 2**self.fraction_bits)
        return Users(max_entries=self.max_entries, max_contribution=steps * 2.0**-self.fraction_bits)

    @property
    def unit_epsilon(self) -> float:
        """The budget for one unit of value: epsilon, or the share of it that a user can spend on each, rounded down."""
        if self.users is None:
            return self.epsilon
        share = self.epsilon / float(self.users.reach)
        while Fraction(share) * self.users.reach > Fraction(self.epsilon):
            share = math.nextafter(share, 0)
        return share

    def values(self, bound: float = math.inf) -> Values:
        """Values up to the declared bound, or up to a bound on the sum if that is smaller."""
        step = 2.0**-self.fraction_bits
        if self.max_value is not None and self.max_value > LARGEST * step:
            raise Refused(
                f"max_value can be at most {LARGEST * step:g} in steps of {step:g}, which epsilon asks for."
            )
        most = min(self.max_value or _LARGEST, bound, LARGEST * step)
        most = max(most, 1.0 if self.kind == "counts" else step)
        return Values(kind=self.kind, signed=self.signed, max_value=most, fraction_bits=self.fraction_bits)

    @property
    def possible(self) -> int | None:
        """How many keys there can be, if that is declared."""
        return self.universe if self.vocabulary is None else len(self.vocabulary)

    def key_space(self, salt: str) -> KeySpace:
        """Text, whole numbers below the universe, or a list."""
        if self.vocabulary is not None:
            return KeySpace(kind="listed", universe=len(self.vocabulary), salt=salt, names=self.vocabulary)
        kind: Literal["text", "integers"] = "text" if self.universe is None else "integers"
        return KeySpace(kind=kind, universe=self.universe or ALL, salt=salt)

    def needs_sizes(self) -> bool:
        """Whether nothing bounds the number of entries or their sum."""
        few = self.universe is not None and self.universe <= _SMALL_UNIVERSE
        return self.max_nonzero is None and self.max_sum is None and not few and self.vocabulary is None
