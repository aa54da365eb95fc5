"""What an unfinished run has done so far: the file that lets it go on where it was.

A zip archive, written whole or not at all: `about.json` (the task's digest, the files as they were, the row groups
that are counted), `state` (their sum) and `rejected.json` (what they had that was set aside). The three
always belong together, so nothing is counted twice or lost, whenever the run ended. Of reports by stratum there is a
state for each, and if these are too many to be in memory at once, a manifest for some of them at a time.
"""

from __future__ import annotations

import glob
import io
import json
import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hubbub.model.state import State
from hubbub.primitives.envelope import read_file, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import ByStratum
from hubbub.protocol.strata import UNTOLD, Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import Rejected, merge_into

#: Path, size and time of last change of a file.
Fingerprint = tuple[str, int, int]
#: A file and the number of one of its row groups.
GroupKey = tuple[str, int]

_FORMAT, _FORMAT_BY = 1, 2
#: What a damaged archive can lead to.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, LookupError, TypeError, EOFError, RuntimeError)
#: Seconds between two writes, at least; and how much longer than a write itself.
_PAUSE, _SHARE = 1.0, 10.0


class Manifest:
    """The sum so far and what is in it, in memory and (if there is a path) on disk.

    As a context manager it writes what is missing when the run is interrupted.
    """

    def __init__(
        self, path: Path | None, task: Task, files: list[Fingerprint], strata: Sequence[Stratum] = (UNTOLD,)
    ) -> None:
        self.path, self.task, self.files = path, task, files
        self.states: dict[Stratum, State] = {at: task.mechanism.empty(task.keys) for at in strata}
        self._strata = tuple(strata)
        self.done: set[GroupKey] = set()
        self.rejected: list[Rejected] = []
        self.resumed = 0
        self._unwritten = False
        self._next = time.monotonic() + _PAUSE

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        task: Task,
        files: list[Fingerprint],
        strata: Sequence[Stratum] = (UNTOLD,),
    ) -> Manifest:
        """The manifest in a file, or an empty one; refused if files or task are not the same as then."""
        manifest = cls(Path(path) if path else None, task, files, strata)
        if manifest.path is not None and manifest.path.exists():
            manifest._load(read_file(manifest.path))
            for half in manifest.path.parent.glob(f".{glob.escape(manifest.path.name)}.*"):
                half.unlink(missing_ok=True)  # what was being written when that run was killed
        return manifest

    def add(
        self, groups: Iterable[GroupKey], states: Mapping[Stratum, State], rejected: list[Rejected]
    ) -> None:
        """Count row groups. Interrupted in here, sum and list may not belong together, and are never written."""
        self._unwritten = False
        for stratum, state in states.items():
            merge_into(self.states[stratum], state)
        self.rejected += rejected
        self.done.update(groups)
        self._unwritten = True
        if time.monotonic() >= self._next:
            self._write()

    def __enter__(self) -> Manifest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            self._write()

    def spill(self) -> None:
        """Leave the states to the file alone: they are read again when they are asked for."""
        self._write()
        self.states = {}

    def read(self) -> dict[Stratum, State]:
        """The states, from the file if they were left to it."""
        if not self.states and self.path is not None:
            again = Manifest(self.path, self.task, self.files, self._strata)
            again._load(read_file(self.path))
            return again.states
        return self.states

    def _write(self) -> None:
        if self.path is None or not self._unwritten:
            return
        start = time.monotonic()
        write_atomic(self.path, self._packed())
        self._unwritten = False
        self._next = time.monotonic() + max(_PAUSE, _SHARE * (time.monotonic() - start))

    def _packed(self) -> bytes:
        """As bytes. The archive is gone when this returns: an interrupt would be lost in its destructor."""
        about: dict[str, Any] = {
            "format": _FORMAT,
            "digest": self.task.digest.hex(),
            "files": self.files,
            "done": sorted(self.done),
        }
        if self._strata != (UNTOLD,):
            about |= {"format": _FORMAT_BY, "strata": [text_of(self.task, at) for at in self._strata]}
        rejected = [
            [lot.source, lot.reason, lot.rows.tolist(), lot.places.tolist(), lot.reports]
            for lot in self.rejected
        ]
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("about.json", json.dumps(about))
            archive.writestr("rejected.json", json.dumps(rejected))
            for place, state in enumerate(self.states.values()):
                archive.writestr(f"state.{place}" if place else "state", state.to_bytes())
        return buffer.getvalue()

    def _load(self, data: bytes) -> None:
        about, rejected, payloads = self._parts(data)
        advice = f"name the same files, or delete {self.path} to begin anew."
        if about["digest"] != self.task.digest.hex():
            raise Refused(f"{self.path} was left by a run for another task; delete it to begin anew.")
        before = [tuple(file) for file in about["files"]]
        if [file[0] for file in before] != [file[0] for file in self.files]:
            raise Refused(f"{self.path} was left by an unfinished run over other files; {advice}")
        for then, now in zip(before, self.files, strict=True):
            if then != now:
                raise Refused(
                    f"{now[0]} has changed since the unfinished run that left {self.path}; delete that to begin anew."
                )
        if about.get("strata", [""]) != [text_of(self.task, at) for at in self._strata]:
            raise Refused(f"{self.path} was left by a run that found other strata; delete it to begin anew.")
        self.done = {(path, group) for path, group in about["done"]}
        self.resumed = len({path for path, _ in self.done})
        empty = self.task.mechanism.empty(self.task.keys)
        self.states = {at: empty.load(payload) for at, payload in zip(self._strata, payloads, strict=True)}
        self.rejected = [
            Rejected(
                source, reason, np.array(rows, dtype=np.int64), np.array(places, dtype=np.int64), *reports
            )
            for source, reason, rows, places, *reports in rejected
        ]

    def _parts(self, data: bytes) -> tuple[dict[str, Any], list[Any], list[bytes]]:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                about, rejected = (json.loads(archive.read(name)) for name in ("about.json", "rejected.json"))
                if about["format"] != (_FORMAT_BY if "strata" in about else _FORMAT):
                    raise ValueError(f"format {about['format']}")
                count = len(about.get("strata", [""]))
                names = [f"state.{place}" if place else "state" for place in range(count)]
                return about, rejected, [archive.read(name) for name in names]
        except _UNREADABLE as problem:
            raise Refused(
                f"{self.path} is not the manifest of an unfinished run ({problem}); delete it to begin anew."
            ) from None


class Sums(ByStratum[State]):
    """The states of several manifests, those of one in memory at a time; strata without reports are left out.

    How many reports each has is known also when the files are gone.
    """

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._homes: dict[Stratum, Manifest] = {}
        counts: dict[Stratum, int] = {}
        for manifest in manifests:
            for stratum, state in manifest.read().items():
                if state.count:
                    self._homes[stratum] = manifest
                    counts[stratum] = state.count
        self._last: tuple[Manifest, dict[Stratum, State]] | None = None
        super().__init__(counts, self._read)

    def _read(self, stratum: Stratum) -> State:
        home = self._homes[stratum]
        if self._last is None or self._last[0] is not home:
            self._last = None
            self._last = home, home.read()
        return self._last[1][stratum]
