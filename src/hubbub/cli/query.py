"""`hubbub query`: estimates of keys from a release."""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import EXISTING, Command, json_option, say, tell
from hubbub.primitives.text import visible


@click.command(cls=Command, example="hubbub query counts.hub apple pear")
@click.argument("release", type=EXISTING)
@click.argument("keys", nargs=-1)
@click.option("--keys-from", type=EXISTING, help="File with one key per line.")
@click.option(
    "--all", "all_keys", is_flag=True, help="All keys of the list that the release was declared for."
)
@click.option(
    "--estimator",
    type=click.Choice(["argmax", "difference", "median", "mean"]),
    help="Another estimator than the file's own; median and mean assume all values equally likely.",
)
@json_option
def command(
    *,
    release: Path,
    keys: tuple[str, ...],
    keys_from: Path | None,
    all_keys: bool,
    estimator: str | None,
    as_json: bool,
) -> None:
    """Query a release: estimates with 95% intervals for KEYS.

    They are in the order of KEYS.
    """
    if bool(keys) + (keys_from is not None) + all_keys != 1:
        raise click.UsageError("Name keys, or a file of keys with --keys-from, or ask for --all.")
    from hubbub.release.artifact import Release
    from hubbub.tables.counts import read_keys

    opened = Release.open(release)
    asked = read_keys(keys_from) if keys_from is not None else list(keys)
    answers = opened.query(None if all_keys else asked, estimator=estimator)  # type: ignore[arg-type]
    guarantee = opened.guarantee()

    def show() -> None:
        click.echo(f"{'value':>12}{'low':>12}{'high':>12}  {'from':<8}  key")
        for row in answers.rows():
            numbers = f"{row['value']:>12.6g}{row['low']:>12.6g}{row['high']:>12.6g}"
            click.echo(f"{numbers}  {row['source']:<8}  {visible(str(row['key']))}")
        tell(f"{guarantee.short()}; estimator {answers.estimator}; 95% intervals.", err=True)

    data = {
        "answers": list(answers.rows()) if as_json else [],
        "level": answers.level,
        "estimator": answers.estimator,
        "guarantee": guarantee.as_dict(),
    }
    say(as_json, data, show)
