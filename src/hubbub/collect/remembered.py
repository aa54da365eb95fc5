"""Answers that were given once and need not be computed again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The answers that were asked for last, `most` of them.

    An answer is never wrong, only gone: whatever it depends on has to be in its key. It is computed outside the lock,
    so two who ask at the same time may both compute it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._known: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The answer that is known, or a new one."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = make()
        with self._lock:
            self._known[key] = made
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return made
