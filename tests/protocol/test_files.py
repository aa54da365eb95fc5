"""Reports and states on disk: everything that does not fit is refused, and old files stay readable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import GOLDEN, contents, flips, reason, refused, small_task
from hubbub.model.mechanism import mechanism_code
from hubbub.primitives.envelope import Envelope, unseal
from hubbub.protocol.files import (
    REPORTS,
    STATE,
    load_reports,
    load_state,
    open_file,
    save_reports,
    save_state,
)
from hubbub.protocol.task import Task
from hubbub.server.estimates import estimate
from hubbub.server.fold import aggregate

STATES = json.loads((GOLDEN / "states.json").read_text())

#: Small enough to flip every bit: five bits per code.
TASK = Task.parse(
    {
        "name": "t",
        "keys": {"kind": "closed", "size": 10, "bits": 4, "salt": "0" * 32},
        "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8, "seed_bits": 8},
    }
)
PACKED = TASK.mechanism.layout.pack(np.array([[1, 2], [255, 7], [3, 0]], dtype=np.uint64))


@pytest.fixture
def files(tmp_path: Path) -> dict[bytes, Path]:
    """A reports file and the state file of its reports."""
    save_reports(tmp_path / "t.reports", TASK, PACKED)
    save_state(tmp_path / "t.state", TASK, aggregate(TASK, PACKED))
    return {REPORTS: tmp_path / "t.reports", STATE: tmp_path / "t.state"}


LOADERS = {REPORTS: load_reports, STATE: load_state}
kinds = pytest.mark.parametrize("kind", [REPORTS, STATE], ids=["reports", "state"])


def rewrite(path: Path, **changes: Any) -> None:
    """Replace parts of an envelope, with a checksum that fits."""
    path.write_bytes(replace(unseal(path.read_bytes()), **changes).seal())


def test_what_is_saved_is_loaded(files: dict[bytes, Path]) -> None:
    task, packed = load_reports(files[REPORTS])
    assert task == TASK
    assert np.array_equal(packed, PACKED)
    task, state = load_state(files[STATE])
    assert task == TASK
    assert state.to_bytes() == aggregate(TASK, PACKED).to_bytes()


def test_no_reports_are_a_file_too(tmp_path: Path) -> None:
    save_reports(tmp_path / "f", TASK, PACKED[:0])
    assert load_reports(tmp_path / "f")[1].shape == (0, 2)


@kinds
def test_every_flipped_bit_is_refused(kind: bytes, files: dict[bytes, Path]) -> None:
    """Always as `Refused`, with the file's name."""
    data = files[kind].read_bytes()
    assert len(data) < 700
    with files[kind].open("r+b", buffering=0) as file:
        for damaged in flips(data):
            file.seek(0)
            file.write(damaged)
            assert str(files[kind]) in reason(lambda: LOADERS[kind](files[kind]))


@kinds
def test_every_other_length_is_refused(kind: bytes, files: dict[bytes, Path]) -> None:
    data = files[kind].read_bytes()
    for length in range(len(data)):
        files[kind].write_bytes(data[:length])
        assert str(files[kind]) in reason(lambda: LOADERS[kind](files[kind]))
    files[kind].write_bytes(data + b"\0")
    with refused("longer than it says"):
        LOADERS[kind](files[kind])


@kinds
def test_what_does_not_fit_is_named(kind: bytes, files: dict[bytes, Path]) -> None:
    path, load = files[kind], LOADERS[kind]
    good = path.read_bytes()
    other = small_task("coco")
    for changes, part in (
        ({"mechanism": mechanism_code("coco")}, "another mechanism than collision"),
        ({"digest": bytes(16)}, "another task"),
        ({"task": other.canonical}, "another mechanism than coco"),
        ({"task": TASK.canonical.replace(b'"t"', b'"u"')}, TASK.digest.hex()),
        ({"task": b""}, "carries no task"),
        ({"task": b"{"}, "does not understand"),
        ({"task": b"[]"}, "does not understand"),
        ({"task": b"\xff"}, "does not understand"),
        ({"task": b"[" * 100_000}, "does not understand"),
        ({"task": TASK.canonical.replace(b"collision", b"collusion")}, "does not understand"),
        (
            {"kind": STATE if kind == REPORTS else REPORTS},
            "holds a state, not reports." if kind == REPORTS else "holds reports, not a state.",
        ),
        ({"count": 4}, str(path)),
        ({"payload": b""}, ""),
        ({"payload": unseal(good).payload + b"\0"}, ""),
    ):
        path.write_bytes(good)
        rewrite(path, **changes)
        with refused(part):
            load(path)


