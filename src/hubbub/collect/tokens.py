"""Who may do what: bearer tokens with a role, and sessions for browsers.

A token is 32 random bytes of the operating system with its role in front; the store keeps its SHA-256 only. So
much entropy cannot be guessed, which is why a plain hash is enough, and what leaks from the store opens nothing.
A token is looked up by its digest. How long that takes may tell something of digests, but nobody can make
tokens whose digests come closer and closer to another's.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Literal, get_args

import sqlalchemy as sql

from hubbub.collect.database import meta, table
from hubbub.collect.store import Store
from hubbub.primitives.errors import Refused

Role = Literal["upload", "analyst", "admin", "shuffler"]
ROLES: tuple[Role, ...] = get_args(Role)

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


def allows(role: str | None, *wanted: Role) -> bool:
    """Whether somebody of this role may do what one of these roles may. An admin may do everything."""
    return role == "admin" or role in wanted


class Tokens:
    """The tokens of a store, remembered between `refresh`es so that checking one does not ask the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, tuple[int, Role]] = {}
        self._mark: bytes | None = b"none read yet"
        self.refresh()

    def refresh(self) -> None:
        """Learn of new and revoked tokens, if there are any: they are read only when the store's mark has changed."""
        query = sql.select(tokens.c.id, tokens.c.role, tokens.c.digest).where(tokens.c.revoked.is_(None))
        with self._store.reading() as connection:
            mark = _mark(connection)  # first, so that what comes in between is read again
            if mark != self._mark:
                rows = connection.execute(query)
                self._known = {bytes(row.digest): (row.id, row.role) for row in rows}
                self._mark = mark

    def _change_mark(self, connection: sql.Connection) -> bytes:
        """Let everybody else read the tokens again."""
        fresh = secrets.token_bytes(8)
        insert = self._store.insert(meta).values(name="tokens", value=fresh)
        connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"value": fresh}))
        return fresh

    def new(self, role: Role, label: str = "") -> str:
        """A fresh token. This is the only time that it can be seen."""
        if len(label) > 100 or not label.isprintable():
            raise Refused("A token's label is one line of at most 100 characters.")
        token = f"hub_{role}_{secrets.token_urlsafe(32)}"
        row = {"role": role, "digest": _digest(token), "label": label, "created": int(time.time())}
        with self._store.writing() as connection:
            before = _mark(connection, locked=True)
            number = connection.execute(tokens.insert().values(**row).returning(tokens.c.id)).scalar_one()
            mark = self._change_mark(connection)
        if before is not None and before == self._mark:  # all others are known
            self._known[_digest(token)] = (number, role)
            self._mark = mark
        else:
            self.refresh()
        return token

    def all(self) -> list[TokenFacts]:
        """Every token there ever was."""
        columns = (tokens.c.id, tokens.c.role, tokens.c.label, tokens.c.created, tokens.c.revoked)
        with self._store.reading() as connection:
            return [
                TokenFacts(*row) for row in connection.execute(sql.select(*columns).order_by(tokens.c.id))
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

    def role_of(self, token: str) -> Role | None:
        """The role of a token, None if it is not valid (any more)."""
        found = self._find(token)
        return found[1] if found else None

    def _find(self, token: str) -> tuple[int, Role] | None:
        return self._known.get(_digest(token))

    # Browsers

    def login(self, token: str) -> str | None:
        """A session's secret for the cookie, None if the token is not valid."""
        found = self._find(token)
        if found is None:
            return None
        secret, now = secrets.token_urlsafe(32), int(time.time())
        row = {"digest": _digest(secret), "token": found[0], "expires": now + SESSION_SECONDS}
        with self._store.writing() as connection:
            connection.execute(sessions.delete().where(sessions.c.expires < now))
            connection.execute(sessions.insert().values(**row))
        return secret

    def session_role(self, secret: str) -> Role | None:
        """The role of a session's token, None if the session has ended."""
        query = (
            sql.select(tokens.c.role)
            .join_from(sessions, tokens, sessions.c.token == tokens.c.id)
            .where((sessions.c.digest == _digest(secret)) & (sessions.c.expires >= int(time.time())))
            .where(tokens.c.revoked.is_(None))
        )
        with self._store.reading() as connection:
            role: Role | None = connection.execute(query).scalar()
        return role

    def logout(self, secret: str) -> None:
        """End a session."""
        with self._store.writing() as connection:
            connection.execute(sessions.delete().where(sessions.c.digest == _digest(secret)))


def _mark(connection: sql.Connection, locked: bool = False) -> bytes | None:
    query = sql.select(meta.c.value).where(meta.c.name == "tokens")
    found = connection.execute(query.with_for_update() if locked else query).scalar()
    return None if found is None else bytes(found)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
