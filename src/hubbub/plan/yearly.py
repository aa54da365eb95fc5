"""A year's budget, and the ways to spend it: often and little at a time, or seldom and much.

Of P periods a year, a person who takes part in one of w makes P / w reports, so each may have w / P of the budget. A
w-th of the people then report in a period, and are a sample of all of them: both are in the error (`ranking.noise`).
Only turns that divide the year are looked at: of others the budget would have to pay for a part of a turn.

Memoized reports are shown beside. A device makes one for each of at most `cap` distinct records, over all time, and
each has 1 / cap of the budget; everybody reports in every period. The error of a period is that of fresh reports. It is
not compared with the others: it comes again with every period, and that a record changed shows (`hubbub.device.memo`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hubbub.plan.ranking import Option
from hubbub.primitives.errors import Refused
from hubbub.primitives.markup import aligned, paragraph, table, whole
from hubbub.privacy.over_time import SPANS

Period = Literal["day", "week", "month"]

#: Distinct records of a device for which the error of memoized reports is shown.
CAPS = (1, 2, 4)
_EVERY = {"day": "daily", "week": "weekly", "month": "monthly"}


def periods_in_year(period: str) -> int:
    """How many periods a year has, as guarantees over a year count them."""
    if period not in _EVERY:
        raise Refused(f"A year is planned by day, week or month, not {period!r}.")
    return SPANS[period][-1][1]


def turns_in_year(period: str) -> list[int]:
    """The rotations of which a year has a whole number."""
    count = periods_in_year(period)
    return [turns for turns in range(1, count + 1) if count % turns == 0]


@dataclass(frozen=True)
class Way:
    """One way to spend a year's budget, and what would be taken for it."""

    rotation: int
    #: Distinct records that get a report of their own; 0 where every report is fresh.
    cap: int
    epsilon: float
    #: Who report in a period.
    people: int
    option: Option

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        suitable = self.option.mechanism is not None
        return {
            "rotation": self.rotation,
            "memoize_cap": self.cap,
            "epsilon": self.epsilon,
            "people": self.people,
            "mechanism": self.option.name if suitable else None,
            "error": self.option.error if suitable else None,
        }


@dataclass(frozen=True)
class Year:
    """All ways to spend a year's budget, and the one with the least error among those of fresh reports."""

    period: str
    budget: float
    share: float
    ways: tuple[Way, ...]
    taken: Way

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "period": self.period,
            "epsilon": self.budget,
            "share": self.share,
            "ways": [way.as_dict() for way in self.ways],
            "taken": self.taken.as_dict(),
        }

    def title(self) -> str:
        """What is compared."""
        held = f"a key that {100 * self.share:.3g}% hold" if self.share else "a rare key"
        error = f"standard error of a {self.period}'s estimate of {held}"
        return f"epsilon = {self.budget:g} a year, {_EVERY[self.period]}: {error}"

    def cells(self) -> list[tuple[str, ...]]:
        """A line of text cells per way, after a line of heads."""
        rows: list[tuple[str, ...]] = [("way", "epsilon", "people", "mechanism", "error", "")]
        for way in self.ways:
            suitable = way.option.mechanism is not None
            rows.append(
                (
                    f"memoized, cap {way.cap}" if way.cap else f"rotation {way.rotation}",
                    f"{way.epsilon:.4g}",
                    f"{way.people:,}",
                    way.option.name if suitable else "none",
                    f"{way.option.error:.4g}" if suitable else "",
                    "best" if way is self.taken else "",
                )
            )
        return rows

    def closing(self) -> list[str]:
        """What is said below the table."""
        reports = periods_in_year(self.period) // self.taken.rotation
        each = "the one report" if reports == 1 else f"each of {reports} reports"
        said = [
            f"epsilon: of each report; people: who report in a {self.period}. Taken: rotation = {self.taken.rotation}, "
            f"with epsilon = {self.taken.epsilon:.4g} for {each} of a year."
        ]
        if any(way.cap for way in self.ways):
            said.append(
                "Memoized reports are for records that hardly change: that one changes shows, the error of a "
                f"{self.period} comes again with the next, and people with more distinct records than the cap are "
                "counted with an old one."
            )
        return said

    def __str__(self) -> str:
        return "\n".join([self.title(), *aligned(self.cells()), *self.closing()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        head, *rows = self.cells()
        return whole(paragraph(self.title()), table(head, rows), *map(paragraph, self.closing()))
