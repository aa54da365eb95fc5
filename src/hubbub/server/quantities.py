"""A quantity for some keys, in the units of the task: value, error, interval, and how far it is from noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from hubbub.model.count_laws import Spread
from hubbub.model.mechanism import Moments, Quantity, Refinement
from hubbub.primitives.arrays import Bools, Floats, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.server.cases import Range
from hubbub.server.findings import attainable, floor_for, most_of, side_of, strength, towards, width_for
from hubbub.server.forgers import largest_lift, least_away, without
from hubbub.server.intervals import Wanted, tie_levels
from hubbub.server.quotients import least_named, selected_normal_limits

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task


@dataclass(frozen=True)
class Question:
    """What is asked about which keys: intervals of which level, for single keys or for all together.

    All together are these keys in each of `groups` states.
    """

    ids: UInt64s
    quantity: Quantity
    level: float
    simultaneous: bool
    refine: Refinement
    groups: int = 1
    #: Reports that may be forged: intervals hold all the same, see `hubbub.server.forgers`.
    forgers: int = 0
    #: Keys that the asked ones were chosen from. Somebody may ask for the luckiest of all after a look at the others.
    candidates: int = 0
    #: Of the entries that were reported, the share that chance drew from longer records, and the most for one key.
    drawn: tuple[float, float] = (0.0, np.inf)

    @property
    def together(self) -> int:
        """How many numbers are looked through."""
        return len(self.ids) * self.groups

    @cached_property
    def apart(self) -> float:
        """Standard errors from 0 of what stands out among these keys, and those that they were chosen from."""
        return width_for(self.level, max(len(self.ids), self.candidates) * self.groups)

    @cached_property
    def width(self) -> float:
        """Half of an interval, in standard errors."""
        return width_for(self.level, self.together if self.simultaneous else 1)


@dataclass(frozen=True)
class Answer:
    """Value, error, low and high; how far from noise each key is, the least that stands out, and what is unknown."""

    columns: tuple[Floats, Floats, Floats, Floats]
    significance: Floats
    floor: float
    unknown: Bools
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Judged:
    """Value, error and limits, how far from 0 in standard errors, and what is unknown."""

    value: Floats
    error: Floats
    low: Floats
    high: Floats
    distance: Floats
    unknown: Bools


def offered_quantity(task: Task, asked: Quantity | None) -> Quantity:
    """What is asked for, or the main thing; what the mechanism cannot estimate is refused."""
    quantity = asked or task.mechanism.quantities[0]
    if quantity not in (*task.mechanism.quantities, "sum"):
        offered = ", ".join(task.mechanism.quantities)
        raise Refused(
            f"Mechanism {task.mechanism.name} cannot estimate {quantity!r} here; it offers {offered}."
        )
    if quantity == "sum" and task.messages:
        raise Refused("Sums need the number of people, which a random number of messages each does not tell.")
    return quantity


def base_of(task: Task, quantity: Quantity) -> Quantity:
    """What is estimated: of a sum, what it is a multiple of, the mean or the frequency."""
    if quantity != "sum":
        return quantity
    return "mean" if "mean" in task.mechanism.quantities else "frequency"


def answer(task: Task, state: State, question: Question) -> Answer:
    """From the state of all reports; of a sum, what it is a multiple of (`base_of`)."""
    base = base_of(task, question.quantity)
    plain = task.mechanism.moments(state, task.keys, question.ids)
    reports = task.mechanism.heard(state, task.keys)
    people = task.messages or task.keys.tree is not None or task.rotation > 1

    def as_drawn(moments: Moments, reports: int) -> Moments:
        """With what drawing adds, as far as these moments tell it."""
        if not (people or question.drawn[0]):
            return moments
        return of_people_drawn(moments, max(reports, 1), *(() if people else question.drawn))

    moments = as_drawn(plain, reports)
    side, notes = side_of(task, question.quantity), []
    floor = floor_for(task, base, max(reports, 1), question.apart)
    wanted = _wanted(task, state, question, base, moments)
    found = _judged(task, moments, base, question.width, wanted)
    if base == "conditional" and moments.counts is None and not question.simultaneous:
        found = _as_selected(task, moments, found, question)
    if moments.spread is not None and len(question.ids):
        # How many entries records have, where they are taken whole, is known by now.
        floor = question.apart * _scale_of(task, base) * math.sqrt(float(moments.spread.absent.mean()))
    if wanted is not None and moments.counts is not None:
        floor = most_of(task, base) * wanted.least_share(moments.counts, question.apart)
        silent = int((np.asarray(moments.counts.reports) == 0).sum())
        if silent:
            notes.append(
                f"{silent:,} keys were in no report: nothing is known about them, their value is given as 0."
            )
    if question.forgers:
        others = [found]
        for left in without(task, plain, reports, question.forgers):
            left = as_drawn(left, reports - question.forgers)
            others.append(_judged(task, left, base, question.width, wanted))
        found = _joined(task, others)
        floor += largest_lift(task, base, question.forgers, reports - question.forgers, side == "below")
    value, error, low, high = found.value, found.error, found.low, found.high
    significance = towards(found.distance, side)
    if question.refine != "none":
        from hubbub.server.recovery.refine import Columns, refined

        columns = Columns(value, error, low, high)
        better = refined(task, state, question.ids, base, question.refine, question.width, columns)
        value, error, low, high = better.value, better.error, better.low, better.high
        notes += better.notes
        significance = strength(value, error, side)
        floor = question.apart * float(np.median(error)) if len(error) else floor
    floor = attainable(floor, task, base)
    return Answer((value, error, low, high), significance, floor, found.unknown, tuple(notes))


def _wanted(task: Task, state: State, question: Question, base: Quantity, moments: Moments) -> Wanted | None:
    """Intervals from counts, where estimates are made of them. Forgers could try out how ties are broken."""
    if moments.counts is None or not len(question.ids):
        return None
    safe = question.simultaneous or question.forgers > 0
    values = Range(task.low, task.high, task.scale.center, task.scale.half)
    if base == "frequency" and moments.counts.named is None:  # the mean of values that are all 1
        base, values = "mean", Range(0.0, 1.0, 0.0, 1.0)
    return Wanted(
        base,
        (1 - question.level) / (question.together if question.simultaneous else 1),
        values,
        None if safe else tie_levels(moments.counts, state, question.ids),
        1 if question.simultaneous else question.together,
    )


def _judged(task: Task, moments: Moments, base: Quantity, width: float, wanted: Wanted | None) -> _Judged:
    """Limits and distances: from counts where they are small, normal ones elsewhere."""
    value, error, low, high, unknown = normal_limits(task, moments, base, width)
    if base == "conditional":
        assert moments.frequency is not None
        assert moments.frequency_variance is not None
        distance = strength(moments.frequency, np.sqrt(moments.frequency_variance), "above")
    elif moments.spread is not None:
        distance = strength(value, _scale_of(task, base) * np.sqrt(moments.spread.absent), "above")
    else:
        distance = strength(value, error, "above")
    if wanted is not None and moments.counts is not None:
        low, high = wanted.limits(moments.counts, low, high, unknown)
        low, high = np.minimum(low, value), np.maximum(high, value)
        distance = wanted.surprise(moments.counts)
    return _Judged(value, error, low, high, distance, unknown)


def _as_selected(task: Task, moments: Moments, found: _Judged, question: Question) -> _Judged:
    """Conditional means that were selected for their frequency, of mechanisms without counts, one key at a time.

    For all keys together Fieller's intervals are wide enough: they bound what averages over a frequency do not.
    """
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    # Further from 0, hardly any were selected.
    shown = ~found.unknown
    shown &= moments.frequency < (question.apart + 4) * np.sqrt(moments.frequency_variance)
    names = ("frequency", "frequency_variance", "mean", "mean_variance", "covariance")
    some = replace(moments, **{name: getattr(moments, name)[shown] for name in names})
    low, high = found.low.copy(), found.high.copy()
    for ends, limits in zip(
        (low, high), selected_normal_limits(some, question.width, question.apart), strict=True
    ):
        ends[shown] = np.clip(task.scale.center + task.scale.half * limits, task.low, task.high)
    return replace(found, low=np.minimum(low, found.value), high=np.maximum(high, found.value))


def _joined(task: Task, parts: list[_Judged]) -> _Judged:
    """The first one's values, with limits and distances that hold whichever of them is true.

    What is unknown in one of them (a conditional mean) is unknown, with the value and error of whatever is so.
    """
    unknown = np.logical_or.reduce([part.unknown for part in parts])
    return replace(
        parts[0],
        value=np.where(unknown, (task.low + task.high) / 2, parts[0].value),
        error=np.where(unknown, np.inf, parts[0].error),
        low=np.minimum.reduce([part.low for part in parts]),
        high=np.maximum.reduce([part.high for part in parts]),
        distance=least_away(np.stack([part.distance for part in parts])),
        unknown=unknown,
    )


def of_people_drawn(moments: Moments, reports: int, part: float = 1.0, most: float = np.inf) -> Moments:
    """The same where reports are those of people drawn at random: variances are larger.

    That is so where everybody sent a random number of messages (Poisson): given how many there are, each is one of a
    person drawn at random. And in a tree, where seeds draw who is asked for whole keys, and where devices take turns.
    Nobody is drawn twice there, so of one collection this is a little too much (of w turns, by 1 / w); of the
    difference of two turns, which have nobody in common, it is just right.

    So to the variance for people who all send one comes that of drawing as many people: of a frequency f (1 - f), of a
    mean E[v^2] - E[v]^2, of both together E[v] (1 - f), each divided by the messages. The law of the signed count has
    it already: it knows the mean alone.

    If records are sampled down, `part` is the probability with which an entry that is kept might not have been. Then
    these are part f, part E[v^2] and part E[v], as far as that is less, and `most` is what they are at most for a key.
    """
    counts, share, mean = moments.counts, moments.frequency, moments.mean
    held = np.ones(1) if share is None else np.clip(share, 0, 1)
    if share is None and mean is not None and part < 1:
        held = np.clip(np.abs(mean), 0, 1)  # at least, and that many hold it if values are the largest
    drawn = np.minimum(part, most / np.maximum(held, 1e-12))
    missed, found = np.minimum(drawn, 1 - held), moments
    if share is not None and moments.frequency_variance is not None:
        found = replace(found, frequency_variance=moments.frequency_variance + held * missed / reports)
    if mean is not None and moments.mean_variance is not None:
        square = held if counts is None or counts.signed is None else counts.square
        spread = np.minimum(square - np.clip(mean, -held, held) ** 2, drawn * square)
        found = replace(found, mean_variance=moments.mean_variance + np.maximum(spread, 0) / reports)
    if mean is not None and moments.covariance is not None:
        found = replace(found, covariance=moments.covariance + np.clip(mean, -held, held) * missed / reports)
    return found if counts is None else replace(found, counts=replace(counts, drawn=part, drawn_most=most))


def normal_limits(
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
    error, unflagged = np.sqrt(variance), np.zeros(len(value), dtype=bool)
    if moments.spread is None:
        return value, error, value - width * error, value + width * error, unflagged
    scale = _scale_of(task, quantity)
    low, high = moments.spread.limits(value / scale, width, _wider(moments, moments.spread))
    return value, error, np.minimum(scale * low, value), np.maximum(scale * high, value), unflagged


def _scale_of(task: Task, base: Quantity) -> float:
    """What 1 in scaled units is in those of the task."""
    return 1.0 if base == "frequency" else task.scale.half


def _wider(moments: Moments, spread: Spread) -> Floats:
    """How much larger variances are than reports tell, because people or entries are drawn."""
    value, variance = moments.frequency, moments.frequency_variance
    if value is None or variance is None:
        value, variance = moments.mean, moments.mean_variance
    assert value is not None
    assert variance is not None
    told = spread.at(value)
    return np.where(told > 0, variance / np.maximum(told, 1e-300), 1.0)


def _uncentered(task: Task, moments: Moments) -> tuple[Floats, Floats]:
    """center * frequency + half * mean, with its variance."""
    center, half = task.scale.center, task.scale.half
    assert moments.frequency is not None
    assert moments.frequency_variance is not None
    assert moments.mean is not None
    assert moments.mean_variance is not None
    assert moments.covariance is not None
    value = center * moments.frequency + half * moments.mean
    # From a few reports, the covariance may come out larger than the variances allow.
    most = np.sqrt(moments.frequency_variance * moments.mean_variance)
    variance = (
        center**2 * moments.frequency_variance
        + half**2 * moments.mean_variance
        + 2 * center * half * np.clip(moments.covariance, -most, most)
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
