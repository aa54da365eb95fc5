"""The documentation as a site: built without a warning, links that lead somewhere, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import hubbub
from hubbub.mechanisms.registry import mechanisms

ROOT = Path(__file__).resolve().parent.parent

#: One process builds the site for all of these.
pytestmark = pytest.mark.xdist_group("site")


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make docs` for the repository in a folder. (With --quiet mkdocs would overlook its own warnings.)"""
    for needed in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; in mkdocs.yml warnings are errors."""
    assert re.search(r"^strict: true$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Links(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loads.append(given["href"])


def dead_ends(folder: Path) -> dict[str, list[str]]:
    """By page: links to files or anchors that are not there, and whatever is loaded from elsewhere."""
    pages = {path: Links(path) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}
    found: dict[str, list[str]] = defaultdict(list)
    for path, page in pages.items():
        for link in page.links + page.loads:
            if re.match(r"[a-z]+:|//", link):
                if link in page.loads and not link.startswith("data:"):
                    found[path.name].append(link)
                continue
            name, anchor = urldefrag(link)
            target = (path.parent / unquote(name)).resolve() if name else path
            known = pages[target].anchors if target in pages else {""} if target.is_file() else set()
            if unquote(anchor) not in known and not (target in pages and anchor.startswith("__")):
                found[path.name].append(link)
    return dict(found)


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert dead_ends(site.resolve()) == {}


def test_every_page_is_on_the_site(site: Path) -> None:
    """With those that are beside docs/."""
    found = (path for ending in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{ending}"))
    pages = [path.relative_to(ROOT / "docs") for path in found]
    pages += [Path(f"{name}.md") for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG")]
    assert [page for page in pages if not (site / page.with_suffix(".html")).exists()] == []
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in pages:
        assert f'href="{page.with_suffix(".html").as_posix()}"' in menu, f"{page} is not in the menu"


def test_what_is_public_is_in_the_reference(site: Path) -> None:
    """With its docstring."""
    reference = (site / "api.html").read_text(encoding="utf-8")
    anchors = Links(site / "api.html").anchors
    for name in set(hubbub.__all__) - {"__version__"}:
        # `plan` is a package that can be called; what it calls is in the reference.
        home = "hubbub.plan.overview" if name == "plan" else getattr(hubbub, name).__module__
        assert f"{home}.{name}" in anchors, name
    assert "hubbub.device.client.Client.report" in anchors
    assert "One private report of a record" in reference
    assert not any(name.rpartition(".")[2].startswith("_") for name in anchors if name.startswith("hubbub."))


def test_notebooks_are_pages_with_what_came_out(site: Path) -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        drawn = sum("image/png" in output for output in outputs)
        assert page.count('src="data:image/png;base64,') == drawn > 0
        assert page.count('class="outcome"') == sum(
            {"image/png", "text/html"} & output.keys() != set() for output in outputs
        )
        assert "local model" in page


def test_it_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {
        "guide.html",
        "api.html",
        "faq.html",
        *(f"mechanisms/{name}.html" for name in mechanisms()),
    } - places <= {
        f"mechanisms/{name}.html"
        for name in mechanisms()
        if not (ROOT / "docs" / "mechanisms" / f"{name}.md").exists()
    }
    assert any("Fieller" in entry["text"] or "unbiased" in entry["text"] for entry in index["docs"])


def test_a_dead_link_stops_the_build(tmp_path: Path) -> None:
    for name in ("docs", "scripts", "src", "examples"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "reproduction")
        )
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "docs" / "faq.md").write_text(
        "# Questions\n\n[here](nowhere.md), [there](guide.md#nothing)\n"
    )
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    for part in ("nowhere.md", "guide.md#nothing"):
        assert part in done.stdout + done.stderr


def test_the_checker_notices(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "one.html").write_text(
        '<h1 id="top"></h1><a href="sub/two.html#a%20b">1</a><a href="#top">2</a><a href="#low">3</a>'
        '<a href="three.html">4</a><a href="sub/two.html#c">5</a><a href="https://example.org/x">6</a>'
        '<script src="https://example.org/x.js"></script><img src="sub/none.png"><img src="data:image/png,x">'
    )
    (tmp_path / "sub" / "two.html").write_text('<p id="a b"></p><a href="../one.html">back</a>')
    assert dead_ends(tmp_path.resolve()) == {
        "one.html": ["#low", "three.html", "sub/two.html#c", "https://example.org/x.js", "sub/none.png"]
    }
