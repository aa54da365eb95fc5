"""Items that wait at a shuffler, on a disk that does not say when and with whom they came.

A file of equal slots, all of them written when the file is made. An item goes into a slot that is drawn uniformly
from the free ones by the operating system's generator, and is overwritten with zeros when it leaves. Nothing else is
written: no log, no index, no number, no time.

What somebody who reads the file once can learn is the set of items, and nothing about their order or their requests.
Proof. Renumbering the slots by any permutation turns the law of this process, with the same items arriving and leaving
at the same times, into itself, because every draw is uniform over what is free. So at any moment every assignment of
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
import os
import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from hubbub.primitives.envelope import keep_private
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import KEY_BYTES

#: Slots of a new file.
_SLOTS = 1024
_CHECK = 16
#: Until this returns, what was written may be in memory only. (Not everywhere is there one that leaves out the times.)
_to_disk = getattr(os, "fdatasync", os.fsync)


def digest(item: bytes) -> bytes:
    """What an item is known by, after its period, and all that is kept of it once it has left.

    The name of its key is no part of that: the same message under another name is the same item.
    """
    return hashlib.blake2b(item[:-KEY_BYTES], digest_size=_CHECK).digest()


def _checked(item: bytes) -> bytes:
    """A slot's contents: an item after its checksum."""
    return hashlib.blake2b(item, digest_size=_CHECK).digest() + item


class Staging:
    """Items of `width` bytes by their digest, in memory and in a file. Callers take turns, but for `sync`."""

    def __init__(self, path: Path, width: int) -> None:
        self._path, self._new = path, path.with_name(path.name + ".new")
        self.width, self._size = width, _CHECK + width
        self.items: dict[bytes, bytes] = {}
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []
        self._syncing = threading.Lock()
        self._written = self._synced = 0
        self._lost = False
        self._discard_new()
        if not path.exists():
            self._file = self._make(_SLOTS)
        else:
            keep_private(path)
            self._file = os.open(path, os.O_RDWR)
            self._load()

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def put(self, fresh: Mapping[bytes, bytes]) -> None:
        """Write items that are not here yet, by their digests, in any slots. `sync` says when they are on the disk."""
        if self._lost or len(self._free) < len(fresh):
            slots = len(self._slots) + len(self._free)
            while slots < len(self.items) + len(fresh):
                slots *= 2
            self._rewrite(slots)
        placed = []
        try:
            for item in fresh.values():
                place = secrets.randbelow(len(self._free))
                self._free[place], self._free[-1] = self._free[-1], self._free[place]
                slot = self._free.pop()
                placed.append(slot)
                self._write(slot, _checked(item))
        except OSError:
            self._free += placed
            raise
        self.items.update(fresh)
        self._slots.update(zip(fresh, placed, strict=True))
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

    def drop(self, known: Iterable[bytes]) -> None:
        """Overwrite items, by their digests."""
        slots = []
        for name in known:
            del self.items[name]
            slots.append(self._slots.pop(name))
        self._free += slots
        for slot in slots:
            self._write(slot, bytes(self._size))
        if slots:
            self._to_disk()

    def _to_disk(self) -> None:
        try:
            _to_disk(self._file)
        except OSError:
            self._lost = True  # a second attempt would succeed, and mean nothing
            raise

    def _load(self) -> None:
        data = Path(self._path).read_bytes()
        if not data or len(data) % self._size:
            raise Refused(f"{self._path} is damaged: its size is that of no number of items.")
        for slot in range(len(data) // self._size):
            stored = data[slot * self._size : (slot + 1) * self._size]
            item = stored[_CHECK:]
            known = digest(item)
            if stored == _checked(item) and known not in self.items:
                self.items[known], self._slots[known] = item, slot
            else:
                self._free.append(slot)
                if any(stored):  # cut off by a crash, or written again after one
                    self._write(slot, bytes(self._size))

    def _rewrite(self, slots: int) -> None:
        """All items in new places of a new file; the old one is overwritten."""
        with self._syncing:
            old, length = self._file, os.fstat(self._file).st_size
            self._file = self._make(slots)
            self._synced, self._lost = self._written, False
            try:
                os.pwrite(old, bytes(length), 0)
                _to_disk(old)
            finally:
                os.close(old)

    def _make(self, slots: int) -> int:
        """A file with what is in memory, written whole, synced and renamed into place."""
        order = list(range(slots))
        secrets.SystemRandom().shuffle(order)
        places = dict(zip(self.items, order, strict=False))
        image = bytearray(slots * self._size)
        for known, item in self.items.items():
            start = places[known] * self._size
            image[start : start + self._size] = _checked(item)
        file = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
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
        self._slots, self._free = places, order[len(places) :]
        return file

    def _discard_new(self) -> None:
        """Overwrite and remove a file that was never finished."""
        with contextlib.suppress(FileNotFoundError):
            try:
                with self._new.open("r+b") as file:
                    file.write(bytes(self._new.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                self._new.unlink()

    def _write(self, slot: int, data: bytes) -> None:
        if os.pwrite(self._file, data, slot * self._size) != len(data):
            raise OSError("an item was written in part")
