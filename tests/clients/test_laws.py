"""The exact audit, through the JavaScript: the law of every report is that of Python, fraction by fraction."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hubbub.checks.conformance import examples, task_for
from hubbub.checks.exact import report_law
from hubbub.mechanisms.registry import mechanisms
from hubbub.protocol.device_document import OFFERED, device_document
from hubbub.protocol.task import Task

#: Salts and seeds under which the keys of the small tasks collide, and do not.
WORLDS = (("5a" * 16, 1), ("c3" * 16, 8))


def _cases(name: str) -> Iterator[tuple[Task, dict[str, float], int]]:
    seen = set()
    for mechanism in examples(mechanisms()[name]):
        for salt, seed in WORLDS:
            task = task_for(mechanism.miniature(), 3, salt)
            if task.digest in seen:
                continue
            seen.add(task.digest)
            one, two = (1.0, 1.0) if task.scale.kind == "set" else (0.25, -1.0)
            # None, one, as many as count, and one more: that is sampled down, or not.
            for record in ({}, {"1": one}, {"0": one, "2": two}, {"0": one, "1": two, "2": one}):
                yield task, record, seed


def _laws(node: str, built: Path, cases: list[tuple[Task, dict[str, float], int]]) -> list[dict[bytes, Any]]:
    asked = "".join(
        json.dumps({"document": device_document(task).decode(), "record": list(record.items()), "seed": seed})
        + "\n"
        for task, record, seed in cases
    )
    said = subprocess.run(
        [node, str(built / "law.mjs")], input=asked, capture_output=True, text=True, check=True
    )
    return [
        {
            bytes.fromhex(report): (Fraction(int(over), int(under)), double)
            for report, over, under, double in law
        }
        for law in map(json.loads, said.stdout.splitlines())
    ]


@pytest.mark.parametrize("name", OFFERED)
def test_laws_are_the_same(node: str, built: Path, name: str) -> None:
    """As fractions; below a Laplace branch, which both work out in double precision, to nine digits."""
    cases = list(_cases(name))
    laws = _laws(node, built, cases)
    assert len(laws) == len(cases) >= 8
    for (task, record, seed), found in zip(cases, laws, strict=True):
        wanted = report_law(task, record, seed)
        assert found.keys() == wanted.keys(), (task.mechanism, record)
        for report, mass in wanted.items():
            exact, double = found[report]
            if isinstance(mass, Fraction):
                assert exact == mass, (task.mechanism, record, report)
            else:
                assert math.isclose(double, mass, rel_tol=1e-9), (task.mechanism, record, report)
