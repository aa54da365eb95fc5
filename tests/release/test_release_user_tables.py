"""Tables with users: what counts of them, plans, files and words, and the error that a user's protection costs."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import fits, refused, steady, tilted
from hubbub.primitives.coins import InsecureCoins
from hubbub.release import Goal, Release, build, describe, plan, publish
from hubbub.release.alp import Alp
from hubbub.release.amounts import Amounts
from hubbub.release.artifact import Parameters
from hubbub.release.goal import ALGORITHMS
from hubbub.release.keyspace import KeySpace
from hubbub.release.publisher import make_goal, simulate
from hubbub.release.threshold import Threshold
from hubbub.release.users import NOBODY, Tally, Users, bound_users, owners_of
from hubbub.release.vector import Values

COUNTS = Values(max_value=100)
REALS = Values(kind="reals", signed=True, max_value=100, fraction_bits=3)

Counted = dict[tuple[int, int], float]


def bounded(users: Users, values: Values, rows: list[tuple[Any, int, float]]) -> tuple[Counted, Tally]:
    """What counts, by user and key: every user gets keys of its own, so that one can tell."""
    owners = owners_of([user for user, _, _ in rows])
    ids = np.array([1000 * owner + key for owner, (_, key, _) in zip(owners, rows, strict=True)])
    kind = np.int64 if values.kind == "counts" else np.float64
    amounts = Amounts.of(np.array([value for _, _, value in rows], dtype=kind), values.fraction_bits)
    found, left, tally = bound_users(users, values, owners, ids.astype(np.uint64), amounts, InsecureCoins(1))
    signs = np.where(left.steps < 0, -1, 1)
    sizes = (signs * left.sizes() * values.step).tolist()
    return {divmod(i, 1000): size for i, size in zip(found.tolist(), sizes, strict=True)}, tally


# What counts


def test_rows_of_a_user_are_added_clipped_and_sampled() -> None:
    rows = [("a", 1, 2), ("a", 1, 2), ("a", 2, 1), ("b", 1, 9), ("b", 2, 0), ("", 1, 5), (None, 2, 5)]
    counted, tally = bounded(Users(max_entries=2, max_contribution=3), COUNTS, rows)
    assert counted == {(0, 1): 3, (0, 2): 1, (1, 1): 3}
    assert tally == Tally(2, 0, 0, 2, 2)
    counted, tally = bounded(Users(max_entries=1, max_contribution=3), COUNTS, rows)
    assert len(counted) == 2
    assert counted[(1, 1)] == 3
    assert (tally.sampled_users, tally.dropped_entries) == (1, 1)


def test_real_contributions_are_added_exactly_before_they_are_clipped() -> None:
    rows = [("a", 1, 1e300), ("a", 1, 0.25), ("a", 1, -1e300), ("a", 2, -7.0), ("b", 1, 5e-324)]
    counted, tally = bounded(Users(max_entries=9, max_contribution=2), REALS, rows)
    assert counted == {(0, 1): 0.25, (0, 2): -2, (1, 1): 0}
    assert tally.clipped_contributions == 1


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(-3, 3)), max_size=40),
    st.integers(1, 4),
    st.integers(1, 4),
)
@steady
def test_no_user_counts_for_more_than_allowed(
    rows: list[tuple[Any, int, float]], limit: int, most: int
) -> None:
    signed = Values(max_value=100, signed=True)
    counted, _ = bounded(Users(max_entries=limit, max_contribution=most), signed, rows)
    owners = owners_of([user for user, _, _ in rows]).tolist()
    for owner in set(owners):
        mine = {key: value for (who, key), value in counted.items() if who == owner}
        sums: dict[int, float] = {}
        for whose, (_, key, value) in zip(owners, rows, strict=True):
            if whose == owner:
                sums[key] = sums.get(key, 0) + value
        expected = {key: max(-most, min(most, value)) for key, value in sums.items() if value}
        assert len(mine) == min(limit, len(expected))
        assert mine.items() <= expected.items()


def test_users_have_one_name() -> None:
    assert owners_of(["x", 17, "17", None, "", np.int64(17), "y"]).tolist() == [0, 1, 1, NOBODY, NOBODY, 1, 2]
    assert owners_of(np.array([5, 6, 5])).tolist() == [0, 1, 0]
    for wrong in (1.5, True, b"x", ("a",)):
        with refused("user must be text"):
            owners_of([wrong])


def test_samples_of_many_users_are_uniform() -> None:
    """5000 users with 4 keys, by the compiled sampler: pairs are equally likely (false alarms 1e-6), 30% off is not."""
    count = 5000
    owners, ids = np.repeat(np.arange(count), 4), np.tile(np.arange(4, dtype=np.uint64), count)
    amounts = Amounts.of(np.ones(4 * count, dtype=np.int64), 0)
    users = Users(max_entries=2, max_contribution=1)
    kept, _, tally = bound_users(users, COUNTS, owners, ids, amounts, InsecureCoins(4))
    assert tally.dropped_entries == 2 * count
    pairs = np.sort(kept.reshape(count, 2).astype(int), axis=1)
    counts = np.unique(pairs[:, 0] * 4 + pairs[:, 1], return_counts=True)[1]
    assert fits(counts, [1 / 6] * 6)
    assert not fits(counts, tilted([1 / 6] * 6))


# Columns and goals


@pytest.mark.parametrize(
    ("table", "fields", "why"),
    [
        ({"a": 1}, {"max_entries": 2}, "users and keys"),
        ((["u"], ["k"], [1]), {}, "Two columns"),
        ((["u"], ["k"], [1]), {"max_entries": 2}, "max_contribution"),
        ((["u"], ["k"]), {"max_entries": 2, "max_contribution": 2}, "there are none"),
        ((["u", "v"], ["k"]), {"max_entries": 2}, "2 users, 1 keys"),
        ((["u"], ["k"], [1, 2]), {"max_entries": 2, "max_contribution": 2}, "2 values"),
        (([1.5], ["k"]), {"max_entries": 2}, "user must be text"),
    ],
)
def test_columns_must_fit_the_goal(table: Any, fields: dict[str, Any], why: str) -> None:
    with refused(why):
        publish(table, epsilon=1, max_sum=100, **fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_entries": 0}, "max_entries"),
        ({"max_contribution": 2}, "max_entries as well"),
        ({"max_entries": 1, "max_contribution": 1.5}, "whole number"),
        ({"max_entries": 1, "max_contribution": -1}, "max_contribution"),
    ],
)
def test_impossible_goals_are_refused(fields: dict[str, Any], why: str) -> None:
    with refused(why):
        make_goal(epsilon=1, max_sum=100, **fields)


def test_grids_that_cannot_be_are_refused() -> None:
    small = {"kind": "reals", "max_entries": 1, "max_contribution": 1e-12}
    with refused("too small"):
        plan(Goal(epsilon=1, max_sum=100, **small))
    with refused("max_value"):
        plan(Goal(epsilon=1, max_nonzero=9, max_value=2.0**40, **{**small, "max_contribution": 1e-6}))
    for algorithm in ("threshold", "alp", "log", "max"):
        tiny = {"epsilon": 1e-3, "max_entries": 1 << 20, "max_contribution": 1e9, "algorithm": algorithm}
        with refused("epsilon is too small"):
            plan(Goal(max_nonzero=100, max_value=1000, **tiny))


# Plans


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("limit", "most", "kind"), [(1, 1, "counts"), (16, 5, "counts"), (4, 0.3, "reals")])
def test_plans_spend_what_a_user_has(algorithm: Any, limit: int, most: float, kind: Any) -> None:
    """k B times the parts' epsilons is at most epsilon, and nearly all of it; thresholds with delta know k."""
    for delta in (0.0, 1e-6):
        bounds = {"universe": 1000, "max_nonzero": 300, "max_value": 2000}
        each = {"max_entries": limit, "max_contribution": most}
        goal = Goal(epsilon=1, delta=delta, kind=kind, algorithm=algorithm, **bounds, **each)
        if (algorithm, kind) == ("histogram", "reals"):
            with refused("is for counts"):
                plan(goal)
            continue
        parameters = plan(goal).parameters
        assert parameters.users is not None
        assert float(parameters.users.max_contribution) == pytest.approx(most, rel=0.01)
        spent = sum(Fraction(part.epsilon) for part in parameters.parts) * parameters.users.reach
        assert 1 - 1e-12 < spent <= 1
        for part in parameters.parts:
            assert not isinstance(part, Threshold) or part.changed == (limit if delta else None)
        assert parameters.guarantee().unit == "user"
        assert parameters.delta == (delta if "threshold" in algorithm else 0)


