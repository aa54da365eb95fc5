"""Two collections side by side: what differs, key by key, and what cannot be told apart.

Noise is drawn anew for every report, so given the records two collections are independent, whoever took part. The
difference of two unbiased estimates is unbiased, and its variance is the sum of theirs. Which entries of long records
count is drawn anew, too. So differences are of what is kept on average (`estimate` with `average`): the same people
have the same, and must not differ.

Its interval is put together from those of the two sides (Zou and Donner 2008). With values a in [l, u] and b in
[l', u'], that of a - b is

    a - b - sqrt((a - l)^2 + (u' - b)^2)   ..   a - b + sqrt((u - a)^2 + (b - l')^2).

For normal estimates that is the usual interval of a difference. Elsewhere each side brings the limit that matters: a
difference is too high if a is, or if b is too low. So the intervals hold where counts are small, because those of the
sides do (`hubbub.server.intervals`), and where nothing is known of a side, the difference is as unknown.

Many keys are looked through for what differs. A key counts as different only if its interval for all keys together, and
for all pairs that are compared, is away from 0 (Bonferroni): if nothing differs, nothing is shown as different, with
probability `level`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Quantity
from hubbub.primitives.arrays import Bools, Floats, Int64s
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from hubbub.primitives.text import cell, visible
from hubbub.server.columns import csv_bytes, in_first_row, parquet_bytes, stacked, table_kind
from hubbub.server.estimates import MEANINGS, Estimate, estimate
from hubbub.server.findings import difference_for, width_for
from hubbub.server.truncation import Losses, alarms

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task

#: Reports that a side needs for anything to count as different: where estimates are sums of noise, their far tails,
#: which all keys together need, are normal from about here on.
FEWEST = 50
#: Columns of a file; `first` and `second` are the sides, `difference` is the second less the first.
COLUMNS = ("key", "first", "second", "difference", "error", "low", "high", "differs")


@dataclass(frozen=True, repr=False)
class Comparison:
    """One quantity of many keys on two sides; differences are the second side less the first.

    A key `differs` if 0 is not in its interval for all keys (and pairs) together; all others cannot be told apart.
    """

    sides: tuple[str, str]
    keys: tuple[str, ...]
    first: Floats
    second: Floats
    difference: Floats
    error: Floats
    low: Floats
    high: Floats
    differs: Bools
    quantity: Quantity
    level: float
    simultaneous: bool
    reports: tuple[int, int]
    guarantee: Guarantee
    #: The keys that were looked through, how many of them differ, and the least difference that would have been seen.
    candidates: int
    count: int
    floor: float
    notes: tuple[str, ...]
    #: What was lost on each side, where that is known.
    losses: Losses
    #: The label that the sides are values of, or "period"; and which reports were asked about, where not all were.
    by: str = ""
    group: str = ""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Sequence[int] | Int64s) -> Comparison:
        """The rows at these places, in this order."""
        index = np.asarray(places, dtype=np.int64)
        columns = {name: getattr(self, name)[index] for name in COLUMNS[1:]}
        return replace(self, keys=tuple(self.keys[place] for place in index), **columns)

    def top(self, count: int) -> Comparison:
        """The keys whose difference is the most errors from 0; those that differ come first."""
        known = np.where(np.isfinite(self.error), np.abs(self.difference) / np.maximum(self.error, 1e-300), 0)
        return self.take(np.lexsort((-known, ~self.differs))[:count])

    def worth_showing(self, count: int) -> Comparison:
        """The first rows for people: no selection of noise where nothing differs."""
        chosen = self.candidates > count
        return self.take([]) if chosen and not self.count else self.top(count)

    def words(self, written: Callable[[float], str] = "{:.3g}".format) -> str:
        """What differs, in a sentence or two, with differences written so."""
        first, second = self.sides
        keys = f"{self.candidates:,} {'key' if self.candidates == 1 else 'keys'}"
        would = (
            f"a difference of about {written(self.floor)}"
            if math.isfinite(self.floor)
            else "no difference, however large,"
        )
        if self.count:
            verb = "differs" if self.count == 1 else "differ"
            return (
                f"{self.count:,} of {keys} {verb} between {first} and {second} when all are looked at together; "
                f"that takes {would}. The others cannot be told apart."
            )
        return f"{first} and {second} cannot be told apart in any of {keys}: {would} would have been seen."

    @property
    def lost(self) -> list[str]:
        """What has to be known of entries that were dropped, side by side."""
        return alarms(None, self.losses)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known before any difference is read."""
        return (*([] if self.count else [self.words()]), *self.lost)

    def columns(self) -> dict[str, list[Any]]:
        """The columns of a file, by name, in plain Python; what is not finite is None."""
        numbers = {
            name: [value if math.isfinite(value) else None for value in getattr(self, name).tolist()]
            for name in COLUMNS[1:-1]
        }
        return {"key": list(self.keys), **numbers, "differs": self.differs.tolist()}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per key."""
        columns = self.columns()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def chosen(self) -> dict[str, str]:
        """What the sides are values of, and which reports were asked about, where that is to be said."""
        return {name: said for name, said in (("by", self.by), ("group", self.group)) if said}

    def about(self) -> dict[str, Any]:
        """What the numbers are and what they promise."""
        return {
            "warnings": list(self.warnings),
            "sides": list(self.sides),
            **self.chosen(),
            "quantity": self.quantity,
            "meaning": MEANINGS[self.quantity],
            "level": self.level,
            "simultaneous": self.simultaneous,
            "reports": list(self.reports),
            "keys": self.candidates,
            "differ": self.count,
            "floor": self.floor if math.isfinite(self.floor) else None,
            "words": self.words(),
            "guarantee": self.guarantee.as_dict(),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write .csv, .json or .parquet, by the name's ending."""
        save_comparisons(path, [self])

    def __str__(self) -> str:
        """What differs, and what does not, warnings first."""
        best = self.worth_showing(20)
        names = [visible(key) for key in best.keys]
        width = max([len(name) for name in names] + [3])
        lines = [
            f"  {name:<{width}}  {shown_change(row)}" + ("" if row["differs"] else "  cannot be told apart")
            for name, row in zip(names, best.rows(), strict=True)
        ]
        first = [*self.warnings, *([self.words()] if self.count else [])]
        return "\n".join([*first, *lines, *self.notes, self.guarantee.short()])

    __repr__ = __str__


