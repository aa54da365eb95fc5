"""Coins: exact weights, exact samplers, and what happens when the tape runs out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers import fits, python, refused, steady, tilted
from hubbub.checks.conformance import TapeCoins, _crowd, task_for
from hubbub.checks.exact import Enumeration, laplace_law
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import sample_down
from hubbub.primitives import kernel as kernels
from hubbub.primitives import samplers
from hubbub.primitives.batch import RESERVE, per_record, run_kernel
from hubbub.primitives.coins import InsecureCoins, SecretCoins, SimulatedSeeds, SystemSeeds, _Sampler
from hubbub.primitives.samplers import (
    EMPTY,
    UNIT,
    TapeEmpty,
    accept_exp,
    accept_inverse_e,
    below,
    chance,
    clamped_laplace,
    favoured_weight,
    pooled_below,
    pooled_coin,
    random_sign,
    sample_clamped_laplace,
)

# Weights


def exp_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """exp(x) between two fractions: the Taylor sum, and the sum plus twice its last term."""
    total, term, n = Fraction(1), Fraction(1), 0
    while n < 2 * x or term > Fraction(1, 1 << 200):
        n += 1
        term = term * x / n
        total += term
    return total, total + 2 * term


def exact_weight(epsilon: float, unit: int = UNIT) -> int:
    low, high = (math.floor(bound * unit) for bound in exp_bounds(Fraction(epsilon)))
    assert low == high, "not enough terms to tell"
    return low


@pytest.mark.parametrize(
    "epsilon",
    [1e-300, 1e-70, 2.0**-33, 1e-9, 1e-3, 0.1, 0.5, math.log(2), math.log(3), 1.0, 2.0, 3.7, 8.0, 16.0],
)
def test_weight_is_the_exact_floor(epsilon: float) -> None:
    """floor(exp(epsilon) 2^32), and therefore W / V <= exp(epsilon), by another method in exact fractions."""
    assert favoured_weight(epsilon) == exact_weight(epsilon)


@steady
@given(st.floats(1e-12, 16), st.sampled_from([1, 1000, UNIT]))
def test_weight_is_the_exact_floor_for_any_epsilon(epsilon: float, unit: int) -> None:
    assert favoured_weight(epsilon, unit) == exact_weight(epsilon, unit)


def test_weight_beyond_64_bits_is_refused() -> None:
    with refused("too large"):
        favoured_weight(17.0)


# Exact laws of the interpreted samplers


class Branching(_Sampler):
    """The samplers that all coins share, on top of an enumerated `below`."""

    def __init__(self, tree: Enumeration) -> None:
        self.below = tree.below  # type: ignore[method-assign]


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10])
def test_below_is_uniform(bound: int) -> None:
    law = Enumeration().law(lambda tree: below(Branching(tree), bound))
    assert law == dict.fromkeys(range(bound), Fraction(1, bound))


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 5), (1, 7), (3, 7), (7, 7)])
def test_chance_is_exact(numerator: int, denominator: int) -> None:
    law = Enumeration().law(lambda tree: chance(Branching(tree), numerator, denominator))
    assert law.get(True, 0) == Fraction(numerator, denominator)
    assert sum(law.values()) == 1


@pytest.mark.parametrize("numerator", [-6, -5, 0, 2, 6])
def test_random_sign_has_the_exact_mean(numerator: int) -> None:
    law = Enumeration().law(lambda tree: random_sign(Branching(tree), numerator, 6))
    assert sum(sign * mass for sign, mass in law.items()) == Fraction(numerator, 6)  # type: ignore[operator]
    assert set(law) <= {-1, 1}


class Pruned(Exception):
    """A path of a tree has become too unlikely to be followed."""


class Tree(_Sampler):
    """Coins that walk all paths of an endless tree as far as they keep some probability."""

    def __init__(self, smallest: float) -> None:
        self.smallest = smallest
        self.prefix: list[int] = []

    def below(self, bound: int) -> int:
        return self.branch([1 / bound] * bound)

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.branch([(denominator - numerator) / denominator, numerator / denominator]) == 1

    def branch(self, masses: list[float]) -> int:
        """One of the outcomes 0, 1, ... with these probabilities."""
        if self.depth == len(self.prefix):
            first, *rest = [choice for choice, mass in enumerate(masses) if mass]
            self.pending += [[*self.prefix, other] for other in rest]
            self.prefix = [*self.prefix, first]
        choice = self.prefix[self.depth]
        self.depth += 1
        self.mass *= masses[choice]
        if self.mass < self.smallest:
            raise Pruned
        return choice

    def law(self, run: Callable[[Tree], int]) -> tuple[dict[int, float], float]:
        """Lower bounds of all probabilities, and the mass of the paths that were cut off."""
        found: dict[int, float] = defaultdict(float)
        cut = 0.0
        self.pending: list[list[int]] = [[]]
        while self.pending:
            self.prefix, self.depth, self.mass = self.pending.pop(), 0, 1.0
            try:
                outcome = run(self)
                found[outcome] += self.mass
            except Pruned:
                cut += self.mass
        assert math.isclose(sum(found.values()) + cut, 1)
        return dict(found), cut


def discrete_laplace(scale: float, value: int, limit: int) -> dict[int, float]:
    """value + noise clamped to [-limit, limit], summed term by term from the textbook formula."""
    law: dict[int, float] = defaultdict(float)
    rate = math.exp(1 / scale)
    reach = limit + abs(value) + math.ceil(50 * scale)
    for noise in range(-reach, reach + 1):
        mass = (rate - 1) / (rate + 1) * math.exp(-abs(noise) / scale)
        law[min(max(value + noise, -limit), limit)] += mass
    return dict(law)


def check_laplace_tree(numerator: int, denominator: int, value: int, limit: int, smallest: float) -> None:
    """No outcome of the real sampler differs from the formula by more than what was cut off its tree."""

    def run(tree: Tree) -> int:
        return int(sample_clamped_laplace.function(tree, value, numerator, denominator, limit))

    found, cut = Tree(smallest).law(run)
    assert cut < 0.03
    right = discrete_laplace(numerator / denominator, value, limit)
    assert set(found) <= set(right)
    for outcome, mass in right.items():
        assert -1e-12 <= mass - found.get(outcome, 0.0) <= cut + 1e-12
    wrong = discrete_laplace(1.3 * numerator / denominator, value, limit)
    assert any(not -1e-12 <= mass - found.get(y, 0.0) <= cut + 1e-12 for y, mass in wrong.items())


@pytest.mark.parametrize(("numerator", "value", "limit"), [(1, 0, 40), (2, 1, 40), (2, -2, 2)])
def test_laplace_sampler_by_its_whole_tree(numerator: int, value: int, limit: int) -> None:
    check_laplace_tree(numerator, 1, value, limit, 1e-6)


@pytest.mark.parametrize("numerator", [0, 1, 3, 4])
def test_accepting_with_probability_exp(numerator: int) -> None:
    """exp(-numerator / 4), to what is left of the tree after 1e-18."""
    found, cut = Tree(1e-18).law(lambda tree: int(accept_exp.function(tree, EMPTY, numerator, 4)[0]))
    assert cut < 1e-15
    assert found[1] == pytest.approx(math.exp(-numerator / 4), abs=1e-14)


def test_accepting_with_probability_one_over_e() -> None:
    """To what is left of the tree after 1e-22, of which the coins beyond the twelfth are a part."""
    found, cut = Tree(1e-22).law(lambda tree: int(accept_inverse_e.function(tree, EMPTY)[0]))
    assert cut < 1e-18
    assert found[1] == pytest.approx(math.exp(-1), rel=1e-14)


@pytest.mark.parametrize(("numerator", "denominator", "value", "limit"), [(3, 2, -1, 2), (5, 2, 0, 30)])
def test_laplace_sampler_by_its_outer_tree(
    numerator: int, denominator: int, value: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other scales, with the acceptance step that was checked above as one branch."""

    def accept(tape: Tree, pool: int, numerator: int, denominator: int) -> tuple[bool, int]:
        yes = math.exp(-numerator / denominator)
        return tape.branch([1 - yes, yes]) == 1, pool

    monkeypatch.setattr(samplers, "accept_exp", accept)
    monkeypatch.setattr(samplers, "accept_inverse_e", lambda tape, pool: accept(tape, pool, 1, 1))
    check_laplace_tree(numerator, denominator, value, limit, 1e-6)


