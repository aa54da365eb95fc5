"""Reports and states on disk. Each file carries its task, so the next step needs nothing else.

Where reports have labels or periods, a file keeps its strata apart (`hubbub.protocol.strata`). Its payload is then, for
every stratum in the order of their texts: length of the text (2 bytes), length of the part (8), text, part. A part is
what the whole payload is in a file without strata.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.model.state import State
from hubbub.primitives.envelope import Envelope, check_ending, read_file, unseal, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.protocol.strata import UNTOLD, Stratum, check_number, stratum_in, text_of
from hubbub.protocol.task import Task

REPORTS, STATE = b"R", b"S"
_REPORTS_BY, _STATES_BY = b"P", b"T"
_PART = struct.Struct("<HQ")


def save_reports(path: str | Path, task: Task, packed: NDArray[np.uint8]) -> None:
    """Write packed reports [n, width]."""
    _write(path, REPORTS, task, len(packed), packed.tobytes())


def load_reports(path: str | Path) -> tuple[Task, NDArray[np.uint8]]:
    """Task and packed reports of a file, all strata together."""
    task, parts = load_reports_by(path)
    found = list(parts.values())
    empty = np.zeros((0, task.mechanism.layout.width), dtype=np.uint8)
    return task, found[0] if len(found) == 1 else np.concatenate([empty, *found])


def save_reports_by(path: str | Path, task: Task, parts: Mapping[Stratum, NDArray[np.uint8]]) -> None:
    """Write packed reports, stratum by stratum."""
    count = sum(len(packed) for packed in parts.values())
    _write(path, _REPORTS_BY, task, count, _joined(task, {at: one.tobytes() for at, one in parts.items()}))


def load_reports_by(path: str | Path) -> tuple[Task, dict[Stratum, NDArray[np.uint8]]]:
    """Task and packed reports of a file, by stratum; without labels and periods there is one."""
    task, envelope, parts = _open_parts(path, REPORTS, _REPORTS_BY)
    width = task.mechanism.layout.width
    if any(len(part) % width for part in parts.values()) or envelope.count * width != sum(
        map(len, parts.values())
    ):
        raise Refused(
            f"{path} says it holds {envelope.count} reports of {width} bytes, but has {len(envelope.payload)} bytes."
        )
    return task, {at: np.frombuffer(part, dtype=np.uint8).reshape(-1, width) for at, part in parts.items()}


def save_state(path: str | Path, task: Task, state: State) -> None:
    """Write a state."""
    _write(path, STATE, task, state.count, state.to_bytes())


def load_state(path: str | Path) -> tuple[Task, State]:
    """Task and state of a file; of one with several strata, their sum."""
    task, parts = load_states(path)
    return task, total_of(task, parts)


def save_states(path: str | Path, task: Task, states: Mapping[Stratum, State]) -> None:
    """Write states, stratum by stratum; each is asked for when it is written, so they need not all be in memory."""
    named = _named(task, states)
    count = length = 0
    for text, stratum in named:
        count += states[stratum].count
        length += _PART.size + len(text) + states[stratum].size

    def pieces() -> Iterator[bytes]:
        for text, stratum in named:
            part = states[stratum].to_bytes()
            yield _PART.pack(len(text), len(part)) + text
            yield part

    check_ending(path, _STATES_BY)
    envelope = Envelope(_STATES_BY, task.code, task.digest, count, task.canonical, b"")
    write_atomic(path, envelope.sealed(pieces(), length))


def save_kept_apart(path: str | Path, task: Task, states: Mapping[Stratum, State]) -> None:
    """Write states by stratum; where nothing is told of any, as one plain state, as ever."""
    if set(states) <= {UNTOLD}:
        save_state(path, task, total_of(task, states))
    else:
        save_states(path, task, states)


def load_states(path: str | Path) -> tuple[Task, dict[Stratum, State]]:
    """Task and states of a file by stratum; in a file without strata, nothing is told of the one there is."""
    task, states = open_states(path)
    return task, dict(states)


def open_states(path: str | Path) -> tuple[Task, Mapping[Stratum, State]]:
    """The same for many strata: everything is checked now, and a state is made whenever it is asked for."""
    task, envelope, parts = _open_parts(path, STATE, _STATES_BY)
    states = _States(task, parts)
    held = sum(state.count for state in states.values())
    if held != envelope.count:
        raise Refused(f"{path} says it sums up {envelope.count} reports, but holds {held}.")
    return task, states


class _States(Mapping[Stratum, State]):
    """States that are kept as the bytes of a file."""

    def __init__(self, task: Task, parts: Mapping[Stratum, memoryview]) -> None:
        self._task, self._parts = task, parts

    def __getitem__(self, stratum: Stratum) -> State:
        state = self._task.mechanism.empty(self._task.keys).load(bytes(self._parts[stratum]))
        self._task.mechanism.layout.unpack(state.reports)
        return state

    def __iter__(self) -> Iterator[Stratum]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def check_same(task: Task, source: str | Path, other: Task, path: str | Path) -> None:
    """Refuse a file of another task than the one before; what only has another list of labels is said to."""
    if other.digest != task.digest:
        lists = (
            " They have other labels, and lists of labels are part of a task."
            if other.labels != task.labels
            else ""
        )
        raise Refused(f"{path} belongs to task {other.name!r}, {source} to {task.name!r}.{lists}")


def total_of(task: Task, states: Mapping[Stratum, State]) -> State:
    """The state of all strata together."""
    return reduce(State.merge, states.values(), task.mechanism.empty(task.keys))


def _joined(task: Task, parts: Mapping[Stratum, bytes]) -> bytes:
    """The payload of a file with strata."""
    named = _named(task, parts)
    return b"".join(_PART.pack(len(text), len(parts[at])) + text + parts[at] for text, at in named)


def _named(task: Task, strata: Iterable[Stratum]) -> list[tuple[bytes, Stratum]]:
    """Strata with their texts, in order; what could not be read again is refused."""
    named = sorted((text_of(task, at).encode(), at) for at in strata)
    check_number(task, [at for _, at in named])
    for text, _ in named:
        stratum_in(task, text.decode())
    return named


def _open_parts(
    path: str | Path, plain: bytes, by_stratum: bytes
) -> tuple[Task, Envelope, dict[Stratum, memoryview]]:
    """What is in a file of one of two kinds, by stratum; in a plain one, nothing is told of the one there is."""
    task, envelope = open_file(path)
    if envelope.kind != by_stratum:
        task, envelope = open_file(path, plain)
        return task, envelope, {UNTOLD: memoryview(envelope.payload)}
    rest, parts, last = memoryview(envelope.payload), dict[Stratum, memoryview](), b""
    while len(rest):
        size, length = _PART.unpack_from(rest) if len(rest) >= _PART.size else (0, len(rest))
        begin, end = _PART.size + size, _PART.size + size + length
        text = bytes(rest[_PART.size : begin])
        if end > len(rest) or (parts and text <= last):
            raise Refused(f"{path} is damaged: its strata do not follow one another.")
        try:
            parts[stratum_in(task, text.decode("ascii", "replace"))] = rest[begin:end]
        except Refused as problem:
            raise Refused(f"{path}: {problem}") from None
        rest, last = rest[end:], text
    check_number(task, parts)
    return task, envelope, parts


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
