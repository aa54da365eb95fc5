"""What one report can do: the bound is what the best of all reports does, for every mechanism and quantity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hubbub.checks.conformance import examples, task_for
from hubbub.mechanisms.privkv import PrivKV
from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.model.influence import corners, influence_of, of_both, weighted
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Mechanism, Quantity
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate
from hubbub.simulation.rehearsal import simulate

_KEYS, _USERS = 3, 400


def _small() -> dict[str, Mechanism]:
    """Every mechanism in every form, so small that all its reports can be tried, of 64 seeds."""
    more = [
        make_mechanism("gaussian", epsilon=1.0, max_entries=2, size=3, delta=0.1, grid=1),
        make_mechanism("gaussian", epsilon=1.0, max_entries=2, size=3, delta=0.1, grid=1, values="signed"),
        make_mechanism("value_list", epsilon=1.0, size=3, grid=1, frequencies=(0.3, 0.3, 0.2)),
        make_mechanism("value_list", epsilon=1.0, size=3, grid=1, floor=0.001),
        make_mechanism("freq_est", epsilon=1.0, size=3, floor=0.001),
        make_mechanism("hadamard", epsilon=3.0, bits=4, blocks=2),
        make_mechanism("repeated", epsilon=2.0, max_entries=3, values="signed", mode="events", buckets=4),
    ]
    found = {}
    for each in [*examples(), *more]:
        mechanism = each.miniature()
        if "seed_bits" in type(mechanism).model_fields:
            mechanism = mechanism.model_copy(update={"seed_bits": 6})
        found[repr(mechanism)] = mechanism
    assert {each.name for each in found.values()} == set(mechanisms())
    return found


_SMALL = _small()
_named = pytest.mark.parametrize("mechanism", _SMALL.values(), ids=[each.name for each in _SMALL.values()])


def _every_report(mechanism: Mechanism) -> UInt64s:
    """All reports; where a field has more than 40 numbers, its ends and some between; of Gaussian numbers the first."""
    choices: list[Any] = []
    for place, field in enumerate(mechanism.layout.fields):
        few = np.unique(
            np.linspace(0, field.limit - 1, 40 if mechanism.name != "gaussian" else 400).astype(np.int64)
        )
        choices.append(np.array([0]) if mechanism.name == "gaussian" and place > 1 else few)
        if field.limit <= 1 << 10 and len(choices[-1]) > 1:
            choices[-1] = np.arange(field.limit)
    grid = np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, len(choices))
    assert len(grid) <= 1 << 15
    return grid.astype(np.uint64)


def _others(task: Task, users: int = _USERS) -> State:
    """All reports but one, of a random crowd."""
    mechanism, rng = task.mechanism, np.random.default_rng(3)
    values = np.full(users - 1, GRID) if mechanism.values == "set" else rng.integers(-GRID, GRID, users - 1)
    ids = rng.integers(0, _KEYS, users - 1).astype(np.uint64)
    return simulate(task, Entries(ids, values.astype(np.int64), np.arange(users, dtype=np.int64)), 7).state


def _with_each(task: Task, others: State, reports: UInt64s) -> Iterator[State]:
    for report in task.mechanism.layout.pack(reports):
        yield others.merge(aggregate(task, report.tobytes()))


def _estimates(task: Task, others: State, reports: UInt64s) -> Floats:
    """[2, reports]: frequency and mean of key 0 from the others and each report."""
    key = task.keys.ids_of([0])
    moments = [task.mechanism.moments(state, task.keys, key) for state in _with_each(task, others, reports)]
    return np.stack([of_both(each)[:, 0] for each in moments], axis=1)


@_named
def test_the_bound_is_what_the_best_report_does(mechanism: Mechanism) -> None:
    """Every report is tried in the place of another, through absorbing and estimating: within 1%, never exceeded.

    A bound that is 30% off in either direction would not pass.
    """
    task = task_for(mechanism, _KEYS)
    reports, others = _every_report(mechanism), _others(task)
    found, n = _estimates(task, others, reports), others.count + 1
    for quantity in mechanism.quantities:
        if quantity == "conditional":
            continue
        row = found[0 if quantity == "frequency" else 1]
        ends = reports[[np.argmin(row), np.argmax(row)]]
        asked: dict[str, Any] = {"quantity": quantity, "keys": [0], "refine": "none"}
        low, high = (estimate(task, state, **asked).value[0] for state in _with_each(task, others, ends))
        heard = mechanism.heard_about(others, task.keys, task.keys.ids_of([0]), 1)[0] / n
        assert heard == 1 or isinstance(mechanism, PrivKV)
        bound = mechanism.influence(quantity, heard=heard)
        assert high - low == pytest.approx(row.max() - row.min())
        for wrong in (0.7, 1.0, 1.3):
            reached = n * (high - low) / (wrong * bound.replaced)
            assert (0.99 <= reached <= 1 + 1e-9) == (wrong == 1.0), (mechanism, quantity, reached)
        assert bound.replaced == pytest.approx(bound.up + bound.down)
        # Upwards and downwards: n times an estimate is a sum of contributions, all between the two.
        rest = of_both(mechanism.uncut.moments(others, task.keys, task.keys.ids_of([0])))
        if not isinstance(mechanism, PrivKV) and not getattr(mechanism, "frequencies", None):
            base = (n - 1) * rest[0 if quantity == "frequency" else 1, 0]
            assert n * high - base == pytest.approx(bound.up, rel=0.01, abs=0.02 * bound.replaced)
            assert base - n * low == pytest.approx(bound.down, rel=0.01, abs=0.02 * bound.replaced)


@pytest.mark.parametrize(
    "mechanism",
    [each for each in _SMALL.values() if "conditional" in each.quantities],
    ids=lambda each: each.name,
)
def test_conditional_means(mechanism: Mechanism) -> None:
    """The same for a key that nearly everybody has, of whatever value: first order in 1 / n."""
    task, users = task_for(mechanism, _KEYS), 200_000
    key, reports = task.keys.ids_of([0]), _every_report(mechanism)
    ids, offsets = np.zeros(users, dtype=np.uint64), np.arange(users + 1, dtype=np.int64)
    for value in (GRID, -GRID):
        others = simulate(task, Entries(ids, np.full(users, value), offsets), 5).state
        share, mean = of_both(mechanism.moments(others, task.keys, key))[:, 0]
        ratio = mean / share
        found = _estimates(task, others, reports[_extremes(mechanism, task, reports, ratio)])
        ratios = found[1] / found[0]
        reached = (others.count + 1) * (ratios.max() - ratios.min())
        assert reached == pytest.approx(_first_order(mechanism, ratio) / share, rel=0.01)
    largest = max(_first_order(mechanism, ratio) for ratio in (-1, 1))
    assert largest == pytest.approx(mechanism.influence("conditional", 1.0).replaced)


def _extremes(mechanism: Mechanism, task: Task, reports: UInt64s, ratio: float) -> list[int]:
    """The reports that move mean - ratio * frequency most, by what they contribute."""
    said = mechanism.contributions(task.keys, reports, task.keys.ids_of([0]))[:, :, 0]
    score = said[1] - ratio * said[0]
    return [int(np.argmin(score)), int(np.argmax(score))]


def _first_order(mechanism: Mechanism, ratio: float) -> float:
    """The largest change of mean - ratio * frequency, times n."""
    points = np.nan_to_num(mechanism.effects())
    values = points[:, 1] - ratio * points[:, 0]
    return float(values.max() - values.min()) / mechanism.heard_share


@pytest.mark.parametrize(("about", "users"), [(0, 7), (1, 400), (20, 400), (300, 400)])
@pytest.mark.parametrize("published", [False, True])
def test_a_key_that_few_reports_are_about(about: int, users: int, published: bool) -> None:
    """Where a report is about one key, the bound is by how many are about it: exactly, from none of the others to many.

    For a key that as many are about as about any other it is the default.
    """
    mechanism = make_mechanism("privkv", epsilon=1.0, size=4, max_entries=2, as_published=published)
    task, rng = task_for(mechanism, 4), np.random.default_rng(4)
    keys = np.concatenate([np.zeros(about), 1 + rng.integers(0, 3, users - 1 - about)]).astype(np.int64)
    reports = np.stack([0 * keys, keys, rng.integers(0, 3, len(keys))], axis=1).astype(np.uint64)
    others = aggregate(task, mechanism.layout.pack(reports))
    found = _estimates(task, others, _every_report(mechanism)[:3])
    heard = mechanism.heard_about(others, task.keys, task.keys.ids_of([0]), 1)[0] / users
    for row, quantity in zip(found, ("frequency", "mean"), strict=True):
        bound = mechanism.influence(quantity, heard=heard)  # type: ignore[arg-type]
        assert users * (row.max() - row.min()) == pytest.approx(bound.replaced)
    assert mechanism.influence("mean") == mechanism.influence("mean", heard=0.25)


@_named
def test_contributions_are_estimates_of_one_report(mechanism: Mechanism) -> None:
    """The fast way to say what reports contribute is the slow one."""
    task, rng = task_for(mechanism, _KEYS), np.random.default_rng(1)
    reports = _every_report(mechanism)
    reports = reports[rng.integers(0, len(reports), 40)]
    fast = mechanism.contributions(task.keys, reports, task.keys.all_ids())
    slow = Mechanism.contributions(mechanism, task.keys, reports, task.keys.all_ids())
    assert np.allclose(fast, slow, equal_nan=True)


@pytest.mark.parametrize(("entries", "moved", "at_once"), [(1, 3.3, 9), (8, 33, 4), (32, 134, 3)])
def test_figures(entries: int, moved: float, at_once: int) -> None:
    """One report moves a share by 3.3 / n for records of one key, by 33 / n for 8 and by 134 / n for 32."""
    mechanism = make_mechanism("sketch_response", epsilon=1.0, max_entries=entries)
    assert mechanism.influence("frequency").up == pytest.approx(moved, rel=0.01)
    keys = Keys(kind="closed", size=1000, salt="00" * 16)
    assert mechanism.keys_at_once("frequency", keys) == at_once


def test_units_of_the_task() -> None:
    """A mean in the task's units is center * frequency + half * mean."""
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=2, values="signed")
    points = mechanism.effects()
    shifted = mechanism.influence("mean", center=3.0, half=2.0)
    assert shifted.up == pytest.approx((points @ [3.0, 2.0]).max())
    assert shifted == influence_of(mechanism, "sum", 0.0, 3.0, 2.0)
    assert mechanism.influence("mean", half=2.0).up == pytest.approx(2 * mechanism.influence("mean").up)
    assert mechanism.influence("frequency", center=3.0, half=2.0) == mechanism.influence("frequency")
    with pytest.raises(Refused, match="depends on the share"):
        mechanism.influence("conditional")
    quantity: Quantity = "conditional"
    half, whole = (mechanism.influence(quantity, share, half=2.0).up for share in (0.5, 1.0))
    assert half == pytest.approx(2 * whole)


def test_corners_of_a_polygon() -> None:
    """All of them are found from directions alone."""
    rng = np.random.default_rng(2)
    for size in (3, 5, 12):
        angles = np.sort(rng.uniform(0, 2 * np.pi, size))
        points = np.stack([7 + 40 * np.cos(angles), 100 + np.sin(angles)], axis=1)
        found = corners(lambda way, points=points: points[np.argmax(points @ way)])  # type: ignore[misc]
        assert np.allclose(np.sort(found, axis=0), np.sort(points, axis=0))
        assert weighted(found, 0.0, 1.0).up == pytest.approx(points[:, 1].max())