@pytest.mark.parametrize(
    ("scale", "value", "limit"), [(1.5, 0, 4), (2.0, 3, 4), (0.7, -4, 4), (3.0, 9, 4), (1.0, -9, 4)]
)
def test_laplace_law_that_privacy_proofs_use(scale: float, value: int, limit: int) -> None:
    assert dict(laplace_law(value, scale, limit)) == pytest.approx(
        discrete_laplace(scale, value, limit), abs=1e-12
    )


# Compiled samplers


@per_record
def draw_below(tape: Any, i: int, records: Any, bound: int, drawn: Any) -> None:
    drawn[i] = below(tape, bound)


@per_record
def draw_chance(tape: Any, i: int, records: Any, odds: Any, drawn: Any) -> None:
    drawn[i] = 1 if chance(tape, odds[0], odds[1]) else 0


@per_record
def draw_noise(tape: Any, i: int, records: Any, scale_and_limit: Any, drawn: Any) -> None:
    numerator, denominator, limit = scale_and_limit
    drawn[i] = clamped_laplace(tape, 1, numerator, denominator, limit)


def bulk(batch: Any, seed: int, shape: Any, count: int = 40_000) -> NDArray[np.int64]:
    drawn = np.zeros(count, dtype=np.int64)
    run_kernel(batch, InsecureCoins(seed), count, 0, shape, drawn)
    return drawn


