"""The audits pass every sound mechanism and show most of its budget; what they say about themselves is true."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from faults import SCALED, Fault, audited_by_sampling, audited_exactly, louder, repeatable_secrets

from helpers import refused
from hubbub.checks.audit import Audit, Finding, audit, exact_audit, sampled_audit
from hubbub.checks.conformance import are_neighbours, task_for
from hubbub.checks.dependence import contrasts, dependent_clients, dependent_seeds
from hubbub.checks.effort import affordable_tests
from hubbub.checks.events import Match, judge
from hubbub.checks.flips import biased_coins, questions_of
from hubbub.checks.pairs import edge_pairs, narrow_task, planned_tests, telling_pairs
from hubbub.checks.reuse import agreeing_lag, batch_sizes, repeated_coins
from hubbub.checks.sampling import drawn_matches, judge_task, reports_drawn, stated_excess
from hubbub.checks.worlds import neighbours_in
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
from hubbub.primitives.coins import InsecureCoins, SecretCoins, SimulatedSeeds
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
        for what, one, two in edge_pairs(task, seed):
            assert neighbours_in(task, one, two), what
            assert one != two
            values = {*one.values(), *two.values()}
            far = (
                task.scale.kind == "signed"
                and not task.scale.low <= min(values) <= max(values) <= task.scale.high
            )
            assert far or max(len(one), len(two)) > min(2 * mechanism.max_entries, task.keys.count - 1), what


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


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_stated_power_is_there(epsilon: float) -> None:
    """A loss larger by the stated excess is found with probability 0.95: 46 of 60 or more, or else with 1e-6."""
    sound, odds = Collision(epsilon=epsilon, max_entries=1), 1e-6

    def matches(mechanism: Mechanism, seed: int) -> list[Match]:
        task = task_for(mechanism, 8)
        return drawn_matches(task, planned_tests(task, 1), 2 * BULK, **sources(seed))

    drawn = matches(sound, 1)
    excess = stated_excess(drawn, judge(drawn), sound.guarantee(), odds)
    assert excess is not None
    assert 0.05 < excess < 0.4

    def caught(excess: float) -> int:
        faulty = louder(Collision, math.exp(excess * epsilon))(**sound.model_dump())
        bounds = (judge(matches(faulty, 1000 * run)).lower_bound(odds) for run in range(60))
        return sum(bound > epsilon for bound in bounds)

    assert caught(excess) >= 46
    # A fifth of the excess is mostly missed: the statement is not idle.
    assert caught(excess / 5) <= 12


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_no_power_is_stated_where_samples_are_too_few(epsilon: float) -> None:
    """A small claim does not show in a few thousand samples, and neither would a small excess over it."""
    finding = sampled_audit(task_for(Collision(epsilon=epsilon, max_entries=1), 8), 13_000, **sources(3))
    assert finding.smallest_excess is None
    assert "not known" in finding.words()
    assert "any excess at real size" in Audit((finding,)).scope().split("Not excluded")[1]


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
    assert not list(dependent_clients(task, 2000, sources(1)["public"], odds=1e-6))
    assert set(seen) == {1}
    assert len(seen) > 3 * 250


def test_sound_seeds_and_coins_pass() -> None:
    """False alarms: 1e-6 each."""
    task = task_for(CoCo(epsilon=1.0, max_entries=2), 40)
    with repeatable_secrets(5):
        assert not list(dependent_seeds(task, 20_000, **sources(2), odds=1e-6))
        assert not list(dependent_clients(task, 20_000, sources(3)["public"], odds=1e-6))
        assert not list(biased_coins(task, 40_000, odds=1e-6))


def test_seeds_are_compared_for_many_records() -> None:
    """Both ends of the vocabulary and of the values, and a pair that nobody knows before."""
    task = task_for(CoCo(epsilon=1.0, max_entries=2), 40)
    first, second = (contrasts(task, SimulatedSeeds(seed).draw(64, 2)) for seed in (1, 2))
    keys = {key for _, one, two in first for key in {**one, **two}}
    assert {"0", "39"} <= keys
    assert {1.0, -1.0} <= {value for _, one, two in first for value in {**one, **two}.values()}
    assert [name for name, *_ in first] == [name for name, *_ in second]
    differing = [name for (name, *pair), (_, *other) in zip(first, second, strict=True) if pair != other]
    assert differing == ["a random record from another"]


@pytest.mark.parametrize("lag", [1, 2, 512, 1024])
def test_repetitions_are_found_at_any_lag(lag: int) -> None:
    """Three in ten reports repeat the one a lag before; sound ones are called repeated with probability 1e-6."""
    rng = np.random.default_rng(lag)
    drawn = rng.integers(0, 4, (2048, 1))
    assert agreeing_lag(drawn, [], 1e-6) is None
    places = np.arange(len(drawn))
    copied = (places // lag % 2 == 1) & (rng.random(len(drawn)) < 0.6)
    drawn[copied] = drawn[places[copied] - lag]
    assert agreeing_lag(drawn, [], 1e-6) == lag


def test_the_coins_that_a_task_asks_for_are_flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are those of the randomizer, and an answer to them that is 30% too frequent is noticed."""
    task = task_for(Collision(epsilon=1.0, max_entries=2), 40)
    asked = [question for question in questions_of(task) if question[0] == "chance"]
    assert asked
    sound, weighed = SecretCoins.chance, asked[0][1]

    def eager(self: SecretCoins, numerator: int, denominator: int) -> bool:
        off = (numerator, denominator) == weighed
        return sound(self, numerator * 13 // 10 if off else numerator, denominator)

    with repeatable_secrets(1):
        monkeypatch.setattr(SecretCoins, "chance", eager)
        [objection] = biased_coins(task, 40_000, odds=1e-6)
    assert f"chance{weighed}" in objection


def test_reports_that_are_too_long_are_made_narrower() -> None:
    """The class and everything else are kept; what is said about it names the difference."""
    own = SCALED["sparse_sum, unit l1, rounded sums"](0.0).model_dump() | {"buckets": 4096}
    wide = task_for(louder(SparseSum, 1.0)(**own), 1000)
    narrow, what = narrow_task(wide)
    assert what == "8 buckets instead of 4,096"
    assert type(narrow.mechanism) is type(wide.mechanism)
    assert narrow.mechanism.model_dump(exclude={"buckets"}) == wide.mechanism.model_dump(exclude={"buckets"})
    assert affordable_tests(narrow) > affordable_tests(wide) == 0
    listed, what = narrow_task(task_for(GaussianNoise(epsilon=1, max_entries=64, size=4096), 4096))
    assert what == "128 keys instead of 4,096"
    assert listed.keys.count == listed.mechanism.size == 128  # type: ignore[attr-defined]
    short = task_for(Collision(epsilon=1, max_entries=2))
    assert narrow_task(short) == (short, "")
    finding = sampled_audit(wide, 2000, **sources(1))
    assert "with 8 buckets instead of 4,096" in finding.words()
    assert "what only reports of real length show" in Audit((finding,)).scope().split("Not excluded")[1]


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
    assert "small faults of `Client` alone" in left
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
