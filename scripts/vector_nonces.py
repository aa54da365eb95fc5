"""Seeds that follow from nonces, and reports that are made with them: for `make_vectors.py`."""

from __future__ import annotations

from typing import Any

from vector_reports import Streams, salt_of

from hubbub.checks.conformance import TapeCoins
from hubbub.device.client import encode_record, privatize
from hubbub.protocol.device_document import device_document
from hubbub.protocol.nonces import NonceSeeds
from hubbub.protocol.task import Task

_NONCES = ("a", "20261118-1-00112233445566778899aabb-AAAAAAAAAAAAAAAAAAAAAA", "Z" * 64, "_-_")
_KEYS = {"kind": "closed", "vocabulary": ["a", "b", "c", "d", "e", "f"], "salt": salt_of(11)}
_MECHANISMS: tuple[dict[str, Any], ...] = (
    {"name": "collision", "epsilon": 1.0, "max_entries": 2, "seed_bits": 16},
    {"name": "coco", "epsilon": 2.0, "max_entries": 2, "values": "signed", "seed_bits": 64},
    {"name": "sketch_response", "epsilon": 1.0, "max_entries": 2, "seeds": 3, "seed_bits": 33},
    {"name": "local_hashing", "epsilon": 1.0, "max_entries": 1, "family": "prf", "seed_bits": 40},
)
_RECORDS: tuple[dict[str, float], ...] = ({}, {"a": 1}, {"b": 1, "f": 1}, {"a": 1, "c": 1, "e": 1})
#: Streams of coins for these tasks begin with this group.
_FIRST = 5000


def nonces() -> dict[str, Any]:
    """The first seeds of nonces; and task documents, with reports of records under nonces, coins by the usual rule."""
    seeds = [[nonce, [str(seed) for seed in NonceSeeds(nonce).draw(64, 12)]] for nonce in _NONCES]
    rows = []
    for place, mechanism in enumerate(_MECHANISMS):
        task = Task.parse({"name": "nonces", "keys": _KEYS, "mechanism": mechanism, "seed_from": "server"})
        pairs = [(nonce, record) for nonce in _NONCES for record in _RECORDS]
        streams, reports = Streams(_FIRST + place, 2 * len(pairs)), []
        for vector, (nonce, record) in enumerate(pairs):
            entries, _ = encode_record(task, record)
            coins = TapeCoins(streams.words(2 * vector))
            packed, _ = privatize(task, entries, coins, NonceSeeds(nonce))
            reports.append([nonce, record, packed.tobytes().hex()])
        document = device_document(task).decode()
        rows.append({"group": _FIRST + place, "document": document, "reports": reports})
    return {"seeds": seeds, "tasks": rows}
