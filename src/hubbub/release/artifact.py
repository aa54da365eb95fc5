"""A release: parameters and private arrays, in memory or in one file that is asked without being loaded.

    envelope, kind "release data" | parameters as JSON, padded with blanks | the arrays, each on 8 bytes |
    checksum

The file is mapped into memory; opening it reads it once for the checksum and keeps nothing.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hubbub.model.guarantee import Guarantee
from hubbub.primitives.coins import Coins, SecretCoins
from hubbub.primitives.envelope import Envelope, check_ending, unseal, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.primitives.markup import facts, paragraph, table, whisker, whole
from hubbub.release.alp import Alp
from hubbub.release.keyspace import KeySpace
from hubbub.release.laplace import Laplace
from hubbub.release.maximum import MaxProjection
from hubbub.release.part import ESTIMATORS, Answers, Arrays, Estimator, Query
from hubbub.release.threshold import Threshold
from hubbub.release.users import Users
from hubbub.release.vector import Values, Vector

RELEASE = b"A"
_HEADER = len(Envelope(RELEASE, 0, bytes(16), 0, b"", b"").seal()) - 16

#: Keys of a declared list that a notebook shows.
_SHOWN = 20

AnyPart = Annotated[Laplace | Threshold | Alp | MaxProjection, Field(discriminator="name")]


class Sizes(BaseModel):
    """Upper bounds on the number of entries and their sum, estimated privately (epsilon per unit of value)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0)
    total: float
    nonzero: float | None = None


class Parameters(BaseModel):
    """All that is public about a release besides its arrays.

    Format 1 promises something about units of value, format 2 about users. Files of format 1 are still
    written as they always were. A hubbub that knows no users refuses format 2, as it should: it would
    misstate the unit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1, 2] = 1
    algorithm: str
    values: Values
    keys: KeySpace
    parts: tuple[AnyPart, ...] = Field(min_length=1, max_length=2)
    estimator: Estimator = "argmax"
    sizes: Sizes | None = None
    users: Users | None = None
    epsilon: float = Field(gt=0)
    delta: float = Field(default=0, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Parameters:
        """The stated budget covers what parts and size estimates spend, to the last bit.

        They count epsilon per unit of value; a user is behind as many units as `Users.reach` says.
        """
        if (self.format == 2) != (self.users is not None):
            raise ValueError("format 2 says what a user counts for, format 1 knows no users")
        spent = sum(Fraction(part.epsilon) for part in self.parts) + Fraction(
            self.sizes.epsilon if self.sizes else 0
        )
        if self.users:
            self.users.steps(self.values)
            spent *= self.users.reach
        if spent > Fraction(self.epsilon) or sum(Fraction(p.delta) for p in self.parts) > Fraction(
            self.delta
        ):
            raise ValueError("the parts spend more than the stated epsilon or delta")
        changed = self.users.max_entries if self.users else None
        if any(isinstance(part, Threshold) and part.delta and part.changed != changed for part in self.parts):
            raise ValueError("the threshold is for another number of changed entries")
        return self

    def guarantee(self) -> Guarantee:
        """The whole release by basic composition (Lemma 2.3): parts and size estimates add up."""
        if self.users:
            return Guarantee(
                self.epsilon, unit="user", model="central", delta=self.delta, note=self._user_note(self.users)
            )
        what = (
            "Counts: tables that differ by one unit in one entry are neighbours"
            if self.values.kind == "counts"
            else "Real values: tables at l1 distance at most 1 are neighbours"
        )
        group = "L times this epsilon" + (
            " and at most L exp(L epsilon) times this delta" if self.delta else ""
        )
        note = f"{what}; whoever accounts for L units has {group}."
        return Guarantee(self.epsilon, unit="value", model="central", delta=self.delta, note=note)

    def _user_note(self, users: Users) -> str:
        keys = "one key" if users.max_entries == 1 else f"at most {users.max_entries:,} keys"
        twice = "twice this epsilon" + (" and 1 + exp(epsilon) times this delta" if self.delta else "")
        return (
            f"Every user counts for {keys}, and in a key for at most {users.max_contribution:g}; of more keys a random "
            f"sample counts. When rows are replaced by any others, it is {twice}."
        )


@dataclass(frozen=True)
class Table:
    """Answers for many keys: the estimate, an interval at the level, and where the answer comes from."""

    keys: list[Any]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    source: NDArray[np.str_]
    level: float
    estimator: Estimator

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain dictionary per key."""
        columns = zip(
            self.keys, *(c.tolist() for c in (self.value, self.low, self.high, self.source)), strict=True
        )
        for key, value, low, high, source in columns:
            yield {"key": key, "value": value, "low": low, "high": high, "source": source}


