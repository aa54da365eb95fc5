"""Parquet files of reports into one state: the same bytes as one pass, however the run goes."""

from __future__ import annotations

import csv
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers import refuse, refused, run_cli, small_task, steady, succeed
from hubbub.checks.conformance import task_for
from hubbub.engines import lake, manifest
from hubbub.engines.arrow import NO_ID, NO_REPORTS, OTHER_TASK, IdHash, report_schema, save_parquet
from hubbub.engines.pool import workers
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.state import State
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import load_state, save_reports
from hubbub.protocol.strata import UNTOLD
from hubbub.protocol.task import Task
from hubbub.server.fold import Rejected, aggregate
from hubbub.simulation.populations import distinct_population
from hubbub.simulation.rehearsal import simulate

#: Two bytes: 8 bits of seed, a bucket below 13 in 4 bits, 4 filler bits.
KEPT = small_task("collision", family="prf", buckets=13, seed_bits=8)
TASK = small_task("coco", buckets=4)
OTHER = small_task("collision", size=11)
DAY = datetime.date(2026, 5, 4)
WIDTH = TASK.mechanism.layout.width


def reports(count: int, task: Task = TASK, seed: int = 1) -> NDArray[np.uint8]:
    return simulate(task, distinct_population(count, 10, 2, seed).entries, seed).packed


def write(
    path: Path,
    rows: Sequence[tuple[str | None, str | None, bytes | None]],
    task: Task | None = TASK,
    columns: Sequence[str] = ("task", "day", "batch", "reports"),
    per_group: int = 3,
) -> Path:
    """A file with rows (digest, batch id, bytes)."""
    schema = report_schema(task or TASK)
    parts = [[row[0] for row in rows], [DAY] * len(rows), [row[1] for row in rows], [row[2] for row in rows]]
    table = pa.table([pa.array(p, k) for p, k in zip(parts, schema.types, strict=True)], schema=schema)
    table = table.select(list(columns)).replace_schema_metadata(schema.metadata if task else None)
    pq.write_table(table, path, row_group_size=per_group)
    return path


def rows_of(packed: NDArray[np.uint8], prefix: str, size: int = 4) -> list[tuple[str, str, bytes]]:
    """Reports in rows of `size`, with ids."""
    digest = TASK.digest.hex()
    return [
        (digest, f"{prefix}{start}", packed[start : start + size].tobytes())
        for start in range(0, len(packed), size)
    ]


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], State]:
    """Five files of 40 reports in four row groups each, and the state of all."""
    packed = reports(200)
    folder = tmp_path / "lake"
    folder.mkdir()
    paths = [write(folder / f"{i}.parquet", rows_of(packed[40 * i :][:40], f"{i}-")) for i in range(5)]
    return paths, aggregate(TASK, packed)


def set_aside(found: lake.Lake) -> set[tuple[str, int, int, str]]:
    return {
        (Path(lot.source).name, row, place, lot.reason)
        for lot in found.rejected
        for row, place in zip(lot.rows.tolist(), lot.places.tolist(), strict=True)
    }


# The sum


@pytest.mark.parametrize("task", [TASK, KEPT], ids=["totals", "kept reports"])
@pytest.mark.parametrize("per_row", [1, 7, 1000])
def test_saved_reports_come_back_as_one_pass(task: Task, per_row: int, tmp_path: Path) -> None:
    packed = reports(100, task)
    save_parquet(tmp_path / "a.parquet", task, packed[:30], DAY, per_row)
    save_parquet(tmp_path / "b.parquet", task, packed[30:], DAY, per_row)
    found = lake.aggregate([tmp_path])
    assert found.task == task
    assert found.state.to_bytes() == aggregate(task, packed).to_bytes()
    assert (found.files, found.repeated, found.rejected, found.unnamed) == (2, 0, [], [])


def test_the_form_of_a_file(tmp_path: Path) -> None:
    """What others may rely on: columns, kinds, the task in the metadata."""
    save_parquet(tmp_path / "a.parquet", TASK, reports(7), DAY, 3)
    table = pq.read_table(tmp_path / "a.parquet")
    assert dict(zip(table.column_names, map(str, table.schema.types), strict=True)) == {
        "task": "string",
        "day": "date32[day]",
        "batch": "string",
        "reports": "binary",
    }
    assert table.schema.metadata[b"hubbub.protocol.task"] == TASK.canonical
    assert [len(row) for row in table["reports"].to_pylist()] == [3 * WIDTH, 3 * WIDTH, WIDTH]
    assert set(table["task"].to_pylist()) == {TASK.digest.hex()}
    assert set(table["day"].to_pylist()) == {DAY}
    assert len(set(table["batch"].to_pylist())) == 3


