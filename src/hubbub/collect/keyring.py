"""The collector's keys: one that devices seal for now, and older ones that still open what was sealed before.

A rotation has three steps. `new` makes a key, and from then on it is the one that is given out. For as long as apps
with the old key are about, both open reports: that is the overlap. `retire` then destroys the old private key, and
what was sealed for it can be read by nobody any more, not even by whoever finds an old disk of the shuffler.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sql
from numpy.typing import NDArray

from hubbub.collect.database import meta
from hubbub.collect.keypair import KeyPair, open_each
from hubbub.collect.openers import Openers
from hubbub.collect.store import Store
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import key_id
from hubbub.protocol.task import Task

#: What rows about keys are called, in the table of small facts; the first key has no number behind it.
_NAME = "sealing key"
#: Bytes of such a row before there were several keys: the private key alone.
_BARE = 32


@dataclass(frozen=True)
class Key:
    """A key as it is stored; `private` is None once it is retired.

    The first one of a store may be from a time when its 32 private bytes were all that was stored.
    """

    number: int
    public: bytes
    private: bytes | None = field(repr=False)
    created: int | None
    retired: int | None = None

    @property
    def id(self) -> str:
        """The name that items call it by."""
        return key_id(self.public).hex()

    @property
    def row(self) -> str:
        """What its row is called."""
        return _NAME if self.number == 1 else f"{_NAME} {self.number}"

    @property
    def value(self) -> bytes:
        """What is in it."""
        private = None if self.private is None else self.private.hex()
        times = {"created": self.created, "retired": self.retired}
        return json.dumps({"public": self.public.hex(), "private": private, **times}).encode()

    @classmethod
    def read(cls, row: str, value: bytes) -> Key:
        """The key in a row."""
        number = int(row.removeprefix(_NAME) or 1)
        if len(value) == _BARE:
            return cls(number, KeyPair(value).public, value, None)
        facts = json.loads(value)
        private = None if facts["private"] is None else bytes.fromhex(facts["private"])
        return cls(number, bytes.fromhex(facts["public"]), private, facts["created"], facts["retired"])


class KeyRing:
    """The keys of a store, remembered between `refresh`es. There is always one that is not retired."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pairs: list[KeyPair] = []
        self._openers = Openers()
        self.refresh()
        if not self._pairs:
            self._add(1, KeyPair.fresh())  # unless another process was quicker

    def refresh(self) -> None:
        """Learn of new and retired keys."""
        found = [key.private for key in self.all() if key.private is not None]
        if found != [pair.private for pair in self._pairs]:
            self._pairs = [KeyPair(private) for private in found]

    def close(self) -> None:
        """End the processes that open reports."""
        self._openers.close()

    @property
    def public(self) -> bytes:
        """The key to seal for now."""
        return self._pairs[-1].public

    @property
    def names(self) -> list[str]:
        """What the keys are called that open reports."""
        return [pair.id.hex() for pair in self._pairs]

    def open_each(self, task: Task, items: bytes) -> tuple[NDArray[np.uint8], list[int]]:
        """The reports of the items that open, and the places of those that do not."""
        return open_each(self._pairs, task, items, self._openers.run)

    def all(self) -> list[Key]:
        """Every key there ever was, the oldest first."""
        query = sql.select(meta.c.name, meta.c.value).where(meta.c.name.startswith(_NAME))
        with self._store.reading() as connection:
            found = [Key.read(name, bytes(value)) for name, value in connection.execute(query)]
        return sorted(found, key=lambda key: key.number)

    def new(self) -> Key:
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
        key = Key(number, pair.public, pair.private, int(time.time()))
        try:
            with self._store.writing() as connection:
                connection.execute(meta.insert().values(name=key.row, value=key.value))
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
        gone = replace(found[0], private=None, retired=int(time.time()))
        with self._store.writing() as connection:
            if self._store.embedded:
                connection.exec_driver_sql("PRAGMA secure_delete = ON")
            connection.execute(meta.update().where(meta.c.name == gone.row).values(value=gone.value))
        if self._store.embedded:
            with closing(self._store.engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.refresh()
