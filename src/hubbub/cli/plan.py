"""hubbub plan"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say, show_cells, table_options, tell
from hubbub.cli._entries import Known, Rules, entries_options
from hubbub.cli._spelling import discovery_options, plan_discovery, spelling_of
from hubbub.cli._tasks import mechanism_options
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal
    from hubbub.plan.overview import Plan, Trust
    from hubbub.plan.ranking import Option
    from hubbub.tables.sources import TextForm

#: What is assumed, and said, where the options leave it open.
_KEYS, _MAX_ENTRIES = 1000, 32


@click.command(
    cls=Command,
    example="hubbub plan --keys 5000 --max-entries 8 --users 50000 --want-error 0.01",
)
@click.option(
    "--estimate",
    "quantity",
    type=click.Choice(["frequency", "mean", "conditional", "sum"]),
    default="frequency",
    show_default=True,
    help="What to estimate.",
)
@click.option("--keys", type=click.IntRange(1), metavar="N", help="How many keys there are.")
@click.option("--vocabulary", type=EXISTING, help="Text file with all keys, one per line.")
@click.option(
    "--open", "bits", type=int, metavar="BITS", help="Open vocabulary folded to BITS bits (64: wide)."
)
@click.option(
    "--max-entries",
    type=int,
    help="Entries of a record that count; left out: the best for --like or --entries.",
)
@click.option("--range", "value_range", metavar="LOW:HIGH", help="Range of the values; left out: sets.")
@click.option(
    "--users",
    type=click.IntRange(2),
    default=100_000,
    show_default=True,
    help="How many people report; with --like left out: those of the table.",
)
@click.option(
    "--epsilon", type=float, default=1.0, show_default=True, help="Of one report; shuffled: the central one."
)
@click.option(
    "--per-year",
    type=float,
    metavar="EPSILON",
    help="In place of --epsilon: of all reports of a year, one a --period; also say in which turns (rotation).",
)
@click.option("--period", type=click.Choice(["day", "week", "month"]), help="With --per-year: how often.")
@click.option(
    "--unit",
    type=click.Choice(["record", "entry", "l1"]),
    default="record",
    show_default=True,
    help="What is protected.",
)
@click.option("--distance", type=float, help="l1 distance that is protected (unit l1).")
@click.option("--delta", type=float, default=0.0, help="Failure probability (unit l1, or shuffled).")
@click.option(
    "--model",
    type=click.Choice(["local", "shuffled"]),
    default="local",
    show_default=True,
    help="Whether a shuffler mixes the reports.",
)
@click.option(
    "--share",
    type=float,
    help="Share of the key whose error counts; left out: 0, a rare one, or shuffled 0.01.",
)
@click.option(
    "--messages",
    type=float,
    default=0.0,
    help="Shuffled: reports that everybody sends, a random number with this mean; left out: exactly one.",
)
@click.option("--bytes", "most_bytes", type=click.IntRange(1), help="Largest report allowed.")
@click.option(
    "--server-seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Most seconds of one core of the server per million reports.",
)
@click.option(
    "--forgers",
    type=float,
    default=0.0,
    help="Choose for error and forged reports together: a share such as 0.01, or a number.",
)
@click.option("--want-error", type=float, help="Also say how many users, or which epsilon, reach this error.")
@mechanism_options
@entries_options
@discovery_options
@click.option("--plot", type=OUTPUT, help="Write a picture of error against --against.")
@click.option(
    "--against",
    type=click.Choice(["epsilon", "users", "bytes"]),
    default="epsilon",
    show_default=True,
    help="What --plot varies.",
)
@click.option("-o", "--output", type=OUTPUT, help="Write the winner's task file.")
@click.option("--name", default="planned", show_default=True, help="Name of that task.")
@table_options
@json_option
def command(
    *,
    keys: int | None,
    vocabulary: Path | None,
    bits: int | None,
    model: Trust,
    most_bytes: int | None,
    want_error: float | None,
    mechanism: str,
    best: bool,
    like: Path | None,
    user: str | None,
    key: str | None,
    entries: Path | None,
    frequency: float | None,
    shares: Path | None,
    per_year: float | None,
    period: Any,
    plot: Path | None,
    against: str,
    output: Path | None,
    name: str,
    form: TextForm,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict which mechanism reaches a goal, with what error.

    Nothing has to be collected for that. Files for --entries and --shares are .csv or .tsv (also .gz), or - for CSV on
    standard input; --like takes Parquet and NPZ, too.
    """
    from dataclasses import replace

    from hubbub.cli._tasks import key_space, span_of
    from hubbub.plan.overview import goal_in, planned, planned_year, unit_size
    from hubbub.plan.proposal import Wish

    spelled = spelling_of(options)
    known = bool(keys or vocabulary or bits)
    others = want_error or entries or like or plot or options["forgers"] or options["unit"] != "record"
    if spelled is not None and (known or others):
        raise click.UsageError(
            "--discover is for keys that nobody has listed, and for whole records: it goes without --keys, "
            "--vocabulary, --open, --want-error, --like, --entries, --plot, --forgers and --unit."
        )
    source = click.get_current_context().get_parameter_source
    if (per_year is None) != (period is None) or (
        period and source("epsilon") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError("--per-year goes with --period, and takes the place of --epsilon.")
    if period and (spelled is not None or entries is not None or like is not None):
        raise click.UsageError("--per-year goes without --discover, --like and --entries.")
    if spelled is None and output is not None and not known:
        raise Refused("A task needs its keys: give --keys, --vocabulary or --open with -o.")
    records = Known.of(like, (user, key), entries, frequency, shares, form)
    counted = records.keys if records is not None else 0
    space = key_space(keys if known else counted or _KEYS, vocabulary, bits)
    given, text = options["max_entries"], options["value_range"]
    users = options["users"]
    if records is not None and records.users and source("users") is not ParameterSource.COMMANDLINE:
        users = records.users
        if users < 2:
            raise Refused("The table has one user; say how many people are to report: --users.")
    wish = Wish(
        options["epsilon"] if per_year is None else per_year,
        _MAX_ENTRIES if given is None else given,
        None if text is None else span_of(text),
        options["quantity"],
        options["unit"],
        options["distance"],
        options["delta"],
        users=users,
        mechanism=None if mechanism == "auto" else mechanism,
        best=best,
        share=options["share"],
        messages=options["messages"],
        server_seconds=options["server_seconds"],
        forgers=options["forgers"],
        period=period or "once",
    )
    if spelled is not None:
        wish = wish if given is not None else replace(wish, max_entries=1)
        plan_discovery(wish, spelled, (model, most_bytes), output, name, as_json)
        return
    size = unit_size(wish, wish.quantity or wish.usual_quantity)
    rules: Rules = {"most_bytes": most_bytes, "name": wish.mechanism, "best": best}
    assumed = {} if known or counted else {"keys": _KEYS}
    assumed |= {} if given is not None or records is not None else {"max_entries": _MAX_ENTRIES}
    data: dict[str, Any] = {"assumed": assumed}
    lines: list[str] = []
    if records is not None and wish.messages:
        raise Refused(
            "--like and --entries are for one report each: choose max-entries first, then --messages."
        )
    if records is not None:
        limits = records.limits(data, lines, goal_in(wish, space, model), size, rules)
        wish = wish if given is not None else replace(wish, max_entries=limits[0].max_entries)
        lines += [] if given is not None else [f"The plan is for max-entries {wish.max_entries}."]
    found = (planned_year if period else planned)(wish, space, model, most_bytes)
    if as_json:
        data["options"] = found.rows()
        data["chosen"] = found.as_dict(found.chosen)
        data["without_forgers"] = None if found.unforged is None else found.as_dict(found.unforged)
        if found.year is not None:
            data["year"] = found.year.as_dict()
        if found.goal.messages:
            data["error_of_one_report_each"] = found.once
    if want_error is not None:
        lines.insert(0, _inverse(data, found.goal, want_error, size, rules))
    if output is not None:
        found.task(name).save(output)
        lines.append(f"Task of {found.chosen.name} written to {output}")
    if plot is not None:
        draw(plot, found.goal, size, against, list(found.options))
        lines.append(f"Picture: {plot}")
    data["file"] = str(output) if output else None

    def tell_all() -> None:
        if assumed:
            tell(_assumptions(assumed))
        show(found, lines)

    say(as_json, data, tell_all)


def _assumptions(assumed: dict[str, int]) -> str:
    """What was not said and had to be assumed, and how to say it."""
    words = {
        "keys": (f"{_KEYS:,} keys", "--keys (or --vocabulary, --open)"),
        "max_entries": (f"{_MAX_ENTRIES} entries per record", "--max-entries"),
    }
    taken, options = zip(*(words[name] for name in assumed), strict=True)
    return f"Assumed: {' and '.join(taken)}; give {' and '.join(options)}."


def _inverse(data: dict[str, Any], goal: Goal, want_error: float, size: float, rules: Rules) -> str:
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


def show(found: Plan, lines: list[str]) -> None:
    """The ranking as a table."""
    from rich.console import Console
    from rich.table import Table

    if found.year is not None:
        tell(found.year.title())
        show_cells(found.year.cells())
        for line in found.year.closing():
            tell(line)
        click.echo()
    tell(found.title())
    table = Table(show_edge=False, pad_edge=False)  # so that seven columns fit
    table.add_column("mechanism", no_wrap=True)
    for name in ("error", "largest", "detectable", "bytes", "hashes", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    for option in found.suitable:
        numbers = [f"{x:.4g}" for x in (option.error, option.largest, option.detectable)]
        table.add_row(option.name, *numbers, str(option.bytes), str(option.hashes), option.server)
    Console().print(table)
    meanings = f"{found.meanings()}; hashes: per report on the device; state: what the server holds."
    for line in [meanings, *found.closing("--best"), *lines]:
        tell(line)


def draw(path: Path, goal: Goal, size: float, against: str, options: list[Option]) -> None:
    """Error of the leading mechanisms against epsilon, users or bytes."""
    import io
    from dataclasses import replace

    import numpy as np

    from hubbub.mechanisms.registry import mechanisms
    from hubbub.plan.offers import offers, without_sum
    from hubbub.plan.ranking import noise, rank
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
