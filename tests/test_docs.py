"""The documentation is run, not believed.

On every page, top to bottom, in one namespace and one temporary directory:

- a ```python block is executed; a ```output block right after it is what it must have printed, to the letter;
- in a ```console block, lines that begin with "$ hubbub" are run and must succeed. The other lines show what one
  run printed. Coins fall differently every time, so only lines that do not depend on them must have been printed
  now as well: all of `hubbub plan`, and what is said about a task;
- <!-- not run --> on the line before a block leaves it out;
- lines about a mechanism that has no page yet do not count: adding one does not make pages wrong that list them.

Links between pages must lead somewhere, modules that are named must be there, and every page of a mechanism needs a row
in the index.
"""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.mechanisms.registry import mechanisms
from hubbub.model.mechanism import registered

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOT_RUN = "<!-- not run -->"

_FENCE = re.compile(r"^(\s*)(```+)\s*(\w*)[^`]*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
_NAME = re.compile(r"\bhubbub(?:\.\w+)+")

#: Mechanisms that nobody has written about yet.
WITHOUT_PAGE = [name for name in mechanisms() if not (ROOT / "docs" / "mechanisms" / f"{name}.md").exists()]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line its text begins on."""

    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, except those marked as not run."""
    lines = page.splitlines()
    place = 0
    while place < len(lines):
        opening = _FENCE.match(lines[place])
        if not opening:
            place += 1
            continue
        indent, fence, language = opening.groups()
        body = []
        first = place + 1
        place += 1
        while place < len(lines) and lines[place].strip() != fence:
            body.append(lines[place].removeprefix(indent))
            place += 1
        if place == len(lines):
            raise ValueError(f"the block that begins on line {first} has no end")
        place += 1
        if first < 2 or lines[first - 2].strip() != NOT_RUN:
            yield Block(language, "\n".join(body), first + 1)


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of every `$ hubbub` line; a backslash at the end continues a line."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ hubbub "):
            yield shlex.split(line.removeprefix("$ "))


def fixed_lines(block: str) -> Iterator[str]:
    """Lines that a block shows and that every run prints."""
    planned = False
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            planned = line.startswith("$ hubbub plan")
        elif re.match(r"(keys|records|mechanism|estimates|report|guarantee)  ", line) or (
            planned and re.search(r"\w", line)
        ):
            yield " ".join(line.split())


def without_news(printed: str, names: list[str] = WITHOUT_PAGE) -> str:
    """What was printed, but for lines that begin with one of these mechanisms, as in tables and lists."""
    lines = printed.splitlines()
    return "\n".join(line for line in lines if not names or not re.match(rf"\W*({'|'.join(names)})\b", line))


def run_command(arguments: list[str]) -> str:
    """Run one command of a page in the current directory."""
    program = shutil.which("hubbub", path=str(Path(sys.executable).parent)) or shutil.which("hubbub")
    assert program, "the hubbub command is not installed"
    wide = {**os.environ, "COLUMNS": "92"}
    done = subprocess.run([program, *arguments[1:]], capture_output=True, text=True, timeout=120, env=wide)
    assert done.returncode == 0, f"$ {shlex.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_page(name: str, page: str) -> list[tuple[Block, str]]:
    """Execute a page in the current directory; what each block printed.

    The code is kept in a file of its own, with the page's line numbers, so that tracebacks point to the
    page's lines and compiled kernels have a place for their cache.
    """
    source = Path(f"{name}.py").resolve()
    module = types.ModuleType(name)
    module.__file__ = str(source)
    sys.modules[name] = module
    found = list(blocks(page))
    lines = [""] * (len(page.splitlines()) + 1)
    for block in found:
        if block.language == "python":
            code = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    source.write_text("\n".join(lines))
    printed: list[tuple[Block, str]] = []
    for block in found:
        text = ""
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("\n" * (block.line - 1) + block.text, str(source), "exec"), module.__dict__)
            text = output.getvalue()
        elif block.language == "console":
            text = "".join(run_command(arguments) for arguments in commands(block.text))
            said = " ".join(text.split())
            for line in fixed_lines(block.text):
                assert line in said, f"{name}, line {block.line}: {line!r} is not what is printed"
        elif block.language == "output":
            assert printed, f"{name}, line {block.line}: nothing has been printed yet"
            assert without_news(printed[-1][1]).rstrip() == block.text.rstrip(), (
                f"{name}, line {block.line}: printed otherwise"
            )
        printed.append((block, text))
    return printed


