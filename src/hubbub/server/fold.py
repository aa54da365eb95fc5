"""Report bytes into a state: the one kernel that files, services and engines share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hubbub.server.state import State
from hubbub.task import Task

#: Reports that are unpacked at a time.
_CHUNK = 1 << 18


def aggregate(
    task: Task,
    packed: bytes | NDArray[np.uint8],
    state: State | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> State:
    """The state of these reports, added to `state` when given; bad bytes change nothing."""
    mechanism, layout = task.mechanism, task.mechanism.layout
    raw = np.frombuffer(packed, dtype=np.uint8) if isinstance(packed, bytes) else packed.reshape(-1)
    if len(raw) % layout.width:
        layout.unpack(raw)
    rows = raw.reshape(-1, layout.width)
    total = mechanism.empty(task.keys)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        mechanism.absorb(total, task.keys, layout.unpack(part))
        progress(len(part))
    return total if state is None else state.merge(total)
