"""hubbub inspect"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, Command, json_option, say, verbose_option


@click.command(cls=Command, example="hubbub inspect visits.reports --report 0")
@click.argument("path", type=EXISTING)
@click.option("--report", type=click.IntRange(0), help="Show the fields of this report, too.")
@verbose_option
@json_option
def command(*, path: Path, report: int | None, verbose: bool, as_json: bool) -> None:
    """Say what is in a reports, state, release or task file."""
    from hubbub.cli._show import describe_task, task_facts
    from hubbub.primitives.envelope import KINDS, MAGIC, read_file
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import REPORTS, load_reports, load_state, open_file
    from hubbub.protocol.task import Task
    from hubbub.release.artifact import RELEASE, describe

    if not read_file(path).startswith(MAGIC):
        task = Task.load(path)
        say(as_json, {"kind": "task", **task_facts(task)}, describe_task(task, verbose=verbose))
        return
    facts: dict[str, Any]
    if read_file(path)[4:5] == RELEASE:
        facts = describe(path)
        say(as_json, {"kind": "release", **facts}, _describe_release(facts, verbose))
        return
    task, envelope = open_file(path)
    facts = {"kind": KINDS[envelope.kind], "count": envelope.count, **task_facts(task, "reports")}
    lines = [f"{path}: {KINDS[envelope.kind]}, {envelope.count:,} reports, checksum is right"]
    if envelope.kind == REPORTS:
        _, packed = load_reports(path)
        task.mechanism.layout.unpack(packed)
        if report is not None:
            if report >= len(packed):
                raise Refused(f"{path} has {len(packed)} reports; number {report} is not among them.")
            names = [field.name for field in task.mechanism.layout.fields]
            numbers = task.mechanism.layout.unpack(packed[report])[0].tolist()
            facts["report"] = dict(zip(names, numbers, strict=True))
            lines.append(f"report {report}: " + ", ".join(f"{n} {v}" for n, v in facts["report"].items()))
    else:
        load_state(path)
    say(as_json, facts, "\n".join([*lines, describe_task(task, verbose=verbose, noise="reports")]))


def _describe_release(facts: dict[str, Any], verbose: bool) -> str:
    """A release in a few lines; `verbose` adds all that its file says about itself."""
    keys, values = facts["keys"], facts["values"]
    universe = {
        "text": "any text",
        "integers": f"whole numbers below {keys['universe']:,}",
        "listed": f"a list of {keys['universe']:,} keys",
    }[keys["kind"]]
    kind = "whole numbers" if values["kind"] == "counts" else "real numbers"
    least = f"-{values['max_value']:,g}" if values["signed"] else "0"
    lines = [
        f"release    {facts['algorithm']}, {facts['file_bytes']:,} bytes",
        f"estimator  {facts['estimator']}",
        f"keys       {universe}",
        f"values     {kind} from {least} to {values['max_value']:,g}",
    ]
    if facts["users"]:
        users = facts["users"]
        lines.append(
            f"users      at most {users['max_entries']:,} keys each, {users['max_contribution']:g} in a key"
        )
    lines.append(f"guarantee  {facts['guarantee']['words']}")
    return "\n".join([*lines, *([json.dumps(facts, indent=1, default=str)] if verbose else [])])
