"""Calls that a newcomer makes: accepted, or refused in a sentence; never ignored or taken for something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, reason, refuse, refused, run_cli, succeed, write_csv
from hubbub import Client, Task, aggregate, estimate, make_mechanism, publish, run
from hubbub.device.client import encode_record
from hubbub.primitives.errors import Refused
from hubbub.tables.records import read_table

MECHANISM = {"name": "collision", "epsilon": 1.0, "max_entries": 2}
TASK = Task.parse(
    {
        "name": "pages",
        "keys": {"kind": "closed", "vocabulary": ["home", "news", "help", "h"], "salt": "5a" * 16},
        "mechanism": MECHANISM,
    }
)
ROWS = [("user", "page", "stars"), *((f"u{i % 7}", f"p{i % 5}", i % 3) for i in range(35))]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "table.csv", ROWS)


def command(table: Path, *more: object) -> tuple[object, ...]:
    columns = ("--user", "user", "--key", "page")
    return ("run", table, *columns, "--max-entries", 2, "--epsilon", 1, *more)


# Options


def test_a_range_without_values_is_refused(table: Path) -> None:
    assert "A range is for values" in refuse(*command(table, "--range", "0:2"))
    assert succeed(*command(table, "--range", "0:2", "--value", "stars"))["task"]["high"] == 2


def test_a_range_of_sets_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "task.toml"
    new = ("task", "new", "--name", "x", "--keys", 9, "--epsilon", 1, "--max-entries", 2, "-o", out)
    assert "A range is for values" in refuse(*new, "--sets", "--range", "0:2")
    assert contents(tmp_path) == {}
    for more in (("--range", "0:2"), ("--range", "0:2", "--values")):
        assert succeed(*new, *more)["task"]["high"] == 2
    assert succeed(*new, "--sets")["task"]["mechanism"]["values"] == "set"


def test_expected_users_are_those_that_are_given_or_else_those_of_the_table(table: Path) -> None:
    """The planner gives seeds more bits for more users, see docs/architecture.md."""
    bits = {
        users: succeed(*command(table, *given))["task"]["mechanism"]["seed_bits"]
        for users, given in {0: (), 7: ("--users", 7), 10**6: ("--users", 10**6)}.items()
    }
    assert bits[0] == bits[7] < bits[10**6]


def test_a_number_that_is_not_whole_is_refused(table: Path) -> None:
    with pytest.raises(Refused, match=r"max_entries is a whole number, not 2\.5"):
        run(table, user="user", key="page", epsilon=1.0, max_entries=2.5)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="users is a whole number, not nan"):
        run(table, user="user", key="page", epsilon=1.0, max_entries=2, users=float("nan"))  # type: ignore[arg-type]


# Tables


@pytest.mark.parametrize("nobody", ["", "  "])
def test_a_row_without_a_user_is_refused_with_its_number(nobody: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "table.csv", [*ROWS[:4], (nobody, "p1", 1), *ROWS[4:]])
    assert "nobody is named in column 'user' of row 4;" in refuse(*command(path))
    assert contents(tmp_path).keys() == {"table.csv"}


def test_a_row_without_a_user_is_refused_in_other_files(tmp_path: Path) -> None:
    pages = np.array(["a", "b", "a"])
    np.savez(tmp_path / "table.npz", user=np.array([1.0, np.nan, 2.0]), page=pages)
    with refused("nobody is named", "row 2"):
        read_table(tmp_path / "table.npz", "user", "page")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"user": ["x", "y", " "], "page": pages}), tmp_path / "table.parquet")
    with refused("nobody is named", "row 3"):
        read_table(tmp_path / "table.parquet", "user", "page")


def test_users_called_zero_are_somebody(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "table.csv", [("user", "page"), ("0", "a"), (" 0", "a"), ("nan", "b")])
    assert read_table(path, "user", "page").users == 3


# Records


def test_a_series_is_refused_and_what_is_advised_works() -> None:
    """Walking over it gives values; as keys they would be reported for what they are not."""
    pandas = pytest.importorskip("pandas")
    series = pandas.Series([1.0, 1.0], index=["home", "news"])
    for record in (series, series.to_frame()):
        with refused("dict(record)", "list(record)", type(record).__name__):
            Client(TASK).report(record)
    wanted = encode_record(TASK, {"home", "news"})
    pages = pandas.Series(["home", "news"], index=[17, 18])
    for record in (dict(series), list(pages)):
        found = encode_record(TASK, record)
        assert set(found[0].ids.tolist()) == set(wanted[0].ids.tolist())
        assert found[1] == wanted[1]


# Reports


def reports(count: int = 6) -> list[bytes]:
    client = Client(TASK)
    return [client.report({"home"}) for _ in range(count)]


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        lambda made: [b"".join(made[:4]), *made[4:]],
        lambda made: [bytearray(report) for report in made],
        lambda made: memoryview(b"".join(made)),
        lambda made: np.frombuffer(b"".join(made), dtype=np.uint8).reshape(len(made), -1),
    ],
    ids=["list", "tuple", "iterator", "batches", "bytearrays", "memoryview", "array"],
)
def test_reports_in_any_form_count_the_same(form: Callable[[list[bytes]], Any]) -> None:
    made = reports()
    assert aggregate(TASK, form(made)).to_bytes() == aggregate(TASK, b"".join(made)).to_bytes()
    assert aggregate(TASK, []).count == 0


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (lambda made: "text", "none of them"),
        (lambda made: 5, "none of them"),
        (lambda made: None, "none of them"),
        (lambda made: np.zeros((2, 3)), "none of them"),
        (lambda made: [*made, "text"], "number 6 of these is a str"),
        (lambda made: [made], "number 0 of these is a list"),
        (lambda made: [b"".join(made)[:1], b"".join(made)[1:]], "Number 0 of these is not a whole number"),
    ],
    ids=["str", "int", "None", "floats", "text among them", "nested", "cut"],
)
def test_what_is_no_reports_is_refused(form: Callable[[list[bytes]], Any], why: str) -> None:
    with refused(why):
        aggregate(TASK, form(reports()))


# Questions


def test_keys_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Colours, turned lines and bells in a key are written out, by commands and by print."""
    evil = ["\x1b[31mred", "\u202eback", "bell\x07"]
    table = write_csv(tmp_path / "t.csv", [("user", "key"), *enumerate(evil)])
    wish = ("--epsilon", 1, "--max-entries", 1, "--user", "user", "--key", "key")
    found = run(table, user="user", key="key", epsilon=1.0, max_entries=1)
    assert set(found.keys) == set(evil)
    publish(dict.fromkeys(evil, 50), epsilon=1.0).save(tmp_path / "r.hubbub")
    told = [
        str(found),
        run_cli("run", table, *wish).stdout,
        run_cli("query", tmp_path / "r.hubbub", *evil).stdout,
    ]
    for text in told:
        assert "\\u202eback" in text
        assert not set(text) & set("\x1b\u202e\x07")


