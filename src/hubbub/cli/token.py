"""hubbub token new | list | revoke"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, Group, json_option, opened_store, say, store_option

if TYPE_CHECKING:
    from hubbub.collect.tokens import TokenFacts, Tokens


@click.group(cls=Group)
def command() -> None:
    """Make, list and revoke a service's access tokens."""


@command.command(example="hubbub token new analyst --label 'Ada' --store sqlite:///hubbub.db")
@click.argument("role", type=click.Choice(["upload", "analyst", "admin", "shuffler"]))
@click.option("--label", default="", help="Whom or what the token is for.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Refuse it after so many days.")
@click.option(
    "--task", "tasks", type=EXISTING, multiple=True, help="A task file that it is for; repeat it for several."
)
@store_option
@json_option
def new(
    *, role: str, label: str, days: float | None, tasks: tuple[Path, ...], store: str, as_json: bool
) -> None:
    """Make a token and show it, this once.

    upload: send reports. analyst: read estimates. shuffler: send shuffled crowds. admin: everything. Without
    --days it is valid until it is revoked, without --task for all tasks.
    """
    from hubbub.protocol.task import Task

    digests = [Task.load(path).digest.hex() for path in tasks]
    with _tokens(store) as opened:
        token = opened.new(role, label, days, digests)  # type: ignore[arg-type]
        facts = opened.all()[-1]
    end = "" if facts.expires is None else f", until {date_of(facts.expires)}"
    text = f"token {facts.id}, role {role}{end}, shown this once:\n{token}"
    say(as_json, {**_row(facts), "token": token}, text)


@command.command(name="list", example="hubbub token list --store sqlite:///hubbub.db")
@store_option
@json_option
def list_tokens(*, store: str, as_json: bool) -> None:
    """List all tokens: number, role, dates, label and for how many tasks. The tokens themselves are not stored."""
    with _tokens(store) as tokens:
        found = tokens.all()
    rows = [_row(token) for token in found]

    def show() -> None:
        for row in rows:
            end = f"  revoked {row['revoked']}" if row["revoked"] else ""
            end += f"  until {row['expires']}" if row["expires"] and not row["revoked"] else ""
            end += f"  for {len(row['tasks'])} tasks" if row["tasks"] else ""
            click.echo(f"{row['id']:>4}  {row['role']:<8}  {row['created']}{end}  {row['label']}")

    say(as_json, {"tokens": rows}, show)


@command.command(example="hubbub token revoke 1 --store sqlite:///hubbub.db")
@click.argument("number", type=int)
@store_option
@json_option
def revoke(*, number: int, store: str, as_json: bool) -> None:
    """Refuse a token from now on; a running service learns of it within two seconds."""
    with _tokens(store) as tokens:
        tokens.revoke(number)
    say(as_json, {"revoked": number}, f"token {number} is revoked")


@contextmanager
def _tokens(url: str) -> Iterator[Tokens]:
    with opened_store(url) as store:
        from hubbub.collect.tokens import Tokens

        yield Tokens(store)


def _row(token: TokenFacts) -> dict[str, Any]:
    return {
        "id": token.id,
        "role": token.role,
        "label": token.label,
        "created": date_of(token.created),
        "revoked": date_of(token.revoked),
        "expires": date_of(token.expires),
        "tasks": token.tasks,
    }


def date_of(seconds: int | None) -> str | None:
    """A day, by Greenwich's calendar; None if there is none."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
