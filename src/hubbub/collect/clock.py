"""Which day it is, as far as the machine's clock can be believed.

By the clock, periods are merged for good and reports are put into periods for good. A clock that is wrong for a while
must not do that, but nobody can tell it from a service that was away for a month: both show a day that is far from the
last one. So the store remembers the last day that was believed, and the rule is:

- A clock is believed at once if it shows a day within a week of that day, whichever of them is the later one.
- Any other is in doubt until it has gone on from there for 24 hours, while the service looked. They are counted in the
  small steps from one look to the next, so that neither a second jump nor a time without a service counts for hours.
- While it is in doubt, it may be either day, or one between. Nothing is merged that would not be on the earlier one.
  A batch keeps the period that it names if that is open on any of these days, and if it names none, none is told.

Waiting loses nothing: what is not merged today is merged tomorrow. What remains is a clock that is wrong for longer,
which is believed in the end, and one that is wrong by a week at most. The latter closes no period that should be open:
see `hubbub.collect.lifetimes`.
"""

from __future__ import annotations

import datetime
import json
import logging
import time
from typing import NamedTuple

import sqlalchemy as sql

from hubbub.collect.database import meta
from hubbub.collect.transactions import Database

_log = logging.getLogger("hubbub.api")

#: Days that a clock may be away from the last day that was believed.
TRUSTED_DAYS = 7
#: Seconds for which any other has to go on before it is believed, and how many of them one look can add.
_STAY, _STEP = 24 * 3600, 600
#: What the store calls it.
_NAME = "day"


class _Known(NamedTuple):
    """The last day that was believed; and of a clock that is not, the last moment it showed and how long it stayed."""

    day: datetime.date
    seen: int = 0
    stayed: int = 0

    def after(self, moment: int) -> _Known:
        """What is known once the clock has shown this moment."""
        today, passed = _day(moment), moment - self.seen
        if _near(today, self.day):
            return _Known(today)
        going_on = -_STEP <= passed <= TRUSTED_DAYS * 24 * 3600
        stayed = self.stayed + min(max(passed, 0), _STEP) if going_on else 0
        return _Known(today) if stayed >= _STAY else _Known(self.day, moment, stayed)


class Clock:
    """The clock of one process, and what all processes over one store know of it."""

    def __init__(self, store: Database) -> None:
        self._store = store
        self._known = _Known(_day(_now()))
        self.look()

    def look(self) -> None:
        """Have a look at the clock, and remember it; to be called every few minutes at least."""
        moment = _now()
        with self._store.writing() as connection:
            mine = meta.c.name == _NAME
            found = connection.execute(sql.select(meta.c.value).where(mine).with_for_update()).scalar()
            old = None if found is None else _read(bytes(found))
            new = _Known(_day(moment)) if old is None else old.after(moment)
            if new != old:
                row = {"value": json.dumps([new.day.isoformat(), new.seen, new.stayed]).encode()}
                insert = self._store.insert(meta).values(name=_NAME, **row)
                connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=row))
        if old is not None and new.seen and not old.seen:
            words = "the clock shows %s, and the last day was %s: it is believed once it has stayed for a day"
            _log.warning(words, _day(moment), new.day)
        self._known = new

    def days(self) -> tuple[datetime.date, datetime.date]:
        """The earliest and the latest day that it may be today: the same, unless the clock is in doubt."""
        today, known = _day(_now()), self._known.day
        return (today, today) if _near(today, known) else (min(today, known), max(today, known))


def _near(one: datetime.date, other: datetime.date) -> bool:
    """Whether two days are so close together that a clock may show either."""
    return abs((one - other).days) <= TRUSTED_DAYS


def _now() -> int:
    return int(time.time())


def _day(moment: int) -> datetime.date:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).date()


def _read(stored: bytes) -> _Known:
    day, seen, stayed = json.loads(stored)
    return _Known(datetime.date.fromisoformat(day), seen, stayed)
