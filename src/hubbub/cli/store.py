"""hubbub store backup | restore | check | purge"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Group, json_option, say, store_option

_days = click.IntRange(min=1)


@click.group(cls=Group)
def command() -> None:
    """Back up, restore, check and tidy a service's store."""
    from hubbub.primitives.errors import optional

    optional("sqlalchemy", "serve")


@command.command(example="hubbub store backup copy.backup --store sqlite:///hubbub.db")
@click.argument("target", type=OUTPUT)
@store_option
@json_option
def backup(*, target: Path, store: str, as_json: bool) -> None:
    """Copy the store into a new file while the service runs, and check the copy.

    Everything acknowledged before is in it. It holds tokens' digests and the key that opens sealed reports: keep it as
    you keep the store.
    """
    from hubbub.collect.backup import back_up

    found = back_up(store, target)
    say(as_json, {"backup": str(target), **found}, lambda: _show(f"{target} is a sound backup", found))


@command.command(example="hubbub store restore monday.backup --store sqlite:///restored.db")
@click.argument("source", type=EXISTING)
@store_option
@json_option
def restore(*, source: Path, store: str, as_json: bool) -> None:
    """Make a store out of a backup, and check it. The store must be empty, or not there yet."""
    from hubbub.collect.backup import restore as restore_store

    found = restore_store(source, store)
    say(as_json, {"restored": str(source), **found}, lambda: _show(f"{source} is restored", found))


@command.command(example="hubbub store check --store sqlite:///hubbub.db")
@store_option
@json_option
def check(*, store: str, as_json: bool) -> None:
    """Read everything in a store, and say what is not as it was written."""
    from hubbub.collect.backup import check as check_store
    from hubbub.primitives.errors import Refused

    found = check_store(store)
    if found.problems:
        raise Refused(" ".join(found.problems[:10]))
    say(as_json, found.facts(), lambda: _show("the store is sound", found.facts()))


@command.command(example="hubbub store purge --reports 30 --ids 90 --store sqlite:///hubbub.db")
@click.option("--task", "chosen", multiple=True, help="Digest of a task; all tasks if none is named.")
@click.option("--reports", type=_days, metavar="DAYS", help="Drop reports older than this; the state stays.")
@click.option(
    "--ids", type=_days, metavar="DAYS", help="Forget ids of batches made earlier, and refuse such batches."
)
@click.option("--states", type=_days, metavar="DAYS", help="Drop states of periods that ended earlier.")
@click.option(
    "--crowds",
    type=_days,
    metavar="DAYS",
    help="Drop shuffled crowds that began earlier and were never completed.",
)
@store_option
@json_option
def purge(
    *,
    chosen: tuple[str, ...],
    reports: int | None,
    ids: int | None,
    states: int | None,
    crowds: int | None,
    store: str,
    as_json: bool,
) -> None:
    """Forget what is older than so many days, while the service runs. Estimates stay what they are."""
    import datetime
    from contextlib import closing

    import sqlalchemy as sql

    from hubbub.collect.database import tasks
    from hubbub.collect.retention import Horizons
    from hubbub.collect.retention import purge as purge_task
    from hubbub.collect.store import Store
    from hubbub.primitives.errors import Refused

    horizons = Horizons(reports, ids, states, crowds)
    if horizons == Horizons():
        raise Refused("Say what to forget: --reports, --ids, --states or --crowds, with a number of days.")
    now = datetime.datetime.now(datetime.UTC)
    rows: list[dict[str, Any]] = []
    with closing(Store(store, create=False)) as opened:
        with opened.reading() as connection:
            known = connection.execute(sql.select(tasks.c.digest).order_by(tasks.c.digest)).scalars().all()
        for task in chosen or known:
            rows.append({"task": task, **purge_task(opened, task, horizons, now)})

    def show() -> None:
        if not rows:
            click.echo("There is no task in this store, and nothing to forget.")
        for row in rows:
            click.echo(
                f"{row['task']}  {row['reports']:,} reports, {row['ids']:,} ids, {row['states']:,} states and "
                f"{row['crowds']:,} unfinished crowds dropped"
            )

    say(as_json, {"purged": rows}, show)


def _show(line: str, found: dict[str, Any]) -> None:
    click.echo(line)
    for row in found["tasks"]:
        click.echo(f"  {row['task']}  {row['reports']:,} reports in {row['batches']:,} batches")
