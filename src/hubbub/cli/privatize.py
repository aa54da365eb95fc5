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
    output: Path,
    form: TextForm,
    as_json: bool,
) -> None:
    """Turn a table of records into private reports.

    TABLE is a .csv or .tsv file (also .gz), a .parquet or .npz file, or - for CSV on standard input. The secret
    randomness comes from the operating system. Whoever runs this sees the table; on real devices use hubbub.Client
    instead.
    """
    from hubbub.calls.run import privatize
    from hubbub.cli._cost import announce_cost
    from hubbub.primitives.envelope import check_ending
    from hubbub.primitives.errors import optional
    from hubbub.protocol.files import REPORTS
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
    reports = privatize(Source(table, form), loaded, user, key, value, watch=watch)
    reports.save(output)
    summary, guarantee = reports.summary, reports.guarantee
    data = {
        "file": str(output),
        "reports": len(reports),
        "report_bytes": loaded.mechanism.layout.width,
        "summary": summary.as_dict(),
        "guarantee": guarantee.as_dict(),
    }
    say(
        as_json,
        data,
        f"{summary.words()}\n{len(reports):,} reports of {loaded.mechanism.layout.width} bytes "
        f"written to {output}\n{guarantee.words()}",
    )
