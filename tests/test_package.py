"""What a newcomer gets: archives that install, hints that name what exists, what a repository is expected to have."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import hubbub
from helpers import python
from hubbub.checks.worlds import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Goal
from hubbub.plan.ranking import rank
from hubbub.protocol.files import save_reports
from hubbub.simulation.forgery import forge

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hubbub"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

#: One process builds the archives for all of these.
pytestmark = pytest.mark.xdist_group("package")


def yaml(name: str) -> Any:
    """A YAML file of the repository."""
    return pytest.importorskip("yaml").safe_load((ROOT / name).read_text(encoding="utf-8"))


# Archives


def run(*command: object, **environment: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive, as `python -m build` makes them."""
    for needed in ("build", "hatchling"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("archives")
    copy = folder / "copy"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "demo", "out", "site"
    )
    shutil.copytree(ROOT, copy, ignore=unwanted)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy)
    return folder


def test_the_source_archive_holds_the_tests_and_no_ci(archives: Path) -> None:
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "pyproject.toml", "tests/test_package.py"} <= names
    assert [name for name in names if name.startswith((".ci", ".github", ".venv", ".pre-commit"))] == []


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(archives: Path) -> None:
    """Templates, styles and schemas, too."""
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    mine = [file for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert names == {file.relative_to(SOURCE.parent).as_posix() for file in mine}
    assert any(not name.endswith(".py") for name in names)


def test_the_wheel_installs_and_runs(archives: Path, tmp_path: Path) -> None:
    """In an environment of its own, without a network; what it depends on is lent by this one."""
    (wheel,) = archives.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    programs = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    # Not sys.path: Spark puts an archive of this package there.
    where = {"PYTHONPATH": os.pathsep.join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})}
    found = run(python, "-c", "import hubbub; print(hubbub.__file__)", **where).strip()
    assert Path(found).is_relative_to(tmp_path / "env")
    assert hubbub.__version__ in run(programs / "hubbub", "--version", **where)
    assert "sketch_response" in run(programs / "hubbub", "mechanisms", **where)


def test_versions_agree() -> None:
    assert hubbub.__version__ == PROJECT["version"] == yaml("CITATION.cff")["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", changes, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert PROJECT["version"] in headings


# What is installed with it


def needed(extra: str) -> set[str]:
    """The packages that `pip install hubbub[extra]` brings, with all that these need."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(f"hubbub[{extra}]")]
    while waiting:
        wanted = waiting.pop()
        name = re.sub("[-_.]+", "-", wanted.name).lower()
        for chosen in {"", *wanted.extras}:
            if (name, chosen) in found:
                continue
            found.add((name, chosen))
            if name == "hubbub":
                listed = PROJECT["dependencies"] if not chosen else EXTRAS[chosen]
            else:
                try:
                    listed = metadata.requires(name) or []
                except metadata.PackageNotFoundError:
                    continue
            for each in map(Requirement, listed):
                if each.marker is None or each.marker.evaluate({"extra": chosen}):
                    waiting.append(each)
    return {name for name, _ in found}


#: Hides packages from whatever is imported later, as if they were not installed.
HIDING = """
import importlib.abc, sys
from pathlib import Path
hidden = set(sys.argv[2].split())
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""
SERVING = """
try:
    import pytest
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("nothing is hidden")
from fractions import Fraction
import hubbub.collect.service, hubbub.collect.api, hubbub.collect.serving
from hubbub.cli import main
from hubbub.privacy.people import people_among
assert people_among(8000, Fraction(8)) > 900
main(["notice", sys.argv[1], "--json"], standalone_mode=False)
"""


def test_the_service_needs_nothing_but_its_extra(tmp_path: Path) -> None:
    """Whatever else is installed here is hidden: the service is loaded, and reports are looked at."""
    wanted = needed("serve")
    assert {"numpy", "fastapi", "starlette", "pyarrow", "cryptography"} <= wanted
    hidden = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {re.sub("[-_.]+", "-", owner).lower() for owner in owners} & wanted
    }
    assert {"pytest", "packaging"} <= hidden
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2), 20)
    save_reports(tmp_path / "some.reports", task, forge(task, 3000, "random", seed=1))
    said = python(HIDING + SERVING, tmp_path / "some.reports", " ".join(hidden | {"scipy"}))
    assert '"noticed": false' in said


# Hints


def names_of(extra: str) -> set[str]:
    """The distributions that an extra asks for, with those of the extras in it."""
    found: set[str] = set()
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.name == "hubbub":
            found |= {name for inner in requirement.extras for name in names_of(inner)}
        else:
            found.add(requirement.name)
    return found


#: Modules that come with a distribution of another name, as a part or because it needs them.
COMES_WITH = {"PIL": "matplotlib", "starlette": "fastapi"}


def hints(tree: ast.Module) -> list[tuple[str, str]]:
    """The module and the extra of every call of `optional`."""
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "optional"
    ]
    return [
        (arguments[0].split(".")[0], arguments[1] if len(arguments) > 1 else "")
        for arguments in ([ast.literal_eval(argument) for argument in call.args] for call in calls)
    ]