@dataclass(frozen=True)
class Release:
    """A private, queryable stand-in for a sparse vector."""

    parameters: Parameters
    arrays: tuple[Arrays, ...]
    secure: bool = True

    @classmethod
    def project(cls, parameters: Parameters, vector: Vector, coins: Coins) -> Release:
        """Run the parts one after the other (Algorithm 7).

        The sum of the parts' epsilons and deltas holds for the whole (Lemmas 2.3 and 5.3). An entry that a
        threshold part has listed is left out of the next part: the list is public by then, so for every list
        the next part still sees neighbours for neighbours, and it is spared its heaviest entries.
        """
        arrays = []
        for part in parameters.parts:
            made = part.project(vector, parameters.values, parameters.keys, coins)
            arrays.append(made)
            if "ids" in made:
                vector = vector.without(made["ids"].astype(np.uint64))
        return cls(parameters, tuple(arrays), isinstance(coins, SecretCoins))

    def guarantee(self) -> Guarantee:
        return self.parameters.guarantee()

    def __getitem__(self, key: Any) -> float:
        """The estimate for one key."""
        return float(self.query([key]).value[0])

    def query(
        self,
        keys: Iterable[Any] | NDArray[Any] | None = None,
        estimator: Estimator | None = None,
        level: float = 0.95,
    ) -> Table:
        """Estimates and intervals for many keys at once (Algorithm 8); left out: for all keys of a declared list."""
        p = self.parameters
        keys = p.keys.names if keys is None else keys
        if keys is None:
            raise Refused("This release has no list of keys: name the keys to ask for.")
        chosen = estimator or p.estimator
        if chosen not in ESTIMATORS:
            raise Refused(f"There is no estimator {chosen!r}; choose one of {', '.join(ESTIMATORS)}.")
        if chosen == "difference" and not p.values.signed:
            raise Refused("The estimator 'difference' is for signed values; this release has none.")
        if not 0 < level < 1:
            raise Refused(f"A level lies between 0 and 1, not at {level:g}.")
        asked = keys if isinstance(keys, np.ndarray) else list(keys)
        ids = p.keys.ids(asked)
        answers = Answers(len(ids), p.values)
        query = Query(chosen, (1 - level) / len(p.parts), p.values, p.keys)
        for part, arrays in zip(p.parts, self.arrays, strict=True):
            part.refine(arrays, ids[answers.open], answers, query)
        step = p.values.step
        names = asked.tolist() if isinstance(asked, np.ndarray) else asked
        return Table(
            names,
            answers.value * step,
            answers.low * step,
            answers.high * step,
            answers.source,
            level,
            chosen,
        )

    def _repr_html_(self) -> str:
        """For notebooks: what it is, answers with intervals if there is a list of keys, and what is promised.

        No answers are picked out: a selection of the largest would be one of noise.
        """
        p = self.parameters
        size = sum(array.nbytes for arrays in self.arrays for array in arrays.values())
        described = [
            ("release", p.algorithm),
            ("values", "counts" if p.values.kind == "counts" else "real values"),
            ("keys", "any" if p.keys.names is None else f"{len(p.keys.names):,}, declared"),
            ("arrays", f"{size:,} bytes"),
        ]
        parts = [facts(described)]
        if p.keys.names:
            asked = self.query(p.keys.names[:_SHOWN])
            span = min(0.0, float(asked.low.min())), max(0.0, float(asked.high.max()))
            rows = [
                (
                    row["key"],
                    whisker(row["low"], row["value"], row["high"], span, row["low"] <= 0 <= row["high"]),
                    f"{row['value']:.6g}",
                    f"{row['low']:.6g} to {row['high']:.6g}",
                )
                for row in asked.rows()
            ]
            head = ("key", "", "estimate", f"{100 * asked.level:g}% interval")
            parts.append(table(head, rows, [row["low"] <= 0 <= row["high"] for row in asked.rows()]))
            if len(p.keys.names) > _SHOWN:
                parts.append(paragraph(f"The first {_SHOWN} of the list; query() answers for all."))
        if not self.secure:
            parts.insert(0, paragraph("Simulated with seeded coins: nothing here is private.", strong=True))
        return whole(*parts, paragraph(self.guarantee().words()))

    def save(self, path: str | Path) -> int:
        """Write the release to one file, whole or not at all; returns its size in bytes."""
        check_ending(path, RELEASE)
        if not self.secure:
            raise Refused("This release was simulated with seeded coins and must not be published.")
        task = self.parameters.model_dump_json(exclude_none=True).encode()
        task += b" " * (-(_HEADER + len(task)) % 8)
        pieces: list[bytes | memoryview] = []
        for part, arrays in zip(self.parameters.parts, self.arrays, strict=True):
            for name in part.shapes(self.parameters.values, self.parameters.keys):
                raw = np.ascontiguousarray(arrays[name]).view(np.uint8).data
                pieces += [len(arrays[name]).to_bytes(8, "little"), raw, bytes(-len(raw) % 8)]
        digest = hashlib.blake2b(task, digest_size=16).digest()
        data = Envelope(RELEASE, 0, digest, len(self.parameters.parts), task, b"".join(pieces)).seal()
        write_atomic(path, data)
        return len(data)

    @classmethod
    def open(cls, path: str | Path) -> Release:
        """Map a file into memory, check it and make it ready for queries."""
        envelope = unseal(_mapped(path), str(path), RELEASE)
        try:
            parameters = Parameters.model_validate_json(bytes(envelope.task))
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(place) for place in first["loc"])
            raise Refused(
                f"{path} has parameters this hubbub cannot read: {where}: {first['msg']}."
            ) from None
        payload, offset, arrays = memoryview(envelope.payload), 0, []
        for part in parameters.parts:
            found: Arrays = {}
            for name, (kind, length) in part.shapes(parameters.values, parameters.keys).items():
                stored = int.from_bytes(payload[offset : offset + 8], "little")
                size = stored * np.dtype(kind).itemsize
                if (length is not None and stored != length) or offset + 8 + size > len(payload):
                    raise Refused(f"{path} is inconsistent: its {name!r} array does not fit its parameters.")
                found[name] = np.frombuffer(payload[offset + 8 : offset + 8 + size], dtype=kind)
                offset += 8 + size + -size % 8
            arrays.append(found)
        if offset != len(payload):
            raise Refused(f"{path} is inconsistent: {len(payload) - offset} bytes belong to nothing.")
        return cls(parameters, tuple(arrays))

    def describe(self) -> dict[str, Any]:
        """What the file says about itself, as plain data."""
        p = self.parameters
        return {
            "kind": "release",
            "algorithm": p.algorithm,
            "estimator": p.estimator,
            "guarantee": p.guarantee().as_dict(),
            "values": p.values.model_dump(),
            "keys": p.keys.model_dump(exclude={"names"}),
            "parts": [part.model_dump() for part in p.parts],
            "sizes": p.sizes.model_dump() if p.sizes else None,
            "users": p.users.model_dump() if p.users else None,
            "arrays": {
                f"{part.name}.{name}": {"length": len(array), "bytes": array.nbytes}
                for part, arrays in zip(p.parts, self.arrays, strict=True)
                for name, array in arrays.items()
            },
        }


def _mapped(path: str | Path) -> memoryview:
    try:
        with Path(path).open("rb") as file:
            if file.seek(0, 2) == 0:
                raise Refused(f"{path} is empty.")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None


def describe(path: str | Path) -> dict[str, Any]:
    """What a release file says about itself, and its size."""
    return {**Release.open(path).describe(), "file_bytes": Path(path).stat().st_size}
