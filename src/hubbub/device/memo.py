"""One report per distinct record: an unchanged record is answered with the report that was made for it before.

For tasks with `memoize = "record"`. In each period a device is asked once. A record that it has answered before, last
week or a year ago, gets the bytes that it got then. A new record gets a report of its own, until `memoize_cap` records
have one; from then on a new record is answered with whatever was said last.

What is promised over all time. Number the reports in the order in which they are made. Which of them is said in which
period, the *pattern*, follows from the records alone: from which of them are equal, and from the cap. Given the
pattern, what is seen is a fixed function of the reports 1 .. m, m <= cap, and these are drawn independently, report i
as any fresh report of the i-th distinct record. So if all records of all time were replaced by others with the same
pattern, the probability of any outcome would change by at most exp(m epsilon) <= exp(cap epsilon), and by exp(epsilon)
for a record that never changes, however long it is asked about. Deltas add up likewise.

What is not promised. The pattern itself shows: that a record changed, when, and that it is again what it was. Other
bytes prove a change, because an unchanged record has the same ones; no epsilon covers that, whatever the cap, and none
could for any rule that says the same again: (a, a) never leads to two different reports, (a, b) does. With a cap of 1
there is only one pattern, and epsilon is for any two sequences.

Why a record that finds no room is not answered with silence: silence would say that there is yet another record. To
say the same as before is what somebody whose record did not change does; it can be had from the silent rule by filling
in, so it says no more.

What makes two records equal is what the randomizer gets to see: keys by their ids, values on the grid after clipping,
in any order. It is compared before a record is sampled down: a sample is drawn for each report, so a long record that
did not change keeps the sample that it had, and one that changed anywhere is a new record.

Kept is not the record but a keyed hash of it, with a secret salt from the operating system. Whoever can read the
ledger has the salt, too, and can try out guesses: the file is for the device alone.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hubbub.device.client import encode_record, privatize
from hubbub.model.record import Entries, Record
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.protocol.task import Task

_SALT_BYTES, _NAME_BYTES = 32, 16


@dataclass
class Memo:
    """The reports of one task by the record that they were made for."""

    salt: bytes = field(default_factory=lambda: secrets.token_bytes(_SALT_BYTES))
    #: In the order in which they were made, by the keyed hash of their record.
    reports: dict[bytes, bytes] = field(default_factory=dict)

    def answer(self, task: Task, record: Record, last: bytes | None) -> tuple[bytes, bool]:
        """What is said about a record, and whether it was said before. `last` is what was said last."""
        entries, _ = encode_record(task, record)
        name = self.name(entries)
        if name in self.reports:
            return self.reports[name], True
        if last is not None and len(self.reports) >= task.memoize_cap:
            return last, True
        packed, _ = privatize(task, entries, SecretCoins(), SystemSeeds())
        self.reports[name] = packed.tobytes()
        return self.reports[name], False

    def name(self, entries: Entries) -> bytes:
        """What a record is known by."""
        order = np.lexsort((entries.values, entries.ids))
        seen = entries.ids[order].astype("<u8").tobytes() + entries.values[order].astype("<i8").tobytes()
        return hashlib.blake2b(self.salt + seen, digest_size=_NAME_BYTES, person=b"hubbub memo").digest()

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "salt": self.salt.hex(),
            "reports": {name.hex(): report.hex() for name, report in self.reports.items()},
        }

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Memo:
        """From plain data; a ValueError if it is none."""
        if set(data) != {"salt", "reports"}:
            raise ValueError
        salt = bytes.fromhex(data["salt"])
        reports = {bytes.fromhex(name): bytes.fromhex(report) for name, report in data["reports"].items()}
        if len(salt) != _SALT_BYTES or any(len(name) != _NAME_BYTES for name in reports):
            raise ValueError
        return cls(salt, reports)
