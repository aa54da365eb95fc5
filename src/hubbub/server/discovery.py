"""Keys that nobody had listed, with estimates: what `hubbub discover` shows, and how it is saved.

What is found comes from the people of all levels (`hubbub.server.search`). Its estimates come from other people, who
were asked for whole keys and took no part in the search. So an interval holds as often as it says, also for a key that
was selected because it came out high: the selection and the estimate are independent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.model.mechanism import Quantity
from hubbub.model.state import State
from hubbub.primitives.arrays import Bools, Floats, UInt64s
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import cell, visible
from hubbub.protocol.task import Task
from hubbub.server.columns import csv_bytes, in_first_row
from hubbub.server.estimates import Estimate, Named, estimate
from hubbub.server.search import Limits, Look, hashed, prefix_of, search, tree_of
from hubbub.server.truncation import Truncation, alarms


@dataclass(frozen=True, repr=False)
class Discovery:
    """The keys that were found, the most frequent first, and how they were found.

    `estimate` has a row for each, `cut` says which keys are beginnings of longer ones (their names end in "…"), `p` is
    each key's p-value: how likely a key that nobody holds would stand out as much. The expected share of keys that
    nobody holds is at most `false_finds`.
    """

    task: Task
    ids: UInt64s
    cut: Bools
    p: Floats
    estimate: Estimate
    looks: tuple[Look, ...]
    false_finds: float

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> tuple[str, ...]:
        """By name; one that was cut ends in "…"."""
        return self.estimate.keys

    def columns(self) -> dict[str, list[Any]]:
        """The columns of a file, by name."""
        found = self.estimate.columns()
        del found["flagged"]
        return {**found, "cut": self.cut.tolist(), "p": self.p.tolist()}

    def rows(self, count: int | None = None) -> list[dict[str, Any]]:
        """One plain dictionary per key."""
        columns = self.columns()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)][:count]

    def about(self) -> dict[str, Any]:
        """What was done, what the numbers are and what they promise."""
        about = self.estimate.about()
        for name in ("warnings", "findings", "simultaneous"):
            del about[name]
        return {
            "warnings": list(self.warnings),
            "words": self.words(),
            "false_finds": self.false_finds,
            "levels": [asdict(look) for look in self.looks],
            **about,
        }

    @property
    def lost(self) -> list[str]:
        """What has to be known of entries that were dropped."""
        return alarms(self.estimate.truncation, ())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known before any key is read."""
        return (*([] if len(self) else [self.words()]), *self.lost)

    def words(self) -> str:
        """A few sentences: what was found, and how much of it may be false."""
        seen = f"{self.looks[-1].candidates:,} candidates at the last level"
        if not len(self):
            return (
                f"No key was found: none of {seen} can be told from noise. hubbub plan --discover says how popular a "
                "key would have to be."
            )
        count = "1 key was" if len(self) == 1 else f"{len(self):,} keys were"
        return (
            f"{count} found among {seen}. The share of keys that nobody holds is expected to be at most "
            f"{100 * self.false_finds:g}%."
        )

    def about_columns(self) -> dict[str, list[Any]]:
        """What a file says of itself, as that of an estimate; without a key, a CSV file has no row to say it in."""
        about = self.estimate.about_columns()
        del about["simultaneous"]
        return {**about, "note": in_first_row(" ".join((*self.warnings, *self.estimate.notes)), len(self))}

    def save(self, path: str | Path) -> None:
        """Write .csv or .json, by the name's ending."""
        kind = Path(path).suffix.lower()
        if kind == ".json":
            write_atomic(path, json.dumps({**self.about(), "keys": self.rows()}, indent=1).encode())
        elif kind == ".csv":
            safe = {"key": [cell(key) for key in self.keys]}
            write_atomic(path, csv_bytes({**self.columns(), **safe, **self.about_columns()}))
        else:
            raise Refused(f"{path}: write found keys to a name that ends in .csv or .json.")

    def __str__(self) -> str:
        rows = [{**row, "key": visible(row["key"])} for row in self.rows(20)]
        width = max([len(row["key"]) for row in rows] + [3])
        lines = [*self.warnings, *([self.words()] if len(self) else [])]
        for row in rows:
            span = f"[{row['low']: .6f}, {row['high']: .6f}]"
            lines.append(
                f"  {row['key']:<{width}}  {row['value']: .6f} ± {row['error'] or np.inf:.6f}  {span}"
            )
        if len(self) > 20:
            lines.append(f"  ... {len(self) - 20:,} more keys")
        return "\n".join([*lines, *self.estimate.notes, self.estimate.guarantee.short()])

    __repr__ = __str__


def discover(
    task: Task,
    state: State,
    *,
    false_finds: float = 0.05,
    level: float = 0.95,
    quantity: Quantity | None = None,
    allow: Sequence[str] | None = None,
    deny: Sequence[str] | None = None,
    prefix: str = "",
    truncation: Truncation | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Discovery:
    """Find popular keys in the state of a task whose keys are a tree.

        found = hubbub.discover(task, state, false_finds=0.05)

    `allow` lists the only keys that may be found, `deny` those that are known already and neither shown nor searched,
    `prefix` is how keys must begin. `truncation` is as in `estimate`. `progress` is told how many candidates were
    looked at. The expected share of found keys that nobody holds is at most `false_finds`.
    """
    tree = tree_of(task)
    if not 0 < false_finds < 1:
        raise Refused(f"The share of false finds must be between 0 and 1, not {false_finds:g}.")
    limits = Limits(
        None if allow is None else task.keys.known(allow)[0],
        None if deny is None else task.keys.known(deny)[0],
        prefix_of(tree, prefix) if prefix else (0, 0),
    )
    # Asked first, so that too few reports, or a quantity nobody can estimate, are refused before the search.
    estimate(task, state, Named(np.zeros(0, np.uint64), ()), quantity, level)
    found = search(task, state, false_finds, limits, progress)
    votes = np.zeros(len(found.ids), dtype=np.int64)
    for stage in (len(tree.levels) - 1, len(tree.levels)):
        for cohort in tree.cohorts_of(stage):
            votes += hashed(task).code_sums(state, cohort)[task.keys.codes(found.ids, cohort)]
    order = np.argsort(-votes, kind="stable")
    ids = found.ids[order]
    names = tuple(tree.name_of(int(number)) for number in ids)
    return Discovery(
        task,
        ids,
        np.array([tree.named(int(number))[1] for number in ids], dtype=bool),
        found.p[order],
        estimate(task, state, Named(ids, names), quantity, level, truncation=truncation),
        found.looks,
        false_finds,
    )
