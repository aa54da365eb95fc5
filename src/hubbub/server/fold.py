"""Report bytes into a state: the one kernel that files, services and engines share.

`aggregate` is for bytes that must be right: all of them count, or none. `Fold` is for lots from many hands: what
is not a report is set aside with the reason, the rest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hubbub.model.state import State
from hubbub.primitives.arrays import Bytes, Int64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.wire import Layout
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence

#: Reports that are unpacked and absorbed at a time: enough for many to share a seed (see `shared.hashed`), and of wide
#: reports no more than have this many numbers.
_CHUNK, _MOST_NUMBERS = 1 << 22, 1 << 24


def aggregate(
    task: Task,
    packed: bytes | Iterable[bytes] | Bytes,
    state: State | None = None,
    progress: Callable[[int], None] = lambda done: None,
    evidence: Evidence | None = None,
    stratum: Stratum = UNTOLD,
) -> State:
    """The state of these reports, added to `state` when given; bad bytes change nothing.

    Reports are bytes, one report after another; or several such bytes; or an array of them. With `evidence`, some
    are kept there, as reports of a stratum, for tests whether they look forged.
    """
    mechanism, layout = task.mechanism, task.mechanism.layout
    raw = _flat(packed, layout)
    if len(raw) % layout.width:
        layout.unpack(raw)
    rows = raw.reshape(-1, layout.width)
    total, seen = mechanism.empty(task.keys), None if evidence is None else Evidence(task)
    step = _chunk(layout)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        reports = layout.unpack(part)
        mechanism.absorb(total, task.keys, reports)
        if seen is not None:
            seen.add(reports, stratum)
        progress(len(part))
    if evidence is not None and seen is not None:
        evidence.merge(seen)
    return total if state is None else state.merge(total)


def _flat(packed: bytes | Iterable[bytes] | Bytes, layout: Layout) -> Bytes:
    """All bytes of all reports; a part that is not whole reports is refused, however well the parts fit together."""
    if isinstance(packed, bytes | bytearray | memoryview):
        return np.frombuffer(packed, dtype=np.uint8)
    if isinstance(packed, np.ndarray) and packed.dtype == np.uint8:
        return packed.reshape(-1)
    if isinstance(packed, str | np.ndarray) or not isinstance(packed, Iterable):
        raise Refused(
            "Reports are bytes, a list of bytes, or an array of unsigned bytes; this is none of them."
        )
    parts = []
    for place, part in enumerate(packed):
        if not isinstance(part, bytes | bytearray | memoryview):
            raise Refused(f"Reports are bytes, and number {place} of these is a {type(part).__name__}.")
        if len(part) % layout.width:
            raise Refused(
                f"Number {place} of these is not a whole number of reports of {layout.width} bytes."
            )
        parts.append(part)
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _chunk(layout: Layout) -> int:
    return max(1, min(_CHUNK, _MOST_NUMBERS // len(layout.fields)))


def merge_into(total: State, part: State) -> None:
    """Add a state of the same task to `total`, in place. Kept reports are sorted when the state is saved."""
    total.totals += part.totals
    total.reports = np.concatenate([total.reports, part.reports])
    total.count += part.count
    total.squares += part.squares


@dataclass(frozen=True)
class Rejected:
    """What one source had that was not counted, for one reason: rows, and places of reports within their rows.

    Place -1 stands for the whole row. `reports` is how many reports such rows have, as far as anybody knows.
    """

    source: str
    reason: str
    rows: Int64s
    places: Int64s
    reports: int = 0

    @property
    def size(self) -> Aside:
        whole = int((self.places < 0).sum())
        return Aside(whole, self.reports + len(self.rows) - whole)


class Aside(NamedTuple):
    """How much was set aside: whole rows, and reports, in these and alone. (0 reports in rows: nobody knows.)"""

    rows: int = 0
    reports: int = 0

    def words(self) -> str:
        """As "3 rows with 787 reports"."""
        reports = f"{self.reports:,} {'report' if self.reports == 1 else 'reports'}" if self.reports else ""
        rows = f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}" if self.rows else ""
        return " with ".join(filter(None, (rows, reports)))


def count_reasons(sizes: Iterable[tuple[str, Sequence[int]]]) -> dict[str, Aside]:
    """How much was set aside for each reason."""
    found: dict[str, Aside] = {}
    for reason, (rows, reports) in sizes:
        so_far = found.get(reason, Aside())
        found[reason] = Aside(so_far.rows + rows, so_far.reports + reports)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class _Rows:
    """Rows of whole reports that wait to be absorbed: row `numbers[i]` has `counts[i]` of the reports in `data`."""

    source: str
    numbers: Int64s
    counts: Int64s
    data: Bytes


class Fold:
    """Adds up rows of reports of one task, each row some whole reports one after another.

    Every row is either counted or set aside, and every report of a counted row, too: after `finish`, the state's
    count and the rejected reports together are all there were. The state does not depend on how reports are
    spread over rows and calls.
    """

    def __init__(self, task: Task, evidence: Evidence | None = None, stratum: Stratum = UNTOLD) -> None:
        self.task = task
        self.evidence, self._stratum = evidence, stratum
        self.state = task.mechanism.empty(task.keys)
        self.rejected: list[Rejected] = []
        self._chunk = _chunk(task.mechanism.layout)
        self._waiting: list[_Rows] = []
        self._size = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of the reports that wait to be absorbed."""
        waiting = self._size * self.task.mechanism.layout.width
        return self.state.totals.nbytes + self.state.reports.nbytes + waiting

    def add(self, source: str, numbers: Int64s, data: Bytes, bounds: Int64s) -> None:
        """Take rows: row `numbers[i]` of `source` holds the bytes data[bounds[i] : bounds[i + 1]]."""
        width = self.task.mechanism.layout.width
        lengths = np.diff(bounds)
        whole = lengths % width == 0
        if not whole.all():
            self.set_aside(
                source, f"the row is not a whole number of reports of {width} bytes", numbers[~whole]
            )
            data = data[np.repeat(whole, lengths)]
            numbers, lengths = numbers[whole], lengths[whole]
        self._waiting.append(_Rows(source, numbers, lengths // width, data))
        self._size += len(data) // width
        if self._size >= self._chunk:
            self._absorb()

    def set_aside(
        self, source: str, reason: str, rows: Int64s, places: Int64s | None = None, reports: int = 0
    ) -> None:
        """Note rows, in which there are so many reports, or reports within rows, that do not count."""
        if len(rows):
            where = np.full(len(rows), -1, dtype=np.int64) if places is None else places
            self.rejected.append(Rejected(source, reason, rows, where, reports))

    def finish(self) -> State:
        """The state of all rows so far."""
        self._absorb()
        return self.state

    def _absorb(self) -> None:
        waiting, size = self._waiting, self._size
        self._waiting, self._size = [], 0
        if size == 0:
            return
        mechanism, layout = self.task.mechanism, self.task.mechanism.layout
        reports = np.concatenate([lot.data for lot in waiting]).reshape(-1, layout.width)
        places, codes = [], []
        for start in range(0, len(reports), self._chunk):
            numbers, reasons = layout.unpack_each(reports[start : start + self._chunk])
            bad = np.flatnonzero(reasons)
            places.append(start + bad)
            codes.append(reasons[bad])
            good = numbers[reasons == 0] if len(bad) else numbers
            mechanism.absorb(self.state, self.task.keys, good)
            if self.evidence is not None:
                self.evidence.add(good, self._stratum)
        self._note(waiting, np.concatenate(places), np.concatenate(codes))

    def _note(self, waiting: list[_Rows], places: Int64s, codes: Int64s) -> None:
        """Set aside the reports at these places of what was waiting, for the reasons that these codes mean."""
        first = 0
        for lot in waiting:
            ends = first + np.cumsum(lot.counts)
            last = int(ends[-1]) if len(ends) else first
            inside = slice(*np.searchsorted(places, [first, last]))
            row = np.searchsorted(ends, places[inside], side="right")
            within = places[inside] - (ends - lot.counts)[row]
            for code in np.unique(codes[inside]).tolist():
                these = codes[inside] == code
                reason = self.task.mechanism.layout.reason(code)
                self.set_aside(lot.source, reason, lot.numbers[row[these]], within[these])
            first = last
