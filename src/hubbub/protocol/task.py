"""The task: one immutable description shared by device, server and analyst.

A task is a TOML file. Its canonical form (JSON with sorted keys) has a digest that every batch and state
carries, so reports can never be counted under another description than the one they were made for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Mechanism, mechanism_code
from hubbub.model.record import Entries, Scale, Summary, sample_down
from hubbub.primitives.coins import Coins
from hubbub.primitives.envelope import read_file, refuse_ending, write_atomic
from hubbub.primitives.errors import Refused, explain
from hubbub.primitives.markup import facts, paragraph, whole
from hubbub.primitives.samplers import exact_messages

#: Rules that the first published task files did not have.
_LATER_RULES = (
    *("precision", "keep_reports", "messages", "rotation"),
    *("memoize", "memoize_cap", "labels", "seed_from"),
)

#: How far values may be from 0, and 1 / how close together: variances, which are squares, have to be numbers.
_WIDEST = 1e100
#: What labels and their values may be: they travel in headers, file names and tables.
_LABEL, _VALUE = re.compile("[a-z][a-z0-9_]{0,31}"), re.compile("[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")
#: What labels must not be called: they become columns of files and fields of JSON beside these.
RESERVED = frozenset(
    (
        *("key", "period", "value", "error", "low", "high", "flagged"),
        *("quantity", "level", "simultaneous", "epsilon", "reports", "dropped", "note", "group", "forgers"),
        *("long_records", "long_records_error"),
        *("warnings", "meaning", "guarantee", "findings", "truncation", "notes", "estimates", "total"),
    )
)
#: Combinations that lists of labels may make; each has a number of two bytes.
_MOST_COMBINATIONS = 1 << 16
#: Characters of all labels and their values as a batch says them, country=de,version=2.
_LONGEST_LABELS = 900


class Task(BaseModel):
    """Keys, values, mechanism and collection rules."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str = Field(min_length=1, max_length=100, description="what is collected, in a few words")
    low: float = Field(default=-1.0, allow_inf_nan=False, description="smallest value (signed values)")
    high: float = Field(default=1.0, allow_inf_nan=False, description="largest value (signed values)")
    period: Literal["once", "day", "week", "month"] = Field(
        default="once", description="how often a device may report"
    )
    reports_per_period: int = Field(default=1, ge=1, le=1000, description="fresh reports in one period")
    minimum_reports: int = Field(
        default=0,
        ge=0,
        description="no estimates below this many reports, which advance by as many; 0: they move with every report",
    )
    precision: Literal["minute", "hour", "day"] = Field(
        default="hour", description="how exactly the collector keeps times of arrival"
    )
    keep_reports: bool = Field(
        default=True,
        description="whether the collector keeps reports that are in its state; "
        "false: they are dropped, those with labels or periods within minutes",
    )
    messages: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="reports a device makes at a time: 0 for one, else a random number with this mean (shuffled model)",
    )
    rotation: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="a device takes part in one of so many periods in a row, drawn once",
    )
    memoize: Literal["off", "record"] = Field(
        default="off",
        description="record: a record that a device has reported before is answered with the same report again",
    )
    memoize_cap: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="distinct records of a device that get a report of their own, over all time (with memoize)",
    )
    labels: dict[str, tuple[str, ...]] = Field(
        default={}, description="what is public about whoever reports, by name, each with all its values"
    )
    seed_from: Literal["device", "server"] = Field(
        default="device", description="server: public seeds follow from what the collector hands out"
    )
    keys: Keys
    mechanism: SerializeAsAny[Mechanism]

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **data: Any) -> None:
            """What is wrong with a task is refused in one sentence."""
            try:
                super().__init__(**data)
            except ValidationError as problem:
                raise Refused(explain(problem)) from None

    @field_validator("mechanism", mode="before")
    @classmethod
    def _known_mechanism(cls, data: Any, info: ValidationInfo) -> Any:
        """Left out, `seeds` is 1 where seeds come from the server: of several, forgers would take the best."""
        if isinstance(data, Mechanism):
            return data
        if not isinstance(data, dict) or "name" not in data:
            raise ValueError("a table with the mechanism's name and parameters is needed")
        if info.data.get("seed_from") == "server":
            kind = mechanisms().get(str(data["name"]))
            data = {"seeds": 1, **data} if kind and "seeds" in kind.model_fields else data
        return make_mechanism(**data)

    @field_serializer("mechanism")
    def _named_mechanism(self, mechanism: Mechanism) -> dict[str, Any]:
        return {"name": mechanism.name, **mechanism.model_dump(exclude_none=True)}

    @field_validator("labels")
    @classmethod
    def _closed_lists(cls, labels: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in labels.items():
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a label: up to 32 small letters, digits and _")
            if name in RESERVED:
                raise ValueError(f"{name!r} is no name for a label: files have something else of that name")
            if not values or len(set(values)) < len(values):
                raise ValueError(f"the label {name!r} needs a list of different values")
            for value in values:
                if not _VALUE.fullmatch(value):
                    raise ValueError(
                        f"{value!r} is no value for a label: up to 40 letters and digits, and among them _ . + and -"
                    )
        if math.prod(len(values) for values in labels.values()) > _MOST_COMBINATIONS:
            raise ValueError(f"the labels make more than {_MOST_COMBINATIONS:,} combinations")
        if sum(len(name) + max(map(len, values)) + 2 for name, values in labels.items()) > _LONGEST_LABELS:
            raise ValueError(
                f"the labels take more than {_LONGEST_LABELS} characters: use fewer or shorter ones"
            )
        return dict(sorted(labels.items()))

    @model_validator(mode="after")
    def _check(self) -> Task:
        if not self.low < self.high:
            raise ValueError(f"the value range {self.low:g}:{self.high:g} is empty")
        if self.high - self.low < 1 / _WIDEST or max(abs(self.low), abs(self.high)) > _WIDEST:
            raise ValueError(
                f"the values from {self.low:g} to {self.high:g} cannot be computed with: choose another unit"
            )
        self.mechanism.check_keys(self.keys)
        if (
            self.mechanism.sided
            and self.keys.kind == "closed"
            and 2 * self.keys.places >= 1 << self.keys.bits
        ):
            raise ValueError(
                f"two-sided keys need more than {self.keys.bits} bits per code; set keys.bits higher"
            )
        if self.keys.tree is not None:
            if not self.mechanism.takes_trees or getattr(self.mechanism, "family", "") != "walsh":
                raise ValueError("keys in a tree are for collision and local_hashing, of the walsh family")
            if len(self.keys.tree.slots) > self.mechanism.layout.fields[0].limit:
                raise ValueError("keys in a tree need more seed bits: fewer seeds than shares times maps")
        if self.messages:
            exact_messages(self.messages)
            weights = getattr(self.mechanism, "response_weights", lambda: None)()
            if weights is None:
                raise ValueError(
                    f"several messages are for mechanisms that favour some outcomes of all; {self.mechanism.name} is "
                    "none of them"
                )
            if self.reports_per_period > 1:
                raise ValueError("messages are several reports already; reports_per_period must be 1")
        if self.rotation > 1 and self.period == "once":
            raise ValueError("rotation is over periods: set period to day, week or month")
        self._check_memoize()
        self._check_seeds()
        whole = self.mechanism.limits_entries and self.mechanism.guarantee().unit == "record"
        if self.keys.count_lengths and not whole:
            raise ValueError(
                "count_lengths is for mechanisms that sample records down, which this one does not"
            )
        if self.keys.count_lengths and self.mechanism.max_entries < 2:
            raise ValueError(
                "count_lengths takes one entry of a long record, so max_entries must be 2 or more"
            )
        return self

    def _check_memoize(self) -> None:
        """What does not go together with reports that are sent again."""
        if self.memoize == "off":
            if self.memoize_cap:
                raise ValueError("memoize_cap is for tasks that memoize: set memoize to record")
            return
        if not self.memoize_cap:
            raise ValueError(
                "memoize needs memoize_cap, the number of distinct records that get a report of their own: over all "
                "time, a device spends at most so many times epsilon"
            )
        if self.period == "once":
            raise ValueError("memoize is over periods: set period to day, week or month")
        if self.messages:
            raise ValueError(
                "memoize and messages exclude each other: messages are for a shuffler, where repeated bytes link a "
                "person"
            )
        if self.reports_per_period > 1:
            raise ValueError(
                "with memoize, a second report in a period would be the first one again; reports_per_period must be 1"
            )

    def _check_seeds(self) -> None:
        """What does not go together with seeds that the collector hands out (`hubbub.protocol.nonces`)."""
        if self.seed_from == "device":
            return
        if self.mechanism.layout.fields[0].limit == 1:
            raise ValueError(
                f"seed_from is for reports with a public seed; those of {self.mechanism.name} have none"
            )
        if self.mechanism.guarantee().delta:
            raise ValueError(
                "with a delta, what is promised needs seeds that nobody chooses: seed_from must be device"
            )
        if self.messages or self.memoize != "off":
            raise ValueError(
                "seeds are handed out for one batch of fresh reports, without messages and memoize"
            )

    @cached_property
    def canonical(self) -> bytes:
        """The task as bytes that depend on nothing but its content.

        What is at its default is left out, so that a parameter that a later version adds does not change the
        digest of older tasks. (Hence a default, once published, never changes.)
        """
        parts = self.model_dump(exclude_none=True, exclude_defaults=True)
        parts["format"] = self.format
        parts["mechanism"] = {
            "name": self.mechanism.name,
            **self.mechanism.model_dump(exclude_none=True, exclude_defaults=True),
        }
        return json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """Sixteen bytes that stand for this task."""
        return hashlib.sha256(self.canonical).digest()[:16]

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def code(self) -> int:
        """The mechanism's number in file headers."""
        return mechanism_code(self.mechanism.name)

    @property
    def mean_messages(self) -> Fraction | None:
        """The mean of the random number of reports that a device makes at a time; None where it makes one."""
        return exact_messages(self.messages) if self.messages else None

    @property
    def guarantee(self) -> Guarantee:
        """What one report promises."""
        promise = self.mechanism.guarantee()
        if self.messages:
            return dataclasses.replace(promise, messages=self.messages)
        if promise.distance is None:
            return promise
        return dataclasses.replace(promise, distance=promise.distance * self.scale.half)

    @cached_property
    def scale(self) -> Scale:
        """How values map to [-1, 1]."""
        if self.mechanism.values == "set":
            return Scale("set", 0.0, 1.0, 0.0, 1.0)
        if self.mechanism.centered:
            center, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        else:
            center, half = 0.0, max(abs(self.low), abs(self.high))
        if self.mechanism.guarantee().unit == "l1":
            # A key that is absent counts 0: only a range with 0 in it brings no two records further apart.
            return Scale("signed", min(self.low, 0.0), max(self.high, 0.0), center, half)
        return Scale("signed", self.low, self.high, center, half)

    def shortened(self, entries: Entries, coins: Coins) -> tuple[Entries, Summary]:
        """Records as they are randomized: at most max_entries entries each, if the mechanism needs a limit.

        With `count_lengths`, a record that was too long has one of two more keys in it. That costs no privacy. What is
        randomized is a record of at most max_entries entries over keys of this task, drawn from the user's record
        with coins of its own. The report of every such record has, within exp(epsilon), the law of the report of
        every other (the unit is the whole record), so the same holds for averages over what is drawn: of any two
        user's records, whatever their lengths. With delta likewise. Mechanisms that protect less than whole
        records take them unshortened and are refused the option.
        """
        if not self.mechanism.limits_entries:
            return entries, Summary()
        marks = self.keys.length_ids() if self.keys.count_lengths else None
        return sample_down(entries, self.mechanism.max_entries, coins, marks)

    def _repr_html_(self) -> str:
        """For notebooks: what is collected, how, and what is promised."""
        layout, keys = self.mechanism.layout, self.keys
        universe = f"{keys.count:,} keys" if keys.kind == "closed" else f"open, codes of {keys.bits} bits"
        values = "sets" if self.mechanism.values == "set" else f"values from {self.low:g} to {self.high:g}"
        described = [
            ("task", f"{self.name} ({self.digest.hex()})"),
            ("keys", universe),
            ("records", f"{values}, at most {self.mechanism.max_entries:,} entries"),
            ("mechanism", self.mechanism.name),
            ("estimates", ", ".join(self.mechanism.quantities)),
            ("report", f"{layout.bits} bits, {layout.width} bytes"),
        ]
        return whole(facts(described), paragraph(self.guarantee.words()))

    def to_toml(self) -> str:
        """The task file's text. Rules that came later are left out at their default: older hubbubs read it, too."""
        data = self.model_dump(exclude_none=True)
        for name in _LATER_RULES:
            if data[name] == type(self).model_fields[name].default:
                del data[name]
        if not self.keys.count_lengths:
            del data["keys"]["count_lengths"]
        tables = {key: data.pop(key) for key in ("labels", "keys", "mechanism") if key in data}
        lines = [f"{key} = {_toml(value)}" for key, value in data.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the task file."""
        refuse_ending(path, "a task", ".toml")
        write_atomic(path, self.to_toml().encode())

    @classmethod
    def load(cls, path: str | Path) -> Task:
        """Read a task file; whatever is wrong with it is refused in one sentence."""
        data = read_file(path)
        try:
            return cls.parse(tomllib.loads(data.decode()))
        except Refused as problem:
            raise Refused(f"{path}: {problem}") from None
        except (ValueError, RecursionError) as problem:  # broken TOML, not UTF-8, a number of 5000 digits
            raise Refused(f"{path} is not a task file: {problem}.") from None

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Task:
        """A task from plain data."""
        if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
            raise Refused("A task is a table with a name, keys and a mechanism; this is none.")
        return cls(**data)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value)
