"""Other people's bounds are what they claim to be, and the comparison says where each applies."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from enumerated import divergence, exact_delta, favouring

from helpers import refused
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.samplers import UNIT, favoured_weight
from hubbub.privacy import bounds
from hubbub.privacy.bounds import (
    BOUNDS,
    blanket_generic,
    blanket_specific,
    clones,
    compare,
    draw,
    efmrtt19,
    lower_bound,
    published,
    published_setting,
)
from hubbub.privacy.shuffle import any_mechanism, response, response_weights

E1 = favoured_weight(1.0)


def test_efmrtt19_is_its_closed_form_and_nothing_outside_its_range() -> None:
    assert efmrtt19(10_000, 0.4, 1e-6) == pytest.approx(12 * 0.4 * math.sqrt(math.log(1e6) / 10_000))
    for reports, epsilon, delta in ((10_000, 0.5, 1e-6), (1000, 0.4, 1e-6), (10_000, 0.4, 0.01)):
        with refused("below 1/2", "1000", "1/100"):
            efmrtt19(reports, epsilon, delta)


def test_clones_are_the_published_pair() -> None:
    """C ~ Bin(n - 1, e^-eps) others are clones, A ~ Bin(C, 1/2) of them of the first kind; the victim adds
    one of the first kind with probability e^eps / (e^eps + 1)."""
    n, epsilon, central = 6, 0.8, 0.25
    keep, share = math.exp(epsilon) / (math.exp(epsilon) + 1), math.exp(-epsilon)
    total = 0.0
    for c in range(n):
        at_c = math.comb(n - 1, c) * share**c * (1 - share) ** (n - 1 - c)
        half = [math.comb(c, a) / 2**c if 0 <= a <= c else 0.0 for a in range(-1, c + 2)]
        for a in range(c + 2):
            added, not_added = half[a], half[a + 1]
            one, two = keep * added + (1 - keep) * not_added, (1 - keep) * added + keep * not_added
            total += at_c * max(0.0, one - math.exp(central) * two)
    assert clones(n, epsilon).delta(central) == pytest.approx(total, rel=1e-4)
    assert clones(n, epsilon).delta(central) >= total


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_general_bounds_are_in_order(n: int, epsilon: float) -> None:
    """All hold for every mechanism, so none may be below the one that is reached to within a few percent."""
    tight = any_mechanism(n, epsilon).epsilon(1e-6)
    loose = [clones(n, epsilon).epsilon(1e-6), blanket_generic(n, epsilon, 1e-6)]
    if epsilon < 0.5 and n > 1000:
        loose.append(efmrtt19(n, epsilon, 1e-6))
    assert tight < min(loose)
    assert clones(n, epsilon).epsilon(1e-6) < 1.5 * tight


def test_the_blanket_by_bennett_is_above_the_same_blanket_summed_exactly() -> None:
    """It is the same expectation with a tail bound instead of the sum: above it, and not by much."""
    for epsilon, n in ((0.5, 1000), (1.0, 10_000), (3.0, 1_000_000)):
        weights = response_weights(published_setting(epsilon, 4))
        assert weights is not None
        exact, bennett = response(n, *weights).epsilon(1e-6), blanket_specific(n, weights, 1e-6)
        assert exact < bennett < 1.3 * exact


def test_bennett_at_tiny_crowds() -> None:
    """Against the exact sum at a few epsilons; nothing is amplified beyond the local epsilon."""
    crowd = response(30, 1, 4, E1, UNIT)
    for delta in (0.2, 1e-2, 1e-4):
        epsilon = blanket_specific(30, (1, 4, E1, UNIT), delta)
        assert exact_delta(crowd, epsilon) <= delta
        assert epsilon <= 1.0
        assert blanket_generic(30, 1.0, delta) >= any_mechanism(30, 1.0).epsilon(delta)


@pytest.mark.parametrize(("n", "central"), [(2, 0.3), (4, 0.1), (5, 0.6)])
def test_the_lower_bound_is_reached(n: int, central: float) -> None:
    """Others who all hold a third record: the same number at t = 3, and no less with more outcomes."""
    for outcomes in (3, 4):
        laws = [favouring([chosen], outcomes, E1 / UNIT) for chosen in range(3)]
        truth = divergence(laws[0], laws[1], [laws[2]] * (n - 1), central)
        claimed = lower_bound(n, 1, outcomes, E1, UNIT).delta(central)
        assert claimed <= truth * (1 + 1e-4)
        if outcomes == 3:
            assert claimed == pytest.approx(truth, rel=1e-4)


def test_the_lower_bound_needs_three_disjoint_sets() -> None:
    with refused("t >= 3s", "11", "3 * 4"):
        lower_bound(1000, 4, 11, E1, UNIT)


def test_the_published_theorem_is_below_the_bound_where_they_differ() -> None:
    for n, central in ((4, 0.6), (30, 0.3), (1000, 0.1)):
        theorem, bound = (
            published(n, 4, 17, E1, UNIT).delta(central),
            response(n, 4, 17, E1, UNIT).delta(central),
        )
        assert theorem < bound
    assert published(1000, 4, 17, E1, UNIT).bound.endswith("not an upper bound")


# The comparison


def test_the_published_setting_has_the_papers_buckets() -> None:
    assert response_weights(published_setting(1.0, 4)) == (4, 17, E1, UNIT)


def test_compare_has_every_bound_or_none_where_it_does_not_apply() -> None:
    rows = compare(lambda epsilon: published_setting(epsilon, 4), [0.25, 2.0], [1_000_000], 1e-6)
    low, high = rows
    assert [row["epsilon"] for row in rows] == [0.25, 2.0]
    assert low["EFMRTT19"] is not None
    assert high["EFMRTT19"] is None
    for row in rows:
        present = {name: row[name] for name in BOUNDS if row[name] is not None}
        upper = [
            value for name, value in present.items() if name not in ("lower bound", "as published (no bound)")
        ]
        assert row["hubbub"] == min(upper)
        assert row["lower bound"] <= row["hubbub"] <= row["epsilon"]
        best = min(row[name] for name in bounds.EARLIER if row[name] is not None)
        assert row["saved"] == pytest.approx(1 - row["hubbub"] / best)
        assert 0.15 < row["saved"] < 0.25


def test_how_much_is_saved() -> None:
    """The corrected statement for Collision as published, from ten thousand reports on."""
    rows = compare(lambda epsilon: published_setting(epsilon, 4), [0.1, 0.5, 1, 2, 5], [10**4, 10**6], 1e-6)
    claims = {"clones": (0.175, 0.58), "any mechanism": (0.155, 0.35), "blanket, specific": (0.155, 0.29)}
    for earlier, (least, most) in claims.items():
        saved = [1 - row["hubbub"] / row[earlier] for row in rows]
        assert least <= min(saved) < least + 0.02
        assert most - 0.02 < max(saved) < most + 0.005
    assert all(row["EFMRTT19"] > 15 * row["hubbub"] for row in rows if row["EFMRTT19"] is not None)
    gaps = [row["hubbub"] / row["lower bound"] - 1 for row in rows if row["lower bound"] is not None]
    assert max(gaps) < 3e-4


def test_compare_without_response_weights() -> None:
    def make(epsilon: float) -> Mechanism:
        return make_mechanism("sparse_sum", epsilon=epsilon, max_entries=4)

    (row,) = compare(make, [1.0], [1_000_000], 1e-6)
    for name in ("blanket, specific", "as published (no bound)", "lower bound"):
        assert row[name] is None
    assert row["hubbub"] == row["any mechanism"] < row["clones"]


def test_the_figure_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = compare(lambda epsilon: published_setting(epsilon, 2), [0.25, 1.0], [10**6, 10**8], 1e-6)
    draw(rows, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.startswith("<?xml")
    draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with refused("cannot be written"):
        draw(rows, tmp_path / "nowhere" / "figure.png")
