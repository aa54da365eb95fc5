"""hubbub merge"""

from __future__ import annotations

from pathlib import Path

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say


@click.command(cls=Command, example="hubbub merge monday.state tuesday.state -o both.state")
@click.argument("states", type=EXISTING, nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, required=True, help="State file to write.")
@json_option
def command(*, states: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge state files of one task into one."""
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import load_state, save_state

    if len({path.resolve() for path in states}) < len(states):
        raise Refused("A state file is named twice; its reports would count twice.")
    task, total = load_state(states[0])
    for path in states[1:]:
        other, state = load_state(path)
        if other.digest != task.digest:
            raise Refused(f"{path} belongs to task {other.name!r}, {states[0]} to {task.name!r}.")
        total = total.merge(state)
    save_state(output, task, total)
    data = {"file": str(output), "reports": total.count, "digest": task.digest.hex()}
    say(as_json, data, f"{len(states)} states with {total.count:,} reports merged in {output}")
