"""Noticing: honest crowds pass whatever their records are, careless forgers do not, and the odds are what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from helpers import refused
from hubbub.checks.worlds import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.hashing import bucket_bits, seed_rows
from hubbub.model.record import GRID, Entries
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server import seed_tests
from hubbub.server.evidence import Evidence, telltales_of
from hubbub.server.fold import aggregate
from hubbub.server.forgeries import FALSE_ALARMS, Notice, notice, notice_state
from hubbub.server.seed_tests import shared_buckets
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import uniform_population, zipf_population
from hubbub.simulation.rehearsal import simulate

KEYS = 300
Packed = NDArray[np.uint8]


def a_task(name: str, entries: int = 8, **more: Any) -> Task:
    users = {"users": 100_000} if name in ("collision", "sketch_response", "coco") else {}
    return task_for(make_mechanism(name, epsilon=1.0, max_entries=entries, **users, **more), KEYS)


def noticed(task: Task, packed: Packed) -> Notice:
    evidence = Evidence(task)
    state = aggregate(task, packed, evidence=evidence)
    return notice(evidence, state)


def crowd(kind: str, users: int, entries: int, seed: int) -> Entries:
    """Zipf, uniform, everybody the same, nobody anything."""
    if kind == "zipf":
        return zipf_population(users, KEYS, seed, entries=entries, signed=False).entries
    if kind == "uniform":
        return uniform_population(users, KEYS, entries, seed).entries
    held = 0 if kind == "empty" else entries
    ids = np.tile(np.arange(held, dtype=np.uint64), users)
    offsets = np.arange(users + 1, dtype=np.int64) * held
    return Entries(ids, np.full(len(ids), GRID, dtype=np.int64), offsets)


# Honest crowds

HONEST = [
    a_task("collision"),
    a_task("sketch_response"),
    a_task("collision", family="prf"),
    a_task("hadamard", 1),
    a_task("freq_est", 1, size=KEYS),
    a_task("repeated", 4),
    a_task("compressive", 1),
    a_task("sparse_sum", noise="window"),
]


def test_false_alarms() -> None:
    """Eight mechanisms, four crowds, six collections each: at most so many alarms as happen once in a million times."""
    alarms = runs = 0
    for number, task in enumerate(HONEST):
        entries = task.mechanism.max_entries
        for kind in ("zipf", "uniform", "equal", "empty"):
            together = crowd(kind, 6 * 2000, entries, 7 * number)
            packed = simulate(task, together, 11 * number + 1).packed
            for part in np.split(packed, 6):
                found = noticed(task, part)
                assert found.findings
                alarms += found.noticed
                runs += 1
    limit = int(stats.binom.isf(1e-6, runs, FALSE_ALARMS))
    assert alarms <= limit
    assert limit < 0.1 * runs, "a test that is always failed would pass"


def test_sorted_reports_are_no_alarm() -> None:
    """Where reports are sorted, those that are kept are still a fair choice (a false alarm: 1 in 1,000)."""
    task = a_task("collision")
    packed = simulate(task, crowd("zipf", 300_000, 8, 3), 3).packed
    order = np.lexsort(packed.T[::-1])
    evidence = Evidence(task, 1 << 16)
    state = aggregate(task, packed[order], evidence=evidence)
    assert len(evidence.samples[""].kept) < evidence.reports
    assert not notice(evidence, state).noticed


# Forgers


def forged(task: Task, count: int, replacing: Callable[[NDArray[np.uint64]], None]) -> Notice:
    """What is noticed when the first reports of a crowd are changed."""
    packed = simulate(task, crowd("zipf", 100_000, task.mechanism.max_entries, 5), 5).packed
    reports = task.mechanism.layout.unpack(packed)
    replacing(reports[:count])
    return noticed(task, task.mechanism.layout.pack(reports))


def one_seed(reports: NDArray[np.uint64]) -> None:
    reports[:, 0] = 17


def counted_seeds(reports: NDArray[np.uint64]) -> None:
    reports[:, 0] = np.arange(len(reports))


def few_reports(reports: NDArray[np.uint64]) -> None:
    reports[:] = reports[np.arange(len(reports)) % 50]


def one_bucket(reports: NDArray[np.uint64]) -> None:
    reports[:, 1] = 5


def bucket_zero(reports: NDArray[np.uint64]) -> None:
    reports[:, 1] = 0


@pytest.mark.parametrize(
    ("name", "entries"), [("collision", 8), ("coco", 8), ("sampled", 8), ("local_hashing", 1)]
)
@pytest.mark.parametrize("replacing", [one_bucket, bucket_zero])
def test_forgers_who_name_one_bucket_are_noticed(
    name: str, entries: int, replacing: Callable[[NDArray[np.uint64]], None]
) -> None:
    """With fresh seeds: 3% of 100,000 reports."""
    more = {"values": "signed"} if name == "coco" else {}
    task = a_task(name, entries, **more)
    if int(task.mechanism.layout.fields[1].limit) <= 5:
        task = a_task(name, entries, buckets=8)
    found = forged(task, 3000, replacing)
    assert "buckets" in [test.test for test in found.suspicious]


def test_one_bucket_of_a_sketch_is_noticed() -> None:
    found = forged(a_task("sketch_response"), 3000, one_bucket)
    assert "buckets" in [test.test for test in found.suspicious]


@pytest.mark.parametrize("replacing", [one_seed, few_reports])
@pytest.mark.parametrize("name", ["collision", "sketch_response"])
def test_careless_forgers_are_noticed(name: str, replacing: Callable[[NDArray[np.uint64]], None]) -> None:
    assert forged(a_task(name), 1000, replacing).noticed


def test_seeds_that_are_counted_up_are_noticed() -> None:
    assert forged(a_task("collision", seed_bits=32), 1000, counted_seeds).noticed


def attacked(
    task: Task, attack: Any, targets: list[int], forgers: int = 1000, users: int = 100_000
) -> Notice:
    packed = simulate(task, crowd("zipf", users, task.mechanism.max_entries, 5), 5).packed
    packed[:forgers] = forge(task, forgers, attack, targets, seed=9)
    return noticed(task, packed)


@pytest.mark.parametrize("name", ["collision", "sketch_response"])
def test_forgers_who_look_for_seeds_are_noticed(name: str) -> None:
    """1% of 100,000 reports, for three keys and for ten."""
    for targets in ([250, 251, 252], list(range(250, 260))):
        found = attacked(a_task(name), "maximal", targets)
        assert found.noticed
        assert found.suspicious
        assert "not those of an honest crowd" in found.words()


@pytest.mark.parametrize(
    ("name", "more", "targets"),
    [
        ("collision", {"family": "prf"}, [250, 251, 252]),
        ("collision", {"seed_bits": 32}, [250, 251]),
        ("repeated", {}, [250]),
    ],
)
def test_other_maximal_forgers_are_noticed(name: str, more: dict[str, Any], targets: list[int]) -> None:
    users = 100_000 if name == "collision" else 30_000
    assert attacked(a_task(name, **more), "maximal", targets, users // 100, users).noticed


def test_who_follows_the_protocol_is_not_noticed() -> None:
    """On invented records, and by one key with fresh seeds: it is honest reports' law (odds: 1 in 1,000 each)."""
    for attack, targets in (("input", [250]), ("random", []), ("maximal", [250])):
        found = attacked(a_task("collision"), attack, targets)
        assert not found.noticed
        assert "nothing noticed" in found.words()


