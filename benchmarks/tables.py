"""Tables on disk: seconds and memory for reading and writing them, beside pyarrow alone and an older hubbub.

    python benchmarks/tables.py
    HUBBUB_BEFORE=../older/src python benchmarks/book.py tables

Every measurement is a process of its own, so that its peak of memory is its own. HUBBUB_BEFORE names the sources of
another version (for instance of `git worktree add ../older COMMIT`), which is then measured in the same run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.primitives.errors import optional
from page import Headline, Section, prose, table, times
from timing import Row

#: The environment variable with the sources of an older version.
BEFORE = "HUBBUB_BEFORE"
#: Rows that are made up at a time.
_STEP = 2_000_000

#: What one process does: it gets a path, and says how long it took and how much memory it had at most.
_WORKER = """
import json, os, resource, sys, time
how, path, more = sys.argv[1], sys.argv[2], sys.argv[3:]
if how == "without pyarrow":
    sys.modules["pyarrow"] = None

def arrow():
    import pyarrow, pyarrow.csv, pyarrow.parquet
    text = pyarrow.string()
    if path.endswith(".csv"):
        kinds = {"user": text, "key": text, "value": pyarrow.float64()}
        options = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=more)
        table = pyarrow.csv.read_csv(path, convert_options=options)
    else:
        table = pyarrow.parquet.read_table(path, columns=more)
    return [table[name].dictionary_encode() for name in ("user", "key")], table

def hubbub():
    from hubbub.tables.records import read_table
    return read_table(path, *more)

def command():
    from hubbub.cli import main
    try:
        main([path, *more])
    except SystemExit as end:
        if end.code:
            raise

