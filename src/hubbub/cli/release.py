"""`hubbub release`: from a table of counts to one private file that answers for any key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, progress, say

if TYPE_CHECKING:
    from hubbub.release.publisher import Published

_ALGORITHMS = (
    "laplace",
    "threshold",
    "alp",
    "histogram",
    "threshold-alp",
    "log",
    "threshold-log",
    "max",
    "threshold-max",
)


@click.command()
@click.argument("table", type=EXISTING)
@click.option("--key", required=True, help="Column with the keys.")
@click.option("--count", help="Column with counts (whole numbers).")
@click.option("--value", help="Column with real values, instead of counts.")
@click.option("--epsilon", type=float, required=True, help="Privacy budget for one unit of one entry.")
@click.option("--delta", type=float, default=0.0, help="Allow thresholds with this failure probability.")
@click.option("--signed", is_flag=True, help="Values may be below 0.")
@click.option("--universe", type=int, help="Keys are whole numbers below this; otherwise they are text.")
@click.option("--max-nonzero", type=int, help="Public bound on the number of keys.")
@click.option("--max-value", type=float, help="Public bound on a value; larger ones are clipped.")
@click.option("--max-sum", type=float, help="Public bound on the sum of all values.")
@click.option("--algorithm", type=click.Choice(_ALGORITHMS), help="Use this one instead of the planned one.")
@click.option(
    "--estimator",
    type=click.Choice(["argmax", "difference", "median", "mean"]),
    default="argmax",
    show_default=True,
    help="How the file answers unless asked otherwise; median and mean assume all values equally likely.",
)
@click.option("-o", "--output", type=OUTPUT, required=True, help="The file to write.")
@json_option
def command(
    *,
    table: Path,
    key: str,
    count: str | None,
    value: str | None,
    output: Path,
    as_json: bool,
    **goal: Any,
) -> None:
    """Publish a private file of sparse counts from the CSV file TABLE.

    The plan uses public bounds only. Without --max-nonzero and --max-sum, one twentieth of epsilon pays
    for private estimates of the size.
    """
    if (count is None) == (value is None):
        raise click.UsageError("Name the column to release: either --count or --value.")
    from hubbub.release.publisher import STAGES, build, make_goal
    from hubbub.tables.counts import read_table

    wanted = make_goal(kind="counts" if value is None else "reals", **goal)
    size = table.stat().st_size if table.is_file() else 0
    with progress("Reading", size, as_json) as tick:
        columns = read_table(table, key, value or count or "", value is None, tick)
    with progress("Releasing", STAGES, as_json) as tick:
        published = build(columns, wanted, tick)
        written = published.release.save(output)
    data = {
        "output": str(output),
        "bytes": written,
        "plan": published.plan.as_dict(),
        "sizes": published.release.describe()["sizes"],
        "holder_only": published.summary.as_dict(),
    }
    say(as_json, data, lambda: _tell(published, output, written))


def _tell(published: Published, output: Path, written: int) -> None:
    plan, summary = published.plan, published.summary
    sizes = published.release.parameters.sizes
    if sizes:
        entries = "" if sizes.nonzero is None else f" and at most {sizes.nonzero:,.0f} entries"
        click.echo(
            f"Bounds: none given, so epsilon = {sizes.epsilon:.4g} of the budget estimated a sum of at most "
            f"{sizes.total:,.0f}{entries} (released with the file)."
        )
    small, middle, large = plan.probes
    click.echo(
        f"{'Plan':<16}{'file':>12}{f'error at {small:g}':>14}{middle:>10.4g}{large:>10.4g}{'worst rms':>12}"
    )
    for row in (plan.chosen, *plan.others):
        mark = "*" if row is plan.chosen else " "
        click.echo(
            f"{mark} {row.algorithm:<14}{row.bytes:>12,}{row.small:>14.3g}{row.middle:>10.3g}"
            f"{row.large:>10.3g}{row.worst:>12.3g}"
        )
    for name, why in plan.unsuitable.items():
        click.echo(f"  {name:<14}{why}")
    click.echo(
        f"Queries read about {plan.chosen.reads} cells, roughly {plan.chosen.microseconds:.1f} microseconds "
        "a key in batches."
    )
    click.echo(f"Wrote {output}: {written:,} bytes. {published.release.guarantee().words()}")
    click.echo(
        f"For you only, not private: {summary.rows:,} rows, {summary.nonzero:,} nonzero keys, "
        f"{summary.merged:,} repeated keys summed, {summary.clipped:,} values clipped.",
        err=True,
    )
    if plan.goal.max_nonzero is not None and summary.nonzero > plan.goal.max_nonzero:
        click.echo("For you only: there are more keys than declared; errors will be larger.", err=True)
    if plan.goal.max_sum is not None and summary.total > plan.goal.max_sum:
        click.echo("For you only: the sum is larger than declared; errors will be larger.", err=True)
