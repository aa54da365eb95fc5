"""How much is lost to max_entries: records that are too long are sampled down, and their keys come out too low.

A person with L entries of whom k are kept keeps a given one with probability k / L. A key that only such people hold
comes out too low by the factor L / k; a key that short and long records hold alike by 1 / (1 - lost), where lost is the
mean of 1 - k / L over all records (0 for short ones). No share is too low by more than lost, whoever holds the key: a
holder is lost with probability 1 - k / L. The holder of a table can count all of this. A collector knows nothing,
unless the task has `count_lengths`: then the share of long records and lost are estimated from the reports like any
other key. How many entries were dropped they do not say, because a few records may have been very long; they leave
limits for it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task

#: The share of entries that may have been dropped from which on it is a warning and no longer a note.
WORTH_A_WARNING = 0.05
#: If no more records than this can be long, it is a note, unless some are for certain: so many standard errors from 0.
_FEW, _CERTAIN = 0.01, 3
#: Standard errors that are allowed for in what can be.
_EITHER_SIDE = 2


@dataclass(frozen=True)
class Truncation:
    """What is known about records that were sampled down.

    `longer` is their share of all records, `lost` what a key loses that short and long records hold alike, both with
    standard errors. `dropped` is the share of all entries that was dropped; reports only say that it is at least
    `dropped_least`, and at most `dropped_most` if other records have an entry each. `drawn`, of reports, is
    the mean of 1 - k / L over long records: the probability with which an entry that was kept might not have been. For
    one key that makes a variance of at most `drawn_most`, the mean of k / L (1 - k / L) over all records (by Jensen's
    inequality no more than that of the means). Intervals count both, so that they hold for what is kept on average. (Of
    a table they do not: they are covered by the guarantee, and what was counted in the table is not.) `factor` is the
    largest one by which a share may be too low: the longest record, or one with all keys of the vocabulary, over what
    it keeps (None: no limit is known). `suggested` is what a planner would take for max_entries.
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
    dropped_least: float = 0.0
    dropped_most: float = 1.0
    drawn: float = 0.0
    drawn_most: float = 0.0
    #: Whether the estimates that it goes with are corrected for what was lost.
    corrected: bool = False

    @property
    def alarming(self) -> bool:
        """Whether much may have been dropped: unless it is known that records were short, or few are long."""
        many = self.longer + _EITHER_SIDE * self.longer_error > _FEW
        certain = self.longer > _CERTAIN * self.longer_error or self.lost > _CERTAIN * self.lost_error
        return self.dropped_most > WORTH_A_WARNING and (many or certain)

    def words(self) -> str:
        """What was lost, and what that does to estimates."""
        if self.dropped is not None:
            began = (
                f"{_percent(self.dropped)} of all entries were dropped, because records count with at most "
                f"{self.limit}"
            )
            uncorrected = (
                f"{began}: estimates are of records after sampling down, and a share may be too low by a factor of up "
                f"to {self.factor:.3g}."
            )
            counted = "(Counted in the table itself: no guarantee covers these numbers.)"
        else:
            began = (
                f"{_percent(self.longer)} ± {_percent(self.longer_error)} of all records were longer than {self.limit} "
                f"entries. {self._extent()}".rstrip(".")
            )
            uncorrected = (
                f"{began}. Estimates are of records after sampling down: a key that short and long "
                f"records hold alike comes out {_percent(self.lost)} ± {_percent(self.lost_error)} too low, and one "
                f"that long records hold more often even lower{_up_to(self.factor)}, though by no more than this "
                "share of all people."
            )
            counted = "(Counted privately, in the reports.)"
        left = None if self.factor is None else max(self.factor * (1 - self.lost), 1.0)
        text = (
            f"{began}. Estimates are corrected for it, as if short and long records held a key alike; one that long "
            f"records hold more often still comes out too low{_up_to(left)}. {counted}"
            if self.corrected
            else f"{uncorrected} {counted}"
        )
        if self.suggested is None:
            return text
        plan = "By the plan" if self.source == "table" else "By the plan, if long records had one length"
        kept = f"{plan}, this max_entries is the right one all the same"
        other = f"{plan}, max_entries = {self.suggested:,} would have the least error"
        hopeless = ", though no key is planned to stand out even then" if self.outstanding == 0 else ""
        return f"{text} {kept if self.suggested == self.limit else other}{hopeless}."

    def short(self) -> str:
        """The same in one line."""
        assumed = "corrected for it, as if short and long records held a key alike"
        if self.dropped is not None:
            kept = assumed if self.corrected else "of those that were kept"
            return f"{_percent(self.dropped)} of all entries were dropped; estimates are {kept}."
        return (
            f"{_percent(self.longer)} ± {_percent(self.longer_error)} of all records were longer than {self.limit} "
            f"entries; estimates are {assumed if self.corrected else 'of what was kept of them'}."
        )

    def _extent(self) -> str:
        """What share of all entries may have been dropped."""
        most = (
            ""
            if self.dropped_most == 1
            else f"{_percent(self.dropped_most)} if the others have an entry each"
        )
        if self.dropped_least < WORTH_A_WARNING:
            most = f"up to {most}" if most else "perhaps most"
            return f"How long is not known, nor what share of all entries was dropped: {most}."
        most = f", and at most {most}" if most else ""
        return f"How long is not known: at least {_percent(self.dropped_least)} of all entries were dropped{most}."

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: What was lost in each of several groups or sides, with its name.
Losses = tuple[tuple[str, Truncation | None], ...]


