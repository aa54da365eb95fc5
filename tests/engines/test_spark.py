"""Spark on a real cluster: the same bytes as one machine, whatever happens to it."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import refused, small_task
from hubbub.engines import executors, lake
from hubbub.engines import spark as crowd
from hubbub.engines.arrow import (
    NO_ID,
    NO_REPORTS,
    NO_STRATUM,
    NOT_BEGUN,
    OTHER_TASK,
    report_table,
    save_parquet,
    save_parquet_by,
)
from hubbub.model.record import Entries
from hubbub.protocol.files import load_state, total_of
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task
from hubbub.server.discovery import discover
from hubbub.server.fold import aggregate
from hubbub.simulation.populations import distinct_population
from hubbub.simulation.rehearsal import simulate, true_values

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

TASK = small_task("coco", buckets=4)
#: Two bytes: 8 bits of seed, a bucket below 13 in 4 bits, 4 filler bits. Its state keeps the reports.
KEPT = small_task("collision", family="prf", buckets=13, seed_bits=8)
DAYS = [datetime.date(2026, 5, day) for day in (4, 5)]
SCHEMA = "task string, day date, batch string, reports binary"


def reports(count: int, task: Task = TASK, seed: int = 1) -> NDArray[np.uint8]:
    return simulate(task, distinct_population(count, 10, 2, seed).entries, seed).packed


def frame(session: Any, *tables: Any) -> Any:
    """Arrow tables of reports as one data frame."""
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return session.createDataFrame(rows, SCHEMA)


def test_the_state_is_that_of_one_machine(session: Any, tmp_path: Path) -> None:
    """From Parquet, with batches that are there twice: Spark, the lake and a single pass agree to the byte."""
    packed = reports(600)
    save_parquet(tmp_path / "a.parquet", TASK, packed[:250], DAYS[0], 20)
    save_parquet(tmp_path / "b.parquet", TASK, packed[250:], DAYS[1], 20)
    shutil.copy(tmp_path / "a.parquet", tmp_path / "again.parquet")
    state = crowd.aggregate(session.read.parquet(str(tmp_path)), TASK)
    assert state.to_bytes() == aggregate(TASK, packed).to_bytes()
    assert state.to_bytes() == lake.aggregate([tmp_path]).state.to_bytes()


def test_keys_to_be_discovered(session: Any, tmp_path: Path) -> None:
    """A task whose keys are a tree: the same state, hence the same keys found in it."""
    tree = {"longest": 4, "levels": [2, 2], "shares": [1, 1, 1], "alphabet": "ehlopt"}
    task = Task.parse(
        {
            "name": "words",
            "keys": {"kind": "tree", "bits": 12, "tree": tree, "salt": "01" * 16},
            "mechanism": {"name": "collision", "epsilon": 6.0, "max_entries": 1},
        }
    )
    ids = np.tile(task.keys.ids_of(["help", "hole", "hello"]), 300)
    people = Entries(ids, np.full(len(ids), 1 << 30), np.arange(len(ids) + 1))
    packed = simulate(task, people, seed=5).packed
    save_parquet(tmp_path / "words.parquet", task, packed, DAYS[0], 50)
    state = crowd.aggregate(session.read.parquet(str(tmp_path)).repartition(3), task)
    assert state.to_bytes() == aggregate(task, packed).to_bytes()
    assert state.to_bytes() == lake.aggregate([tmp_path]).state.to_bytes()
    assert set(discover(task, state).keys) == {"help", "hole", "hel…"}


def test_the_package_travels(session: Any) -> None:
    """Executors use the archive that was sent to them, not what happens to be installed."""
    crowd.ship(session)

    def home(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        import hubbub

        for _ in batches:
            yield pyarrow.record_batch({"home": [hubbub.__file__]})

    found = {row["home"] for row in session.range(8).mapInArrow(home, "home string").collect()}
    assert found
    assert all("hubbub.zip" in path for path in found)


def test_tasks_and_days_in_one_pass(session: Any) -> None:
    parts = {(task, day): reports(60, task, seed=s) for s, (task, day) in enumerate(
        [(task, day) for task in (TASK, KEPT) for day in DAYS], 2
    )}  # fmt: skip
    df = frame(session, *(report_table(task, packed, day, 7) for (task, day), packed in parts.items()))
    found = crowd.aggregate_by(df.repartition(5), [TASK, KEPT])
    assert {key: state.to_bytes() for key, state in found.items()} == {
        (task.digest.hex(), day): aggregate(task, packed).to_bytes() for (task, day), packed in parts.items()
    }
    whole = crowd.aggregate_by(df, [TASK, KEPT], by=("task",))
    assert whole[(KEPT.digest.hex(),)].count == 120


def labelled() -> Task:
    fields = {name: getattr(TASK, name) for name in Task.model_fields}
    return Task.parse({**fields, "period": "week", "labels": {"country": ["de", "fr"]}})


def test_strata_stay_apart_and_add_up_to_the_whole(session: Any, tmp_path: Path) -> None:
    """From Parquet with a column of strata, some rows of which are no strata of the task."""
    task, packed = labelled(), reports(600)
    de, fr = Stratum(("de",), "2026-W46"), Stratum(("fr",), "2026-W46")
    parts = {de: packed[:200], fr: packed[200:550], UNTOLD: packed[550:]}
    save_parquet_by(tmp_path / "a.parquet", task, parts, DAYS[0], 20)
    df = session.read.parquet(str(tmp_path)).repartition(4)
    found = crowd.strata(df, task)
    assert {at: state.to_bytes() for at, state in found.items()} == {
        at: aggregate(task, part).to_bytes() for at, part in parts.items()
    }
    whole = aggregate(task, packed).to_bytes()
    assert total_of(task, found).to_bytes() == whole
    assert crowd.aggregate(df, task).to_bytes() == whole
    assert {at: state.to_bytes() for at, state in lake.aggregate([tmp_path]).states.items()} == {
        at: state.to_bytes() for at, state in found.items()
    }
    rows = [
        (f"b{place}", text, packed[:3].tobytes())
        for place, text in enumerate(("country=xx", None, "@2026", "@2099-W01", "country=de@2099-W01"))
    ]
    odd = session.createDataFrame(rows, "batch string, stratum string, reports binary")
    with pytest.warns(UserWarning, match=f"1 row with 3 reports: {NO_STRATUM}") as caught:
        some = crowd.strata(odd, task)
    assert f"2 rows with 6 reports: {NOT_BEGUN}" in str(caught[0].message)
    assert {at: state.count for at, state in some.items()} == {UNTOLD: 3, Stratum((), "2026"): 3}
    with pytest.warns(UserWarning, match=NO_STRATUM):
        assert crowd.aggregate(odd, task).count == 6
    assert {(row["batch"], row["reason"]) for row in crowd.rejected(odd, [task]).collect()} == {
        ("b0", NO_STRATUM),
        ("b3", NOT_BEGUN),
        ("b4", NOT_BEGUN),
    }
    plain = frame(session, report_table(TASK, packed[:20], DAYS[0], 5))
    assert list(crowd.strata(plain, TASK)) == [UNTOLD]
    with refused("not made on Spark"):
        crowd.privatize(plain, task, "task", "batch", "day")


def test_skewed_partitions_and_the_tree(session: Any) -> None:
    """Forty partitions, most of them empty, one with nearly all rows, and no ids."""
    packed = reports(500)
    most, few = (frame(session, report_table(TASK, part, DAYS[0], 3)) for part in (packed[60:], packed[:60]))
    df = most.coalesce(1).unionAll(few.repartition(39)).select("reports")
    assert df.rdd.getNumPartitions() == 40
    assert crowd.aggregate(df, TASK).to_bytes() == aggregate(TASK, packed).to_bytes()


def test_too_many_groups_are_handed_on_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine: a partition that may hold nothing gives a partial state after every Arrow batch."""
    import pyspark

    class Context:
        @staticmethod
        def get() -> Any:
            return Context()

        def partitionId(self) -> int:
            return 35

    monkeypatch.setattr(pyspark, "TaskContext", Context)
    monkeypatch.setattr(executors, "_HELD", 0)
    packed = reports(90)
    batches = report_table(TASK, packed, DAYS[0], 10).to_batches(max_chunksize=3)
    texts, by = (TASK.canonical,), ("task", "day")
    partial = list(executors.folding(texts, by, DAYS[0])(iter(batches)))
    assert len(partial) == 3
    assert {row["branch"].to_pylist()[0] for row in partial} == {35 >> 4}
    (merged,) = executors.merging(texts, by)(iter(partial))
    assert merged["state"].to_pylist() == [aggregate(TASK, packed).to_bytes()]
    assert merged["branch"].to_pylist() == [0]


