"""Checks that every mechanism must pass. They ship with the library and find mechanisms by themselves.

    from hubbub.checks.conformance import check_privacy, examples
    for mechanism in examples():
        check_privacy(mechanism)

Each check raises AssertionError with what it found. The statistical ones state their false-alarm rate
and their power: a formula that is 30% off must not pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from hubbub.checks.enumerated import exact_loss, neighbour_losses
from hubbub.checks.worlds import World, are_neighbours, examples_like, task_for, worlds
from hubbub.mechanisms.registry import mechanisms
from hubbub.model.mechanism import Goal, Mechanism, Quantity
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds, _Sampler
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import BULK
from hubbub.primitives.samplers import pooled_below, pooled_coin
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.simulation.rehearsal import simulate

__all__ = [
    "Accuracy",
    "TapeCoins",
    "are_neighbours",
    "check_batch",
    "check_merge",
    "check_privacy",
    "check_wire",
    "exact_loss",
    "examples",
    "examples_like",
    "measure_accuracy",
    "outcomes",
    "task_for",
]

#: Widths of a two-sided normal test with a false-alarm rate of 1e-6 or less, small samples allowed for.
SIGMAS = 6.0


def examples(kind: type[Mechanism] | None = None) -> Iterator[Mechanism]:
    """Small instances of a mechanism (or of all), from what it offers the planner."""
    kinds = [kind] if kind else list(mechanisms().values())
    for values in ("set", "signed"):
        for quantity in ("frequency", "mean", "conditional"):
            for unit, distance in (("record", None), ("entry", None), ("l1", 1.0)):
                for family in ("walsh", "prf"):
                    goal = Goal(quantity, 1.0, 2, values, unit, distance, users=1000, family=family)  # type: ignore[arg-type]
                    for each in kinds:
                        yield from list(each.candidates(goal)) or each.candidates(
                            replace(goal, max_entries=1)
                        )


def check_privacy(mechanism: Mechanism, seeds: Sequence[int] | None = None, keys: int = 3) -> None:
    """Law 1: no pair of neighbours is told apart better than exp(epsilon), and the budget is used.

    Enumerates every record over `keys` keys with up to one entry too many, through the shipped code, under these
    seeds, or else under salts and seeds for which keys collide and do not.
    """
    task = task_for(mechanism.miniature(), keys)
    records, claimed, largest = examples_like(task, keys), task.guarantee.epsilon, 0.0
    for world in worlds(task, 2) if seeds is None else [World(task, seed) for seed in seeds]:
        for loss in neighbour_losses(world.task, records, world.seed):
            assert not loss.refutes, (
                f"{mechanism!r} loses {loss.epsilon}, claims {claimed}: {loss.one}, {loss.two}"
            )
            largest = max(largest, loss.epsilon)
    assert largest >= 0.25 * claimed, (
        f"{mechanism!r} loses only {largest} of {claimed}: wasted, or not exercised"
    )


def outcomes(mechanism: Mechanism) -> int:
    """How many reports there are for one seed."""
    return math.prod(field.limit for field in mechanism.layout.fields[1:])


def check_wire(mechanism: Mechanism) -> None:
    """Law 6: one encoding per report; wrong lengths, filler bits and values out of range are refused."""
    layout = mechanism.layout
    rng = np.random.default_rng(7)
    reports = np.stack(
        [rng.integers(0, field.limit, 50, dtype=np.uint64, endpoint=False) for field in layout.fields], axis=1
    )
    packed = layout.pack(reports)
    assert packed.shape == (50, layout.width)
    assert np.array_equal(layout.unpack(packed), reports)
    bad = [packed.tobytes()[:-1], packed.tobytes() + b"\0"] if layout.width > 1 else []
    if layout.bits % 8:
        bad.append(bytes(layout.width - 1) + b"\x80")
    for column, field in enumerate(layout.fields):
        if field.limit < 1 << field.bits:
            over = reports[:1].copy()
            over[0, column] = field.limit
            bad.append(layout.pack(over).tobytes())
    for wrong in bad:
        try:
            layout.unpack(wrong)
        except Refused:
            continue
        raise AssertionError(f"{mechanism!r} accepts {wrong!r}")


def check_merge(mechanism: Mechanism) -> None:
    """Law 5: any split and order of the reports gives the same state, bit for bit; saved states return."""
    task = task_for(mechanism, 16)
    longest = mechanism.max_entries if mechanism.refuses_longer else 3
    entries = _crowd(mechanism, 300, 16, longest, seed=5)
    packed = simulate(task, entries, seed=11).packed
    whole = aggregate(task, packed).to_bytes()
    parts = [aggregate(task, part) for part in (packed[200:], packed[:50], packed[50:200])]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.to_bytes() == whole
    assert aggregate(task, packed[::-1]).to_bytes() == whole
    assert task.mechanism.empty(task.keys).load(whole).to_bytes() == whole
    assert aggregate(task, packed[100:], aggregate(task, packed[:100])).to_bytes() == whole


class TapeCoins(_Sampler):
    """Coins that read a given tape of words by the same rule as compiled kernels. INSECURE: whoever has it, knows."""

    def __init__(self, words: Iterator[int]) -> None:
        self._words = words

    @classmethod
    def seeded(cls, seed: int) -> TapeCoins:
        """The words that compiled kernels read with `InsecureCoins(seed)`."""
        source = InsecureCoins(seed)
        return cls(word for _ in count() for word in source.words(4096).tolist())

    def word(self) -> int:
        return next(self._words)

    def below(self, bound: int) -> int:
        mask = (1 << (bound - 1).bit_length()) - 1
        while True:
            drawn = self.word() & mask
            if drawn < bound:
                return drawn

    def draw(self, pool: int, bound: int) -> tuple[int, int]:
        drawn: tuple[int, int] = pooled_below(self, pool, bound)
        return drawn

    def coin(self, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
        flipped: tuple[bool, int] = pooled_coin(self, pool, numerator, denominator)
        return flipped


def check_batch(mechanism: Mechanism) -> None:
    """Law 6: compiled bulk and interpreted single reports are the same function of the same coins."""
    task = task_for(mechanism, 16)
    entries = _crowd(mechanism, BULK, 16, min(mechanism.max_entries, 8), seed=3)
    each = mechanism.seeds_per_report
    seeds = SimulatedSeeds(4).draw(mechanism.layout.fields[0].bits, BULK * each)
    bulk = mechanism.randomize(task.keys, entries, seeds, InsecureCoins(9))
    tape = TapeCoins.seeded(9)
    singles = [
        mechanism.randomize(task.keys, entries.slice(i, i + 1), seeds[each * i : each * (i + 1)], tape)  # type: ignore[arg-type]
        for i in range(200)
    ]
    assert np.array_equal(bulk[:200], np.concatenate(singles))


@dataclass(frozen=True)
class Accuracy:
    """How measured squared errors compare with the formula, over independent runs."""

    ratio: float
    ratio_error: float
    bias: float
    bias_error: float
    bars: float

    def check(self, formula: float = 1.0) -> None:
        """Laws 3 and 4. False alarms: about 1e-6. `formula` scales the prediction, to prove power."""
        assert SIGMAS * self.ratio_error < 0.22, f"too few runs to notice a formula 30% off: {self}"
        assert abs(self.ratio / formula - 1) <= SIGMAS * self.ratio_error / formula, (
            f"variance is off: {self}"
        )
        assert abs(self.bias) <= SIGMAS * self.bias_error, f"biased: {self}"
        assert abs(self.bars - 1) < 0.1, f"error bars differ from the formula: {self}"


def measure_accuracy(
    task: Task, entries: Entries, size: int, quantity: Quantity, runs: int, seed: int = 0
) -> Accuracy:
    """Squared errors over predicted variances, averaged over all keys, in `runs` simulated collections."""
    mechanism, users = task.mechanism, len(entries)
    keep = np.minimum(1, mechanism.max_entries / np.maximum(np.diff(entries.offsets), 1))
    share = (
        np.repeat(keep, np.diff(entries.offsets)) if mechanism.limits_entries else np.ones(len(entries.ids))
    )
    ids, values = entries.ids.astype(np.int64), entries.values / GRID
    frequency = np.bincount(ids, weights=share, minlength=size) / users
    mean = np.bincount(ids, weights=share * values, minlength=size) / users
    square = np.bincount(ids, weights=share * values**2, minlength=size) / users
    energy = float((values**2).sum() / users)
    predicted = np.array(
        [
            mechanism.variance(quantity, users, float(f), float(m), float(q), energy)
            for f, m, q in zip(frequency, mean, square, strict=True)
        ]
    )
    truth = frequency if quantity == "frequency" else mean
    ratios, errors, bars = [], [], []
    for run in range(runs):
        state = simulate(task, entries, seed + 10 * run).state
        moments = mechanism.moments(state, task.keys, task.keys.all_ids())
        value = moments.frequency if quantity == "frequency" else moments.mean
        spread = moments.frequency_variance if quantity == "frequency" else moments.mean_variance
        assert value is not None
        assert spread is not None
        error = value - truth
        ratios.append(float((error**2 / predicted).mean()))
        errors.append(error / np.sqrt(predicted))
        bars.append(float((spread / predicted).mean()))
    # Lean of the errors on the heaviest quarter of the keys, where a bias would show.
    heavy = np.argsort(-frequency)[: max(1, size // 4)]
    lean = np.array([row[heavy] @ np.sign(truth[heavy]) for row in errors]) / math.sqrt(len(heavy))
    root = math.sqrt(runs)
    return Accuracy(
        float(np.mean(ratios)),
        float(np.std(ratios, ddof=1)) / root,
        float(lean.mean()),
        float(lean.std(ddof=1)) / root,
        float(np.mean(bars)),
    )


def _crowd(mechanism: Mechanism, users: int, size: int, entries: int, seed: int) -> Entries:
    """Records of 0 .. entries random keys with random values."""
    rng = np.random.default_rng(seed)
    order = np.argsort(rng.random((users, size)), axis=1)
    lengths = rng.integers(0, entries + 1, users)
    chosen = np.arange(size) < lengths[:, None]
    ids = order[chosen].astype(np.uint64)
    values = np.full(len(ids), GRID) if mechanism.values == "set" else rng.integers(-GRID, GRID + 1, len(ids))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Entries(ids, values.astype(np.int64), offsets)
