"""Old strata become longer ones: a day part of its month, a week or month part of its year. Nothing is lost.

How long periods are kept apart is told in the settings (`retention`). What is merged is one stratum from then on: its
reports and their sum are on one shelf, and the whole is what it was. Only periods are merged of which no report is
taken any more, and what comes of them later is put where they are now (`lasting`): so no merged period ever begins
anew, with a few late reports that would be taken for all there are. Since a clock that is wrong by a week is believed
(`hubbub.collect.clock`), a period counts as closed a week after the last report could come.

Where a task asks for a minimum of reports, those that are too few for a stratum wait (`hubbub.collect.snapshots`). When
their period is over and no more can come, they wait as reports of the longer period, and after that as reports of
which the period is not told. So they are counted one day, and until then nothing shows them.
"""

from __future__ import annotations

import datetime

from hubbub.collect.clock import TRUSTED_DAYS
from hubbub.collect.shelves import Shelf, shelf_name
from hubbub.collect.snapshots import sealed
from hubbub.collect.store import Store
from hubbub.collect.sums import Moved, Sums
from hubbub.primitives.errors import Refused
from hubbub.protocol.periods import LATE_DAYS
from hubbub.protocol.strata import Stratum, longer, span_of, stratum_in, text_of
from hubbub.protocol.task import Task

#: Days of the longest period of each kind.
_DAYS = {"day": 1, "week": 7, "month": 31}
#: Days after the end of a period from which on nothing can come of it, whichever clock is wrong by a week.
_CLOSED = LATE_DAYS + 1 + TRUSTED_DAYS


def check_retention(task: Task, retention: int) -> None:
    """Refuse to keep periods apart for less than one of them."""
    if 0 < retention < _DAYS.get(task.period, 0):
        raise Refused(
            f"The periods of task {task.name!r} are longer than the retention of {retention} days: keep them apart for "
            f"{_DAYS[task.period]} days at least."
        )


def lasting(period: str, retention: int, today: datetime.date) -> str:
    """Where reports of a period are by this day: in itself, or in the longer one that it is merged into by then."""
    while retention and longer(period) != period and _ended(period, max(retention, _CLOSED), today):
        period = longer(period)
    return period


def merge_old(store: Store, sums: Sums, task: Task, retention: int, today: datetime.date) -> int:
    """Merge strata of periods that do not last until this day into longer ones; how many.

    Before that, reports that wait for others of a period that is closed wait for those of a longer one.
    """
    digest, merged = task.digest.hex(), 0
    for text in store.waiting_by(digest) if task.minimum_reports > 1 else ():
        waiting = stratum_in(task, text)
        if waiting.period and _ended(waiting.period, _CLOSED, today):
            store.restratify(digest, text, text_of(task, _next(waiting)))
    for stratum, shelf in sums.strata(task).items() if retention else ():
        period = lasting(stratum.period, retention, today)
        if period == stratum.period:
            continue
        text = text_of(task, stratum._replace(period=period))
        there = {found.stratum: found for found in store.shelves(digest)}
        into = there.get(text, Shelf(text, shelf_name(digest, text), 0))
        try:
            total = sums.of(task, [shelf, into])
        except Moved:  # for the next round
            continue
        wide = total.reports.shape[1] > 0
        merged += store.merge_shelves(digest, shelf, into, None if wide else sealed(task, total))
    return merged


def _ended(period: str, days: int, today: datetime.date) -> bool:
    """Whether a period ended more than so many days ago."""
    return span_of(period)[1] < today - datetime.timedelta(days=days)


def _next(stratum: Stratum) -> Stratum:
    """Where reports wait next."""
    period = longer(stratum.period)
    return stratum._replace(period="" if period == stratum.period else period)
