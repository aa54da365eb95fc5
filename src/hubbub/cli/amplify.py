"""hubbub amplify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, progress, say, tell
from hubbub.primitives.envelope import KINDS, MAGIC, read_file
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Mechanism
    from hubbub.protocol.task import Task

#: Local epsilons of the comparison.
_EPSILONS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)

#: Crowds that are listed, the smallest of all.
_LISTED = 10


@click.command(cls=Command, example="hubbub amplify task.toml --reports 10000")
@click.argument("task", type=EXISTING, required=False)
@click.option("--mechanism", help="Instead of a task file: a mechanism by name.")
@click.option("--epsilon", type=float, help="Its privacy parameter of one report.")
@click.option("--max-entries", type=int, help="Its entries of a record that count.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any other parameter of it.")
@click.option(
    "--reports",
    type=int,
    multiple=True,
    help="Reports that leave the shuffler in one crowd; a task says how many of one person's.",
)
@click.option("--people", type=int, help="With --messages: people whose reports are in one crowd.")
@click.option(
    "--messages",
    type=float,
    help="Instead of one report: a random number of them per person, this many on average.",
)
@click.option(
    "--missing",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --people: so many of them may be missing or dishonest.",
)
@click.option("--delta", type=float, default=1e-6, show_default=True, help="Failure probability.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Equal rounds to add up."
)
@click.option(
    "--method",
    type=click.Choice(["loss", "advanced", "basic"]),
    default="loss",
    show_default=True,
    help="How to add up rounds; loss is the tightest and needs the extra 'accounting'.",
)
@click.option(
    "--compare", is_flag=True, help="Compare bounds over local epsilons; --reports may be repeated."
)
@click.option("-o", "--output", type=OUTPUT, help="With --compare: write the figure to this file.")
@json_option
def command(
    *,
    task: Path | None,
    mechanism: str | None,
    epsilon: float | None,
    max_entries: int | None,
    settings: tuple[str, ...],
    reports: tuple[int, ...],
    people: int | None,
    messages: float | None,
    missing: int,
    delta: float,
    rounds: int,
    method: Any,
    compare: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Show the stronger guarantee of reports that a shuffler mixes.

    For a task file: of all reports of one person in a period, and what a month and a year of periods add up to. If the
    task has labels, a crowd has reports of one combination of them. A file of reports or states in place of the task
    says how many each has: then the smallest crowd decides what is promised to everybody.

    With --messages: if everybody sends several reports, a random number of them (Poisson) drawn without a look at the
    record, each made afresh and sealed on its own.

    With --compare: all known bounds against local epsilon, for Collision as in the paper or for --mechanism.
    """
    from hubbub.cli._tasks import parse_settings

    parameters = parse_settings(settings)
    if messages is not None and (people is None or task is not None):
        raise click.UsageError(
            "--messages goes with --people and --mechanism; a task has messages of its own."
        )
    if people is not None and (compare or reports or (messages is None and task is None)):
        raise click.UsageError(
            "--people is for several messages: with --messages or a task, without --reports."
        )
    if missing and people is None:
        raise click.UsageError("--missing goes with --people.")
    if compare:
        if task is not None or epsilon is not None or max_entries is None:
            raise click.UsageError("--compare needs --max-entries, and neither a task nor --epsilon.")
        _compare(mechanism, {"max_entries": max_entries, **parameters}, reports, delta, output, as_json)
        return
    if task is not None and task.exists() and read_file(task, 4) == MAGIC:
        if reports or people is not None or mechanism is not None or rounds > 1:
            raise click.UsageError("A file of reports or states has its own task and its own crowds.")
        _crowds(task, delta, as_json)
        return
    if output is not None or len(reports) != (0 if people is not None else 1):
        raise click.UsageError(
            "Give --reports or --people once; only --compare writes a figure or takes several."
        )
    if (task is None) == (mechanism is None):
        raise click.UsageError("Give a task file, or --mechanism with --epsilon and --max-entries.")
    if task is not None:
        from hubbub.protocol.task import Task

        if settings or epsilon is not None or max_entries is not None:
            raise click.UsageError("A task file has its own epsilon, max_entries and parameters.")
        loaded = Task.load(task)
        if people is not None and not loaded.messages:
            raise click.UsageError("This task has one report per person: give --reports, not --people.")
        if people is not None:
            _messages(
                loaded.mechanism, people - missing, loaded.messages, delta, rounds, method, as_json, loaded
            )
            return
        _amplify(loaded.mechanism, reports[0], delta, rounds, method, as_json, loaded)
    else:
        from hubbub.mechanisms.registry import make_mechanism

        if epsilon is None or max_entries is None:
            raise click.UsageError("--mechanism needs --epsilon and --max-entries.")
        chosen = make_mechanism(str(mechanism), epsilon=epsilon, max_entries=max_entries, **parameters)
        if messages is not None and people is not None:
            _messages(chosen, people - missing, messages, delta, rounds, method, as_json)
            return
        _amplify(chosen, reports[0], delta, rounds, method, as_json)