def save_comparisons(path: str | Path, several: Sequence[Comparison]) -> None:
    """Write one or several comparisons to one .csv, .json or .parquet file; the column `of` says of which a row is.

    `note` has the warnings and notes of each in its first row.
    """
    kind = table_kind(path)
    about = [found.about() for found in several]
    if kind == ".json":
        plain = [{**said, "differences": found.rows()} for said, found in zip(about, several, strict=True)]
        whole = plain[0] if len(plain) == 1 else {"comparisons": plain}
        write_atomic(path, json.dumps(whole, indent=1).encode())
        return
    parts = []
    for found in several:
        longer = [lost.longer if lost else None for _, lost in found.losses]
        same = {
            "of": " - ".join(reversed(found.sides)),
            "quantity": found.quantity,
            "level": found.level,
            "simultaneous": found.simultaneous,
            "epsilon": found.guarantee.epsilon,
            "first_reports": found.reports[0],
            "second_reports": found.reports[1],
            "first_long_records": longer[0],
            "second_long_records": longer[1],
            **found.chosen(),
        }
        note = in_first_row(" ".join((*found.warnings, *found.notes)), len(found))
        repeated = {name: [value] * len(found) for name, value in same.items()}
        parts.append({**found.columns(), **repeated, "note": note})
    columns = stacked(parts)
    if kind == ".csv":
        columns |= {name: [cell(text) for text in columns[name]] for name in ("key", "of")}
        write_atomic(path, csv_bytes(columns))
    else:
        table = optional("pyarrow", "lake").table(columns)
        said = json.dumps(about[0] if len(about) == 1 else about)
        write_atomic(path, parquet_bytes(table.replace_schema_metadata({"hubbub": said})))


def shown_change(row: dict[str, Any]) -> str:
    """A difference with its interval, for people."""
    if row["error"] is None:
        return "unknown"
    return f"{row['difference']:+.4f} ± {row['error']:.4f}  [{row['low']:+.4f}, {row['high']:+.4f}]"


def compare(
    first: tuple[Task, State],
    second: tuple[Task, State],
    keys: Sequence[str | int] | str | int | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    *,
    sides: tuple[str, str] = ("the first", "the second"),
    pairs: int = 1,
) -> Comparison:
    """The differences of two collections, with intervals; `pairs` is how many such comparisons are made together.

    Both must be of the same task, or of tasks that ask the same: same keys, same range of values, same `max_entries`,
    which decides how many entries of long records are dropped.
    """
    _check_alike(first[0], second[0])
    if quantity == "sum":
        raise Refused("Sums grow with the number of people: compare frequencies or means.")
    if pairs < 1:
        raise Refused(f"At least one pair is compared, not {pairs}.")
    together = 1 - (1 - level) / pairs

    def ask(level: float, simultaneous: bool) -> tuple[Estimate, Estimate]:
        one, two = (
            estimate(*side, keys, quantity, level, simultaneous, "none", average=True)
            for side in (first, second)
        )
        return one, two

    shown = ask(together, True) if simultaneous else ask(level, False)
    apart = level_apart(first[0], together, len(shown[0]))
    strict = shown if simultaneous and apart == together else ask(apart, True)
    return contrast(first[0], strict, shown, level, simultaneous, sides=sides, pairs=pairs)


