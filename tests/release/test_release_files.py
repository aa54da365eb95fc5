"""Tables in, files out: the rules for untidy tables, the plan, and a file that is whole or refused."""

from __future__ import annotations

import base64
import hashlib
import math
import mmap
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import contents, only_refused, refused, steady
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.envelope import Envelope
from hubbub.release import Goal, Release, build, describe, plan, publish
from hubbub.release.alp import Alp
from hubbub.release.amounts import Amounts
from hubbub.release.artifact import Parameters
from hubbub.release.design import SHARE, split
from hubbub.release.goal import ALGORITHMS
from hubbub.release.keyspace import ALL, KeySpace
from hubbub.release.publisher import make_goal, simulate
from hubbub.release.sizes import estimate_sizes
from hubbub.release.threshold import Threshold
from hubbub.release.vector import Values, Vector, make_vector
from hubbub.tables.counts import read_keys, read_table

COUNTS = Values(max_value=100)


def column(values: list[Any]) -> np.ndarray:
    return np.asarray(values)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


# Untidy tables


def test_repeated_keys_are_summed_zeros_dropped_and_large_values_clipped() -> None:
    vector, summary = make_vector(COUNTS, ids(5, 3, 5, 9, 3), column([60, 1, 70, 0, 1]))
    assert vector.ids.tolist() == [3, 5]
    assert vector.amounts.steps.tolist() == [2, 100]
    assert (summary.rows, summary.nonzero, summary.merged, summary.clipped) == (5, 2, 2, 1)
    assert summary.total == 102


def test_sums_that_would_wrap_around_are_clipped() -> None:
    vector, _ = make_vector(COUNTS, ids(*[1] * 4096), column([1 << 62] * 4096))
    assert vector.amounts.steps.tolist() == [100]


def test_unsigned_columns_are_read() -> None:
    vector, _ = make_vector(COUNTS, ids(1, 2), np.array([7, (1 << 64) - 1], dtype=np.uint64))
    assert vector.amounts.steps.tolist() == [7, 100]


def test_signed_values_keep_their_sign() -> None:
    signed = Values(max_value=100, signed=True)
    vector, summary = make_vector(signed, ids(1, 2, 3), column([-500, 7, 500]))
    assert vector.amounts.steps.tolist() == [-100, 7, 100]
    assert summary.clipped == 2


@pytest.mark.parametrize(
    ("values", "raw", "why"),
    [
        (COUNTS, [1.0, math.nan], "finite"),
        (COUNTS, [math.inf, 1.0], "finite"),
        (COUNTS, [1.5, 1.0], "whole number"),
        (COUNTS, [-1, 1], "below 0"),
        (Values(kind="reals", max_value=1), [-0.5, 1.0], "below 0"),
        (COUNTS, ["a", "b"], "numbers"),
        (COUNTS, [1], "2 keys but 1 values"),
    ],
)
def test_impossible_values_are_refused(values: Values, raw: list[Any], why: str) -> None:
    with refused(why):
        make_vector(values, ids(1, 2), column(raw))


def test_more_entries_than_declared_change_neither_size_nor_success() -> None:
    """Bounds fix the size; refusing or resizing would tell whether the data keep them."""
    goal = Goal(epsilon=1, max_nonzero=50, max_value=9, max_sum=200, algorithm="alp")
    few = build({f"k{i}": 1 for i in range(3)}, goal)
    many = build({f"k{i}": 9 for i in range(500)}, goal)
    assert many.summary.nonzero == 500
    sizes = [[a.nbytes for a in part.values()] for made in (few, many) for part in made.release.arrays]
    assert sizes[0] == sizes[1]


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 150), max_size=12))
@steady
def test_a_vector_is_the_clipped_table(table: dict[int, int]) -> None:
    vector, _ = make_vector(COUNTS, ids(*table), np.array(list(table.values()), dtype=np.int64))
    expected = sorted((key, min(value, 100)) for key, value in table.items() if value)
    assert list(zip(vector.ids.tolist(), vector.amounts.steps.tolist(), strict=True)) == expected


# Keys


