"""A lower bound on people from their messages: it fails as rarely as it says, and not much more rarely."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from scipy.stats import poisson

from helpers import refused
from hubbub.privacy.people import FAILURE, most_of_one, people_among, reports_of


def reaches(mean: Fraction, least: int) -> Fraction:
    """P(Poisson(mean) >= least) to many digits, summed up from the far end (terms beyond are below 1e-40)."""
    total, term = Fraction(0), None
    last = least + 40 * int(math.sqrt(float(mean)) + 10)
    weights = []
    for count in range(least, last):
        if term is None:
            term = Fraction(1)
            for factor in range(1, count + 1):
                term = term * mean / factor
                term = Fraction(int(term * 10**80), 10**80)
        else:
            term = Fraction(int(term * mean / count * 10**80), 10**80)
        weights.append(term)
    for weight in reversed(weights):
        total += weight
    return total * Fraction(math.exp(-float(mean)))


@pytest.mark.parametrize("messages", [Fraction(1, 2), Fraction(1), Fraction(8)])
@pytest.mark.parametrize("people", [1, 2, 7, 40])
def test_the_bound_fails_as_rarely_as_it_says(people: int, messages: Fraction) -> None:
    """If `people` take part, more are claimed with probability 1e-9 at most; one message less would be too few."""
    claims_more = reports_of(people + 1, messages)
    assert people_among(claims_more, messages) > people
    assert people_among(claims_more - 1, messages) <= people
    assert reaches(people * messages, claims_more) <= FAILURE
    assert reaches((people + 1) * messages, claims_more) <= FAILURE
    assert reaches((people + 1) * messages, claims_more - 1) > FAILURE  # it is the best bound of its kind


def test_it_grows_with_messages_and_comes_close() -> None:
    found = [people_among(reports, Fraction(8)) for reports in range(0, 2000, 7)]
    assert found == sorted(found)
    assert found[0] == 0
    for people in (1000, 20_000, 10**6):
        bound = people_among(8 * people, Fraction(8))
        assert 0 < people - bound < 7 * math.sqrt(people / 8)


def test_a_crowd_of_nobody_is_refused() -> None:
    with refused("at least 1 person"):
        reports_of(0, Fraction(1))


def test_a_device_practically_never_sends_more_than_must_be_taken() -> None:
    """The tail of the law beyond it, for means of all sizes; a third less, and it would be noticed."""
    means = [
        Fraction(1, 1000),
        Fraction(1, 2),
        *(Fraction(2) ** power for power in range(14)),
        Fraction(10_000),
    ]
    beyond = [float(poisson.sf(most_of_one(mean), float(mean))) for mean in means]
    assert max(beyond) < 1e-14
    less = [math.ceil(mean + (most_of_one(mean) - mean) * 2 / 3) for mean in means]
    assert max(poisson.sf(each, float(mean)) for each, mean in zip(less, means, strict=True)) > 1e-10
