"""What commands share: --json, progress bars, writing results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hubbub.collect.store import Store

EXISTING = click.Path(exists=False, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.meta["hubbub.json"] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_remember_json, help="Print one JSON object instead of text."
)


store_option = click.option(
    "--store",
    default="sqlite:///hubbub.db",
    show_default=True,
    envvar="HUBBUB_STORE",
    show_envvar=True,
    help="The store of the service.",
)


@contextmanager
def opened_store(url: str) -> Iterator[Store]:
    """The store of a service, which must be there."""
    from hubbub.primitives.errors import optional

    optional("fastapi", "serve")
    from hubbub.collect.store import Store

    with closing(Store(url, create=False)) as store:
        yield store


settings_option = click.option(
    "--settings",
    type=EXISTING,
    envvar="HUBBUB_SETTINGS",
    show_envvar=True,
    help="A TOML file with limits and timeouts; hubbub serve --show-settings lists them.",
)


def say(as_json: bool, data: dict[str, Any], text: str | Callable[[], None]) -> None:
    """Print `data` for machines or `text` for people."""
    if as_json:
        click.echo(json.dumps(data, default=str))
    elif callable(text):
        text()
    else:
        click.echo(text)


@contextmanager
def progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; silent with --json or when nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(what, total=total)
        yield lambda done: bar.advance(job, done)
