"""A database that is open: its transactions, and whether it is still the one that was opened."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, TimeoutError

from hubbub.collect.database import meta, open_engine
from hubbub.collect.integrity import Files, anchored, damaged_pages
from hubbub.collect.migrations import migrate
from hubbub.primitives.errors import Refused


class Unavailable(Exception):
    """The store cannot do its work now (full, locked, gone); nothing was changed, trying again later may help."""


class Database:
    """One database, opened and brought to the newest version of its tables."""

    def __init__(self, url: str, create: bool = True) -> None:
        self.engine = open_engine(url, create)
        self.embedded = self.engine.dialect.name == "sqlite"
        self.insert: Any = sqlite.insert if self.embedded else postgresql.insert
        #: Why nothing may be written any more, "" while all is well.
        self.damage = ""
        self._anchor: sqlite3.Connection | None = None
        self._files = Files(Path(self.engine.url.database or "").resolve()) if self.embedded else None
        try:
            with self.writing() as connection:
                migrate(connection)
            self._generation = self.fact("generation", secrets.token_bytes(16))
            if self._files is not None:
                self._anchor = anchored(self._files.path)
            self.look()
        except BaseException as problem:
            self.close()
            if isinstance(
                problem, Unavailable | ProgrammingError
            ):  # the latter: the role may not make tables
                reason = str(getattr(problem, "orig", None) or problem).splitlines()[0]
                raise Refused(f"The store {self.engine.url!r} cannot be opened: {reason}.") from None
            raise

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()
        if self._anchor is not None:
            self._anchor.close()

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction that may change things: committed at the end, undone on any error."""
        if self.damage:
            raise Unavailable(self.damage)
        with self.transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """A transaction that changes nothing."""
        with self.transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def transaction(self, begin: str, whole: bool = False) -> Iterator[sql.Connection]:
        """With `whole`, all statements see one moment; on SQLite they always do."""
        options: dict[str, Any] = {"hubbub_begin": begin}
        if whole and not self.embedded:
            options["isolation_level"] = "REPEATABLE READ"
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except (IntegrityError, ProgrammingError, DataError):
            raise  # a mistake of ours, not the database's trouble
        except (DBAPIError, TimeoutError, sqlite3.Error) as problem:  # the last from settings of a connection
            cause = getattr(problem, "orig", None) or problem
            raise Unavailable(str(cause).splitlines()[0] if str(cause) else type(cause).__name__) from problem

    @contextmanager
    def folding(self, task: str) -> Iterator[None]:
        """Keeps other processes from folding the same batches at the same time, to spare them the work.

        Correctness does not need it: see `advance`.
        """
        if self.embedded:
            yield
            return
        with self.writing() as connection:
            place = int.from_bytes(bytes.fromhex(task)[:8], "little", signed=True)
            connection.execute(sql.text("SELECT pg_advisory_xact_lock(:place)"), {"place": place})
            yield

    def ask(
        self, connection: sql.Connection, statement: str, values: tuple[Any, ...] | list[tuple[Any, ...]] = ()
    ) -> Any:
        """Run a statement as it stands, with a question mark for every value: for what is done thousands of times.

        With a list of values, it is run once for each.
        """
        text = statement if self.embedded else statement.replace("?", "%s")
        return connection.exec_driver_sql(text, values)

    # Whether it is still the store that was opened

    def look(self) -> None:
        """Raise `Unavailable`, now and from now on, if the store's files were replaced, removed or cut short."""
        if self._files is not None and not self.damage:
            self.damage = self._files.trouble()
        if self.damage:
            raise Unavailable(self.damage)

    def look_closely(self, seconds: float = 0.0, stopped: Callable[[], bool] = lambda: False) -> None:
        """The same for every page of a SQLite store, and whether the store is the one that was opened.

        With `seconds`, for no longer than that; and no longer than until it is `stopped`.
        """
        self.look()
        if self._files is not None and (found := damaged_pages(self._files.path, seconds, stopped)):
            self.damage = (
                f"{self._files.path} is damaged ({found}): restore a backup, and restart the service"
            )
            raise Unavailable(self.damage)
        with self.reading() as connection:
            self.check_generation(connection)

    def check_generation(self, connection: sql.Connection) -> None:
        """A store that was restored has another generation, and what this process remembers is not of it."""
        self.compare_generation(
            connection.execute(sql.select(meta.c.value).where(meta.c.name == "generation")).scalar()
        )

    def compare_generation(self, found: bytes | None) -> None:
        """Raise `Unavailable`, now and from now on, if the store says that it is another one."""
        if found is None or bytes(found) != self._generation:
            self.damage = "the store was replaced by another one: restart the service"
            raise Unavailable(self.damage)

    # Small things

    def fact(self, name: str, value: bytes) -> bytes:
        """A value that is stored once and for all: the first one given under this name."""
        with self.writing() as connection:
            connection.execute(self.insert(meta).values(name=name, value=value).on_conflict_do_nothing())
            return bytes(connection.execute(sql.select(meta.c.value).where(meta.c.name == name)).scalar_one())

    def ping(self) -> None:
        """Raise `Unavailable` if nothing can be written, or the store is not the one that was opened.

        Something is written, and is gone before others see it.
        """
        self.look()
        name = f"ping {secrets.token_hex(8)}"
        with self.writing() as connection:
            self.check_generation(connection)
            connection.execute(meta.insert().values(name=name, value=bytes(4096)))
            connection.execute(meta.delete().where(meta.c.name == name))


def places(count: int) -> str:
    """As many question marks."""
    return ", ".join("?" * count)
