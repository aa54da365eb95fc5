"""Several reports of one person: the bound holds, is close, composes, and one report too few is noticed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from enumerated import Law, binary_delta, binary_pair, favouring, shuffled_law, worst_person

from helpers import refused, small_task
from hubbub.checks.exact import law_of, small_records
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.privacy.compose import compose
from hubbub.privacy.shuffle import (
    Crowd,
    any_mechanism,
    crowd_of,
    response,
    response_weights,
    shuffled_guarantee,
)


def crowd(n: int, epsilon: float, per_person: int) -> Crowd:
    return replace(any_mechanism(n, epsilon), per_person=per_person)


def exact_epsilon(n: int, per_person: int, epsilon: float, delta: float) -> float:
    """The epsilon of binary randomized response in the truth, from below."""
    low, high = 0.0, per_person * epsilon
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if binary_delta(n, per_person, epsilon, middle) > delta else (low, middle)
    return low


# Never below the truth


@pytest.mark.parametrize("per_person", [1, 2, 3, 10])
@pytest.mark.parametrize(("n", "epsilon"), [(12, 1.0), (40, 2.0), (400, 1.0), (400, 0.5), (3000, 1.0)])
def test_binary_randomized_response_never_exceeds_the_bound(n: int, epsilon: float, per_person: int) -> None:
    """Exact for every crowd: delta at several epsilons, and epsilon at two deltas."""
    bound = crowd(n, epsilon, per_person)
    for share in (0.0, 0.1, 0.5, 0.95):
        central = share * per_person * epsilon
        assert binary_delta(n, per_person, epsilon, central) <= bound.delta(central) * (1 + 1e-12)
    for delta in (1e-3, 1e-6):
        assert exact_epsilon(n, per_person, epsilon, delta) <= bound.epsilon(delta)


@pytest.mark.parametrize("per_person", [2, 3, 10])
def test_one_report_per_person_too_few_is_noticed(per_person: int) -> None:
    """The fault that is planted: a task's reports per person counted one short. The truth exceeds it."""
    n, epsilon, delta = 400, 0.5, 1e-6
    truth = exact_epsilon(n, per_person, epsilon, delta)
    assert (
        crowd(n, epsilon, per_person - 1).epsilon(delta)
        < truth
        <= crowd(n, epsilon, per_person).epsilon(delta)
    )


def test_what_was_promised_for_one_report_is_far_from_true_for_several() -> None:
    """At n = 400 and epsilon 1 one report is promised 0.243: ten reports of a person are worth ten times that."""
    promised = any_mechanism(400, 1.0).epsilon(1e-6)
    assert promised == pytest.approx(0.243, abs=5e-4)
    truth = [exact_epsilon(400, m, 1.0, 1e-6) for m in (1, 2, 3, 10)]
    assert truth[0] < promised
    assert truth[1:] == pytest.approx([0.447, 0.691, 2.57], rel=2e-3)


def test_the_bound_is_about_as_tight_as_for_one_report() -> None:
    """The blanket costs 9% at one report, and the chain adds next to nothing to that."""
    for per_person in (1, 2, 3, 10):
        bound, truth = crowd(400, 0.5, per_person).epsilon(1e-6), exact_epsilon(400, per_person, 0.5, 1e-6)
        assert 1.08 < bound / truth < 1.095


@pytest.mark.parametrize(
    ("favoured", "outcomes", "n", "per_person"), [(1, 3, 4, 2), (1, 2, 5, 3), (2, 4, 3, 2)]
)
def test_no_person_in_a_tiny_crowd_of_responses_exceeds_the_bound(
    favoured: int, outcomes: int, n: int, per_person: int
) -> None:
    """Every record in each of the victim's reports, every record of everybody else."""
    weight = favoured_weight(1.0)
    laws = [favouring(chosen, outcomes, weight / UNIT) for chosen in combinations(range(outcomes), favoured)]
    bound = replace(response(n, favoured, outcomes, weight, UNIT), per_person=per_person)
    centrals = [0.0, 0.3, 0.9, 1.5]
    for central, found in zip(centrals, worst_person(laws, n, per_person, centrals), strict=True):
        assert found <= bound.delta(central)
    short = replace(bound, per_person=per_person - 1)
    assert (
        max(worst_person(laws, n, per_person, [per_person - 1 + 0.05]))
        > short.delta(per_person - 1 + 0.05)
        == 0
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("collision", {"max_entries": 1, "buckets": 3, "family": "prf"}),
        ("coco", {"max_entries": 1, "buckets": 2, "family": "walsh"}),
        ("sketch_response", {"max_entries": 1, "buckets": 4, "seeds": 1, "family": "walsh"}),
    ],
)
def test_no_person_in_a_tiny_crowd_of_real_reports_exceeds_the_bound(
    name: str, parameters: dict[str, Any]
) -> None:
    """Laws of the shipped code by enumeration."""
    task = small_task(name, 3, **parameters)
    values = (-1.0, 0.5) if task.mechanism.values == "signed" else (1.0,)
    laws: list[Law] = []
    for record in small_records(["0", "1", "2"], values, task.mechanism.max_entries):
        law: Law = {report: float(p) for report, p in law_of(task, record, 1).items()}
        if law not in laws:
            laws.append(law)
    laws = laws[:4]
    assert len(laws) >= 2
    weights = response_weights(task.mechanism)
    assert weights is not None
    bound = crowd_of(task.mechanism, 4, 2)
    assert bound == replace(response(4, *weights), per_person=2)
    centrals = (0.05, 0.5, 1.2)
    found = worst_person(laws, 4, 2, centrals)
    for central, worst in zip(centrals, found, strict=True):
        assert 0 < worst <= bound.delta(central)


