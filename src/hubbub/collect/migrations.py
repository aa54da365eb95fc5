"""The tables of the store, as numbered steps.

A step, once published, never changes; a change of the tables is a new step. Steps run in one
transaction, so a store is either at its old version or at the newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, text

from hubbub.collect.database import crowds, ids, log, tasks
from hubbub.collect.segments import Lot, day_of, extend, name_of
from hubbub.primitives.errors import Refused

#: Types that SQLite and PostgreSQL spell differently.
_SPELLING = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY", "blob": "BLOB", "compact": " WITHOUT ROWID"},
    "postgresql": {"serial": "BIGSERIAL PRIMARY KEY", "blob": "BYTEA", "compact": ""},
}
#: Batches of an old store that are moved at a time.
_AT_ONCE = 2000


def _move_batches(connection: Connection) -> None:
    """From a row per batch to ids, lots and segments. Reports that were kept go into segments in order of arrival."""
    found = connection.execute(text("SELECT DISTINCT task FROM batches ORDER BY task")).scalars().all()
    if found:
        fresh = [{"digest": digest, "watermark": 0, "purged": 0} for digest in found]
        connection.execute(tasks.insert(), fresh)
    known = connection.execute(text("SELECT digest, id FROM tasks"))
    numbers: dict[str, int] = {row.digest: row.id for row in known}
    mixed: dict[str, list[tuple[int, int]]] = defaultdict(list)
    query = text(f"SELECT * FROM batches WHERE seq > :after ORDER BY seq LIMIT {_AT_ONCE}")
    after = -1
    while rows := connection.execute(query, {"after": after}).mappings().all():
        after = rows[-1]["seq"]
        names = [
            {
                "task": numbers[row["task"]],
                "day": day_of(row["batch"]),
                "name": name_of(row["batch"]),
                "body": bytes(row["checksum"] or b"")[:8],
            }
            for row in rows
        ]
        connection.execute(ids.insert(), names)
        for row in rows:
            if row["crowd"]:
                mixed[row["task"]].append((row["crowd"], row["count"]))
        _move_reports(connection, [row for row in rows if row["count"] and row["payload"] is not None])
    for task, sizes in mixed.items():
        smallest, reports = min(crowd for crowd, _ in sizes), sum(count for _, count in sizes)
        connection.execute(crowds.insert().values(task=task, smallest=smallest, reports=reports))


def _move_reports(connection: Connection, rows: list[Any]) -> None:
    def place(row: Any) -> tuple[str, bool, int]:
        return row["task"], bool(row["folded"]), row["received"]

    for (task, folded, received), group in groupby(sorted(rows, key=place), key=place):
        lot = Lot.of(
            received, [(name_of(row["batch"]), row["count"], bytes(row["payload"])) for row in group]
        )
        if folded:
            extend(connection, task, [lot])
        else:
            connection.execute(log.insert().values(task=task, **lot.row()))


def _widen_periods(connection: Connection) -> None:
    """Crowds are counted by stratum, whose text is longer than that of a period; SQLite does not mind."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("ALTER TABLE crowd_periods ALTER COLUMN period TYPE VARCHAR(1000)"))


