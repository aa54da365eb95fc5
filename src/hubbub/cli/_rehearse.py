"""`hubbub simulate` without a table: a made-up crowd, and whether errors are as planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub.cli._common import progress, say, show_cells, tell
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.calls.rehearse import Rehearsal
    from hubbub.protocol.task import Task

#: What is planned for if nothing is said, and no task is given.
_USUAL = {"epsilon": 1.0, "messages": 0.0, "keys": 5000, "max_entries": 8}


def rehearse_made_up(
    task: Path | None, options: dict[str, Any], level: float, seed: int, as_json: bool
) -> None:
    """Collect from a made-up crowd by a task, or by what the planner takes; print what came of it."""
    from hubbub.calls.rehearse import rehearse
    from hubbub.privacy.over_time import DELTA

    used, shuffled = _task(task, options), options["model"] == "shuffled"
    if options["delta"] and not (shuffled or used.messages):
        raise Refused("--delta goes with --model shuffled.")
    delta = (options["delta"] or DELTA) if shuffled or used.messages else 0.0
    found = rehearse(
        used,
        options["users"],
        runs=options["runs"],
        delta=delta,
        level=level,
        seed=seed,
        watch=lambda step, total, _: progress(step, total, as_json),
    )
    say(as_json, found.as_dict(), lambda: _show(found))


def forge_made_up(task: Path | None, options: dict[str, Any], forging: dict[str, Any], as_json: bool) -> None:
    """Forged reports in the collection from a made-up crowd; print what they did."""
    from hubbub.cli._forged import rehearse_forged
    from hubbub.simulation.populations import stated_population

    if options["runs"] > 1 or options["model"] != "local" or options["delta"]:
        raise Refused("--forgers goes with one run in the local model.")
    used = _task(task, options)
    if used.mechanism.values != "set" or used.keys.kind != "closed" or used.keys.count_lengths:
        raise Refused(
            "A made-up crowd has sets of keys from a closed vocabulary; give others as a table (--like)."
        )
    crowd = stated_population(options["users"], used.keys.count, used.mechanism.max_entries, forging["seed"])
    rehearse_forged(used, crowd.entries, None, forging, as_json)


def _task(path: Path | None, options: dict[str, Any]) -> Task:
    """From the file, or planned."""
    from hubbub.plan.overview import plan
    from hubbub.privacy.over_time import DELTA
    from hubbub.protocol.task import Task

    given = {name: options[name] for name in _USUAL if options[name] is not None}
    if path is not None:
        if given:
            option = "--" + next(iter(given)).replace("_", "-")
            raise Refused(f"{option} is in the task: leave it out, or leave the task out.")
        return Task.load(path)
    asked: dict[str, Any] = {**_USUAL, **given, "users": options["users"], "model": options["model"]}
    if options["model"] == "shuffled":
        asked["delta"] = options["delta"] or DELTA
    return plan(**asked).task("rehearsal")


def _show(found: Rehearsal) -> None:
    tell(found.title())
    show_cells(found.cells())
    for line in found.closing():
        tell(line)
