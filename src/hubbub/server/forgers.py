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

No more reports can have been forged for a key than there are for it. Where m are more, as many are taken out as there
are, and the others in every other way, or not at all: what can be taken out is the polygon cut by these limits, and its
corners are those in which one kind is used up, and the rest are of one other kind.

Three more things are made safe. Ties are not broken by the state, which forgers could try out until it suits them.
Errors are those of n - m reports, with the larger of the spreads before and after. And what reports tell about others,
how many records are empty or too long, is taken for what makes intervals widest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.mechanisms.shared.several_keys import most_heard
from hubbub.model.count_laws import Counts
from hubbub.model.influence import Influence
from hubbub.model.mechanism import Moments, Quantity
from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import Refused
from hubbub.server.evidence import Remembered
from hubbub.server.intervals import count_variance

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

#: Less than this much of a vote is a rounding error.
_NOTHING = 1e-9
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
    down = found.down * heard_as(task)
    return replace(found, down=down, replaced=found.replaced + down - found.down).where(task.keys.asked_share)


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
        each = task.mechanism.seeds_per_report
        best = "" if each == 1 else f", and of the {each} for each report they take the best"
        return f" Seeds of reports come from the collector: forgers have what they are handed, and no others{best}."
    return f" Forgers choose the seeds of reports, so each can do that to {several:,.0f} keys of their choice at once."


def _heard_as(task: Task) -> int:
    """As how many reports one can be heard.

    In a tree, reports are counted by a coefficient that is above 1 for some seeds (`Hashed.heard_in`): one such report
    counts as several, and names a key once at most. So it is that much against a key, and no more for it than others.
    """
    if task.keys.tree is None or task.mechanism.empty(task.keys).per_code:
        return 1
    assert isinstance(task.mechanism, Hashed)
    return most_heard(task.mechanism, task.keys)


heard_as = Remembered(_heard_as)


def without(task: Task, moments: Moments, heard: int, forgers: int) -> Iterator[Moments]:
    """What the other reports say if `forgers` reports had all said the same of every key, for each extreme of it."""
    if forgers >= heard:
        raise Refused(
            f"If {float(forgers):,.12g} of {heard:,} reports may be forged, nothing is known; state fewer forgers than "
            "reports."
        )
    corners, times = task.mechanism.effects(), heard_as(task)
    for place, corner in enumerate(corners):
        out = min(forgers * (times if np.nan_to_num(corner).min() < 0 else 1), heard - 1)
        if moments.counts is None:
            yield _of_averages(moments, corner, heard, out)
            continue
        counts = moments.counts
        # What is told of others is told by reports that may be forged.
        counts = replace(
            counts, signed_noise=(max(counts.signed_noise[0], counts.others), counts.signed_noise[1])
        )
        each = None if isinstance(counts.reports, np.ndarray) else counts.reports / heard
        left, rest = _taken_out(counts, corner, each, out)
        yield _of_counts(moments, left)
        for other in np.delete(corners, place, axis=0) if np.any(rest > 0) else ():
            yield _of_counts(moments, _taken_out(left, other, each, rest)[0])


def _taken_out(counts: Counts, corner: Floats, each: float | None, forgers: Any) -> tuple[Counts, Any]:
    """The counts without as many reports that say this of a key as there can be, and how many forgers are left over.

    More than were counted for a key, or against it, cannot have been forged so: the others have said something else, or
    have not been forged. A forger's report is `each` of those that are counted, or None where a report speaks of one
    key only: then there are as many as there are about the key.
    """
    said, apart = np.nan_to_num(corner), each is None
    if apart and not said.any():  # reports about other keys
        return counts, 0
    each = 1.0 if each is None else each
    most: Any = np.minimum(forgers, counts.reports) if apart else forgers
    names = 0.0 if np.isnan(corner[0]) else each * (counts.idle + counts.gain * said[0])
    votes = each * counts.signed_gain * (said[0] if np.isnan(corner[1]) else said[1])
    named, signed = counts.named, counts.signed
    if named is not None:
        sides = [(named, names)]
        if signed is not None:
            sides += [(named + signed, names + votes), (named - signed, names - votes)]
        for counted, taken in sides:
            if taken > _NOTHING:
                most = np.minimum(most, np.floor(counted / taken + _NOTHING))
        if not apart and np.all(most == forgers):
            most = forgers
        named = np.maximum(np.rint(named - most * names), 0).astype(np.int64)
    reports: Any = np.rint(counts.reports - each * most).astype(np.int64)
    reports = reports if isinstance(reports, np.ndarray) else int(reports)
    if named is not None and apart:  # of those that are left, none names its key twice
        named = np.minimum(named, reports)
    if signed is not None:
        signed = np.rint(signed - most * votes).astype(np.int64)
        signed = signed if named is None else np.clip(signed, -named, named)
    return replace(counts, reports=reports, named=named, signed=signed), forgers - most


def _of_counts(moments: Moments, left: Counts) -> Moments:
    """From the counts that are left, with what these tell of how frequency and mean go together."""
    counts = moments.counts
    assert counts is not None
    fewer = np.maximum(counts.reports, 1) / np.maximum(left.reports, 1)
    wider = fewer * _growth(_spread(counts), _spread(left))
    found = replace(
        _scaled(moments, wider),
        frequency=None if moments.frequency is None else left.frequency,
        mean=None if moments.mean is None else left.mean,
        counts=left,
    )
    if counts.signed is not None and found.mean_variance is not None:
        more = np.maximum(wider, fewer * _growth(_signed_spread(counts), _signed_spread(left)))
        found = replace(found, mean_variance=moments.mean_variance * more)
    if moments.covariance is None or counts.named is None:
        return found
    return replace(found, covariance=fewer * (moments.covariance - _together(counts)) + _together(left))


def _growth(before: Floats, after: Floats) -> Floats:
    """How many times as large the second is, at least once."""
    return np.maximum(after / np.maximum(before, 1e-300), 1.0)


def _spread(counts: Counts) -> Floats:
    """The variance of what counts for a frequency, per report."""
    return np.asarray(count_variance(counts) / np.maximum(counts.reports, 1))


def _signed_spread(counts: Counts) -> Floats:
    """The same for a mean: of the votes, that of their mean being the same for all, and that of drawing holders."""
    told, square = counts.told, counts.square
    middle = np.clip(counts.mean, -told, told)
    drawn = counts.chance(told) * np.maximum(square - middle**2, 0)
    return np.asarray(counts.voted(told) - counts.signed_gain**2 * (square - drawn))


def _together(counts: Counts) -> Floats:
    """The covariance of frequency and mean, as counts tell it: where holders are named more often, their votes are."""
    told = counts.told
    each = (1 - counts.idle - counts.gain) / counts.gain + counts.chance(told) * (1 - told)
    return np.asarray(np.clip(counts.mean, -told, told) * each / np.maximum(counts.reports, 1))


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
        spread=None,
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
