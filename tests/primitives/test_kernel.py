"""Kernels: one source for two speeds, and a cache of compiled code that is never stale."""

from __future__ import annotations

import itertools
import os
import textwrap
from pathlib import Path

import pytest

from helpers import python
from hubbub.primitives.kernel import nth_other

#: A module with a kernel over a named tuple, which prints what it makes of a pair.
MODULE = """
from typing import NamedTuple
from hubbub.primitives.kernel import kernel

STEP = {step}

class Pair(NamedTuple):
    {fields}

@kernel
def scaled(pair):
    return pair.{first} * 1000 + pair.{second} + STEP
"""
USE = """
import sys
sys.path.insert(0, sys.argv[1])
from pairs import Pair, scaled
step = scaled.compiled(Pair)
print(step(Pair(left=2, right=3)), sum(step.stats.cache_hits.values()))
"""


def write(folder: Path, fields: tuple[str, str] = ("left", "right"), step: int = 0) -> None:
    lines = "\n    ".join(f"{field}: int" for field in fields)
    text = textwrap.dedent(MODULE).format(fields=lines, first="left", second="right", step=step)
    path = folder / "pairs.py"
    path.write_text(text)
    # Numba goes by the time of the file: the same time shows what our own fingerprint does.
    os.utime(path, (1_700_000_000, 1_700_000_000))


def ask(folder: Path) -> list[int]:
    """What the kernel says in a process of its own, and whether it came from the cache."""
    return [int(word) for word in python(USE, str(folder)).split()]


def test_compiled_code_is_kept_and_found_again(tmp_path: Path) -> None:
    write(tmp_path)
    assert ask(tmp_path) == [2003, 0]
    assert ask(tmp_path) == [2003, 1]


@pytest.mark.parametrize("change", [{"fields": ("right", "left")}, {"step": 7}], ids=["fields", "constant"])
def test_the_cache_is_not_stale(tmp_path: Path, change: dict[str, object]) -> None:
    """The same lines over fields in another order, or with another constant, are other code."""
    write(tmp_path)
    ask(tmp_path)
    write(tmp_path, **change)  # type: ignore[arg-type]
    assert ask(tmp_path) == [2003 + (7 if "step" in change else 0), 0]


def test_a_cache_that_cannot_be_read_is_an_empty_one(tmp_path: Path) -> None:
    """Damaged files, and files that name a type which is gone."""
    write(tmp_path)
    ask(tmp_path)
    kept = {path: path.read_bytes() for path in (tmp_path / "__pycache__").glob("*.nb?")}
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    for path, content in kept.items():
        path.write_bytes(content[: len(content) // 2])
        assert ask(tmp_path)[0] == 2003
        path.write_bytes(content.replace(b"Pair", b"Gone"))
    assert ask(tmp_path)[0] == 2003


def test_nth_other() -> None:
    """Against the definition, for every choice of numbers taken from 0 .. 5 in any order."""
    for size in range(5):
        for taken in itertools.permutations(range(6), size):
            free = [number for number in range(20) if number not in taken]
            assert [nth_other(n, taken, size) for n in range(10)] == free[:10]
            assert nth_other(1, [*taken, 0, 1, 2], size) == free[1]