def label(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def active(page: Path) -> bool:
    """Whether there is anything to run on a page."""
    return any(block.language in ("python", "console") for block in blocks(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [page for page in PAGES if active(page)], ids=label)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = mechanisms()
    monkeypatch.chdir(tmp_path)
    name = "page_" + re.sub(r"\W", "_", label(page))
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    try:
        run_page(name, page.read_text(encoding="utf-8"))
    finally:
        registered.clear()
        registered.update(before)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as web views of Markdown make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+\s+(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_named_tests_exist(page: Path) -> None:
    for file, name in _TEST.findall(page.read_text(encoding="utf-8")):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def resolves(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_named_modules_exist(page: Path) -> None:
    """In prose and in blocks; names of files, as in hubbub.db, are something else."""
    packages = [path.parent.name for path in (ROOT / "src" / "hubbub").glob("*/__init__.py")]
    named = set(_NAME.findall(page.read_text(encoding="utf-8")))
    if page.name == "CONTRIBUTING.md":
        named -= {"hubbub.mechanisms.one_entry"}  # which its readers are about to write
    assert [name for name in sorted(named) if name.split(".")[1] in packages and not resolves(name)] == []


@pytest.mark.parametrize("name", mechanisms())
def test_every_mechanism_has_a_page_and_a_row(name: str) -> None:
    if name in WITHOUT_PAGE:
        pytest.skip(f"docs/mechanisms/{name}.md is not written yet")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    rows = [line for line in index.splitlines() if line.startswith("|")]
    link = f"(mechanisms/{name}.md)"
    assert any(link in row for row in rows), f"docs/index.md has no table row that links to {link}"


def test_every_page_of_a_mechanism_is_about_one() -> None:
    assert {page.stem for page in (ROOT / "docs" / "mechanisms").glob("*.md")} <= set(mechanisms())


def test_every_page_can_be_reached_from_the_index() -> None:
    start = ROOT / "docs" / "index.md"
    seen, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in seen:
                seen.add(target)
                waiting.append(target)
    assert [label(page) for page in PAGES if page not in seen and page.parent != ROOT] == []


def test_what_nobody_has_written_about_is_left_out() -> None:
    listing = "new  1\nold  2\n  new: 3\n│ new │ 4 │\nnewer 5\nold and new 6\n"
    assert without_news(listing, ["new"]).split("\n") == ["old  2", "newer 5", "old and new 6"]
    assert without_news(listing, []) == listing.rstrip()


def test_a_wrong_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: an error, another output, a refused command and a dead link."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wrong", types.ModuleType("wrong"))
    with pytest.raises(ZeroDivisionError):
        run_page("wrong", "# Wrong\n\n```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match="printed otherwise"):
        run_page("wrong", "```python\nprint(1)\n```\n\n```output\n2\n```\n")
    with pytest.raises(AssertionError, match="cannot be read"):
        run_page("wrong", "```console\n$ hubbub inspect \\\n  nowhere.bin\n```\n")
    assert run_page("wrong", f"{NOT_RUN}\n```console\n$ hubbub inspect nowhere.bin\n```\n") == []
    with pytest.raises(AssertionError, match="is not what is printed"):
        run_page("wrong", "```console\n$ hubbub plan --keys 5 --max-entries 1\nBest: coco.\n```\n")
    with pytest.raises(AssertionError, match="printed otherwise"):
        run_page("wrong", "```python\nprint('collision  1')\n```\n\n```output\n```\n")
    assert not resolves("hubbub.model.nothing")
    assert not resolves("hubbub.nowhere.task")
    page = tmp_path / "page.md"
    page.write_text("# One *thing*\n[a](#one-thing) [b](other.md) [c](#two) [d](https://example.org)\n")
    assert broken_links(page) == ["other.md", "#two"]