def test_reports_that_fall_into_several_crowds_do_not_exceed_the_bound() -> None:
    """Two reports of a person, each in a crowd of three of its own: what is seen is the pair of crowds."""
    laws = [favouring([chosen], 2, math.e) for chosen in range(2)]
    bound = replace(response(3, 1, 2, favoured_weight(1.0), UNIT), per_person=2)
    for central in (0.1, 0.8, 1.6):
        for others in product(product(laws, repeat=2), repeat=2):
            one, two = ([shuffled_law([victim, *crowd]) for crowd in others] for victim in laws)
            found = math.fsum(
                max(0.0, one[0][a] * one[1][b] - math.exp(central) * two[0][a] * two[1][b])
                for a in one[0]
                for b in one[1]
            )
            assert found <= bound.delta(central)


# What it says


def test_it_is_never_worse_than_the_local_guarantee() -> None:
    for n, per_person in ((2, 5), (10, 10), (30, 1000)):
        mechanism = make_mechanism("collision", epsilon=1.0, max_entries=1)
        assert shuffled_guarantee(mechanism, n, 1e-6, per_person).epsilon <= per_person
        assert crowd(n, 1.0, per_person).delta(per_person * 1.0001) == 0


def test_more_reports_per_person_are_worth_more() -> None:
    found = [crowd(5000, 1.0, m).epsilon(1e-6) for m in (1, 2, 3, 10, 100)]
    assert found == sorted(found)
    assert all(m * found[0] < found[i] < 1.6 * m * found[0] for i, m in ((1, 2), (2, 3), (3, 10)))


@pytest.mark.parametrize("delta", [0.1, 1e-6, 1e-12])
@pytest.mark.parametrize("per_person", [2, 10, 1000])
def test_epsilon_is_the_inverse_of_delta(per_person: int, delta: float) -> None:
    bound = crowd(1000, 1.0, per_person)
    epsilon = bound.epsilon(delta)
    assert bound.delta(epsilon) <= delta
    if epsilon > 1e-8:
        assert bound.delta(epsilon * (1 - 1e-5)) > delta


def test_in_words() -> None:
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=4)
    note = shuffled_guarantee(mechanism, 10_000, 1e-6, 3).note
    assert (
        "up to 3 reports per person, all together and whatever record each is about, among 10,000 shuffled reports"
        in note
    )
    assert "one report per person" in shuffled_guarantee(mechanism, 10_000, 1e-6).note
    together = compose([crowd_of(mechanism, 10_000, 3)] * 2, 1e-6, "basic").note
    assert (
        "up to 3 reports per person, all together and whatever record each is about, in each of 2 rounds"
        in together
    )


@pytest.mark.parametrize("per_person", [0, -1])
def test_nobody_has_less_than_one_report(per_person: int) -> None:
    with refused("at least 1 report"):
        shuffled_guarantee(make_mechanism("collision", epsilon=1.0, max_entries=4), 1000, 1e-6, per_person)


# Composition


@pytest.mark.parametrize("method", ["loss", "advanced", "basic"])
@pytest.mark.parametrize(("n", "per_person", "epsilon"), [(20, 2, 1.0), (60, 3, 0.5), (30, 5, 2.0)])
def test_two_rounds_are_never_below_exact_composition(
    n: int, per_person: int, epsilon: float, method: Any
) -> None:
    """Binary randomized response in two rounds, what is seen in both written out."""
    if method == "loss":
        pytest.importorskip("dp_accounting")
    for delta in (1e-2, 1e-5):
        claimed = compose([crowd(n, epsilon, per_person)] * 2, delta, method).epsilon
        for ones in (0, (n - per_person) // 2):
            one, two = binary_pair(n, per_person, epsilon, ones)
            for p, q in ((one, two), (two, one)):
                beyond = np.outer(p, p) - math.exp(claimed) * np.outer(q, q)
                assert math.fsum(np.maximum(0.0, beyond).ravel()) <= delta


def test_composition_by_loss_uses_the_crowd() -> None:
    """Thirty rounds of three reports: far below the sum, and as good as ninety small rounds with one report each.

    A crowd of n with m reports per person is no worse than m crowds of n / m with one: mixing them is
    post-processing. So the two computations bound the same thing in different ways, and must be close.
    """
    pytest.importorskip("dp_accounting")
    several = compose([crowd(400, 1.0, 3)] * 30, 1e-6).epsilon
    assert several == pytest.approx(compose([any_mechanism(133, 1.0)] * 90, 1e-6).epsilon, rel=0.01)
    assert several < 0.25 * compose([crowd(400, 1.0, 3)] * 30, 1e-6, "basic").epsilon
