"""hubbub key new | list | retire"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import Group, json_option, opened_store, say, store_option
from hubbub.cli.token import date_of

if TYPE_CHECKING:
    from hubbub.collect.keyring import KeyRing


@click.group(cls=Group)
def command() -> None:
    """Make, list and retire keys that devices seal reports with.

    Only reports that go through a shuffler are sealed.

    To rotate: make a key, ship it with the app, and retire the old one when its reports have stopped to come
    (hubbub_reports_unsealed_total in /metrics).
    """


@command.command(example="hubbub key new --store sqlite:///hubbub.db")
@store_option
@json_option
def new(*, store: str, as_json: bool) -> None:
    """Make a key that is given out from now on; a running service learns of it within two seconds.

    What was sealed for older keys can still be opened, until they are retired.
    """
    with _keys(store) as keys:
        made = keys.new()
    public = made.public.hex()
    say(as_json, {"id": made.id, "key": public}, f"key {made.id}, for devices to seal with:\n{public}")


@command.command(name="list", example="hubbub key list --store sqlite:///hubbub.db")
@store_option
@json_option
def list_keys(*, store: str, as_json: bool) -> None:
    """List all keys: name, when made, what for. Private keys are not shown."""
    with _keys(store) as keys:
        found, current = keys.all(), keys.public
    rows = [
        {
            "id": key.id,
            "key": key.public.hex(),
            "created": date_of(key.created),
            "retired": date_of(key.retired),
            "use": "retired" if key.retired else "seal for this" if key.public == current else "opens",
        }
        for key in found
    ]

    def show() -> None:
        for row in rows:
            dates = f"{row['created'] or '-':<10}  {row['retired'] or '-':<10}"
            click.echo(f"{row['id']}  {dates}  {row['use']}\n  {row['key']}")

    say(as_json, {"keys": rows}, show)


@command.command(example="hubbub key retire KEY --store sqlite:///hubbub.db")
@click.argument("name")
@store_option
@json_option
def retire(*, name: str, store: str, as_json: bool) -> None:
    """Destroy an old private key: what was sealed for it and is still on its way can never be opened."""
    with _keys(store) as keys:
        keys.retire(name)
    say(as_json, {"retired": name}, f"key {name} is destroyed")


@contextmanager
def _keys(url: str) -> Iterator[KeyRing]:
    with opened_store(url) as store:
        from hubbub.collect.keyring import KeyRing

        yield KeyRing(store)
