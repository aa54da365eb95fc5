"""hubbub merge"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hubbub.cli._common import EXISTING, OUTPUT, Command, json_option, say

if TYPE_CHECKING:
    from hubbub.model.state import State
    from hubbub.protocol.strata import Stratum


@click.command(cls=Command, example="hubbub merge monday.state tuesday.state -o both.state")
@click.argument("states", type=EXISTING, nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, required=True, help="State file to write.")
@json_option
def command(*, states: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge state files of one task into one.

    States with the same labels and period become one.
    """
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.files import ByStratum, open_alike, open_states, save_kept_apart
    from hubbub.server.fold import merge_into

    if len({path.resolve() for path in states}) < len(states):
        raise Refused("A state file is named twice; its reports would count twice.")
    task, opened, counts = open_alike(states, open_states)

    def merged(stratum: Stratum) -> State:
        there = [parts for parts in opened if stratum in parts]
        state = there[0][stratum]
        for parts in there[1:]:
            merge_into(state, parts[stratum])
        return state

    save_kept_apart(output, task, ByStratum(counts, merged))
    count, strata = counts.total(), len(counts)
    data = {"file": str(output), "reports": count, "digest": task.digest.hex(), "strata": strata}
    kept = f", {strata:,} strata apart" if strata > 1 else ""
    say(as_json, data, f"{len(states)} states with {count:,} reports merged in {output}{kept}")
