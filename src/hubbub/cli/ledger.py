"""hubbub ledger show | limit"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Group, json_option, say


@click.group(cls=Group)
def command() -> None:
    """Show what a device has said, and limit what it may say."""


@command.command(example="hubbub ledger show ledger.json")
@click.argument("ledger", type=EXISTING)
@json_option
def show(*, ledger: Path, as_json: bool) -> None:
    """Show what a device has sent, when, and what it cost.

    One line for each time that something new was made, with its period and the day it counts from. What was sent
    again says nothing new and costs nothing. Costs are those of the local model, as if nobody shuffled.
    """
    from hubbub.device.ledger import Ledger

    found = Ledger(ledger).statement()
    say(as_json, found.as_dict(), found.words())


@command.command(example="hubbub ledger limit ledger.json --epsilon 8 --per year")
@click.argument("ledger", type=OUTPUT)
@click.option("--epsilon", type=float, required=True, help="The most that all tasks together may spend.")
@click.option(
    "--per",
    type=click.Choice(["week", "month", "year", "ever"]),
    default="year",
    show_default=True,
    help="In any 7, 30 or 365 days in a row, or in all.",
)
@click.option(
    "--delta",
    type=float,
    default=0.0,
    show_default=True,
    help="Failure probability; with one, many small reports are counted by a tighter rule than adding up.",
)
@json_option
def limit(*, ledger: Path, epsilon: float, per: Any, delta: float, as_json: bool) -> None:
    """Set a budget over all tasks, in place of an earlier one.

    Reports that would exceed it are not made: the device stays silent, whatever its record is. What was made
    before counts, too. A ledger that is not there yet is begun.
    """
    from hubbub.device.budget import Budget
    from hubbub.device.ledger import Ledger

    kept = Ledger(ledger)
    kept.limit(Budget(epsilon, per, delta))
    found = kept.statement()
    say(as_json, found.as_dict(), found.words())
