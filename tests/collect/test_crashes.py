"""Kill -9 at random moments: nothing acknowledged is lost, nothing is counted twice.

This is the short version of benchmarks/crashes.py.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "crashes.py"


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("crashes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["crashes"] = module
    spec.loader.exec_module(module)
    return module


def test_killed_again_and_again(store_url: str) -> None:
    found = load_script().crash_rounds(store_url, rounds=3, seed=7, longest=1.0)
    assert found["troubles"] == []
    assert found["errors"] == []
    assert found["counted"] == found["reports"] > 0
    assert found["same_state"]
    assert found["retries"] > 0  # the kills were felt
    assert found["repeats"] > 0
    assert found["readings"] > 0
    assert found["exit"] == 0


def test_killed_while_groups_are_added_up(store_url: str) -> None:
    """With labels, and reports that are dropped when they are in the sum of their group."""
    found = load_script().crash_rounds(store_url, rounds=3, seed=11, longest=1.0, groups=5)
    assert found["troubles"] == []
    assert found["errors"] == []
    assert found["counted"] == found["reports"] > 0
    assert found["same_state"]
    assert found["retries"] > 0
    assert found["exit"] == 0


def test_killed_between_the_parts_of_a_crowd() -> None:
    """Shuffler and collector are killed while crowds travel in many parts: all reports count, once, in whole crowds."""
    found = load_script().shuffler_rounds(rounds=2, seed=3, least=40, parts=True, longest=0.6)
    assert found["troubles"] == []
    assert found["counted"] == found["reports"] > 0
    assert found["same_state"]
    assert found["kills"] > 2  # the collector was among them
    assert found["smallest"] >= 40
