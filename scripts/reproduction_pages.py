"""Write the pages in docs/reproduction again from the rows they were made of, without running anything.

    python scripts/reproduction_pages.py

For when words or rules of verdicts have changed. The tests check that pages and rows go together.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from hubbub.experiments.catalogue import catalogue
from hubbub.experiments.runner import Experiment, Request

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reproduction"
#: Columns that are empty where nothing applies; elsewhere an empty cell is a column that a row does not have.
EMPTY = ("distance", "picked")


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False}.get(text, text)


def rows_of(page: Path) -> list[dict[str, Any]]:
    """The rows of a page, as they were when it was made."""
    with page.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return [
            {name: _value(text) if text else None for name, text in row.items() if text or name in EMPTY}
            for row in csv.DictReader(file)
        ]


def made_by(text: str) -> tuple[Experiment, Request]:
    """The experiment that a page is of, and how it was asked for."""
    made = re.search(r"Made by `hubbub reproduce (\S+) --(quick|full)( --data FOLDER)?`", text)
    assert made
    return catalogue()[made[1]], Request(made[2] == "quick", Path("FOLDER") if made[3] else None)


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        experiment, request = made_by(text)
        new = experiment._page(rows_of(page), request)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page.name)


if __name__ == "__main__":
    main()
