"""What a device must load, and what it must not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hubbub
from helpers import python

#: Prints which of the packages named on the command line have been loaded.
LOADED = """
import sys
print(*[m for m in sys.argv[1:] if any(n == m or n.startswith(m + ".") for n in sys.modules)])
"""
SERVER = [f"hubbub.{name}" for name in ("server", "calls", "plan", "tables", "cli", "release", "privacy")]
HEAVY = ["scipy", "numba", "pandas", "polars", "pyarrow", "matplotlib", "rich", "click", "fastapi", *SERVER]
HEAVY.append("hubbub.experiments")

REPORT = """
from hubbub.device.client import Client
from hubbub.protocol.task import Task
mechanism = {"name": "sparse_sum", "epsilon": 1.0, "max_entries": 4, "values": "signed"}
task = Task.parse({"name": "x", "keys": {"kind": "closed", "size": 100}, "mechanism": mechanism})
assert len(Client(task).report({"1": 0.5})) == task.mechanism.layout.width
"""

HELP = """
import contextlib, io, sys
from hubbub.cli import main
asked, sys.argv[1:] = sys.argv[1:], ["--help"]
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main()
assert "privatize" in text.getvalue()
sys.argv[1:] = asked
"""


@pytest.mark.parametrize(
    ("code", "forbidden", "sign"),
    [
        (REPORT, HEAVY, "hubbub.mechanisms"),
        ("import hubbub.device.ledger", HEAVY, "hubbub.device.client"),
        (
            "import hubbub",
            ["numpy", "pydantic", "click", "hubbub.device", "hubbub.calls", "hubbub.plan"],
            "hubbub",
        ),
        (HELP, ["numpy", "pydantic", "pandas", "pyarrow", "hubbub.device", "hubbub.protocol.task"], "click"),
    ],
    ids=["report", "ledger", "hubbub", "help"],
)
def test_nothing_heavy_is_loaded(code: str, forbidden: list[str], sign: str) -> None:
    """`sign` must be there, which shows that the check sees what is loaded."""
    assert python(code + LOADED, *forbidden, sign).split() == [sign]


def test_public_names_are_loaded_on_demand() -> None:
    """Everything in __all__ can be had, and a wrong name is an AttributeError as elsewhere."""
    code = """
import hubbub
missing = [name for name in hubbub.__all__ if getattr(hubbub, name, None) is None]
assert not missing, missing
try:
    hubbub.Clinet
except AttributeError as problem:
    print(problem)
"""
    assert "Clinet" in python(code)


#: What only Unix has: importing it, or asking os for it, fails elsewhere.
UNIX = {"fcntl", "grp", "pwd", "resource", "syslog", "termios"}
UNIX_CALLS = {"fork", "fchmod", "fchown", "chown", "getuid", "geteuid", "mkfifo", "lockf", "O_DIRECTORY"}
#: A device loads these; the command line does without the service's own package until it is asked for it.
EVERYWHERE = ["primitives", "model", "mechanisms", "protocol", "device", "server", "tables", "cli"]


def unix_only(text: str) -> list[str]:
    """Names in a module that only Unix has."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in UNIX]
        elif isinstance(node, ast.ImportFrom) and node.module in UNIX:
            found.append(node.module)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr in UNIX_CALLS:
            found.append(node.attr)
    return found


def test_nothing_is_for_unix_only() -> None:
    source = Path(hubbub.__file__).parent
    for path in (path for package in EVERYWHERE for path in sorted((source / package).rglob("*.py"))):
        assert unix_only(path.read_text(encoding="utf-8")) == [], path
    assert unix_only("def late():\n    import fcntl\n    os.fork()\n") == ["fcntl", "fork"]
