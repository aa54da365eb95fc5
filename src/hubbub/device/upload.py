"""Reports from a device to a collector, whatever the network does.

    with Uploader("https://collector.example", task, token, spool="reports") as uploader:
        uploader.report(Ledger("ledger.json"), {"page:17": 1.0})

What an uploader has taken is on disk before it returns, and leaves the disk when the collector has acknowledged it.
Reports wait in a file called "open"; to make a batch of them the file is renamed to the batch's id, a fresh
random one, so at any moment a report is in exactly one place. What is sent is a function of that file: a batch
that is sent again, by a retry or after a crash, has the same id and the same bytes, and the collector counts it once.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hubbub.primitives.envelope import Envelope, sync_folder
from hubbub.primitives.errors import Refused
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

if TYPE_CHECKING:
    import datetime

    from filelock import BaseFileLock

    from hubbub.device.ledger import Ledger
    from hubbub.model.record import Record

_log = logging.getLogger("hubbub.upload")

#: Kind of an envelope of reports.
_REPORTS = b"R"
#: Bytes as they are, which Windows asks to be told.
_BINARY = getattr(os, "O_BINARY", 0)
#: Answers after which the same batch may be welcome later; 401, 403 and 404 may be a collector that is not set up yet.
_LATER = frozenset({401, 403, 404, 408, 425, 429, 500, 502, 503, 504})
#: Seconds until the next attempt: first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 300.0
#: Bytes of an answer that are read.
_LONGEST_ANSWER = 100_000
#: The longest that a collector may ask us to wait.
_LONGEST_WISH = 3600.0


class Uploader:
    """Sends reports of one task in batches, in the background, for as long as it is open.

    A batch is made when `batch` reports wait, or when the oldest has waited for `linger` seconds. `spool` is a
    folder of its own; one process at a time may use it for a task.

    To send through a shuffler, give its address and the collector's public key as `sealed_for`. The uploader itself
    seals nothing: it cannot tell a fresh report from one that was sent before, and a report that is sealed twice
    stands out in its crowd. The ledger can tell, and seals every report once.
    """

    def __init__(
        self,
        url: str,
        task: Task,
        token: str,
        spool: str | Path,
        *,
        batch: int = 1000,
        linger: float = 5.0,
        timeout: float = 30.0,
        sealed_for: bytes | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{url!r} is not the address of a collector; it begins with https:// or http://.")
        if batch < 1:
            raise Refused(f"A batch has at least 1 report, not {batch}.")
        self._parts, self._timeout = parts, timeout
        self._task, self._token = task, token
        self._batch, self._linger = batch, linger
        self._sealed_for = sealed_for
        self._width = task.mechanism.layout.width if sealed_for is None else sealed_width(task)
        self._connection: http.client.HTTPConnection | None = None
        self._files = threading.Lock()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._oldest: float | None = None
        #: Why the last attempt failed, "" if it did not.
        self.trouble = ""
        self._route = "reports" if sealed_for is None else "sealed"
        self._folder = Path(spool) / (task.digest.hex() + ("" if sealed_for is None else "-sealed"))
        self._lock = self._take_folder()
        self._recover()
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="hubbub-upload", daemon=True)
        self._thread.start()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def report(self, ledger: Ledger, record: Record, day: datetime.date | None = None) -> None:
        """Take this period's report of a record from a ledger; it is on disk when this returns.

        Asked again within a period, it sends what the ledger gives then: see `hubbub.device.ledger`.
        """
        if self._sealed_for is None:
            self.add(ledger.report(self._task, record, day))
        else:
            self.add_sealed([ledger.sealed(self._task, record, self._sealed_for, day)])

    def add(self, reports: bytes) -> None:
        """Take one report, or several one after another; they are on disk when this returns."""
        if self._sealed_for is not None:
            raise Refused(
                "Reports for a shuffler are sealed once, by the ledger that makes them: call report(ledger, record), "
                "or add_sealed with what is sealed already."
            )
        if not reports or len(reports) % self._width:
            raise Refused(
                f"A report of this task has {self._width} bytes; {len(reports)} bytes are no reports."
            )
        self._take(reports)

    def add_sealed(self, items: Sequence[bytes]) -> None:
        """Take sealed reports for the shuffler, each sealed once and for all; they are on disk when this returns."""
        if self._sealed_for is None:
            raise Refused(
                "Only a shuffler takes sealed reports: give the uploader its address and sealed_for."
            )
        if not items or any(len(item) != self._width for item in items):
            raise Refused(f"A sealed report of this task has {self._width} bytes, and these are none.")
        self._take(b"".join(items))

    def _take(self, reports: bytes) -> None:
        most = self._batch * self._width
        with self._files:
            for start in range(0, len(reports), most):
                part = reports[start : start + most]
                if self._size() + len(part) > most:
                    self._finish()
                self._append(part)
            if self._size() >= most:
                self._finish()
        self._wake.set()

    def flush(self, seconds: float = 60.0) -> bool:
        """Send everything now; whether all of it was acknowledged in time."""
        deadline = time.monotonic() + seconds
        with self._files:
            self._finish()
        pause = _FIRST_PAUSE
        while True:
            wish = self._send_all()
            if wish is None:
                return True
            pause = max(wish, pause)
            if time.monotonic() + pause > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        """Stop sending. What was not acknowledged stays on disk, for the next uploader of this folder."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._hang_up()
        self._lock.release()

    @property
    def waiting(self) -> int:
        """Reports on disk that are not acknowledged yet."""
        with self._files:
            return sum(path.stat().st_size for path in [*self._batches(), *self._open_file()]) // self._width

    @property
    def refused(self) -> list[Path]:
        """Batches that the collector will never take: it said so, and they are not sent again."""
        return sorted(self._folder.glob("*.refused"))

    # On disk

    def _take_folder(self) -> BaseFileLock:
        from filelock import FileLock, Timeout

        # Whoever closes the uploader may be another thread than the one that opened it.
        lock = FileLock(self._folder / "lock", timeout=0, mode=0o600, thread_local=False)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.acquire()
        except Timeout:
            raise Refused(
                f"Another uploader is using {self._folder}; give this one a folder of its own."
            ) from None
        except OSError as problem:
            raise Refused(f"{self._folder} cannot be written: {problem.strerror or problem}.") from None
        return lock

    def _recover(self) -> None:
        """A report that a crash cut off in the middle of being written was never taken; the others go out first."""
        path = self._folder / "open"
        if path.exists():
            os.truncate(path, path.stat().st_size // self._width * self._width)
            self._finish()

    def _open_file(self) -> list[Path]:
        return [path for path in [self._folder / "open"] if path.exists()]

    def _batches(self) -> list[Path]:
        return sorted(self._folder.glob("*.batch"))

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._open_file())

    def _append(self, reports: bytes) -> None:
        before = self._size()
        try:
            handle = os.open(self._folder / "open", os.O_CREAT | os.O_WRONLY | os.O_APPEND | _BINARY, 0o600)
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
                sync_folder(self._folder)
        except OSError as problem:
            raise Refused(f"{self._folder} cannot be written: {problem.strerror or problem}.") from None
        if self._oldest is None:
            self._oldest = time.monotonic()

    def _finish(self) -> None:
        """Turn what is open into a batch with an id of its own."""
        path = self._folder / "open"
        if self._size():
            path.rename(self._folder / f"{secrets.token_hex(16)}.batch")
            sync_folder(self._folder)
        self._oldest = None

    # Over the network

    def _run(self) -> None:
        pause = 0.0
        while True:
            if pause:  # the collector asked for time, or cannot be reached: new reports do not change that
                self._rest(pause)
            else:
                self._wake.wait(self._until_due())
            if self._closing:
                return
            self._wake.clear()
            try:
                with self._files:
                    if self._oldest is not None and time.monotonic() >= self._oldest + self._linger:
                        self._finish()
                wish = self._send_all()
            except OSError as problem:  # the folder's; a disk may come back
                self.trouble = f"{self._folder} cannot be used ({problem.strerror or problem})"
                wish = 0.0
            if wish is None:
                pause = 0.0
            else:
                longer = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                pause = max(wish, longer * random.uniform(0.5, 1))  # not all devices at the same moment

    def _until_due(self) -> float | None:
        oldest = self._oldest
        return None if oldest is None else max(0.0, oldest + self._linger - time.monotonic())

    def _rest(self, pause: float) -> None:
        end = time.monotonic() + pause
        while not self._closing and (left := end - time.monotonic()) > 0:
            self._wake.clear()
            self._wake.wait(left)

    def _send_all(self) -> float | None:
        """Send all batches; None if none is left, otherwise the seconds that the collector wants us to wait."""
        with self._sending:
            for path in self._batches():
                wish = self._send(path)
                if wish is not None:
                    return wish
            self.trouble = ""
            return None

    def _send(self, path: Path) -> float | None:
        """Send one batch; None if it is done with."""
        reports = path.read_bytes()
        count = len(reports) // self._width
        body = reports
        if self._sealed_for is None:
            body = Envelope(_REPORTS, self._task.code, self._task.digest, count, b"", reports).seal()
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/octet-stream",
            "Hubbub-Batch": path.stem,
        }
        try:
            answer, said = self._post(body, headers)
        except (OSError, http.client.HTTPException) as problem:
            self.trouble = f"the collector cannot be reached ({problem or type(problem).__name__})"
            return 0.0
        if answer.status == 200:
            with self._files:
                path.unlink()
            return None
        self.trouble = f"the collector answered {answer.status}: {said}"
        if answer.status in _LATER:
            return _seconds(answer.getheader("Retry-After"))
        _log.warning("batch %s is refused: %s", path.stem, self.trouble)
        with self._files:
            path.rename(path.with_suffix(".refused"))
        return None

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, str]:
        """Ask over the connection of the last time; it may have been closed meanwhile, so then over a new one."""
        target = f"{self._parts.path.rstrip('/')}/v1/tasks/{self._task.digest.hex()}/{self._route}"
        reused = self._connection is not None
        try:
            connection = self._connect()
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            said = answer.read(_LONGEST_ANSWER).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            self._hang_up()
            if not reused:
                raise
            return self._post(body, headers)
        if answer.will_close or not answer.isclosed():
            self._hang_up()
        return answer, said

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = (
                http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            )
            assert self._parts.hostname is not None
            self._connection = kind(self._parts.hostname, self._parts.port, timeout=self._timeout)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _seconds(wish: str | None) -> float:
    """What Retry-After asks for, in seconds; a date or anything else counts as no wish."""
    return min(float(wish), _LONGEST_WISH) if wish is not None and wish.isdecimal() else 0.0
