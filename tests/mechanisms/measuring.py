"""Crowds for the accuracy tests, and the test itself."""

from __future__ import annotations

import numpy as np
import pytest

from hubbub.checks.conformance import Accuracy, measure_accuracy, task_for
from hubbub.model.mechanism import Mechanism, Quantity
from hubbub.model.record import GRID, Entries

USERS, KEYS, RUNS = 4096, 48, 60


def crowd(mechanism: Mechanism, kind: str) -> Entries:
    """Short, full and over-long records; keys by Zipf's law or uniform; values +-1 or anything between."""
    rng = np.random.default_rng(17)
    limit = mechanism.max_entries
    lengths = {
        "zipf": rng.integers(0, limit + 1, USERS),
        "uniform": np.full(USERS, limit),
        "long": rng.integers(0, 3 * limit + 1, USERS),
    }[kind]
    weight = np.ones(KEYS) if kind == "uniform" else np.arange(1, KEYS + 1) ** -1.2
    order = np.argsort(rng.standard_exponential((USERS, KEYS)) / weight, axis=1)
    ids = order[np.arange(KEYS) < lengths[:, None]].astype(np.uint64)
    if mechanism.values == "set":
        values = np.ones(len(ids))
    elif kind == "uniform":
        values = rng.uniform(-1, 1, len(ids))
    else:
        values = np.where(rng.random(len(ids)) < 0.8, 1.0, -1.0)
    grid = np.rint(values * GRID).astype(np.int64)
    return Entries(ids, grid, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def measure(mechanism: Mechanism, kind: str, quantity: Quantity, runs: int = RUNS) -> Accuracy:
    """Squared errors against the formula on one of the crowds."""
    return measure_accuracy(task_for(mechanism, KEYS), crowd(mechanism, kind), KEYS, quantity, runs)


def check_accuracy(mechanism: Mechanism, kind: str, quantity: Quantity) -> None:
    """Unbiased, with the variance of the formula (false alarms about 1e-6); 30% wrong formulas are rejected."""
    found = measure(mechanism, kind, quantity)
    found.check()
    for wrong in (0.7, 1.3):
        with pytest.raises(AssertionError, match="variance is off"):
            found.check(formula=wrong)
