"""What privatizing will take, said before it starts where somebody named a mechanism that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hubbub.protocol.task import Task

#: Microseconds for one number of a report, compiled and interpreted: measured for `gaussian`, whose noise is the
#: slowest to draw.
_COMPILED, _INTERPRETED = 1.1, 36.0
#: Arrays of 64-bit numbers that a part of the reports goes through.
_COPIES = 4
#: Reports with fewer numbers are quick, and what takes less than this is not worth a word.
_WIDE, _SECONDS, _BYTES = 64, 20.0, 1 << 30


def cost_of(task: Task, records: int) -> tuple[float, int]:
    """Seconds and bytes that reports of this many records take at most, about; (0, 0) for reports of few numbers."""
    from hubbub.device.client import records_at_a_time
    from hubbub.primitives.kernel import use_compiled

    fields = len(task.mechanism.layout.fields)
    if fields < _WIDE:
        return 0.0, 0
    part = min(records, records_at_a_time(task))
    each = _COMPILED if use_compiled(part) else _INTERPRETED
    return records * fields * each / 1e6, records * task.mechanism.layout.width + 8 * _COPIES * part * fields


def announce_cost(task: Task, records: int) -> None:
    """A line on stderr before long work. No mechanism of this kind is ever chosen, only asked for by name."""
    seconds, size = cost_of(task, records)
    if seconds < _SECONDS and size < _BYTES:
        return
    name, fields = task.mechanism.name, len(task.mechanism.layout.fields)
    click.echo(
        f"{name} draws {fields:,} numbers for every record: up to about {_duration(seconds)} and {size / 2**30:.1f} GB "
        f"for {records:,} records. Without --mechanism a quicker one is chosen.",
        err=True,
    )


def _duration(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} seconds"
