"""hubbub learns from many people's sparse vectors without anybody's vector being readable."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Client": "hubbub.device.client",
    "Estimate": "hubbub.estimates",
    "Guarantee": "hubbub.guarantee",
    "Keys": "hubbub.device.codes",
    "Ledger": "hubbub.device.ledger",
    "Refused": "hubbub.errors",
    "Release": "hubbub.release.artifact",
    "State": "hubbub.server.state",
    "Task": "hubbub.task",
    "aggregate": "hubbub.server.fold",
    "estimate": "hubbub.estimates",
    "make_mechanism": "hubbub.mechanism",
    "publish": "hubbub.release.publisher",
}
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

if TYPE_CHECKING:
    from hubbub.device.client import Client
    from hubbub.device.codes import Keys
    from hubbub.device.ledger import Ledger
    from hubbub.errors import Refused
    from hubbub.estimates import Estimate, estimate
    from hubbub.guarantee import Guarantee
    from hubbub.mechanism import make_mechanism
    from hubbub.release.artifact import Release
    from hubbub.release.publisher import publish
    from hubbub.server.fold import aggregate
    from hubbub.server.state import State
    from hubbub.task import Task


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that importing hubbub stays light."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hubbub' has no attribute {name!r}")
