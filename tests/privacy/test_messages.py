"""A Poisson number of reports per person: the Skellam bound against whole laws, summed up."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

from helpers import refused, small_task
from hubbub.checks.exact import law_of
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives.arrays import Floats
from hubbub.primitives.samplers import UNIT, exact_messages, favoured_weight
from hubbub.privacy.messages import PoissonCrowd, messages_guarantee, poisson_crowd
from hubbub.privacy.shuffle import crowd_of

#: Counts from here on are so rare in these tests that they are left out.
MOST = 18


def response_law(favoured: tuple[int, ...], outcomes: int, weight: int) -> Floats:
    """What one report says: one of the favoured outcomes with weight W each, others with 1 (V = UNIT)."""
    weights = np.array([weight if y in favoured else UNIT for y in range(outcomes)], dtype=np.float64)
    return weights / weights.sum()


def true_delta(one: Floats, two: Floats, epsilon: float) -> float:
    """delta between independent Poisson counts with these means: all counts below MOST are listed."""
    counts = np.arange(MOST)
    facts = np.array([math.lgamma(count + 1) for count in counts])
    first, second = np.zeros(1), np.zeros(1)
    for a, b in zip(one, two, strict=True):
        first = np.add.outer(first, counts * math.log(a) - a - facts).reshape(-1)
        second = np.add.outer(second, counts * math.log(b) - b - facts).reshape(-1)
    return float(np.maximum(np.exp(first) - math.exp(epsilon) * np.exp(second), 0).sum())


def cases() -> list[tuple[int, float, int, int, tuple[tuple[int, ...], ...], float]]:
    """People, messages, outcomes, favoured ones, everybody's favoured sets (the victim's two first), local epsilon."""
    found = []
    for outcomes, favoured in ((2, 1), (3, 1), (4, 1), (4, 2)):
        sets = list(itertools.combinations(range(outcomes), favoured))
        for people, messages, epsilon in itertools.product((2, 3), (0.5, 1.0, 1.7), (0.5, 2.0)):
            for others in {(sets[-1],) * (people - 1), (sets[0],) * (people - 1)}:
                for other in (sets[1], sets[-1]):
                    found.append((people, messages, outcomes, favoured, (sets[0], other, *others), epsilon))
    return found


def compare(
    case: tuple[int, float, int, int, tuple[tuple[int, ...], ...], float],
) -> list[tuple[float, float]]:
    """(truth, bound) at some epsilons."""
    people, messages, outcomes, favoured, (mine, mine_instead, *others), local = case
    weight = favoured_weight(local)
    rest = sum(response_law(each, outcomes, weight) for each in others)
    means = [messages * (rest + response_law(own, outcomes, weight)) for own in (mine, mine_instead)]
    crowd = PoissonCrowd(people, exact_messages(messages), favoured, outcomes, weight, UNIT)
    return [(true_delta(*means, epsilon), crowd.delta(epsilon)) for epsilon in (0.0, 0.1, 0.3, 0.7)]


def test_the_bound_is_never_below_the_truth() -> None:
    found = [pair for case in cases() for pair in compare(case)]
    assert len(found) >= 400
    assert all(truth <= bound for truth, bound in found)
    assert sum(truth > 1e-3 for truth, _ in found) > 200


def test_it_is_the_truth_where_everybody_else_favours_something_else() -> None:
    """The pair of the theorem is attained: the records' sets are disjoint, and others' are elsewhere."""
    for people, messages, local in itertools.product((2, 3), (0.5, 1.0, 1.7), (0.5, 1.0, 2.0)):
        case = (people, messages, 3, 1, ((0,), (1,), *[(2,)] * (people - 1)), local)
        for truth, bound in compare(case):
            assert truth <= bound <= 1.01 * truth + 1e-9


def test_any_laws_between_the_weights_are_covered() -> None:
    """Weights anywhere in [V, W] with the same sum, for the victim and everybody else: 120 random crowds of 2 or 3."""
    rng = np.random.default_rng(8)
    near = 0
    for _ in range(120):
        outcomes, local = int(rng.integers(2, 5)), float(rng.uniform(0.2, 3))
        favoured, people = int(rng.integers(1, outcomes)), int(rng.integers(2, 4))
        messages, weight = round(float(rng.uniform(0.1, 1.5)), 3), favoured_weight(local)
        sets = list(itertools.combinations(range(outcomes), favoured))
        laws = np.array([response_law(each, outcomes, weight) for each in sets])
        mixed = rng.dirichlet(np.full(len(sets), 0.2), people + 1) @ laws
        means = [messages * (mixed[own] + mixed[2:].sum(axis=0)) for own in (0, 1)]
        crowd = PoissonCrowd(people, exact_messages(messages), favoured, outcomes, weight, UNIT)
        for epsilon in (0.0, 0.2, 0.6):
            truth = true_delta(*means, epsilon)
            assert truth <= crowd.delta(epsilon)
            near += truth > 0.5 * crowd.delta(epsilon)
    assert near > 20


@pytest.mark.parametrize("fault", ["one more person", "fewer messages"])
def test_faults_would_be_noticed(fault: str) -> None:
    """A person who is not there (n one too large), or a message more than is counted (M), and the bound is too low."""
    weight = favoured_weight(1.0)
    right = PoissonCrowd(3, Fraction(2), 1, 3, weight, UNIT)
    wrong = replace(right, people=4) if fault == "one more person" else replace(right, messages=Fraction(1))
    rest = 2 * response_law((2,), 3, weight)
    means = [2 * (rest + response_law(own, 3, weight)) for own in ((0,), (1,))]
    truth = true_delta(means[0], means[1], 0.3)
    assert wrong.delta(0.3) < 0.99 * truth < truth <= right.delta(0.3)


@pytest.mark.parametrize("name", ["collision", "sketch_response"])
def test_through_the_shipped_randomizer(name: str) -> None:
    """The laws of reports as they are made, for every pair of records and seed: no pair exceeds the bound."""
    task = small_task(
        name, max_entries=1, buckets=4, epsilon=1.0, **({"seeds": 1} if name != "collision" else {})
    )
    crowd = poisson_crowd(task.mechanism, 2, Fraction(1))
    checked = 0
    for seed in (1, 2, 3, 7):
        laws = [law_of(task, {key: 1.0}, seed) for key in ("0", "1", "2")]
        outcomes = sorted({y for law in laws for y in law}, key=repr)
        one, two, three = (np.array([float(law.get(y, 0)) for y in outcomes]) for law in laws)
        for mine, other in itertools.permutations((one, two, three), 2):
            for epsilon in (0.0, 0.2, 0.5):
                assert true_delta(mine + three, other + three, epsilon) <= crowd.delta(epsilon)
                checked += 1
    assert checked == 72


def test_one_message_on_average_is_about_one_message() -> None:
    """The other bound, for exactly one report per person, is proven in another way (n = 10,000, delta = 1e-6)."""
    mechanism = make_mechanism("collision", epsilon=1.0, max_entries=4, family="prf", buckets=17)
    several = poisson_crowd(mechanism, 10_000, Fraction(1)).epsilon(1e-6)
    assert several == pytest.approx(0.033483, abs=5e-7)
    assert several == pytest.approx(crowd_of(mechanism, 10_000).epsilon(1e-6), rel=1e-3)


def test_the_law_is_skellams() -> None:
    skellam = pytest.importorskip("scipy.stats").skellam
    for people, messages in ((2, "0.001"), (50, "3"), (10_000, "64")):
        crowd = PoissonCrowd(people, exact_messages(messages), 4, 17, favoured_weight(1.0), UNIT)
        law, _ = crowd._law
        omega = 4 * crowd.weight + 13 * UNIT
        low = float(4 * people * crowd.messages * Fraction(UNIT, omega))
        high = low + float(4 * crowd.messages * Fraction(crowd.weight - UNIT, omega))
        places = np.flatnonzero(law > 1e-30)
        expected = skellam.pmf(places, high, low)
        assert np.all(np.abs(law[places] / expected - 1) < 1e-9)


def test_delta_and_epsilon_are_inverse() -> None:
    crowd = PoissonCrowd(1000, Fraction(8), 4, 17, favoured_weight(1.0), UNIT)
    for delta in (1e-4, 1e-8, 1e-12):
        epsilon = crowd.epsilon(delta)
        assert (1 - 2e-6) * delta <= crowd.delta(epsilon) <= delta


def test_more_people_hide_better_and_more_messages_worse() -> None:
    crowd = PoissonCrowd(1000, Fraction(8), 4, 17, favoured_weight(1.0), UNIT)
    assert replace(crowd, people=2000).epsilon(1e-6) < crowd.epsilon(1e-6)
    assert replace(crowd, messages=Fraction(16)).epsilon(1e-6) > crowd.epsilon(1e-6)


def test_what_cannot_be_hidden_is_refused() -> None:
    mechanism = make_mechanism("collision", epsilon=10.0, max_entries=2)
    with refused("no better than not at all"):
        messages_guarantee(mechanism, 2, Fraction(10_000), 1e-6)
    with refused("at least 2 people"):
        messages_guarantee(mechanism, 1, Fraction(1), 1e-6)
    with refused("favour some outcomes"):
        messages_guarantee(
            make_mechanism("gaussian", epsilon=1.0, delta=1e-6, max_entries=1, size=4), 9, Fraction(1), 0.1
        )
    for wrong in (0, -1, 20_000, "many", 1.00001, float("nan"), float("inf")):
        with refused("messages must be"):
            exact_messages(wrong)


def test_crowds_too_large_to_work_out_are_taken_for_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less cover than there is, never with more: delta is above the truth, which the whole crowd tells."""
    crowd = PoissonCrowd(10_000, Fraction(64), 4, 17, favoured_weight(1.0), UNIT)
    exact = [crowd.delta(epsilon) for epsilon in (0.05, 0.1, 0.2)]
    monkeypatch.setattr("hubbub.privacy.messages._MOST_POINTS", 1e4)
    capped = [replace(crowd).delta(epsilon) for epsilon in (0.05, 0.1, 0.2)]
    assert all(more > 2 * true for more, true in zip(capped, exact, strict=True))
    fewer = replace(crowd, people=round(10_000 * 1e4 / crowd_mean(crowd)))
    assert capped == pytest.approx([fewer.delta(epsilon) for epsilon in (0.05, 0.1, 0.2)], rel=0.01)


