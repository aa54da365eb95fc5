"""From a record to report bytes.

    from hubbub import Client, Task
    client = Client(Task.load("task.toml"))
    payload = client.report({"page:17": 1.0})

A client draws its coins from the operating system and accepts no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hubbub.model.record import Entries, Record, Summary, plain_record
from hubbub.model.state import sort_rows
from hubbub.primitives.batch import per_record, run_kernel
from hubbub.primitives.coins import Coins, SecretCoins, SeedSource, SystemSeeds
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import BULK
from hubbub.primitives.samplers import poisson
from hubbub.protocol.nonces import NonceSeeds
from hubbub.protocol.task import Task

#: Records that are worked on at a time, and of wide reports no more than have this many numbers.
CHUNK, _MOST_NUMBERS = 1 << 16, 1 << 24
#: Entries of repeated records that are worked on at a time.
_MOST_ENTRIES = 1 << 20
#: Numbers in a part that may be larger because it would be interpreted otherwise, which takes 30 times as long.
_MOST_COMPILED = 1 << 26


class Client:
    """Makes private reports for one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.summary = Summary()

    def report(self, record: Record, nonce: str = "") -> bytes:
        """One private report of a record: a map key -> value, or a collection of keys.

        With `nonce` if the task says that seeds come from the collector (`hubbub.protocol.nonces`).
        """
        if self.task.messages:
            raise Refused(
                "This task asks for several messages, each sealed on its own: call reports(record)."
            )
        if bool(nonce) != (self.task.seed_from == "server"):
            raise Refused(
                f"A nonce is for tasks whose seeds come from the collector, which {self.task.name!r} is not."
                if nonce
                else "Seeds of this task come from the collector: report with an Uploader, or with a nonce of its."
            )
        return self._made(record, NonceSeeds(nonce) if nonce else SystemSeeds()).tobytes()

    def reports(self, record: Record) -> list[bytes]:
        """All reports of a record: one, or as many messages as were drawn for a task with several, perhaps none."""
        if not self.task.messages:
            return [self.report(record)]
        return [row.tobytes() for row in self._made(record, SystemSeeds())]

    def _made(self, record: Record, seeds: SeedSource) -> NDArray[np.uint8]:
        entries, tidied = encode_record(self.task, record)
        packed, sampled = privatize(self.task, entries, SecretCoins(), seeds)
        self.summary += tidied + sampled
        return packed


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
    """Packed reports [n, width] of many records: one each, or a random number of messages each.

    For clients and for simulations alike: whoever calls decides which coins are flipped. Messages are sorted, so that
    their order says nothing about who sent which.
    """
    mean = task.mean_messages
    if mean is not None:
        return _messages(task, entries, mean, coins, seeds, progress)
    packed = np.zeros((len(entries), task.mechanism.layout.width), dtype=np.uint8)
    summary = Summary()
    step = records_at_a_time(task)
    for start in range(0, len(entries), step):
        part = entries.slice(start, min(start + step, len(entries)))
        packed[start : start + len(part)], sampled = one_each(task, part, coins, seeds)
        summary += sampled
        progress(len(part))
    return packed, summary


def one_each(
    task: Task, entries: Entries, coins: Coins, seeds: SeedSource
) -> tuple[NDArray[np.uint8], Summary]:
    """One report of each record."""
    layout = task.mechanism.layout
    part, sampled = task.shortened(entries, coins)
    drawn = seeds.draw(layout.fields[0].bits, len(part) * task.mechanism.seeds_per_report)
    return layout.pack(task.mechanism.randomize(task.keys, part, drawn, coins)), sampled


def _messages(
    task: Task,
    entries: Entries,
    mean: Fraction,
    coins: Coins,
    seeds: SeedSource,
    progress: Callable[[int], None],
) -> tuple[NDArray[np.uint8], Summary]:
    """A random number of messages of each record, each sampled down and made afresh, in parts that fit into memory."""
    made = [np.zeros((0, task.mechanism.layout.width), dtype=np.uint8)]
    step = max(1, records_at_a_time(task) // math.ceil(mean))
    lengths = np.diff(entries.offsets)
    for start in range(0, len(entries), step):
        records = np.arange(start, min(start + step, len(entries)))
        senders = np.repeat(records, _message_counts(len(records), mean, coins))
        ends = np.cumsum(lengths[senders] + 1)
        cuts = np.searchsorted(ends, np.arange(_MOST_ENTRIES, ends[-1] if len(ends) else 0, _MOST_ENTRIES))
        for part in np.split(senders, np.unique(cuts)):
            made.append(one_each(task, entries.take(part), coins, seeds)[0])
        progress(len(records))
    limit = task.mechanism.max_entries
    long = lengths > limit if task.mechanism.limits_entries else np.zeros(len(lengths), dtype=bool)
    dropped = int((lengths[long] - limit + (1 if task.keys.count_lengths else 0)).sum())
    return sort_rows(np.concatenate(made)), Summary(sampled_records=int(long.sum()), dropped_entries=dropped)


class _Mean(NamedTuple):
    numerator: int
    denominator: int


@per_record
def _draw_messages(tape: Any, i: int, counts: Any, mean: Any, drawn: Any) -> None:
    drawn[i] = poisson(tape, mean.numerator, mean.denominator)


def _message_counts(records: int, mean: Fraction, coins: Coins) -> NDArray[np.int64]:
    """How many messages each record sends. It is drawn without a look at the record, so it says nothing about it."""
    drawn = np.zeros(records, dtype=np.int64)
    shape = _Mean(mean.numerator, mean.denominator)
    run_kernel(_draw_messages, coins, records, shape, shape, drawn)
    return drawn
