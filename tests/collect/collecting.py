"""What the tests of the collection service share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from live import Answer, ask, bearer
from starlette.applications import Starlette

from hubbub.collect.api import create_app
from hubbub.collect.service import Service
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.store import Store
from hubbub.device.client import privatize
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.envelope import Envelope
from hubbub.protocol.files import REPORTS
from hubbub.protocol.task import Task
from hubbub.simulation.populations import distinct_population

SALT = "0123456789abcdef" * 2
COLLISION = {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8}
PRIVKV = {"name": "privkv", "epsilon": 1.0, "max_entries": 2, "values": "signed", "size": 50}
_seeds = itertools.count(1)


def collected_task(size: int = 50, mechanism: dict[str, Any] | None = None, **rules: Any) -> Task:
    """Collision: 19 bits in 3 bytes, so a report with one of the last 5 bits set is a bad one."""
    keys = {"kind": "closed", "size": size, "salt": SALT}
    return Task.parse({"name": "collected", "keys": keys, "mechanism": mechanism or COLLISION, **rules})


def some_reports(task: Task, count: int, seed: int | None = None) -> bytes:
    """Reports of a made-up crowd, different at every call unless the seed says otherwise."""
    seed = next(_seeds) if seed is None else seed
    crowd = distinct_population(count, task.keys.count, entries=2, seed=seed).entries
    crowd.values[:] = np.abs(crowd.values)
    packed, _ = privatize(task, crowd, InsecureCoins(seed), SimulatedSeeds(seed))
    return packed.tobytes()


def sealed_batch(task: Task, reports: bytes, **changes: Any) -> bytes:
    """The body of an upload."""
    count = len(reports) // task.mechanism.layout.width
    parts = {"kind": REPORTS, "mechanism": task.code, "digest": task.digest, "count": count, "task": b""}
    return Envelope(**{**parts, "payload": reports, **changes}).seal()


class Collector:
    """A running service and somebody who may do everything."""

    def __init__(self, address: str, app: Starlette) -> None:
        self.address, self.app = address, app
        self.service: Service = app.state.service
        self.task = self.service.tasks()[0]
        self.path = f"/v1/tasks/{self.task.digest.hex()}"
        self.shuffled = f"/v2/tasks/{self.task.digest.hex()}/shuffled"
        self.token = self.service.tokens.new("admin")

    def get(self, path: str, token: str | None = None) -> Answer:
        return ask(self.address + path, headers=bearer(token or self.token))

    def upload(self, body: bytes, batch: str, token: str | None = None, path: str | None = None) -> Answer:
        headers = {**bearer(token or self.token), "Hubbub-Batch": batch}
        return ask(f"{self.address}{path or self.path + '/reports'}", body, headers)

    def send(self, reports: bytes, batch: str) -> Answer:
        return self.upload(sealed_batch(self.task, reports), batch)

    @property
    def reports(self) -> int:
        """How many reports the service says it has."""
        count: int = self.get(self.path).json["reports"]
        return count


@contextmanager
def collecting(url: str, *tasks: Task, **limits: Any) -> Iterator[Collector]:
    """The service over a store, on a free port."""
    app = create_app(Store(url), tasks or (collected_task(),), Settings(**limits))
    with serving(app) as address:
        yield Collector(address, app)


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something becomes true; for long, since a machine with other things to do may be slow."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