def level_apart(task: Task, level: float, asked: int) -> float:
    """The simultaneous level of so many keys by which it is judged what differs: that of all keys of a vocabulary.

    Somebody may ask for the luckiest of all after a look at the others.
    """
    return 1 - (1 - level) * asked / _candidates(task, asked)


def _candidates(task: Task, asked: int) -> int:
    return max(asked, task.keys.count if task.keys.kind == "closed" else 1)


def contrast(
    task: Task,
    strict: tuple[Estimate, Estimate],
    shown: tuple[Estimate, Estimate],
    level: float,
    simultaneous: bool,
    *,
    sides: tuple[str, str],
    pairs: int,
) -> Comparison:
    """The same from estimates of both sides: those that decide what differs, and those whose intervals are shown.

    All of what is kept on average.
    """
    together = 1 - (1 - level) / pairs
    one, two = shown
    apart_low, apart_high = _limits(*strict)
    low, high = _limits(*shown)
    differs = ((apart_low > 0) | (apart_high < 0)) & (min(one.reports, two.reports) >= FEWEST)
    error = np.hypot(one.error, two.error)
    floor = _least_seen(task, strict, width_for(together, _candidates(task, len(one))))
    means = max(task.high, 0.0) - min(task.low, 0.0)
    most = {"frequency": 1.0, "mean": means, "conditional": task.high - task.low}.get(one.quantity, math.inf)
    return Comparison(
        sides,
        one.keys,
        one.value,
        two.value,
        two.value - one.value,
        error,
        low,
        high,
        differs,
        one.quantity,
        level,
        simultaneous,
        (one.reports, two.reports),
        one.guarantee if one.guarantee.epsilon >= two.guarantee.epsilon else two.guarantee,
        len(one),
        int(differs.sum()),
        floor if floor <= most else math.inf,
        _notes(task, one, two),
        losses=((sides[0], one.truncation), (sides[1], two.truncation)),
    )


def _limits(one: Estimate, two: Estimate) -> tuple[Floats, Floats]:
    """Of the second less the first; infinite where a side is unknown."""
    difference = two.value - one.value
    below = np.hypot(two.value - two.low, one.high - one.value)
    above = np.hypot(two.high - two.value, one.value - one.low)
    unknown = ~np.isfinite(one.error) | ~np.isfinite(two.error)
    return (
        np.where(unknown, -np.inf, difference - below),
        np.where(unknown, np.inf, difference + above),
    )


def _check_alike(one: Task, two: Task) -> None:
    """Refuse what does not ask the same."""
    if one.digest == two.digest:
        return
    if one.keys.kind != two.keys.kind or (one.keys.kind == "closed" and _names(one) != _names(two)):
        raise Refused(
            "The two are of tasks with other keys: only collections that ask the same can be compared."
        )
    if (one.low, one.high) != (two.low, two.high) or one.scale.kind != two.scale.kind:
        raise Refused(
            "The two are of tasks with other values: only collections that ask the same can be compared."
        )
    limits = [task.mechanism.max_entries if task.mechanism.limits_entries else None for task in (one, two)]
    if limits[0] != limits[1]:
        raise Refused(
            "The two drop entries of long records differently (max_entries), which would look like a difference."
        )


def _names(task: Task) -> tuple[int, tuple[str, ...] | None]:
    return task.keys.count, task.keys.vocabulary


def _notes(task: Task, one: Estimate, two: Estimate) -> tuple[str, ...]:
    """What is said below: of both sides, each once, and what the comparison adds."""
    added = []
    if min(one.reports, two.reports) < FEWEST:
        added.append(
            f"A side with fewer than {FEWEST} reports is too small for anything to count as different."
        )
    added += [
        "Somebody who reported on both sides has spent both: their epsilons add up to "
        f"{one.guarantee.epsilon + two.guarantee.epsilon:g}."
    ]
    if task.mechanism.limits_entries and (one.truncation is None or two.truncation is None):
        added.append(
            "If records are longer on one side, more of their entries are dropped there: shares look smaller."
        )
    return tuple(dict.fromkeys([*one.notes, *two.notes, *added]))


def _least_seen(task: Task, strict: tuple[Estimate, Estimate], width: float) -> float:
    """The difference that is seen every other time. The side that has the key is the one with more noise.

    With many keys most are rare, so that the typical one shows the noise of absent ones, and how far their intervals
    reach. Of conditional means it is the error of the typical key that is known.
    """
    errors = [side.error[np.isfinite(side.error)] for side in strict]
    if not all(map(len, errors)):
        return math.inf
    noise = [float(np.median(error)) for error in errors]
    if strict[0].quantity == "conditional":
        return width * math.hypot(*noise)
    has = int(noise[1] >= noise[0])
    reach = float(np.median(strict[1 - has].high - strict[1 - has].value))
    heard = max(round(strict[has].reports * task.keys.asked_share), 1)
    return difference_for(task, strict[0].quantity, heard, width, noise[has], reach)
