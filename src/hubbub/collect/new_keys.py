"""New keys of tasks whose keys are a tree: what `hubbub discover` finds in the newest snapshot, searched for once.

A search takes seconds of one core. All of them run one after another in a thread of their own, so neither uploads nor
pages wait for one, and what was found is remembered until a page asks about a newer snapshot. Pages ask every two
seconds: for them a search begins only after a rest of four times what the last one took.

Only snapshots are searched, and they advance by `minimum_reports` (`hubbub.collect.snapshots`); what is found is
computed from a snapshot and nothing else, so it shows no more of anybody than other estimates do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from hubbub.collect.snapshots import Current
from hubbub.model.mechanism import Quantity
from hubbub.model.state import State
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.discovery import Discovery, discover
from hubbub.server.estimates import Named, estimate

_log = logging.getLogger("hubbub.search")

#: The searching thread rests for so many times what its last search took, unless somebody waits for an answer.
_REST = 4


@dataclass(frozen=True)
class NewKeys:
    """What was found in a snapshot."""

    version: int
    state: State
    found: Discovery

    def estimated(self, quantity: Quantity | None, level: float) -> Discovery:
        """The same keys with another estimate: what is found depends on neither the quantity nor the level."""
        known = self.found.estimate
        if level == known.level and quantity in (None, known.quantity):
            return self.found
        named = Named(self.found.ids, self.found.keys)
        return replace(self.found, estimate=estimate(self.found.task, self.state, named, quantity, level))


class _Stopped(Exception):
    """The service ends, and a search with it."""


class Finder:
    """Searches the snapshots that `newest` returns, or refuses as `newest` does."""

    def __init__(self, newest: Callable[[Task], Current]) -> None:
        self._newest = newest
        self._thread = ThreadPoolExecutor(1, "search")
        self._lock = threading.Lock()
        self._known: dict[bytes, NewKeys] = {}
        #: Why there is nothing to show, by task: a search that was refused.
        self._refused: dict[bytes, str] = {}
        self._under_way: set[bytes] = set()
        self._rested = 0.0
        self._stopping = False

    def search(self, task: Task) -> Future[NewKeys]:
        """What is found in the newest snapshot, once it is that search's turn."""
        return self._thread.submit(self._search, task)

    def glance(self, task: Task) -> NewKeys | str | None:
        """What was found last, or why nothing can be; None while the first search is under way. It does not wait."""
        with self._lock:
            if task.digest not in self._under_way and time.monotonic() >= self._rested and not self._stopping:
                self._under_way.add(task.digest)
                self._thread.submit(self._look_again, task)
            return self._known.get(task.digest) or self._refused.get(task.digest)

    def stop(self) -> None:
        """End the search under way, and begin no other."""
        with self._lock:
            self._stopping = True
        self._thread.shutdown(cancel_futures=True)

    def _look_again(self, task: Task) -> None:
        try:
            self._search(task)
        except (Refused, _Stopped):
            pass  # a refusal is remembered
        except Exception as problem:
            _log.error("the search for new keys of task %s failed: %s", task.digest.hex(), problem)
        finally:
            with self._lock:
                self._under_way.discard(task.digest)

    def _search(self, task: Task) -> NewKeys:
        current = self._newest(task)
        known = self._known.get(task.digest)
        if known is not None and known.version == current.head.version:
            return known
        started = time.monotonic()
        try:
            found = discover(task, current.state, progress=self._go_on)
        except Refused as problem:
            with self._lock:
                self._refused[task.digest] = str(problem)
                self._known.pop(task.digest, None)
            raise
        finally:
            with self._lock:
                now = time.monotonic()
                self._rested = now + _REST * (now - started)
        new = NewKeys(current.head.version, current.state, found)
        with self._lock:
            self._known[task.digest] = new
            self._refused.pop(task.digest, None)
        return new

    def _go_on(self, done: int) -> None:
        if self._stopping:
            raise _Stopped
