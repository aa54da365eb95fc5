"""Make tests/vectors/labels.json: what devices in all languages must say of labels and periods.

    .venv/bin/python scripts/make_label_vectors.py

Documents of tasks with labels; days and labels, with the headers that a batch of such reports has, the first bytes of a
sealed one, and what these are bound to (`info`); labels that must be refused.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from hubbub.protocol.device_document import device_document
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import binding, key_id, sealed_width
from hubbub.protocol.strata import Stratum, label_names, labels_from, prefix_of, text_of
from hubbub.protocol.task import Task

FILE = Path(__file__).parent.parent / "tests" / "vectors" / "labels.json"
SALT = "0123456789abcdef" * 2
PUBLIC = bytes(range(32))
DAYS = [datetime.date(2026, 11, 12), datetime.date(2026, 12, 31), datetime.date(2027, 1, 1)]
TWO = {"version": ["2", "1", "1.0+a_b-c"], "country": ["de", "fr", "IT"]}
LISTS: dict[str, dict[str, list[str]]] = {
    "one": {"constructor": ["x"]},
    "two": TWO,
    "most": {name: [f"v{number}" for number in range(16)] for name in ("d", "a_1", "c", "b")},
}


def tasks() -> dict[str, Task]:
    """Short lists in every period, and the longest lists there may be."""
    keys = {"kind": "closed", "vocabulary": ["search", "share", "print", "export"], "salt": SALT}
    mechanism = {"name": "collision", "epsilon": 2.0, "max_entries": 2}
    rules = [
        ("one", "once"),
        ("most", "once"),
        *(("two", period) for period in ("once", "day", "week", "month")),
    ]
    return {
        f"{lists}_{period}": Task.parse(
            {"name": lists, "keys": keys, "mechanism": mechanism, "period": period, "labels": LISTS[lists]}
        )
        for lists, period in rules
    }


def some_labels(task: Task) -> list[dict[str, str]]:
    """The first and the last of every list, and some between."""
    names = label_names(task)
    longest = max(len(task.labels[name]) for name in names)
    return [
        {
            name: task.labels[name][step * (place + 1) % len(task.labels[name])]
            for place, name in enumerate(names)
        }
        for step in [*range(longest), -1]
    ]


def wrong_labels(task: Task) -> list[dict[str, Any]]:
    """Missing, unknown, spelled in another way, no text."""
    good = some_labels(task)[0]
    name, value = next(iter(good.items()))
    changed = [
        value.swapcase(),
        f" {value}",
        f"{value}\r\n",
        f"{value},{value}",
        "",
        None,
        1,
        [value],
        "\u202e" + value,
    ]
    return [
        {},
        *({**good, name: each} for each in changed if each != value),
        {**good, "another": value},
        {**good, "__proto__x": value},
        {name.upper(): value},
    ]


def vectors() -> dict[str, Any]:
    """All of it."""
    rows = []
    for name, task in tasks().items():
        for day in DAYS if task.period != "once" else DAYS[:1]:
            for labels in some_labels(task):
                period = "" if task.period == "once" else period_of(task, day)
                stratum = Stratum(labels_from(task, labels), period)
                prefix = prefix_of(task, stratum)
                info = binding(task.digest, prefix, key_id(PUBLIC))
                told = text_of(task, Stratum(stratum.labels))
                rows.append([name, day.isoformat(), labels, told, period, prefix.decode(), info.hex()])
    return {
        "tasks": {name: device_document(task).decode() for name, task in tasks().items()},
        "sealed_bytes": {name: sealed_width(task) for name, task in tasks().items()},
        "public_key": PUBLIC.hex(),
        "strata": rows,
        "refused": [[name, labels] for name, task in tasks().items() for labels in wrong_labels(task)],
    }


def text() -> str:
    """The file."""
    return json.dumps(vectors()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
