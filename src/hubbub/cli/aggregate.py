"""hubbub aggregate"""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, progress, say


@click.command()
@click.argument("reports", type=EXISTING, nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, required=True, help="State file to write.")
@json_option
def command(reports: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Add up reports files into one state file."""
    from hubbub.errors import Refused
    from hubbub.files import load_reports, save_state
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