def test_a_budget_that_forgets_users_is_refused() -> None:
    parameters = plan(Goal(epsilon=1, max_sum=1000, max_entries=4)).parameters
    fields = parameters.model_dump()
    with pytest.raises(ValueError, match="spend more"):
        Parameters(**{**fields, "users": {"max_entries": 5, "max_contribution": 1.0}})
    with pytest.raises(ValueError, match="knows no users"):
        Parameters(**{**fields, "format": 1})
    with pytest.raises(ValueError, match="says what a user"):
        Parameters(**{**fields, "users": None})
    with pytest.raises(ValueError, match="whole number of steps"):
        Parameters(**{**fields, "users": {"max_entries": 1, "max_contribution": 0.5}})
    listed = plan(
        Goal(epsilon=1, delta=1e-6, max_nonzero=99, max_entries=4, algorithm="threshold")
    ).parameters
    with pytest.raises(ValueError, match="number of changed entries"):
        Parameters(**{**listed.model_dump(), "users": {"max_entries": 3, "max_contribution": 1.0}})


def test_missing_bounds_are_estimated_per_user() -> None:
    """A twentieth of epsilon, divided by what a user can move; noise on the sum grows accordingly."""
    rows = 2000
    table = [f"u{i % 500}" for i in range(rows)], [f"k{i}" for i in range(rows)]
    made = build(table, Goal(epsilon=1, max_entries=4))
    sizes, users = made.release.parameters.sizes, made.release.parameters.users
    assert sizes is not None
    assert users is not None
    assert sizes.epsilon * float(users.reach) == pytest.approx(0.05)
    assert rows < sizes.total < rows + 2 * 4 * 14 / 0.05 * 2.5
    spent = Fraction(sizes.epsilon) + sum(Fraction(part.epsilon) for part in made.release.parameters.parts)
    assert spent * users.reach <= 1