STEPS: tuple[tuple[str | Callable[[Connection], None], ...], ...] = (
    (
        """CREATE TABLE batches (
            seq {serial},
            task VARCHAR(32) NOT NULL,
            batch VARCHAR(64) NOT NULL,
            count INTEGER NOT NULL,
            rejected INTEGER NOT NULL,
            received BIGINT NOT NULL,
            crowd INTEGER,
            folded BOOLEAN NOT NULL,
            checksum {blob},
            payload {blob},
            UNIQUE (task, batch)
        )""",
        "CREATE INDEX batches_unfolded ON batches (task, received, seq) WHERE NOT folded",
        "CREATE INDEX batches_crowds ON batches (task, crowd, count) WHERE crowd IS NOT NULL",
        """CREATE TABLE states (
            task VARCHAR(32) PRIMARY KEY,
            version BIGINT NOT NULL,
            count BIGINT NOT NULL,
            period BIGINT,
            payload {blob}
        )""",
        """CREATE TABLE history (
            task VARCHAR(32) NOT NULL,
            period BIGINT NOT NULL,
            reports BIGINT NOT NULL,
            state {blob},
            PRIMARY KEY (task, period)
        )""",
        """CREATE TABLE rejects (
            task VARCHAR(32) NOT NULL,
            reason VARCHAR(200) NOT NULL,
            count BIGINT NOT NULL,
            PRIMARY KEY (task, reason)
        )""",
        """CREATE TABLE tokens (
            id {serial},
            role VARCHAR(16) NOT NULL,
            digest {blob} NOT NULL UNIQUE,
            label VARCHAR(100) NOT NULL,
            created BIGINT NOT NULL,
            revoked BIGINT
        )""",
        """CREATE TABLE sessions (
            digest {blob} PRIMARY KEY,
            token BIGINT NOT NULL,
            expires BIGINT NOT NULL
        )""",
    ),
    (
        """CREATE TABLE tasks (
            id {serial},
            digest VARCHAR(32) NOT NULL UNIQUE,
            watermark INTEGER NOT NULL,
            purged BIGINT NOT NULL
        )""",
        """CREATE TABLE ids (
            task INTEGER NOT NULL,
            day INTEGER NOT NULL,
            name {blob} NOT NULL,
            body {blob} NOT NULL,
            PRIMARY KEY (task, day, name)
        ){compact}""",
        """CREATE TABLE log (
            seq {serial},
            task VARCHAR(32) NOT NULL,
            period BIGINT NOT NULL,
            count INTEGER NOT NULL,
            names {blob} NOT NULL,
            sizes {blob} NOT NULL,
            payload {blob} NOT NULL,
            checksum {blob} NOT NULL
        )""",
        "CREATE INDEX log_order ON log (task, period, seq)",
        """CREATE TABLE segments (
            task VARCHAR(32) NOT NULL,
            first BIGINT NOT NULL,
            period BIGINT NOT NULL,
            count INTEGER NOT NULL,
            names {blob} NOT NULL,
            sizes {blob} NOT NULL,
            payload {blob} NOT NULL,
            checksum {blob} NOT NULL,
            PRIMARY KEY (task, first)
        )""",
        """CREATE TABLE crowds (
            task VARCHAR(32) PRIMARY KEY,
            smallest BIGINT NOT NULL,
            reports BIGINT NOT NULL
        )""",
        # Until it is folded into again, a state is as the older version stored it.
        "ALTER TABLE states ADD COLUMN epoch BIGINT NOT NULL DEFAULT -1",
        _move_batches,
        "DROP TABLE batches",
    ),
    (
        "ALTER TABLE tokens ADD COLUMN expires BIGINT",
        "ALTER TABLE tokens ADD COLUMN tasks TEXT",
    ),
    (
        """CREATE TABLE crowd_periods (
            task VARCHAR(32) NOT NULL,
            period VARCHAR(10) NOT NULL,
            crowds BIGINT NOT NULL,
            smallest BIGINT NOT NULL,
            reports BIGINT NOT NULL,
            PRIMARY KEY (task, period)
        )""",
        """CREATE TABLE unfinished (
            task VARCHAR(32) NOT NULL,
            crowd {blob} NOT NULL,
            parts INTEGER NOT NULL,
            total BIGINT NOT NULL,
            kind {blob} NOT NULL,
            begun BIGINT NOT NULL,
            PRIMARY KEY (task, crowd)
        )""",
        """CREATE TABLE parts (
            task VARCHAR(32) NOT NULL,
            crowd {blob} NOT NULL,
            part INTEGER NOT NULL,
            sent INTEGER NOT NULL,
            good INTEGER NOT NULL,
            rejects TEXT NOT NULL,
            payload {blob} NOT NULL,
            checksum {blob} NOT NULL,
            PRIMARY KEY (task, crowd, part)
        )""",
    ),
    (
        "ALTER TABLE log ADD COLUMN stratum VARCHAR(1000) NOT NULL DEFAULT ''",
        """CREATE TABLE strata (
            task VARCHAR(32) NOT NULL,
            stratum VARCHAR(1000) NOT NULL,
            shelf VARCHAR(32) NOT NULL,
            count BIGINT NOT NULL,
            PRIMARY KEY (task, stratum)
        )""",
        _widen_periods,
    ),
    (
        """CREATE TABLE quotas (
            task INTEGER NOT NULL,
            token BIGINT NOT NULL,
            period VARCHAR(10) NOT NULL,
            count BIGINT NOT NULL,
            PRIMARY KEY (task, token)
        )""",
    ),
    (
        # What tells a shelf from an earlier one of the same name; and what waits, stratum by stratum.
        "ALTER TABLE strata ADD COLUMN mark BIGINT NOT NULL DEFAULT 0",
        "CREATE INDEX log_strata ON log (task, stratum, period, seq, count)",
    ),
)


def migrate(connection: Connection) -> None:
    """Bring the tables to the newest version, within the caller's transaction."""
    dialect = connection.dialect.name
    if dialect == "postgresql":  # one process at a time; SQLite's transaction is exclusive already
        connection.execute(text("SELECT pg_advisory_xact_lock(7235394)"))
    spelling = _SPELLING[dialect]
    connection.execute(
        text(
            "CREATE TABLE IF NOT EXISTS meta (name VARCHAR(40) PRIMARY KEY, value {blob})".format(**spelling)
        )
    )
    stored = connection.execute(text("SELECT value FROM meta WHERE name = 'version'")).scalar()
    version = int(bytes(stored)) if stored is not None else 0
    if version > len(STEPS):
        raise Refused(
            f"The store has tables of version {version}, made by a newer hubbub; "
            f"this one knows version {len(STEPS)}."
        )
    for step in STEPS[version:]:
        for change in step:
            if isinstance(change, str):
                connection.execute(text(change.format(**spelling)))
            else:
                change(connection)
    if version < len(STEPS):
        connection.execute(text("DELETE FROM meta WHERE name = 'version'"))
        connection.execute(
            text("INSERT INTO meta (name, value) VALUES ('version', :value)"),
            {"value": str(len(STEPS)).encode()},
        )
