"""What commands share that discover keys: how keys are spelled, and what a plan says about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import say, tell
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.plan.overview import Trust
    from hubbub.plan.proposal import Wish
    from hubbub.plan.prospects import Spelling

_OPTIONS = [
    click.option("--discover", is_flag=True, help="Find popular keys that nobody has listed."),
    click.option(
        "--longest",
        type=click.IntRange(2),
        help="With --discover: symbols of a key that count, longer ones are cut [default: 6].",
    ),
    click.option(
        "--alphabet",
        help="With --discover: the symbols of keys, a-z for ranges; others drop a key [default: bytes of UTF-8].",
    ),
    click.option(
        "--false-finds",
        type=float,
        help="With --discover: largest expected share of found keys that nobody holds [default: 0.05].",
    ),
]


def discovery_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how keys to be discovered are spelled."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def spelling_of(options: dict[str, Any]) -> tuple[Spelling, float] | None:
    """Take these options out: how keys are spelled and which share may be false, or None without --discover."""
    discover = options.pop("discover")
    given = {name: options.pop(name) for name in ("longest", "alphabet", "false_finds")}
    if not discover:
        wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
        if wrong:
            raise click.UsageError(f"{wrong[0]} goes with --discover.")
        return None
    from hubbub.plan.prospects import Spelling

    share = 0.05 if given["false_finds"] is None else given["false_finds"]
    return Spelling(given["longest"] or 6, symbols_of(given["alphabet"] or "")), share


def symbols_of(text: str) -> str:
    """The symbols that an alphabet on the command line stands for: a-f is abcdef, a hyphen at an end is itself."""
    symbols, place = "", 0
    while place < len(text):
        if text[place + 1 : place + 2] == "-" and place + 2 < len(text):
            first, last = ord(text[place]), ord(text[place + 2])
            if first > last:
                raise Refused(f"The range {text[place : place + 3]!r} of the alphabet is empty.")
            symbols += "".join(map(chr, range(first, last + 1)))
            place += 3
        else:
            symbols, place = symbols + text[place], place + 1
    return symbols


def plan_discovery(
    wish: Wish,
    spelled: tuple[Spelling, float],
    limits: tuple[Trust, int | None],
    output: Path | None,
    name: str,
    as_json: bool,
) -> None:
    """Say what can be found, in this model and in the other one, and write the task."""
    from dataclasses import replace

    from hubbub.plan.prospects import prospect

    (spelling, false_finds), (model, most_bytes) = spelled, limits
    found = prospect(wish, spelling, model, false_finds, most_bytes)
    another: Trust
    if model == "shuffled":
        rest, another = replace(wish, delta=0.0, messages=0.0), "local"
    else:
        rest, another = replace(wish, delta=min(1e-6, 0.1 / wish.users)), "shuffled"
    other = prospect(rest, spelling, another, false_finds, most_bytes)
    if output is not None:
        found.task(name).save(output)
    data = {
        **found.as_dict(),
        "model": model,
        "other_model": other.as_dict(),
    }

    def show() -> None:
        tell(found.words())
        tell(f"keys       {found.tree.words()}")
        for line in found.plan.closing("--best"):
            tell(line)
        how = "without a shuffler" if another == "local" else f"with a shuffler (delta {rest.delta:.2g})"
        tell(f"The same epsilon {wish.epsilon:g} {how}: {other.words()}")
        tell(
            f"Of what is found, {100 * false_finds:g}% at most is expected to be false: keys that nobody holds."
        )
        if output is not None:
            tell(f"Task of {found.plan.chosen.name} written to {output}")

    say(as_json, data | {"file": str(output) if output else None}, show)
