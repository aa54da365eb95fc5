"""Simulated crowds: what they are made of, and that their truth is the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers import fits, tilted
from hubbub.model.record import GRID
from hubbub.simulation.populations import Population, distinct_population, zipf_population

MAKERS: dict[str, Callable[[int], Population]] = {
    "zipf": lambda seed: zipf_population(500, 40, seed),
    "zipf sets": lambda seed: zipf_population(500, 40, seed, signed=False),
    "zipf, short": lambda seed: zipf_population(500, 40, seed, entries=1.0, tail=1.5),
    "distinct": lambda seed: distinct_population(500, 40, 7, seed),
    "distinct, all keys": lambda seed: distinct_population(50, 9, 9, seed),
    "distinct, one key": lambda seed: distinct_population(500, 40, 1, seed),
}


def records(population: Population) -> list[dict[int, int]]:
    """Every user's keys and values, one by one."""
    entries = population.entries
    found = []
    for start, stop in zip(entries.offsets[:-1], entries.offsets[1:], strict=True):
        ids, values = entries.ids[start:stop].tolist(), entries.values[start:stop].tolist()
        assert len(set(ids)) == len(ids)
        found.append(dict(zip(ids, values, strict=True)))
    return found


@pytest.mark.parametrize("name", MAKERS)
def test_shapes_and_truth(name: str) -> None:
    population = MAKERS[name](3)
    crowd = records(population)
    entries = population.entries
    assert (entries.ids.dtype, entries.values.dtype, entries.offsets.dtype) == (np.uint64, np.int64, np.int64)
    assert len(entries.ids) == len(entries.values) == entries.offsets[-1] > 0
    assert len(entries) == len(crowd) == (50 if "all" in name else 500)
    assert population.frequency.shape == population.mean.shape == (population.keys,)
    assert max(max(record, default=0) for record in crowd) < population.keys
    for key in range(population.keys):
        held = [record[key] for record in crowd if key in record]
        assert all(-GRID <= value <= GRID for value in held)
        assert population.frequency[key] == len(held) / len(crowd)
        assert population.mean[key] == pytest.approx(sum(held) / GRID / len(crowd), abs=1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_is_a_crowd(name: str) -> None:
    one, same, other = MAKERS[name](3), MAKERS[name](3), MAKERS[name](4)
    for part in ("ids", "values", "offsets"):
        assert np.array_equal(getattr(one.entries, part), getattr(same.entries, part))
    assert not (
        np.array_equal(one.entries.ids, other.entries.ids)
        and np.array_equal(one.entries.values, other.entries.values)
    )


@pytest.mark.parametrize("keys", [12, 1 << 13])
def test_distinct_records_are_full(keys: int) -> None:
    """With 2^13 keys the crowd is drawn in two parts; the second is not the first again."""
    population = distinct_population(1500, keys, 5, seed=2)
    crowd = records(population)
    assert {len(record) for record in crowd} == {5}
    assert population.frequency.sum() == pytest.approx(5)
    for record in crowd:
        assert all(value == (-GRID if key % 3 == 0 else GRID) for key, value in record.items())
    assert crowd[:400] != crowd[1024:1424]


def test_zipf_values() -> None:
    """Sets are ones; signed values differ between keys more than within a key."""
    assert set(zipf_population(500, 40, 1, signed=False).entries.values.tolist()) == {GRID}
    crowd = records(zipf_population(3000, 20, 1))
    held = [[record[key] / GRID for record in crowd if key in record] for key in range(20)]
    assert np.std([np.mean(values) for values in held]) > 0.4
    assert max(np.std(values) for values in held) < 0.35


def test_zipf_lengths_have_a_long_tail() -> None:
    """A lognormal law of draws, hardly any of them twice among 100,000 keys: median 6, a tenth above 6 exp(1.28 * 0.6).

    Quantiles of 20,000 draws: six standard errors are less than one draw.
    """
    crowd = zipf_population(20_000, 100_000, 1, exponent=0.0, entries=6.0, tail=0.6)
    lengths = np.diff(crowd.entries.offsets)
    assert np.median(lengths) == pytest.approx(6, abs=1)
    assert np.quantile(lengths, 0.9) == pytest.approx(12.9, abs=1)
    assert lengths.max() > 40
    assert np.diff(zipf_population(20_000, 10, 1, entries=6.0).entries.offsets).max() <= 10


@pytest.mark.parametrize("exponent", [0.0, 1.3])
def test_keys_follow_their_law(exponent: float) -> None:
    """One key a user: chi-square tests with false alarms of 1e-6, and a law that is 30% off in one place fails."""
    law = np.arange(1, 9) ** -exponent
    law /= law.sum()
    one_draw = zipf_population(20_000, 8, 11, exponent=exponent, entries=1.0, tail=0.0)
    one_race = distinct_population(20_000, 8, 1, seed=12, exponent=exponent)
    for population in (one_draw, one_race):
        assert (np.diff(population.entries.offsets) == 1).all()
        counts = np.bincount(population.entries.ids.astype(np.int64), minlength=8)
        assert fits(counts, law)
        assert not fits(counts, tilted(law))


def test_races_are_draws_without_replacement() -> None:
    """Two of three keys: the pair without key c comes with probability p_a p_b (1 / (1 - p_a) + 1 / (1 - p_b))."""
    weights = np.arange(1, 4) ** -1.4
    p = weights / weights.sum()
    pairs = [(1, 2), (0, 2), (0, 1)]
    law = [p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b])) for a, b in pairs]
    ids = distinct_population(20_000, 3, 2, seed=13).entries.ids.astype(np.int64).reshape(-1, 2)
    counts = np.bincount(3 - ids.sum(axis=1), minlength=3)
    assert fits(counts, law)
    assert not fits(counts, tilted(law))
