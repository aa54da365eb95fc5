"""The exact laws of small reports: for `make_vectors.py`. They show what no tape is likely to, however long."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hubbub.checks.conformance import examples, task_for
from hubbub.checks.exact import report_law
from hubbub.mechanisms.registry import mechanisms
from hubbub.protocol.device_document import device_document

#: Mechanisms whose laws are short.
SHORT = ("collision", "hadamard", "local_hashing", "pckv_grr", "privkv", "sampled")


def laws() -> dict[str, Any]:
    """Tasks over three keys, records, and the probability of every report, as a fraction in lowest terms."""
    rows: list[dict[str, Any]] = []
    for name in SHORT:
        tasks = {
            task.digest: task
            for task in (task_for(each.miniature(), 3) for each in examples(mechanisms()[name]))
        }
        for task in tasks.values():
            for record in ({}, {"1": 1.0}) if task.scale.kind == "set" else ({}, {"1": 0.25}):
                law = report_law(task, record, 1)
                assert all(isinstance(mass, Fraction) for mass in law.values())
                rows.append(
                    {
                        "document": device_document(task).decode(),
                        "record": list(map(list, record.items())),
                        "seed": 1,
                        "law": sorted([report.hex(), str(mass)] for report, mass in law.items()),
                    }
                )
    return {"laws": rows}
