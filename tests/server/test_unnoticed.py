"""What no test can notice: forged reports whose law is that of an honest crowd, by enumeration through the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import nnls

from hubbub.checks.exact import report_law
from hubbub.checks.worlds import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.protocol.task import Task
from hubbub.simulation.forgery import aims

Law = dict[bytes, float]
#: What forgers for one key cannot be told by, with the settings of a small version.
HIDDEN: list[tuple[str, dict[str, Any]]] = [
    ("collision", {"max_entries": 2}),
    ("collision", {"max_entries": 2, "values": "signed"}),
    ("local_hashing", {"max_entries": 1}),
    ("sketch_response", {"max_entries": 2, "seeds": 1}),
    ("sketch_response", {"max_entries": 2, "seeds": 1, "buckets": 2}),
    ("sketch_response", {"max_entries": 2, "seeds": 1, "values": "signed"}),
    ("coco", {"max_entries": 2, "values": "signed"}),
    ("sampled", {"max_entries": 2}),
    ("sampled", {"max_entries": 2, "values": "signed"}),
    ("sparse_sum", {"max_entries": 2, "noise": "bit"}),
    ("hadamard", {"max_entries": 1, "bits": 4}),
    ("compressive", {"max_entries": 1}),
    ("freq_est", {"max_entries": 1, "size": 3}),
    ("pckv_ue", {"max_entries": 2, "size": 3, "values": "signed"}),
]
#: Where even one key shows.
SEEN: list[tuple[str, dict[str, Any]]] = [
    # Half of the candidates are favoured: which bucket is named tells nothing of records.
    ("sketch_response", {"max_entries": 2, "seeds": 1, "values": "signed", "epsilon": 0.3}),
    ("repeated", {"max_entries": 2}),
    ("privkv", {"max_entries": 2, "size": 3, "values": "signed"}),
    ("harmony", {"max_entries": 2, "size": 3, "values": "signed"}),
]


def small(name: str, more: dict[str, Any]) -> Task:
    return task_for(make_mechanism(name, **{"epsilon": 1.0, **more}).miniature(), 3)


def law_of(task: Task, record: dict[int, float], seed: int) -> Law:
    return {report: float(mass) for report, mass in report_law(task, record, seed).items()}


def forged_law(task: Task, targets: list[int], seed: int) -> Law:
    """The loudest report about these keys under a seed, where an empty record would have sent another."""
    mechanism, quiet = task.mechanism, law_of(task, {}, seed)
    weights = aims(task, len(targets), None, "up")
    reports = mechanism.layout.unpack(b"".join(quiet))
    loud = mechanism.layout.pack(
        mechanism.louder(task.keys, reports, task.keys.ids_of(list(targets)), weights)
    )
    found: Law = {}
    for row, mass in zip(loud, quiet.values(), strict=True):
        found[row.tobytes()] = found.get(row.tobytes(), 0.0) + mass
    return found


def told_apart(
    task: Task, targets: list[int], holders: list[int], seed: int
) -> tuple[float, NDArray[np.float64]]:
    """How far A - P is from every sum of c (Q - P), c >= 0, and the c of the nearest one.

    P is the law of an empty record, Q those of records of one of the keys alone, and A the forged one.
    """
    values = (1.0,) if task.mechanism.values == "set" else (1.0, -1.0)
    nobody = law_of(task, {}, seed)
    held = [law_of(task, {key: value}, seed) for key in holders for value in values]
    forged = forged_law(task, targets, seed)
    reports = sorted({*nobody, *forged, *(report for law in held for report in law)})
    away = np.array([[law.get(r, 0.0) - nobody.get(r, 0.0) for law in held] for r in reports])
    wanted = np.array([forged.get(r, 0.0) - nobody.get(r, 0.0) for r in reports])
    shares, distance = nnls(away, wanted)
    return float(distance), shares


@pytest.mark.parametrize(("name", "more"), HIDDEN, ids=lambda part: str(part))
def test_one_key_is_the_law_of_an_honest_crowd(name: str, more: dict[str, Any]) -> None:
    """A = P + sum of c (Q - P), so s A + (sum of c - 1) s P is a crowd in which shares c s hold the key."""
    task = small(name, more)
    for seed in (1, 2, 5):
        distance, shares = told_apart(task, [1], [1], seed)
        assert distance < 1e-9
        if task.mechanism.values == "set":
            assert shares.sum() == pytest.approx(task.mechanism.influence(task.mechanism.quantities[0]).up)


@pytest.mark.parametrize(("name", "more"), SEEN, ids=lambda part: str(part))
def test_one_key_that_shows(name: str, more: dict[str, Any]) -> None:
    """Where answers are several, or keys are drawn, no crowd of holders looks like forgers."""
    assert told_apart(small(name, more), [1], [0, 1, 2], 1)[0] > 0.1


@pytest.mark.parametrize(
    "more", [{"max_entries": 2, "favoured": 2}, {"max_entries": 2, "seeds": 2, "favoured": 4}]
)
def test_what_shows_where_half_is_favoured(more: dict[str, Any]) -> None:
    """Every record names every bucket equally often under a seed, and a forger always the key's, or one of two."""
    mechanism = make_mechanism(
        "sketch_response", epsilon=1.0, values="signed", **{"buckets": 2, "seeds": 1, **more}
    )
    task, each = task_for(mechanism, 3), mechanism.seeds_per_report
    assert mechanism.names_evenly  # type: ignore[attr-defined]

    def cells(law: Law) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], float] = {}
        for report, mass in law.items():
            cell = tuple(mechanism.layout.unpack(report)[0, :2].tolist())
            found[cell] = found.get(cell, 0.0) + mass
        return found

    for record in ({}, {0: 1.0}, {1: -1.0}, {0: 1.0, 2: 0.5}, {0: 0.25, 1: 0.0}):
        law = cells(law_of(task, record, 3))
        assert len(law) == each * mechanism.buckets  # type: ignore[attr-defined]
        assert np.ptp(list(law.values())) < 1e-12
    assert max(cells(forged_law(task, [1], 3)).values()) == pytest.approx(1 / each)


def test_two_keys_of_hadamard_response_are_three_keys_of_a_crowd() -> None:
    """Columns where two rows are +1: half of what the rows of both and of their sum favour together."""
    task = small("hadamard", {"max_entries": 1, "bits": 4, "blocks": 1})
    distance, shares = told_apart(task, [0, 1], [0, 1, 2], 1)
    assert distance < 1e-9
    assert np.ptp(shares) < 1e-9
    assert told_apart(task, [0, 1], [0, 1], 1)[0] > 0.01


def test_two_bits_are_no_crowd() -> None:
    """Nobody's report names two keys more often than coins do: `keys_together` looks for that."""
    assert told_apart(small("freq_est", {"max_entries": 1, "size": 3}), [0, 1], [0, 1, 2], 1)[0] > 0.01
