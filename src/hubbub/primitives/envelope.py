"""Files that carry reports or a state: header, the task if wanted, payload, checksum.

    magic "hubb" | kind | version | mechanism code | task digest | count | task length | payload length
    task (canonical JSON, may be empty) | payload | 16-byte BLAKE2b of all that comes before

Kind, version, mechanism and digest are compared one by one, so that the message says which is off. The
checksum finds accidents (truncation, flipped bits), not forgery.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO

from hubbub.primitives.errors import Refused

_log = logging.getLogger("hubbub.files")

MAGIC = b"hubb"
VERSION = 1
KINDS = {
    b"R": "reports",
    b"S": "state",
    b"A": "release data",
    b"P": "reports by stratum",
    b"T": "states by stratum",
}
#: The same in a sentence, and how such files are usually called.
_WORDS = {
    b"R": ("reports", ".reports"),
    b"S": ("a state", ".state"),
    b"A": ("a release", ".hub"),
    b"P": ("reports", ".reports"),
    b"T": ("states of several groups", ".state"),
}
#: Endings that say that a file is something else.
_OTHERS = re.compile(r"\.(csv|tsv|txt|json|jsonl|toml|parquet|arrow|np[yz]|xlsx|png|svg|pdf|html|md|gz|zip)")
_HEADER = struct.Struct("<4scBH16sQQQ")
_CHECK = 16
#: Bytes of a file that are read at a time.
_PIECE = 1 << 18
#: Bytes of an envelope with no task and no payload.
EMPTY = _HEADER.size + _CHECK


@dataclass(frozen=True)
class Envelope:
    """The contents of one file."""

    kind: bytes
    mechanism: int
    digest: bytes
    count: int
    task: bytes | memoryview
    payload: bytes | memoryview

    def seal(self) -> bytes:
        """The file's bytes."""
        return b"".join(self.sealed([self.payload], len(self.payload)))

    def sealed(self, payload: Iterable[bytes | memoryview], length: int) -> Iterator[bytes | memoryview]:
        """The same piece by piece, with a payload of this length that does not have to be in memory as a whole."""
        header = _HEADER.pack(
            MAGIC,
            self.kind,
            VERSION,
            self.mechanism,
            self.digest,
            self.count,
            len(self.task),
            length,
        )
        check = hashlib.blake2b(digest_size=_CHECK)
        for piece in chain([header, self.task], payload):
            check.update(piece)
            yield piece
        yield check.digest()


def unseal(data: bytes | memoryview, source: str = "the data", kind: bytes | None = None) -> Envelope:
    """Read an envelope back; whatever is wrong with it is refused in one sentence."""
    envelope, middle = _head(data, len(data), source, kind)
    if hashlib.blake2b(data[:-_CHECK], digest_size=_CHECK).digest() != data[-_CHECK:]:
        raise Refused(f"{source} is damaged: its checksum does not match.")
    return replace(envelope, task=data[_HEADER.size : middle], payload=data[middle:-_CHECK])


def _head(
    data: bytes | memoryview, size: int, source: str, kind: bytes | None = None
) -> tuple[Envelope, int]:
    """An envelope of so many bytes by its first ones, without task and payload, and where the payload begins."""
    if size < EMPTY or data[:4] != MAGIC:
        raise Refused(f"{source} is not a hubbub file, or its beginning is missing.")
    _, found, version, mechanism, digest, count, task_length, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise Refused(f"{source} has format version {version}; this hubbub reads version {VERSION}.")
    if found not in KINDS:
        raise Refused(f"{source} holds an unknown kind of content ({found!r}).")
    if kind is not None and found != kind:
        raise Refused(f"{source} holds {_WORDS[found][0]}, not {_WORDS[kind][0]}.")
    expected = _HEADER.size + task_length + length + _CHECK
    if size != expected:
        state = "truncated" if size < expected else "longer than it says"
        raise Refused(f"{source} is {state}: {size} bytes where its header asks for {expected}.")
    return Envelope(found, mechanism, digest, count, b"", b""), _HEADER.size + task_length


@dataclass(frozen=True)
class Sealed:
    """An envelope in a file, of which all was right when it was opened. The payload is read piece by piece."""

    path: Path
    #: Without the payload.
    envelope: Envelope
    begin: int
    length: int
    #: What the file was like when it was opened.
    mark: tuple[int, ...]

    def read(self, start: int, length: int) -> bytes:
        """Some bytes of the payload; refused if the file is not the one any more that was opened."""
        with _opened(self.path) as file:
            file.seek(self.begin + start)
            found = file.read(min(length, self.length - start))
            if _mark(file) != self.mark:
                raise Refused(f"{self.path} was changed while it was read.")
        return found


