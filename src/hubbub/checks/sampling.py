"""The sampled audit: a lower bound on a task's loss at real size, and what the claim rests on besides.

Reports are drawn, by the code that ships, for pairs of neighbours that are easy to tell apart, with the public seed
held fixed so that nothing hides in the choice of hash function, and once with fresh seeds. `hubbub.checks.events`
learns an event on one half of them and counts it on the other. A lower bound above the claim refutes it; one below
proves nothing, but shows how much of the claim is used.

Three more things are tested, because the proofs take them for granted: that a mechanism that cannot be enumerated
loses no more than it says where a loss is easy to see (a larger delta, few keys); that the seed in a report does not
depend on the record, through `privatize` and through `Client`; that coins are not used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hubbub.checks.effort import affordable_reports, affordable_samples, affordable_tests
from hubbub.checks.events import Match, Verdict, judge
from hubbub.checks.exact import FixedSeeds, leaves_of
from hubbub.checks.finding import Finding
from hubbub.checks.reuse import batch_sizes, repeated_coins
from hubbub.checks.worlds import Plain, ends, full_records, small_task
from hubbub.device.client import Client, encode_record, privatize
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.hashing import hash_entries
from hubbub.model.record import Entries
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins, SecretCoins, SeedSource, SystemSeeds
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: What is tested: a name, two neighbours, and the public seed that is held fixed (None: fresh ones).
Test = tuple[str, tuple[Plain, Plain], int | None]

#: Reports with more fields than this are described by what they say about the keys that differ.
_MOST_FIELDS = 256
#: Keys that are asked for then, and where asking means hashing.
_MOST_ASKED, _MOST_HASHED = 64, 16
#: Numbers that are drawn at a time.
_CHUNK = 1 << 22
#: Outcomes of a record that are few enough to be enumerated.
_FEW_LEAVES = 10_000
#: Samples for the loss of a loud sibling, at least.
_LOUD_SAMPLES = 30_000
#: Batches that it must be able to afford.
_LOUD_TESTS = 50
#: The share of a claim that an event must show before anything is said about its power.
_TELLING = 0.8
#: Reports of a `Client`, which are made one by one, per record; fewer than the latter would show nothing.
_CLIENT_REPORTS, _FEWEST_CLIENT_REPORTS = 1000, 250


def reports_drawn(task: Task, samples: int | None = None, seeds: int = 3) -> int:
    """How many reports the lower bound of `sampled_audit` is made from."""
    tests = planned_tests(task, seeds)
    return 2 * _share(affordable_samples(task) if samples is None else samples, tests) * len(tests)


def _share(samples: int, tests: Sequence[Test]) -> int:
    """Samples per record of a test: those of a pair are shared by the fixed seeds."""
    return samples // max(1, len({seed for _, _, seed in tests if seed is not None}))


def sampled_audit(
    task: Task,
    samples: int = 200_000,
    confidence: float = 1 - 1e-6,
    seeds: int = 3,
    coins: Callable[[], Coins] = SecretCoins,
    progress: Callable[[int], None] = lambda done: None,
    public: Callable[[], SeedSource] = SystemSeeds,
) -> Finding:
    """A lower bound on epsilon from sampled reports; `samples` for each record of a pair, shared by the fixed seeds.

    A sound mechanism is refuted with probability at most 1 - confidence: half of that for the loss, and an eighth
    each for its loud sibling, for the seed (twice) and for the coins.
    """
    if not 0 < confidence < 1:
        raise Refused(f"The confidence must be between 0 and 1, not {confidence:g}.")
    if samples < 1000:
        raise Refused("At least 1000 samples are needed.")
    claim, odds = task.guarantee, 1 - confidence
    tests = planned_tests(task, seeds)
    verdict = judge_task(task, tests, _share(samples, tests), coins, public, progress)
    objections = [
        *_loud_sibling(task, max(samples // 2, _LOUD_SAMPLES), coins, public, odds / 8),
        *_dependent_seeds(task, samples, coins, public, odds / 8),
        *repeated_coins(task, coins(), odds / 8),
    ]
    found = verdict.lower_bound(odds / 2, claim.delta)
    # An event that shows little of the claim says little about what others would have shown.
    excess = verdict.smallest_excess(claim.epsilon, odds / 2, claim.delta)
    return Finding(
        "sampled",
        claim.epsilon,
        claim.delta,
        found,
        confidence,
        2 * _share(samples, tests) * len(tests),
        len(tests),
        verdict.name,
        objections=tuple(objections),
        smallest_excess=excess if found >= _TELLING * claim.epsilon else None,
        tested=tuple(_tested(task)),
        not_tested=tuple(_not_tested(task)),
    )


def seed_is_tested(task: Task) -> bool:
    """Whether a report has one seed that nobody chose, and reports are short enough to look at many."""
    layout = task.mechanism.layout
    return layout.fields[0].limit > 1 and task.mechanism.seeds_per_report == 1 and affordable_tests(task) > 1


def _tested(task: Task) -> Iterator[str]:
    """What is looked at besides the loss."""
    if (small := loud_sibling(task)) is not None:
        yield f"a loss of the same mechanism with {small.keys.count} keys and delta = {small.guarantee.delta:g}"
    if seed_is_tested(task):
        yield "a seed that depends on the record"
    if batch_sizes(task):
        yield "coins that are used for two batches or two neighbours"


def _not_tested(task: Task) -> Iterator[str]:
    """What would take too long for reports of this size, or is not looked at."""
    if not affordable_tests(task):
        yield "reports of this length (too long to be sampled in seconds)"
    if hash_is_delta(task):
        yield "the share of bad hash functions that delta stands for"
    if task.mechanism.layout.fields[0].limit > 1:
        if task.mechanism.seeds_per_report > 1 or not seed_is_tested(task):
            yield "a seed that depends on the record"
        elif not client_reports(task):
            yield "a seed that depends on the record in `Client` only"
    if not batch_sizes(task):
        yield "coins that are used twice"
    yield "samplers of single reports, and `Client` but for its seed"


def hash_is_delta(task: Task) -> bool:
    """Whether delta is the probability of a bad hash function: then nothing is promised for a seed that is given."""
    return task.guarantee.delta > 0 and isinstance(task.mechanism, Hashed)


# The loss


def judge_task(
    task: Task,
    tests: Sequence[Test],
    samples: int,
    coins: Callable[[], Coins],
    public: Callable[[], SeedSource],
    progress: Callable[[int], None] = lambda done: None,
) -> Verdict:
    """Sample both records of every test, learn an event, and count it."""
    matches = []
    for name, pair, seed in tests:
        matches.append(_match(task, name, pair, samples, seed, coins, public))
        progress(2 * samples)
    return judge(matches, task.guarantee.delta)


def planned_tests(task: Task, seeds: int) -> list[Test]:
    """Every pair under each of the fixed seeds, and the first one under fresh seeds (None), too; if there are seeds."""
    tests: list[Test] = []
    seeded = task.mechanism.layout.fields[0].limit > 1
    if hash_is_delta(task):
        tests = [(f"{name}, fresh seeds", (one, two), None) for name, one, two in telling_pairs(task, 0)]
        return tests[: affordable_tests(task)]
    if affordable_tests(task) < 3:
        seeds = 1
    for first in range(seeds if seeded else 1):
        for name, one, two in telling_pairs(task, first):
            if seeded and not tests:
                tests.append((f"{name}, fresh seeds", (one, two), None))
            tests.append((f"{name}, public seed {first}", (one, two), first))
    return tests[: affordable_tests(task)]


def _match(
    task: Task,
    name: str,
    pair: tuple[Plain, Plain],
    samples: int,
    seed: int | None,
    coins: Callable[[], Coins],
    public: Callable[[], SeedSource],
) -> Match:
    """Samples of both records of a pair, under a fixed seed or under fresh ones."""
    one, two = pair
    differing = task.keys.ids_of([key for key in {**one, **two} if one.get(key) != two.get(key)])
    sides = []
    for record in pair:
        seeds = public() if seed is None else FixedSeeds(seed, task.mechanism.seeds_per_report)
        sides.append(_described(task, record, samples, seeds, coins(), differing))
    return Match(name, tuple(zip(*sides, strict=True)))


def _described(
    task: Task, record: Plain, samples: int, seeds: SeedSource, coins: Coins, differing: UInt64s
) -> list[Int64s]:
    """Reports of a record as columns of numbers: their fields, and what they say about the keys that differ."""
    step = max(BULK, _CHUNK // len(task.mechanism.layout.fields))  # fewer would be interpreted
    asking = not isinstance(task.mechanism, Hashed) or not isinstance(seeds, FixedSeeds)
    parts = [
        _views(task, sample(task, record, min(step, samples - start), seeds, coins), differing, asking)
        for start in range(0, samples, step)
    ]
    return [np.concatenate(view) for view in zip(*parts, strict=True)]


def sample(task: Task, record: Plain, samples: int, seeds: SeedSource, coins: Coins) -> UInt64s:
    """Reports of one record, as numbers."""
    entries, _ = encode_record(task, record)
    length = len(entries.ids)
    many = Entries(
        np.tile(entries.ids, samples),
        np.tile(entries.values, samples),
        np.arange(samples + 1, dtype=np.int64) * length,
    )
    packed, _ = privatize(task, many, coins, seeds)
    return task.mechanism.layout.unpack(packed)


def _views(task: Task, reports: UInt64s, differing: UInt64s, asking: bool) -> list[Int64s]:
    """Under a fixed seed the fields of a hashed report say all there is to say; otherwise it is asked about keys."""
    mechanism = task.mechanism
    views = []
    if len(mechanism.layout.fields) <= _MOST_FIELDS:
        views.append(reports.astype(np.int64))
    asked = differing[: _MOST_HASHED if isinstance(mechanism, Hashed) else _MOST_ASKED]
    if len(asked) and (asking or not views):
        try:
            said = [mechanism.scores(task.keys, reports, asked[i : i + 1]) for i in range(len(asked))]
            views.append(np.stack(said, axis=1))
        except Refused:
            if not views:
                raise
    return views


def telling_pairs(task: Task, seed: int) -> Iterator[tuple[str, Plain, Plain]]:
    """Neighbouring records that are easy to tell apart for somebody who knows the hash function of `seed`."""
    top, bottom = ends(task)
    choices = list(full_records(task, seed))
    _, first, second = choices[0]
    full = dict.fromkeys(first, top)
    unit, signed = task.guarantee.unit, task.scale.kind != "set"
    if unit == "record":
        for name, one, two in choices:
            if two:
                yield f"full records, {name}", dict.fromkeys(one, top), dict.fromkeys(two, top)
        yield "a full record against an empty one", full, {}
        if signed:
            yield "the same keys with opposite values", full, dict.fromkeys(first, bottom)
    elif unit == "entry":
        yield "one key, there or not", {first[0]: top}, {}
        if len(first) > 1:
            yield "a full record without its first key", full, dict.fromkeys(first[1:], top)
        if signed:
            yield "one value from end to end", full, {**full, first[0]: bottom}
        if task.mechanism.limits_entries and second:
            yield "a record that is too long by one key", {second[0]: top, **full}, full
    else:
        yield from _as_far_as_protected(task, choices[-1][1], first)


def _as_far_as_protected(
    task: Task, together: Sequence[str], apart: Sequence[str]
) -> Iterator[tuple[str, Plain, Plain]]:
    """Unit l1: keys that share a bucket as far as possible, and keys that do not."""
    reach, (top, bottom) = float(task.guarantee.distance or 0), ends(task)
    if task.scale.kind == "set":
        for name, keys in (("in one bucket", together), ("in several buckets", apart)):
            yield f"as many keys as are protected, {name}", dict.fromkeys(keys[: int(reach)], 1.0), {}
        return
    far = max(top, bottom, key=abs)
    count = max(1, min(int(reach / abs(far)), len(together)))
    for name, keys in (
        ("as far from nothing as is protected", together[:count]),
        ("a little of every key", apart),
    ):
        yield name, dict.fromkeys(keys, far * min(1.0, reach / (len(keys) * abs(far)))), {}
    yield "one value moved as far as is protected", {apart[0]: bottom}, {apart[0]: min(top, bottom + reach)}


def loud_sibling(task: Task) -> Task | None:
    """The small instance of what cannot be enumerated; none where it can, or where sampling takes too long."""
    small = small_task(task, 4)
    if hash_is_delta(task) or affordable_tests(small) < _LOUD_TESTS:
        return None
    return None if leaves_of(small, {"0": 1.0}, 0, _FEW_LEAVES) <= _FEW_LEAVES else small


def _loud_sibling(
    task: Task, samples: int, coins: Callable[[], Coins], public: Callable[[], SeedSource], odds: float
) -> Iterator[str]:
    """The loss of the loud sibling, whose claim is easier to contradict."""
    small = loud_sibling(task)
    if small is None:
        return
    claim = small.guarantee
    tests = [(name, (one, two), 0) for name, one, two in telling_pairs(small, 0)]
    found = judge_task(small, tests, samples, coins, public).lower_bound(odds, claim.delta)
    if found > claim.epsilon:
        yield (
            f"with delta = {claim.delta:g} and {small.keys.count} keys the same mechanism promises epsilon = "
            f"{claim.epsilon:g} and loses at least {found:.4f}"
        )


# The seed


def _dependent_seeds(
    task: Task, samples: int, coins: Callable[[], Coins], public: Callable[[], SeedSource], odds: float
) -> Iterator[str]:
    """Whether the seed in a report is independent of the record (where a report has one seed to choose from).

    An event about the seed alone is learned on one half of the samples; on the other its frequencies for a full and
    for an empty record must have confidence intervals in common.
    """
    mechanism = task.mechanism
    if not seed_is_tested(task):
        return
    keys, top = next(iter(full_records(task, 0)))[1], ends(task)[0]
    ids = task.keys.ids_of(keys)
    records: tuple[Plain, Plain] = dict.fromkeys(keys, top), {}

    def seeds_of(record: Plain) -> UInt64s:
        return sample(task, record, max(samples // 2, BULK), public(), coins())[:, 0]

    def client_seeds_of(record: Plain) -> UInt64s:
        client = Client(task)
        packed = b"".join(client.report(record) for _ in range(client_reports(task)))
        return mechanism.layout.unpack(packed)[:, 0]

    for path, seen in (("privatize", seeds_of), ("Client", client_seeds_of)):
        if path == "Client" and not client_reports(task):
            continue
        one, two = (_seed_columns(task, seen(record), ids) for record in records)
        found = judge([Match(path, ((one, two),))]).lower_bound(odds)
        if found > 0:
            yield (
                f"the public seed depends on the record: through {path} it alone tells a full record from an empty "
                f"one with epsilon at least {found:.4f}, where it must be 0"
            )


def client_reports(task: Task) -> int:
    """Reports of a `Client` per record that can be afforded; 0 if too few to show anything."""
    reports = min(_CLIENT_REPORTS, affordable_reports(task, compiled=False) // 2)
    return reports if reports >= _FEWEST_CLIENT_REPORTS else 0


def _seed_columns(task: Task, seeds: UInt64s, ids: UInt64s) -> Int64s:
    """The bits of seeds, and how the record's keys fall under them: buckets in use, and the sum of signs."""
    mechanism = task.mechanism
    bits = np.arange(mechanism.layout.fields[0].bits, dtype=np.uint64)
    columns = [(seeds[:, None] >> bits & np.uint64(1)).astype(np.int64)]
    if isinstance(mechanism, Hashed | Compressive):
        asked = ids[:_MOST_HASHED]
        offsets = np.arange(len(seeds) + 1, dtype=np.int64) * len(asked)
        buckets = mechanism.buckets if isinstance(mechanism, Hashed) else 1
        bucket, sign = hash_entries(
            mechanism.family,
            task.keys,
            np.ascontiguousarray(seeds),
            np.tile(asked, len(seeds)),
            offsets,
            buckets,
        )
        ordered = np.sort(bucket.reshape(len(seeds), -1), axis=1)
        columns.append(1 + (np.diff(ordered, axis=1) > 0).sum(axis=1, keepdims=True))
        columns.append(sign.reshape(len(seeds), -1).sum(axis=1, keepdims=True))
    return np.concatenate(columns, axis=1)
