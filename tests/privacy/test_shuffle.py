"""The shuffle bound holds, is tight, is computed on the safe side, and refuses what it does not cover."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from enumerated import Law, divergence, exact_delta, favouring, shuffled_law, worst_divergences

from helpers import refused, small_task
from hubbub.checks.conformance import examples, task_for
from hubbub.checks.exact import law_of, small_records
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.privacy.bounds import lower_bound, published
from hubbub.privacy.shuffle import (
    Crowd,
    any_mechanism,
    crowd_of,
    response,
    response_weights,
    shuffled_guarantee,
    solve_local_epsilon,
)

E1 = favoured_weight(1.0)


def collision(epsilon: float, **parameters: Any) -> Mechanism:
    return make_mechanism("collision", epsilon=epsilon, **{"max_entries": 4, "family": "prf", **parameters})


# The bound is never below the truth: every victim, every record of the others


@pytest.mark.parametrize(("favoured", "outcomes"), [(1, 2), (1, 3), (1, 4), (2, 4), (2, 5)])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
def test_no_crowd_of_responses_exceeds_the_bound(favoured: int, outcomes: int, epsilon: float) -> None:
    """All favoured sets of this size, overlapping ones included, and mixtures of them (random ties)."""
    weight = favoured_weight(epsilon)
    sets = list(combinations(range(outcomes), favoured))
    laws = [favouring(chosen, outcomes, weight / UNIT) for chosen in sets]
    mixed = [{y: (laws[0][y] + law[y]) / 2 for y in law} for law in laws[1:3]]
    centrals = [0.0, 0.2 * epsilon, 0.6 * epsilon]
    for n in (2, 3):
        crowd = response(n, favoured, outcomes, weight, UNIT)
        for central, found in zip(centrals, worst_divergences(laws + mixed, n, centrals), strict=True):
            assert found <= crowd.delta(central)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("collision", {"max_entries": 1, "buckets": 3, "family": "prf"}),
        ("collision", {"max_entries": 2, "buckets": 4, "family": "walsh"}),
        ("collision", {"max_entries": 2, "buckets": 5, "family": "prf"}),
        ("coco", {"max_entries": 1, "buckets": 2, "family": "walsh"}),
        ("coco", {"max_entries": 2, "buckets": 3, "family": "prf"}),
        ("sketch_response", {"max_entries": 2, "buckets": 4, "seeds": 1, "family": "walsh"}),
    ],
)
def test_no_crowd_of_real_reports_exceeds_the_bound(name: str, parameters: dict[str, Any]) -> None:
    """Laws of the shipped code by enumeration: overlapping records, hash conflicts, short records, rounding."""
    task = small_task(name, 3, **parameters)
    values = (-1.0, 0.5) if task.mechanism.values == "signed" else (1.0,)
    records = list(small_records(["0", "1", "2"], values, task.mechanism.max_entries))
    weights = response_weights(task.mechanism)
    assert weights is not None
    found: list[Law] = []
    for seed in range(3):
        laws: list[Law] = []
        for record in records:
            law: Law = {report: float(p) for report, p in law_of(task, record, seed).items()}
            if law not in laws:
                laws.append(law)
        found = max(found, laws[:6], key=len)
    assert len(found) >= 3
    for epsilon, worst in zip((0.05, 0.5), worst_divergences(found, 3, (0.05, 0.5)), strict=True):
        assert worst <= response(3, *weights).delta(epsilon)


def test_reports_with_their_seeds_do_not_exceed_the_bound() -> None:
    """The mixture over public seeds, as the collector sees it."""
    task = small_task("collision", 3, max_entries=1, buckets=4, family="walsh")
    records = [{"0": 1.0}, {"1": 1.0}, {"2": 1.0}, {}]
    laws: list[Law] = [
        {(seed, *report): float(p) / 2 for seed in (5, 9) for report, p in law_of(task, record, seed).items()}
        for record in records
    ]
    bound = crowd_of(task.mechanism, 3).delta(0.3)
    assert 0.5 * bound < worst_divergences(laws, 3, [0.3])[0] <= bound


@pytest.mark.parametrize("times", [2, 3])
def test_a_report_that_is_in_its_crowd_twice_is_not_hidden_by_it(times: int) -> None:
    """Why a replayed report must not be sealed anew: four people, and the victim's report comes once or more often.

    Once, it is within the promise. The only report that is there again stands out: nearly all that it says by
    itself can be seen then, as if there were no crowd, and even a larger crowd's promise is far from it.
    """
    task = small_task("collision", 3, max_entries=1, buckets=4, family="walsh")
    laws: list[Law] = [
        {(seed, *report): float(p) / 2 for seed in (5, 9) for report, p in law_of(task, record, seed).items()}
        for record in ({"0": 1.0}, {"1": 1.0}, {"2": 1.0})
    ]
    others = shuffled_law([laws[2]] * 3)

    def beyond(copies: int, epsilon: float) -> float:
        seen: list[dict[tuple[Hashable, ...], float]] = [defaultdict(float) for _ in range(2)]
        for law, found in zip(laws[:2], seen, strict=True):
            for (crowd, p), (report, q) in product(others.items(), law.items()):
                found[tuple(sorted((*crowd, *[report] * copies)))] += p * q  # type: ignore[type-var]
        one, two = seen
        return math.fsum(max(0.0, p - math.exp(epsilon) * two.get(place, 0.0)) for place, p in one.items())

    alone = math.fsum(max(0.0, laws[0][y] - math.exp(0.6) * laws[1][y]) for y in laws[0])
    assert beyond(1, 0.6) <= crowd_of(task.mechanism, 4).delta(0.6) < 0.25 * alone
    assert 0.85 * alone < beyond(times, 0.6) <= alone
    assert beyond(times, 0.6) > 4 * crowd_of(task.mechanism, 4).delta(0.6)


def vouchers() -> list[Mechanism]:
    """A small instance of every kind of mechanism that says what its response weights are."""
    found = {}
    for mechanism in (example.miniature() for example in examples()):
        if response_weights(mechanism) is not None:
            found.setdefault((mechanism.name, mechanism.values), mechanism)
    two_seeds = {"max_entries": 1, "seeds": 2, "buckets": 4}
    return [*found.values(), make_mechanism("sketch_response", epsilon=1.0, **two_seeds)]


VOUCHERS = vouchers()


@pytest.mark.parametrize("mechanism", VOUCHERS, ids=lambda mechanism: f"{mechanism.name} {mechanism.values}")
def test_mechanisms_are_what_their_response_weights_say(mechanism: Mechanism) -> None:
    """t outcomes, each with a probability between V / Omega and W / Omega, under every seed tried."""
    weights = response_weights(mechanism)
    assert weights is not None
    favoured, outcomes, weight, unit = weights
    omega = favoured * weight + (outcomes - favoured) * unit
    values = (-1.0, 0.25) if mechanism.values == "signed" else (1.0,)
    records = small_records(["0", "1", "2"], values, mechanism.max_entries)
    task = task_for(mechanism, 3)
    for record, seed in product(records, (0, 1)):
        law = law_of(task, record, seed)
        assert len(law) == outcomes
        assert Fraction(unit, omega) <= min(law.values())
        assert max(law.values()) <= Fraction(weight, omega)


def test_these_mechanisms_have_response_weights() -> None:
    assert {"collision", "coco", "sketch_response", "hadamard"} <= {mechanism.name for mechanism in VOUCHERS}


def test_no_crowd_of_ldp_reports_exceeds_the_general_bound() -> None:
    """Extreme epsilon-LDP mechanisms: every report's probability is c_y or e^eps c_y; and milder ones."""
    source = np.random.default_rng(7)
    highest, tried = 0.0, 0
    while tried < 40:
        epsilon = float(source.choice([0.3, 1.0, 2.0, 4.0]))
        rows, outcomes = int(source.integers(2, 4)), int(source.integers(2, 5))
        table = source.random(outcomes) ** 3 * np.exp(
            epsilon * source.choice([0, 0, 1, 1, 0.4], (rows, outcomes))
        )
        table /= table.sum(axis=1, keepdims=True)
        if (table.max(axis=0) > math.exp(epsilon) * table.min(axis=0)).any():
            continue
        tried += 1
        laws: list[Law] = [dict(enumerate(row)) for row in table.tolist()]
        for n, share in ((2, 0.5), (3, 0.2)):
            bound = any_mechanism(n, epsilon).delta(share * epsilon)
            found = worst_divergences(laws, n, [share * epsilon])[0]
            assert found <= bound
            highest = max(highest, found / bound)
    assert highest > 0.75


