"""Parquet files of reports by stratum: each apart, all of them the whole, in bounded memory, however the run goes."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import prose, python, refuse, refused, succeed
from hubbub.engines import lake, manifest
from hubbub.engines.arrow import NO_STRATUM, NOT_BEGUN, report_schema, save_parquet, save_parquet_by
from hubbub.protocol.files import load_state, open_states, total_of
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import MOST_COMBINATIONS, UNTOLD, Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate


def labelled(countries: int = 6) -> Task:
    return Task.parse(
        {
            "name": "t",
            "period": "week",
            "labels": {"country": [f"c{place}" for place in range(countries)]},
            "keys": {"kind": "closed", "size": 10, "bits": 4, "salt": "0" * 32},
            "mechanism": {
                "name": "collision",
                "epsilon": 1.0,
                "max_entries": 2,
                "buckets": 8,
                "seed_bits": 8,
            },
        }
    )


TASK = labelled()
STRATA = [UNTOLD, *(Stratum((f"c{place}",), "2026-W46" if place % 2 else "") for place in range(6))]


def reports(count: int, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    numbers = np.column_stack([rng.integers(0, 256, count), rng.integers(0, 8, count)])
    return TASK.mechanism.layout.pack(numbers.astype(np.uint64))


PACKED = reports(700)
PARTS = {stratum: PACKED[100 * place :][:100] for place, stratum in enumerate(STRATA)}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, each with rows of all strata, in row groups of a few rows."""
    folder = tmp_path / "lake"
    folder.mkdir()
    paths = []
    for place in range(3):
        parts = {stratum: part[place::3] for stratum, part in PARTS.items()}
        path = folder / f"{place}.parquet"
        save_parquet_by(path, TASK, parts, None, 7)
        pq.write_table(pq.read_table(path), path, row_group_size=9)
        paths.append(path)
    return paths


def expected() -> dict[Stratum, bytes]:
    return {stratum: aggregate(TASK, part).to_bytes() for stratum, part in PARTS.items()}


def found_in(found: lake.Lake) -> dict[Stratum, bytes]:
    return {stratum: state.to_bytes() for stratum, state in found.states.items()}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("held", [1 << 27, 1])
