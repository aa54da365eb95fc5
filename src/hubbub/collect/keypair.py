"""A key pair of the collector, which opens what devices sealed (`hubbub.protocol.sealing`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, binding, key_id, sealed_width, suite
from hubbub.protocol.strata import prefix_width
from hubbub.protocol.task import Task


@dataclass(frozen=True)
class KeyPair:
    """Thirty-two secret bytes of the collector, and what follows from them."""

    private: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.private) != 32:
            raise Refused(f"A private key has 32 bytes, not {len(self.private)}.")

    @classmethod
    def fresh(cls) -> KeyPair:
        """A new pair from the operating system's generator."""
        while True:
            made = cls(X25519PrivateKey.generate().private_bytes_raw())
            if made.id != NO_KEY:
                return made

    @cached_property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private)

    @property
    def public(self) -> bytes:
        """Thirty-two bytes for everybody who seals."""
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def id(self) -> bytes:
        """The name that items call it by."""
        return key_id(self.public)

    @property
    def names(self) -> list[str]:
        """What it is called, as a ring of one key."""
        return [self.id.hex()]

    def open_each(self, task: Task, items: bytes) -> tuple[NDArray[np.uint8], list[int]]:
        """The reports of the items that this pair opens, and the places of the others."""
        return open_each([self], task, items)

    def decrypt(self, message: bytes, info: bytes) -> bytes | None:
        """What was sealed, or None if this key does not open it."""
        try:
            return suite().decrypt(message, self._key, info=info)
        except (InvalidTag, ValueError):
            return None


class Shape(NamedTuple):
    """What of a task has to be known to open its items."""

    digest: bytes
    prefix: int
    width: int

    @classmethod
    def of(cls, task: Task) -> Shape:
        return cls(task.digest, prefix_width(task), sealed_width(task))


#: Opens items with some private keys: the report of each, or None.
Opening = Callable[[list[bytes], Shape, bytes], list[bytes | None]]


def open_items(private: list[bytes], shape: Shape, items: bytes) -> list[bytes | None]:
    """The reports in whole items, one after another; None for those that do not open."""
    pairs = [KeyPair(each) for each in private]
    found = []
    for start in range(0, len(items), shape.width):
        item = items[start : start + shape.width]
        message, name = item[shape.prefix : -KEY_BYTES], item[-KEY_BYTES:]
        info = binding(shape.digest, item[: shape.prefix], name)
        tried = (pair.decrypt(message, info) for pair in pairs if name in (pair.id, NO_KEY))
        found.append(next((each for each in tried if each is not None), None))
    return found


def open_each(
    pairs: Sequence[KeyPair], task: Task, items: bytes, run: Opening | None = None
) -> tuple[NDArray[np.uint8], list[int]]:
    """The reports [n, width] of the items that open, and the places of those that do not.

    An item is tried with the key that it names, and with all of them if it is from a time when items named none.
    One that was changed, made for another key, task or stratum does not open; which of these it was cannot be told.
    What opens is exactly `width` bytes of somebody's choice: still to be checked as a report. `run` opens items
    elsewhere.
    """
    shape = Shape.of(task)
    if len(items) % shape.width:
        raise Refused(
            f"{len(items)} bytes are not a whole number of sealed reports of {shape.width} bytes: "
            "the data is truncated or belongs to another task."
        )
    found = (open_items if run is None else run)([pair.private for pair in pairs], shape, items)
    opened = [report for report in found if report is not None]
    bad = [place for place, report in enumerate(found) if report is None]
    reports = np.frombuffer(b"".join(opened), dtype=np.uint8)
    return reports.reshape(-1, task.mechanism.layout.width), bad
