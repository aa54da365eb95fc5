"""Aggregation, estimates and privatizing on Spark: the same state, byte for byte, as on one machine.

    from hubbub.engines import spark as crowd
    state = crowd.aggregate(session.read.parquet("reports/"), task)

Every partition folds its rows into partial states (`hubbub.server.fold`), and partial states are merged in a tree,
sixteen into one. A partial state is a row of a data frame like any other, so what Spark does about lost executors and
slow tasks holds for it: of a task that ran twice one result is used. Nothing is counted by side effect.

Data frames have the columns of `hubbub.engines.arrow`; of rows with one (task, batch) one counts. They are taken for
copies of each other, which is what a repeated upload makes: which of them counts is Spark's choice.
"""

from __future__ import annotations

import atexit
import datetime
import json
import re
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hubbub
from hubbub.engines.arrow import report_table
from hubbub.engines.executors import Batches, Key, folding, keep, load, merging, parsed, sifting
from hubbub.model.record import Summary
from hubbub.model.state import State
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.strata import Stratum, check_number, stratum_in
from hubbub.protocol.task import Task
from hubbub.server.fold import count_reasons
from hubbub.tables.records import Table, encode_table, refuse_device_rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hubbub.server.estimates import Estimate

#: How often partial states are merged before they come together here.
_LEVELS = 2

_REPORTS = "task string, day date, batch string, reports binary"


def aggregate(df: DataFrame, task: Task) -> State:
    """The state of all reports of one task in a data frame. What is not a report is left out with a warning."""
    return aggregate_by(df, [task], ("task",)).get((task.digest.hex(),), task.mechanism.empty(task.keys))


def aggregate_by(
    df: DataFrame, tasks: Iterable[Task], by: tuple[str, ...] = ("task", "day")
) -> dict[Key, State]:
    """The states of several tasks, days or whatever columns, in one pass: {(digest, day): state, ...}.

    A data frame without the column `task` holds reports of the one task that is given. What is not a report of one
    of these tasks is left out with a warning; `rejected` finds it.
    """
    known = {task.digest.hex(): task for task in tasks}
    rows = _prepared(df, known)
    for name in by:
        if name not in rows.columns:
            raise Refused(
                f"The data frame has no column {name!r} to group by; it has {', '.join(rows.columns)}."
            )
    if "task" not in by:
        raise Refused(
            "States of different tasks cannot be merged: 'task' must be among the columns to group by."
        )
    texts = tuple(task.canonical for task in known.values())
    kinds = ", ".join(f"`{name}` {rows.schema[name].dataType.simpleString()}" for name in by)
    schema = f"{kinds}, branch int, state binary, rejected string"
    columns = dict.fromkeys(
        [*by, *(name for name in ("batch", "stratum", "reports") if name in rows.columns)]
    )
    partial = rows.select(*columns).mapInArrow(folding(texts, by, datetime.date.today()), schema)
    for _ in range(_LEVELS):
        partial = partial.repartition(*by, "branch").mapInArrow(merging(texts, by), schema)
    states: dict[Key, State] = {}
    reasons: list[tuple[str, Sequence[int]]] = []
    for row in partial.collect():
        reasons += json.loads(row["rejected"]).items()
        if row["state"] is not None:
            key = tuple(row[name] for name in by)
            keep(states, key, load(known[row["task"]], bytes(row["state"])))
    if reasons:
        listed = "; ".join(f"{size.words()}: {reason}" for reason, size in count_reasons(reasons).items())
        warnings.warn(f"Set aside: {listed}. hubbub.engines.spark.rejected lists them.", stacklevel=2)
    return states


def strata(df: DataFrame, task: Task) -> dict[Stratum, State]:
    """The states of one task by stratum, from the column of that name; of rows without it nothing is told.

    Rows with a label or a period that the task does not have, or a period that has not begun, are left out with a
    warning, as all that is no report.
    """
    functions = optional("pyspark.sql.functions", "spark")
    if "stratum" not in df.columns:
        df = df.withColumn("stratum", functions.lit(""))
    df = df.withColumn(
        "stratum", functions.coalesce(functions.col("stratum").cast("string"), functions.lit(""))
    )
    found = aggregate_by(df, [task], ("task", "stratum"))
    kept = {stratum_in(task, text): state for (_, text), state in found.items() if state.count}
    check_number(task, kept)
    return kept


def estimate(df: DataFrame, task: Task, **options: Any) -> Estimate:
    """Estimates from the reports in a data frame; options as in `hubbub.estimate`."""
    from hubbub.server.estimates import estimate as from_state

    return from_state(task, aggregate(df, task), **options)


def rejected(df: DataFrame, tasks: Iterable[Task]) -> DataFrame:
    """What `aggregate_by` leaves out: task, batch, report (its place in the row; -1: the whole row) and reason."""
    known = {task.digest.hex(): task for task in tasks}
    rows = _prepared(df, known)
    columns = [name for name in ("task", "batch", "stratum", "reports") if name in rows.columns]
    texts = tuple(task.canonical for task in known.values())
    return rows.select(*columns).mapInArrow(
        sifting(texts, datetime.date.today()), "task string, batch string, report long, reason string"
    )


def ship(session: SparkSession) -> None:
    """Send this package to the executors, unless that was done. (numpy, pydantic and pyarrow must be there.)

    Done by all functions here. Whatever version of hubbub the executors have, they then use this one. Where it came
    as an archive itself (`spark-submit --py-files`), they have it already.
    """
    if Path(hubbub.__file__).parent.is_dir():
        _send(session.sparkContext.applicationId, session.sparkContext)


