"""How much is lost to max_entries: records that are too long are sampled down, and their keys come out too low.

A person with L entries of whom k are kept keeps a given one with probability k / L. A key that only such people hold
comes out too low by the factor L / k; a key that short and long records hold alike by 1 / (1 - lost), where lost is the
mean of 1 - k / L over all records (0 for short ones). The holder of a table can count both. A collector knows neither,
unless the task has `count_lengths`: then both are estimated from the reports like any other key.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task

#: The share that is lost from which on it is a warning and no longer a note.
WORTH_A_WARNING = 0.05


@dataclass(frozen=True)
class Truncation:
    """What is known about records that were sampled down.

    `longer` is their share of all records, `lost` what a key loses that short and long records hold alike, both with
    standard errors. From a table also the share of all entries that was dropped, and the longest record over what it
    kept, which is the largest factor by which a share may be too low. `suggested` is what a planner would take for
    max_entries.
    """

    limit: int
    source: Literal["table", "reports"]
    longer: float
    longer_error: float
    lost: float
    lost_error: float
    dropped: float | None = None
    factor: float | None = None
    suggested: int | None = None
    #: How many keys would stand out with it, by the plan.
    outstanding: int | None = None

    @property
    def share(self) -> float:
        """The share of entries that was dropped if that is known, otherwise what keys lose that are held alike."""
        return self.lost if self.dropped is None else self.dropped

    @property
    def alarming(self) -> bool:
        """Whether estimates are visibly too low; what may be noise is no alarm."""
        return self.share > max(WORTH_A_WARNING, 2 * self.lost_error)

    def words(self) -> str:
        """What was lost, and what that does to estimates."""
        if self.source == "table":
            text = (
                f"{_percent(self.share)} of all entries were dropped, because records count with at most {self.limit}: "
                f"estimates are of records after sampling down, and a share may be too low by a factor of up to "
                f"{self.factor:.3g}. (Counted in the table itself: no guarantee covers these numbers.)"
            )
        else:
            text = (
                f"{_percent(self.longer)} ± {_percent(self.longer_error)} of all records were longer than {self.limit} "
                "entries. Estimates are of records after sampling down: a key that short and long records hold alike "
                f"comes out {_percent(self.lost)} ± {_percent(self.lost_error)} too low, one that long records hold "
                "more often even lower. (Counted privately, in the reports.)"
            )
        if self.suggested is None:
            return text
        kept = "By the plan, this max_entries is the right one all the same"
        other = f"By the plan, max_entries = {self.suggested:,} would have the least error"
        hopeless = ", though no key is planned to stand out even then" if self.outstanding == 0 else ""
        return f"{text} {kept if self.suggested == self.limit else other}{hopeless}."

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def corrected_words(truncation: Truncation) -> str:
    """What was done, and on what assumption."""
    return (
        f"Corrected for what was lost: divided by {1 - truncation.lost:.3f} ± {truncation.lost_error:.3f}, which the "
        "intervals count. This assumes that short and long records hold a key alike; keys that long records hold more "
        "often still come out too low, others too high."
    )


def unknown_words(limit: int) -> str:
    """What is to be said where lengths are not known."""
    entries = "one entry" if limit == 1 else f"at most {limit} entries"
    advice = "" if limit == 1 else "; a task with count_lengths would say by how much"
    return (
        f"Estimates are of records after sampling down to {entries}. How many were longer is not known here, and their "
        f"keys come out too low{advice}."
    )


def truncation_of_table(task: Task, lengths: Int64s) -> Truncation | None:
    """What is lost of records of these lengths; None if the mechanism takes records whole."""
    limit = task.mechanism.max_entries
    if not task.mechanism.limits_entries:
        return None
    kept = np.where(lengths > limit, kept_of_long(task), lengths)
    known = np.maximum(lengths, 1)
    return Truncation(
        limit,
        "table",
        float((lengths > limit).mean()) if len(lengths) else 0.0,
        0.0,
        float((1 - kept / known)[lengths > 0].sum() / max(len(lengths), 1)),
        0.0,
        float((lengths - kept).sum() / max(lengths.sum(), 1)),
        float((known / np.maximum(kept, 1)).max(initial=1.0)),
    )


def kept_of_long(task: Task) -> int:
    """Entries that are kept of a record that is too long: one makes room for the key that says so."""
    return task.mechanism.max_entries - task.keys.count_lengths


def truncation_in_reports(task: Task, state: State) -> Truncation | None:
    """What the reports say, if the task has them count lengths.

    The two keys that count have the largest value, so where a mechanism estimates means only, their scaled means are
    their frequencies. Estimates are unbiased before they are cut at 0, which is the least that can be lost.
    """
    if not task.keys.count_lengths:
        return None
    moments = task.mechanism.moments(state, task.keys, task.keys.length_ids())
    share, variance = moments.frequency, moments.frequency_variance
    if share is None or variance is None:
        share, variance = moments.mean, moments.mean_variance
    assert share is not None
    assert variance is not None
    errors = np.sqrt(variance)
    lost = min(max(float(share[1]), 0.0), 1.0)
    # A record has one of the two keys at most, so that their estimates are, if anything, negatively correlated.
    longer = min(max(float(share.sum()), lost), 1.0)
    limit = task.mechanism.max_entries
    return Truncation(limit, "reports", longer, float(np.hypot(*errors)), lost, float(errors[1]))


def corrected(
    columns: tuple[Floats, Floats, Floats, Floats], truncation: Truncation, width: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """value, error, low and high of keys that short and long records hold alike, before sampling down.

    The estimate is divided by r = 1 - lost, an estimate itself. The interval is that of a quotient of two independent
    estimates (Donner and Zou 2012): for normal ones it is Fieller's, and intervals that are not symmetric keep their
    shape. `width` is half of r's own interval in standard errors.
    """
    value, error, low, high = columns
    kept, slack = 1 - truncation.lost, width * truncation.lost_error
    if kept <= 2 * slack:
        raise Refused(
            "The count of lengths does not say well enough how much was lost "
            f"({_percent(truncation.lost)} ± {_percent(truncation.lost_error)}): nothing can be corrected by it."
        )
    square = kept**2 - slack**2

    def reach(half: Floats) -> Floats:
        return np.sqrt((value * slack) ** 2 + half**2 * square)

    return (
        value / kept,
        np.hypot(error / kept, value * truncation.lost_error / kept**2),
        (value * kept - reach(value - low)) / square,
        (value * kept + reach(high - value)) / square,
    )


def _percent(share: float) -> str:
    """Two digits, for people."""
    if share <= 0 or not math.isfinite(share):
        return "0%"
    digits = max(1 - math.floor(math.log10(100 * share)), 0)
    return f"{100 * share:.{min(digits, 4)}f}%"
