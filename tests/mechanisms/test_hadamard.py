"""Hadamard response: accuracy, privacy, and where it stands among one-key mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from measuring import check_accuracy
from scipy.stats import binom

from hubbub.checks.conformance import check_privacy, task_for
from hubbub.checks.exact import law_of
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.primitives.errors import Refused
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.server.forgers import without
from hubbub.simulation.forgery import forge
from hubbub.simulation.rehearsal import repeated_states, simulate


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("kind", ["zipf", "uniform", "long"])
def test_accuracy(epsilon: float, kind: str) -> None:
    """One block, where the formula needs no assumption about the crowd."""
    check_accuracy(HadamardResponse(epsilon=epsilon, blocks=1), kind, "frequency")


def test_accuracy_with_blocks() -> None:
    """Uniform keys spread evenly over four blocks."""
    check_accuracy(HadamardResponse(epsilon=2.0, blocks=4), "uniform", "frequency")


@pytest.mark.parametrize(("epsilon", "blocks"), [(0.5, 1), (2.0, 2), (3.0, 4)])
def test_enumeration(epsilon: float, blocks: int) -> None:
    check_privacy(HadamardResponse(epsilon=epsilon, blocks=blocks), keys=4)


class Louder(HadamardResponse):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other

    def miniature(self) -> HadamardResponse:
        return Louder(epsilon=self.epsilon, blocks=self.blocks, bits=4)


def test_enumeration_notices_one_percent() -> None:
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(Louder(epsilon=1.0))


def test_blocks_follow_epsilon() -> None:
    """About (e^epsilon - 1) / 2 blocks."""
    chosen = [HadamardResponse(epsilon=e).blocks for e in (0.5, 1.0, 3.0, 5.0)]
    assert chosen == [1, 1, 8, 64]


def test_half_of_a_block_is_favoured() -> None:
    mechanism = HadamardResponse(epsilon=1.0, bits=4, blocks=2)
    law = law_of(task_for(mechanism), {"2": 1.0}, 0)
    favoured = {column for (column,), mass in law.items() if mass == max(law.values())}
    assert len(law) == 16
    assert len(favoured) == 4
    assert favoured <= set(range(8))


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0, 3.0])
def test_sketch_response_matches_the_best_for_one_key(epsilon: float) -> None:
    """For one key sketch response is optimal local hashing, 4 e^eps / (e^eps - 1)^2, and never worse than this."""
    sketch = make_mechanism("sketch_response", epsilon=epsilon, max_entries=1, family="prf")
    walsh = make_mechanism("sketch_response", epsilon=epsilon, max_entries=1)
    best = 4 * math.exp(epsilon) / math.expm1(epsilon) ** 2
    assert sketch.variance("frequency", 1) <= 1.02 * best
    assert walsh.variance("frequency", 1) <= 1.001 * HadamardResponse(epsilon=epsilon).variance(
        "frequency", 1
    )


def test_one_bit_form_is_sparse_sum_with_one_entry() -> None:
    """The bit is the key's Walsh sign, flipped with probability 1 / (e^eps + 1)."""
    one_bit = make_mechanism("sparse_sum", epsilon=1.0, max_entries=1)
    assert [(field.name, field.bits) for field in one_bit.layout.fields] == [("seed", 24), ("bit", 1)]
    law = law_of(task_for(one_bit), {"1": 1.0}, 5)
    assert sorted(float(p) for p in law.values()) == pytest.approx(
        [1 / (math.e + 1), math.e / (math.e + 1)], rel=1e-8
    )
    full = HadamardResponse(epsilon=1.0)
    assert one_bit.variance("frequency", 1) == pytest.approx(full.variance("frequency", 1), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "keys"), [(8.0, 100), (5.0, 100), (6.0, 40)])
def test_intervals_where_blocks_are_nearly_empty(epsilon: float, keys: int) -> None:
    """Half of the keys have holders, half of the people have no entry: 94 to 96.5% of all keys, and of absent ones.

    150 collections; keys in different blocks are independent but for who is empty. Beyond these limits once in a
    million times. Where votes around a key alone in its block were taken for those of other keys, 98.8% held; where
    empty records were forgotten, 90%.
    """
    users, runs = 1000, 150
    task = task_for(HadamardResponse(epsilon=epsilon), size=keys)
    order = np.random.default_rng(2).permutation(users)
    ids = np.where(order < users // 2, order % (keys // 2), 0).astype(np.uint64)
    has = (order < users // 2).astype(np.int64)
    entries = Entries(ids[has > 0], np.full(has.sum(), GRID), np.concatenate([[0], np.cumsum(has)]))
    truth = np.bincount(ids[has > 0].astype(np.int64), minlength=keys) / users
    inside = np.zeros((runs, keys), dtype=bool)
    for run, state in enumerate(repeated_states(task, entries, runs, seed=11)):
        found = estimate(task, state)
        inside[run] = (found.low <= truth) & (truth <= found.high)
    for part in (inside[:, : keys // 2], inside[:, keys // 2 :]):
        least, most = binom.ppf(5e-7, part.size, 0.94), binom.ppf(1 - 5e-7, part.size, 0.965)
        assert least <= part.sum() <= most
    assert binom.ppf(1 - 5e-7, part.size, 0.965) < 0.988 * part.size
    assert binom.ppf(5e-7, part.size, 0.94) > 0.9 * part.size


def test_forgers_cannot_hide_that_records_are_empty() -> None:
    """1,000 empty records, and 200 forged reports that look as if everybody had a key: intervals do not care."""
    task = task_for(HadamardResponse(epsilon=8.0), size=20)
    nobody = Entries(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(1001, np.int64))
    honest = simulate(task, nobody, seed=3).state
    forged = honest.merge(aggregate(task, forge(task, 200, "maximal", [1, 2, 3], seed=4)))
    for state in (honest, forged):
        counts = task.mechanism.moments(state, task.keys, task.keys.all_ids()).counts
        assert counts is not None
        assert counts.signed_noise[0] <= counts.others == 1 / task.mechanism.blocks  # type: ignore[attr-defined]
        moments = task.mechanism.moments(state, task.keys, task.keys.all_ids())
        for left in without(task, moments, state.count, 200):
            assert left.counts is not None
            assert left.counts.signed_noise[0] == counts.others


def test_bad_use() -> None:
    with pytest.raises(Refused, match="power of two"):
        make_mechanism("hadamard", epsilon=1.0, blocks=3)
    with pytest.raises(Refused, match="more bits"):
        law_of(task_for(HadamardResponse(epsilon=1.0, bits=2), size=9), {"1": 1.0}, 0)
    open_task = task_for(HadamardResponse(epsilon=1.0)).model_copy(update={"keys": _folded()})
    with pytest.raises(Refused, match="closed"):
        law_of(open_task, {"x": 1.0}, 0)


def _folded() -> object:
    from hubbub.model.keys import Keys

    return Keys(kind="folded", bits=16)
