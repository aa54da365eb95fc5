"""What need not be kept for ever: reports that are in the state, ids of batches, states of past periods.

And crowds that were never completed.

Ids are what makes a retry harmless, so they go only together with the batches that might still be retried: an id that
begins with a day (20261116-..., as those of `hubbub.device.upload` do) is forgotten after its horizon, and from the
same moment on, for good, a batch whose id begins with that day or an earlier one is refused. So nothing is ever counted
twice, and a device that comes back after the horizon is told that it is too late. Ids without a day stay.

Reports of a stratum go once they are in the stratum's sum, which a running service brings up to date every hour.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from hubbub.collect.database import history, ids, segments, states, tasks
from hubbub.collect.parts import drop_unfinished
from hubbub.collect.segments import day_number
from hubbub.collect.shelves import Shelf, hold, shelves_of
from hubbub.collect.store import BARE, Store
from hubbub.primitives.envelope import unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import STATE


@dataclass(frozen=True)
class Horizons:
    """Days after which something goes; None: never."""

    reports: int | None = None
    ids: int | None = None
    states: int | None = None
    crowds: int | None = None


def purge(store: Store, task: str, horizons: Horizons, now: datetime.datetime) -> dict[str, int]:
    """Forget what is older than its horizon; how much that was."""
    done = {"reports": 0, "ids": 0, "states": 0, "crowds": 0}
    with store.writing() as connection:
        number = connection.execute(sql.select(tasks.c.id).where(tasks.c.digest == task)).scalar()
        if number is None:
            raise Refused(f"The store has nothing of a task {task}.")
        if horizons.reports is not None:
            done["reports"] = _drop_reports(connection, task, _before(now, horizons.reports))
        if horizons.ids is not None:
            day = day_number((now - datetime.timedelta(days=horizons.ids)).date())
            later = (tasks.c.id == number) & (tasks.c.watermark < day)
            connection.execute(tasks.update().where(later).values(watermark=day))
        if horizons.states is not None:
            old = (history.c.task == task) & (history.c.period < _before(now, horizons.states))
            gone = history.update().where(old & history.c.state.is_not(None)).values(state=None)
            done["states"] = connection.execute(gone).rowcount
    if horizons.crowds is not None:
        done["crowds"] = drop_unfinished(store, task, _before(now, horizons.crowds))
    if (
        horizons.ids is not None
    ):  # refused from now on whether they are here or not, so they may go day by day
        old = (ids.c.task == number) & (ids.c.day > 0) & (ids.c.day < day)
        with store.reading() as connection:
            days = connection.execute(sql.select(ids.c.day).where(old).distinct()).scalars().all()
        for each in days:
            with store.writing() as connection:
                those = ids.delete().where((ids.c.task == number) & (ids.c.day == each))
                done["ids"] += connection.execute(those).rowcount
    return done


def _before(now: datetime.datetime, days: int) -> int:
    return int((now - datetime.timedelta(days=days)).timestamp())


def _drop_reports(connection: sql.Connection, task: str, before: int) -> int:
    hold(connection, task)  # a fold may be about to join segments
    query = sql.select(states.c.payload, states.c.epoch).where(states.c.task == task)
    state = connection.execute(query).one_or_none()
    if state is None or state.payload is None:
        return 0
    if state.epoch < 0:
        raise Refused(f"Task {task} was collected by an older version: start the service once, then purge.")
    if len(unseal(bytes(state.payload), "The stored state", STATE).payload) == BARE:
        raise Refused(f"The state of task {task} consists of its reports, so they cannot be dropped.")
    dropped = 0
    for shelf in (Shelf("", task, 0), *shelves_of(connection, task)):
        old: Any = (segments.c.task == shelf.name) & (segments.c.period < before)
        if shelf.stratum:  # what is not in its sum yet is needed; the service sees to it every hour
            held = sql.select(states.c.count).where(states.c.task == shelf.name).scalar_subquery()
            old &= segments.c.first + segments.c.count <= sql.func.coalesce(held, 0)
        total = sql.select(sql.func.coalesce(sql.func.sum(segments.c.count), 0)).where(old)
        dropped += int(connection.execute(total).scalar_one())
        connection.execute(segments.delete().where(old))
    mine = tasks.c.digest == task
    connection.execute(tasks.update().where(mine).values(purged=tasks.c.purged + dropped))
    return dropped
