"""hubbub discover"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, tell
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.server.discovery import Discovery


@click.command(cls=Command, example="hubbub discover words.state --false-finds 0.05 -o words.csv")
@click.argument("state", type=EXISTING)
@click.option(
    "--false-finds",
    type=float,
    default=0.05,
    show_default=True,
    help="Largest expected share of found keys that nobody holds.",
)
@click.option("--allow", type=EXISTING, help="File with the only keys that may be found, one per line.")
@click.option("--deny", type=EXISTING, help="File with known keys, one per line: neither shown nor searched.")
@click.option("--prefix", default="", help="Find keys that begin like this.")
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional", "sum"]),
    help="What to estimate of found keys [default: what the mechanism offers first].",
)
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=OUTPUT, help="Write all rows to .csv or .json.")
@click.option(
    "--next", "following", type=OUTPUT, help="Write the task of a next round: how keys go on that were cut."
)
@json_option
def command(
    *,
    state: Path,
    false_finds: float,
    allow: Path | None,
    deny: Path | None,
    prefix: str,
    quantity: Any,
    interval: float,
    top: int,
    output: Path | None,
    following: Path | None,
    as_json: bool,
) -> None:
    """Find popular keys that nobody has listed, in a state file.

    The task's keys must be a tree; hubbub plan --discover writes such a task, and says how popular a key must be. Known
    keys can be named with --deny, and are then not shown again.
    """
    from hubbub.cli._show import show_warnings
    from hubbub.plan.prospects import next_round
    from hubbub.protocol.files import load_state
    from hubbub.server.discovery import discover
    from hubbub.tables.counts import read_vocabulary

    check_ending(output)
    task, loaded = load_state(state)
    with progress("searching", None, as_json) as advance:
        found = discover(
            task,
            loaded,
            false_finds=false_finds,
            level=interval,
            quantity=quantity,
            allow=None if allow is None else read_vocabulary(allow),
            deny=None if deny is None else read_vocabulary(deny),
            prefix=prefix,
            progress=advance,
        )
    task_ahead = None if following is None else next_round(found)
    if output is not None:
        found.save(output)
    if following is not None and task_ahead is not None:
        task_ahead.save(following)
    data = {**found.about(), "keys": found.rows(top), "shown": min(top, len(found)), "total": len(found)}
    data |= {"file": str(output) if output else None, "next": str(following) if following else None}

    def tell_all() -> None:
        show_warnings(found)
        show(found, top, output)
        if following is not None:
            tell(
                f"Task of the next round, which asks how {int(found.cut.sum()):,} cut keys go on: {following}"
            )

    say(as_json, data, tell_all)


def check_ending(output: Path | None) -> None:
    """Refuse a file whose name says nothing, before any work."""
    if output is not None and output.suffix.lower() not in (".csv", ".json"):
        raise Refused(f"{output}: found keys are written to a name that ends in .csv or .json.")


def show(found: Discovery, top: int, output: Path | None = None) -> None:
    """The found keys on a terminal, and how they were found; warnings have been said already."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.server.estimates import MEANINGS

    estimate = found.estimate
    if len(found):
        tell(found.words())
        tell(f"{estimate.quantity}: {MEANINGS[estimate.quantity]}")
        table = Table(header_style="bold")
        table.add_column("key", overflow="fold")
        for name in ("estimate", "± error", f"{100 * estimate.level:g}% interval"):
            table.add_column(name, justify="right")
        for row in found.rows(top):
            error = "unknown" if row["error"] is None else f"{row['error']:.4f}"
            table.add_row(
                Text(visible(row["key"])),
                f"{row['value']:.4f}",
                error,
                f"{row['low']:.4f} .. {row['high']:.4f}",
            )
        Console().print(table)
        if len(found) > top:
            tell(f"{len(found) - top:,} more keys.")
    for look in found.looks:
        tell(
            f"  first {look.symbols} symbols: {look.reports:,} reports, {look.candidates:,} candidates, "
            f"{look.kept:,} kept"
        )
    if found.cut.any():
        tell("Keys that end in … are beginnings: longer keys were cut there on the devices.")
    for note in estimate.notes:
        tell(note)
    tell(f"From {estimate.reports:,} reports. {estimate.guarantee.words()}")
    if output is not None:
        tell(f"All {len(found):,} keys written to {output}")
