"""hubbub simulate"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, progress, say


@click.command()
@click.argument("task", type=EXISTING)
@click.option("--like", type=EXISTING, required=True, help="Table of records that a crowd could have.")
@click.option("--user", required=True, help="Column that says whose row it is.")
@click.option("--key", required=True, help="Column with the key.")
@click.option("--value", help="Column with the value; left out: sets.")
@click.option("--estimate", "quantity", type=click.Choice(["frequency", "mean", "conditional"]))
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--correct", is_flag=True, help="Correct for entries that were dropped (count_lengths).")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Repeatable and INSECURE coins."
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=OUTPUT, help="Write all rows to .csv, .json or .parquet.")
@json_option
def command(
    *,
    task: Path,
    like: Path,
    user: str,
    key: str,
    value: str | None,
    quantity: Any,
    interval: float,
    correct: bool,
    seed: int,
    top: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """What would have been learned: truth against estimate on a table, with a task's mechanism.

    The coins are seeded: nothing that comes out of this is private.
    """
    import numpy as np

    from hubbub.cli._cost import announce_cost
    from hubbub.cli._show import show_warnings
    from hubbub.plan.advice import advised
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import estimate, offered_quantity
    from hubbub.server.truncation import truncation_of_table
    from hubbub.simulation.rehearsal import simulate, true_values
    from hubbub.tables.records import encode_table, read_table

    loaded = Task.load(task)
    quantity = offered_quantity(loaded, quantity)
    table = read_table(like, user, key, value)
    entries, tidied = encode_table(loaded, table)
    announce_cost(loaded, len(entries))
    with progress("simulating", 2 * len(entries), as_json) as advance:
        result = simulate(loaded, entries, seed, lambda _, done: advance(done))
    asked = None if loaded.keys.kind == "closed" else table.keys
    lengths = np.diff(entries.offsets)
    lost = truncation_of_table(loaded, lengths)
    found = estimate(loaded, result.state, asked, quantity, interval, truncation=lost, correct=correct)
    found = advised(loaded, found, dict(Counter(lengths.tolist())))
    found = replace(found, guarantee=replace(found.guarantee, noise="simulated"))
    ids = loaded.keys.ids_of(found.keys)
    truth, reported = (true_values(loaded, entries, found.quantity, ids, cut) for cut in (False, True))
    known = np.isfinite(truth)
    inside, as_reported = ((found.low <= true) & (true <= found.high) for true in (truth, reported))
    coverage, coverage_reported = (float(hits[known].mean()) for hits in (inside, as_reported))
    errors = (found.value - truth)[known & np.isfinite(found.error)]
    rms = float(np.sqrt(np.mean(errors**2))) if len(errors) else None
    if output is not None:
        found.save(output)
    summary = tidied + result.summary
    best = np.argsort(-np.abs(np.nan_to_num(truth)), kind="stable")[:top]
    rows = [
        {**row, "truth": float(true) if np.isfinite(true) else None, "inside": bool(ok)}
        for row, true, ok in zip(found.take(best).rows(), truth[best], inside[best], strict=True)
    ]

    def show() -> None:
        from rich.console import Console
        from rich.table import Table

        console = Console()
        show_warnings(found)
        shown = Table(title=f"{found.quantity}: truth against estimate (simulated)", title_justify="left")
        for column in ("key", "truth", "estimate", f"{100 * interval:g}% interval", ""):
            shown.add_column(column, justify="right")
        for row in rows:
            true = "-" if row["truth"] is None else f"{row['truth']:.4f}"
            span = f"{row['low']:.4f} .. {row['high']:.4f}"
            shown.add_row(row["key"], true, f"{row['value']:.4f}", span, "hit" if row["inside"] else "miss")
        console.print(shown)
        console.print(summary.words(), markup=False)
        console.print(
            f"{100 * coverage:.1f}% of {int(known.sum()):,} intervals hold the truth (meant: {100 * interval:g}%); "
            + (f"root mean square error {rms:.4g}." if rms is not None else "nothing is known about any key.")
        )
        if summary.dropped_entries and not correct:
            console.print(
                f"That is the truth of whole records; {100 * coverage_reported:.1f}% hold the truth of records after "
                "sampling down."
            )
        console.print(found.guarantee.words(), markup=False)

    data = {
        **found.about(),
        "coverage": coverage,
        "coverage_after_sampling_down": coverage_reported,
        "root_mean_square_error": rms,
        "summary": summary.as_dict(),
        "estimates": rows,
    }
    say(as_json, data, show)
