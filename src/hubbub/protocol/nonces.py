"""Seeds that follow from what the collector hands out, so that no sender can look for better ones.

A forger who chooses the public seed of a report tries all of them until several of his keys share a bucket. In a task
with `seed_from = "server"` a device asks the collector for a *nonce* first. The seeds of its reports are a public hash
of the nonce and of their number; the collector computes them again, and refuses all others. The nonce is the id of the
batch: it serves for one batch, and a batch that is sent again counts once, as ever. Where a device chooses among
several seeds by its record (`seeds_per_report`), any of them is taken, so a forger has the best of these: tasks have
one seed unless they ask for more.

Privacy. Randomizers keep epsilon for every seed: it is there before the record is looked at, and given the seed, the
probability of any report changes by at most a factor of exp(epsilon) if the record is replaced by any other. So whoever
chooses nonces, for whatever purpose, learns no more than that. Where a guarantee needs hash functions that nobody has
chosen (a delta, in the prf family) a task is refused; so are a shuffler, to which the nonce would tell who sent which
report, and memoized records, whose reports are sent again in other batches.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

_NONCE = re.compile("[A-Za-z0-9_-]{1,64}")
_PERSON = b"hubbub seed"


class NonceSeeds:
    """The seeds of a batch, report by report: a `SeedSource` that repeats what a nonce says."""

    def __init__(self, nonce: str) -> None:
        if not _NONCE.fullmatch(nonce):
            raise Refused("This is no nonce of a collector: ask for another one.")
        self._hash = hashlib.blake2b(nonce.encode(), digest_size=8, person=_PERSON)
        self._next = 0

    def draw(self, bits: int, count: int) -> UInt64s:
        made = []
        for number in range(self._next, self._next + count):
            hashed = self._hash.copy()
            hashed.update(f" {number}".encode())
            made.append(hashed.digest())
        self._next += count
        return np.frombuffer(b"".join(made), dtype="<u8").astype(np.uint64) >> np.uint64(64 - bits)


def refuse_own_seeds(task: Task) -> None:
    """Refuse reports whose seeds nobody handed out: seeds come batch by batch, for what is sent at once."""
    if task.seed_from == "server":
        raise Refused(
            f"The collector hands out the seeds of task {task.name!r}, so its reports are made by whoever sends them, "
            "with an Uploader. For reports of a table, leave seed_from out of the task."
        )


def check_seeds(task: Task, nonce: str, reports: UInt64s) -> UInt64s:
    """Places of unpacked reports, those of a whole batch, whose seed does not follow from the nonce."""
    each = task.mechanism.seeds_per_report
    drawn = NonceSeeds(nonce).draw(task.mechanism.layout.fields[0].bits, each * len(reports))
    known = (task.mechanism.reported_seeds(drawn).reshape(len(reports), each) == reports[:, :1]).any(axis=1)
    return np.flatnonzero(~known).astype(np.uint64)
