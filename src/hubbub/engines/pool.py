"""Several processes that work for one task, and leave when the one that started them does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

Work = TypeVar("Work")
Result = TypeVar("Result")

#: run(function, works): (work, function(task, work)) for all works, as they are finished.
Run = Callable[[Callable[[Task, Any], Any], Sequence[Any]], Iterator[tuple[Any, Any]]]

_task: Task | None = None


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def workers(jobs: int, task: Task) -> Iterator[Run]:
    """A way to run a function on many works, in `jobs` processes (in this one where there is only one work).

    Processes are spawned, not forked, so that threads and compiled code of the caller cannot harm them.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        jobs, context, initializer=_begin, initargs=(task,)
    )  # starts none before it must

    def run(function: Callable[[Task, Work], Result], works: Sequence[Work]) -> Iterator[tuple[Work, Result]]:
        if jobs == 1 or len(works) < 2:
            for work in works:
                yield work, function(task, work)
            return
        left = list(reversed(works))
        running: dict[Future[Result], Work] = {}
        try:
            while left or running:
                while left and len(running) < 2 * jobs:
                    work = left.pop()
                    running[pool.submit(_call, function, work)] = work
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise Refused(
                "A worker process was ended from outside, perhaps for want of memory; try fewer jobs."
            ) from None

    try:
        yield run
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(task: Task) -> None:
    """In a new process."""
    global _task
    _task = task
    belong_to_parent()


def belong_to_parent() -> None:
    """In a new process: no interrupts (the first process handles them), and no life of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[Task, Work], Result], work: Work) -> Result:
    assert _task is not None
    return function(_task, work)
