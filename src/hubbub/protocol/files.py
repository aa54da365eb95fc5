"""Reports and states on disk. Each file carries its task, so the next step needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.model.state import State
from hubbub.primitives.envelope import Envelope, check_ending, read_file, unseal, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

REPORTS, STATE = b"R", b"S"


def save_reports(path: str | Path, task: Task, packed: NDArray[np.uint8]) -> None:
    """Write packed reports [n, width]."""
    _write(path, REPORTS, task, len(packed), packed.tobytes())


def load_reports(path: str | Path) -> tuple[Task, NDArray[np.uint8]]:
    """Task and packed reports of a file."""
    task, envelope = open_file(path, REPORTS)
    width = task.mechanism.layout.width
    if len(envelope.payload) != envelope.count * width:
        raise Refused(
            f"{path} says it holds {envelope.count} reports of {width} bytes, but has {len(envelope.payload)} bytes."
        )
    return task, np.frombuffer(envelope.payload, dtype=np.uint8).reshape(-1, width)


def save_state(path: str | Path, task: Task, state: State) -> None:
    """Write a state."""
    _write(path, STATE, task, state.count, state.to_bytes())


def load_state(path: str | Path) -> tuple[Task, State]:
    """Task and state of a file."""
    task, envelope = open_file(path, STATE)
    state = task.mechanism.empty(task.keys).load(bytes(envelope.payload))
    if state.count != envelope.count:
        raise Refused(f"{path} says it sums up {envelope.count} reports, but holds {state.count}.")
    task.mechanism.layout.unpack(state.reports)
    return task, state


def open_file(path: str | Path, kind: bytes | None = None) -> tuple[Task, Envelope]:
    """The envelope in a file with its task; anything inconsistent is refused."""
    envelope = unseal(read_file(path), str(path), kind)
    if not envelope.task:
        raise Refused(f"{path} carries no task; name the task file it was made for.")
    try:
        task = Task.parse(json.loads(bytes(envelope.task)))
    except (ValueError, RecursionError) as problem:
        raise Refused(f"{path} carries a task that this hubbub does not understand: {problem}") from None
    check_header(envelope, task, str(path))
    return task, envelope


def check_header(envelope: Envelope, task: Task, source: str) -> None:
    """Refuse an envelope that belongs to another mechanism or task."""
    if envelope.mechanism != task.code:
        raise Refused(f"{source} was made by another mechanism than {task.mechanism.name}.")
    if envelope.digest != task.digest:
        raise Refused(
            f"{source} was made for another task: its digest is {envelope.digest.hex()}, "
            f"the task {task.name!r} has {task.digest.hex()}."
        )


def _write(path: str | Path, kind: bytes, task: Task, count: int, payload: bytes) -> None:
    check_ending(path, kind)
    write_atomic(path, Envelope(kind, task.code, task.digest, count, task.canonical, payload).seal())
