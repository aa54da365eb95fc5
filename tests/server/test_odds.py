"""Odds: never too small, whatever is drawn, too small by a law that is 30% off, and small for what they are for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.server.odds import chernoff, crowding, outlier, repetition, togetherness, unevenness


def every_count(reports: int, law: list[float]) -> list[tuple[NDArray[np.int64], float]]:
    """All counts of so many reports over a few cells, with their probabilities."""
    found: dict[tuple[int, ...], float] = {}
    for places in product(range(len(law)), repeat=reports):
        counts = tuple(np.bincount(places, minlength=len(law)).tolist())
        found[counts] = found.get(counts, 0.0) + float(np.prod([law[place] for place in places]))
    return [(np.array(counts), chance) for counts, chance in found.items()]


def excess(odds: Callable[[NDArray[np.int64]], float], reports: int, law: list[float]) -> float:
    """By how much the chance of odds of at most a exceeds a, at worst: at most 0 if the odds are true."""
    pairs = sorted((odds(counts), chance) for counts, chance in every_count(reports, law))
    values, total = np.array([pair[0] for pair in pairs]), np.cumsum([pair[1] for pair in pairs])
    return float((total - values)[values < 1].max(initial=-1.0))


LAWS = [[0.25] * 4, [0.1, 0.2, 0.3, 0.4]]


@pytest.mark.parametrize("law", LAWS)
def test_odds_are_never_too_small(law: list[float]) -> None:
    """Exactly, over all outcomes of 7 reports in 4 cells; with a law that is 30% off they are."""
    most, least = np.array(law), np.array(law)
    assert excess(lambda counts: outlier(counts, 7, least, most), 7, law) <= 1e-12
    assert excess(lambda counts: outlier(counts, 7, 0.7 * least, 0.7 * most), 7, law) > 0
    assert excess(lambda counts: crowding(counts, 7, max(law)), 7, law) <= 1e-12
    assert excess(lambda counts: unevenness(counts, 7, most), 7, law) <= 1e-12


def test_odds_of_repetition_are_never_too_small() -> None:
    """Exactly: 7 reports that are one of 4 or of 40."""
    for law in (*LAWS, [0.025] * 3 + [0.925]):

        def odds(counts: NDArray[np.int64], most: float = max(law)) -> float:
            return repetition(int(counts.sum() - (counts > 0).sum()), 7, most)

        assert excess(odds, 7, law) <= 1e-12
    assert repetition(0, 7, 0.1) == 1.0
    assert repetition(40, 1000, 1e-5) < 1e-10


def test_odds_notice_what_they_are_for() -> None:
    """Large counts: an uneven draw, a crowd in a few cells, one cell; an even one where it should not be."""
    rng = np.random.default_rng(4)
    drawn = np.bincount(rng.integers(0, 4096, 40_000), minlength=4096)
    assert unevenness(drawn, 40_000, 1 / 4096) > 0.01
    assert crowding(drawn, 40_000, 1 / 4096) > 0.01
    assert outlier(drawn, 40_000, 1 / 4096, 1 / 4096) > 0.01
    clumped = drawn + np.where(np.arange(4096) < 200, 10, 0)
    assert unevenness(clumped, int(clumped.sum()), 1 / 4096) < 1e-9
    assert crowding(clumped, int(clumped.sum()), 1.05 / 4096) < 1e-9
    assert unevenness(np.full(4096, 10), 40_960, 1 / 4096) < 1e-9
    assert chernoff(30, 4096, 1e-4) < 1e-9


def test_laws_that_are_30_percent_off_are_noticed() -> None:
    """Where the odds' own slack does not hide it: an honest draw against a law that is 30% too small or uneven."""
    rng = np.random.default_rng(6)
    drawn = np.bincount(rng.integers(0, 4096, 200_000), minlength=4096)
    assert crowding(drawn, 200_000, 1 / 4096) > 0.01
    assert crowding(drawn, 200_000, 0.7 / 4096) < 1e-9
    skewed = np.where(np.arange(4096) % 2, 1.3, 0.7) / 4096
    assert unevenness(drawn, 200_000, 1 / 4096) > 0.01
    assert unevenness(drawn, 200_000, skewed) < 1e-9
    likeliest = 1e-7
    values = rng.integers(0, round(1 / likeliest), 40_000)
    repeats = len(values) - len(np.unique(values))
    assert repetition(repeats, 40_000, likeliest) > 0.01
    assert repetition(repeats, 40_000, 0.7 * likeliest) < 0.01
    values = rng.integers(0, round(1 / likeliest), 200_000)
    repeats = len(values) - len(np.unique(values))
    assert repetition(repeats, 200_000, likeliest) > 0.01
    assert repetition(repeats, 200_000, 0.7 * likeliest) < 1e-9


@pytest.mark.parametrize("mean", [0.01, 1.0, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("cells", [64, 1000])
def test_evenness_of_cells_of_any_size(cells: int, mean: float) -> None:
    """Honest draws are usual (odds below 1e-9: in at most 1e-7 of all runs), and tilted ones are not."""
    reports, rng = max(round(cells * mean), 1), np.random.default_rng(cells)
    law = np.full(cells, 1 / cells)
    tilted = np.where(np.arange(cells) % 2, 1.3, 0.7) / cells
    for _ in range(10):
        assert unevenness(rng.multinomial(reports, law), reports, 1 / cells) > 1e-9
    if mean >= 1e3:
        assert unevenness(rng.multinomial(reports, tilted), reports, 1 / cells) < 1e-9
        assert unevenness(np.full(cells, reports // cells), reports, 1 / cells) < 1e-9
    one = np.zeros(cells, dtype=np.int64)
    one[3] = reports
    assert 0 <= unevenness(one, reports, 1 / cells) <= 1


def pair_excess(held: float, claimed_idle: float, claimed_held: float, reports: int = 9) -> float:
    """As `excess`, of two keys of which one is held by everybody: all outcomes of a few reports."""
    idle = 0.3
    law = [(1 - held) * (1 - idle), (1 - held) * idle, held * (1 - idle), held * idle]
    found = []
    for counts, chance in every_count(reports, law):
        each = np.array([counts[2] + counts[3], counts[1] + counts[3]], dtype=np.float64)
        both = np.array([[each[0], counts[3]], [counts[3], each[1]]], dtype=np.float64)
        found.append((togetherness(both, each, reports, claimed_idle, claimed_held), chance))
    found.sort()
    values, total = np.array([pair[0] for pair in found]), np.cumsum([pair[1] for pair in found])
    return float((total - values)[values < 1].max(initial=-1.0))


def test_odds_of_pairs_are_never_too_small() -> None:
    """Exactly, held or not; coins that are 30% likelier than it is said are noticed, as are keys that are forged."""
    for held in (0.3, 0.45, 0.6):
        assert pair_excess(held, 0.3, 0.6) <= 1e-12
    rng = np.random.default_rng(5)
    named = (rng.random((100_000, 6)) < 0.39).astype(np.float64)
    assert togetherness(named.T @ named, named.sum(axis=0), 100_000, 0.39, 0.6) > 0.01
    assert togetherness(named.T @ named, named.sum(axis=0), 100_000, 0.3, 0.6) < 1e-9
    named[:3000, :2] = 1
    assert togetherness(named.T @ named, named.sum(axis=0), 100_000, 0.39, 0.6) < 1e-9
