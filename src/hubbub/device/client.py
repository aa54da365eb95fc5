"""From a record to report bytes.

    from hubbub import Client, Task
    client = Client(Task.load("task.toml"))
    payload = client.report({"page:17": 1.0})

A client draws its coins from the operating system and accepts no others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import Entries, Record, Summary, plain_record
from hubbub.primitives.coins import Coins, SecretCoins, SeedSource, SystemSeeds
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: Records that are worked on at a time, and of wide reports no more than have this many numbers.
CHUNK, _MOST_NUMBERS = 1 << 16, 1 << 24
#: Numbers in a part that may be larger because it would be interpreted otherwise, which takes 30 times as long.
_MOST_COMPILED = 1 << 26


class Client:
    """Makes private reports for one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.summary = Summary()

    def report(self, record: Record) -> bytes:
        """One private report of a record: a map key -> value, or a collection of keys."""
        entries, tidied = encode_record(self.task, record)
        packed, sampled = privatize(self.task, entries, SecretCoins(), SystemSeeds())
        self.summary += tidied + sampled
        return packed.tobytes()


def encode_record(task: Task, record: Record) -> tuple[Entries, Summary]:
    """One record as a batch of one, by the rules of `hubbub.model.record` for devices."""
    plain, unreadable = plain_record(record)
    ids, known = task.keys.known(list(plain))
    numbers = np.fromiter(plain.values(), dtype=np.float64, count=len(plain))[known]
    legal = task.scale.legal(numbers)
    values, clipped = task.scale.encode(numbers[legal])
    present = values != 0 if task.scale.kind == "set" else np.ones(len(values), dtype=bool)
    kept = int(present.sum())
    entries = Entries(ids[legal][present], values[present], np.array([0, kept], dtype=np.int64))
    summary = Summary(
        1,
        kept,
        clipped=int(clipped.sum()),
        absent=len(values) - kept,
        unknown=len(plain) - len(ids),
        unreadable=unreadable + len(ids) - len(values),
    )
    return entries, summary


def records_at_a_time(task: Task) -> int:
    """How many records are worked on together."""
    fields = len(task.mechanism.layout.fields)
    few = max(1, _MOST_NUMBERS // fields)
    return BULK if few < BULK <= _MOST_COMPILED // fields else min(CHUNK, few)


def privatize(
    task: Task,
    entries: Entries,
    coins: Coins,
    seeds: SeedSource,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.uint8], Summary]:
    """Packed reports [n, width] of many records.

    For clients and for simulations alike: whoever calls decides which coins are flipped.
    """
    layout = task.mechanism.layout
    packed = np.zeros((len(entries), layout.width), dtype=np.uint8)
    summary = Summary()
    step = records_at_a_time(task)
    for start in range(0, len(entries), step):
        part = entries.slice(start, min(start + step, len(entries)))
        part, sampled = task.shortened(part, coins)
        summary += sampled
        drawn = seeds.draw(layout.fields[0].bits, len(part) * task.mechanism.seeds_per_report)
        packed[start : start + len(part)] = layout.pack(
            task.mechanism.randomize(task.keys, part, drawn, coins)
        )
        progress(len(part))
    return packed, summary
