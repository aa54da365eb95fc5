"""What can be seen of a release besides its noisy numbers is the same for neighbouring tables, refusals included."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import contents, run_cli, write_csv
from hubbub.primitives.coins import InsecureCoins, SecretCoins
from hubbub.primitives.envelope import unseal
from hubbub.primitives.errors import Refused
from hubbub.release import Release, publish
from hubbub.release.goal import ALGORITHMS
from hubbub.release.part import Part

BOUNDS = {"epsilon": 1, "max_nonzero": 50, "max_value": 100, "max_sum": 2000}
Seen = dict[str, Any]


class Fixed(SecretCoins):
    """Coins that fall the same way every time: what differs between two runs is then due to the data."""

    def __init__(self) -> None:
        self._seeded = InsecureCoins(1)

    def below(self, bound: int) -> int:
        return self._seeded.below(bound)

    def words(self, count: int) -> np.ndarray:
        return self._seeded.words(count)


@pytest.fixture
def _fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.release.publisher.SecretCoins", Fixed)
    monkeypatch.setattr("secrets.token_hex", lambda size: "5a" * size)


def seen(path: Path) -> Seen:
    """Everything about a file but the contents of its arrays, and how long a noisy list is."""
    data = path.read_bytes()
    envelope, opened = unseal(data), Release.open(path)
    parts = list(zip(opened.parameters.parts, opened.arrays, strict=True))
    noisy = sum(_padded(array.nbytes) for part, arrays in parts for array in _listed(part, opened, arrays))
    return {
        "header": data[:7],
        "mechanism": envelope.mechanism,
        "digest": envelope.digest,
        "count": envelope.count,
        "parameters": bytes(envelope.task),
        "size": len(data) - noisy,
        "types": [[(name, array.dtype.str) for name, array in arrays.items()] for _, arrays in parts],
        "description": {k: v for k, v in opened.describe().items() if k != "arrays"},
    }


def _listed(part: Part, opened: Release, arrays: dict[str, Any]) -> list[Any]:
    shapes = part.shapes(opened.parameters.values, opened.parameters.keys)
    return [arrays[name] for name, (_, length) in shapes.items() if length is None]


def _padded(size: int) -> int:
    return size + -size % 8


def published(folder: Path, table: Any, **goal: Any) -> Seen:
    """What `publish` lets one see: a file, or a refusal."""
    path = folder / "seen.hub"
    try:
        publish(table, **{**BOUNDS, **goal}).save(path)
    except Refused as refusal:
        return {"refused": str(refusal)}
    return seen(path)


#: Tables that differ by one unit of value, where types, widths, bounds and rounding could give that away.
NEIGHBOURS: dict[str, tuple[Any, Any]] = {
    "nothing, and a whole number as key": ({}, {17: 1}),
    "nothing, and a text as key": ({}, {"a": 1}),
    "whole numbers, and a text as well": ({17: 1}, {17: 1, "a": 1}),
    "text, and a whole number as well": ({"a": 1}, {"a": 1, 17: 1}),
    "arrays of keys": ((np.array([], dtype=np.int64), []), (np.array([17]), [1])),
    "a count that is clipped": ({"a": 100}, {"a": 101}),
    "the last number of 63 bits": ({"a": 2**63 - 1}, {"a": 2**63}),
    "the last number of 64 bits": ({"a": 2**64 - 1}, {"a": 2**64}),
    "the largest amount": ({"a": 2**52}, {"a": 2**52 + 1}),
    "a whole double": ({"a": 1.0}, {"a": 2}),
    "as many keys as declared": ({f"k{i}": 1 for i in range(50)}, {f"k{i}": 1 for i in range(51)}),
    "the declared sum": ({f"k{i}": 50 for i in range(40)}, {f"k{i}": 50 + (i == 0) for i in range(40)}),
}
SIGNED: dict[str, tuple[Any, Any]] = {
    "to the negative": ({"a": 0}, {"a": -1}),
    "numbers no integer type holds together": ({"a": 2**63 - 1, "b": -1}, {"a": 2**63, "b": -1}),
    "rows that cancel": (
        (["a"] * 3, [2**62, 1364, -(2**62)]),
        (["a"] * 3, [2**62, 1365, -(2**62)]),
    ),
}
REALS: dict[str, tuple[Any, Any]] = {
    "the smallest double": ({"a": 0.0}, {"a": 5e-324}),
    "a whole number among doubles": ({"a": 1.5, "b": 1}, {"a": 1.5, "b": 2}),
    "many small changes": ({"a": 0.5, "b": 0.5}, {"a": 0.125, "b": 0.875, "c": 0.25}),
    "the last finite double": ({"a": 1.7976931348623157e308}, {"a": 1.797693134862315e308}),
}
PAIRS = [
    *((name, pair, {}) for name, pair in NEIGHBOURS.items()),
    *((name, pair, {"signed": True}) for name, pair in SIGNED.items()),
    *((name, pair, {"kind": "reals"}) for name, pair in REALS.items()),
]


@pytest.mark.usefixtures("_fixed")
@pytest.mark.parametrize(("name", "pair", "goal"), PAIRS, ids=[name for name, _, _ in PAIRS])
def test_neighbours_look_the_same(
    tmp_path: Path, name: str, pair: tuple[Any, Any], goal: dict[str, Any]
) -> None:
    for algorithm in ("alp", "threshold"):
        one, two = (published(tmp_path, table, **goal, algorithm=algorithm) for table in pair)
        assert one == two
        assert "parameters" in one


@pytest.mark.usefixtures("_fixed")
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neighbours_look_the_same_whatever_the_algorithm(
    tmp_path: Path, algorithm: str, delta: float
) -> None:
    goal = {"algorithm": algorithm, "delta": delta, "universe": 1000}
    tables: list[Any] = [{}, {17: 1}, {17: 100}, {17: 101}, dict.fromkeys(range(51), 1)]
    looks = [published(tmp_path, table, **goal) for table in tables]
    assert all(look == looks[0] for look in looks)
    assert "parameters" in looks[0]


@pytest.mark.usefixtures("_fixed")
def test_the_kind_of_keys_is_declared(tmp_path: Path) -> None:
    """Text, unless a universe says that keys are whole numbers; 17 and "17" are the same key either way."""
    for table in ({}, {17: 1}, {"17": 1}, {"a": 1}):
        assert publish(table, **BOUNDS).parameters.keys.kind == "text"
    for table in ({}, {17: 1}, {"17": 1}):
        assert publish(table, **BOUNDS, universe=100).parameters.keys.kind == "integers"
    release = publish({17: 40}, **{**BOUNDS, "epsilon": 8})
    assert release[17] == release["17"]


# Per user


def rows_of(*records: tuple[Any, list[tuple[Any, Any]]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Columns of users, keys and values."""
    rows = [(user, key, value) for user, record in records for key, value in record]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


