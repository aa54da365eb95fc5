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
    """Merge state files of one task into one.

    States with the same labels and period become one.
    """
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import check_same, load_states, save_kept_apart
    from hubbub.server.fold import merge_into

    if len({path.resolve() for path in states}) < len(states):
        raise Refused("A state file is named twice; its reports would count twice.")
    task, total = load_states(states[0])
    for path in states[1:]:
        other, more = load_states(path)
        check_same(task, states[0], other, path)
        for stratum, state in more.items():
            if stratum in total:
                merge_into(total[stratum], state)
            else:
                total[stratum] = state
    save_kept_apart(output, task, total)
    count = sum(state.count for state in total.values())
    data = {"file": str(output), "reports": count, "digest": task.digest.hex(), "strata": len(total)}
    kept = f", {len(total):,} strata apart" if len(total) > 1 else ""
    say(as_json, data, f"{len(states)} states with {count:,} reports merged in {output}{kept}")