def test_no_reports_at_all(tmp_path: Path) -> None:
    save_parquet(tmp_path / "a.parquet", TASK, reports(7)[:0], DAY)
    assert lake.aggregate([tmp_path]).state.count == 0


def test_several_processes_give_the_same_bytes(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, state = files
    monkeypatch.setattr(lake, "_LEAST", 1)
    monkeypatch.setattr(lake, "_MOST_IDS", 4)
    steps: dict[str, list[int]] = {}
    found = lake.aggregate(
        paths, jobs=2, progress=lambda *step: steps.setdefault(step[0], []).append(step[1])
    )
    assert found.state.to_bytes() == state.to_bytes()
    assert sum(steps["aggregating"]) == sum(steps["looking for repeated batches"]) > 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, 1), ({"_WORTH": 1}, 7), ({"_WORTH_ROWS": 1}, 7)],
    ids=["little", "bytes", "rows"],
)
def test_processes_are_started_where_there_is_work(
    files: Any, changed: dict[str, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless somebody says how many: one per core for many bytes or many rows, none for a few."""
    paths, state = files
    asked = []

    def count(jobs: int, task: Task) -> Any:
        asked.append(jobs)
        return workers(1, task)

    monkeypatch.setattr(lake, "workers", count)
    monkeypatch.setattr(lake, "cores", lambda: 7)
    for name, value in changed.items():
        monkeypatch.setattr(lake, name, value)
    assert lake.aggregate(paths, jobs=None).state.to_bytes() == state.to_bytes()
    assert asked == [expected]


@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.binary(WIDTH)], ids=["large binary", "fixed size binary"]
)
def test_other_kinds_of_columns(kind: Any, tmp_path: Path) -> None:
    packed = reports(20)
    column = pa.array([row.tobytes() for row in packed], kind)
    ids = pa.array([str(i) for i in range(20)]).dictionary_encode()
    pq.write_table(pa.table({"reports": column, "batch": ids}), tmp_path / "a.parquet")
    found = lake.aggregate([tmp_path / "a.parquet"], TASK)
    assert found.state.to_bytes() == aggregate(TASK, packed).to_bytes()
    assert found.unnamed == []


# Repeats


def test_a_batch_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a row group, a file and between files, in one process and in two; the first row counts."""
    monkeypatch.setattr(lake, "_LEAST", 1)
    packed = reports(48)
    rows = rows_of(packed, "r")
    digest = TASK.digest.hex()
    other = (digest, rows[0][1], reports(4, seed=9).tobytes())
    write(tmp_path / "a.parquet", [*rows[:6], rows[2]])
    write(tmp_path / "b.parquet", [other, *rows[6:], rows[11], rows[1]])
    for jobs in (1, 2):
        found = lake.aggregate([tmp_path], jobs=jobs)
        assert found.state.to_bytes() == aggregate(TASK, packed).to_bytes()
        assert (found.repeated, found.rejected) == (4, [])
    swapped = lake.aggregate([tmp_path / "b.parquet", tmp_path / "a.parquet"])
    assert swapped.state.count == 48
    assert swapped.state.to_bytes() != found.state.to_bytes()


def test_the_same_id_for_another_task_is_another_batch(tmp_path: Path) -> None:
    packed = reports(8)
    rows = rows_of(packed, "r")
    write(tmp_path / "a.parquet", [(OTHER.digest.hex(), "r4", b"xx"), *rows])
    found = lake.aggregate([tmp_path])
    assert found.state.count == 8
    assert found.repeated == 0
    assert set_aside(found) == {("a.parquet", 0, -1, OTHER_TASK)}


def test_without_ids_nothing_is_noticed_and_that_is_said(tmp_path: Path) -> None:
    row = rows_of(reports(4), "r")
    write(tmp_path / "a.parquet", row, columns=["reports"])
    write(tmp_path / "b.parquet", row, columns=["reports"])
    found = lake.aggregate([tmp_path])
    assert found.state.count == 8
    assert [Path(path).name for path in found.unnamed] == ["a.parquet", "b.parquet"]
    said = run_cli("aggregate", tmp_path, "-o", tmp_path / "s").stdout
    assert "2 files have no batch ids" in said


@steady
@given(st.lists(st.text(max_size=12), max_size=12))
def test_ids_have_one_hash_each(ids: list[str]) -> None:
    hashing = IdHash()
    found = [bytes(row) for row in hashing(pa.array(ids, pa.string()))]
    assert len(set(found)) == len(set(ids))
    again = hashing(pa.array(["", *ids], pa.string())[1:])
    assert found == [bytes(row) for row in again], "whatever stands around it"
    assert all(a != b for a, b in zip(found, map(bytes, IdHash()(pa.array(ids, pa.string()))), strict=True))


def test_each_word_of_an_id_hash_collides_as_proven() -> None:
    """Two ids that differ in one letter, over 2^17 drawn hash functions cut to 8 bits: 1 in 256 agree.

    Agreements are binomial with mean 512; outside 512 +- 120 (5.3 deviations) lie 1e-7 of all outcomes. A family that
    agrees 30% more often is outside it.
    """
    rng = np.random.default_rng(5)
    pair = pa.array(["batch-17", "batch-18"])
    hashing, agree = IdHash(), 0
    for factors in rng.integers(0, 1 << 64, (1 << 15, *hashing._factors.shape), dtype=np.uint64):
        hashing._factors = factors
        one, two = hashing(pair).view("<u4") >> 24
        agree += int((one == two).sum())
    assert abs(agree - 512) <= 120
    assert abs(1.3 * 512 - 512) > 120


# Rows that are set aside


def test_bad_rows_are_set_aside_with_their_reasons(tmp_path: Path) -> None:
    digest = KEPT.digest.hex()
    good, bucket = b"\x01\x02", b"\x01\x0d"
    write(
        tmp_path / "a.parquet",
        [
            (digest, "1", good + bucket + good),
            (digest, "2", good[:1]),
            (digest, None, good),
            (digest, "3", None),
            (OTHER.digest.hex(), "4", good),
            (None, "5", good),
            (digest, "x" * 257, good),
            (digest, "", good),
        ],
        KEPT,
    )
    found = lake.aggregate([tmp_path])
    assert found.state.to_bytes() == aggregate(KEPT, 3 * good).to_bytes()
    right = {
        (0, 1, "bucket is not below 13"),
        (1, -1, "the row is not a whole number of reports of 2 bytes"),
        (2, -1, NO_ID),
        (3, -1, NO_REPORTS),
        (4, -1, OTHER_TASK),
        (5, -1, OTHER_TASK),
        (6, -1, NO_ID),
    }
    assert {row[1:] for row in set_aside(found)} == right
    for name in ("list.csv", "list.parquet"):
        said = succeed(
            "aggregate", tmp_path / "a.parquet", "-o", tmp_path / "s", "--rejected", tmp_path / name
        )
        assert said["reports"] == 3
        assert said["rejected"][OTHER_TASK] == 2
    listed = pq.read_table(tmp_path / "list.parquet").to_pylist()
    assert {(row["row"], row["report"], row["reason"]) for row in listed} == right
    with (tmp_path / "list.csv").open(newline="") as file:
        again = [
            {**row, "row": int(row["row"]), "report": int(row["report"])} for row in csv.DictReader(file)
        ]
    assert again == listed
    assert {row["file"] for row in listed} == {str(tmp_path / "a.parquet")}


def test_a_list_of_nothing_is_written_too(files: Any, tmp_path: Path) -> None:
    succeed("aggregate", tmp_path / "lake", "-o", tmp_path / "s", "--rejected", tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    assert (table.num_rows, table.column_names) == (0, ["file", "row", "report", "reason"])


# What is refused


def test_files_of_another_task_are_refused_by_name(files: Any, tmp_path: Path) -> None:
    paths, _ = files
    foreign = write(tmp_path / "foreign.parquet", [], OTHER)
    with refused("foreign.parquet", OTHER.digest.hex(), str(paths[0])):
        lake.aggregate([*paths, foreign])
    OTHER.save(tmp_path / "other.toml")
    line = refuse("aggregate", tmp_path / "lake", "-o", tmp_path / "s", "--task", tmp_path / "other.toml")
    assert "0.parquet belongs to task" in line
    folder = tmp_path / f"task={OTHER.digest.hex()}"
    folder.mkdir()
    write(folder / "x.parquet", [], None, columns=["reports"])
    with refused("x.parquet", "folder of another task"):
        lake.aggregate([folder], TASK)
    assert lake.aggregate([folder], OTHER).files == 1


def test_files_that_do_not_name_their_task_need_it_named(files: Any, tmp_path: Path) -> None:
    _, state = files
    packed = reports(8, seed=3)
    write(tmp_path / "bare.parquet", rows_of(packed, "bare"), None)
    assert "--task" in refuse("aggregate", tmp_path / "bare.parquet", "-o", tmp_path / "s")
    TASK.save(tmp_path / "t.toml")
    succeed("aggregate", tmp_path / "bare.parquet", "-o", tmp_path / "s", "--task", tmp_path / "t.toml")
    assert load_state(tmp_path / "s")[1].to_bytes() == aggregate(TASK, packed).to_bytes()
    both = lake.aggregate([tmp_path / "bare.parquet", tmp_path / "lake"])
    assert both.state.to_bytes() == state.merge(aggregate(TASK, packed)).to_bytes()


def test_other_refusals(files: Any, tmp_path: Path) -> None:
    paths, _ = files
    out = ["-o", tmp_path / "s"]
    save_reports(tmp_path / "a.reports", TASK, reports(3))
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"reports": ["text"]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"reports": [b""], "batch": [1]}), tmp_path / "batch.parquet")
    link = tmp_path / "link.parquet"
    link.symlink_to(paths[0])
    before = {path.name for path in tmp_path.iterdir()}
    for arguments, parts in (
        ([paths[0], tmp_path / "a.reports"], ["do not mix"]),
        ([tmp_path / "a.reports", "--jobs", 2], ["for Parquet"]),
        ([tmp_path / "no.parquet"], ["no.parquet", "not a readable Parquet file"]),
        ([tmp_path / "missing.parquet"], ["missing.parquet", "cannot be read"]),
        ([tmp_path / "empty"], ["holds no .parquet files"]),
        ([tmp_path / "x.parquet"], ["no column 'reports'", "x"]),
        ([tmp_path / "text.parquet"], ["must be binary, not string"]),
        ([tmp_path / "batch.parquet"], ["'batch' must be text, not int64"]),
        ([link, tmp_path / "lake"], ["named twice"]),
        ([paths[0], "--rejected", tmp_path / "list.txt"], [".csv or a .parquet"]),
    ):
        line = refuse("aggregate", *arguments, *out)
        for part in parts:
            assert part in line
    assert {path.name for path in tmp_path.iterdir()} == before


