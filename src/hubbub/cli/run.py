"""hubbub run"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hubbub.cli._common import (
    EXISTING,
    OUTPUT,
    Command,
    json_option,
    progress,
    say,
    table_options,
    tell,
    verbose_option,
)
from hubbub.cli._tasks import build_task, quantity_for, task_options

if TYPE_CHECKING:
    from hubbub.tables.sources import TextForm


@click.command(
    cls=Command,
    example="hubbub run visits.csv --user user --key page --epsilon 2 --max-entries 4",
)
@click.argument("table", type=EXISTING)
@click.option("--user", required=True, help="Column that says whose row it is.")
@click.option("--key", required=True, help="Column with the key.")
@click.option("--value", help="Column with the value; left out: sets.")
@click.option("--vocabulary", type=EXISTING, help="Text file with all keys, one per line.")
@task_options
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--simultaneous", is_flag=True, help="Intervals that hold for all keys together.")
@click.option(
    "--correct", is_flag=True, help="Correct for entries that were dropped (needs --count-lengths)."
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=OUTPUT, help="Write all rows to .csv, .json or .parquet.")
@table_options
@verbose_option
@json_option
def command(
    *,
    table: Path,
    user: str,
    key: str,
    value: str | None,
    vocabulary: Path | None,
    interval: float,
    simultaneous: bool,
    correct: bool,
    top: int,
    output: Path | None,
    form: TextForm,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Go the whole way from a table to private estimates.

    TABLE is a .csv or .tsv file (also .gz), a .parquet or .npz file, or - for CSV on standard input. Every record is
    privatized, packed, aggregated and estimated, as devices and a server would. Without
    --vocabulary the keys that occur in the table are taken as publicly known. Whoever runs this sees the table: it is
    for trying out, and for holders of tables who pass on estimates only.
    """
    import numpy as np

    from hubbub.cli._cost import announce_cost
    from hubbub.cli._show import describe_task, show_estimate, show_warnings, shown, task_facts
    from hubbub.cli._tasks import read_vocabulary
    from hubbub.device.client import privatize
    from hubbub.plan.advice import advised
    from hubbub.primitives.coins import SecretCoins, SystemSeeds
    from hubbub.primitives.errors import Refused
    from hubbub.server.estimates import estimate, offered_quantity
    from hubbub.server.fold import aggregate
    from hubbub.server.truncation import truncation_of_table
    from hubbub.tables.records import encode_table, read_table
    from hubbub.tables.sources import Source

    if correct and not options["count_lengths"]:
        raise Refused("--correct needs the private count of lengths: give --count-lengths, too.")
    name = Source(table).stem
    if options["mechanism"] != "auto":
        # What could not be estimated of two keys is refused before anything is read.
        build_task(name, {"kind": "closed", "size": 2}, value is not None, options)
    rows = read_table(table, user, key, value, form)
    names = read_vocabulary(vocabulary) if vocabulary else rows.keys
    if click.get_current_context().get_parameter_source("users") is not ParameterSource.COMMANDLINE:
        options["users"] = max(rows.users, 1)
    task = build_task(name, {"kind": "closed", "vocabulary": names}, value is not None, options)
    quantity = offered_quantity(task, quantity_for(task, options, value is not None))
    entries, tidied = encode_table(task, rows)
    announce_cost(task, len(entries))
    with progress("privatizing", len(entries), as_json) as advance:
        packed, sampled = privatize(task, entries, SecretCoins(), SystemSeeds(), advance)
    with progress("aggregating", len(packed), as_json) as advance:
        state = aggregate(task, packed, progress=advance)
    lengths = np.diff(entries.offsets)
    known = truncation_of_table(task, lengths)
    result = estimate(task, state, None, quantity, interval, simultaneous, truncation=known, correct=correct)
    result = advised(task, result, dict(Counter(lengths.tolist())))
    result = replace(result, guarantee=replace(result.guarantee, noise="table"))
    if output is not None:
        result.save(output)
    summary = tidied + sampled

    def show() -> None:
        show_warnings(result)
        tell(describe_task(task, promise=False, verbose=verbose))
        tell(f"input      {summary.words()}")
        if vocabulary is None:
            tell("note       the keys in the table were taken as publicly known (see --vocabulary)")
        click.echo()
        show_estimate(result, top)
        if output is not None:
            click.echo(f"All {len(result):,} rows written to {output}")

    data = {
        **result.about(),
        **task_facts(task),
        "summary": summary.as_dict(),
        **shown(result, top),
        "file": str(output) if output else None,
        "guarantee": result.guarantee.as_dict(),
    }
    say(as_json, data, show)
