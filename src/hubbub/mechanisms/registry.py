"""Every mechanism there is, by name. They are found by looking into this folder, not by a list."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from pydantic import ValidationError

import hubbub.mechanisms as package
from hubbub.model.mechanism import Mechanism, registered
from hubbub.primitives.errors import Refused, explain


def mechanisms() -> dict[str, type[Mechanism]]:
    """Every mechanism there is, by name."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(registered.items()))


def make_mechanism(name: str, **parameters: Any) -> Mechanism:
    """A mechanism by name; a bad parameter is refused in one sentence."""
    if not isinstance(name, str) or name not in registered:
        known = mechanisms()
        if not isinstance(name, str) or name not in known:
            raise Refused(f"There is no mechanism called {name!r}; known are {', '.join(known)}.")
    try:
        return registered[name](**parameters)
    except ValidationError as problem:
        raise Refused(f"Mechanism {name}: {explain(problem)}") from None