def test_hidden_files_and_unfinished_writes_are_no_reports(files: Any, tmp_path: Path) -> None:
    _, state = files
    folder = tmp_path / "lake"
    (folder / ".part.parquet").write_bytes(b"")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "x.parquet").write_bytes(b"")
    (folder / "_SUCCESS").write_bytes(b"")
    assert lake.aggregate([folder]).state.to_bytes() == state.to_bytes()


# Interruptions


class Stop(Exception):
    """What a test interrupts a run with."""


def interrupted(paths: list[Path], path: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends when `after` row groups are counted."""
    monkeypatch.setattr(lake, "_LEAST", 1)
    monkeypatch.setattr(lake, "_MOST", 1)
    add, counted = manifest.Manifest.add, []

    def until(self: Any, *given: Any) -> None:
        add(self, *given)
        counted.append(1)
        if len(counted) == after:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(manifest.Manifest, "add", until)
        with pytest.raises(Stop):
            lake.aggregate(paths, manifest=path)


@pytest.mark.parametrize("after", [1, 4, 9, 20])
def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(
    after: int, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with bad and repeated rows before and after the interruption."""
    paths, _ = files
    digest = TASK.digest.hex()
    write(paths[0], [*rows_of(reports(40), "0-"), (digest, "bad", b"x" * (WIDTH + 1)), (digest, "1-4", b"")])
    write(paths[4], [*rows_of(reports(40, seed=6), "4-"), (digest, "0-0", b""), (digest, "worse", b"x")])
    whole = lake.aggregate(paths)
    path = tmp_path / "m"
    interrupted(paths, path, after, monkeypatch)
    folded: list[Any] = []
    fold = lake._fold
    monkeypatch.setattr(lake, "_fold", lambda task, work: folded.append(work) or fold(task, work))
    found = lake.aggregate(paths, manifest=path)
    assert found.state.to_bytes() == whole.state.to_bytes()
    assert set_aside(found) == set_aside(whole)
    assert found.repeated == whole.repeated == 2
    sources, _ = lake.find_sources(paths, None)
    paths_of_groups = [group.source.path for group in lake.groups_of(sources)]
    assert sum(len(work.groups) for work in folded) == len(paths_of_groups) - after
    assert found.resumed == len(set(paths_of_groups[:after]))


def test_changed_files_and_other_runs_are_noticed(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = files
    path = tmp_path / "m"
    interrupted(paths, path, 3, monkeypatch)
    with refused("other files", "delete"):
        lake.aggregate(paths[1:], manifest=path)
    with refused("other files"):
        lake.aggregate(paths[::-1], manifest=path)
    other = write(tmp_path / "o.parquet", [], OTHER)
    with refused("another task"):
        lake.aggregate([other], manifest=path)
    content = paths[1].read_bytes()
    write(paths[1], rows_of(reports(40, seed=8), "new"))
    with refused(str(paths[1]), "has changed since", str(path)):
        lake.aggregate(paths, manifest=path)
    paths[1].write_bytes(content)
    os.utime(paths[1], ns=(0, 0))
    with refused("has changed since"):
        lake.aggregate(paths, manifest=path)


def test_damaged_manifests_are_refused(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = files
    path = tmp_path / "m"
    interrupted(paths, path, 3, monkeypatch)
    data = path.read_bytes()
    for wrong in (b"", data[:-30], b"{}", data.replace(b"about.json", b"above.json"), _flip(data, b"state")):
        path.write_bytes(wrong)
        with refused("not the manifest of an unfinished run", "delete it"):
            lake.aggregate(paths, manifest=path)


def test_any_flipped_bit_of_a_manifest_is_refused_or_means_nothing(tmp_path: Path) -> None:
    """Every bit of a small manifest, and every length: what is not refused is what was written."""
    path, files = tmp_path / "m", [("a", 1, 2), ("b", 3, 4)]
    listed = task_for(make_mechanism("privkv", epsilon=1.0, max_entries=2, size=4), 4)
    state = listed.mechanism.empty(listed.keys)
    state.count = 3
    written = manifest.Manifest(path, listed, files)
    written._next = 0
    written.add([("a", 0)], {UNTOLD: state}, [Rejected("a", "bad", np.array([1]), np.array([2]))])
    data = path.read_bytes()
    (tmp_path / ".m.half").write_bytes(data[:50])
    taken = 0
    flipped = (
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :] for i in range(len(data)) for bit in range(8)
    )
    for wrong in (*flipped, *(data[:length] for length in range(len(data)))):
        path.write_bytes(wrong)
        try:
            found = manifest.Manifest.open(path, listed, files)
        except Refused:
            continue
        taken += 1
        assert (found.done, found.states[UNTOLD].to_bytes()) == ({("a", 0)}, state.to_bytes())
        assert [rejected.rows.tolist() for rejected in found.rejected] == [[1]]
    assert taken < 4 * len(data)
    assert [file.name for file in tmp_path.iterdir()] == ["m"], "what a killed run had half written is gone"


def _flip(data: bytes, member: bytes) -> bytes:
    """The archive with one bit of a member's content changed."""
    place = data.index(member) + len(member) + 20
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_file_that_changes_while_it_is_read_is_refused(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = files
    fold = lake._fold

    def slow(task: Task, work: Any) -> Any:
        result = fold(task, work)
        os.utime(paths[3], ns=(1, 1))
        return result

    monkeypatch.setattr(lake, "_fold", slow)
    with refused("3.parquet changed while it was read"):
        lake.aggregate(paths)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_command_ended_from_outside_goes_on(how: signal.Signals, files: Any, tmp_path: Path) -> None:
    """Two real worker processes; none outlives the command, and the second run gives the same bytes."""
    _, state = files
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import signal, sys, time\n"
        "from hubbub.engines import lake, manifest\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it\n"
        "lake._LEAST, lake._MOST, manifest._PAUSE, manifest._SHARE = 1, 1, 0, 0\n"
        "fold = lake._fold\n"
        "def dawdle(task, work):\n"
        "    time.sleep(0.3)\n"
        "    return fold(task, work)\n"
        "lake._fold = dawdle\n"
        "if __name__ == '__main__':\n"
        "    from hubbub.cli import main\n"
        "    main()\n"
    )
    out = tmp_path / "s"
    arguments = ["aggregate", tmp_path / "lake", "-o", out, "--jobs", "2"]
    running = subprocess.Popen(
        [sys.executable, slow, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for((tmp_path / "s.unfinished").exists)
    workers = _children(running.pid)
    assert len(workers) >= 2
    running.send_signal(how)
    running.communicate(timeout=30)
    assert running.returncode != 0
    wait_for(lambda: not any(_alive(pid) for pid in workers))
    assert not out.exists()
    said = succeed(*arguments)
    assert said["resumed_files"] >= 1
    assert load_state(out)[1].to_bytes() == state.to_bytes()
    assert not (tmp_path / "s.unfinished").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "s", "slow.py"]


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_dies_is_reported(files: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths, _ = files
    monkeypatch.setattr(lake, "_LEAST", 1)
    monkeypatch.setattr(lake, "_fold", _die)
    with refused("worker process was ended", "fewer jobs"):
        lake.aggregate(paths, jobs=2)


def _die(task: Task, work: Any) -> Any:
    os._exit(9)
