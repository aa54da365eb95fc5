"""hubbub reproduce"""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import FOLDER, Command, json_option, progress, say
from hubbub.primitives.errors import Refused


@click.command(cls=Command, example="hubbub reproduce --list")
@click.argument("names", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="List what can be run.")
@click.option("--quick/--full", default=True, show_default=True, help="Fewer repetitions, or all.")
@click.option("-o", "--output", type=FOLDER, default="out", show_default=True, help="Folder to write to.")
@click.option(
    "--data",
    type=FOLDER,
    help="Folder with the data sets, for tables on real data.",
)
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; left out: one per core.")
@json_option
def command(
    *,
    names: tuple[str, ...],
    listing: bool,
    quick: bool,
    output: Path,
    data: Path | None,
    workers: int,
    as_json: bool,
) -> None:
    """Run published figures and tables again.

    Each gives a CSV file, a picture, and a page that sets our numbers beside the published ones.

    An interrupted run goes on where it was when started again with the same output folder.
    """
    from hubbub.engines.pool import cores
    from hubbub.experiments.catalogue import catalogue
    from hubbub.experiments.runner import Request

    known = catalogue()
    if listing:
        titles = {name: entry.title for name, entry in known.items()}
        say(
            as_json,
            {"experiments": titles},
            "\n".join(f"{name:<20} {title}" for name, title in titles.items()),
        )
        return
    if not names:
        raise click.UsageError("Name what to run, or ask for --list.")
    for name in names:
        if name not in known:
            raise Refused(f"There is nothing called {name!r}; known are {', '.join(known)}.")
    if data is not None and not data.exists():
        raise Refused(f"{data} does not exist.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Refused(f"{output} cannot be written: {problem.strerror or problem}.") from None
    written = []
    request = Request(quick, data)
    for name in names:
        with progress(name, len(known[name].jobs(request)), as_json) as advance:
            written += known[name].run(output, request, workers or cores(), advance)
    files = [str(path) for path in written]
    say(as_json, {"files": files}, "\n".join(f"written {path}" for path in files))
