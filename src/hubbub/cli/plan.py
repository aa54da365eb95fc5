"""hubbub plan"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, say
from hubbub.cli._tasks import mechanism_options
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal
    from hubbub.plan.entries import Limit
    from hubbub.plan.ranking import Option

Number = TypeVar("Number", int, float)


@click.command()
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional", "sum"]),
    default="frequency",
    show_default=True,
)
@click.option("--keys", type=click.IntRange(1), help="How many keys there are.")
@click.option("--vocabulary", type=EXISTING, help="Text file with all keys, one per line.")
@click.option(
    "--open", "bits", type=int, metavar="BITS", help="Open vocabulary folded to BITS bits (64: wide)."
)
@click.option("--max-entries", type=int, help="Left out: the best for --entries, or 32.")
@click.option("--range", "value_range", metavar="LOW:HIGH", help="Range of the values; left out: sets.")
@click.option("--users", type=click.IntRange(2), default=100_000, show_default=True)
@click.option(
    "--epsilon", type=float, default=1.0, show_default=True, help="Of one report; shuffled: the central one."
)
@click.option("--unit", type=click.Choice(["record", "entry", "l1"]), default="record", show_default=True)
@click.option("--distance", type=float, help="l1 distance that is protected (unit l1).")
@click.option("--delta", type=float, default=0.0, help="Failure probability (unit l1, or shuffled).")
@click.option("--model", type=click.Choice(["local", "shuffled"]), default="local", show_default=True)
@click.option("--bytes", "most_bytes", type=click.IntRange(1), help="Largest report allowed.")
@click.option("--want-error", type=float, help="Also say how many users, or which epsilon, reach this error.")
@mechanism_options
@click.option("--entries", type=EXISTING, help="CSV of entries,users: also say which max-entries is best.")
@click.option("--frequency", type=float, help="Of the most frequent key, for --entries.")
@click.option("--shares", type=EXISTING, help="CSV of share,keys: the keys that --entries is about.")
@click.option("--plot", type=OUTPUT, help="Write a picture of error against --against.")
@click.option(
    "--against", type=click.Choice(["epsilon", "users", "bytes"]), default="epsilon", show_default=True
)
@click.option("-o", "--output", type=OUTPUT, help="Write the winner's task file.")
@click.option("--name", default="planned", show_default=True, help="Name of that task.")
@json_option
def command(
    *,
    keys: int | None,
    vocabulary: Path | None,
    bits: int | None,
    model: str,
    most_bytes: int | None,
    want_error: float | None,
    mechanism: str,
    best: bool,
    entries: Path | None,
    plot: Path | None,
    against: str,
    output: Path | None,
    name: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Which mechanism reaches a goal, with what error, before anything is collected."""
    from dataclasses import replace

    from hubbub.cli._tasks import key_space, parse_range, with_bits
    from hubbub.plan.ranking import pick, rank
    from hubbub.protocol.task import Task

    space = key_space(keys if keys or vocabulary or bits else 1000, vocabulary, bits)
    given = options["max_entries"]
    goal = _goal(space, model, {**options, "max_entries": 32 if given is None else given})
    low, high = parse_range(options["value_range"], goal.values == "signed")
    largest = max(abs(low), abs(high))
    size = _unit_size(goal, low, high)
    rules: _Rules = {
        "most_bytes": most_bytes,
        "name": None if mechanism == "auto" else mechanism,
        "best": best,
    }
    data: dict[str, Any] = {}
    lines: list[str] = []
    if entries is not None:
        limits = _limits(data, lines, goal, entries, options, size, rules)
        goal = goal if given is not None else replace(goal, max_entries=limits[0].max_entries)
        lines += [] if given is not None else [f"The plan is for max-entries {goal.max_entries}."]
    elif options["frequency"] is not None or options["shares"] is not None:
        raise Refused("--frequency and --shares are about --entries.")
    ranking = rank(goal, size, most_bytes, rules["name"])
    chosen = pick(ranking, best)
    if as_json:
        data["options"] = [option.as_dict(largest) for option in ranking]
        data["chosen"] = chosen.as_dict(largest)
    if want_error is not None:
        lines.insert(0, _inverse(data, goal, want_error, size, rules))
    if output is not None:
        if chosen.mechanism is None:
            raise Refused("No mechanism reaches this goal; no task was written.")
        parsed = {"name": name, "low": low, "high": high, "mechanism": chosen.mechanism}
        Task.parse({**parsed, "keys": with_bits(space, chosen.mechanism)}).save(output)
        lines.append(f"Task of {chosen.name} written to {output}")
    if plot is not None:
        draw(plot, goal, size, against, ranking)
        lines.append(f"Picture: {plot}")
    data["file"] = str(output) if output else None
    say(as_json, data, lambda: show(ranking, chosen, lines, goal, largest))


