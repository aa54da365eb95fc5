"""The samplers: laws known exactly where that is possible, tested against their law where it is not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import fits, steady, tilted
from hubbub.checks.exact import Enumeration, laplace_law
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.siphash import siphash, siphash_many
from hubbub.release import binomial as binomials
from hubbub.release.amounts import Amounts
from hubbub.release.binomial import binomial, skip, subset
from hubbub.release.bits import empty, flip_cells, flip_for, noise_words, read_cells, set_cells
from hubbub.release.keyspace import KeySpace, hash_to
from hubbub.release.noise import (
    add_noise,
    beyond,
    decay,
    laplace_scale,
    least_with_tail,
    log1p_down,
    round_to_breaks,
    tail_up,
)

# Scales and tails, rounded to the private side


@given(st.floats(1e-6, 16))
@steady
def test_scales_and_tails_are_rounded_to_the_private_side(epsilon: float) -> None:
    numerator, denominator = laplace_scale(Fraction(epsilon))
    assert Fraction(denominator, numerator) <= Fraction(epsilon)
    assert denominator / numerator == pytest.approx(epsilon, rel=1e-5)
    assert float(log1p_down(Fraction(epsilon))) == pytest.approx(math.log1p(epsilon), rel=1e-12)
    for least in (1, 7, 300):
        mantissa, exponent = tail_up((numerator, denominator), least)
        log_tail = math.log(mantissa) - exponent * math.log(2)
        rate = denominator / numerator
        assert log_tail == pytest.approx(-rate * least - math.log1p(math.exp(-rate)), rel=1e-9, abs=1e-9)


def test_the_tail_is_an_upper_bound() -> None:
    """Against 200 digits of exp."""
    from decimal import Context, Decimal

    wide = Context(prec=200)
    for least in (1, 5, 60):
        r = wide.exp(Decimal(-1))
        exact = wide.divide(wide.power(r, least), 1 + r)
        mantissa, exponent = tail_up((1 << 40, 1 << 40), least)
        found = wide.divide(Decimal(mantissa), wide.power(Decimal(2), exponent))
        assert exact <= found <= wide.multiply(exact, Decimal("1.00000000000001"))


@pytest.mark.parametrize("probability", [0.4, 0.1, 1e-3, 1e-12, 1e-200])
def test_least_with_tail_is_the_least(probability: float) -> None:
    for epsilon in (0.1, 1.0, 3.0):
        scale = laplace_scale(Fraction(epsilon))
        r = decay(scale)
        found = least_with_tail(scale, probability)
        assert r**found / (1 + r) <= probability * (1 + 1e-9)
        assert found == 1 or r ** (found - 1) / (1 + r) > probability * (1 - 1e-9)


# Discrete Laplace noise


def test_compiled_noise_has_its_law() -> None:
    """Chi-square with a false-alarm rate of 1e-6; a law 30% off in one cell is rejected."""
    scale = laplace_scale(Fraction(0.7))
    drawn = add_noise(np.full(60_000, 2, dtype=np.int64), scale, 6, InsecureCoins(3))
    counts = np.bincount(drawn + 6, minlength=13)
    law = [mass for _, mass in laplace_law(2, scale[0] / scale[1], 6)]
    assert fits(counts, law)
    assert not fits(counts, tilted(law[::-1])[::-1])


def test_the_excess_over_a_threshold_is_geometric() -> None:
    scale = laplace_scale(Fraction(1.0))
    law = Enumeration().law(lambda coins: int(beyond(1, scale, 3, coins)[0]))  # type: ignore[arg-type]
    r = decay(scale)
    expected = [(1 - r) * r**j for j in range(3)] + [r**3]
    assert [float(law[j]) for j in range(4)] == pytest.approx(expected, rel=1e-12)


# Stochastic rounding


@given(st.floats(-4, 4, allow_nan=False), st.integers(0, 3))
@steady
def test_reals_are_rounded_with_exactly_their_own_odds(value: float, bits: int) -> None:
    law = Enumeration().law(
        lambda coins: int(Amounts.of(np.array([value]), bits).rounded(coins)[0])  # type: ignore[arg-type]
    )
    assert sum(mass * point for point, mass in law.items()) == Fraction(value) * (1 << bits)  # type: ignore[operator]
    assert all(abs(point - Fraction(value) * (1 << bits)) < 1 for point in law)  # type: ignore[operator]


def test_compiled_rounding_of_reals_has_its_law() -> None:
    """Fractions of one half, a third and 2^-6; false-alarm rate 1e-6 each, 30% off is rejected."""
    for part, draws in ((0.5, 20_000), (1 / 3, 20_000), (2.0**-6, 60_000)):
        ups = int((Amounts.of(np.full(draws, 5 + part), 0).rounded(InsecureCoins(8)) == 6).sum())
        assert fits([ups, draws - ups], [part, 1 - part])
        assert not fits([ups, draws - ups], tilted([part, 1 - part]))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 40), st.integers(0, 5))
@steady
def test_rounding_to_breaks_keeps_the_mean(gaps: list[int], value: int, first: int) -> None:
    breaks = first + np.concatenate([[0], np.cumsum(gaps)]).astype(np.int64)
    law = Enumeration().law(
        lambda coins: int(round_to_breaks(np.array([value]), breaks, coins)[0])  # type: ignore[arg-type]
    )
    mean = sum(mass * int(breaks[level]) for level, mass in law.items())  # type: ignore[operator, index]
    assert mean == min(max(value, first), int(breaks[-1]))


def test_rounding_in_two_stages_is_rounding_at_once() -> None:
    """Why a real may go to the fine grid first and to a level afterwards."""
    breaks = np.array([0, 4, 8], dtype=np.int64)

    def run(coins: object) -> int:
        fine = Amounts.of(np.array([1.3125]), 2).rounded(coins)  # type: ignore[arg-type]
        return int(round_to_breaks(fine, breaks, coins)[0])  # type: ignore[arg-type]

    assert Enumeration().law(run) == {1: 1 - Fraction(5, 16), 2: Fraction(5, 16)}  # type: ignore[arg-type]


# Randomized response, 64 bits at a time


class Script:
    """Coins whose words are given beforehand; `below` is never needed."""

    def __init__(self, words: list[int]) -> None:
        self.rest = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return np.array(taken, dtype=np.uint64).view(np.int64)


@pytest.mark.parametrize("share", [1, 13, 32, 37, 63])
def test_flips_compare_a_uniform_number_with_the_probability(share: int) -> None:
    """All 64 six-bit numbers at once, one per bit of the word: exactly those below the share flip."""
    uniform = [sum(((lane >> (5 - place)) & 1) << lane for lane in range(64)) for place in range(6)]
    coins = Script(uniform + [0, (1 << 64) - 1] * 40)
    word = int(noise_words(coins, 1, share << 56)[0])  # type: ignore[arg-type]
    assert word == (1 << share) - 1


def test_flips_have_their_law_and_spare_the_filler() -> None:
    """200 cells in 4 words, 500 times: flips per cell position are Bernoulli(p); false-alarm rate 1e-6."""
    flip = flip_for(Fraction(3))
    assert Fraction(flip, 1 << 62) >= Fraction(1, 5) > Fraction(flip - 1, 1 << 62)
    ones = 0
    coins = InsecureCoins(11)
    for _ in range(500):
        bits = empty(200)
        flip_cells(bits, 200, flip, coins)
        flags = np.unpackbits(bits, bitorder="little")
        assert not flags[200:].any()
        ones += int(flags.sum())
    assert fits([ones, 100_000 - ones], [0.2, 0.8])
    assert not fits([ones, 100_000 - ones], tilted([0.2, 0.8]))


@given(st.lists(st.integers(0, 299), max_size=40))
@steady
def test_cells_are_set_and_read(places: list[int]) -> None:
    bits = empty(300)
    set_cells(bits, np.array(places, dtype=np.uint64))
    assert read_cells(bits, np.arange(300, dtype=np.uint64)).tolist() == [
        int(c in places) for c in range(300)
    ]


# Binomial draws and subsets


class Uniform:
    """Coins whose uniform number has these binary digits."""

    def __init__(self, point: Fraction) -> None:
        self.point = point

    def below(self, bound: int) -> int:
        scaled = self.point * bound
        self.point = scaled - math.floor(scaled)
        return math.floor(scaled)


@pytest.mark.parametrize(("trials", "mantissa", "exponent"), [(100, 5, 7), (200, 1, 6), (65, 3, 2)])
def test_inversion_is_exact(trials: int, mantissa: int, exponent: int) -> None:
    """Just below, on and just above every step of the distribution function, to 2^-400."""
    p = Fraction(mantissa, 1 << exponent)
    total, mass = Fraction(0), (1 - p) ** trials
    hair = Fraction(1, 1 << 400)
    for successes in range(min(trials, 30)):
        if total:
            assert binomials._invert(Uniform(total - hair), trials, mantissa, exponent) == successes - 1
        for point in (total, total + hair, total + mass / 3):
            assert binomials._invert(Uniform(point), trials, mantissa, exponent) == successes
        total += mass
        mass *= Fraction(trials - successes, successes + 1) * p / (1 - p)
    assert binomials._invert(Uniform(1 - hair), trials, mantissa, exponent) <= trials


def test_inversion_draws_more_digits_only_when_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    coins = InsecureCoins(2)

    class Counting:
        def below(self, bound: int) -> int:
            drawn.append(bound)
            return coins.below(bound)

    binomial(Counting(), 1 << 63, 1, 60)  # type: ignore[arg-type]
    assert drawn == [1 << 128]


def test_large_binomials_have_the_right_mean_and_spread() -> None:
    """d = 2^64: mean 200 in several blocks; both moments within 5.5 deviations (rate below 1e-6), not 30% off."""
    coins = InsecureCoins(4)
    mantissa, exponent = 200 << 20, 84
    draws = np.array([binomial(coins, 1 << 64, mantissa, exponent) for _ in range(400)])
    mean, variance = draws.mean(), draws.var(ddof=1)
    assert abs(mean - 200) < 5.5 * math.sqrt(200 / 400)
    assert abs(variance - 200) < 5.5 * 200 * math.sqrt(2 / 399) < 200 * 0.4
    assert abs(mean - 260) > 5.5 * math.sqrt(260 / 400)


def test_few_trials_are_enumerated() -> None:
    law = Enumeration().law(lambda coins: binomial(coins, 3, 1, 2))
    assert law == {k: Fraction(math.comb(3, k) * 3 ** (3 - k), 64) for k in range(4)}


def test_subsets_are_uniform() -> None:
    law = Enumeration().law(lambda coins: tuple(subset(coins, 5, 2).tolist()))
    assert set(law.values()) == {Fraction(1, 10)}
    assert len(law) == 10


@given(st.sets(st.integers(0, 30), max_size=12), st.data())
@steady
def test_skipping_taken_ids(taken: set[int], data: st.DataObject) -> None:
    free = [i for i in range(31) if i not in taken]
    places = data.draw(st.sets(st.integers(0, len(free) - 1)))
    found = skip(np.array(sorted(places), dtype=np.uint64), np.array(sorted(taken), dtype=np.uint64))
    assert found.tolist() == [free[place] for place in sorted(places)]


def test_skipping_at_the_end_of_64_bits() -> None:
    taken = np.array([0, (1 << 64) - 2], dtype=np.uint64)
    places = np.array([0, (1 << 64) - 3], dtype=np.uint64)
    assert skip(places, taken).tolist() == [1, (1 << 64) - 1]


# Hashing


@given(st.lists(st.binary(max_size=40), min_size=8, max_size=40), st.integers(0, 2**64 - 1))
@steady
def test_many_siphashes_are_siphash(messages: list[bytes], key: int) -> None:
    assert siphash_many(key, 7, messages).tolist() == [siphash(key, 7, message) for message in messages]


def test_hashing_is_uniform_level_by_level() -> None:
    """Consecutive integer keys, 0 included, over 16 cells at two levels and jointly; false-alarm rate 1e-6."""
    space = KeySpace(kind="integers", universe=1 << 32, salt="ab" * 16)
    words = space.scattered(np.arange(40_000, dtype=np.uint64), 0)
    cells = hash_to(16, space.multipliers(2), words[:, None])
    for level in range(2):
        assert fits(np.bincount(cells[:, level].astype(int), minlength=16), [1 / 16] * 16)
    joint = np.bincount((cells[:, 0] * np.uint64(16) + cells[:, 1]).astype(int), minlength=256)
    assert fits(joint, [1 / 256] * 256)
    assert not fits(np.bincount(cells[:, 0].astype(int), minlength=16), tilted([1 / 16] * 16))
    assert (space.scattered(np.arange(9, dtype=np.uint64), 1) != words[:9]).all()