# What can go wrong


def killing(marker: Path, generations: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Rows as they are, but whoever first gets here ends a process half-way: itself (0), or the executor (2).

    A worker is forked by a daemon, which the executor has started.
    """

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                yield batch.slice(half)
                continue
            victim = os.getpid()
            for _ in range(generations):
                victim = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(victim, signal.SIGKILL)
            while True:
                signal.pause()

    return pass_on


@pytest.mark.parametrize("generations", [0, 2], ids=["python worker", "executor"])
def test_what_is_killed_is_done_again_and_counts_once(session: Any, generations: int, tmp_path: Path) -> None:
    packed = reports(400)
    df = frame(session, report_table(TASK, packed, DAYS[0], 10)).repartition(4)
    marker = tmp_path / "killed"
    harmed = df.mapInArrow(killing(marker, generations), SCHEMA)
    assert crowd.aggregate(harmed.drop("batch"), TASK).to_bytes() == aggregate(TASK, packed).to_bytes()
    assert marker.exists()


def test_poison_is_set_aside(session: Any) -> None:
    digest, good, bad = KEPT.digest.hex(), b"\x01\x02", b"\x01\x0d"
    rows = [
        (digest, "a", good + bad + good),
        (digest, "b", b"x" * 4001),
        (digest, "c", None),
        (digest, None, good),
        (digest, None, good + good),
        (TASK.digest.hex(), "d", good),
        (None, "e", good),
        (digest, "f", good),
    ]
    df = session.createDataFrame(rows, "task string, batch string, reports binary")
    with pytest.warns(UserWarning, match="Set aside: .*2 rows: the row belongs to another task") as caught:
        state = crowd.aggregate(df, KEPT)
    assert len(caught) == 1
    assert f"2 rows with 3 reports: {NO_ID}" in str(caught[0].message)
    assert state.to_bytes() == aggregate(KEPT, 3 * good).to_bytes()
    listed = {(row["batch"], row["report"], row["reason"]) for row in crowd.rejected(df, [KEPT]).collect()}
    assert listed == {
        ("a", 1, "bucket is not below 13"),
        ("b", -1, "the row is not a whole number of reports of 2 bytes"),
        ("c", -1, NO_REPORTS),
        (None, -1, NO_ID),
        ("d", -1, OTHER_TASK),
        ("e", -1, OTHER_TASK),
    }


def test_refusals(session: Any) -> None:
    df = frame(session, report_table(TASK, reports(3), DAYS[0], 1))
    with refused("no column 'reports'", "batch"):
        crowd.aggregate(df.drop("reports"), TASK)
    with refused("must be binary, not string"):
        crowd.aggregate(df.withColumn("reports", df["batch"]), TASK)
    with refused("no column 'hour'"):
        crowd.aggregate_by(df, [TASK], ("task", "hour"))
    with refused("'task' must be among"):
        crowd.aggregate_by(df, [TASK], ("day",))
    with refused("exactly one task"):
        crowd.aggregate_by(df.drop("task"), [TASK, KEPT])
    people = session.createDataFrame(
        [("ann", "1", 0.5), (None, "2", 0.5)], "who string, what string, much double"
    )
    with refused("no column 'whom'"):
        crowd.privatize(people, TASK, "whom", "what", "much")
    with refused("name the column"):
        crowd.privatize(people, TASK, "who", "what")
    with refused("does not say whose it is"):
        crowd.privatize(people, TASK, "who", "what", "much")
    with refused("not in the task's vocabulary"):
        crowd.privatize(people.na.fill("bob").replace("2", "200"), TASK, "who", "what", "much")
    memoized = {**TASK.model_dump(), "period": "week", "memoize": "record", "memoize_cap": 1}
    for task in (memoized, {**TASK.model_dump(), "period": "week", "rotation": 4}):
        with refused("devices keep with a ledger"):
            crowd.privatize(people, Task.parse(task), "who", "what", "much")


# Reports


def test_private_reports_are_drawn_once_and_estimate_the_truth(session: Any) -> None:
    """All 10 estimates within 6 standard errors: a false alarm in fewer than 1e-6 of all runs. 30% less is noticed."""
    task = small_task("collision", epsilon=4.0, max_entries=3)
    entries = distinct_population(3000, 10, 3, seed=5, exponent=2.0).entries
    owner = np.repeat(np.arange(3000), 3).tolist()
    rows = [(u, int(k)) for u, k in zip(owner, entries.ids.tolist(), strict=True)]
    drawn = crowd.privatize(session.createDataFrame(rows, "u long, k long"), task, "u", "k", day=DAYS[0])
    first, again = (sorted(map(tuple, drawn.collect())) for _ in range(2))
    assert first == again
    assert sum(len(row[3]) for row in first) == 3000 * task.mechanism.layout.width
    assert {(row[0], row[1]) for row in first} == {(task.digest.hex(), DAYS[0])}
    found = crowd.estimate(drawn, task, keys=list(range(10)))
    assert found.reports == 3000
    truth = true_values(task, entries, "frequency", task.keys.all_ids())
    value, error = found.value, found.error
    assert (np.abs(value - truth) <= 6 * error).all()
    assert (np.abs(value - 0.7 * truth) > 6 * error).any()


def test_longer_records_are_counted(session: Any) -> None:
    people = session.createDataFrame(
        [("ann", str(k), 1.0) for k in range(5)], "who string, what string, much double"
    )
    with pytest.warns(UserWarning, match="1 records sampled down"):
        drawn = crowd.privatize(people, TASK, "who", "what", "much")
    assert crowd.aggregate(drawn, TASK).count == 1


# spark-submit


def test_the_example_under_spark_submit(spark_home: Path, tmp_path: Path) -> None:
    packed = reports(300)
    (tmp_path / "reports").mkdir()
    for i, day in enumerate(DAYS):
        save_parquet(tmp_path / "reports" / f"{i}.parquet", TASK, packed[150 * i :][:150], day, 10)
    TASK.save(tmp_path / "task.toml")
    script = Path(__file__).parents[2] / "examples" / "spark_aggregate.py"
    submit = Path(sys.executable).with_name("spark-submit")
    command = [submit, "--master", "local-cluster[1,1,1024]", "--conf", "spark.ui.enabled=false", script]
    done = subprocess.run(
        [*command, tmp_path / "task.toml", tmp_path / "reports", tmp_path / "state"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable},
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "2026-05-04: 150 reports" in done.stdout
    assert load_state(tmp_path / "state")[1].to_bytes() == aggregate(TASK, packed).to_bytes()