def alarms(whole: Truncation | None, losses: Losses) -> list[str]:
    """What has to be known before any number is read: of the whole, and of each group."""
    said = [whole.words()] if whole is not None and whole.alarming else []
    return [*said, *(f"{visible(name)}: {lost.words()}" for name, lost in losses if lost and lost.alarming)]


def short_alarm(whole: Truncation | None, losses: Losses) -> str:
    """The same in one line, of groups the one that lost most; empty if nothing has to be known."""
    if whole is not None and whole.alarming:
        return whole.short()
    lost = [(name, each) for name, each in losses if each and each.alarming]
    if not lost:
        return ""
    name, worst = max(lost, key=lambda pair: pair[1].dropped or pair[1].lost)
    several = f"In {len(lost):,} groups entries were dropped, most in " if len(lost) > 1 else ""
    return f"{several}{visible(name)}: {worst.short()}"


def corrected_words(truncation: Truncation) -> str:
    """What was done, and on what assumption."""
    return (
        f"Corrected for what was lost: divided by {1 - truncation.lost:.3f} ± {truncation.lost_error:.3f}, which the "
        "intervals count. This assumes that short and long records hold a key alike; keys that long records hold more "
        "often still come out too low, others too high."
    )


def may_be_long(task: Task) -> bool:
    """Whether records may be sampled down: of a closed vocabulary, they have no more entries than it has keys."""
    limit = task.mechanism.max_entries
    return task.mechanism.limits_entries and not (task.keys.kind == "closed" and task.keys.count <= limit)


def unknown_words(task: Task, average: bool) -> str:
    """What is to be said where lengths are not known, of intervals for what is kept on average or what was drawn."""
    limit = task.mechanism.max_entries
    entries = "one entry" if limit == 1 else f"at most {limit} entries"
    advice = "" if limit == 1 else "; a task with count_lengths counts them"
    hold = "allow for all of them having been drawn" if average else "hold for the entries that are left"
    return (
        f"Estimates are of records after sampling down to {entries}, and intervals {hold}. "
        "How many were longer is not known here, and their keys come out too "
        f"low{_up_to(_largest_factor(task))}{advice}."
    )


def truncation_of_table(task: Task, lengths: Int64s) -> Truncation | None:
    """What is lost of records of these lengths; None if the mechanism takes records whole."""
    limit = task.mechanism.max_entries
    if not task.mechanism.limits_entries:
        return None
    kept = np.where(lengths > limit, kept_of_long(task), lengths)
    known = np.maximum(lengths, 1)
    dropped = float((lengths - kept).sum() / max(lengths.sum(), 1))
    return Truncation(
        limit,
        "table",
        float((lengths > limit).mean()) if len(lengths) else 0.0,
        0.0,
        float((1 - kept / known)[lengths > 0].sum() / max(len(lengths), 1)),
        0.0,
        dropped,
        float((known / np.maximum(kept, 1)).max(initial=1.0)),
        dropped_least=dropped,
        dropped_most=dropped,
    )


def kept_of_long(task: Task) -> int:
    """Entries that are kept of a record that is too long: one makes room for the key that says so."""
    return task.mechanism.max_entries - task.keys.count_lengths


