"""Tasks: what a task file may say, and the digest that stands for it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import GOLDEN, only_refused, refused, small_task, steady
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

SALT = "ab" * 16
MECHANISM = {"name": "collision", "epsilon": 1.0, "max_entries": 4}
SMALL: dict[str, Any] = {"name": "pckv_grr", "epsilon": 1.0, "max_entries": 2, "size": 100}
PLAIN: dict[str, Any] = {
    "name": "pages",
    "keys": {"kind": "closed", "size": 100, "salt": SALT},
    "mechanism": MECHANISM,
}


def plain(**changes: Any) -> dict[str, Any]:
    """A valid task as plain data, with changes; dots lead into its tables, None takes a field out."""
    data = json.loads(json.dumps(PLAIN))
    for name, value in changes.items():
        table, _, field = name.rpartition("__")
        place = data[table] if table else data
        place[field] = value
        if value is None:
            del place[field]
    return data


# Files


@pytest.mark.parametrize(
    "data",
    [
        plain(),
        plain(low=0.1, high=1e22, period="week", reports_per_period=3, minimum_reports=50),
        plain(keys={"kind": "wide", "cohorts": 2}),
        plain(keys={"kind": "folded", "bits": 26}),
        plain(keys={"kind": "closed", "vocabulary": ["", "a b", 'q"\\', "ü\u2028\x7f\0\n\r\t", "#", "1"]}),
        plain(mechanism={**MECHANISM, "name": "coco", "target": "conditional", "family": "prf"}),
        plain(mechanism={**MECHANISM, "name": "sparse_sum", "unit": "l1", "distance": 2.5}),
        plain(mechanism={**MECHANISM, "name": "sparse_sum", "values": "signed", "as_published": True}),
    ],
)
def test_a_saved_task_is_the_same_task(data: Any, tmp_path: Path) -> None:
    """Every number that was chosen is in the file, and choosing again changes nothing."""
    task = Task.parse(data)
    task.save(tmp_path / "t.toml")
    back = Task.load(tmp_path / "t.toml")
    assert back == task
    assert back.digest == task.digest
    assert back.to_toml() == task.to_toml()
    assert Task.parse(json.loads(task.canonical)).digest == task.digest


@steady
@given(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True), st.text(min_size=1, max_size=20))
def test_any_text_survives_a_task_file(vocabulary: list[str], name: str) -> None:
    data = plain(name=name, keys={"kind": "closed", "vocabulary": vocabulary, "salt": SALT})
    task = only_refused(lambda: Task.parse(data))
    if task is not None:
        back = Task.parse(tomllib.loads(task.to_toml()))
        assert (back.name, back.keys.vocabulary) == (name, tuple(vocabulary))
        assert back.digest == task.digest


def test_golden_task_file() -> None:
    """A file of version 1, with its digest."""
    task = Task.load(GOLDEN / "task.toml")
    digests = [golden["digest"] for golden in json.loads((GOLDEN / "wire.json").read_text())]
    assert task.digest.hex() == digests[1]
    assert (task.low, task.high, task.mechanism.name) == (1.0, 5.0, "collision")
    assert task.keys.vocabulary == ("a", "b", "ü", "7")
    assert task.to_toml() == (GOLDEN / "task.toml").read_text()


# The digest


def test_the_digest_does_not_depend_on_spelling() -> None:
    task = Task.parse(plain())
    backwards = {key: PLAIN[key] for key in reversed(PLAIN)}
    assert Task.parse(backwards).digest == task.digest
    assert Task.parse(plain(low=-1, mechanism__epsilon=1)).digest == task.digest
    assert len(task.digest) == 16
    assert json.loads(task.canonical)["mechanism"]["buckets"] == task.mechanism.buckets


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other pages"},
        {"low": 0.0},
        {"high": 2.0},
        {"period": "day"},
        {"reports_per_period": 2},
        {"minimum_reports": 1},
        {"keys__size": 101},
        {"keys__bits": 17},
        {"keys__cohorts": 2},
        {"keys__salt": "ac" * 16},
        {"keys": {"kind": "folded", "salt": SALT}},
        {"mechanism__epsilon": 1.0000000000000002},
        {"mechanism__max_entries": 5},
        {"mechanism__values": "signed"},
        {"mechanism__family": "prf"},
        {"mechanism__buckets": 64},
        {"mechanism__seed_bits": 17},
    ],
    ids=str,
)
def test_any_change_is_another_task(change: dict[str, Any]) -> None:
    assert Task.parse(plain(**change)).digest != Task.parse(plain()).digest


def test_a_task_of_ones_own_has_a_salt_of_its_own() -> None:
    salts = {Task.parse(plain(keys__salt=None)).keys.salt for _ in range(3)}
    assert len(salts) == 3


# Refusals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"format": 2}, "format"),
        ({"colour": "red"}, "colour"),
        ({"low": 1.0, "high": 1.0}, "empty"),
        ({"low": -1e300, "high": 1e300}, "another unit"),
        ({"low": 0.0, "high": 5e-324}, "another unit"),
        ({"low": float("nan")}, "low"),
        ({"high": float("inf")}, "high"),
        ({"period": "year"}, "period"),
        ({"reports_per_period": 0}, "reports_per_period"),
        ({"minimum_reports": -1}, "minimum_reports"),
        ({"keys": None}, "keys"),
        ({"keys": 5}, "keys"),
        ({"keys__kind": "ajar"}, "keys.kind"),
        ({"keys__size": 0}, "keys.size"),
        ({"keys__size": -7}, "keys.size"),
        ({"keys__size": "many"}, "keys.size"),
        ({"keys__size": 1 << 40}, "keys"),
        ({"keys__size": 10**400}, "keys"),
        ({"keys__size": None}, "size or a list"),
        ({"keys__vocabulary": ["a"]}, "either a size or a list"),
        ({"keys": {"kind": "closed", "vocabulary": ["a", "a"]}}, "twice"),
        ({"keys": {"kind": "closed", "vocabulary": []}}, "keys"),
        ({"keys": {"kind": "closed", "vocabulary": 5}}, "vocabulary"),
        ({"keys": {"kind": "closed", "vocabulary": [1.5]}}, "vocabulary"),
        ({"keys": {"kind": "folded", "size": 10}}, "open vocabulary"),
        ({"keys": {"kind": "wide", "bits": 20}}, "64 bits"),
        ({"keys": {"kind": "folded", "bits": 31}}, "between 2 and 30"),
        ({"keys": {"kind": "folded", "bits": 1}}, "between 2 and 30"),
        ({"keys__bits": 31}, "between 2 and 30"),
        ({"keys__bits": 65}, "keys.bits"),
        ({"keys__bits": -1}, "keys.bits"),
        ({"keys__bits": 6}, "more than 6 bits"),
        ({"keys__bits": 7, "mechanism__values": "signed"}, "two-sided"),
        ({"keys__cohorts": 0}, "cohorts"),
        ({"keys__cohorts": 65}, "cohorts"),
        ({"keys__salt": "xy" * 16}, "salt"),
        ({"keys__salt": "ab"}, "salt"),
        ({"mechanism": None}, "mechanism"),
        ({"mechanism": 5}, "mechanism"),
        ({"mechanism": {"epsilon": 1.0}}, "name"),
        ({"mechanism__name": "collisoin"}, "no mechanism called 'collisoin'"),
        ({"mechanism__name": ["collision"]}, "mechanism"),
        ({"mechanism__name": 7}, "mechanism"),
        ({"mechanism__bukets": 8}, "bukets"),
        ({"mechanism__epsilon": None}, "epsilon"),
        ({"mechanism__epsilon": 0.0}, "epsilon"),
        ({"mechanism__epsilon": -1.0}, "epsilon"),
        ({"mechanism__epsilon": float("nan")}, "epsilon"),
        ({"mechanism__epsilon": float("inf")}, "epsilon"),
        ({"mechanism__epsilon": 16.5}, "epsilon"),
        ({"mechanism__epsilon": 1e-12}, "epsilon"),
        ({"mechanism__epsilon": 1e-300}, "epsilon"),
        ({"mechanism__epsilon": 1e-12, "mechanism__name": "coco", "mechanism__values": "signed"}, "epsilon"),
        ({"mechanism__epsilon": 1e-12, "mechanism__name": "sparse_sum"}, "epsilon"),
        ({"mechanism__max_entries": 0}, "max_entries"),
        ({"mechanism__max_entries": 1 << 20}, "max_entries"),
        ({"mechanism__values": "words"}, "values"),
        ({"mechanism__family": "md5"}, "family"),
        ({"mechanism__buckets": 12}, "power of two"),
        ({"mechanism__buckets": 4}, "more buckets than max_entries"),
        ({"mechanism__buckets": 1 << 30}, "buckets"),
        ({"mechanism__seed_bits": 65}, "seed_bits"),
        ({"mechanism__name": "coco", "mechanism__values": "signed", "mechanism__buckets": 4}, "t >= 2s + 2"),
        ({"mechanism__name": "coco", "mechanism__values": "set"}, "values"),
        ({"mechanism__name": "sparse_sum", "mechanism__unit": "l1"}, "distance"),
        ({"mechanism__name": "sparse_sum", "mechanism__delta": 0.1}, "delta"),
        ({"mechanism__name": "sparse_sum", "mechanism__buckets": 2}, "one bin"),
        ({"mechanism": {**SMALL, "size": 99}}, "has 100 keys; size = 99 is too small."),
        ({"mechanism": SMALL, "keys": {"kind": "wide"}}, "needs a closed vocabulary."),
        (
            {"mechanism": {"name": "hadamard", "epsilon": 1.0, "bits": 5, "blocks": 2}},
            "do not fit into 5 bits",
        ),
        ({"mechanism": {"name": "compressive", "epsilon": 1.0}, "keys__cohorts": 2}, "cohorts = 1."),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_task_is_said(change: dict[str, Any], reason: str) -> None:
    with refused(reason):
        Task.parse(plain(**change))


def test_the_limits_themselves_are_allowed() -> None:
    """One step inside each bound that is refused above."""
    for change in (
        {"keys__bits": 30},
        {"keys__bits": 7},
        {"keys__bits": 8, "mechanism__values": "signed"},
        {"keys__cohorts": 64},
        {"mechanism__epsilon": 16.0, "mechanism__buckets": 8},
        {"mechanism__buckets": 8},
        {"mechanism": {"name": "coco", "epsilon": 1.0, "max_entries": 3, "buckets": 4}},
        {"mechanism": SMALL},
    ):
        Task.parse(plain(**change))


@pytest.mark.parametrize("data", [[], None, 5, "task", [["name", "x"]]])
def test_plain_data_must_be_a_table(data: Any) -> None:
    with refused():
        Task.parse(data)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"name = ",
        b"\xff\xfe",
        b"hubb",
        b"name = 'x'\nname = 'y'",
        b"size = " + b"9" * 5000,
        b"name = " + b"[" * 5000,
        b"[keys]\n[keys]\n",
    ],
    ids=["empty", "cut", "binary", "word", "twice", "huge number", "deep", "table twice"],
)
def test_no_task_file_is_refused_with_its_name(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(text)
    with refused(str(path)):
        Task.load(path)


def test_a_missing_task_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    with pytest.raises(Refused, match="No such file") as caught:
        Task.load(path)
    assert str(caught.value).count(str(path)) == 1


@steady
@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
)
@example(small_task().to_toml().encode() + b"\nx = 1")
def test_random_bytes_are_no_task_file(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.toml"
    path.write_bytes(data)
    assert only_refused(lambda: Task.load(path)) is None


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A task with one field replaced by anything that TOML can say."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    )
    full = json.loads(small_task().canonical)
    table = draw(st.sampled_from(["", "keys", "mechanism"]))
    place = full[table] if table else full
    place[draw(st.sampled_from([*place, "other"]))] = draw(anything)
    return full


@steady
@given(spoiled())
def test_a_spoiled_field_is_refused_or_a_task(data: Any) -> None:
    task = only_refused(lambda: Task.parse(data))
    if task is not None:
        assert Task.parse(json.loads(task.canonical)).digest == task.digest
