"""Sealed reports: only the collector can open them, so that a shuffler can mix what it cannot read.

    item = seal(report, public_key, task)

One item holds one report; a sealed batch could not be mixed inside. It is HPKE in base mode (RFC 9180:
X25519, HKDF-SHA256, AES-128-GCM), the encapsulated key followed by the ciphertext, with no additional data and

    info = "hubbub sealed report v1" | task digest

so an item opens for its own task and for no other. All items of a task have the same length. Every item has an
encapsulated key of its own, drawn by the operating system: two seals of one report have nothing in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubbub.primitives.errors import Refused, optional

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

    from hubbub.protocol.task import Task

#: Bytes that sealing adds to a report: encapsulated key and tag.
OVERHEAD = 32 + 16
_INFO = b"hubbub sealed report v1"


def seal(report: bytes, public_key: bytes, task: Task) -> bytes:
    """One report, readable for the holder of the private key alone."""
    if len(report) != task.mechanism.layout.width:
        raise Refused(
            f"One report of {task.mechanism.layout.width} bytes is sealed at a time, not {len(report)} bytes."
        )
    curve = optional("cryptography.hazmat.primitives.asymmetric.x25519", "seal")
    try:
        key = curve.X25519PublicKey.from_public_bytes(public_key)
        return suite().encrypt(report, key, info=binding(task))
    except ValueError:  # not 32 bytes, or a point that every private key maps to the same secret
        raise Refused("This is not a collector's public key; ask the collector for it again.") from None


def sealed_width(task: Task) -> int:
    """Bytes of one sealed item."""
    return OVERHEAD + task.mechanism.layout.width


def binding(task: Task) -> bytes:
    """What ties an item to its purpose and its task."""
    return _INFO + task.digest


def suite() -> Suite:
    """The algorithms."""
    hpke = optional("cryptography.hazmat.primitives.hpke", "seal")
    chosen: Suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_128_GCM)
    return chosen
