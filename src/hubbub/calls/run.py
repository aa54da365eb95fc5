"""The whole way from a table to estimates, as devices and a server would go it: `hubbub.run` and `hubbub run`."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hubbub.device import client
from hubbub.model.guarantee import Guarantee, Unit
from hubbub.model.mechanism import Quantity
from hubbub.model.record import Entries, Summary
from hubbub.plan.advice import advised, entries_to_take
from hubbub.plan.proposal import Wish, span_for
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.primitives.errors import Refused
from hubbub.protocol.strata import Stratum
from hubbub.protocol.task import RESERVED, Task
from hubbub.server.breakdown import Breakdown, estimate_by, renamed
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.fold import aggregate
from hubbub.server.quantities import offered_quantity
from hubbub.server.truncation import Truncation, truncation_of_table
from hubbub.tables.attributes import Placed, Told, grouped, placed, read_placed
from hubbub.tables.counts import read_vocabulary
from hubbub.tables.records import (
    Table,
    TableLike,
    encode_table,
    has_values,
    read_table,
    refuse_device_rules,
)
from hubbub.tables.sources import Source

#: The label that stands for a table's own columns while groups are estimated.
_GROUP = "g"
#: What is said where nobody has listed the keys.
KNOWN_KEYS = "The keys in the table were taken as publicly known (see vocabulary)."

#: Told of each step, how many records it is for and of the task; what it returns is told of progress.
Watch = Callable[[str, int, Task], AbstractContextManager[Callable[[int], None]]]


def unwatched(step: str, total: int, task: Task) -> AbstractContextManager[Callable[[int], None]]:
    """For those who just wait."""
    return nullcontext(lambda done: None)


def run(
    table: TableLike,
    user: str | None = None,
    key: str | None = None,
    value: str | None = None,
    *,
    epsilon: float,
    max_entries: int,
    range: tuple[float, float] | None = None,
    vocabulary: Iterable[str] | str | Path | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    mechanism: str | None = None,
    settings: Mapping[str, Any] | None = None,
    best: bool = False,
    unit: Unit = "record",
    distance: float | None = None,
    delta: float = 0.0,
    family: Literal["walsh", "prf"] = "walsh",
    users: int | None = None,
    count_lengths: bool = False,
    correct: bool = False,
    name: str | None = None,
    watch: Watch = unwatched,
) -> Estimate:
    """From a table to private estimates in one call, the same as the command `hubbub run`.

        estimates = hubbub.run(frame, user="user", key="page", epsilon=1.0, max_entries=4)

    The table is a pandas or polars DataFrame, a pyarrow Table or the path of a file (.csv, .tsv, .parquet, .npz), with
    a row per user and key and its columns named by `user`, `key` and `value`; or a mapping from user to record, where
    a record is a mapping from key to value or a collection of keys. Without values, records are sets.

    `epsilon`, `max_entries` and, for values, their `range` are decided before looking at the data. `vocabulary` lists
    all keys (or is a file with one per line); left out, the keys in the table are taken as publicly known. `quantity`,
    left out, is the usual one: shares for sets; for values the mean, or the mean among those who have the key where 0
    is not the middle of the range. `mechanism` names one, whose parameters `settings` may fix; left out, the planner
    chooses, with `best` whatever the length of the report. `unit`, `distance` and `delta` are those of `Guarantee`.

    Every record is privatized with secret coins, packed, aggregated and estimated. Whoever calls this has the table:
    the guarantee is about the estimates. What happened to the input is in `summary`, what was chosen in `task`.
    """
    if correct and not count_lengths:
        raise Refused(
            "Correcting needs lengths to be counted: --count-lengths, or in Python count_lengths=True."
        )
    wished = Wish(
        epsilon,
        max_entries,
        span_for(range, has_values(table, value)),
        quantity,
        unit,
        distance,
        delta,
        family,
        count_lengths=count_lengths,
        mechanism=mechanism,
        settings=settings or {},
        best=best,
    )
    task, rows = _described(table, (user, key, value), wished, vocabulary, users, name)
    quantity = offered_quantity(task, wished.quantity_for(task))
    entries, tidied = encode_table(task, rows)
    packed, sampled = privatized(task, entries, watch)
    with watch("aggregating", len(packed), task) as advance:
        state = aggregate(task, packed, progress=advance)
    lengths = np.diff(entries.offsets)
    known = truncation_of_table(task, lengths)
    found = estimate(task, state, None, quantity, level, simultaneous, truncation=known, correct=correct)
    found = advised(task, found, dict(Counter(lengths.tolist())))
    promise = replace(found.guarantee, noise="table")
    notes = (*found.notes, *([] if vocabulary is not None else [KNOWN_KEYS]))
    return replace(found, guarantee=promise, summary=tidied + sampled, notes=notes)


def _described(
    table: TableLike,
    columns: tuple[str | None, str | None, str | None],
    wished: Wish,
    vocabulary: Iterable[str] | str | Path | None,
    users: int | None,
    name: str | None,
    more: Sequence[str] = (),
) -> tuple[Task, Table]:
    """A table with `more` of its columns, and the task that the wishes describe for it."""
    title = name or (Source.of(table).stem if isinstance(table, str | Path | Source) else "table")
    if wished.mechanism is not None:
        # What could not be estimated of two keys is refused before anything is read.
        wished.task(title, {"kind": "closed", "size": 2})
    rows = read_table(table, *columns, more)
    if vocabulary is None:
        keys = rows.keys
    else:
        keys = (
            read_vocabulary(vocabulary)
            if isinstance(vocabulary, str | Path)
            else [str(name) for name in vocabulary]
        )
    wished = replace(wished, users=max(rows.users, 1) if users is None else users)
    return wished.task(title, {"kind": "closed", "vocabulary": keys}), rows


def run_by(
    table: TableLike,
    by: Sequence[str] | str,
    user: str | None = None,
    key: str | None = None,
    value: str | None = None,
    *,
    epsilon: float,
    max_entries: int,
    labels: Mapping[str, str] | None = None,
    range: tuple[float, float] | None = None,
    vocabulary: Iterable[str] | str | Path | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    users: int | None = None,
    correct: bool = False,
    name: str | None = None,
    watch: Watch = unwatched,
    **wishes: Any,
) -> Breakdown:
    """The same as `run` for every group that columns of the table make: `hubbub run --by`.

        hubbub.run_by(frame, "country", user="user", key="page", epsilon=1.0, max_entries=4)["de"]

    `by` names one or several columns, or what to call them if `labels` says which they are (`{"country": "Home
    country"}`); their values may be any text. They are public, and so are the values in the table: noise does not hide
    who is in which group. All else is as in `run`.
    """
    names = (by,) if isinstance(by, str) else tuple(by)
    if not names or len(set(names)) < len(names):
        raise Refused("Groups are made by one or several columns, each named once.")
    for taken in sorted(RESERVED & set(names)):
        raise Refused(
            f"Files have something else that is called {taken!r}: call the column otherwise, with --by NAME --label "
            f"NAME={(labels or {}).get(taken, taken)}, or in Python labels={{NAME: COLUMN}}."
        )
    if correct and not wishes.get("count_lengths"):
        raise Refused(
            "Correcting needs lengths to be counted: --count-lengths, or in Python count_lengths=True."
        )
    span = span_for(range, has_values(table, value))
    wished = Wish(
        epsilon, max_entries, span, quantity, **{**wishes, "settings": wishes.get("settings") or {}}
    )
    columns = [(labels or {}).get(label, label) for label in names]
    task, rows = _described(table, (user, key, value), wished, vocabulary, users, name, columns)
    rows, values = grouped(rows, names)
    groups = dict(zip(rows.more[0][0], values, strict=True))
    apart = Task.parse(
        {**{field: getattr(task, field) for field in Task.model_fields}, "labels": {_GROUP: list(groups)}}
    )
    found = placed(apart, rows)
    entries, tidied = encode_table(task, rows)
    parts, sampled = _privatized_by(task, entries, found, watch)
    with watch("aggregating", sum(map(len, parts.values())), task) as advance:
        states = {at: aggregate(task, packed, progress=advance) for at, packed in parts.items()}
    lengths = np.diff(entries.offsets)

    def truncation(strata: list[Stratum]) -> Truncation | None:
        return truncation_of_table(
            task, lengths[np.isin(found.which, [found.strata.index(at) for at in strata])]
        )

    quantity = offered_quantity(task, wished.quantity_for(task))
    options = (None, quantity, level, simultaneous)
    result = estimate_by(apart, states, _GROUP, *options, truncation=truncation, correct=correct)
    shown = {
        group: replace(
            advised(task, one),
            guarantee=replace(one.guarantee, noise="table"),
            summary=tidied + sampled,
            task=task,
        )
        for group, one in result.groups.items()
    }
    notes = (*result.notes, *([] if vocabulary is not None else [KNOWN_KEYS]))
    return renamed(replace(result, groups=shown, notes=notes), names, groups)


@dataclass(frozen=True)
class Reports:
    """Private reports of all records of a table, with the task they were made for; walking over them gives bytes."""

    task: Task
    packed: NDArray[np.uint8]
    summary: Summary
    #: The same reports by stratum, where the table tells more of its users than their records.
    parts: Mapping[Stratum, NDArray[np.uint8]] = field(default_factory=dict)
    #: What was lost to max_entries, of which the reports say nothing.
    truncation: Truncation | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[bytes]:
        return (report.tobytes() for report in self.packed)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised about the reports, by who made them."""
        return replace(self.task.guarantee, noise="table")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known before estimates are made of them; nobody knows it later."""
        lost = self.truncation
        return (lost.words(),) if lost is not None and lost.alarming else ()

    def save(self, path: str | Path) -> None:
        """Write a file of reports, or Parquet if the name ends so."""
        from hubbub.engines.arrow import save_parquet, save_parquet_by
        from hubbub.protocol.files import save_reports, save_reports_by

        lake = Path(path).suffix.lower() == ".parquet"
        if self.parts and lake:
            save_parquet_by(path, self.task, self.parts, None)
        elif self.parts:
            save_reports_by(path, self.task, self.parts)
        elif lake:
            save_parquet(path, self.task, self.packed, None)
        else:
            save_reports(path, self.task, self.packed)

    def __repr__(self) -> str:
        width = self.task.mechanism.layout.width
        size = "1 byte" if width == 1 else f"{width} bytes"
        made = f"{len(self):,} reports of {size} for {self.task.name!r}. {self.guarantee.short()}"
        return "\n".join([*self.warnings, made])


def privatize(
    table: TableLike,
    task: Task,
    user: str | None = None,
    key: str | None = None,
    value: str | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    day: str | None = None,
    period: str | None = None,
    watch: Watch = unwatched,
) -> Reports:
    """A private report of every record of a table, with coins from the operating system, as `hubbub privatize`.

        reports = hubbub.privatize(frame, task, user="user", key="page")
        state = hubbub.aggregate(task, reports)

    Tables are those of `run`. Whoever calls this sees the table; on real devices use `Client`.

    For a task with labels, `labels` says which column tells which (left out: the one that is called so), and every user
    has one combination. For a task with periods, `period` is that of all rows, or `day` the column that tells each
    row's, and a user has a record in each. The reports are then kept apart in `parts`.

    Tasks with turns, memos or seeds from the server have rules that devices keep, and are refused.
    """
    refuse_device_rules(task)
    told = Told(labels or {}, day, period)
    if not task.labels and told == Told():
        entries, tidied = encode_table(task, read_table(table, user, key, value))
        packed, sampled = privatized(task, entries, watch)
        return Reports(task, packed, tidied + sampled, truncation=_lost(task, entries))
    found = read_placed(table, (user, key, value), task, told, datetime.date.today())
    entries, tidied = encode_table(task, found.table)
    parts, sampled = _privatized_by(task, entries, found, watch)
    packed = np.concatenate(list(parts.values()))
    return Reports(task, packed, tidied + sampled, parts, _lost(task, entries))


def _lost(task: Task, entries: Entries) -> Truncation | None:
    """What max_entries takes from records, with what the planner would take for it where that is much."""
    lengths = np.diff(entries.offsets)
    found = truncation_of_table(task, lengths)
    if found is None or not found.alarming:
        return found
    histogram = dict(Counter(lengths.tolist()))
    better = entries_to_take(task, task.mechanism.quantities[0], len(entries), histogram)
    if better is None:
        return found
    return replace(found, suggested=better.max_entries, outstanding=better.found)


def _privatized_by(
    task: Task, entries: Entries, found: Placed, watch: Watch
) -> tuple[dict[Stratum, NDArray[np.uint8]], Summary]:
    """Reports of all records, by stratum.

    One report each is made of all records at once, which is fast, and then sorted out. Of several messages nobody can
    tell whose they are, so they are made stratum by stratum.
    """
    order = np.argsort(found.which, kind="stable")
    places = np.split(order, np.cumsum(np.bincount(found.which, minlength=len(found.strata)))[:-1])
    if not task.messages:
        packed, sampled = privatized(task, entries, watch)
        return {at: packed[mine] for at, mine in zip(found.strata, places, strict=True)}, sampled
    parts, summary = {}, Summary()
    for at, mine in zip(found.strata, places, strict=True):
        parts[at], sampled = privatized(task, entries.take(mine), watch)
        summary += sampled
    return parts, summary


def privatized(task: Task, entries: Entries, watch: Watch) -> tuple[NDArray[np.uint8], Summary]:
    """Reports of all records, with coins from the operating system."""
    with watch("privatizing", len(entries), task) as advance:
        return client.privatize(task, entries, SecretCoins(), SystemSeeds(), advance)