def test_compiled_below_is_rejection_on_the_low_bits() -> None:
    """Every pattern of low bits: below the bound it is the answer, above it the next word is tried."""
    draw = below.compiled()
    for bound in (1, 2, 5, 7, 8):
        patterns = 1 << (bound - 1).bit_length()
        for low in range(patterns):
            words = np.array([low - 8 * patterns, 1 << 40], dtype=np.int64)
            cursor = np.zeros(3, dtype=np.int64)
            assert draw((words, cursor), bound) == (low if low < bound else 0)
            assert cursor[0] == (1 if low < bound else 2)


def pooled_law(numerator: int, denominator: int) -> Fraction:
    """The exact probability of heads when the first digit is enumerated, and ties are drawn again from the next one."""
    heads = ties = 0
    for first in range(256):
        pool = 1 << 8 | first
        tape = Never()
        try:
            heads += pooled_coin(tape, pool, numerator, denominator)[0]
        except NeedsMore:
            ties += 1
    assert ties <= 1
    rest = Fraction(256 * numerator, denominator) % 1
    return (heads + ties * rest) / Fraction(256)


class NeedsMore(Exception):
    """The pool was not enough."""


class Never(_Sampler):
    """Coins without words."""

    def word(self) -> int:
        raise NeedsMore


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [
        (0, 5),
        (5, 5),
        (1, 2),
        (1, 3),
        (2, 3),
        (255, 256),
        (1, 257),
        (10**9, 3 * 10**9 + 1),
        (1, (1 << 54) - 1),
    ],
)
def test_a_coin_from_digits_is_exact(numerator: int, denominator: int) -> None:
    """One digit decides for 255 of its values at least; the one that is left goes on with what is left of the odds.

    That the second digit continues with the right fraction is seen with two digits, all 65,536 pairs of them.
    """
    assert pooled_law(numerator, denominator) == Fraction(numerator, denominator)
    own = 256 * numerator // denominator
    if 0 < numerator < denominator and 256 * numerator % denominator:
        pairs = [pooled_pair(own, second, numerator, denominator) for second in range(256)]
        rest = Fraction(256 * numerator, denominator) % 1
        assert pairs.count(True) == math.floor(256 * rest)
        assert pairs.count(None) <= 1


def pooled_pair(first: int, second: int, numerator: int, denominator: int) -> bool | None:
    """What two digits decide; None: they do not."""
    try:
        return bool(pooled_coin(Never(), 1 << 16 | second << 8 | first, numerator, denominator)[0])
    except NeedsMore:
        return None


def test_a_number_and_digits_from_one_word() -> None:
    """Bits that are part of the number are in no digit, and no bit is in two."""
    for bound, digits in ((7, 5), (1 << 24, 5), (1 << 37, 3), (1 << 40, 3), (1 << 50, 0)):
        mask = (1 << (bound - 1).bit_length()) - 1
        parts = []
        for bit in range(64):
            words = [1 << bit, 0]
            tape = Never()
            tape.word = lambda words=words: words.pop(0)  # type: ignore[method-assign]
            number, pool = pooled_below(tape, EMPTY, bound)
            assert pool >> 8 * digits == EMPTY
            parts.append((bool(number) or len(words) == 0, pool != 1 << 8 * digits))
        assert sum(number for number, _ in parts) == mask.bit_length()
        assert sum(digit for _, digit in parts) == 8 * digits
        assert not any(number and digit for number, digit in parts)


