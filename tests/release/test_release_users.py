"""Per user: every pair of tables of which one has a user more, walked through the code that ships.

The unit is all rows of one user, added or removed. The variants at the end of each section forget the number
of keys, or the size of a contribution, or draw samples that depend on other users, and are found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from worlds import DUST, keys, outcome

from hubbub.checks.exact import Enumeration, Law, hockey_stick, worst_ratio
from hubbub.model.record import Entries, sample_down
from hubbub.primitives.coins import InsecureCoins
from hubbub.release import users as shipped
from hubbub.release.alp import Alp
from hubbub.release.artifact import Parameters, Release
from hubbub.release.keyspace import KeySpace
from hubbub.release.laplace import Laplace
from hubbub.release.maximum import MaxProjection
from hubbub.release.noise import tail
from hubbub.release.part import Part
from hubbub.release.threshold import Threshold
from hubbub.release.users import Users, bound_users, owners_of
from hubbub.release.vector import Values, Vector, add_up, read_amounts

EPSILON = 1.0
COUNTS = Values(max_value=3)
SIGNED = Values(max_value=3, signed=True)
REALS = Values(kind="reals", max_value=2, fraction_bits=1)

#: user -> {key: value}
Table = Mapping[str, Mapping[int, float]]


def counted(users: Users, values: Values, space: KeySpace, table: Table, coins: Any) -> Vector:
    """What counts of a table of users, added up."""
    rows = [(user, key, value) for user, record in table.items() for key, value in record.items()]
    owners = owners_of([user for user, _, _ in rows])
    ids = space.ids([key for _, key, _ in rows])
    amounts = read_amounts(values, [value for _, _, value in rows])
    ids, amounts, _ = bound_users(users, values, owners, ids, amounts, coins)
    return add_up(values, ids, amounts)[0]


class World:
    """Exact laws of releases of user tables: the vector first, then the release of every vector that can occur.

    The coins of the two are independent, so the law of the whole is the mixture; every vector is walked once.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._released: dict[Any, Law] = {}

    def law(self, table: Table) -> Law:
        p, vectors = self.parameters, {}

        def count(coins: Any) -> Any:
            assert p.users is not None
            vector = counted(p.users, p.values, p.keys, table, coins)
            place = tuple(a.tobytes() for a in (vector.ids, vector.amounts.steps, vector.amounts.digits))
            vectors[place] = vector
            return place

        whole: dict[Any, Any] = {}
        for place, weight in Enumeration().law(count).items():
            if place not in self._released:
                self._released[place] = self._release(vectors[place])
            for seen, mass in self._released[place].items():
                whole[seen] = whole.get(seen, 0) + weight * mass
        return whole

    def _release(self, vector: Vector) -> Law:
        def run(coins: Any) -> Any:
            made = Release.project(self.parameters, vector, coins)
            return tuple(outcome(arrays) for arrays in made.arrays)

        return Enumeration().law(run)  # type: ignore[return-value]


def sets(count: int) -> list[dict[int, float]]:
    """Every set of the first keys."""
    return [{key: 1.0 for key in range(count) if members >> key & 1} for members in range(1 << count)]


def tables(records: list[dict[int, float]]) -> Iterator[dict[str, dict[int, float]]]:
    """Every table of the users a and b; whoever has no rows is not there."""
    for one, two in product(records, records):
        yield {user: record for user, record in (("a", one), ("b", two)) if record}


def neighbours(records: list[dict[int, float]]) -> Iterator[tuple[Table, Table]]:
    """Tables, and the same without one of the users."""
    for table in tables(records):
        for gone in table:
            yield table, {user: record for user, record in table.items() if user != gone}


def named(table: Table) -> str:
    return repr({user: dict(record) for user, record in table.items()})


def losses(
    parameters: Parameters, pairs: Iterator[tuple[Table, Table]], measure: Callable[[Law, Law], float]
) -> float:
    """The worst of a measure over pairs of tables, both ways round."""
    world, laws = World(parameters), dict[str, Law]()
    worst = 0.0
    for one, two in pairs:
        for table in (one, two):
            if named(table) not in laws:
                laws[named(table)] = world.law(table)
        p, q = laws[named(one)], laws[named(two)]
        worst = max(worst, measure(p, q), measure(q, p))
    return worst


def log_ratio(p: Law, q: Law) -> float:
    return math.log(worst_ratio([p, q]))


def delta_at(epsilon: float) -> Callable[[Law, Law], float]:
    return lambda p, q: hockey_stick(p, q, epsilon)


