"""hubbub audit"""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import EXISTING, json_option, progress, say


@click.command()
@click.argument("task", type=EXISTING)
@click.option("--samples", type=int, default=200_000, show_default=True, help="Reports per record of a pair.")
@click.option(
    "--confidence", type=float, default=0.999999, show_default=True, help="Of the sampled lower bound."
)
@click.option("--exact/--no-exact", default=True, show_default=True, help="Enumerate a small instance, too.")
@json_option
def command(*, task: Path, samples: int, confidence: float, exact: bool, as_json: bool) -> None:
    """Check a task's privacy claim by running what ships: by enumeration, and by sampling at real size.

    Exit code 1 if the claim is refuted.
    """
    from hubbub.checks.audit import exact_audit, sampled_audit
    from hubbub.protocol.task import Task

    loaded = Task.load(task)
    findings = []
    with progress("auditing", 18 * samples, as_json) as advance:
        if exact:
            findings.append(exact_audit(loaded))
        findings.append(sampled_audit(loaded, samples, confidence, progress=advance))
    data = {"findings": [f.as_dict() for f in findings], "refuted": any(f.refuted for f in findings)}
    say(as_json, data, "\n\n".join(f"{f.kind.capitalize()}: {f.words()}" for f in findings))
    if data["refuted"]:
        click.echo("hubbub: The task's privacy claim does not hold.", err=True)
        click.get_current_context().exit(1)