def test_a_pool_takes_no_more_than_it_holds() -> None:
    """Appended digits never push out the leading 1, or those that are there."""
    for held in range(8):
        pool = 1 << 8 * held | (1 << 8 * held) // 3
        for bound in (5, 1 << 30):
            tape = Never()
            tape.word = lambda: -1  # type: ignore[method-assign]
            _, longer = pooled_below(tape, pool, 1 << (bound - 1).bit_length())
            added = (longer.bit_length() - pool.bit_length()) // 8
            assert longer < 1 << 63
            assert longer >> 8 * added == pool


@pytest.mark.parametrize("scale", [(3, 1), (1 << 37, 1 << 20), (5 << 40, 7), ((1 << 54) + 1, 1 << 30)])
def test_noise_is_the_same_function_of_the_same_words(scale: tuple[int, int]) -> None:
    """Compiled and interpreted, for scales with many and few digits beside the number."""
    numerator, denominator = scale
    limit = 1 << 60
    drawn, tape = bulk(draw_noise, 5, (numerator, denominator, limit), 5000), TapeCoins.seeded(5)
    assert drawn[:300].tolist() == [
        tape.clamped_laplace(1, numerator, denominator, limit) for _ in range(300)
    ]


def test_compiled_below_stops_at_the_end_of_the_tape() -> None:
    with pytest.raises(TapeEmpty):
        below.compiled()((np.array([7, 7], dtype=np.int64), np.zeros(3, dtype=np.int64)), 7)


def test_compiled_below_is_uniform() -> None:
    """False-alarm rate at most 1e-6; one outcome 30% too likely is rejected."""
    counts = np.bincount(bulk(draw_below, 3, 11), minlength=11)
    law = np.full(11, 1 / 11)
    assert fits(counts, law)
    assert not fits(counts, tilted(law))


def test_compiled_chance() -> None:
    """False-alarm rate at most 1e-6; a chance 30% too large is rejected."""
    hits = int(bulk(draw_chance, 4, (3, 10)).sum())
    assert fits([hits, 40_000 - hits], [0.3, 0.7])
    assert not fits([hits, 40_000 - hits], [0.39, 0.61])


def test_compiled_laplace() -> None:
    """False-alarm rate at most 1e-6; a scale 30% off is rejected."""
    drawn = bulk(draw_noise, 5, (7, 2, 8))

    def law(scale: float) -> list[float]:
        return [mass for _, mass in sorted(discrete_laplace(scale, 1, 8).items())]

    counts = np.bincount(drawn + 8, minlength=17)
    assert fits(counts, law(3.5))
    assert not fits(counts, law(3.5 * 1.3))
    assert not fits(counts, law(3.5 * 0.7))


# The tape


@per_record
def draw_sums(tape: Any, i: int, records: Any, words: int, drawn: Any) -> None:
    total = 0
    for _ in range(words):
        total += below(tape, 1024)
    drawn[i] = total


def test_records_that_need_more_words_than_the_reserve() -> None:
    """Leaving compiled code by an exception leaks its arrays: the reserve grows, so that it happens twice at most."""
    step, surprises = draw_sums.compiled(int, int), 0

    class Watched:
        def compiled(self, *bundles: type) -> Any:
            return self

        def __call__(self, *arguments: Any) -> None:
            nonlocal surprises
            try:
                step(*arguments)
            except TapeEmpty:
                surprises += 1
                raise

    count, words = 5000, 5 * RESERVE
    drawn = np.zeros(count, dtype=np.int64)
    run_kernel(Watched(), InsecureCoins(3), count, 0, words, drawn)  # type: ignore[arg-type]
    stream = InsecureCoins(3)
    expected = [int((stream.words(words) & 1023).sum()) for _ in range(count)]
    assert drawn.tolist() == expected
    assert 1 <= surprises <= 2


class Dripping(InsecureCoins):
    """The coins of a seed, handed out a few words at a time."""

    calls = 0

    def words(self, count: int) -> NDArray[np.int64]:
        self.calls += 1
        return super().words(min(count, 2))


