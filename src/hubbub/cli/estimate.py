"""hubbub estimate"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, say


@click.command()
@click.argument("state", type=EXISTING)
@click.option("--keys", "asked", help="Keys to ask for, separated by commas, or @FILE with one per line.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("--estimate", "quantity", type=click.Choice(["frequency", "mean", "conditional", "sum"]))
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--simultaneous", is_flag=True, help="Intervals that hold for all asked keys together.")
@click.option(
    "--refine",
    type=click.Choice(["none", "sparse", "simplex"]),
    help="Better on average, but biased: keys in the noise are 0, or shares add up. "
    "[default: sparse for compressive, none for all others]",
)
@click.option(
    "--correct",
    is_flag=True,
    help="Correct for entries that were dropped, as if short and long records held a key alike (count_lengths).",
)
@click.option("-o", "--output", type=OUTPUT, help="Write all rows to .csv, .json or .parquet.")
@json_option
def command(
    *,
    state: Path,
    asked: str | None,
    top: int,
    quantity: Any,
    interval: float,
    simultaneous: bool,
    refine: Any,
    correct: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Estimates with error bars from a state file."""
    from hubbub.cli._show import show_estimate, show_warnings
    from hubbub.plan.advice import advised
    from hubbub.protocol.files import load_state
    from hubbub.server.estimates import estimate
    from hubbub.tables.counts import read_vocabulary

    task, loaded = load_state(state)
    keys = None
    if asked is not None:
        keys = read_vocabulary(Path(asked[1:])) if asked.startswith("@") else asked.split(",")
    result = advised(
        task, estimate(task, loaded, keys, quantity, interval, simultaneous, refine, correct=correct)
    )
    if output is not None:
        result.save(output)

    def show() -> None:
        show_warnings(result)
        show_estimate(result, top)

    shown = {"estimates": result.top(top).rows(), "file": str(output) if output else None}
    say(as_json, {**result.about(), **shown}, show)
