"""hubbub compare"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import ESTIMATES, EXISTING, Command, json_option, say, tell
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.server.comparison import Comparison


@click.command(cls=Command, example="hubbub compare monday.state tuesday.state home search")
@click.argument("first", type=EXISTING)
@click.argument("second", type=EXISTING)
@click.argument("keys", nargs=-1)
@click.option("--keys-from", type=EXISTING, help="File with the keys to compare, one per line.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional"]),
    help="What to compare [default: what the mechanism offers first].",
)
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--simultaneous", is_flag=True, help="Intervals that hold for all asked keys together.")
@click.option("-o", "--output", type=ESTIMATES, help="Write all rows to .csv, .json or .parquet.")
@json_option
def command(
    *,
    first: Path,
    second: Path,
    keys: tuple[str, ...],
    keys_from: Path | None,
    top: int,
    quantity: Any,
    interval: float,
    simultaneous: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare two states, key by key, with error bars.

    Differences are SECOND less FIRST. A key counts as different only if it is when all keys are looked at together.
    Without KEYS, all keys of a closed vocabulary are compared.
    """
    if keys and keys_from is not None:
        raise click.UsageError("Name keys, or a file of keys with --keys-from, not both.")
    from hubbub.protocol.files import load_state
    from hubbub.server.comparison import compare
    from hubbub.tables.counts import read_vocabulary

    asked = list(keys) or None if keys_from is None else read_vocabulary(keys_from)
    found = compare(
        load_state(first),
        load_state(second),
        asked,
        quantity,
        interval,
        simultaneous,
        sides=(first.name, second.name),
    )
    if output is not None:
        found.save(output)
    rows = found.top(top).rows()
    data = {**found.about(), "differences": rows, "shown": len(rows), "total": len(found)}
    say(as_json, {**data, "file": str(output) if output else None}, lambda: _show(found, top))


def _show(found: Comparison, top: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.server.estimates import MEANINGS

    tell(found.words())
    best = found.worth_showing(top)
    if len(best):
        together = "; intervals hold for all keys together" if found.simultaneous else ""
        tell(f"{found.quantity}: {MEANINGS[found.quantity]}{together}")
        table = Table(header_style="bold")
        table.add_column("key", overflow="fold")
        for name in (*found.sides, "difference", f"{100 * found.level:g}% interval"):
            table.add_column(name, justify="right", overflow="fold")
        table.add_column("")
        for row in best.rows():
            mark, style = ("", None) if row["differs"] else ("cannot be told apart", "dim")
            unknown = row["error"] is None
            numbers = (
                f"{row['first']:.4f}",
                f"{row['second']:.4f}",
                "unknown" if unknown else f"{row['difference']:+.4f} ± {row['error']:.4f}",
                "" if unknown else f"{row['low']:+.4f} .. {row['high']:+.4f}",
            )
            table.add_row(Text(visible(row["key"])), *numbers, mark, style=style)
        Console().print(table)
        if len(found) > len(best):
            tell(f"{len(found) - len(best):,} more keys.")
    for note in found.notes:
        tell(note)
    tell(f"From {found.reports[0]:,} and {found.reports[1]:,} reports. {found.guarantee.words()}")