def _amplify(
    mechanism: Mechanism,
    reports: int,
    delta: float,
    rounds: int,
    method: Any,
    as_json: bool,
    task: Task | None = None,
) -> None:
    from hubbub.calls.amplify import amplify
    from hubbub.privacy.over_time import over_time

    most = 1 if task is None else task.reports_per_period
    local, shuffled = mechanism.guarantee(), amplify(task or mechanism, reports, delta)
    data: dict[str, Any] = {
        "mechanism": mechanism.name,
        "local": local.as_dict(),
        "shuffled": shuffled.as_dict(),
    }
    lines = [f"one report  {local.short()}", f"shuffled    {shuffled.words()}"]
    if task is not None and task.labels:
        data["note"] = (
            "Labels are visible: a crowd is the reports of one combination of labels, and the smallest decides."
        )
        lines.append(data["note"])
    if task is not None:
        spans = over_time(task, reports, delta, method)
        data["over_time"] = [span.as_dict() for span in spans]
        if task.period != "once" or most > 1:
            lines += ["all that one person says:", *(f"  {span.words()}" for span in spans)]
    if rounds > 1:
        total = amplify(task or mechanism, reports, delta, rounds, method)
        data["rounds"] = {"count": rounds, "method": method, "guarantee": total.as_dict()}
        lines.append(f"{f'{rounds} rounds':<11} {total.words()}")
    say(as_json, data, "\n".join(lines))


def _crowds(path: Path, delta: float, as_json: bool) -> None:
    """What is promised in each stratum of a file, the smallest first."""
    from hubbub.calls.amplify import amplify_by
    from hubbub.protocol.files import open_file, open_reports, open_states
    from hubbub.protocol.strata import text_of

    task, envelope = open_file(path)
    reports = KINDS[envelope.kind].startswith("reports")
    _, parts = open_reports(path) if reports else open_states(path)
    counts = {text_of(task, stratum): count for stratum, count in parts.counts.items()}
    if not counts:
        raise Refused(f"{path} has no reports: there is no crowd.")
    order = dict(sorted(counts.items(), key=lambda item: (item[1], item[0])))
    found = amplify_by(task, order, delta)
    worst = max(found, key=lambda name: found[name].epsilon)
    data = {
        "mechanism": task.mechanism.name,
        "local": task.guarantee.as_dict(),
        "shuffled": found[worst].as_dict(),
        "crowds": [
            {"stratum": name, "reports": counts[name], "shuffled": promise.as_dict()}
            for name, promise in found.items()
        ],
    }
    lines = [
        f"one report  {task.guarantee.short()}",
        "if reports were mixed, each with those of its own crowd:",
    ]
    for name, promise in list(found.items())[:_LISTED]:
        lines.append(f"  {counts[name]:>11,}  {name or 'nothing told'}: {promise.short()}")
    if len(found) > _LISTED:
        lines.append(f"  {len(found) - _LISTED:,} larger ones")
    lines.append(f"everybody   {found[worst].words()}")
    say(as_json, data, "\n".join(lines))


def _messages(
    mechanism: Mechanism,
    people: int,
    messages: float,
    delta: float,
    rounds: int,
    method: Any,
    as_json: bool,
    task: Task | None = None,
) -> None:
    from hubbub.calls.amplify import amplify_messages
    from hubbub.privacy.over_time import over_time

    one, shuffled = mechanism.guarantee(), amplify_messages(mechanism, people, messages, delta)
    data: dict[str, Any] = {
        "mechanism": mechanism.name,
        "messages": messages,
        "people": people,
        "local": one.as_dict(),
        "shuffled": shuffled.as_dict(),
    }
    lines = [
        f"one report  {one.short()}",
        "unshuffled  no bound for all reports of one person: their number has none",
        f"shuffled    {shuffled.words()}",
    ]
    if task is not None:
        spans = over_time(task, None, delta, method, people)
        data["over_time"] = [span.as_dict() for span in spans]
        if task.period != "once":
            lines += ["all that one person says:", *(f"  {span.words()}" for span in spans)]
    if rounds > 1:
        total = amplify_messages(mechanism, people, messages, delta, rounds, method)
        data["rounds"] = {"count": rounds, "method": method, "guarantee": total.as_dict()}
        lines.append(f"{f'{rounds} rounds':<11} {total.words()}")
    say(as_json, data, "\n".join(lines))


def _compare(
    name: str | None,
    parameters: dict[str, Any],
    reports: tuple[int, ...],
    delta: float,
    output: Path | None,
    as_json: bool,
) -> None:
    from hubbub.mechanisms.registry import make_mechanism
    from hubbub.privacy.bounds import EARLIER, draw, published_setting
    from hubbub.privacy.bounds import compare as compare_bounds

    def make(epsilon: float) -> Mechanism:
        if name is None:
            return published_setting(epsilon, **parameters)
        return make_mechanism(name, epsilon=epsilon, **parameters)

    rows = []
    with progress("comparing bounds", len(reports) * len(_EPSILONS), as_json) as advance:
        for n in reports:
            for epsilon in _EPSILONS:
                rows += compare_bounds(make, [epsilon], [n], delta)
                advance(1)
    if output is not None:
        draw(rows, output)

    def table() -> None:
        from rich.console import Console
        from rich.table import Table

        shown = Table(
            title=f"central epsilon at delta = {delta:g}", title_justify="left", header_style="bold"
        )
        for title in ("reports", "local epsilon", "earlier", "hubbub", "lower bound", "saved"):
            shown.add_column(title, justify="right")
        for row in rows:
            earlier = min(row[bound] for bound in EARLIER if row[bound] is not None)
            values = (
                "-" if value is None else f"{value:.4g}"
                for value in (earlier, row["hubbub"], row["lower bound"])
            )
            shown.add_row(f"{row['reports']:,}", f"{row['epsilon']:g}", *values, f"{100 * row['saved']:.0f}%")
        Console().print(shown)
        tell(
            f"earlier: the smallest of {'; '.join(EARLIER)}. saved: how much smaller hubbub's bound is. --json gives "
            "all bounds, -o draws them."
        )

    say(as_json, {"delta": delta, "rows": rows}, table)
