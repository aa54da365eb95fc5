"""The first ten minutes: from a bare clone to the demo, in an environment that `make demo` sets up itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import write_csv

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

#: What packages are looked for with is of the machine; what Python is told to import is of these tests.
SURROUNDINGS = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The last commit, and nothing that lies around here."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None or shutil.which("make") is None:
        pytest.skip("needs git, make and a repository")
    command = ["git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "hubbub"]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "hubbub"


def run(command: str, folder: Path, **surroundings: str) -> str:
    """What a line of a shell prints."""
    made = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=SURROUNDINGS | surroundings,
        text=True,
        timeout=1200,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    return made.stdout


def test_from_a_bare_clone_to_estimates_of_ones_own(clone: Path, tmp_path: Path) -> None:
    """`make demo`, then README's way for a table, as it stands there, with the commands of that environment."""
    found = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", tmp_path / "try", "click"],
        capture_output=True,
    )
    if found.returncode and not os.environ.get("CI"):
        pytest.skip("no packages can be had here")
    said = run(f"make demo PYTHON={sys.executable}", clone)
    installed = re.search(r"Environment: (\d+) MB, set up in (\d+) s\.", said)
    assert installed is not None, said[-2000:]
    assert int(installed[1]) < 700  # not the browsers, Spark and notebooks that only the tests need
    assert "intervals hold the truth" in " ".join(said.split())
    assert (clone / "demo").is_dir()
    ratings = [("user", "item", "rating"), *((i // 4, i % 4, 1 + i % 5) for i in range(400))]
    write_csv(clone / "ratings.csv", ratings)
    block = README.split("## On your own table")[1].split("```sh\n")[1].split("```")[0]
    lines = block.strip().splitlines()
    assert [line.split()[0] for line in lines] == ["pip", "hubbub"]
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{SURROUNDINGS['PATH']}"
    for line in lines:
        said = run(line, clone, PATH=path)
    assert "epsilon = 1 per record, local model" in said
