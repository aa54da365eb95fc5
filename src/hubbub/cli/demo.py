"""hubbub demo"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import json_option, progress, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hubbub.server.estimates import Estimate


@click.command()
@click.option("--users", type=click.IntRange(1000), default=200_000, show_default=True)
@click.option("--keys", type=click.IntRange(100), default=100_000, show_default=True)
@click.option("--epsilon", type=float, default=1.0, show_default=True)
@click.option("--max-entries", type=click.IntRange(1), default=24, show_default=True)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Of the simulated crowd (not of the coins)."
)
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path), default="demo", show_default=True
)
@json_option
def command(
    *, users: int, keys: int, epsilon: float, max_entries: int, seed: int, output: Path, as_json: bool
) -> None:
    """A simulated crowd, privatized record by record, and what can be learned from it.

    The crowd is made up and repeatable; the coins that hide it are real ones.
    """
    from importlib.util import find_spec

    import numpy as np

    from hubbub.cli._show import describe_task
    from hubbub.device.client import privatize
    from hubbub.model.mechanism import Goal
    from hubbub.plan.ranking import choose
    from hubbub.primitives.coins import SecretCoins, SystemSeeds
    from hubbub.primitives.errors import Refused
    from hubbub.primitives.kernel import numba_available
    from hubbub.protocol.task import Task
    from hubbub.server.estimates import estimate
    from hubbub.server.fold import aggregate
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
    with progress("privatizing on the devices", users, as_json) as advance:
        packed, summary = privatize(task, crowd.entries, SecretCoins(), SystemSeeds(), advance)
    with progress("aggregating on the server", users, as_json) as advance:
        state = aggregate(task, packed, progress=advance)
    result = estimate(task, state, simultaneous=False)
    truth = crowd.mean
    busiest = np.argsort(-np.abs(truth), kind="stable")[:20]
    best = result.take(busiest)
    hits = (best.low <= truth[busiest]) & (truth[busiest] <= best.high)
    everywhere = float(((result.low <= truth) & (truth <= result.high)).mean())
    picture = None
    if drawn:
        try:
            output.mkdir(parents=True, exist_ok=True)
            picture = plot(output / "demo.png", result, truth)
        except OSError as problem:
            raise Refused(f"{output} cannot be written: {problem.strerror or problem}.") from None

    def show() -> None:
        from rich.console import Console
        from rich.table import Table

        console = Console()
        lengths = np.diff(crowd.entries.offsets)
        console.print(
            f"{users:,} simulated users, {len(crowd.entries.ids):,} entries over {keys:,} keys; "
            f"records have {lengths.min()} to {lengths.max()} entries. {summary.sampled_records:,} longer than "
            f"{max_entries} were sampled down ({100 * summary.dropped_entries / len(crowd.entries.ids):.1f}% of "
            "all entries dropped)."
        )
        console.print(describe_task(task), markup=False)
        table = Table(title="Keys whose true mean is furthest from 0", title_justify="left")
        for name in ("key", "true mean", "estimate", "± error", "95% interval", ""):
            table.add_column(name, justify="right")
        for row, true, hit in zip(best.rows(), truth[busiest], hits, strict=True):
            interval = f"{row['low']:.3f} .. {row['high']:.3f}"
            mark = "[green]hit[/green]" if hit else "[red]miss[/red]"
            table.add_row(
                row["key"], f"{true:.4f}", f"{row['value']:.4f}", f"{row['error']:.4f}", interval, mark
            )
        console.print(table)
        console.print(
            f"{int(hits.sum())} of {len(hits)} intervals above and {100 * everywhere:.1f}% of all {keys:,} "
            f"intervals hold the truth (promised: 95%)."
        )
        if picture is not None:
            console.print(f"Picture: {picture}", markup=False)

    data = {
        "users": users,
        "keys": keys,
        "mechanism": task.mechanism.name,
        "report_bytes": task.mechanism.layout.width,
        "guarantee": task.guarantee.as_dict(),
        "coverage": everywhere,
        "top": [
            {**row, "truth": float(true), "hit": bool(hit)}
            for row, true, hit in zip(best.rows(), truth[busiest], hits, strict=True)
        ],
        "picture": str(picture) if picture else None,
        "notes": notes,
    }
    say(as_json, data, show)


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
