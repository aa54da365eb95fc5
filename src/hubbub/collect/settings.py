"""What whoever runs the service may set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits that keep one process well, whatever is sent to it."""

    #: Largest body of an upload, in bytes.
    largest_body: int = 8 << 20
    #: Most reports in one batch.
    most_reports: int = 200_000
    #: Batches that may wait for the store; beyond that, senders are asked to come back later.
    queue: int = 2000
    #: Bytes of uploads that may be held in memory at a time.
    memory: int = 256 << 20
    #: Seconds that a sender may take for a body, and the store for a batch.
    patience: float = 30.0
    #: Seconds between folds in the background.
    fold_every: float = 1.0
    #: Seconds between looks at every page of a SQLite store.
    check_every: float = 3600.0
