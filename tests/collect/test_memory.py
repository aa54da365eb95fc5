"""Memory: what is large passes through in pieces. Peaks are those of Python's and numpy's allocations."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
from collecting import collected_task

from helpers import peak
from hubbub.collect import snapshots as folding
from hubbub.collect.export import parquet_chunks
from hubbub.collect.shelves import Kept
from hubbub.collect.store import Batch, Store
from hubbub.collect.writing import Collected, examine
from hubbub.server.fold import aggregate

MB = 1 << 20
#: Reports of 40 bytes with 300 numbers each, of 8 bytes when they are unpacked.
WIDE = collected_task(mechanism={"name": "repeated", "epsilon": 1.0, "max_entries": 300})


def wide_reports(count: int) -> bytes:
    layout, rng = WIDE.mechanism.layout, np.random.default_rng(1)
    columns = [rng.integers(0, field.limit, count, dtype=np.uint64) for field in layout.fields]
    return layout.pack(np.stack(columns, axis=1)).tobytes()


def test_an_export_is_a_stream(tmp_path: Path) -> None:
    """48 MiB of kept reports leave in pieces, and no more than a few of them are ever in memory."""
    task = collected_task()
    store = Store(f"sqlite:///{tmp_path}/s.db")
    for number in range(48):
        payload = os.urandom(MB)
        store.append([Batch(task.digest.hex(), f"b{number}", MB // 4, payload, payload[:16], 0)])
    list(parquet_chunks(task, [Kept("first", 0, b"abc", "")]))  # modules that are loaded on the way
    sizes = []
    with (tmp_path / "all.parquet").open("wb") as file, peak() as reached:
        for chunk in parquet_chunks(task, store.kept(task.digest.hex())):
            file.write(chunk)
            sizes.append(len(chunk))
        held = reached()
    store.close()
    assert sum(sizes) > 48 * MB
    assert max(sizes) < 4 * MB
    assert held < 16
    table = pyarrow.parquet.read_table(io.BytesIO((tmp_path / "all.parquet").read_bytes()))
    assert table.num_rows == 48


def test_wide_reports_are_examined_and_added_in_pieces() -> None:
    """20,000 reports have 46 MiB of numbers: they are never unpacked all at once, and the result is the same."""
    reports = wide_reports(20_000)
    collected = Collected(WIDE)
    with peak() as reached:
        found = examine(collected, memoryview(reports))
        assert reached() < 30
    assert (found.count, found.rejects, bytes(found.payload)) == (20_000, None, reports)
    bad = bytearray(reports)
    bad[40 * 15_000 + 39] |= 0xF0  # filler bits of one report, in a later piece
    found = examine(collected, bytes(bad))
    assert found.problems == [{"index": 15_000, "reason": "filler bits after the last field are set"}]
    assert found.count == 19_999
    expected = aggregate(WIDE, reports).to_bytes()
    folding.sum_of_reports(WIDE, reports[: 40 * 100])  # what is compiled or remembered the first time
    with peak() as reached:
        state = folding.sum_of_reports(WIDE, reports)
        assert reached() < 120
    assert state.to_bytes() == expected
