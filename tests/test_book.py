"""The benchmark book: pages come from kept rows and from nothing else. Nothing here looks at a clock."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hubbub.primitives.errors import Refused

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The book, imported as its command is run: from the folder of benchmarks, whose modules are gone afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("book")
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_a_section_is_measured_kept_and_rebuilt(bench: ModuleType, tmp_path: Path) -> None:
    """One section alone; the page can be written again without measuring, and follows the rows."""
    bench.main(["decode", "--quick", "--folder", str(tmp_path)])
    page, kept = tmp_path / "docs" / "benchmarks.md", tmp_path / "benchmarks" / "results" / "decode.json"
    first = page.read_bytes()
    assert (tmp_path / "docs" / "images" / "benchmarks" / "decode.png").read_bytes().startswith(b"\x89PNG")
    bench.main(["--page-only", "--folder", str(tmp_path)])
    assert page.read_bytes() == first
    result = json.loads(kept.read_text())
    row = result["rows"][-1]
    row["prf_decode"], row["prf_absorb"] = 123_456 * (row["walsh_absorb"] + row["walsh_decode"]), 0.0
    kept.write_text(json.dumps(result))
    bench.main(["--page-only", "--folder", str(tmp_path)])
    assert "120,000x" in page.read_text()
    assert b"120,000x" not in first


def test_sections_without_rows_are_named(bench: ModuleType, tmp_path: Path) -> None:
    bench.main(["--page-only", "--folder", str(tmp_path)])
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    for section in bench.SECTIONS:
        assert f"python benchmarks/book.py {section.name}" in text


def test_what_is_missing_is_said_and_replaces_nothing(bench: ModuleType, tmp_path: Path) -> None:
    from page import Section, load, run, save

    def needs() -> list[dict[str, int]]:
        raise Refused("This needs tea: pip install tea.")

    section = Section("tea", "Tea", needs, str)
    result = run(section, quick=False)
    assert result.left_out == "This needs tea: pip install tea."
    save(tmp_path, "tea", result)
    assert load(tmp_path, "tea") == result
    good = run(Section("tea", "Tea", lambda: [{"x": 1}], str), quick=False)
    save(tmp_path, "tea", good)
    save(tmp_path, "tea", result)
    assert load(tmp_path, "tea") == good


def test_a_busy_machine_is_admitted(bench: ModuleType, tmp_path: Path) -> None:
    from page import Section, load, run, save, write_page

    section = Section("tea", "Tea", lambda: [{"x": 1}], str)
    calm = replace(run(section, quick=False), load=0.5)
    assert "busy" not in write_page("Book", "", [section], {"tea": calm}, tmp_path)
    save(tmp_path, "tea", replace(calm, load=6.5))
    page = write_page("Book", "", [section], {"tea": load(tmp_path, "tea")}, tmp_path)
    assert "6.5 other programs per core" in page


def test_the_machine_is_described_without_names(bench: ModuleType) -> None:
    from timing import machine

    found = machine()
    assert set(found) == {"processor", "cores", "memory", "system", "Python", "numpy", "numba"}
    assert str(ROOT) not in " ".join(found.values())


def test_slopes(bench: ModuleType) -> None:
    """A power law's exponent comes out exactly, and one that is 30% off would not pass for it."""
    from timing import slope

    sizes = [2.0**m for m in range(10, 20)]
    assert slope(sizes, [3 * x**1.5 for x in sizes]) == pytest.approx(1.5, abs=1e-9)
    assert abs(slope(sizes, [x**1.3 for x in sizes]) - 1.0) > 0.29


