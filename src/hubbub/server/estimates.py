"""Estimates people can use: a value, an error bar and an interval for every key, and the guarantee."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Quantity, Refinement
from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from hubbub.primitives.text import cell, visible
from hubbub.server.columns import (
    ABOUT_COLUMNS,
    ABOUT_TYPES,
    csv_bytes,
    in_first_row,
    parquet_bytes,
    table_kind,
)
from hubbub.server.findings import Findings, attainable
from hubbub.server.forgers import forgers_note, how_many
from hubbub.server.notes import cut_notes, remarks, truncation_notes
from hubbub.server.quantities import Question, answer, base_of, offered_quantity
from hubbub.server.truncation import (
    Losses,
    Truncation,
    alarms,
    corrected,
    corrected_words,
    may_be_long,
    truncation_in_reports,
)

if TYPE_CHECKING:
    from hubbub.model.record import Summary
    from hubbub.model.state import State
    from hubbub.protocol.task import Task


COLUMNS = ("key", "value", "error", "low", "high", "flagged")
MEANINGS = {
    "frequency": "share of users who have the key",
    "mean": "mean value over all users, 0 for those without the key",
    "conditional": "mean value among the users who have the key",
    "sum": "sum over all users who reported",
}


class Named(NamedTuple):
    """Keys by their ids, and what to call them."""

    ids: UInt64s
    names: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What is estimated of one key; `error` is None where nothing is known, `flagged` is as in `Estimate`."""

    key: str
    value: float
    error: float | None
    low: float
    high: float
    flagged: bool

    @property
    def interval(self) -> tuple[float, float]:
        """At the estimate's level."""
        return self.low, self.high


