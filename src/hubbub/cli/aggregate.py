"""hubbub aggregate"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say

if TYPE_CHECKING:
    from hubbub.engines.lake import Lake


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
    interrupted goes on where it was when the same command is given again.
    """
    from hubbub.primitives.envelope import check_ending
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import STATE

    check_ending(output, STATE)
    lakes = {_is_lake(path) for path in reports}
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


def _is_lake(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() == ".parquet"


def _from_reports(reports: tuple[Path, ...], output: Path, as_json: bool) -> None:
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import load_reports, save_state
    from hubbub.server.fold import aggregate

    if len({path.resolve() for path in reports}) < len(reports):
        raise Refused("A reports file is named twice; its reports would count twice.")
    task, first = load_reports(reports[0])
    state = task.mechanism.empty(task.keys)
    with progress("aggregating", len(reports), as_json) as advance:
        for path in reports:
            other, packed = (task, first) if path == reports[0] else load_reports(path)
            if other.digest != task.digest:
                raise Refused(f"{path} belongs to task {other.name!r}, {reports[0]} to {task.name!r}.")
            state = aggregate(task, packed, state)
            advance(1)
    save_state(output, task, state)
    data = {"file": str(output), "reports": state.count, "digest": task.digest.hex()}
    say(as_json, data, f"{state.count:,} reports of task {task.name!r} added up in {output}")


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
    from hubbub.protocol.files import save_state
    from hubbub.protocol.task import Task

    if rejected:
        check_rejected_path(rejected)
    task = Task.load(task_file) if task_file else None
    manifest = output.with_name(f"{output.name}.unfinished")
    with ExitStack() as stack:
        bars: dict[str, Any] = {}

        def show(step: str, more: int, total: int) -> None:
            if step not in bars:
                stack.close()
                bars[step] = stack.enter_context(progress(step, total, as_json))
            bars[step](more)

        found = aggregate(paths, task, jobs, manifest, show)
    if rejected:
        save_rejected(rejected, found.rejected)
    save_state(output, found.task, found.state)
    manifest.unlink(missing_ok=True)
    data = {
        "file": str(output),
        "reports": found.state.count,
        "digest": found.task.digest.hex(),
        "files": found.files,
        "resumed_files": found.resumed,
        "repeated_batches": found.repeated,
        "files_without_batch_ids": len(found.unnamed),
        "rejected": found.reasons,
    }
    say(as_json, data, _words(found, output, rejected))


def _words(found: Lake, output: Path, rejected: Path | None) -> str:
    lines = [
        f"{found.state.count:,} reports of task {found.task.name!r} in {found.files:,} files added up in {output}"
    ]
    if found.resumed:
        lines.append(f"went on after an interrupted run that had counted {found.resumed:,} files")
    if found.repeated:
        lines.append(f"{found.repeated:,} repeated batches counted once")
    if found.unnamed:
        lines.append(f"{len(found.unnamed):,} files have no batch ids: a repeated batch there counts twice")
    for reason, count in found.reasons.items():
        lines.append(f"{count:,} set aside: {reason}")
    if found.reasons:
        lines.append(f"they are listed in {rejected}" if rejected else "--rejected FILE lists them")
    return "\n".join(lines)
