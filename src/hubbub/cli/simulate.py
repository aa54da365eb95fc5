"""hubbub simulate"""

from __future__ import annotations

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
    seed: int,
    top: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """What would have been learned: truth against estimate on a table, with a task's mechanism.

    The coins are seeded: nothing that comes out of this is private.
    """
    import numpy as np

    from hubbub.protocol.task import Task
    from hubbub.server.estimates import estimate
    from hubbub.simulation.rehearsal import simulate, true_values
    from hubbub.tables.records import encode_table, read_table

    loaded = Task.load(task)
    table = read_table(like, user, key, value)
    entries, tidied = encode_table(loaded, table)
    with progress("simulating", 2 * len(entries), as_json) as advance:
        result = simulate(loaded, entries, seed, lambda _, done: advance(done))
    asked = None if loaded.keys.kind == "closed" else table.keys
    found = estimate(loaded, result.state, asked, quantity, interval)
    found = replace(found, guarantee=replace(found.guarantee, noise="simulated"))
    truth = true_values(loaded, entries, found.quantity, loaded.keys.ids_of(found.keys))
    known = np.isfinite(truth)
    inside = (found.low <= truth) & (truth <= found.high)
    coverage = float(inside[known].mean())
    errors = (found.value - truth)[known & ~found.flagged]
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
        console.print(found.guarantee.words(), markup=False)

    data = {
        **found.about(),
        "coverage": coverage,
        "root_mean_square_error": rms,
        "summary": summary.as_dict(),
        "estimates": rows,
    }
    say(as_json, data, show)
