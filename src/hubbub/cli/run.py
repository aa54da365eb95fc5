"""hubbub run"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hubbub.cli._common import (
    ESTIMATES,
    EXISTING,
    Command,
    check_not_over,
    interval_option,
    json_option,
    progress,
    say,
    table_options,
    tell,
    verbose_option,
)
from hubbub.cli._spelling import discovery_options, spelling_of
from hubbub.cli._tasks import span_of, task_options, wish_fields

if TYPE_CHECKING:
    from hubbub.plan.prospects import Spelling
    from hubbub.protocol.task import Task
    from hubbub.tables.sources import Source, TextForm


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
@discovery_options
@interval_option
@click.option("--simultaneous", is_flag=True, help="Intervals that hold for all keys together.")
@click.option(
    "--correct", is_flag=True, help="Correct for entries that were dropped (needs --count-lengths)."
)
@click.option(
    "--by",
    multiple=True,
    metavar="LABEL[,LABEL]",
    help="Estimate groups of users by themselves: columns with public labels, of which a user has one value.",
)
@click.option(
    "--label",
    multiple=True,
    metavar="LABEL=COLUMN",
    help="With --by: the column of a label, if called otherwise.",
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows to show.")
@click.option("-o", "--output", type=ESTIMATES, help="Write all rows to .csv, .json or .parquet.")
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
    by: tuple[str, ...],
    label: tuple[str, ...],
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
    --vocabulary the keys that occur in the table are taken as publicly known; with --discover they are not, and popular
    ones are found. Whoever runs this sees the table: it is
    for trying out, and for data owners who pass on estimates only.
    """
    from hubbub.calls.run import run
    from hubbub.cli._cost import announce_cost
    from hubbub.cli._show import describe_task, show_estimate, show_warnings, shown, task_facts
    from hubbub.tables.sources import Source

    def watch(step: str, total: int, task: Task) -> AbstractContextManager[Callable[[int], None]]:
        if step == "privatizing":
            announce_cost(task, total)
        return progress(step, total, as_json)

    if output is not None:
        check_not_over(output, table)
    spelled = spelling_of(options)
    wished = wish_fields(options)
    if click.get_current_context().get_parameter_source("users") is not ParameterSource.COMMANDLINE:
        del wished["users"]
    text = options["value_range"]
    span = None if text is None else span_of(text)
    if spelled is not None:
        if vocabulary is not None or simultaneous or correct or by:
            raise click.UsageError(
                "--discover goes without --vocabulary, --simultaneous, --correct and --by."
            )
        columns = (user, key, value)
        _discover(
            Source(table, form), columns, spelled, (span, wished), (interval, top, output, as_json), watch
        )
        return
    columns = (user, key, value)
    asked: dict[str, Any] = {
        "range": span,
        "vocabulary": vocabulary,
        "level": interval,
        "simultaneous": simultaneous,
        "correct": correct,
        "watch": watch,
        **wished,
    }
    if label and not by:
        raise click.UsageError("--label goes with --by.")
    if by:
        _groups(Source(table, form), columns, by, label, asked, (top, output, verbose, as_json))
        return
    result = run(Source(table, form), *columns, **asked)
    task, summary = result.task, result.summary
    assert task is not None
    assert summary is not None
    if output is not None:
        result.save(output)

    def show() -> None:
        show_warnings(result)
        tell(describe_task(task, promise=False, verbose=verbose))
        tell(f"input      {summary.words()}")
        click.echo()
        show_estimate(result, top)
        if output is not None:
            click.echo(f"All {len(result):,} rows written to {output}")

    data = {
        **result.about(),
        **task_facts(task, "table"),
        "summary": summary.as_dict(),
        **shown(result, top),
        "file": str(output) if output else None,
        "guarantee": result.guarantee.as_dict(),
    }
    say(as_json, data, show)


def _groups(
    source: Source,
    columns: tuple[str, str, str | None],
    by: tuple[str, ...],
    label: tuple[str, ...],
    asked: dict[str, Any],
    shown: tuple[int, Path | None, bool, bool],
) -> None:
    """The same for every group by itself."""
    from hubbub.calls.run import run_by
    from hubbub.cli._portions import names_in, pairs, show_groups
    from hubbub.cli._show import describe_task, show_warnings, task_facts

    top, output, verbose, as_json = shown
    labels = pairs(label, "--label LABEL=COLUMN")
    found = run_by(source, names_in(by), *columns, labels=labels, **asked)
    first = next(iter(found))
    task, summary = first.task, first.summary
    assert task is not None
    assert summary is not None
    if output is not None:
        found.save(output)

    def show() -> None:
        show_warnings(found)
        tell(describe_task(task, promise=False, verbose=verbose))
        tell(f"input      {summary.words()}")
        click.echo()
        show_groups(found, top)
        if output is not None:
            click.echo(f"All rows written to {output}")

    facts = {**task_facts(task, "table"), "summary": summary.as_dict()}
    say(as_json, {**found.plain(top), **facts, "file": str(output) if output else None}, show)


def _discover(
    source: Source,
    columns: tuple[str, str, str | None],
    spelled: tuple[Spelling, float],
    wished: tuple[tuple[float, float] | None, dict[str, Any]],
    shown: tuple[float, int, Path | None, bool],
    watch: Any,
) -> None:
    """The same without taking the table's keys as known."""
    from hubbub.calls.discovered import run_discovery
    from hubbub.cli._show import describe_task, show_warnings
    from hubbub.cli.discover import check_ending, show
    from hubbub.plan.proposal import Wish, span_for

    (span, fields), (interval, top, output, as_json) = wished, shown
    check_ending(output)
    users = fields.pop("users", None)
    wish = Wish(span=span_for(span, columns[2] is not None), **fields)
    found, summary = run_discovery(
        source,
        columns,
        wish,
        spelled[0],
        name=source.stem,
        false_finds=spelled[1],
        level=interval,
        users=users,
        watch=watch,
    )
    if output is not None:
        found.save(output)

    def tell_all() -> None:
        show_warnings(found)
        tell(describe_task(found.task, promise=False))
        tell(f"input      {summary.words()}")
        click.echo()
        show(found, top, output)

    data = {**found.about(), "keys": found.rows(top), "total": len(found), "summary": summary.as_dict()}
    say(as_json, data | {"file": str(output) if output else None}, tell_all)
