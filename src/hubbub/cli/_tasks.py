"""Options that describe a task, and the task they describe."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

_OPTIONS = [
    click.option("--epsilon", type=float, required=True, help="Privacy parameter of one report."),
    click.option("--max-entries", type=int, required=True, help="Entries of a record that count."),
    click.option("--range", "value_range", metavar="LOW:HIGH", help="Range of the values."),
    click.option(
        "--estimate",
        "quantity",
        type=click.Choice(["frequency", "mean", "conditional", "sum"]),
        help="What to estimate [default: frequency for sets; for values the mean, or the mean among "
        "those who have the key when 0 is not the middle of the range].",
    ),
    click.option(
        "--unit",
        type=click.Choice(["record", "entry", "l1"]),
        default="record",
        show_default=True,
        help="What is protected.",
    ),
    click.option("--distance", type=float, help="l1 distance that is protected (unit l1)."),
    click.option("--delta", type=float, default=0.0, help="Failure probability (unit l1 only)."),
    click.option(
        "--family",
        type=click.Choice(["walsh", "prf"]),
        default="walsh",
        show_default=True,
        help="Hash family: walsh decodes fast, prf is as published.",
    ),
    click.option(
        "--users",
        type=click.IntRange(1),
        default=100_000,
        show_default=True,
        help="Expected users, for the planner; run takes those of the table if this is not given.",
    ),
    click.option(
        "--count-lengths",
        is_flag=True,
        help="Have reports count, privately, how much is lost to --max-entries (takes one entry of long records).",
    ),
    click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any other mechanism parameter."
    ),
]


_MECHANISM = [
    click.option(
        "--mechanism",
        default="auto",
        show_default=True,
        help="Mechanism, with its best parameters; auto: the shortest report within 5% of the lowest error.",
    ),
    click.option("--best", is_flag=True, help="The lowest error, however long the report."),
]


def mechanism_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a mechanism."""
    for option in reversed(_MECHANISM):
        function = option(function)
    return function


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a task."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return mechanism_options(function)


def build_task(name: str, keys: dict[str, Any], has_values: bool, options: dict[str, Any]) -> Task:
    """The task that the options describe."""
    from hubbub.plan.proposal import Wish, span_for

    text = options["value_range"]
    span = span_for(None if text is None else span_of(text), has_values)
    return Wish(span=span, **wish_fields(options)).task(name, keys)


def wish_fields(options: dict[str, Any]) -> dict[str, Any]:
    """What `hubbub.plan.proposal.Wish` takes of the options, but for the range."""
    parsed = {name: value for name, value in options.items() if name != "value_range"}
    named = None if options["mechanism"] == "auto" else options["mechanism"]
    return {**parsed, "mechanism": named, "settings": parse_settings(options["settings"])}


def key_space(size: int | None, vocabulary: Path | None, bits: int | None) -> dict[str, Any]:
    """The keys that options describe: a number, a file, or an open vocabulary."""
    if sum(choice is not None for choice in (size, vocabulary, bits)) != 1:
        raise click.UsageError("Give one of --keys, --vocabulary and --open.")
    if bits is not None and bits != 64 and not 2 <= bits <= 30:
        raise Refused(f"The bits of an open vocabulary are between 2 and 30, or 64, not {bits}.")
    from hubbub.tables.counts import read_vocabulary

    if size is not None:
        return {"kind": "closed", "size": size}
    if vocabulary is not None:
        return {"kind": "closed", "vocabulary": read_vocabulary(vocabulary)}
    return {"kind": "wide"} if bits == 64 else {"kind": "folded", "bits": bits}


def span_of(text: str) -> tuple[float, float]:
    """A range as it is written on the command line."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise Refused(f"A range is written LOW:HIGH, for instance 1:5, not {text!r}.") from None
    return low, high


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    parsed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise Refused(f"A setting is written NAME=VALUE, not {setting!r}.")
        try:
            parsed[name] = tomllib.loads(f"x = {text}")["x"]
        except (ValueError, RecursionError):  # no TOML, or a number of 5000 digits
            parsed[name] = text
    return parsed
