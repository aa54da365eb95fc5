"""Any number of Parquet files with reports into one state: several processes, bounded memory, resumable.

The work is cut at row groups. Each process folds some of them into a partial state; the partial states are added up in
whatever order they arrive, which makes no difference to the sum. What is done, and the sum so far, is kept in a file
beside the output until the run is complete.

Repeated batches are found beforehand, from the columns `task` and `batch` alone: of rows with one id the first counts,
in the order of the files, so the result does not depend on which process was quicker. That takes about 50 bytes of
memory per row, whatever the rows hold. Folding takes less than 1 GB per process.

Reports by stratum (a column of that name) have a state for each. If these are too many to hold, the lake is read
several times, for some strata at a time, and the states of those that are done wait in a file.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hubbub.engines.arrow import (
    NO_ID,
    OTHER_TASK,
    WRONG_STRATA,
    IdHash,
    add_rows,
    named,
    rows_of,
    set_rows_aside,
    strata_of,
)
from hubbub.engines.manifest import GroupKey, Manifest, Sums
from hubbub.engines.pool import Run, cores, workers
from hubbub.engines.row_groups import Group, cut, find_sources, groups_of, read_rows
from hubbub.model.state import State
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.files import total_of
from hubbub.protocol.strata import UNTOLD, Stratum, check_number
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence
from hubbub.server.fold import Aside, Fold, Rejected, count_reasons

#: Bytes of reports, and rows, from which on processes of their own gain more than starting them costs.
_WORTH, _WORTH_ROWS = 1 << 27, 1 << 21
#: Bytes of reports that a process is given at least and at most, and rows when it looks at batch ids only.
_LEAST, _MOST, _MOST_IDS = 1 << 22, 1 << 25, 1 << 20
#: Bytes of states by stratum that are held at a time; of more, the lake is read several times.
_HELD = 1 << 26

_NO_ROWS = np.zeros(0, dtype=np.int64)

#: progress(step, more, total): bytes that were added to what is done, and of all
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Lake:
    """What a run over a lake of reports found."""

    task: Task
    #: The sum of each stratum that has reports.
    states: Sums
    rejected: list[Rejected]
    #: Rows that were left out because an earlier row has the same batch id.
    repeated: int
    #: Files without batch ids, where a repeated batch would not be noticed.
    unnamed: list[str]
    files: int
    #: Files that an interrupted run had already counted, at least in part.
    resumed: int
    #: Files in which an interrupted run would have been taken up, and states wait; to be removed when they are safe.
    kept: tuple[Path, ...] = ()
    #: What may show forged reports, if that was asked for.
    evidence: Evidence | None = None

    @property
    def count(self) -> int:
        """How many reports were counted."""
        return sum(self.states.counts.values())

    @cached_property
    def state(self) -> State:
        """The state of all strata together."""
        return total_of(self.task, self.states)

    @property
    def reasons(self) -> dict[str, Aside]:
        """How many rows and reports were set aside, by reason."""
        return count_reasons((lot.reason, lot.size) for lot in self.rejected)


def aggregate(
    paths: Iterable[str | Path],
    task: Task | None = None,
    jobs: int | None = 1,
    manifest: str | Path | None = None,
    progress: Progress = lambda step, more, total: None,
    evidence: bool = False,
) -> Lake:
    """Add up all reports in these Parquet files and folders of them.

    The task comes from the files unless it is given; files of another task are refused, rows of another task set
    aside. The work is spread over `jobs` processes (None: over all cores if there is enough of it). With `manifest`,
    the run keeps what is done in that file (and others beside it, where strata are many), goes on from it if it is
    there, and leaves it for the caller to remove once the state is safe. `progress(step, more, total)` counts bytes.
    With `evidence`, and without a manifest, what may show that reports are forged is counted along.
    """
    if evidence and manifest is not None:
        raise Refused("What may show forged reports is counted in one go, without a manifest.")
    sources, task = find_sources(paths, task)
    groups = list(groups_of(sources))
    total = sum(group.bytes for group in groups)
    if jobs is None:
        worth = total >= _WORTH or sum(sum(source.rows) for source in sources) >= _WORTH_ROWS
        jobs = cores() if worth else 1
    ledgers = []
    with workers(jobs, task) as run:
        repeated = _repeated(run, task, [g for g in groups if "batch" in g.source.columns], progress)
        today = datetime.date.today()
        passes = _passes(task, _strata(run, task, groups, today))
        seen = Evidence(task) if evidence else None
        for turn, strata in enumerate(passes):
            path = None if manifest is None else Path(f"{manifest}.{turn}" if turn else manifest)
            ledger = Manifest.open(path, task, [source.fingerprint for source in sources], strata)
            ledgers.append(ledger)
            left = [group for group in groups if group.key not in ledger.done]
            still = sum(group.bytes for group in left)
            progress("aggregating", total - still, total * len(passes))
            least = max(_LEAST, min(_MOST, _HELD if len(strata) > 1 else 0))
            lots = cut(left, lambda group: group.bytes, min(_MOST, max(least, still // (4 * jobs))))
            works = [
                _Work(
                    turn,
                    strata,
                    [(group, repeated.get(group.key, _NO_ROWS)) for group in lot],
                    evidence,
                    today,
                )
                for lot in lots
            ]
            with ledger:
                for work, (states, rejected, counted) in run(_fold, works):
                    for group, _ in work.groups:
                        group.source.check()
                        progress("aggregating", group.bytes, total * len(passes))
                    ledger.add([group.key for group, _ in work.groups], states, rejected)
                    if seen is not None and counted is not None:
                        seen.merge(counted)
            if len(passes) > 1 and path is not None:
                ledger.spill()
    return Lake(
        task,
        Sums(ledgers),
        [lot for ledger in ledgers for lot in ledger.rejected],
        sum(len(rows) for rows in repeated.values()),
        [source.path for source in sources if "batch" not in source.columns],
        len(sources),
        max(ledger.resumed for ledger in ledgers),
        tuple(ledger.path for ledger in ledgers if ledger.path is not None),
        seen,
    )


# Strata


def _strata(run: Run, task: Task, groups: list[Group], today: datetime.date) -> list[Stratum]:
    """The strata of the task that occur, in order; of files without the column nothing is told."""
    told = [group for group in groups if "stratum" in group.source.columns]
    found = {UNTOLD} if len(told) < len(groups) or not groups else set()
    lots = cut(told, lambda group: group.source.rows[group.number], _MOST_IDS)
    for _, strata in run(_strata_in, [(today, lot) for lot in lots]):
        found |= strata
        check_number(task, found)
    return sorted(found) or [UNTOLD]


def _strata_in(task: Task, work: tuple[datetime.date, list[Group]]) -> set[Stratum]:
    today, groups = work
    found: set[Stratum] = set()
    for group in groups:
        columns = group.source.columns & {"task", "stratum"}
        for _, batch in read_rows(group, columns):
            strata, which = strata_of(task, batch["stratum"], today)
            known = which >= 0
            if "task" in columns:
                known &= rows_of(batch["task"], task.digest.hex())
            found |= {strata[place] for place in np.unique(which[known]).tolist()}
    return found


def _passes(task: Task, strata: list[Stratum]) -> list[tuple[Stratum, ...]]:
    """Strata, some at a time, whose states can be held together."""
    most = max(1, _HELD // max(1, task.mechanism.empty(task.keys).totals.nbytes))
    return [tuple(strata[start : start + most]) for start in range(0, len(strata), most)]


@dataclass(frozen=True)
class _Work:
    """Row groups with their repeated rows, which strata are added up in which turn, and whether with evidence.

    All work of a run is of one day, so that it agrees on which periods have begun.
    """

    turn: int
    strata: tuple[Stratum, ...]
    groups: list[tuple[Group, Int64s]]
    evidence: bool
    today: datetime.date


def _fold(task: Task, work: _Work) -> tuple[dict[Stratum, State], list[Rejected], Evidence | None]:
    """The partial states of some strata in some row groups, without repeated rows.

    What is wrong with a row itself is noted in the first turn, and with its reports when it is its stratum's turn.
    """
    pa = optional("pyarrow", "lake")
    evidence = Evidence(task) if work.evidence else None
    folds = {stratum: Fold(task, evidence, stratum) for stratum in work.strata}
    turn, aside = work.turn, folds[work.strata[0]]
    ours = partial(rows_of, digest=task.digest.hex())
    for group, repeated in work.groups:
        path, columns = group.source.path, group.source.columns
        for numbers, batch in read_rows(group, columns | {"reports"}):
            kept = ~np.isin(numbers, repeated)
            if "task" in columns:
                fine = ours(batch["task"])
                if turn == 0:
                    aside.set_aside(path, OTHER_TASK, numbers[kept & ~fine])
                kept &= fine
            there, which = [UNTOLD], np.zeros(len(numbers), dtype=np.int64)
            wrong = {}
            if "batch" in columns:
                wrong[NO_ID] = ~named(batch["batch"])
            if "stratum" in columns:
                there, which = strata_of(task, batch["stratum"], work.today)
                wrong |= {reason: which == mark for mark, reason in WRONG_STRATA.items()}
            for reason, rows in wrong.items():
                if turn == 0:
                    set_rows_aside(aside, path, reason, numbers, kept & rows, batch["reports"])
                kept &= ~rows
            for place, stratum in enumerate(there):
                mine = kept & (which == place)
                if stratum in folds and mine.any():
                    reports = batch["reports"] if mine.all() else batch["reports"].filter(pa.array(mine))
                    add_rows(folds[stratum], path, numbers[mine], reports)
    states = {stratum: fold.finish() for stratum, fold in folds.items()}
    rejected = [lot for fold in folds.values() for lot in fold.rejected]
    return {stratum: state for stratum, state in states.items() if state.count}, rejected, evidence


# Repeated batches


def _repeated(run: Run, task: Task, groups: list[Group], progress: Progress) -> dict[GroupKey, Int64s]:
    """The rows of each row group whose batch id an earlier row has."""
    if not groups:
        return {}
    hashing = IdHash()
    total = sum(group.bytes for group in groups)
    found: dict[GroupKey, tuple[Int64s, UInt64s]] = {}
    lots = cut(groups, lambda group: group.source.rows[group.number], _MOST_IDS)
    for (_, lot), results in run(_ids, [(hashing, lot) for lot in lots]):
        for group, result in zip(lot, results, strict=True):
            found[group.key] = result
            progress("looking for repeated batches", group.bytes, total)
    ids = np.concatenate([found[group.key][1] for group in groups])
    order = np.lexsort((ids[:, 1], ids[:, 0]))  # stable: equal ids stay in the order of the files
    again = np.zeros(len(ids), dtype=bool)
    again[order[1:]] = (ids[order[1:]] == ids[order[:-1]]).all(axis=1)
    rows = [found[group.key][0] for group in groups]
    ends = np.cumsum([len(numbers) for numbers in rows])
    parts = np.split(again, ends[:-1])
    return {
        group.key: numbers[part]
        for group, numbers, part in zip(groups, rows, parts, strict=True)
        if part.any()
    }


def _ids(task: Task, work: tuple[IdHash, list[Group]]) -> list[tuple[Int64s, UInt64s]]:
    """Numbers and hashed batch ids of the task's rows, row group by row group."""
    hashing, groups = work
    pa = optional("pyarrow", "lake")
    results = []
    for group in groups:
        numbers, ids = [_NO_ROWS], [np.zeros((0, 2), dtype=np.uint64)]
        for rows, batch in read_rows(group, group.source.columns & {"task", "batch"}):
            ours = named(batch["batch"])
            if "task" in group.source.columns:
                ours = ours & rows_of(batch["task"], task.digest.hex())
            numbers.append(rows[ours])
            ids.append(hashing(batch["batch"].filter(pa.array(ours))))
        results.append((np.concatenate(numbers), np.concatenate(ids)))
    return results
