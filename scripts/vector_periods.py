"""Rules for several periods, and what devices do by them: for `make_vectors.py`."""

from __future__ import annotations

import datetime
import random
import tempfile
from pathlib import Path
from typing import Any

from vector_reports import salt_of

from hubbub.device.client import encode_record
from hubbub.device.ledger import Ledger
from hubbub.device.memo import Memo
from hubbub.protocol.device_document import device_document
from hubbub.protocol.periods import takes_part
from hubbub.protocol.task import Task

_SALT = bytes(range(32))
_MONDAY = datetime.date(2026, 1, 5)
_KEYS = {"kind": "closed", "vocabulary": ["a", "b", "c", "d", "e", "f"], "salt": salt_of(7)}
_RECORDS: list[Any] = [
    {"a": 1},
    {},
    {"a": 1, "b": 1},
    {"b": 1, "a": 1},
    {"a": 0.5, "b": 1},
    {"a": 1, "b": 0.5},
    {"a": 1, "nobody": 1},
    {"a": 9},
    {"f": -1, "a": -0.25, "c": 0, "e": 1e-12},
    {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
    {"e": 1, "d": 1, "c": 1, "b": 1, "a": 1},
]


def periods() -> dict[str, Any]:
    """Whose turn it is on which day; which records are the same; and which report is said in which week."""
    return {"salt": _SALT.hex(), "tasks": [*_turns(), *_memos()]}


def _task(mechanism: dict[str, Any], **rules: Any) -> Task:
    shape = {"epsilon": 1.0, "max_entries": 2, "seed_bits": 64, **mechanism}
    return Task.parse({"name": "periods", "keys": _KEYS, "mechanism": shape, **rules})


def _turns() -> list[dict[str, Any]]:
    days = [datetime.date(1999, 12, 20) + datetime.timedelta(days=37 * n) for n in range(300)]
    days += [datetime.date(2027, 12, 20) + datetime.timedelta(days=n) for n in range(30)]
    rows = []
    for period, rotation in (
        ("day", 2),
        ("day", 1000),
        ("week", 4),
        ("week", 52),
        ("month", 5),
        ("month", 12),
    ):
        task = _task({"name": "collision"}, period=period, rotation=rotation)
        turns = [
            [day.isoformat(), next(turn for turn in range(rotation) if takes_part(task, turn, day))]
            for day in days
        ]
        rows.append({"document": device_document(task).decode(), "turns": turns})
    return rows


def _memos() -> list[dict[str, Any]]:
    rows = []
    for cap, mechanism in (
        (1, {"name": "collision"}),
        (3, {"name": "sketch_response", "values": "signed"}),
        (4, {"name": "collision"}),
    ):
        task = _task(mechanism, period="week", memoize="record", memoize_cap=cap)
        memo = Memo(_SALT)
        names = [memo.name(encode_record(task, record)[0]).hex() for record in _RECORDS]
        drawn = random.Random(cap)
        asked = [drawn.randrange(len(_RECORDS)) for _ in range(40)]
        row = {"document": device_document(task).decode(), "records": _RECORDS, "names": names}
        rows.append({**row, "asked": asked, "said": _said(task, [_RECORDS[each] for each in asked])})
    return rows


def _said(task: Task, records: list[Any]) -> list[int]:
    """Which report is said week by week, numbered in the order in which they are made. With seeds of 64 bits, no two
    are alike."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, numbers = Ledger(Path(folder) / "ledger.json"), dict[bytes, int]()
        said = []
        for week, record in enumerate(records):
            report = ledger.report(task, record, _MONDAY + datetime.timedelta(days=7 * week))
            said.append(numbers.setdefault(report, len(numbers)))
        return said
