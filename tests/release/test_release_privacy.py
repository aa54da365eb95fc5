"""Every guarantee, checked by walking all outcomes of the code that ships; and every check is shown to fail
when the flip probability, the scale or the threshold is a little off."""

from __future__ import annotations

import math

import numpy as np
import pytest
from worlds import (
    DUST,
    Plain,
    distance,
    excess,
    grid,
    keys,
    needed_delta,
    part_law,
    release_law,
    vector,
)

from helpers import fits, tilted
from hubbub.checks.exact import Enumeration, laplace_law
from hubbub.primitives.coins import InsecureCoins
from hubbub.release import sizes
from hubbub.release.alp import Alp
from hubbub.release.laplace import Laplace
from hubbub.release.maximum import MaxProjection
from hubbub.release.noise import tail
from hubbub.release.part import Part
from hubbub.release.threshold import Threshold
from hubbub.release.vector import Values

COUNTS = Values(kind="counts", max_value=3)
SIGNED = Values(kind="counts", signed=True, max_value=3)
REALS = Values(kind="reals", max_value=2, fraction_bits=1)
SIGNED_REALS = Values(kind="reals", signed=True, max_value=2, fraction_bits=1)

#: Real vectors whose differences are spread over entries, within and across steps of the grid.
SPREAD: list[Plain] = [
    {},
    {0: 0.25},
    {0: 0.125, 1: 0.875},
    {0: 0.5, 1: 0.5},
    {0: 1.0},
    {0: 1.25, 1: 0.25},
    {0: 1.0, 1: 1.0},
    {0: 1.75, 1: 0.5},
]
SIGNED_SPREAD: list[Plain] = [
    {},
    {0: 0.25},
    {0: -0.25, 1: 0.25},
    {0: 0.5, 1: -0.5},
    {0: -1.0},
    {0: -1.25, 1: 1.0},
]


def laws(part: Part, values: Values, universe: int, plains: list[Plain], seed: int = 0) -> list:
    return [(plain, part_law(part, values, keys(universe, seed), plain)) for plain in plains]


