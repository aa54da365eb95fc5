"""Draw docs/images/layers.svg: the packages of hubbub in their layers, and which rests on which.

    python scripts/draw_layers.py

Layers come from the contract in pyproject.toml, arrows from the imports in the source, words from the packages'
docstrings. An arrow is left out where a longer way says the same: who imports `protocol` may import `model`, too.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "layers.svg"

#: Which packages each package imports.
Graph = dict[str, set[str]]

#: Where packages are drawn from left to right, in columns. Up and down is a matter of layers.
COLUMNS = {
    "primitives": 1.5,
    "model": 1.5,
    "mechanisms": 1.5,
    "protocol": 1.5,
    "tables": 0,
    "server": 1,
    "device": 2,
    "simulation": 1.5,
    "privacy": 3,
    "checks": 1.5,
    "plan": 3,
    "engines": 0,
    "release": 2.5,
    "calls": 3,
    "collect": 0,
    "experiments": 1.5,
    "cli": 1.5,
}
#: Of a box; one that has a row for itself is wider.
WIDTH, WIDER, HEIGHT = 234, 490, 74
#: From one column to the next, and from one row to the next.
ACROSS, DOWN = 256, 116
#: Between the boxes and the edge of the picture, and between an arrow and whatever is not its end.
MARGIN, CLEAR = 30, 14


def layers(root: Path = ROOT) -> list[list[str]]:
    """The declared layers, lowest first; packages that are side by side do not know each other."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    declared = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in reversed(declared)]


def imported(code: str) -> Iterator[str]:
    """Every module of hubbub that a module imports, at the top, inside a function or for type checking."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "hubbub")


def import_graph(source: Path = ROOT / "src" / "hubbub") -> Graph:
    """Imports between packages; the package itself, which names what is public, is not one of them."""
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    graph: Graph = {package: set() for package in sorted(packages)}
    for package, found in graph.items():
        for path in sorted((source / package).rglob("*.py")):
            for name in imported(path.read_text(encoding="utf-8")):
                found |= set(name.split(".")[1:2]) & packages - {package}
    return graph


def reachable(graph: Graph, package: str) -> set[str]:
    """All that a package rests on, directly or not."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def neighbours(graph: Graph) -> Graph:
    """The imports that do not follow from others."""
    return {
        package: {one for one in found if not any(one in reachable(graph, other) for other in found)}
        for package, found in graph.items()
    }


def first_sentence(package: Path) -> str:
    """What the docstring of a package begins with."""
    text = (package / "__init__.py").read_text(encoding="utf-8")
    whole = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    return whole.partition(". ")[0].rstrip(".")


def wrapped(text: str, longest: int) -> list[str]:
    """The text in as few lines as it takes, all about as long."""
    lines = textwrap.wrap(text, longest)
    while len(better := textwrap.wrap(text, longest - 1)) == len(lines):
        lines, longest = better, longest - 1
    return lines


