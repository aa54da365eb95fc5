"""Reports on a device's disk, from the moment they are taken until a collector has acknowledged them.

Reports wait in a file called "open"; to make a batch of them the file is renamed to the batch's id, the day
and a fresh random number, so at any moment a report is in exactly one place. What is sent is a function of that file.
Reports that must not be torn apart are a batch from the beginning.

Reports that must not be mixed with others have a mark, which is part of the file's name: "open@MARK", then
"ID@MARK.batch". When others come, the open file becomes a batch; so the mark of a report never changes, whatever
happens between the moment when it is taken and the one when it is sent.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hubbub.primitives.envelope import keep_private, sync_folder, write_atomic
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from filelock import BaseFileLock

#: Bytes as they are, which Windows asks to be told.
_BINARY = getattr(os, "O_BINARY", 0)
_OPEN, _MARKED = "open", "@"
#: A clock that shows an earlier time than this, the beginning of 2024, was never set.
_PLAUSIBLE = 1_704_067_200


class Spool:
    """A folder with reports of `width` bytes, which one process at a time may use."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self._width = folder, width
        self._files = threading.Lock()
        #: Batches that no collector can know of yet, because nothing was sent or only a 413 came back.
        self.untold: set[str] = set()
        #: When the first of the open reports was taken, by the monotonic clock.
        self.oldest: float | None = None
        self._open = folder / _OPEN
        self._lock = self._take_folder()
        self._recover()

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release()

    def take(self, reports: bytes, batch: int, mark: str = "") -> None:
        """Keep reports, `batch` in a batch at most; they are on disk when this returns."""
        most, file = batch * self._width, self.folder / _marked(_OPEN, mark)
        with self._files:
            if file != self._open:
                self._finish()
                self._open = file
            for start in range(0, len(reports), most):
                part = reports[start : start + most]
                if self._size() + len(part) > most:
                    self._finish()
                self._append(part)
            if self._size() >= most:
                self._finish()

    def take_whole(self, reports: bytes, name: str = "", mark: str = "") -> None:
        """Keep reports as a batch of their own, with this id: after a crash all of them are there, or none."""
        with self._files:
            name = _marked(name or _new_name(), mark)
            write_atomic(self._batch(name), reports, private=True)
            self.untold.add(name)

    def finish(self, older_than: float | None = None) -> None:
        """Turn what is open into a batch, if it has waited for so many seconds."""
        with self._files:
            late = self.oldest is not None and time.monotonic() >= self.oldest + (older_than or 0.0)
            if older_than is None or late:
                self._finish()

    @property
    def waiting(self) -> int:
        """Reports that are not acknowledged yet."""
        with self._files:
            files = [*self.folder.glob("*.batch"), *self.folder.glob("*.split")]
            return (sum(path.stat().st_size for path in files) + self._size()) // self._width

    def batches(self) -> list[str]:
        """The names of all batches: their ids, with the marks."""
        with self._files:
            for path in self.folder.glob("*.split"):  # a crash or a full disk came in between
                self._halve(path)
            return sorted(path.stem for path in self.folder.glob("*.batch"))

    def refused(self) -> list[Path]:
        """What was set aside."""
        return sorted(self.folder.glob("*.refused"))

    def read(self, name: str) -> bytes:
        """The reports of a batch."""
        return self._batch(name).read_bytes()

    def drop(self, name: str) -> None:
        """A batch has arrived."""
        with self._files:
            self._batch(name).unlink()
            self.untold.discard(name)

    def set_aside(self, name: str) -> None:
        """A batch is not to be sent again."""
        with self._files:
            self._batch(name).rename(self.folder / f"{name}.refused")
            self.untold.discard(name)

    def halve(self, name: str) -> None:
        """Make two batches of one that is too large."""
        with self._files:
            self._halve(self._batch(name))

    def _halve(self, path: Path) -> None:
        """The same.

        Their ids and bytes follow from the batch's own, and it is out of the way ("split") before they are there. So
        a crash in between, and doing it again, leaves the same two batches, and no report is sent under two ids.
        """
        aside = path.with_suffix(".split")
        path.rename(aside)
        reports = aside.read_bytes()
        middle = len(reports) // self._width // 2 * self._width
        for place, half in enumerate((reports[:middle], reports[middle:])):
            number = hashlib.blake2b(f"{path.stem} {place}".encode(), digest_size=16).hexdigest()
            begin, mark = parts_of(path.stem)
            name = _marked(f"{begin[:-32]}{number}", mark)
            write_atomic(self._batch(name), half, private=True)
            self.untold.add(name)
        aside.unlink()
        self.untold.discard(path.stem)
        sync_folder(self.folder)

    def _batch(self, name: str) -> Path:
        return self.folder / f"{name}.batch"

    def _take_folder(self) -> BaseFileLock:
        from filelock import FileLock, Timeout

        # Whoever closes the uploader may be another thread than the one that opened it.
        lock = FileLock(self.folder / "lock", timeout=0, mode=0o600, thread_local=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            keep_private(self.folder)
            lock.acquire()
        except Timeout:
            raise Refused(
                f"Another uploader is using {self.folder}; give this one a folder of its own."
            ) from None
        except OSError as problem:
            raise Refused(f"{self.folder} cannot be written: {problem.strerror or problem}.") from None
        return lock

    def _recover(self) -> None:
        """A report that a crash cut off in the middle of being written was never taken; the others go out first."""
        for file in list(self.folder.glob(f"{_OPEN}*")):
            self._open = file
            os.truncate(file, self._size() // self._width * self._width)
            self._finish()
            file.unlink(missing_ok=True)

    def _size(self) -> int:
        return self._open.stat().st_size if self._open.exists() else 0

    def _append(self, reports: bytes) -> None:
        before = self._size()
        try:
            handle = os.open(self._open, os.O_CREAT | os.O_WRONLY | os.O_APPEND | _BINARY, 0o600)
            try:
                done = 0
                while done < len(reports):
                    done += os.write(handle, reports[done:])
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, before)
                raise
            finally:
                os.close(handle)
            if not before:
                sync_folder(self.folder)
        except OSError as problem:
            raise Refused(f"{self.folder} cannot be written: {problem.strerror or problem}.") from None
        if self.oldest is None:
            self.oldest = time.monotonic()

    def _finish(self) -> None:
        """Turn what is open into a batch with an id of its own."""
        if self._size():
            name = _marked(_new_name(), parts_of(self._open.name)[1])
            self._open.rename(self._batch(name))
            sync_folder(self.folder)
            self.untold.add(name)
        self.oldest = None


def _marked(name: str, mark: str) -> str:
    return f"{name}{_MARKED}{mark}" if mark else name


def parts_of(name: str) -> tuple[str, str]:
    """The id of a batch, and the mark of its reports, "" if they have none."""
    begin, _, mark = name.partition(_MARKED)
    return begin, mark


def _new_name() -> str:
    """Ids begin with the day, so that a collector may forget them later; a clock that was never set says none."""
    today = time.strftime("%Y%m%d-", time.gmtime()) if clock_is_set() else ""
    return f"{today}{secrets.token_hex(16)}"


def clock_is_set() -> bool:
    """Whether the clock may show today's date."""
    return time.time() > _PLAUSIBLE
