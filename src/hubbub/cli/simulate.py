"""hubbub simulate"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, table_options, tell

if TYPE_CHECKING:
    from hubbub.model.record import Entries, Summary
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import Estimate
    from hubbub.tables.sources import TextForm


@click.command(cls=Command, example="hubbub simulate task.toml --like visits.csv --user user --key page")
@click.argument("task", type=EXISTING)
@click.option("--like", type=EXISTING, required=True, help="Table of records that a crowd could have.")
@click.option("--user", required=True, help="Column that says whose row it is.")
@click.option("--key", required=True, help="Column with the key.")
@click.option("--value", help="Column with the value; left out: sets.")
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional"]),
    help="What to estimate [default: what the mechanism offers first].",
)
@click.option("--interval", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@click.option("--correct", is_flag=True, help="Correct for entries that were dropped (count_lengths).")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the noise: repeatable, INSECURE."
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=OUTPUT, help="Write all rows to .csv, .json or .parquet.")
@table_options
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
    form: TextForm,
    as_json: bool,
) -> None:
    """Compare estimates with the truth on a table, before collecting.

    The records of the table (CSV, Parquet or NPZ; - is CSV on standard input) are privatized with a task's mechanism
    and estimated. The randomness is seeded: nothing that comes out of this is private.
    """
    import numpy as np

    from hubbub.cli._cost import announce_cost
    from hubbub.plan.advice import advised
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import estimate, offered_quantity
    from hubbub.server.truncation import truncation_of_table
    from hubbub.simulation.rehearsal import simulate
    from hubbub.tables.records import encode_table, read_table

    loaded = Task.load(task)
    quantity = offered_quantity(loaded, quantity)
    table = read_table(like, user, key, value, form)
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
    if output is not None:
        found.save(output)
    compared = _compare(loaded, entries, found, top)
    summary = tidied + result.summary
    data = {
        **found.about(),
        "coverage": compared.coverage,
        "coverage_after_sampling_down": compared.coverage_reported,
        "root_mean_square_error": compared.rms,
        "summary": summary.as_dict(),
        "estimates": compared.rows,
        "shown": len(compared.rows),
        "total": len(found),
    }
    say(as_json, data, lambda: _show(found, compared, summary, correct))


@dataclass(frozen=True)
class _Compared:
    """Estimates against the truth: of whole records, and of records after sampling down."""

    known: int
    coverage: float
    coverage_reported: float
    rms: float | None
    rows: list[dict[str, Any]]


def _compare(task: Task, entries: Entries, found: Estimate, top: int) -> _Compared:
    import numpy as np

    from hubbub.simulation.rehearsal import true_values

    ids = task.keys.ids_of(found.keys)
    truth, reported = (true_values(task, entries, found.quantity, ids, cut) for cut in (False, True))
    known = np.isfinite(truth)
    inside, as_reported = ((found.low <= true) & (true <= found.high) for true in (truth, reported))
    coverage, coverage_reported = (float(hits[known].mean()) for hits in (inside, as_reported))
    errors = (found.value - truth)[known & np.isfinite(found.error)]
    rms = float(np.sqrt(np.mean(errors**2))) if len(errors) else None
    best = np.argsort(-np.abs(np.nan_to_num(truth)), kind="stable")[:top]
    rows = [
        {**row, "truth": float(true) if np.isfinite(true) else None, "inside": bool(ok)}
        for row, true, ok in zip(found.take(best).rows(), truth[best], inside[best], strict=True)
    ]
    return _Compared(int(known.sum()), coverage, coverage_reported, rms, rows)


def _show(found: Estimate, compared: _Compared, summary: Summary, corrected: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.cli._show import show_warnings

    show_warnings(found)
    shown = Table(title=f"{found.quantity}: truth against estimate (simulated)", title_justify="left")
    shown.add_column("key")
    for column in ("truth", "estimate", f"{100 * found.level:g}% interval", ""):
        shown.add_column(column, justify="right")
    for row in compared.rows:
        true = "-" if row["truth"] is None else f"{row['truth']:.4f}"
        span = f"{row['low']:.4f} .. {row['high']:.4f}"
        shown.add_row(Text(row["key"]), true, f"{row['value']:.4f}", span, "hit" if row["inside"] else "miss")
    Console().print(shown)
    if len(found) > len(compared.rows):
        tell(f"{len(found) - len(compared.rows):,} more keys.")
    tell(summary.words())
    tell(
        f"{100 * compared.coverage:.1f}% of {compared.known:,} intervals hold the truth "
        f"(meant: {100 * found.level:g}%); "
        + (
            f"root mean square error {compared.rms:.4g}."
            if compared.rms is not None
            else "no key has a known error."
        )
    )
    if summary.dropped_entries and not corrected:
        tell(
            f"That is the truth of whole records; {100 * compared.coverage_reported:.1f}% hold the truth of records "
            "after sampling down."
        )
    tell(found.guarantee.words())
