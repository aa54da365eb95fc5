"""An environment of their own for the libraries that hubbub is compared with.

It is made once, in the user's cache folder, from the extra `peers` of pyproject.toml, and never touches the
environment that hubbub runs in. A peer script reads one JSON question and answers with JSON; it imports nothing of
hubbub, so that a peer's pins cannot matter here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from hubbub.primitives.errors import Refused

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def wanted() -> list[str]:
    """What the extra `peers` lists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed: list[str] = project["optional-dependencies"].get("peers", [])
    if not listed:
        raise Refused("pyproject.toml has no extra `peers` that says what to compare with.")
    return listed


def interpreter() -> Path:
    """The Python of the peers' environment, made first if need be."""
    packages = wanted()
    mark = hashlib.sha256(json.dumps([packages, sys.version]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hubbub" / f"peers-{mark}"
    python, done = folder / "bin" / "python", folder / ".complete"
    if not done.exists():
        print(f"making the peers' environment: {', '.join(packages)}", file=sys.stderr, flush=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                last = (made.stderr.strip().splitlines() or ["no message"])[-1]
                raise Refused(f"The libraries to compare with could not be installed ({last}).")
        done.touch()
    return python


def ask(script: str, question: dict[str, Any]) -> Any:
    """A peer script's answer to a question."""
    command = [str(interpreter()), "-W", "ignore", str(HERE / f"{script}.py")]
    ran = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise Refused(f"The peers' script {script} failed ({last}).")
    return json.loads(ran.stdout)