# ... which the published theorem is not


def test_the_published_theorem_is_violated() -> None:
    """s=1, t=3, epsilon=1, n=4 at 0.6: a victim with 0 or 1 among others with 0, 2, 2."""
    laws = [favouring([chosen], 3, math.e) for chosen in range(3)]
    truth = divergence(laws[0], laws[1], [laws[0], laws[2], laws[2]], 0.6)
    assert truth == pytest.approx(0.048913, abs=5e-7)
    theorem = published(4, 1, 3, E1, UNIT).delta(0.6)
    assert theorem == pytest.approx(0.041451, abs=5e-7)
    assert theorem < 0.85 * truth < truth <= response(4, 1, 3, E1, UNIT).delta(0.6)


def test_at_twice_as_many_outcomes_the_theorem_agrees() -> None:
    """For t = 2s there are no outcomes that neither favours, and the theorem is the bound."""
    for n, epsilon in ((3, 0.4), (50, 0.2)):
        assert published(n, 2, 4, E1, UNIT).delta(epsilon) == pytest.approx(
            response(n, 2, 4, E1, UNIT).delta(epsilon), rel=1e-6
        )


# Tight: a little less would be wrong


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_a_bound_two_percent_lower_would_be_violated(n: int, epsilon: float) -> None:
    """Theorem 6 is a crowd that exists: others with one record that shares no bucket with the victim's."""
    weights = response_weights(collision(epsilon, buckets=math.floor(4 * math.exp(epsilon) + 7)))
    assert weights is not None
    reached, bound = lower_bound(n, *weights).epsilon(1e-6), response(n, *weights).epsilon(1e-6)
    assert 0.98 * bound < reached <= bound