OTHERS = [("ann", [("x", 1), ("y", 2)]), ("bob", [("x", 3)])]
STRANGERS: dict[str, list[tuple[Any, list[tuple[Any, Any]]]]] = {
    "somebody with one key": [("eve", [("x", 1)])],
    "somebody with many keys": [("eve", [(f"k{i}", 1) for i in range(300)])],
    "somebody with many rows": [("eve", [("x", 5)] * 300)],
    "somebody with enormous values": [("eve", [("x", 2**70), ("z", 10**40)])],
    "somebody who is a number": [(17, [(18, 1)])],
    "rows of nobody": [(None, [("x", 1)]), ("", [("y", 1)])],
}


@pytest.mark.usefixtures("_fixed")
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("name", STRANGERS)
def test_tables_with_and_without_a_user_look_the_same(tmp_path: Path, name: str, delta: float) -> None:
    goal = {"max_entries": 3, "max_contribution": 4, "delta": delta}
    for others in ([], OTHERS):
        for algorithm in ("alp", "threshold-alp"):
            one, two = (
                published(tmp_path, rows_of(*records), **goal, algorithm=algorithm)
                for records in (others, others + STRANGERS[name])
            )
            assert one == two
            assert json.loads(one["parameters"])["users"] == {"max_entries": 3, "max_contribution": 4.0}


