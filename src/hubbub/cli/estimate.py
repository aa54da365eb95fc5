"""hubbub estimate"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import ESTIMATES, EXISTING, Command, json_option, say


@click.command(cls=Command, example="hubbub estimate visits.state home search --interval 0.9")
@click.argument("state", type=EXISTING)
@click.argument("keys", nargs=-1)
@click.option("--keys-from", type=EXISTING, help="File with the keys to estimate, one per line.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional", "sum"]),
    help="What to estimate [default: what the mechanism offers first].",
)
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
@click.option("-o", "--output", type=ESTIMATES, help="Write all rows to .csv, .json or .parquet.")
@json_option
def command(
    *,
    state: Path,
    keys: tuple[str, ...],
    keys_from: Path | None,
    top: int,
    quantity: Any,
    interval: float,
    simultaneous: bool,
    refine: Any,
    correct: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Estimate KEYS, with error bars, from a state file.

    Without KEYS, all keys of a closed vocabulary are estimated.
    """
    if keys and keys_from is not None:
        raise click.UsageError("Name keys, or a file of keys with --keys-from, not both.")
    from hubbub.cli._show import show_estimate, show_warnings, shown
    from hubbub.plan.advice import advised
    from hubbub.protocol.files import load_state
    from hubbub.server.estimates import estimate
    from hubbub.tables.counts import read_vocabulary

    task, loaded = load_state(state)
    asked = list(keys) or None if keys_from is None else read_vocabulary(keys_from)
    result = advised(
        task, estimate(task, loaded, asked, quantity, interval, simultaneous, refine, correct=correct)
    )
    if output is not None:
        result.save(output)

    def show() -> None:
        show_warnings(result)
        show_estimate(result, top)

    say(as_json, {**result.about(), **shown(result, top), "file": str(output) if output else None}, show)
