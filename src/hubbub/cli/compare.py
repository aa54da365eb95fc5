"""hubbub compare"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import ESTIMATES, EXISTING, Command, json_option, say, tell
from hubbub.cli._portions import choice_options, pairs
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.task import Task
    from hubbub.server.comparison import Comparison
    from hubbub.server.portions import Choice


@click.command(cls=Command, example="hubbub compare monday.state tuesday.state home search")
@click.argument("first", type=EXISTING)
@click.argument("second", required=False)
@click.argument("keys", nargs=-1)
@click.option(
    "--compare",
    "groups",
    metavar="LABEL=VALUE,VALUE",
    help="Compare groups of one state: country=de,fr or period=2026-W45,2026-W46; of several, each with the first.",
)
@choice_options
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
    second: str | None,
    keys: tuple[str, ...],
    groups: str | None,
    choice: Choice,
    keys_from: Path | None,
    top: int,
    quantity: Any,
    interval: float,
    simultaneous: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare two states or groups, key by key, with error bars.

    Differences are SECOND less FIRST. A key counts as different only if it is when all keys are looked at together.
    Without KEYS, all keys of a closed vocabulary are compared.

    With --compare there is one state, and what comes after it are KEYS. --where, --period, --from and --to say which
    reports of the states are looked at.
    """
    if groups is not None and second is not None:
        keys = (second, *keys)
    if keys and keys_from is not None:
        raise click.UsageError("Name keys, or a file of keys with --keys-from, not both.")
    if groups is None and second is None:
        raise click.UsageError("Name two states, or groups of one with --compare.")
    from hubbub.protocol.files import open_states
    from hubbub.server.breakdown import compare_groups
    from hubbub.server.comparison import compare, save_comparisons
    from hubbub.tables.counts import read_vocabulary

    options = (
        list(keys) or None if keys_from is None else read_vocabulary(keys_from),
        quantity,
        interval,
        simultaneous,
    )
    if groups is not None:
        ((name, values),) = pairs([groups], "--compare LABEL=VALUE,VALUE").items()
        task, states = open_states(first)
        several = compare_groups(task, states, name, values.split(","), *options, choice=choice)
    else:
        assert second is not None
        paths = (first, EXISTING.convert(second, None, None))
        one, two = (_side(path, choice) for path in paths)
        found = compare(one, two, *options, sides=(paths[0].name, paths[1].name))
        several = [replace(found, group=choice.words())]
    if output is not None:
        save_comparisons(output, several)
    data = []
    for found in several:
        rows = found.top(top).rows()
        data.append({**found.about(), "differences": rows, "shown": len(rows), "total": len(found)})
    plain = data[0] if len(data) == 1 else {"comparisons": data}

    def show() -> None:
        for found in several:
            _show(found, top)

    say(as_json, {**plain, "file": str(output) if output else None}, show)


def _side(path: Path, choice: Choice) -> tuple[Task, State]:
    """What is looked at of a state file."""
    from hubbub.protocol.files import open_states
    from hubbub.server.portions import chosen_strata, sum_of

    task, states = open_states(path)
    return task, sum_of(task, states, chosen_strata(task, states, choice))


def _show(found: Comparison, top: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.cli._show import show_warnings
    from hubbub.server.estimates import MEANINGS

    show_warnings(found)
    if found.count:
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