MECHANISMS = [
    make_mechanism("collision", epsilon=1.0, max_entries=4),
    make_mechanism("collision", epsilon=1.0, max_entries=4, values="signed"),
    make_mechanism("coco", epsilon=1.0, max_entries=4),
    make_mechanism("sparse_sum", epsilon=1.0, max_entries=4, values="signed", noise="window"),
    make_mechanism("sparse_sum", epsilon=1.0, max_entries=4, values="signed", unit="entry", buckets=2),
    make_mechanism("sketch_response", epsilon=1.0, max_entries=4, values="signed", seeds=2),
    make_mechanism("hadamard", epsilon=1.0, max_entries=1),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.values}")
def test_running_out_of_tape_changes_nothing(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled with two words at a time, compiled with all words, and interpreted: the same reports."""
    keys = task_for(mechanism, 16).keys
    entries = _crowd(mechanism, 200, 16, mechanism.max_entries, seed=3)
    drawn = len(entries) * mechanism.seeds_per_report
    seeds = SimulatedSeeds(4).draw(mechanism.layout.fields[0].bits, drawn)
    interpreted = mechanism.randomize(keys, entries, seeds, TapeCoins.seeded(9))
    monkeypatch.setattr(kernels, "BULK", 1)
    dripping = Dripping(9)
    dripped = mechanism.randomize(keys, entries, seeds, dripping)
    assert dripping.calls > 150
    assert np.array_equal(dripped, interpreted)
    assert np.array_equal(mechanism.randomize(keys, entries, seeds, InsecureCoins(9)), interpreted)


def test_running_out_of_tape_changes_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = _crowd(MECHANISMS[0], 200, 16, 12, seed=3)
    interpreted, summary = sample_down(entries, 4, TapeCoins.seeded(2))  # type: ignore[arg-type]
    assert summary.sampled_records > 100
    monkeypatch.setattr(kernels, "BULK", 1)
    dripped, _ = sample_down(entries, 4, Dripping(2))
    assert np.array_equal(dripped.ids, interpreted.ids)
    assert np.array_equal(dripped.offsets, interpreted.offsets)


# Where coins come from

FORK = """
import os, sys
from hubbub.primitives.coins import {name} as make
coins = {make}
coins.below(1000), coins.words(3)
for child in range(2):
    if os.fork() == 0:
        print(coins.below(1 << 60), coins.words(2).tolist(), flush=True)
        os._exit(0)
    os.wait()
print(coins.below(1 << 60), coins.words(2).tolist())
"""


def test_secret_coins_are_not_repeated_by_forks() -> None:
    """A parent and two children draw three different lots; seeded coins show that the test can tell."""
    drawn = python(FORK.format(name="SecretCoins", make="make()")).splitlines()
    assert len(set(drawn)) == 3
    repeated = python(FORK.format(name="InsecureCoins", make="make(1)")).splitlines()
    assert len(repeated) == 3
    assert len(set(repeated)) == 1


def test_secret_coins_and_seeds_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert SecretCoins().words(2).tolist() == [-1, -1]
    assert SystemSeeds().draw(16, 2).tolist() == [65535, 65535]
    monkeypatch.setattr("secrets.randbelow", lambda bound: bound - 1)
    assert SecretCoins().below(10) == 9


def test_insecure_coins_are_repeatable() -> None:
    def flips(seed: int) -> tuple[list[int], list[int]]:
        coins = InsecureCoins(seed)
        return [coins.below(1 << 40) for _ in range(5)], coins.words(5).tolist()

    assert flips(8) == flips(8)
    assert flips(8)[0] != flips(9)[0]
    assert flips(8)[1] != flips(9)[1]


@pytest.mark.parametrize("source", [SystemSeeds(), SimulatedSeeds(3)], ids=["system", "simulated"])
@pytest.mark.parametrize("bits", [1, 16, 63, 64])
def test_seeds_fill_their_bits(source: Any, bits: int) -> None:
    """A top bit that is never (or always) set among 200 has probability 2^-199."""
    drawn = source.draw(bits, 200)
    assert drawn.dtype == np.uint64
    assert all(int(seed) < 1 << bits for seed in drawn)
    assert 0 < sum(int(seed) >> (bits - 1) for seed in drawn) < 200
