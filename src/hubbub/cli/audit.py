"""hubbub audit"""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import EXISTING, Command, json_option, progress, say


@click.command(cls=Command, example="hubbub audit task.toml --samples 2000")
@click.argument("task", type=EXISTING)
@click.option("--samples", type=int, help="Reports per record of a pair (left out: as many as take seconds).")
@click.option(
    "--confidence", type=float, default=0.999999, show_default=True, help="Of the sampled lower bound."
)
@click.option("--exact/--no-exact", default=True, show_default=True, help="Enumerate small instances, too.")
@json_option
def command(*, task: Path, samples: int | None, confidence: float, exact: bool, as_json: bool) -> None:
    """Check a task's privacy claim by running its mechanism.

    Small instances are enumerated, which is exact. The task itself is sampled at its real size.

    Exit code 1 if the claim is refuted.
    """
    from hubbub.checks.audit import audit, reports_drawn
    from hubbub.protocol.task import Task

    loaded = Task.load(task)
    with progress("auditing", reports_drawn(loaded, samples), as_json) as advance:
        found = audit(loaded, samples, confidence, exact, progress=advance)
    say(as_json, found.as_dict(), found.words())
    if found.refuted:
        click.echo("hubbub: The task's privacy claim does not hold.", err=True)
        click.get_current_context().exit(1)
