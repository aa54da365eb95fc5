"""Write the fixtures of this folder: once per format version, never to make a failing test pass.

    python tests/golden/make.py

wire.json pins digests and packed reports, *.reports and *.state are whole files, states.json says what is in
them, task.toml is a task file. collision-coefficients.state was written when all states held coefficients, and cannot
be made today. All numbers are fixed here; no coin is flipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.model.state import sort_rows
from hubbub.protocol.files import save_reports, save_state
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate

HERE = Path(__file__).parent
SALT = "000102030405060708090a0b0c0d0e0f"
SMALL = {"kind": "closed", "size": 10, "bits": 5}
NAMED = {"kind": "closed", "vocabulary": ["a", "b", "ü", "7"], "bits": 4, "cohorts": 2}
WIDE = {"kind": "wide"}
SIGNED = {"values": "signed", "seed_bits": 16}
SKETCH = {"favoured": 3, "kappa": 0.25, "seed_bits": 16}

#: Keys, range and mechanism; a stem where whole files are kept as well.
CASES: list[tuple[str, dict[str, Any], tuple[float, float], dict[str, Any]]] = [
    ("collision", SMALL, (-1, 1), {"name": "collision", "buckets": 8, "seed_bits": 16}),
    (
        "",
        NAMED,
        (1, 5),
        {"name": "collision", "values": "signed", "family": "prf", "buckets": 13, "seed_bits": 32},
    ),
    ("", NAMED, (-1, 1), {"name": "coco", "buckets": 4, "seed_bits": 16}),
    (
        "coco-wide",
        WIDE,
        (0, 100),
        {"name": "coco", "target": "conditional", "family": "prf", "buckets": 5, "seed_bits": 20},
    ),
    ("", SMALL, (-1, 1), {"name": "sparse_sum", "noise": "bit", "clip": 2, **SIGNED}),
    ("", SMALL, (-1, 1), {"name": "sparse_sum", "noise": "window", "clip": 2, "reach": 3, **SIGNED}),
    (
        "",
        {"kind": "folded", "bits": 6},
        (-1, 1),
        {"name": "sparse_sum", "noise": "laplace", "clip": 2, **SIGNED},
    ),
    ("sparse-sum", SMALL, (-1, 1), {"name": "sparse_sum", "unit": "entry", "buckets": 4, **SIGNED}),
    (
        "",
        SMALL,
        (-1, 1),
        {"name": "sparse_sum", "unit": "l1", "distance": 2.0, "buckets": 2, "seed_bits": 16},
    ),
    (
        "",
        SMALL,
        (-1, 1),
        {
            "name": "sparse_sum",
            "values": "signed",
            "unit": "l1",
            "distance": 3.0,
            "delta": 1e-6,
            "family": "prf",
            "buckets": 3,
            "seed_bits": 64,
        },
    ),
    ("", SMALL, (-1, 1), {"name": "sparse_sum", "as_published": True, **SIGNED}),
    ("", SMALL, (-1, 1), {"name": "sketch_response", "buckets": 8, "seeds": 1, **SKETCH}),
    (
        "sketch-response",
        SMALL,
        (-1, 1),
        {"name": "sketch_response", "mode": "signed", "buckets": 4, "seeds": 2, **SIGNED, **SKETCH},
    ),
    (
        "",
        SMALL,
        (1, 5),
        {"name": "sketch_response", "mode": "events", "buckets": 8, "seeds": 1, **SIGNED, **SKETCH},
    ),
    ("hadamard", SMALL, (-1, 1), {"name": "hadamard", "max_entries": 1, "blocks": 2, "bits": 5}),
]


def make_task(keys: dict[str, Any], low: float, high: float, mechanism: dict[str, Any]) -> Task:
    return Task.parse(
        {
            "name": f"golden {mechanism['name']}",
            "low": low,
            "high": high,
            "keys": {**keys, "salt": SALT},
            "mechanism": {"epsilon": 1.0, "max_entries": 3, **mechanism},
        }
    )


def some_reports(task: Task) -> Any:
    """The smallest and the largest numbers there are, and six between."""
    limits = [field.limit for field in task.mechanism.layout.fields]
    rows = [[0] * len(limits), [limit - 1 for limit in limits]]
    rows += [
        [(0x9E3779B97F4A7C15 * (7 * i + j + 1)) % limit for j, limit in enumerate(limits)] for i in range(6)
    ]
    return np.array(rows, dtype=np.uint64)


def main() -> None:
    wire, states = [], []
    for stem, keys, (low, high), mechanism in CASES:
        task = make_task(keys, low, high, mechanism)
        numbers = some_reports(task)
        packed = task.mechanism.layout.pack(numbers)
        wire.append(
            {
                "task": json.loads(task.canonical),
                "digest": task.digest.hex(),
                "code": task.code,
                "numbers": numbers.tolist(),
                "packed": [row.tobytes().hex() for row in packed],
            }
        )
        if keys is NAMED and mechanism["name"] == "collision":
            task.save(HERE / "task.toml")
        if stem:
            state = aggregate(task, packed)
            save_reports(HERE / f"{stem}.reports", task, packed)
            save_state(HERE / f"{stem}.state", task, state)
            asked = ["0", "3", "9"]
            states.append(
                {
                    "file": stem,
                    "count": state.count,
                    "squares": state.squares,
                    "digest": task.digest.hex(),
                    "totals": state.totals.reshape(-1).tolist(),
                    "kept": sort_rows(state.reports).tobytes().hex(),
                    "asked": asked,
                    "estimates": estimate(task, state, asked).value.tolist(),
                }
            )
    for name, items in (("wire", wire), ("states", states)):
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
