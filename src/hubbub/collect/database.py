"""The tables as queries see them, and connections with the settings on which the store's promises rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.pool import ConnectionPoolEntry

from hubbub.primitives.envelope import keep_private
from hubbub.primitives.errors import Refused, optional

_BIG, _INT, _TEXT, _BYTES = sql.BigInteger, sql.Integer, sql.String, sql.LargeBinary


def table(name: str, keys: dict[str, Any], **columns: Any) -> sql.Table:
    """A table by its primary keys and its other columns; `migrations` creates it."""
    parts = [sql.Column(key, kind, primary_key=True) for key, kind in keys.items()]
    return sql.Table(
        name, sql.MetaData(), *parts, *(sql.Column(each, kind) for each, kind in columns.items())
    )


#: Tasks by number: ids are many, and a digest of 32 letters in each would be most of it.
tasks = table("tasks", {"id": _INT}, digest=_TEXT, watermark=_INT, purged=_BIG)
ids = table("ids", {"task": _INT, "day": _INT, "name": _BYTES}, body=_BYTES)
_LOT: dict[str, Any] = {"names": _BYTES, "sizes": _BYTES, "payload": _BYTES, "checksum": _BYTES}
log = table("log", {"seq": _BIG}, task=_TEXT, period=_BIG, count=_INT, stratum=_TEXT, **_LOT)
#: Reports and sums (in `states`) of a stratum are under the name of its shelf, in place of the task's digest.
strata = table("strata", {"task": _TEXT, "stratum": _TEXT}, shelf=_TEXT, count=_BIG, mark=_BIG)
segments = table("segments", {"task": _TEXT, "first": _BIG}, period=_BIG, count=_INT, **_LOT)
crowds = table("crowds", {"task": _TEXT}, smallest=_BIG, reports=_BIG)
#: The same by the period that the reports are of.
crowd_periods = table(
    "crowd_periods", {"task": _TEXT, "period": _TEXT}, crowds=_BIG, smallest=_BIG, reports=_BIG
)
#: Crowds of which parts are missing, and the parts that are there; nothing else counts them.
unfinished = table(
    "unfinished", {"task": _TEXT, "crowd": _BYTES}, parts=_INT, total=_BIG, kind=_BYTES, begun=_BIG
)
parts = table(
    "parts",
    {"task": _TEXT, "crowd": _BYTES, "part": _INT},
    sent=_INT,
    good=_INT,
    rejects=_TEXT,
    payload=_BYTES,
    checksum=_BYTES,
)
states = table("states", {"task": _TEXT}, version=_BIG, count=_BIG, period=_BIG, epoch=_BIG, payload=_BYTES)
history = table("history", {"task": _TEXT, "period": _BIG}, reports=_BIG, state=_BYTES)
#: Reports that a token has sent in its present period; under its negative number, seeds that it was handed.
quotas = table("quotas", {"task": _INT, "token": _BIG}, period=_TEXT, count=_BIG)
rejects = table("rejects", {"task": _TEXT, "reason": _TEXT}, count=_BIG)
meta = table("meta", {"name": _TEXT}, value=_BYTES)


def store_address(url: str) -> sql.URL:
    """The parts of a store's name, or `Refused`."""
    try:
        parsed = sql.make_url(url)
    except (sql.exc.ArgumentError, ValueError):  # a port that is no number
        parsed = None
    backend = parsed.get_backend_name() if parsed is not None else ""
    if (
        parsed is None
        or backend not in ("sqlite", "postgresql")
        or (backend == "sqlite" and not parsed.database)
    ):
        raise Refused("A store is named sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.")
    return parsed


def open_engine(url: str, create: bool) -> sql.Engine:
    """An engine with the settings on which the promises rest."""
    parsed = store_address(url)
    if parsed.get_backend_name() == "postgresql":
        optional("psycopg", "postgresql")
        waits = {"connect_timeout": 5, "options": "-c lock_timeout=5000 -c statement_timeout=60000"}
        return sql.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            hide_parameters=True,
            connect_args={**waits, "application_name": "hubbub"},
            pool_timeout=5,
            pool_size=4,
            max_overflow=12,
        )
    file = Path(parsed.database or "").resolve()
    if not file.parent.is_dir():
        raise Refused(f"The store's folder {file.parent} does not exist.")
    if not create and not file.exists():
        raise Refused(f"There is no store {file}; hubbub serve makes it.")
    keep_private(file, create)
    for suffix in ("-wal", "-shm", "-journal"):  # SQLite gives new ones the mode of the file
        if Path(f"{file}{suffix}").exists():
            keep_private(f"{file}{suffix}")
    engine = sql.create_engine(
        parsed,
        hide_parameters=True,
        pool_timeout=5,
        pool_size=4,
        max_overflow=12,
        connect_args={"timeout": 5},
    )
    sql.event.listen(engine, "connect", _prepare_sqlite)
    sql.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin where we say so, and cover changes of tables, too
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 2000"):
        connection.execute(f"PRAGMA {pragma}")
    for pragma in ("journal_size_limit = 67108864", "cache_size = -16384"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sql.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("hubbub_begin", "BEGIN"))
