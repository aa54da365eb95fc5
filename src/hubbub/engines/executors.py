"""What runs on Spark's executors: rows into partial states, partial states into fewer, and what is wrong with rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from hubbub.engines.arrow import NO_ID, NO_STRATUM, OTHER_TASK, add_rows, named, strata_of
from hubbub.model.state import State
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task
from hubbub.server.fold import Fold, count_reasons, merge_into

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


def _add(fold: Fold, batch: Any) -> None:
    """Fold the rows of an Arrow batch that have an id, where there are ids, and a stratum of the task, where there are
    strata; rows are numbered within the batch."""
    pa = optional("pyarrow", "spark")
    numbers = np.arange(batch.num_rows, dtype=np.int64)
    kept = np.ones(len(numbers), dtype=bool)
    if "batch" in batch.schema.names:
        kept = named(batch["batch"])
        fold.set_aside("", NO_ID, numbers[~kept])
    if "stratum" in batch.schema.names:
        _, _, known = strata_of(fold.task, batch["stratum"])
        fold.set_aside("", NO_STRATUM, numbers[kept & ~known])
        kept = kept & known
    add_rows(fold, "", numbers[kept], batch["reports"].filter(pa.array(kept)))


def folding(texts: tuple[bytes, ...], by: tuple[str, ...]) -> Callable[[Batches], Batches]:
    """Rows into partial states: one per group, or several if a partition's groups are too many to hold."""

    def fold(batches: Batches) -> Batches:
        place = optional("pyspark", "spark").TaskContext.get().partitionId()
        tasks = _tasks(texts)
        folds: dict[Key, Fold] = {}
        strangers: Counter[tuple[Key, str]] = Counter()
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for key, rows in _grouped(batch, by):
                digest = key[by.index("task")]
                if digest not in tasks:
                    strangers[key, OTHER_TASK] += rows.num_rows
                    continue
                if "stratum" in by and not strata_of(tasks[digest], rows["stratum"][:1])[2].all():
                    strangers[key, NO_STRATUM] += rows.num_rows
                    continue
                if key not in folds:
                    folds[key] = Fold(tasks[digest])
                _add(folds[key], rows)
            if sum(each.nbytes for each in folds.values()) > _HELD:
                yield from _partials(kinds, place, folds, {})
                folds = {}
        yield from _partials(kinds, place, folds, strangers)

    return fold


def _partials(
    kinds: list[Any], partition: int, folds: dict[Key, Fold], strangers: Mapping[tuple[Key, str], int]
) -> Batches:
    for key, fold in folds.items():
        state = fold.finish().to_bytes()
        yield _partial(kinds, key, partition, state, count_reasons(fold.rejected))
    for (key, reason), count in strangers.items():
        yield _partial(kinds, key, partition, None, {reason: count})


def _partial(kinds: list[Any], key: Key, place: int, state: bytes | None, reasons: dict[str, int]) -> Any:
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
        reasons: dict[Key, Counter[str]] = {}
        kinds: list[Any] = []
        for batch in batches:
            kinds = [batch.schema.field(name) for name in by]
            for row in batch.to_pylist():
                key = (*(row[name] for name in by), row["branch"])
                reasons.setdefault(key, Counter()).update(json.loads(row["rejected"]))
                if row["state"] is not None:
                    keep(states, key, load(tasks[row["task"]], row["state"]))
        for key, counts in reasons.items():
            state = states[key].to_bytes() if key in states else None
            yield _partial(kinds, key[:-1], key[-1], state, counts)

    return merge


def sifting(texts: tuple[bytes, ...]) -> Callable[[Batches], Batches]:
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
