"""The benchmark book: measures every section in one run and writes docs/benchmarks.md and docs/scale.md with pictures.

    python benchmarks/book.py                   all sections
    python benchmarks/book.py decode shuffle    only these; the others keep their rows
    python benchmarks/book.py --page-only       the pages again, from the rows of earlier runs
    python benchmarks/book.py --quick           everything tiny, into out/: does it still run?

Rows are kept in benchmarks/results, one file per section, with the machine that they were measured on. Every figure on
the pages comes from them. Ratios mean something, because both sides were measured in one run; seconds are
those of one machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import accuracy
import bins
import capacity
import decode
import device
import ingest
import lake
import limits
import longitudinal
import messages
import oracles
import pursuit
import release
import scaling
import sdpfe
import shorter
import shuffle
import strata
import tables
from hubbub.primitives.envelope import write_atomic
from page import Result, Section, load, run, save, write_page

ROOT = Path(__file__).resolve().parent.parent
SECTIONS: tuple[Section, ...] = (
    decode.SECTION,
    oracles.SECTION,
    device.SECTION,
    bins.SECTION,
    accuracy.SECTION,
    scaling.SECTION,
    shorter.SECTION,
    limits.SECTION,
    longitudinal.SECTION,
    shuffle.SECTION,
    messages.SECTION,
    sdpfe.SECTION,
    pursuit.SECTION,
    release.SECTION,
    ingest.SECTION,
    ingest.SINGLES,
    strata.SECTION,
    lake.SECTION,
    tables.SECTION,
    capacity.SECTION,
)
INTRODUCTION = """How fast and how accurate hubbub is, beside what one would use instead. This page is written by

<!-- not run -->
```console
$ make bench
```

from measured rows (`benchmarks/results`), and so is [Scale](scale.md). Both sides of a ratio were measured in
one run on one machine; the seconds are that machine's. Peers run in an environment of their own."""


def write_pages(results_folder: Path, docs: Path, sections: Sequence[Section] = SECTIONS) -> None:
    """Both pages from kept rows."""
    results: dict[str, Result] = {section.name: load(results_folder, section.name) for section in sections}
    docs.mkdir(parents=True, exist_ok=True)
    write_page("Benchmarks", INTRODUCTION, sections, results, docs)
    if results.get(capacity.SECTION.name, Result([], {})).rows:
        write_atomic(docs / "scale.md", capacity.day_page(results).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [section.name for section in SECTIONS]
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"which to measure: {', '.join(names)}"
    )
    parser.add_argument("--quick", action="store_true", help="tiny settings, written to out/")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument(
        "--folder", type=Path, help="where docs/ and benchmarks/results/ are (default: the project)"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.sections) - set(names))
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(names)}")
    folder = options.folder or (ROOT / "out" if options.quick else ROOT)
    results = folder / "benchmarks" / "results"
    for section in SECTIONS:
        if options.page_only or (options.sections and section.name not in options.sections):
            continue
        print(f"{section.name} ...", file=sys.stderr, flush=True)
        result = run(section, options.quick)
        save(results, section.name, result)
        if result.left_out:
            print(f"{section.name}: left out. {result.left_out}")
            continue
        print(f"{section.name} ({result.seconds:g} s)")
        for line in section.headlines(result.rows):
            print(f"  {line.what}: {line.figure}")
    write_pages(results, folder / "docs")
    print(f"wrote {folder / 'docs' / 'benchmarks.md'}", file=sys.stderr)


if __name__ == "__main__":
    main()