# Errors


@pytest.mark.parametrize("limit", [1, 4])
def test_the_error_is_that_of_noise_for_all_keys_of_a_user(limit: int) -> None:
    """Scale k / epsilon on 8000 keys: mean error within 6.2% (5.5 deviations, false alarms below 1e-6), not 30% off."""
    universe = 8000
    table = np.arange(universe) // limit, np.arange(universe)
    goal = Goal(epsilon=1, universe=universe, max_value=100, max_entries=limit, algorithm="laplace")
    made = simulate(table, goal, seed=limit)
    error = np.abs(made.release.query(np.arange(universe)).value - 1).mean()
    r = math.exp(-1 / limit)
    expected = 2 * r / (1 - r * r)
    assert error == pytest.approx(expected, rel=0.062)
    assert error != pytest.approx(1.3 * expected, rel=0.062)


def test_intervals_hold_what_counts() -> None:
    """95% intervals hold the number of users of a key when nobody has more keys than count (5.5 deviations)."""
    users, held = 4000, 3
    rng = np.random.default_rng(5)
    keys = (np.arange(users)[:, None] + rng.integers(0, 600, (users, 1)) * np.array([0, 1, 2])) % 2000
    table = np.repeat(np.arange(users), held), keys.ravel()
    goal = Goal(epsilon=1, universe=1 << 32, max_sum=20_000, max_value=50, max_entries=held, algorithm="alp")
    made = simulate(table, goal, seed=3)
    truth = np.bincount(np.unique(np.stack(table), axis=1)[1], minlength=2000)
    answers = made.release.query(np.arange(2000))
    covered = ((answers.low <= truth) & (truth <= answers.high)).mean()
    assert covered > 0.95 - 5.5 * math.sqrt(0.05 * 0.95 / 2000)


# Files and words


def small() -> Release:
    """A per-user release with fixed arrays."""
    space = KeySpace(kind="text", salt="00112233445566778899aabbccddeeff")
    users = Users(max_entries=4, max_contribution=2)
    parts = (
        Threshold.make(COUNTS, space, 0.0625, delta=1e-6, users=users),
        Alp.make(COUNTS, 0.0625, span=128, levels=8, gap=24),
    )
    fields = {"algorithm": "threshold-alp", "values": COUNTS, "keys": space, "parts": parts, "users": users}
    parameters = Parameters(format=2, epsilon=1.0, delta=1e-6, **fields)
    listed = {"ids": np.array([7, 1 << 60], dtype="<u8"), "values": np.array([400, 377], dtype="<i2")}
    return Release(parameters, (listed, {"bits": np.arange(16, dtype=np.uint8), "density": np.array([0.25])}))


