"""hubbub mechanisms"""

from __future__ import annotations

import click

from hubbub.cli._common import json_option, say


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the mechanisms and their parameters."""
    from hubbub.mechanism import mechanisms

    found = {
        name: {
            "summary": kind.summary,
            "parameters": {field: info.description for field, info in kind.model_fields.items()},
        }
        for name, kind in mechanisms().items()
    }
    lines = []
    for name, facts in found.items():
        lines.append(f"{name}: {facts['summary']}")
        lines += [f"    {field:<12} {text}" for field, text in dict(facts["parameters"]).items()]  # type: ignore[call-overload]
    say(as_json, {"mechanisms": found}, "\n".join(lines))
