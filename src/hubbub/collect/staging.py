"""Items that wait at a shuffler, on a disk that does not say when and with whom they came.

A file of equal slots, all of them written when the file is made. An item goes into a slot that is drawn uniformly
from the free ones by the operating system's generator, and is overwritten with zeros when it leaves. Nothing else is
written: no log, no index, no number, no time. In memory are a digest and a slot for every item, and no item.

What somebody who reads the file once can learn is the set of items, and nothing about their order or their requests.
Proof. Renumbering the slots by any permutation turns the law of this process, with the same items arriving and leaving
at the same times, into itself, because every draw is uniform over what is free: the free slots are kept in an order
that is drawn anew whenever one becomes free, and taken from its end. So at any moment every assignment of
the waiting items to slots is as likely as every other, whatever came before, requests and order included. When the
file is full, all items are drawn new places in a new file of twice the size and the old one is overwritten, so the
same holds from there on.

What was acknowledged is on the disk: one `fdatasync` covers all requests that wait for it. A slot that a power cut
left half-written fails its checksum and is free; it was not acknowledged. As databases do, this trusts the disk not to
harm the bytes next to those that it writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.collect.names import NAME, Column, Names, Slots
from hubbub.primitives.arrays import Bytes
from hubbub.primitives.envelope import keep_private
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES

_log = logging.getLogger("hubbub.shuffler")

#: What the collector can tell apart in any case: a stratum, as items name it, and the name of a key.
Kind = tuple[bytes, bytes]

#: Slots of a new file.
_SLOTS = 1024
#: Slots that are read or written at a time.
_AT_ONCE = 8192
_CHECK = 16
#: Until this returns, what was written may be in memory only. (Not everywhere is there one that leaves out the times.)
_to_disk = getattr(os, "fdatasync", os.fsync)


def digest(item: bytes) -> bytes:
    """What an item is known by, after its period, and all that is kept of it once it has left.

    The name of its key is no part of that: the same message under another name is the same item.
    """
    return hashlib.blake2b(item[:-KEY_BYTES], digest_size=NAME).digest()


def permutation(count: int) -> Slots:
    """An order of `count` things, every one equally likely.

    The order of `count` random numbers of 64 bits from the operating system. If two are equal, all are drawn anew;
    given that all are different, every order of them has the same probability.
    """
    while True:
        drawn = np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)
        order = np.argsort(drawn).astype(np.uint32)
        drawn.sort()
        if not (drawn[1:] == drawn[:-1]).any():
            return order


def _checked(item: bytes) -> bytes:
    """A slot's contents: an item after its checksum."""
    return hashlib.blake2b(item, digest_size=_CHECK).digest() + item


def _marks(rows: Bytes, prefix: int) -> NDArray[np.void]:
    """The kinds of items, each as one thing that can be sorted."""
    marks = np.concatenate([rows[:, :prefix], rows[:, -KEY_BYTES:]], axis=1)
    return np.ascontiguousarray(marks).view(f"V{prefix + KEY_BYTES}")[:, 0]


def _kinds(marks: NDArray[np.void], prefix: int) -> list[Kind]:
    return [(mark[:prefix], mark[prefix:]) for mark in map(bytes, marks)]


def _blank(file: int) -> None:
    """Overwrite a whole file."""
    length = os.fstat(file).st_size
    for start in range(0, length, 1 << 20):
        os.pwrite(file, bytes(min(1 << 20, length - start)), start)
    _to_disk(file)