def test_numbers_for_people(bench: ModuleType) -> None:
    from page import amount, duration, prose, table, times

    ratios = [times(x) for x in (0.034, 1.26, 9.94, 12.4, 1234.0, 98_765.0)]
    assert ratios == ["0.034x", "1.3x", "9.9x", "12x", "1,200x", "99,000x"]
    spans = [duration(x) for x in (2e-9, 3.456e-6, 0.0123, 1.5, 999.9, 3600.0, 7.2e6)]
    assert spans == ["2 ns", "3.46 µs", "12.3 ms", "1.5 s", "1e+03 s", "1 h", "2,000 h"]
    assert [amount(x) for x in (12.0, 4_200.0, 2.5e6, 3e9)] == ["12", "4,200", "2.5 million", "3 billion"]
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|--:|\n| 1 | 2 |"
    assert max(map(len, prose("many words " * 100).splitlines())) <= 116


def test_an_unknown_section_is_refused(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["decoding", "--folder", str(tmp_path)])
    assert "there is no section 'decoding'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_pages_are_those_of_the_kept_rows(bench: ModuleType, tmp_path: Path) -> None:
    """Nobody has edited a figure on the published pages by hand."""
    shutil.copytree(BENCHMARKS / "results", tmp_path / "benchmarks" / "results")
    bench.main(["--page-only", "--folder", str(tmp_path)])
    for name in ("benchmarks.md", "scale.md"):
        assert (tmp_path / "docs" / name).read_text() == (ROOT / "docs" / name).read_text(), (
            f"docs/{name} differs from its rows: python benchmarks/book.py --page-only"
        )


def test_the_readme_has_the_figures_of_the_kept_rows(bench: ModuleType) -> None:
    """And no other page has ratios of its own."""
    from page import load

    kept = {section.name: load(BENCHMARKS / "results", section.name).rows for section in bench.SECTIONS}
    figures = {
        line.what: line.figure for section in bench.SECTIONS for line in section.headlines(kept[section.name])
    }
    decode, hashing, asking, error = (
        next(figure for what, figure in figures.items() if what.startswith(start))
        for start in (
            "decode of all 1,048,575 keys from 100,000 reports",
            "local hashing on the server, against pure-ldp",
            "querying a release, against OpenDP",
            "error of a release at epsilon 1: OpenDP over hubbub",
        )
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"([\d.,]+) times", readme.partition("## How it compares")[2]) == [
        figure.removesuffix("x") for figure in (decode, hashing, asking, error)
    ]
    stored = float(figures["reports a core of the service stores, on SQLite"].split()[0])
    lake = next(row for row in kept["lake"] if row.get("mechanism") == "sketch_response")
    added = lake["reports"] / lake["jobs_1"] / 1e6
    assert re.findall(r"(\d+) million (?:reports )?a second", readme) == [f"{stored:.0f}", f"{added:.0f}"]
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name not in ("benchmarks.md", "scale.md"):
            assert not re.search(r"\d(x| times) faster", page.read_text(encoding="utf-8")), page


def test_without_a_list_of_peers_nothing_is_installed(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers import environment

    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\nfast = []\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(Refused, match="no extra `peers`"):
        environment.ask("oracles", {})
    assert not (tmp_path / "cache").exists()


def test_a_day_is_added_up_from_the_rows(bench: ModuleType) -> None:
    """Half the rate takes twice the hours; nothing on the page is typed by hand."""
    from capacity import day_page
    from page import Result

    row = {"mechanism": "toy", "values": "set", "keys": 1000, "entries": 4, "bytes": 3, "single": 0.0036}
    row |= {"absorb": 1e6, "state": 8192, "peak": 9000, "decode": 0.5, "error": 1e-4, "wide": 1e-9}
    others = {"limits": Result([], {}), "service": Result([], {})}
    page = day_page({"capacity": Result([row], {}), **others})
    for words in (
        "3 billion bytes",
        "1,000 core hours",
        "0.28 core hours",
        "one user in 2,000",
        "1 s of one core",
    ):
        assert words in " ".join(page.split())
    slower = day_page({"capacity": Result([row | {"absorb": 5e5}], {}), **others})
    assert "0.56 core hours" in slower
