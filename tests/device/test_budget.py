"""A budget's arithmetic, against exact composition of randomized response."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from helpers import refused
from hubbub.checks.exact import report_law
from hubbub.device.budget import UNLIKELY, Budget, Cost, divergence, most_messages


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": 0}, "above 0, not 0"),
        ({"epsilon": -1.0}, "above 0, not -1.0"),
        ({"epsilon": math.nan}, "not nan"),
        ({"epsilon": math.inf}, "not inf"),
        ({"epsilon": 10**400}, "finite"),
        ({"epsilon": "8"}, "are numbers, not '8'"),
        ({"epsilon": True}, "are numbers, not True"),
        ({"epsilon": 1, "delta": 1.0}, "below 1, not 1.0"),
        ({"epsilon": 1, "delta": math.nan}, "below 1, not nan"),
        ({"epsilon": 1, "delta": -1e-9}, "at least 0"),
        ({"epsilon": 1, "per": "century"}, "per week, month, year or ever, not 'century'"),
    ],
)
def test_what_is_no_budget(given: dict[str, Any], said: str) -> None:
    with refused(said):
        Budget(**given)


def test_sums_are_exact_as_people_write_them() -> None:
    """Three times 0.1 is 0.3, which it is not in binary."""
    for epsilon, reports, total in ((0.1, 3, 0.3), (0.1, 10, 1.0), (0.7, 11, 7.7)):
        assert Budget(total).fits([Cost(epsilon, 0.0, reports)])
        assert not Budget(total).fits([Cost(epsilon, 0.0, reports + 1)])
        assert not Budget(total).fits([Cost(epsilon, 0.0, reports), Cost(1e-9, 0.0, 1)])
        assert Budget(total).spent([Cost(epsilon, 0.0, reports)]) == total


def test_what_is_not_known_fits_nowhere() -> None:
    assert not Budget(1e9, delta=0.5).fits([Cost(math.inf, 0.0, 1)])
    assert Budget(1.0).fits([Cost(math.inf, 0.0, 0)])


def test_deltas_of_tasks_may_take_half() -> None:
    assert Budget(8, delta=2e-6).fits([Cost(1.0, 1e-6, 1)])
    assert not Budget(8, delta=2e-6).fits([Cost(1.0, 1e-6, 2)])
    assert not Budget(8).fits([Cost(1.0, 1e-12, 1)])


def response(epsilon: float) -> tuple[float, float]:
    """The probabilities of the likelier and the other answer of randomized response."""
    return 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))


def exact_delta(epsilon: float, reports: int, total: float) -> float:
    """The smallest delta that goes with `total` for so many randomized responses: a sum over binomials."""
    yes, no = response(epsilon)
    found = []
    for likelier in range(reports + 1):
        log = math.lgamma(reports + 1) - math.lgamma(likelier + 1) - math.lgamma(reports - likelier + 1)
        log += likelier * math.log(yes) + (reports - likelier) * math.log(no)
        loss = (2 * likelier - reports) * epsilon
        found.append(math.exp(log) * -math.expm1(total - loss) if loss > total else 0.0)
    return math.fsum(found)


@pytest.mark.parametrize(
    ("epsilon", "order"), [(0.01, 2.0), (0.5, 1.25), (1.0, 8.0), (4.0, 1.5), (9.0, 40.0)]
)
def test_divergence_is_that_of_randomized_response(epsilon: float, order: float) -> None:
    yes, no = response(epsilon)
    exact = math.log(yes**order * no ** (1 - order) + no**order * yes ** (1 - order)) / (order - 1)
    assert divergence(epsilon, order) == pytest.approx(exact, rel=1e-9)
    assert divergence(epsilon, order) <= min(epsilon, order * epsilon * math.tanh(epsilon / 2)) * (1 + 1e-12)


def test_next_to_nothing_is_not_nothing() -> None:
    """Where epsilon is tiny, the divergence is order epsilon^2 / 2, to many digits."""
    for epsilon in (1e-4, 1e-7, 1e-10):
        for order in (1.02, 2.0, 50.0):
            assert divergence(epsilon, order) == pytest.approx(order * epsilon**2 / 2, rel=1e-5)
    assert not Budget(1e-3, delta=1e-6).fits([Cost(1e-9, 0.0, 10**15)])


@pytest.mark.parametrize("name", ["collision", "local_hashing"])
def test_no_report_has_a_larger_divergence(name: str, make_task: Any) -> None:
    """Exact laws of shipped reports; a bound of 30% less is exceeded by one of them at least."""
    worst = 0.0
    task = make_task(name, size=4, epsilon=1.5, max_entries=1)
    for seed in range(2):
        laws = [report_law(task, record, seed) for record in ([], ["0"], ["1"], ["2"])]
        for one in laws:
            for two in laws:
                for order in (1.25, 3.0, 20.0):
                    powers = (float(p) ** order * float(two[said]) ** (1 - order) for said, p in one.items())
                    found = math.log(math.fsum(powers)) / (order - 1)
                    assert found <= divergence(1.5, order) * (1 + 1e-9)
                    worst = max(worst, found / divergence(1.5, order))
    assert worst > 0.7


@pytest.mark.parametrize(
    ("budget", "epsilon"),
    [
        (Budget(8, delta=1e-6), 0.02),
        (Budget(8, delta=1e-6), 0.2),
        (Budget(1, delta=1e-6), 0.01),
        (Budget(20, delta=1e-9), 0.3),
        (Budget(0.5, "month", 1e-3), 0.05),
    ],
)
def test_what_fits_holds_and_little_more_would(budget: Budget, epsilon: float) -> None:
    """As many randomized responses as fit have an exact delta within half of the budget's; 1.6 times as many do not."""
    most = next(n for n in range(1, 10**6) if not budget.fits([Cost(epsilon, 0.0, n)])) - 1
    assert most > 1.15 * budget.epsilon / epsilon  # more than adding up allows
    assert exact_delta(epsilon, most, budget.epsilon) <= budget.delta / 2
    assert exact_delta(epsilon, math.ceil(1.6 * most), budget.epsilon) > budget.delta
    said = budget.spent([Cost(epsilon, 0.0, most)])
    assert exact_delta(epsilon, most, said) <= budget.delta / 2
    assert said <= budget.epsilon * (1 + 1e-12)


