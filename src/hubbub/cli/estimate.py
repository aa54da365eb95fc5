"""hubbub estimate"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import ESTIMATES, EXISTING, Command, interval_option, json_option, progress, say, tell
from hubbub.cli._portions import by_option, choice_options, names_in, show_groups

if TYPE_CHECKING:
    from hubbub.server.portions import Choice


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
@interval_option
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
@by_option
@choice_options
@click.option(
    "--forgers",
    type=float,
    default=0.0,
    help="Intervals that hold although so many reports are forged: a number, or a share of all such as 0.01.",
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
    by: tuple[str, ...],
    choice: Choice,
    forgers: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Estimate KEYS, with error bars, from a state file.

    Without KEYS, all keys of a closed vocabulary are estimated.

    Of a state with labels or periods, --by estimates every group by itself, and --where, --period, --from and --to say
    which reports are asked about. A key over time is its estimate --by period.
    """
    if keys and keys_from is not None:
        raise click.UsageError("Name keys, or a file of keys with --keys-from, not both.")
    from hubbub.cli._show import show_estimate, show_warnings, shown
    from hubbub.plan.advice import advised
    from hubbub.protocol.files import open_states
    from hubbub.server.breakdown import estimate_by
    from hubbub.server.estimates import estimate
    from hubbub.server.forgers import how_many
    from hubbub.server.portions import chosen_strata, reports_in, sum_of
    from hubbub.tables.counts import read_vocabulary

    task, states = open_states(state)
    asked = list(keys) or None if keys_from is None else read_vocabulary(keys_from)
    options = (asked, quantity, interval, simultaneous, refine)
    if by:
        with progress("estimating", None, as_json) as done:
            found = estimate_by(
                task,
                states,
                names_in(by),
                *options,
                choice=choice,
                correct=correct,
                forgers=forgers,
                done=done,
            )
        groups = replace(found, groups={group: advised(task, one) for group, one in found.groups.items()})
        if output is not None:
            groups.save(output)
        data = {**groups.plain(top), "file": str(output) if output else None}

        def show_by() -> None:
            show_warnings(groups)
            show_groups(groups, top)

        say(as_json, data, show_by)
        return
    total = sum_of(task, states, chosen_strata(task, states, choice))
    # Forgers choose labels and periods: all of them may be in what is asked about.
    forged = how_many(forgers, reports_in(states))
    made = estimate(task, total, *options, correct=correct, forgers=forged)
    result = replace(advised(task, made), group=choice.words())
    if output is not None:
        result.save(output)

    def show() -> None:
        if result.group:
            tell(f"Only {result.group}:")
        show_warnings(result)
        show_estimate(result, top)

    say(as_json, {**result.about(), **shown(result, top), "file": str(output) if output else None}, show)