def test_each_stratum_apart_and_all_the_whole(
    files: list[Path], jobs: int, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all states in memory, and with one at a time; with one process, and with two."""
    monkeypatch.setattr(lake, "_HELD", held)
    monkeypatch.setattr(lake, "_LEAST", 1)
    found = lake.aggregate(files, jobs=jobs, manifest=tmp_path / "m")
    assert found_in(found) == expected()
    assert found.count == 700
    assert found.state.to_bytes() == aggregate(TASK, PACKED).to_bytes()
    assert len(found.kept) == (1 if held > 1 else 7)


def test_the_column_is_written_and_old_files_have_none(tmp_path: Path) -> None:
    save_parquet_by(tmp_path / "a.parquet", TASK, PARTS, None)
    column = pq.read_table(tmp_path / "a.parquet")["stratum"].to_pylist()
    assert column == [text_of(TASK, stratum) for stratum in STRATA]
    save_parquet(tmp_path / "b.parquet", TASK, PACKED, None)
    assert "stratum" not in pq.read_table(tmp_path / "b.parquet").column_names
    both = lake.aggregate([tmp_path])
    assert both.states[UNTOLD].count == 800
    assert both.state.count == 1400


def test_rows_of_strata_that_the_task_does_not_have_are_set_aside(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each, however often the lake is read; a missing stratum is one of which nothing is told."""
    texts = [
        "country=xx",
        "country=c1@2026-13",
        "@2026-W46",
        None,
        "x" * 5000,
        "country=c1,country=c1",
        "\xff",
    ]
    row = PACKED[:2].tobytes()
    columns = [
        [TASK.digest.hex()] * len(texts),
        [None] * len(texts),
        [f"odd-{place}" for place in range(len(texts))],
        [row] * len(texts),
        texts,
    ]
    odd = tmp_path / "odd.parquet"
    pq.write_table(pa.table(columns, schema=report_schema(TASK, True)), odd)
    for held in (1 << 27, 1):
        monkeypatch.setattr(lake, "_HELD", held)
        found = lake.aggregate([*files, odd], manifest=tmp_path / f"m{held}")
        assert found.reasons == {NO_STRATUM: (5, 10)}
        assert sorted(lot.rows.tolist() for lot in found.rejected) == [[0, 1, 4, 5, 6]]
        assert found.count == 704
        assert found.states[Stratum((), "2026-W46")].count == 2
    said = succeed("aggregate", *files, odd, "-o", tmp_path / "o.state", "--rejected", tmp_path / "r.csv")
    assert said["rejected"] == {NO_STRATUM: 5}
    assert said["rejected_reports"] == {NO_STRATUM: 10}
    assert (tmp_path / "r.csv").read_text().count(NO_STRATUM) == 5
    assert f"5 rows with 10 reports set aside: {NO_STRATUM}" in prose(
        "aggregate", *files, odd, "-o", tmp_path / "o.state"
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_periods_that_have_not_begun_are_set_aside(
    files: list[Path], jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HTTP and tables refuse them: some clock is wrong. Tomorrow's may have begun elsewhere."""
    today = datetime.date.today()
    soon = today + datetime.timedelta(days=1)
    texts = ["@2099-W01", "country=c1@2099-W01", "@2099", f"@{period_of(TASK, soon)}", "country=c1"]
    rows = [PACKED[: 2 + place].tobytes() for place in range(len(texts))]
    columns = [[TASK.digest.hex()] * 5, [None] * 5, [f"odd-{place}" for place in range(5)], rows, texts]
    odd = tmp_path / "odd.parquet"
    pq.write_table(pa.table(columns, schema=report_schema(TASK, True)), odd)
    monkeypatch.setattr(lake, "_LEAST", 1)
    for held in (1 << 27, 1):
        monkeypatch.setattr(lake, "_HELD", held)
        found = lake.aggregate([*files, odd], jobs=jobs, manifest=tmp_path / f"m{held}")
        assert found.reasons == {NOT_BEGUN: (3, 2 + 3 + 4)}
        assert found.count == 700 + 5 + 6
        assert not any("2099" in stratum.period for stratum in found.states)
    assert f"3 rows with 9 reports set aside: {NOT_BEGUN}" in prose(
        "aggregate", *files, odd, "-o", tmp_path / "o.state"
    )


def test_a_run_is_of_one_day(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If midnight comes between finding strata and adding up, no row is lost in between."""
    days = iter([datetime.date(2026, 11, 1), datetime.date(2026, 11, 9)])

    clock = SimpleNamespace(date=SimpleNamespace(today=lambda: next(days)))
    monkeypatch.setattr(lake, "datetime", clock)
    found = lake.aggregate(files)
    assert found.reasons == {NOT_BEGUN: (sum(row != "" for row in _periods(files)), 300)}
    assert found.count == 400


def _periods(files: list[Path]) -> list[str]:
    texts = [text for path in files for text in pq.read_table(path)["stratum"].to_pylist()]
    return [text.partition("@")[2] for text in texts]


def test_other_refusals(tmp_path: Path) -> None:
    many = labelled(MOST_COMBINATIONS + 1)
    parts = {Stratum((f"c{place}",)): PACKED[:1] for place in range(MOST_COMBINATIONS + 1)}
    with refused("more than 1,000 combinations"):
        save_parquet_by(tmp_path / "many.parquet", many, parts, None)
    halves = [dict(itertools.islice(parts.items(), 0, 600)), dict(itertools.islice(parts.items(), 600, None))]
    for place, half in enumerate(halves):
        save_parquet_by(tmp_path / f"{place}.parquet", many, half, None)
    with refused("more than 1,000 combinations"):
        lake.aggregate([tmp_path])
    table = pq.read_table(tmp_path / "0.parquet").set_column(4, "stratum", [list(range(600))])
    pq.write_table(table, tmp_path / "numbers.parquet")
    with refused("'stratum' must be text"):
        lake.aggregate([tmp_path / "numbers.parquet"])


class Stop(Exception):
    """What a test interrupts a run with."""


@pytest.mark.parametrize("after", [1, 8, 20, 33])
def test_an_interrupted_run_goes_on_wherever_it_was(
    after: int, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the first strata, and later when others wait in files already."""
    monkeypatch.setattr(lake, "_HELD", 2 * TASK.mechanism.empty(TASK.keys).totals.nbytes)
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
            lake.aggregate(files, manifest=tmp_path / "m")
    folded: list[Any] = []
    fold = lake._fold
    monkeypatch.setattr(lake, "_fold", lambda task, work: folded.append(work) or fold(task, work))
    found = lake.aggregate(files, manifest=tmp_path / "m")
    assert found_in(found) == expected()
    sources, _ = lake.find_sources(files, None)
    groups = len(list(lake.groups_of(sources)))
    assert len(folded) == 4 * groups - after
    assert sorted(path.name for path in found.kept) == ["m", "m.1", "m.2", "m.3"]


def test_a_manifest_of_other_strata_is_refused(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "_HELD", 1)
    lake.aggregate(files, manifest=tmp_path / "m")
    monkeypatch.setattr(lake, "_HELD", 1 << 27)
    with refused("found other strata; delete it"):
        lake.aggregate(files, manifest=tmp_path / "m")


def test_the_commands(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregate keeps strata apart, also of many; merge adds them up by stratum; inspect shows them."""
    for held, name in ((1 << 27, "one.state"), (1, "two.state")):
        monkeypatch.setattr(lake, "_HELD", held)
        said = succeed("aggregate", *files, "-o", tmp_path / name)
        assert (said["reports"], said["strata"]) == (700, 7)
    assert (tmp_path / "one.state").read_bytes() == (tmp_path / "two.state").read_bytes()
    assert not list(tmp_path.glob("*.unfinished*"))
    task, states = open_states(tmp_path / "one.state")
    assert {stratum: state.to_bytes() for stratum, state in states.items()} == expected()
    for place, path in enumerate(files):
        succeed("aggregate", path, "-o", tmp_path / f"{place}.state")
    parts = [tmp_path / f"{place}.state" for place in range(3)]
    assert succeed("merge", *parts, "-o", tmp_path / "merged.state")["strata"] == 7
    assert (tmp_path / "merged.state").read_bytes() == (tmp_path / "one.state").read_bytes()
    assert total_of(task, states).to_bytes() == load_state(tmp_path / "merged.state")[1].to_bytes()
    said = succeed("inspect", tmp_path / "one.state")
    assert said["strata"] == {text_of(TASK, stratum): 100 for stratum in STRATA}
    assert "country=c1@2026-W46" in prose("inspect", tmp_path / "one.state")
    assert "nothing told" in prose("inspect", tmp_path / "one.state")
    assert "named twice" in refuse("merge", parts[0], parts[0], "-o", tmp_path / "x.state")


_MEMORY = """
import re, sys
from pathlib import Path
from hubbub.engines import lake
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
lake._HELD = int(sys.argv[1])
folder = Path(sys.argv[2])
found = lake.aggregate([folder], manifest=folder / "m")
from hubbub.protocol.files import save_states
save_states(folder / "all.state", found.task, found.states)
print(peak())
"""


def test_memory_does_not_grow_with_the_number_of_strata(tmp_path: Path) -> None:
    """80 strata of 2 MB each: with room for four of them, a run takes less than half of what they take together.

    Besides the four, there are partial states of as many, and the file from which they are read again.
    """
    task = Task.parse(
        {
            "name": "t",
            "labels": {"country": [f"c{place}" for place in range(80)]},
            "keys": {"kind": "closed", "size": 250_000, "salt": "0" * 32},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2, "seed_bits": 16},
        }
    )
    one = task.mechanism.empty(task.keys).totals.nbytes
    assert one >= 2 << 20
    packed = np.zeros((4, task.mechanism.layout.width), dtype=np.uint8)
    peaks = []
    for strata, held in ((1, 4 * one), (80, 4 * one), (80, 1 << 40)):
        folder = tmp_path / f"{strata}-{held}"
        folder.mkdir()
        parts = {Stratum((f"c{place}",)): packed for place in range(strata)}
        save_parquet_by(folder / "a.parquet", task, parts, None)
        peaks.append(1024 * int(python(_MEMORY, held, folder)))
    alone, narrow, wide = peaks
    assert wide - alone > 70 * one
    assert narrow - alone < 30 * one