def test_more_than_everybody_is_noticed_in_a_state() -> None:
    """3.5% forgers lift one key beyond a share of 1: the state alone shows it; 1% do not."""
    task = a_task("collision")
    packed = simulate(task, crowd("zipf", 100_000, 8, 5), 5).packed
    packed[:1000] = forge(task, 1000, "maximal", [250], seed=9)
    few = notice_state(task, aggregate(task, packed))
    assert few.from_state
    assert not few.noticed
    packed[:3500] = forge(task, 3500, "maximal", [250], seed=9)
    many = notice_state(task, aggregate(task, packed))
    assert many.noticed
    assert [found.test for found in many.suspicious] == ["possible_shares"]


# What is counted


def ordered(evidence: Evidence) -> NDArray[np.uint64]:
    kept = evidence.samples[""].kept
    return kept[np.lexsort(kept.T[::-1])]


def test_choices_add_up() -> None:
    """Lots in any order give the reports of one pass, and refused bytes change nothing."""
    task = a_task("sketch_response")
    packed = simulate(task, crowd("zipf", 5000, 8, 1), 1).packed
    whole, parts = Evidence(task), Evidence(task)
    aggregate(task, packed, evidence=whole)
    for part in (packed[3000:], packed[:1000], packed[1000:3000]):
        aggregate(task, part, evidence=parts)
    assert parts.reports == whole.reports == 5000
    assert np.array_equal(ordered(whole), ordered(parts))
    with pytest.raises(Refused):
        aggregate(task, packed.tobytes() + b"x", evidence=whole)
    with pytest.raises(Refused):
        aggregate(
            task, np.concatenate([packed, np.full((1, packed.shape[1]), 255, np.uint8)]), evidence=whole
        )
    assert whole.reports == 5000
    with refused("different tasks"):
        whole.merge(Evidence(a_task("collision")))


