"""The collector's keys: one that devices seal for now, and older ones that still open what was sealed before.

A rotation has three steps. `new` makes a key, and from then on it is the one that is given out. For as long as apps
with the old key are about, both open reports: that is the overlap. `retire` then destroys the old private key, and
what was sealed for it can be read by nobody any more, not even by whoever finds an old disk of the shuffler.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sql
from numpy.typing import NDArray

from hubbub.collect.database import table
from hubbub.collect.keypair import KeyPair, open_each
from hubbub.collect.store import Store
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import key_id
from hubbub.protocol.task import Task

keys = table(
    "sealing_keys",
    {"number": sql.Integer},
    public=sql.LargeBinary,
    private=sql.LargeBinary,
    created=sql.BigInteger,
    retired=sql.BigInteger,
)


@dataclass(frozen=True)
class KeyFacts:
    """What is known of a key; not the private one. `created` is None if that was before times were noted."""

    number: int
    public: bytes
    created: int | None
    retired: int | None

    @property
    def id(self) -> str:
        """The name that items call it by."""
        return key_id(self.public).hex()


class KeyRing:
    """The keys of a store, remembered between `refresh`es. There is always one that is not retired."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pairs: list[KeyPair] = []
        self.refresh()
        if not self._pairs:
            self._add(1, KeyPair.fresh())  # unless another process was quicker

    def refresh(self) -> None:
        """Learn of new and retired keys."""
        query = sql.select(keys.c.private).where(keys.c.retired.is_(None)).order_by(keys.c.number)
        with self._store.reading() as connection:
            found = [bytes(private) for (private,) in connection.execute(query)]
        if found != [pair.private for pair in self._pairs]:
            self._pairs = [KeyPair(private) for private in found]

    @property
    def public(self) -> bytes:
        """The key to seal for now."""
        return self._pairs[-1].public

    def open_each(self, task: Task, items: bytes) -> tuple[NDArray[np.uint8], list[int]]:
        """The reports of the items that open, and the places of those that do not."""
        return open_each(self._pairs, task, items)

    def all(self) -> list[KeyFacts]:
        """Every key there ever was, the oldest first."""
        with self._store.reading() as connection:
            rows = list(connection.execute(sql.select(keys).order_by(keys.c.number)))
        return [
            KeyFacts(
                row.number,
                KeyPair(bytes(row.private)).public if row.retired is None else bytes(row.public),
                row.created,
                row.retired,
            )
            for row in rows
        ]

    def new(self) -> KeyFacts:
        """Make the key that is given out from now on. The others go on opening reports."""
        known = self.all()
        pair = KeyPair.fresh()
        while pair.id.hex() in {key.id for key in known}:
            pair = KeyPair.fresh()
        if not self._add(known[-1].number + 1, pair):
            raise Refused("Somebody else made a key at this moment; see hubbub key list.")
        return self.all()[-1]

    def _add(self, number: int, pair: KeyPair) -> bool:
        """Write a key; whether nobody else has written one under this number."""
        row = {"number": number, "private": pair.private, "created": int(time.time())}
        try:
            with self._store.writing() as connection:
                connection.execute(keys.insert().values(**row))
        except sql.exc.IntegrityError:
            return False
        finally:
            self.refresh()
        return True

    def retire(self, name: str) -> None:
        """Destroy a private key: nothing that was sealed for it can be opened from now on.

        On SQLite its bytes are overwritten, also in the write-ahead log unless somebody is reading at that moment; on
        PostgreSQL they are gone with the next vacuum. Backups that were made before still hold it.
        """
        found = [key for key in self.all() if key.id == name.lower() and key.retired is None]
        if not found:
            raise Refused(f"There is no key {name!r} in use; see hubbub key list.")
        if found[0].public == self.public:
            raise Refused(f"Devices seal for key {name}: make another one first, with hubbub key new.")
        row = {"public": found[0].public, "private": None, "retired": int(time.time())}
        with self._store.writing() as connection:
            if self._store.embedded:
                connection.exec_driver_sql("PRAGMA secure_delete = ON")
            connection.execute(keys.update().where(keys.c.number == found[0].number).values(**row))
        if self._store.embedded:
            with closing(self._store.engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.refresh()
