"""What one report does to several chosen keys: as the search through all seeds finds it."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from hubbub.checks.conformance import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.shared import several_keys
from hubbub.mechanisms.shared.several_keys import aligned_at_once, best_aligned
from hubbub.model.influence import direction_of
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Quantity
from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

_BITS, _KEYS, _CHOICES = 10, 300, 20


def _made(name: str, more: dict[str, Any]) -> Task:
    mechanism = make_mechanism(name, **{"epsilon": 1.0, **more})
    if "seed_bits" in type(mechanism).model_fields:
        mechanism = mechanism.model_copy(update={"seed_bits": _BITS})
    return task_for(mechanism, _KEYS)


def _best(task: Task, quantity: Quantity, ids: UInt64s, sign: int = 1) -> float:
    """Of all seeds there are, with the loudest report of each."""
    mechanism = task.mechanism
    reports = np.zeros((mechanism.layout.fields[0].limit, len(mechanism.layout.fields)), dtype=np.uint64)
    reports[:, 0] = np.arange(len(reports))
    way = sign * direction_of(mechanism, quantity, 0.0, 1.0)
    loud = mechanism.louder(task.keys, reports, ids, np.repeat(way[:, None], len(ids), axis=1))
    said = np.nan_to_num(mechanism.contributions(task.keys, loud, ids))
    return float(np.einsum("qrk,q->r", said, way).max())


def _choose(task: Task, count: int, rng: np.random.Generator) -> UInt64s:
    """Random keys; where keys are in blocks, of the first one."""
    ids = task.keys.all_ids()
    if task.mechanism.name == "compressive":
        block = task.mechanism.block_of(task.keys, ids)  # type: ignore[attr-defined]
        ids = ids[block == block[0]]
    return rng.choice(ids, count, replace=False)


_CASES: list[tuple[str, dict[str, Any], Quantity]] = [
    ("collision", {"max_entries": 8}, "frequency"),
    ("collision", {"max_entries": 4, "family": "prf", "buckets": 5}, "frequency"),
    ("collision", {"max_entries": 4, "values": "signed"}, "frequency"),
    ("collision", {"max_entries": 4, "values": "signed"}, "mean"),
    ("sketch_response", {"max_entries": 8, "buckets": 2}, "frequency"),
    ("sketch_response", {"max_entries": 4, "values": "signed"}, "mean"),
    ("coco", {"max_entries": 4}, "mean"),
    ("coco", {"max_entries": 4}, "frequency"),
    ("sampled", {"max_entries": 4, "values": "signed"}, "mean"),
    ("repeated", {"max_entries": 2, "buckets": 4}, "frequency"),
    ("local_hashing", {}, "frequency"),
    ("sparse_sum", {"max_entries": 8}, "frequency"),
    ("sparse_sum", {"max_entries": 8, "unit": "entry"}, "frequency"),
    ("sparse_sum", {"max_entries": 8, "unit": "entry", "epsilon": 2.0}, "frequency"),
    ("compressive", {"rows": 1024, "epsilon": 3.0}, "frequency"),
]


@pytest.mark.parametrize(("name", "more", "quantity"), _CASES)
def test_as_the_search_finds_it(name: str, more: dict[str, Any], quantity: Quantity) -> None:
    """On average over chosen keys the best report does what is told, at most: seeded, of 20 choices, 0.8 to 1.05 of it.

    All of so many keys as are told to be served at once are for some choices of them, and three more hardly ever. A
    number that is 30% off would not pass.
    """
    task, rng = _made(name, more), np.random.default_rng(5)
    mechanism = task.mechanism
    at_once = mechanism.keys_at_once(quantity, task.keys)
    one = mechanism.influence(quantity).up
    assert math.isfinite(at_once)
    served = {}
    for count in sorted({2, int(at_once), int(at_once) + 3, 2 * int(at_once) + 2}):
        found = np.array([_best(task, quantity, _choose(task, count, rng)) for _ in range(_CHOICES)])
        told = mechanism.influence_together(quantity, task.keys, count).up
        assert told <= count * one * (1 + 1e-9)
        assert 0.8 <= found.mean() / told <= 1.05, (count, found.mean() / told)
        served[count] = int((found >= count * one * (1 - 1e-9)).sum())
    assert served[int(at_once)] > 0.3 * _CHOICES
    assert served[int(at_once) + 3] < 0.3 * _CHOICES
    assert served[2 * int(at_once) + 2] == 0


def test_downwards() -> None:
    """Naming another bucket speaks against all of them."""
    task, rng = _made("collision", {"max_entries": 8}), np.random.default_rng(5)
    told = task.mechanism.influence_together("frequency", task.keys, 6)
    assert told.down == pytest.approx(6 * task.mechanism.influence("frequency").down)
    assert _best(task, "frequency", _choose(task, 6, rng), -1) == pytest.approx(told.down)


def test_seeds_that_are_given() -> None:
    """Who cannot choose the seed moves other keys by chance alone: the mean over seeds of the best report of each."""
    for name, more in (
        ("collision", {"max_entries": 8}),
        ("sparse_sum", {"max_entries": 8, "unit": "entry"}),
    ):
        task, rng = _made(name, more), np.random.default_rng(6)
        mechanism, way = task.mechanism, np.array([[1.0] * 3, [0.0] * 3])
        reports = np.zeros((1 << _BITS, len(mechanism.layout.fields)), dtype=np.uint64)
        reports[:, 0] = np.arange(1 << _BITS)
        ids = _choose(task, 3, rng)
        said = mechanism.contributions(task.keys, mechanism.louder(task.keys, reports, ids, way), ids)[0]
        given = mechanism.influence_together("frequency", task.keys, 3, chosen=False).up
        assert said.sum(axis=1).mean() <= 1.02 * given
        assert given <= 1.25 * said.sum(axis=1).mean()
        assert given < 0.9 * mechanism.influence_together("frequency", task.keys, 3).up


@pytest.mark.parametrize(
    ("more", "sign"),
    [
        ({"max_entries": 8, "buckets": 2, "seeds": 8}, 1),
        ({"max_entries": 2, "buckets": 4, "seeds": 3}, 1),
        ({"max_entries": 2, "buckets": 4, "seeds": 1}, 1),
        ({"max_entries": 4, "buckets": 4, "seeds": 8, "values": "signed"}, 1),
        ({"max_entries": 2, "buckets": 8, "seeds": 3}, -1),
    ],
)
def test_several_seeds_that_are_given(more: dict[str, Any], sign: int) -> None:
    """The best of the seeds of a report, over all keys and salts: never above the bound, and down to 0.7 of it.

    The best report of every seed is looked at, for 60 choices of keys under salts of their own. The mean over all
    groups of g seeds is that of a largest of g draws. What is told is a mean over choices: 5 standard errors are
    allowed for, and the bound for one seed is exceeded by every case with several.
    """
    rng, mechanism = np.random.default_rng(7), make_mechanism("sketch_response", epsilon=1.0, **more)
    mechanism = mechanism.model_copy(update={"seed_bits": _BITS})
    quantity, each = mechanism.quantities[0], mechanism.seeds_per_report
    way = sign * direction_of(mechanism, quantity, 0.0, 1.0)
    reports = np.zeros((1 << _BITS, len(mechanism.layout.fields)), dtype=np.uint64)
    reports[:, 0] = np.arange(1 << _BITS)
    ranks = np.arange(1, len(reports) + 1) / len(reports)
    largest = np.diff(ranks**each, prepend=0.0)
    for count in (2, 3, 7):
        means = []
        for _ in range(60):
            keys = Keys(kind="closed", size=_KEYS, salt=rng.bytes(16).hex())
            ids = rng.choice(keys.all_ids(), count, replace=False)
            loud = mechanism.louder(keys, reports, ids, np.repeat(way[:, None], count, axis=1))
            said = np.nan_to_num(mechanism.contributions(keys, loud, ids))
            means.append(float(np.sort(np.einsum("qrk,q->r", said, way)) @ largest))
        found = mechanism.influence_together(quantity, keys, count, chosen=False)
        told, error = (found.up if sign > 0 else found.down), np.std(means) / math.sqrt(len(means))
        assert np.mean(means) <= told + 5 * error + 1e-9
        assert np.mean(means) >= 0.7 * told
        if each > 1 and sign > 0:
            one = mechanism.model_copy(update={"seeds": 1})
            assert np.mean(means) > 1.2 * one.influence_together(quantity, keys, count, chosen=False).up


def test_buckets_where_no_key_is() -> None:
    """With hardly any codes, rows of seeds are alike, and a report names a bucket that no code has: downwards in full.

    Every choice of 40 of the 60 keys gets all of it under the best seed, of those that are given under a few.
    """
    keys = Keys(kind="closed", size=60, bits=6, salt="00" * 16)
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=2, buckets=8, seed_bits=_BITS)
    task, rng = Task.parse({"name": "few", "keys": keys, "mechanism": mechanism}), np.random.default_rng(1)
    told, one = mechanism.influence_together("frequency", keys, 40), mechanism.influence("frequency").down
    assert told.down == pytest.approx(40 * one)
    for _ in range(3):
        assert _best(task, "frequency", rng.choice(keys.all_ids(), 40, replace=False), -1) == pytest.approx(
            40 * one
        )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("collision", {"max_entries": 8}),
        ("collision", {"max_entries": 8, "values": "signed"}),
        ("sketch_response", {"max_entries": 8, "buckets": 2, "seeds": 2}),
        ("sparse_sum", {"max_entries": 8, "unit": "entry"}),
        ("compressive", {}),
    ],
)
def test_very_many_keys(name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more keys than are counted: no less than what is counted, less than twice that, and it goes on from there."""
    mechanism, keys = make_mechanism(name, **{"epsilon": 1.0, **more}), Keys(kind="closed", size=10_000)
    quantity = mechanism.quantities[0]
    for chosen in (True, False):

        def told(count: int, chosen: bool = chosen) -> float:
            return mechanism.influence_together(quantity, keys, count, chosen=chosen).up

        at_most, sums = [told(count) for count in (100, 110, 400)], told(10_000)
        assert sums < 10_000 * mechanism.influence(quantity).up
        with monkeypatch.context() as fewer:
            fewer.setattr(several_keys, "_COUNTED", 100)
            bounds = [told(count) for count in (100, 110, 400)]
        assert bounds[0] == at_most[0]
        assert all(low <= bound * (1 + 1e-9) for low, bound in zip(at_most, bounds, strict=True))
        assert bounds[1] <= 1.1 * (1 + 1e-9) * bounds[0]
        assert bounds[2] < 2 * at_most[2]