def test_text_and_integer_keys() -> None:
    release = publish({"a": 40, "b": 2}, epsilon=8, max_sum=100)
    assert abs(release["a"] - 40) < 10
    table = (np.arange(40, dtype=np.int64), np.full(40, 30))
    whole = publish(table, epsilon=8, max_sum=2000, universe=1 << 63)
    assert whole.parameters.keys.kind == "integers"
    assert whole.query(np.arange(40)).value.mean() == pytest.approx(30, abs=3)
    assert whole["7"] == whole[7]
    with refused("key must be text"):
        publish({("a", "b"): 1}, epsilon=1, max_sum=100)
    with refused("whole number"):
        publish({"x": 1}, epsilon=1, max_sum=100, universe=10)


# Plans


def test_a_plan_is_a_function_of_public_bounds() -> None:
    goal = Goal(epsilon=1, max_sum=5000, max_value=1000)
    first, second = plan(goal, salt="ab" * 16), plan(goal, salt="ab" * 16)
    assert first.parameters == second.parameters
    for table in ({}, {"a": 1}, {f"k{i}": 3 for i in range(900)}):
        made = build(table, goal).release.parameters
        assert made.parts == first.parameters.parts
        assert made.values == first.parameters.values


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_every_algorithm_plans_builds_and_answers(algorithm: str, delta: float) -> None:
    """Budgets add up to at most what was asked, and large values come back within a factor or a few units."""
    goal = make_goal(
        epsilon=2, delta=delta, universe=1 << 12, max_nonzero=300, max_value=2000, algorithm=algorithm
    )
    table = {key: 1000 if key < 20 else 2 for key in range(300)}
    made = simulate(table, goal, seed=4)
    parameters = made.release.parameters
    assert parameters.algorithm == algorithm
    assert sum(Fraction(part.epsilon) for part in parameters.parts) <= Fraction(2)
    assert (
        sum(part.delta for part in parameters.parts)
        == parameters.delta
        == (delta if "thr" in algorithm else 0)
    )
    found = np.median(made.release.query(list(range(20))).value)
    assert 500 < found < 2000 if "log" in algorithm else abs(found - 1000) < 20


def test_the_planned_choice_fits_the_bounds() -> None:
    assert plan(Goal(epsilon=1, universe=1000)).chosen.algorithm == "laplace"
    assert plan(Goal(epsilon=1, max_sum=50_000, max_value=5000)).chosen.algorithm == "alp"
    huge = plan(Goal(epsilon=1, max_nonzero=10_000, max_value=1e9))
    assert huge.chosen.algorithm == "threshold-alp"
    assert "alp" in huge.unsuitable
    with refused("alp", "cells"):
        plan(Goal(epsilon=1, max_nonzero=1 << 34, max_value=100, algorithm="alp"))
    with refused("laplace", "possible keys"):
        plan(Goal(epsilon=1, max_sum=10, algorithm="laplace"))
    with refused("threshold would list 500,000,000,000 keys"):  # each of them is drawn, and in memory
        plan(Goal(epsilon=1, max_nonzero=10**13))
    assert plan(Goal(epsilon=1, delta=1e-6, max_nonzero=10**13)).chosen.algorithm == "threshold"
    with refused("max_nonzero or max_sum"):
        plan(Goal(epsilon=1))


def test_predictions_come_true() -> None:
    """Predicted mean error against measured, within 12%, at small, middle and large counts; 30% off would not pass."""
    goal = Goal(
        epsilon=1, universe=1 << 32, max_nonzero=6000, max_value=3000, max_sum=4_200_000, algorithm="alp"
    )
    chosen = plan(goal).chosen
    small, middle, large = (round(value) for value in plan(goal).probes)
    table = {key: (small, middle, large)[key % 3] if key < 4500 else 1 for key in range(6000)}
    release = simulate(table, goal, seed=2).release
    for place, predicted in enumerate((chosen.small, chosen.middle, chosen.large)):
        keys = list(range(place, 4500, 3))
        measured = np.abs(release.query(keys).value - table[place]).mean()
        assert measured == pytest.approx(predicted, rel=0.12)


