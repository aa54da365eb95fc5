"""Options that describe a task, and the task they describe."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal, Mechanism, Quantity
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
    """The task that the options describe: the planner chooses the mechanism, or the parameters of the named one."""
    from dataclasses import replace

    from hubbub.model.guarantee import Guarantee
    from hubbub.plan.ranking import choose, suits, without_sum
    from hubbub.protocol.task import Task

    if options["count_lengths"]:
        keys = {**keys, "count_lengths": True}
    low, high = parse_range(options["value_range"], has_values)
    named = None if options["mechanism"] == "auto" else options["mechanism"]
    known = mechanism_fields(named) if named else set()
    if options["delta"] and options["unit"] != "l1" and "delta" not in known:
        raise Refused("A delta goes with --unit l1; guarantees per record and per entry are pure.")
    Guarantee(options["epsilon"], options["unit"], delta=options["delta"], distance=options["distance"])
    settings = parse_settings(options["settings"])
    if settings and not named:
        raise Refused("--set needs a mechanism to set it for: name one with --mechanism.")
    asked = options["quantity"] or default_quantity(has_values, low, high, options["unit"])
    quantity = without_sum(asked, "signed" if has_values else "set")
    goal = goal_of({**options, "quantity": quantity}, keys, has_values)
    if named and not options["quantity"] and not suits(goal, named, settings):
        # Nobody asked for the usual quantity: what the named mechanism can do will be as good.
        others = (replace(goal, quantity=other) for other in ("mean", "frequency"))
        goal = next((other for other in others if suits(other, named, settings)), goal)
    mechanism = choose(goal, name=named, settings=settings, best=options["best"])
    described = {
        "name": name,
        "low": low,
        "high": high,
        "keys": with_bits(keys, mechanism),
        "mechanism": mechanism,
    }
    return Task.parse(described)


def goal_of(options: dict[str, Any], keys: dict[str, Any], has_values: bool) -> Goal:
    """What the options ask of the planner."""
    from hubbub.model.mechanism import Goal

    low, high = parse_range(options["value_range"], has_values)
    return Goal(
        options["quantity"],
        options["epsilon"],
        options["max_entries"],
        "signed" if has_values else "set",
        options["unit"],
        scaled_distance(options["distance"], low, high, has_values),
        options["delta"],
        options["users"],
        keys=count_of(keys) or 1 << (64 if keys["kind"] == "wide" else keys.get("bits") or 20),
        family=options["family"],
        center=(low + high) / 2 / max(abs(low), abs(high)) if has_values else 0.0,
        open=keys["kind"] != "closed",
    )


def count_of(keys: dict[str, Any]) -> int:
    """How many keys a closed vocabulary has, with those that count lengths; 0 for an open one."""
    from hubbub.model.keys import LENGTH_KEYS

    listed = keys.get("size") or len(keys.get("vocabulary") or ())
    return listed + len(LENGTH_KEYS) if listed and keys.get("count_lengths") else listed


def scaled_distance(distance: float | None, low: float, high: float, has_values: bool) -> float | None:
    """An l1 distance in units of the largest value."""
    return distance / max(abs(low), abs(high)) if distance is not None and has_values else distance


def key_space(size: int | None, vocabulary: Path | None, bits: int | None) -> dict[str, Any]:
    """The keys that options describe: a number, a file, or an open vocabulary."""
    if sum(choice is not None for choice in (size, vocabulary, bits)) != 1:
        raise click.UsageError("Give one of --keys, --vocabulary and --open.")
    if bits is not None and bits != 64 and not 2 <= bits <= 30:
        raise Refused(f"The bits of an open vocabulary are between 2 and 30, or 64, not {bits}.")
    if size is not None:
        return {"kind": "closed", "size": size}
    if vocabulary is not None:
        return {"kind": "closed", "vocabulary": read_vocabulary(vocabulary)}
    return {"kind": "wide"} if bits == 64 else {"kind": "folded", "bits": bits}


def read_vocabulary(path: Path) -> list[str]:
    """The keys in a text file, one per line."""
    from hubbub.primitives.envelope import read_file

    try:
        keys = [line for line in read_file(path).decode("utf-8-sig").splitlines() if line]
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8 text.") from None
    if not keys:
        raise Refused(f"{path} lists no keys.")
    return keys


def with_bits(keys: dict[str, Any], mechanism: Mechanism) -> dict[str, Any]:
    """Room for two codes per key where a mechanism needs them."""
    from hubbub.model.keys import bits_for

    if not mechanism.sided or keys["kind"] != "closed" or keys.get("bits"):
        return keys
    return {**keys, "bits": bits_for(2 * count_of(keys))}


def mechanism_fields(name: str) -> set[str]:
    """Parameter names of a mechanism; an unknown one is refused."""
    from hubbub.mechanisms.registry import mechanisms

    known = mechanisms()
    if name not in known:
        raise Refused(f"There is no mechanism called {name!r}; known are {', '.join(known)}.")
    return set(known[name].model_fields)


def quantity_for(task: Task, options: dict[str, Any], has_values: bool) -> Quantity:
    """What to estimate: what is asked for, or the usual quantity, or what the task's mechanism offers first."""
    usual = default_quantity(has_values, task.low, task.high, options["unit"])
    asked: Quantity | None = options["quantity"]
    return asked or (usual if usual in task.mechanism.quantities else task.mechanism.quantities[0])


def default_quantity(has_values: bool, low: float, high: float, unit: str) -> Quantity:
    """What people want to know first, where it can be had."""
    if not has_values:
        return "frequency"
    return "mean" if low == -high or unit != "record" else "conditional"


def parse_range(text: str | None, has_values: bool) -> tuple[float, float]:
    if not has_values:
        if text is not None:
            raise Refused("--range is for values, and these are sets: name the values, or leave it out.")
        return -1.0, 1.0
    if text is None:
        raise Refused("Values need a range: --range LOW:HIGH, decided before looking at the data.")
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise Refused(f"A range is written LOW:HIGH, for instance 1:5, not {text!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise Refused(f"The value range {text} is empty or infinite.")
    return low, high


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    parsed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise Refused(f"A setting is written NAME=VALUE, not {setting!r}.")
        if name in ("name", "epsilon", "max_entries"):
            raise Refused(f"The {name} has an option of its own; --set is for other parameters.")
        try:
            parsed[name] = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            parsed[name] = text
    return parsed