def test_a_general_bound_three_percent_lower_would_be_violated() -> None:
    """Three outcomes, one favoured, is an epsilon-LDP mechanism; at epsilon = 4 it is nearly the worst."""
    reached = lower_bound(10_000, 1, 3, favoured_weight(4.0), UNIT).epsilon(1e-6)
    assert (
        0.97 * any_mechanism(10_000, 4.0).epsilon(1e-6) < reached <= any_mechanism(10_000, 4.0).epsilon(1e-6)
    )


# Computed on the safe side, and precisely


@pytest.mark.parametrize("n", [2, 7, 40])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 12.0])
def test_the_computed_value_is_above_the_exact_sum(n: int, epsilon: float) -> None:
    weight = favoured_weight(epsilon)
    crowds = [response(n, 5, 40, weight, UNIT), any_mechanism(n, epsilon)]
    for crowd, share in product(crowds, (0.0, 0.3, 0.99)):
        exact = exact_delta(crowd, share * epsilon)
        if exact > 1e-250:
            assert exact * (1 - 1e-13) <= crowd.delta(share * epsilon) <= exact * 1.002


def by_conditioning(crowd: Crowd, epsilon: float) -> float:
    """The same expectation by another route: given a + b = K and r, a is a fair binomial.

    E(A - x)_+ for A ~ Bin(K, 1/2) is (j/2) P(A = j) - (x - K/2) P(A >= j), where j is the first integer above x.
    """
    n, alpha = crowd.reports, math.exp(epsilon)
    own, other = float(crowd.own / crowd.cover), float(crowd.other / crowd.cover)
    rest = float(crowd.rest / crowd.cover_rest) * (alpha - 1) if crowd.rest else 0.0
    log = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    pair, neither = 2 * float(crowd.cover), float(crowd.cover_rest)
    total = 0.0
    for k in range(1, n + 1):
        at_k = math.exp(log[n] - log[k] - log[n - k] + k * math.log(pair) + (n - k) * math.log1p(-pair))
        if at_k < 1e-30:
            continue
        share, left = neither / (1 - pair), n - k
        r = np.arange(left + 1 if share else 1)
        at_r = (
            np.exp(log[left] - log[r] - log[left - r] + r * math.log(share) + (left - r) * math.log1p(-share))
            if share
            else np.ones(1)
        )
        a = np.arange(k + 1)
        pmf = np.append(np.exp(log[k] - log[a] - log[k - a] - k * math.log(2)), 0.0)
        above = np.cumsum(pmf[::-1])[::-1]
        gap = (own - other) * (1 + alpha)
        x = (k * (alpha * own - other) + r * rest) / gap
        j = np.minimum(np.floor(x).astype(int) + 1, k + 1)
        total += at_k * float(at_r @ (gap * (j / 2 * pmf[j] - (x - k / 2) * above[j])))
    return total / n


@pytest.mark.parametrize("favoured_outcomes", [(4, 17), (4, 8), (1, 30)])
@pytest.mark.parametrize("epsilon", [0.05, 0.15])
def test_precision_at_a_thousand_reports(favoured_outcomes: tuple[int, int], epsilon: float) -> None:
    crowd = response(1000, *favoured_outcomes, E1, UNIT)
    other_way = by_conditioning(crowd, epsilon)
    assert other_way * (1 - 1e-9) <= crowd.delta(epsilon) <= other_way * (1 + 1e-6)