@given(st.floats(1e-6, 16), st.sampled_from([0.05, 0.15, 0.25, 0.4]))
@steady
def test_budgets_are_split_without_rounding_up(epsilon: float, share: float) -> None:
    first, second = split(epsilon, share)
    assert Fraction(first) + Fraction(second) <= Fraction(epsilon)
    assert first + second == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 17}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1, "delta": 0.5}, "delta"),
        ({"epsilon": 1, "max_value": -1}, "max_value"),
        ({"epsilon": 1, "algorithm": "magic"}, "algorithm"),
        ({"epsilon": 1, "colour": 1}, "colour"),
    ],
)
def test_impossible_goals_are_refused(fields: dict[str, Any], why: str) -> None:
    with refused(why):
        make_goal(**fields)


# Unknown sizes


def test_missing_bounds_are_estimated_with_a_share_of_the_budget() -> None:
    table = {f"k{i}": 5 for i in range(2000)}
    release = publish(table, epsilon=1)
    sizes = release.parameters.sizes
    assert sizes is not None
    assert sizes.epsilon == SHARE
    assert 10_000 < sizes.total < 12_000
    assert sizes.nonzero is not None
    assert 2000 < sizes.nonzero < 4000
    spent = Fraction(sizes.epsilon) + sum(Fraction(part.epsilon) for part in release.parameters.parts)
    assert spent <= Fraction(release.guarantee().epsilon) == 1


def test_size_estimates_are_upper_estimates() -> None:
    """Odds of 1e-6 to fall short: at most 2 in 2,000 (rate 2e-9); the margin is right within 1, not 30% off."""
    vector = Vector(ids(*range(50)), Amounts.of(np.full(50, 3), 0))
    coins = InsecureCoins(6)
    totals = np.array([estimate_sizes(vector, COUNTS, 0.5, coins).total for _ in range(2000)])
    assert (totals < 150).sum() <= 2
    margin = -math.log(1e-6 * (1 + math.exp(-0.25))) / 0.25
    assert abs(totals.mean() - 150 - margin) < 1 + 5.5 * 4 * math.sqrt(2 / 2000) < 0.3 * margin
    reals = Values(kind="reals", max_value=10, fraction_bits=3)
    found = estimate_sizes(Vector(ids(1), Amounts.of(np.array([2.5]), 3)), reals, 0.5, coins)
    assert found.nonzero is None
    assert found.total >= 2.5


# Files


def small() -> Release:
    """A release with fixed arrays: two parts, an empty list, a filled array."""
    space = KeySpace(kind="text", salt="00112233445566778899aabbccddeeff")
    parts = (
        Threshold.make(COUNTS, space, 0.5, extra=1),
        Alp.make(COUNTS, 0.5, span=128, levels=8, gap=3),
    )
    parameters = Parameters(algorithm="threshold-alp", values=COUNTS, keys=space, parts=parts, epsilon=1.0)
    bits = np.arange(16, dtype=np.uint8)
    arrays = (
        {
            "ids": ids(7, 1 << 60).astype("<u8"),
            "values": np.array([90, 77], dtype=parts[0].shapes(COUNTS, space)["values"][0]),
        },
        {"bits": bits, "density": np.array([0.25])},
    )
    return Release(parameters, arrays)


def test_the_format_is_pinned(tmp_path: Path) -> None:
    """Version 1, byte for byte. A change here needs a new version, and this file must stay readable."""
    written = small().save(tmp_path / "a.hub")
    data = (tmp_path / "a.hub").read_bytes()
    assert written == len(data)
    assert hashlib.sha256(data).hexdigest() == GOLDEN_DIGEST
    (tmp_path / "old.hub").write_bytes(base64.b85decode(GOLDEN_FILE))
    old = Release.open(tmp_path / "old.hub")
    assert old.parameters == small().parameters
    assert old.query(["a", "b"]).value.tolist() == small().query(["a", "b"]).value.tolist()


def test_a_file_answers_like_the_release_it_was_saved_from(tmp_path: Path) -> None:
    table = {f"k{i}": i + 1 for i in range(300)}
    for goal in (
        {"epsilon": 1, "max_sum": 50_000},
        {"epsilon": 1, "max_nonzero": 300, "max_value": 1e6, "delta": 1e-6, "signed": True},
        {"epsilon": 1, "max_sum": 50_000, "kind": "reals", "estimator": "median"},
        {"epsilon": 1, "max_nonzero": 300, "max_value": 400, "algorithm": "threshold-max"},
    ):
        release = publish(table, **goal)
        path = tmp_path / "a.hub"
        release.save(path)
        opened = Release.open(path)
        asked = [*table, "nobody"]
        for one, two in zip(release.query(asked).rows(), opened.query(asked).rows(), strict=True):
            assert one == two
        assert opened.guarantee() == release.guarantee()
        assert opened.parameters == release.parameters
        assert describe(path)["file_bytes"] == path.stat().st_size