def test_a_state_with_impossible_reports_is_refused(tmp_path: Path) -> None:
    """Kept reports are checked when they are read, not when somebody asks for an estimate."""
    task = small_task("collision", family="prf", buckets=13, seed_bits=12)
    packed = task.mechanism.layout.pack(np.array([[5, 12]], dtype=np.uint64))
    save_state(tmp_path / "f", task, aggregate(task, packed))
    payload = unseal((tmp_path / "f").read_bytes()).payload
    rewrite(tmp_path / "f", payload=payload[:-1] + b"\xff")
    with refused("not below 13"):
        load_state(tmp_path / "f")


def test_an_unwritable_place_leaves_nothing(tmp_path: Path) -> None:
    with refused("cannot be written"):
        save_reports(tmp_path / "none" / "f", TASK, PACKED)
    assert contents(tmp_path) == {}


def test_any_file_can_be_opened_without_knowing_its_kind(files: dict[bytes, Path]) -> None:
    for kind, path in files.items():
        task, envelope = open_file(path)
        assert (task, envelope.kind, envelope.count) == (TASK, kind, 3)
        assert isinstance(envelope, Envelope)


# Files of version 1


@pytest.mark.parametrize("golden", STATES, ids=lambda golden: golden["file"])
def test_golden_files(golden: dict[str, Any]) -> None:
    """Every number in them, and the same bytes when they are written today."""
    task, state = load_state(GOLDEN / f"{golden['file']}.state")
    assert task.digest.hex() == golden["digest"]
    assert (state.count, state.squares) == (golden["count"], golden["squares"])
    assert state.totals.reshape(-1).tolist() == golden["totals"]
    assert state.reports.tobytes().hex() == golden["kept"]
    assert estimate(task, state, golden["asked"]).value.tolist() == pytest.approx(
        golden["estimates"], rel=1e-12
    )
    same, packed = load_reports(GOLDEN / f"{golden['file']}.reports")
    assert same == task
    assert aggregate(task, packed).to_bytes() == state.to_bytes()


@pytest.mark.parametrize("golden", STATES, ids=lambda golden: golden["file"])
def test_golden_files_are_still_written_alike(golden: dict[str, Any], tmp_path: Path) -> None:
    for suffix, load, save in (("reports", load_reports, save_reports), ("state", load_state, save_state)):
        old = GOLDEN / f"{golden['file']}.{suffix}"
        save(tmp_path / "f", *load(old))  # type: ignore[operator]
        assert (tmp_path / "f").read_bytes() == old.read_bytes()


def test_states_from_before_codes_were_summed_up(tmp_path: Path) -> None:
    """collision-coefficients.state holds the reports of collision.state as they were summed up at first."""
    old, new = GOLDEN / "collision-coefficients.state", GOLDEN / "collision.state"
    assert old.read_bytes() != new.read_bytes()
    save_state(tmp_path / "f", *load_state(old))
    assert (tmp_path / "f").read_bytes() == new.read_bytes()


def test_coefficients_that_no_reports_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes((GOLDEN / "collision-coefficients.state").read_bytes())
    payload = bytearray(unseal(path.read_bytes()).payload)
    payload[24] += 1
    rewrite(path, payload=bytes(payload))
    with refused("not sums of reports"):
        load_state(path)


def test_a_state_per_code_of_a_task_without_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes((GOLDEN / "sparse-sum.state").read_bytes())
    payload = bytearray(unseal(path.read_bytes()).payload)
    payload[7] |= 0x80
    rewrite(path, payload=bytes(payload))
    with refused("another program made it"):
        load_state(path)
