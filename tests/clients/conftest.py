"""Node, and the JavaScript client built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

JS = Path(__file__).parents[2] / "clients" / "js"


def _without(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def node() -> str:
    """Node 20 or newer: the environment's own, or the system's."""
    found = shutil.which("node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout if found else "v0"
    if int(said[1:].split(".")[0]) < 20 or not (JS / "node_modules").is_dir():
        _without("the JavaScript client needs Node 20 or newer and its packages: sh scripts/js.sh test")
    assert found
    return found


@pytest.fixture(scope="session")
def built(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's tests and their tools as programs of node, in a folder of their own."""
    folder = tmp_path_factory.mktemp("js")
    subprocess.run([node, "build.mjs", "--tests", str(folder)], cwd=JS, check=True)
    return folder
