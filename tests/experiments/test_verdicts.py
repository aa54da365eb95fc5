"""Numbers of papers beside ours: the rules of verdicts, and that the pages there are follow from their rows."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from hubbub.experiments.catalogue import catalogue
from hubbub.experiments.runner import Request
from hubbub.experiments.verdicts import bounded, claimed, printed, stated

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "reproduction").glob("*.md"))
#: Columns that are empty where nothing applies; elsewhere an empty cell is a column that a row does not have.
EMPTY = {"distance": None, "picked": None}


def verdict(*arguments: Any, **options: Any) -> str:
    return printed("x", *arguments, **options).verdict


def test_a_printed_number_agrees_as_far_as_rounding_and_chance_allow() -> None:
    assert verdict(6.4, 6.449) == verdict(6.4, 6.35) == "agrees"
    assert verdict(6.4, 6.451, why="of that").startswith("differs, 1 times the printed number: of that")
    assert verdict(48, 48.4) == "agrees"
    assert verdict(48, 5, why="of bits") == "differs, 0.1 times the printed number: of bits"
    assert verdict(5e-04, 5.4e-04) == "agrees"
    assert verdict(0.001, 0.0006) == "agrees"  # printed with one digit
    assert verdict(0.001, 0.0006, why="y", digits=2).startswith("differs")  # printed as 0.0010
    # Three standard errors of the difference, both numbers as noisy as ours.
    assert verdict(1.1, 1.1 + 0.05 + 4.2 * 0.1, 0.1) == "agrees"
    assert verdict(1.1, 1.1 + 0.05 + 4.3 * 0.1, 0.1, "y").startswith("differs")
    assert "no reason found" in verdict(1.0, 2.0)


def test_a_formula_holds_unless_a_mean_lies_above_it() -> None:
    assert bounded("x", 2.0, 1.9, 0.01).verdict == "holds"
    assert bounded("x", 2.0, 2.05, 0.01).verdict == "does not hold: 5.0 standard errors above"
    assert bounded("x", 2.0, 2.03, 0.01, equality=True).verdict.endswith(
        "measured +3.0 standard errors from it"
    )
    assert bounded("x", 2.0, 2.05, 0.01, equality=True).verdict.startswith("does not hold")
    assert bounded("x", 2.0, 1.5, 0.01, equality=True, below="cut").verdict == "holds: cut"


def test_what_is_said_in_round_numbers() -> None:
    assert claimed("x", 20, 15.0).verdict == claimed("x", 20, 70.0).verdict == "agrees"
    assert claimed("x", 20, 14.9, "y").verdict == "differs: y"
    assert stated("x", "flat", "1.2", True).line() == "| x | flat | 1.2 | agrees |"
    assert stated("x", "flat", "9", False, "y").verdict == "differs: y"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a page, as they were when it was made."""

    def value(text: str) -> Any:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return {"True": True, "False": False}.get(text, text)

    with path.open(encoding="utf-8", newline="") as file:
        return [
            {name: value(text) if text else None for name, text in row.items() if text or name in EMPTY}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_its_rows_say(page: Path) -> None:
    """Words, numbers and verdicts; nothing differs without a reason."""
    text = page.read_text(encoding="utf-8")
    made = re.search(r"Made by `hubbub reproduce (\S+) --(quick|full)( --data FOLDER)?`", text)
    assert made
    found = catalogue()[made[1]]
    request = Request(made[2] == "quick", Path("FOLDER") if made[3] else None)
    rows = rows_of(page.with_suffix(".csv"))
    assert found._page(rows, request) == text
    verdicts = [each.verdict for each in found.published(rows)]
    assert not any("no reason" in each for each in verdicts)
    assert all(each.startswith(("agrees", "holds", "differs")) for each in verdicts)
    if found.published(rows):
        assert "| verdict |" in text


def test_every_paper_has_pages() -> None:
    papers = {page.stem.split("-")[0] for page in PAGES}
    assert papers == {"aumuller", "girgis", "sets", "wang", "xiong", "zhou"}