class Staging:
    """Items of `width` bytes, in a file, known by their digests. Callers take turns, but for `sync`."""

    def __init__(self, path: Path, width: int) -> None:
        self._path, self._new = path, path.with_name(path.name + ".new")
        self.width, self._size = width, _CHECK + width
        self._names = Names()
        self._free: Slots = np.zeros(0, dtype=np.uint32)
        self._syncing = threading.Lock()
        self._written = self._synced = 0
        self._lost = False
        self._discard_new()
        if not path.exists():
            self._file = self._make(_SLOTS, None)
        else:
            keep_private(path)
            self._file = os.open(path, os.O_RDWR)
            self._load()

    def __len__(self) -> int:
        return len(self._names)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def known(self, names: Sequence[bytes]) -> list[bool]:
        """Which items wait here, by their digests."""
        return self._names.known(names)

    def put(self, fresh: Mapping[bytes, bytes]) -> None:
        """Write items that are not here yet, by their digests, in any slots. `sync` says when they are on the disk."""
        if self._lost or len(self._free) < len(fresh):
            slots = len(self) + len(self._free)
            while slots < len(self) + len(fresh):
                slots *= 2
            self._rewrite(slots)
        rest, taken = self._free[: len(self._free) - len(fresh)], self._free[len(self._free) - len(fresh) :]
        self._free = rest
        places = taken.tolist()
        try:
            for slot, item in zip(places, fresh.values(), strict=True):
                self._write(slot, _checked(item))
        except OSError:
            self._release(taken)
            raise
        self._names.add(fresh, places)
        self._written += 1

    def sync(self) -> None:
        """Return when everything that was put before is on the disk."""
        wanted = self._written
        with self._syncing:
            if self._synced >= wanted:
                return
            if self._lost:
                raise OSError("the disk has lost what was written before")
            reached = self._written
            self._to_disk()
            self._synced = reached

    def rows(self) -> Iterator[tuple[Slots, Bytes]]:
        """All items, some thousand at a time: their slots, and the items as rows."""
        waiting = np.sort(self._names.columns()[1])
        for start in range(0, len(waiting), _AT_ONCE):
            slots = waiting[start : start + _AT_ONCE]
            yield slots, np.frombuffer(self.read(slots), dtype=np.uint8).reshape(-1, self.width)

    def read(self, slots: Slots) -> bytes:
        """The items in some slots, one after another."""
        places = [_CHECK + slot * self._size for slot in slots.tolist()]
        return b"".join([os.pread(self._file, self.width, place) for place in places])

    def kinds(self, prefix: int) -> Counter[Kind]:
        """How many items of each kind wait; `prefix` bytes name a stratum."""
        found: Counter[Kind] = Counter()
        for _, rows in self.rows():
            different, counts = np.unique(_marks(rows, prefix), return_counts=True)
            found.update(dict(zip(_kinds(different, prefix), counts.tolist(), strict=True)))
        return found

    def of(self, prefix: int, kinds: Collection[Kind]) -> list[tuple[Column, Slots]]:
        """The items of each of these kinds: their digests, in order, and their slots. One pass for all of them."""
        names, places = self._names.columns()
        asked = {kind: number for number, kind in enumerate(kinds)}
        numbers = np.full(len(self) + len(self._free), len(asked), dtype=np.uint32)
        for slots, rows in self.rows():
            different, which = np.unique(_marks(rows, prefix), return_inverse=True)
            known = [asked.get(kind, len(asked)) for kind in _kinds(different, prefix)]
            numbers[slots] = np.array(known, dtype=np.uint32)[which]
        own = numbers[places]
        if len(asked) == 1 and not own.any():  # of millions, no copy
            return [(names, places)]
        order = np.argsort(own, kind="stable")
        ends = np.searchsorted(own[order], np.arange(len(asked) + 1))
        mine = (order[ends[number] : ends[number + 1]] for number in range(len(asked)))
        return [(names[each], places[each]) for each in mine]

    def beginning(self, start: bytes) -> Column:
        """The digests, in order, of the items that begin so."""
        names, places = self._names.columns()
        mine = np.zeros(len(self) + len(self._free), dtype=bool)
        for slots, rows in self.rows():
            good = (rows[:, : len(start)] == np.frombuffer(start, dtype=np.uint8)).all(axis=1)
            mine[slots[good]] = True
        return names[mine[places]]

    def drop(self, names: Column) -> None:
        """Overwrite items, by their digests."""
        if not len(names):
            return
        slots = self._names.remove(names)
        self._release(slots)
        for start in range(0, len(slots), _AT_ONCE):
            for slot in slots[start : start + _AT_ONCE].tolist():
                self._write(slot, bytes(self._size))
        self._to_disk()

    def _release(self, slots: Slots) -> None:
        """Slots are free; the order of the free ones is drawn anew."""
        free = np.concatenate([self._free, slots])
        self._free = free[permutation(len(free))]

    def _to_disk(self) -> None:
        try:
            _to_disk(self._file)
        except OSError:
            self._lost = True  # a second attempt would succeed, and mean nothing
            raise

    def _load(self) -> None:
        slots, rest = divmod(os.fstat(self._file).st_size, self._size)
        if not slots or rest:
            raise Refused(f"{self._path} is damaged: its size is that of no number of items.")
        free = []
        for first in range(0, slots, _AT_ONCE):
            data = os.pread(self._file, _AT_ONCE * self._size, first * self._size)
            stored = [data[start : start + self._size] for start in range(0, len(data), self._size)]
            names = [digest(each[_CHECK:]) for each in stored]
            here = {name for name, known in zip(names, self.known(names), strict=True) if known}
            for slot, (name, each) in enumerate(zip(names, stored, strict=True), first):
                if each == _checked(each[_CHECK:]) and name not in here:
                    here.add(name)
                    self._names.add([name], [slot])
                else:
                    free.append(slot)
                    if any(each):  # cut off by a crash, or written again after one
                        self._write(slot, bytes(self._size))
        self._release(np.array(free, dtype=np.uint32))

    def _rewrite(self, slots: int) -> None:
        """All items in new places of a new file; the old one is overwritten."""
        with self._syncing:
            old = self._file
            self._file = self._make(slots, old)
            self._synced, self._lost = self._written, False
            try:
                _blank(old)
            finally:
                os.close(old)

    def _make(self, slots: int, old: int | None) -> int:
        """A file with the items of the old one in places drawn anew, written whole, synced and renamed into place."""
        order = permutation(slots)
        names, before = self._names.columns()
        places, free = order[: len(names)], order[len(names) :]
        source = np.full(slots, -1, dtype=np.int64)
        source[places] = before
        damaged = []
        file = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for first in range(0, slots, _AT_ONCE):
                image = bytearray(min(_AT_ONCE, slots - first) * self._size)
                for place, slot in enumerate(source[first : first + _AT_ONCE].tolist()):
                    if slot >= 0 and old is not None:
                        stored = os.pread(old, self._size, slot * self._size)
                        if stored != _checked(stored[_CHECK:]):
                            damaged.append(first + place)
                        else:
                            image[place * self._size : (place + 1) * self._size] = stored
                done = 0
                while done < len(image):
                    done += os.write(file, image[done:])
            os.fsync(file)
            os.rename(self._new, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(file)
            self._discard_new()
            raise
        if damaged:
            _log.error("%d reports that waited are lost: the disk has changed them", len(damaged))
            sound = ~np.isin(places, damaged)
            free = np.concatenate([free, places[~sound]])
            names, places = names[sound], places[sound]
            free = free[permutation(len(free))]
        self._names.replace(names, places)
        self._free = free
        return file

    def _discard_new(self) -> None:
        """Overwrite and remove a file that was never finished."""
        with contextlib.suppress(FileNotFoundError):
            file = os.open(self._new, os.O_RDWR)
            try:
                _blank(file)
            finally:
                os.close(file)
                self._new.unlink()

    def _write(self, slot: int, data: bytes) -> None:
        if os.pwrite(self._file, data, slot * self._size) != len(data):
            raise OSError("an item was written in part")
