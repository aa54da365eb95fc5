"""hubbub simulate"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import (
    ESTIMATES,
    EXISTING,
    OUTPUT,
    Command,
    interval_option,
    json_option,
    progress,
    say,
    table_options,
    tell,
)
from hubbub.primitives.errors import Refused
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.calls.discovered import Rehearsal
    from hubbub.calls.outcome import Outcome
    from hubbub.tables.sources import TextForm


@click.command(cls=Command, example="hubbub simulate task.toml --like visits.csv --user user --key page")
@click.argument("task", type=EXISTING, required=False)
@click.option(
    "--like", type=EXISTING, help="Table of records that a crowd could have; left out: a made-up crowd."
)
@click.option("--user", help="Column that says whose row it is.")
@click.option("--key", help="Column with the key.")
@click.option("--value", help="Column with the value; left out: sets.")
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional"]),
    help="What to estimate [default: what the mechanism offers first].",
)
@interval_option
@click.option("--correct", is_flag=True, help="Correct for entries that were dropped (count_lengths).")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the noise: repeatable, INSECURE."
)
@click.option("--discover", is_flag=True, help="Find keys as if nobody had listed them (a task with a tree).")
@click.option(
    "--false-finds",
    type=float,
    default=0.05,
    show_default=True,
    help="With --discover: share that may be false.",
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=ESTIMATES, help="Write all rows to .csv, .json or .parquet.")
@click.option(
    "--model",
    type=click.Choice(["local", "shuffled"]),
    default="local",
    show_default=True,
    help="Made-up crowd: whether a shuffler mixes the reports.",
)
@click.option("--users", type=click.IntRange(2), default=100_000, show_default=True, help="Made-up people.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Collections from them.")
@click.option(
    "--epsilon", type=float, help="Without a task: of one report; shuffled: the central one [default: 1]."
)
@click.option("--delta", type=float, help="Shuffled: failure probability [default: 1e-6].")
@click.option(
    "--messages", type=float, help="Without a task, shuffled: reports that everybody sends on average."
)
@click.option(
    "--keys", type=click.IntRange(1), help="How many keys there are, without a task [default: 5000]."
)
@click.option(
    "--max-entries", type=click.IntRange(1), help="Without a task: entries of a record [default: 8]."
)
@click.option(
    "--forgers",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of the reports that are forged: what that does, and whether it is noticed.",
)
@click.option(
    "--attack",
    type=click.Choice(["random", "input", "maximal"]),
    help="Forgers send any report, or honest ones of invented records, or the worst [default: maximal].",
)
@click.option(
    "--target",
    "--targets",
    "targets",
    multiple=True,
    help="A key that forgers lift; may be given several times [default: the one that is held least].",
)
@click.option("--plot", type=OUTPUT, help="With --forgers: write a picture of estimates with and without.")
@table_options
@json_option
def command(
    *,
    task: Path | None,
    like: Path | None,
    user: str | None,
    key: str | None,
    value: str | None,
    quantity: Any,
    interval: float,
    correct: bool,
    seed: int,
    discover: bool,
    false_finds: float,
    top: int,
    output: Path | None,
    forgers: float | None,
    attack: Any,
    targets: tuple[str, ...],
    plot: Path | None,
    form: TextForm,
    as_json: bool,
    **made_up: Any,
) -> None:
    """Compare estimates with the truth, before collecting.

    The records of a table (CSV, Parquet or NPZ; - is CSV on standard input) are privatized with a task's mechanism and
    estimated. Without --like, people are made up, and errors for keys that nobody, 1% and 5% hold are compared with the
    prediction; then the task may be left out, too: the planner makes one. With --forgers, some reports are forged.
    The randomness is seeded: nothing that comes out of this is private.
    """
    forging = None
    if forgers is not None:
        if discover or correct or output:
            raise click.UsageError("--forgers goes without --discover, --correct and -o.")
        forging = {"forgers": forgers, "attack": attack or "maximal", "targets": targets, "plot": plot}
        forging |= {"quantity": quantity, "seed": seed}
    elif attack or targets or plot:
        raise click.UsageError("--attack, --target and --plot go with --forgers.")
    if like is None:
        from hubbub.cli._rehearse import forge_made_up, rehearse_made_up

        if forging is not None and not (user or key or value):
            forge_made_up(task, made_up, forging, as_json)
            return
        if user or key or value or quantity or correct or output:
            raise Refused(
                "--user, --key, --value, --estimate, --correct and -o go with a table: give --like."
            )
        rehearse_made_up(task, made_up, interval, seed, as_json)
        return
    if task is None or user is None or key is None:
        raise click.UsageError("A table goes with a TASK, --user and --key.")
    from hubbub.calls.outcome import simulate
    from hubbub.cli._cost import announce_cost
    from hubbub.protocol.task import Task
    from hubbub.tables.sources import Source

    def watch(step: str, total: int, task: Task) -> AbstractContextManager[Callable[[int], None]]:
        announce_cost(task, total // 2)
        return progress(step, total, as_json)

    if forging is not None:
        from hubbub.cli._forged import forge_table

        forge_table(Task.load(task), Source(like, form), (user, key, value), forging, as_json)
        return
    if discover:
        if correct:
            raise click.UsageError("--discover goes without --correct.")
        from hubbub.calls.discovered import rehearse_discovery
        from hubbub.cli.discover import check_ending

        check_ending(output)
        rehearsed = rehearse_discovery(
            Source(like, form),
            Task.load(task),
            (user, key, value),
            false_finds=false_finds,
            level=interval,
            quantity=quantity,
            seed=seed,
            watch=watch,
        )
        if output is not None:
            rehearsed.found.save(output)
        facts = {**rehearsed.found.about(), "keys": rehearsed.rows(top), "total": len(rehearsed.found)}
        facts |= {name: getattr(rehearsed, name) for name in ("share", "popular", "recalled", "missed")}
        say(as_json, facts | {"false": int(rehearsed.false.sum())}, lambda: _show_found(rehearsed, top))
        return
    outcome = simulate(
        Source(like, form),
        Task.load(task),
        user,
        key,
        value,
        quantity=quantity,
        level=interval,
        correct=correct,
        seed=seed,
        watch=watch,
    )
    found, summary = outcome.estimate, outcome.summary
    if output is not None:
        found.save(output)
    rows = outcome.rows(top)
    data = {
        **found.about(),
        "coverage": outcome.coverage,
        "coverage_after_sampling_down": outcome.coverage_sampled_down,
        "root_mean_square_error": outcome.rms,
        "summary": summary.as_dict(),
        "estimates": rows,
        "shown": len(rows),
        "total": len(found),
    }
    say(as_json, data, lambda: _show(outcome, rows))


def _show(outcome: Outcome, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.cli._show import show_warnings

    found = outcome.estimate
    show_warnings(found)
    shown = Table(title=f"{found.quantity}: truth against estimate (simulated)", title_justify="left")
    shown.add_column("key", overflow="fold")
    for column in ("truth", "estimate", f"{100 * found.level:g}% interval", ""):
        shown.add_column(column, justify="right")
    for row in rows:
        true = "-" if row["truth"] is None else f"{row['truth']:.4f}"
        span = f"{row['low']:.4f} .. {row['high']:.4f}"
        shown.add_row(
            Text(visible(row["key"])), true, f"{row['value']:.4f}", span, "hit" if row["inside"] else "miss"
        )
    Console().print(shown)
    if len(found) > len(rows):
        tell(f"{len(found) - len(rows):,} more keys.")
    for line in (outcome.summary.words(), *outcome.closing(), found.guarantee.words()):
        tell(line)


def _show_found(rehearsed: Rehearsal, top: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hubbub.cli._show import show_warnings

    found = rehearsed.found
    show_warnings(found)
    if len(found):
        tell(found.words())
    shown = Table(title="found keys: truth against estimate (simulated)", title_justify="left")
    shown.add_column("key", overflow="fold")
    for column in ("truth", "estimate", f"{100 * found.estimate.level:g}% interval", ""):
        shown.add_column(column, justify="right")
    for row in rehearsed.rows(top):
        span = f"{row['low']:.4f} .. {row['high']:.4f}"
        mark = "nobody's" if row["false"] else ""
        shown.add_row(Text(visible(row["key"])), f"{row['truth']:.4f}", f"{row['value']:.4f}", span, mark)
    if len(found):
        Console().print(shown)
    for line in (*rehearsed.words(), rehearsed.summary.words(), found.estimate.guarantee.words()):
        tell(line)