class _Rules(TypedDict):
    """What may be taken."""

    most_bytes: int | None
    name: str | None
    best: bool


def _goal(space: dict[str, Any], model: str, options: dict[str, Any]) -> Goal:
    """What the options ask for, checked."""
    from dataclasses import replace

    from hubbub.cli._tasks import goal_of
    from hubbub.model.guarantee import Guarantee
    from hubbub.privacy.shuffle import check_delta

    has_values = options["value_range"] is not None
    Guarantee(options["epsilon"], options["unit"], delta=options["delta"], distance=options["distance"])
    if options["delta"] and options["unit"] != "l1" and model == "local":
        raise Refused("A delta goes with --unit l1 or with --model shuffled.")
    if model == "shuffled":
        check_delta(options["delta"])
    if options["quantity"] in ("mean", "conditional") and not has_values:
        raise Refused("Means need values: give their range with --range LOW:HIGH.")
    goal = goal_of({**options, "family": "walsh"}, space, has_values)
    return replace(goal, central_epsilon=goal.epsilon if model == "shuffled" else None)


def _inverse(data: dict[str, Any], goal: Goal, want_error: float, size: float, rules: _Rules) -> str:
    """How many users, or which epsilon, reach an error."""
    from hubbub.plan.inverse import Inverse

    if goal.central_epsilon is not None:
        raise Refused("--want-error works in the local model.")
    inverse = Inverse(goal, size, **rules)
    users = data["users_for_error"] = inverse.users_for(want_error)
    epsilon = data["epsilon_for_error"] = inverse.epsilon_for(want_error)
    return (
        f"An error of {want_error:g} per key takes {users:,} users at epsilon {goal.epsilon:g}, "
        f"or epsilon {epsilon:.3g} with {goal.users:,} users."
    )


def _limits(
    data: dict[str, Any],
    lines: list[str],
    goal: Goal,
    entries: Path,
    options: dict[str, Any],
    size: float,
    rules: _Rules,
) -> list[Limit]:
    """Which max_entries is best: in the data, and in words."""
    from hubbub.plan.entries import entry_limits
    from hubbub.plan.profile import Lengths, Profile

    lengths = Lengths.of(dict(read_pairs(entries, "entries and users", int)), goal.keys)
    if options["shares"] is None:
        profile = Profile.zipf(lengths, goal.keys, options["frequency"])
    elif options["frequency"] is None:
        shares = read_pairs(options["shares"], "a share and a number of keys", float)
        profile = Profile.given(lengths, goal.keys, shares)
    else:
        raise Refused("Give --frequency or --shares, not both.")
    limits = entry_limits(goal, profile, size, **rules)
    data["profile"] = profile.words()
    data["max_entries"] = [limit.as_dict() for limit in limits]
    lines.append(
        f"max-entries, by root mean square error over {profile.words()}; entries that are dropped, and how many of all "
        "keys stand out from zero:"
    )
    lines += [
        f"  {limit.max_entries:>6}  error {limit.total:.4f} = noise {limit.noise:.4f} and bias {limit.bias:.4f} "
        f"({100 * limit.dropped:.1f}% dropped, {limit.found:,} found)"
        for limit in limits[:6]
    ]
    if options["shares"] is None and options["frequency"] is None:
        lines.append("The exponent is a guess: --frequency, the share of the most frequent key, fits it.")
    if not limits[0].found:
        lines.append(
            f"No key would stand out from zero, whatever max-entries is: the largest share is {profile.shares[0]:.2g}, "
            f"the error {limits[0].total:.2g}. It takes more users, or a larger epsilon."
        )
    return limits


def _unit_size(goal: Goal, low: float, high: float) -> float:
    """What 1 on the scale of [-1, 1] stands for."""
    if goal.quantity == "frequency" or goal.values == "set":
        return 1.0
    return (high - low) / 2 if goal.quantity == "conditional" else max(abs(low), abs(high))