@pytest.mark.parametrize(("n", "tolerance"), [(10**6, 1e-4), (10**9, 1e-6), (10**12, 1e-6)])
def test_large_crowds_follow_the_normal_law(n: int, tolerance: float) -> None:
    """E[S_+] of a normal S with the same mean and variance; what differs is of order 1 / n."""
    crowd = response(n, 4, 17, E1, UNIT)
    epsilon = 3.3 / math.sqrt(n)
    alpha, ratio, cover, rest = math.exp(epsilon), E1 / UNIT, float(crowd.cover), float(crowd.cover_rest)
    square = cover * ((ratio - alpha) ** 2 + (1 - alpha * ratio) ** 2) + rest * (1 - alpha) ** 2
    width = math.sqrt(square - (1 - alpha) ** 2)
    z = (alpha - 1) * math.sqrt(n) / width
    normal = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2
    assert crowd.delta(epsilon) == pytest.approx(width / math.sqrt(n) * normal, rel=tolerance)


def test_more_blur_is_only_more_careful() -> None:
    """A coarser sum is larger, by about as much as it may be."""
    crowd = response(10_000, 4, 17, E1, UNIT)
    fine = crowd.delta(0.03, excess=1e-9)
    for excess in (1e-7, 1e-5, 1e-3):
        assert fine < crowd.delta(0.03, excess=excess) < fine * (1 + 2 * excess)


def test_the_number_to_reproduce() -> None:
    assert response(10_000, 4, 17, E1, UNIT).epsilon(1e-6) == pytest.approx(0.03348, abs=5e-6)


@pytest.mark.parametrize("delta", [0.1, 1e-6, 1e-15])
@pytest.mark.parametrize("n", [2, 30, 1000, 10**6, 10**9])
def test_epsilon_is_the_inverse_of_delta(n: int, delta: float) -> None:
    crowd = response(n, 2, 9, E1, UNIT)
    epsilon = crowd.epsilon(delta)
    assert crowd.delta(epsilon) <= delta
    if epsilon > 1e-8:
        assert crowd.delta(epsilon * (1 - 1e-5)) > delta


def test_the_integer_weights_count() -> None:
    """W / V is rounded down from e^eps, and the bound is that of W / V: beyond log(W / V) nothing is left."""
    crowd = response(10, 1, 4, 3, 2)
    assert crowd.delta(math.log(1.5) - 1e-6) > 0
    assert crowd.delta(math.log(1.5) + 1e-12) == 0
    assert crowd.delta(1e6) == 0


# Order


def test_bounds_are_in_order() -> None:
    """More reports, more outcomes or a response mechanism instead of an arbitrary one never hurt."""
    for epsilon, central in ((1.0, 0.03), (1.0, 0.3), (3.0, 0.5)):
        weight = favoured_weight(epsilon)
        deltas = [response(n, 2, 9, weight, UNIT).delta(central) for n in (10, 100, 1000, 10_000)]
        assert deltas == sorted(deltas, reverse=True)
        general = any_mechanism(1000, epsilon).delta(central)
        narrow, wide = (response(1000, 2, t, weight, UNIT).delta(central) for t in (4, 30))
        assert wide < narrow <= general * (1 + 1e-6)


# Guarantees


def test_a_shuffled_guarantee_says_what_it_is() -> None:
    guarantee = shuffled_guarantee(collision(1.0, buckets=17), 10_000, 1e-6)
    assert (guarantee.unit, guarantee.model, guarantee.delta) == ("record", "shuffled", 1e-6)
    assert guarantee.epsilon == pytest.approx(0.03348, abs=5e-6)
    assert "10,000 shuffled reports" in guarantee.note
    assert "4 of 17" in guarantee.note
    assert "must not collude" in guarantee.words()


def test_a_mechanism_without_weights_gets_the_general_bound() -> None:
    mechanism = make_mechanism("sparse_sum", epsilon=1.0, max_entries=4)
    assert response_weights(mechanism) is None
    guarantee = shuffled_guarantee(mechanism, 10_000, 1e-6)
    assert guarantee.epsilon == any_mechanism(10_000, 1.0).epsilon(1e-6)
    assert "any epsilon-LDP mechanism" in guarantee.note


def test_coco_counts_both_sides_of_a_pair() -> None:
    coco = make_mechanism("coco", epsilon=1.0, max_entries=4, buckets=16)
    assert response_weights(coco) == (4, 32, E1, UNIT)


def test_two_reports_hardly_help() -> None:
    """Never worse than the local guarantee, even where there is nobody to hide among."""
    assert 0.99 < shuffled_guarantee(collision(1.0), 2, 1e-6).epsilon <= 1.0


