"""A task as devices in other languages get it: one JSON document in which nothing is left to be worked out.

What a device needs of a task is partly written in it and partly follows from it: weights, the number of favoured
buckets, the fields of a report. All that follows is worked out here and written down, so that a device computes no
exponential and serialises no number. The document holds, as a text, the very bytes of the task's canonical form: their
hash is the task's digest, which a device checks without a serialiser that agrees with Python's. `docs/protocol.md`
says what every member means.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: What the document says that it is; the second if the task has rules that devices which know the first alone would not
#: keep: turns, memos, or seeds from the collector.
FORMATS = ("hubbub device task 1", "hubbub device task 2")
#: Mechanisms whose randomizers `docs/protocol.md` describes.
OFFERED = (
    "coco",
    "collision",
    "hadamard",
    "local_hashing",
    "pckv_grr",
    "privkv",
    "sampled",
    "sketch_response",
    "sparse_sum",
)
#: JSON readers keep whole numbers up to here; larger ones are written as text.
_LARGEST = (1 << 53) - 1


def device_document(task: Task) -> bytes:
    """The document of a task; its bytes depend on the task and the version of hubbub alone."""
    mechanism, keys = task.mechanism, task.keys
    if mechanism.name not in OFFERED:
        raise Refused(
            f"Mechanism {mechanism.name} runs on Python devices only; others have {', '.join(OFFERED)}."
        )
    if keys.kind == "tree":
        raise Refused("Keys of the kind tree are for Python devices only.")
    _, shape = mechanism.kernel_and_shape()  # type: ignore[attr-defined]
    scale, promise = task.scale, task.guarantee
    document = {
        "format": FORMATS[task.rotation > 1 or task.memoize != "off" or task.seed_from != "device"],
        "digest": task.digest.hex(),
        "name": task.name,
        "period": task.period,
        "reports_per_period": task.reports_per_period,
        "messages": task.messages,
        **({"labels": task.labels} if task.labels else {}),
        "guarantee": {
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "unit": promise.unit,
            "words": promise.words(),
        },
        "keys": {
            "kind": keys.kind,
            "count": keys.count,
            "bits": keys.bits,
            "cohorts": keys.cohorts,
            "count_lengths": keys.count_lengths,
            "salt": keys.salt,
        },
        "values": {
            "kind": scale.kind,
            "low": scale.low,
            "high": scale.high,
            "center": scale.center,
            "half": scale.half,
        },
        "max_entries": mechanism.max_entries if mechanism.limits_entries else None,
        "mechanism": {
            "name": mechanism.name,
            "code": task.code,
            "family": getattr(mechanism, "family", None),
            "buckets": getattr(mechanism, "buckets", 1),
            "seeds": mechanism.seeds_per_report,
            "sided": mechanism.sided,
            "in_two_steps": mechanism.name == "privkv" and getattr(mechanism, "as_published", False),
            "shape": {name: _plain(value) for name, value in shape._asdict().items()},
        },
        "report": [[field.name, _plain(field.limit)] for field in mechanism.layout.fields],
        "task": task.canonical.decode(),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def document_digest(document: bytes) -> str:
    """What a device may pin: SHA-256 over the document's bytes as they are delivered."""
    return hashlib.sha256(document).hexdigest()


def _plain(value: Any) -> bool | int | str:
    if isinstance(value, bool):
        return value
    return int(value) if abs(value) <= _LARGEST else str(int(value))