def test_the_choice_is_by_place_alone() -> None:
    """The same reports at the same places, packed or not, in lots of any size: one choice of them."""
    task = a_task("collision")
    layout = task.mechanism.layout
    rng = np.random.default_rng(3)
    columns = [rng.integers(0, field.limit, 700_000, dtype=np.uint64) for field in layout.fields]
    numbers = np.stack(columns, axis=1)
    packed = layout.pack(numbers)
    found = []
    for sizes in ([700_000], [1000, 99_000, 250_000, 50_000, 300_000]):
        plain, wrapped, begin = Evidence(task), Evidence(task), 0
        for size in sizes:
            plain.add(numbers[begin : begin + size])
            wrapped.add_packed(packed[begin : begin + size], start=begin)
            begin += size
        found += [ordered(plain), ordered(wrapped)]
        assert plain.samples[""].stride == 2
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert 345_000 < len(found[0]) < 355_000
    half, rest = Evidence(task), Evidence(task)
    half.add(numbers[: 5 << 16])
    rest.add(numbers[5 << 16 :])
    half.merge(rest)
    assert np.array_equal(ordered(half), found[0])


def test_memory_does_not_grow_with_reports() -> None:
    """Few are kept, and what is read off them does not depend on how many there were."""
    task = a_task("collision")
    evidence = Evidence(task)
    rng = np.random.default_rng(2)
    for _ in range(4):
        columns = [
            rng.integers(0, field.limit, 200_000, dtype=np.uint64) for field in task.mechanism.layout.fields
        ]
        evidence.add(np.stack(columns, axis=1))
    assert evidence.reports == 800_000
    assert 390_000 < len(evidence.samples[""].kept) <= 524_288
    assert not notice(evidence).noticed


@pytest.mark.parametrize("name", ["hadamard", "harmony", "privkv", "pckv_grr"])
def test_states_count_what_reports_say(name: str) -> None:
    """Where a state has a telltale's counts, they are those of the reports; forgers are then noticed in it."""
    entries = 1 if name == "hadamard" else 4
    more = {} if name == "hadamard" else {"size": KEYS, "values": "signed"}
    task = a_task(name, entries, **more)
    values = zipf_population(20_000, KEYS, 3, entries=entries, signed=name != "hadamard").entries
    packed = simulate(task, values, 4).packed
    state, reports = aggregate(task, packed), task.mechanism.layout.unpack(packed)
    for telltale in telltales_of(task):
        assert telltale.of_state is not None
        counts = np.bincount(telltale.read(reports), minlength=telltale.cells)
        assert np.array_equal(telltale.of_state(state), counts)
    assert not notice_state(task, state).noticed
    packed[:2000] = forge(task, 2000, "maximal", [250], seed=9)
    found = notice_state(task, aggregate(task, packed))
    assert found.from_state
    assert found.noticed is (name != "hadamard")


def test_nothing_to_test() -> None:
    """No reports at all, and a state without anything to compare."""
    task = a_task("sparse_sum")
    assert not notice(Evidence(task)).noticed
    said = notice_state(task, aggregate(task, b""))
    assert said.odds == 1.0
    assert "nothing can be tested" in said.words()


