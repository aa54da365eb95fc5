"""Sampled reports of a record, and the columns of numbers that describe them."""

from __future__ import annotations

import numpy as np

from hubbub.checks.exact import FixedSeeds
from hubbub.checks.worlds import Plain
from hubbub.device.client import encode_record, privatize
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Bytes, Int64s, UInt64s
from hubbub.primitives.coins import Coins, SeedSource
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: Reports with more fields than this are described by what they say about the keys that differ.
_MOST_FIELDS = 256
#: Keys that are asked for then, and where asking means hashing.
_MOST_ASKED, _MOST_HASHED = 64, 16
#: Numbers that are drawn at a time.
_CHUNK = 1 << 22


def packed_sample(task: Task, record: Plain, samples: int, seeds: SeedSource, coins: Coins) -> Bytes:
    """A batch of reports of one record."""
    entries, _ = encode_record(task, record)
    offsets = np.arange(samples + 1, dtype=np.int64) * len(entries.ids)
    many = Entries(np.tile(entries.ids, samples), np.tile(entries.values, samples), offsets)
    return privatize(task, many, coins, seeds)[0]


def sample(task: Task, record: Plain, samples: int, seeds: SeedSource, coins: Coins) -> UInt64s:
    """The same as numbers."""
    return task.mechanism.layout.unpack(packed_sample(task, record, samples, seeds, coins))


def described(
    task: Task, record: Plain, samples: int, seeds: SeedSource, coins: Coins, differing: UInt64s
) -> list[Int64s]:
    """Reports of a record as columns of numbers: their fields, and what they say about the keys that differ."""
    step = max(BULK, _CHUNK // len(task.mechanism.layout.fields))  # fewer would be interpreted
    asking = not isinstance(task.mechanism, Hashed) or not isinstance(seeds, FixedSeeds)
    parts = [
        views(task, sample(task, record, min(step, samples - start), seeds, coins), differing, asking)
        for start in range(0, samples, step)
    ]
    return [np.concatenate(view) for view in zip(*parts, strict=True)]


def views(task: Task, reports: UInt64s, differing: UInt64s, asking: bool) -> list[Int64s]:
    """Under a fixed seed the fields of a hashed report say all there is to say; otherwise it is asked about keys."""
    mechanism = task.mechanism
    found = []
    if len(mechanism.layout.fields) <= _MOST_FIELDS:
        found.append(reports.astype(np.int64))
    asked = differing[: _MOST_HASHED if isinstance(mechanism, Hashed) else _MOST_ASKED]
    if len(asked) and (asking or not found):
        try:
            said = [mechanism.scores(task.keys, reports, asked[i : i + 1]) for i in range(len(asked))]
            found.append(np.stack(said, axis=1))
        except Refused:
            if not found:
                raise
    return found
