"""Old strata become longer ones: a day part of its month, a week or month part of its year. Nothing is lost.

How long periods are kept apart is told in the settings (`retention`). What is merged is one stratum from then on: its
reports and their sum are on one shelf, and the whole is what it was.

Where a task asks for a minimum of reports, those that are too few for a stratum wait (`hubbub.collect.snapshots`). When
their period is over and no more can come, they wait as reports of the longer period, and after that as reports of
which the period is not told. So they are counted one day, and until then nothing shows them.
"""

from __future__ import annotations

import datetime

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


def check_retention(task: Task, retention: int) -> None:
    """Refuse to keep periods apart for less than one of them."""
    if 0 < retention < _DAYS.get(task.period, 0):
        raise Refused(
            f"The periods of task {task.name!r} are longer than the retention of {retention} days: keep them apart for "
            f"{_DAYS[task.period]} days at least."
        )


def merge_old(store: Store, sums: Sums, task: Task, retention: int, today: datetime.date) -> int:
    """Merge strata whose period ended more than `retention` days ago into longer ones, unless it is 0; how many.

    Before that, reports that wait for others of a period that is over wait for those of a longer one.
    """
    digest, merged = task.digest.hex(), 0
    for text in store.waiting_by(digest) if task.minimum_reports > 1 else ():
        waiting = stratum_in(task, text)
        if waiting.period and _ended(waiting.period, LATE_DAYS + 1, today):
            store.restratify(digest, text, text_of(task, _next(waiting)))
    if not retention:
        return merged
    for stratum, shelf in sums.strata(task).items():
        period = longer(stratum.period)
        if not period or period == stratum.period or not _ended(stratum.period, retention, today):
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
