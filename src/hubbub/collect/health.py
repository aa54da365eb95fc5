"""Whether a service does its work: what `/readyz` says, and `/metrics` counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hubbub.collect.problems import Problem
from hubbub.collect.workers import Worker

#: Seconds for which an answer is remembered: anybody may ask, and looking costs a write.
_REMEMBERED = 1.0


class Health:
    """Troubles of the threads in the background and of whatever else is looked at."""

    def __init__(self, workers: Sequence[Worker], look: Callable[[], list[str]]) -> None:
        """`look` returns what is wrong, in a few words each."""
        self.workers, self._look = workers, look
        self._lock = threading.Lock()
        self._found: list[str] = []
        self._looked = -_REMEMBERED

    def check(self) -> None:
        """Raise `Problem` if anything is wrong."""
        with self._lock:  # whoever comes meanwhile waits for the same answer
            if time.monotonic() >= self._looked + _REMEMBERED:
                self._found, self._looked = self._look(), time.monotonic()
            found = [*(worker.trouble for worker in self.workers if worker.trouble), *self._found]
        if found:
            raise Problem(503, "not ready", f"{'; '.join(found)}.", {"Retry-After": "1"})
