"""Sealed reports: only the collector can open them, so that a shuffler can mix what it cannot read.

    item = seal(report, public_key, task, "2024-W10")

One item holds one report; a sealed batch could not be mixed inside. It is the report's stratum (`prefix_of` in
`hubbub.protocol.strata`: the name of its period and the number of its labels, both public), then HPKE in base mode
(RFC 9180: X25519, HKDF-SHA256, AES-128-GCM), the encapsulated key followed by the ciphertext, with no additional data
and

    info = "hubbub sealed report v2" | task digest | stratum | name of the key

and at the end the name of the public key, four bytes (`key_id`), so that a collector with several keys knows which one
opens it. Whatever is changed of an item, names included, it does not open any more.

A task without periods (`once`) has no name of one in either place, and one without labels no number. So an item opens
for its own task, period and labels and for no other, and a shuffler that cannot open it can still keep strata apart.
All items of a task have the same length. Every item has an encapsulated key of its own, drawn by the operating system:
two seals of one report have nothing in common. Hence a report is sealed once, by the ledger that made it
(`hubbub.device.ledger`), and the same item is sent however often it is sent: two items with one report in them would
count twice and could be told from all others by being alike.

The name of the key is a hash of the public key: it says which key an app came with, and nothing else. Still it tells
those with one key from those with another, so a report can hide only among reports for the same key: a shuffler mixes
those, and a collector that gave somebody a key of his own would wait in vain for his crowd. Items from the time before
items named their key (their info says v1 and names none) end with `NO_KEY` and make crowds of their own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.strata import Stratum, prefix_of, prefix_width

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

    from hubbub.protocol.task import Task

#: Bytes at the end of an item that name the key which it was sealed for.
KEY_BYTES = 4
#: What stands there in items that were sealed before items named their key.
NO_KEY = bytes(KEY_BYTES)
#: Bytes that sealing adds to a report: encapsulated key, tag and the name of the key.
OVERHEAD = 32 + 16 + KEY_BYTES
_INFO, _INFO_WITHOUT_KEY = b"hubbub sealed report v2", b"hubbub sealed report v1"


def seal(
    report: bytes, public_key: bytes, task: Task, period: str = "once", labels: tuple[str, ...] = ()
) -> bytes:
    """One report of a period and of labels (in the order of their names), for the holder of the private key alone.

    Not for tasks that memoize: sealed anew or not, the collector would find the same bytes in crowd after crowd, and
    know that they are of one person.
    """
    check_sealable(task)
    if len(report) != task.mechanism.layout.width:
        raise Refused(
            f"One report of {task.mechanism.layout.width} bytes is sealed at a time, not {len(report)} bytes."
        )
    prefix = prefix_of(task, Stratum(labels, "" if period == "once" else period))
    curve = optional("cryptography.hazmat.primitives.asymmetric.x25519", "seal")
    try:
        key = curve.X25519PublicKey.from_public_bytes(public_key)
        name = key_id(public_key)
        return prefix + suite().encrypt(report, key, info=binding(task.digest, prefix, name)) + name
    except ValueError:  # not 32 bytes, or a point that every private key maps to the same secret
        raise Refused("This is not a collector's public key; ask the collector for it again.") from None


def check_sealable(task: Task) -> None:
    """Refuse a task that is not for a shuffler, because its reports can be told apart however they are mixed."""
    if task.seed_from == "server":
        raise Refused(
            f"The collector hands out the seeds of task {task.name!r}, and knows reports by them, shuffled or not. "
            "It is for a collector without a shuffler."
        )
    if task.memoize != "off":
        raise Refused(
            f"Task {task.name!r} memoizes: its reports are sent again in later periods, and the same bytes in several "
            "crowds link a person. It is for a collector without a shuffler."
        )


def key_id(public_key: bytes) -> bytes:
    """The public name of a public key: the same for everybody who seals for it."""
    return hashlib.blake2b(public_key, digest_size=KEY_BYTES, person=b"hubbub key id").digest()


def naming_no_key(task: Task, items: bytes) -> bytes:
    """Items that were sealed before items named their key, one after another, in today's form."""
    width = sealed_width(task) - KEY_BYTES
    if len(items) % width:
        raise Refused(f"{len(items)} bytes are not a whole number of sealed reports of {width} bytes.")
    return b"".join(items[start : start + width] + NO_KEY for start in range(0, len(items), width))


def sealed_width(task: Task) -> int:
    """Bytes of one sealed item."""
    return prefix_width(task) + OVERHEAD + task.mechanism.layout.width


def binding(task: bytes, prefix: bytes, key: bytes) -> bytes:
    """What ties an item to its purpose, its task (by its digest), its stratum and its key."""
    if key == NO_KEY:
        return _INFO_WITHOUT_KEY + task + prefix
    return _INFO + task + prefix + key


def suite() -> Suite:
    """The algorithms."""
    hpke = optional("cryptography.hazmat.primitives.hpke", "seal")
    chosen: Suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_128_GCM)
    return chosen
