"""The command line. Every module of this package that has a `command` is a command.

Modules import only click at the top, so that `hubbub --help` stays quick; the work is imported when
a command runs. Exit codes: 0 done, 1 refused input (one sentence on stderr), 2 wrong usage, 130 interrupted (Ctrl-C).
With --json among the arguments, what went wrong is also one JSON object on stdout, whatever the code.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from hubbub.cli._common import Group
from hubbub.primitives.errors import Refused

#: Commands by what they are for, in the order in which one meets them.
_SECTIONS = {
    "Learn what it does": ("demo", "run", "mechanisms", "reproduce"),
    "Collect in the local model": (
        "task",
        "privatize",
        "aggregate",
        "merge",
        "estimate",
        "compare",
        "discover",
        "inspect",
        "notice",
    ),
    "Plan and check": ("plan", "simulate", "audit", "amplify", "rounds", "ledger"),
    "Publish in the central model": ("release", "query"),
    "Run a service": ("serve", "token", "key", "store", "shuffler"),
}
_INTERRUPTED = 130


class _Main(Group):
    """Finds commands by looking at the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in _SECTIONS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        widest = max(map(len, self.list_commands(ctx)))
        for title, names in {**_SECTIONS, "Other": others}.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name.ljust(widest), command.get_short_help_str(formatter.width))
                for name, command in commands
                if command
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        as_json = "--json" in (sys.argv[1:] if args is None else args)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except Refused as problem:
            _print_error(as_json, str(problem), f"hubbub: {problem}")
            code = 1
        except click.ClickException as problem:
            _print_error(as_json, problem.format_message())
            problem.show()
            code = problem.exit_code
        except click.Abort:
            _print_error(as_json, "Interrupted.", "hubbub: Interrupted.")
            code = _INTERRUPTED
        sys.exit(code)


def _print_error(as_json: bool, message: str, line: str | None = None) -> None:
    if as_json:
        click.echo(json.dumps({"error": message}))
    if line is not None:
        click.echo(line, err=True)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hubbub")
def main() -> None:
    """Learn from many people's sparse vectors without anybody's vector being readable.

    hubbub COMMAND --help says more about a command, with an example.
    """
