"""Estimates made better on average by what is known beforehand: few keys matter, or shares add up.

Both refinements are biased, never the default where an unbiased estimate can stand alone, and say so in a note:

- sparse: keys that do not stand out from the noise are 0.
- simplex: shares are not negative and add up to at most the entries of a record.

Mechanisms that estimate every key by itself are refined key by key. Where fewer measurements than keys were made
(`Mechanism.measurements`), all keys are recovered together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hubbub.model.measurements import Measurements
from hubbub.model.mechanism import Mechanism, Quantity, Refinement
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.recovery.pursuit import Recovered, pursue_blocks, pursue_noise, pursue_sparsity, threshold
from hubbub.server.recovery.simplex import least_squares, project_within

#: Probability that any key of those nobody has is taken to stand out.
ODDS = 0.05


@dataclass(frozen=True)
class Columns:
    """One quantity for many keys: values, standard errors and intervals, with notes."""

    value: Floats
    error: Floats
    low: Floats
    high: Floats
    notes: tuple[str, ...] = ()


def refined(
    task: Task, state: State, ids: UInt64s, quantity: Quantity, how: Refinement, width: float, given: Columns
) -> Columns:
    """Refine unbiased estimates of the keys `ids`; half an interval is `width` standard errors."""
    if quantity == "conditional":
        raise Refused("A conditional mean cannot be refined; refine the frequency or the mean.")
    measured = task.mechanism.measurements(state, task.keys)
    if measured is None:
        return _key_by_key(task.mechanism, quantity, how, given)
    if how == "sparse":
        return _recovered(measured, width, ids)
    value = least_squares(measured)[ids]
    return _around(value, given, f"add up to at most 1 and fit the {measured.count:,} measurements best")


def _key_by_key(mechanism: Mechanism, quantity: Quantity, how: Refinement, given: Columns) -> Columns:
    if how == "sparse":
        return _sparse(given, signed=quantity == "mean")
    if quantity != "frequency":
        raise Refused("Only frequencies add up to a known total; refine a mean with 'sparse'.")
    if not mechanism.limits_entries:
        raise Refused(f"Mechanism {mechanism.name} limits no record, so its frequencies have no known total.")
    value = project_within(given.value, mechanism.max_entries)
    return _around(value, given, f"add up to at most {mechanism.max_entries}, the entries of a record")


def _recovered(measured: Measurements, width: float, ids: UInt64s) -> Columns:
    """All keys recovered together; a key that was not found is 0, its interval what the rest leaves room for."""
    sparsity = measured.sparsity
    if not sparsity:
        found, way = pursue_noise(measured, ODDS), "keys were added while one stood out from the noise"
    elif measured.matrix.blocks > 1:
        per_block = block_sparsity(sparsity, measured.matrix.blocks)
        found, way = (
            pursue_blocks(measured, per_block),
            f"hierarchical thresholding, {per_block} keys a block",
        )
    else:
        found, way = (
            pursue_sparsity(measured, sparsity),
            f"matching pursuit, {sparsity} keys as the task says",
        )
    value, error = found.dense(), found.rest_error.copy()
    error[found.places] = found.errors
    center = np.where(value != 0, value, found.rest)
    low, high = (
        np.minimum(np.maximum(center - width * error, 0.0), value),
        np.maximum(center + width * error, value),
    )
    return Columns(value[ids], error[ids], low[ids], high[ids], _recovery_notes(measured, found, way))


def _recovery_notes(measured: Measurements, found: Recovered, way: str) -> tuple[str, ...]:
    count, rows = len(found.places), measured.matrix.rows
    notes = [
        f"Recovered from {measured.count:,} measurements, and therefore biased: {count:,} of {len(found.rest):,} keys "
        f"were found ({way}), all others are set to 0. Errors are those of least squares on the found keys and do "
        "not count how these were chosen. Without refinement (none) estimates are unbiased and much noisier."
    ]
    empty = int((measured.precision.sum(axis=1) == 0).sum())
    if empty:
        notes.append(f"{empty:,} of {rows:,} rows have no reports and were left out.")
    if not found.complete:
        notes.append(
            "The noise level was not reached: more keys matter than these measurements can tell apart; use more rows."
        )
    return tuple(notes)


def block_sparsity(sparsity: int, blocks: int) -> int:
    """Keys to allow for in a block: `sparsity` random keys put more into any block with probability at most 5%.

    (The paper's (1 + beta) s / L, with the binomial law in place of its tail bound.)
    """
    chance = 1 / blocks
    law = [math.comb(sparsity, j) * chance**j * (1 - chance) ** (sparsity - j) for j in range(sparsity + 1)]
    return next(q for q in range(sparsity + 1) if blocks * math.fsum(law[q + 1 :]) <= ODDS)


def _sparse(given: Columns, signed: bool) -> Columns:
    """Keys that stand out keep their estimate, the others are 0, and every interval has its value in it."""
    limit = threshold(len(given.value), ODDS / 2 if signed else ODDS)
    size = np.abs(given.value) if signed else given.value
    kept = size >= limit * given.error
    value = np.where(kept, given.value, 0.0)
    note = (
        f"Refined (sparse), and therefore biased: {int(kept.sum()):,} of {len(kept):,} keys are {limit:.2f} errors or "
        f"more from 0, which noise alone does for any key with probability at most {ODDS:g}; all others are set to 0. "
        "Errors do not count that choice."
    )
    bottom = given.low if signed else np.maximum(given.low, 0.0)
    return Columns(value, given.error, np.minimum(bottom, value), np.maximum(given.high, value), (note,))


def _around(value: Floats, given: Columns, what: str) -> Columns:
    """Other values within the unbiased intervals, which are cut at 0 and stretched to hold them."""
    note = (
        f"Refined (simplex), and therefore biased: values are the possible ones that {what}, which lowers the error "
        "of all keys together and pulls single ones down. Errors and intervals are those of the unbiased estimates."
    )
    low, high = np.maximum(given.low, 0.0), np.maximum(given.high, 0.0)
    return Columns(value, given.error, np.minimum(low, value), np.maximum(high, value), (note,))