# The command


def printed(folder: Path, rows: list[tuple[Any, ...]], *options: object) -> Seen:
    """What the command prints, writes and returns; the size of a file with a list in it is left out."""
    table, output = write_csv(folder / "table.csv", rows), folder / "out.hub"
    output.unlink(missing_ok=True)
    arguments = ["release", table, "--epsilon", 1, *options, "-o", output]
    result = run_cli(*arguments)
    as_json = run_cli(*arguments, "--json")
    assert sorted(contents(folder)) == (["out.hub", "table.csv"] if result.exit_code == 0 else ["table.csv"])
    return {
        "exit": (result.exit_code, as_json.exit_code),
        "text": re.sub(r"out\.hub: [\d,]+ bytes", "out.hub: some bytes", result.stdout),
        "json": re.sub(r'^(.{,200}?"bytes": )\d+', r"\1 0", as_json.stdout),
        "file": seen(output) if output.exists() else None,
    }


COMMANDS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "no rows, and one": ([], [("a", "1")]),
    "a count of 64 bits": ([("a", 2**63 - 1)], [("a", 2**63)]),
    "a count of many digits": ([("a", 10**400)], [("a", 10**400 + 1)]),
    "whole numbers as keys": ([(1, 1)], [(1, 1), ("b", 1)]),
    "more than declared": ([("a", 2000)], [("a", 2000), ("b", 1)]),
}


@pytest.mark.usefixtures("_fixed")
@pytest.mark.parametrize("algorithm", ["alp", "threshold"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_prints_the_same_for_neighbours(tmp_path: Path, name: str, algorithm: str) -> None:
    options = ["--key", "k", "--count", "n", "--max-nonzero", 1, "--max-sum", 2000, "--algorithm", algorithm]
    one, two = (printed(tmp_path, [("k", "n"), *rows], *options) for rows in COMMANDS[name])
    assert one == two
    assert one["exit"] == (0, 0)


@pytest.mark.usefixtures("_fixed")
def test_the_command_prints_the_same_with_and_without_a_user(tmp_path: Path) -> None:
    options = ["--user", "u", "--key", "k", "--max-entries", 2, "--max-sum", 2000, "--algorithm", "alp"]
    some: list[tuple[Any, ...]] = [("u", "k"), ("ann", "x"), ("bob", "y")]
    more: list[list[tuple[Any, ...]]] = [
        [],
        [("eve", "x")],
        [("eve", f"k{i}") for i in range(300)],
        [("eve", "x")] * 300,
        [("", "x")] * 300,
    ]
    looks = [printed(tmp_path, [*some, *rows], *options) for rows in more]
    assert all(look == looks[0] for look in looks)
    assert looks[0]["exit"] == (0, 0)


def test_facts_about_the_table_are_on_the_error_stream_only(tmp_path: Path) -> None:
    """For the holder's terminal, in both forms of the output; that nothing else varies with them is tested above."""
    rows = [("u", "k"), *((f"user{i % 57}", f"key{i}") for i in range(731)), ("", "x")]
    table, output = write_csv(tmp_path / "t.csv", rows), tmp_path / "t.hub"
    arguments = ["release", table, "--user", "u", "--key", "k", "--max-entries", 5, "--epsilon", 1]
    for form in ([], ["--json"]):
        result = run_cli(*arguments, "--max-sum", 2000, "-o", output, *form)
        assert result.exit_code == 0
        for fact in ("57 users", "446 dropped at random", "1 rows without a user", "285 nonzero", "0 values"):
            assert fact in result.stderr
            assert fact not in result.stdout
        assert all(line.startswith("For you only, not private: ") for line in result.stderr.splitlines())
