"""A table to estimates in one call: the same from every kind of table, and the same as the command."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

import hubbub
from helpers import contents, python, reason, refuse, refused, seeded_coins, succeed, write_csv
from hubbub.plan.overview import plan
from hubbub.privacy.compose import compose
from hubbub.privacy.shuffle import crowd_of, shuffled_guarantee
from hubbub.protocol.files import load_reports, load_state

ROWS = [
    (f"{user:03}", page, float(1 + (user + len(page)) % 5))
    for user in range(120)
    for page in ("home", "news", "dark mode")[: 1 + user % 3]
]
FRAME = {name: list(column) for name, column in zip(("u", "k", "v"), zip(*ROWS, strict=True), strict=True)}
PANDAS, POLARS = pandas.DataFrame(FRAME), polars.DataFrame(FRAME)
SETS = {"user": "u", "key": "k", "epsilon": 2.0, "max_entries": 2}
VALUES = {**SETS, "value": "v", "range": (1.0, 5.0)}


def mapping(valued: bool) -> dict[str, Any]:
    """The rows as {user: record}."""
    found: dict[str, dict[str, float]] = {}
    for user, page, stars in ROWS:
        found.setdefault(user, {})[page] = stars
    return {**found} if valued else {user: list(record) for user, record in found.items()}


def csv_file(folder: Path) -> Path:
    return write_csv(folder / "table.csv", [("u", "k", "v"), *ROWS])


def parquet_file(folder: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.table(FRAME), folder / "table.parquet")
    return str(folder / "table.parquet")


FORMS: dict[str, Callable[[Path], Any]] = {
    "csv": csv_file,
    "parquet": parquet_file,
    "pandas": lambda _: pandas.DataFrame(FRAME),
    "pandas, categories": lambda _: pandas.DataFrame(FRAME).astype({"u": "category", "k": "category"}),
    "pandas, arrow": lambda _: pandas.DataFrame(FRAME).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, nullable": lambda _: pandas.DataFrame(FRAME).convert_dtypes(),
    "polars": lambda _: polars.DataFrame(FRAME),
    "polars, categories": lambda _: polars.DataFrame(FRAME).with_columns(
        polars.col("k").cast(polars.Categorical), polars.col("v").cast(polars.Int32)
    ),
    "arrow": lambda _: pyarrow.table(FRAME),
    "arrow, batch": lambda _: pyarrow.RecordBatch.from_pydict(FRAME),
    "arrow, dictionary": lambda _: pyarrow.table(
        {**FRAME, "k": pyarrow.array(FRAME["k"]).dictionary_encode()}
    ),
}


@pytest.mark.parametrize("valued", [False, True], ids=["sets", "values"])
@pytest.mark.parametrize("form", [*FORMS, "mapping"])
def test_every_kind_of_table_is_the_command(
    form: str, valued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same coins, number for number."""
    options: dict[str, Any] = dict(VALUES if valued else SETS)
    arguments = ["--user", "u", "--key", "k", "--epsilon", 2, "--max-entries", 2]
    arguments += ["--value", "v", "--range", "1:5"] if valued else []
    seeded_coins(monkeypatch)
    said = succeed("run", csv_file(tmp_path), *arguments)
    seeded_coins(monkeypatch)
    if form == "mapping":
        columns = {name: options.pop(name, None) for name in ("user", "key", "value")}
        assert "Columns are named" in reason(lambda: hubbub.run(mapping(valued), **columns, **options))
        found = hubbub.run(mapping(valued), **options)
    else:
        found = hubbub.run(FORMS[form](tmp_path), **options)
    assert found.top(20).rows() == said["estimates"]
    assert found.task is not None
    assert found.task.digest.hex() == said["digest"]
    assert found.guarantee.as_dict() == said["guarantee"]
    assert found.summary is not None
    assert found.summary.as_dict() == said["summary"]
    assert list(found.notes) == said["notes"]
    assert "read the table" in found.guarantee.words()


