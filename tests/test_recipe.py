"""The recipe of CONTRIBUTING.md, tried as a reader would: two new files in a copy of the repository, nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent

#: A file that the recipe asks for, and what it says must be in it.
_FILE = re.compile(
    r"^The (?:source|test) file, `([\w/.]+)`.*?^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL
)

#: Tests that enumerate or list mechanisms, or look at all of the source.
LISTING = [
    "tests/mechanisms/test_one_entry.py",
    "tests/test_extension.py",
    "tests/test_layers.py",
    "tests/test_docs.py::test_page_runs[CONTRIBUTING]",
    "tests/test_docs.py::test_page_runs[docs/index]",
    "tests/test_docs.py::test_page_runs[docs/plan]",
    "tests/test_docs.py::test_every_mechanism_has_a_page_and_a_row",
    "tests/plan/test_plan.py::test_the_goals_reach_every_mechanism",
    "tests/plan/test_plan.py::test_reasons",
    "tests/plan/test_plan.py::test_byte_budgets",
    "tests/cli/test_cli_plan.py::test_json_is_the_ranking",
    "tests/cli/test_cli_plan.py::test_the_table_names_everything",
    "tests/cli/test_steps.py::test_what_can_be_listed",
    "tests/primitives/test_wire.py::test_the_first_mechanisms_are_pinned_and_still_there",
]


def recipe() -> dict[str, str]:
    """The files to write, by name."""
    return dict(_FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The repository as it is now, and the files of the recipe."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("this is not a checkout")
    folder = tmp_path / "copy"
    for name in found.stdout.split("\0"):
        if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name, text in recipe().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, *command: str | Path) -> str:
    """What a command prints that is run in the copy, on the copy's source; it must succeed."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment["PYTHONPATH"] = str(folder / "src")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_two_files_are_asked_for() -> None:
    assert list(recipe()) == ["src/hubbub/mechanisms/one_entry.py", "tests/mechanisms/test_one_entry.py"]


def test_lint_and_types_like_it(copied: Path) -> None:
    """What `make test` begins with; the environment is this one."""
    said = run(copied, "make", "lint", "types", f"BIN={PROGRAMS}", "-o", ".venv/.installed")
    for program in ("ruff check", "ruff format --check", "lint-imports", "mypy"):
        assert program in said
    assert "one_entry" in run(copied, PROGRAMS / "hubbub", "mechanisms")


def test_the_tests_find_it(copied: Path) -> None:
    """Its own, its conformance (pytest fails where nothing is selected), and those that list mechanisms.

    They must see it: the one that asks for its page says so, and nothing else is left out.
    """
    pytest_here = (sys.executable, "-m", "pytest", "-n", "0", "-rs")
    run(copied, *pytest_here, "tests/checks/test_conformance.py", "-k", "one_entry")
    said = run(copied, *pytest_here, *LISTING)
    assert "docs/mechanisms/one_entry.md is not written yet" in said
    assert " 1 skipped" in said
