"""Runs of published tables and figures: independent seeded jobs, in parallel, resumed after an interruption.

An experiment is a list of jobs. A job is a function of the module top level with plain arguments that returns
rows; it takes its seed from its arguments, so its rows do not depend on who ran what before. Finished jobs are kept
in a journal beside the results until all are done. The rows go through `summarize` and into NAME.csv, the same
bytes in every run; the time that jobs took differs from run to run and has a file of its own.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubbub.engines.pool import belong_to_parent
from hubbub.experiments.verdicts import Compared
from hubbub.primitives.envelope import read_file, write_atomic
from hubbub.primitives.errors import Refused

Row = dict[str, Any]
#: What a page compares, each with a verdict.
Comparison = list[Compared]


@dataclass(frozen=True)
class Request:
    """How much to run, and where the user keeps data sets (files that are not shipped)."""

    quick: bool = True
    data: Path | None = None


@dataclass(frozen=True)
class Job:
    """One piece of work: a function of a module's top level and arguments that JSON can hold."""

    function: Callable[..., list[Row]]
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for the same work, whatever the version of Python."""
        what = [self.function.__module__, self.function.__qualname__, self.arguments]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def named(self) -> Row:
        """The arguments that say what was done, not where the data lay."""
        return {name: value for name, value in self.arguments.items() if name != "data"}

    def run(self) -> tuple[list[Row], float]:
        """The rows, and the seconds they took."""
        start = time.perf_counter()
        rows = self.function(**self.arguments)
        return rows, time.perf_counter() - start


@dataclass(frozen=True)
class Experiment:
    """A figure or table: its jobs (quick or full), its picture, the numbers the paper prints, and remarks."""

    name: str
    title: str
    jobs: Callable[[Request], Sequence[Job]]
    plot: Callable[[Sequence[Row], Path], None] | None = None
    summarize: Callable[[list[Row]], list[Row]] = lambda rows: rows
    published: Callable[[Sequence[Row]], Comparison] = lambda rows: []
    #: What the numbers beside ours are: printed in the paper, or worked out from its formulas.
    theirs: str = "published"
    remarks: str | Callable[[Sequence[Row]], str] = ""

    def run(
        self,
        folder: Path,
        request: Request,
        workers: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Path]:
        """Write NAME.csv, NAME.md and where there is one NAME.png; returns what was written."""
        jobs = self.jobs(request)
        journal = folder / f".{self.name}.journal"
        results = _work(jobs, journal, workers, progress)
        rows = self.summarize([row for job in jobs for row in results[job.key][0]])
        names = ("csv", "md", "png", "times.csv")
        table, page, picture, times = (folder / f"{self.name}.{ending}" for ending in names)
        write_atomic(table, to_csv(rows))
        write_atomic(times, to_csv([{**job.named, "seconds": results[job.key][1]} for job in jobs]))
        written = [table, page]
        if self.plot is not None:
            self.plot(rows, picture)
            written.append(picture)
        write_atomic(page, self._page(rows, request).encode())
        journal.unlink(missing_ok=True)
        return [*written, times]

    def _page(self, rows: Sequence[Row], request: Request) -> str:
        command = f"hubbub reproduce {self.name} --{'quick' if request.quick else 'full'}"
        command += " --data FOLDER" if request.data else ""
        lines = [
            f"# {self.title}",
            "",
            f"Made by `{command}`; all rows are in [{self.name}.csv]({self.name}.csv).",
        ]
        if self.plot is not None:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        compared = self.published(rows)
        if compared:
            lines += ["", f"| | {self.theirs} | here | verdict |", "|---|---|---|---|"]
            lines += [each.line() for each in compared]
        remarks = self.remarks(rows) if callable(self.remarks) else self.remarks
        return "\n".join(lines + (["", remarks] if remarks else [])) + "\n"


def _work(
    jobs: Sequence[Job], journal: Path, workers: int, progress: Callable[[int], None]
) -> dict[str, tuple[list[Row], float]]:
    """Results by job key, those of an earlier interrupted run included."""
    wanted = {job.key: job for job in jobs}
    results = {key: result for key, result in _finished(journal) if key in wanted}
    missing = [job for key, job in wanted.items() if key not in results]
    progress(len(results))
    for key, rows, seconds in _run_all(missing, workers):
        try:
            with journal.open("a") as file:
                file.write(json.dumps([key, rows, seconds]) + "\n")
        except OSError as problem:
            raise Refused(f"{journal} cannot be written: {problem.strerror or problem}.") from None
        results[key] = _plain(rows), seconds
        progress(1)
    return results


def _plain(rows: list[Row]) -> list[Row]:
    """Rows as the journal would give them back, so that a resumed run writes the same bytes."""
    plain: list[Row] = json.loads(json.dumps(rows))
    return plain


def _finished(journal: Path) -> Iterator[tuple[str, tuple[list[Row], float]]]:
    """What a journal holds; a line that was cut off by an interruption is left out."""
    if not journal.exists():
        return
    kept = []
    for line in read_file(journal).decode(errors="replace").splitlines():
        try:
            key, rows, seconds = json.loads(line)
        except (ValueError, TypeError):
            continue
        kept.append(line + "\n")
        yield key, (rows, seconds)
    write_atomic(journal, "".join(kept).encode())


def _run_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[str, list[Row], float]]:
    """Run jobs as they come; in processes of their own when there are several workers."""
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield (job.key, *job.run())
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, belong_to_parent)
    try:
        running = {pool.submit(job.run): job for job in jobs}
        for done in as_completed(running):
            yield (running[done].key, *done.result())
    finally:
        pool.shutdown(cancel_futures=True)


def to_csv(rows: Sequence[Row]) -> bytes:
    """Rows as CSV; columns in the order in which they first occur."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def averaged(rows: Sequence[Row], by: Sequence[str], logarithm: bool = False) -> list[Row]:
    """One row per combination of the columns `by`: mean of every other column with its standard error.

    With `logarithm`, natural logarithms are averaged (the second paper reports errors that way).
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [_average(key, group, by, logarithm) for key, group in groups.items()]


def _average(key: tuple[Any, ...], group: list[Row], by: Sequence[str], logarithm: bool) -> Row:
    result: Row = {**dict(zip(by, key, strict=True)), "repetitions": len(group)}
    for name in group[0]:
        if name in by:
            continue
        values = [math.log(row[name]) if logarithm else float(row[name]) for row in group]
        mean = math.fsum(values) / len(values)
        spread = math.fsum((value - mean) ** 2 for value in values)
        result[name] = mean
        if len(values) > 1:
            result[f"{name}_error"] = math.sqrt(spread / (len(values) - 1) / len(values))
    return result
