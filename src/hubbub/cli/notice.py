"""hubbub notice"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import EXISTING, Command, json_option, progress, say, steps_shown, tell

if TYPE_CHECKING:
    from hubbub.server.forgeries import Notice


@click.command(cls=Command, example="hubbub notice visits.reports")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--task", "task_file", type=EXISTING, help="Task of Parquet files that do not name it.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    help="Processes for Parquet [default: one per core, for large lakes].",
)
@json_option
def command(*, path: Path, task_file: Path | None, jobs: int | None, as_json: bool) -> None:
    """Test whether reports look forged.

    PATH is a reports file, a Parquet file or a folder of them, or a state file. Honest reports pass, whatever the
    records are: all tests together raise a false alarm at most once in 1,000 collections. Of a state, little can be
    tested. Forgers who follow the protocol on invented records are not noticed, nor are most who lift a single key.
    """
    from hubbub.cli.aggregate import is_lake
    from hubbub.primitives.errors import Refused

    if is_lake(path):
        found = _in_lake(path, task_file, jobs, as_json)
    elif task_file or jobs:
        raise Refused("--task and --jobs are for Parquet; reports and state files name their task.")
    else:
        found = _in_file(path, as_json)
    say(as_json, found.as_dict(), lambda: _show(found))


def _in_file(path: Path, as_json: bool) -> Notice:
    from hubbub.primitives.envelope import KINDS
    from hubbub.protocol.files import load_reports_by, load_state, open_file
    from hubbub.server.evidence import Evidence
    from hubbub.server.fold import aggregate
    from hubbub.server.forgeries import notice, notice_state

    if not KINDS[open_file(path)[1].kind].startswith("reports"):
        return notice_state(*load_state(path))
    task, parts = load_reports_by(path)
    evidence, state = Evidence(task), task.mechanism.empty(task.keys)
    with progress("looking at reports", sum(map(len, parts.values())), as_json) as advance:
        for stratum, packed in parts.items():
            state = aggregate(task, packed, state, progress=advance, evidence=evidence, stratum=stratum)
    return notice(evidence, state)


def _in_lake(path: Path, task_file: Path | None, jobs: int | None, as_json: bool) -> Notice:
    from hubbub.engines.lake import aggregate
    from hubbub.protocol.task import Task
    from hubbub.server.forgeries import notice

    task = Task.load(task_file) if task_file else None
    with steps_shown(as_json) as show:
        found = aggregate([path], task, jobs, progress=show, evidence=True)
    assert found.evidence is not None
    return notice(found.evidence, found.state)


def _show(found: Notice) -> None:
    from rich.console import Console
    from rich.table import Table

    from hubbub.server.forgeries import UNNOTICED

    if found.findings:
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("test")
        table.add_column("what was found", overflow="fold")
        table.add_column("odds if honest", justify="right")
        table.add_column("")
        for test in found.findings:
            verdict = "failed" if test in found.suspicious else "passed"
            table.add_row(test.test.replace("_", " "), test.words, odds_in_words(test.odds), verdict)
        Console().print(table)
    tell(found.words())
    if 0 < found.looked < found.reports:
        tell(f"Looked at one by one: {found.looked:,} of them, chosen by their places.")
    tell(UNNOTICED)


def odds_in_words(odds: float) -> str:
    """At most so likely; what is not surprising at all is not told apart."""
    if odds >= 0.1:
        return "usual"
    return "below 1e-100" if odds < 1e-100 else f"at most {odds:.1g}"