def _largest_factor(task: Task) -> float | None:
    """By which a share may be too low: a record has no key twice, so it is no longer than a closed vocabulary."""
    return max(task.keys.count / kept_of_long(task), 1.0) if task.keys.kind == "closed" else None


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
    kept_error, lost_error = np.sqrt(variance).tolist()
    lost = min(max(float(share[1]), 0.0), 1.0)
    # A record has one of the two keys at most, so that their estimates are, if anything, negatively correlated.
    longer = min(max(float(share.sum()), lost), 1.0)
    # Which of the two is drawn: that varies, too, by the same for both, and what they add up to does not.
    chance = lost * (longer - lost) / max(longer, 1e-12) / max(task.mechanism.heard(state, task.keys), 1)
    both_error = math.hypot(kept_error, lost_error)
    kept_error, lost_error = (math.hypot(error, math.sqrt(chance)) for error in (kept_error, lost_error))
    least, most = _dropped(task, (longer - lost, kept_error), (lost, lost_error))
    return Truncation(
        task.mechanism.max_entries,
        "reports",
        longer,
        both_error,
        lost,
        lost_error,
        factor=_largest_factor(task),
        dropped_least=least,
        dropped_most=most,
        drawn=lost / longer if longer else 0.0,
        drawn_most=lost * (longer - lost) / longer if longer else 0.0,
    )


def _dropped(task: Task, kept: tuple[float, float], lost: tuple[float, float]) -> tuple[float, float]:
    """The least and the largest share of entries that can have been dropped, two standard errors allowed for.

    `kept` and `lost` are what the two keys say: the means over all records of r / L and 1 - r / L for long ones and of
    0 for others, r entries being kept. By Jensen's inequality, a mean of L is at least 1 over that of 1 / L, and others
    have k entries at most. And 1 / L is convex: between k + 1 and the size M of the vocabulary it lies below its chord,
    L <= M + k + 1 - M (k + 1) / L. That bounds the mean of L from above by a sum of the two numbers, and others are
    taken to have an entry each.
    """
    limit, room = task.mechanism.max_entries, kept_of_long(task)
    sure = max(lost[0] - _EITHER_SIDE * lost[1], 0.0)
    other = kept[0] + _EITHER_SIDE * kept[1]
    entries = room * sure * (sure + other) / other if other else 0.0
    least = entries / (entries + limit)
    if task.keys.kind != "closed":
        return least, 1.0
    longest = task.keys.count
    if longest <= limit:
        return 0.0, 0.0
    of_lost = longest + limit + 1 - room
    of_kept = of_lost - longest * (limit + 1) / room
    spread = math.hypot(of_lost * lost[1], of_kept * kept[1])
    entries = max(of_lost * lost[0] + of_kept * kept[0] + _EITHER_SIDE * spread, 0.0)
    stay = 1 + (room - 1) * max(kept[0] + lost[0] - _EITHER_SIDE * math.hypot(kept[1], lost[1]), 0.0)
    return least, max(entries / (entries + stay), least)


def corrected(
    columns: tuple[Floats, Floats, Floats, Floats], truncation: Truncation, width: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """value, error, low and high of keys that short and long records hold alike, before sampling down.

    The estimate is divided by r = 1 - lost, an estimate itself. The interval is that of a quotient of two independent
    estimates (Donner and Zou 2012): for normal ones it is Fieller's, and intervals that are not symmetric keep their
    shape. `width` is half of r's own interval in standard errors.

    Where that interval reaches 0, a quotient has no limits, and nothing is given. What is given still holds at its
    level where that is the case at least every other time. A miss is the likelier the further r came out from its
    mean, on either side alike. So intervals with r above it hold at their level, and of the others those that are
    refused are the ones that miss most often.
    """
    value, error, low, high = columns
    kept, slack = 1 - truncation.lost, width * truncation.lost_error
    if kept <= slack:
        raise Refused(
            "The count of lengths does not say well enough how much was lost "
            f"({_percent(truncation.lost)} ± {_percent(truncation.lost_error)}, which may be everything): nothing can "
            "be corrected by it."
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


def _up_to(factor: float | None) -> str:
    return "" if factor is None else f", by a factor of up to {factor:.3g}"


def _percent(share: float) -> str:
    """Two digits, for people."""
    if share <= 0 or not math.isfinite(share):
        return "0%"
    digits = max(1 - math.floor(math.log10(100 * share)), 0)
    return f"{100 * share:.{min(digits, 4)}f}%"