def crowd_mean(crowd: PoissonCrowd) -> float:
    """K beta."""
    omega = crowd.favoured * crowd.weight + (crowd.outcomes - crowd.favoured) * crowd.unit
    return float(crowd.favoured * crowd.people * crowd.messages * Fraction(crowd.unit, omega))


def test_huge_crowds_agree_with_the_normal_limit() -> None:
    """n = 10^8 and M = 1000: the loss is nearly normal, with variance twice its mean (mu = s^2 / 2)."""
    crowd = PoissonCrowd(10**8, Fraction(1000), 1, 2, 3, 1)
    low, extra = crowd_mean(crowd), 1000 * 2 / 4
    spread = extra / low * math.sqrt(2 * low)
    normal = NormalDist()
    for epsilon in (0.001, 0.01):
        top, bottom = spread / 2 - epsilon / spread, -spread / 2 - epsilon / spread
        truth = normal.cdf(top) - math.exp(epsilon) * normal.cdf(bottom)
        assert crowd.delta(epsilon) >= 0.999 * truth


def test_a_delta_beyond_what_can_be_told_is_refused() -> None:
    crowd = PoissonCrowd(1000, Fraction(8), 4, 17, favoured_weight(1.0), UNIT)
    with refused("smaller than what this bound can tell"):
        crowd.epsilon(1e-60)
