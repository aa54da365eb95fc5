"""The command line. Every module of this package that has a `command` is a command.

Modules import only click at the top, so that `hubbub --help` stays quick; the work is imported when
a command runs. Exit codes: 0 done, 1 refused input (one sentence on stderr), 2 wrong usage.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from typing import Any

import click

from hubbub.primitives.errors import Refused


class _Group(click.Group):
    """Finds commands by looking at the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Refused as problem:
            if "--json" in sys.argv or ctx.meta.get("hubbub.json"):
                click.echo(json.dumps({"error": str(problem)}))
            click.echo(f"hubbub: {problem}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hubbub")
def main() -> None:
    """Learn from many people's sparse vectors without anybody's vector being readable."""
