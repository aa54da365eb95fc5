"""A key pair of the collector, which opens what devices sealed (`hubbub.protocol.sealing`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, binding, key_id, label_width, sealed_width, suite
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

    def open_each(self, task: Task, items: bytes) -> tuple[NDArray[np.uint8], list[int]]:
        """The reports of the items that this pair opens, and the places of the others."""
        return open_each([self], task, items)

    def decrypt(self, message: bytes, info: bytes) -> bytes | None:
        """What was sealed, or None if this key does not open it."""
        try:
            return suite().decrypt(message, self._key, info=info)
        except (InvalidTag, ValueError):
            return None


def open_each(pairs: Sequence[KeyPair], task: Task, items: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The reports [n, width] of the items that open, and the places of those that do not.

    An item is tried with the key that it names, and with all of them if it is from a time when items named none.
    One that was changed, made for another key, task or period does not open; which of these it was cannot be told.
    What opens is exactly `width` bytes of somebody's choice: still to be checked as a report.
    """
    width = sealed_width(task)
    if len(items) % width:
        raise Refused(
            f"{len(items)} bytes are not a whole number of sealed reports of {width} bytes: "
            "the data is truncated or belongs to another task."
        )
    label = label_width(task)
    opened, bad = [], []
    for place, start in enumerate(range(0, len(items), width)):
        item = items[start : start + width]
        message, name = item[label:-KEY_BYTES], item[-KEY_BYTES:]
        info = binding(task, item[:label], name)
        tried = (pair.decrypt(message, info) for pair in pairs if name in (pair.id, NO_KEY))
        report = next((each for each in tried if each is not None), None)
        if report is None:
            bad.append(place)
        else:
            opened.append(report)
    reports = np.frombuffer(b"".join(opened), dtype=np.uint8)
    return reports.reshape(-1, task.mechanism.layout.width), bad
