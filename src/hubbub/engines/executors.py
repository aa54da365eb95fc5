"""What runs on Spark's executors: rows into partial states, partial states into fewer, and what is wrong with rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hubbub.engines.arrow import (
    NO_ID,
    OTHER_TASK,
    WRONG_STRATA,
    add_rows,
    named,
    reports_in,
    set_rows_aside,
    strata_of,
)
from hubbub.model.state import State
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task
from hubbub.server.fold import Aside, Fold, count_reasons, merge_into

#: Bits of the partition's number that a level of the tree takes away: 16 states become one.
_FAN = 4
#: Bytes of states that a partition with many groups may hold before it hands them on.
_HELD = 1 << 28

Key = tuple[Any, ...]
Batches = Iterator[Any]


@lru_cache(maxsize=256)
def parsed(text: bytes) -> Task:
    return Task.parse(json.loads(text))


def _tasks(texts: tuple[bytes, ...]) -> dict[str, Task]:
    found = (parsed(text) for text in texts)
    return {task.digest.hex(): task for task in found}


def load(task: Task, payload: bytes) -> State:
    return task.mechanism.empty(task.keys).load(payload)


def keep(states: dict[Key, State], key: Key, state: State) -> None:
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


def _add(fold: Fold, batch: Any, today: datetime.date) -> None:
    """Fold the rows of an Arrow batch that have an id, where there are ids, and a stratum of the task that has begun,
    where there are strata; rows are numbered within the batch."""
    pa = optional("pyarrow", "spark")
    numbers = np.arange(batch.num_rows, dtype=np.int64)
    kept, wrong = np.ones(len(numbers), dtype=bool), {}
    if "batch" in batch.schema.names:
        wrong[NO_ID] = ~named(batch["batch"])
    if "stratum" in batch.schema.names:
        _, which = strata_of(fold.task, batch["stratum"], today)
        wrong |= {reason: which == mark for mark, reason in WRONG_STRATA.items()}
    for reason, rows in wrong.items():
        set_rows_aside(fold, "", reason, numbers, kept & rows, batch["reports"])
        kept &= ~rows
    add_rows(fold, "", numbers[kept], batch["reports"].filter(pa.array(kept)))


def folding(
    texts: tuple[bytes, ...], by: tuple[str, ...], today: datetime.date
) -> Callable[[Batches], Batches]:
    """Rows into partial states: one per group, or several if a partition's groups are too many to hold.

    `today` is the same on all executors: periods that have not begun are set aside.
    """

    def fold(batches: Batches) -> Batches:
        place = optional("pyspark", "spark").TaskContext.get().partitionId()
        tasks = _tasks(texts)
        folds: dict[Key, Fold] = {}
        strangers: list[tuple[Key, str, Aside]] = []
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for key, rows in _grouped(batch, by):
                digest = key[by.index("task")]
                if digest not in tasks:
                    strangers.append((key, OTHER_TASK, Aside(rows.num_rows)))
                    continue
                task = tasks[digest]
                mark = int(strata_of(task, rows["stratum"][:1], today)[1][0]) if "stratum" in by else 0
                if mark < 0:
                    size = Aside(rows.num_rows, reports_in(task, rows["reports"]))
                    strangers.append((key, WRONG_STRATA[mark], size))
                    continue
                if key not in folds:
                    folds[key] = Fold(task)
                _add(folds[key], rows, today)
            if sum(each.nbytes for each in folds.values()) > _HELD:
                yield from _partials(kinds, place, folds, [])
                folds = {}
        yield from _partials(kinds, place, folds, strangers)

    return fold


def _partials(
    kinds: list[Any], partition: int, folds: dict[Key, Fold], strangers: Sequence[tuple[Key, str, Aside]]
) -> Batches:
    for key, fold in folds.items():
        state = fold.finish().to_bytes()
        aside = count_reasons((lot.reason, lot.size) for lot in fold.rejected)
        yield _partial(kinds, key, partition, state, aside)
    by_key: dict[Key, list[tuple[str, Aside]]] = {}
    for key, reason, size in strangers:
        by_key.setdefault(key, []).append((reason, size))
    for key, sizes in by_key.items():
        yield _partial(kinds, key, partition, None, count_reasons(sizes))


def _partial(kinds: list[Any], key: Key, place: int, state: bytes | None, reasons: dict[str, Aside]) -> Any:
    """One row: the group, the branch of the tree that it goes to, its state, and what was set aside."""
    pa = optional("pyarrow", "spark")
    extra = [("branch", pa.int32()), ("state", pa.binary()), ("rejected", pa.string())]
    values = [*key, place >> _FAN, state, json.dumps(reasons)]
    schema = pa.schema([*kinds, *extra])
    return pa.record_batch(
        [pa.array([v], k) for v, k in zip(values, schema.types, strict=True)], schema=schema
    )


def merging(texts: tuple[bytes, ...], by: tuple[str, ...]) -> Callable[[Batches], Batches]:
    """Partial states into fewer: those of one group and branch become one."""

    def merge(batches: Batches) -> Batches:
        tasks = _tasks(texts)
        states: dict[Key, State] = {}
        reasons: dict[Key, dict[str, Aside]] = {}
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for row in batch.to_pylist():
                key = (*(row[name] for name in by), row["branch"])
                more = json.loads(row["rejected"])
                reasons[key] = count_reasons([*reasons.get(key, {}).items(), *more.items()])
                if row["state"] is not None:
                    keep(states, key, load(tasks[row["task"]], row["state"]))
        for key, counts in reasons.items():
            state = states[key].to_bytes() if key in states else None
            yield _partial(kinds, key[:-1], key[-1], state, counts)

    return merge


def sifting(texts: tuple[bytes, ...], today: datetime.date) -> Callable[[Batches], Batches]:
    """Rows into what is wrong with them."""

    def sift(batches: Batches) -> Batches:
        pa = optional("pyarrow", "spark")
        tasks = _tasks(texts)
        for batch in batches:
            for (digest,), rows in _grouped(batch, ("task",)):
                fold = Fold(tasks.get(digest, next(iter(tasks.values()))))
                if digest in tasks:
                    _add(fold, rows, today)
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
