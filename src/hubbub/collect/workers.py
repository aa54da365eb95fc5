"""Threads in the background that cannot die unnoticed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("hubbub.workers")

#: Seconds until the next attempt after a round that failed: doubled from the first to the second.
_PAUSES = (0.25, 30.0)


class Worker:
    """A thread that does rounds of some work for ever.

    Whatever a round raises is logged and counted, and the next one is tried after a pause that grows. `trouble` says
    what is wrong from then on until a round succeeds, so whoever asks is never told that all is well while nothing is
    done.
    """

    def __init__(
        self, name: str, work: Callable[[], float], expected: tuple[type[Exception], ...] = ()
    ) -> None:
        """`work` does one round and returns the seconds until the next, which `wake` cuts short.

        Exceptions that are `expected` are logged without their trace.
        """
        self.name, self._work, self._expected = name, work, expected
        #: Rounds that failed.
        self.failures = 0
        self._trouble = ""
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hubbub-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the round that is under way."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        """Do the next round now, unless the last one failed."""
        self._woken.set()

    @property
    def trouble(self) -> str:
        """What is wrong, "" if nothing is."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set():
            return f"{self.name}: the thread has ended"
        return self._trouble

    def _run(self) -> None:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                wait = self._work()
            except BaseException as problem:  # there is nobody above who could do something about it
                self.failures += 1
                self._trouble = f"{self.name}: {type(problem).__name__}"
                trace = not isinstance(problem, self._expected)
                _log.error("a round of %s failed: %s", self.name, problem, exc_info=trace)
                self._stopping.wait(pause)
                pause = min(2 * pause, _PAUSES[1])
            else:
                self._trouble, pause = "", _PAUSES[0]
                self._woken.wait(wait)
