"""`hubbub release`: from a table of counts to one private file that answers for any key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, table_options, tell

if TYPE_CHECKING:
    from hubbub.release.publisher import Published
    from hubbub.tables.sources import TextForm

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


@click.command(
    cls=Command,
    example="hubbub release counts.csv --key word --count count --epsilon 1 -o words.hub",
)
@click.argument("table", type=EXISTING)
@click.option("--key", required=True, help="Column with the keys.")
@click.option("--count", help="Column with counts (whole numbers).")
@click.option("--value", help="Column with real values, instead of counts.")
@click.option("--user", help="Column with users: epsilon is then for all rows of one user.")
@click.option("--max-entries", type=int, help="With --user: keys of a user that count, sampled from more.")
@click.option("--max-contribution", type=float, help="With --user: for how much a user counts in one key.")
@click.option(
    "--epsilon",
    type=float,
    required=True,
    help="Privacy budget: for one unit of value, or with --user for a user.",
)
@click.option("--delta", type=float, default=0.0, help="Allow thresholds with this failure probability.")
@click.option("--signed", is_flag=True, help="Values may be below 0.")
@click.option("--universe", type=int, help="Keys are whole numbers below this; otherwise they are text.")
@click.option(
    "--vocabulary",
    type=EXISTING,
    help="Text file with all keys there can be, one per line; others do not count.",
)
@click.option("--max-nonzero", type=int, help="Public bound on the number of keys.")
@click.option("--max-value", type=float, help="Public bound on a value; larger ones are clipped.")
@click.option("--max-sum", type=float, help="Public bound on the sum of all values.")
@click.option(
    "--algorithm",
    type=click.Choice(_ALGORITHMS),
    metavar="NAME",
    help=f"Use this one instead of the planned one: {', '.join(_ALGORITHMS)}.",
)
@click.option(
    "--estimator",
    type=click.Choice(["argmax", "difference", "median", "mean"]),
    default="argmax",
    show_default=True,
    help="How the file answers unless asked otherwise; median and mean assume all values equally likely.",
)
@click.option("-o", "--output", type=OUTPUT, required=True, help="The file to write.")
@table_options
@json_option
def command(
    *,
    table: Path,
    key: str,
    count: str | None,
    value: str | None,
    user: str | None,
    vocabulary: Path | None,
    output: Path,
    form: TextForm,
    as_json: bool,
    **goal: Any,
) -> None:
    """Publish a private file of sparse counts.

    TABLE is a .csv or .tsv file (also .gz), or - for CSV on standard input.

    Without --user, epsilon protects one unit of value, whoever is behind it: one row of somebody who has
    many. With --user it protects the person: all rows of one user. A user then counts once for a key, or with
    --count or --value for as much as --max-contribution allows.

    The plan uses public bounds only. Without --max-nonzero, --max-sum and --vocabulary, one twentieth of epsilon
    pays for private estimates of the size. With a list of all keys, decided before looking at the table, every key
    of it gets noise of its own, which errs least.
    """
    column = value if count is None else count
    if (user is None and column is None) or (count is not None and value is not None):
        raise click.UsageError("Name the column to release: either --count or --value.")
    if (user is None) != (goal["max_entries"] is None):
        raise click.UsageError(
            "--user and --max-entries go together: whose rows, and how many keys of theirs count."
        )
    if (user is None or column is None) != (goal["max_contribution"] is None):
        raise click.UsageError(
            "--max-contribution goes with --user and a column of values, and only with both."
        )
    from hubbub.primitives.envelope import check_ending
    from hubbub.release.artifact import RELEASE
    from hubbub.release.publisher import STAGES, build, make_goal
    from hubbub.tables.counts import read_table, read_vocabulary
    from hubbub.tables.sources import Source

    check_ending(output, RELEASE)
    kind: Any = "counts" if value is None else "reals"
    listed = None if vocabulary is None else tuple(read_vocabulary(vocabulary))
    wanted = make_goal(kind=kind, vocabulary=listed, **goal)
    names = [name for name in (user, key, column) if name is not None]
    source = Source(table, form)
    with progress("Reading", source.size, as_json) as tick:
        columns = read_table(source, names, "none" if column is None else kind, tick)
    with progress("Releasing", STAGES, as_json) as tick:
        published = build(columns, wanted, tick)
        written = published.release.save(output)
    data = {
        "output": str(output),
        "bytes": written,
        "plan": published.plan.as_dict(),
        "sizes": published.release.describe()["sizes"],
        "users": published.release.describe()["users"],
    }
    say(as_json, data, lambda: _tell(published, output, written))
    _tell_holder(published)


def _tell(published: Published, output: Path, written: int) -> None:
    plan = published.plan
    sizes, users = published.release.parameters.sizes, published.release.parameters.users
    if sizes:
        entries = "" if sizes.nonzero is None else f" and at most {sizes.nonzero:,.0f} entries"
        spent = sizes.epsilon * float(users.reach if users else 1)
        tell(
            f"Bounds: none given, so epsilon = {spent:.4g} of the budget estimated a sum of at most "
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
        tell(f"  {name:<14}{why}")
    tell(
        f"Queries read about {plan.chosen.reads} cells, roughly {plan.chosen.microseconds:.1f} microseconds "
        "a key in batches."
    )
    click.echo(f"Wrote {output}: {written:,} bytes.")
    tell(published.release.guarantee().words())


def _tell_holder(published: Published) -> None:
    """Facts about the table itself: on the error stream, whatever the form of the output, and in no file."""
    plan, summary, tally = published.plan, published.summary, published.tally
    rows = f"{summary.rows:,} rows, {summary.merged:,} of them summed up with others"
    if tally is not None:
        rows = (
            f"{tally.users:,} users, {tally.sampled_users:,} of them with more keys than count "
            f"({tally.dropped_entries:,} dropped at random), {tally.clipped_contributions:,} contributions clipped, "
            f"{tally.rows_without_user:,} rows without a user left out"
        )
    if plan.goal.vocabulary is not None:
        rows += f", {published.undeclared:,} rows left out whose key is not in the list"
    click.echo(
        f"For you only, not private: {rows}; {summary.nonzero:,} nonzero keys, {summary.clipped:,} values clipped.",
        err=True,
    )
    if plan.goal.max_nonzero is not None and summary.nonzero > plan.goal.max_nonzero:
        click.echo("For you only: there are more keys than declared; errors will be larger.", err=True)
    if plan.goal.max_sum is not None and summary.total > plan.goal.max_sum:
        click.echo("For you only: the sum is larger than declared; errors will be larger.", err=True)
