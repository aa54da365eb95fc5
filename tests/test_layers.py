"""The house: every package rests on the ones below it, and the page about it is true."""

from __future__ import annotations

import ast
import importlib.util
import pydoc
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hubbub
from hubbub import Client, Task, aggregate, estimate

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hubbub"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

MODULES = sorted(SOURCE.rglob("*.py"))


def script(name: str) -> Any:
    """A script, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DRAWING = script("draw_layers")
#: The declared packages, lowest first.
ORDER = [package for layer in DRAWING.layers() for package in layer]


def inside(path: Path) -> str:
    """The name of a file below src/hubbub."""
    return path.relative_to(SOURCE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# Imports


def backward(graph: dict[str, set[str]]) -> list[str]:
    """Imports that do not lead to a lower layer."""
    height = {package: place for place, layer in enumerate(DRAWING.layers()) for package in layer}
    return [
        f"{one} imports {other}"
        for one, found in graph.items()
        for other in sorted(found)
        if height[one] <= height[other]
    ]


def test_every_import_goes_down() -> None:
    """Hence there is no cycle. Imports inside functions and for type checking count."""
    graph = DRAWING.import_graph()
    assert {package for package in ORDER if package != "__main__"} == graph.keys()
    assert backward(graph) == []
    assert all(package not in DRAWING.reachable(graph, package) for package in graph)


LATE = "\n\ndef late() -> None:\n    import {}\n"
CASES = {
    "at the top": ("primitives/wire.py", "\nimport hubbub.server.fold\n"),
    "inside a function": ("device/ledger.py", LATE.format("hubbub.collect.store")),
    "for type checking": (
        "model/keys.py",
        "\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from hubbub.protocol.task import Task\n",
    ),
    "beside it": ("server/fold.py", LATE.format("hubbub.tables.records")),
    "device and server": ("device/client.py", LATE.format("hubbub.server.fold")),
}
#: The package itself leads everywhere, so importing it is no way around.
FRONT = {
    "by name": "\n\ndef late() -> object:\n    from hubbub import Client\n\n    return Client\n",
    "under another name": "\n\ndef late() -> object:\n    import hubbub as house\n\n    return house.Client\n",
}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the source with the real settings, to be spoiled."""
    shutil.copytree(SOURCE, tmp_path / "src" / "hubbub", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `make lint` says about the layers of the source in a folder."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    where = {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, timeout=120)


def test_the_contract_is_kept(copied: Path) -> None:
    for folder in (ROOT, copied):
        done = lint_imports(folder)
        assert done.returncode == 0, done.stdout
        assert "3 kept, 0 broken" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_contract_notices(copied: Path, case: str) -> None:
    """And so does the graph that is computed here, each by itself."""
    file, more = CASES[case]
    path = copied / "src" / "hubbub" / file
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    done = lint_imports(copied)
    assert done.returncode == 1, done.stdout
    assert f"hubbub.{file.removesuffix('.py').replace('/', '.')} ->" in done.stdout
    assert len(backward(DRAWING.import_graph(copied / "src" / "hubbub"))) == 1
    if case == "device and server":
        assert "Device and server know nothing of each other BROKEN" in done.stdout


@pytest.mark.parametrize("case", FRONT)
def test_the_contract_notices_who_comes_by_the_front_door(copied: Path, case: str) -> None:
    path = copied / "src" / "hubbub" / "model" / "record.py"
    path.write_text(path.read_text(encoding="utf-8") + FRONT[case], encoding="utf-8")
    done = lint_imports(copied)
    assert done.returncode == 1, done.stdout
    assert "Nobody inside comes in by the front door BROKEN" in done.stdout


def test_a_package_without_a_layer_is_noticed(copied: Path) -> None:
    (copied / "src" / "hubbub" / "attic").mkdir()
    (copied / "src" / "hubbub" / "attic" / "__init__.py").touch()
    done = lint_imports(copied)
    assert done.returncode == 1
    assert "hubbub.attic" in done.stdout


#: Modules that import others by names they have looked up: mechanisms, experiments, commands, public names, extras.
FINDERS = {
    "__init__.py",
    "mechanisms/registry.py",
    "experiments/catalogue.py",
    "cli/__init__.py",
    "primitives/errors.py",
}


def test_nobody_inside_comes_in_by_the_front_door() -> None:
    """The package itself leads everywhere: inside, it is good for its version and its folder only."""
    for path in MODULES:
        names, doors = [], {"hubbub"}
        nodes = list(ast.walk(parsed(path)))
        for node in nodes:
            if isinstance(node, ast.Import):
                doors |= {alias.asname for alias in node.names if alias.name == "hubbub" and alias.asname}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "hubbub":
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in doors:
                names.append(node.attr)
        assert all(name in (*ORDER, "__version__", "__file__") for name in names), inside(path)
        text = path.read_text(encoding="utf-8")
        assert "import_module(" not in text or inside(path) in FINDERS, inside(path)


# Names and sizes


def test_one_name_is_one_idea() -> None:
    """Modules and packages have names of their own. Only cli/NAME.py, a command, shares the name of what it is for."""
    ideas = [path for path in MODULES if path.name != "__init__.py" and path.parent.name != "cli"]
    ideas += [path.parent for path in MODULES if path.name == "__init__.py" and path.parent != SOURCE]
    names = {path.stem: inside(path.with_suffix("")).replace("/", ".") for path in ideas}
    assert [name for name, count in Counter(path.stem for path in ideas).items() if count > 1] == []
    for command in sorted((SOURCE / "cli").glob("[a-z]*.py")):
        if command.stem in names:
            idea = f"hubbub.{names[command.stem]}."
            found = DRAWING.imported(command.read_text(encoding="utf-8"))
            assert any(name.startswith(idea) for name in found), f"{inside(command)} does not use {idea}"


@pytest.mark.parametrize("path", MODULES, ids=inside)
def test_nothing_is_too_long(path: Path) -> None:
    """At most 400 lines a module, and 8 positional parameters a function."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            positional = len(node.args.posonlyargs) + len(node.args.args)
            assert positional <= 8, f"line {node.lineno} has {positional} positional parameters"


def test_the_front_door_shows_what_is_public() -> None:
    assert dir(hubbub) == hubbub.__all__ == sorted(hubbub.__all__)
    text = pydoc.plain(pydoc.render_doc(hubbub))
    for name in set(hubbub.__all__) - {"__version__"}:
        shown = f"class {name}(" if isinstance(getattr(hubbub, name), type) else f"\n    {name}("
        if name == "plan":  # a package that can be called
            shown = "\n    plan (package)"
        assert shown in text, name
    assert "importlib" not in text
    assert "_HOMES" not in text


# The page


def section(heading: str) -> str:
    """A section of the page."""
    found = re.search(rf"^## {heading}$(.*?)^## ", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(heading: str) -> Iterator[tuple[str, str]]:
    """The first two columns of the table in a section."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| `")]
    for line in lines:
        _, first, second, _ = line.split("|")
        yield first.strip().strip("`"), second


