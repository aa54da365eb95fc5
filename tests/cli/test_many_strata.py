"""Files of many strata on the command line: as much memory as a few states take, however many there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, peak, refuse, succeed
from hubbub.primitives.envelope import unseal
from hubbub.protocol.files import load_state, open_states, save_reports_by, save_states
from hubbub.protocol.strata import Stratum
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

#: A state takes half a MiB, all of a file 32.
GROUPS = 64
STATE = 0.5
TASK = Task.parse(
    {
        "name": "many",
        "keys": {"kind": "closed", "size": 50, "salt": "0123456789abcdef" * 2},
        "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8},
        "labels": {"team": [f"g{number}" for number in range(GROUPS)]},
    }
)


def some_reports(group: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rng, layout = np.random.default_rng([seed, group]), TASK.mechanism.layout
    columns = [rng.integers(0, field.limit, 20 + group, dtype=np.uint64) for field in layout.fields]
    return layout.pack(np.stack(columns, axis=1))


def parts(seed: int, groups: range = range(GROUPS)) -> dict[Stratum, np.ndarray[Any, np.dtype[np.uint8]]]:
    return {Stratum((f"g{group}",)): some_reports(group, seed) for group in groups}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Reports and states of all groups."""
    folder = tmp_path_factory.mktemp("many")
    save_reports_by(folder / "all.reports", TASK, parts(1))
    states = {stratum: aggregate(TASK, packed) for stratum, packed in parts(1).items()}
    save_states(folder / "all.state", TASK, states)
    assert (folder / "all.state").stat().st_size > STATE * GROUPS * (1 << 20)
    return folder / "all.reports", folder / "all.state"


def used(command: Callable[[], Any]) -> float:
    """States that fit into the memory that a command takes, the second time: then all is loaded and compiled."""
    command()
    with peak() as reached:
        command()
        return reached() / STATE


@pytest.mark.parametrize(
    ("most", "options"),
    [
        (8, ("merge", "{state}", "-o", "{out}.state")),
        (8, ("aggregate", "{reports}", "-o", "{out}.state")),
        (14, ("estimate", "{state}", "7")),
        (14, ("estimate", "{state}", "7", "--where", "team=g3")),
        (14, ("estimate", "{state}", "7", "--by", "team")),
        (14, ("compare", "{state}", "7", "--compare", "team=g3,g4")),
        (14, ("compare", "{state}", "{state}", "7", "--where", "team=g5")),
        (2, ("inspect", "{state}")),
        (4, ("inspect", "{reports}")),
        (14, ("notice", "{state}")),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_a_few_states_are_in_memory(
    most: float, options: tuple[str, ...], files: tuple[Path, Path], tmp_path: Path
) -> None:
    reports, state = files
    asked = [each.format(reports=reports, state=state, out=tmp_path / "made") for each in options]
    assert used(lambda: succeed(*asked)) < most < GROUPS / 4


def test_what_is_made_piece_by_piece_is_the_same(files: tuple[Path, Path], tmp_path: Path) -> None:
    reports, state = files
    said = succeed("aggregate", reports, "-o", tmp_path / "a.state")
    assert (tmp_path / "a.state").read_bytes() == state.read_bytes()
    assert (said["reports"], said["strata"]) == (sum(map(len, parts(1).values())), GROUPS)
    more = parts(2, range(3, 9))
    save_reports_by(tmp_path / "more.reports", TASK, more)
    succeed("aggregate", reports, tmp_path / "more.reports", "-o", tmp_path / "both.state")
    succeed("aggregate", tmp_path / "more.reports", "-o", tmp_path / "more.state")
    said = succeed("merge", state, tmp_path / "more.state", "-o", tmp_path / "more.state")  # over one of them
    assert (tmp_path / "more.state").read_bytes() == (tmp_path / "both.state").read_bytes()
    everything = np.concatenate([*parts(1).values(), *more.values()])
    assert load_state(tmp_path / "both.state")[1].to_bytes() == aggregate(TASK, everything).to_bytes()
    assert said["reports"] == len(everything)
    facts = succeed("inspect", tmp_path / "both.state")
    assert facts["strata"]["team=g3"] == 2 * 23
    report = succeed("inspect", reports, "--report", 25)[
        "report"
    ]  # of 20 of the first group, and 21 of the next
    assert list(report.values()) == TASK.mechanism.layout.unpack(some_reports(1, 1)[5])[0].tolist()
    assert "is not among them" in refuse("inspect", reports, "--report", len(everything))


@pytest.mark.parametrize("command", ["merge", "aggregate", "estimate", "compare", "inspect"])
def test_a_flipped_bit_is_noticed_before_anything_is_believed(
    command: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """In the last stratum, of which the first answers would not depend."""
    source = files[0] if command == "aggregate" else files[1]
    data = bytearray(source.read_bytes())
    data[-40] ^= 1
    (tmp_path / "bad").write_bytes(data)
    options = {
        "estimate": ["7", "--where", "team=g0"],
        "compare": ["7", "--compare", "team=g0,g1"],
        "inspect": [],
    }
    before = contents(tmp_path)
    words = refuse(command, tmp_path / "bad", *options.get(command, ["-o", tmp_path / "out"]))
    assert "checksum does not match" in words
    assert contents(tmp_path) == before


def test_what_is_wrong_in_the_middle_leaves_nothing(files: tuple[Path, Path], tmp_path: Path) -> None:
    """A report that no device makes, with a checksum that fits, is found while the file is written."""
    envelope = unseal(files[0].read_bytes())
    payload = bytearray(envelope.payload)
    payload[-1] = 0xFF
    (tmp_path / "bad.reports").write_bytes(
        type(envelope)(**{**vars(envelope), "payload": bytes(payload)}).seal()
    )
    before = contents(tmp_path)
    refuse("aggregate", tmp_path / "bad.reports", "-o", tmp_path / "out.state")
    assert contents(tmp_path) == before


def test_groups_of_a_file_are_those_of_its_parts(files: tuple[Path, Path]) -> None:
    """`--where` adds up the part that is asked for."""
    _, state = files
    found = succeed("estimate", state, "7", "--where", "team=g3")
    only = succeed("estimate", state, "7", "--by", "team")
    assert json.dumps(found["estimates"][0]["value"]) == json.dumps(
        next(group for group in only["groups"] if group["group"] == "g3")["estimates"][0]["value"]
    )
    assert found["reports"] == open_states(state)[1].counts[Stratum(("g3",))]
