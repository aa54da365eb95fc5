"""hubbub plan"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, json_option, say
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal
    from hubbub.plan.ranking import Option


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
@click.option("--max-entries", type=int, default=32, show_default=True)
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
@click.option("--entries", type=EXISTING, help="CSV of entries,users: also say which max-entries is best.")
@click.option(
    "--frequency", type=float, default=0.05, show_default=True, help="Of the key that --entries is about."
)
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
    entries: Path | None,
    frequency: float,
    plot: Path | None,
    against: str,
    output: Path | None,
    name: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Which mechanism reaches a goal, with what error, before anything is collected."""
    from hubbub.cli._tasks import key_space, parse_range, with_bits
    from hubbub.plan.ranking import rank
    from hubbub.protocol.task import Task

    space = key_space(keys if keys or vocabulary or bits else 1000, vocabulary, bits)
    goal = _goal(space, model, options)
    low, high = parse_range(options["value_range"], goal.values == "signed")
    largest = max(abs(low), abs(high))
    size = _unit_size(goal, low, high)
    ranking = rank(goal, size, most_bytes)
    data: dict[str, Any] = {"options": [option.as_dict(largest) for option in ranking]}
    lines = []
    if want_error is not None:
        lines.append(_inverse(data, goal, want_error, size, most_bytes))
    if entries is not None:
        lines += _limits(data, goal, entries, frequency, size, most_bytes)
    best = ranking[0].mechanism
    if output is not None:
        if best is None:
            raise Refused("No mechanism reaches this goal; no task was written.")
        parsed = {"name": name, "low": low, "high": high, "keys": with_bits(space, best), "mechanism": best}
        Task.parse(parsed).save(output)
        lines.append(f"Task of {ranking[0].name} written to {output}")
    if plot is not None:
        draw(plot, goal, size, against, ranking)
        lines.append(f"Picture: {plot}")
    data["file"] = str(output) if output else None
    say(
        as_json,
        data,
        lambda: show(ranking, [*_nearly_as_good(goal, ranking[0], size), *lines], goal, largest),
    )


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


def _nearly_as_good(goal: Goal, best: Option, size: float) -> list[str]:
    """What reports of half the bytes can do, if it is hardly less: a line, or none."""
    from hubbub.plan.ranking import rank

    found = rank(goal, size, best.bytes // 2)[0] if best.bytes > 1 else best
    if found is best or found.error > 1.05 * best.error:
        return []
    return [
        f"Nearly as good: {found.name} with {found.bytes} instead of {best.bytes} bytes a report and "
        f"{100 * (found.error / best.error - 1):.1f}% more error (--bytes {found.bytes})."
    ]


def _inverse(data: dict[str, Any], goal: Goal, want_error: float, size: float, most_bytes: int | None) -> str:
    """How many users, or which epsilon, reach an error."""
    from hubbub.plan.inverse import epsilon_for, users_for

    if goal.central_epsilon is not None:
        raise Refused("--want-error works in the local model.")
    users = data["users_for_error"] = users_for(goal, want_error, size, most_bytes)
    epsilon = data["epsilon_for_error"] = epsilon_for(goal, want_error, size, most_bytes)
    return (
        f"An error of {want_error:g} per key takes {users:,} users at epsilon {goal.epsilon:g}, "
        f"or epsilon {epsilon:.3g} with {goal.users:,} users."
    )


def _limits(
    data: dict[str, Any], goal: Goal, entries: Path, frequency: float, size: float, most_bytes: int | None
) -> list[str]:
    """Which max_entries is best."""
    from hubbub.plan.limits import entry_limits

    limits = entry_limits(goal, read_histogram(entries), frequency, size, most_bytes)
    data["max_entries"] = [{**vars(limit), "total": limit.total} for limit in limits]
    return [
        f"max-entries for a key of frequency {frequency:g} (noise against dropped entries):",
        *(
            f"  {limit.max_entries:>6}  error {limit.total:.4f} = noise {limit.noise:.4f} and bias {limit.bias:.4f} "
            f"({100 * limit.dropped:.1f}% of entries dropped)"
            for limit in limits[:6]
        ),
    ]


def _unit_size(goal: Goal, low: float, high: float) -> float:
    """What 1 on the scale of [-1, 1] stands for."""
    if goal.quantity == "frequency" or goal.values == "set":
        return 1.0
    return (high - low) / 2 if goal.quantity == "conditional" else max(abs(low), abs(high))


def read_histogram(path: Path) -> dict[int, int]:
    """Lines "entries,users" after a header."""
    from hubbub.primitives.envelope import read_file

    histogram: dict[int, int] = {}
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        cells = line.split(",")
        if number == 1 or not line.strip():
            continue
        if len(cells) != 2 or not all(cell.strip().isdecimal() and len(cell) < 16 for cell in cells):
            raise Refused(f"{path}, line {number}: two whole numbers, entries and users, are expected.")
        histogram[int(cells[0])] = histogram.get(int(cells[0]), 0) + int(cells[1])
    return histogram


def show(options: list[Option], lines: list[str], goal: Goal, largest: float) -> None:
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
    best = options[0]
    if best.mechanism is not None:
        console.print(f"Best: {best.name}. {best.promise(largest).words()}", markup=False)
        if best.shuffled:
            console.print(best.shuffled, markup=False)
    for option in options:
        if option.mechanism is None:
            console.print(f"Not {option.name}: {option.reason}", markup=False)
    for line in lines:
        console.print(line, markup=False)


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