class Board:
    """Boxes in rows, and arrows that go around them."""

    def __init__(self, rows: list[list[str]]) -> None:
        self.rows = rows
        self.row = {package: place for place, row in enumerate(rows) for package in row}
        #: Where arrows pass a row, so that no two of them lie on each other.
        self.lanes: list[list[float]] = [[] for _ in rows]

    def width(self, package: str) -> int:
        return WIDTH if len(self.rows[self.row[package]]) > 1 else WIDER

    def middle(self, package: str) -> float:
        return MARGIN + COLUMNS[package] * ACROSS + WIDTH / 2

    def span(self, package: str) -> tuple[float, float]:
        """From where to where arrows end at a box."""
        middle, half = self.middle(package), self.width(package) / 2 - CLEAR
        return middle - half, middle + half

    def top(self, row: int) -> float:
        return MARGIN / 2 + (len(self.rows) - 1 - row) * DOWN

    def lane(self, row: int, x: float, wanted: float) -> float:
        """Where an arrow at x can pass a row: at the free place nearest to `wanted`, without small wriggles."""
        blocked = [(self.middle(package), self.width(package) / 2 + CLEAR) for package in self.rows[row]]
        blocked += [(lane, CLEAR) for lane in self.lanes[row]]
        wanted = x if abs(x - wanted) < 3 * CLEAR else wanted
        tries = [wanted, *(edge for other, half in blocked for edge in (other - half, other + half))]
        free = [place for place in tries if all(abs(place - other) >= half for other, half in blocked)]
        chosen = min(free, key=lambda place: (abs(place - wanted), place))
        self.lanes[row].append(chosen)
        return chosen

    def way(self, start: float, upper: int, end: float, lower: int) -> str:
        """A smooth path from the bottom of one row to the top of another."""
        x, y = start, self.top(upper) + HEIGHT
        path = [f"M{x:g} {y:g}"]
        for row in range(upper - 1, lower - 1, -1):
            last = row == lower
            straight = start + (end - start) * (upper - row) / (upper - lower)
            to = end if last else self.lane(row, x, straight)
            bottom = self.top(row) - (7 if last else 0)
            bend = (y + bottom) / 2
            path.append(f"C{x:g} {bend:g} {to:g} {bend:g} {to:g} {bottom:g}")
            x, y = to, bottom
            if not last:
                y += HEIGHT
                path.append(f"V{y:g}")
        return "".join(path)

    def ports(self, arrows: list[tuple[str, str]], side: int) -> dict[tuple[str, str], float]:
        """Where arrows leave (side 0) or reach (side 1) their boxes: above or below the other end, if possible."""
        found = {}
        for package in self.row:
            own = [arrow for arrow in arrows if arrow[side] == package]
            own.sort(key=lambda arrow: (self.middle(arrow[1 - side]), self.row[arrow[1 - side]]))
            left, right = self.span(package)
            for place, arrow in enumerate(own):
                most = right - 2 * CLEAR * (len(own) - 1 - place)
                (a, b), (c, d) = self.span(arrow[0]), self.span(arrow[1])
                found[arrow] = min(max((max(a, c) + min(b, d)) / 2, left), most)
                left = found[arrow] + 2 * CLEAR
        return found


def draw(root: Path = ROOT) -> str:
    """The picture."""
    source = root / "src" / "hubbub"
    graph = import_graph(source)
    board = Board([row for row in layers(root) if set(row) <= graph.keys()])
    arrows = [(upper, lower) for upper, found in neighbours(graph).items() for lower in sorted(found)]
    arrows.sort(key=lambda arrow: (board.row[arrow[0]] - board.row[arrow[1]], arrow))
    leave, reach = board.ports(arrows, 0), board.ports(arrows, 1)
    on_device = {"device"} | reachable(graph, "device")
    width, height = 2 * MARGIN + 3 * ACROSS + WIDTH, board.top(0) + HEIGHT + 1.6 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>The packages of hubbub: each rests on the ones below it</title>",
        "<style>.arrow { fill: none; stroke: #7d8590; stroke-width: 1.6; marker-end: url(#tip) } "
        ".box { fill: #eef1f5; stroke: #7d8590 } .device { fill: #cfe3ff; stroke: #3f7fd6 } "
        "text { text-anchor: middle } "
        ".name { font-size: 15px; font-weight: 600; fill: #16202c } .what { font-size: 11px; fill: #35414f } "
        ".note { font-size: 12px; fill: #7d8590; text-anchor: start }</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7d8590"/></marker>',
    ]
    for arrow in arrows:
        upper, lower = arrow
        way = board.way(leave[arrow], board.row[upper], reach[arrow], board.row[lower])
        parts.append(f'<path class="arrow" d="{way}"><title>{upper} imports {lower}</title></path>')
    for package, row in board.row.items():
        x, y, wide = board.middle(package), board.top(row), board.width(package)
        lines = wrapped(first_sentence(source / package), int((wide - 2 * CLEAR) / 5.8))
        base = y + HEIGHT / 2 + 4 - 7 * len(lines)
        kind = "device" if package in on_device else "box"
        parts.append(
            f'<rect class="{kind}" x="{x - wide / 2:g}" y="{y:g}" width="{wide}" height="{HEIGHT}" rx="7"/>'
            f'<text class="name" x="{x:g}" y="{base:g}">{package}</text>'
        )
        for place, line in enumerate(lines):
            parts.append(f'<text class="what" x="{x:g}" y="{base + 16 + 14 * place:g}">{escape(line)}</text>')
    note = "An arrow: imports, and may import what is below that, too. Blue: what a device loads."
    parts.append(f'<text class="note" x="{MARGIN}" y="{height - 14:g}">{note}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
