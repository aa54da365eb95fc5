"""What is said beside estimates, besides the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.text import visible
from hubbub.server.truncation import Truncation, may_be_long, unknown_words

if TYPE_CHECKING:
    from hubbub.protocol.task import Task


def remarks(task: Task, heard: int) -> list[str]:
    """What is said beside all estimates of a task."""
    notes = list(task.mechanism.remarks)
    if task.keys.tree is not None:
        notes.append(
            f"Estimates are made from the {heard:,} reports of people who were asked for whole keys and take no part "
            "in the search: finding a key does not change what they say about it."
        )
    if task.keys.alias_odds:
        notes.append(
            f"Open vocabulary folded to {task.keys.bits} bits: any other key shares a given key's code "
            f"with probability {task.keys.alias_odds:.2g}, and is then counted with it."
        )
    return notes


def shared_first(notes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What is said beside several groups: what holds for all of them, then the rest with the name of the group."""
    first = next(iter(notes.values()), ())
    shared = [note for note in first if all(note in said for said in notes.values())]
    apart = (
        f"{visible(name)}: {note}" for name, said in notes.items() for note in said if note not in shared
    )
    return (*shared, *apart)


def cut_notes(task: Task, ids: UInt64s, names: Sequence[str]) -> list[str]:
    """What is said about keys that are longer than those of a tree; a found one has the mark in its name."""
    tree = task.keys.tree
    pairs = zip(ids.tolist(), names, strict=True)
    if tree is None or not any(tree.named(n)[1] and tree.name_of(n) != name for n, name in pairs):
        return []
    return [
        f"Keys of more than {tree.longest} symbols are cut: what is said of one counts all that begin like it."
    ]


def truncation_notes(task: Task, truncation: Truncation | None, average: bool) -> list[str]:
    """What is said about records that were sampled down; what is alarming is a warning already."""
    if not may_be_long(task):
        return []
    if truncation is None:
        return [unknown_words(task, average)]
    return [] if truncation.dropped == 0 or truncation.alarming else [truncation.words()]
