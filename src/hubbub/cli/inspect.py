"""hubbub inspect"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, Command, json_option, say, verbose_option

#: Strata that are listed without being asked for.
_STRATA = 20
#: Reports that are unpacked at a time.
_AT_ONCE = 1 << 20


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
    from hubbub.protocol.files import open_file, open_reports, open_states
    from hubbub.protocol.strata import text_of
    from hubbub.protocol.task import Task
    from hubbub.release.artifact import RELEASE, describe

    start = read_file(path, 5)
    if start[:4] != MAGIC:
        task = Task.load(path)
        say(as_json, {"kind": "task", **task_facts(task)}, describe_task(task, verbose=verbose))
        return
    facts: dict[str, Any]
    if start[4:] == RELEASE:
        facts = describe(path)
        say(as_json, {"kind": "release", **facts}, _describe_release(facts, verbose))
        return
    task, envelope = open_file(path)
    facts = {"kind": KINDS[envelope.kind], "count": envelope.count, **task_facts(task, "reports")}
    lines = [f"{path}: {KINDS[envelope.kind]}, {envelope.count:,} reports, checksum is right"]
    if KINDS[envelope.kind].startswith("reports"):
        _, parts = open_reports(path)
        told, layout, number = parts.counts, task.mechanism.layout, 0
        for packed in parts.values():
            for start_at in range(0, len(packed), _AT_ONCE):
                numbers = layout.unpack(packed[start_at : start_at + _AT_ONCE])
                if report is not None and 0 <= report - number < len(numbers):
                    names = [field.name for field in layout.fields]
                    facts["report"] = dict(zip(names, numbers[report - number].tolist(), strict=True))
                number += len(numbers)
        if report is not None:
            if report >= number:
                raise Refused(f"{path} has {number} reports; number {report} is not among them.")
            lines.append(f"report {report}: " + ", ".join(f"{n} {v}" for n, v in facts["report"].items()))
    else:
        told = open_states(path)[1].counts
    counts = {text_of(task, stratum): count for stratum, count in told.items()}
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