def test_entry_guarantees_are_refused_because_the_bound_would_be_wrong() -> None:
    """Two bits, each by randomized response with epsilon 1: entry level. Others who all hold (1, 1) do not
    cover the victim's first bit as epsilon 1 would ask, and the general bound is exceeded."""
    keep = math.e / (math.e + 1)
    bits = list(product((0, 1), repeat=2))
    laws: dict[tuple[int, int], Law] = {
        record: {
            report: math.prod(keep if x == y else 1 - keep for x, y in zip(record, report, strict=True))
            for report in bits
        }
        for record in bits
    }
    truth = divergence(laws[0, 0], laws[1, 0], [laws[1, 1]] * 3, 0.2)
    assert truth > 1.1 * any_mechanism(4, 1.0).delta(0.2)
    for unit in ({"unit": "entry"}, {"unit": "l1", "distance": 1.0}):
        with refused("per " + unit["unit"], "per record"):
            crowd_of(make_mechanism("sparse_sum", epsilon=1.0, max_entries=4, **unit), 1000)


def test_only_pure_local_guarantees_are_amplified() -> None:
    class Odd(type(collision(1.0))):  # type: ignore[misc]
        def guarantee(self) -> Guarantee:
            return promised

    mechanism = Odd(epsilon=1.0, max_entries=4)
    for promised in (Guarantee(1.0, delta=1e-9), Guarantee(1.0, model="central")):  # noqa: B007
        with refused("pure epsilon"):
            crowd_of(mechanism, 1000)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, 2.0, math.nan])
def test_bad_deltas_are_refused(delta: float) -> None:
    with refused("delta"):
        shuffled_guarantee(collision(1.0), 1000, delta)


@pytest.mark.parametrize("n", [1, 0, -5, 10**16])
def test_bad_numbers_of_reports_are_refused(n: int) -> None:
    with refused("at least 2 reports"):
        shuffled_guarantee(collision(1.0), n, 1e-6)


@pytest.mark.parametrize("epsilon", [math.inf, math.nan, 0.0, -1.0])
def test_bad_epsilons_are_refused(epsilon: float) -> None:
    with refused("epsilon"):
        any_mechanism(1000, epsilon)
    if epsilon != 0:
        with refused("epsilon"):
            any_mechanism(1000, 1.0).delta(epsilon)


def test_too_few_outcomes_are_refused() -> None:
    with refused("t >= 2s", "7", "2 * 4"):
        shuffled_guarantee(collision(1.0, buckets=7), 1000, 1e-6)
    with refused("At least one"):
        response(1000, 0, 5, E1, UNIT)
    with refused("weigh more"):
        response(1000, 1, 5, UNIT, UNIT)


# Planning


@pytest.mark.parametrize("family", ["prf", "walsh"])
def test_the_local_epsilon_for_a_central_goal_is_the_largest(family: str) -> None:
    def make(epsilon: float) -> Mechanism:
        return collision(epsilon, family=family)

    local = solve_local_epsilon(0.1, 1e-6, 20_000, make)
    assert local > 1
    assert shuffled_guarantee(make(local), 20_000, 1e-6).epsilon <= 0.1
    for more in (1.005, 1.02, 1.1, 1.5, 2.0):
        assert shuffled_guarantee(make(local * more), 20_000, 1e-6).epsilon > 0.1


def test_a_goal_without_a_crowd_needs_no_amplification() -> None:
    local = solve_local_epsilon(0.5, 1e-9, 2, lambda epsilon: collision(epsilon, family="walsh"))
    assert 0.5 <= local < 0.5005


def test_the_largest_local_epsilon_there_is() -> None:
    """A huge crowd and a weak goal: the end of the range is returned, or the last epsilon that can be made."""

    def make(epsilon: float) -> Mechanism:
        if epsilon > 3:
            raise Refused("too large")
        return make_mechanism("sparse_sum", epsilon=epsilon, max_entries=4)

    assert (
        solve_local_epsilon(
            1.0, 1e-6, 10**9, lambda epsilon: make_mechanism("sparse_sum", epsilon=epsilon, max_entries=4)
        )
        == 16
    )
    assert 2.999 < solve_local_epsilon(1.0, 1e-6, 10**9, make) <= 3


def test_bad_goals_are_refused() -> None:
    for central, delta in ((0.0, 1e-6), (math.inf, 1e-6), (0.1, 0.0)):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            solve_local_epsilon(central, delta, 1000, collision)
    with refused("t >= 2s"):
        solve_local_epsilon(0.1, 1e-6, 1000, lambda epsilon: collision(epsilon, buckets=5))
