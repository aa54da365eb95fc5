"""Counters and gauges in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from hubbub.collect.workers import Worker

#: What Prometheus calls its text format.
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
#: Upper ends of the buckets of upload times, in seconds.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """What one process has done since it started. Counts only: nothing about senders or keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: Counter[int] = Counter()
        self._accepted: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._repeated = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._folds = self._folded = 0
        self._fold_seconds = 0.0

    def uploaded(self, status: int, seconds: float) -> None:
        """An upload was answered."""
        with self._lock:
            self._uploads[status] += 1
            self._seconds += seconds
            self._buckets[bisect_left(_BOUNDS, seconds)] += 1

    def stored(self, task: str, accepted: int, rejected: int, repeated: bool) -> None:
        """A batch was acknowledged."""
        with self._lock:
            if repeated:
                self._repeated += 1
            else:
                self._accepted[task] += accepted
                self._rejected[task] += rejected

    def opened(self, key: str, reports: int) -> None:
        """Reports came that were sealed for this key."""
        with self._lock:
            self._opened[key] += reports

    def folded(self, batches: int, seconds: float) -> None:
        """Batches were added to a state."""
        with self._lock:
            self._folds += 1
            self._folded += batches
            self._fold_seconds += seconds

    def text(
        self,
        waiting: int,
        workers: Sequence[Worker],
        named: Callable[[str], bool] = lambda task: False,
        unfinished: tuple[int, int] = (0, 0),
    ) -> str:
        """All of it, with the number of batches that wait for the store and the threads in the background.

        `unfinished` are crowds that wait for their last parts, and the bytes that they take.

        `named` says which tasks are called by their digests; what belongs to the others is added up.
        """
        with self._lock:
            lines = [
                *series("uploads_total", "counter", "Uploads by status.", "status", self._uploads),
                *series(
                    "reports_accepted_total",
                    "counter",
                    "Reports kept.",
                    "task",
                    by_task(self._accepted, named),
                ),
                *series(
                    "reports_rejected_total",
                    "counter",
                    "Reports refused.",
                    "task",
                    by_task(self._rejected, named),
                ),
                *series("reports_unsealed_total", "counter", "Sealed reports by key.", "key", self._opened),
                *single("batches_repeated_total", "counter", "Batches sent again.", self._repeated),
                *single("batches_waiting", "gauge", "Batches that wait for the store.", waiting),
                *single(
                    "crowds_unfinished", "gauge", "Crowds that wait for their last parts.", unfinished[0]
                ),
                *single("crowds_unfinished_bytes", "gauge", "Their size.", unfinished[1]),
                *single("folds_total", "counter", "Folds into a state.", self._folds),
                *single("batches_folded_total", "counter", "Batches folded.", self._folded),
                *single("fold_seconds_total", "counter", "Seconds spent on folding.", self._fold_seconds),
                *worker_lines(workers),
                "# HELP hubbub_upload_seconds Time to acknowledge an upload.",
                "# TYPE hubbub_upload_seconds histogram",
            ]
            total = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), self._buckets, strict=True):
                total += count
                lines.append(f'hubbub_upload_seconds_bucket{{le="{bound}"}} {total}')
            lines += [f"hubbub_upload_seconds_sum {self._seconds}", f"hubbub_upload_seconds_count {total}"]
        return "\n".join(lines) + "\n"


def worker_lines(workers: Sequence[Worker]) -> list[str]:
    """What became of the threads in the background."""
    failures = Counter({worker.name: worker.failures for worker in workers})
    healthy = Counter({worker.name: int(not worker.trouble) for worker in workers})
    return [
        *series("worker_failures_total", "counter", "Rounds that failed.", "worker", failures),
        *series("worker_healthy", "gauge", "1 if the last round went well.", "worker", healthy),
    ]


def by_task(values: Counter[str], named: Callable[[str], bool]) -> Counter[str]:
    """The same, with one value for all tasks that are not to be named; to Prometheus an empty label is none."""
    found: Counter[str] = Counter()
    for task, value in values.items():
        found[task if named(task) else ""] += value
    return found


def series(name: str, kind: str, words: str, label: str, values: Counter[str] | Counter[int]) -> list[str]:
    """The lines of a counter or gauge with one value for each value of a label."""
    rows = [f'hubbub_{name}{{{label}="{key}"}} {value}' for key, value in sorted(values.items())]
    return [f"# HELP hubbub_{name} {words}", f"# TYPE hubbub_{name} {kind}", *rows]


def single(name: str, kind: str, words: str, value: float) -> list[str]:
    """The lines of one that has a single value."""
    return [f"# HELP hubbub_{name} {words}", f"# TYPE hubbub_{name} {kind}", f"hubbub_{name} {value}"]