def test_the_picture_is_what_is_drawn() -> None:
    drawn = DRAWING.draw()
    committed = DRAWING.PICTURE.read_text(encoding="utf-8")
    assert committed == drawn, "imports have changed: run scripts/draw_layers.py"
    for one, found in DRAWING.neighbours(DRAWING.import_graph()).items():
        for other in found:
            assert f"{one} imports {other}" in drawn
    assert "images/layers.svg" in section("The layers")


def test_the_picture_follows_the_imports(copied: Path) -> None:
    """An arrow that is new, and one that now goes without saying."""
    path = copied / "src" / "hubbub" / "release" / "sizes.py"
    path.write_text(path.read_text(encoding="utf-8") + LATE.format("hubbub.protocol.task"))
    drawn, before = DRAWING.draw(copied), DRAWING.draw()
    assert ("release imports protocol" in before, "release imports protocol" in drawn) == (False, True)
    assert ("release imports model" in before, "release imports model" in drawn) == (True, False)


def test_the_map_has_every_package_and_only_modules_that_exist() -> None:
    found = dict(rows("The map"))
    assert list(found) == [package for package in ORDER if package != "__main__"]
    for package, words in found.items():
        known = {part for path in (SOURCE / package).rglob("*") for part in (path.stem,)}
        named = re.findall(r"`([a-z_]+)`", words)
        assert [name for name in named if name not in known] == [], package


def test_a_record_passes_the_files_that_the_page_names(
    make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `Client.report` to an estimate: at most eight files, in the order of the layers; the rest is named, too.

    Everything runs interpreted: compiled code cannot be followed, and following the compiler takes long.
    """
    monkeypatch.setattr("hubbub.primitives.walsh.numba_available", lambda: False)
    task: Task = make_task("collision", size=5)
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in file.parents and frame.f_code.co_name != "<module>":
            ran.add(inside(file))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        state = aggregate(task, Client(task).report({"1", "3"}))
        found = estimate(task, state)
    finally:
        sys.setprofile(before)
    assert (state.count, len(found)) == (1, 5)
    files = [file for file, _ in rows("One record, from start to end")]
    assert len(files) <= 8
    assert [ORDER.index(file.split("/")[0]) for file in files] == sorted(
        ORDER.index(file.split("/")[0]) for file in files
    )
    rest = section("One record, from start to end").rpartition("|")[2]
    others = re.findall(r"`([a-z_/]+\.py)`", rest)
    assert "`primitives/`" in rest
    assert not set(files) & set(others)
    assert {file for file in ran if not file.startswith("primitives/")} == {*files, *others}
