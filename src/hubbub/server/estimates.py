"""Estimates people can use: a value, an error bar and an interval for every key, and the guarantee."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Moments, Quantity, Refinement
from hubbub.primitives.arrays import Bools, Floats, Int64s
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from hubbub.server.cases import Range, least_named
from hubbub.server.intervals import Wanted, tie_levels

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task


COLUMNS = ("key", "value", "error", "low", "high", "flagged")
MEANINGS = {
    "frequency": "share of users who have the key",
    "mean": "mean value over all users, 0 for those without the key",
    "conditional": "mean value among the users who have the key",
    "sum": "sum over all users who reported",
}


@dataclass(frozen=True)
class Estimate:
    """One quantity for many keys."""

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
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Sequence[int] | Int64s) -> Estimate:
        """The rows at these places, in this order."""
        index = np.asarray(places, dtype=np.int64)
        columns = {
            name: getattr(self, name)[index]
            for name in ("value", "error", "low", "high", "significance", "flagged")
        }
        return replace(self, keys=tuple(self.keys[i] for i in index), **columns)

    def top(self, count: int) -> Estimate:
        """The keys that stand out most from noise."""
        return self.take(np.argsort(-self.significance, kind="stable")[:count])

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per key."""
        errors = [float(error) if np.isfinite(error) else None for error in self.error]
        columns = (self.keys, self.value.tolist(), errors, self.low.tolist(), self.high.tolist())
        return [
            dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, self.flagged.tolist(), strict=True)
        ]

    def about(self) -> dict[str, Any]:
        """What the numbers are and what they promise."""
        return {
            "quantity": self.quantity,
            "meaning": MEANINGS[self.quantity],
            "level": self.level,
            "simultaneous": self.simultaneous,
            "reports": self.reports,
            "guarantee": self.guarantee.as_dict(),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> Any:
        """As a pandas DataFrame."""
        return optional("pandas", "pandas").DataFrame(self.rows(), columns=list(COLUMNS))

    def to_arrow(self) -> Any:
        """As a pyarrow Table; what the numbers are is in its metadata."""
        rows = (list(self.keys), self.value, self.error, self.low, self.high, self.flagged)
        table = optional("pyarrow", "lake").table(dict(zip(COLUMNS, rows, strict=True)))
        return table.replace_schema_metadata({"hubbub": json.dumps(self.about())})

    def save(self, path: str | Path) -> None:
        """Write .csv, .json or .parquet, by the name's ending."""
        kind = Path(path).suffix.lower()
        if kind == ".json":
            write_atomic(path, json.dumps({**self.about(), "estimates": self.rows()}, indent=1).encode())
        elif kind == ".csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows())
            write_atomic(path, text.getvalue().encode())
        elif kind == ".parquet":
            write_atomic(path, _parquet_bytes(self.to_arrow()))
        else:
            raise Refused(f"{path}: write estimates to a name that ends in .csv, .json or .parquet.")

    def __str__(self) -> str:
        """The keys that stand out most, not a wall of noise."""
        best = self.top(20)
        lines = [
            f"{self.quantity} ({MEANINGS[self.quantity]}), {self.reports:,} reports, "
            f"{100 * self.level:g}% intervals{' for all keys together' if self.simultaneous else ''}"
        ]
        width = max([len(key) for key in best.keys] + [3])
        lines += [
            f"  {row['key']:<{width}}  {row['value']: .6f} ± {np.inf if row['error'] is None else row['error']:.6f}  "
            f"[{row['low']: .6f}, {row['high']: .6f}]{' ?' if row['flagged'] else ''}"
            for row in best.rows()
        ]
        if len(self) > len(best):
            lines.append(f"  ... {len(self) - len(best):,} more keys")
        return "\n".join([*lines, *self.notes, self.guarantee.short()])


def estimate(
    task: Task,
    state: State,
    keys: Sequence[str | int] | None = None,
    quantity: Quantity | None = None,
    level: float = 0.95,
    simultaneous: bool = False,
    refine: Refinement | None = None,
) -> Estimate:
    """Estimates for the asked keys, or for every key of a closed vocabulary.

    Intervals are normal ones where counts are large, and come from the tails of the counts elsewhere, see
    `hubbub.server.intervals`; simultaneous ones hold for all asked keys together (Bonferroni). `refine` asks for
    a biased refinement, see `hubbub.server.recovery.refine`; left out, the mechanism says (none but for those that
    make fewer measurements than there are keys).
    """
    if not 0 < level < 1:
        raise Refused(f"The interval level must be between 0 and 1, not {level:g}.")
    if state.count < max(task.minimum_reports, 1):
        raise Refused(
            f"{state.count} reports have arrived; estimates are withheld below {max(task.minimum_reports, 1)}."
        )
    quantity = quantity or task.mechanism.quantities[0]
    if quantity not in (*task.mechanism.quantities, "sum"):
        offered = ", ".join(task.mechanism.quantities)
        raise Refused(
            f"Mechanism {task.mechanism.name} cannot estimate {quantity!r} here; it offers {offered}."
        )
    if keys is None:
        ids = task.keys.all_ids()
        names = tuple(task.keys.name_of(place) for place in range(task.keys.count))
    else:
        ids, names = task.keys.ids_of(keys), tuple(str(key) for key in keys)
    odds = (1 - level) / (len(names) if simultaneous and names else 1)
    width = -NormalDist().inv_cdf(odds / 2)
    moments = task.mechanism.moments(state, task.keys, ids)
    notes = list(task.mechanism.remarks)
    if task.keys.kind == "folded":
        notes.append(
            f"Open vocabulary folded to {task.keys.bits} bits: any other key shares a given key's code "
            f"with probability {task.keys.alias_odds:.2g}, and is then counted with it."
        )
    base: Quantity = quantity
    if quantity == "sum":
        base = "mean" if "mean" in task.mechanism.quantities else "frequency"
    value, error, low, high, flagged = _quantity(task, moments, base, width)
    strength = np.abs(value) / np.maximum(error, 1e-300)
    if quantity == "conditional":
        assert moments.frequency is not None
        assert moments.frequency_variance is not None
        strength = moments.frequency / np.sqrt(np.maximum(moments.frequency_variance, 1e-300))
    if moments.counts is not None and names:
        wanted = Wanted(
            base,
            odds,
            Range(task.low, task.high, task.scale.center, task.scale.half),
            None if simultaneous else tie_levels(moments.counts, state, ids),
        )
        low, high = wanted.limits(moments.counts, low, high, flagged)
        low, high = np.minimum(low, value), np.maximum(high, value)
        unknown = int((np.asarray(moments.counts.reports) == 0).sum())
        if unknown:
            notes.append(
                f"{unknown:,} keys were in no report: nothing is known about them, their value is given as 0."
            )
    how = refine or task.mechanism.refinement
    if how != "none":
        from hubbub.server.recovery.refine import Columns, refined

        better = refined(task, state, ids, base, how, width, Columns(value, error, low, high))
        value, error, low, high = better.value, better.error, better.low, better.high
        notes += better.notes
    if quantity == "sum":
        value, error, low, high = (state.count * column for column in (value, error, low, high))
    if flagged.any():
        notes.append("? marks keys whose frequency cannot be told from 0: nothing is known about their mean.")
    return Estimate(
        names,
        value,
        error,
        low,
        high,
        strength,
        quantity,
        level,
        simultaneous,
        state.count,
        task.guarantee,
        flagged,
        tuple(notes),
    )


def _quantity(
    task: Task, moments: Moments, quantity: Quantity, width: float
) -> tuple[Floats, Floats, Floats, Floats, Bools]:
    """value, error, low, high and flags of a quantity in the units of the task."""
    if quantity == "frequency":
        value, variance = moments.frequency, moments.frequency_variance
    elif moments.frequency is None or task.scale.center == 0:
        value = None if moments.mean is None else moments.mean * task.scale.half
        variance = None if moments.mean_variance is None else moments.mean_variance * task.scale.half**2
    else:
        value, variance = _uncentered(task, moments)
    if quantity == "conditional":
        return _conditional(task, moments, width)
    assert value is not None
    assert variance is not None
    error = np.sqrt(variance)
    return value, error, value - width * error, value + width * error, np.zeros(len(value), dtype=bool)


def _uncentered(task: Task, moments: Moments) -> tuple[Floats, Floats]:
    """center * frequency + half * mean, with its variance."""
    center, half = task.scale.center, task.scale.half
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    value = center * moments.frequency + half * moments.mean
    variance = (
        center**2 * moments.frequency_variance
        + half**2 * moments.mean_variance
        + 2 * center * half * moments.covariance
    )
    return value, variance


def _conditional(task: Task, moments: Moments, width: float) -> tuple[Floats, Floats, Floats, Floats, Bools]:
    """mean / frequency with a Fieller interval, cut to the value range.

    Fieller: all ratios q for which mean - q * frequency is within `width` standard errors of 0. Where the
    frequency itself is that close to 0 the set is unbounded: the whole range is given and flagged.
    """
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    f, vf, m, vm = moments.frequency, moments.frequency_variance, moments.mean, moments.mean_variance
    cov = moments.covariance
    flagged = f <= width * np.sqrt(vf)
    if moments.counts is not None:
        flagged = moments.counts.named < least_named(moments.counts, 2 * NormalDist().cdf(-width))
    vf, vm = np.where(flagged, 0.0, vf), np.where(flagged, 0.0, vm)
    safe = np.where(flagged, 1.0, f)
    ratio = np.where(flagged, 0.0, m / safe)
    a = np.where(flagged, 1.0, np.maximum(safe**2 - width**2 * vf, 1e-300))
    b = m * safe - width**2 * cov
    c = m**2 - width**2 * vm
    root = np.sqrt(np.maximum(b**2 - a * c, 0))
    low, high = np.where(flagged, -1.0, (b - root) / a), np.where(flagged, 1.0, (b + root) / a)
    error = np.sqrt(np.maximum(vm - 2 * ratio * cov + ratio**2 * vf, 0)) / np.abs(safe)
    error = np.where(flagged, np.inf, error)
    bottom, top = task.low, task.high

    def restore(scaled: Floats) -> Floats:
        return np.clip(task.scale.center + task.scale.half * scaled, bottom, top)

    value = np.where(flagged, (bottom + top) / 2, restore(ratio))
    return value, task.scale.half * error, restore(low), restore(high), flagged


def _parquet_bytes(table: Any) -> bytes:
    sink = io.BytesIO()
    optional("pyarrow.parquet", "lake").write_table(table, sink)
    return sink.getvalue()
