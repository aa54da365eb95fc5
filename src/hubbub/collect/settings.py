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
    #: Bytes of uploads with one token that may be held in memory at a time, and its uploads under way.
    memory_per_token: int = 128 << 20
    uploads_per_token: int = 512
    #: Seconds that the store may take for a batch.
    patience: float = 30.0
    #: Seconds before a body has to keep its pace, and the bytes that must come in each second from then on.
    body_grace: float = 15.0
    slowest_body: int = 32 << 10
    #: Seconds that a connection may take for the head of a request, that it may be idle between requests, and that
    #: its client may leave an answer unread.
    header_seconds: float = 10.0
    idle_seconds: float = 75.0
    stall_seconds: float = 60.0
    #: Connections at a time; fewer if the system allows fewer files.
    connections: int = 4096
    #: Seconds between folds in the background.
    fold_every: float = 1.0