def test_all_keys_of_a_block() -> None:
    """Hadamard response: the first column of a block lifts every key of it by the full amount."""
    for more in ({}, {"epsilon": 3.0, "bits": 12}):
        task = _made("hadamard", more)
        mechanism = task.mechanism
        blocks = mechanism.blocks  # type: ignore[attr-defined]
        at_once = mechanism.keys_at_once("frequency", task.keys)
        assert at_once == math.ceil(_KEYS / blocks)
        one = mechanism.influence("frequency").up
        for count in (2, int(at_once), _KEYS):
            ids = mechanism.chosen_first(task.keys)[:count]
            told = mechanism.influence_together("frequency", task.keys, count).up
            assert told == pytest.approx(_best(task, "frequency", ids))
            assert told == pytest.approx(min(count, at_once) * one)


@pytest.mark.parametrize(("bits", "blocks", "size"), [(4, 1, 11), (4, 2, 9), (5, 4, 5), (4, 4, 3)])
def test_columns_by_enumeration(bits: int, blocks: int, size: int) -> None:
    """Hadamard response: the worst choice of keys and column, of all there are."""
    mechanism = make_mechanism("hadamard", epsilon=1.0, bits=bits, blocks=blocks)
    keys = Keys(kind="closed", size=size, salt="00" * 16)
    columns = np.arange(1 << bits, dtype=np.uint64)
    reports = np.stack([np.zeros_like(columns), columns], axis=1)
    said = mechanism.contributions(keys, reports, keys.all_ids())[0]
    for count in range(1, size + 1):
        sums = np.array([said[:, choice].sum(axis=1) for choice in combinations(range(size), count)])
        told = mechanism.influence_together("frequency", keys, count)
        assert (told.up, told.down) == pytest.approx((sums.max(), -sums.min()))


