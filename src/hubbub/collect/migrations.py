"""The tables of the store, as numbered steps.

A step, once published, never changes; a change of the tables is a new step. Steps run in one
transaction, so a store is either at its old version or at the newest.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from hubbub.primitives.errors import Refused

#: Types that SQLite and PostgreSQL spell differently.
_SPELLING = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY", "blob": "BLOB"},
    "postgresql": {"serial": "BIGSERIAL PRIMARY KEY", "blob": "BYTEA"},
}

STEPS: tuple[tuple[str, ...], ...] = (
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
        "ALTER TABLE tokens ADD COLUMN expires BIGINT",
        "ALTER TABLE tokens ADD COLUMN tasks TEXT",
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
        for statement in step:
            connection.execute(text(statement.format(**spelling)))
    if version < len(STEPS):
        connection.execute(text("DELETE FROM meta WHERE name = 'version'"))
        connection.execute(
            text("INSERT INTO meta (name, value) VALUES ('version', :value)"),
            {"value": str(len(STEPS)).encode()},
        )
