"""The central abstraction: a mechanism is a pair of algorithms, one for the device, one for the server.

A mechanism holds frozen parameters and no data, no keys and no randomness. To add one, write a class in one file of
`hubbub/mechanisms/`: parameters as typed fields, a guarantee, a kernel that randomizes, a layout for the wire,
estimates with variances. The registry, the command line, the planner and the conformance suite find it by themselves.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hubbub.model import influence as forged
from hubbub.model.count_laws import Counts, Spread
from hubbub.model.guarantee import Guarantee, Unit
from hubbub.model.influence import Influence
from hubbub.model.keys import LARGEST_BITS, Keys
from hubbub.model.measurements import Measurements
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, likeliest_report, seed_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.wire import Layout

ValueKind = Literal["set", "signed"]
Quantity = Literal["frequency", "mean", "conditional", "sum"]
Refinement = Literal["none", "sparse", "simplex"]

#: The largest epsilon of a report: beyond it, no noise is left.
MOST_EPSILON = 16
#: Every class of mechanism that has been imported, by name.
registered: dict[str, type[Mechanism]] = {}


@dataclass(frozen=True)
class Moments:
    """Per asked key: estimated frequency and mean of the scaled value, with their (co)variances.

    `mean` is over all users, absent ones counting 0, in the scaled units of [-1, 1]. Where estimates are made of counts
    that may be small, `counts` says which. `spread` is that of the one column, where there is one and reports tell it.
    """

    frequency: Floats | None = None
    frequency_variance: Floats | None = None
    mean: Floats | None = None
    mean_variance: Floats | None = None
    covariance: Floats | None = None
    counts: Counts | None = None
    spread: Spread | None = None


@dataclass(frozen=True)
class Held:
    """How a key is held: what the variance of its estimate depends on, in scaled units of [-1, 1]."""

    #: The share of users who hold it.
    frequency: float
    #: The means of its value and of its squared value over all users, absent ones counting 0.
    mean: float
    square: float
    #: The mean sum of squared values of a whole record.
    energy: float


@dataclass(frozen=True)
class Goal:
    """What somebody wants to learn, before any mechanism is chosen.

    With `central_epsilon` the guarantee is asked for in the shuffled model, with `delta`, and epsilon is solved for.
    """

    quantity: Quantity
    epsilon: float
    max_entries: int
    values: ValueKind = "set"
    unit: Unit = "record"
    distance: float | None = None
    delta: float = 0.0
    users: int = 100_000
    keys: int = 1000
    central_epsilon: float | None = None
    family: Literal["walsh", "prf"] = "walsh"
    center: float = 0.0  # middle of the value range as a share of its largest value
    open: bool = False  # whether keys are not known beforehand
    #: The share of users who hold the key whose error counts: 0 for a rare one.
    share: float = 0.0
    #: In the shuffled model: reports per user on average, a random number of them; 0 for one each.
    messages: float = 0.0
    #: Seconds of a server's core per million reports that a plan may take: what needs more is not recommended.
    server_seconds: float = 60.0
    #: Where people take turns: a person reports in one of so many periods in a row, and errors are those of a period.
    rotation: int = 1
    #: Who draws public seeds. A report has one seed where the server does: of several, forgers would take the best.
    seed_from: Literal["device", "server"] = "device"

    def __post_init__(self) -> None:
        if not self.server_seconds > 0:
            raise Refused(f"The server's time must be above 0 seconds, not {self.server_seconds:g}.")
        if not 0 <= self.share <= 1:
            raise Refused(f"The share of a key must be between 0 and 1, not {self.share:g}.")
        if self.messages and self.central_epsilon is None:
            raise Refused("Several messages are for the shuffled model.")
        if not 0 < self.epsilon <= MOST_EPSILON:
            raise Refused(f"epsilon must be above 0 and at most {MOST_EPSILON}, not {self.epsilon:g}.")
        if self.rotation < 1 or (self.rotation > 1 and self.central_epsilon is not None):
            raise Refused("Turns are planned in the local model, and rotation is a number from 1 on.")
        for name, bits, most in (("users", 40, "2^40"), ("max_entries", 16, "65536"), ("keys", 64, "2^64")):
            if not 1 <= getattr(self, name) <= 1 << bits:
                raise Refused(f"{name} must be between 1 and {most}, not {getattr(self, name)}.")
        if not self.open and self.keys >= 1 << LARGEST_BITS:
            most = f"2^{LARGEST_BITS} keys, not {self.keys}"
            raise Refused(f"A closed vocabulary has fewer than {most}; use an open one.")
        if self.distance is not None and not 0 < self.distance <= 1 << 20:
            raise Refused(f"The distance must be above 0 and at most 2^20, not {self.distance:g}.")


class Mechanism(BaseModel, ABC):
    """Base of all mechanisms; see the module docstring for what a subclass supplies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: One word, used in task files and on the command line.
    name: ClassVar[str]
    #: One line for tables.
    summary: ClassVar[str]
    #: Whether it works with closed vocabularies only.
    closed_only: ClassVar[bool] = False
    #: Whether it takes keys in a tree: private for any codes, and what shares a code counts once.
    takes_trees: ClassVar[bool] = False
    #: How estimates are refined unless asked otherwise; anything but "none" is biased.
    refinement: ClassVar[Refinement] = "none"
    #: Parameters that follow from others unless given; chosen anew when a mechanism is shrunk for enumeration.
    chosen: ClassVar[frozenset[str]] = frozenset()

    epsilon: float = Field(
        ge=1e-6, le=MOST_EPSILON, allow_inf_nan=False, description="privacy parameter of one report"
    )
    max_entries: int = Field(ge=1, le=1 << 16, description="entries of a record that count")
    values: ValueKind = Field(default="set", description="sets of keys, or signed values per key")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            known = {mechanism_code(other): other for other in registered if other != cls.name}
            if mechanism_code(cls.name) in known:
                raise TypeError(
                    f"{cls.name} has the wire code of {known[mechanism_code(cls.name)]}: rename it"
                )
            registered[cls.name] = cls

    def _fill(self, **values: Any) -> None:
        """Set parameters that were left at their 'choose for me' default, during validation only."""
        self.__dict__.update(values)

    # What is promised

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The proven guarantee of one report."""

    @property
    def limits_entries(self) -> bool:
        """Whether records longer than max_entries are sampled down before randomizing."""
        return True

    @property
    def refuses_longer(self) -> bool:
        """Whether the guarantee does not cover records with more than max_entries entries."""
        return False

    @property
    def centered(self) -> bool:
        """Whether the middle of the value range is encoded as 0 (needs the frequency to undo)."""
        return False

    @property
    def sided(self) -> bool:
        """Whether a key has two codes, one for each sign of its value."""
        return False

    @property
    @abstractmethod
    def quantities(self) -> tuple[Quantity, ...]:
        """What can be estimated, the main thing first."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that must stand beside every estimate: what is assumed, and what is not unbiased."""
        return ()

    # On the device

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The fields of a report; the first is the public seed."""

    @property
    def seeds_per_report(self) -> int:
        """Public seeds to draw for a report; it carries the one that it uses."""
        return 1

    def reported_seeds(self, seeds: UInt64s) -> UInt64s:
        """What reports carry as their seed, of seeds as they are drawn."""
        return seeds

    def check_keys(self, keys: Keys) -> None:
        """Refuse keys that it cannot serve."""
        if self.closed_only and keys.kind != "closed":
            raise Refused(f"Mechanism {self.name} needs a closed vocabulary.")

    @abstractmethod
    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        """Reports [n, fields] for a batch of records and their seeds [n * seeds_per_report]; pure given its arguments.

        One record is a batch of one: the same lines run interpreted for a few records and compiled for many.
        """

    def miniature(self) -> Mechanism:
        """The same mechanism with outcomes few enough to enumerate, if this one has too many."""
        return self

    # On the server

    @abstractmethod
    def totals_shape(self, keys: Keys) -> tuple[int, ...]:
        """Of the integers to which reports are added; keys that cannot be served are refused."""

    def keeps_reports(self, keys: Keys) -> bool:
        """Whether the state must keep reports because there is no array to add them to."""
        return False

    def empty(self, keys: Keys) -> State:
        """The state of no reports."""
        kept = self.keeps_reports(keys)
        totals = np.zeros((0,) if kept else self.totals_shape(keys), dtype=np.int64)
        return State(totals, np.zeros((0, self.layout.width if kept else 0), dtype=np.uint8))

    @abstractmethod
    def absorb(self, state: State, keys: Keys, reports: UInt64s) -> None:
        """Add reports to a state, in place."""

    def heard(self, state: State, keys: Keys) -> int:
        """How many reports the estimates are made from."""
        return state.count

    def report_steps(self, keys: Keys) -> int:
        """Additions that a report costs the server, about."""
        return len(self.layout.fields)

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        """How much each report speaks for these keys together: what an attacker would look at."""
        raise Refused(f"Mechanism {self.name} has no score of its reports: only the exact audit works.")

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        """What forged reports may get wrong: first the public seed, if it is drawn before the record is looked at."""
        return seed_telltales(self.layout.fields[0].bits) if self.seeds_per_report == 1 else ()

    def likeliest(self) -> float:
        """The most probability that one report can have, seed and all, whatever the record is."""
        return likeliest_report(self)

    @abstractmethod
    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        """Unbiased estimates for the asked keys, with variances."""

    # What a forger can make of it

    @property
    def uncut(self) -> Self:
        """The same with estimates that are averages over reports, should these be cut off somewhere."""
        return self

    def contributions(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
        """[2, reports, keys]: what each report adds to n times the estimates of frequency and mean.

        Estimates are averages over reports, so of one report alone, the estimate is just that. NaN: not estimated.
        """
        return forged.contributions_one_by_one(self, keys, reports, ids)

    def louder(self, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
        """These reports, changed so that they add most to n times a weighted sum [2, keys] of frequencies and means.

        Public seeds stay as they are, and so does, if possible, what these keys do not depend on.
        """
        raise Refused(f"It is not known what a forged report could do to mechanism {self.name}.")

    def effects(self) -> Floats:
        """[corners, 2]: of the polygon of all that a report can add to n times frequency and mean of one key."""
        return forged.effects_of(self)

    @property
    def heard_share(self) -> float:
        """The share of honest reports that the estimate of a key is made from, if no key is asked about more often."""
        return 1.0

    def heard_about(self, state: State, keys: Keys, ids: UInt64s, more: int = 0) -> Floats:
        """What each key's estimate is divided by: the reports that it is made from, `more` besides the state's."""
        return np.full(len(ids), float(self.heard(state, keys) + more))

    def influence(
        self,
        quantity: Quantity,
        frequency: float = 0.0,
        center: float = 0.0,
        half: float = 1.0,
        heard: float | None = None,
    ) -> Influence:
        """The most that any report moves the estimate of one key, times n: see `hubbub.model.influence`.

        In units of a task with this center and half range; conditional means need the key's frequency. `heard` is the
        share of all reports that the key's estimate is made from, the forged one being among them: all, unless reports
        are about one key each, where it is that of a key that as many are about as about any other.
        """
        found = forged.influence_of(self, quantity, frequency, center, half)
        return found.where(self.heard_share if heard is None else heard)

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """How many chosen keys one report can say the most for, under the best of all public seeds."""
        return 1

    def influence_together(
        self,
        quantity: Quantity,
        keys: Keys,
        count: int,
        center: float = 0.0,
        half: float = 1.0,
        chosen: bool = True,
    ) -> Influence:
        """The most that any report moves the sum of the estimates of `count` chosen keys, times n.

        Where reports have public seeds, that depends on keys and salt: it bounds the mean over all choices of both, for
        one who chooses the best of all seeds, or of as many as an honest device chooses among (not `chosen`). Otherwise
        it is for the worst choice.
        """
        return forged.influence_together_of(self, quantity, keys, count, center, half, chosen)

    def loudest_together(self, keys: Keys, way: Floats, count: int, chosen: bool) -> float:
        """The most that a report adds to a direction [2] of frequency and mean, summed up over chosen keys."""
        return forged.loudest_of(self, keys, self.chosen_first(keys)[:count], way)

    def chosen_first(self, keys: Keys) -> UInt64s:
        """All keys of a closed vocabulary, in the order in which who wants to move several would choose them."""
        return keys.all_ids()

    def measurements(self, state: State, keys: Keys) -> Measurements | None:
        """Where fewer measurements than keys are made: those measurements, for all keys to be recovered from."""
        return None

    # For planning

    def variance(
        self,
        quantity: Quantity,
        users: int,
        frequency: float = 0.0,
        mean: float = 0.0,
        square: float | None = None,
        energy: float | None = None,
    ) -> float:
        """Variance of the estimate for one key, in scaled units, averaged over the public hashes.

        As in `Held`. Left out: values are +1 or -1 (square is the frequency), records full (energy is max_entries).
        """
        square = frequency if square is None else square
        energy = self.max_entries if energy is None else energy
        return self.variance_for(quantity, users, Held(frequency, mean, square, energy))

    @abstractmethod
    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """The formula behind `variance`, the same that draws the error bars."""

    @classmethod
    def serving(cls, goal: Goal, **more: Any) -> Self:
        """An instance with what the goal says about the parameters that this mechanism has, and with these."""
        said = {name: getattr(goal, name) for name in ("epsilon", "max_entries", "values", "family", "users")}
        said |= {"size": goal.keys, **({"seeds": 1} if goal.seed_from == "server" else {})}
        return cls(**{name: value for name, value in said.items() if name in cls.model_fields} | more)

    @classmethod
    @abstractmethod
    def candidates(cls, goal: Goal) -> Iterator[Mechanism]:
        """Instances worth trying for a goal; none if it is out of reach."""


def mechanism_code(name: str) -> int:
    """The 16-bit number of a mechanism in file headers."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "little")
