"""Keys to be discovered through the service and through Parquet: the same state as one pass, and new keys."""

from __future__ import annotations

import csv
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import SALT, collected_task, collecting, eventually, sealed_batch

from helpers import run_cli
from hubbub.collect import new_keys
from hubbub.device.client import Client, encode_record, privatize
from hubbub.engines.arrow import save_parquet
from hubbub.model.record import Entries
from hubbub.model.tree import Tree
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.files import load_state
from hubbub.protocol.task import Task
from hubbub.server.discovery import discover
from hubbub.server.fold import aggregate


def words_task(buckets: int, levels: tuple[int, ...] = (2, 2), **rules: Any) -> Task:
    tree = Tree(
        longest=sum(levels),
        levels=levels,
        shares=(1,) * (len(levels) + 1),
        alphabet=rules.pop("alphabet", "ehlopt"),
    )
    mechanism = {"name": "collision", "epsilon": 6.0, "max_entries": 1, "buckets": buckets}
    return Task.parse(
        {
            "name": "w",
            "keys": {"kind": "tree", "bits": 12, "tree": tree, "salt": SALT},
            "mechanism": mechanism,
            **rules,
        }
    )


def words_reports(task: Task, words: list[str], people: int) -> bytes:
    """Reports of people who hold these words in turn (seeded, hence insecure)."""
    ids = [encode_record(task, [words[i % len(words)]])[0].ids for i in range(people)] if words else []
    held = np.concatenate(ids) if words else np.zeros(0, np.uint64)
    ends = np.arange(people + 1) if words else np.zeros(people + 1)
    entries = Entries(held, np.full(len(held), 1 << 30, dtype=np.int64), ends.astype(np.int64))
    return privatize(task, entries, InsecureCoins(3), SimulatedSeeds(4))[0].tobytes()


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


def test_new_keys_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the service finds is what `discover` finds in the same reports; it is searched for once."""
    task = words_task(256, minimum_reports=900)
    reports, width = words_reports(task, ["help", "hello"], 1800), task.mechanism.layout.width
    searched: list[int] = []

    def counted(task: Task, state: Any, **options: Any) -> Any:
        searched.append(state.count)
        return discover(task, state, **options)

    monkeypatch.setattr(new_keys, "discover", counted)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as collector:
        path = f"{collector.path}/discovered"
        assert collector.send(reports[: 400 * width], "first").status < 300
        assert collector.get(path).status == 403
        assert collector.get(f"{path}.toml").status == 403
        assert searched == []
        assert collector.send(reports[400 * width : 1200 * width], "second").status < 300
        answer = collector.get(path).json
        expected = discover(task, aggregate(task, reports[: 1200 * width]))
        assert answer["keys"] == expected.rows()
        assert {row["key"] for row in answer["keys"]} >= {"help", "hel…"}
        assert answer["words"] == expected.words()
        assert answer["false_finds"] == 0.05
        # Another 600 are fewer than the minimum: neither the snapshot nor what is found moves.
        assert collector.send(reports[1200 * width :], "third").status < 300
        narrow = collector.get(f"{path}?level=0.5&top=1").json
        assert narrow["total"] == len(expected)
        assert narrow["keys"] == discover(task, aggregate(task, reports[: 1200 * width]), level=0.5).rows(1)
        rows = list(csv.DictReader(io.StringIO(collector.get(f"{path}.csv").body.decode())))
        assert [row["key"] for row in rows] == list(expected.keys)
        (tmp_path / "listed.toml").write_bytes(collector.get(f"{path}.toml").body)
        assert searched == [1200]
        assert collector.get(f"{path}.xml").status == 404
        device = collector.service.tokens.new("device")
        assert collector.get(path, device).status == 403
    shown = run_cli("task", "show", tmp_path / "listed.toml")
    assert shown.exit_code == 0
    listed = Task.load(tmp_path / "listed.toml")
    assert listed.keys.vocabulary == tuple(key for key in expected.keys if not key.endswith("…"))
    assert listed.mechanism == task.mechanism
    assert (listed.name, listed.minimum_reports) == ("w, found keys", 900)
    assert Client(listed).report(["help"])


def test_a_search_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a search is under way, uploads and pages are answered; it ends with the service."""
    task, go_on, ended = words_task(256), threading.Event(), threading.Event()

    def slow(task: Task, state: Any, *, progress: Any) -> Any:
        try:
            while not go_on.wait(0.01):
                progress(1)
            return discover(task, state)
        finally:
            ended.set()

    monkeypatch.setattr(new_keys, "discover", slow)
    reports = words_reports(task, ["help", "hole"], 1200)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as collector:
        page = f"/tasks/{task.digest.hex()}"
        assert collector.send(reports, "first").status < 300
        for _ in range(3):
            assert "The search is under way." in collector.get(page).body.decode()
        assert collector.send(reports, "second").status < 300
        assert not ended.is_set()
        go_on.set()
        eventually(lambda: "The share of keys that nobody holds" in collector.get(page).body.decode())
        assert {row["key"] for row in collector.get(f"{collector.path}/discovered").json["keys"]} >= {
            "help",
            "hole",
        }
        ended.clear()
        go_on.clear()
        assert collector.send(reports, "third").status < 300
        collector.service.finder.search(task)
    assert ended.is_set()


def test_panels_without_keys_say_why(tmp_path: Path) -> None:
    """Noise alone (seeded), a tree that is too wide to search, and a task of another kind."""
    quiet, wide, listed = (
        words_task(256),
        words_task(4, (6,), alphabet="abcdefghijklmnopqrstuvwxyz"),
        collected_task(),
    )
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", quiet, wide, listed) as collector:
        for task in (quiet, wide):
            body = sealed_batch(task, words_reports(task, [], 300))
            path = f"/v1/tasks/{task.digest.hex()}/reports"
            assert collector.upload(body, f"of-{task.digest.hex()}", path=path).status < 300

        def panel(task: Task) -> str:
            return collector.get(f"/tasks/{task.digest.hex()}?part=1").body.decode()

        eventually(lambda: "No key was found: none of" in panel(quiet))
        assert "Make a task" not in panel(quiet)
        answer = collector.get(f"/v1/tasks/{quiet.digest.hex()}/discovered")
        assert (answer.status, answer.json["keys"]) == (200, [])
        assert collector.get(f"/v1/tasks/{quiet.digest.hex()}/discovered.toml").status == 422
        answer = collector.get(f"/v1/tasks/{wide.digest.hex()}/discovered")
        assert answer.status == 422
        assert "more than 10^8 candidates" in answer.json["detail"]
        assert "more than 10^8 candidates" in panel(wide)
        answer = collector.get(f"/v1/tasks/{listed.digest.hex()}/discovered")
        assert answer.status == 422
        assert "Only keys of the kind tree" in answer.json["detail"]
