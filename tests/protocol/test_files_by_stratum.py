"""Files that keep strata apart: they add up to the whole, and what does not fit together is refused."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import reason, refused, small_task
from hubbub.model.state import State
from hubbub.primitives.envelope import unseal
from hubbub.protocol.files import (
    counts_in,
    load_reports,
    load_reports_by,
    load_state,
    open_states,
    save_reports,
    save_reports_by,
    save_state,
    save_states,
    total_of,
)
from hubbub.protocol.strata import UNTOLD, Stratum
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

TASK = Task.parse(
    {
        "name": "t",
        "period": "week",
        "labels": {"country": ["de", "fr"], "version": ["1", "2"]},
        "keys": {"kind": "closed", "size": 10, "bits": 4, "salt": "0" * 32},
        "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8, "seed_bits": 8},
    }
)
DE, FR, LATER = Stratum(("de", "1")), Stratum(("fr", "2"), "2026-W46"), Stratum(("fr", "2"), "2026-W47")
_RNG = np.random.default_rng(3)
NUMBERS = np.column_stack([_RNG.integers(0, 256, 90), _RNG.integers(0, 8, 90)]).astype(np.uint64)
PACKED = TASK.mechanism.layout.pack(NUMBERS)
PARTS = {LATER: PACKED[:20], DE: PACKED[20:50], UNTOLD: PACKED[50:51], FR: PACKED[51:]}
_PART = struct.Struct("<HQ")


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    save_reports_by(tmp_path / "t.reports", TASK, PARTS)
    return tmp_path / "t.reports"


@pytest.fixture
def states(tmp_path: Path) -> Path:
    save_states(tmp_path / "t.state", TASK, {at: aggregate(TASK, part) for at, part in PARTS.items()})
    return tmp_path / "t.state"


def load_all(path: Path) -> dict[Stratum, State]:
    return dict(open_states(path)[1])


def pieces(path: Path) -> list[tuple[bytes, bytes]]:
    """Text and part of every stratum in a file."""
    rest, found = bytes(unseal(path.read_bytes()).payload), []
    while rest:
        size, length = _PART.unpack_from(rest)
        found.append((rest[10 : 10 + size], rest[10 + size : 10 + size + length]))
        rest = rest[10 + size + length :]
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_PART.pack(len(text), len(part)) + text + part for text, part in parts)


def rewrite(path: Path, **changes: Any) -> None:
    """Replace parts of an envelope, with a checksum that fits."""
    path.write_bytes(replace(unseal(path.read_bytes()), **changes).seal())


def test_what_is_saved_is_loaded(reports: Path, states: Path) -> None:
    task, parts = load_reports_by(reports)
    assert task == TASK
    assert list(parts) == [UNTOLD, DE, FR, LATER]  # by their texts
    assert all(np.array_equal(parts[at], PARTS[at]) for at in PARTS)
    task, found = open_states(states)
    assert task == TASK
    assert {at: state.to_bytes() for at, state in found.items()} == {
        at: aggregate(TASK, part).to_bytes() for at, part in PARTS.items()
    }


def test_the_sum_over_strata_is_the_whole_to_the_bit(reports: Path, states: Path, tmp_path: Path) -> None:
    whole = aggregate(TASK, PACKED).to_bytes()
    assert total_of(TASK, open_states(states)[1]).to_bytes() == whole
    assert load_state(states)[1].to_bytes() == whole
    assert aggregate(TASK, load_reports(reports)[1]).to_bytes() == whole
    kept = small_task("collision", family="prf", buckets=13, seed_bits=12)
    packed = kept.mechanism.layout.pack(np.column_stack([NUMBERS[:, 0], NUMBERS[:, 1]]))
    halves = {Stratum(): aggregate(kept, packed[:40])}
    save_states(tmp_path / "kept.state", kept, halves)
    rest = aggregate(kept, packed[40:])
    assert load_state(tmp_path / "kept.state")[1].merge(rest).to_bytes() == aggregate(kept, packed).to_bytes()


def test_the_same_strata_are_the_same_bytes_in_whatever_order(reports: Path, tmp_path: Path) -> None:
    save_reports_by(tmp_path / "again.reports", TASK, dict(reversed(PARTS.items())))
    assert (tmp_path / "again.reports").read_bytes() == reports.read_bytes()


def test_files_without_strata_are_of_one_of_which_nothing_is_told(tmp_path: Path) -> None:
    save_reports(tmp_path / "p.reports", TASK, PACKED)
    save_state(tmp_path / "p.state", TASK, aggregate(TASK, PACKED))
    assert list(load_reports_by(tmp_path / "p.reports")[1]) == [UNTOLD]
    assert list(open_states(tmp_path / "p.state")[1]) == [UNTOLD]


def test_no_strata_are_a_file_too(tmp_path: Path) -> None:
    save_reports_by(tmp_path / "f.reports", TASK, {})
    save_states(tmp_path / "f.state", TASK, {})
    assert load_reports(tmp_path / "f.reports")[1].shape == (0, TASK.mechanism.layout.width)
    assert load_state(tmp_path / "f.state")[1].to_bytes() == aggregate(TASK, b"").to_bytes()


@pytest.mark.parametrize("kind", ["reports", "states"])
def test_every_other_length_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    load: Callable[[Path], Any] = load_reports_by if kind == "reports" else load_all
    data, payload = path.read_bytes(), bytes(unseal(path.read_bytes()).payload)
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert str(path) in reason(lambda: load(path))
    for length in range(1, len(payload), 3):  # with a checksum that fits
        path.write_bytes(data)
        rewrite(path, payload=payload[:length])
        assert "\n" not in reason(lambda: load(path))


@pytest.mark.parametrize("kind", ["reports", "states"])
def test_parts_in_another_order_twice_or_elsewhere_are_refused(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    load: Callable[[Path], Any] = load_reports_by if kind == "reports" else load_all
    parts, good = pieces(path), path.read_bytes()
    for changed, words in (
        (parts[::-1], "do not follow one another"),
        ([parts[1], *parts[1:]], "do not follow one another"),
        ([*parts[:1], parts[2], parts[1], parts[3]], "do not follow one another"),
        ([*parts[:3], (b"country=fr,version=3@2026-W47", parts[3][1])], "is no version of task"),
        ([*parts[:3], (b"version=2,country=fr", parts[3][1])], "is not how a stratum"),
        ([*parts[:2], (b"country=fr", parts[3][1])], "'version' is missing"),
        ([*parts[:3], (b"country=fr,version=2@2026-W77", parts[3][1])], "is no period of task"),
        ([*parts[:3], (b"\xff" * 30, parts[3][1])], "Labels are written"),
        ([*parts[:3], (parts[3][0], parts[3][1][:-1])], ""),
        (parts[:3], ""),
    ):
        path.write_bytes(good)
        rewrite(path, payload=joined(changed))
        with refused(words):
            load(path)


def test_a_length_that_reaches_beyond_the_file_is_refused(states: Path) -> None:
    payload = bytes(unseal(states.read_bytes()).payload)
    for size, length in ((65535, 0), (0, 1 << 63), (0, (1 << 64) - 1)):
        rewrite(states, payload=_PART.pack(size, length) + payload[10:])
        with refused("damaged", str(states)):
            open_states(states)


def test_states_stay_on_disk_until_they_are_asked_for(states: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many reports each has is known without them; nobody reads what is not asked for."""
    made: list[int] = []
    load = State.load

    def loaded(self: State, payload: bytes) -> State:
        made.append(len(payload))
        return load(self, payload)

    monkeypatch.setattr(State, "load", loaded)
    _, found = open_states(states)
    assert found.counts == {UNTOLD: 1, DE: 30, FR: 39, LATER: 20}
    assert counts_in(found) == found.counts
    assert made == []
    assert found[DE].count == 30
    assert len(made) == 1
    assert counts_in(dict(found)) == found.counts
    with pytest.raises(KeyError):
        found[Stratum(("fr", "1"))]


@pytest.mark.parametrize("change", ["other bytes", "another file", "nothing"])
def test_a_file_that_changes_while_it_is_read_is_refused(change: str, states: Path) -> None:
    """What was checked when it was opened says nothing about what is there now."""
    _, found = open_states(states)
    good = states.read_bytes()
    if change == "other bytes":
        with states.open("r+b") as file:
            file.seek(-30, 2)
            file.write(b"x")
        os.utime(states, ns=(0, 1))
    else:
        states.unlink()
        if change == "another file":
            states.write_bytes(good[:-1])
    with refused("cannot be read" if change == "nothing" else "was changed", str(states)):
        found[DE]


def test_kinds_are_told_apart(reports: Path, states: Path) -> None:
    with refused("holds reports, not a state"):
        open_states(reports)
    with refused("holds states of several groups, not reports"):
        load_reports(states)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    for odd, words in ((Stratum(("xx", "1")), "is no country"), (Stratum((), "2026-W99"), "is no period")):
        with refused(words):
            save_states(tmp_path / "f.state", TASK, {odd: aggregate(TASK, b"")})
    assert not (tmp_path / "f.state").exists()
