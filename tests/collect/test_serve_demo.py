"""hubbub serve --demo: from nothing to a dashboard with estimates, and back to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from live import ask, bearer

from hubbub.collect.showcase import demo_reports, demo_task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.populations import zipf_population


def test_the_demo_collects_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("hubbub"), "serve", "--demo", "--port", "0", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert any(tmp_path.iterdir())

            def get(what: str) -> Any:
                path = f"{said['address']}/v1/tasks/{said['task']}{what}"
                return ask(path, headers=bearer(said["tokens"]["analyst"])).json

            deadline = time.monotonic() + 120
            while get("")["withheld"]:
                assert time.monotonic() < deadline, "no estimates in time"
                time.sleep(0.2)
            assert len(get("/estimates?top=5")["estimates"]) == 5
            assert ask(said["dashboard"].partition("#")[0]).status == 200
            assert ask(said["visit"]).status == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_its_crowd_has_the_popular_topics_first() -> None:
    """Eighty thousand made-up people: sleep is ahead of the next topic by more than 4.7 standard errors.

    Coins are the system's, so the run cannot be repeated; false alarms are rarer than 1e-6.
    """
    task = demo_task()
    found = estimate(task, aggregate(task, demo_reports(task, 80_000, seed=1)))
    truth = zipf_population(80_000, task.keys.count, 1, exponent=0.9, entries=3.0, signed=False).frequency
    ahead = (truth[0] - np.sort(truth)[-2]) / (2**0.5 * float(found.error[0]))
    assert ahead > 4.7
    assert found.keys[int(np.argmax(found.value))] == "sleep"
    assert task.minimum_reports > 0
