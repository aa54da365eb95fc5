"""What several test files share."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import settings
from numpy.typing import NDArray

from hubbub.calls import run
from hubbub.checks.conformance import task_for
from hubbub.cli import main
from hubbub.mechanisms.registry import make_mechanism
from hubbub.primitives import coins
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task

GOLDEN = Path(__file__).parent / "golden"

#: Hypothesis without surprises: the same examples every time.
steady = settings(derandomize=True, deadline=None, max_examples=150)

#: Natural log of one over the false-alarm rate of every statistical test here.
ALARM = math.log(1e6)


def small_task(name: str = "collision", size: int = 10, **parameters: Any) -> Task:
    """A task over a few integer keys, for where the fixture `make_task` is out of reach."""
    return task_for(make_mechanism(name, **{"epsilon": 1.0, "max_entries": 2, **parameters}), size)


# Statistics


def fits(counts: Sequence[int] | NDArray[np.int64], law: Sequence[float] | NDArray[np.float64]) -> bool:
    """Pearson's chi-square test of counts against a law; a true law fails with probability 1e-6 or less.

    The limit is the tail bound P(X >= d + 2 sqrt(d x) + 2 x) <= exp(-x) for X chi-square with d degrees.
    """
    found, mass = np.asarray(counts, dtype=np.float64), np.asarray(law, dtype=np.float64)
    assert math.isclose(mass.sum(), 1, rel_tol=1e-9)
    expected = found.sum() * mass
    assert expected.min() >= 5, "cells are too thin for a chi-square test"
    freedom = len(mass) - 1
    statistic = float(((found - expected) ** 2 / expected).sum())
    return statistic <= freedom + 2 * math.sqrt(freedom * ALARM) + 2 * ALARM


def tilted(law: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The law with its first outcome 30% likelier than it should be."""
    wrong = np.array(law, dtype=np.float64)
    wrong[0] *= 1.3
    return wrong / wrong.sum()


# Refusals


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block is refused, and the one-line reason mentions all of these."""
    with pytest.raises(Refused) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def only_refused(call: Any) -> Any:
    """The call's result, or None if it was refused; any other exception is an error."""
    try:
        return call()
    except Refused:
        return None


def reason(call: Any) -> str:
    """Why a call is refused; quick enough for thousands of them."""
    try:
        call()
    except Refused as problem:
        return str(problem)
    raise AssertionError("not refused")


def flips(data: bytes) -> Iterator[bytes]:
    """The data with every single bit flipped in turn."""
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)


@contextmanager
def peak() -> Iterator[Callable[[], float]]:
    """Tells the most MiB that Python and numpy held at a time since the block began."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: (tracemalloc.get_traced_memory()[1] - before) / (1 << 20)
    finally:
        tracemalloc.stop()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# Command line


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that go away: it would land in what another test reads as a command's error stream."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def run_cli(*arguments: object) -> Result:
    """`hubbub ARGUMENTS`, in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def strict_json(text: str | bytes) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def succeed(*arguments: object) -> dict[str, Any]:
    """What a command says with --json; it must succeed and print nothing else."""
    result = run_cli(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == "", result.stderr
    said: dict[str, Any] = strict_json(result.stdout)
    return said


def prose(*arguments: object) -> str:
    """What a command prints for people, as one line: where lines are broken depends on the terminal."""
    result = run_cli(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def refuse(*arguments: object) -> str:
    """The one line on stderr of a command that must be refused with exit code 1."""
    result = run_cli(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("hubbub: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    return result.stderr


def real_command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The installed `hubbub`, in a process of its own."""
    program = Path(sys.executable).with_name("hubbub")
    return subprocess.run(
        [program, *(str(argument) for argument in arguments)], capture_output=True, text=True, **options
    )


def python(code: str, *arguments: object) -> str:
    """What a fresh interpreter prints when it runs `code`."""
    command = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """A CSV file with these rows, the header first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def seeded_coins(monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
    """Commands flip one repeatable sequence of coins from here on, and their salts are all the same."""
    shared, public = InsecureCoins(seed), SimulatedSeeds(seed + 1)
    for module in (coins, run):
        monkeypatch.setattr(module, "SecretCoins", lambda: shared)
        monkeypatch.setattr(module, "SystemSeeds", lambda: public)
    monkeypatch.setattr("hubbub.model.keys.secrets.token_hex", lambda size: "5a" * size)
