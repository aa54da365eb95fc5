"""hubbub task new | show | export"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Group, json_option, say, verbose_option
from hubbub.cli._portions import pairs
from hubbub.cli._tasks import build_task, key_space, task_options


@click.group(cls=Group)
def command() -> None:
    """Make, show or export a task: what is collected, and how."""


@command.command(
    example="""
    hubbub task new --name visits --vocabulary pages.txt --epsilon 1 \\
      --max-entries 4 -o task.toml
    """
)
@click.option("--name", required=True, help="What is collected, in a few words.")
@click.option(
    "--keys", "size", type=int, metavar="N", help="How many keys there are: 0 .. N - 1 (closed vocabulary)."
)
@click.option("--vocabulary", type=EXISTING, help="Closed vocabulary: a text file, one key per line.")
@click.option(
    "--open", "bits", type=int, metavar="BITS", help="Open vocabulary folded to BITS bits (64: wide)."
)
@click.option("--values/--sets", "has_values", default=None, help="Values per key, or sets of keys.")
@click.option("--cohorts", type=int, default=1, show_default=True, help="Independent code maps.")
@click.option(
    "--period",
    type=click.Choice(["once", "day", "week", "month"]),
    default="once",
    show_default=True,
    help="How often devices report.",
)
@click.option(
    "--reports-per-period",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Fresh reports that a device may make in a period.",
)
@click.option(
    "--rotation",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Let a device take part in one of so many periods, drawn once; it is silent in the others.",
)
@click.option(
    "--memoize-cap",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Answer a record that was reported before with the same report again (memoize = record), and make reports for "
    "at most N distinct records of a device, ever.",
)
@click.option(
    "--messages",
    type=float,
    default=0.0,
    help="For a shuffler: reports made at a time, a random number with this mean; left out: exactly one.",
)
@click.option(
    "--minimum-reports",
    type=int,
    default=0,
    show_default=True,
    help="Withhold estimates below this many reports, and let them advance by as many at a time. With 0 they move with "
    "every report: the difference of two readings may be about a single one.",
)
@click.option(
    "--labels",
    multiple=True,
    metavar="LABEL=VALUE,VALUE",
    help="What is public about whoever reports, with all its values; groups can be estimated by it.",
)
@click.option(
    "--seed-from",
    type=click.Choice(["device", "server"]),
    default="device",
    show_default=True,
    help="Who draws public seeds; from the server, forgers cannot choose them.",
)
@task_options
@click.option("-o", "--output", type=OUTPUT, required=True, help="Task file to write.")
@verbose_option
@json_option
def new(
    *,
    name: str,
    size: int | None,
    vocabulary: Path | None,
    bits: int | None,
    has_values: bool | None,
    cohorts: int,
    period: str,
    reports_per_period: int,
    rotation: int,
    memoize_cap: int | None,
    messages: float,
    minimum_reports: int,
    labels: tuple[str, ...],
    seed_from: str,
    output: Path,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a new task file."""
    from hubbub.cli._show import describe_task, task_facts
    from hubbub.protocol.task import Task

    keys = key_space(size, vocabulary, bits)
    if has_values is None:
        has_values = options["value_range"] is not None
    # Seeds have to be enough for all reports.
    expected = min(1 << 40, round((options["users"] or 100_000) * min(max(1.0, messages), 1e6)))
    wanted = {**options, "users": expected, "seed_from": seed_from}
    task = build_task(name, {**keys, "cohorts": cohorts}, has_values, wanted)
    rules = {
        "period": period,
        "reports_per_period": reports_per_period,
        "rotation": rotation,
        **({} if memoize_cap is None else {"memoize": "record", "memoize_cap": memoize_cap}),
        "messages": messages,
        "minimum_reports": minimum_reports,
        "labels": {
            label: values.split(",") for label, values in pairs(labels, "--labels LABEL=VALUE,VALUE").items()
        },
    }
    task = Task.parse({**{name: getattr(task, name) for name in Task.model_fields}, **rules})
    task.save(output)
    say(
        as_json,
        {**task_facts(task), "file": str(output)},
        f"{describe_task(task, verbose=verbose)}\nwritten to {output}",
    )


@command.command(example="hubbub task show task.toml --verbose")
@click.argument("path", type=EXISTING)
@verbose_option
@json_option
def show(*, path: Path, verbose: bool, as_json: bool) -> None:
    """Say what a task file describes."""
    from hubbub.cli._show import describe_task, task_facts
    from hubbub.protocol.task import Task

    task = Task.load(path)
    say(as_json, task_facts(task), describe_task(task, verbose=verbose))


@command.command(example="hubbub task export task.toml -o task.json")
@click.argument("path", type=EXISTING)
@click.option("-o", "--output", type=OUTPUT, required=True, help="Document to write (.json).")
@json_option
def export(*, path: Path, output: Path, as_json: bool) -> None:
    """Write a task as devices in other languages read it.

    It is one JSON document in which everything is worked out. The pin that is printed is its SHA-256: a page that gives
    it to Task.fetch takes this document and no other.
    """
    from hubbub.primitives.envelope import refuse_ending, write_atomic
    from hubbub.protocol.device_document import device_document, document_digest
    from hubbub.protocol.task import Task

    refuse_ending(output, "a task document", ".json")
    task = Task.load(path)
    document = device_document(task)
    write_atomic(output, document)
    facts = {
        "file": str(output),
        "bytes": len(document),
        "task": task.digest.hex(),
        "pin": document_digest(document),
    }
    say(
        as_json,
        facts,
        f"{task.name} ({facts['task']}) written to {output}: {len(document):,} bytes\npin {facts['pin']}",
    )
