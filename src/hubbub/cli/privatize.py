"""hubbub privatize"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, table_options

if TYPE_CHECKING:
    from hubbub.tables.sources import TextForm


@click.command(
    cls=Command,
    example="hubbub privatize visits.csv task.toml --user user --key page -o visits.reports",
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
    from hubbub.cli._cost import announce_cost
    from hubbub.device.client import privatize
    from hubbub.engines.arrow import save_parquet
    from hubbub.primitives.coins import SecretCoins, SystemSeeds
    from hubbub.primitives.envelope import check_ending
    from hubbub.primitives.errors import optional
    from hubbub.protocol.files import REPORTS, save_reports
    from hubbub.protocol.task import Task
    from hubbub.tables.records import encode_table, read_table

    as_parquet = output.suffix.lower() == ".parquet"
    if as_parquet:
        optional("pyarrow", "lake")
    else:
        check_ending(output, REPORTS)
    loaded = Task.load(task)
    entries, tidied = encode_table(loaded, read_table(table, user, key, value, form))
    announce_cost(loaded, len(entries))
    with progress("privatizing", len(entries), as_json) as advance:
        packed, sampled = privatize(loaded, entries, SecretCoins(), SystemSeeds(), advance)
    if as_parquet:
        save_parquet(output, loaded, packed, None)
    else:
        save_reports(output, loaded, packed)
    summary = tidied + sampled
    guarantee = replace(loaded.guarantee, noise="table")
    data = {
        "file": str(output),
        "reports": len(packed),
        "report_bytes": loaded.mechanism.layout.width,
        "summary": summary.as_dict(),
        "guarantee": guarantee.as_dict(),
    }
    say(
        as_json,
        data,
        f"{summary.words()}\n{len(packed):,} reports of {loaded.mechanism.layout.width} bytes "
        f"written to {output}\n{guarantee.words()}",
    )
