"""hubbub demo"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import FOLDER, Command, json_option, progress, say, tell, verbose_option
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hubbub.model.record import Summary
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import Estimate
    from hubbub.simulation.populations import Population

#: Keys that the table shows.
_SHOWN = 20


@click.command(cls=Command, example="hubbub demo --users 2000 --keys 200 -o demo")
@click.option(
    "--users", type=click.IntRange(1000), default=200_000, show_default=True, help="Size of the crowd."
)
@click.option(
    "--keys", type=click.IntRange(100), default=100_000, show_default=True, help="How many keys there are."
)
@click.option(
    "--epsilon", type=float, default=1.0, show_default=True, help="Privacy parameter of one report."
)
@click.option(
    "--max-entries",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Entries of a record that count.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Of the simulated crowd, not of the noise."
)
@click.option(
    "-o", "--output", type=FOLDER, default="demo", show_default=True, help="Folder for the picture."
)
@verbose_option
@json_option
def command(
    *,
    users: int,
    keys: int,
    epsilon: float,
    max_entries: int,
    seed: int,
    output: Path,
    verbose: bool,
    as_json: bool,
) -> None:
    """Make up a crowd, privatize its records, estimate its means.

    The crowd is simulated and repeatable; the randomness that hides its records is secret, as on real devices.
    """
    from importlib.util import find_spec

    from hubbub.model.mechanism import Goal
    from hubbub.plan.ranking import choose
    from hubbub.primitives.kernel import numba_available
    from hubbub.protocol.task import Task
    from hubbub.simulation.populations import zipf_population

    drawn = find_spec("matplotlib") is not None
    notes = []
    if not drawn:
        notes.append("There will be no picture: it needs matplotlib (pip install 'hubbub[plots]').")
    if not numba_available():
        notes.append("This will take much longer than with numba (pip install 'hubbub[fast]').")
    for note in notes if not as_json else ():
        click.echo(note, err=True)
    with progress("making up a crowd", 1, as_json) as advance:
        crowd = zipf_population(users, keys, seed)
        advance(1)
    mechanism = choose(Goal("mean", epsilon, max_entries, "signed", users=users))
    task = Task.parse({"name": "demo", "keys": {"kind": "closed", "size": keys}, "mechanism": mechanism})
    found = _collect(task, crowd, as_json)
    picture = _draw(output, found) if drawn else None
    data = {
        "users": users,
        "keys": keys,
        "mechanism": task.mechanism.name,
        "report_bytes": task.mechanism.layout.width,
        "guarantee": task.guarantee.as_dict(),
        "coverage": found.coverage,
        "top": found.rows,
        "shown": len(found.rows),
        "total": keys,
        "picture": str(picture) if picture else None,
        "notes": notes,
    }
    say(as_json, data, lambda: _show(task, crowd, found, picture, verbose))


@dataclass(frozen=True)
class _Found:
    """What came out, beside the truth."""

    summary: Summary
    result: Estimate
    truth: NDArray[np.float64]
    coverage: float
    rows: list[dict[str, Any]]


def _collect(task: Task, crowd: Population, quiet: bool) -> _Found:
    """The whole way: reports on the devices, their sum on the server, estimates."""
    import numpy as np

    from hubbub.device.client import privatize
    from hubbub.primitives.coins import SecretCoins, SystemSeeds
    from hubbub.server.estimates import estimate
    from hubbub.server.fold import aggregate

    users = len(crowd.entries)
    with progress("privatizing on the devices", users, quiet) as advance:
        packed, summary = privatize(task, crowd.entries, SecretCoins(), SystemSeeds(), advance)
    with progress("aggregating on the server", users, quiet) as advance:
        state = aggregate(task, packed, progress=advance)
    result, truth = estimate(task, state, simultaneous=False), crowd.mean
    hits = (result.low <= truth) & (truth <= result.high)
    furthest = np.argsort(-np.abs(truth), kind="stable")[:_SHOWN]
    rows = [
        {**row, "truth": float(true), "hit": bool(hit)}
        for row, true, hit in zip(result.take(furthest).rows(), truth[furthest], hits[furthest], strict=True)
    ]
    return _Found(summary, result, truth, float(hits.mean()), rows)


def _draw(folder: Path, found: _Found) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return plot(folder / "demo.png", found.result, found.truth)
    except OSError as problem:
        raise Refused(f"{folder} cannot be written: {problem.strerror or problem}.") from None


def _show(task: Task, crowd: Population, found: _Found, picture: Path | None, verbose: bool) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from hubbub.cli._show import describe_task

    lengths, entries = np.diff(crowd.entries.offsets), len(crowd.entries.ids)
    tell(
        f"{len(lengths):,} simulated users, {entries:,} entries over {task.keys.count:,} keys; records have "
        f"{lengths.min()} to {lengths.max()} entries. {found.summary.sampled_records:,} longer than "
        f"{task.mechanism.max_entries} were sampled down ({100 * found.summary.dropped_entries / entries:.1f}% of all "
        "entries dropped)."
    )
    tell(describe_task(task, verbose=verbose))
    table = Table(title="Keys whose true mean is furthest from 0", title_justify="left")
    for name in ("key", "true mean", "estimate", "± error", "95% interval", ""):
        table.add_column(name, justify="right")
    for row in found.rows:
        numbers = (f"{row[name]:.4f}" for name in ("truth", "value", "error"))
        mark = "[green]hit[/green]" if row["hit"] else "[red]miss[/red]"
        table.add_row(row["key"], *numbers, f"{row['low']:.3f} .. {row['high']:.3f}", mark)
    Console().print(table)
    tell(
        f"{sum(row['hit'] for row in found.rows)} of {len(found.rows)} intervals above and {100 * found.coverage:.1f}% "
        f"of all {task.keys.count:,} intervals hold the truth (promised: 95%)."
    )
    if picture is not None:
        click.echo(f"Picture: {picture}")


def plot(path: Path, result: Estimate, truth: NDArray[np.float64]) -> Path:
    """Estimates with error bars against the truth."""
    import numpy as np

    from hubbub.primitives.errors import optional

    optional("matplotlib", "plots").use("Agg")
    pyplot = optional("matplotlib.pyplot", "plots")
    shown = np.argsort(-np.abs(truth), kind="stable")[:50]
    figure, axes = pyplot.subplots(figsize=(8, 6), layout="constrained")
    span = [truth[shown].min() - 0.05, truth[shown].max() + 0.05]
    axes.plot(span, span, color="0.6", linewidth=1, label="exactly right")
    bars = np.array([result.value[shown] - result.low[shown], result.high[shown] - result.value[shown]])
    axes.errorbar(
        truth[shown],
        result.value[shown],
        yerr=bars,
        fmt="o",
        markersize=4,
        elinewidth=1,
        color="#1f5fa8",
        label=f"estimate, {100 * result.level:g}% interval",
    )
    axes.set_xlabel("true mean")
    axes.set_ylabel("private estimate")
    title = f"The 50 means furthest from 0, {result.reports:,} users"
    axes.set_title(f"{title}\n{result.guarantee.short()}", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
