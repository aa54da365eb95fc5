"""Make tests/vectors/delivery.json: what devices in all languages must agree on between a report and its arrival.

    .venv/bin/python scripts/make_delivery_vectors.py

Task documents; days and the periods they are in; reports and the bodies they are sent in; public keys and their
names; answers, and what each says about a batch.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from hubbub.primitives.envelope import Envelope
from hubbub.protocol.delivery import judge
from hubbub.protocol.device_document import device_document
from hubbub.protocol.files import REPORTS
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import key_id, sealed_width
from hubbub.protocol.task import Task

FILE = Path(__file__).parent.parent / "tests" / "vectors" / "delivery.json"
SALT = "0123456789abcdef" * 2
BATCH = "20261118-00112233445566778899aabbccddeeff"


def tasks() -> dict[str, Task]:
    """One of each period, and one that allows two reports."""
    keys = {"kind": "closed", "vocabulary": ["search", "share", "print", "export"], "salt": SALT}
    mechanism = {"name": "collision", "epsilon": 2.0, "max_entries": 2}
    named = {period: {"period": period} for period in ("once", "day", "week", "month")}
    rules: dict[str, dict[str, Any]] = {**named, "twice": {"period": "week", "reports_per_period": 2}}
    return {
        name: Task.parse({"name": name, "keys": keys, "mechanism": mechanism, **rule})
        for name, rule in rules.items()
    }


def made_up(size: int) -> bytes:
    """Bytes that everybody can make again."""
    return hashlib.shake_128(str(size).encode()).digest(size)


def answers() -> list[list[Any]]:
    """Status, content type and body of answers to the batch, the collector's own and others."""
    own = {"batch": BATCH, "accepted": 3, "rejected": 0, "repeated": False}
    rows: list[tuple[int, str, Any]] = [
        (status, media, body)
        for status in (
            200,
            201,
            204,
            301,
            302,
            304,
            400,
            401,
            403,
            404,
            408,
            409,
            411,
            413,
            422,
            429,
            500,
            502,
            503,
        )
        for media in ("application/json", "application/problem+json")
        for body in (
            own,
            {"batch": BATCH, "status": status},
            {"batch": BATCH, "status": status, "begins": "2026-11-23"},
            {"batch": BATCH + "0", "status": status, "accepted": 1},
        )
    ]
    rows += [
        (200, media, own)
        for media in (
            "application/json; charset=utf-8",
            "Application/JSON",
            " application/json ",
            "text/html",
            "",
            "*/*",
        )
    ]
    rows += [
        (200, "application/json", {**own, "accepted": value})
        for value in ("3", None, True, False, 1.5, [], {}, -1, 0)
    ]
    rows += [
        (409, "application/problem+json", {"batch": BATCH, "status": value})
        for value in ("409", None, 422, 409)
    ]
    rows += [
        (200, "application/json", body)
        for body in ([own], "own", None, 7, {}, {"accepted": 3}, {**own, "batch": 1})
    ]
    texts = [
        "",
        "<html>Welcome to our hotel</html>",
        json.dumps(own)[:-1],
        json.dumps(own) + "x",
        "{",
        "nul",
        "\x00",
    ]
    return [[status, media, json.dumps(body)] for status, media, body in rows] + [
        [200, "application/json", text] for text in texts
    ]


def vectors() -> dict[str, Any]:
    """All of it."""
    made = tasks()
    days = [
        datetime.date(year, 1, 1) + datetime.timedelta(day)
        for year in range(1999, 2042)
        for day in (-3, -2, -1, 0, 1, 2, 3, 58, 59, 60, 180)
    ]
    bodies = []
    for name, task in made.items():
        for count in (1, 2, 43, 500):
            reports = made_up(count * task.mechanism.layout.width)
            body = Envelope(REPORTS, task.code, task.digest, count, b"", reports).seal()
            bodies.append([name, count, hashlib.sha256(body).hexdigest()])
    return {
        "batch": BATCH,
        "tasks": {name: device_document(task).decode() for name, task in made.items()},
        "sealed_bytes": {name: sealed_width(task) for name, task in made.items()},
        "periods": [
            [day.isoformat(), *(period_of(made[name], day) for name in ("once", "day", "week", "month"))]
            for day in days
        ],
        "hashes": [
            [size, hashlib.blake2b(made_up(size), digest_size=16).hexdigest()]
            for size in (0, 1, 63, 127, 128, 129, 255, 256, 257, 1000)
        ],
        "bodies": bodies,
        "keys": [[made_up(32).hex(), key_id(made_up(32)).hex()]],
        "answers": [[*row, judge(row[0], row[1], row[2].encode(), BATCH)] for row in answers()],
    }


def text() -> str:
    """The file."""
    return json.dumps(vectors()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
