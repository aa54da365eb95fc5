"""The sampled audit: a lower bound on a task's loss at real size, and what the claim rests on besides.

Reports are drawn, by the code that ships, for pairs of neighbours that are easy to tell apart, with the public seed
held fixed so that nothing hides in the choice of hash function, and once with fresh seeds. `hubbub.checks.events`
learns an event on one half of them and counts it on the other. A lower bound above the claim refutes it; one below
proves nothing, but shows how much of the claim is used.

More is tested, because the proofs take it for granted: that a mechanism that cannot be enumerated loses no more than
it says where a loss is easy to see (a larger delta, few keys); that the seed in a report does not depend on the record;
that reports of a `Client`, one by one, lose no more than others; that coins are not used twice; that the coins of
single reports have the laws that they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hubbub.checks.dependence import client_reports, dependent_clients, dependent_seeds, seed_is_tested
from hubbub.checks.effort import affordable_samples, affordable_tests
from hubbub.checks.events import Match, Verdict, judge
from hubbub.checks.exact import FixedSeeds, leaves_of
from hubbub.checks.finding import TELLING, Finding
from hubbub.checks.flips import biased_coins
from hubbub.checks.pairs import Test, hash_is_delta, narrow_task, planned_tests, telling_pairs
from hubbub.checks.reports import described
from hubbub.checks.reuse import batch_sizes, repeated_coins
from hubbub.checks.worlds import Plain, small_task
from hubbub.model.guarantee import Guarantee
from hubbub.primitives.coins import Coins, SecretCoins, SeedSource, SystemSeeds
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

#: Outcomes of a record that are few enough to be enumerated.
_FEW_LEAVES = 10_000
#: Samples for the loss of a loud sibling, at least.
_LOUD_SAMPLES = 30_000
#: Batches that it must be able to afford.
_LOUD_TESTS = 50
#: How often samples are shuffled to see how much events differ.
_SHUFFLES = 4


def reports_drawn(task: Task, samples: int | None = None, seeds: int = 3) -> int:
    """How many reports the lower bound of `sampled_audit` is made from."""
    narrow, _ = narrow_task(task)
    tests = planned_tests(narrow, seeds)
    return 2 * _share(affordable_samples(narrow) if samples is None else samples, tests) * len(tests)


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

    A sound mechanism is refuted with probability at most 1 - confidence: half of that for the loss, an eighth for its
    loud sibling, three sixteenths for clients, and a sixteenth each for the seed, for coins that are used twice and
    for biased ones.
    """
    if not 0 < confidence < 1:
        raise Refused(f"The confidence must be between 0 and 1, not {confidence:g}.")
    if samples < 1000:
        raise Refused("At least 1000 samples are needed.")
    task, narrowed = narrow_task(task)
    claim, odds = task.guarantee, 1 - confidence
    tests = planned_tests(task, seeds)
    matches = drawn_matches(task, tests, _share(samples, tests), coins, public, progress)
    verdict = judge(matches, claim.delta)
    objections = [
        *_loud_sibling(task, max(samples // 2, _LOUD_SAMPLES), coins, public, odds / 8),
        *dependent_seeds(task, samples, coins, public, odds / 16),
        *dependent_clients(task, samples, public, 3 * odds / 16),
        *repeated_coins(task, coins(), odds / 16),
        *biased_coins(task, samples, odds / 16),
    ]
    found = verdict.lower_bound(odds / 2, claim.delta)
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
        smallest_excess=None if found > claim.epsilon else stated_excess(matches, verdict, claim, odds / 2),
        tested=tuple(_tested(task, samples)),
        not_tested=tuple(_not_tested(task, samples, narrowed)),
        narrowed=narrowed,
    )


def stated_excess(matches: Sequence[Match], verdict: Verdict, claim: Guarantee, odds: float) -> float | None:
    """The smallest excess that would have been found with probability 0.95; None if nothing can be said.

    How good an event is found in other samples is no theorem. So the samples are shuffled a few times and events
    learned anew: all have to show most of the claim, and what is stated is the largest excess among them and as much
    again as they lie apart. `benchmarks/audits.py power` measures how often it is found.
    """
    found: list[float] = []
    for seed in range(1 + _SHUFFLES):
        seen = judge([match.shuffled(seed) for match in matches], claim.delta) if seed else verdict
        excess = seen.smallest_excess(claim.epsilon, odds, claim.delta)
        if excess is None or seen.lower_bound(odds, claim.delta) < TELLING * claim.epsilon:
            return None
        found.append(excess)
    return 2 * max(found) - min(found)


def _tested(task: Task, samples: int) -> Iterator[str]:
    """What is looked at besides the loss."""
    if (small := loud_sibling(task)) is not None:
        yield f"a loss of the same mechanism with {small.keys.count} keys and delta = {small.guarantee.delta:g}"
    if seed_is_tested(task):
        yield "a seed that depends on the record"
    if batch_sizes(task):
        yield "coins that are used twice"
    if client_reports(task, samples):
        yield "a gross loss in reports of `Client`"
    yield "biased coins of single reports"


def _not_tested(task: Task, samples: int, narrowed: str) -> Iterator[str]:
    """What would take too long for reports of this size, or is not looked at."""
    if narrowed:
        yield f"what only reports of real length show (sampled with {narrowed})"
    elif not affordable_tests(task):
        yield "reports of this length (too long to be sampled in seconds)"
    if hash_is_delta(task):
        yield "the share of bad hash functions that delta stands for"
    if task.mechanism.layout.fields[0].limit > 1 and not seed_is_tested(task):
        several = task.mechanism.seeds_per_report > 1  # one of which is chosen by what the record has
        yield "seeds drawn by the record" if several else "a seed that depends on the record"
    if not batch_sizes(task):
        yield "coins that are used twice"
    yield "small faults of `Client` alone" if client_reports(task, samples) else "faults of `Client` alone"


# The loss


def judge_task(
    task: Task,
    tests: Sequence[Test],
    samples: int,
    coins: Callable[[], Coins],
    public: Callable[[], SeedSource],
) -> Verdict:
    """Sample both records of every test, learn an event, and count it."""
    return judge(drawn_matches(task, tests, samples, coins, public), task.guarantee.delta)


def drawn_matches(
    task: Task,
    tests: Sequence[Test],
    samples: int,
    coins: Callable[[], Coins],
    public: Callable[[], SeedSource],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Match]:
    """Samples of both records of every test."""
    matches = []
    for name, pair, seed in tests:
        matches.append(_match(task, name, pair, samples, seed, coins, public))
        progress(2 * samples)
    return matches


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
        sides.append(described(task, record, samples, seeds, coins(), differing))
    return Match(name, tuple(zip(*sides, strict=True)))


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