work = {"pyarrow alone": arrow, "command": command}.get(how, hubbub)
start = time.perf_counter()
kept = work()
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_SELF)
said = {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "peak": 1024 * used.ru_maxrss}
open(os.environ["SAID"], "w").write(json.dumps(said))
"""


def alone(how: str, path: Path | str, *more: str, sources: str | None = None) -> Row:
    """One measurement in a process of its own, with these sources or the ones that run this."""
    environment = dict(os.environ)
    if sources:
        environment["PYTHONPATH"] = sources
    with tempfile.NamedTemporaryFile(suffix=".json") as said:
        environment["SAID"] = said.name
        script = [sys.executable, "-c", _WORKER, how, str(path), *map(str, more)]
        subprocess.run(script, env=environment, check=True, stdout=subprocess.DEVNULL)
        found: Row = json.loads(Path(said.name).read_text(encoding="utf-8"))
    return found


def versions() -> dict[str, str | None]:
    """The sources that are measured, by name."""
    older = os.environ.get(BEFORE)
    return ({"before": str(Path(older).resolve())} if older else {}) | {"now": None}


def measure(
    rows: int = 10_000_000, most: int = 100_000_000, records: int = 1_000_000, keys: int = 1 << 20
) -> list[Row]:
    """Every job, in every way there is to do it."""
    optional("pyarrow", "lake")
    with tempfile.TemporaryDirectory(prefix="hubbub-tables-") as name:
        folder = Path(name)
        return [
            *_reading(folder, rows),
            *_long_key(folder, max(rows // 50, 100_000)),
            *_commands(folder, records, keys),
            *_many(folder, most),
        ]


def _reading(folder: Path, rows: int) -> list[Row]:
    found = []
    columns = ("user", "key", "value")
    for ending in ("csv", "quoted.csv", "parquet", "npz"):
        path = folder / f"t.{ending}"
        write_rows(path, rows)
        job = f"read {'quoted CSV' if 'quoted' in ending else {'csv': 'CSV', 'npz': 'NPZ'}.get(ending, 'Parquet')}"
        row = {"job": job, "rows": rows, "bytes": path.stat().st_size}
        if ending != "npz":
            found.append(row | {"how": "pyarrow alone"} | alone("pyarrow alone", path, *columns))
        for how, sources in versions().items():
            if how == "now" or "quoted" not in ending:
                found.append(row | {"how": how} | alone(how, path, *columns, sources=sources))
        if ending == "csv":
            found.append(row | {"how": "now, without pyarrow"} | alone("without pyarrow", path, *columns))
        path.unlink()
    return found


def _long_key(folder: Path, rows: int) -> list[Row]:
    """Short keys, and one of 4,027 letters."""
    path = folder / "long.csv"
    lines = (f"{row // 4},{row % 1000}\n" for row in range(rows))
    path.write_text("user,key\n" + "".join(lines) + "1," + "x" * 4027 + "\n", encoding="utf-8")
    row = {"job": "read a CSV with one key of 4,027 letters", "rows": rows + 1, "bytes": path.stat().st_size}
    found = [row | {"how": "pyarrow alone"} | alone("pyarrow alone", path, "user", "key")]
    for how, sources in versions().items():
        found.append(row | {"how": how} | alone(how, path, "user", "key", sources=sources))
    path.unlink()
    return found


def _commands(folder: Path, records: int, keys: int) -> list[Row]:
    """privatize (five entries a record) and estimate (all keys), as commands."""
    rng = np.random.default_rng(2)
    arrow, writer = optional("pyarrow", "lake"), optional("pyarrow.csv", "lake")
    path, few, task = (folder / name for name in ("many.csv", "few.csv", "t.toml"))
    columns = {"user": np.repeat(np.arange(records), 5), "key": rng.integers(0, keys, 5 * records)}
    everybody = arrow.table(columns)
    writer.write_csv(everybody, path)
    writer.write_csv(everybody.slice(0, 50_000), few)
    described = ["--epsilon", "1", "--max-entries", "5", "--keys", str(keys), "--mechanism", "collision"]
    alone("command", "task", "new", "--name", "t", *described, "-o", str(task))
    found = []
    for how, sources in versions().items():
        reports, state = folder / f"{how}.reports", folder / f"{how}.state"

        def privatize(table: Path, reports: Path = reports, sources: str | None = sources) -> Row:
            named = ("--user", "user", "--key", "key")
            return alone(
                "command", "privatize", str(table), str(task), *named, "-o", str(reports), sources=sources
            )

        privatize(few)  # what is compiled is kept for the next process
        found.append({"job": "hubbub privatize", "rows": 5 * records, "how": how} | privatize(path))
        alone("command", "aggregate", str(reports), "-o", str(state), sources=sources)
        for ending in ("csv", "parquet"):
            cost = alone(
                "command", "estimate", str(state), "-o", str(folder / f"e.{ending}"), sources=sources
            )
            found.append({"job": f"hubbub estimate -o {ending}", "rows": keys, "how": how} | cost)
    jobs = list(dict.fromkeys(row["job"] for row in found))
    found.sort(key=lambda row: jobs.index(row["job"]))
    for made in folder.iterdir():
        made.unlink()
    return found


def _many(folder: Path, rows: int) -> list[Row]:
    """As many rows as should fit, to be read by this version alone."""
    path = folder / "many.csv"
    write_rows(path, rows)
    row = {"job": "read CSV", "rows": rows, "bytes": path.stat().st_size, "how": "now"}
    found = [row | alone("now", path, "user", "key", "value")]
    path.unlink()
    return found


def write_rows(path: Path, rows: int) -> None:
    """A table of rows in random order: a tenth as many users, at most 100,000 keys, values with one digit."""
    rng = np.random.default_rng(1)
    arrow = optional("pyarrow", "lake")
    text = arrow.string()
    schema = arrow.schema([("user", text), ("key", text), ("value", arrow.float64())])
    writer: Any
    if path.suffix == ".npz":
        user, key, value = _random_rows(rng, rows, rows)
        np.savez(path, user=user, key=key, value=value)
        return
    if path.suffix == ".csv":
        csv = optional("pyarrow.csv", "lake")
        style = "all_valid" if "quoted" in path.name else "none"
        writer = csv.CSVWriter(path, schema, write_options=csv.WriteOptions(quoting_style=style))
    else:
        writer = optional("pyarrow.parquet", "lake").ParquetWriter(path, schema)
    with writer:
        for start in range(0, rows, _STEP):
            user, key, value = _random_rows(rng, min(_STEP, rows - start), rows)
            texts = [arrow.array(user).cast(text), arrow.array(key).cast(text)]
            writer.write_table(arrow.table([*texts, value], schema=schema))


def _random_rows(rng: np.random.Generator, count: int, of: int) -> tuple[Any, Any, Any]:
    keys = np.minimum(20 * rng.pareto(1.0, count), 99_999).astype(np.int64)
    return rng.integers(0, max(1, of // 10), count), keys, np.round(5 * rng.random(count), 1)


def _cost(rows: list[Row], job: str, how: str, what: str) -> float | None:
    """What a job costs, for the smaller size where there are two."""
    return next((row[what] for row in rows if (row["job"], row["how"]) == (job, how)), None)


def headlines(rows: list[Row]) -> list[Headline]:
    found = []
    for job in ("read CSV", "read Parquet"):
        own, other = (_cost(rows, job, how, "cpu") for how in ("now", "pyarrow alone"))
        if own and other:
            found.append(Headline(f"{job}: work of the processor over pyarrow's", times(own / other)))
    return found


def text(rows: list[Row]) -> str:
    cells = []
    last: tuple[str, str] | None = None
    for row in rows:
        job = (row["job"], f"{row['rows']:,}")
        cost = [f"{row['seconds']:.1f} s", f"{row['cpu']:.1f} s", f"{row['peak'] / 1e9:.2f} GB"]
        cells.append([*(("", "") if job == last else job), row["how"], *cost])
        last = job
    words = prose(
        """Tables with a row per user and key. Reading ends with users and keys as numbers (pyarrow alone: columns of
        text, dictionary-encoded). Each line is a process of its own: time by the clock (reading alone, or the whole
        command), work of the processor (of all threads, and of starting Python), and the most memory the process had.
        *Before* is an older version, measured in the same run."""
    )
    return words + "\n\n" + table(["job", "rows", "", "clock", "processor", "peak memory"], cells, words=3)


SECTION = Section(
    "tables",
    "Tables",
    measure,
    text,
    quick={"rows": 20_000, "most": 40_000, "records": 5000, "keys": 1 << 10},
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