def test_every_hint_names_an_extra_that_brings_the_module() -> None:
    found = [
        hint for path in SOURCE.rglob("*.py") for hint in hints(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert ("pandas", "") in found
    assert ("pyarrow", "lake") in found
    for module, extra in found:
        if extra:
            assert COMES_WITH.get(module, module) in names_of(extra), f"hubbub[{extra}] has no {module}"


def test_every_extra_that_is_named_exists() -> None:
    """In messages and on pages."""
    texts = [*SOURCE.rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    found = set()
    for path in texts:
        for names in re.findall(r"(?:hubbub|'\.|\"\.)\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= EXTRAS.keys(), f"{path} names {names}"
            found |= set(names.split(","))
    assert {"fast", "plots", "accounting"} <= found


def test_all_that_the_service_is_served_by_is_asked_for() -> None:
    """uvicorn takes these by itself where they are installed: they have to be named to be there."""
    assert {"uvicorn", "httptools", "uvloop"} <= names_of("serve")
    assert all(
        not requirement.extras
        for requirement in map(Requirement, EXTRAS["serve"])
        if requirement.name != "hubbub"
    )
    if sys.platform != "win32":
        pytest.importorskip("uvicorn")
        from uvicorn.loops.auto import auto_loop_factory  # which of them it takes
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        assert "uvloop" in auto_loop_factory().__module__
        assert AutoHTTPProtocol.__module__.endswith("httptools_impl")


def test_what_a_device_needs_is_a_dependency_of_all() -> None:
    core = {Requirement(each).name for each in PROJECT["dependencies"]}
    assert core == {"numpy", "click", "rich", "pydantic", "filelock"}


# What is promised about the repository


def test_only_what_was_run_is_claimed() -> None:
    claimed = [each for each in PROJECT["classifiers"] if "3." in each or "Operating System" in each]
    assert claimed == ["Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3.11"]


def test_the_hooks_are_those_of_make_lint() -> None:
    recipe = re.search(
        r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert recipe
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    hooks = [
        hook["entry"]
        for repository in yaml(".pre-commit-config.yaml")["repos"]
        for hook in repository["hooks"]
    ]
    assert hooks == lint


def test_the_workflow_runs_what_is_there() -> None:
    jobs = yaml(".github/workflows/check.yml")["jobs"]
    assert jobs["everything"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    (tests,) = (step for step in steps if "pytest -n" in step)
    folders = re.findall(r"tests/\w+", tests)
    assert folders == ["tests/device", "tests/cli"]
    assert all((ROOT / folder).is_dir() for folder in folders)
    for step in steps:
        for names in re.findall(r"\.\[([a-z,]+)\]", step):
            assert set(names.split(",")) <= EXTRAS.keys()


def test_the_citation_has_what_the_format_asks_for() -> None:
    citation = yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]


def test_the_readme_is_right_about_when_there_is_no_hope() -> None:
    """About a quarter of 10,000 people, and a tenth of that with a hundred times as many."""
    found = [
        rank(Goal("frequency", 1.0, 8, users=users, keys=1000))[0].detectable for users in (10_000, 1_000_000)
    ]
    assert found[0] == pytest.approx(0.25, abs=0.03)
    assert found[1] == pytest.approx(found[0] / 10, rel=0.05)


# make


def dry_run(folder: Path, *arguments: str) -> str:
    """What make would do."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_the_demo_installs_little_and_the_tests_the_rest(tmp_path: Path) -> None:
    """In a bare clone; and where everything is installed, nothing is installed again."""
    assert re.findall(r"'\.\[(.*)\]'", dry_run(tmp_path, "demo")) == ["fast,plots"]
    assert re.findall(r"'\.\[(.*)\]'", dry_run(tmp_path, "test")) == ["dev"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed-demo").touch()
    assert "pip" not in dry_run(tmp_path, "demo", "-o", "pyproject.toml")
    assert re.findall(r"'\.\[(.*)\]'", dry_run(tmp_path, "test", "-o", "pyproject.toml")) == ["dev"]
    (tmp_path / ".venv" / ".installed").touch()
    assert "pip" not in dry_run(tmp_path, "test", "demo", "-o", "pyproject.toml")


@pytest.mark.skipif(shutil.which("sh") is None, reason="sh is not there")
def test_what_apt_installs_is_said_first(tmp_path: Path) -> None:
    """With programs that only say that they were called; neither a browser nor Java is among them."""
    programs = {"apt-get": 'echo "apt-get $*" >&2', "id": "echo 0", "java": "exit 1"}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("sed", "true"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    shell = shutil.which("sh")
    assert shell
    done = subprocess.run(
        [shell, str(ROOT / "scripts" / "install_system.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *calls = done.stderr.splitlines()
    assert "installs it with apt-get: chromium default-jre-headless" in first
    assert [call.split()[:2] for call in calls] == [["apt-get", "update"], ["apt-get", "install"]]
