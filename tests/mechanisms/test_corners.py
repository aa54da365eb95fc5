"""The corners of every mechanism's parameters: what is accepted is computed without overflow, or it is refused.

Kernels are compiled to 64-bit integers. Here each one runs interpreted on Python's integers, which have no end, and
compiled on the same random words: the reports must be the same.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt

from hubbub.checks.conformance import TapeCoins, task_for
from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import below

#: Records that are tried: none, one and several entries, values at the ends, in the middle and odd.
VALUES = ([], [GRID], [-GRID], [0, 1, -1], [GRID, GRID, GRID, GRID], [-GRID, GRID - 1, 7, -GRID + 1])
#: Largest array that a test makes, and random words for one batch.
MOST, WORDS = 1 << 20, 1 << 16


def corners(kind: type[Mechanism], name: str) -> list[Any]:
    """The least and the largest value of a parameter, and the default."""
    field = kind.model_fields[name]
    if field.annotation is bool:
        return [False, True]
    literal = getattr(field.annotation, "__args__", ())
    if literal and all(isinstance(option, str | int) for option in literal):
        return list(literal)
    low, high = 0.0, 0.0
    for bound in field.metadata:
        if isinstance(bound, Ge | Gt):
            low = getattr(bound, "ge", None) or getattr(bound, "gt", 0) * 1.000001
        if isinstance(bound, Le | Lt):
            high = getattr(bound, "le", None) or getattr(bound, "lt", 0) * 0.999999
    ends = {low, high, 64 if name in ("size", "max_entries") else low}
    if name == "epsilon":
        return [1e-6, 1.0, 15.9]
    if name == "max_entries" and kind.name in ("sketch_response", "sparse_sum"):
        return [1, 64]  # choosing its parameters for more takes minutes
    whole = field.annotation is int
    return sorted({min(int(end), MOST) for end in ends} if whole else ends)


def instances(kind: type[Mechanism]) -> Iterator[Mechanism]:
    """What a mechanism accepts among the corners of any two parameters, the rest as it chooses."""
    skipped = {"users", "floor", "frequencies", "beta"}
    names = [name for name in kind.model_fields if name not in skipped]
    required = {"epsilon": 1.0, "max_entries": 4} | ({"size": 16} if "size" in names else {})
    seen = set()
    for pair in itertools.combinations(names, 2):
        for values in itertools.product(*(corners(kind, name) for name in pair)):
            given = required | dict(zip(pair, values, strict=True))
            if given.get("unit") == "l1" or "distance" in given:
                given = {"distance": 1.0} | given | {"unit": "l1"}
            if "max_entries" in kind.model_fields and kind.model_fields["max_entries"].default == 1:
                given["max_entries"] = 1
            try:
                made = make_mechanism(kind.name, **given)
            except Refused:
                continue
            room = made.layout.width * len(VALUES) + getattr(made, "buckets", 0) * made.seeds_per_report
            few = len(made.layout.fields) <= 64 and made.seeds_per_report * made.max_entries <= 4096
            if few and made not in seen and room <= MOST:
                seen.add(made)
                yield made


def entries_for(mechanism: Mechanism, keys: int) -> Entries:
    rows = [values[: min(keys, mechanism.max_entries)] for values in VALUES]
    numbers = [abs(v) and GRID if mechanism.values == "set" else v for row in rows for v in row]
    ids = [place for row in rows for place in range(len(row))]
    lengths = [0, *itertools.accumulate(len(row) for row in rows)]
    return Entries(np.array(ids, np.uint64), np.array(numbers, np.int64), np.array(lengths, np.int64))


class Python(list):  # type: ignore[type-arg]
    """Rows that hold Python's integers, and are indexed like a two-dimensional array."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self[0])

    def __getitem__(self, place: Any) -> Any:
        return (
            super().__getitem__(place[0])[place[1]]
            if isinstance(place, tuple)
            else super().__getitem__(place)
        )

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, tuple):
            super().__getitem__(place[0])[place[1]] = value
        else:
            super().__setitem__(place, value)


def plain(bundle: Any) -> Any:
    """The same named tuple with lists of Python's integers for arrays."""
    return type(bundle)(*(part.tolist() if isinstance(part, np.ndarray) else part for part in bundle))


def compare(mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run the mechanism's kernel on the same words both ways; False where it has no room for these keys."""
    keys = min(8, getattr(mechanism, "size", 8))
    try:
        task = task_for(mechanism, keys)
    except Refused:
        return False
    entries = entries_for(mechanism, keys)
    seeds = SimulatedSeeds(1).draw(mechanism.layout.fields[0].bits, len(entries) * mechanism.seeds_per_report)
    seen: list[tuple[Any, Any]] = []

    def both(batch: Any, coins: Any, count: int, records: Any, shape: Any, reports: Any) -> None:
        words = InsecureCoins(5).words(WORDS)
        cursor = np.array([0, 0, 0, 0, 1])
        batch.compiled(type(records), type(shape))((words, cursor), 0, count, records, shape, reports)
        exact = Python([[0] * reports.shape[1] for _ in range(len(reports))])
        tape = TapeCoins.seeded(5)
        tape._queue = words.tolist()[::-1]
        batch(tape, 0, count, plain(records), plain(shape), exact)
        seen.append((reports.tolist(), [list(map(int, row)) for row in list.__iter__(exact)]))

    module = next(
        cls.__module__
        for cls in type(mechanism).__mro__
        if "respond" in vars(cls) or "randomize" in vars(cls)
        if not cls.__module__.endswith(".sketch_response")
    )
    monkeypatch.setattr(f"{module}.run_kernel", both)
    mechanism.randomize(task.keys, entries, seeds, InsecureCoins(1))
    [(compiled, exact)] = seen
    assert compiled == exact, f"{mechanism!r}"
    return True


@pytest.mark.parametrize("name", mechanisms())
def test_no_corner_overflows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for mechanism in itertools.islice(instances(mechanisms()[name]), 40):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tried += compare(mechanism, monkeypatch)
    assert tried >= 3


def test_the_corners_that_did_overflow_are_refused() -> None:
    """epsilon 16 with one bit and a clip of 128 answered 1 for every record; with a clip of 300 some records raised."""
    for clip in (128, 300):
        with pytest.raises(Refused, match="64-bit"):
            make_mechanism("sparse_sum", epsilon=16, max_entries=400, values="signed", noise="bit", clip=clip)
    fits = make_mechanism("sparse_sum", epsilon=16, max_entries=400, values="signed", noise="bit", clip=60)
    favoured, other = fits.weights  # type: ignore[attr-defined]
    assert 2 * 60 * (favoured + other) < 1 << 62 <= 2 * 128 * (favoured + other)


def test_there_is_nothing_below_nothing() -> None:
    """Compiled, a bound of 0 used to give a negative number."""
    words, cursor = np.arange(9), np.zeros(5, dtype=np.int64)
    for bound in (0, -1):
        with pytest.raises(ValueError, match="below"):
            below.compiled()((words, cursor), bound)