def test_one_key_where_half_of_the_candidates_are_favoured() -> None:
    """Which bucket is named tells nothing of records, so 3% of forged reports for one key are seen (9 deviations).

    Four honest crowds are not: each has odds below 2e-7 less often than that, in all 8e-7. Others have no such test.
    """
    mechanism = make_mechanism("sketch_response", epsilon=0.3, max_entries=16, values="signed")
    task = task_for(mechanism, KEYS)
    assert (mechanism.favoured, mechanism.buckets, mechanism.seeds_per_report) == (2, 2, 1)  # type: ignore[attr-defined]

    def odds(packed: Packed) -> float:
        return next(found.odds for found in noticed(task, packed).findings if found.test == "named_keys")

    for kind in ("zipf", "uniform", "equal", "empty"):
        packed = simulate(task, crowd(kind, 100_000, 16, seed=5), 6).packed.copy()
        assert odds(packed) > 2e-7
        packed[:3000] = forge(task, 3000, "maximal", [250], seed=7)
        assert odds(packed) < 1e-9
    usual = a_task("sketch_response", values="signed")
    packed = simulate(usual, crowd("zipf", 2000, 8, seed=5), 6).packed
    assert "named_keys" not in {found.test for found in noticed(usual, packed).findings}


def test_pairs_that_share_a_bucket_are_counted() -> None:
    """Against hashing every pair one by one."""
    task = a_task("collision")
    mechanism, keys = task.mechanism, task.keys
    seeds = np.arange(500, dtype=np.uint64)
    rows = seed_rows(keys, seeds, bucket_bits(mechanism.buckets))[:, 1:].astype(np.int64)  # type: ignore[attr-defined]
    found = shared_buckets(mechanism, keys, rows)  # type: ignore[arg-type]
    ids = np.array([3, 77], dtype=np.uint64)
    codes = keys.codes(ids, 0)
    entries = Entries(np.tile(ids, 500), np.full(1000, GRID), np.arange(501) * 2)
    bucket, _ = mechanism.hash(keys, entries, seeds)  # type: ignore[attr-defined]
    together = int((bucket[::2] == bucket[1::2]).sum())
    assert found[int(codes[0] ^ codes[1]) - 1] == together > 0
    named = shared_buckets(mechanism, keys, rows, bucket=bucket[::2])  # type: ignore[arg-type]
    assert named[codes.astype(np.int64) - 1].tolist() == [500, together]


def test_signs_that_go_together_are_counted() -> None:
    """Against hashing two keys under every seed; forgers who look for such seeds are noticed."""
    task = a_task("sparse_sum")
    seeds = np.arange(1 << 16, dtype=np.uint64)
    ids = np.array([3, 77], dtype=np.uint64)
    entries = Entries(np.tile(ids, len(seeds)), np.full(2 * len(seeds), GRID), np.arange(len(seeds) + 1) * 2)
    _, sign = task.mechanism.hash(task.keys, entries, seeds)  # type: ignore[attr-defined]
    alike = int((sign[::2] == sign[1::2]).sum())
    codes = task.keys.codes(ids, 0)
    even = seed_tests._even(task.keys, seeds, np.ones(len(seeds), dtype=np.int64))[
        int(codes[0] ^ codes[1]) - 1
    ]
    assert alike in (even, len(seeds) - even)
    found = attacked(task, "maximal", [250, 251], 3000)
    assert "shared_signs" in [test.test for test in found.suspicious]


@pytest.mark.parametrize(("name", "entries"), [("freq_est", 1), ("pckv_ue", 4)])
def test_keys_that_are_named_together_are_noticed(name: str, entries: int) -> None:
    """Two keys in 3% of 100,000 reports about 24 keys; one key is not noticed, and cannot be."""
    more = {"values": "signed"} if name == "pckv_ue" else {}
    task = task_for(make_mechanism(name, epsilon=1.0, max_entries=entries, size=24, **more), 24)
    people = zipf_population(100_000, 24, 3, entries=entries, signed=bool(more)).entries
    honest = simulate(task, people, 4).packed
    assert not noticed(task, honest).noticed
    for targets in ([20], [20, 21]):
        packed = honest.copy()
        packed[:3000] = forge(task, 3000, "maximal", targets, seed=9)
        found = noticed(task, packed)
        assert found.noticed is (len(targets) > 1)
    assert [test.test for test in found.suspicious] == ["keys_together"]
