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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hubbub
from hubbub.engines.arrow import NO_ID, OTHER_TASK, add_rows, named, report_table
from hubbub.model.record import Summary
from hubbub.model.state import State
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.task import Task
from hubbub.server.fold import Fold, count_reasons, merge_into
from hubbub.tables.records import Table, encode_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hubbub.server.estimates import Estimate

#: Bits of the partition's number that a level of the tree takes away: 16 states become one.
_FAN = 4
_LEVELS = 2
#: Bytes of states that a partition with many groups may hold before it hands them on.
_HELD = 1 << 28

_REPORTS = "task string, day date, batch string, reports binary"

Key = tuple[Any, ...]
Batches = Iterator[Any]


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
    columns = dict.fromkeys([*by, *(name for name in ("batch", "reports") if name in rows.columns)])
    partial = rows.select(*columns).mapInArrow(_folding(texts, by), schema)
    for _ in range(_LEVELS):
        partial = partial.repartition(*by, "branch").mapInArrow(_merging(texts, by), schema)
    states: dict[Key, State] = {}
    reasons: Counter[str] = Counter()
    for row in partial.collect():
        reasons.update(json.loads(row["rejected"]))
        if row["state"] is not None:
            key = tuple(row[name] for name in by)
            _keep(states, key, _load(known[row["task"]], bytes(row["state"])))
    if reasons:
        listed = "; ".join(f"{count:,} times {reason}" for reason, count in sorted(reasons.items()))
        warnings.warn(f"Set aside: {listed}. hubbub.engines.spark.rejected lists them.", stacklevel=2)
    return states


def estimate(df: DataFrame, task: Task, **options: Any) -> Estimate:
    """Estimates from the reports in a data frame; options as in `hubbub.estimate`."""
    from hubbub.server.estimates import estimate as from_state

    return from_state(task, aggregate(df, task), **options)


