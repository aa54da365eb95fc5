"""hubbub learns from many people's sparse vectors without anybody's vector being readable.

    task = hubbub.Task.load("task.toml")           what is collected, and how it is hidden
    hubbub.Client(task).report({"page:17": 1.0})   a record becomes a few private bytes
    state = hubbub.aggregate(task, reports)        reports are added up
    hubbub.estimate(task, state)                   and the sum is read: values with error bars

`hubbub.publish` is for whoever holds the counts themselves. Everything that is public is named here; what is behind
it is in the packages, each of which rests on the ones before it: see docs/architecture.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.device.client import Client
    from hubbub.device.ledger import Ledger
    from hubbub.mechanisms.registry import make_mechanism
    from hubbub.model.guarantee import Guarantee
    from hubbub.model.keys import Keys
    from hubbub.model.state import State
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.task import Task
    from hubbub.release.artifact import Release
    from hubbub.release.publisher import publish
    from hubbub.server.estimates import Estimate, estimate
    from hubbub.server.fold import aggregate

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Estimate",
    "Guarantee",
    "Keys",
    "Ledger",
    "Refused",
    "Release",
    "State",
    "Task",
    "__version__",
    "aggregate",
    "estimate",
    "make_mechanism",
    "publish",
]

#: Where the public names live. They are loaded on first use, so that importing hubbub stays light.
_HOMES = {
    "Client": "device.client",
    "Estimate": "server.estimates",
    "Guarantee": "model.guarantee",
    "Keys": "model.keys",
    "Ledger": "device.ledger",
    "Refused": "primitives.errors",
    "Release": "release.artifact",
    "State": "model.state",
    "Task": "protocol.task",
    "aggregate": "server.fold",
    "estimate": "server.estimates",
    "make_mechanism": "mechanisms.registry",
    "publish": "release.publisher",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"hubbub.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hubbub' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
