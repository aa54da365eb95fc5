"""Sealed reports: only the collector can open them, so that a shuffler can mix what it cannot read.

    item = seal(report, public_key, task, "2024-W10")

One item holds one report; a sealed batch could not be mixed inside. It is the name of the report's period, and
then HPKE in base mode (RFC 9180: X25519, HKDF-SHA256, AES-128-GCM), the encapsulated key followed by the ciphertext,
with no additional data and

    info = "hubbub sealed report v1" | task digest | name of the period

where a task without periods (`once`) has no name in either place. So an item opens for its own task and period and
for no other, and a shuffler that cannot open it can still keep the periods apart. All items of a task have the
same length. Every item has an encapsulated key of its own, drawn by the operating system: two seals of one report
have nothing in common. Hence a report is sealed once, by the ledger that made it (`hubbub.device.ledger`), and the
same item is sent however often it is sent: two items with one report in them would count twice and could be told
from all others by being alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubbub.primitives.errors import Refused, optional
from hubbub.protocol.periods import LABEL_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

    from hubbub.protocol.task import Task

#: Bytes that sealing adds to a report: encapsulated key and tag.
OVERHEAD = 32 + 16
_INFO = b"hubbub sealed report v1"


def seal(report: bytes, public_key: bytes, task: Task, period: str = "once") -> bytes:
    """One report of a period, readable for the holder of the private key alone."""
    if len(report) != task.mechanism.layout.width:
        raise Refused(
            f"One report of {task.mechanism.layout.width} bytes is sealed at a time, not {len(report)} bytes."
        )
    label = b"" if period == "once" else period.encode()
    if len(label) != label_width(task):
        has = "has no periods" if task.period == "once" else f"has one a {task.period}"
        raise Refused(f"{period!r} is no period of task {task.name!r}, which {has}.")
    curve = optional("cryptography.hazmat.primitives.asymmetric.x25519", "seal")
    try:
        key = curve.X25519PublicKey.from_public_bytes(public_key)
        return label + suite().encrypt(report, key, info=binding(task, label))
    except ValueError:  # not 32 bytes, or a point that every private key maps to the same secret
        raise Refused("This is not a collector's public key; ask the collector for it again.") from None


def sealed_width(task: Task) -> int:
    """Bytes of one sealed item."""
    return label_width(task) + OVERHEAD + task.mechanism.layout.width


def label_width(task: Task) -> int:
    """Bytes at the beginning of an item that name its period."""
    return LABEL_BYTES[task.period]


def binding(task: Task, label: bytes = b"") -> bytes:
    """What ties an item to its purpose, its task and its period."""
    return _INFO + task.digest + label


def suite() -> Suite:
    """The algorithms."""
    hpke = optional("cryptography.hazmat.primitives.hpke", "seal")
    chosen: Suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_128_GCM)
    return chosen