def test_arrays_are_mapped_not_loaded(tmp_path: Path) -> None:
    small().save(tmp_path / "a.hub")
    array = Release.open(tmp_path / "a.hub").arrays[1]["bits"]
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, memoryview)
    assert isinstance(owner.obj, mmap.mmap)
    assert not array.flags.writeable
    assert Release.open(tmp_path / "a.hub").arrays[0]["ids"].flags.aligned


def test_damaged_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.hub"
    small().save(path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with refused():
            Release.open(path)
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with refused(str(path)):
            Release.open(path)
    path.write_bytes(data + b"x")
    with refused("longer"):
        Release.open(path)
    path.write_bytes(Envelope(b"R", 1, bytes(16), 0, b"", b"").seal())
    with refused("holds reports"):
        Release.open(path)
    path.write_text("key,count\n")
    with refused("not a hubbub file"):
        Release.open(path)
    with refused("cannot be read"):
        Release.open(tmp_path / "nothing.hub")
    with refused("cannot be read"):
        Release.open(tmp_path)


@given(st.data())
@steady
def test_sealed_nonsense_is_refused_or_answers(data: st.DataObject) -> None:
    """Parameters and lengths of a well-sealed file can still lie; that must not crash or read past the end."""
    import tempfile

    release = small()
    task = release.parameters.model_dump_json(exclude_none=True)
    old, new = data.draw(
        st.sampled_from(
            [
                ('"span":128', '"span":129'),
                ('"span":128', '"span":4096'),
                ('"levels":8', '"levels":0'),
                ('"levels":8', '"levels":5'),
                ('"name":"alp"', '"name":"alq"'),
                ('"format":1', '"format":2'),
                ('"kind":"counts"', '"kind":"reals"'),
                ('"max_value":100.0', '"max_value":1e99'),
                ('"epsilon":1.0', '"epsilon":"much"'),
            ]
        )
    )
    payload = bytearray(data.draw(st.binary(max_size=120)))
    forged = Envelope(b"A", 0, bytes(16), 2, task.replace(old, new).encode(), bytes(payload)).seal()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.hub"
        path.write_bytes(forged)
        opened = only_refused(lambda: Release.open(path))
        assert opened is None or len(opened.query(["a"])) == 1


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    before = contents(tmp_path)
    with refused("cannot be written"):
        small().save(tmp_path / "taken")
    with refused("cannot be written"):
        small().save(tmp_path / "nowhere" / "a.hub")
    assert contents(tmp_path) == before


def test_simulated_releases_are_not_written(tmp_path: Path) -> None:
    made = simulate({"a": 1}, Goal(epsilon=1, max_sum=10), seed=1)
    with refused("seeded coins"):
        made.release.save(tmp_path / "a.hub")
    assert contents(tmp_path) == {}


def test_parameters_cannot_spend_more_than_they_state() -> None:
    parameters = small().parameters.model_dump()
    with pytest.raises(ValueError, match="spend more"):
        Parameters(**{**parameters, "epsilon": math.nextafter(1.0, 0)})
    with pytest.raises(ValueError, match="spend more"):
        Parameters(**{**parameters, "sizes": {"epsilon": 1e-9, "total": 1.0}})


def test_releases_of_the_same_table_differ() -> None:
    """Salt and coins are fresh each time."""
    one, two = (publish({"a": 5}, epsilon=1, max_sum=100) for _ in range(2))
    assert one.parameters.keys.salt != two.parameters.keys.salt
    assert one.arrays[0]["bits"].tobytes() != two.arrays[0]["bits"].tobytes()


def test_the_whole_of_64_bits_is_a_universe() -> None:
    """Pure threshold over 2^64 coordinates: the extra entries are about as many as planned."""
    goal = Goal(epsilon=1, universe=ALL, max_nonzero=4000, algorithm="threshold")
    made = simulate({(1 << 64) - 1 - key: 3 for key in range(10)}, goal, seed=3)
    listed = made.release.arrays[0]["ids"]
    assert 130 < len(listed) <= 200 + 5.5 * math.sqrt(200)
    assert (np.diff(listed.astype(np.float64)) > 0).all()
    assert int(listed.max()) > 1 << 62


# Tables on disk


def test_reading_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeffurl,n,x\n"a,b",3,1\n\nc,4.0,2\n', encoding="utf-8")
    keys, numbers = read_table(path, ["url", "n"])
    assert keys == ["a,b", "c"]
    assert numbers.tolist() == [3, 4]
    assert read_table(path, ["url", "x"], "reals")[1].dtype == np.float64
    assert read_table(path, ["x", "url"], "none") == (["1", "2"], ["a,b", "c"])
    (tmp_path / "keys").write_text("a b\nc\n")
    assert read_keys(tmp_path / "keys") == ["a b", "c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("url,m\n", "no column 'n'"),
        ("url,n,n\n", "more than one column 'n'"),
        ("url,n\na,1\nb,many\n", "line 3: 'many'"),
        ("url,n\na,1.5\n", "line 2: '1.5'"),
        ("url,n\na,nan\n", "line 2: 'nan'"),
        ("url,n\na,inf\n", "line 2: 'inf'"),
        ("url,n\na,1,2\n", "line 2: 3 columns"),
        ("url,n\na\n", "line 2: 1 columns"),
    ],
)
def test_untidy_tables_are_refused_with_their_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with refused(why, str(path)):
        read_table(path, ["url", "n"])


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"url,n\n\xff\xfe,1\n")
    with refused("UTF-8"):
        read_table(tmp_path / "t.csv", ["url", "n"])
    with refused("UTF-8"):
        read_keys(tmp_path / "t.csv")
    with refused("cannot be read"):
        read_keys(tmp_path / "none")