def budget(users: Users, epsilon: float = EPSILON) -> float:
    """The share of epsilon for one unit of value."""
    share = epsilon / float(users.reach)
    return share if Fraction(share) * users.reach <= Fraction(epsilon) else math.nextafter(share, 0)


def parameters_of(
    users: Users, values: Values, space: KeySpace, parts: tuple[Part, ...], delta: float = 0.0
) -> Parameters:
    return Parameters(
        format=2,
        algorithm="tiny",
        values=values,
        keys=space,
        parts=parts,
        users=users,
        epsilon=EPSILON,
        delta=delta,
    )


def careless(parameters: Parameters, parts: tuple[Part, ...]) -> Parameters:
    """The same with other parts, past the check that would refuse them."""
    with pytest.raises(ValueError, match="spend more"):
        Parameters(**{**parameters.__dict__, "parts": parts})
    return parameters.model_copy(update={"parts": parts})


# Pure algorithms

Maker = Callable[[Values, KeySpace, float], tuple[Part, ...]]


def _laplace(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    return (Laplace(epsilon=epsilon, scale=values.scale(epsilon), limit=2),)


def _threshold(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    made = Threshold.make(values, space, epsilon, extra=1)
    return (made.model_copy(update={"threshold": 2, "limit": 3}),)


def _alp(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    return (Alp.make(values, epsilon, span=5, levels=1, gap=2),)


def _histogram(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    return (Alp.make(values, epsilon, span=5, levels=2, gap=1),)


def _log(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    return (Alp.make(values, epsilon, span=5, levels=1, gap=1, growth=2.0),)


def _max(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    return (MaxProjection(epsilon=epsilon, scale=values.scale(epsilon), limit=2, span=3, crowding=1),)


def _threshold_alp(values: Values, space: KeySpace, epsilon: float) -> tuple[Part, ...]:
    listed = Threshold.make(values, space, epsilon / 4, extra=1)
    small = listed.model_copy(update={"threshold": 1, "limit": 1})
    return small, Alp.make(values, 3 * epsilon / 4, span=3, levels=1, gap=1)


PURE: dict[str, Maker] = {
    "laplace": _laplace,
    "threshold": _threshold,
    "alp": _alp,
    "histogram": _histogram,
    "log": _log,
    "max": _max,
    "threshold-alp": _threshold_alp,
}


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("name", PURE)
def test_every_pure_algorithm_is_private_per_user(name: str, limit: int) -> None:
    """k = 1 of up to 2 keys, k = 2 of up to 3: at most epsilon, all of which is used; more when k is forgotten."""
    space, records = keys(limit + 1, seed=3), sets(limit + 1)
    users = Users(max_entries=limit, max_contribution=1)
    parameters = parameters_of(users, COUNTS, space, PURE[name](COUNTS, space, budget(users)))
    found = losses(parameters, neighbours(records), log_ratio)
    assert EPSILON - 1e-6 < found <= EPSILON + DUST
    if limit == 2:
        forgetful = careless(parameters, PURE[name](COUNTS, space, EPSILON))
        assert losses(forgetful, neighbours(records), log_ratio) > 2 * EPSILON - 1e-6


def replaced(records: list[dict[int, float]]) -> Iterator[tuple[Table, Table]]:
    """Tables whose user a has other rows."""
    for other in records:
        for one, two in combinations(records, 2):
            yield {"a": one, "b": other}, {"a": two, "b": other}


@pytest.mark.parametrize("limit", [1, 2])
def test_replaced_rows_cost_twice(limit: int) -> None:
    """Said in the guarantee: rows exchanged for others are rows removed and others added. It is no less, either."""
    space, records = keys(limit + 1), sets(limit + 1)
    users = Users(max_entries=limit, max_contribution=1)
    parameters = parameters_of(users, COUNTS, space, _laplace(COUNTS, space, budget(users)))
    found = losses(parameters, replaced(records), log_ratio)
    assert found <= 2 * EPSILON + DUST
    # With one key it is all of that; two keys cannot be exchanged for two others among three.
    assert found > (2 if limit == 1 else 1.5) * EPSILON - 1e-6
    assert "twice this epsilon" in parameters.guarantee().words()


# Contributions of more than 1, and reals


def test_larger_contributions_are_paid_for() -> None:
    """B = 2 in one of two keys: values up to 3 are clipped to it; forgetting B costs twice epsilon."""
    users, space = Users(max_entries=1, max_contribution=2), keys(2)
    records: list[dict[int, float]] = [{}, {0: 1}, {0: 3}, {1: 2}, {0: 3, 1: 1}]
    parameters = parameters_of(users, COUNTS, space, _laplace(COUNTS, space, budget(users)))
    found = losses(parameters, neighbours(records), log_ratio)
    assert (1 - 1e-6) * EPSILON <= found <= EPSILON + DUST
    forgetful = careless(parameters, _laplace(COUNTS, space, EPSILON))
    assert losses(forgetful, neighbours(records), log_ratio) > 1.9 * EPSILON


@pytest.mark.parametrize("values", [SIGNED, REALS], ids=["signed counts", "reals"])
@pytest.mark.parametrize("name", ["laplace", "alp"])
def test_signed_and_real_contributions(values: Values, name: str) -> None:
    """Fractions of a step, values beyond the bound, both signs. One jump of a real by a level uses ln(1 + epsilon)."""
    users, space = Users(max_entries=1, max_contribution=1), keys(2, seed=3)
    some = [0.25, 1.0, 1.75] if values.kind == "reals" else [-2.0, -1.0, 1.0]
    records: list[dict[int, float]] = [{}, *({0: value} for value in some), {0: some[0], 1: some[-1]}]
    parameters = parameters_of(users, values, space, PURE[name](values, space, budget(users)))
    found = losses(parameters, neighbours(records), log_ratio)
    assert math.log(2) * EPSILON <= found + DUST <= EPSILON + 2 * DUST


# Threshold with delta


def with_delta(users: Users, values: Values, delta: float, made_for: Users | None = None) -> Parameters:
    """A list with delta; `made_for` takes the threshold that other users would need."""
    space = keys(users.max_entries + 1)
    part = Threshold.make(values, space, budget(users), delta=delta, users=made_for or users)
    part = part.model_copy(update={"limit": part.threshold, "changed": users.max_entries})
    return parameters_of(users, values, space, (part,), delta)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("delta", [0.1, 0.05])
def test_delta_is_a_union_over_the_keys_of_a_user(limit: int, delta: float) -> None:
    """Needed is 1 - (1 - tau)^k, where all k keys are new: k tau <= delta is enough, one key's tau is not."""
    users = Users(max_entries=limit, max_contribution=1)
    parameters = with_delta(users, COUNTS, delta)
    part = parameters.parts[0]
    assert isinstance(part, Threshold)
    tau = float(tail(part.scale, part.threshold - 1))
    found = losses(parameters, neighbours(sets(limit + 1)), delta_at(EPSILON))
    assert found == pytest.approx(1 - (1 - tau) ** limit, rel=1e-9)
    assert found <= delta
    if limit == 2:
        single = with_delta(users, COUNTS, delta, made_for=Users(max_entries=1, max_contribution=1))
        assert losses(single, neighbours(sets(limit + 1)), delta_at(EPSILON)) > delta
        # A fair replacement: twice epsilon, and 1 + exp(epsilon) times delta.
        more = losses(parameters, replaced(sets(limit + 1)), delta_at(2 * EPSILON))
        assert more <= (1 + math.exp(EPSILON)) * delta


@pytest.mark.parametrize("values", [COUNTS, SIGNED, REALS], ids=["counts", "signed", "reals"])
def test_delta_of_larger_contributions(values: Values) -> None:
    """New keys may begin at B at once, change sign, or stay below a step; a threshold for 1 instead of B is too low."""
    users = Users(max_entries=1, max_contribution=1.5 if values.kind == "reals" else 2)
    some: list[float] = {COUNTS: [1, 2, 3], SIGNED: [-3, -1, 1, 2], REALS: [0.125, 0.5, 1.5, 2.0]}[values]
    records: list[dict[int, float]] = [{}, *({0: value} for value in some), {0: some[-1], 1: some[0]}]
    parameters = with_delta(users, values, 0.1)
    assert 0.04 < losses(parameters, neighbours(records), delta_at(EPSILON)) <= 0.1
    low = with_delta(
        users, values, 0.1, made_for=Users(max_entries=1, max_contribution=0.5 * users.steps(values))
    )
    if values.kind == "reals":
        low = with_delta(users, values, 0.1, made_for=Users(max_entries=1, max_contribution=0.5))
    assert losses(low, neighbours(records), delta_at(EPSILON)) > 0.1


def test_threshold_alp_with_delta_per_user() -> None:
    """List and array together: epsilons of both and delta of the list."""
    users, space = Users(max_entries=2, max_contribution=1), keys(2)
    listed = Threshold.make(COUNTS, space, 0.3, delta=0.3, users=users)
    small = listed.model_copy(update={"limit": listed.threshold})
    array = Alp.make(COUNTS, 0.2, span=2, levels=1, gap=1)
    parameters = parameters_of(users, COUNTS, space, (small, array), 0.3)
    records = sets(2)
    assert 0.1 < losses(parameters, neighbours(records), delta_at(EPSILON)) <= 0.3
    lower = small.model_copy(update={"threshold": small.threshold - 2})
    wrong = parameters.model_copy(update={"parts": (lower, array)})
    assert losses(wrong, neighbours(records), delta_at(EPSILON)) > 0.3


# The sample


def sample_law(table: Table, limit: int, keys_: int) -> Law:
    """The law of what counts: user by user is not visible, so the vector."""
    users, space = Users(max_entries=limit, max_contribution=1), keys(keys_)

    def run(coins: Any) -> tuple[int, ...]:
        vector = counted(users, COUNTS, space, table, coins)
        return tuple(np.repeat(vector.ids, vector.amounts.steps).tolist())

    return Enumeration().law(run)  # type: ignore[return-value]


@pytest.mark.parametrize(("limit", "held"), [(1, 4), (2, 4), (3, 5), (2, 2), (4, 2)])
def test_samples_are_uniform(limit: int, held: int) -> None:
    law = sample_law({"a": dict.fromkeys(range(held), 1)}, limit, 5)
    kept = list(combinations(range(held), min(limit, held)))
    assert law == dict.fromkeys(kept, Fraction(1, len(kept)))


def test_users_are_sampled_apart() -> None:
    """The law of two users' keys is the product of each one's."""
    held: dict[int, float] = {0: 1, 1: 1, 2: 1}
    both = sample_law({"a": held, "b": held}, 1, 3)
    assert both == {
        tuple(sorted((one, two))): Fraction(1 if one == two else 2, 9)
        for one in range(3)
        for two in range(one, 3)
    }


Sampler = Callable[[Entries, int, Any], Any]


def first_keys(entries: Entries, limit: int, coins: Any) -> Any:
    """Everybody's first keys."""
    places = np.arange(len(entries.ids)) - np.repeat(entries.offsets[:-1], np.diff(entries.offsets))
    kept = entries.ids[places < limit]
    return Entries(kept, np.zeros(len(kept), dtype=np.int64), entries.offsets), sample_down(
        entries, 99, coins
    )[1]


def one_known_stream(entries: Entries, limit: int, coins: Any) -> Any:
    """Pseudo-random samples from a seed: the same numbers every time, handed out in turn."""
    return sample_down(entries, limit, InsecureCoins(8))


def test_a_fixed_choice_is_private_but_not_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    """First keys only: no rows of others matter, so epsilon holds; but the other keys are never counted."""
    monkeypatch.setattr(shipped, "sample_down", first_keys)
    users, space = Users(max_entries=1, max_contribution=1), keys(2)
    parameters = parameters_of(users, COUNTS, space, _laplace(COUNTS, space, budget(users)))
    assert losses(parameters, neighbours(sets(2)), log_ratio) <= EPSILON + DUST
    assert sample_law({"a": {0: 1, 1: 1}}, 1, 2) == {(0,): 1}


@pytest.mark.parametrize("limit", [1, 2])
def test_a_known_seed_is_not_private(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """One user more shifts the numbers of the next, whose sample changes with certainty; secret coins pass."""
    users, space = Users(max_entries=limit, max_contribution=1), keys(2 * limit + 2)
    first, last = ({key + shift: 1.0 for key in range(limit + 1)} for shift in (0, limit + 1))
    records: list[dict[int, float]] = [{}, first, last]
    share = budget(users)
    parameters = parameters_of(
        users, COUNTS, space, (Laplace(epsilon=share, scale=COUNTS.scale(share), limit=1),)
    )
    assert losses(parameters, neighbours(records), log_ratio) <= EPSILON + DUST
    monkeypatch.setattr(shipped, "sample_down", one_known_stream)
    assert losses(parameters, neighbours(records), log_ratio) > 1.4 * EPSILON


def test_keys_chosen_by_popularity_are_not_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that sees everybody's keys: one user's rows decide which key of another counts."""

    def popular(users: Users, values: Values, owners: Any, ids: Any, amounts: Any, coins: Any) -> Any:
        counts = np.bincount(ids.astype(int), minlength=3)
        best = np.lexsort((ids, -counts[ids.astype(int)], owners))
        first = best[np.unique(owners[best], return_index=True)[1]]
        return ids[first], amounts.take(first), None

    users, space = Users(max_entries=1, max_contribution=1), keys(2)
    parameters = parameters_of(users, COUNTS, space, _laplace(COUNTS, space, budget(users)))
    monkeypatch.setitem(globals(), "bound_users", popular)
    assert losses(parameters, neighbours(sets(2)), log_ratio) > 1.4 * EPSILON
