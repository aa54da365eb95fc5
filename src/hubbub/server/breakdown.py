"""Estimates of several groups side by side, and what differs between two of them.

A group is all strata with the same values of some labels, or of one period. Its state is the sum of theirs, so it is
estimated as any other. Two things are different where there are several:

- Noise. Who looks through G groups of K keys looks through G times K numbers. So a key stands out in a group only if it
  does among all keys of all groups, and simultaneous intervals hold for all of them (Bonferroni, which needs no
  independence).
- Small groups. The task's `minimum_reports` holds for each of them, and for what is missing from the whole
  (`hubbub.server.portions.withheld`). That is about what is shown: whoever has the states can add them up at will. What
  protects people is the noise in each report, which does not depend on the limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.model.mechanism import Quantity, Refinement
from hubbub.model.state import State
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from hubbub.primitives.markup import Markup, paragraph, whole
from hubbub.primitives.text import cell, visible
from hubbub.protocol.strata import Stratum
from hubbub.protocol.task import Task
from hubbub.server.columns import csv_bytes, parquet_bytes, stacked, table_kind
from hubbub.server.comparison import Comparison, compare
from hubbub.server.estimates import MEANINGS, Estimate, estimate
from hubbub.server.findings import OneKey
from hubbub.server.forgers import how_many
from hubbub.server.notes import shared_first
from hubbub.server.portions import (
    NOT_TOLD,
    PERIOD,
    Choice,
    by,
    chosen_strata,
    counts_of,
    heard_in,
    reports_in,
    sum_of,
    withheld,
)
from hubbub.server.truncation import Truncation

#: What is said wherever labels tell people apart.
PUBLIC = "Labels are public, noise does not hide them: the guarantee is about a record given its labels."
AGAIN = "Somebody who reported in several periods has spent epsilon in each of them."

Asked = Sequence[str | int] | str | int | None


@dataclass(frozen=True, repr=False)
class Breakdown:
    """Estimates by group: `breakdown["de"]["home"].value`.

    `names` are what the groups are made by, `values` what each has of these, and `withheld` says why groups are not
    shown. Estimates are in the order of the groups, periods in the order of time. `group` says in words which reports
    were asked about, where not all were.
    """

    names: tuple[str, ...]
    groups: dict[str, Estimate]
    values: dict[str, tuple[str, ...]]
    withheld: dict[str, str]
    notes: tuple[str, ...]
    group: str = ""

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.groups.values())

    def __contains__(self, group: object) -> bool:
        return group in self.groups

    def __getitem__(self, group: str) -> Estimate:
        """The estimate of one group by what it is called: values of its labels, joined by commas (`called`)."""
        if group in self.withheld:
            raise Refused(f"{group}: {self.withheld[group]}.")
        if group not in self.groups:
            raise Refused(
                f"{visible(group)!r} is not among the {len(self):,} groups: {', '.join(list(self.groups)[:20])}."
            )
        return self.groups[group]

    def labels_of(self, group: str) -> dict[str, str]:
        """What a group is made of, by name."""
        return dict(zip(self.names, self.values[group], strict=True))

    def of(self, key: str | int) -> Estimate:
        """One key in all groups, a row for each; over periods, its trend.

        What is said beside holds for all groups, or begins with the name of one.
        """
        rows = [found.take([_place(found, key)]) for found in self]

        names = ("value", "error", "low", "high", "significance", "flagged")
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(row, name) for row in rows]) for name in names
        }
        floor = max(row.findings.floor for row in rows)
        return replace(
            rows[0],
            keys=tuple(self.groups),
            **columns,
            reports=sum(row.reports for row in rows),
            notes=self.remarks,
            findings=OneKey(len(rows), int((~columns["flagged"]).sum()), floor, groups=len(rows)),
            truncation=None,
            losses=tuple((group, found.truncation) for group, found in self.groups.items()),
            group=str(key),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known before any number is read, with the name of the group that it is about."""
        return tuple(
            f"{visible(group)}: {warning}"
            for group, found in self.groups.items()
            for warning in found.warnings
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said beside the estimates: what holds for all groups, and then group by group."""
        return shared_first({group: found.notes for group, found in self.groups.items()})

    def worth_showing(self, count: int) -> Breakdown:
        """The first rows of each group for people; no list of noise, where no key stands out in any group.

        One key by itself is shown in every group: nobody takes that for a ranking.
        """
        looked = [found.findings.candidates for found in self]
        noise = not any(found.findings.count for found in self) and max(looked) > 1 and sum(looked) > count
        groups = {
            group: found.take([]) if noise else found.worth_showing(count)
            for group, found in self.groups.items()
        }
        return replace(self, groups=groups)

    def columns(self) -> dict[str, list[Any]]:
        """The columns of a file, by name: one for each label, then those of an estimate."""
        return stacked(
            [{**self._labels(group, len(found)), **found.columns()} for group, found in self.groups.items()]
        )

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per group and key."""
        columns = self.columns()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def about(self) -> dict[str, Any]:
        """What the groups and their numbers are, and why some are not shown."""
        return {
            "warnings": list(self.warnings),
            "by": list(self.names),
            **({"group": self.group} if self.group else {}),
            "withheld": self.withheld,
            "notes": list(self.notes),
            "groups": [{**found.about(), **self.labels_of(group)} for group, found in self.groups.items()],
        }

    def plain(self, top: int | None = None) -> dict[str, Any]:
        """All of it as plain data; of each group the first rows."""
        about = self.about()
        for said, found in zip(about["groups"], self, strict=True):
            shown = found if top is None else found.top(top)
            said |= {"estimates": shown.rows(), "total": len(found)}
        return about

    def to_pandas(self) -> Any:
        """As a pandas DataFrame; what the numbers are is in its `attrs`."""
        frame = optional("pandas").DataFrame(self.columns())
        frame.attrs["hubbub"] = self.about()
        return frame

    def to_polars(self) -> Any:
        """As a polars DataFrame, which can hold no more than the columns: warnings are not in it."""
        return optional("polars").DataFrame(self.columns())

    def to_arrow(self) -> Any:
        """As a pyarrow Table; what the numbers are is in its metadata."""
        return self._table(Estimate.to_arrow)

    def save(self, path: str | Path) -> None:
        """Write .csv, .json or .parquet, by the name's ending."""
        kind = table_kind(path)
        if kind == ".json":
            write_atomic(path, json.dumps(self.plain(), indent=1).encode())
        elif kind == ".csv":
            parts = []
            for group, found in self.groups.items():
                safe = {"key": [cell(key) for key in found.keys]}
                labels = {
                    cell(name): [cell(text) for text in column]
                    for name, column in self._labels(group, len(found)).items()
                }
                about = replace(found, group=self.group).about_columns()
                parts.append({**labels, **found.columns(), **safe, **about})
            write_atomic(path, csv_bytes(stacked(parts)))
        else:
            write_atomic(path, parquet_bytes(self._table(Estimate.file_table)))

    def plot(self, key: str | int, *, dark: bool = False, axes: Any = None) -> Any:
        """Draw one key in all groups with its intervals, with matplotlib; returns the axes."""
        from hubbub.server.pictures import draw

        rows = self.of(key)
        return draw(rows, rows, f"{visible(str(key))}: {MEANINGS[rows.quantity]}", dark, axes)

    def __str__(self) -> str:
        """Group by group, and what is not shown."""
        parts = [f"{self._title(group)}\n{found}" for group, found in self.groups.items()]
        return "\n\n".join([*parts, "\n".join([*withheld_words(self.withheld), *self.notes])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        parts = []
        for group, found in self.groups.items():
            parts += [
                paragraph(self._title(group), strong=True),
                Markup(found._repr_html_()),
            ]
        said = [paragraph(line) for line in (*withheld_words(self.withheld), *self.notes)]
        return whole(*parts, *said)

    def _title(self, group: str) -> str:
        return visible(f"{' and '.join(self.names)} {group}")

    def _labels(self, group: str, count: int) -> dict[str, list[str]]:
        return {name: [value] * count for name, value in self.labels_of(group).items()}

    def _table(self, make: Callable[[Estimate], Any]) -> Any:
        pyarrow = optional("pyarrow", "lake")
        parts = []
        for group, found in self.groups.items():
            table = make(replace(found, group=self.group)).replace_schema_metadata(None)
            for place, (name, column) in enumerate(self._labels(group, len(found)).items()):
                table = table.add_column(place, name, [pyarrow.array(column, pyarrow.string())])
            parts.append(table)
        return pyarrow.concat_tables(parts).replace_schema_metadata({"hubbub": json.dumps(self.about())})


def withheld_words(reasons: Mapping[str, str]) -> list[str]:
    """A sentence for every group that is not shown."""
    return [f"{visible(group)} is not shown: {why}." for group, why in reasons.items()]


def called(values: Iterable[str]) -> str:
    """What a group is called by the values that it has: joined by commas, in quotes where one holds a comma."""
    quoted = (json.dumps(each, ensure_ascii=False) if {*each} & {*',"'} else each for each in values)
    return ", ".join(quoted)


def renamed(found: Breakdown, names: Sequence[str], values: Mapping[str, tuple[str, ...]]) -> Breakdown:
    """The same groups by other names and values."""
    title = {group: called(values[group]) for group in (*found.groups, *found.withheld)}
    return replace(
        found,
        names=tuple(names),
        groups={title[group]: replace(one, group=title[group]) for group, one in found.groups.items()},
        values={title[group]: values[group] for group in found.groups},
        withheld={title[group]: why for group, why in found.withheld.items()},
    )


def estimate_by(
    task: Task,
    states: Mapping[Stratum, State],
    names: Sequence[str] | str,
    keys: Asked = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    refine: Refinement | None = None,
    *,
    choice: Choice | None = None,
    correct: bool = False,
    forgers: float = 0,
    truncation: Callable[[list[Stratum]], Truncation | None] = lambda strata: None,
    done: Callable[[int], None] = lambda more: None,
) -> Breakdown:
    """Estimates of the groups that labels, or "period", make among the states of a task.

        task, states = open_states("visits.state")
        hubbub.estimate_by(task, states, "country")["de"]

    `names` are one or several of them. `choice` says which strata are asked about, left out all. `truncation` is asked
    what was lost in the strata of a group, and `done` told of every group that is done. All else is as in `estimate`;
    what stands out, and simultaneous intervals, hold for all keys of all groups together. Forgers choose their labels,
    so those of all reports may be in every group: where they are as many as its reports, it is not shown.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    chosen = chosen_strata(task, states, choice or Choice())
    groups = by(task, chosen, names)
    if all(NOT_TOLD in group.split(", ") for group in groups):
        raise Refused(
            f"Nothing is told about the {' or '.join(names)} of these reports: they were not kept apart when they were "
            "made or added up."
        )
    forged = how_many(forgers, reports_in(states))
    hidden = withheld(counts_of(groups, states), task.minimum_reports)
    drowned = [group for group, strata in groups.items() if 0 < heard_in(task, states, strata) <= forged]
    hidden = dict.fromkeys(drowned, f"all of its reports may be among the {forged:,} forged ones") | hidden
    shown = {group: strata for group, strata in groups.items() if group not in hidden}
    if drowned and not shown:
        raise Refused(
            f"If {forged:,} reports may be forged, nothing is known about any group: state fewer forgers."
        )
    if not shown:
        raise Refused(
            f"None of {len(groups):,} groups has {max(task.minimum_reports, 1):,} reports, below which estimates are "
            "withheld."
        )
    found = {}
    for group, strata in shown.items():
        options = (keys, quantity, level, simultaneous, refine)
        more: dict[str, Any] = {"correct": correct, "forgers": forged, "groups": len(shown)}
        total, known = sum_of(task, states, strata), truncation(strata)
        one = estimate(task, total, *options, truncation=known, **more)
        found[group] = replace(one, group=group)
        done(1)
    said = (*([PUBLIC] if set(names) - {PERIOD} else []), *([AGAIN] if PERIOD in names else []))
    values = {group: tuple(group.split(", ")) for group in found}
    return Breakdown(names, found, values, hidden, said, (choice or Choice()).words())


def compare_groups(
    task: Task,
    states: Mapping[Stratum, State],
    name: str,
    values: Sequence[str],
    keys: Asked = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    *,
    choice: Choice | None = None,
) -> list[Comparison]:
    """What differs between two values of a label, or two periods (name "period"); of more, each against the first.

        hubbub.compare_groups(task, states, "country", ["de", "fr"])[0]

    What counts as different, and simultaneous intervals, hold for all keys of all these comparisons together.
    """
    if len(values) < 2 or len(set(values)) < len(values):
        raise Refused(f"Name two or more different values of {visible(name)!r} to compare.")
    base = choice or Choice()
    if name == PERIOD and (base.first, base.last) != (None, None):
        raise Refused("Periods that are compared are chosen by their names alone, without from and to.")
    if name in base.where:
        raise Refused(f"{name} cannot be chosen and compared at once.")
    sides = []
    for value in values:
        if name == PERIOD:
            side = replace(base, first=value, last=value)
        else:
            side = replace(base, where={**base.where, name: value})
        sides.append(chosen_strata(task, states, side))
    for value, strata in zip(values[1:], sides[1:], strict=True):
        if set(strata) & set(sides[0]):
            raise Refused(f"{values[0]} and {value} overlap: only what is apart can be compared.")
    titles = [value if name == PERIOD else f"{name} {value}" for value in values]
    first = (task, sum_of(task, states, sides[0]))
    note = AGAIN if name == PERIOD else PUBLIC
    found = []
    for title, strata in zip(titles[1:], sides[1:], strict=True):
        second = (task, sum_of(task, states, strata))
        options = (keys, quantity, level, simultaneous)
        one = compare(first, second, *options, sides=(titles[0], title), pairs=len(values) - 1)
        found.append(replace(one, notes=(*one.notes, note), by=name, group=base.words()))
    return found


def _place(found: Estimate, key: str | int) -> int:
    if key not in found:
        raise Refused(f"{visible(str(key))!r} is not among the {len(found):,} keys of these estimates.")
    return found.keys.index(str(key))
