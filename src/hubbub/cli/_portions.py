"""Options that say for whom and since when, and groups on a terminal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import tell
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.server.breakdown import Breakdown

by_option = click.option(
    "--by",
    multiple=True,
    metavar="LABEL[,LABEL]",
    help="Estimate every group by itself: by labels of the task, or by period.",
)


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which reports are asked about; the command gets them as `choice`."""

    @click.option("--where", multiple=True, metavar="LABEL=VALUE", help="Only reports with this label.")
    @click.option("--period", help="Only reports of this period: 2026-W46, 2026-11 or 2026-11-18.")
    @click.option("--from", "since", metavar="PERIOD", help="Only reports of this period and later ones.")
    @click.option("--to", "until", metavar="PERIOD", help="Only reports of this period and earlier ones.")
    @functools.wraps(function)
    def with_choice(
        *, where: tuple[str, ...], period: str | None, since: str | None, until: str | None, **options: Any
    ) -> Any:
        from hubbub.server.portions import Choice

        if period is not None and (since is not None or until is not None):
            raise click.UsageError("Give --period, or --from and --to, not both.")
        choice = Choice(pairs(where, "--where LABEL=VALUE"), period or since, period or until)
        return function(choice=choice, **options)

    return with_choice


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Labels by name, from options that each have one or several."""
    return tuple(name.strip() for text in texts for name in text.split(","))


def pairs(texts: Iterable[str], written: str) -> dict[str, str]:
    """What is written NAME=VALUE, by name; each once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise Refused(f"This is written {written}, not {visible(text[:60])!r}.")
        if name in found:
            raise Refused(f"{visible(name)!r} is named twice.")
        found[name] = value
    return found


def show_groups(found: Breakdown, top: int) -> None:
    """All groups in one table, the first rows of each, and what is not shown; warnings have been said already."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.server.breakdown import withheld_words
    from hubbub.server.estimates import MEANINGS, mark_of

    first = next(iter(found))
    table = Table(header_style="bold")
    for name in (*found.names, "key"):
        table.add_column(Text(visible(name)), overflow="fold")
    for name in ("estimate", "± error", f"{100 * first.level:g}% interval"):
        table.add_column(name, justify="right")
    table.add_column("", no_wrap=True)
    for group, one in found.worth_showing(top).groups.items():
        for row in one.rows():
            error = "unknown" if row["error"] is None else f"{row['error']:.4f}"
            table.add_row(
                *(Text(visible(value)) for value in found.labels_of(group).values()),
                Text(visible(row["key"])),
                f"{row['value']:.4f}",
                error,
                f"{row['low']:.4f} .. {row['high']:.4f}",
                mark_of(row),
                style="dim" if row["flagged"] else None,
            )
    if table.row_count:
        together = "; intervals hold for all keys of all groups together" if first.simultaneous else ""
        tell(f"{first.quantity}: {MEANINGS[first.quantity]}{together}")
        Console().print(table)
    for group, one in found.groups.items():
        stands = f" {one.findings.words(one.quantity, one.reports)}" if one.findings.count else ""
        tell(f"{visible(group)}: {one.reports:,} reports.{stands}")
    for line in (*withheld_words(found.withheld), *found.remarks, *found.notes, first.guarantee.words()):
        tell(line)
