"""hubbub privatize"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import (
    EXISTING,
    OUTPUT,
    Command,
    check_not_over,
    json_option,
    progress,
    say,
    table_options,
)

if TYPE_CHECKING:
    from hubbub.tables.sources import TextForm


@click.command(
    cls=Command,
    example="hubbub privatize visits.csv task.toml --user user --key page -o new.reports",
)
@click.argument("table", type=EXISTING)
@click.argument("task", type=EXISTING)
@click.option("--user", required=True, help="Column that says whose row it is.")
@click.option("--key", required=True, help="Column with the key.")
@click.option("--value", help="Column with the value; left out: sets.")
@click.option(
    "--label",
    multiple=True,
    metavar="LABEL=COLUMN",
    help="Column that tells a label of the task [default: the column that is called so].",
)
@click.option("--day", metavar="COLUMN", help="Column with the day of a row; a user has a record per period.")
@click.option("--period", help="The period that all rows are of, such as 2026-W46.")
@click.option(
    "-o", "--output", type=OUTPUT, required=True, help="Reports file to write; or Parquet, if it ends so."
)
@table_options
@json_option
def command(
    *,
    table: Path,
    task: Path,
    user: str,
    key: str,
    value: str | None,
    label: tuple[str, ...],
    day: str | None,
    period: str | None,
    output: Path,
    form: TextForm,
    as_json: bool,
) -> None:
    """Turn a table of records into private reports.

    TABLE is a .csv or .tsv file (also .gz), a .parquet or .npz file, or - for CSV on standard input. The secret
    randomness comes from the operating system. Whoever runs this sees the table; on real devices use hubbub.Client
    instead.

    If the task has labels, every user needs one value of each, and reports are kept apart by them. Users whose labels
    are missing, unknown or contradictory are counted, and nothing is written. Tasks with rotation, memoize or seeds
    from the server are for devices, which keep these rules, and are refused.
    """
    from hubbub.calls.run import privatize
    from hubbub.cli._cost import announce_cost
    from hubbub.cli._portions import pairs
    from hubbub.cli._show import counted
    from hubbub.primitives.envelope import check_ending
    from hubbub.primitives.errors import optional
    from hubbub.protocol.files import REPORTS
    from hubbub.protocol.strata import text_of
    from hubbub.protocol.task import Task
    from hubbub.tables.sources import Source

    def watch(step: str, total: int, task: Task) -> AbstractContextManager[Callable[[int], None]]:
        announce_cost(task, total)
        return progress(step, total, as_json)

    if output.suffix.lower() == ".parquet":
        optional("pyarrow", "lake")
    else:
        check_ending(output, REPORTS)
    check_not_over(output, table)
    loaded = Task.load(task)
    reports = privatize(
        Source(table, form),
        loaded,
        user,
        key,
        value,
        labels=pairs(label, "--label LABEL=COLUMN"),
        day=day,
        period=period,
        watch=watch,
    )
    reports.save(output)
    summary, guarantee = reports.summary, reports.guarantee
    data = {
        "warnings": list(reports.warnings),
        "file": str(output),
        "reports": len(reports),
        "report_bytes": loaded.mechanism.layout.width,
        "strata": {text_of(loaded, stratum): len(part) for stratum, part in reports.parts.items()},
        "summary": summary.as_dict(),
        "truncation": None if reports.truncation is None else reports.truncation.as_dict(),
        "guarantee": guarantee.as_dict(),
    }
    kept = f", {len(reports.parts):,} strata apart" if reports.parts else ""
    if day is not None:
        kept += "; a user has a record in each period, and what is promised holds for each of them"
    size = counted(loaded.mechanism.layout.width, "byte", "bytes")
    say(
        as_json,
        data,
        "\n".join(
            [
                *reports.warnings,
                summary.words(),
                f"{counted(len(reports), 'report', 'reports')} of {size} written to {output}{kept}",
                guarantee.words(),
            ]
        ),
    )
