"""hubbub inspect"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, Command, json_option, say, verbose_option

#: Strata that are listed without being asked for.
_STRATA = 20


@click.command(cls=Command, example="hubbub inspect visits.reports --report 0")
@click.argument("path", type=EXISTING)
@click.option("--report", type=click.IntRange(0), help="Show the fields of this report, too.")
@verbose_option
@json_option
def command(*, path: Path, report: int | None, verbose: bool, as_json: bool) -> None:
    """Say what is in a reports, state, release or task file."""
    import numpy as np

    from hubbub.cli._show import describe_task, task_facts
    from hubbub.primitives.envelope import KINDS, MAGIC, read_file
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import load_reports_by, open_file, open_states
    from hubbub.protocol.strata import text_of
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
    if KINDS[envelope.kind].startswith("reports"):
        _, parts = load_reports_by(path)
        packed = np.concatenate(list(parts.values())) if parts else np.zeros((0, 1), dtype=np.uint8)
        task.mechanism.layout.unpack(packed)
        counts = {text_of(task, stratum): len(part) for stratum, part in parts.items()}
        if report is not None:
            if report >= len(packed):
                raise Refused(f"{path} has {len(packed)} reports; number {report} is not among them.")
            names = [field.name for field in task.mechanism.layout.fields]
            numbers = task.mechanism.layout.unpack(packed[report])[0].tolist()
            facts["report"] = dict(zip(names, numbers, strict=True))
            lines.append(f"report {report}: " + ", ".join(f"{n} {v}" for n, v in facts["report"].items()))
    else:
        _, states = open_states(path)
        counts = {text_of(task, stratum): state.count for stratum, state in states.items()}
    if set(counts) != {""}:
        facts["strata"] = counts
        lines.append(_strata_words(counts, verbose))
    say(as_json, facts, "\n".join([*lines, describe_task(task, verbose=verbose, noise="reports")]))


def _strata_words(counts: dict[str, int], verbose: bool) -> str:
    """How many strata there are, and the largest of them; `verbose` lists all."""
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = listed if verbose else listed[:_STRATA]
    lines = [f"strata     {len(counts):,}, with reports each:"]
    lines += [f"           {count:>12,}  {text or 'nothing told'}" for text, count in shown]
    if len(shown) < len(listed):
        lines.append(f"           {len(listed) - len(shown):,} more (--verbose lists all)")
    return "\n".join(lines)


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
