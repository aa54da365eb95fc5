"""Shared helpers for the tests."""

from __future__ import annotations

from typing import Any

import pytest

from hubbub.protocol.task import Task

SALT = "0123456789abcdef" * 2


@pytest.fixture
def make_task() -> Any:
    """A task over a closed vocabulary of integers, with a fixed salt."""

    def make(
        name: str = "collision", size: int = 64, keys: dict[str, Any] | None = None, **parameters: Any
    ) -> Task:
        outer = {
            k: parameters.pop(k)
            for k in (
                *("low", "high", "period", "minimum_reports", "reports_per_period", "rotation", "messages"),
                *("memoize", "memoize_cap"),
            )
            if k in parameters
        }
        defaults = {"epsilon": 1.0, "max_entries": 4}
        universe = keys or {"kind": "closed", "size": size, "salt": SALT}
        return Task.parse(
            {"name": "test", "keys": universe, "mechanism": {"name": name, **defaults, **parameters}, **outer}
        )

    return make