def read_pairs(path: Path, what: str, kind: Callable[[str], Number]) -> dict[Number, int]:
    """Lines of a number and how many there are of it, after a header."""
    from hubbub.primitives.envelope import read_file

    pairs: dict[Number, int] = {}
    pattern = re.compile(r"\s*([0-9]+)\s*" if kind is int else r"\s*([0-9]*\.?[0-9]+)\s*", re.ASCII)
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        cells = line.split(",")
        if number == 1 or not line.strip():
            continue
        matches = (
            len(cells) == 2
            and pattern.fullmatch(cells[0])
            and re.fullmatch(r"\s*[0-9]+\s*", cells[1], re.ASCII)
        )
        if not matches or max(map(len, cells)) > 20:
            raise Refused(f"{path}, line {number}: {what} are expected, separated by a comma.")
        key = kind(cells[0])
        pairs[key] = pairs.get(key, 0) + int(cells[1])
    return pairs


def show(options: list[Option], chosen: Option, lines: list[str], goal: Goal, largest: float) -> None:
    """The ranking as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{goal.quantity}, {goal.users:,} users, {goal.keys:,} keys", title_justify="left")
    table.add_column("mechanism", no_wrap=True)
    for name in ("error per key", "largest error", "detectable", "bytes", "hashes"):
        table.add_column(name, justify="right")
    table.add_column("state", justify="right")
    for option in options:
        if option.mechanism is not None:
            numbers = [f"{x:.4g}" for x in (option.error, option.largest, option.detectable)]
            table.add_row(option.name, *numbers, str(option.bytes), str(option.hashes), option.server)
    console.print(table)
    console.print(
        "error: standard error of a rare key; largest: median of the worst over all keys; detectable: smallest "
        "true value that stands out from zero among all keys (95%); hashes: per report on the device; state: "
        "what the server holds."
    )
    if chosen.mechanism is not None:
        console.print(f"{_verdict(options[0], chosen)} {chosen.promise(largest).words()}", markup=False)
        if chosen.shuffled:
            console.print(chosen.shuffled, markup=False)
    for option in options:
        if option.mechanism is None:
            console.print(f"Not {option.name}: {option.reason}", markup=False)
    for line in lines:
        console.print(line, markup=False)


def _verdict(best: Option, chosen: Option) -> str:
    if chosen is best:
        return f"Best: {best.name}."
    return (
        f"Taken: {chosen.name} with {chosen.bytes} instead of {best.bytes} bytes a report and "
        f"{100 * (chosen.error / best.error - 1):.1f}% more error than the best (--best takes that)."
    )


def draw(path: Path, goal: Goal, size: float, against: str, options: list[Option]) -> None:
    """Error of the leading mechanisms against epsilon, users or bytes."""
    import io
    from dataclasses import replace

    import numpy as np

    from hubbub.mechanisms.registry import mechanisms
    from hubbub.plan.ranking import noise, offers, rank, without_sum
    from hubbub.primitives.envelope import write_atomic
    from hubbub.primitives.errors import optional

    if options[0].mechanism is None:
        raise Refused("No mechanism reaches this goal; no picture was drawn.")
    optional("matplotlib", "plots").use("Agg")
    pyplot = optional("matplotlib.pyplot", "plots")
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    leading = [option.name for option in options if option.mechanism is not None][:5]
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in leading}
    if against == "bytes":
        if goal.central_epsilon is not None:
            raise Refused("A picture against bytes is drawn for the local model.")
        plain = replace(goal, quantity=without_sum(goal.quantity, goal.values))
        size *= goal.users if goal.quantity == "sum" else 1
        for name in leading:
            offered = offers(mechanisms()[name], plain)
            curves[name] = sorted((float(m.layout.width), noise(m, plain) ** 0.5 * size) for m in offered)
    else:
        spread = np.geomspace(0.25, 4, 9) if against == "epsilon" else np.geomspace(0.1, 10, 7)
        start = goal.epsilon if against == "epsilon" else goal.users
        for factor in spread:
            value = start * float(factor)
            if against == "epsilon" and value > 16:
                continue
            change: dict[str, Any] = {against: value if against == "epsilon" else max(2, int(value))}
            if goal.central_epsilon is not None and against == "epsilon":
                change = {"central_epsilon": value}
            for option in rank(replace(goal, **change), size):
                if option.name in curves and option.mechanism is not None:
                    curves[option.name].append((value, option.error))
    for name, points in curves.items():
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel=against, ylabel="standard error per key")
    axes.legend(frameon=False)
    image = io.BytesIO()
    try:
        figure.savefig(image, dpi=120, format=path.suffix.lstrip(".") or "png")
    except ValueError as problem:
        raise Refused(f"{path} cannot be written: {problem}.") from None
    finally:
        pyplot.close(figure)
    write_atomic(path, image.getvalue())