@lru_cache(maxsize=8)
def _send(application: str, context: Any) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hubbub-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    context.addPyFile(str(pack(folder / "hubbub.zip")))


def pack(path: Path) -> Path:
    """Write this package as a zip archive, for `spark-submit --py-files`."""
    package = Path(hubbub.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path("hubbub") / file.relative_to(package))
    return path


# Rows


def _prepared(df: DataFrame, known: dict[str, Task]) -> DataFrame:
    """The rows that may count: with a task each, and every batch once."""
    functions = optional("pyspark.sql.functions", "spark")
    ship(df.sparkSession)
    if "reports" not in df.columns:
        raise Refused(f"The data frame has no column 'reports'; its columns are {', '.join(df.columns)}.")
    kind = df.schema["reports"].dataType.simpleString()
    if kind != "binary":
        raise Refused(f"The column 'reports' must be binary, not {kind}.")
    if "task" not in df.columns:
        if len(known) != 1:
            raise Refused("The data frame has no column 'task', so exactly one task must be given.")
        df = df.withColumn("task", functions.lit(next(iter(known))))
    df = df.withColumn("task", functions.col("task").cast("string"))
    if "batch" in df.columns:
        df = df.withColumn("batch", functions.col("batch").cast("string"))
        # Rows without an id are not copies of each other: they stay, to be set aside one by one.
        unnamed = functions.when(functions.col("batch").isNull(), functions.monotonically_increasing_id())
        df = df.withColumn("_unnamed", unnamed).dropDuplicates(["task", "batch", "_unnamed"]).drop("_unnamed")
    return df


# Reports


def privatize(
    df: DataFrame,
    task: Task,
    user: str,
    key: str,
    value: str | None = None,
    day: datetime.date | None = None,
) -> DataFrame:
    """Private reports of the records in a long-form data frame (one row per user and key), for simulations and for
    trusted edges: whoever runs this sees the records.

    Coins come from the operating systems of the executors. The reports are drawn once and kept (a local checkpoint):
    a data frame that drew them again whenever it is looked at would let two reports of one record leave, where the
    guarantee is for one. If an executor is lost with them, reading them fails rather than drawing anew; so write them
    to where they belong first of all. Of a key that a user has twice one row counts, whichever comes last.

    Tasks with turns, memos or seeds from the server have rules that devices keep, and are refused.
    """
    refuse_device_rules(task)
    functions = optional("pyspark.sql.functions", "spark")
    ship(df.sparkSession)
    for name in (user, key, *([value] if value else [])):
        if name not in df.columns:
            raise Refused(f"The data frame has no column {name!r}; its columns are {', '.join(df.columns)}.")
    if value is None and task.scale.kind != "set":
        raise Refused("The task collects values: name the column that holds them.")
    if task.labels:
        raise Refused(
            "Reports with labels are not made on Spark: privatize one file per partition, or on devices."
        )
    number = functions.col(value).cast("double") if value else functions.lit(1.0)
    entry = functions.struct(functions.col(key).cast("string").alias("key"), number.alias("value"))
    owner = functions.col(user)
    users = df.groupBy(owner.isNull().alias("nobody"), owner.alias("user"))
    records = users.agg(functions.collect_list(entry).alias("entries")).select("nobody", "entries")
    drawn = records.mapInArrow(_privatizing(task.canonical, day), f"{_REPORTS}, summary string")
    with _refusals():
        drawn = drawn.localCheckpoint(eager=True)
    total = sum(
        (Summary(**json.loads(row["summary"])) for row in drawn.select("summary").collect()), Summary()
    )
    if any(count for name, count in total.as_dict().items() if name not in ("records", "entries")):
        warnings.warn(total.words(), stacklevel=2)
    return drawn.drop("summary")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn a refusal on an executor, which arrives as a page of traceback, into a refusal here."""
    try:
        yield
    except optional("pyspark.errors", "spark").PythonException as problem:
        found = re.search(r"hubbub\.[\w.]+\.Refused: (.+)", str(problem))
        if found is None:
            raise
        raise Refused(found.group(1)) from None


def _privatizing(text: bytes, day: datetime.date | None) -> Callable[[Batches], Batches]:
    """Records into rows of reports, one per Arrow batch."""

    def draw(batches: Batches) -> Batches:
        from hubbub.device.client import privatize
        from hubbub.primitives.coins import SecretCoins, SystemSeeds

        pa = optional("pyarrow", "spark")
        task = parsed(text)
        for batch in batches:
            if optional("pyarrow.compute", "spark").any(batch["nobody"]).as_py():
                raise Refused("A row does not say whose it is; leave such rows out.")
            entries, tidied = encode_table(task, _table(batch["entries"]))
            packed, sampled = privatize(task, entries, SecretCoins(), SystemSeeds())
            rows = report_table(task, packed, day, max(1, len(packed)))
            summary = json.dumps((tidied + sampled).as_dict())
            yield from rows.append_column("summary", pa.array([summary] * len(rows))).to_batches()

    return draw


def _table(column: Any) -> Table:
    """A column of lists of (key, value) as a table, each list a user."""
    entries = column.flatten()
    keys = entries.field("key")
    if keys.null_count:
        raise Refused("A row has no key; leave such rows out.")
    known = keys.dictionary_encode()
    owner = np.repeat(np.arange(len(column)), np.diff(column.offsets.to_numpy()))
    values = entries.field("value").to_numpy(zero_copy_only=False).astype(np.float64)
    places = known.indices.to_numpy().astype(np.int64)
    return Table(owner, len(column), places, known.dictionary.to_pylist(), values)
