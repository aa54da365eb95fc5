"""The audit: passes every real mechanism, exposes every planted fault, and its bounds are honest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hubbub.checks.audit import binomial_bound, exact_audit, sampled_audit
from hubbub.checks.conformance import task_for
from hubbub.device.client import Client
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.sketch_response import SketchResponse
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import Entries
from hubbub.primitives.coins import Coins, InsecureCoins

SAMPLES = 60_000
REAL = {
    "collision": Collision(epsilon=1.0, max_entries=8),
    "collision-signed": Collision(epsilon=2.0, max_entries=4, values="signed"),
    "coco": CoCo(epsilon=1.0, max_entries=8),
    "sketch-sets": SketchResponse(epsilon=1.0, max_entries=16),
    "sketch-signed": SketchResponse(epsilon=0.5, max_entries=8, values="signed"),
    "sum-bit": SparseSum(epsilon=1.0, max_entries=8, values="signed"),
    "sum-window": SparseSum(epsilon=3.0, max_entries=8, values="signed", noise="window"),
    "sum-laplace": SparseSum(epsilon=1.0, max_entries=4, noise="laplace", clip=3),
    "sum-entry": SparseSum(epsilon=1.0, max_entries=16, unit="entry"),
    "sum-l1": SparseSum(epsilon=1.0, max_entries=4, unit="l1", distance=3.0),
}


def audit(mechanism: Mechanism, seed: int = 1, samples: int = SAMPLES) -> Any:
    """Seeded; a sound mechanism is refuted with probability at most 1e-9."""
    coins = iter(range(seed, seed + 1000))
    return sampled_audit(task_for(mechanism, 40), samples, 1 - 1e-9, coins=lambda: InsecureCoins(next(coins)))


@pytest.mark.parametrize("name", REAL)
def test_real_mechanisms_pass_and_use_most_of_their_budget(name: str) -> None:
    finding = audit(REAL[name])
    assert not finding.refuted, finding.words()
    assert finding.found > 0.5 * finding.claimed, finding.words()


def _louder(kind: type[Mechanism]) -> type[Mechanism]:
    class Louder(kind):  # type: ignore[misc, valid-type]
        @property
        def weights(self) -> tuple[int, int]:
            favoured, other = super().weights
            return favoured * 6 // 5, other

    return Louder


class HalfNoise(SparseSum):
    @property
    def _scale(self) -> tuple[int, int]:
        numerator, denominator = super()._scale
        return numerator // 2, denominator


class NoNoise(SketchResponse):
    @property
    def weights(self) -> tuple[int, int]:
        return 1 << 40, 1


class TiesNotCut(SketchResponse):
    """Everything tied with the K-th best is favoured, but the favoured branch is as likely as for K.

    (Ties cut in a biased way would spoil the estimate, but no bound: the favoured set would still have K members.)
    """

    ratio: float = 0.0

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return (int(self.ratio * other), other) if self.ratio else (favoured, other)

    def randomize(self, keys: Keys, entries: Entries, seeds: np.ndarray[Any, Any], coins: Coins) -> Any:
        tied, total = int(np.diff(entries.offsets).max()), self.buckets
        if tied <= self.favoured:
            return super().randomize(keys, entries, seeds, coins)
        w = self.weights[0] / self.weights[1]
        ratio = self.favoured * w * (total - tied) / (tied * (total - self.favoured))
        uncut = self.model_copy(update={"favoured": tied, "ratio": ratio})
        return SketchResponse.randomize(uncut, keys, entries, seeds, coins)


class SeedAsCoins(Collision):
    def randomize(self, keys: Keys, entries: Entries, seeds: np.ndarray[Any, Any], coins: Coins) -> Any:
        reports = [
            super(SeedAsCoins, self).randomize(
                keys, entries.slice(i, i + 1), seeds[i : i + 1], InsecureCoins(int(seeds[i]))
            )
            for i in range(200)
        ]
        return np.tile(np.concatenate(reports), (len(entries) // 200 + 1, 1))[: len(entries)]


PLANTED = {
    "collision weights 20% off": _louder(Collision)(epsilon=1.0, max_entries=4),
    "coco weights 20% off": _louder(CoCo)(epsilon=1.0, max_entries=2),
    "sketch weights 20% off": _louder(SketchResponse)(epsilon=1.0, max_entries=1),
    "window weights 20% off": _louder(SparseSum)(epsilon=1.0, max_entries=4, noise="window", clip=2, reach=2),
    "noise scale halved": HalfNoise(epsilon=1.0, max_entries=4, unit="entry"),
    "clipped noise scale halved": HalfNoise(epsilon=1.0, max_entries=4, noise="laplace", clip=3),
    "report not noised": NoNoise(epsilon=1.0, max_entries=4, buckets=16, seeds=1),
    "ties not cut": TiesNotCut(epsilon=1.0, max_entries=8, buckets=64, seeds=1, favoured=1),
    "public seed used as coins": SeedAsCoins(epsilon=1.0, max_entries=4),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_exposed(name: str) -> None:
    finding = audit(PLANTED[name], samples=200_000 if "20%" in name else SAMPLES)
    assert finding.refuted, finding.words()
    assert "REFUTED" in finding.words()


ONE_ENTRY = [Collision(epsilon=1, max_entries=1), CoCo(epsilon=1, max_entries=1), HadamardResponse(epsilon=1)]


@pytest.mark.parametrize("mechanism", ONE_ENTRY, ids=lambda mechanism: mechanism.name)
def test_exact_audit_of_one_entry(mechanism: Mechanism) -> None:
    finding = exact_audit(task_for(mechanism))
    assert not finding.refuted
    assert finding.found == pytest.approx(finding.claimed, rel=1e-6)


def test_exact_audit_exposes_a_small_fault() -> None:
    class Louder(Collision):
        @property
        def weights(self) -> tuple[int, int]:
            favoured, other = super().weights
            return favoured * 101 // 100, other

    finding = exact_audit(task_for(Louder(epsilon=1.0, max_entries=8)))
    assert finding.refuted
    assert finding.found == pytest.approx(1 + math.log(1.01), abs=1e-6)
    assert not exact_audit(task_for(Collision(epsilon=1.0, max_entries=8))).refuted


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (3, 50), (25, 50), (49, 50), (50, 50), (700, 1000)])
def test_binomial_bounds_are_clopper_pearson(hits: int, trials: int) -> None:
    """At the bound the tail is exactly the odds, by direct summation."""

    def pmf(k: int, p: float) -> float:
        return math.comb(trials, k) * p**k * (1 - p) ** (trials - k)

    for odds in (0.05, 1e-6):
        low, high = (binomial_bound(hits, trials, odds, upper) for upper in (False, True))
        assert low <= hits / trials <= high
        if hits > 0:
            assert sum(pmf(k, low) for k in range(hits, trials + 1)) == pytest.approx(odds, rel=1e-6)
        if hits < trials:
            assert sum(pmf(k, high) for k in range(hits + 1)) == pytest.approx(odds, rel=1e-6)


def test_real_clients_are_what_is_audited() -> None:
    """A client's reports and the audited ones come from the same function, with coins from the system."""
    task = task_for(Collision(epsilon=1.0, max_entries=2))
    assert len(Client(task).report({"1": 1.0})) == task.mechanism.layout.width
    assert not sampled_audit(task, 5000).refuted
