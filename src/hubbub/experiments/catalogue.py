"""Everything that can be run again: every module of this package that has `experiments()` adds to the list."""

from __future__ import annotations

import importlib
import pkgutil

import hubbub.experiments as package
from hubbub.experiments.runner import Experiment


def catalogue() -> dict[str, Experiment]:
    """Every experiment by name."""
    modules = (
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    )
    found = [entry for module in modules if hasattr(module, "experiments") for entry in module.experiments()]
    return {entry.name: entry for entry in found}