def transcripts(budget: Budget, choose: Any, rounds: int) -> Iterator[tuple[float, float]]:
    """Probabilities of all sequences of answers under two records; each question depends on the answers before."""

    def extend(
        said: tuple[int, ...], costs: list[Cost], one: float, two: float
    ) -> Iterator[tuple[float, float]]:
        cost = Cost(choose(said), 0.0, 1)
        if len(said) == rounds or not budget.fits([*costs, cost]):
            yield one, two
            return
        yes, no = response(cost.epsilon)
        yield from extend((*said, 1), [*costs, cost], one * yes, two * no)
        yield from extend((*said, 0), [*costs, cost], one * no, two * yes)

    return extend((), [], 1.0, 1.0)


def steady(said: tuple[int, ...]) -> float:
    return 0.6


def greedy(said: tuple[int, ...]) -> float:
    """Asks for more as soon as the answers point one way."""
    return (0.3, 0.6, 1.2)[min(2, abs(2 * sum(said) - len(said)) // 2)]


def last_word(said: tuple[int, ...]) -> float:
    """Small questions, then one that only the sum allows, or only the other rule."""
    return 1.3 if sum(said) == 3 else 0.4


@pytest.mark.parametrize("choose", [steady, greedy, last_word])
def test_it_holds_for_tasks_that_are_chosen_by_what_was_said(choose: Any) -> None:
    """Either rule may end a sequence of reports: all of them are enumerated, with the decisions of the shipped code."""
    budget = Budget(2.0, delta=0.4)
    pairs = list(transcripts(budget, choose, rounds=11))
    assert math.fsum(one for one, _ in pairs) == pytest.approx(1)
    factor = math.exp(budget.epsilon)
    assert math.fsum(max(0.0, one - factor * two) for one, two in pairs) <= budget.delta / 2
    # The rule of divergences is used: some sequences lose more than the sum would allow.
    assert max(one / two for one, two in pairs) > factor
    # And the check notices a device that goes on.
    going_on = list(transcripts(Budget(100.0), choose, rounds=11))
    assert math.fsum(max(0.0, one - factor * two) for one, two in going_on) > budget.delta / 2


@pytest.mark.parametrize("mean", [Fraction(1, 100), Fraction(1), Fraction(7, 2), Fraction(40), Fraction(300)])
def test_more_messages_than_reckoned_with_are_unlikely(mean: Fraction) -> None:
    """By the exact tail; half as many beyond the mean would not be unlikely enough."""

    def tail(number: int) -> float:
        logs = (
            k * math.log(mean) - float(mean) - math.lgamma(k + 1) for k in range(number + 1, number + 400)
        )
        return math.fsum(map(math.exp, logs))

    most = most_messages(mean)
    assert tail(most) <= UNLIKELY
    assert tail(math.floor((mean + most) / 2)) > UNLIKELY
