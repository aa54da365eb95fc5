"""Who may do what: bearer tokens with a role, and sessions for browsers.

A token is 32 random bytes of the operating system with its role in front; the store keeps its SHA-256 only. So
much entropy cannot be guessed, which is why a plain hash is enough, and what leaks from the store opens nothing.
A token is looked up by its digest. How long that takes may tell something of digests, but nobody can make
tokens whose digests come closer and closer to another's.

A token may end at a time of its own, and may be for some tasks only; to others it says nothing at all, not even
that they are there.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import sqlalchemy as sql

from hubbub.collect.database import meta, table
from hubbub.collect.store import Store
from hubbub.primitives.errors import Refused

Role = Literal["upload", "analyst", "admin", "shuffler"]
ROLES: tuple[Role, ...] = get_args(Role)
_TASK = re.compile("[0-9a-f]{32}")

#: The browser's cookie and how long a session lasts.
COOKIE = "hubbub_session"
SESSION_SECONDS = 12 * 3600

tokens = table(
    "tokens",
    {"id": sql.BigInteger},
    role=sql.String,
    digest=sql.LargeBinary,
    label=sql.String,
    created=sql.BigInteger,
    revoked=sql.BigInteger,
    expires=sql.BigInteger,
    tasks=sql.String,
)
sessions = table("sessions", {"digest": sql.LargeBinary}, token=sql.BigInteger, expires=sql.BigInteger)


@dataclass(frozen=True)
class TokenFacts:
    """What is known of a token; not the token."""

    id: int
    role: Role
    label: str
    created: int
    revoked: int | None
    expires: int | None
    tasks: tuple[str, ...] | None


@dataclass(frozen=True)
class Grant:
    """What a token allows, for which tasks (digests; None: for all) and until when (None: until it is revoked)."""

    token: int
    role: Role
    tasks: frozenset[str] | None = None
    expires: int | None = None

    @property
    def over(self) -> bool:
        """Whether its time has come."""
        return self.expires is not None and self.expires <= time.time()

    def covers(self, task: str) -> bool:
        """Whether a task is one of its own."""
        return self.tasks is None or task in self.tasks


def allows(grant: Grant | None, *wanted: Role) -> bool:
    """Whether somebody may do what one of these roles may. An admin may do everything."""
    return grant is not None and (grant.role == "admin" or grant.role in wanted)


class Tokens:
    """The tokens of a store, remembered between `refresh`es so that checking one does not ask the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, Grant] = {}
        self._mark: bytes | None = b"none read yet"
        self.refresh()

    def refresh(self) -> None:
        """Learn of new and revoked tokens, if there are any: they are read only when the store's mark has changed."""
        query = sql.select(tokens).where(tokens.c.revoked.is_(None))
        with self._store.reading() as connection:
            mark = _mark(connection)  # first, so that what comes in between is read again
            if mark != self._mark:
                self._known = {bytes(row.digest): _grant(row) for row in connection.execute(query)}
                self._mark = mark

    def _change_mark(self, connection: sql.Connection) -> bytes:
        """Let everybody else read the tokens again."""
        fresh = secrets.token_bytes(8)
        insert = self._store.insert(meta).values(name="tokens", value=fresh)
        connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"value": fresh}))
        return fresh

    def new(
        self, role: Role, label: str = "", days: float | None = None, tasks: Sequence[str] | None = None
    ) -> str:
        """A fresh token, which cannot be seen again; for so many days, and for the tasks with these digests."""
        if len(label) > 100 or not label.isprintable():
            raise Refused("A token's label is one line of at most 100 characters.")
        if any(not _TASK.fullmatch(task) for task in tasks or ()):
            raise Refused("A task is named by its digest, 32 hexadecimal digits; see hubbub task show.")
        token, now = f"hub_{role}_{secrets.token_urlsafe(32)}", time.time()
        row: dict[str, Any] = {"role": role, "digest": _digest(token), "label": label, "created": int(now)}
        row["expires"] = None if days is None else int(now + days * 86400)
        row["tasks"] = " ".join(sorted(set(tasks))) if tasks else None
        with self._store.writing() as connection:
            before = _mark(connection, locked=True)
            made = connection.execute(tokens.insert().values(**row).returning(*tokens.c)).one()
            mark = self._change_mark(connection)
        if before is not None and before == self._mark:  # all others are known
            self._known[_digest(token)] = _grant(made)
            self._mark = mark
        else:
            self.refresh()
        return token

    def all(self) -> list[TokenFacts]:
        """Every token there ever was."""
        with self._store.reading() as connection:
            rows = list(connection.execute(sql.select(tokens).order_by(tokens.c.id)))
        return [
            TokenFacts(
                row.id,
                row.role,
                row.label,
                row.created,
                row.revoked,
                row.expires,
                None if row.tasks is None else tuple(row.tasks.split()),
            )
            for row in rows
        ]

    def revoke(self, number: int) -> None:
        """From now on the token and all sessions that it opened are refused."""
        place = (tokens.c.id == number) & tokens.c.revoked.is_(None)
        with self._store.writing() as connection:
            if (
                connection.execute(tokens.update().where(place).values(revoked=int(time.time()))).rowcount
                != 1
            ):
                raise Refused(f"There is no valid token number {number}; see hubbub token list.")
            connection.execute(sessions.delete().where(sessions.c.token == number))
            self._change_mark(connection)
        self.refresh()

    def grant_of(self, token: str) -> Grant | None:
        """What a token allows, None if it is not valid (any more)."""
        found = self._known.get(_digest(token))
        return None if found is None or found.over else found

    # Browsers

    def login(self, token: str) -> str | None:
        """A session's secret for the cookie, None if the token is not valid."""
        found = self.grant_of(token)
        if found is None:
            return None
        secret, now = secrets.token_urlsafe(32), int(time.time())
        row = {"digest": _digest(secret), "token": found.token, "expires": now + SESSION_SECONDS}
        with self._store.writing() as connection:
            connection.execute(sessions.delete().where(sessions.c.expires < now))
            connection.execute(sessions.insert().values(**row))
        return secret

    def session_grant(self, secret: str) -> Grant | None:
        """What a session's token allows, None if the session has ended."""
        query = (
            sql.select(tokens)
            .join_from(sessions, tokens, sessions.c.token == tokens.c.id)
            .where((sessions.c.digest == _digest(secret)) & (sessions.c.expires >= int(time.time())))
            .where(tokens.c.revoked.is_(None))
        )
        with self._store.reading() as connection:
            row = connection.execute(query).one_or_none()
        found = None if row is None else _grant(row)
        return None if found is None or found.over else found

    def logout(self, secret: str) -> None:
        """End a session."""
        with self._store.writing() as connection:
            connection.execute(sessions.delete().where(sessions.c.digest == _digest(secret)))


def _grant(row: Any) -> Grant:
    tasks = None if row.tasks is None else frozenset(row.tasks.split())
    return Grant(row.id, row.role, tasks, row.expires)


def _mark(connection: sql.Connection, locked: bool = False) -> bytes | None:
    query = sql.select(meta.c.value).where(meta.c.name == "tokens")
    found = connection.execute(query.with_for_update() if locked else query).scalar()
    return None if found is None else bytes(found)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
