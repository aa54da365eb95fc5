"""Who may do what: bearer tokens with a role, and sessions for browsers.

A token is 32 random bytes of the operating system with its role in front; the store keeps its SHA-256 only. So
much entropy cannot be guessed, which is why a plain hash is enough, and what leaks from the store opens nothing.
Candidates are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Literal, get_args

import sqlalchemy as sql

from hubbub.collect.database import table
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
        self._known: list[tuple[int, Role, bytes]] = []
        self.refresh()

    def refresh(self) -> None:
        """Learn of new and revoked tokens."""
        query = sql.select(tokens.c.id, tokens.c.role, tokens.c.digest).where(tokens.c.revoked.is_(None))
        with self._store.reading() as connection:
            self._known = [(row.id, row.role, bytes(row.digest)) for row in connection.execute(query)]

    def new(self, role: Role, label: str = "") -> str:
        """A fresh token. This is the only time that it can be seen."""
        if len(label) > 100 or not label.isprintable():
            raise Refused("A token's label is one line of at most 100 characters.")
        token = f"hub_{role}_{secrets.token_urlsafe(32)}"
        row = {"role": role, "digest": _digest(token), "label": label, "created": int(time.time())}
        with self._store.writing() as connection:
            connection.execute(tokens.insert().values(**row))
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
        self.refresh()

    def role_of(self, token: str) -> Role | None:
        """The role of a token, None if it is not valid (any more)."""
        found = self._find(token)
        return found[1] if found else None

    def _find(self, token: str) -> tuple[int, Role] | None:
        digest = _digest(token)
        found = None
        for number, role, known in self._known:
            if hmac.compare_digest(digest, known):
                found = (number, role)
        return found

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


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
