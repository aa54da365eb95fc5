"""hubbub mechanisms"""

from __future__ import annotations

import click

from hubbub.cli._common import json_option, say


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """List the mechanisms and their parameters."""
    from hubbub.mechanisms.registry import mechanisms

    kinds = mechanisms()
    found = {
        name: {
            "summary": kind.summary,
            "parameters": {field: info.description for field, info in kind.model_fields.items()},
        }
        for name, kind in kinds.items()
    }
    lines = []
    for name, facts in found.items():
        lines.append(f"{name}: {facts['summary']}")
        lines += [f"    {field:<12} {info.description}" for field, info in kinds[name].model_fields.items()]
    say(as_json, {"mechanisms": found}, "\n".join(lines))
