"""Keys to be discovered through the service and through Parquet: the same state as one pass, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from collecting import SALT, collecting

from helpers import run_cli
from hubbub.device.client import Client
from hubbub.engines.arrow import save_parquet
from hubbub.model.tree import Tree
from hubbub.protocol.files import load_state
from hubbub.protocol.task import Task
from hubbub.server.discovery import discover
from hubbub.server.fold import aggregate


def words_task(buckets: int) -> Task:
    tree = Tree(longest=4, levels=(2, 2), shares=(1, 1, 1), alphabet="ehlopt")
    mechanism = {"name": "collision", "epsilon": 6.0, "max_entries": 1, "buckets": buckets}
    return Task.parse(
        {
            "name": "w",
            "keys": {"kind": "tree", "bits": 12, "tree": tree, "salt": SALT},
            "mechanism": mechanism,
        }
    )


def test_the_same_state_through_http_and_parquet(tmp_path: Path) -> None:
    task = words_task(256)
    client = Client(task)
    reports = [client.report(["help"] if i % 2 else ["hello"]) for i in range(1200)]
    whole = aggregate(task, reports)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as collector:
        for place in range(0, 1200, 400):
            answer = collector.send(b"".join(reports[place : place + 400]), f"batch-{place}")
            assert answer.status < 300
        assert collector.reports == 1200
        (tmp_path / "http.state").write_bytes(collector.get(f"{collector.path}/state").body)
    packed = np.frombuffer(b"".join(reports), np.uint8).reshape(1200, -1)
    save_parquet(tmp_path / "reports.parquet", task, packed, None)
    assert run_cli("aggregate", tmp_path / "reports.parquet", "-o", tmp_path / "lake.state").exit_code == 0
    for name in ("http.state", "lake.state"):
        found_task, state = load_state(tmp_path / name)
        assert found_task == task
        assert state.to_bytes() == whole.to_bytes()
    # Half of 1,200 people hold each, far above the noise. (Coins are secret, and a false find is allowed.)
    assert set(discover(task, whole).keys) >= {"help", "hel…"}
