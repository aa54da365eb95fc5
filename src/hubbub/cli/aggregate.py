"""hubbub aggregate"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, steps_shown

if TYPE_CHECKING:
    from hubbub.engines.lake import Lake
    from hubbub.model.state import State
    from hubbub.protocol.strata import Stratum


@click.command(cls=Command, example="hubbub aggregate visits.reports -o visits.state")
@click.argument("reports", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, required=True, help="State file to write.")
@click.option("--task", "task_file", type=EXISTING, help="Task of Parquet files that do not name it.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    help="Processes for Parquet [default: one per core, for large lakes].",
)
@click.option(
    "--rejected", type=OUTPUT, help="List what was not counted, and why, in a .csv or .parquet file."
)
@json_option
def command(
    *,
    reports: tuple[Path, ...],
    output: Path,
    task_file: Path | None,
    jobs: int | None,
    rejected: Path | None,
    as_json: bool,
) -> None:
    """Add up reports into one state file.

    REPORTS are reports files, or Parquet files and folders of them. Reports files count as a whole or not at all. In
    Parquet, what is not a report is set aside, and a batch that is there twice counts once. A run over Parquet that was
    interrupted goes on where it was when the same command is given again. Reports with labels or periods are added up
    apart, by stratum.
    """
    from hubbub.primitives.envelope import check_ending
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import STATE

    check_ending(output, STATE)
    lakes = {is_lake(path) for path in reports}
    if len(lakes) > 1:
        raise Refused("Reports files and Parquet do not mix; aggregate them apart, then use hubbub merge.")
    if lakes == {True}:
        _from_lake(reports, output, task_file, jobs, rejected, as_json)
    elif task_file or jobs or rejected:
        raise Refused(
            "--task, --jobs and --rejected are for Parquet; reports files name their task and count as a whole."
        )
    else:
        _from_reports(reports, output, as_json)


def is_lake(path: Path) -> bool:
    """Whether this is a Parquet file or a folder, perhaps of them."""
    return path.is_dir() or path.suffix.lower() == ".parquet"


def _from_reports(reports: tuple[Path, ...], output: Path, as_json: bool) -> None:
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import ByStratum, open_alike, open_reports, save_kept_apart
    from hubbub.server.fold import aggregate

    if len({path.resolve() for path in reports}) < len(reports):
        raise Refused("A reports file is named twice; its reports would count twice.")
    task, opened, counts = open_alike(reports, open_reports)
    with progress("aggregating", len(counts), as_json) as advance:

        def added_up(stratum: Stratum) -> State:
            state = None
            for parts in opened:
                if stratum in parts:
                    state = aggregate(task, parts[stratum], state)
            advance(1)
            return state or task.mechanism.empty(task.keys)

        states = ByStratum(counts, added_up)
        save_kept_apart(output, task, states)
    count = counts.total()
    data = {"file": str(output), "reports": count, "digest": task.digest.hex(), "strata": len(states)}
    say(as_json, data, f"{count:,} reports of task {task.name!r} added up in {output}{_apart(states)}")


def _apart(states: Mapping[Stratum, State]) -> str:
    return f", {len(states):,} strata apart" if len(states) > 1 else ""


def _from_lake(
    paths: tuple[Path, ...],
    output: Path,
    task_file: Path | None,
    jobs: int | None,
    rejected: Path | None,
    as_json: bool,
) -> None:
    from hubbub.engines.arrow import check_rejected_path, save_rejected
    from hubbub.engines.lake import aggregate
    from hubbub.protocol.files import save_kept_apart
    from hubbub.protocol.task import Task

    if rejected:
        check_rejected_path(rejected)
    task = Task.load(task_file) if task_file else None
    manifest = output.with_name(f"{output.name}.unfinished")
    with steps_shown(as_json) as show:
        found = aggregate(paths, task, jobs, manifest, show)
    if rejected:
        save_rejected(rejected, found.rejected)
    save_kept_apart(output, found.task, found.states)
    for path in found.kept:
        path.unlink(missing_ok=True)
    data = {
        "file": str(output),
        "reports": found.count,
        "digest": found.task.digest.hex(),
        "strata": len(found.states),
        "files": found.files,
        "resumed_files": found.resumed,
        "repeated_batches": found.repeated,
        "files_without_batch_ids": len(found.unnamed),
        "rejected": {reason: size.rows or size.reports for reason, size in found.reasons.items()},
        "rejected_reports": {reason: size.reports for reason, size in found.reasons.items()},
    }
    say(as_json, data, _words(found, output, rejected))


def _words(found: Lake, output: Path, rejected: Path | None) -> str:
    lines = [
        f"{found.count:,} reports of task {found.task.name!r} in {found.files:,} files added up in {output}"
        f"{_apart(found.states)}"
    ]
    if found.resumed:
        lines.append(f"went on after an interrupted run that had counted {found.resumed:,} files")
    if found.repeated:
        lines.append(f"{found.repeated:,} repeated batches counted once")
    if found.unnamed:
        lines.append(f"{len(found.unnamed):,} files have no batch ids: a repeated batch there counts twice")
    for reason, size in found.reasons.items():
        lines.append(f"{size.words()} set aside: {reason}")
    if found.reasons:
        lines.append(f"they are listed in {rejected}" if rejected else "--rejected FILE lists them")
    return "\n".join(lines)
