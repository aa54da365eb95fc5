"""The papers' measures of error: what was estimated against the truth, over the asked keys."""

from __future__ import annotations

import hashlib
from statistics import NormalDist

import numpy as np

from hubbub.experiments.runner import Row
from hubbub.model.mechanism import Mechanism, Quantity
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.simulation.rehearsal import simulate

#: Entries that are privatized at a time: long records of many users would need gigabytes at once.
_ENTRIES = 1 << 22


def largest_error(found: Floats, truth: Floats) -> float:
    """L_inf of Zhou et al., and MAE (maximum absolute error) of Wang et al."""
    return float(np.abs(found - truth).max())


def mean_square_error(found: Floats, truth: Floats) -> float:
    """MSE of Zhou et al."""
    return float(((found - truth) ** 2).mean())


def mean_absolute_error(found: Floats, truth: Floats) -> float:
    """The mean of the absolute errors (not the MAE of Wang et al., which is the largest)."""
    return float(np.abs(found - truth).mean())


def total_variation_error(found: Floats, truth: Floats) -> float:
    """TVE of Wang et al.: the sum of the absolute errors."""
    return float(np.abs(found - truth).sum())


def coverage(found: Floats, variance: Floats, truth: Floats, level: float = 0.95) -> float:
    """The share of keys whose interval, as `hubbub.server.estimates` draws it, has the truth in it."""
    width = NormalDist().inv_cdf((1 + level) / 2)
    return float((np.abs(found - truth) <= width * np.sqrt(variance)).mean())


def seed_of(*parts: object) -> int:
    """A public seed that depends on these words and numbers only."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "little")


def collected(
    mechanism: Mechanism, entries: Entries, keys: int, ids: UInt64s, quantity: Quantity, seed: int
) -> tuple[Floats, Floats]:
    """A simulated collection over keys 0 .. keys - 1, packed and unpacked as ever: estimates and variances."""
    codes = {"kind": "closed", "size": keys, "salt": f"{seed:032x}"}
    if mechanism.sided:
        codes["bits"] = max(16, (2 * keys).bit_length())
    task = Task.parse({"name": "reproduction", "keys": codes, "mechanism": mechanism})
    step = max(1, _ENTRIES * len(entries) // max(1, len(entries.ids)))
    state = mechanism.empty(task.keys)
    for start in range(0, len(entries), step):
        part = entries.slice(start, min(start + step, len(entries)))
        state = state.merge(simulate(task, part, seed + 2 * start).state)
    found = estimate(task, state, ids.tolist(), quantity)
    return found.value, found.error**2


def with_error(row: Row, column: str) -> str:
    """A mean over repetitions, with its standard error if there is one."""
    error = row.get(f"{column}_error")
    return f"{row[column]:.3g}" + (f" ± {error:.1g}" if error else "")
