"""How fast Parquet files of reports become a state: in memory, from files with one and two processes, and on Spark.

python benchmarks/lake.py
"""

from __future__ import annotations

import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.engines.arrow import save_parquet
from hubbub.engines.lake import aggregate as aggregate_lake
from hubbub.mechanisms.shared import hashed
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from page import Headline, Section, amount, prose, table, times
from timing import Row, best, task_of

FILES = 8
#: Mechanism, parameters, reports.
CASES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("sketch_response", {}, 20_000_000),
    ("collision", {}, 20_000_000),
    ("coco", {"values": "signed"}, 20_000_000),
)


def measure(cases: Sequence[tuple[str, dict[str, Any], int]] = CASES, spark: bool = True) -> list[Row]:
    """Seconds for each way; all of them must give the same state, byte for byte."""
    optional("pyarrow", "lake")
    rows = []
    for name, parameters, count in cases:
        task = task_of(name, 4096, 64, **parameters)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_case(task, count // FILES * FILES, Path(folder), spark and _can_spark()))
    return rows


def _case(task: Task, count: int, folder: Path, spark: bool) -> Row:
    row: Row = {"mechanism": task.mechanism.name, "buckets": task.mechanism.buckets, "reports": count}  # type: ignore[attr-defined]
    row["bytes"] = task.mechanism.layout.width
    parts = [_random_reports(task, count // FILES, number) for number in range(FILES)]
    for number, packed in enumerate(parts):
        day = datetime.date(2026, 1, 1 + number)
        save_parquet(folder / f"{day}.parquet", task, packed, day)
    row |= _in_memory(task, parts[0])
    states = set()
    for jobs in (1, 2):
        row[f"jobs_{jobs}"], found = best(lambda jobs=jobs: aggregate_lake([folder], jobs=jobs), 2)  # type: ignore[misc]
        states.add(found.state.to_bytes())
    if spark:
        row["spark"], state = _on_spark(task, folder)
        states.add(state.to_bytes())
    states.add(aggregate(task, np.concatenate(parts)).to_bytes())
    assert len(states) == 1
    return row


def _random_reports(task: Task, count: int, seed: int) -> Any:
    """Reports drawn evenly from all there are: each is as much work as any other."""
    rng = np.random.default_rng(seed)
    layout = task.mechanism.layout
    columns = [rng.integers(0, field.limit, count, dtype=np.uint64) for field in layout.fields]
    return layout.pack(np.stack(columns, axis=1))


def _in_memory(task: Task, packed: Any) -> Row:
    """Seconds per report on one core: unpacking alone, all of it, and all of it with no votes added up first."""
    layout, shared = task.mechanism.layout, hashed._SHARED
    aggregate(task, packed)  # compiles
    unpacking, _ = best(lambda: layout.unpack(packed), 2)
    together, state = best(lambda: aggregate(task, packed), 2)
    hashed._SHARED = 1 << 40
    try:
        apart, same = best(lambda: aggregate(task, packed), 1)
    finally:
        hashed._SHARED = shared
    assert state.to_bytes() == same.to_bytes()
    each = {"unpack": unpacking, "memory": together, "memory_apart": apart}
    return {name: seconds / len(packed) for name, seconds in each.items()}


def _can_spark() -> bool:
    try:
        optional("pyspark", "spark")
    except ValueError:
        return False
    return shutil.which("java") is not None


def _on_spark(task: Task, folder: Path) -> tuple[float, Any]:
    """The second run on a cluster of two executors with one core each; the first starts and compiles."""
    from pyspark.sql import SparkSession

    from hubbub.engines import spark as crowd

    home = folder / ".spark"
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(home),
    }
    builder = SparkSession.builder.master("local-cluster[2,1,2048]").config("spark.ui.enabled", "false")
    session = (
        builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    )
    try:
        df = session.read.parquet(str(folder))
        return best(lambda: crowd.aggregate(df, task), 2)
    finally:
        session.stop()


def text(rows: list[Row]) -> str:
    heads = [
        "mechanism",
        "buckets",
        "in memory, one core",
        "one process",
        "two processes",
        "Spark, two executors",
    ]
    cells = [
        [
            row["mechanism"],
            str(row["buckets"]),
            amount(1 / row["memory"], "/s"),
            *(
                amount(row["reports"] / row[way], "/s") if way in row else "-"
                for way in ("jobs_1", "jobs_2", "spark")
            ),
        ]
        for row in rows
    ]
    first = rows[0]
    share, gain = first["unpack"] / first["memory"], first["memory_apart"] / first["memory"]
    words = prose(
        f"""Reports per second from Parquet to a state: {amount(first["reports"])} reports of {first["bytes"]} bytes for
        4,096 keys and 64 entries, 1,000 to a row in {FILES} files. Times of whole runs: processes started, batch ids
        compared, files read (on Spark the second run of a session). *In memory* is unpacking and absorbing alone;
        for `{first["mechanism"]}` unpacking is {share:.0%} of it, and adding up the votes of a seed before they are
        scattered makes it {times(gain)} as fast. All ways give the same state, byte for byte."""
    )
    return words + "\n\n" + table(heads, cells)


def headlines(rows: list[Row]) -> list[Headline]:
    what = "absorbing reports with the votes of a seed added up first, against one by one"
    return [Headline(what, times(rows[0]["memory_apart"] / rows[0]["memory"]))]


SECTION = Section(
    "lake",
    "A lake of reports",
    measure,
    text,
    quick={"cases": [("sketch_response", {}, 80_000)], "spark": False},
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