GOLDEN_DIGEST = "fa5be547e54d710c491bff2e7ef003ab95b124074470791a670e657bad0cc538"
GOLDEN_FILE = (
    "Xmw&@K>+{&VfBiq)zsyHfUgw+s&Jp!0ssI20000000IC200000Pyhe`00000dm?6Ua&2LBB04cFB4KQ2Z*pmLXl)`oB6MhSW"
    "pik6Y-BBAY;YnhB6eYHb!BrRI(s5(X>Md9IwE6lb#8QXA}k_vX=iR_WFk6dVQh0{EFx`Tcwcs5Y;|QKIx#RXE-)-2W^!R;bZ"
    "KvHUt(!=b0Ru0eJmntWqETVI(s5(X>Md9IwEvscyuBxB6V(Qc4cyNWg<E;I5adiH#9UbH#0XdIW;vgHZe9VB6DGEbRs$;Ffc"
    "JOGBPtWG&D6eHa0gmI5;^uVPRroV`F4wWo2e&B7H0(aA9(Eb0Ruhdm?UOZDk@lB6MhSWpik6Y-A!VB4u!MX>4z9B04ZGH7p`"
    "zWo&d|B04ZGFf1Z-V_|G%B05_!FgZCjF)=nWH#avnEHyMaH#IdlF*7(gI9)6vbZByAb7*gDWFk5^I4mM;X>DnAB04fMIDIU8"
    "B5q-AWg<EvVQg?BEFxuab7^dEZX!A`E;TG7WMyo0VIn#(E-)-2Y+-qCb#x*+B6DbAa%E&9EFyDoVQwNiF)}zTB5Y-LWo&aII"
    "yfvMXJK$6Ix{RHXL4_MbZ8<vF)lDHB4%u9a3VS}F*Z0hH83<XH8(ahGczzVIW~P=EFxudbZKp2bZ>GZIwE0mXKi74A}k_haC"
    "2#FZ*C$wF)lDHB4lN3bYUVoFfK5C0ssI2000002LJ#700000000000000G0ssI200000S^!M|000005C8xG00000009C61O)"
    "~M2nh-c3=Iws0RR910000000000007WG{hc&6XEIWH?e2z#TqPGo"
)