def test_one_key_is_one_key() -> None:
    """h is a key, too: spelled out, home would ask for it."""
    state = aggregate(TASK, reports())
    every = estimate(TASK, state)
    found = estimate(TASK, state, keys="home")
    assert found.keys == ("home",)
    assert found.value.tolist() == every.value[:1].tolist()
    with refused("'hom' is not in the task's vocabulary"):
        estimate(TASK, state, keys="hom")
    numbers = Task.parse({"name": "n", "keys": {"kind": "closed", "size": 20}, "mechanism": MECHANISM})
    counted = aggregate(numbers, Client(numbers).report({12}))
    assert estimate(numbers, counted, keys=12).keys == estimate(numbers, counted, keys="12").keys == ("12",)


# Tasks


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"keys": 5},
        {"keys": {"kind": "closed"}},
        {"mechanism": {"name": "collision", "epsilon": -1, "max_entries": 2}},
        {"mechanism": {"name": "nothing"}},
        {"low": 3, "high": 2},
        {"periods": "day"},
    ],
    ids=str,
)
def test_a_bad_task_is_refused_however_it_is_made(wrong: dict[str, Any]) -> None:
    good = {"name": "x", "keys": {"kind": "closed", "size": 3}, "mechanism": make_mechanism(**MECHANISM)}
    assert Task(**good).digest != b""
    said = {reason(lambda make=make: make({**good, **wrong})) for make in (lambda d: Task(**d), Task.parse)}
    assert len(said) == 1


def test_what_is_no_table_is_no_task() -> None:
    for data in ([1], "x", None, {1: 2}):
        with refused("A task is a table"):
            Task.parse(data)  # type: ignore[arg-type]
