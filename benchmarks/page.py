"""Sections of the benchmark book: what a section is, how its rows are kept, and how pages are written from them."""

from __future__ import annotations

import io
import json
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubbub.engines.pool import cores
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import Refused, optional
from timing import Row, machine

#: Load per core up to which a machine counts as quiet: the book's own last section still shows in the average.
QUIET = 1.2

STRONG, MUTED, LIGHT = "#b3312c", "#4a6a8a", "#9aa5ae"


@dataclass(frozen=True)
class Headline:
    """One ratio or rate for the top of the page."""

    what: str
    figure: str


@dataclass(frozen=True)
class Section:
    """One benchmark: what it measures, and how its rows become text and a picture.

    `full` and `quick` are the arguments of `measure`, for the book and for a short try.
    """

    name: str
    title: str
    measure: Callable[..., list[Row]]
    text: Callable[[list[Row]], str]
    full: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    plot: Callable[[list[Row], Any], None] | None = None
    caption: str = ""
    size: tuple[float, float] = (7.0, 3.4)
    headlines: Callable[[list[Row]], list[Headline]] = lambda rows: []


@dataclass(frozen=True)
class Result:
    """Measured rows with the machine they come from, or why there are none."""

    rows: list[Row]
    machine: dict[str, str]
    seconds: float = 0.0
    left_out: str = ""
    #: Programs per core that wanted to run besides the benchmark when it began.
    load: float = 0.0


def run(section: Section, quick: bool) -> Result:
    """Measure a section; one that needs what is not installed gives the reason instead."""
    start, load = time.perf_counter(), os.getloadavg()[0] / cores()
    try:
        rows = section.measure(**(section.quick if quick else section.full))
    except Refused as problem:
        return Result([], machine(), left_out=str(problem))
    seconds = round(time.perf_counter() - start, 1)
    return Result(json.loads(json.dumps(rows)), machine(), seconds, load=round(load, 1))


def save(folder: Path, name: str, result: Result) -> None:
    """Keep a result; one that was left out does not replace a measured one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if result.left_out and path.exists():
        return
    write_atomic(path, (json.dumps(vars(result), indent=1) + "\n").encode())


def load(folder: Path, name: str) -> Result:
    """A kept result."""
    path = folder / f"{name}.json"
    if not path.exists():
        return Result([], {}, left_out=f"It has not been measured yet: `python benchmarks/book.py {name}`.")
    return Result(**json.loads(path.read_text(encoding="utf-8")))


def prose(text: str) -> str:
    """A paragraph, wrapped as the other pages are."""
    return textwrap.fill(" ".join(text.split()), 116, break_long_words=False, break_on_hyphens=False)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; columns after the first `words` are aligned right."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * words + "|--:" * (len(heads) - words) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def times(ratio: float) -> str:
    """A ratio for people: two figures, thousands separated."""
    if ratio < 10:
        return f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"
    digits = len(str(int(ratio))) - 2
    return f"{round(ratio, -digits):,.0f}x"


def duration(seconds: float) -> str:
    """A time for people, with three figures at most."""
    for unit, name in ((3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return (
                f"{seconds / unit:,.3g} {name}" if seconds / unit < 1000 else f"{seconds / unit:,.0f} {name}"
            )
    return f"{seconds * 1e9:.3g} ns"


def amount(number: float, unit: str = "") -> str:
    """A number for people: 2.4 million."""
    for step, name in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if number >= step:
            return f"{number / step:.3g}{name}{unit}"
    return f"{number:,.0f}{unit}"


def draw(section: Section, rows: list[Row], path: Path) -> None:
    """Write a section's picture."""
    assert section.plot is not None
    optional("matplotlib", "plots")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=section.size, layout="constrained")
    FigureCanvasAgg(figure)
    section.plot(rows, figure)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                _few_ticks(axis)
    picture = io.BytesIO()
    # Without the writer's version in it, the same rows give the same bytes wherever matplotlib is the same.
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())


def _few_ticks(axis: Any) -> None:
    """Powers of ten only, with some between where there are fewer than two; nothing on the minor ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high / low < 100:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 10 else (1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """A tick's label: 3e5 rather than 300000 or 3e+05."""
    return f"{value:g}" if 0.01 <= value < 10_000 else f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")


def write_page(
    title: str, introduction: str, sections: Sequence[Section], results: dict[str, Result], docs: Path
) -> str:
    """docs/benchmarks.md with its pictures; returns the text."""
    measured = [results[section.name] for section in sections if results[section.name].rows]
    usual = measured[0].machine if measured else machine()
    parts = [f"# {title}", introduction, _machine_words(usual), _headlines(sections, results)]
    for section in sections:
        result = results[section.name]
        parts.append(f"## {section.title}")
        if result.left_out:
            parts.append(f"Left out. {result.left_out}")
            continue
        parts.append(section.text(result.rows))
        if section.plot is not None:
            name = f"images/benchmarks/{section.name}.png"
            draw(section, result.rows, docs / name)
            parts.append(f"![{section.caption or section.title}]({name})")
        note = "" if result.machine == usual else " " + _machine_words(result.machine)
        if result.load > QUIET:
            note += f" The machine was busy: {result.load:g} other programs per core, so times and ratios are rough."
        parts.append(f"*`python benchmarks/book.py {section.name}`, {duration(result.seconds)}.{note}*")
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_atomic(docs / "benchmarks.md", text.encode())
    return text


def _machine_words(found: dict[str, str]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in found.items() if name != "processor")
    return f"Measured on: {found['processor']}, {facts}."


def _headlines(sections: Sequence[Section], results: dict[str, Result]) -> str:
    found = [line for s in sections if results[s.name].rows for line in s.headlines(results[s.name].rows)]
    return table(["in short", ""], [[line.what, line.figure] for line in found]) if found else ""
