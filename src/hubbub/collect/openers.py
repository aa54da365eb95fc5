"""Sealed reports are opened on all processors: opening takes a tenth of a millisecond each, and threads would queue.

The processes are started when the first large crowd comes, and leave with the one that started them. They are given
the private keys in memory, with every piece of work, and keep none.
"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from hubbub.collect.keypair import Shape, open_items
from hubbub.collect.transactions import Unavailable
from hubbub.engines.pool import belong_to_parent, cores

#: Items from which on it is worth it, and items in a piece of work.
WORTH, _PIECE = 2000, 1000


class Openers:
    """Opens items in this process if they are few, and in as many processes as there are processors otherwise."""

    def __init__(self) -> None:
        self._jobs = cores()
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, private: list[bytes], shape: Shape, items: bytes) -> list[bytes | None]:
        """The report in each item, or None; `Unavailable` if a process was ended from outside."""
        if self._jobs == 1 or len(items) < WORTH * shape.width:
            return open_items(private, shape, items)
        with self._lock:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._jobs, context, initializer=belong_to_parent)
            pool, step = self._pool, _PIECE * shape.width
        try:
            work = [
                pool.submit(open_items, private, shape, items[start : start + step])
                for start in range(0, len(items), step)
            ]
            return [report for piece in work for report in piece.result()]
        except (BrokenProcessPool, RuntimeError):
            self.close()
            raise Unavailable("a process that opens reports has ended") from None

    def close(self) -> None:
        """End them."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
