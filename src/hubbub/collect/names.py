"""Items by their digests, in twenty bytes each: which of them wait, and in which slots.

A million Python objects take some hundred megabytes. Two columns of numbers, sorted by digest, take twenty, and a
search in them is a matter of microseconds. What came lately is in a small dictionary, so that a new item does not
move a million others; when it is full, it is merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.uint32]
#: Digests, one below the other.
Column = NDArray[np.bytes_]

#: Bytes of a digest.
NAME = 16
#: Items that may be in the dictionary.
_LATELY = 1 << 16
_TYPE = f"S{NAME}"


def column(names: Sequence[bytes]) -> Column:
    """Digests as a column."""
    return np.array(names, dtype=_TYPE)


def each(names: Column) -> Iterator[bytes]:
    """The digests of a column, one by one. (By itself numpy leaves out zeros at the end.)"""
    for begin in range(0, len(names), _LATELY):
        data = names[begin : begin + _LATELY].tobytes()
        for start in range(0, len(data), NAME):
            yield data[start : start + NAME]


class Names:
    """Digest -> slot."""

    def __init__(self) -> None:
        self._names: Column = np.zeros(0, dtype=_TYPE)
        self._slots: Slots = np.zeros(0, dtype=np.uint32)
        self._lately: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._names) + len(self._lately)

    def known(self, names: Sequence[bytes]) -> list[bool]:
        """Which of these digests are here."""
        _, here = self._places(column(names))
        return [old or name in self._lately for name, old in zip(names, here.tolist(), strict=True)]

    def add(self, names: Iterable[bytes], slots: Iterable[int]) -> None:
        """Digests that are not here yet, with their slots."""
        self._lately.update(zip(names, slots, strict=True))
        if len(self._lately) >= _LATELY:
            self._merge()

    def columns(self) -> tuple[Column, Slots]:
        """All digests in their order, and their slots."""
        self._merge()
        return self._names, self._slots

    def replace(self, names: Column, slots: Slots) -> None:
        """Forget all others; the digests are in their order."""
        self._names, self._slots, self._lately = names, slots, {}

    def remove(self, names: Column) -> Slots:
        """Forget digests that are here; the slots that they had."""
        self._merge()
        if len(names) == len(self._names):  # of millions, no copy
            gone = self._slots
            self.replace(self._names[:0].copy(), gone[:0].copy())
            return gone
        places, here = self._places(names)
        assert here.all(), "an item is dropped that is not there"
        slots = self._slots[places]
        self._names, self._slots = np.delete(self._names, places), np.delete(self._slots, places)
        return slots

    def _places(self, asked: Column) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Where digests are in the column or would be, and which of them are."""
        places = np.searchsorted(self._names, asked)
        if not len(self._names):
            return places, np.zeros(len(asked), dtype=bool)
        return places, self._names[np.minimum(places, len(self._names) - 1)] == asked

    def _merge(self) -> None:
        if not self._lately:
            return
        names = column(list(self._lately))
        slots = np.array(list(self._lately.values()), dtype=np.uint32)
        order = np.argsort(names)
        places = np.searchsorted(self._names, names[order])
        self._names = np.insert(self._names, places, names[order])
        self._slots = np.insert(self._slots, places, slots[order])
        self._lately = {}
