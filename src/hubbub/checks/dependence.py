"""What must not depend on the record: the public seed; and reports of a `Client`, one by one, as devices make them.

Reports of a client have seeds and coins that nobody else draws: `SystemSeeds` and `SecretCoins`, flip by flip.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np

from hubbub.checks.effort import affordable_reports, affordable_tests
from hubbub.checks.events import Match, judge, judge_bits
from hubbub.checks.pairs import telling_pairs
from hubbub.checks.reports import sample, views
from hubbub.checks.reuse import agreeing_lag
from hubbub.checks.worlds import Plain, TellingKeys, ends, full_records
from hubbub.device.client import Client
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.hashing import hash_entries
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins, SeedSource
from hubbub.primitives.kernel import BULK
from hubbub.protocol.task import Task

#: Keys of two records whose fall under a seed is looked at.
_MOST_HASHED = 16
#: Reports of a `Client`, which are made one by one, per record; fewer than the latter would show nothing. How many
#: samples of other reports there are for one of these.
_CLIENT_REPORTS, _FEWEST_CLIENT_REPORTS, _SAMPLES_PER_CLIENT_REPORT = 1000, 250, 100
#: Records whose reports a `Client` makes.
_CLIENT_RECORDS = 4

#: Bits of a report that are looked at one by one.
_MOST_BITS = 256

#: A pair of records by name.
Pair = tuple[str, Plain, Plain]


def seed_is_tested(task: Task) -> bool:
    """Whether a report has one seed that nobody chose, and reports are short enough to look at many."""
    layout = task.mechanism.layout
    return layout.fields[0].limit > 1 and task.mechanism.seeds_per_report == 1 and affordable_tests(task) > 1


def client_reports(task: Task, samples: int) -> int:
    """Reports of a `Client` per record that can be afforded; 0 if too few to show anything."""
    affordable = affordable_reports(task, compiled=False) // _CLIENT_RECORDS
    reports = min(
        _CLIENT_REPORTS, max(samples // _SAMPLES_PER_CLIENT_REPORT, _FEWEST_CLIENT_REPORTS), affordable
    )
    return reports if reports >= _FEWEST_CLIENT_REPORTS else 0


def contrasts(task: Task, draws: UInt64s) -> list[Pair]:
    """Records that a seed might follow: empty and full ones, both ends of the vocabulary, both ends of the values.

    The last pair is random, a function of `draws`: keys and values of neither are known before.
    """
    top, bottom = ends(task)
    names = TellingKeys(task, 0).names
    keys = next(iter(full_records(task, 0)))[1]
    limit = len(keys)
    full, last = dict.fromkeys(keys, top), dict.fromkeys(names[-limit:], top)
    rng = np.random.default_rng(draws.tolist())
    random: list[Plain] = []
    for _ in range(2):
        chosen = rng.choice(len(names), size=int(rng.integers(1, limit + 1)), replace=False)
        signed = task.scale.kind != "set"
        values = rng.uniform(bottom, top, len(chosen)) if signed else np.ones(len(chosen))
        random.append({names[place]: float(value) for place, value in zip(chosen, values, strict=True)})
    found: list[Pair] = [
        ("a full record from an empty one", full, {}),
        ("a random record from another", random[0], random[1]),
        ("full records at the ends of the vocabulary", dict.fromkeys(names[:limit], top), last),
        ("the first key from the last", {names[0]: top}, {names[-1]: top}),
    ]
    if task.scale.kind != "set":
        found.append(("high values from low ones", full, dict.fromkeys(keys, bottom)))
    return [(name, one, two) for name, one, two in found if one != two]


def dependent_seeds(
    task: Task, samples: int, coins: Callable[[], Coins], public: Callable[[], SeedSource], odds: float
) -> Iterator[str]:
    """Whether the seed in a report depends on the record (where a report has one seed to choose from).

    Events about the seed alone are learned on one half of the samples; on the other their frequencies for two records
    must have confidence intervals in common.
    """
    if not seed_is_tested(task):
        return
    drawn = max(samples // 8, BULK)
    matches = []
    for name, one, two in contrasts(task, public().draw(64, 2)):
        first, second = (sample(task, record, drawn, public(), coins())[:, 0] for record in (one, two))
        matches.append(_seed_match(task, name, one, two, first, second))
    yield from _objection("privatize", matches, odds)


def dependent_clients(
    task: Task, samples: int, public: Callable[[], SeedSource], odds: float
) -> Iterator[str]:
    """Reports of a `Client`: their seeds, whole reports of two neighbours, and coins that come back.

    Each third of `odds` for one of them. Coins are looked for in the reports of the empty record, without their seeds,
    which are fresh: what it says is noise and nothing else.
    """
    count = client_reports(task, samples)
    if not count:
        return

    def nonce() -> tuple[str, ...]:
        """Whatever a collector might hand out, for tasks whose seeds come from there."""
        return (secrets.token_hex(16),) if task.seed_from == "server" else ()

    def reports_of(record: Plain) -> UInt64s:
        client = Client(task)
        return task.mechanism.layout.unpack(b"".join(client.report(record, *nonce()) for _ in range(count)))

    name, one, two = next(iter(telling_pairs(task, 0)))
    drawn = [reports_of(record) for record in (one, two)]
    empty = drawn[1] if not two else reports_of({})
    claim = task.guarantee
    differing = task.keys.ids_of([key for key in {**one, **two} if one.get(key) != two.get(key)])
    match = Match(name, tuple(zip(*(views(task, side, differing, True) for side in drawn), strict=True)))
    verdicts = [judge([match], claim.delta)]
    if claim.unit == "record" and task.mechanism.layout.bits <= _MOST_BITS:
        full, none = (_bits_of_reports(task, side) for side in (drawn[0], empty))
        verdicts.append(judge_bits("a full record against an empty one", full, none, claim.delta))
    for verdict in verdicts:
        found = verdict.lower_bound(odds / 3 / len(verdicts), claim.delta)
        if found > claim.epsilon:
            claimed = f"where epsilon = {claim.epsilon:g} is claimed ({verdict.name})"
            yield f"reports of `Client` lose at least {found:.4f}, {claimed}"
    if (lag := agreeing_lag(empty[:, 1:], [], odds / 3)) is not None:
        yield f"coins are used twice: reports {lag} apart of a `Client` agree more often than by chance"
    if not seed_is_tested(task):
        return
    matches = [_seed_match(task, name, one, two, drawn[0][:, 0], drawn[1][:, 0])]
    for other_name, other, _ in contrasts(task, public().draw(64, 2))[:2]:
        seeds = drawn[0] if other == one else reports_of(other)
        matches.append(_seed_match(task, other_name, other, {}, seeds[:, 0], empty[:, 0]))
    yield from _objection("Client", matches, odds / 3)


def _objection(path: str, matches: list[Match], odds: float) -> Iterator[str]:
    verdict = judge(matches)
    found = verdict.lower_bound(odds)
    if found > 0:
        yield (
            f"the public seed depends on the record: through {path} it alone tells {verdict.name} with epsilon at "
            f"least {found:.4f}, where it must be 0"
        )


def _seed_match(task: Task, name: str, one: Plain, two: Plain, first: UInt64s, second: UInt64s) -> Match:
    """The seeds of two records by their bits, and by how the keys of each record fall under them."""
    ids = [task.keys.ids_of(list(record))[:_MOST_HASHED] for record in (one, two)]
    sides = [
        np.concatenate([_bits(task, seeds), *(_falls(task, seeds, each) for each in ids)], axis=1)
        for seeds in (first, second)
    ]
    return Match(name, ((sides[0], sides[1]),))


def _bits_of_reports(task: Task, reports: UInt64s) -> Int64s:
    """Every bit of every report, seed and all: a client that makes reports until one pleases it changes the law of a
    bit, where no field by itself shows that in a few hundred reports."""
    layout = task.mechanism.layout
    return np.unpackbits(layout.pack(reports), axis=1, count=layout.bits, bitorder="little").astype(np.int64)


def _bits(task: Task, seeds: UInt64s) -> Int64s:
    bits = np.arange(task.mechanism.layout.fields[0].bits, dtype=np.uint64)
    return (seeds[:, None] >> bits & np.uint64(1)).astype(np.int64)


def _falls(task: Task, seeds: UInt64s, ids: UInt64s) -> Int64s:
    """How keys fall under seeds: buckets in use, the bucket of the first one, and the sum of signs."""
    mechanism = task.mechanism
    if not isinstance(mechanism, Hashed | Compressive) or not len(ids):
        return np.zeros((len(seeds), 0), dtype=np.int64)
    offsets = np.arange(len(seeds) + 1, dtype=np.int64) * len(ids)
    buckets = mechanism.buckets if isinstance(mechanism, Hashed) else 1
    bucket, sign = (
        part.reshape(len(seeds), -1)
        for part in hash_entries(
            mechanism.family,
            task.keys,
            np.ascontiguousarray(seeds),
            np.tile(ids, len(seeds)),
            offsets,
            buckets,
        )
    )
    used = 1 + (np.diff(np.sort(bucket, axis=1), axis=1) > 0).sum(axis=1)
    return np.stack([used, bucket[:, 0], sign.sum(axis=1)], axis=1).astype(np.int64)
