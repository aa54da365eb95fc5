"""hubbub token new | list | revoke"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import json_option, say

if TYPE_CHECKING:
    from hubbub.collect.tokens import Tokens

_store_option = click.option(
    "--store",
    default="sqlite:///hubbub.db",
    show_default=True,
    envvar="HUBBUB_STORE",
    show_envvar=True,
    help="The store of the service.",
)


@click.group()
def command() -> None:
    """Make, list and revoke the tokens of a collection service."""


@command.command()
@click.argument("role", type=click.Choice(["upload", "analyst", "admin", "shuffler"]))
@click.option("--label", default="", help="Whom or what the token is for.")
@_store_option
@json_option
def new(*, role: str, label: str, store: str, as_json: bool) -> None:
    """Make a token and show it, this once.

    upload: send reports. analyst: read estimates. shuffler: send shuffled crowds. admin: everything.
    """
    with _opened(store) as tokens:
        token = tokens.new(role, label)  # type: ignore[arg-type]
        number = tokens.all()[-1].id
    text = f"token {number}, role {role}, shown this once:\n{token}"
    say(as_json, {"id": number, "role": role, "label": label, "token": token}, text)


@command.command(name="list")
@_store_option
@json_option
def list_tokens(*, store: str, as_json: bool) -> None:
    """List all tokens: number, role, label, when made and revoked. The tokens themselves are not stored."""
    with _opened(store) as tokens:
        found = tokens.all()
    rows = [
        {
            "id": token.id,
            "role": token.role,
            "label": token.label,
            "created": _day(token.created),
            "revoked": None if token.revoked is None else _day(token.revoked),
        }
        for token in found
    ]

    def show() -> None:
        for row in rows:
            end = f"  revoked {row['revoked']}" if row["revoked"] else ""
            click.echo(f"{row['id']:>4}  {row['role']:<8}  {row['created']}{end}  {row['label']}")

    say(as_json, {"tokens": rows}, show)


@command.command()
@click.argument("number", type=int)
@_store_option
@json_option
def revoke(*, number: int, store: str, as_json: bool) -> None:
    """Refuse a token from now on; a running service learns of it within two seconds."""
    with _opened(store) as tokens:
        tokens.revoke(number)
    say(as_json, {"revoked": number}, f"token {number} is revoked")


@contextmanager
def _opened(url: str) -> Iterator[Tokens]:
    from hubbub.primitives.errors import optional

    optional("fastapi", "serve")
    from hubbub.collect.store import Store
    from hubbub.collect.tokens import Tokens

    with closing(Store(url, create=False)) as store:
        yield Tokens(store)


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
