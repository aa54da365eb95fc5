"""hubbub serve"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say, settings_option, tell
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.collect.tokens import Tokens


@click.command(cls=Command, example="hubbub serve task.toml --store sqlite:///hubbub.db --port 0")
@click.argument("tasks", type=EXISTING, nargs=-1)
@click.option(
    "--store",
    default="sqlite:///hubbub.db",
    show_default=True,
    envvar="HUBBUB_STORE",
    show_envvar=True,
    help="Where reports are kept: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="More than one needs PostgreSQL.",
)
@click.option(
    "--first-tokens",
    type=OUTPUT,
    envvar="HUBBUB_FIRST_TOKENS",
    help="Write the tokens that are made for a fresh store to this new file, which only its owner can read, and do not "
    "show them [env: HUBBUB_FIRST_TOKENS; default: hubbub-tokens.json unless this is a terminal].",
)
@settings_option
@click.option("--show-settings", is_flag=True, help="Print all settings and where they come from, and end.")
@click.option("--demo", is_flag=True, help="Make up a task and a crowd of devices, and collect from them.")
@json_option
def command(
    *,
    tasks: tuple[Path, ...],
    store: str,
    host: str,
    port: int,
    processes: int,
    first_tokens: Path | None,
    settings: Path | None,
    show_settings: bool,
    demo: bool,
    as_json: bool,
) -> None:
    """Collect reports over HTTP; show estimates on a dashboard.

    On a fresh store it makes an upload token for devices and an analyst token for you, and shows them once on a
    terminal or with --json; what is written elsewhere may be kept as a log, so there they go to a file.
    """
    from hubbub.collect.settings import Settings, load_settings
    from hubbub.primitives.errors import optional

    chosen, sources = load_settings(settings)
    if show_settings:
        rows = {
            name: {"value": getattr(chosen, name), "source": sources[name], "meaning": field.description}
            for name, field in Settings.model_fields.items()
        }
        say(as_json, {"settings": rows}, lambda: _show_settings(rows))
        return
    optional("fastapi", "serve")
    if demo:
        from hubbub.collect.showcase import run_demo

        if tasks:
            raise Refused("The demo makes up its own task; leave out the task files.")
        run_demo(host, port, lambda data, text: say(as_json, data, text))
        return
    if not tasks:
        raise Refused("Name the task files to collect for, or try --demo.")
    from hubbub.collect.lifetimes import check_retention
    from hubbub.collect.serving import Plan, address, listen, run, run_many
    from hubbub.collect.store import Store
    from hubbub.collect.tokens import Tokens
    from hubbub.protocol.task import Task

    plan = Plan(store, [Task.load(path) for path in tasks], chosen)
    if len({task.digest for task in plan.tasks}) < len(tasks):
        raise Refused("A task is named twice.")
    for task in plan.tasks:  # before anything is written or said
        check_retention(task, chosen.retention)
    if first_tokens is None and not as_json and not sys.stdout.isatty():
        first_tokens = Path("hubbub-tokens.json")
    with ExitStack() as stack:
        with closing(Store(store)) as opened:
            if processes > 1 and opened.embedded:
                raise Refused("Several processes need PostgreSQL: --store postgresql://...")
            sock = stack.enter_context(listen(host, port))  # before tokens are made that nobody would see
            fresh, written = _first_tokens(Tokens(opened), first_tokens)
        data: dict[str, Any] = {
            "address": address(sock),
            "tasks": [{"name": task.name, "digest": task.digest.hex()} for task in plan.tasks],
            "tokens": fresh,
            "tokens_file": written,
        }
        say(as_json, data, lambda: _show(data))
        run(plan, sock) if processes == 1 else run_many(plan, sock, processes)


def _show_settings(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        tell(f"{name:<20}  {row['value']} [{row['source']}]\n  {row['meaning']}")
    tell("Set them in a TOML file (--settings) or as HUBBUB_NAME; a change needs a restart.")


def _first_tokens(tokens: Tokens, path: Path | None) -> tuple[dict[str, str], str | None]:
    """An upload and an analyst token if the store has no tokens at all yet, to be shown, or the file they are in.

    The file is there before the tokens are: nobody has tokens that nobody knows.
    """
    if tokens.all():
        return {}, None
    label = "made at first start"
    if path is None:
        return {role: tokens.new(role, label) for role in ("upload", "analyst")}, None
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as problem:
        raise Refused(
            f"The first tokens cannot be written to a new file {path}: {problem.strerror or problem}."
        ) from None
    made: dict[str, str] = {}
    with open(handle, "w", encoding="utf-8") as file:
        try:
            for role in ("upload", "analyst"):
                made[role] = tokens.new(role, label)
        finally:  # what was made is known, and a file with nothing in it stops no later start
            if made:
                file.write(json.dumps(made) + "\n")
                file.flush()
                os.fsync(file.fileno())
            else:
                path.unlink()
    return {}, str(path)


def _show(data: dict[str, Any]) -> None:
    for task in data["tasks"]:
        click.echo(f"task       {task['name']} ({task['digest']})")
    click.echo(f"address    {data['address']}")
    if data["tokens"]:
        click.echo("tokens     shown this once; hubbub token makes more")
        click.echo(f"  devices  {data['tokens']['upload']}")
        click.echo(f"  you      {data['tokens']['analyst']}")
        click.echo(f"dashboard  {data['address']}/login#{data['tokens']['analyst']}")
    else:
        if data["tokens_file"]:
            tell(
                f"tokens     in {data['tokens_file']}, which only its owner can read; hubbub token makes more"
            )
        click.echo(f"dashboard  {data['address']}/")
    click.echo("Ctrl-C ends it; everything acknowledged is on disk.")