def fewer_flips(part: Alp) -> Alp:
    return part.model_copy(update={"flip": part.flip * 99 // 100})


def less_noise(part: Part) -> Part:
    numerator, denominator = part.scale  # type: ignore[attr-defined]
    return part.model_copy(update={"scale": (numerator * 99 // 100, denominator)})


# The ALP array: Algorithms 2, 4, 10, c units per bit, log-encoding, signs; several public hash functions


ALPS = {
    "histogram (Algorithm 10)": (COUNTS, {"span": 4, "levels": 3, "gap": 1}, 1.0),
    "two units per bit": (COUNTS, {"span": 5, "levels": 2, "gap": 2}, 1.0),
    "three units per bit": (COUNTS, {"span": 5, "levels": 1, "gap": 3}, 0.5),
    "columns": (COUNTS, {"span": 2, "levels": 2, "gap": 2, "layout": "columns"}, 1.0),
    "growing levels (Section 6)": (COUNTS, {"span": 4, "levels": 2, "gap": 1, "growth": 2.0}, 1.0),
    "signed": (SIGNED, {"span": 5, "levels": 2, "gap": 2}, 1.0),
    "signed columns": (SIGNED, {"span": 2, "levels": 1, "gap": 2, "layout": "columns"}, 1.0),
    "reals (Algorithm 4)": (REALS, {"span": 4, "levels": 2, "gap": 2}, 1.0),
    "reals at another epsilon": (REALS, {"span": 4, "levels": 2, "gap": 1}, 0.5),
    "signed reals": (SIGNED_REALS, {"span": 4, "levels": 2, "gap": 2}, 1.0),
}


def alp_vectors(values: Values) -> list[Plain]:
    if values.kind == "reals":
        return SIGNED_SPREAD if values.signed else SPREAD
    return list(grid(2, [-2, -1, 0, 1] if values.signed else [0, 1, 2, 3]))


@pytest.mark.parametrize("name", ALPS)
def test_alp_is_private_and_no_more(name: str) -> None:
    """Ratios reach exp(epsilon) per unit for counts, hence 1% fewer flips would break it."""
    values, parameters, epsilon = ALPS[name]
    part = Alp.make(values, epsilon, **parameters)  # type: ignore[arg-type]
    plains = alp_vectors(values)
    for seed in range(3):
        assert excess(laws(part, values, 2, plains, seed), epsilon) <= DUST
    if values.kind == "counts":
        assert excess(laws(fewer_flips(part), values, 2, plains), epsilon) > 1e-3


def test_reals_reach_their_bound_for_small_changes() -> None:
    """1 + epsilon D is exp(epsilon D) only for small D: there, 1% fewer flips are noticed."""
    part = Alp.make(REALS, 1.0, span=3, levels=2, gap=4)
    near: list[Plain] = [{}, {0: 2.0**-10}]
    assert -1e-6 < excess(laws(part, REALS, 2, near), 1.0) <= DUST
    assert excess(laws(fewer_flips(part), REALS, 2, near), 1.0) > 1e-6


def test_histogram_flips_would_be_wrong_for_reals() -> None:
    """The note in the paper's Section 7, as a number: 1 / (e^eps + 1) breaks for spread-out changes."""
    right = Alp.make(REALS, 1.0, span=4, levels=2, gap=2)
    wrong = right.model_copy(update={"flip": Alp.make(COUNTS, 1.0, span=4, levels=2, gap=1).flip})
    assert excess(laws(wrong, REALS, 2, SPREAD), 1.0) > 0.05


# Laplace, max projection


@pytest.mark.parametrize(
    "values", [COUNTS, SIGNED, REALS, SIGNED_REALS], ids=lambda v: f"{v.kind}-{v.signed}"
)
def test_laplace_and_max_are_private(values: Values) -> None:
    scale = values.scale(1.0)
    dense = Laplace(epsilon=1.0, scale=scale, limit=4)
    cells = MaxProjection(epsilon=1.0, scale=scale, limit=4, span=2, crowding=1)
    plains = alp_vectors(values) if values.kind == "reals" else list(grid(2, [0, 1, 2]))
    for part, seeds in ((dense, 1), (cells, 3)):
        for seed in range(seeds):
            assert excess(laws(part, values, 2, plains, seed), 1.0) <= DUST
    if values.kind == "counts":
        for part in (dense, cells):
            assert excess(laws(less_noise(part), values, 2, plains), 1.0) > 5e-3


def test_the_scale_of_reals_reaches_its_bound() -> None:
    near: list[Plain] = [{}, {0: 2.0**-10}]
    part = Laplace(epsilon=1.0, scale=REALS.scale(1.0), limit=6)
    assert -1e-6 < excess(laws(part, REALS, 1, near), 1.0) <= DUST
    assert excess(laws(less_noise(part), REALS, 1, near), 1.0) > 1e-6


# Threshold, pure


def pure(values: Values, threshold: int = 2) -> Threshold:
    made = Threshold.make(values, keys(3), 1.0, extra=1)
    return made.model_copy(update={"threshold": threshold, "limit": 3})


@pytest.mark.parametrize(
    "values", [COUNTS, SIGNED, REALS, SIGNED_REALS], ids=lambda v: f"{v.kind}-{v.signed}"
)
def test_pure_threshold_is_private(values: Values) -> None:
    if values.kind == "reals":
        plains = (SIGNED_SPREAD if values.signed else SPREAD)[:5]
    else:
        plains = list(grid(2, [-1, 0, 1] if values.signed else [0, 1, 2]))
    universe = 2 if values.signed else 3
    assert excess(laws(pure(values), values, universe, plains), 1.0) <= DUST
    if values.kind == "counts":
        assert excess(laws(less_noise(pure(values)), values, universe, plains), 1.0) > 5e-3


@pytest.mark.parametrize("values", [COUNTS, SIGNED], ids=["counts", "signed"])
def test_empty_entries_are_noised_like_the_rest(values: Values) -> None:
    """The binomial draw, the subset and the geometric excess together: noise on every entry, cut at t."""
    part, space, plain = pure(values), keys(3), {1: 2.0}
    found = part_law(part, values, space, plain)
    shapes = part.shapes(values, space)
    for mass in _noised_and_cut(part, values, 3, plain).items():
        listed, expected = mass
        ids = np.array([place for place, _ in listed], dtype=shapes["ids"][0])
        noised = np.array([value for _, value in listed], dtype=shapes["values"][0])
        key = (("ids", ids.tobytes()), ("values", noised.tobytes()))
        assert float(found.pop(key)) == pytest.approx(expected, rel=1e-9)
    assert not found


def _noised_and_cut(part: Threshold, values: Values, universe: int, plain: Plain) -> dict:
    """Algorithm 6 as written: noise every coordinate, drop what is below t."""
    total: dict[tuple, float] = {(): 1.0}
    for place in range(universe):
        law = laplace_law(int(plain.get(place, 0)), part.scale[0] / part.scale[1], part.limit)
        longer: dict[tuple, float] = {}
        for listed, mass in total.items():
            for value, weight in law:
                seen = (abs(value) if values.signed else value) >= part.threshold
                key = (*listed, (place, value)) if seen else listed
                longer[key] = longer.get(key, 0.0) + mass * weight
        total = longer
    return total


# Threshold with delta


@pytest.mark.parametrize("values", [COUNTS, SIGNED], ids=["counts", "signed"])
@pytest.mark.parametrize("delta", [0.2, 0.05, 0.0133])
def test_delta_counts_the_mass_at_the_threshold(values: Values, delta: float) -> None:
    """delta = P(1 + noise >= t), the draw on t included; a threshold one lower needs more than delta."""
    part = Threshold.make(values, keys(2), 1.0, delta=delta).model_copy(update={"limit": 8})
    plains = list(grid(2, [-1, 0, 1] if values.signed else [0, 1, 2]))
    found = needed_delta(laws(part, values, 2, plains), 1.0)
    assert found == pytest.approx(float(tail(part.scale, part.threshold - 1)), rel=1e-9)
    assert found <= delta
    lower = part.model_copy(update={"threshold": part.threshold - 1})
    assert needed_delta(laws(lower, values, 2, plains), 1.0) > delta


def test_with_delta_only_empty_entries_need_it() -> None:
    """Between entries that are there in both, odds stay within exp(epsilon); with 1% less noise they do not."""
    part = Threshold.make(COUNTS, keys(2), 1.0, delta=0.05).model_copy(update={"limit": 8})
    there = list(grid(2, [1, 2, 3]))
    assert needed_delta(laws(part, COUNTS, 2, there), 1.0) <= DUST
    assert needed_delta(laws(less_noise(part), COUNTS, 2, there), 1.0) > 1e-4


@pytest.mark.parametrize("values", [REALS, SIGNED_REALS], ids=["reals", "signed"])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.1), (2.0, 0.05)])
def test_delta_of_reals(values: Values, epsilon: float, delta: float) -> None:
    """Changes spread over entries below one unit, above it and across; the constant is close to needed."""
    part = Threshold.make(values, keys(2), epsilon, delta=delta)
    part = part.model_copy(update={"limit": part.threshold + 2})
    plains = SIGNED_SPREAD if values.signed else [*SPREAD[:5], {0: 1.5}, {0: 2.0}]
    assert needed_delta(laws(part, values, 2, plains), epsilon) <= delta
    lower = part.model_copy(update={"threshold": part.threshold - 2})
    assert needed_delta(laws(lower, values, 2, plains), epsilon) > delta


def test_small_reals_are_listed_in_proportion_to_their_size() -> None:
    """Step 1 of Algorithm 9: an entry x below one unit is listed with probability x tau."""
    part = Threshold.make(REALS, keys(2), 1.0, delta=0.05)
    part = part.model_copy(update={"limit": part.threshold + 2})
    tau = float(tail(part.scale, part.threshold - 2))
    law = part_law(part, REALS, keys(2), {0: 0.25, 1: 0.75})
    nothing = (("ids", b""), ("values", b""))
    assert float(law[nothing]) == pytest.approx((1 - 0.25 * tau) * (1 - 0.75 * tau), rel=1e-9)


def test_delta_at_the_threshold_empirically() -> None:
    """Among 200,000 entries of 1 the listed share is P(1 + noise >= t), by the compiled sampler.

    Chi-square at a false-alarm rate of 1e-6; a law 30% off, and one that leaves the draw on t out, are rejected.
    """
    part = Threshold.make(COUNTS, keys(1 << 32), 1.0, delta=0.02)
    count = 200_000
    ones = dict.fromkeys(range(count), 1.0)
    made = part.project(vector(COUNTS, ones), COUNTS, keys(1 << 32), InsecureCoins(5))
    listed = len(made["ids"])
    tau = float(tail(part.scale, part.threshold - 1))
    assert fits([listed, count - listed], [tau, 1 - tau])
    assert not fits([listed, count - listed], tilted([tau, 1 - tau]))
    past = float(tail(part.scale, part.threshold))
    assert not fits([listed, count - listed], [past, 1 - past])


# Combined releases and size estimates


#: Pairs with an empty entry, with a shared cell and with a full one.
COMPOSED: list[Plain] = [{}, {0: 1}, {0: 2}, {0: 1, 1: 1}, {0: 2, 1: 1}]


def composed(listed: Threshold, array: Alp) -> list:
    return [(plain, release_law((listed, array), COUNTS, keys(2), plain)) for plain in COMPOSED]


def test_threshold_alp_composes() -> None:
    """Algorithm 7, with listed entries left out of the array (adaptive composition)."""
    listed = Threshold.make(COUNTS, keys(2), 0.3, extra=1)
    listed = listed.model_copy(update={"threshold": 2, "limit": 2})
    array = Alp.make(COUNTS, 0.7, span=3, levels=1, gap=2)
    assert excess(composed(listed, array), 1.0) <= DUST
    assert excess(composed(less_noise(listed), fewer_flips(array)), 1.0) > 1e-3


def test_threshold_alp_with_delta_composes() -> None:
    listed = Threshold.make(COUNTS, keys(2), 0.5, delta=0.1)
    listed = listed.model_copy(update={"limit": listed.threshold + 1})
    array = Alp.make(COUNTS, 0.5, span=2, levels=2, gap=2)
    assert needed_delta(composed(listed, array), 1.0) <= 0.1
    lower = listed.model_copy(update={"threshold": listed.threshold - 2})
    assert needed_delta(composed(lower, array), 1.0) > 0.1


@pytest.mark.parametrize("values", [COUNTS, REALS], ids=["counts", "reals"])
def test_size_estimates_are_private(values: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_LIMIT", 9)
    monkeypatch.setattr(sizes, "least_with_tail", lambda scale, odds: 10)
    plains = SPREAD if values.kind == "reals" else list(grid(2, [0, 1, 2]))

    def found(epsilon: float) -> list:
        def run(plain: Plain) -> dict:
            return Enumeration().law(
                lambda coins: tuple(
                    sizes.estimate_sizes(vector(values, plain), values, epsilon, coins).model_dump().values()  # type: ignore[arg-type]
                )
            )

        return [(plain, run(plain)) for plain in plains]

    assert excess(found(0.5), 0.5) <= DUST
    assert excess(found(0.505), 0.5) > 1e-3 or values.kind == "reals"
    assert excess(found(0.7), 0.5) > 1e-3


def test_the_tests_look_at_neighbours_in_both_senses() -> None:
    assert distance({0: 0.5, 1: 0.5}, {}) == 1
    assert math.isclose(distance({0: 0.25}, {0: -0.25, 1: 0.25}), 0.75)
