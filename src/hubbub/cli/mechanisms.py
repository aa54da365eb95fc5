"""hubbub mechanisms"""

from __future__ import annotations

import click

from hubbub.cli._common import Command, json_option, say, verbose_option


@click.command(cls=Command, example="hubbub mechanisms --verbose")
@verbose_option
@json_option
def command(*, verbose: bool, as_json: bool) -> None:
    """List the mechanisms, with --verbose also their parameters."""
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
        lines.append(f"{name:<15}  {facts['summary']}")
        if verbose:
            lines += [
                f"    {field:<15}  {info.description}" for field, info in kinds[name].model_fields.items()
            ]
    if not verbose:
        lines.append("--verbose lists their parameters, which --set NAME=VALUE sets.")
    say(as_json, {"mechanisms": found}, "\n".join(lines))
