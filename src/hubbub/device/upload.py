"""Reports from a device to a collector, whatever the network does.

    with Uploader("https://collector.example", task, token, spool="reports") as uploader:
        uploader.report(Ledger("ledger.json"), {"page:17": 1.0})

What an uploader has taken is on disk before it returns, and leaves the disk when the collector has acknowledged it.
A batch that is sent again, by a retry or after a crash, has the same id and the same bytes (`hubbub.device.spool`), and
the collector counts it once.
Only the collector's own word ends a batch, for good or ill (`hubbub.protocol.delivery`); whatever a login page or a
proxy in between may say, it is sent again.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import logging
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hubbub.device.spool import Spool, clock_is_set, parts_of
from hubbub.primitives.envelope import Envelope
from hubbub.primitives.errors import BudgetSpent, Refused
from hubbub.protocol.delivery import Answer, ask_nonce, connect, post, service_address
from hubbub.protocol.nonces import refuse_own_seeds
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import KEY_BYTES, check_sealable, naming_no_key, sealed_width
from hubbub.protocol.strata import Stratum, combination, labels_from, number_of, stratum_in, text_of
from hubbub.protocol.task import Task

if TYPE_CHECKING:
    from hubbub.device.ledger import Ledger
    from hubbub.model.record import Record

_log = logging.getLogger("hubbub.upload")

#: Kind of an envelope of reports.
_REPORTS = b"R"
#: The number of a combination of labels in the names of files.
_NUMBER = re.compile("[0-9a-f]{4}")
#: Seconds for which a connection is used again; servers and proxies close idle ones a little later.
_FRESH = 2.0
#: Seconds until the next attempt: first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 300.0


class Uploader:
    """Sends reports of one task in batches, in the background, for as long as it is open.

    A batch is made when `batch` reports wait, or when the oldest has waited for `linger` seconds. `spool` is a
    folder of its own; one process at a time may use it for a task.

    To send through a shuffler, give its address and the collector's public key as `sealed_for`. The uploader itself
    seals nothing: it cannot tell a fresh report from one that was sent before, and a report that is sealed twice
    stands out in its crowd. The ledger can tell, and seals every report once.

    If the task has labels, `labels` are those of whoever reports: `{"country": "de"}`. They are public, like the
    period: a batch has one combination of labels and one period, which it says beside the reports (a sealed report
    says them itself). Both are those of the moment when a report was made. They are kept with it, so that it says the
    same when it is sent weeks later, by an uploader with other labels.
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
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if batch < 1:
            raise Refused(f"A batch has at least 1 report, not {batch}.")
        if task.messages and sealed_for is None:
            raise Refused(
                "A task with several messages is for a shuffler: give its address and the collector's key, sealed_for."
            )
        if sealed_for is not None:
            check_sealable(task)
        self._address, self._timeout = service_address(url), timeout
        self._task, self._token = task, token
        self._batch, self._linger = batch, linger
        self._sealed_for = sealed_for
        self._labels, self._combination = labels, labels_from(task, labels or {})
        self._width = task.mechanism.layout.width if sealed_for is None else sealed_width(task)
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._failures: Counter[str] = Counter()
        self._set_aside = 0
        #: Why the last attempt failed, "" if it did not.
        self.trouble = ""
        digest = task.digest.hex()
        self._route = f"/v1/tasks/{digest}/reports" if sealed_for is None else f"/v2/tasks/{digest}/sealed"
        self._spool = Spool(Path(spool) / (digest + ("" if sealed_for is None else "-keyed")), self._width)
        if sealed_for is not None:
            self._move(Path(spool) / f"{digest}-sealed")
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="hubbub-upload", daemon=True)
        self._thread.start()

    def _move(self, folder: Path) -> None:
        """Take over what an earlier version has left, whose items did not name their key.

        A crash in between leaves items in both places; the shuffler takes each of them once.
        """
        if folder.is_dir():
            old = Spool(folder, self._width - KEY_BYTES)
            for name in old.batches():
                self._spool.take(naming_no_key(self._task, old.read(name)), self._batch)
                old.drop(name)
            old.close()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def report(self, ledger: Ledger, record: Record, day: datetime.date | None = None) -> None:
        """Make this period's report of a record with a ledger, and take it; it is on disk when this returns.

        Asked again when the period's budget is spent, it adds nothing that would count: a person counts once. A
        collector knows no report again, so it gets none; a shuffler gets the same sealed item, which it knows. So a
        crash after the ledger has made a report and before it is on disk here can waste one that is for a collector.
        """
        if self._sealed_for is None:
            shown = day or datetime.date.today()
            try:
                nonce = self._nonce(ledger, shown)
                made = ledger.fresh(self._task, record, shown, nonce)
            except BudgetSpent:
                ledger.report(self._task, record, shown)  # refused if the budget went to a shuffler
            else:
                self._take(made, self._mark(shown if day or clock_is_set() else None), nonce)
        else:
            sealed = ledger.sealed(self._task, record, self._sealed_for, day, self._labels)
            if sealed:  # several messages may be none
                self._take(sealed)

    def _nonce(self, ledger: Ledger, day: datetime.date) -> str:
        """Where seeds come from the collector: ask for them, if there is to be a report at all."""
        if self._task.seed_from == "device":
            return ""
        ledger.check(self._task, day)
        return ask_nonce(self._address, self._task.digest.hex(), self._token, self._timeout)

    def add(self, reports: bytes) -> None:
        """Take one report of today's period, or several one after another; they are on disk when this returns."""
        refuse_own_seeds(self._task)
        if self._sealed_for is not None:
            raise Refused(
                "Reports for a shuffler are sealed once, by the ledger that makes them: call report(ledger, record), "
                "or add_sealed with what is sealed already."
            )
        if not reports or len(reports) % self._width:
            raise Refused(
                f"A report of this task has {self._width} bytes; {len(reports)} bytes are no reports."
            )
        self._take(reports, self._mark(datetime.date.today() if clock_is_set() else None))

    def add_sealed(self, items: Sequence[bytes]) -> None:
        """Take sealed reports for the shuffler, each sealed once and for all; they are on disk when this returns.

        For a task with several messages: all of one device, which are sent in one request.
        """
        if self._sealed_for is None:
            raise Refused(
                "Only a shuffler takes sealed reports: give the uploader its address and sealed_for."
            )
        if not items or any(len(item) != self._width for item in items):
            raise Refused(f"A sealed report of this task has {self._width} bytes, and these are none.")
        self._take(b"".join(items))

    def _mark(self, day: datetime.date | None) -> str:
        """The stratum of what is made on a day, as the spool keeps it: `2026-W46_001f`, without what is not told.

        A clock that was never set shows no day, and so no period is told: the day of arrival decides.
        """
        period = "" if day is None or self._task.period == "once" else period_of(self._task, day)
        return f"{period}_{number_of(self._task, self._combination):04x}" if self._combination else period

    def _stratum(self, mark: str) -> Stratum:
        """What such a mark says; `Refused` if nobody can have written it."""
        period, _, number = mark.partition("_")
        labels = combination(self._task, int(number, 16)) if _NUMBER.fullmatch(number) else ()
        return stratum_in(self._task, text_of(self._task, Stratum(labels, period)))

    def _take(self, reports: bytes, mark: str = "", nonce: str = "") -> None:
        # The messages of a device travel together, whatever happens: no crowd gets half of them. A nonce is a batch's.
        if self._task.messages or nonce:
            self._spool.take_whole(reports, nonce, mark)
        else:
            self._spool.take(reports, self._batch, mark)
        self._wake.set()

    def flush(self, seconds: float = 60.0) -> bool:
        """Send everything now; whether all that waited was acknowledged in time.

        Also False if the collector refused a batch for good since the last call: see `refused`.
        """
        deadline = time.monotonic() + seconds
        self._spool.finish()
        pause = _FIRST_PAUSE
        while True:
            wish = self._send_all()
            if wish is None:
                aside, self._set_aside = self._set_aside, 0
                return not aside
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
        self._spool.close()

    @property
    def waiting(self) -> int:
        """Reports on disk that are not acknowledged yet."""
        return self._spool.waiting

    @property
    def refused(self) -> list[Path]:
        """Batches that the collector will never take: it said so, and they are not sent again."""
        return self._spool.refused()

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
                self._spool.finish(older_than=self._linger)
                wish = self._send_all()
            except Exception as problem:  # whatever it is, it may pass, and nobody else sends what is on disk
                reason = getattr(problem, "strerror", None) or problem
                self.trouble = f"{self._spool.folder} cannot be used ({reason})"
                _log.warning("%s", self.trouble)
                wish = 0.0
            if wish is None:
                pause = 0.0
            else:
                longer = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                pause = max(wish, longer * random.uniform(0.5, 1))  # not all devices at the same moment

    def _until_due(self) -> float | None:
        oldest = self._spool.oldest
        return None if oldest is None else max(0.0, oldest + self._linger - time.monotonic())

    def _rest(self, pause: float) -> None:
        end = time.monotonic() + pause
        while not self._closing and (left := end - time.monotonic()) > 0:
            self._wake.clear()
            self._wake.wait(left)

    def _send_all(self) -> float | None:
        """Send all batches; None if none is left, otherwise the seconds that the collector wants us to wait.

        A round ends with the first that is not taken, and those that failed before come last, so one that something
        on the way does not let pass holds up nobody. Nor does one whose period has not begun: the round goes on.
        """
        early: dict[str, float] = {}
        with self._sending:
            while names := [name for name in self._spool.batches() if name not in early]:
                for name in sorted(names, key=lambda name: self._failures[name]):
                    answer = self._send(name)
                    if answer is None:
                        del self._failures[name]
                        continue
                    self._failures[name] += 1
                    if answer.verdict != "early":
                        return answer.wait
                    early[name] = answer.wait
            if early:
                return max(early.values())
            self.trouble = ""
            return None

    def _send(self, name: str) -> Answer | None:
        """Send one batch; None if it is done with, otherwise what the collector says, if anything."""
        reports = self._spool.read(name)
        count = len(reports) // self._width
        body = reports
        if self._sealed_for is None:
            body = Envelope(_REPORTS, self._task.code, self._task.digest, count, b"", reports).seal()
        try:
            stratum = self._stratum(parts_of(name)[1])
        except Refused as problem:
            self._give_up(name, f"its name says nothing that can be told: {problem}")
            return None
        try:
            answer = self._post(body, name, stratum)
        except (OSError, ValueError, http.client.HTTPException) as problem:
            self._spool.untold.discard(name)
            self.trouble = f"the collector cannot be reached ({problem or type(problem).__name__})"
            return Answer("later", 0, self.trouble, 0.0)
        if answer.verdict == "taken":
            self._spool.drop(name)
            return None
        self.trouble = f"the collector answered {answer.words}"
        # A proxy's limit shows before the collector knows of the batch. After any other answer, or none, the
        # collector may have it, and to send its halves under new ids could count it twice.
        proxys = answer.status == 413 and name in self._spool.untold
        if count > 1 and not self._task.messages and (answer.verdict == "too large" or proxys):
            self._batch = min(self._batch, count // 2)
            self._spool.halve(name)
            return None
        if answer.verdict in ("later", "early"):
            if answer.status != 413:
                self._spool.untold.discard(name)
            return answer
        self._give_up(name, self.trouble)
        return None

    def _give_up(self, name: str, why: str) -> None:
        """A batch will never be taken."""
        _log.warning("batch %s is refused: %s", name, why)
        self._spool.set_aside(name)
        self._set_aside += 1

    def _post(self, body: bytes, name: str, stratum: Stratum) -> Answer:
        """Ask over the connection of the last time; it may have been closed meanwhile, so then over a new one."""
        if time.monotonic() > self._used + _FRESH:
            self._hang_up()
        reused = self._connection is not None
        if self._connection is None:
            self._connection = connect(self._address, self._timeout)
        try:
            answer, again = post(
                self._connection,
                self._address,
                self._route,
                body,
                self._token,
                parts_of(name)[0],
                labels=text_of(self._task, Stratum(stratum.labels)),
                period=stratum.period,
            )
        except (OSError, ValueError, http.client.HTTPException):
            self._hang_up()
            if not reused:
                raise
            self._spool.untold.discard(name)
            return self._post(body, name, stratum)
        self._used = time.monotonic()
        if not again:
            self._hang_up()
        return answer

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None