def test_whole_numbers_name_users_and_keys() -> None:
    frame = pandas.DataFrame({"u": [10, 9, 9], "k": [3, 3, 12]})
    found = hubbub.run(frame, **SETS)
    assert hubbub.run(frame, **SETS, vocabulary=[3, 12, 99]).keys == ("3", "12", "99")  # type: ignore[list-item]
    assert hubbub.plan(keys=np.int64(9), max_entries=1).goal.keys == 9
    assert found.keys == ("3", "12")
    assert found[12] == found["12"]
    assert found.reports == 2


def test_users_without_entries_count_in_a_mapping() -> None:
    assert hubbub.run({"a": ["x"], "b": [], "c": {"x"}}, epsilon=1.0, max_entries=1).reports == 3


def test_what_is_wished_for_is_what_is_made() -> None:
    found = hubbub.run(
        polars.DataFrame(FRAME),
        "u",
        "k",
        epsilon=1.0,
        max_entries=3,
        vocabulary=["home", "news", "dark mode", "nobody"],
        mechanism="collision",
        settings={"buckets": 16},
        users=1000,
        quantity="sum",
        level=0.9,
        simultaneous=True,
        name="pages",
    )
    assert found.task is not None
    chosen = found.task.mechanism.model_dump()
    assert (found.task.name, found.task.mechanism.name, chosen["buckets"], chosen["users"]) == (
        "pages",
        "collision",
        16,
        1000,
    )
    assert (found.quantity, found.level, found.simultaneous, len(found)) == ("sum", 0.9, True, 4)
    assert not any("publicly known" in note for note in found.notes)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no such column": (
        lambda: hubbub.run(PANDAS, **{**SETS, "key": "page"}),
        "its columns are u, k, v",
    ),
    "nor in polars": (
        lambda: hubbub.run(POLARS, **{**SETS, "key": "page"}),
        "its columns are u, k, v",
    ),
    "nor in arrow": (
        lambda: hubbub.run(pyarrow.table(FRAME), **{**SETS, "user": "x"}),
        "its columns are u, k, v",
    ),
    "no column named": (lambda: hubbub.run(PANDAS, epsilon=1.0, max_entries=2), "user, key"),
    "two of a name": (
        lambda: hubbub.run(pandas.DataFrame([[1, 2, 3]], columns=["u", "k", "k"]), **SETS),
        "more than one column 'k'",
    ),
    "no table": (lambda: hubbub.run([("a", "b")], **SETS), "not a list"),
    "a series": (lambda: hubbub.run(pandas.Series([1, 2]), **SETS), "not a Series"),
    "lazy": (lambda: hubbub.run(polars.LazyFrame(FRAME), **SETS), "not a LazyFrame"),
    "no rows": (lambda: hubbub.run(pandas.DataFrame({"u": [], "k": []}), **SETS), "has no rows"),
    "nothing": (lambda: hubbub.run({}, epsilon=1.0, max_entries=2), "has no rows"),
    "holes": (
        lambda: hubbub.run(pandas.DataFrame({"u": ["a", None], "k": ["x", "y"]}), **SETS),
        "1 missing values",
    ),
    "holes in polars": (
        lambda: hubbub.run(polars.DataFrame({"u": ["a", None], "k": ["x", "y"]}), **SETS),
        "1 missing",
    ),
    "holes in arrow": (
        lambda: hubbub.run(pyarrow.table({"u": ["a", None], "k": ["x", "y"]}), **SETS),
        "1 missing",
    ),
    "nobody": (
        lambda: hubbub.run(pandas.DataFrame({"u": ["a", " "], "k": ["x", "y"]}), **SETS),
        "nobody is named",
    ),
    "nobody in a mapping": (lambda: hubbub.run({" ": ["x"]}, epsilon=1.0, max_entries=2), "nobody is named"),
    "of all kinds": (
        lambda: hubbub.run(pandas.DataFrame({"u": ["a", "b"], "k": ["x", 3]}), **SETS),
        "neither text nor numbers",
    ),
    "no number": (
        lambda: hubbub.run(pandas.DataFrame({"u": ["a"], "k": ["x"], "v": ["much"]}), **VALUES),
        "'much' in column 'v' is not a finite number",
    ),
    "infinite": (
        lambda: hubbub.run(polars.DataFrame({"u": ["a"], "k": ["x"], "v": [float("inf")]}), **VALUES),
        "is not a finite number",
    ),
    "no number in a mapping": (
        lambda: hubbub.run({"a": {"x": "much"}}, epsilon=1.0, max_entries=2, range=(0, 1)),
        "The record of 'a' has 'much' at 'x'",
    ),
    "text for a record": (lambda: hubbub.run({"a": "home"}, epsilon=1.0, max_entries=2), "is a str"),
    "a series for a record": (
        lambda: hubbub.run({"a": pandas.Series([1.0], index=["x"])}, epsilon=1.0, max_entries=2),
        "is a Series",
    ),
    "both kinds of records": (
        lambda: hubbub.run({"a": {"x": 1.0}, "b": ["x"]}, epsilon=1.0, max_entries=2),
        "of both kinds",
    ),
    "values without a range": (
        lambda: hubbub.run({"a": {"x": 1.0}}, epsilon=1.0, max_entries=2),
        "range=(LOW, HIGH)",
    ),
    "a range without values": (
        lambda: hubbub.run({"a": ["x"]}, epsilon=1.0, max_entries=2, range=(0, 1)),
        "these are sets",
    ),
    "an empty range": (
        lambda: hubbub.run({"a": {"x": 1.0}}, epsilon=1.0, max_entries=2, range=(1, 1)),
        "empty",
    ),
    "half a range": (
        lambda: hubbub.run({"a": {"x": 1.0}}, epsilon=1.0, max_entries=2, range=(1,)),  # type: ignore[arg-type]
        "A range is two numbers",
    ),
    "a range of text": (
        lambda: hubbub.run({"a": {"x": 1.0}}, epsilon=1.0, max_entries=2, range="15"),  # type: ignore[arg-type]
        "A range is two numbers",
    ),
    "epsilon as text": (
        lambda: hubbub.run(PANDAS, **{**SETS, "epsilon": "1"}),
        "epsilon is a number, not '1'",
    ),
    "entries as text": (
        lambda: hubbub.run(PANDAS, **{**SETS, "max_entries": "2"}),
        "max_entries is a number",
    ),
    "no such quantity": (lambda: hubbub.run(PANDAS, **SETS, quantity="freq"), "freq"),  # type: ignore[arg-type]
    "no such unit": (lambda: hubbub.run(PANDAS, **SETS, unit="person"), "person"),  # type: ignore[arg-type]
    "no level": (lambda: hubbub.run(PANDAS, **SETS, level=95), "level"),
    "no such parameter": (
        lambda: hubbub.run(PANDAS, **SETS, mechanism="collision", settings={"flavour": 3}),
        "flavour",
    ),
    "no privacy": (lambda: hubbub.run(PANDAS, **{**SETS, "epsilon": 0.0}), "epsilon"),
    "no mechanism": (lambda: hubbub.run(PANDAS, **SETS, mechanism="telepathy"), "telepathy"),
    "settings of nothing": (
        lambda: hubbub.run(PANDAS, **SETS, settings={"buckets": 8}),
        "mechanism=",
    ),
    "correct what was not counted": (
        lambda: hubbub.run(PANDAS, **SETS, correct=True),
        "count_lengths",
    ),
    "not in the list": (
        lambda: hubbub.run(PANDAS, **SETS, vocabulary=["home"]),
        "vocabulary",
    ),
    "no file": (lambda: hubbub.run("nowhere.csv", **SETS), "does not exist"),
    "other wishes": (lambda: hubbub.plan(keys=9, max_entries=2, delta=0.1), "A delta goes with unit l1"),
    "means of sets": (lambda: hubbub.plan("mean", keys=9, max_entries=2), "Means need values"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = BAD[case]
    with refused(words):
        call()
    assert contents(tmp_path) == {}


def test_the_command_refuses_in_the_same_words(tmp_path: Path) -> None:
    path = csv_file(tmp_path)
    for options, more in (
        ({**SETS, "key": "page"}, ["--key", "page"]),
        ({**SETS, "value": "v"}, ["--value", "v"]),
        ({**SETS, "epsilon": -1.0}, ["--epsilon", -1]),
        ({**SETS, "max_entries": 0}, ["--max-entries", 0]),
        ({**SETS, "correct": True}, ["--correct"]),
        ({**SETS, "delta": 0.1}, ["--delta", 0.1]),
    ):
        arguments = ["run", path, "--user", "u", "--key", "k", "--epsilon", 2, "--max-entries", 2, *more]
        said = reason(lambda options=options: hubbub.run(path, **options))
        assert refuse(*arguments) == f"hubbub: {said}\n"


# The other calls


def task_of(frame: Any, **options: Any) -> hubbub.Task:
    found = hubbub.run(frame, **{**SETS, **options})
    assert found.task is not None
    return found.task


def test_reports_of_a_table_are_aggregated_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(polars.DataFrame(FRAME))
    task.save(tmp_path / "task.toml")
    reports = hubbub.privatize(polars.DataFrame(FRAME), task, "u", "k")
    assert len(reports) == len(list(reports)) == 120
    assert hubbub.aggregate(task, reports).to_bytes() == hubbub.aggregate(task, reports.packed).to_bytes()
    assert "read the table" in reports.guarantee.words()
    for name in ("r.bin", "r.parquet"):
        reports.save(tmp_path / name)
        succeed("aggregate", tmp_path / name, "-o", tmp_path / "s.bin")
        kept = load_state(tmp_path / "s.bin")[1]
        assert kept.to_bytes() == hubbub.aggregate(task, reports).to_bytes()
    seeded_coins(monkeypatch)
    table = csv_file(tmp_path)
    first = hubbub.privatize(table, task, "u", "k").packed
    seeded_coins(monkeypatch)
    options = ["--user", "u", "--key", "k", "-o", tmp_path / "c.bin"]
    succeed("privatize", table, tmp_path / "task.toml", *options)
    assert np.array_equal(load_reports(tmp_path / "c.bin")[1], first)


@pytest.mark.parametrize(("name", "more"), [("sketch_response", {}), ("coco", {"target": "conditional"})])
def test_a_simulation_of_empty_records(name: str, more: dict[str, Any]) -> None:
    """Nobody has anything: the truth is 0, and a conditional mean has none."""
    keys = {"kind": "closed", "vocabulary": ["a", "b"]}
    mechanism = {"name": name, "epsilon": 1.0, "max_entries": 2, **more}
    task = hubbub.Task.parse({"name": "t", "keys": keys, "mechanism": mechanism})
    table: dict[str, Any] = {"u": {} if more else [], "v": {} if more else []}
    found = hubbub.simulate(table, task, quantity="frequency")
    assert found.truth.tolist() == found.truth_sampled_down.tolist() == [0.0, 0.0]
    if more:
        assert np.isnan(hubbub.simulate(table, task, quantity="conditional").truth).all()


def test_a_simulation_is_that_of_the_command(tmp_path: Path) -> None:
    task = task_of(pandas.DataFrame(FRAME), value="v", range=(1, 5), epsilon=6.0)
    task.save(tmp_path / "task.toml")
    outcome = hubbub.simulate(pandas.DataFrame(FRAME), task, "u", "k", "v", seed=7)
    options = ["--user", "u", "--key", "k", "--value", "v", "--seed", 7]
    said = succeed("simulate", tmp_path / "task.toml", "--like", csv_file(tmp_path), *options)
    assert outcome.rows() == said["estimates"]
    assert (outcome.coverage, outcome.rms) == (said["coverage"], said["root_mean_square_error"])
    assert "nothing here is private" in str(outcome)
    assert len(outcome) == 3
    again = hubbub.simulate(pandas.DataFrame(FRAME), task, "u", "k", "v", seed=8)
    assert again.estimate.value.tolist() != outcome.estimate.value.tolist()


def test_amplification_is_that_of_the_shuffled_model() -> None:
    task = task_of(pandas.DataFrame(FRAME), epsilon=1.0)
    crowd = crowd_of(task.mechanism, 5000)
    assert hubbub.amplify(task, 5000) == shuffled_guarantee(task.mechanism, 5000, 1e-6)
    assert hubbub.amplify(task.mechanism, 5000, 1e-5) == shuffled_guarantee(task.mechanism, 5000, 1e-5)
    three = hubbub.amplify(task, 5000, rounds=3, method="basic")
    assert three == compose([crowd] * 3, 1e-6, "basic")
    twice = task.model_copy(update={"reports_per_period": 2})
    assert hubbub.amplify(twice, 5000).epsilon > hubbub.amplify(task, 5000).epsilon


def test_an_audit_in_one_call() -> None:
    task = task_of({str(user): ["x"] for user in range(20)}, user=None, key=None, max_entries=1)
    found = hubbub.audit(task, samples=2000)
    assert not found.refuted
    assert "Excluded: " in str(found)


@pytest.mark.parametrize("before", ["", "import hubbub.plan.ranking", "hubbub.plan", "hubbub.run"])
def test_a_plan_is_called_whatever_was_loaded_before(before: str) -> None:
    """The package `hubbub.plan` and the public function have one name."""
    code = f"import hubbub\n{before}\nprint(hubbub.plan(keys=100, max_entries=4).chosen.name)"
    assert python(code).split() == [plan(keys=100, max_entries=4).chosen.name]


def test_a_plan_is_that_of_the_command() -> None:
    found = hubbub.plan("mean", keys=500, max_entries=8, range=(1, 5), users=20_000, most_bytes=4)
    options = ["--keys", 500, "--max-entries", 8, "--range", "1:5", "--users", 20_000, "--bytes", 4]
    said = succeed("plan", "--estimate", "mean", *options)
    assert said["chosen"] == found.as_dict(found.chosen)
    assert said["options"] == found.rows()
    task = found.task("ratings")
    assert (task.low, task.high, task.keys.count, task.mechanism.name) == (1, 5, 500, found.chosen.name)
    assert found.chosen.name in str(found)


def test_what_can_be_called_says_how() -> None:
    """Docstrings with an example, and signatures that editors show."""
    for name in ("run", "privatize", "simulate", "audit", "amplify"):
        call = getattr(hubbub, name)
        assert f"hubbub.{name}(" in (inspect.getdoc(call) or "")
        assert "return" in inspect.get_annotations(call)
    assert "hubbub.plan(" in (plan.__doc__ or "")
    assert inspect.signature(hubbub.plan) == inspect.signature(plan)
    assert "hubbub.plan(" in (hubbub.plan.__doc__ or "")


def test_a_new_user_goes_from_a_frame_to_estimates_in_one_call() -> None:
    """20,000 people; every estimate within 6 standard errors of the truth: a false alarm in 10^8 runs."""
    crowd = random.Random(5)
    shares = {"search": 0.6, "share": 0.35, "export": 0.1}
    rows = [(user, key) for user in range(20_000) for key, share in shares.items() if crowd.random() < share]
    frame = pandas.DataFrame(rows, columns=["user", "feature"])
    found = hubbub.run(frame, user="user", key="feature", epsilon=1.0, max_entries=3)
    people = frame["user"].nunique()
    for key, holders in frame["feature"].value_counts().items():
        row = found[str(key)]
        assert row.error is not None
        assert abs(row.value - holders / people) < 6 * row.error
    assert found.reports == people
    assert not found["search"].flagged