def test_reports_about_listed_keys() -> None:
    """There are no seeds: what the loudest report does, for one key or for all."""
    for name, all_of_them in (("freq_est", True), ("pckv_ue", True), ("privkv", False), ("harmony", False)):
        task = _made(name, {"size": _KEYS, **({"max_entries": 4} if name != "freq_est" else {})})
        mechanism, quantity = task.mechanism, task.mechanism.quantities[-2:][0]
        one = mechanism.influence(quantity).up
        told = mechanism.influence_together(quantity, task.keys, 5).up
        assert told == pytest.approx((5 if all_of_them else 1) * one)
        assert mechanism.keys_at_once(quantity, task.keys) == (_KEYS if all_of_them else 1)


def test_rows_that_vanish() -> None:
    """With hardly any keys, some seeds put all of them into one bucket; with many, none does."""
    mechanism = make_mechanism("sketch_response", epsilon=1.0, max_entries=1, buckets=2)
    mechanism = mechanism.model_copy(update={"seed_bits": 16})
    few, many = (Keys(kind="closed", size=1000, bits=bits, salt="00" * 16) for bits in (10, 20))
    assert mechanism.keys_at_once("frequency", few) == math.inf
    assert mechanism.keys_at_once("frequency", many) == 17
    task = Task.parse({"name": "few", "keys": few, "mechanism": mechanism})
    ids = few.all_ids()[:100]
    assert _best(task, "frequency", ids) == pytest.approx(100 * mechanism.influence("frequency").up)
    assert mechanism.influence_together("frequency", few, 100).up == pytest.approx(
        100 * mechanism.influence("frequency").up
    )