def open_sealed(path: str | Path, kind: bytes | None = None) -> Sealed:
    """An envelope that is too large for the memory; its checksum is compared before anything is believed."""
    with _opened(path) as file:
        mark = _mark(file)
        check, start = hashlib.blake2b(digest_size=_CHECK), file.read(_HEADER.size)
        envelope, middle = _head(start, mark[0], str(path), kind)
        task = file.read(middle - _HEADER.size)
        left = length = mark[0] - middle - _CHECK
        for piece in (start, task):
            check.update(piece)
        while left and (piece := file.read(min(left, _PIECE))):
            check.update(piece)
            left -= len(piece)
        if left or check.digest() != file.read():
            raise Refused(f"{path} is damaged: its checksum does not match.")
    return Sealed(Path(path), replace(envelope, task=task), middle, length, mark)


def _mark(file: IO[bytes]) -> tuple[int, ...]:
    """Size, place and time of the last change of an open file."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """A file that is read, or a sentence why it cannot be."""
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as problem:
        raise Refused(f"{path} cannot be read: {problem.strerror or problem}.") from None


def check_ending(path: str | Path, kind: bytes) -> None:
    """Refuse to write this kind of content under a name that says that it is something else."""
    refuse_ending(path, *_WORDS[kind])


def refuse_ending(path: str | Path, what: str, usual: str) -> None:
    """Refuse to write `what` to a name with an ending that is neither the usual one nor free."""
    ending = Path(path).suffix.lower()
    if _OTHERS.fullmatch(ending) and ending != usual:
        raise Refused(
            f"{path}: {what} cannot be written as {ending}; choose another ending, such as {usual}."
        )


def read_file(path: str | Path, most: int = -1) -> bytes:
    """The bytes of a file, or the first of them, or a sentence why not."""
    with _opened(path) as file:
        return file.read(most)


def keep_private(path: str | Path, create: bool = False) -> None:
    """See to it that only its owner may read or write a file or folder, or say why that cannot be.

    What others could read is closed to them, with a warning; with `create`, a file that is not there is made. Windows
    keeps no such modes: there the folder's own rights decide.
    """
    target = Path(path)
    try:
        if create:
            os.close(os.open(target, os.O_CREAT | os.O_RDWR, 0o600))
        mode = stat.S_IMODE(target.stat().st_mode)
        if mode & 0o077 and os.name != "nt":
            target.chmod(mode & 0o700)
            _log.warning("%s could be read by others (mode %o); that is over", target, mode)
    except OSError as problem:
        raise Refused(f"{path} cannot be kept private: {problem.strerror or problem}.") from None


def sync_folder(folder: str | Path) -> None:
    """Force the names in a folder to disk, where folders can be opened; Windows has no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: str | Path, data: bytes | Iterable[bytes | memoryview], private: bool = False) -> None:
    """Write a file, given as bytes or piece by piece, whole or not at all; an older file stays until it is complete.

    One that is `private` is for its owner only, whatever is usual here. A link stays, and what it leads to is written;
    one that somebody else has laid, in a folder where everybody may, is refused. What is no file (/dev/null, a pipe)
    cannot be replaced by one without being lost to everybody, and is refused.
    """
    target = Path(os.path.realpath(path))
    name = None
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise Refused(f"{path} cannot be written: it is not a file.")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            us = os.fstat(file.fileno()).st_uid  # there is no other way to ask that Windows has, too
            if Path(path).is_symlink() and Path(path).lstat().st_uid not in (0, us):
                raise Refused(f"{path} cannot be written: it is a link that belongs to somebody else.")
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            mask = os.umask(0)
            os.umask(mask)
            Path(name).chmod(0o666 & ~mask)
        os.replace(name, target)
        name = None
        sync_folder(target.parent)  # until then a power cut could bring the old name back
    except BaseException as problem:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise Refused(f"{path} cannot be written: {problem.strerror or problem}.") from None
        raise


def locked(path: str | Path) -> AbstractContextManager[object]:
    """One at a time may read a file, change it and write it, across processes and by whatever links it is reached.

    The lock is a file beside it, and is released by the operating system if the process dies.
    """
    from filelock import FileLock

    file = Path(os.path.realpath(path))
    lock = file.with_name(f"{file.name}.lock")
    if not file.parent.is_dir():  # which the lock would make: a mistyped path would be a new file
        raise Refused(f"{path} cannot be written: there is no folder {file.parent}.")
    try:
        return FileLock(lock, mode=0o600, poll_interval=0.01).acquire()
    except OSError as problem:
        raise Refused(f"{lock} cannot be written: {problem.strerror or problem}.") from None
