"""The audits pass every sound mechanism and show most of its budget; what they say about themselves is true."""

from __future__ import annotations

import math
from typing import Any

import pytest
from faults import SCALED, Fault, audited_by_sampling, audited_exactly

from helpers import refused
from hubbub.checks.audit import Audit, Finding, audit, exact_audit, sampled_audit
from hubbub.checks.conformance import are_neighbours, task_for
from hubbub.checks.events import Match, judge
from hubbub.checks.reuse import batch_sizes, repeated_coins
from hubbub.checks.sampling import _dependent_seeds, judge_task, planned_tests, reports_drawn, telling_pairs
from hubbub.device import client
from hubbub.device.client import Client
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.gaussian import GaussianNoise
from hubbub.mechanisms.harmony import Harmony
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: How much of the claim sampling shows. Less than half where records of four entries blur each other (places are
#: shuffled, or one of them is drawn), and where delta allows for more.
SHOWN = {"repeated, unit record": 0.4, "repeated, unit entry, signed": 0.4, "pckv_ue": 0.1, "gaussian": 0.2}


def sources(seed: int) -> dict[str, Any]:
    """Repeatable coins and seeds, a fresh source for every call."""
    secret, public = iter(range(seed, seed + 1000)), iter(range(seed, seed + 1000))
    return {
        "coins": lambda: InsecureCoins(next(secret)),
        "public": lambda: SimulatedSeeds(next(public)),
    }


@pytest.mark.parametrize("name", SCALED)
def test_sound_mechanisms_pass_and_show_most_of_their_budget(name: str) -> None:
    """A sound mechanism is refuted with probability at most 1e-6."""
    sound = Fault(SCALED[name](0.0))
    sampled = audited_by_sampling(sound, samples=20_000)
    assert not sampled.refuted, sampled.words()
    assert sampled.found > SHOWN.get(name, 0.5) * sampled.claimed, sampled.words()
    exact = audited_exactly(sound)
    if exact is None:
        assert name == "gaussian"
    else:
        assert not exact.refuted, exact.words()
        # Unit l1 of signed values pays for rounding that the grid of a small instance makes look large.
        used = {"sparse_sum, unit l1, signed": 16 / 17, "sparse_sum, unit l1, rounded sums": 32 / 33}
        assert exact.found == pytest.approx(used.get(name, 1), rel=1e-6)


def test_entries_are_added_removed_or_changed_but_not_exchanged() -> None:
    """Exchanging a key for another is two steps of unit entry, and can cost twice epsilon."""
    entry = Guarantee(1.0, unit="entry")
    base = {"0": 1.0, "1": 0.5}
    for other in ({"0": 1.0}, {**base, "2": 0.3}, {"0": -1.0, "1": 0.5}, {"0": 1.0, "1": 0.0}):
        assert are_neighbours(entry, base, other)
        assert are_neighbours(entry, other, base)
    for other in ({"0": 1.0, "2": 0.5}, {"0": -1.0, "1": 0.0}, {}, base):
        assert not are_neighbours(entry, base, other)
    assert not are_neighbours(entry, {"0": 1.0}, {"1": 1.0})
    assert are_neighbours(entry, {"0": 0.0}, {})
    assert are_neighbours(Guarantee(1.0), base, {})
    l1 = Guarantee(1.0, unit="l1", distance=1.0)
    assert are_neighbours(l1, base, {"0": 0.5, "1": 0.0})
    assert not are_neighbours(l1, {"0": 1.0}, {"1": 1.0})


@pytest.mark.parametrize("name", [*SCALED, "wide", "negative"])
def test_pairs_are_neighbours(name: str) -> None:
    """Whatever the unit: only pairs that the guarantee speaks about are compared, and each says something."""
    mechanism = (
        SCALED[name](0.0)
        if name in SCALED
        else SparseSum(epsilon=1, max_entries=3, values="signed", unit="l1", distance=2.5)
    )
    task = task_for(mechanism, getattr(mechanism, "size", 40))
    if name == "wide":
        task = Task.parse({"name": "t", "keys": {"kind": "wide"}, "mechanism": mechanism})
    if name == "negative":
        task = Task.parse({"name": "t", "keys": task.keys, "mechanism": mechanism, "low": -5, "high": -1})
    for seed in (0, 1, 2):
        pairs = list(telling_pairs(task, seed))
        assert pairs
        for what, one, two in pairs:
            assert are_neighbours(task.guarantee, one, two), what
            assert one != two


def test_level_of_the_sampled_audit() -> None:
    """At level 0.9 at most a tenth are false alarms: of 200 tries at most 43, or else with probability 1e-6."""
    alarms = {"loss": 0, "seed": 0, "coins": 0}
    mechanisms: list[Mechanism] = [
        Collision(epsilon=1, max_entries=2),
        SparseSum(epsilon=1, max_entries=1, noise="bit"),
        CoCo(epsilon=0.3, max_entries=1),
        Harmony(epsilon=1, max_entries=1, size=8),
    ]
    for run in range(50):
        for mechanism in mechanisms:
            task, source = task_for(mechanism, 8), sources(1000 * run)
            tests = planned_tests(task, 1)[:2]
            found = judge_task(task, tests, BULK, **source)
            alarms["loss"] += found.lower_bound(0.1) > mechanism.epsilon
            alarms["coins"] += any(repeated_coins(task, source["coins"](), 0.1)) if run < 10 else 0
            seeds = [source["public"]().draw(16, 400)[:, None] >> 8 for _ in range(2)]
            columns = seeds[0].astype("int64"), seeds[1].astype("int64")
            alarms["seed"] += judge([Match("seed", (columns,))]).lower_bound(0.1) > 0
    assert max(alarms.values()) <= 43, alarms


def test_stated_power_is_there() -> None:
    """A loss larger by the smallest excess is found with probability 0.95: 46 of 60 or more, or else with 1e-6."""

    def found(mechanism: Mechanism, seed: int) -> Any:
        task = task_for(mechanism, 8)
        return judge_task(task, planned_tests(task, 1), BULK, **sources(seed))

    odds = 1e-6
    excess = found(Collision(epsilon=1, max_entries=1), 1).smallest_excess(1.0, odds)
    assert excess == pytest.approx(0.4, abs=0.2)
    faulty = SCALED["collision"](math.expm1(excess)).model_copy(update={"max_entries": 1, "buckets": 4})
    caught = sum(found(faulty, 1000 * run).lower_bound(odds) > 1 for run in range(60))
    assert caught >= 46
    # A third of the excess is mostly missed: the statement is not idle.
    faint = SCALED["collision"](math.expm1(excess / 3)).model_copy(update={"max_entries": 1, "buckets": 4})
    assert sum(found(faint, 1000 * run).lower_bound(odds) > 1 for run in range(60)) <= 12


def test_clients_are_what_is_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's reports and the audited ones come from the same function."""
    seen = []
    real = client.privatize

    def watched(*arguments: Any) -> Any:
        seen.append(len(arguments[1]))
        return real(*arguments)

    monkeypatch.setattr(client, "privatize", watched)
    monkeypatch.setattr(client, "SystemSeeds", lambda: SimulatedSeeds(3))
    task = task_for(Collision(epsilon=1.0, max_entries=2))
    assert len(Client(task).report({"1": 1.0})) == task.mechanism.layout.width
    # A client whose seed is always the same is not one whose seed depends on the record.
    assert not list(_dependent_seeds(task, 2000, **sources(1), odds=1e-6))
    assert seen == [1] * 2001


def test_what_is_too_slow_is_said() -> None:
    """Wide reports: no client and no batches, and the scope says so."""
    wide = task_for(GaussianNoise(epsilon=1, max_entries=1, size=2000), 4)
    assert batch_sizes(wide) == {}
    finding = Finding(
        "sampled", 1.0, 1e-5, 0.5, 0.9, 10, 1, "a pair", not_tested=("coins that are used twice",)
    )
    assert "; coins that are used twice;" in Audit((finding,)).scope().split("Not excluded")[1]
    narrow = task_for(Collision(epsilon=1, max_entries=2))
    assert sorted(batch_sizes(narrow)) == [256, 4096]


def test_scope_is_one_line_and_true(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for(Collision(epsilon=1.0, max_entries=4), 40)
    monkeypatch.setattr(
        "hubbub.checks.audit.sampled_audit", lambda *a, **k: sampled_audit(*a, **k, **sources(5))
    )
    found = audit(task, samples=13_000)
    exact, sampled = found.findings
    excluded, left = found.scope().split(" Not excluded: ")
    assert "\n" not in found.scope()
    assert excluded.startswith("Excluded: a loss above epsilon = 1 in ")
    assert f"{exact.pairs:,} enumerated pairs" in excluded
    assert sampled.smallest_excess is not None
    assert f"a loss above {1 + sampled.smallest_excess:.3g} epsilon in the event tested" in excluded
    assert "more than 2 entries" in left
    assert "smaller losses" in left
    assert "`Client` but for its seed" in left
    assert sampled.samples == reports_drawn(task, 13_000) == 2 * (13_000 // 3) * sampled.pairs
    alone = audit(task, samples=13_000, exact=False)
    assert "not enumerated" in alone.scope().split("Not excluded")[1]
    broken = Audit((exact, Finding("sampled", 1.0, 0.0, 2.0, 0.9, 10, 1, "a pair")))
    assert broken.refuted
    assert broken.scope().startswith("Excluded: nothing. ")


def test_what_cannot_be_enumerated_is_sampled() -> None:
    task = task_for(GaussianNoise(epsilon=1, max_entries=1, size=3), 3)
    with refused("use the sampled audit"):
        exact_audit(task)
    found = audit(task, samples=13_000)
    assert [finding.kind for finding in found.findings] == ["sampled"]
    assert "too many outcomes" in found.scope().split("Not excluded")[1]
    assert not found.refuted


@pytest.mark.parametrize(
    "wrong", [{"samples": 999}, {"confidence": 0.0}, {"confidence": 1.0}, {"confidence": math.nan}]
)
def test_bad_input(wrong: dict[str, Any]) -> None:
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=1))
    with refused(next(iter(wrong))):
        sampled_audit(task, **wrong)