def rejected(df: DataFrame, tasks: Iterable[Task]) -> DataFrame:
    """What `aggregate_by` leaves out: task, batch, report (its place in the row; -1: the whole row) and reason."""
    known = {task.digest.hex(): task for task in tasks}
    rows = _prepared(df, known)
    columns = [name for name in ("task", "batch", "reports") if name in rows.columns]
    texts = tuple(task.canonical for task in known.values())
    return rows.select(*columns).mapInArrow(
        _sifting(texts), "task string, batch string, report long, reason string"
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


# On the executors


@lru_cache(maxsize=256)
def _parsed(text: bytes) -> Task:
    return Task.parse(json.loads(text))


def _tasks(texts: tuple[bytes, ...]) -> dict[str, Task]:
    found = (_parsed(text) for text in texts)
    return {task.digest.hex(): task for task in found}


def _load(task: Task, payload: bytes) -> State:
    return task.mechanism.empty(task.keys).load(payload)


def _keep(states: dict[Key, State], key: Key, state: State) -> None:
    if key in states:
        merge_into(states[key], state)
    else:
        states[key] = state


def _grouped(batch: Any, by: tuple[str, ...]) -> Iterator[tuple[Key, Any]]:
    """The rows of an Arrow batch, group by group."""
    pa = optional("pyarrow", "spark")
    names = [f"by {name}" for name in by]
    table = pa.table([*(batch[name] for name in by), np.arange(batch.num_rows)], [*names, "row"])
    groups = table.group_by(names, use_threads=False).aggregate([("row", "list")])
    rows = groups["row_list"].combine_chunks()
    for place, group in enumerate(groups.select(names).to_pylist()):
        yield tuple(group.values()), batch if len(rows) == 1 else batch.take(rows[place].values)


def _add(fold: Fold, batch: Any) -> None:
    """Fold the rows of an Arrow batch that have an id, where there are ids; rows are numbered within the batch."""
    pa = optional("pyarrow", "spark")
    numbers, reports = np.arange(batch.num_rows, dtype=np.int64), batch["reports"]
    if "batch" in batch.schema.names:
        fine = named(batch["batch"])
        fold.set_aside("", NO_ID, numbers[~fine])
        numbers, reports = numbers[fine], reports.filter(pa.array(fine))
    add_rows(fold, "", numbers, reports)


def _folding(texts: tuple[bytes, ...], by: tuple[str, ...]) -> Callable[[Batches], Batches]:
    """Rows into partial states: one per group, or several if a partition's groups are too many to hold."""

    def fold(batches: Batches) -> Batches:
        place = optional("pyspark", "spark").TaskContext.get().partitionId()
        tasks = _tasks(texts)
        folds: dict[Key, Fold] = {}
        strangers: Counter[Key] = Counter()
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for key, rows in _grouped(batch, by):
                digest = key[by.index("task")]
                if digest not in tasks:
                    strangers[key] += rows.num_rows
                    continue
                if key not in folds:
                    folds[key] = Fold(tasks[digest])
                _add(folds[key], rows)
            if sum(each.nbytes for each in folds.values()) > _HELD:
                yield from _partials(kinds, place, folds, {})
                folds = {}
        yield from _partials(kinds, place, folds, strangers)

    return fold


def _partials(kinds: list[Any], partition: int, folds: dict[Key, Fold], strangers: dict[Key, int]) -> Batches:
    for key, fold in folds.items():
        state = fold.finish().to_bytes()
        yield _partial(kinds, key, partition, state, count_reasons(fold.rejected))
    for key, count in strangers.items():
        yield _partial(kinds, key, partition, None, {OTHER_TASK: count})


def _partial(kinds: list[Any], key: Key, place: int, state: bytes | None, reasons: dict[str, int]) -> Any:
    """One row: the group, the branch of the tree that it goes to, its state, and what was set aside."""
    pa = optional("pyarrow", "spark")
    extra = [("branch", pa.int32()), ("state", pa.binary()), ("rejected", pa.string())]
    values = [*key, place >> _FAN, state, json.dumps(reasons)]
    schema = pa.schema([*kinds, *extra])
    return pa.record_batch(
        [pa.array([v], k) for v, k in zip(values, schema.types, strict=True)], schema=schema
    )


def _merging(texts: tuple[bytes, ...], by: tuple[str, ...]) -> Callable[[Batches], Batches]:
    """Partial states into fewer: those of one group and branch become one."""

    def merge(batches: Batches) -> Batches:
        tasks = _tasks(texts)
        states: dict[Key, State] = {}
        reasons: dict[Key, Counter[str]] = {}
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for row in batch.to_pylist():
                key = (*(row[name] for name in by), row["branch"])
                reasons.setdefault(key, Counter()).update(json.loads(row["rejected"]))
                if row["state"] is not None:
                    _keep(states, key, _load(tasks[row["task"]], row["state"]))
        for key, counts in reasons.items():
            state = states[key].to_bytes() if key in states else None
            yield _partial(kinds, key[:-1], key[-1], state, counts)

    return merge


def _sifting(texts: tuple[bytes, ...]) -> Callable[[Batches], Batches]:
    """Rows into what is wrong with them."""

    def sift(batches: Batches) -> Batches:
        pa = optional("pyarrow", "spark")
        tasks = _tasks(texts)
        for batch in batches:
            for (digest,), rows in _grouped(batch, ("task",)):
                fold = Fold(tasks.get(digest, next(iter(tasks.values()))))
                if digest in tasks:
                    _add(fold, rows)
                    fold.finish()
                else:
                    fold.set_aside("", OTHER_TASK, np.arange(rows.num_rows))
                ids = rows["batch"] if "batch" in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
                for lot in fold.rejected:
                    count = len(lot.rows)
                    digests, reasons = (
                        pa.array([text] * count, pa.string()) for text in (digest, lot.reason)
                    )
                    columns = [digests, ids.take(pa.array(lot.rows)), pa.array(lot.places), reasons]
                    yield pa.record_batch(columns, ["task", "batch", "report", "reason"])

    return sift


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
    """
    functions = optional("pyspark.sql.functions", "spark")
    ship(df.sparkSession)
    for name in (user, key, *([value] if value else [])):
        if name not in df.columns:
            raise Refused(f"The data frame has no column {name!r}; its columns are {', '.join(df.columns)}.")
    if value is None and task.scale.kind != "set":
        raise Refused("The task collects values: name the column that holds them.")
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
        task = _parsed(text)
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
