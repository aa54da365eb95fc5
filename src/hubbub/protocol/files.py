"""Reports and states on disk. Each file carries its task, so the next step needs nothing else.

Where reports have labels or periods, a file keeps its strata apart (`hubbub.protocol.strata`). Its payload is then, for
every stratum in the order of their texts: length of the text (2 bytes), length of the part (8), text, part. A part is
what the whole payload is in a file without strata.

Strata may be many and their states large. So what was opened stays on disk, and a part is read when it is asked for.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.model.state import State
from hubbub.primitives.envelope import Envelope, Sealed, check_ending, open_sealed, write_atomic
from hubbub.primitives.errors import Refused
from hubbub.protocol.strata import LONGEST, UNTOLD, Stratum, check_number, stratum_in, text_of
from hubbub.protocol.task import Task

REPORTS, STATE = b"R", b"S"
_REPORTS_BY, _STATES_BY = b"P", b"T"
_PART = struct.Struct("<HQ")

Part = TypeVar("Part")


class ByStratum(Mapping[Stratum, Part]):
    """Reports or states by stratum, each made when it is asked for; how many reports they have is known before."""

    def __init__(self, counts: Mapping[Stratum, int], make: Callable[[Stratum], Part]) -> None:
        self.counts, self._make = counts, make

    def __getitem__(self, stratum: Stratum) -> Part:
        if stratum not in self.counts:
            raise KeyError(stratum)
        return self._make(stratum)

    def __iter__(self) -> Iterator[Stratum]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


def counts_in(states: Mapping[Stratum, State]) -> Mapping[Stratum, int]:
    """How many reports each stratum has; states are made only if that is not known otherwise."""
    if isinstance(states, ByStratum):
        return states.counts
    return {stratum: state.count for stratum, state in states.items()}


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
    task, parts = open_reports(path)
    return task, dict(parts)


def open_reports(path: str | Path) -> tuple[Task, ByStratum[NDArray[np.uint8]]]:
    """The same for files that are too large for the memory."""
    task, sealed, parts = _open_parts(path, REPORTS, _REPORTS_BY)
    width, count = task.mechanism.layout.width, sealed.envelope.count
    lengths = [length for _, length in parts.values()]
    if any(length % width for length in lengths) or count * width != sum(lengths):
        raise Refused(
            f"{path} says it holds {count} reports of {width} bytes, but has {sealed.length} bytes."
        )

    def read(stratum: Stratum) -> NDArray[np.uint8]:
        return np.frombuffer(sealed.read(*parts[stratum]), dtype=np.uint8).reshape(-1, width)

    return task, ByStratum({at: length // width for at, (_, length) in parts.items()}, read)


def save_state(path: str | Path, task: Task, state: State) -> None:
    """Write a state."""
    _write(path, STATE, task, state.count, state.to_bytes())


def load_state(path: str | Path) -> tuple[Task, State]:
    """Task and state of a file; of one with several strata, their sum."""
    task, states = open_states(path)
    return task, total_of(task, states)


def save_states(path: str | Path, task: Task, states: Mapping[Stratum, State]) -> None:
    """Write states, stratum by stratum; each is asked for when it is written, so they need not all be in memory."""
    check_ending(path, _STATES_BY)
    write_atomic(path, sealed_states(task, states))


def sealed_states(task: Task, states: Mapping[Stratum, State]) -> Iterator[bytes | memoryview]:
    """The bytes of a file of states, piece by piece."""
    named, counts, nothing = _named(task, states), counts_in(states), task.mechanism.empty(task.keys)
    sizes = [nothing.size_with(counts[stratum]) for _, stratum in named]

    def pieces() -> Iterator[bytes]:
        for (text, stratum), size in zip(named, sizes, strict=True):
            part = states[stratum].to_bytes()
            assert len(part) == size
            yield _PART.pack(len(text), size) + text
            yield part

    length = sum(_PART.size + len(text) for text, _ in named) + sum(sizes)
    envelope = Envelope(_STATES_BY, task.code, task.digest, sum(counts.values()), task.canonical, b"")
    return envelope.sealed(pieces(), length)


def save_kept_apart(path: str | Path, task: Task, states: Mapping[Stratum, State]) -> None:
    """Write states by stratum; where nothing is told of any, as one plain state, as ever."""
    if set(states) <= {UNTOLD}:
        save_state(path, task, total_of(task, states))
    else:
        save_states(path, task, states)


def open_states(path: str | Path) -> tuple[Task, ByStratum[State]]:
    """Task and states of a file by stratum; in a file without strata, nothing is told of the one there is."""
    task, sealed, parts = _open_parts(path, STATE, _STATES_BY)
    nothing, layout = task.mechanism.empty(task.keys), task.mechanism.layout
    counts = {at: nothing.count_in(sealed.read(start, 8), length) for at, (start, length) in parts.items()}
    if sum(counts.values()) != sealed.envelope.count:
        raise Refused(
            f"{path} says it sums up {sealed.envelope.count} reports, but holds {sum(counts.values())}."
        )

    def read(stratum: Stratum) -> State:
        state = nothing.load(sealed.read(*parts[stratum]))
        layout.unpack(state.reports)
        return state

    return task, ByStratum(counts, read)


def open_alike(
    paths: Sequence[Path], open_one: Callable[[Path], tuple[Task, ByStratum[Part]]]
) -> tuple[Task, list[ByStratum[Part]], Counter[Stratum]]:
    """Several files of one task, and how many reports each stratum has in all of them.

    One of another task is refused; what only has another list of labels is said to.
    """
    task, first = open_one(paths[0])
    opened, counts = [first], Counter(first.counts)
    for path in paths[1:]:
        other, more = open_one(path)
        if other.digest != task.digest:
            lists = " They have other labels, and lists of labels are part of a task."
            said = lists if other.labels != task.labels else ""
            raise Refused(f"{path} belongs to task {other.name!r}, {paths[0]} to {task.name!r}.{said}")
        opened.append(more)
        counts.update(more.counts)
    return task, opened, counts


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
) -> tuple[Task, Sealed, dict[Stratum, tuple[int, int]]]:
    """Where in a file of one of two kinds each stratum is; in a plain one, nothing is told of the one there is."""
    task, sealed = _open_sealed(path, None)
    if sealed.envelope.kind != by_stratum:
        if sealed.envelope.kind != plain:
            _open_sealed(path, plain)  # which refuses it
        return task, sealed, {UNTOLD: (0, sealed.length)}
    place, parts, last = 0, dict[Stratum, tuple[int, int]](), b""
    while place < sealed.length:
        head = sealed.read(place, _PART.size + LONGEST + 1)
        size, length = _PART.unpack_from(head) if len(head) >= _PART.size else (0, sealed.length)
        begin, text = place + _PART.size + size, head[_PART.size : _PART.size + size]
        if begin + length > sealed.length or (parts and text <= last):
            raise Refused(f"{path} is damaged: its strata do not follow one another.")
        try:
            parts[stratum_in(task, text.decode("ascii", "replace"))] = begin, length
        except Refused as problem:
            raise Refused(f"{path}: {problem}") from None
        place, last = begin + length, text
    check_number(task, parts)
    return task, sealed, parts


def open_file(path: str | Path, kind: bytes | None = None) -> tuple[Task, Envelope]:
    """The envelope in a file, without its payload, and its task; anything inconsistent is refused."""
    task, sealed = _open_sealed(path, kind)
    return task, sealed.envelope


def _open_sealed(path: str | Path, kind: bytes | None) -> tuple[Task, Sealed]:
    sealed = open_sealed(path, kind)
    envelope = sealed.envelope
    if not envelope.task:
        raise Refused(f"{path} carries no task; name the task file it was made for.")
    try:
        task = Task.parse(json.loads(bytes(envelope.task)))
    except (ValueError, RecursionError) as problem:
        raise Refused(f"{path} carries a task that this hubbub does not understand: {problem}") from None
    check_header(envelope, task, str(path))
    return task, sealed


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