def test_signs_in_bins_by_enumeration() -> None:
    """Three keys in two bins: the law of what is aligned, over all places and signs."""
    aligned = []
    for code in range(4**3):
        places = np.array([code % 4, code // 4 % 4, code // 16])
        sums = [np.sum(1 - 2 * (places[places % 2 == bin] // 2)) for bin in (0, 1)]
        aligned.append(np.abs(sums).sum())
    chance = float(np.mean(np.array(aligned) == 3))
    exact = -math.log2(chance)
    assert aligned_at_once(exact + 1e-6, 2) == 3
    assert aligned_at_once(exact - 1e-6, 2) == 2
    assert np.mean(aligned) <= best_aligned(0.0, 2, 3) <= 3


def test_what_has_no_sum_is_refused() -> None:
    task = _made("collision", {"max_entries": 4, "values": "signed"})
    wrong = (("conditional", 2), ("mean", 0), ("mean", _KEYS + 1), ("mean", 2.5), ("mean", math.nan))
    for quantity, count in wrong:
        with pytest.raises(Refused, match="several keys"):
            task.mechanism.influence_together(quantity, task.keys, count)  # type: ignore[arg-type]
    assert task.mechanism.influence_together("mean", task.keys, _KEYS).up > 0
    assert task.mechanism.influence_together("mean", Keys(kind="folded", bits=12), 10 * _KEYS).up > 0
