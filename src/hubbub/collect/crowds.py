"""What is counted of shuffled crowds: how many came for each period, how large they were, and the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql

from hubbub.collect.database import crowd_periods, crowds
from hubbub.collect.transactions import Database


class Period(NamedTuple):
    """The crowds of one period."""

    period: str
    crowds: int
    smallest: int
    reports: int


def note_crowds(
    database: Database, connection: sql.Connection, task: str, period: str, sizes: Sequence[int]
) -> None:
    """Count crowds of these sizes, of one task and period."""
    least = sql.func.min if database.embedded else sql.func.least
    facts = {"smallest": min(sizes), "reports": sum(sizes)}

    def add(table: sql.Table, keys: dict[str, Any], more: dict[str, int]) -> None:
        insert = database.insert(table).values(**keys, **facts, **more)
        changed = {name: table.c[name] + insert.excluded[name] for name in ("reports", *more)}
        changed["smallest"] = least(table.c.smallest, insert.excluded.smallest)
        connection.execute(insert.on_conflict_do_update(index_elements=list(keys), set_=changed))

    add(crowds, {"task": task}, {})
    add(crowd_periods, {"task": task, "period": period or "once"}, {"crowds": len(sizes)})


def by_period(database: Database, task: str) -> list[Period]:
    """The periods of which crowds came, oldest first; those from before they were counted by period are missing."""
    query = crowd_periods.select().where(crowd_periods.c.task == task).order_by(crowd_periods.c.period)
    with database.reading() as connection:
        rows = connection.execute(query).all()
    return [Period(row.period, int(row.crowds), int(row.smallest), int(row.reports)) for row in rows]