def test_files_per_user_stay_as_they_are(tmp_path: Path) -> None:
    """Format 2, written now and read from before."""
    small().save(tmp_path / "a.hub")
    assert hashlib.sha256((tmp_path / "a.hub").read_bytes()).hexdigest() == GOLDEN_DIGEST
    (tmp_path / "old.hub").write_bytes(base64.b85decode(GOLDEN_FILE))
    old = Release.open(tmp_path / "old.hub")
    assert old.parameters == small().parameters
    assert old.query(["a", "b"]).value.tolist() == small().query(["a", "b"]).value.tolist()
    assert (
        json.dumps(describe(tmp_path / "old.hub")["users"]) == '{"max_entries": 4, "max_contribution": 2.0}'
    )


def test_a_file_carries_its_unit(tmp_path: Path) -> None:
    made = build((["a", "a", "b"], ["x", "y", "x"]), Goal(epsilon=2, max_sum=100, max_entries=2))
    made.release.save(tmp_path / "a.hub")
    opened = Release.open(tmp_path / "a.hub")
    assert opened.guarantee() == made.release.guarantee()
    assert opened.guarantee().unit == "user"
    assert opened.guarantee().short() == "Per user: epsilon = 2, central model"
    assert describe(tmp_path / "a.hub")["users"] == {"max_entries": 2, "max_contribution": 1.0}
    publish({"x": 1}, epsilon=2, max_sum=100).save(tmp_path / "b.hub")
    opened = Release.open(tmp_path / "b.hub")
    assert opened.guarantee().unit == "value"
    assert opened.guarantee().short() == "Per unit of value, not per person: epsilon = 2, central model"
    assert describe(tmp_path / "b.hub")["users"] is None


GOLDEN_DIGEST = "ea4f7e794b3a2dbbfa7b7cf95ff3159bea69c994c840ee1f76d006a20e260273"
GOLDEN_FILE = (
    "Xmw&@K>+{&`Ue>?qX<cpwv?)z+ZG?<0ssI200000NCE%=00000Pyhe`00000dm?6Ua&2LBB04fGB4KQ2Z*pmLXl)`oB6MhSWpik6"
    "Y-BBAY;YnhB6eYHb!BrRI(s5(X>Md9IwE6lb#8QXA}k_vX=iR_WFk6dVQh0{EFx`Tcwcs5Y;|QKIx#RXE-)-2W^!R;bZKvHUt(!="
    "b0Ru0eJmntWqETVI(s5(X>Md9IwEvscyuBxB6V(Qc4cyNWg<E;I5adiH#9UbH#0XdIW;vgHZe9VB6DGEbRs$;FfcJOGBPtWG&D6e"
    "Ha0gmI5;^uVPRroV`F4wWo2e&B7H0(aA9(Eb0Ruhdm?UOZDk@lB6MhSWpik6Y-A!VB4u!MX>4z9B04ZGFg7wZEFxrOY;<8FIx%G}"
    "HY_4@V_|G%B05_!FgZCjF)=nWH#avnEH*edF*!6hHa9aiT`VGWXmVw9Xm4y}B04fNH7p`*X>DnAB04cLH90IIV`yP+XJup}Iy8MO"
    "dm?UOZDk@lB4KQBA}k_haC2#FZ*C$wFfK4QGBqqBWMyo0VIn#(E-)-2Y+-qCb#x*+B6DbAa%E&9EFyDoVQwNiF)}zTB5Y-LWo&aI"
    "IyfvMXJK$6Ix;jYB4=`McXVhXIx#LVEFxxXX>cMsF)}$hI5amjI5#ynF*G+ZH!(SVT`VGHb98BKVRUbDB03^ra%XK}cp@w!b#rBM"
    "b0Ru>B5h%KUuAA|a%p9AB04lIB5h%KUt@1>baH88b#!TOZX!A|E--y8B4u!MX>4z9B04cHFf1ZuWo&d|B04c;EjE210ssI200000"
    "2LJ#700000000000000G0ssI200000kO6rC000005C8xG00000009C61O)~M2nh-c3=Iws0RR910000000000007WGKtVEH3Tlv-"
    "Zd)s3IC4tR"
)