@dataclass(frozen=True, repr=False)
class Estimate:
    """One quantity for many keys.

    A key is `flagged` if it cannot be told from noise when all keys that were estimated are looked at together. That
    does not change when rows are taken out (`take`, `top`): `findings` remembers what they were taken from.
    """

    keys: tuple[str, ...]
    value: Floats
    error: Floats
    low: Floats
    high: Floats
    significance: Floats
    quantity: Quantity
    level: float
    simultaneous: bool
    reports: int
    guarantee: Guarantee
    flagged: Bools
    notes: tuple[str, ...]
    findings: Findings
    truncation: Truncation | None = None
    #: What was estimated, and what happened to the records where they were at hand.
    task: Task | None = None
    summary: Summary | None = None
    #: Whose it is, in words, where it is not of all reports: see `hubbub.server.breakdown` and `portions`.
    group: str = ""
    #: Reports that may be forged without the intervals being wrong.
    forgers: int = 0
    #: What was lost in each group, where a row is one: see `Breakdown.of`.
    losses: Losses = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Row]:
        """One row per key, in order."""
        return (Row(**row) for row in self.rows())

    def __contains__(self, key: object) -> bool:
        return str(key) in self._places

    def __getitem__(self, key: str | int) -> Row:
        """The row of one key: `estimate["home"].value`."""
        if key not in self:
            raise Refused(f"{str(key)!r} is not among the {len(self):,} keys of this estimate.")
        return next(iter(self.take([self._places[str(key)]])))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    def take(self, places: Sequence[int] | Int64s) -> Estimate:
        """The rows at these places, in this order."""
        index = np.asarray(places, dtype=np.int64)
        columns = {
            name: getattr(self, name)[index]
            for name in ("value", "error", "low", "high", "significance", "flagged")
        }
        return replace(self, keys=tuple(self.keys[i] for i in index), **columns)

    def top(self, count: int) -> Estimate:
        """The keys that are furthest from noise, whether they stand out from it or not."""
        return self.take(np.argsort(-self.significance, kind="stable")[:count])

    def worth_showing(self, count: int) -> Estimate:
        """The first rows for people: the top, but no selection of noise where nothing stands out."""
        chosen = self.findings.candidates > count
        return self.take([]) if chosen and not self.findings.count else self.top(count)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known before any number is read."""
        said = [self.findings.words(self.quantity, self.reports)] if self.findings.nothing else []
        return (*said, *alarms(self.truncation, self.losses))

    def columns(self) -> dict[str, list[Any]]:
        """The columns of a file, by name, in plain Python; an error that is not finite is None."""
        errors = self.error.tolist()
        for place in np.flatnonzero(~np.isfinite(self.error)).tolist():
            errors[place] = None
        columns = (list(self.keys), self.value.tolist(), errors, self.low.tolist(), self.high.tolist())
        return dict(zip(COLUMNS, (*columns, self.flagged.tolist()), strict=True))

    def about_columns(self) -> dict[str, list[Any]]:
        """What a table in a file says of itself; `dropped` is empty where only long records were counted."""
        count, lost = len(self), self.truncation
        lengths = (None, None, None) if lost is None else (lost.dropped, lost.longer, lost.longer_error)
        same = (
            *(self.quantity, self.level, self.simultaneous, self.guarantee.epsilon, self.reports),
            *lengths,
        )
        note = in_first_row(" ".join((*self.warnings, *self.notes)), count)
        about: dict[str, list[Any]] = dict(
            zip(ABOUT_COLUMNS, (*([each] * count for each in same), note), strict=True)
        )
        more = {"group": self.group, "forgers": self.forgers}
        return about | {name: [value] * count for name, value in more.items() if value}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per key."""
        columns = self.columns()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def about(self) -> dict[str, Any]:
        """What the numbers are and what they promise."""
        return {
            **({"group": self.group} if self.group else {}),
            "warnings": list(self.warnings),
            "quantity": self.quantity,
            "meaning": MEANINGS[self.quantity],
            "level": self.level,
            "simultaneous": self.simultaneous,
            "reports": self.reports,
            "forgers": self.forgers,
            "guarantee": self.guarantee.as_dict(),
            "findings": self.findings.as_dict(),
            "truncation": None if self.truncation is None else self.truncation.as_dict(),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> Any:
        """As a pandas DataFrame; what the numbers are is in its `attrs`."""
        frame = optional("pandas").DataFrame(self.rows(), columns=list(COLUMNS))
        frame.attrs["hubbub"] = self.about()
        return frame

    def to_polars(self) -> Any:
        """As a polars DataFrame, which can hold no more than the columns: warnings are not in it."""
        return optional("polars").DataFrame(self.columns())

    def to_arrow(self) -> Any:
        """As a pyarrow Table; what the numbers are is in its metadata."""
        pyarrow = optional("pyarrow", "lake")
        keys = pyarrow.array(self.keys, pyarrow.string())
        rows = (keys, self.value, self.error, self.low, self.high, self.flagged)
        table = pyarrow.table(dict(zip(COLUMNS, rows, strict=True)))
        return table.replace_schema_metadata({"hubbub": json.dumps(self.about())})

    def save(self, path: str | Path) -> None:
        """Write .csv, .json or .parquet, by the name's ending."""
        kind = table_kind(path)
        if kind == ".json":
            write_atomic(path, json.dumps({**self.about(), "estimates": self.rows()}, indent=1).encode())
        elif kind == ".csv":
            safe = {"key": [cell(key) for key in self.keys]}
            about = replace(self, group=cell(self.group)).about_columns()
            write_atomic(path, csv_bytes({**self.columns(), **safe, **about}))
        else:
            write_atomic(path, parquet_bytes(self.file_table()))

    def file_table(self) -> Any:
        """As a pyarrow Table that says of itself in every row what it is, as files do."""
        table, pyarrow = self.to_arrow(), optional("pyarrow", "lake")
        for name, column in self.about_columns().items():
            table = table.append_column(
                name, [pyarrow.array(column, pyarrow.type_for_alias(ABOUT_TYPES[name]))]
            )
        return table

    def __str__(self) -> str:
        """What stands out and what does not, warnings first."""
        from hubbub.server.pictures import closing

        best = self.worth_showing(20)
        lines = [
            *self.warnings,
            f"{self.quantity} ({MEANINGS[self.quantity]}), {self.reports:,} reports, "
            f"{100 * self.level:g}% intervals{' for all keys together' if self.simultaneous else ''}",
        ]
        names = [visible(key) for key in best.keys]
        width = max([len(name) for name in names] + [3])
        lines += [
            f"  {name:<{width}}  {row['value']: .6f} ± {np.inf if row['error'] is None else row['error']:.6f}  "
            f"[{row['low']: .6f}, {row['high']: .6f}]{mark_of(row, '  ')}"
            for name, row in zip(names, best.rows(), strict=True)
        ]
        if 0 < len(best) < len(self):
            lines.append(f"  ... {len(self) - len(best):,} more keys")
        return "\n".join([*lines, *closing(self)[:-1], self.guarantee.short()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        from hubbub.server.pictures import as_html

        marks = [mark_of(row) for row in self.worth_showing(20).rows()]
        return as_html(self, MEANINGS[self.quantity], marks)

    def plot(self, count: int = 20, *, dark: bool = False, axes: Any = None) -> Any:
        """Draw the first rows with their intervals, with matplotlib, as the dashboard does; returns the axes.

        Like `print`, it shows what stands out and greys what does not, and draws no selection of noise.
        """
        from hubbub.server.pictures import draw

        return draw(self, self.worth_showing(count), MEANINGS[self.quantity], dark, axes)


def mark_of(row: dict[str, Any], before: str = "") -> str:
    """What is written beside a row: nothing is known (?), or it cannot be told from noise."""
    if not row["flagged"]:
        return ""
    return before + ("?" if row["error"] is None else "in the noise")


def estimate(
    task: Task,
    state: State,
    keys: Sequence[str | int] | str | int | Named | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    refine: Refinement | None = None,
    *,
    truncation: Truncation | None = None,
    correct: bool = False,
    groups: int = 1,
    forgers: float = 0,
    average: bool = False,
) -> Estimate:
    """Estimates for the asked keys (or key, or ids with names), or for every key of a closed vocabulary.

    Intervals are normal ones where counts are large, and come from the tails of the counts elsewhere, see
    `hubbub.server.intervals`; simultaneous ones hold for all asked keys together (Bonferroni). `refine` asks for
    a biased refinement, see `hubbub.server.recovery.refine`; left out, the mechanism says (none but for those that
    make fewer measurements than there are keys).

    `truncation` is what is known from elsewhere about records that were sampled down; left out, it is what the
    reports say (`count_lengths`). With those, `correct` asks for estimates of records before sampling down
    (`hubbub.server.truncation`); where lengths were not counted, `average` has intervals allow for all entries
    having been drawn. For how many `groups` are read together, what stands out and simultaneous intervals hold.

    With `forgers`, a number of reports or a share of them below 1, intervals hold although so many are forged, and what
    stands out does so whatever these say, see `hubbub.server.forgers`. They are not refined then, nor corrected.
    """
    if not 0 < level < 1:
        raise Refused(f"The interval level must be between 0 and 1, not {level:g}.")
    if state.count < max(task.minimum_reports, 1):
        raise Refused(
            f"{state.count} reports have arrived; estimates are withheld below {max(task.minimum_reports, 1)}."
        )
    quantity = offered_quantity(task, quantity)
    counted = truncation_in_reports(task, state)
    if correct and counted is None:
        raise Refused(
            "Lengths were not counted: only estimates of a task with count_lengths can be corrected."
        )
    forged = how_many(forgers, state.count)
    if forged and (correct or (refine or "none") != "none"):
        raise Refused(
            "Estimates that are refined or corrected have no intervals that hold with forgers: leave one out."
        )
    ids, names = _asked(task, keys)
    method = "none" if forged else refine or task.mechanism.refinement
    candidates = task.keys.count if task.keys.kind == "closed" else 0
    drawn = (0.0, np.inf) if counted is None else (counted.drawn, counted.drawn_most)
    if (counted is not None and forged) or (counted is None and average and may_be_long(task)):
        drawn = (1.0, np.inf)  # lengths may be those of forged reports, or are not known at all
    question = Question(ids, quantity, level, simultaneous, method, groups, forged, candidates, drawn)
    found = answer(task, state, question)
    columns, floor, notes = (
        found.columns,
        found.floor,
        [*remarks(task, task.mechanism.heard(state, task.keys)), *found.notes],
    )
    if correct and counted is not None and quantity != "conditional":
        columns = corrected(columns, counted, question.width)
        floor = attainable(floor / (1 - counted.lost), task, base_of(task, quantity))
        notes.append(corrected_words(counted))
    truncation = truncation or counted
    if truncation is not None:
        truncation = replace(truncation, corrected=correct and quantity != "conditional")
    notes += truncation_notes(task, truncation, average)
    if quantity == "sum":
        value, error, low, high = (state.count * column for column in columns)
        # A sum over honest people only may be of fewer of them.
        low, high = low - forged * np.maximum(columns[2], 0), high - forged * np.minimum(columns[3], 0)
        columns, floor = (value, error, low, high), floor * state.count
    notes += cut_notes(task, ids, names)
    if forged:
        notes.append(forgers_note(forged, state.count))
    if found.unknown.any():
        notes.append(
            f"Marked ?: {np.count_nonzero(found.unknown):,} of {len(names):,} keys, whose frequency cannot be told"
            " from 0; nothing is known about their mean."
        )
    flagged = ~(found.significance > question.apart)
    if len(names) < candidates:
        notes.append(
            f"What stands out is judged among all {candidates:,} keys, whichever of them are asked for."
        )
    return Estimate(
        names,
        *columns,
        found.significance,
        quantity,
        level,
        simultaneous,
        state.count,
        replace(task.guarantee, noise="reports"),
        flagged,
        tuple(notes),
        Findings(len(names), int((~flagged).sum()), floor, groups=groups),
        truncation,
        task,
        forgers=forged,
    )


def _asked(task: Task, keys: Sequence[str | int] | str | int | Named | None) -> Named:
    """Ids and names of the asked keys, or of all keys of a closed vocabulary."""
    if isinstance(keys, Named):
        return keys
    if keys is None:
        return Named(task.keys.all_ids(), tuple(task.keys.name_of(place) for place in range(task.keys.count)))
    asked = [keys] if isinstance(keys, str | int) else list(keys)
    return Named(task.keys.ids_of(asked), tuple(str(key) for key in asked))
