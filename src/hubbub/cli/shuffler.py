"""hubbub shuffler"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say, settings_option

if TYPE_CHECKING:
    from hubbub.protocol.task import Task


@click.command(
    cls=Command,
    example="""
    hubbub shuffler task.toml --collector http://127.0.0.1:8000 \\
      --token SHUFFLER-TOKEN --upload-token UPLOAD-TOKEN --port 0
    """,
)
@click.argument("tasks", type=EXISTING, nargs=-1, required=True)
@click.option("--collector", required=True, metavar="URL", help="Where mixed crowds go.")
@click.option(
    "--token",
    envvar="HUBBUB_SHUFFLER_TOKEN",
    required=True,
    help="The collector's token for shufflers [env: HUBBUB_SHUFFLER_TOKEN].",
)
@click.option(
    "--upload-token",
    "upload_tokens",
    envvar="HUBBUB_UPLOAD_TOKEN",
    multiple=True,
    help="A token that devices may show; repeat it to change tokens one device at a time "
    "[env: HUBBUB_UPLOAD_TOKEN, separated by spaces].",
)
@click.option(
    "--upload-tokens",
    "token_file",
    type=EXISTING,
    help="A file with such tokens, one to a line: where every device has its own.",
)
@click.option(
    "--per-token",
    type=click.IntRange(min=1),
    metavar="REPORTS",
    help="Take at most so many reports of a period with one token; for tokens that are personal.",
)
@click.option(
    "--crowd",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    help="Reports that leave together at least (those of so many people, for tasks with several messages); a task's "
    "minimum_reports can ask for more.",
)
@click.option(
    "--close",
    metavar="WHEN",
    help="When a crowd leaves: full (as soon as it is large enough), period (when its period has ended), or every so "
    "often (30m, 6h, 1d).  [default: full; period for tasks with several messages]",
)
@click.option(
    "--store",
    type=OUTPUT,
    default="shuffler.db",
    show_default=True,
    help="Where sealed reports wait.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8701, show_default=True, help="0: any free one."
)
@settings_option
@json_option
def command(
    *,
    tasks: tuple[Path, ...],
    collector: str,
    token: str,
    upload_tokens: tuple[str, ...],
    token_file: Path | None,
    per_token: int | None,
    crowd: int,
    close: str | None,
    store: Path,
    host: str,
    port: int,
    settings: Path | None,
    as_json: bool,
) -> None:
    """Mix sealed reports and pass them on, unread.

    Devices seal reports for the collector's public key and send them here. Run it where the collector's people
    have no access: the two together could tell whose report is whose.
    """
    from hubbub.primitives.errors import Refused, optional
    from hubbub.protocol.strata import label_names
    from hubbub.protocol.task import Task

    optional("uvicorn", "serve")
    optional("starlette", "serve")
    from hubbub.collect.closing import Closing
    from hubbub.collect.mixer import Mixer
    from hubbub.collect.serving import address, listen, run_app
    from hubbub.collect.settings import load_settings
    from hubbub.collect.shuffler import Shuffler, create_shuffler_app

    loaded, (limits, _) = [Task.load(path) for path in tasks], load_settings(settings)
    known = [*upload_tokens, *(_tokens_in(token_file) if token_file else ())]
    if not known:
        raise Refused("Devices need a token: give --upload-token, or --upload-tokens with a file of them.")
    closing = Closing.parse(close) if close else None
    for task in loaded:
        Closing.of(task, closing)  # before the store is touched
    shuffler = Shuffler(
        Mixer(store), loaded, collector, token, known, crowd, closing=closing, per_token=per_token
    )
    sock = listen(host, port)
    data = {"url": address(sock), "collector": collector}
    crowds = {task.digest.hex(): shuffler.least(task) for task in loaded}
    promises = {task.digest.hex(): _promise(task, shuffler.least_people(task)) for task in loaded}
    alike = {task.digest.hex(): label_names(task) for task in loaded if task.labels}
    closes = {name: rule.words for name, rule in shuffler.rules.items()}
    lines = [
        f"{task.name}: crowds of {shuffler.least(task):,} reports or more{shuffler.alike(task)}, which leave "
        f"{closes[name]}: {promises[name]}"
        for name, task in shuffler.tasks.items()
    ]
    text = "\n".join([f"Shuffler on {address(sock)}, for the collector {collector}", *lines, shuffler.people])
    facts = {"crowds": crowds, "promises": promises, "closes": closes, "people": shuffler.people}
    if alike:
        facts["same_labels"] = alike
    say(as_json, {**data, **facts}, text)
    run_app(create_shuffler_app(shuffler, limits), sock)


def _tokens_in(path: Path) -> list[str]:
    """The tokens in a file."""
    from hubbub.primitives.envelope import read_file
    from hubbub.primitives.errors import Refused

    try:
        return read_file(path).decode("ascii").split()
    except ValueError:
        raise Refused(f"{path} is not a file of tokens, one to a line.") from None


def _promise(task: Task, crowd: int) -> str:
    """What the smallest crowd is worth, or why no more than the reports themselves."""
    from hubbub.primitives.errors import Refused
    from hubbub.privacy.over_time import DELTA, round_guarantee

    try:
        promise = round_guarantee(task, crowd, DELTA)
        words = f"{promise.short()}. {promise.note}"
        if task.labels:
            words += (
                " Labels are public: a report hides among those with its own labels, and among no others."
            )
        return words
    except Refused as problem:
        return f"no more than the reports themselves promise. {problem}"
