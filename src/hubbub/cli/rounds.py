"""hubbub rounds"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say


@click.command(
    cls=Command, example="hubbub rounds rounds.json --add task.toml --reports 10000 --method basic"
)
@click.argument("ledger", type=OUTPUT)
@click.option("--add", "task", type=EXISTING, help="Add a round of this task file first.")
@click.option("--reports", type=int, help="With --add: reports in its smallest crowd.")
@click.option(
    "--delta", type=float, default=1e-6, show_default=True, help="Failure probability of all together."
)
@click.option(
    "--method",
    type=click.Choice(["loss", "advanced", "basic"]),
    default="loss",
    show_default=True,
    help="How to add up rounds; loss is the tightest and needs the extra 'accounting'.",
)
@json_option
def command(
    *, ledger: Path, task: Path | None, reports: int | None, delta: float, method: Any, as_json: bool
) -> None:
    """Show shuffled rounds and their guarantee together.

    A round is one period of a task, and all reports of a person in it count. If the last one has a period, what a
    month and a year of rounds like it promise is shown, too.
    """
    from contextlib import nullcontext
    from dataclasses import asdict

    from hubbub.privacy.compose import Round, adding_rounds, compose, read_rounds, write_rounds
    from hubbub.privacy.over_time import SPANS, all_rounds

    if (task is None) != (reports is None):
        raise click.UsageError("--add and --reports go together.")
    added = []
    if task is not None and reports is not None:
        from hubbub.protocol.task import Task

        added = [Round.of(Task.load(task), reports)]
    with adding_rounds(ledger) if added else nullcontext():
        rounds = added if added and not ledger.exists() else [*read_rounds(ledger), *added]
        crowds = [one.crowd() for one in rounds]
        total = compose(crowds, delta, method)
        if added:
            write_rounds(ledger, rounds)
    alone = {crowd: crowd.epsilon(delta) for crowd in set(crowds)}
    facts = [
        asdict(one) | {"shuffled_epsilon": alone[crowd]} for one, crowd in zip(rounds, crowds, strict=True)
    ]
    last = rounds[-1]
    ahead = {
        name: all_rounds(crowds[-1], periods, delta, method)
        for name, periods in SPANS[last.period]
        if periods > 1
    }
    lines = ["round  reports        per person  epsilon  task (mechanism)"]
    for number, one in enumerate(facts, start=1):
        lines.append(
            f"{number:>5}  {one['reports']:<13,}  {one['per_person']:<10,}  {one['shuffled_epsilon']:<7.4g}  "
            f"{one['task']} ({one['mechanism']})"
        )
    lines.append(f"together: {total.words()}")
    lines += [f"{name} of rounds like the last: {promise.words()}" for name, promise in ahead.items()]
    data = {"rounds": facts, "method": method, "guarantee": total.as_dict()}
    data["ahead"] = {name: promise.as_dict() for name, promise in ahead.items()}
    say(as_json, data, "\n".join(lines))
