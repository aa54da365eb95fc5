"""How many reports of a period one token may send.

Whoever has a token may make up reports, and each looks like another person's. A limit for each token and period bounds
what one hand can do (`hubbub.model.influence`), where tokens are personal. It is counted in the store, in the
transaction that takes the reports: a restart does not begin anew, and processes count together. Of a token, a task and
its present period the number is kept, and nothing else; batches that are sent again count once. Seeds that are handed
out (`hubbub.collect.handout`) are counted in the same way, apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sql

from hubbub.collect.database import quotas
from hubbub.collect.segments import Id, body_of
from hubbub.collect.transactions import Database


class Quota(NamedTuple):
    """Who sends (the number of a token), in which period by the collector's calendar, and how many are taken then."""

    token: int
    period: str
    most: int


def beyond_quotas(
    store: Database, connection: sql.Connection, offered: Mapping[Id, tuple[Quota | None, int]]
) -> set[Id]:
    """Of batches that are offered, by their reports, the new ones that are more than their senders may send now.

    Tokens are counted in their order, so that two processes which count the same ones never wait in a circle.
    """
    limited = sorted((name[0], quota, name, count) for name, (quota, count) in offered.items() if quota)
    return {
        name
        for task, quota, name, count in limited
        if body_of(connection, name) is None and not granted(store, connection, task, quota, count)
    }


def granted(store: Database, connection: sql.Connection, task: int, quota: Quota, reports: int) -> bool:
    """Count reports, of the task with this number, that are about to be taken; False, and not counted, if too many."""
    place = (quotas.c.task == task) & (quotas.c.token == quota.token)
    insert = store.insert(quotas).values(task=task, token=quota.token, period=quota.period, count=reports)
    same = quotas.c.period == insert.excluded.period
    more = {"count": sql.case((same, quotas.c.count), else_=0) + reports, "period": quota.period}
    adding = insert.on_conflict_do_update(index_elements=["task", "token"], set_=more)
    total: int = connection.execute(adding.returning(quotas.c.count)).scalar_one()
    if total > quota.most:
        connection.execute(quotas.update().where(place).values(count=quotas.c.count - reports))
    return total <= quota.most
