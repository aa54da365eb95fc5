"""Intervals that hold although some reports are forged.

Of n reports, at most m are forged, and nobody knows which. What they contribute to a key is m times a point of the
polygon of all that a report can say (`Mechanism.effects`), whoever made them up, and whatever they had seen before. So
what the n - m honest reports say of the key is known but for that point. For every corner of the polygon, the interval
is made that would be given if the m reports that say this were taken out; the interval with forgers reaches from the
least to the largest of their limits.

Why it holds. Limits grow with what was counted (of a quotient m / f: all q with |m - q f| within its error, and m - q f
is linear in what was taken out), so over the polygon they are extreme at corners. One point of it is the truth about
the forged reports; the interval for that point is made of honest reports alone, and covers with the probability that
it says. With fewer forged reports than m there is less to take out, and all that is left lies in between.

Two more things are made safe. Ties are not broken by the state, which forgers could try out until it suits them. And
errors are those of n - m reports, with the larger of the spreads before and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.model.count_laws import Counts
from hubbub.model.influence import Influence
from hubbub.model.mechanism import Moments, Quantity
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused
from hubbub.server.intervals import count_variance

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

#: Where a report is about one key only: which keys a bound is for.
USUAL_KEY = " that as many reports are about as about any other"


def how_many(forgers: float, reports: int) -> int:
    """Forged reports: a number, or below 1 a share of all reports, rounded up."""
    if not 0 <= forgers < math.inf or (forgers >= 1 and forgers != int(forgers)):
        raise Refused(f"Forgers are a whole number, or a share of all reports below 1, not {forgers:g}.")
    return int(forgers) if forgers >= 1 else math.ceil(forgers * reports - 1e-9)


def influence_on(task: Task, quantity: Quantity, frequency: float = 0.0) -> Influence:
    """What a report does to a key in the units of a task, and by its share of reports that are heard."""
    found = task.mechanism.influence(quantity, frequency, task.scale.center, task.scale.half)
    return found.where(task.keys.asked_share)


def forgers_note(forgers: int, reports: int) -> str:
    """What is promised."""
    return (
        f"Intervals hold if at most {forgers:,} of the {reports:,} reports are forged, whatever these say: they are "
        f"about the {reports - forgers:,} or more people whose reports are not. Values are those of all reports."
    )


def influence_words(task: Task) -> str:
    """What one forged report, and one in a hundred, can do to the main thing that a task estimates of a key."""
    quantity = next(each for each in task.mechanism.quantities if each != "conditional")
    try:
        found = influence_on(task, quantity)
    except Refused as problem:
        return str(problem)
    what = "share" if quantity == "frequency" else "mean"
    usual = USUAL_KEY if task.mechanism.heard_share < 1 else ""
    return (
        f"Anybody can send a report that no record stands behind. One among n reports moves the {what} of a key{usual} "
        f"by at most {found.most:.3g} / n, and if 1% of all reports are forged, by at most {found.moved(0.01):.3g}, "
        f"whatever they say.{_several_words(task, quantity)}"
    )


def _several_words(task: Task, quantity: Quantity) -> str:
    """To how many keys a report can do that, if it is more than one."""
    several = task.mechanism.keys_at_once(quantity, task.keys)
    several = min(several, task.keys.count) if task.keys.kind == "closed" else several
    if several < 2:
        return ""
    if task.seed_from == "server":
        return " Seeds of reports come from the collector: forgers have those that they are handed, and no others."
    return f" Forgers choose the seeds of reports, so each can do that to {several:,.0f} keys of their choice at once."


def without(task: Task, moments: Moments, heard: int, forgers: int) -> Iterator[Moments]:
    """What the other reports say if `forgers` reports had all said the same of every key, for each extreme of it."""
    if forgers >= heard:
        raise Refused(
            f"If {forgers:,} of {heard:,} reports may be forged, nothing is known; state fewer forgers than reports."
        )
    for corner in task.mechanism.effects():
        out = min(forgers * _heard_as(task, corner), heard - 1)
        if moments.counts is not None:
            yield _of_counts(moments, moments.counts, corner, heard, out)
        else:
            yield _of_averages(moments, corner, heard, out)


def _heard_as(task: Task, corner: Floats) -> int:
    """As how many reports one is heard that says this.

    In a tree, reports are counted by a coefficient that is 2 for some seeds (`Hashed.heard_in`): one such report counts
    as two, and names a key once at most. So it is that much against a key, and no more for it than others are.
    """
    twice = task.keys.tree is not None and not task.mechanism.empty(task.keys).per_code
    return 2 if twice and np.nan_to_num(corner).min() < 0 else 1


def _of_counts(moments: Moments, counts: Counts, corner: Floats, heard: int, forgers: int) -> Moments:
    """From the counts. Where a report speaks of one key only, as many are taken out as there are about the key."""
    said = np.nan_to_num(corner)
    if isinstance(counts.reports, np.ndarray):
        if not said.any():  # reports about other keys
            return moments
        out: Any = np.minimum(forgers, counts.reports)
        each = 1.0
    else:
        out, each = forgers, counts.reports / heard
    reports = np.rint(counts.reports - each * out).astype(np.int64)
    named, signed = counts.named, counts.signed
    if named is not None and not np.isnan(corner[0]):
        named = np.maximum(np.rint(named - out * each * (counts.idle + counts.gain * said[0])), 0)
        named = named.astype(np.int64)
        if isinstance(counts.reports, np.ndarray):  # of those that are left, none names its key twice
            named = np.minimum(named, reports)
    if signed is not None:
        of_values = said[0] if np.isnan(corner[1]) else said[1]
        moved = np.rint(signed - out * each * counts.signed_gain * of_values).astype(np.int64)
        signed = moved if named is None else np.clip(moved, -named, named)
    left = replace(
        counts,
        reports=reports if isinstance(counts.reports, np.ndarray) else int(reports),
        named=named,
        signed=signed,
    )
    before = count_variance(counts) / np.maximum(counts.reports, 1)
    after = count_variance(left) / np.maximum(reports, 1)
    wider = counts.reports / np.maximum(reports, 1) * np.maximum(after / np.maximum(before, 1e-300), 1.0)
    return replace(
        _scaled(moments, wider),
        frequency=None if moments.frequency is None else left.frequency,
        mean=None if moments.mean is None else left.mean,
        counts=left,
    )


def _of_averages(moments: Moments, corner: Floats, heard: int, forgers: int) -> Moments:
    """From averages. Variances that are measured may be of forged reports, and those that are told from them as well.

    The sum of squares of honest reports is at most that of all, and the share that is no noise is at least 0.
    """
    left = heard - forgers
    frequency, mean = moments.frequency, moments.mean
    given = np.isnan(corner[0])  # known beforehand: a part of the mean that no report contributes
    known: Any = 0.0 if frequency is None or not given else frequency
    if frequency is not None and not given:
        frequency = (heard * frequency - forgers * corner[0]) / left
    if mean is not None:
        mean = (heard * (mean + known) - forgers * corner[1]) / left - known
    wider = _scaled(moments, (heard / left) ** 2)

    def no_share(variance: Floats | None, column: Floats | None) -> Floats | None:
        return None if variance is None or column is None else variance + np.clip(np.abs(column), 0, 1) / left

    return replace(
        wider,
        frequency=frequency,
        frequency_variance=wider.frequency_variance
        if given
        else no_share(wider.frequency_variance, moments.frequency),
        mean=mean,
        mean_variance=no_share(wider.mean_variance, moments.mean),
    )


def _scaled(moments: Moments, factor: Any) -> Moments:
    """The same with larger variances."""

    def times(column: Floats | None) -> Floats | None:
        return None if column is None else column * factor

    return replace(
        moments,
        frequency_variance=times(moments.frequency_variance),
        mean_variance=times(moments.mean_variance),
        covariance=times(moments.covariance),
    )


def least_away(distances: Floats) -> Floats:
    """How far keys are from 0 whatever the forged reports said: 0 where one thing puts them above and one below."""
    low, high = distances.min(axis=0), distances.max(axis=0)
    return np.where(low > 0, low, np.where(high < 0, high, 0.0))


def largest_lift(task: Task, quantity: Quantity, forgers: int, others: float, downwards: bool) -> float:
    """How far forged reports alone can take a key that nobody has from 0, seen from so many others that are heard.

    Of a conditional mean: how far its frequency. What is not further away does not stand out, however many there are.
    """
    asked: Quantity = "frequency" if quantity == "conditional" else quantity
    found = task.mechanism.influence(asked, center=task.scale.center, half=task.scale.half)
    return forgers * (found.down if downwards else found.up) / others
